/*
 * cuda_exit.c - a process ends when no thread of the module's is inside NCCL.
 *
 * exit() takes down what NCCL and CUDA keep for the process, and threads that nobody waits for may be at it there: one that
 * joins, takes leave or gives up, or a device's that launches. NCCL does not expect that, and the process would crash at its
 * end. So a handler comes before theirs. It waits until nobody is inside, and then nobody gets in any more. (CUDA's calls
 * may come late: they return an error.)
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

#define EXIT_NS (10000 * INT64_C(1000000))
#define REST_NS (1000 * INT64_C(1000))
#define CLOSED 0x80000000u

static atomic_uint inside; /* so many threads; with CLOSED: nobody gets in any more */
static atomic_bool registered[CUDA_EXIT_MOMENTS];
static atomic_int process; /* whose threads those are */

static void await_threads(void)
{
    if (atomic_load(&process) != (int)getpid()) {
        return; /* a forked child has none of them */
    }
    const struct timespec pause = {.tv_nsec = REST_NS};
    const int64_t until_ns = cuda_now_ns() + EXIT_NS;
    unsigned seen = 0;
    while (!atomic_compare_exchange_strong(&inside, &seen, CLOSED) && (seen & CLOSED) == 0) {
        if (cuda_now_ns() >= until_ns) {
            /* Nothing lets them out, and a process that never ends is worse than one that may crash. */
            atomic_fetch_or(&inside, CLOSED);
            return;
        }
        nanosleep(&pause, NULL);
        seen = 0;
    }
}

void cuda_exit_watch(cuda_exit_moment moment)
{
    if (!atomic_exchange(&registered[moment], true)) {
        atomic_store(&process, (int)getpid());
        (void)atexit(await_threads); /* without memory for it nobody waits */
    }
}

bool cuda_exit_hold(void)
{
    unsigned seen = atomic_load(&inside);
    do {
        if ((seen & CLOSED) != 0) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&inside, &seen, seen + 1));
    return true;
}

void cuda_exit_release(void)
{
    atomic_fetch_sub(&inside, 1);
}
