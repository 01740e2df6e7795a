/*
 * tracer.h - the tracer of an engine: starting and stopping a recording, the clock's distance to the coordinator, the
 * file.
 *
 * Each core writes its own ring (engine/trace/trace_ring.h) at the times of its reactor, so the same hooks record in
 * virtual time. An engine records from its opening on if the configuration names a file, which is then written when the
 * last core has closed its links: at the end of a job that failed just as of one that was closed.
 */
#ifndef TRIB_ENGINE_TRACER_TRACER_H
#define TRIB_ENGINE_TRACER_TRACER_H

#include "engine/wire/clock.h"
#include "engine/core/core.h"

#define TRIB_TRACE_BYTES_DEFAULT (UINT64_C(64) << 20)
#define TRIB_TRACE_BYTES_MAX (UINT64_C(1) << 36)
#define TRIB_TRACE_PATH_MAX 4096

/* Each engine has one. */
typedef struct trib_tracer {
    trib_engine *engine;
    atomic_bool on;           /* it records */
    bool opened;              /* the rings are there; guarded by the engine's mutex, as are clock and bytes */
    trib_clock clock;         /* answers of the coordinator about its time */
    uint64_t bytes;           /* of all rings together, 0..TRIB_TRACE_BYTES_MAX */
    _Atomic int64_t began_ns; /* when the latest recording began, by core 0's clock */
    char *path;               /* pattern of the file that is written at the end; NULL: none is */
    atomic_uint cores_left;   /* cores that have not closed their last link */
    trib_timer clock_timer;   /* core 0's: asks for the coordinator's time again */
    uint32_t questions;       /* asked since the recording began */
    int64_t asked_ns;         /* when the latest of them was */
    int64_t active_ns;        /* core 0: when an operation or a contribution came last */
    trib_post clock_post;
    atomic_bool clock_posted;
} trib_tracer;

/* ---- The engine's part ---- */

TRIB_CHECKED trib_status trib_tracer_open(trib_engine *engine, trib_error *error);
void trib_tracer_close(trib_engine *engine);
/* Core 0. The member knows the job from now on. */
void trib_tracer_joined(trib_engine *engine);
/* Any core, once. Its last link is closed; the last core to say so writes the file. */
void trib_tracer_core_closed(trib_engine *engine);
/* The core's thread. Data begins to move, which is a good moment to ask for the coordinator's time. */
void trib_tracer_data_began(trib_core *core, int64_t at_ns);
/* Core 0: the coordinator has answered with its time. */
void trib_tracer_clock_answer(trib_engine *engine, const trib_frame *answer, int64_t now_ns);

/* Any thread. bytes: of all rings together, 0 for the default. Records of an earlier recording are forgotten.
 * TRIB_NO_MEMORY; TRIB_STATE if the rings are there and have another size. */
TRIB_CHECKED trib_status trib_tracer_start(trib_engine *engine, uint64_t bytes, trib_error *error);
void trib_tracer_stop(trib_engine *engine);
/* Any thread, also while recording goes on. Replaces the file as a whole or leaves what was there. TRIB_SYSTEM,
 * TRIB_NO_MEMORY, TRIB_STATE if nothing has ever been recorded. */
TRIB_CHECKED trib_status trib_tracer_write(trib_engine *engine, const char *path, trib_error *error);
/* Does this process keep the membership? Then its clock is the one that others are compared with. */
bool trib_tracer_is_reference(const trib_engine *engine);
/* trace_file.c. Can the file be made? Asked at the start, not after hours of recording. TRIB_SYSTEM: it cannot. */
TRIB_CHECKED trib_status trib_trace_file_check(const char *path, trib_error *error);
/* As write, without its checks. */
TRIB_CHECKED trib_status trib_trace_file_write(trib_engine *engine, const char *path, trib_error *error);

/* TRIB_INVALID: a % in it that trib_tracer_path would not fill in. */
TRIB_CHECKED trib_status trib_trace_check_name(const char *pattern, trib_error *error);
/* Fills %r (rank2, server0, coordinator), %p (process id) and %h (host) in; without any % it appends ".%r.%p.trib". */
void trib_tracer_path(const trib_engine *engine, const char *pattern, char *path, size_t size);

#endif
