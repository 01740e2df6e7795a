/*
 * host_libev.c - Tributary on the caller's own libev loop, without a thread of its own: sockets, timers and sums all
 * run from ev_run, between the program's own watchers. The program's watcher here is a timer: each tick begins
 * another round if the one before has completed.
 */
#include <ev.h>
#include <stdio.h>
#include <tributary.h>

enum { ROUND_COUNT = 300, ELEMENT_COUNT = 4000 };

struct program {
    ev_timer timer; /* its data is the program */
    trib_engine *engine;
    trib_tensor *tensor;
    int32_t values[ELEMENT_COUNT];
    int32_t rank, worker_count, round, ticks;
    bool in_flight, failed;
};

static void fail(struct program *program, const char *what, const char *text)
{
    fprintf(stderr, "host_libev: worker %d: %s: %s\n", program->rank, what, text);
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

static void tick(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct program *program = timer->data;
    (void)events;
    program->ticks++;
    if (!program->in_flight && !program->failed && program->round < ROUND_COUNT) {
        begin_round(program);
    }
    if (!program->in_flight || program->failed) {
        ev_timer_stop(loop, timer);
        ev_break(loop, EVBREAK_ALL);
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
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = EV_DEFAULT;
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
    ev_timer_init(&program.timer, tick, 0.0, 0.001);
    program.timer.data = &program;
    ev_timer_start(config.loop, &program.timer);
    ev_run(config.loop, 0);
    (void)trib_engine_destroy(program.engine); /* runs the loop until the engine has left the job */
    if (!program.failed) {
        printf("host_libev: worker %d of %d: %d sums, all exact, %d ticks of the program's own timer\n", program.rank,
               program.worker_count, program.round, program.ticks);
    }
    return program.failed ? 1 : 0;
}
