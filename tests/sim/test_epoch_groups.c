/*
 * test_epoch_groups.c - groups in a job that goes on after the loss of workers (TRIB_SURVIVE=workers): a group ends
 * with its epoch, and is created anew with the ranks of the next one. All or none of its members have an operation
 * succeed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/worker/rank_group.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 5, COUNT = 5000, ROUNDS = 6 };

typedef struct player {
    struct bed *bed;
    uint32_t index, rank, count, epoch, round;
    bool changing, is_over, pending;
    trib_group *group;
    trib_tensor *tensor;
    int32_t *buffer;
    trib_status results[3][ROUNDS]; /* by epoch */
} player;

typedef struct bed {
    sim_job *job;
    uint32_t wrong;
    player players[WORKERS];
} bed;

static trib_engine *engine_of(const player *me)
{
    return me->bed->job->members[me->index].engine;
}

static int32_t value(uint32_t epoch, uint32_t round, uint32_t rank, uint32_t i)
{
    return (int32_t)(epoch * 7919 + round * 104729 + rank * 1299709 + i * 31);
}

/* Ranks of one kind, odd or even, share a group. */
static trib_status make_group(player *me, trib_error *error)
{
    int32_t ranks[WORKERS];
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = me->rank % 2 == 0 ? "even" : "odd";
    desc.ranks = ranks;
    for (uint32_t rank = me->rank % 2; rank < me->count; rank += 2) {
        ranks[desc.rank_count++] = (int32_t)rank;
    }
    return trib_group_create(engine_of(me), &desc, &me->group, error);
}

static trib_status declare(player *me, trib_error *error)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "of the group";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.group = me->group;
    return trib_tensor_declare(engine_of(me), &desc, &me->tensor, error);
}

static void submit(player *me);

static void on_done(const trib_result *result, void *user)
{
    player *me = user;
    me->pending = false;
    if (me->bed->job->members[me->index].killed) {
        return; /* it is closed at last */
    }
    me->results[me->epoch][me->round] = result->status;
    if (result->status != TRIB_OK) {
        if (result->status != TRIB_EPOCH_CHANGED) {
            fail_msg("%s", result->text);
        }
        return;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (uint32_t rank = me->rank % 2; rank < me->count; rank += 2) {
            sum += value(me->epoch, me->round, rank, i);
        }
        me->bed->wrong += me->buffer[i] != sum;
    }
    me->is_over = ++me->round == ROUNDS;
    if (!me->is_over) {
        submit(me);
    }
}

static void submit(player *me)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t i = 0; i < COUNT; i++) {
        me->buffer[i] = value(me->epoch, me->round, me->rank, i);
    }
    params.tensor = me->tensor;
    params.input = params.output = me->buffer;
    params.done_cb = on_done;
    params.user = me;
    me->pending = true;
    if (trib_push_pull(engine_of(me), &params, NULL, &error) != TRIB_OK) {
        me->pending = false;
        assert_int_equal(error.status, TRIB_EPOCH_CHANGED);
    }
}

static void start(player *me, const trib_membership *now)
{
    trib_error error = {.status = TRIB_OK};
    me->rank = (uint32_t)now->rank;
    me->count = (uint32_t)now->worker_count;
    me->round = 0;
    me->changing = false;
    if (make_group(me, &error) != TRIB_OK || declare(me, &error) != TRIB_OK) {
        fail_msg("worker %u: %s", me->index, error.text);
    }
    submit(me);
}

/* The old group's handles are refused with the status of the epoch, and its name is free for other ranks. */
static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    player *me = user;
    trib_error error = {.status = TRIB_OK};
    trib_tensor *tensor = NULL;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    assert_int_equal(now->status, TRIB_OK);
    desc.name = "too late";
    desc.count = 1;
    desc.group = me->group;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), TRIB_EPOCH_CHANGED);
    assert_non_null(strstr(error.text, "has ended with its epoch: create it anew"));
    assert_int_equal(trib_tensor_release(me->tensor, &error), TRIB_OK);
    me->epoch++;
    start(me, now);
}

static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    player *me = user;
    (void)now;
    trib_error error;
    me->changing = true;
    me->is_over = false;
    assert_int_equal(trib_membership_advance(engine, on_advanced, me, &error), TRIB_OK);
}

static bool all_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const player *me = &self->players[i];
        if (!job->members[i].killed && (me->changing || !me->is_over || me->pending || me->count != WORKERS - 1)) {
            return false;
        }
    }
    return true;
}

/* A round has succeeded on all members of its group that are left, or on none. */
static void check_alike(const bed *self, uint32_t died, uint64_t seed)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t first = 0; first < 2; first++) {
            uint32_t some = 0, left = 0;
            for (uint32_t i = first; i < WORKERS; i += 2) {
                left += i != died;
                some += i != died && self->players[i].results[0][round] == TRIB_OK;
            }
            if (some != 0 && some != left) {
                fail_msg("seed %llu: round %u succeeded on %u of %u members", (unsigned long long)seed, round, some,
                         left);
            }
        }
    }
}

/* Another thread has compared the ranks of its group with the last roster, and goes on now. */
static void check_late_group(const bed *self, uint32_t died)
{
    trib_engine *engine = engine_of(&self->players[died == 0 ? 1 : 0]);
    const int32_t ranks[] = {engine->config.rank, WORKERS - 1};
    trib_group_desc desc;
    trib_error error = {.status = TRIB_OK};
    uintptr_t handle = 0;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "late";
    desc.ranks = ranks;
    desc.rank_count = 2;
    const uint32_t before = engine->roster->before->epoch;
    assert_int_equal(trib_rank_group_find_or_add(engine, &desc, before, &handle, &error), TRIB_EPOCH_CHANGED);
}

static void run(uint32_t died, uint32_t servers, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, servers);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.reactors = 1 + (uint32_t)seed % 2;
    config.engine.chunk_bytes = 4096;
    config.engine.peer_timeout_ns = 4 * SECOND;
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->job = sim_bed_open(&config);
    for (uint32_t i = 0; i < WORKERS; i++) {
        player *me = &self->players[i];
        trib_membership now = {.struct_size = sizeof now};
        *me = (player){.bed = self, .index = i, .buffer = calloc(COUNT, sizeof(int32_t))};
        memset(me->results, 0xff, sizeof me->results);
        assert_int_equal(trib_membership_watch(engine_of(me), on_changed, me, NULL), TRIB_OK);
        assert_int_equal(trib_membership_get(engine_of(me), &now), TRIB_OK);
        start(me, &now);
    }
    const int64_t began_ns = trib_sim_now(self->job->sim);
    (void)sim_job_run(self->job, began_ns + (int64_t)(seed * 37 % 1000) * 1000, NULL, NULL);
    sim_job_kill(self->job, died);
    if (!sim_job_run(self->job, began_ns + 60 * SECOND, all_over, self) || self->wrong > 0) {
        fail_msg("rank %u dies, %u servers, seed %llu: %u wrong, or not over", died, servers, (unsigned long long)seed,
                 self->wrong);
    }
    check_alike(self, died, seed);
    check_late_group(self, died);
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    for (uint32_t i = 0; i < WORKERS; i++) {
        free(self->players[i].buffer);
    }
    free(self);
}

static void groups_end_with_their_epoch(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run((uint32_t)seed % WORKERS, (uint32_t)seed % 3, seed);
    }
}

/* Operations go on there with whoever is left, and a group is its ranks. */
static void groups_that_would_go_on_are_refused(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(2, 0);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    sim_job *job = sim_bed_open(&config);
    const int32_t rank = 0;
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "alone";
    desc.ranks = &rank;
    desc.rank_count = 1;
    trib_group *group = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_group_create(job->members[0].engine, &desc, &group, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "TRIB_SURVIVE=workers"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_end_with_their_epoch),
                                       cmocka_unit_test(groups_that_would_go_on_are_refused)};
    return cmocka_run_group_tests_name("groups in epochs", tests, NULL, NULL);
}
