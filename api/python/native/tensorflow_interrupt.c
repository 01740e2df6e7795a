/* tensorflow_interrupt.c - Ctrl-C while the main thread waits for an operation that then fails. TensorFlow makes its
 * error by code of Python's, in which the signal's handler runs first; its KeyboardInterrupt is lost there. So the
 * interpreter is told to raise it once more, which it does after that handler. */
#include <stdatomic.h>
#include <stddef.h>

#include "native/tensorflow_job.h"

typedef int (*add_pending_call)(int (*function)(void *), void *argument);

static _Atomic(add_pending_call) add_pending; /* NULL: no Ctrl-C is under way */
static void (*_Atomic set_interrupt)(void);

TRIB_API void trib_tensorflow_interrupt(add_pending_call add, void (*interrupt)(void));

/* Between a signal and the main thread's next code: Py_AddPendingCall and PyErr_SetInterrupt. NULL: it runs on. */
void trib_tensorflow_interrupt(add_pending_call add, void (*interrupt)(void))
{
    if (add != NULL) {
        atomic_store(&set_interrupt, interrupt);
    }
    atomic_store(&add_pending, add);
}

static int raise_again(void *unused)
{
    (void)unused;
    void (*interrupt)(void) = atomic_load(&set_interrupt);
    interrupt();
    return 0;
}

void trib_tf_raise_again(void)
{
    const add_pending_call add = atomic_exchange(&add_pending, NULL);
    if (add != NULL) {
        (void)add(raise_again, NULL);
    }
}
