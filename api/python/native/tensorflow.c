/* tensorflow.c - an operation of TensorFlow's, TributaryExchange, whose kernel is asynchronous: compute() submits, and
 * the completion thread tells TensorFlow that the result is there. No thread of TensorFlow waits, and the interpreter
 * is not needed. The operation is not stateful: TensorFlow would run stateful ones one by one, in an order that may
 * differ between workers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native/completion.h"
#include "native/tensorflow_c.h"
#include "tributary.h"

enum { KIND_PUSH_PULL = 0, KIND_BROADCAST = 1, MAX_DIMS = 254, SHAPES_MAX = 100 };

/* The engine that kernels submit to, and how often there has been another. */
static struct {
    pthread_mutex_t lock;
    trib_engine *engine;
    uint64_t generation;
    uint64_t calls, in_place; /* for tests */
} job = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One place in a graph. */
struct kernel {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    char codec[256]; /* as trib_tensor_desc.codec; "": NULL */
    int64_t kind, reduce, priority, root, codec_min_bytes;
    pthread_mutex_t lock;
    trib_tensor *tensor; /* of the engine of this generation, for this count */
    uint64_t generation;
    int64_t count;
};

struct operation {
    struct completion completion; /* first */
    char *failure;                /* why it failed, or NULL */
    TF_OpKernelContext *context;
    void *done;
    TF_Tensor *input, *output;
};

TRIB_API void trib_tensorflow_set_engine(trib_engine *engine);
TRIB_API uint64_t trib_tensorflow_calls(bool in_place);

/* NULL before the engine is destroyed. */
void trib_tensorflow_set_engine(trib_engine *engine)
{
    pthread_mutex_lock(&job.lock);
    job.engine = engine;
    job.generation++;
    pthread_mutex_unlock(&job.lock);
}

/* How many operations kernels have submitted, or how many of them in place. */
uint64_t trib_tensorflow_calls(bool in_place)
{
    pthread_mutex_lock(&job.lock);
    uint64_t calls = in_place ? job.in_place : job.calls;
    pthread_mutex_unlock(&job.lock);
    return calls;
}

/* TensorFlow's numbers of types; -1 for those that cannot be summed. */
static int dtype_of(int type)
{
    static const int DTYPES[] = {
        [1] = TRIB_FLOAT32 + 1,   [2] = TRIB_FLOAT64 + 1, [3] = TRIB_INT32 + 1,    [4] = TRIB_UINT8 + 1,
        [5] = TRIB_INT16 + 1,     [6] = TRIB_INT8 + 1,    [9] = TRIB_INT64 + 1,    [10] = TRIB_BOOL + 1,
        [14] = TRIB_BFLOAT16 + 1, [17] = TRIB_UINT16 + 1, [19] = TRIB_FLOAT16 + 1, [22] = TRIB_UINT32 + 1,
        [23] = TRIB_UINT64 + 1};
    return type >= 0 && type < (int)(sizeof DTYPES / sizeof DTYPES[0]) ? DTYPES[type] - 1 : -1;
}

static void *create(TF_OpKernelConstruction *context)
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
                   {"codec_min_bytes", offsetof(struct kernel, codec_min_bytes)}};
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

static void destroy(void *kernel)
{
    free(kernel);
}

/* Ends an operation: text is NULL, or says why it failed. TensorFlow may go on computing in here. */
static void finish(struct operation *operation, const char *text)
{
    if (text != NULL) {
        TF_Status *status = TF_NewStatus();
        TF_SetStatus(status, TF_CODE_INTERNAL, text);
        TF_OpKernelContext_Failure(operation->context, status);
        TF_DeleteStatus(status);
    }
    if (operation->input != NULL) {
        TF_DeleteTensor(operation->input);
    }
    if (operation->output != NULL) {
        TF_DeleteTensor(operation->output);
    }
    void *done = operation->done;
    free(operation->failure);
    free(operation);
    trib_done_run(done);
}

static void finish_completion(struct completion *completion)
{
    struct operation *operation = (struct operation *)completion;
    finish(operation, operation->failure);
}

/* Runs on an engine's thread. */
static void operation_done(const trib_result *result, void *user)
{
    struct operation *operation = user;
    if (result->status != TRIB_OK) {
        operation->failure = strdup(result->text);
    }
    operation->completion.run = finish_completion;
    completion_post(&operation->completion);
}

/* Takes the input, and an output that is the input's memory where nobody else refers to it. */
static bool take_buffers(struct operation *operation, TF_Status *status)
{
    int64_t dims[MAX_DIMS];
    TF_GetInput(operation->context, 0, &operation->input, status);
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
 * place uses for another shape gets a number, the same on workers that use names alike. The job is locked. */
static trib_status declare(struct kernel *kernel, const TF_Tensor *input, trib_error *error)
{
    int64_t count = TF_TensorElementCount(input);
    if (kernel->tensor != NULL && kernel->generation == job.generation && kernel->count == count) {
        return TRIB_OK;
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.dtype = (trib_dtype)dtype_of(TF_TensorType(input));
    desc.count = (uint64_t)count;
    desc.priority = (int32_t)kernel->priority;
    if (kernel->codec[0] != '\0') {
        const bool is_small = count * (int64_t)trib_dtype_size(desc.dtype) < kernel->codec_min_bytes;
        desc.codec = is_small ? "none" : kernel->codec;
    }
    trib_status status = TRIB_MISMATCH;
    for (int number = 0; status == TRIB_MISMATCH && number < SHAPES_MAX; number++) {
        char name[TRIB_TENSOR_NAME_MAX + 1];
        (void)snprintf(name, sizeof name, number == 0 ? "%s" : "%s#%d", kernel->name, number);
        desc.name = name;
        status = trib_tensor_declare(job.engine, &desc, &kernel->tensor, error);
    }
    if (status == TRIB_OK) {
        kernel->generation = job.generation;
        kernel->count = count;
    } else {
        kernel->tensor = NULL;
    }
    return status;
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
    pthread_mutex_lock(&job.lock);
    pthread_mutex_lock(&kernel->lock);
    trib_status status = TRIB_CLOSED;
    if (job.engine == NULL) {
        (void)snprintf(error->text, sizeof error->text, "tributary has not been initialized: call init() first");
    } else {
        status = declare(kernel, input, error);
    }
    if (status == TRIB_OK) {
        params.tensor = kernel->tensor;
        job.calls++;
        job.in_place += params.input == params.output;
        status = kernel->kind == KIND_BROADCAST ? trib_broadcast(job.engine, &params, NULL, error)
                                                : trib_push_pull(job.engine, &params, NULL, error);
    }
    pthread_mutex_unlock(&kernel->lock);
    pthread_mutex_unlock(&job.lock);
    return status == TRIB_OK ? NULL : error->text;
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
        const char *text = take_buffers(operation, status) ? submit(kernel, operation, &error) : TF_Message(status);
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

/* Runs when tf.load_op_library() loads this file. TF_OpDefinitionBuilderSetIsStateful is not called: it makes an
 * operation stateful whatever its argument says. */
__attribute__((constructor)) static void register_operation(void)
{
    TF_Status *status = TF_NewStatus();
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TributaryExchange");
    TF_OpDefinitionBuilderAddAttr(builder, "T: {float, double, half, bfloat16, int8, uint8, int16, uint16, int32, "
                                           "uint32, int64, uint64, bool}");
    TF_OpDefinitionBuilderAddAttr(builder, "tensor_name: string");
    TF_OpDefinitionBuilderAddAttr(builder, "kind: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "reduce: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "priority: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "root: int = 0");
    TF_OpDefinitionBuilderAddAttr(builder, "codec: string = ''");
    TF_OpDefinitionBuilderAddAttr(builder, "codec_min_bytes: int = 0");
    TF_OpDefinitionBuilderAddInput(builder, "value: T");
    TF_OpDefinitionBuilderAddOutput(builder, "result: T");
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shape);
    TF_RegisterOpDefinition(builder, status);
    if (TF_GetCode(status) == 0) {
        TF_KernelBuilder *kernel = TF_NewAsyncKernelBuilder("TributaryExchange", "CPU", create, compute, destroy);
        TF_RegisterKernelBuilder("TributaryExchange", kernel, status);
    }
    if (TF_GetCode(status) != 0) {
        (void)fprintf(stderr, "tributary: TensorFlow does not take the operation: %s\n", TF_Message(status));
    }
    TF_DeleteStatus(status);
}
