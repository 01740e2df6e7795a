/*
 * count_hops.c - prints which functions one all-reduce of one partition runs, for tools/dev/hops.py.
 *
 *     scons variant=hops build/hops/tests/count_hops && build/hops/tests/count_hops TRANSPORT
 *
 * Two workers and a server share this thread, and each has a loop of its own, so that every call belongs to one of
 * them. The variant has a call of the recorder at the beginning and the end of each function, also of those that the
 * compiler has inlined. It is on from trib_push_pull to the callback. A line is `OPERATION MEMBER DEPTH OFFSET`; the
 * offset is a function's distance from main.
 */
#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/tributary.h"

#define WORKERS 2u
#define MEMBERS 3u
#define WARM_STEPS 3u
#define STEPS 20u
#define BYTES (64u << 10)
#define CALLS_MAX (1u << 20)
#define UNRECORDED __attribute__((no_instrument_function))

typedef struct call {
    uintptr_t function;
    uint32_t operation, depth;
    uint32_t member;
} call;

/* The compiler's calls have no argument of their own, so the recorder has to be static. */
static struct {
    call calls[CALLS_MAX];
    uint32_t count, depth, operation, member;
    bool is_on;
} recorder;

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);
int main(int argc, char **argv) UNRECORDED;

UNRECORDED void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    recorder.depth++;
    if (recorder.is_on && recorder.count < CALLS_MAX) {
        recorder.calls[recorder.count++] =
            (call){(uintptr_t)function, recorder.operation, recorder.depth, recorder.member};
    }
}

UNRECORDED void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
    recorder.depth--;
}

typedef struct member {
    struct ev_loop *loop;
    trib_engine *engine;
    trib_tensor *tensor;
    uint32_t index;
    bool is_ready, is_done, is_closed;
    float values[BYTES / sizeof(float)];
} member;

UNRECORDED static void die(const char *where, const char *why)
{
    fprintf(stderr, "count_hops: %s: %s\n", where, why);
    exit(1);
}

UNRECORDED static void on_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    if (error->status != TRIB_OK) {
        die("join", error->text);
    }
    ((member *)user)->is_ready = true;
}

UNRECORDED static void on_closed(trib_engine *engine, void *user)
{
    (void)engine;
    ((member *)user)->is_closed = true;
}

/* The worker that is looked at is the last one: rank 0 has the coordinator as well. */
UNRECORDED static void on_done(const trib_result *result, void *user)
{
    member *self = user;
    if (result->status != TRIB_OK) {
        die("all-reduce", result->text);
    }
    self->is_done = true;
    if (self->index == WORKERS - 1) {
        recorder.is_on = false;
    }
}

UNRECORDED static void turn(member *members)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        recorder.member = i;
        ev_run(members[i].loop, EVRUN_NOWAIT);
    }
}

UNRECORDED static void open_member(member *self, uint32_t index, char *address, size_t capacity, const char *transport)
{
    const bool is_worker = index < WORKERS;
    self->index = index;
    self->loop = ev_loop_new(EVFLAG_AUTO);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.reactors = 1;
    config.worker_count = WORKERS;
    config.server_count = MEMBERS - WORKERS;
    config.colocate = TRIB_COLOCATE_OFF;
    config.pin = false;
    config.log_level = TRIB_LOG_ERROR;
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = self->loop;
    config.roles = is_worker ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
    config.rank = is_worker ? (int32_t)index : -1;
    config.transport = transport;
    config.coordinator = address;
    config.ready_cb = on_ready;
    config.ready_user = self;
    trib_error error = {.status = TRIB_OK};
    trib_status status = TRIB_SYSTEM;
    for (uint32_t tries = 0; status == TRIB_SYSTEM && tries < 100; tries++) { /* until rank 0 has found a free port */
        if (index == 0) {
            snprintf(address, capacity, "127.0.0.1:%u", 10000 + ((unsigned)getpid() * 7919u + tries) % 22000);
        }
        status = trib_engine_create(&config, &self->engine, &error);
    }
    if (status != TRIB_OK) {
        die("engine", error.text);
    }
}

UNRECORDED static void begin(member *self)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    if (self->tensor == NULL) {
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = "gradient";
        desc.count = BYTES / sizeof(float);
        if (trib_tensor_declare(self->engine, &desc, &self->tensor, &error) != TRIB_OK) {
            die("declare", error.text);
        }
    }
    params.tensor = self->tensor;
    params.input = params.output = self->values;
    params.done_cb = on_done;
    params.user = self;
    self->is_done = false;
    recorder.member = self->index;
    if (trib_push_pull(self->engine, &params, NULL, &error) != TRIB_OK) {
        die("push_pull", error.text);
    }
}

UNRECORDED static void run_step(member *members, bool is_recorded)
{
    begin(&members[0]);
    recorder.is_on = is_recorded;
    for (uint32_t i = 1; i < WORKERS; i++) {
        begin(&members[i]);
    }
    while (!members[0].is_done || !members[WORKERS - 1].is_done) {
        turn(members);
    }
}

int main(int argc, char **argv)
{
    member *members = calloc(MEMBERS, sizeof *members);
    char address[64];
    if (members == NULL) {
        die("memory", "out of memory");
        return 1;
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        open_member(&members[i], i, address, sizeof address, argc > 1 ? argv[1] : "tcp");
    }
    while (!members[0].is_ready || !members[1].is_ready || !members[2].is_ready) {
        turn(members);
    }
    for (uint32_t step = 0; step < WARM_STEPS + STEPS; step++) {
        recorder.operation = step;
        run_step(members, step >= WARM_STEPS);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trib_engine_close(members[i].engine, on_closed, &members[i]);
    }
    while (!members[0].is_closed || !members[1].is_closed || !members[2].is_closed) {
        turn(members);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        (void)!trib_engine_destroy(members[i].engine);
        ev_loop_destroy(members[i].loop);
    }
    free(members);
    if (recorder.count == 0 || recorder.count == CALLS_MAX) {
        die("recorder", recorder.count == 0 ? "no calls: build variant=hops" : "too many calls");
    }
    for (uint32_t i = 0; i < recorder.count; i++) {
        const call *at = &recorder.calls[i];
        printf("%u %s %u %td\n", at->operation,
               at->member >= WORKERS ? "server"
               : at->member > 0      ? "worker"
                                     : "other",
               at->depth, (intptr_t)(at->function - (uintptr_t)&main));
    }
    return 0;
}
