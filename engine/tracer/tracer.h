/*
 * tracer.h - the tracer of an engine: it starts and stops a recording, compares clocks with the coordinator, and writes
 * the file.
 *
 * Each core writes its own ring (engine/trace/trace_ring.h) at the times of its reactor, so the same hooks record in
 * virtual time. If the configuration names a file, the engine records from its opening on. The file is written when the
 * last core has closed its links, whether the job was closed or has failed; and before, as often as it is asked for
 * (api/trace_flush.c), so that it is there if the process is killed.
 */
#ifndef TRIB_ENGINE_TRACER_TRACER_H
#define TRIB_ENGINE_TRACER_TRACER_H

#include "engine/wire/clock.h"
#include "engine/core/core.h"

#define TRIB_TRACE_BYTES_DEFAULT (UINT64_C(64) << 20)
#define TRIB_TRACE_BYTES_MAX (UINT64_C(1) << 36)
#define TRIB_TRACE_PATH_MAX 4096
#define TRIB_TRACE_CHOICES_MAX 32u

/* Each engine has one. */
typedef struct trib_tracer {
    trib_engine *engine;
    atomic_bool on;           /* a recording is on */
    bool opened;              /* the rings exist; guarded by the engine's mutex, as are clock and bytes */
    trib_clock clock;         /* the coordinator's answers about its time */
    uint64_t bytes;           /* size of all rings together, 0..TRIB_TRACE_BYTES_MAX */
    _Atomic int64_t began_ns; /* when the latest recording began, by core 0's clock */
    char *path;               /* pattern of the file that is written at the end; NULL: no file */
    pthread_mutex_t writing;  /* held while that file is written; guards finished, flushed and flush_failed */
    bool finished;            /* the file was written for the last time */
    bool flush_failed;        /* an early write has failed, which was logged */
    uint64_t flushed;         /* number of records that had been written when the file was written last */
    atomic_uint cores_left;   /* cores that have not closed their last link */
    trib_timer clock_timer;   /* core 0: asks for the coordinator's time again */
    uint32_t questions;       /* number of questions since the recording began */
    int64_t asked_ns;         /* time of the latest question */
    int64_t active_ns;        /* core 0: time of the latest operation or contribution */
    trib_post clock_post;
    atomic_bool clock_posted;
    char *choices[TRIB_TRACE_CHOICES_MAX]; /* guarded by the engine's mutex, as is their count */
    uint32_t choice_count;
} trib_tracer;

/* ---- The engine's part ---- */

TRIB_CHECKED trib_status trib_tracer_open(trib_engine *engine, trib_error *error);
void trib_tracer_close(trib_engine *engine);
/* Core 0: the member has got the roster. */
void trib_tracer_joined(trib_engine *engine);
/* Any core, once: the core's last link is closed. The last core writes the file. */
void trib_tracer_core_closed(trib_engine *engine);
/* The core's thread: data begins to move, which is a good moment to ask for the coordinator's time. */
void trib_tracer_data_began(trib_core *core, int64_t at_ns);
/* Core 0: the coordinator has answered with its time. */
void trib_tracer_clock_answer(trib_engine *engine, const trib_frame *answer, int64_t now_ns);

/* Any thread: adds a text about a choice of this process to the file, even if no recording is on. Of many choices only
 * the first ones are kept. */
void trib_tracer_note_choice(trib_engine *engine, const char *text);

/* Any thread: starts a recording, and drops the records of an earlier one. bytes: size of all rings together, 0 for the
 * default. TRIB_NO_MEMORY. TRIB_STATE: the rings exist with another size. */
TRIB_CHECKED trib_status trib_tracer_start(trib_engine *engine, uint64_t bytes, trib_error *error);
void trib_tracer_stop(trib_engine *engine);
/* Any thread, even during a recording: replaces the file as a whole or leaves it unchanged. TRIB_SYSTEM,
 * TRIB_NO_MEMORY. TRIB_STATE: nothing has ever been recorded. */
TRIB_CHECKED trib_status trib_tracer_write(trib_engine *engine, const char *path, trib_error *error);
/* A thread that may block: writes the file of the configuration as far as the recording has come, if there is anything
 * new. Nothing before the job has formed, because a server has no number yet, and nothing after the end. */
void trib_tracer_flush(trib_engine *engine);
/* Checks at the start of a recording that the file can be made, because an error hours later would be too late.
 * TRIB_SYSTEM: the file cannot be made. Defined in trace_file.c. */
TRIB_CHECKED trib_status trib_trace_file_check(const char *path, trib_error *error);
/* Writes the file without the checks of trib_tracer_write. */
TRIB_CHECKED trib_status trib_trace_file_write(trib_engine *engine, const char *path, trib_error *error);

/* Checks the file's pattern. TRIB_INVALID: it has a % that trib_tracer_path would not replace. */
TRIB_CHECKED trib_status trib_trace_check_name(const char *pattern, trib_error *error);
/* Replaces %r (rank2, server0, coordinator), %p (process id) and %h (host). A pattern without % gets ".%r.%p.trib"
 * appended. */
void trib_tracer_path(const trib_engine *engine, const char *pattern, char *path, size_t size);

#endif
