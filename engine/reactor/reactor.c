/*
 * reactor.c - the part that all reactors share: the mailbox from other threads and the deferred list.
 *
 * Invariants
 * - The mailbox is a stack that any thread pushes on; the loop takes it whole and reverses it, so the posts of one
 *   thread run in the order in which they were posted.
 * - A thread that pushes wakes the loop afterwards if the loop dozes, or sees to it that another thread does. Of
 *   several threads that find the loop dozing one makes the system call (`wake`).
 * - A post that is taken from the mailbox joins the deferred list, so that one bound holds for both.
 */
#include "engine/reactor/reactor.h"

#include <utlist.h>

#include "engine/base/assert.h"

/* Both bounds keep the loop responsive: input is looked at again after so many posts, and after a post that defers
 * itself again has run so many times. More than once, because "receive, pump, flush" is a chain of deferrals that
 * should not cost a poll for each link. */
#define POSTS_PER_RUN 1024u
#define PASSES_PER_RUN 4u

/* A turn of a real loop costs system calls: half a microsecond, in which the answer of another process of this machine
 * may well come. A look that finds nothing takes 5 ns. */
#define POLLS_PER_TURN 16u
#define EXTRA_POLLS_PER_TURN 256u

void trib_reactor_init(trib_reactor *reactor, const trib_reactor_ops *ops, uint32_t index, trib_logger *logger)
{
    trib_assert(ops->name != NULL);
    trib_assert(ops->now_ns != NULL && ops->now_fast_ns != NULL);
    trib_assert(ops->wake != NULL);
    trib_assert(ops->timer_arm != NULL && ops->timer_stop != NULL);
    trib_assert(ops->io_watch != NULL);
    trib_assert(ops->charge != NULL && ops->random != NULL);
    reactor->ops = ops;
    reactor->index = index;
    reactor->owner = NULL;
    reactor->logger = logger;
    atomic_init(&reactor->mail, NULL);
    reactor->deferred_head = NULL;
    reactor->deferred_tail = NULL;
    reactor->pollers = NULL;
    reactor->awaited = 0;
    reactor->shortage = (trib_shortage){.error = 0};
    atomic_init(&reactor->lost, false);
    reactor->host_env = TRIB_FLOAT_ENV_DEFAULT;
}

void trib_reactor_post_list_nowake(trib_reactor *reactor, trib_post_list *list)
{
    trib_assert(list->newest != NULL && list->oldest != NULL);
    trib_post *before = atomic_load_explicit(&reactor->mail, memory_order_relaxed);
    do {
        atomic_store_explicit(&list->oldest->next, before, memory_order_relaxed);
        /* Sequentially consistent: `wake` looks next whether the loop has gone to sleep. */
    } while (!atomic_compare_exchange_weak_explicit(&reactor->mail, &before, list->newest, memory_order_seq_cst,
                                                    memory_order_relaxed));
}

void trib_reactor_post_nowake(trib_reactor *reactor, trib_post *post)
{
    trib_assert(post->run != NULL);
    trib_post_list list = {.newest = post, .oldest = post};
    trib_reactor_post_list_nowake(reactor, &list);
}

void trib_reactor_post(trib_reactor *reactor, trib_post *post)
{
    trib_reactor_post_nowake(reactor, post);
    /* From here on the post may have run and be gone; only the reactor may be touched. */
    trib_reactor_wake(reactor);
}

static void append_post(trib_reactor *reactor, trib_post *post)
{
    atomic_store_explicit(&post->next, NULL, memory_order_relaxed);
    post->queued = true;
    if (reactor->deferred_tail != NULL) {
        atomic_store_explicit(&reactor->deferred_tail->next, post, memory_order_relaxed);
    } else {
        reactor->deferred_head = post;
    }
    reactor->deferred_tail = post;
}

void trib_reactor_defer(trib_reactor *reactor, trib_post *post)
{
    trib_assert(post->run != NULL);
    if (!post->queued) {
        append_post(reactor, post);
    }
}

static void take_mail(trib_reactor *reactor)
{
    if (atomic_load_explicit(&reactor->mail, memory_order_relaxed) == NULL) {
        return;
    }
    trib_post *newest = atomic_exchange_explicit(&reactor->mail, NULL, memory_order_acquire);
    trib_post *oldest = NULL;
    while (newest != NULL) {
        trib_post *next = atomic_load_explicit(&newest->next, memory_order_relaxed);
        atomic_store_explicit(&newest->next, oldest, memory_order_relaxed);
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        trib_post *next = atomic_load_explicit(&oldest->next, memory_order_relaxed);
        append_post(reactor, oldest);
        oldest = next;
    }
}

static void run_first(trib_reactor *reactor)
{
    trib_post *post = reactor->deferred_head;
    reactor->deferred_head = atomic_load_explicit(&post->next, memory_order_relaxed);
    if (reactor->deferred_head == NULL) {
        reactor->deferred_tail = NULL;
    }
    /* Not queued any more before it runs: it may defer itself again, or be freed. */
    post->queued = false;
    post->run(reactor, post);
}

bool trib_reactor_run_posts(trib_reactor *reactor)
{
    unsigned budget = POSTS_PER_RUN;
    for (unsigned pass = 0; pass < PASSES_PER_RUN && budget > 0; pass++) {
        take_mail(reactor);
        if (reactor->deferred_head == NULL) {
            return false;
        }
        /* A pass ends with what was there when it began; that post may be freed by then, so it is only compared. */
        const trib_post *last = reactor->deferred_tail;
        bool at_last = false;
        /* On a loop of the caller's a post may call back, and the callback run the loop: then the rest is run in
         * there. */
        while (!at_last && budget > 0 && reactor->deferred_head != NULL) {
            at_last = reactor->deferred_head == last;
            budget--;
            run_first(reactor);
        }
    }
    return trib_reactor_has_posts(reactor);
}

/* ---- Pollers ---- */

void trib_reactor_poller_add(trib_reactor *reactor, trib_poller *poller)
{
    trib_assert(poller->poll != NULL && poller->before_block != NULL && poller->after_block != NULL);
    LL_PREPEND(reactor->pollers, poller);
}

void trib_reactor_poller_remove(trib_reactor *reactor, trib_poller *poller)
{
    LL_DELETE(reactor->pollers, poller);
}

bool trib_reactor_poll(trib_reactor *reactor)
{
    bool found = false;
    for (trib_poller *poller = reactor->pollers; poller != NULL; poller = poller->next) {
        found = poller->poll(reactor, poller) || found;
    }
    return found;
}

bool trib_reactor_before_block(trib_reactor *reactor)
{
    bool may = true;
    for (trib_poller *poller = reactor->pollers; poller != NULL; poller = poller->next) {
        may = poller->before_block(reactor, poller) && may;
    }
    return may;
}

void trib_reactor_after_block(trib_reactor *reactor)
{
    for (trib_poller *poller = reactor->pollers; poller != NULL; poller = poller->next) {
        poller->after_block(reactor, poller);
    }
}

/* True if there were posts. */
static bool run_if_any(trib_reactor *reactor)
{
    const bool any = trib_reactor_has_posts(reactor);
    if (any) {
        (void)trib_reactor_run_posts(reactor);
    }
    return any;
}

trib_turn trib_reactor_turn(trib_reactor *reactor, bool polls_more)
{
    trib_turn turn = {.worked = false};
    unsigned polls = POLLS_PER_TURN, more = polls_more && reactor->pollers != NULL ? EXTRA_POLLS_PER_TURN : 0;
    while (polls > 0) {
        const bool awaits = reactor->awaited > 0;
        /* Posts come before pollers: a caller that has just submitted something waits for it to go out. */
        turn.posted = run_if_any(reactor) || turn.posted;
        const bool found = trib_reactor_poll(reactor);
        turn.worked = turn.worked || found || turn.posted;
        if (found) {
            (void)run_if_any(reactor);
        }
        const bool goes_on = found ? !awaits || reactor->awaited > 0 : more > 0 && reactor->awaited > 0;
        if (!goes_on) { /* a caller that has all that it waited for is not kept */
            break;
        }
        *(found ? &polls : &more) -= 1;
    }
    return turn;
}

void trib_reactor_note_shortage(trib_reactor *reactor, int error)
{
    trib_shortage *shortage = &reactor->shortage;
    const int64_t now_ns = trib_now(reactor);
    trib_assert(error != 0);
    if (shortage->error == 0 || now_ns - shortage->last_ns > TRIB_SHORTAGE_GAP_NS) {
        shortage->since_ns = now_ns;
    }
    shortage->error = error;
    shortage->last_ns = now_ns;
}

int trib_reactor_find_shortage(trib_reactor *reactor, int64_t *for_ns_out)
{
    const trib_shortage *shortage = &reactor->shortage;
    const bool is_current = shortage->error != 0 && trib_now(reactor) - shortage->last_ns <= TRIB_SHORTAGE_GAP_NS;
    *for_ns_out = is_current ? shortage->last_ns - shortage->since_ns : 0;
    return is_current ? shortage->error : 0;
}
