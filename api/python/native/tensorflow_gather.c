/* tensorflow_gather.c - TensorFlow's second operation, TributaryGather: all-gather, reduce-scatter and all-to-all,
 * whose outputs differ from their inputs in the first dimension. How long a gathered output is, only its end tells: the
 * engine takes memory for it, and a completion thread copies it into a tensor of TensorFlow's.
 *
 * Every operation declares a tensor and releases it, so that lengths may differ each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native/tensorflow_job.h"

enum { KIND_ALL_GATHER = 0, KIND_REDUCE_SCATTER = 1, KIND_ALL_TO_ALL = 2 };

struct gather {
    struct completion completion; /* first */
    struct kernel *kernel;
    TF_OpKernelContext *context;
    void *done;
    TF_Tensor *input, *splits, *output; /* output: of a reduce-scatter alone */
    int64_t number;                     /* that the tensor's name ends with */
    trib_tensor *tensor;
    trib_op *op;
    int rank, size;     /* of this worker in the process set */
    uint64_t row;       /* elements that an index of the first dimension stands for; at least 1 */
    uint64_t lengths[]; /* room for the rows of each member, or pair of members */
};

/* Ends an operation: text is NULL, or says why it failed. TensorFlow may go on computing in here. */
static void finish(struct gather *gather, trib_status status, const char *text)
{
    if (text != NULL) {
        trib_tf_fail(gather->context, status, text);
    }
    TF_Tensor *const tensors[] = {gather->input, gather->splits, gather->output};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i] != NULL) {
            TF_DeleteTensor(tensors[i]);
        }
    }
    void *done = gather->done;
    free(gather);
    trib_done_run(done);
}

/* Allocates the output, like the input but for its first dimension. */
static TF_Tensor *allocate(struct gather *gather, uint64_t rows, TF_Status *status)
{
    int64_t dims[MAX_DIMS];
    const int dim_count = TF_NumDims(gather->input);
    const int type = TF_TensorType(gather->input);
    uint64_t bytes = trib_dtype_size((trib_dtype)trib_tf_dtype(type)) * rows;
    for (int i = 1; i < dim_count && i < MAX_DIMS; i++) {
        dims[i] = TF_Dim(gather->input, i);
        bytes *= (uint64_t)dims[i];
    }
    dims[0] = (int64_t)rows;
    return TF_AllocateOutput(gather->context, 0, type, dims, dim_count, bytes, status);
}

/* Gives TensorFlow how many rows came from each member. */
static void write_counts(struct gather *gather, TF_Status *status)
{
    const int64_t size = gather->size;
    TF_Tensor *counts =
        TF_AllocateOutput(gather->context, 1, TF_TYPE_INT64, &size, 1, (size_t)size * sizeof(int64_t), status);
    if (TF_GetCode(status) == 0) {
        int64_t *rows = TF_TensorData(counts);
        for (int i = 0; i < gather->size; i++) {
            rows[i] = (int64_t)gather->lengths[i];
        }
        TF_DeleteTensor(counts);
    }
}

/* One for each member, or for each pair of members. */
static size_t length_count(const struct kernel *kernel, int size)
{
    return (size_t)size * (kernel->kind == KIND_ALL_TO_ALL ? (size_t)size : 1);
}

/* Leaves in gather->lengths how many rows came from each member; *rows_out is their sum. */
static trib_status read_lengths(struct gather *gather, uint64_t *rows_out, trib_error *error)
{
    size_t count = 0;
    const size_t capacity = length_count(gather->kernel, gather->size);
    const trib_status result = trib_op_counts(gather->op, gather->lengths, capacity, &count, error);
    if (result != TRIB_OK) {
        return result;
    }
    const bool is_pairs = gather->kernel->kind == KIND_ALL_TO_ALL;
    uint64_t rows = 0;
    for (int i = 0; i < gather->size; i++) {
        const size_t at = is_pairs ? (size_t)i * (size_t)gather->size + (size_t)gather->rank : (size_t)i;
        gather->lengths[i] = gather->lengths[at] / gather->row; /* at >= i: what is read has not been overwritten */
        rows += gather->lengths[i];
    }
    *rows_out = rows;
    return TRIB_OK;
}

/* Copies what has been gathered out of the engine's memory; a failure is left in *status. */
static void take_result(struct gather *gather, TF_Status *status)
{
    void *data = NULL;
    uint64_t bytes = 0;
    uint64_t rows = 0;
    trib_error error;
    if (read_lengths(gather, &rows, &error) != TRIB_OK ||
        trib_op_output(gather->op, &data, &bytes, &error) != TRIB_OK) {
        TF_SetStatus(status, TF_CODE_INTERNAL, error.text);
        return;
    }
    write_counts(gather, status);
    if (gather->output != NULL || TF_GetCode(status) != 0) {
        return;
    }
    TF_Tensor *output = allocate(gather, rows, status);
    if (TF_GetCode(status) == 0) {
        if (bytes != TF_TensorByteSize(output)) {
            TF_SetStatus(status, TF_CODE_INTERNAL, "the workers' rows do not fit together");
        } else if (bytes > 0) {
            memcpy(TF_TensorData(output), data, bytes);
        }
        TF_DeleteTensor(output);
    }
}

/* Ends the tensor of an operation that is over, or was not taken. */
static void release(struct gather *gather)
{
    trib_error error;
    if (trib_tensor_release(gather->tensor, &error) != TRIB_OK) {
        (void)fprintf(stderr, "tributary: %s: %s\n", gather->kernel->name, error.text);
    }
}

static void finish_completion(struct completion *completion)
{
    struct gather *gather = (struct gather *)completion;
    TF_Status *status = TF_NewStatus();
    /* The submission, which holds this lock, has stored the handle. */
    pthread_mutex_lock(&gather->kernel->lock);
    pthread_mutex_unlock(&gather->kernel->lock);
    /* The callback may still be returning: until then the operation counts as pending. */
    (void)trib_op_wait(gather->op, -1, NULL);
    const char *text = completion_failure(completion);
    if (text == NULL) {
        take_result(gather, status);
    }
    trib_op_release(gather->op);
    release(gather);
    trib_tf_taken(true);
    if (text == NULL && TF_GetCode(status) != 0) {
        text = TF_Message(status);
    }
    finish(gather, completion->status, text);
    TF_DeleteStatus(status);
}

/* Runs on an engine's thread. */
static void operation_done(const trib_result *result, void *user)
{
    struct gather *gather = user;
    gather->completion.run = finish_completion;
    completion_post(&gather->completion, result);
}

/* Reads how many rows go to each member into gather->lengths, as elements. */
static trib_status read_splits(struct gather *gather, uint64_t rows, trib_error *error)
{
    const int64_t *splits = TF_TensorData(gather->splits);
    const int64_t count = TF_TensorElementCount(gather->splits);
    uint64_t total = 0;
    if (count != gather->size && count != 0) {
        (void)snprintf(error->text, sizeof error->text, "%s: splits has %d numbers; there are %d workers",
                       gather->kernel->name, (int)count, gather->size);
        return TRIB_INVALID;
    }
    if (count == 0 && (gather->size < 1 || rows % (uint64_t)gather->size != 0)) {
        (void)snprintf(error->text, sizeof error->text,
                       "%s: %llu rows cannot be split evenly among %d workers: give splits", gather->kernel->name,
                       (unsigned long long)rows, gather->size);
        return TRIB_INVALID;
    }
    for (int i = 0; i < gather->size; i++) {
        const int64_t length = count == 0 ? (int64_t)(rows / (uint64_t)gather->size) : splits[i];
        if (length < 0 || (uint64_t)length > rows - total) {
            (void)snprintf(error->text, sizeof error->text, "%s: splits do not fit into the %llu rows of the tensor",
                           gather->kernel->name, (unsigned long long)rows);
            return TRIB_INVALID;
        }
        total += (uint64_t)length;
        gather->lengths[i] = (uint64_t)length * gather->row;
    }
    return TRIB_OK;
}

/* Lets the workers' shapes be compared, as far as they are to agree. `shape` has TRIB_TENSOR_DIMS_MAX sizes. */
static void set_shape(const struct gather *gather, uint64_t rows, uint64_t *shape, trib_tensor_desc *desc)
{
    const int dims = TF_NumDims(gather->input);
    if (dims > TRIB_TENSOR_DIMS_MAX) {
        return;
    }
    shape[0] = rows;
    for (int i = 1; i < dims; i++) {
        shape[i] = (uint64_t)TF_Dim(gather->input, i);
    }
    desc->shape = shape;
    desc->dims = (uint32_t)dims;
}

/* Says what this worker's part of the operation is, and declares the tensor. The job is locked. */
static trib_status declare(struct gather *gather, trib_group *group, trib_op_params *params, trib_error *error)
{
    const uint64_t rows = (uint64_t)TF_Dim(gather->input, 0);
    const size_t element = trib_dtype_size((trib_dtype)trib_tf_dtype(TF_TensorType(gather->input)));
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_tf_tensor_name(gather->kernel, gather->number, name);
    desc.name = name;
    desc.dtype = (trib_dtype)trib_tf_dtype(TF_TensorType(gather->input));
    desc.count = (uint64_t)TF_TensorElementCount(gather->input);
    desc.layout = TRIB_SLICES;
    desc.row = gather->row;
    desc.group = group;
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    set_shape(gather, rows, shape, &desc);
    params->input_bytes = desc.count * element;
    if (gather->kernel->kind == KIND_REDUCE_SCATTER) {
        const uint64_t each = rows / (uint64_t)gather->size;
        const uint64_t mine = each + ((uint64_t)gather->rank < rows % (uint64_t)gather->size);
        desc.count = rows == 0 ? 0 : desc.count / rows * mine;
        shape[0] = mine;
        TF_Status *status = TF_NewStatus();
        gather->output = allocate(gather, mine, status);
        const bool is_allocated = TF_GetCode(status) == 0;
        TF_DeleteStatus(status);
        if (!is_allocated) {
            return TRIB_NO_MEMORY;
        }
        params->output = TF_TensorData(gather->output);
        params->output_bytes = desc.count * element;
    } else {
        params->flags = TRIB_OP_ALLOCATE_OUTPUT;
    }
    if (gather->kernel->kind == KIND_ALL_TO_ALL) {
        const trib_status status = read_splits(gather, rows, error);
        if (status != TRIB_OK) {
            return status;
        }
        desc.layout = TRIB_PAIRS;
        desc.count = 0;
        desc.shape = NULL;
        desc.dims = 0;
        desc.splits = gather->lengths;
        desc.split_count = (uint32_t)gather->size;
        params->input_bytes = 0; /* rows behind the last split stay where they are */
    }
    return trib_tensor_declare(trib_tf_job.engine, &desc, &gather->tensor, error);
}

static trib_status begin(struct gather *gather, const trib_op_params *params, trib_error *error)
{
    switch (gather->kernel->kind) {
    case KIND_ALL_GATHER:
        return trib_all_gather(trib_tf_job.engine, params, &gather->op, error);
    case KIND_REDUCE_SCATTER:
        return trib_reduce_scatter(trib_tf_job.engine, params, &gather->op, error);
    default:
        return trib_all_to_all(trib_tf_job.engine, params, &gather->op, error);
    }
}

static trib_status submit(struct gather *gather, trib_group *group, trib_error *error)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_status status = declare(gather, group, &params, error);
    if (status != TRIB_OK) {
        return status;
    }
    params.tensor = gather->tensor;
    params.input = TF_TensorData(gather->input);
    params.reduce = (trib_reduce)gather->kernel->reduce;
    params.priority = (int32_t)gather->kernel->priority;
    params.has_priority = true;
    params.done_cb = operation_done;
    params.user = gather;
    trib_tf_job.pending++;
    trib_tf_job.gathers++;
    trib_tf_job.calls++;
    status = begin(gather, &params, error);
    if (status != TRIB_OK) {
        trib_tf_job.pending--;
        trib_tf_job.gathers--;
        release(gather);
    }
    return status;
}

/* Makes the record of a call, with room for the lengths of a set of that size. NULL when out of memory. */
static struct gather *record(struct kernel *kernel, TF_OpKernelContext *context, void *done, trib_group *group)
{
    const int size = trib_tf_size(group);
    if (size <= 0) {
        return NULL; /* the engine does not tell: it is gone */
    }
    const size_t lengths = length_count(kernel, size);
    struct gather *gather = calloc(1, sizeof *gather + lengths * sizeof gather->lengths[0]);
    if (gather != NULL) {
        gather->kernel = kernel;
        gather->context = context;
        gather->done = done;
        gather->size = size;
        gather->rank = trib_tf_rank(group);
    }
    return gather;
}

/* Takes the inputs; returns false with a text in *error. */
static bool take_inputs(struct gather *gather, trib_error *error)
{
    TF_Status *status = TF_NewStatus();
    TF_GetInput(gather->context, 0, &gather->input, status);
    if (TF_GetCode(status) == 0) {
        TF_GetInput(gather->context, 1, &gather->splits, status);
    }
    if (TF_GetCode(status) == 0) {
        gather->number = trib_tf_number(gather->kernel, gather->context, 2, status);
    }
    bool is_taken = TF_GetCode(status) == 0;
    if (!is_taken) {
        (void)snprintf(error->text, sizeof error->text, "%s", TF_Message(status));
    } else if (TF_NumDims(gather->input) == 0) {
        (void)snprintf(error->text, sizeof error->text, "%s: a tensor without dimensions has no rows",
                       gather->kernel->name);
        is_taken = false;
    } else {
        gather->row = 1;
        for (int i = 1; i < TF_NumDims(gather->input); i++) {
            gather->row *= (uint64_t)TF_Dim(gather->input, i);
        }
        gather->row = gather->row == 0 ? 1 : gather->row;
    }
    TF_DeleteStatus(status);
    return is_taken;
}

static void compute(void *user, TF_OpKernelContext *context, TF_AsyncOpKernelDoneCallback *done)
{
    struct kernel *kernel = user;
    void *copy = trib_done_copy(done);
    trib_error error = {.text = "out of memory"};
    trib_group *group = NULL;
    struct gather *gather = NULL;
    pthread_mutex_lock(&trib_tf_job.lock);
    pthread_mutex_lock(&kernel->lock);
    trib_status status = trib_tf_group(kernel, &group, &error);
    status = status == TRIB_OK ? completion_begin(&error) : status;
    if (status == TRIB_OK) {
        gather = record(kernel, context, copy, group);
        status = gather == NULL                ? TRIB_NO_MEMORY
                 : take_inputs(gather, &error) ? submit(gather, group, &error)
                                               : TRIB_INVALID;
    }
    pthread_mutex_unlock(&kernel->lock);
    pthread_mutex_unlock(&trib_tf_job.lock);
    if (status == TRIB_OK) {
        return; /* a completion thread may have freed gather already */
    }
    if (gather != NULL) {
        finish(gather, status, error.text);
    } else {
        trib_tf_fail(context, status, error.text);
        trib_done_run(copy);
    }
}

static void infer_shape(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void trib_tf_register_gather(TF_Status *status)
{
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TributaryGather");
    trib_tf_add_attributes(builder);
    TF_OpDefinitionBuilderAddInput(builder, "value: T");
    TF_OpDefinitionBuilderAddInput(builder, "splits: int64");
    TF_OpDefinitionBuilderAddInput(builder, "number: numbers * int64");
    TF_OpDefinitionBuilderAddOutput(builder, "result: T");
    TF_OpDefinitionBuilderAddOutput(builder, "counts: int64");
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shape);
    TF_RegisterOpDefinition(builder, status);
    if (TF_GetCode(status) == 0) {
        TF_KernelBuilder *kernel =
            TF_NewAsyncKernelBuilder("TributaryGather", "CPU", trib_tf_kernel_create, compute, trib_tf_kernel_destroy);
        TF_RegisterKernelBuilder("TributaryGather", kernel, status);
    }
}
