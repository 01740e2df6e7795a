/*
 * host_libuv.c - Tributary in a program whose event loop is libuv. A uv_poll_t watches the engine's file descriptor,
 * and its callback dispatches completions on the loop's thread, so that they need no lock.
 */
#include <stdio.h>
#include <tributary.h>
#include <uv.h>

enum { ROUND_COUNT = 300, ELEMENT_COUNT = 4000 };

struct program {
    trib_engine *engine;
    trib_tensor *tensor;
    int32_t values[ELEMENT_COUNT];
    int32_t rank, worker_count, round;
    bool in_flight, failed;
};

static void fail(struct program *program, const char *what, const char *text)
{
    fprintf(stderr, "host_libuv: worker %d: %s: %s\n", program->rank, what, text);
    program->failed = true;
}

/* Checks the sums of (rank + 1) * (index + 1) + round over n ranks. */
static void sum_done(const trib_result *result, void *user)
{
    struct program *program = user;
    const int32_t n = program->worker_count;
    program->in_flight = false;
    if (result->status != TRIB_OK) {
        fail(program, result->tensor, result->text);
    }
    for (int32_t i = 0; i < ELEMENT_COUNT && !program->failed; i++) {
        if (program->values[i] != n * (n + 1) / 2 * (i + 1) + n * program->round) {
            fail(program, result->tensor, "a sum is wrong");
        }
    }
    program->round++;
}

static void begin_round(struct program *program)
{
    trib_op_params params;
    trib_error error;
    for (int32_t i = 0; i < ELEMENT_COUNT; i++) {
        program->values[i] = (program->rank + 1) * (i + 1) + program->round;
    }
    trib_op_params_init(&params, sizeof params);
    params.tensor = program->tensor;
    params.input = program->values;
    params.output = program->values;
    params.done_cb = sum_done;
    params.user = program;
    program->in_flight = trib_push_pull(program->engine, &params, NULL, &error) == TRIB_OK;
    if (!program->in_flight) {
        fail(program, "push_pull", error.text);
    }
}

static void completions_wait(uv_poll_t *handle, int status, int events)
{
    struct program *program = handle->data;
    (void)events;
    if (status < 0) {
        fail(program, "uv_poll", uv_strerror(status));
    } else {
        (void)trib_engine_dispatch(program->engine, 0);
    }
    if (!program->in_flight && !program->failed && program->round < ROUND_COUNT) {
        begin_round(program);
    }
    if (!program->in_flight || program->failed) {
        uv_close((uv_handle_t *)handle, NULL); /* its only handle is closed, so the loop ends */
    }
}

int main(void)
{
    struct program program = {0};
    trib_config config;
    trib_tensor_desc desc;
    trib_error error;
    trib_config_init(&config, sizeof config);
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fail(&program, "environment", error.text);
        return 1;
    }
    program.rank = config.rank;
    program.worker_count = config.worker_count;
    config.mode = TRIB_MODE_QUEUE;
    if (trib_engine_create(&config, &program.engine, &error) != TRIB_OK) {
        fail(&program, "create", error.text);
        return 1;
    }
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "values";
    desc.dtype = TRIB_INT32;
    desc.count = ELEMENT_COUNT;
    if (trib_tensor_declare(program.engine, &desc, &program.tensor, &error) != TRIB_OK) {
        fail(&program, "declare", error.text);
    } else {
        begin_round(&program);
    }
    uv_poll_t handle = {.data = &program};
    uv_loop_t *loop = uv_default_loop();
    if (program.in_flight && (uv_poll_init(loop, &handle, trib_engine_get_fd(program.engine)) != 0 ||
                              uv_poll_start(&handle, UV_READABLE, completions_wait) != 0)) {
        fail(&program, "uv_poll", "libuv refused the file descriptor");
    } else {
        (void)uv_run(loop, UV_RUN_DEFAULT);
    }
    (void)uv_loop_close(loop);
    (void)trib_engine_destroy(program.engine);
    if (!program.failed) {
        printf("host_libuv: worker %d of %d: %d sums, all exact\n", program.rank, program.worker_count, program.round);
    }
    return program.failed ? 1 : 0;
}
