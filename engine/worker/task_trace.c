/* task_trace.c - see task_trace.h. */
#include "engine/worker/task_trace.h"

#include "engine/worker/pipeline.h"

void trib_trace_task_put(trib_core *core, trib_trace_kind kind, const trib_task *task, int64_t at_ns, uint32_t value)
{
    const bool stall = kind == TRIB_TRACE_STALL;
    const trib_stage *stage = trib_pipeline_stage(task);
    trib_trace_record record = {
        .at_ns = at_ns,
        .tensor = task->tensor->tag,
        .partition = task->partition,
        .round = task->op_core->op->round,
        .value = value,
        .peer = trib_trace_peer(stall ? task->missing_rank : task->owner.member),
        .kind = (uint8_t)kind,
        .stage = stage != NULL ? (uint8_t)stage->id : TRIB_TRACE_NO_STAGE,
    };
    trib_trace_ring_put(&core->trace, &record);
}

void trib_trace_op_put(trib_core *core, trib_trace_kind kind, const trib_op *op, int64_t at_ns)
{
    bool submit = kind == TRIB_TRACE_SUBMIT;
    if (submit) {
        core->engine->hooks->data_began(core, at_ns);
    }
    trib_trace_record record = {
        .at_ns = at_ns,
        .tensor = op->tensor->tag,
        .round = op->round,
        .value = submit ? (uint32_t)op->priority : (uint32_t)atomic_load(&op->claim),
        .extra = submit ? (uint32_t)trib_op_wire_collective(op) | (uint32_t)op->reduce << 8 | op->root << 16 : 0,
        .peer = TRIB_TRACE_NO_PEER,
        .kind = (uint8_t)kind,
        .stage = TRIB_TRACE_NO_STAGE,
    };
    trib_trace_ring_put(&core->trace, &record);
}
