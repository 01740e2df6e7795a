/* callback.c - see callback.h. */
#include "engine/job/callback.h"

#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/base/float_env.h"

static uint64_t pack(trib_callback_kind kind, uint32_t tag)
{
    return (uint64_t)kind << 32 | tag;
}

static bool is_on_reactor(const trib_engine *engine)
{
    return engine->config.mode != TRIB_MODE_QUEUE;
}

/* Half of the silence after which this process counts as lost: a reactor that runs a callback answers nobody. */
static int64_t limit_ns(const trib_engine *engine)
{
    const trib_roster *roster = engine->roster;
    return (roster != NULL ? roster->peer_timeout_ns : engine->config.peer_timeout_ns) / 2;
}

/* The caller holds the mutex. */
static void describe(const trib_engine *engine, uint64_t what, int64_t for_ns, char text[TRIB_CALLBACK_TEXT_SIZE])
{
    static const char *const names[] = {[TRIB_CALLBACK_PUSH_PULL] = "push_pull",
                                        [TRIB_CALLBACK_BROADCAST] = "broadcast",
                                        [TRIB_CALLBACK_BARRIER] = "barrier",
                                        [TRIB_CALLBACK_READY] = "ready_cb",
                                        [TRIB_CALLBACK_ENDED] = "ended_cb",
                                        [TRIB_CALLBACK_CLOSED] = "closed_cb",
                                        [TRIB_CALLBACK_MEMBERSHIP] = "a callback of the membership"};
    const trib_callback_kind kind = (trib_callback_kind)(what >> 32);
    trib_assert((size_t)kind < sizeof names / sizeof names[0] && names[kind] != NULL);
    const double seconds = (double)for_ns / 1e9;
    if (kind >= TRIB_CALLBACK_READY) {
        snprintf(text, TRIB_CALLBACK_TEXT_SIZE, "%s, which has run for %.1f s", names[kind], seconds);
    } else if (kind == TRIB_CALLBACK_BARRIER) {
        snprintf(text, TRIB_CALLBACK_TEXT_SIZE, "the callback of a barrier, which has run for %.1f s", seconds);
    } else {
        snprintf(text, TRIB_CALLBACK_TEXT_SIZE, "the callback of tensor \"%.80s\" (%s), which has run for %.1f s",
                 engine->hooks->tensor_name(engine, (uint32_t)what), names[kind], seconds);
    }
}

static void warn(trib_engine *engine, uint32_t index, uint64_t what, int64_t for_ns, bool is_over)
{
    char text[TRIB_CALLBACK_TEXT_SIZE];
    pthread_mutex_lock(&engine->mutex);
    describe(engine, what, for_ns, text);
    trib_logger logger = engine->logger;
    const double silence_s = 2 * (double)limit_ns(engine) / 1e9;
    pthread_mutex_unlock(&engine->mutex);
    if (is_over) {
        trib_log(&logger, TRIB_LOG_WARN,
                 "reactor %u goes on after %s: meanwhile it did nothing else, and after %.1f s of silence the other "
                 "members take this process for lost",
                 index, text, silence_s);
    } else {
        trib_log(&logger, TRIB_LOG_WARN,
                 "reactor %u is held up by %s: after %.1f s of silence the other members take this process for lost; "
                 "callbacks must be short, or the mode TRIB_MODE_QUEUE",
                 index, text, silence_s);
    }
}

/* ---- Left by a longjmp ---- */

/* Stacks grow downward, so what is called from inside a callback has a lower frame. */
static bool is_inside(const trib_engine *engine, const void *frame)
{
    return engine->callbacks != NULL && (uintptr_t)frame < engine->callbacks_frame;
}

static void recover_above(trib_engine *engine, const void *frame)
{
    if (engine->callbacks == NULL || is_inside(engine, frame)) {
        return;
    }
    trib_log(&engine->logger, TRIB_LOG_WARN, "a callback was left by a longjmp: it counts as having returned");
    atomic_store(&engine->callback_sites[0].since_ns, 0);
    while (engine->callbacks != NULL) {
        trib_post *post = engine->callbacks;
        engine->callbacks = atomic_load_explicit(&post->next, memory_order_relaxed);
        post->run(engine->reactors[0].reactor, post);
    }
}

bool trib_callbacks_run_here(const trib_engine *engine)
{
    return is_inside(engine, __builtin_frame_address(0));
}

void trib_callbacks_recover(trib_engine *engine)
{
    recover_above(engine, __builtin_frame_address(0));
}

/* ---- Beginning and ending ---- */

static void take_down(const trib_callback *self)
{
    trib_callback_site *site = &self->engine->callback_sites[self->reactor->index];
    trib_assert(self->reactor->index < TRIB_REACTORS_MAX);
    atomic_store_explicit(&site->what, self->outer_what, memory_order_relaxed);
    atomic_store_explicit(&site->since_ns, self->outer_ns, memory_order_release);
}

void trib_callback_begin(trib_callback *self)
{
    trib_engine *engine = self->engine;
    trib_callback_site *site = &engine->callback_sites[self->reactor->index];
    self->since_ns = is_on_reactor(engine) ? trib_now_fast(self->reactor) : trib_now(self->reactor);
    if (engine->config.mode != TRIB_MODE_THREADS) {
        recover_above(engine, __builtin_frame_address(0));
        if (engine->callbacks == NULL) {
            engine->callbacks_frame = (uintptr_t)__builtin_frame_address(0);
        }
        self->post->run = self->after;
        atomic_store_explicit(&self->post->next, engine->callbacks, memory_order_relaxed);
        engine->callbacks = self->post;
    }
    self->outer_what = atomic_load_explicit(&site->what, memory_order_relaxed);
    self->outer_ns = atomic_load_explicit(&site->since_ns, memory_order_relaxed);
    atomic_store_explicit(&site->what, pack(self->kind, self->tag), memory_order_relaxed);
    atomic_store_explicit(&site->since_ns, self->since_ns, memory_order_release);
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        trib_float_env_leave(self->reactor->host_env);
    }
}

void trib_callback_end(const trib_callback *self)
{
    trib_engine *engine = self->engine;
    if (is_on_reactor(engine)) {
        self->reactor->host_env = trib_float_env_enter(); /* what it has changed stays in a thread of the host's */
        const int64_t for_ns = trib_now_fast(self->reactor) - self->since_ns;
        if (for_ns > limit_ns(engine)) {
            trib_callback_site *site = &engine->callback_sites[self->reactor->index];
            atomic_store(&site->long_what, pack(self->kind, self->tag));
            atomic_store(&site->long_for_ns, for_ns);
            atomic_store(&site->long_end_ns, trib_now_fast(self->reactor));
            warn(engine, self->reactor->index, pack(self->kind, self->tag), for_ns, true);
        }
    }
    take_down(self);
    if (engine->config.mode != TRIB_MODE_THREADS) {
        if (engine->callbacks != self->post) {
            return; /* another call has found the stack unwound, and has done the rest */
        }
        engine->callbacks = atomic_load_explicit(&self->post->next, memory_order_relaxed);
    }
    self->after(self->reactor, self->post);
}

/* ---- Watching ---- */

int64_t trib_callbacks_watch(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    const int64_t limit = limit_ns(engine); /* of the roster, which may change */
    pthread_mutex_unlock(&engine->mutex);
    const int64_t now_ns = trib_now(engine->reactors[0].reactor);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_callback_site *site = &engine->callback_sites[i];
        const int64_t since_ns = atomic_load_explicit(&site->since_ns, memory_order_acquire);
        if (since_ns != 0 && now_ns - since_ns > limit && site->warned_ns != since_ns) {
            site->warned_ns = since_ns;
            warn(engine, i, atomic_load_explicit(&site->what, memory_order_relaxed), now_ns - since_ns, false);
        }
    }
    return limit;
}

bool trib_callbacks_blame_locked(const trib_engine *engine, char text[TRIB_CALLBACK_TEXT_SIZE])
{
    const int64_t limit = limit_ns(engine), now_ns = trib_now(engine->reactors[0].reactor);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        const trib_callback_site *site = &engine->callback_sites[i];
        const int64_t since_ns = atomic_load(&site->since_ns), end_ns = atomic_load(&site->long_end_ns);
        if (since_ns != 0 && now_ns - since_ns > limit) {
            describe(engine, atomic_load(&site->what), now_ns - since_ns, text);
            return true;
        }
        if (end_ns != 0 && now_ns - end_ns < 2 * limit) {
            describe(engine, atomic_load(&site->long_what), atomic_load(&site->long_for_ns), text);
            return true;
        }
    }
    return false;
}

bool trib_callbacks_describe_locked(trib_engine *engine, char text[TRIB_CALLBACK_TEXT_SIZE])
{
    int64_t first_ns = 0;
    uint64_t what = 0;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        const int64_t since_ns = atomic_load(&engine->callback_sites[i].since_ns);
        if (since_ns != 0 && (first_ns == 0 || since_ns < first_ns)) {
            first_ns = since_ns;
            what = atomic_load(&engine->callback_sites[i].what);
        }
    }
    if (first_ns != 0) {
        describe(engine, what, trib_now(engine->reactors[0].reactor) - first_ns, text);
    }
    return first_ns != 0;
}
