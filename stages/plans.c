/*
 * plans.c - the stages of each plan, in order. Start here to learn how the engine carries out a collective.
 *
 * A plan defines how bytes move; all-reduce and broadcast of a tensor use the same plan. The server sums between
 * PUSH and PULL (engine/aggregate/summation.c).
 */
#include "stages/plans.h"

static const trib_plan host = {
    .name = "host memory",
    .stages = {&trib_stage_compress, &trib_stage_push, &trib_stage_pull, &trib_stage_decompress, NULL},
};

static const trib_plan device_each = {
    .name = "one device on each machine",
    .stages = {&trib_stage_input, &trib_stage_nccl_reduce, &trib_stage_copy_d2h, &trib_stage_compress, &trib_stage_push,
               &trib_stage_pull, &trib_stage_decompress, &trib_stage_copy_h2d_last, NULL},
};

static const trib_plan devices = {
    .name = "devices of several machines",
    .stages = {&trib_stage_input, &trib_stage_nccl_reduce, &trib_stage_copy_d2h, &trib_stage_compress, &trib_stage_push,
               &trib_stage_pull, &trib_stage_decompress, &trib_stage_copy_h2d, &trib_stage_nccl_broadcast, NULL},
};

static const trib_plan staged = {
    .name = "devices, each by itself",
    .stages = {&trib_stage_input, &trib_stage_copy_d2h_staged, &trib_stage_compress, &trib_stage_push, &trib_stage_pull,
               &trib_stage_decompress, &trib_stage_copy_h2d_staged, NULL},
};

static const trib_plan one_machine = {
    .name = "devices of one machine",
    .is_local = true,
    .stages = {&trib_stage_input, &trib_stage_nccl_all_reduce, NULL},
};

const trib_plan *trib_plan_choose(const trib_tensor *tensor)
{
    if (!tensor->on_device) {
        return &host;
    }
    if (!tensor->is_sharded) {
        return &staged;
    }
    if (trib_engine_is_one_machine(tensor->engine)) {
        return &one_machine;
    }
    return tensor->engine->config.local_size == 1 ? &device_each : &devices;
}
