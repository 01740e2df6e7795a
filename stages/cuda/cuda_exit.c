/*
 * cuda_exit.c - a process ends when no thread of the module's is inside NCCL.
 *
 * exit() takes down what NCCL and CUDA keep for the process, and threads that nobody waits for may be at it there: one that
 * joins, takes leave or gives up, or a device's that launches. NCCL does not expect that, and the process would crash at its
 * end. So a handler comes before theirs. From then on nobody goes in to launch; communicators that live are given up, because
 * CUDA may wait for kernels that wait for other ranks; and it waits until nobody is inside. (CUDA's calls may come late: they
 * return an error.)
 *
 * Handlers run in the reverse order of their registration, and those of a library are registered when it is loaded, or when
 * something in it is first used. So ours is registered when NCCL has been loaded, which CUDA has been before, and again when
 * the first communicator has come together, by when NCCL has used what it has. The latest one runs first; the others are for
 * who exits in between: also while joining waits for others, before which NCCL sets itself up.
 *
 * A handler has no argument, so this is the process's own state: docs/decisions/0004-exit.md.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LAUNCH_NS (500 * INT64_C(1000000)) /* who launches is out in microseconds, mostly */
#define EXIT_NS (10000 * INT64_C(1000000))
#define REST_NS (1000 * INT64_C(1000))
#define CLOSED 0x80000000u /* nobody gets in to launch or to join */
#define OVER 0x40000000u   /* nor to end a communicator */

static atomic_uint inside; /* so many threads */
static atomic_bool registered[CUDA_EXIT_MOMENTS];
static atomic_int process; /* whose threads those are */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static cuda_comm *live; /* guarded by mutex */

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

static void process_ends(void)
{
    if (atomic_load(&process) != (int)getpid()) {
        return; /* a forked child has none of them */
    }
    if ((atomic_fetch_or(&inside, CLOSED) & CLOSED) != 0) {
        return; /* one handler is enough */
    }
    (void)await_threads(LAUNCH_NS);
    pthread_mutex_lock(&mutex);
    for (cuda_comm *comm = live; comm != NULL; comm = comm->next) {
        cuda_comm_give_up(comm);
    }
    pthread_mutex_unlock(&mutex);
    /* If it is not over by then nothing lets them out, and a process that never ends is worse than one that may crash. */
    (void)await_threads(EXIT_NS);
    atomic_fetch_or(&inside, OVER);
}

void cuda_exit_watch(cuda_exit_moment moment)
{
    if (!atomic_exchange(&registered[moment], true)) {
        atomic_store(&process, (int)getpid());
        (void)atexit(process_ends); /* without memory for it nobody waits */
    }
}

static bool hold(unsigned barred)
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
    return hold(CLOSED);
}

bool cuda_exit_hold_to_end(void)
{
    return hold(OVER);
}

void cuda_exit_release(void)
{
    atomic_fetch_sub(&inside, 1);
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
