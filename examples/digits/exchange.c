/*
 * exchange.c - the part that embeds Tributary: an engine with threads of its own, whose callbacks count the
 * operations under way. The text of the first failure is kept, because later ones mostly repeat it.
 */
#include "exchange.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool declare(struct exchange *exchange, const char *name, trib_dtype dtype, uint64_t count, int32_t priority,
                    trib_tensor **tensor, trib_error *error)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.count = count;
    desc.priority = priority;
    return trib_tensor_declare(exchange->engine, &desc, tensor, error) == TRIB_OK;
}

/* The forward pass of the next step needs layer 1 first, although the backward pass finishes it last. A priority of
 * minus the layer lets it overtake. */
static bool declare_all(struct exchange *exchange, trib_error *error)
{
    for (int i = 0; i < PART_COUNT; i++) {
        const enum model_part part = (enum model_part)i;
        if (!declare(exchange, model_part_name(part), TRIB_FLOAT32, model_part_count(part), -model_part_layer(part),
                     &exchange->tensors[i], error)) {
            return false;
        }
    }
    return declare(exchange, "hash", TRIB_INT64, 1, 0, &exchange->hash, error) &&
           declare(exchange, "loss", TRIB_FLOAT64, 1, 0, &exchange->loss, error);
}

bool exchange_open(struct exchange *exchange)
{
    trib_config config;
    trib_error error;
    trib_config_init(&config, sizeof config);
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fprintf(stderr, "digits: the environment: %s\n", error.text);
        return false;
    }
    memset(exchange, 0, sizeof *exchange);
    config.mode = TRIB_MODE_THREADS;
    if (trib_engine_create(&config, &exchange->engine, &error) != TRIB_OK) {
        fprintf(stderr, "digits: cannot start: %s\n", error.text);
        return false;
    }
    (void)pthread_mutex_init(&exchange->mutex, NULL);
    (void)pthread_cond_init(&exchange->all_done, NULL);
    trib_engine_info info = {.struct_size = sizeof info};
    /* Operations could be submitted at once. Waiting first gives a clear, early message if the job does not form. */
    if (trib_engine_wait_ready(exchange->engine, -1, &error) != TRIB_OK || !declare_all(exchange, &error)) {
        fprintf(stderr, "digits: cannot join: %s\n", error.text);
        exchange_close(exchange);
        return false;
    }
    if (trib_engine_get_info(exchange->engine, &info) != TRIB_OK) {
        fprintf(stderr, "digits: this library does not fit the header the program was built with\n");
        exchange_close(exchange);
        return false;
    }
    exchange->rank = info.rank;
    exchange->worker_count = info.worker_count;
    exchange->server_count = info.server_count;
    return true;
}

static void keep_failure(struct exchange *exchange, trib_status status, const char *what, const char *text)
{
    if (!exchange->failed) {
        exchange->failed = true;
        (void)snprintf(exchange->failure, sizeof exchange->failure, "%s: %s: %s", what, trib_status_name(status), text);
    }
}

static void operation_done(const trib_result *result, void *user)
{
    struct exchange *exchange = user;
    (void)pthread_mutex_lock(&exchange->mutex);
    if (result->status != TRIB_OK) {
        keep_failure(exchange, result->status, result->tensor, result->text);
    }
    exchange->last_done_ns = clock_ns();
    exchange->pending--;
    if (exchange->pending == 0) {
        (void)pthread_cond_signal(&exchange->all_done);
    }
    (void)pthread_mutex_unlock(&exchange->mutex);
}

typedef trib_status (*begin_function)(trib_engine *, const trib_op_params *, trib_op **, trib_error *);

/* Counts the operation before it is submitted, because its callback may run before the call returns to this thread. */
static bool begin(struct exchange *exchange, begin_function function, trib_op_params *params, const char *name)
{
    params->done_cb = operation_done;
    params->user = exchange;
    if (exchange->begin_ns == 0) {
        exchange->begin_ns = clock_ns();
    }
    (void)pthread_mutex_lock(&exchange->mutex);
    exchange->pending++;
    (void)pthread_mutex_unlock(&exchange->mutex);
    trib_error error;
    const trib_status status = function(exchange->engine, params, NULL, &error);
    if (status != TRIB_OK) {
        (void)pthread_mutex_lock(&exchange->mutex);
        exchange->pending--;
        keep_failure(exchange, status, name, error.text);
        (void)pthread_mutex_unlock(&exchange->mutex);
    }
    return status == TRIB_OK;
}

bool exchange_sum(struct exchange *exchange, struct parameters *parameters, enum model_part part)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = exchange->tensors[part];
    params.output = model_part_data(parameters, part);
    params.input = params.output;
    params.reduce = TRIB_SUM;
    return begin(exchange, trib_push_pull, &params, model_part_name(part));
}

bool exchange_copy(struct exchange *exchange, struct parameters *parameters, enum model_part part)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = exchange->tensors[part];
    params.output = model_part_data(parameters, part);
    params.input = params.output;
    params.root = 0;
    return begin(exchange, trib_broadcast, &params, model_part_name(part));
}

bool exchange_wait(struct exchange *exchange, int64_t *duration_ns)
{
    (void)pthread_mutex_lock(&exchange->mutex);
    while (exchange->pending > 0) {
        (void)pthread_cond_wait(&exchange->all_done, &exchange->mutex);
    }
    const bool succeeded = !exchange->failed;
    *duration_ns = exchange->last_done_ns - exchange->begin_ns;
    (void)pthread_mutex_unlock(&exchange->mutex);
    exchange->begin_ns = 0;
    if (!succeeded) {
        fprintf(stderr, "digits: worker %d: %s\n", exchange->rank, exchange->failure);
    }
    return succeeded;
}

bool exchange_total(struct exchange *exchange, double *value)
{
    double mine = *value;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = exchange->loss;
    params.input = &mine;
    params.output = value;
    params.reduce = TRIB_SUM;
    const bool begun = begin(exchange, trib_push_pull, &params, "loss");
    int64_t duration_ns;
    return exchange_wait(exchange, &duration_ns) && begun;
}

bool exchange_boundary(struct exchange *exchange, uint32_t step)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.step = step;
    const bool begun = begin(exchange, trib_checkpoint, &params, "checkpoint");
    int64_t duration_ns;
    return exchange_wait(exchange, &duration_ns) && begun;
}

bool exchange_compare(struct exchange *exchange, uint64_t hash, bool *same)
{
    int64_t mine;
    int64_t least = 0;
    int64_t most = 0;
    memcpy(&mine, &hash, sizeof mine);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = exchange->hash;
    params.input = &mine;
    params.output = &least;
    params.reduce = TRIB_MIN;
    bool begun = begin(exchange, trib_push_pull, &params, "hash");
    params.output = &most;
    params.reduce = TRIB_MAX;
    begun = begun && begin(exchange, trib_push_pull, &params, "hash");
    int64_t duration_ns;
    /* The wait comes in any case: the numbers on this stack must outlive the operations that have begun. */
    const bool succeeded = exchange_wait(exchange, &duration_ns) && begun;
    *same = succeeded && least == mine && most == mine;
    return succeeded;
}

void exchange_close(struct exchange *exchange)
{
    (void)trib_engine_destroy(exchange->engine);
    exchange->engine = NULL;
    (void)pthread_cond_destroy(&exchange->all_done);
    (void)pthread_mutex_destroy(&exchange->mutex);
}
