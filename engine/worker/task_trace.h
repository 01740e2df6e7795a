/* task_trace.h - trace records of a worker's partitions and operations. */
#ifndef TRIB_ENGINE_TASK_TRACE_H
#define TRIB_ENGINE_TASK_TRACE_H

#include "engine/core/core_trace.h"
#include "engine/worker/op.h"

/* Called only while a trace is recorded. */
void trib_trace_task_put(trib_core *core, trib_trace_kind kind, const trib_task *task, int64_t at_ns, uint32_t value);
void trib_trace_op_put(trib_core *core, trib_trace_kind kind, const struct trib_op *op, int64_t at_ns);

/* Records an event of a partition at the current time. */
static inline void trib_trace_task(trib_core *core, trib_trace_kind kind, const trib_task *task, uint32_t value)
{
    if (trib_trace_on(core)) {
        trib_trace_task_put(core, kind, task, trib_now_fast(core->reactor), value);
    }
}

/* Records that the task entered its stage at task->since_ns. */
static inline void trib_trace_enter(trib_core *core, const trib_task *task)
{
    if (trib_trace_on(core)) {
        trib_trace_task_put(core, TRIB_TRACE_ENTER, task, task->since_ns, task->size);
    }
}

static inline void trib_trace_op(trib_core *core, trib_trace_kind kind, const struct trib_op *op, int64_t at_ns)
{
    if (trib_trace_on(core)) {
        trib_trace_op_put(core, kind, op, at_ns);
    }
}

#endif
