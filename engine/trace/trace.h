/*
 * trace.h - recording what partitions, sums and links do: hooks that cost one predictable branch when nothing is
 * recorded.
 *
 * Each core writes its own ring (trace_ring.h) at the times of its reactor, so the same hooks record in virtual time.
 * A tracer is the engine's part: starting and stopping, the clock's distance to the coordinator, the file. It records
 * from trib_engine_open on if the configuration names a file, which is then written when the last core has closed its
 * links: at the end of a job that failed just as of one that was closed.
 */
#ifndef TRIB_ENGINE_TRACE_H
#define TRIB_ENGINE_TRACE_H

#include "engine/wire/clock.h"
#include "engine/worker/pipeline.h"

#define TRIB_TRACE_BYTES_DEFAULT (UINT64_C(64) << 20)
#define TRIB_TRACE_BYTES_MAX (UINT64_C(1) << 36)
#define TRIB_TRACE_STAGES_MAX 32u
#define TRIB_TRACE_PATH_MAX 4096

/* One an engine. */
typedef struct trib_tracer {
    trib_engine *engine;
    atomic_bool on;
    bool opened; /* the rings are there; guarded by the engine's mutex, as is clock */
    trib_clock clock;
    uint64_t bytes;
    _Atomic int64_t began_ns;                                  /* the latest recording; of core 0's clock */
    _Atomic(const trib_stage *) stages[TRIB_TRACE_STAGES_MAX]; /* by the number that records use */
    char *path;                                                /* written at the end; NULL: not */
    atomic_uint cores_left;
    trib_timer clock_timer; /* core 0 */
    uint32_t questions;     /* asked since the recording began */
    int64_t asked_ns;       /* the latest of them */
    int64_t active_ns;      /* core 0: when an operation or a contribution came last */
    trib_post clock_post;
    atomic_bool clock_posted;
} trib_tracer;

/* ---- The engine's part ---- */

TRIB_CHECKED trib_status trib_tracer_open(trib_engine *engine, trib_error *error);
void trib_tracer_close(trib_engine *engine);
/* Core 0: the member knows the job. */
void trib_tracer_joined(trib_engine *engine);
/* Any core, once: its last link is closed. The last one writes the file. */
void trib_tracer_core_closed(trib_engine *engine);
/* Core 0: the coordinator has answered with its time. */
void trib_tracer_clock_answer(trib_engine *engine, const trib_frame *answer, int64_t now_ns);

/* Any thread. bytes: of all rings together, 0 for the default. Records of an earlier recording are forgotten.
 * TRIB_NO_MEMORY; TRIB_STATE if the rings are there and have another size. */
TRIB_CHECKED trib_status trib_tracer_start(trib_engine *engine, uint64_t bytes, trib_error *error);
void trib_tracer_stop(trib_engine *engine);
/* Any thread, also while recording goes on. Replaces the file as a whole or leaves what was there. TRIB_SYSTEM,
 * TRIB_NO_MEMORY, TRIB_STATE if nothing has ever been recorded. */
TRIB_CHECKED trib_status trib_tracer_write(trib_engine *engine, const char *path, trib_error *error);
/* This process keeps the membership, so its clock is the one that others are compared with. */
bool trib_tracer_is_reference(const trib_engine *engine);
/* trace_file.c: can a file be made in its folder? Asked before the hours are spent that it shall tell of. TRIB_SYSTEM. */
TRIB_CHECKED trib_status trib_trace_file_check(const char *path, trib_error *error);
/* As write, without its checks. */
TRIB_CHECKED trib_status trib_trace_file_write(trib_engine *engine, const char *path, trib_error *error);

/* TRIB_INVALID: a % in it that trib_tracer_path would not fill in. */
TRIB_CHECKED trib_status trib_trace_check_name(const char *pattern, trib_error *error);
/* Fills %r (rank2, server0, coordinator), %p (process id) and %h (host) in; without any % it appends ".%r.%p.trib". */
void trib_tracer_path(const trib_engine *engine, const char *pattern, char *path, size_t size);

/* ---- Hooks: the core's thread ---- */

static inline bool trib_trace_on(const trib_core *core)
{
    return __builtin_expect(atomic_load_explicit(&core->trace.on, memory_order_acquire), 0);
}

/* Not inline: what is done when recording is on. */
void trib_trace_task_put(trib_core *core, trib_trace_kind kind, const trib_task *task, int64_t at_ns, uint32_t value);
void trib_trace_op_put(trib_core *core, trib_trace_kind kind, const struct trib_op *op, int64_t at_ns);
void trib_trace_sum_put(trib_core *core, trib_trace_kind kind, const trib_contribution *what, uint32_t peer,
                        uint32_t value);
void trib_trace_link_put(trib_core *core, trib_trace_kind kind, const trib_link *link, uint32_t value);

/* What happened to a partition now. */
static inline void trib_trace_task(trib_core *core, trib_trace_kind kind, const trib_task *task, uint32_t value)
{
    if (trib_trace_on(core)) {
        trib_trace_task_put(core, kind, task, trib_now_often(core->reactor), value);
    }
}

/* It entered its stage at task->since_ns. */
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

static inline void trib_trace_sum(trib_core *core, trib_trace_kind kind, const trib_contribution *what, uint32_t peer,
                                  uint32_t value)
{
    if (trib_trace_on(core)) {
        trib_trace_sum_put(core, kind, what, peer, value);
    }
}

/* Links, and with NULL the core itself. */
static inline void trib_trace_link(trib_core *core, trib_trace_kind kind, const trib_link *link, uint32_t value)
{
    if (trib_trace_on(core)) {
        trib_trace_link_put(core, kind, link, value);
    }
}

#endif
