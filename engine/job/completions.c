/* completions.c - see completions.h. */
#include "engine/job/completions.h"

#include <errno.h>
#include <unistd.h>

void trib_completions_add(trib_engine *engine, trib_post *post)
{
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

size_t trib_completions_run(trib_engine *engine, size_t max)
{
    uint64_t drained;
    while (read(engine->done_fd, &drained, sizeof drained) < 0 && errno == EINTR) {}
    pthread_mutex_lock(&engine->mutex);
    trib_post *post = engine->done_head, *last = NULL;
    size_t count = 0;
    for (trib_post *at = post; at != NULL && (max == 0 || count < max); at = next_of(at)) {
        last = at;
        count++;
    }
    engine->done_head = last != NULL ? next_of(last) : engine->done_head;
    const bool left = engine->done_head != NULL;
    if (!left) {
        engine->done_tail = NULL;
    }
    pthread_mutex_unlock(&engine->mutex);
    if (left) {
        trib_completions_signal(engine);
    }
    for (size_t i = 0; i < count; i++) {
        trib_post *next = next_of(post);
        post->run(engine->reactors[0].reactor, post);
        post = next;
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
