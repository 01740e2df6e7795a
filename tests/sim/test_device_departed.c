/*
 * test_device_departed.c - a local rank leaves normally. No rank waits on a device for work that the departed rank
 * never does, and no rank is stopped that needs nothing from it, nor for devices that a suspended machine held up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/env/device_load.h"
#include "engine/device/host/device_host.h"
#include "tests/sim/sim_bed.h"

enum { RANKS = 3, COUNT = 1000 };

/* ---- A machine of three ranks ---- */

/* The timeout is long because a coordinator that leaves waits for the others as long as this test takes. */
static void on_a_machine(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->device = "host";
    (void)job;
    config->local_size = RANKS;
    config->local_rank = (int32_t)(member % RANKS);
    config->close_timeout_ns = 600 * SECOND;
}

/* Returns false if the job is over for that rank. A root below 0 makes it a sum. */
static bool hand_in(sim_job *job, uint32_t rank, int32_t root, exchange *what)
{
    const trib_status status = sim_bed_hand_in_on_device(job, rank, COUNT, root, what);
    assert_true(status == TRIB_OK || status == TRIB_PEER_LEFT);
    return status == TRIB_OK;
}

static void hand_in_all(sim_job *job, int32_t root, exchange exchanges[RANKS])
{
    for (uint32_t rank = RANKS; rank-- > 0;) {
        assert_true(hand_in(job, rank, root, &exchanges[rank]));
    }
}

static sim_job *open_machines(uint32_t machines, exchange *exchanges, trib_host_world *world)
{
    sim_job_config config = sim_job_config_default(machines * RANKS, 0);
    config.per_machine = RANKS;
    config.device_world = world;
    config.tweak = on_a_machine;
    for (uint32_t rank = 0; rank < machines * RANKS; rank++) {
        exchanges[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
    }
    return sim_bed_open(&config);
}

static sim_job *open_ranks(exchange exchanges[RANKS], trib_host_world *world)
{
    return open_machines(1, exchanges, world);
}

static void close_ranks(sim_job *job, exchange *exchanges)
{
    const uint32_t ranks = job->config.workers;
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        free(exchanges[rank].buffer);
    }
}

static void run_for(sim_job *job, int64_t time_ns)
{
    (void)sim_job_run(job, trib_sim_now(job->sim) + time_ns, NULL, NULL);
}

/* Of three ranks, one that leaves and another one submit their parts of a sum. Then the first one leaves. */
static sim_job *open_and_leave_early(exchange exchanges[RANKS], trib_host_world *world, uint32_t departed,
                                     uint32_t early)
{
    sim_job *job = open_ranks(exchanges, world);
    assert_true(hand_in(job, departed, -1, &exchanges[departed]));
    assert_true(hand_in(job, early, -1, &exchanges[early]));
    run_for(job, SECOND);
    sim_job_leave(job, departed);
    return job;
}

/* ---- Devices whose collectives end when the test says so ---- */

/* The job that each rank's device has not returned yet, at most one each. NULL: the devices are plain memory. */
static trib_device_job **held;
static bool ends_unseen; /* the device has finished before it is stopped, but the engine has not seen it */
static trib_device_ops plain;

trib_status __real_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);
trib_status __wrap_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);

static void hold(const trib_device *device, trib_device_job *job)
{
    assert_null(held[device->params.rank]);
    held[device->params.rank] = job;
}

static void hold_collective(trib_device *device, trib_device_job *job)
{
    if (job->kind == TRIB_DEVICE_BROADCAST || job->kind == TRIB_DEVICE_ALL_REDUCE) {
        hold(device, job);
    } else {
        plain.submit(device, job);
    }
}

static void give_back(uint32_t rank, trib_status status)
{
    trib_device_job *job = held[rank];
    assert_non_null(job);
    job->status = status;
    held[rank] = NULL;
    trib_reactor_post(job->reactor, &job->post);
}

static void stop_holding(trib_device *device, bool orderly)
{
    if (held[device->params.rank] != NULL) {
        give_back((uint32_t)device->params.rank, ends_unseen ? TRIB_OK : TRIB_CLOSED);
    }
    plain.stop(device, orderly);
}

trib_status __wrap_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error)
{
    static trib_device_ops holding;
    const trib_status status = __real_trib_device_load(name, ops_out, error);
    if (status == TRIB_OK && held != NULL) {
        plain = holding = **ops_out;
        holding.submit = hold_collective;
        holding.stop = stop_holding;
        *ops_out = &holding;
    }
    return status;
}

/* ---- Ranks that would wait in vain ---- */

/* A collective that no rank has begun fails, and the job goes on. */
static void unbegun_collective_fails_alone(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    for (uint32_t departed = 0; departed < RANKS; departed++) {
        exchange exchanges[RANKS];
        const uint32_t early = (departed + 1) % RANKS, late = (departed + 2) % RANKS;
        sim_job *job = open_and_leave_early(exchanges, world, departed, early);
        run_for(job, 10 * SECOND);
        assert_true(hand_in(job, late, -1, &exchanges[late]));
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(exchanges[rank].status, rank == departed ? TRIB_CLOSED : TRIB_PEER_LEFT);
            assert_false(job->members[rank].ended_told);
        }
        close_ranks(job, exchanges);
    }
    trib_host_world_free(world);
}

static bool is_over(sim_job *job, void *rank)
{
    return job->members[*(const uint32_t *)rank].ended_told;
}

/* Checks that the waiting rank's job ends because the other rank has left. */
static void is_let_out(sim_job *job, const exchange *exchanges, uint32_t waiting, uint32_t departed)
{
    char name[16];
    snprintf(name, sizeof name, "rank %u (", departed);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, is_over, &waiting));
    run_for(job, SECOND);
    assert_int_equal(exchanges[waiting].done, 1);
    assert_int_equal(exchanges[waiting].status, TRIB_PEER_LEFT);
    assert_int_equal(job->members[waiting].ended.status, TRIB_PEER_LEFT);
    assert_non_null(strstr(job->members[waiting].ended.text, name));
    assert_non_null(strstr(job->members[waiting].ended.text, "has left"));
}

typedef enum leave_when {
    BEFORE_THE_ORDER, /* the order is still on its way */
    WITH_THE_DEVICE,  /* the collective has begun, and the root is done */
    BEHIND_THE_ROOT,  /* the root has left, too */
    TOGETHER_WITH_IT, /* the order and then the root's farewell are on their way to the leaving rank */
    LEAVE_WHEN_COUNT
} leave_when;

static bool root_has_begun(sim_job *job, void *unused)
{
    (void)job;
    (void)unused;
    return held[0] != NULL;
}

/* The root's part is done as soon as it has begun. */
static void leave_at(sim_job *job, uint32_t departed, leave_when when)
{
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, root_has_begun, NULL));
    if (when == BEFORE_THE_ORDER || when == TOGETHER_WITH_IT) {
        sim_job_leave(job, departed);
    }
    give_back(0, TRIB_OK);
    if (when == TOGETHER_WITH_IT) {
        sim_job_leave(job, 0);
    }
    run_for(job, 10 * SECOND);
    if (when == BEHIND_THE_ROOT) {
        sim_job_leave(job, 0);
        run_for(job, SECOND);
    }
    if (when == BEHIND_THE_ROOT || when == WITH_THE_DEVICE) {
        sim_job_leave(job, departed);
    }
}

/* A broadcast's root is done with its part. One rank has announced its part but never does it. The third waits, and has
 * no connection to that rank. */
static void waiting_rank_is_released(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    trib_device_job *jobs[RANKS] = {NULL};
    held = jobs;
    for (uint32_t i = 0; i < 2 * LEAVE_WHEN_COUNT; i++) {
        exchange exchanges[RANKS];
        const leave_when when = i / 2;
        const uint32_t departed = 1 + i % 2, waiting = 2 - i % 2;
        sim_job *job = open_ranks(exchanges, world);
        assert_true(hand_in(job, waiting, 0, &exchanges[waiting]));
        assert_true(hand_in(job, departed, 0, &exchanges[departed]));
        run_for(job, SECOND);
        assert_true(hand_in(job, 0, 0, &exchanges[0]));
        leave_at(job, departed, when);
        is_let_out(job, exchanges, waiting, departed);
        close_ranks(job, exchanges);
    }
    held = NULL;
    trib_host_world_free(world);
}

/* The ranks are on another machine than the coordinator, and their leader stands still, so the news of the departure
 * overtakes the order. */
static void late_rank_is_released_after_a_departure(void **state)
{
    (void)state;
    enum { LEADER = RANKS, DEPARTED, WAITING, ALL };
    trib_host_world *world = trib_host_world_create();
    exchange exchanges[ALL];
    sim_job *job = open_machines(2, exchanges, world);
    assert_true(hand_in(job, LEADER, -1, &exchanges[LEADER]));
    assert_true(hand_in(job, DEPARTED, -1, &exchanges[DEPARTED]));
    run_for(job, SECOND);
    trib_sim_process_freeze(job->members[LEADER].process, true);
    assert_true(hand_in(job, WAITING, -1, &exchanges[WAITING]));
    run_for(job, SECOND / 10);
    sim_job_leave(job, DEPARTED);
    run_for(job, SECOND);
    assert_int_equal(exchanges[WAITING].done, 0);
    trib_sim_process_freeze(job->members[LEADER].process, false);
    is_let_out(job, exchanges, WAITING, DEPARTED);
    close_ranks(job, exchanges);
    trib_host_world_free(world);
}

/* ---- Ranks that go on ---- */

/* One rank has left. The others' devices finish, and no other rank is disturbed. */
static void others_come_through(sim_job *job, exchange exchanges[RANKS], uint32_t gone)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(exchanges[rank].done, rank == gone);
        if (rank != gone) {
            give_back(rank, TRIB_OK);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_true(rank == gone || exchanges[rank].status == TRIB_OK);
        assert_false(job->members[rank].ended_told);
    }
    close_ranks(job, exchanges);
}

/* A broadcast's root may finish its part before the others reach theirs, and leave. Their streams take their time. */
static void broadcast_root_may_leave_early(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    trib_device_job *jobs[RANKS] = {NULL};
    held = jobs;
    for (uint32_t root = 0; root < RANKS; root++) {
        exchange exchanges[RANKS];
        sim_job *job = open_ranks(exchanges, world);
        hand_in_all(job, (int32_t)root, exchanges);
        run_for(job, SECOND);
        give_back(root, TRIB_OK);
        run_for(job, SECOND);
        assert_int_equal(exchanges[root].done, 1);
        sim_job_leave(job, root);
        run_for(job, 30 * SECOND);
        assert_int_equal(exchanges[root].status, TRIB_OK);
        others_come_through(job, exchanges, root);
    }
    held = NULL;
    trib_host_world_free(world);
}

/* The leaving rank has not yet seen that its device is done. The others' devices are not done. */
static void finished_collective_survives_a_departure(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    trib_device_job *jobs[RANKS] = {NULL};
    held = jobs;
    for (uint32_t departed = 0; departed < RANKS; departed++) {
        exchange exchanges[RANKS];
        sim_job *job = open_ranks(exchanges, world);
        hand_in_all(job, -1, exchanges);
        run_for(job, SECOND);
        ends_unseen = true;
        sim_job_leave(job, departed);
        run_for(job, 30 * SECOND);
        ends_unseen = false;
        assert_int_equal(exchanges[departed].status, TRIB_CLOSED);
        others_come_through(job, exchanges, departed);
    }
    held = NULL;
    trib_host_world_free(world);
}

/* ---- A process that stands still ---- */

/* The operation fails while the devices work on it, and then the machine is suspended for longer than devices have to
 * give their buffers back. They had no time to: they have it after that. */
static void suspended_devices_get_their_time(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    trib_device_job *jobs[RANKS] = {NULL};
    exchange exchanges[RANKS];
    held = jobs;
    sim_job *job = open_ranks(exchanges, world);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        exchanges[rank].timeout_ns = SECOND;
        assert_true(hand_in(job, rank, -1, &exchanges[rank]));
    }
    const int64_t more_ns = job->members[0].engine->config.peer_timeout_ns;
    run_for(job, 4 * SECOND); /* it fails, and the time in which links give back passes */
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        trib_sim_process_freeze(job->members[rank].process, true);
    }
    run_for(job, 2 * more_ns);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        trib_sim_process_freeze(job->members[rank].process, false);
    }
    run_for(job, more_ns / 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (job->members[rank].ended_told) {
            fail_msg("rank %u: %s", rank, job->members[rank].ended.text);
        }
        give_back(rank, TRIB_OK);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_TIMEOUT);
        assert_false(job->members[rank].ended_told);
    }
    close_ranks(job, exchanges);
    held = NULL;
    trib_host_world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unbegun_collective_fails_alone),
        cmocka_unit_test(waiting_rank_is_released),
        cmocka_unit_test(broadcast_root_may_leave_early),
        cmocka_unit_test(late_rank_is_released_after_a_departure),
        cmocka_unit_test(finished_collective_survives_a_departure),
        cmocka_unit_test(suspended_devices_get_their_time),
    };
    return cmocka_run_group_tests_name("a local rank that leaves", tests, NULL, NULL);
}
