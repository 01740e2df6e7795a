/*
 * test_device_calls.c - calls that go to the door themselves (engine/local_group/group_door_call.c) lose their cores wherever they are, while
 * threads beside them hand in other sums, or more of the same.
 */
#include <pthread.h>
#include <time.h>

#include "engine/device/host/device_host.h"
#include "engine/local_group/group_internal.h"
#include "tests/loop/device/device_wrap.h"

enum { RANKS = 3, THREADS = 2, OWN = 2, STEPS = 500, COUNT = 500 };

/* ---- What calls meet ---- */

static atomic_uint called, gone, threads_begun;
static __thread bool in_call;
static __thread uint32_t draw;

static uint32_t chance(uint32_t of)
{
    if (draw == 0) {
        draw = (atomic_fetch_add(&threads_begun, 1) + 1) * UINT32_C(0x9e3779b9);
    }
    draw ^= draw << 13;
    draw ^= draw >> 17;
    draw ^= draw << 5;
    return draw % of;
}

/* Some of the time the thread loses its core. */
static void be_late(void)
{
    if (chance(4) == 0) {
        const struct timespec moment = {.tv_nsec = 1000 + (long)chance(200000)};
        nanosleep(&moment, NULL);
    }
}

__typeof__(trib_group_pass_in_call) __real_trib_group_pass_in_call, __wrap_trib_group_pass_in_call;
bool __wrap_trib_group_pass_in_call(trib_op *op)
{
    be_late();
    op->engine->group->door.calls_let = 0; /* whatever became of those before */
    in_call = true;
    const bool has_passed = __real_trib_group_pass_in_call(op);
    in_call = false;
    atomic_fetch_add(has_passed ? &called : &gone, 1);
    be_late();
    return has_passed;
}

__typeof__(trib_door_page_come) __real_trib_door_page_come, __wrap_trib_door_page_come;
bool __wrap_trib_door_page_come(trib_door_page *page, uint32_t ranks, uint32_t local_rank, const trib_door_wish *wish,
                                uint64_t *state_out)
{
    if (in_call) {
        be_late();
    }
    const bool has_come = __real_trib_door_page_come(page, ranks, local_rank, wish, state_out);
    if (in_call) {
        be_late();
    }
    return has_come;
}

/* Who is late to go away may find that all have come: threads seldom meet there by themselves where cores are few. */
__typeof__(trib_door_page_go) __real_trib_door_page_go, __wrap_trib_door_page_go;
uint64_t __wrap_trib_door_page_go(trib_door_page *page, uint32_t generation)
{
    const struct timespec moment = {.tv_nsec = 20000};
    for (uint32_t i = chance(60); i > 0 && trib_door_generation(atomic_load(&page->state)) == generation; i--) {
        nanosleep(&moment, NULL);
    }
    return __real_trib_door_page_go(page, generation);
}

__typeof__(trib_device_order_issue) __real_trib_device_order_issue, __wrap_trib_device_order_issue;
void __wrap_trib_device_order_issue(trib_op *op, bool here)
{
    be_late();
    __real_trib_device_order_issue(op, here);
    be_late();
}

/* ---- Ranks ---- */

typedef struct caller {
    pthread_t thread;
    trib_engine *engine;
    int rank, id;
    int32_t data[OWN][COUNT];
    int wrong; /* checked by the test's own thread: cmocka's assertions are for that */
} caller;

static int32_t shared_input[RANKS][COUNT], shared_output[RANKS][COUNT];

static trib_op *hand_in(const caller *self, const char *name, const int32_t *input, int32_t *output)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(self->engine, name, COUNT, 0, TRIB_OK);
    params.input = input;
    params.output = output;
    return push_pull_or(self->engine, &params, TRIB_OK);
}

static int32_t sum_of(int step, int which, uint64_t i)
{
    return value(step, which, 0, i) * RANKS + 1000 * RANKS * (RANKS - 1) / 2;
}

static void take(caller *self, trib_op *op, const int32_t *output, int step, int which)
{
    trib_error error = {.status = TRIB_OK};
    self->wrong += job_wait(op, &error) != TRIB_OK;
    for (uint64_t i = 0; output != NULL && i < COUNT; i++) {
        self->wrong += output[i] != sum_of(step, which, i);
    }
}

/* Each step hands in, in any order, some of the thread's own tensors, and every third one of them that all threads share. */
static void take_step(caller *self, int step)
{
    trib_op *ops[OWN + 1] = {NULL};
    const uint32_t first = chance(OWN + 1);
    for (uint32_t i = 0; i <= OWN; i++) {
        const uint32_t which = (i + first) % (OWN + 1);
        char name[32];
        if (which < OWN && (step + (int)which) % 2 == 0) {
            snprintf(name, sizeof name, "own %d %u", self->id, which);
            for (uint64_t at = 0; at < COUNT; at++) {
                self->data[which][at] = value(step, (int)which, self->rank, at);
            }
            ops[which] = hand_in(self, name, self->data[which], self->data[which]);
        } else if (which == OWN && step % 3 == 0) {
            ops[which] = hand_in(self, "shared", shared_input[self->rank], shared_output[self->rank]);
        }
    }
    for (uint32_t which = 0; which <= OWN; which++) {
        if (ops[which] != NULL) { /* the shared output may be written again meanwhile, with the same */
            take(self, ops[which], which < OWN ? self->data[which] : NULL, step, (int)which);
        }
    }
}

static void *run_caller(void *argument)
{
    caller *self = argument;
    for (int step = 0; step < STEPS; step++) {
        take_step(self, step);
    }
    return NULL;
}

static void calls_keep_one_order(void **state)
{
    (void)state;
    static caller callers[RANKS][THREADS];
    job jobs;
    open_job(&jobs, RANKS, 0, RANKS, on_devices);
    for (int rank = 0; rank < RANKS; rank++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            shared_input[rank][i] = value(0, OWN, rank, i);
        }
    }
    for (int i = 0; i < RANKS * THREADS; i++) {
        caller *self = &callers[i / THREADS][i % THREADS];
        *self = (caller){.engine = jobs.engines[i / THREADS], .rank = i / THREADS, .id = i % THREADS};
        assert_int_equal(pthread_create(&self->thread, NULL, run_caller, self), 0);
    }
    for (int i = 0; i < RANKS * THREADS; i++) {
        pthread_join(callers[i / THREADS][i % THREADS].thread, NULL);
    }
    for (int i = 0; i < RANKS * THREADS; i++) {
        assert_int_equal(callers[i / THREADS][i % THREADS].wrong, 0);
        for (uint64_t at = 0; at < COUNT; at++) {
            assert_int_equal(shared_output[i / THREADS][at], sum_of(0, OWN, at));
        }
    }
    assert_int_equal(trib_host_world_disorders(world), 0);
    print_message("# %u calls passed at the door, %u went away again\n", atomic_load(&called), atomic_load(&gone));
    assert_true(atomic_load(&called) > 0);
    assert_true(atomic_load(&gone) > 0);
    close_job(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_keep_one_order)};
    return cmocka_run_group_tests_name("calls at the door", tests, NULL, NULL);
}
