/* closing.c - the end of an engine, when each of its cores has closed its links, as the program is told. */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/job/callback.h"
#include "engine/job/completions.h"
#include "engine/job/job.h"

/* Called with the mutex held. */
static void set_closed(trib_engine *engine)
{
    engine->closed = true;
    pthread_cond_broadcast(&engine->changed);
}

static void finish_closed(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_engine *engine = trib_container_of(post, trib_engine, closed_post);
    pthread_mutex_lock(&engine->mutex);
    set_closed(engine);
    pthread_mutex_unlock(&engine->mutex);
}

static void notify_closed(trib_reactor *reactor, trib_post *post)
{
    trib_engine *engine = trib_container_of(post, trib_engine, closed_post);
    if (engine->closed_cb == NULL) {
        finish_closed(reactor, post);
        return;
    }
    trib_callback callback TRIB_CALLBACK_SCOPE = {
        .engine = engine, .reactor = reactor, .post = post, .after = finish_closed, .kind = TRIB_CALLBACK_CLOSED};
    trib_callback_begin(&callback);
    engine->closed_cb(engine, engine->closed_user);
}

/* The caller holds the mutex. Close was asked for, and every core has closed its links. */
static void post_closed(trib_engine *engine)
{
    trib_assert(engine->close_asked && atomic_load(&engine->cores_open) == 0);
    engine->closed_post.run = notify_closed;
    trib_job_tell(engine, &engine->closed_post, engine->closed_cb != NULL);
    if (engine->config.mode == TRIB_MODE_QUEUE) {
        set_closed(engine); /* trib_engine_destroy dispatches the post if nobody else does */
    }
}

/* The core does not come back. If it is the last one, nor do those that have closed to be opened again: the job has
 * ended meanwhile. */
static void tell_closed(trib_engine *engine)
{
    const unsigned kept = atomic_load(&engine->cores_open) == 1 ? atomic_load(&engine->formation.cores_kept) : 0;
    for (unsigned i = 0; i <= kept; i++) {
        engine->hooks->core_closed(engine);
    }
}

void trib_engine_core_closed(trib_engine *engine, bool goes_on)
{
    if (goes_on) {
        atomic_fetch_add(&engine->formation.cores_kept, 1);
    } else {
        tell_closed(engine);
    }
    pthread_mutex_lock(&engine->mutex);
    const unsigned open = atomic_fetch_sub(&engine->cores_open, 1);
    trib_assert(open > 0 && open <= engine->core_count);
    if (open == 1) {
        if (goes_on) {
            engine->formation.reopens = true;
            engine->formation.reopen_post.run = engine->hooks->reopen;
            trib_reactor_post(engine->reactors[0].reactor, &engine->formation.reopen_post);
        } else if (engine->close_asked) {
            post_closed(engine);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
}

void trib_engine_begin_close(trib_engine *engine, trib_closed_cb closed_cb, void *user)
{
    pthread_mutex_lock(&engine->mutex);
    bool first = !engine->close_asked;
    if (first) {
        engine->close_asked = true;
        engine->closed_cb = closed_cb;
        engine->closed_user = user;
        if (atomic_load(&engine->cores_open) == 0 && !engine->formation.reopens) {
            post_closed(engine);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    if (first) {
        const trib_cause closed = trib_cause_note(TRIB_CLOSED, engine->member_id, "the engine was closed");
        trib_job_end(engine, &closed);
    }
}
