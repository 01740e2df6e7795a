/*
 * poll_loop.c - Tributary in a program with an event loop of its own, here plain poll(2). The engine keeps its
 * threads, and signals waiting completions through a file descriptor. The program dispatches them on its own thread,
 * so that callbacks need no lock.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <tributary.h>

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
    fprintf(stderr, "poll_loop: worker %d: %s: %s\n", program->rank, what, text);
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
    }
    struct pollfd watched = {.fd = trib_engine_get_fd(program.engine), .events = POLLIN};
    while (program.round < ROUND_COUNT && !program.failed) {
        if (!program.in_flight) {
            begin_round(&program);
        } else if (poll(&watched, 1, -1) < 0 && errno != EINTR) {
            /* No timeout was needed: every accepted operation completes, by its deadline if by nothing else. */
            char why[64];
            fail(&program, "poll", strerror_r(errno, why, sizeof why));
        } else {
            (void)trib_engine_dispatch(program.engine, 0);
        }
    }
    (void)trib_engine_destroy(program.engine);
    if (!program.failed) {
        printf("poll_loop: worker %d of %d: %d sums, all exact\n", program.rank, program.worker_count, program.round);
    }
    return program.failed ? 1 : 0;
}
