/*
 * cuda_exit.c - a process does not end while a thread of the module's is inside NCCL.
 *
 * exit() takes down the state of NCCL and CUDA. Detached threads of the module's may be inside at that time: joining,
 * ending or aborting a communicator, or launching. NCCL does not expect that, and the process would crash. So a
 * handler runs before theirs. From then on no thread may enter to launch; live communicators are given up, because
 * CUDA may wait for kernels that wait for other ranks; and the handler waits until no thread is inside. (Late calls
 * to CUDA are harmless: they return an error.)
 *
 * Handlers run in the reverse order of their registration, and a library registers its own when it is loaded or first
 * used. So this one is registered when NCCL has been loaded, which is after CUDA, and again when the first
 * communicator has been joined, as NCCL has used all of its parts by then. The last registration runs first; the
 * others are for a process that exits earlier, also while joining waits for other ranks.
 *
 * A handler has no argument, so this state is the process's own: docs/decisions/0004-exit.md.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LAUNCH_NS (500 * INT64_C(1000000)) /* a launch takes microseconds, mostly */
#define EXIT_NS (10000 * INT64_C(1000000))
#define REST_NS (1000 * INT64_C(1000))
#define CLOSED 0x80000000u /* no thread may enter to launch or to join */
#define OVER 0x40000000u   /* nor to end a communicator */

static atomic_uint inside; /* number of threads, and the flags above */
static atomic_bool registered[CUDA_EXIT_MOMENTS];
static atomic_int process; /* the one that has these threads */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static cuda_comm *live; /* communicators; guarded by mutex */

static bool await_threads(int64_t timeout_ns)
{
    const struct timespec pause = {.tv_nsec = REST_NS};
    const int64_t until_ns = cuda_now_ns() + timeout_ns;
    while (atomic_load(&inside) != CLOSED) {
        if (cuda_now_ns() >= until_ns) {
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

static void handle_process_end(void)
{
    if (atomic_load(&process) != (int)getpid()) {
        return; /* a forked child does not have these threads */
    }
    if ((atomic_fetch_or(&inside, CLOSED) & CLOSED) != 0) {
        return; /* another registration has run */
    }
    (void)await_threads(LAUNCH_NS);
    pthread_mutex_lock(&mutex);
    for (cuda_comm *comm = live; comm != NULL; comm = comm->next) {
        cuda_comm_give_up(comm);
    }
    pthread_mutex_unlock(&mutex);
    /* Threads that are still inside never come out. A process that may crash is better than one that never ends. */
    (void)await_threads(EXIT_NS);
    atomic_fetch_or(&inside, OVER);
}

void cuda_exit_watch(cuda_exit_moment moment)
{
    if (!atomic_exchange(&registered[moment], true)) {
        atomic_store(&process, (int)getpid());
        (void)atexit(handle_process_end); /* if memory runs out exit does not wait */
    }
}

static bool hold_unless(unsigned barred)
{
    unsigned seen = atomic_load(&inside);
    do {
        if ((seen & barred) != 0) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&inside, &seen, seen + 1));
    return true;
}

bool cuda_exit_hold(void)
{
    return hold_unless(CLOSED);
}

bool cuda_exit_hold_to_end(void)
{
    return hold_unless(OVER);
}

void cuda_exit_release(void)
{
    const unsigned before = atomic_fetch_sub(&inside, 1);
    trib_assert((before & ~(CLOSED | OVER)) > 0);
}

void cuda_exit_enlist(cuda_comm *comm)
{
    atomic_fetch_add(&comm->holders, 1);
    pthread_mutex_lock(&mutex);
    comm->next = live;
    live = comm;
    pthread_mutex_unlock(&mutex);
}

void cuda_exit_delist(cuda_comm *comm)
{
    pthread_mutex_lock(&mutex);
    for (cuda_comm **at = &live; *at != NULL; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    cuda_comm_let_go(comm);
}
