/* completions.c - see completions.h. */
#include "engine/job/completions.h"

#include <errno.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/job/callback.h"

void trib_completions_add(trib_engine *engine, trib_post *post)
{
    trib_assert(engine->config.mode == TRIB_MODE_QUEUE);
    trib_assert((engine->done_head == NULL) == (engine->done_tail == NULL) && engine->done_tail != post);
    atomic_store_explicit(&post->next, NULL, memory_order_relaxed);
    if (engine->done_tail != NULL) {
        atomic_store_explicit(&engine->done_tail->next, post, memory_order_relaxed);
    } else {
        engine->done_head = post;
    }
    engine->done_tail = post;
}

void trib_completions_signal(trib_engine *engine)
{
    const uint64_t one = 1;
    while (write(engine->done_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static trib_post *next_of(trib_post *post)
{
    return atomic_load_explicit(&post->next, memory_order_relaxed);
}

/* Entries that were taken and not run, because a callback did not return, are the next to be run. */
static void put_back(trib_engine *engine)
{
    if (engine->batch == NULL) {
        return;
    }
    trib_post *last = engine->batch;
    while (next_of(last) != NULL) {
        last = next_of(last);
    }
    pthread_mutex_lock(&engine->mutex);
    atomic_store_explicit(&last->next, engine->done_head, memory_order_relaxed);
    engine->done_head = engine->batch;
    engine->done_tail = engine->done_tail != NULL ? engine->done_tail : last;
    pthread_mutex_unlock(&engine->mutex);
    engine->batch = NULL;
    trib_completions_signal(engine);
}

static void end_run(trib_engine *const *engine)
{
    put_back(*engine);
}

size_t trib_completions_run(trib_engine *engine, size_t max)
{
    trib_callbacks_recover(engine);
    put_back(engine);
    uint64_t drained;
    while (read(engine->done_fd, &drained, sizeof drained) < 0 && errno == EINTR) {}
    pthread_mutex_lock(&engine->mutex);
    trib_post *first = engine->done_head, *last = NULL;
    size_t count = 0;
    for (trib_post *at = first; at != NULL && (max == 0 || count < max); at = next_of(at)) {
        last = at;
        count++;
    }
    engine->done_head = last != NULL ? next_of(last) : engine->done_head;
    trib_assert(engine->done_head == NULL || engine->done_tail != NULL);
    const bool left = engine->done_head != NULL;
    if (!left) {
        engine->done_tail = NULL;
    }
    pthread_mutex_unlock(&engine->mutex);
    if (left) {
        trib_completions_signal(engine);
    }
    if (last != NULL) {
        atomic_store_explicit(&last->next, NULL, memory_order_relaxed);
        trib_assert(engine->batch == NULL);
        engine->batch = first;
    }
    trib_engine *const ends __attribute__((cleanup(end_run), unused)) = engine;
    while (engine->batch != NULL) {
        trib_post *post = engine->batch;
        engine->batch = next_of(post);
        post->run(engine->reactors[0].reactor, post);
    }
    return count;
}

bool trib_completions_any(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    const bool waits = engine->done_head != NULL;
    pthread_mutex_unlock(&engine->mutex);
    return waits;
}
