/* tensorflow_interrupt.c - Ctrl-C while the main thread waits for an operation that then fails. TensorFlow makes its
 * error by code of Python's, in which the signal's handler runs first; its KeyboardInterrupt is lost there. So the
 * interpreter is told to raise it once more, which it does after that handler. */
#include <stdatomic.h>
#include <stddef.h>

#include "native/tensorflow_job.h"

typedef int (*add_pending_call)(int (*function)(void *), void *argument);

static _Atomic(add_pending_call) add_pending; /* NULL: no Ctrl-C is under way */
static void (*_Atomic set_interrupt)(void);
static int (*_Atomic has_interrupt)(void);

TRIB_API void trib_tensorflow_interrupt(add_pending_call add, void (*interrupt)(void), int (*has)(void));

/* Between a signal and the main thread's next code: Py_AddPendingCall, PyErr_SetInterrupt, and a function that says
 * whether the main thread handles a KeyboardInterrupt. NULL: it runs on. */
void trib_tensorflow_interrupt(add_pending_call add, void (*interrupt)(void), int (*has)(void))
{
    if (add != NULL) {
        atomic_store(&set_interrupt, interrupt);
        atomic_store(&has_interrupt, has);
    }
    atomic_store(&add_pending, add);
}

/* Runs on the main thread. It has its exception where it was not in TensorFlow, but another thread was. */
static int raise_again(void *unused)
{
    (void)unused;
    int (*has)(void) = atomic_load(&has_interrupt);
    if (!has()) {
        void (*interrupt)(void) = atomic_load(&set_interrupt);
        interrupt();
    }
    return 0;
}

void trib_tf_raise_again(void)
{
    const add_pending_call add = atomic_exchange(&add_pending, NULL);
    if (add != NULL) {
        (void)add(raise_again, NULL);
    }
}
