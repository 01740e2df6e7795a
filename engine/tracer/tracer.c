/* tracer.c - see tracer.h. */
#include "engine/tracer/tracer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"

#define CLOCK_BURST 8u                        /* first questions, asked in quick succession before the links are busy */
#define CLOCK_BURST_NS (2 * INT64_C(1000000)) /* time between two of the first questions */
#define CLOCK_PERIOD_NS (250 * INT64_C(1000000)) /* time between two later questions */
/* a question meets no data on its way if no data has moved for this long */
#define CLOCK_QUIET_NS (5 * INT64_C(1000000))
#define CLOCK_BETWEEN_NS (20 * INT64_C(1000000)) /* least time between two questions at quiet moments */

/* ---- The clock ---- */

/* Core 0: asks the coordinator for its time. Returns false if the coordinator cannot be asked now. */
static bool ask(trib_tracer *tracer, int64_t now_ns)
{
    if (!atomic_load(&tracer->on) || tracer->engine->cores[0].ended ||
        !tracer->engine->hooks->ask_time(tracer->engine)) {
        return false;
    }
    tracer->questions++;
    tracer->asked_ns = now_ns;
    return true;
}

/* True if this process keeps the membership, so that other clocks are compared with this one. */
static bool is_reference(const trib_engine *engine)
{
    return engine->coordinator != NULL || engine->member == NULL;
}

/*
 * Notes that data begins to move. A question that meets no data on its way gives a far better answer than others. So
 * the tracer asks when nothing has moved before, for example at the beginning of a step. A timer that waits for such
 * moments would wake the loop too often.
 */
void trib_tracer_data_began(trib_core *core, int64_t at_ns)
{
    trib_tracer *tracer = core->engine->tracer;
    if (core->reactor->index == 0) {
        const bool quiet = at_ns - tracer->active_ns >= CLOCK_QUIET_NS;
        tracer->active_ns = at_ns;
        if (quiet && at_ns - tracer->asked_ns >= CLOCK_BETWEEN_NS && !is_reference(tracer->engine)) {
            (void)ask(tracer, at_ns);
        }
    }
}

static void ask_for_time(trib_reactor *reactor, trib_timer *timer)
{
    trib_tracer *tracer = timer->user;
    const int64_t now_ns = trib_now(reactor);
    if (ask(tracer, now_ns)) {
        /* After a question that could not be sent, the next recording or the roster starts the timer again. */
        trib_timer_arm(reactor, timer, now_ns + (tracer->questions < CLOCK_BURST ? CLOCK_BURST_NS : CLOCK_PERIOD_NS));
    }
}

static void begin_asking(trib_tracer *tracer)
{
    if (!is_reference(tracer->engine)) {
        trib_reactor *reactor = tracer->engine->cores[0].reactor;
        trib_assert(trib_core_is_here(&tracer->engine->cores[0]));
        tracer->questions = 0;
        trib_timer_arm(reactor, &tracer->clock_timer, trib_now(reactor));
    }
}

static void started(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    const trib_core *core = reactor->owner;
    trib_tracer *tracer = core->engine->tracer;
    atomic_store(&tracer->clock_posted, false);
    begin_asking(tracer);
}

void trib_tracer_joined(trib_engine *engine)
{
    if (atomic_load(&engine->tracer->on)) {
        begin_asking(engine->tracer);
    }
}

void trib_tracer_clock_answer(trib_engine *engine, const trib_frame *answer, int64_t now_ns)
{
    trib_clock_sample sample;
    if (trib_clock_take(answer, now_ns, &sample)) {
        pthread_mutex_lock(&engine->mutex);
        trib_clock_add(&engine->tracer->clock, &sample);
        pthread_mutex_unlock(&engine->mutex);
    }
}

/* ---- Starting, stopping, writing ---- */

static trib_status open_rings(trib_tracer *tracer, uint64_t bytes, trib_error *error)
{
    trib_engine *engine = tracer->engine;
    if (tracer->opened) {
        return bytes == tracer->bytes
                   ? TRIB_OK
                   : trib_error_set(error, TRIB_STATE,
                                    "the engine's rings have %llu bytes since its first recording, not %llu",
                                    (unsigned long long)tracer->bytes, (unsigned long long)bytes);
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (!trib_trace_ring_open(&engine->cores[i].trace, bytes / engine->core_count)) {
            while (i-- > 0) {
                trib_trace_ring_close(&engine->cores[i].trace);
            }
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %llu bytes of trace",
                                  (unsigned long long)bytes);
        }
    }
    trib_assert(bytes > 0); /* 0 would choose the default at the next start */
    tracer->opened = true;
    tracer->bytes = bytes;
    return TRIB_OK;
}

trib_status trib_tracer_start(trib_engine *engine, uint64_t bytes, trib_error *error)
{
    trib_tracer *tracer = engine->tracer;
    pthread_mutex_lock(&engine->mutex);
    bool was_on = atomic_load(&tracer->on);
    bytes = bytes != 0 ? bytes : tracer->opened ? tracer->bytes : TRIB_TRACE_BYTES_DEFAULT;
    trib_status status = open_rings(tracer, bytes, error);
    if (status == TRIB_OK) {
        if (!was_on) {
            trib_clock_reset(&tracer->clock);
        }
        atomic_store(&tracer->on, true);
        atomic_store(&tracer->began_ns, trib_now(engine->reactors[0].reactor));
        for (uint32_t i = 0; i < engine->core_count; i++) {
            trib_trace_ring_clear(&engine->cores[i].trace);
            atomic_store_explicit(&engine->cores[i].trace.on, true, memory_order_release);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    if (status == TRIB_OK && !was_on && !atomic_exchange(&tracer->clock_posted, true)) {
        trib_reactor_post(engine->reactors[0].reactor, &tracer->clock_post);
    }
    return status;
}

void trib_tracer_stop(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    atomic_store(&engine->tracer->on, false);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        atomic_store(&engine->cores[i].trace.on, false);
    }
    pthread_mutex_unlock(&engine->mutex);
}

trib_status trib_tracer_write(trib_engine *engine, const char *path, trib_error *error)
{
    pthread_mutex_lock(&engine->mutex);
    bool opened = engine->tracer->opened;
    pthread_mutex_unlock(&engine->mutex);
    if (!opened) {
        return trib_error_set(error, TRIB_STATE, "nothing has been recorded: call trib_trace_start, or set TRIB_TRACE");
    }
    return trib_trace_file_write(engine, path, error);
}

static trib_status write_own_file(trib_engine *engine, char path[TRIB_TRACE_PATH_MAX], trib_error *error)
{
    trib_tracer_path(engine, engine->tracer->path, path, TRIB_TRACE_PATH_MAX);
    return trib_tracer_write(engine, path, error);
}

void trib_tracer_flush(trib_engine *engine)
{
    trib_tracer *tracer = engine->tracer;
    uint64_t written = 0;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        written += atomic_load_explicit(&engine->cores[i].trace.written, memory_order_relaxed);
    }
    pthread_mutex_lock(&engine->mutex);
    const bool has_formed = atomic_load(&engine->phase) != TRIB_PHASE_JOINING;
    pthread_mutex_unlock(&engine->mutex);
    pthread_mutex_lock(&tracer->writing);
    if (has_formed && !tracer->finished && written != tracer->flushed) {
        char path[TRIB_TRACE_PATH_MAX];
        trib_error error = {.status = TRIB_OK};
        if (write_own_file(engine, path, &error) == TRIB_OK) {
            tracer->flushed = written;
        } else if (!tracer->flush_failed) {
            tracer->flush_failed = true;
            trib_log(&engine->logger, TRIB_LOG_WARN, "no trace so far: %s", error.text);
        }
    }
    pthread_mutex_unlock(&tracer->writing);
}

static void write_at_end(trib_engine *engine)
{
    trib_tracer *tracer = engine->tracer;
    char path[TRIB_TRACE_PATH_MAX];
    trib_error error = {.status = TRIB_OK};
    pthread_mutex_lock(&tracer->writing);
    trib_assert(!tracer->finished);
    tracer->finished = true;
    const trib_status status = write_own_file(engine, path, &error);
    pthread_mutex_unlock(&tracer->writing);
    if (status == TRIB_OK) {
        trib_log(&engine->logger, TRIB_LOG_INFO, "wrote the trace to %s", path);
    } else {
        trib_log(&engine->logger, TRIB_LOG_ERROR, "no trace: %s", error.text);
    }
}

void trib_tracer_core_closed(trib_engine *engine)
{
    const uint32_t left = atomic_fetch_sub(&engine->tracer->cores_left, 1);
    trib_assert(left > 0); /* a core closes once */
    if (left == 1 && engine->tracer->path != NULL) {
        write_at_end(engine);
    }
}

/* ---- Names of files ---- */

static void member_label(const trib_engine *engine, char *text, size_t size)
{
    const trib_config *config = &engine->config;
    uint32_t member = engine->member_id;
    if (config->roles & TRIB_ROLE_WORKER) {
        snprintf(text, size, "rank%d", config->rank);
    } else if (!(config->roles & TRIB_ROLE_SERVER)) {
        snprintf(text, size, "coordinator");
    } else if (member != TRIB_NO_MEMBER && member >= (uint32_t)config->worker_count) {
        snprintf(text, size, "server%u", member - (uint32_t)config->worker_count);
    } else {
        snprintf(text, size, "server");
    }
}

static void append(char *path, size_t size, const char *text)
{
    size_t used = strlen(path);
    snprintf(path + used, size - used, "%s", text);
}

trib_status trib_trace_check_name(const char *pattern, trib_error *error)
{
    for (const char *at = strchr(pattern, '%'); at != NULL; at = strchr(at + 2, '%')) {
        if (at[1] == '\0' || strchr("rph%", at[1]) == NULL) {
            return trib_error_set(error, TRIB_INVALID,
                                  "trace \"%.200s\": %.2s is none of %%r (the member), %%p (its process id), %%h (its "
                                  "host) and %%%% (a percent sign; TRIB_TRACE)",
                                  pattern, at);
        }
    }
    return TRIB_OK;
}

void trib_tracer_path(const trib_engine *engine, const char *pattern, char *path, size_t size)
{
    char label[32], shown[TRIB_PLACE_NAME_MAX], whole[TRIB_TRACE_PATH_MAX];
    member_label(engine, label, sizeof label);
    const char *place = engine->env.place, *colon = strrchr(place, ':'); /* env.place is "host:pid" */
    const char *process = colon != NULL ? colon + 1 : "0";
    snprintf(shown, sizeof shown, "%.*s", (int)(colon != NULL ? colon - place : (ptrdiff_t)strlen(place)), place);
    const char *host =
        engine->env.host[0] != '\0' ? engine->env.host : shown; /* the whole name: a file is an identity */
    snprintf(whole, sizeof whole, "%s%s", pattern, strchr(pattern, '%') != NULL ? "" : ".%r.%p.trib");
    path[0] = '\0';
    for (const char *at = whole; *at != '\0'; at++) {
        char one[2] = {*at, '\0'};
        const char *next = *at != '%' ? "" : at[1] == 'r' ? label : at[1] == 'p' ? process : at[1] == 'h' ? host : "";
        append(path, size, next[0] != '\0' ? next : one);
        at += next[0] != '\0' || (*at == '%' && at[1] == '%');
    }
}

/* ---- Life ---- */

/* The file is written at the end, and the host may have another working directory by then. A folder with a percent sign
 * stays relative: it would be taken for a part of the pattern. */
static char *absolute_path(const char *pattern)
{
    char folder[TRIB_TRACE_PATH_MAX], whole[TRIB_TRACE_PATH_MAX];
    if (pattern[0] == '/' || getcwd(folder, sizeof folder) == NULL || strchr(folder, '%') != NULL) {
        return strdup(pattern);
    }
    const int length = snprintf(whole, sizeof whole, "%s/%s", folder, pattern);
    return strdup(length < (int)sizeof whole ? whole : pattern);
}

trib_status trib_tracer_open(trib_engine *engine, trib_error *error)
{
    trib_tracer *tracer = calloc(1, sizeof *tracer);
    if (tracer == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the trace");
    }
    pthread_mutex_init(&tracer->writing, NULL);
    engine->tracer = tracer;
    tracer->engine = engine;
    tracer->clock_timer.fired = ask_for_time;
    tracer->clock_timer.user = tracer;
    tracer->clock_post.run = started;
    trib_clock_reset(&tracer->clock);
    atomic_store(&tracer->cores_left, engine->core_count);
    if (engine->config.trace == NULL) {
        return TRIB_OK;
    }
    tracer->path = absolute_path(engine->config.trace);
    if (tracer->path == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the trace");
    }
    engine->config.trace = tracer->path;
    char path[TRIB_TRACE_PATH_MAX];
    trib_tracer_path(engine, tracer->path, path, sizeof path);
    const char *label = strstr(tracer->path, "%r"); /* a server learns its number only when it joins */
    const bool is_known = label == NULL || strchr(label, '/') == NULL;
    trib_status status = is_known ? trib_trace_file_check(path, error) : TRIB_OK;
    return status == TRIB_OK ? trib_tracer_start(engine, engine->config.trace_bytes, error) : status;
}

void trib_tracer_note_choice(trib_engine *engine, const char *text)
{
    trib_tracer *tracer = engine->tracer;
    char *copy = strdup(text);
    pthread_mutex_lock(&engine->mutex);
    if (copy != NULL && tracer->choice_count < TRIB_TRACE_CHOICES_MAX) {
        tracer->choices[tracer->choice_count++] = copy;
        copy = NULL;
    }
    pthread_mutex_unlock(&engine->mutex);
    free(copy);
}

void trib_tracer_close(trib_engine *engine)
{
    trib_tracer *tracer = engine->tracer;
    if (tracer == NULL) {
        return;
    }
    trib_timer_stop(engine->cores[0].reactor, &tracer->clock_timer);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_trace_ring_close(&engine->cores[i].trace);
    }
    for (uint32_t i = 0; i < tracer->choice_count; i++) {
        free(tracer->choices[i]);
    }
    pthread_mutex_destroy(&tracer->writing);
    free(tracer->path);
    free(tracer);
    engine->tracer = NULL;
}
