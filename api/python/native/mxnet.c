/* mxnet.c - operations of an engine in MXNet's dependency engine, in plain C over its C interface
 * (MXEnginePushAsyncND).
 *
 * MXNet starts an operation when its array is ready, and makes readers of the array wait until it is complete. No
 * thread of MXNet waits, and the interpreter is not needed. MXNet gets an operation's error, and raises it where the
 * array is read. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "native/completion.h"
#include "tributary.h"

/* MXNet's CallbackOnComplete, which is passed by address and must be copied. */
struct on_complete {
    void (*callback)(void *engine, void *param, const void *error);
    void *engine, *param;
};

struct mx_context {
    int32_t type, id;
};

typedef int push_async_function(void *function, void *param, void (*deleter)(void *), const void *context, void **read,
                                int read_count, void **changed, int changed_count, const void *property, int priority,
                                const char *name, bool wait);

struct operation {
    struct completion completion; /* first */
    trib_engine *engine;
    trib_op_params params;
    bool is_broadcast;
    bool is_once; /* the tensor is the operation's own, and still to be released with it */
    struct on_complete complete;
    void *array; /* a handle of its own: the program may give up its array meanwhile */
};

static struct {
    push_async_function *push_async;
    int (*get_data)(void *array, void **data);
    int (*copy_handle)(void *array, void **copy); /* of the same elements */
    int (*free_handle)(void *array);
    int major; /* of MXNet: 2 and newer pass one callback more */
} mxnet;

/* Operations that MXNet has not freed. It does so behind what its waitall() waits for. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t fewer;
    uint64_t count;
} alive = {.lock = PTHREAD_MUTEX_INITIALIZER, .fewer = PTHREAD_COND_INITIALIZER};

/* mxnet_error.cc: what MXNet takes for an error. */
void *trib_mxnet_error_make(const char *text);
void trib_mxnet_error_free(void *error);

TRIB_API int trib_mxnet_init(const char *path, int major);
TRIB_API int trib_mxnet_submit(void *engine, void *tensor, void *array, int reduce, int root, int priority,
                               bool is_once);
TRIB_API uint64_t trib_mxnet_wait(int64_t milliseconds);

/* Finds MXNet's functions in its library, which the process has loaded. Returns 0, or -1. */
int trib_mxnet_init(const char *path, int major)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        return -1;
    }
    void *push = dlsym(library, "MXEnginePushAsyncND");
    void *data = dlsym(library, "MXNDArrayGetData");
    void *copy = dlsym(library, "MXShallowCopyNDArray");
    void *give_back = dlsym(library, "MXNDArrayFree");
    memcpy(&mxnet.push_async, &push, sizeof push);
    memcpy(&mxnet.get_data, &data, sizeof data);
    memcpy(&mxnet.copy_handle, &copy, sizeof copy);
    memcpy(&mxnet.free_handle, &give_back, sizeof give_back);
    mxnet.major = major;
    return push != NULL && data != NULL && copy != NULL && give_back != NULL ? 0 : -1;
}

/* Ends a tensor that no other operation has. The engine's end may have done so already. */
static void release(struct operation *operation)
{
    const trib_status status = operation->is_once ? trib_tensor_release(operation->params.tensor, NULL) : TRIB_OK;
    (void)status;
    operation->is_once = false;
}

/* MXNet calls it when an operation is over, and when it has skipped one, as an earlier one on its array has failed. */
static void delete (void *param)
{
    struct operation *operation = param;
    release(operation);
    (void)mxnet.free_handle(operation->array);
    free(operation);
    pthread_mutex_lock(&alive.lock);
    alive.count--;
    pthread_cond_broadcast(&alive.fewer);
    pthread_mutex_unlock(&alive.lock);
}

/* Waits until MXNet has freed all operations, at most that long. Returns how many it has not. */
uint64_t trib_mxnet_wait(int64_t milliseconds)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += milliseconds % 1000 * 1000000;
    at.tv_sec += milliseconds / 1000 + at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    pthread_mutex_lock(&alive.lock);
    while (alive.count > 0 && pthread_cond_timedwait(&alive.fewer, &alive.lock, &at) == 0) {}
    const uint64_t left = alive.count;
    pthread_mutex_unlock(&alive.lock);
    return left;
}

/* Tells MXNet, which may go on computing in here, and frees the operation. */
static void complete(struct completion *completion)
{
    const struct operation *operation = (struct operation *)completion;
    const struct on_complete callback = operation->complete;
    const char *failure = completion_failure(completion);
    void *error = failure != NULL ? trib_mxnet_error_make(failure) : NULL;
    callback.callback(callback.engine, callback.param, error);
    trib_mxnet_error_free(error);
}

/* Runs on an engine's thread. The tensor ends here: a completion thread may come after the engine's end. */
static void operation_done(const trib_result *result, void *user)
{
    struct operation *operation = user;
    release(operation);
    operation->completion.run = complete;
    completion_post(&operation->completion, result);
}

/* MXNet: the array is ready. */
static void start(struct operation *operation, const struct on_complete *callback)
{
    operation->complete = *callback;
    void *data = NULL;
    trib_error error = {.text = "MXNet does not tell where an array lies"};
    trib_status status = mxnet.get_data(operation->array, &data) == 0 ? TRIB_OK : TRIB_SYSTEM;
    operation->params.input = data;
    operation->params.output = data;
    if (status == TRIB_OK) {
        status = completion_begin(&error);
    }
    if (status == TRIB_OK) {
        status = operation->is_broadcast ? trib_broadcast(operation->engine, &operation->params, NULL, &error)
                                         : trib_push_pull(operation->engine, &operation->params, NULL, &error);
    }
    if (status != TRIB_OK) {
        completion_set(&operation->completion, status, error.text);
        complete(&operation->completion);
    }
}

static void start_in_1(void *context, void *callback, void *param)
{
    (void)context;
    start(param, callback);
}

static void start_in_2(void *context, void *on_start, void *callback, void *param)
{
    (void)context;
    (void)on_start;
    start(param, callback);
}

/* Puts an operation on an array, in place, into MXNet's engine. root: below 0 for a reduction. is_once: the tensor is
 * released when the operation is over, if it was taken. Returns 0, or not 0. */
int trib_mxnet_submit(void *engine, void *tensor, void *array, int reduce, int root, int priority, bool is_once)
{
    struct operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL || mxnet.copy_handle(array, &operation->array) != 0) {
        free(operation);
        return -1;
    }
    pthread_mutex_lock(&alive.lock);
    alive.count++;
    pthread_mutex_unlock(&alive.lock);
    operation->engine = engine;
    operation->is_broadcast = root >= 0;
    operation->is_once = is_once;
    trib_op_params_init(&operation->params, sizeof operation->params);
    operation->params.tensor = tensor;
    operation->params.reduce = (trib_reduce)reduce;
    operation->params.root = root;
    operation->params.priority = priority;
    operation->params.has_priority = true;
    operation->params.done_cb = operation_done;
    operation->params.user = operation;
    struct mx_context context = {1, 0}; /* processors */
    union {
        void (*in_1)(void *, void *, void *);
        void (*in_2)(void *, void *, void *, void *);
        void *address;
    } function;
    if (mxnet.major == 1) {
        function.in_1 = start_in_1;
    } else {
        function.in_2 = start_in_2;
    }
    return mxnet.push_async(function.address, operation, delete, &context, NULL, 0, &array, 1, NULL, priority,
                            "tributary", false);
}
