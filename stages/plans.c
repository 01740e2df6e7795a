/*
 * plans.c - read this file and know the engine: the stages of each kind of collective, in order.
 *
 * SUM happens on the server between PUSH and PULL (engine/aggregate/summation.c). The stages of codecs (COMPRESS, DECOMPRESS) take
 * their places in further plans beside these.
 */
#include "stages/plans.h"

const trib_plan trib_plans[] = {
    [TRIB_COLLECTIVE_ALL_REDUCE] = {"push_pull on host memory", {&trib_stage_push, &trib_stage_pull, NULL}},
    [TRIB_COLLECTIVE_BROADCAST] = {"broadcast on host memory", {&trib_stage_push, &trib_stage_pull, NULL}},
    [TRIB_COLLECTIVE_DEVICE_ALL_REDUCE] = {"push_pull on devices",
                                           {&trib_stage_input, &trib_stage_nccl_reduce, &trib_stage_copy_d2h,
                                            &trib_stage_push, &trib_stage_pull, &trib_stage_copy_h2d,
                                            &trib_stage_nccl_broadcast, NULL}},
    [TRIB_COLLECTIVE_DEVICE_ALONE] = {"push_pull or broadcast on the devices of one machine",
                                      {&trib_stage_input, &trib_stage_nccl_reduce, NULL}},
    [TRIB_COLLECTIVE_DEVICE_BROADCAST] = {"broadcast on devices",
                                          {&trib_stage_input, &trib_stage_nccl_reduce, &trib_stage_copy_d2h,
                                           &trib_stage_push, &trib_stage_pull, &trib_stage_copy_h2d,
                                           &trib_stage_nccl_broadcast, NULL}},
};
