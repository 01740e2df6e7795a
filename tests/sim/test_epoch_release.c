/*
 * test_epoch_release.c - programs release a tensor at different times around a change of the membership
 * (TRIB_SURVIVE=workers): before they go on, when they have gone on, or never. One that is declared anew under the same
 * name is that of the others.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 4, COUNT = 3000, ROUNDS = 5 };

typedef enum release_when { KEEPS, RELEASES_BEFORE, RELEASES_AFTER, RELEASE_KINDS } release_when;

typedef struct player {
    struct bed *bed;
    uint32_t index, epoch, round;
    release_when when;
    bool is_over, pending, changing;
    trib_tensor *tensor;
    int32_t *buffer;
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

static int32_t value(uint32_t epoch, uint32_t round, uint32_t i)
{
    return (int32_t)(epoch * 7919 + round * 104729 + i * 31);
}

static void declare(player *me)
{
    trib_error error;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "x";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    if (trib_tensor_declare(engine_of(me), &desc, &me->tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static void release(player *me, trib_tensor *tensor)
{
    trib_error error;
    if (trib_tensor_release(tensor, &error) != TRIB_OK) {
        fail_msg("worker %u: %s", me->index, error.text);
    }
}

static void submit(player *me);
static void advance(player *me);

static void on_done(const trib_result *result, void *user)
{
    player *me = user;
    me->pending = false;
    if (me->bed->job->members[me->index].killed) {
        return; /* it is closed at last */
    }
    if (result->status != TRIB_OK) {
        if (me->changing) {
            advance(me);
        }
        return;
    }
    const uint32_t workers = WORKERS - me->epoch;
    for (uint32_t i = 0; i < COUNT; i++) {
        me->bed->wrong += me->buffer[i] != (int32_t)workers * value(me->epoch, me->round, i);
    }
    me->is_over = ++me->round == ROUNDS;
    if (!me->is_over) {
        submit(me);
    }
}

static void submit(player *me)
{
    trib_error error;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t i = 0; i < COUNT; i++) {
        me->buffer[i] = value(me->epoch, me->round, i);
    }
    params.tensor = me->tensor;
    params.input = params.output = me->buffer;
    params.done_cb = on_done;
    params.user = me;
    me->pending = trib_push_pull(engine_of(me), &params, NULL, &error) == TRIB_OK;
    if (!me->pending && error.status != TRIB_EPOCH_CHANGED) {
        fail_msg("worker %u: %s", me->index, error.text);
    }
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    player *me = user;
    (void)engine;
    assert_int_equal(now->status, TRIB_OK);
    me->epoch++;
    me->round = 0;
    if (me->when == RELEASES_AFTER) {
        release(me, me->tensor);
    }
    if (me->when != KEEPS) {
        declare(me);
    }
    submit(me);
}

static void advance(player *me)
{
    trib_error error;
    me->changing = false;
    if (me->when == RELEASES_BEFORE) {
        release(me, me->tensor);
    }
    assert_int_equal(trib_membership_advance(engine_of(me), on_advanced, me, &error), TRIB_OK);
}

static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    player *me = user;
    (void)engine;
    (void)now;
    me->is_over = false;
    me->changing = true;
    if (!me->pending) {
        advance(me);
    }
}

static bool all_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool is_over = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const player *me = &self->players[i];
        is_over = is_over && (job->members[i].killed || (me->epoch == 1 && me->is_over));
    }
    return is_over;
}

static void run(uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, (uint32_t)seed % 3);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.reactors = 1 + (uint32_t)seed % 2;
    config.engine.peer_timeout_ns = 4 * SECOND;
    bed self = {.job = sim_bed_open(&config)};
    uint64_t kinds = seed;
    for (uint32_t i = 0; i < WORKERS; i++, kinds /= RELEASE_KINDS) {
        player *me = &self.players[i];
        *me = (player){.bed = &self,
                       .index = i,
                       .when = (release_when)(kinds % RELEASE_KINDS),
                       .buffer = calloc(COUNT, sizeof(int32_t))};
        assert_int_equal(trib_membership_watch(engine_of(me), on_changed, me, NULL), TRIB_OK);
        declare(me);
        submit(me);
    }
    const int64_t began_ns = trib_sim_now(self.job->sim);
    (void)sim_job_run(self.job, began_ns + (int64_t)(seed * 37 % 1000) * 1000, NULL, NULL);
    sim_job_kill(self.job, WORKERS - 1);
    if (!sim_job_run(self.job, began_ns + 60 * SECOND, all_over, &self) || self.wrong > 0) {
        fail_msg("seed %llu: %u wrong, or not over", (unsigned long long)seed, self.wrong);
    }
    assert_true(sim_job_close(self.job, 60 * SECOND));
    sim_job_free(self.job);
    for (uint32_t i = 0; i < WORKERS; i++) {
        free(self.players[i].buffer);
    }
}

static void a_name_is_that_of_the_others(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (uint64_t)RELEASE_KINDS * RELEASE_KINDS * RELEASE_KINDS; seed++) {
        run(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_name_is_that_of_the_others)};
    return cmocka_run_group_tests_name("releases around an epoch", tests, NULL, NULL);
}
