/* tensorflow.c - an operation of TensorFlow's, TributaryExchange, whose kernel is asynchronous: compute() submits, and
 * a completion thread tells TensorFlow that the result is there. No thread of TensorFlow waits, and the interpreter
 * is not needed. The operation is not stateful: TensorFlow would run stateful ones one by one, in an order that may
 * differ between workers. */
#include "native/tensorflow_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KIND_PUSH_PULL = 0, KIND_BROADCAST = 1, KIND_REDUCE = 2, SHAPES_MAX = 100 };

/* The numbers of process sets are counted in a job; a graph may hold any. */
enum { PROCESS_SETS_MAX = 1 << 20 };

struct job trib_tf_job = {.lock = PTHREAD_MUTEX_INITIALIZER, .taken = PTHREAD_COND_INITIALIZER};

struct operation {
    struct completion completion; /* first */
    TF_OpKernelContext *context;
    void *done;
    TF_Tensor *input, *output;
    int64_t number;    /* that the tensor's name ends with */
    bool is_zero;      /* the result, when the operation is over: of a reduction to another worker */
    trib_tensor *once; /* the operation's own tensor, which is released with it; NULL: the kernel's is kept */
};

TRIB_API void trib_tensorflow_set_engine(trib_engine *engine);
TRIB_API void trib_tensorflow_set_group(uint64_t number, trib_group *group);
TRIB_API uint64_t trib_tensorflow_calls(bool in_place);
TRIB_API uint64_t trib_tensorflow_wait(int64_t milliseconds, bool all);

/* NULL before the engine is destroyed. */
void trib_tensorflow_set_engine(trib_engine *engine)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    trib_tf_job.engine = engine;
    trib_tf_job.generation++;
    trib_tf_job.group_count = 0;
    trib_tf_job.tensor_count = engine != NULL && engine != trib_tf_job.former ? 0 : trib_tf_job.tensor_count;
    trib_tf_job.former = engine != NULL ? engine : trib_tf_job.former;
    pthread_mutex_unlock(&trib_tf_job.lock);
}

/* Makes a process set of the engine known to kernels. */
void trib_tensorflow_set_group(uint64_t number, trib_group *group)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    if (number >= trib_tf_job.group_count && number < PROCESS_SETS_MAX) {
        trib_group **grown = realloc(trib_tf_job.groups, (number + 1) * sizeof(trib_group *));
        if (grown != NULL) {
            trib_tf_job.groups = grown;
            for (uint64_t i = trib_tf_job.group_count; i <= number; i++) {
                grown[i] = NULL;
            }
            trib_tf_job.group_count = number + 1;
        }
    }
    if (number < trib_tf_job.group_count) {
        trib_tf_job.groups[number] = group;
    }
    pthread_mutex_unlock(&trib_tf_job.lock);
}

trib_status trib_tf_group(const struct kernel *kernel, trib_group **group_out, trib_error *error)
{
    *group_out = NULL;
    if (trib_tf_job.engine == NULL) {
        (void)snprintf(error->text, sizeof error->text, "tributary has not been initialized: call init() first");
        return TRIB_CLOSED;
    }
    if (kernel->process_set != GLOBAL_SET) {
        const uint64_t number = (uint64_t)kernel->process_set;
        *group_out = number < trib_tf_job.group_count ? trib_tf_job.groups[number] : NULL;
        if (*group_out == NULL) {
            (void)snprintf(error->text, sizeof error->text,
                           "%s: this worker does not belong to process set %d, or the set has been removed: trace the "
                           "function after add_process_set()",
                           kernel->name, (int)kernel->process_set);
            return TRIB_INVALID;
        }
    }
    return TRIB_OK;
}

/* How many operations kernels have submitted, or how many of them in place. */
uint64_t trib_tensorflow_calls(bool in_place)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    uint64_t calls = in_place ? trib_tf_job.in_place : trib_tf_job.calls;
    pthread_mutex_unlock(&trib_tf_job.lock);
    return calls;
}

int trib_tf_rank(const trib_group *group)
{
    trib_engine_info info = {.struct_size = sizeof info};
    return group != NULL ? trib_group_rank(group)
                         : (trib_engine_get_info(trib_tf_job.engine, &info) == TRIB_OK ? info.rank : -1);
}

int trib_tf_size(const trib_group *group)
{
    trib_engine_info info = {.struct_size = sizeof info};
    return group != NULL ? trib_group_size(group)
                         : (trib_engine_get_info(trib_tf_job.engine, &info) == TRIB_OK ? info.worker_count : 0);
}

void trib_tf_taken(bool is_gather)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    trib_tf_job.pending--;
    trib_tf_job.gathers -= is_gather;
    pthread_cond_broadcast(&trib_tf_job.taken);
    pthread_mutex_unlock(&trib_tf_job.lock);
}

/* Waits until no gather is under way, as their results must be taken before the engine is destroyed; with `all` until
 * nothing is. Returns how many are when that time has passed. */
uint64_t trib_tensorflow_wait(int64_t milliseconds, bool all)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += milliseconds % 1000 * 1000000;
    at.tv_sec += milliseconds / 1000 + at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    pthread_mutex_lock(&trib_tf_job.lock);
    const uint64_t *count = all ? &trib_tf_job.pending : &trib_tf_job.gathers;
    while (*count > 0 && pthread_cond_timedwait(&trib_tf_job.taken, &trib_tf_job.lock, &at) == 0) {}
    const uint64_t left = *count;
    pthread_mutex_unlock(&trib_tf_job.lock);
    return left;
}

int trib_tf_dtype(int type)
{
    static const int DTYPES[] = {
        [1] = TRIB_FLOAT32 + 1,   [2] = TRIB_FLOAT64 + 1, [3] = TRIB_INT32 + 1,    [4] = TRIB_UINT8 + 1,
        [5] = TRIB_INT16 + 1,     [6] = TRIB_INT8 + 1,    [9] = TRIB_INT64 + 1,    [10] = TRIB_BOOL + 1,
        [14] = TRIB_BFLOAT16 + 1, [17] = TRIB_UINT16 + 1, [19] = TRIB_FLOAT16 + 1, [22] = TRIB_UINT32 + 1,
        [23] = TRIB_UINT64 + 1};
    return type >= 0 && type < (int)(sizeof DTYPES / sizeof DTYPES[0]) ? DTYPES[type] - 1 : -1;
}

void *trib_tf_kernel_create(TF_OpKernelConstruction *context)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);
    TF_Status *status = TF_NewStatus();
    if (kernel == NULL) {
        TF_SetStatus(status, TF_CODE_INTERNAL, "out of memory");
        TF_OpKernelConstruction_Failure(context, status);
        TF_DeleteStatus(status);
        return NULL;
    }
    pthread_mutex_init(&kernel->lock, NULL);
    TF_OpKernelConstruction_GetAttrString(context, "tensor_name", kernel->name, sizeof kernel->name - 1, status);
    if (TF_GetCode(status) == 0) {
        TF_OpKernelConstruction_GetAttrString(context, "codec", kernel->codec, sizeof kernel->codec - 1, status);
    }
    static const struct {
        const char *name;
        size_t offset;
    } NUMBERS[] = {{"kind", offsetof(struct kernel, kind)},
                   {"reduce", offsetof(struct kernel, reduce)},
                   {"priority", offsetof(struct kernel, priority)},
                   {"root", offsetof(struct kernel, root)},
                   {"codec_min_bytes", offsetof(struct kernel, codec_min_bytes)},
                   {"process_set", offsetof(struct kernel, process_set)},
                   {"name_begin", offsetof(struct kernel, name_begin)},
                   {"numbers", offsetof(struct kernel, numbers)}};
    for (size_t i = 0; i < sizeof NUMBERS / sizeof NUMBERS[0] && TF_GetCode(status) == 0; i++) {
        int64_t value = 0;
        TF_OpKernelConstruction_GetAttrInt64(context, NUMBERS[i].name, &value, status);
        memcpy((char *)kernel + NUMBERS[i].offset, &value, sizeof value);
    }
    if (TF_GetCode(status) != 0) {
        TF_OpKernelConstruction_Failure(context, status);
    }
    TF_DeleteStatus(status);
    return kernel;
}

void trib_tf_kernel_destroy(void *kernel)
{
    free(kernel);
}

int64_t trib_tf_number(const struct kernel *kernel, TF_OpKernelContext *context, int index, TF_Status *status)
{
    int64_t number = 0;
    TF_Tensor *input = NULL;
    if (kernel->numbers != 0) {
        TF_GetInput(context, index, &input, status);
    }
    if (input != NULL) {
        number = *(const int64_t *)TF_TensorData(input);
        TF_DeleteTensor(input);
    }
    return number;
}

void trib_tf_fail(TF_OpKernelContext *context, trib_status status, const char *text)
{
    TF_Status *failure = TF_NewStatus();
    const int code = status == TRIB_MISMATCH      ? TF_CODE_FAILED_PRECONDITION
                     : status == TRIB_INVALID     ? TF_CODE_INVALID_ARGUMENT
                     : status == TRIB_UNSUPPORTED ? TF_CODE_UNIMPLEMENTED
                                                  : TF_CODE_INTERNAL;
    TF_SetStatus(failure, code, text);
    trib_tf_raise_again();
    TF_OpKernelContext_Failure(context, failure);
    TF_DeleteStatus(failure);
}

/* Ends an operation: text is NULL, or says why it failed. TensorFlow may go on computing in here. */
static void finish(struct operation *operation, const char *text)
{
    if (text != NULL) {
        trib_tf_fail(operation->context, operation->completion.status, text);
    }
    if (operation->input != NULL) {
        TF_DeleteTensor(operation->input);
    }
    if (operation->output != NULL) {
        TF_DeleteTensor(operation->output);
    }
    void *done = operation->done;
    free(operation);
    trib_done_run(done);
}

static void finish_completion(struct completion *completion)
{
    struct operation *operation = (struct operation *)completion;
    if (operation->is_zero) {
        memset(TF_TensorData(operation->output), 0, TF_TensorByteSize(operation->output));
    }
    trib_tf_taken(false);
    finish(operation, completion_failure(completion));
}

/* Runs on an engine's thread. The tensor ends here: a completion thread may come after the engine's end. */
static void operation_done(const trib_result *result, void *user)
{
    struct operation *operation = user;
    trib_tf_release(operation->once);
    operation->completion.run = finish_completion;
    completion_post(&operation->completion, result);
}

/* Takes the inputs, and an output that is the input's memory where nobody else refers to it. */
static bool take_buffers(const struct kernel *kernel, struct operation *operation, TF_Status *status)
{
    int64_t dims[MAX_DIMS];
    TF_GetInput(operation->context, 0, &operation->input, status);
    if (TF_GetCode(status) == 0) {
        operation->number = trib_tf_number(kernel, operation->context, 1, status);
    }
    if (TF_GetCode(status) != 0) {
        return false;
    }
    int dim_count = TF_NumDims(operation->input);
    for (int i = 0; i < dim_count && i < MAX_DIMS; i++) {
        dims[i] = TF_Dim(operation->input, i);
    }
    /* TensorFlow hands the input's memory on only if this reference is not there. */
    TF_DeleteTensor(operation->input);
    operation->input = NULL;
    int candidate = 0;
    int forwarded = -1;
    operation->output =
        TF_ForwardInputOrAllocateOutput(operation->context, &candidate, 1, 0, dims, dim_count, &forwarded, status);
    if (TF_GetCode(status) == 0 && forwarded < 0) {
        TF_GetInput(operation->context, 0, &operation->input, status);
    }
    return TF_GetCode(status) == 0;
}

/* Declares the kernel's tensor at its first use, and again for another engine or another size. A name that another
 * place uses for another shape gets a number, the same on workers that use names alike: one about which they have
 * disagreed takes no further shape. The job is locked. */
static trib_status declare(struct kernel *kernel, const struct operation *operation, const TF_Tensor *input,
                           trib_group *group, trib_error *error)
{
    int64_t count = TF_TensorElementCount(input);
    if (kernel->tensor != NULL && kernel->generation == trib_tf_job.generation && kernel->count == count) {
        return TRIB_OK;
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.dtype = (trib_dtype)trib_tf_dtype(TF_TensorType(input));
    desc.count = (uint64_t)count;
    desc.priority = (int32_t)kernel->priority;
    desc.group = group;
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    const int dims = TF_NumDims(input);
    if (dims > 0 && dims <= TRIB_TENSOR_DIMS_MAX) {
        for (int i = 0; i < dims; i++) {
            shape[i] = (uint64_t)TF_Dim(input, i);
        }
        desc.shape = shape;
        desc.dims = (uint32_t)dims;
    }
    if (kernel->codec[0] != '\0') {
        const bool is_small = count * (int64_t)trib_dtype_size(desc.dtype) < kernel->codec_min_bytes;
        desc.codec = is_small ? "none" : kernel->codec;
    }
    char first[TRIB_TENSOR_NAME_MAX + 1];
    trib_tf_tensor_name(kernel, operation->number, first);
    /* Workers use the shapes of a name in one order, and hear of it if they do not. Iterations of a loop may run in any
     * order, which a worker that is late would make an error. A name with a number of its own has one shape. */
    const bool has_order = kernel->numbers == 0 && TF_GetFrameId(operation->context) == 0;
    desc.name_begin = has_order ? (uint32_t)kernel->name_begin : 0;
    desc.name_length = has_order ? (uint32_t)strlen(first) - desc.name_begin : 0;
    trib_status status = TRIB_MISMATCH;
    for (int number = 0; status == TRIB_MISMATCH && number < SHAPES_MAX; number++) {
        if (number == 1 && trib_tf_is_disputed(kernel, error)) {
            break;
        }
        char name[TRIB_TENSOR_NAME_MAX + 1];
        (void)snprintf(name, sizeof name, number == 0 ? "%s" : "%s#%d", first, number);
        desc.name = name;
        status = trib_tensor_declare(trib_tf_job.engine, &desc, &kernel->tensor, error);
    }
    if (status == TRIB_OK && kernel->numbers == 0) {
        status = trib_tf_remember(kernel);
    }
    if (status == TRIB_OK) {
        kernel->generation = trib_tf_job.generation;
        kernel->count = count;
    } else {
        kernel->tensor = NULL;
    }
    return status;
}

/* The job is locked. A reduction is for its root alone: the result of the others is 0 (the gradient of a broadcast,
 * which must be one operation, as TensorFlow leaves out those whose results nobody uses). */
static trib_status begin(struct kernel *kernel, struct operation *operation, const trib_group *group,
                         const trib_op_params *params, trib_error *error)
{
    switch (kernel->kind) {
    case KIND_BROADCAST:
        return trib_broadcast(trib_tf_job.engine, params, NULL, error);
    case KIND_REDUCE:
        operation->is_zero = trib_tf_rank(group) != params->root;
        return trib_reduce_to(trib_tf_job.engine, params, NULL, error);
    default:
        return trib_push_pull(trib_tf_job.engine, params, NULL, error);
    }
}

/* Submits; returns NULL, or a text in *error. */
static const char *submit(struct kernel *kernel, struct operation *operation, trib_error *error)
{
    const TF_Tensor *input = operation->input != NULL ? operation->input : operation->output;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = TF_TensorData(input);
    params.output = TF_TensorData(operation->output);
    params.reduce = (trib_reduce)kernel->reduce;
    params.root = (int32_t)kernel->root;
    params.done_cb = operation_done;
    params.user = operation;
    /* The lock keeps the engine from being destroyed during the call, which takes microseconds. */
    pthread_mutex_lock(&trib_tf_job.lock);
    pthread_mutex_lock(&kernel->lock);
    trib_group *group = NULL;
    trib_status status = trib_tf_group(kernel, &group, error);
    status = status == TRIB_OK ? completion_begin(error) : status;
    if (status == TRIB_OK) {
        status = declare(kernel, operation, input, group, error);
    }
    if (status == TRIB_OK) {
        params.tensor = kernel->tensor;
        if (kernel->numbers != 0) {
            operation->once = kernel->tensor;
            kernel->tensor = NULL;
        }
        trib_tf_job.calls++;
        trib_tf_job.in_place += params.input == params.output;
        trib_tf_job.pending++;
        status = begin(kernel, operation, group, &params, error);
        if (status != TRIB_OK) {
            trib_tf_job.pending--;
            trib_tf_release(operation->once);
        }
    }
    pthread_mutex_unlock(&kernel->lock);
    pthread_mutex_unlock(&trib_tf_job.lock);
    if (status == TRIB_OK) {
        return NULL; /* the completion's thread may have freed the operation already */
    }
    operation->completion.status = status;
    return error->text;
}

static void compute(void *kernel, TF_OpKernelContext *context, TF_AsyncOpKernelDoneCallback *done)
{
    struct operation *operation = calloc(1, sizeof *operation);
    void *copy = trib_done_copy(done);
    TF_Status *status = TF_NewStatus();
    if (operation == NULL) {
        TF_SetStatus(status, TF_CODE_INTERNAL, "out of memory");
        TF_OpKernelContext_Failure(context, status);
        trib_done_run(copy);
    } else {
        *operation = (struct operation){.context = context, .done = copy};
        trib_error error = {0};
        const char *text =
            take_buffers(kernel, operation, status) ? submit(kernel, operation, &error) : TF_Message(status);
        if (text != NULL) {
            finish(operation, text);
        }
    }
    TF_DeleteStatus(status);
}

static void infer_shape(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF_ShapeHandle *shape = TF_NewShapeHandle();
    TF_ShapeInferenceContextGetInput(context, 0, shape, status);
    if (TF_GetCode(status) == 0) {
        TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
    }
    TF_DeleteShapeHandle(shape);
}

void trib_tf_add_attributes(TF_OpDefinitionBuilder *builder)
{
    TF_OpDefinitionBuilderAddAttr(builder, "T: {float, double, half, bfloat16, int8, uint8, int16, uint16, int32, "
                                           "uint32, int64, uint64, bool}");
    TF_OpDefinitionBuilderAddAttr(builder, "tensor_name: string");
    TF_OpDefinitionBuilderAddAttr(builder, "kind: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "reduce: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "priority: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "root: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "codec: string = ''");
    TF_OpDefinitionBuilderAddAttr(builder, "codec_min_bytes: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "process_set: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "name_begin: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "numbers: int >= 0");
}

/* Runs when tf.load_op_library() loads this file. TF_OpDefinitionBuilderSetIsStateful is not called: it makes an
 * operation stateful whatever its argument says. */
__attribute__((constructor)) static void register_operation(void)
{
    TF_Status *status = TF_NewStatus();
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TributaryExchange");
    trib_tf_add_attributes(builder);
    TF_OpDefinitionBuilderAddInput(builder, "value: T");
    TF_OpDefinitionBuilderAddInput(builder, "number: numbers * int64");
    TF_OpDefinitionBuilderAddOutput(builder, "result: T");
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shape);
    TF_RegisterOpDefinition(builder, status);
    if (TF_GetCode(status) == 0) {
        TF_KernelBuilder *kernel = TF_NewAsyncKernelBuilder("TributaryExchange", "CPU", trib_tf_kernel_create, compute,
                                                            trib_tf_kernel_destroy);
        TF_RegisterKernelBuilder("TributaryExchange", kernel, status);
    }
    if (TF_GetCode(status) == 0) {
        trib_tf_register_gather(status);
    }
    if (TF_GetCode(status) != 0) {
        (void)fprintf(stderr, "tributary: TensorFlow does not take the operations: %s\n", TF_Message(status));
    }
    TF_DeleteStatus(status);
}
