/* jax.c - operations of an engine as calls in XLA programs: handlers of XLA's foreign function interface, in plain C.
 *
 * On processors a handler submits and gives XLA a future, which a completion thread completes: no thread of XLA
 * waits, and the interpreter is not needed. On a GPU the operation is put between the work of XLA's stream.
 *
 * A compiled program may outlive the engine that it was compiled for. So it knows its tensors by numbers in a table,
 * which are never used again, and not by handles. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native/completion.h"
#include "native/xla_ffi.h"
#include "tributary.h"

typedef trib_status submit_function(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                    trib_error *error);

/* The attribute `kind` of a call is an index here (tributary/jax/program.py). */
static submit_function *const functions[] = {trib_push_pull, trib_broadcast, trib_all_gather, trib_reduce_scatter,
                                             trib_all_to_all};

struct entry {
    trib_engine *engine; /* NULL: the engine has been closed */
    trib_tensor *tensor;
    bool is_busy;     /* an operation of a program on processors is under way */
    bool loss_undoes; /* the job goes on without workers */
};

/* The table of tensors, shared by threads of Python and XLA. */
static struct {
    pthread_mutex_t lock;
    struct entry *entries;
    uint64_t count, capacity;
    uint64_t calls, in_place; /* for tests */
    bool *places;             /* by number: XLA has a place of that number in a program */
    uint64_t place_capacity;
    const trib_engine *closed_for_mixing; /* it was closed because two operations could be mixed up */
    char mixing[TRIB_ERROR_TEXT_SIZE];    /* why */
    bool has_failed;                      /* an operation on a GPU failed, and no call has told it yet */
    char failure[TRIB_ERROR_TEXT_SIZE];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct pending {
    struct completion completion; /* first */
    const struct xla_api *api;
    struct xla_future *future;
    uint64_t number; /* of the tensor */
};

TRIB_API uint64_t trib_jax_add(trib_engine *engine, trib_tensor *tensor, bool loss_undoes);
TRIB_API void trib_jax_close(const trib_engine *engine);
TRIB_API void trib_jax_reopen(uint64_t number, trib_engine *engine, trib_tensor *tensor, bool loss_undoes);
TRIB_API uint64_t trib_jax_calls(bool in_place);
TRIB_API bool trib_jax_failure(char *text);
TRIB_API struct xla_error *trib_jax_place(struct xla_call *call);
TRIB_API struct xla_error *trib_jax_host(struct xla_call *call);
TRIB_API struct xla_error *trib_jax_device(struct xla_call *call);

/* Adds a tensor and returns its number, counted from 1; 0 when out of memory. */
uint64_t trib_jax_add(trib_engine *engine, trib_tensor *tensor, bool loss_undoes)
{
    uint64_t number = 0;
    pthread_mutex_lock(&table.lock);
    if (table.count == table.capacity) {
        uint64_t capacity = table.capacity ? 2 * table.capacity : 64;
        struct entry *grown = realloc(table.entries, capacity * sizeof *grown);
        if (grown != NULL) {
            table.entries = grown;
            table.capacity = capacity;
        }
    }
    if (table.count < table.capacity) {
        table.entries[table.count++] = (struct entry){.engine = engine, .tensor = tensor, .loss_undoes = loss_undoes};
        number = table.count;
    }
    pthread_mutex_unlock(&table.lock);
    return number;
}

/* Before an engine is destroyed: programs that were compiled for it fail with a text from now on. */
void trib_jax_close(const trib_engine *engine)
{
    pthread_mutex_lock(&table.lock);
    table.closed_for_mixing = NULL;
    for (uint64_t i = 0; i < table.count; i++) {
        if (table.entries[i].engine == engine) {
            table.entries[i].engine = NULL;
        }
    }
    pthread_mutex_unlock(&table.lock);
}

/* Programs that know a tensor of a closed engine by that number use this one from now on. */
void trib_jax_reopen(uint64_t number, trib_engine *engine, trib_tensor *tensor, bool loss_undoes)
{
    pthread_mutex_lock(&table.lock);
    if (number > 0 && number <= table.count) {
        table.entries[number - 1] = (struct entry){.engine = engine, .tensor = tensor, .loss_undoes = loss_undoes};
    }
    pthread_mutex_unlock(&table.lock);
}

/* How many operations XLA has called for, or how many of them in place. */
uint64_t trib_jax_calls(bool in_place)
{
    pthread_mutex_lock(&table.lock);
    uint64_t calls = in_place ? table.in_place : table.calls;
    pthread_mutex_unlock(&table.lock);
    return calls;
}

static struct xla_error *error_with_code(const struct xla_api *api, const char *text, int code)
{
    struct xla_error_create_args args = {sizeof args, NULL, text, code};
    return api->error_create(&args);
}

static struct xla_error *error_of(const struct xla_api *api, const char *text)
{
    return error_with_code(api, text, XLA_ERROR_INTERNAL);
}

/* Tells XLA, which may go on computing in here. */
static void complete(struct completion *completion)
{
    struct pending *pending = (struct pending *)completion;
    const struct xla_api *api = pending->api;
    const char *failure = completion_failure(completion);
    if (failure == NULL) {
        struct xla_future_args args = {sizeof args, NULL, pending->future};
        (void)api->future_set_available(&args);
    } else {
        struct xla_future_set_error_args args = {sizeof args, NULL, pending->future, error_of(api, failure)};
        (void)api->future_set_error(&args);
    }
    free(pending);
}

/* Runs on an engine's thread. */
static void operation_done(const trib_result *result, void *user)
{
    struct pending *pending = user;
    trib_result told = *result;
    pthread_mutex_lock(&table.lock);
    struct entry *entry = &table.entries[pending->number - 1];
    entry->is_busy = false;
    if (told.status == TRIB_CLOSED && table.closed_for_mixing != NULL && entry->engine == table.closed_for_mixing) {
        told.text = table.mixing; /* XLA raises the error of any operation of the program */
    }
    pending->completion.run = complete;
    completion_post(&pending->completion, &told); /* copies the text */
    pthread_mutex_unlock(&table.lock);
}

static const void *attribute_value(const struct xla_call *call, const char *name)
{
    const struct xla_attributes *attributes = &call->attributes;
    for (int64_t i = 0; i < attributes->count; i++) {
        if (attributes->names[i]->length == strlen(name) &&
            memcmp(attributes->names[i]->bytes, name, strlen(name)) == 0) {
            return attributes->values[i];
        }
    }
    return NULL;
}

static int64_t attribute(const struct xla_call *call, const char *name)
{
    const struct xla_scalar *scalar = attribute_value(call, name);
    return scalar != NULL ? *(const int64_t *)scalar->value : 0;
}

/* Writes to `text` what is wrong, with the operation's name before it. */
static void tell_of_call(const struct xla_call *call, char *text, const char *what)
{
    const struct xla_bytes *name = attribute_value(call, "name");
    (void)snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.*s: %s", name != NULL ? (int)name->length : 0,
                   name != NULL ? name->bytes : "", what);
}

/* XLA asks a handler for its version by a call without arguments. Returns true if this is such a call. */
static bool answered_metadata(const struct xla_call *call)
{
    if (call->extensions == NULL || call->extensions->type != XLA_EXTENSION_METADATA) {
        return false;
    }
    struct xla_metadata *metadata = ((struct xla_metadata_extension *)(void *)call->extensions)->metadata;
    metadata->api_version.major = XLA_API_MAJOR;
    metadata->api_version.minor = XLA_API_MINOR;
    metadata->traits = 0;
    return true;
}

/* Runs on an engine's thread: the end of an operation on a GPU, which XLA does not wait for on the host. */
static void device_operation_done(const trib_result *result, void *user)
{
    (void)user;
    if (result->status != TRIB_OK) {
        pthread_mutex_lock(&table.lock);
        if (!table.has_failed) {
            table.has_failed = true;
            (void)snprintf(table.failure, sizeof table.failure, "%s", result->text);
        }
        pthread_mutex_unlock(&table.lock);
    }
}

/* Returns whether an operation on a GPU has failed since the last call, and why in `text`, which has room for
 * TRIB_ERROR_TEXT_SIZE bytes. */
bool trib_jax_failure(char *text)
{
    pthread_mutex_lock(&table.lock);
    const bool has_failed = table.has_failed;
    memcpy(text, table.failure, sizeof table.failure);
    table.has_failed = false;
    pthread_mutex_unlock(&table.lock);
    return has_failed;
}

/* Remembers a place and tells in *is_known_out whether it was known. Returns false when out of memory. */
static bool remember_place(uint64_t place, bool *is_known_out)
{
    if (place >= table.place_capacity) {
        uint64_t capacity = place < 64 ? 128 : 2 * place;
        bool *grown = realloc(table.places, capacity * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        memset(grown + table.place_capacity, 0, (capacity - table.place_capacity) * sizeof *grown);
        table.places = grown;
        table.place_capacity = capacity;
    }
    *is_known_out = table.places[place];
    table.places[place] = true;
    return true;
}

/* XLA calls this for each operation that it puts into a program. Each has a number of its own, unless a JAX of another
 * version keeps what it has lowered elsewhere (tributary/jax/program.py). XLA begins operations in any order, on each
 * worker in another one, so no two may have one name. */
struct xla_error *trib_jax_place(struct xla_call *call)
{
    if (answered_metadata(call)) {
        return NULL;
    }
    bool is_known = false;
    pthread_mutex_lock(&table.lock);
    const bool has_memory = remember_place((uint64_t)attribute(call, "place"), &is_known);
    pthread_mutex_unlock(&table.lock);
    if (!has_memory) {
        return error_of(call->api, "out of memory");
    }
    if (!is_known) {
        return NULL;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    tell_of_call(call, text,
                 "XLA has this operation twice, and workers could mix the two up: a program that was lowered once is "
                 "compiled again (lower it again), or this JAX lowers a function once that the program calls twice "
                 "(make a function for each call, or jit(..., inline=True))");
    return error_with_code(call->api, text, XLA_ERROR_UNIMPLEMENTED);
}

/* Workers mix up operations of one name that two threads begin, unless there is one worker. */
static bool could_mix(const struct entry *entry)
{
    trib_engine_info info = {.struct_size = sizeof info};
    return entry->is_busy && (trib_engine_get_info(entry->engine, &info) != TRIB_OK || info.worker_count > 1);
}

/* Fills the parameters of a call's operation and submits it. */
static trib_status submit(const struct xla_call *call, trib_op_params *params, trib_op **op_out, trib_error *error)
{
    const struct xla_buffer *input = call->args.buffers[0];
    const struct xla_buffer *output = call->results.buffers[0];
    uint64_t number = (uint64_t)attribute(call, "tensor");
    /* The lock is held during the call, so that no engine is destroyed meanwhile: it takes microseconds. */
    pthread_mutex_lock(&table.lock);
    struct entry *entry = number >= 1 && number <= table.count ? &table.entries[number - 1] : NULL;
    trib_status status = TRIB_CLOSED;
    if (entry == NULL || entry->engine == NULL) {
        *error = (trib_error){.status = TRIB_CLOSED,
                              .text = "the program was compiled for an engine that has been closed, or for another "
                                      "rank: call jax.clear_caches() after init() or resume()"};
    } else if (could_mix(entry)) {
        /* XLA waits for all others that it has begun before it tells anyone, and they for the other workers, so the job
         * ends here. */
        status = TRIB_UNSUPPORTED;
        *error = (trib_error){.status = TRIB_UNSUPPORTED};
        tell_of_call(call, table.mixing,
                     "two programs at the same time have an operation of that name, and workers could mix the two up: "
                     "give each its name");
        memcpy(error->text, table.mixing, sizeof table.mixing);
        table.closed_for_mixing = entry->engine;
        trib_engine_close(entry->engine, NULL, NULL);
    } else {
        params->tensor = entry->tensor;
        params->input = input->data;
        params->output = output->data;
        params->reduce = (trib_reduce)attribute(call, "reduce");
        params->root = (int32_t)attribute(call, "root");
        params->input_bytes = (uint64_t)attribute(call, "input_bytes");
        params->output_bytes = (uint64_t)attribute(call, "output_bytes");
        entry->is_busy = params->stream == NULL; /* a stream has an order */
        if (entry->loss_undoes && params->stream != NULL) {
            params->done_cb = NULL; /* the call itself tells of the error */
        }
        status = functions[attribute(call, "kind")](entry->engine, params, op_out, error);
        entry->is_busy = entry->is_busy && status == TRIB_OK;
        table.calls++;
        table.in_place += input->data == output->data;
    }
    pthread_mutex_unlock(&table.lock);
    return status;
}

struct xla_error *trib_jax_host(struct xla_call *call)
{
    if (answered_metadata(call)) {
        return NULL;
    }
    struct pending *pending = calloc(1, sizeof *pending);
    trib_error error = {.text = "out of memory"};
    if (pending == NULL || completion_begin(&error) != TRIB_OK) {
        free(pending);
        return error_of(call->api, error.text);
    }
    struct xla_future_args create = {sizeof create, NULL, NULL};
    struct xla_error *failure = call->api->future_create(&create);
    if (failure != NULL) {
        free(pending);
        return failure;
    }
    call->future = create.future; /* XLA frees it, also with an error */
    pending->api = call->api;
    pending->future = create.future;
    pending->number = (uint64_t)attribute(call, "tensor");
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.done_cb = operation_done;
    params.user = pending;
    const trib_status status = submit(call, &params, NULL, &error);
    if (status != TRIB_OK) {
        completion_set(&pending->completion, status, error.text);
        complete(&pending->completion);
    }
    return NULL;
}

struct xla_error *trib_jax_device(struct xla_call *call)
{
    if (answered_metadata(call)) {
        return NULL;
    }
    char earlier[TRIB_ERROR_TEXT_SIZE];
    if (trib_jax_failure(earlier)) {
        return error_of(call->api, earlier);
    }
    struct xla_stream_get_args get = {sizeof get, NULL, call->context, NULL};
    struct xla_error *failure = call->api->stream_get(&get);
    if (failure != NULL) {
        return failure;
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.stream = get.stream;
    params.done_cb = device_operation_done;
    trib_op *op = NULL;
    trib_error error;
    trib_status status = submit(call, &params, &op, &error);
    if (status != TRIB_OK) {
        return error_of(call->api, error.text);
    }
    /* Behind an operation that a loss has undone the program must not go on, so the call waits for the end. */
    status = params.done_cb == NULL ? trib_op_wait(op, -1, &error) : trib_op_stream_wait(op, get.stream, &error);
    trib_op_release(op);
    return status == TRIB_OK ? NULL : error_of(call->api, error.text);
}
