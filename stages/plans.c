/*
 * plans.c - read this file and know the engine: the stages of each kind of exchange, in order.
 *
 * SUM happens on the server between PUSH and PULL (engine/summation.c). The stages of a GPU (NCCL_REDUCE, COPYD2H,
 * COPYH2D, NCCL_BROADCAST) and of codecs (COMPRESS, DECOMPRESS) take their places in further plans beside these.
 */
#include "stages/plans.h"

const trib_plan trib_plans[] = {
    [TRIB_EXCHANGE_PUSH_PULL] = {"push_pull on host memory", {&trib_stage_push, &trib_stage_pull, NULL}},
    [TRIB_EXCHANGE_BROADCAST] = {"broadcast on host memory", {&trib_stage_push, &trib_stage_pull, NULL}},
};
