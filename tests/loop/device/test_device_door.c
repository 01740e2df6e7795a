/*
 * test_device_door.c - the local ranks of a machine meet at the door (engine/local_group/group_door.h) on threads of their own. What seeds do
 * to it is in tests/sim/test_door.c.
 */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "engine/device/host/device_host.h"
#include "engine/local_group/group_internal.h"
#include "engine/membership/member.h"
#include "tests/loop/device/device_wrap.h"

enum { RANKS = 4, STEPS = 150, COUNT = 500, IN_A_BURST = 3 };

static atomic_uint passed;

__typeof__(trib_leader_passed) __real_trib_leader_passed, __wrap_trib_leader_passed;
void __wrap_trib_leader_passed(trib_leader *leader, const trib_announcement *what)
{
    atomic_fetch_add(&passed, 1);
    __real_trib_leader_passed(leader, what);
}

/* ---- What happens at the door ---- */

static atomic_uint called, gone, held; /* calls that passed there, and that did not; what core 0 held meanwhile */
static atomic_uint believed;           /* orders to do what was held */
static __thread bool in_call;
static sem_t at_door;               /* a call has come in */
static _Atomic(sem_t *) shows_call; /* what the next one posts; NULL: nobody wants to know */

/* A call is back from the door, and core 0 has yet to hear of it; may be NULL. */
static void (*_Atomic when_back)(bool has_passed);

__typeof__(trib_group_pass_in_call) __real_trib_group_pass_in_call, __wrap_trib_group_pass_in_call;
bool __wrap_trib_group_pass_in_call(trib_op *op)
{
    in_call = true;
    const bool has_passed = __real_trib_group_pass_in_call(op);
    in_call = false;
    atomic_fetch_add(has_passed ? &called : &gone, 1);
    void (*then)(bool has_passed) = atomic_load(&when_back);
    if (then != NULL) {
        then(has_passed);
    }
    return has_passed;
}

/* What is held has not been announced: nobody can have ordered it. */
__typeof__(trib_door_hold) __real_trib_door_hold, __wrap_trib_door_hold;
void __wrap_trib_door_hold(trib_group *group, trib_device_task *device)
{
    const trib_announcement what = trib_group_announcement_of(device);
    trib_error error;
    __real_trib_door_hold(group, device);
    atomic_fetch_add(&believed, trib_group_take_order(group, &what, &error) != TRIB_PROTOCOL);
    atomic_fetch_add(&held, 1);
}

/* Who wants to know that a call is there hands in something else on that rank: this one stays until core 0 holds it. */
__typeof__(trib_door_page_come) __real_trib_door_page_come, __wrap_trib_door_page_come;
bool __wrap_trib_door_page_come(trib_door_page *page, uint32_t ranks, uint32_t local_rank, const trib_door_wish *wish,
                                uint64_t *state_out)
{
    const bool has_come = __real_trib_door_page_come(page, ranks, local_rank, wish, state_out);
    sem_t *shows = in_call ? atomic_exchange(&shows_call, NULL) : NULL;
    if (shows != NULL) {
        const uint32_t before = atomic_load(&held);
        const struct timespec moment = {.tv_nsec = 20000};
        sem_post(shows);
        for (int i = 0; i < 100000 && atomic_load(&held) == before; i++) {
            nanosleep(&moment, NULL);
        }
    }
    return has_come;
}

/* ---- Ranks ---- */

typedef struct rank_thread {
    pthread_t thread;
    trib_engine *engine;
    int rank, ranks;
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
        self->wrong +=
            self->data[which][i] != value(step, which, 0, i) * self->ranks + 1000 * self->ranks * (self->ranks - 1) / 2;
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
        ranks[rank].ranks = RANKS;
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
    print_message("# %u calls passed there, %u went away again; %u announcements were held for one\n",
                  atomic_load(&called), atomic_load(&gone), atomic_load(&held));
    assert_true(atomic_load(&passed) > 0);
    assert_true(generations > atomic_load(&passed));
    close_job(&jobs);
}

/* ---- A call and core 0 ---- */

typedef struct hand_in_beside {
    rank_thread *ranks;
    trib_op *ops[2];
} hand_in_beside;

/* While a call of rank 0 is at the door. */
static void *run_beside(void *argument)
{
    hand_in_beside *self = argument;
    sem_wait(&at_door);
    for (int rank = 0; rank < 2; rank++) {
        self->ops[rank] = hand_in(&self->ranks[rank], 0, 1);
    }
    return NULL;
}

/* The rank's next call goes to the door if it may, whatever became of those before. */
static void let_it_go(rank_thread *rank)
{
    trib_group *group = rank->engine->group;
    group->door.calls_let = 0;
}

static void end_showing(void)
{
    if (atomic_exchange(&shows_call, NULL) != NULL) { /* the call did not go there */
        sem_post(&at_door);
    }
}

/* A call is at the door with tensor 0, and core 0 of its rank has tensor 1 to announce, as has the other rank. That comes with
 * tensor 0 later, or has come before, so that the call passes: on both ranks tensor 0 is first then. */
static void both_want_the_turn(rank_thread ranks[2], int step, bool other_first)
{
    trib_op *ops[2];
    pthread_t thread;
    hand_in_beside beside = {.ranks = ranks};
    if (other_first) {
        ops[1] = hand_in(&ranks[1], step, 0);
    }
    let_it_go(&ranks[0]);
    atomic_store(&shows_call, &at_door);
    assert_int_equal(pthread_create(&thread, NULL, run_beside, &beside), 0);
    ops[0] = hand_in(&ranks[0], step, 0);
    end_showing();
    pthread_join(thread, NULL);
    if (!other_first) {
        ops[1] = hand_in(&ranks[1], step, 0);
    }
    for (int rank = 0; rank < 2; rank++) {
        take(&ranks[rank], step, 0, ops[rank]);
        take(&ranks[rank], 0, 1, beside.ops[rank]);
        assert_int_equal(ranks[rank].wrong, 0);
    }
}

static void core_0_waits_for_a_call(void **state)
{
    (void)state;
    enum { TRIES = 400 };
    static rank_thread ranks[2];
    uint32_t seen[2] = {0, 0}; /* held while a call went away, while one passed */
    job jobs;
    sem_init(&at_door, 0, 0);
    open_job(&jobs, 2, 0, 2, on_devices);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank] = (rank_thread){.engine = jobs.engines[rank], .rank = rank, .ranks = 2};
    }
    for (int step = 0; step < TRIES && (seen[0] == 0 || seen[1] == 0); step++) {
        const uint32_t called_before = atomic_load(&called), held_before = atomic_load(&held);
        both_want_the_turn(ranks, step, step % 2 == 1);
        if (atomic_load(&held) > held_before) {
            seen[atomic_load(&called) > called_before]++;
        }
    }
    assert_true(seen[0] > 0);
    assert_true(seen[1] > 0);
    assert_int_equal(atomic_load(&believed), 0);
    assert_int_equal(trib_host_world_disorders(world), 0);
    close_job(&jobs);
    sem_destroy(&at_door);
}

/* Another sum of tensor 0, in the same buffers, when its stream has come so far; NULL: at once. */
static trib_op *hand_in_again(rank_thread *self, trib_host_stream *stream)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(self->engine, "tensor 0", COUNT, 0, TRIB_OK);
    params.input = params.output = self->data[0];
    params.stream = stream;
    return push_pull_or(self->engine, &params, TRIB_OK);
}

static void *run_again(void *argument)
{
    sem_wait(&at_door);
    return hand_in_again(argument, NULL);
}

/* A sum that waits for its stream, so that nothing is under way, and one after it: all the same the first is first. */
static void hand_in_behind(rank_thread ranks[2])
{
    trib_op *ops[2][2];
    trib_host_stream *streams[2];
    pthread_t beside;
    trib_error error;
    for (int rank = 0; rank < 2; rank++) {
        let_it_go(&ranks[rank]);
        streams[rank] = trib_host_stream_create(false);
        ops[rank][0] = hand_in_again(&ranks[rank], streams[rank]);
    }
    const int32_t before = ranks[0].data[0][1]; /* a sum: it is the same on both */
    atomic_store(&shows_call, &at_door);
    assert_int_equal(pthread_create(&beside, NULL, run_again, &ranks[1]), 0);
    ops[0][1] = hand_in_again(&ranks[0], NULL);
    end_showing();
    pthread_join(beside, (void **)&ops[1][1]);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(trib_op_wait(ops[rank][1], 5000000, &error), TRIB_TIMEOUT);
        assert_int_equal(ranks[rank].data[0][1], before);
        trib_host_stream_open(streams[rank]);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank][0], &error), TRIB_OK);
        assert_int_equal(job_wait(ops[rank][1], &error), TRIB_OK);
        trib_host_stream_free(streams[rank]);
    }
}

/* Two ranks, with sums of tensor 0 until launches of it are kept: from now on a call may go to the door. */
static void open_kept(job *jobs, rank_thread ranks[2])
{
    enum { KEPT = 4 };
    trib_op *ops[2];
    open_job(jobs, 2, 0, 2, on_devices);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank] = (rank_thread){.engine = jobs->engines[rank], .rank = rank, .ranks = 2};
    }
    for (int step = 0; step < KEPT; step++) {
        for (int rank = 0; rank < 2; rank++) {
            ops[rank] = hand_in(&ranks[rank], step, 0);
        }
        for (int rank = 0; rank < 2; rank++) {
            take(&ranks[rank], step, 0, ops[rank]);
        }
    }
}

static void rounds_keep_their_order(void **state)
{
    (void)state;
    enum { TIMES = 3 };
    static rank_thread ranks[2];
    job jobs;
    sem_init(&at_door, 0, 0);
    open_kept(&jobs, ranks);
    for (int i = 0; i < TIMES; i++) {
        hand_in_behind(ranks);
    }
    close_job(&jobs);
    sem_destroy(&at_door);
}

/* ---- A call that core 0 has yet to hear of ---- */

static sem_t go_on;

/* What the group makes of it when the collective is back; -1: it is not yet. */
static atomic_int counted;

__typeof__(trib_group_issued_back) __real_trib_group_issued_back, __wrap_trib_group_issued_back;
void __wrap_trib_group_issued_back(trib_core *core, trib_op *op)
{
    const trib_group *group = core->engine->group;
    __real_trib_group_issued_back(core, op);
    if (atomic_load(&when_back) != NULL && group->local_rank == 0) {
        atomic_store(&counted, group->begun == group->back);
        sem_post(&go_on);
    }
}

/* Nobody can be sure that a call goes on before its collective is over. */
static void until_over(bool has_passed)
{
    if (has_passed) {
        sem_wait(&go_on);
    }
}

/* Core 0 of rank 1 is at the door, for 5 ms at most. */
static void await_at_door(void)
{
    const struct timespec moment = {.tv_nsec = 20000};
    for (int i = 0; i < 100 && trib_door_count(atomic_load(&world->doors[0]->state)) == 0; i++) {
        nanosleep(&moment, NULL);
    }
}

/* Who compares what has begun with what is over misses nothing that comes after it. */
static void what_is_over_has_begun(void **state)
{
    (void)state;
    enum { TRIES = 400 };
    static rank_thread ranks[2];
    trib_op *ops[2];
    job jobs;
    trib_error error;
    sem_init(&go_on, 0, 0);
    open_kept(&jobs, ranks);
    atomic_store(&counted, -1);
    for (int i = 0; i < TRIES && atomic_load(&counted) < 0; i++) {
        ops[1] = hand_in_again(&ranks[1], NULL);
        await_at_door();
        let_it_go(&ranks[0]);
        atomic_store(&when_back, until_over);
        ops[0] = hand_in_again(&ranks[0], NULL);
        atomic_store(&when_back, NULL);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
        }
    }
    assert_int_equal(atomic_load(&counted), 1);
    close_job(&jobs);
    sem_destroy(&go_on);
}

static struct {
    _Atomic(trib_engine *) engine; /* whose call is back from the door; NULL: it is not, or has been let go */
    sem_t returned;
    atomic_bool is_closed, closed_first;
} closing;

/* Core 0 asks itself whether it is through, and would be but for the call. */
__typeof__(trib_member_leave) __real_trib_member_leave, __wrap_trib_member_leave;
void __wrap_trib_member_leave(trib_member *member, trib_status status, const char *text)
{
    trib_engine *engine = atomic_load(&closing.engine);
    __real_trib_member_leave(member, status, text);
    if (engine != NULL && engine->member == member && engine->cores[0].closing && engine->cores[0].host.links == NULL) {
        atomic_store(&closing.engine, NULL);
        sem_post(&go_on);
        sem_wait(&closing.returned);
    }
}

static void note_closed(trib_engine *engine, void *user)
{
    (void)engine;
    (void)user;
    atomic_store(&closing.is_closed, true);
}

static void note_done(const trib_result *result, void *user)
{
    (void)result;
    (void)user;
    atomic_store(&closing.closed_first, atomic_load(&closing.is_closed));
}

static void until_closing(bool has_passed)
{
    trib_engine *engine = atomic_load(&closing.engine);
    if (!has_passed && engine != NULL) {
        trib_engine_close(engine, note_closed, NULL);
        sem_wait(&go_on);
    }
}

static trib_op *hand_in_noting(rank_thread *self)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(self->engine, "tensor 0", COUNT, 0, TRIB_OK);
    params.input = params.output = self->data[0];
    params.done_cb = note_done;
    return push_pull_or(self->engine, &params, TRIB_OK);
}

/* Its operation completes before the engine has closed, as all do. */
static void a_close_waits_for_who_went_away(void **state)
{
    (void)state;
    enum { TRIES = 400 };
    static rank_thread ranks[2];
    job jobs;
    trib_error error;
    sem_init(&go_on, 0, 0);
    sem_init(&closing.returned, 0, 0);
    open_kept(&jobs, ranks);
    atomic_store(&closing.engine, ranks[1].engine);
    for (int i = 0; i < TRIES && atomic_load(&closing.engine) != NULL; i++) {
        let_it_go(&ranks[1]);
        atomic_store(&when_back, until_closing);
        trib_op *op = hand_in_noting(&ranks[1]), *other = NULL;
        atomic_store(&when_back, NULL);
        const bool has_closed = atomic_load(&closing.engine) == NULL;
        if (has_closed) {
            sem_post(&closing.returned);
        } else { /* core 0 was not ready for another: the call did not go to the door */
            other = hand_in_again(&ranks[0], NULL);
        }
        assert_int_equal(job_wait(op, &error), has_closed ? TRIB_CLOSED : TRIB_OK);
        assert_true(has_closed || job_wait(other, &error) == TRIB_OK);
    }
    assert_null(atomic_load(&closing.engine));
    assert_false(atomic_load(&closing.closed_first));
    close_job(&jobs);
    sem_destroy(&closing.returned);
    sem_destroy(&go_on);
}

/* Who compares what all want must notice that one has gone away and come with something else. */
static void going_leaves_a_trace(void **state)
{
    (void)state;
    static trib_door_page page;
    const trib_door_wish first = {.tensor = 1, .round = 1}, second = {.tensor = 2, .round = 1};
    uint64_t before = 0, again = 0;
    assert_true(trib_door_page_come(&page, 3, 0, &first, &before));
    assert_int_equal(trib_door_count(before), 1);
    assert_int_equal(trib_door_count(trib_door_page_go(&page, trib_door_generation(before))), 0);
    assert_true(trib_door_page_come(&page, 3, 0, &second, &again));
    assert_int_equal(trib_door_generation(again), trib_door_generation(before));
    assert_int_equal(trib_door_count(again), 1);
    assert_true(again != before);
    assert_false(trib_door_has_passed(again, trib_door_generation(before)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_meet),
                                       cmocka_unit_test(core_0_waits_for_a_call),
                                       cmocka_unit_test(rounds_keep_their_order),
                                       cmocka_unit_test(what_is_over_has_begun),
                                       cmocka_unit_test(a_close_waits_for_who_went_away),
                                       cmocka_unit_test(going_leaves_a_trace)};
    return cmocka_run_group_tests_name("local ranks at the door", tests, NULL, NULL);
}
