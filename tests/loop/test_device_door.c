/*
 * test_device_door.c - the local ranks of a machine meet at the door (engine/group_door.h) on threads of their own. What seeds do
 * to it is in tests/sim/test_door.c.
 */
#include <pthread.h>

#include "engine/device_host.h"
#include "engine/group.h"
#include "engine/group_door.h"
#include "tests/loop/device_wrap.h"

enum { RANKS = 4, STEPS = 150, COUNT = 500, IN_A_BURST = 3 };

static atomic_uint passed;

__typeof__(trib_leader_passed) __real_trib_leader_passed, __wrap_trib_leader_passed;
void __wrap_trib_leader_passed(trib_leader *leader, const trib_announcement *what)
{
    atomic_fetch_add(&passed, 1);
    __real_trib_leader_passed(leader, what);
}

typedef struct rank_thread {
    pthread_t thread;
    trib_engine *engine;
    int rank;
    int32_t data[IN_A_BURST][COUNT];
    int wrong; /* checked by the test's own thread: cmocka's assertions are for that */
} rank_thread;

static trib_op *hand_in(rank_thread *self, int step, int which)
{
    char name[32];
    snprintf(name, sizeof name, "tensor %d", which);
    for (uint64_t i = 0; i < COUNT; i++) {
        self->data[which][i] = value(step, which, self->rank, i);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(self->engine, name, COUNT, 0, TRIB_OK);
    params.input = params.output = self->data[which];
    return push_pull_or(self->engine, &params, TRIB_OK);
}

static void take(rank_thread *self, int step, int which, trib_op *op)
{
    trib_error error = {.status = TRIB_OK};
    self->wrong += job_wait(op, &error) != TRIB_OK;
    for (uint64_t i = 0; i < COUNT; i++) {
        self->wrong += self->data[which][i] != value(step, which, 0, i) * RANKS + 1000 * RANKS * (RANKS - 1) / 2;
    }
}

/* One that is waited for, again and again; and now and then several, in an order of the rank's own. */
static void *run_rank(void *argument)
{
    rank_thread *self = argument;
    for (int step = 0; step < STEPS; step++) {
        const int count = step % 4 == 3 ? IN_A_BURST : 1;
        trib_op *ops[IN_A_BURST];
        for (int i = 0; i < count; i++) {
            const int which = (i + self->rank) % count;
            ops[which] = hand_in(self, step, which);
        }
        for (int which = 0; which < count; which++) {
            take(self, step, which, ops[which]);
        }
    }
    return NULL;
}

static void ranks_meet(void **state)
{
    (void)state;
    static rank_thread ranks[RANKS];
    job jobs;
    open_job(&jobs, RANKS, 0, RANKS, on_devices);
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank].engine = jobs.engines[rank];
        ranks[rank].rank = rank;
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(ranks[rank].thread, NULL);
        assert_int_equal(ranks[rank].wrong, 0);
    }
    assert_int_equal(trib_host_world_disorders(world), 0);
    const uint32_t generations = trib_door_generation(atomic_load(&world->doors[0]->state));
    print_message("# %u came by the door, which was broken up %u times\n", atomic_load(&passed),
                  generations - atomic_load(&passed));
    assert_true(atomic_load(&passed) > 0);
    assert_true(generations > atomic_load(&passed));
    close_job(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_meet)};
    return cmocka_run_group_tests_name("local ranks at the door", tests, NULL, NULL);
}
