/* test_leaving_early.c - workers that leave in good order while others are still connecting. No member is lost by that:
 * a leaver waits for workers that have yet to connect, and a worker that cannot connect learns that its peer has
 * left. Nor does a member need one that has left, or wait for it. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS_MAX = 5, COUNT = 1000 };

/* How a worker uses the job before it leaves. */
typedef enum use { USE_NONE, USE_READY, USE_BROADCAST, USE_KINDS } use;

typedef struct standstill {
    trib_sim_event thaw; /* the first member, so that the event is the standstill */
    trib_sim_process *process;
} standstill;

typedef struct bed {
    sim_job *job;
    use use;
    exchange exchanges[WORKERS_MAX];
    bool began[WORKERS_MAX];
    int64_t leaves_at_ns[WORKERS_MAX]; /* USE_NONE: a worker leaves at that time, whatever has happened */
    trib_sim_stream stream;
    standstill standstills[WORKERS_MAX];
} bed;

/* Processes stand still for moments, as on a busy machine, so that some workers are done before others have
 * connected. */
static void thaw_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    standstill *self = (standstill *)event;
    trib_sim_process_freeze(self->process, false);
}

static void stand_still(bed *self)
{
    const uint32_t rank = (uint32_t)trib_sim_draw_below(&self->stream, self->job->config.workers);
    standstill *at = &self->standstills[rank];
    if (trib_sim_event_is_set(&at->thaw) || !trib_sim_draw_one_in(&self->stream, 30)) {
        return;
    }
    at->process = self->job->members[rank].process;
    at->thaw.fired = thaw_fired;
    trib_sim_process_freeze(at->process, true);
    trib_sim_set(self->job->sim, &at->thaw,
                 trib_sim_now(self->job->sim) + (1000 << trib_sim_draw_below(&self->stream, 15)));
}

static uint32_t root_of(const bed *self)
{
    return (uint32_t)(self->job->config.seed / 8 % self->job->config.workers);
}

/* The root is done as soon as the owner has its bytes. */
static void begin_broadcast(bed *self, uint32_t rank)
{
    exchange *what = &self->exchanges[rank];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = sim_bed_declare(self->job, rank, "weights", COUNT);
    params.input = params.output = what->buffer;
    params.root = (int32_t)root_of(self);
    params.done_cb = sim_bed_on_done;
    params.user = what;
    trib_error error = {.status = TRIB_OK};
    if (trib_broadcast(self->job->members[rank].engine, &params, NULL, &error) != TRIB_OK) {
        fail_msg("seed %llu: rank %u: %s", (unsigned long long)self->job->config.seed, rank, error.text);
    }
}

static bool may_leave(const bed *self, uint32_t rank)
{
    const sim_member *member = &self->job->members[rank];
    switch (self->use) {
    case USE_NONE:
        return member->ended_told || trib_sim_now(self->job->sim) >= self->leaves_at_ns[rank];
    case USE_READY:
        return member->ready_told;
    case USE_BROADCAST:
        return self->exchanges[rank].done > 0;
    case USE_KINDS:
    default:
        return false;
    }
}

static bool all_have_closed(sim_job *job, void *argument)
{
    bed *self = argument;
    bool all = true;
    stand_still(self);
    for (uint32_t rank = 0; rank < job->config.workers; rank++) {
        sim_member *member = &job->members[rank];
        if (self->use == USE_BROADCAST && !self->began[rank]) {
            self->began[rank] = true;
            begin_broadcast(self, rank);
        }
        if (may_leave(self, rank)) {
            sim_job_leave(job, rank);
        }
        all = all && member->closed;
    }
    return all;
}

static void leave_all(use how, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(2 + (uint32_t)(seed % (WORKERS_MAX - 1)), (uint32_t)(seed / 4 % 2));
    config.seed = seed;
    config.engine.reactors = (int32_t)(1 + seed % 2);
    config.engine.peer_timeout_ns = 5 * SECOND;
    bed self = {.use = how, .stream = {.state = seed * 77}};
    trib_error error = {.status = TRIB_OK};
    self.job = sim_job_open(&config, &error);
    assert_non_null(self.job);
    for (uint32_t rank = 0; rank < config.workers; rank++) {
        self.exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        self.exchanges[rank].buffer[7] = rank == root_of(&self) ? 42 : 0;
        self.leaves_at_ns[rank] = 1000 << trib_sim_draw_below(&self.stream, 18);
    }
    /* No leaver waits for its deadline. */
    if (!sim_job_run(self.job, 4 * SECOND, all_have_closed, &self)) {
        fail_msg("use %d, seed %llu: not everybody could leave", how, (unsigned long long)seed);
    }
    for (uint32_t rank = 0; rank < config.workers; rank++) {
        const sim_member *member = &self.job->members[rank];
        if (member->ended_told && member->ended.status != TRIB_OK && how != USE_NONE) {
            fail_msg("use %d, seed %llu: rank %u ended with: %s", how, (unsigned long long)seed, rank,
                     member->ended.text);
        }
        if (member->ended_told && member->ended.status == TRIB_PEER_LOST) {
            fail_msg("use %d, seed %llu: rank %u lost a member: %s", how, (unsigned long long)seed, rank,
                     member->ended.text);
        }
        if (how == USE_BROADCAST) {
            assert_int_equal(self.exchanges[rank].status, TRIB_OK);
            assert_int_equal(self.exchanges[rank].buffer[7], 42);
        }
        free(self.exchanges[rank].buffer);
    }
    for (uint32_t rank = 0; rank < config.workers; rank++) {
        trib_sim_clear(self.job->sim, &self.standstills[rank].thaw);
    }
    assert_true(sim_job_close(self.job, 20 * SECOND));
    sim_job_free(self.job);
}

static void leave_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        leave_all(USE_READY, seed);
    }
}

static void leave_after_one_broadcast(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        leave_all(USE_BROADCAST, seed);
    }
}

/* Rank 0 may leave while others work, which ends their job, but then it has left and is not lost. */
static void leave_at_any_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        leave_all(USE_NONE, seed);
    }
}

static void limit_last_link(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->bandwidth_bits = UINT64_C(1000000000) / (member + 1 == job->config.workers ? 10 : 1);
}

/* The last worker has the slowest link, and so no share of what all workers sum. */
static void slowest_worker_sums_for_itself(void **state)
{
    (void)state;
    const int32_t alone = 2;
    exchange what = {.buffer = calloc(COUNT, sizeof(int32_t)), .reduce = TRIB_SUM};
    sim_job_config config = sim_job_config_default(3, 0);
    config.tweak = limit_last_link;
    sim_job *job = sim_bed_open(&config);
    sim_job_leave(job, 0);
    sim_job_leave(job, 1);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_true(job->members[1].closed);

    trib_group_desc group;
    trib_group_desc_init(&group, sizeof group);
    group.name = "slow";
    group.ranks = &alone;
    group.rank_count = 1;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "tensor";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = what.buffer;
    params.done_cb = sim_bed_on_done;
    params.user = &what;
    trib_engine *engine = job->members[alone].engine;
    assert_int_equal(trib_group_create(engine, &group, &desc.group, NULL), TRIB_OK);
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, NULL), TRIB_OK);
    what.buffer[7] = 42;
    assert_int_equal(trib_push_pull(engine, &params, NULL, NULL), TRIB_OK);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_int_equal(what.done, 1);
    assert_int_equal(what.status, TRIB_OK);
    assert_int_equal(what.buffer[7], 42);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    free(what.buffer);
}

static void limit_last_two_links(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const bool is_slow = member == job->config.workers - 1 || member == job->config.workers - 2;
    config->bandwidth_bits = UINT64_C(1000000000) / (is_slow ? 10 : 1);
    config->shares = TRIB_SHARES_FIXED;
}

/* Ranks 2 and 3 have slices for each other, and nobody else has any. */
static trib_tensor *declare_pairs(sim_job *job, uint32_t rank)
{
    uint64_t splits[4] = {0};
    trib_tensor *tensor = NULL;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    if (rank >= 2) {
        splits[rank ^ 1] = COUNT;
    }
    desc.name = "pairs";
    desc.dtype = TRIB_INT32;
    desc.layout = TRIB_PAIRS;
    desc.splits = splits;
    desc.split_count = 4;
    assert_int_equal(trib_tensor_declare(job->members[rank].engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static void begin_all_to_all(sim_job *job, uint32_t rank, const int32_t *input, exchange *what)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_pairs(job, rank);
    params.input = input;
    params.output = what->buffer;
    params.output_bytes = COUNT * sizeof(int32_t);
    params.done_cb = sim_bed_on_done;
    params.user = what;
    assert_int_equal(trib_all_to_all(job->members[rank].engine, &params, NULL, NULL), TRIB_OK);
}

/* Beside a dedicated server and two workers that sum, two workers have slow links and no share of what all sum. Their
 * slices for each other do not need the others, which are done with the operation earlier. */
static void slow_workers_exchange_for_themselves(void **state)
{
    (void)state;
    exchange what[4];
    int32_t *inputs[4];
    sim_job_config config = sim_job_config_default(4, 1);
    config.tweak = limit_last_two_links;
    sim_job *job = sim_bed_open(&config);
    for (uint32_t rank = 0; rank < 4; rank++) {
        what[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
        inputs[rank] = calloc(COUNT, sizeof(int32_t));
        inputs[rank][7] = (int32_t)rank + 1;
        assert_non_null(declare_pairs(job, rank));
    }
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank == 3) { /* rank 2 has sent its slice, and the others are done and leave */
            assert_int_equal(what[0].done + what[1].done, 2);
            sim_job_leave(job, 0);
            sim_job_leave(job, 1);
            (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        }
        begin_all_to_all(job, rank, inputs[rank], &what[rank]);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    }
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(what[rank].done, 1);
        if (what[rank].status != TRIB_OK) {
            fail_msg("rank %u ended with %s", rank, trib_status_text(what[rank].status));
        }
        assert_int_equal(what[rank].buffer[7], rank == 2 ? 4 : rank == 3 ? 3 : 0);
        free(what[rank].buffer);
        free(inputs[rank]);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

/* Both workers of the first machine leave without a contribution. One of them keeps the membership, and so stays until
 * the others have left. They do not wait for what it could contribute. */
static void first_machine_leaves(void **state)
{
    (void)state;
    exchange what[4];
    sim_job_config config = sim_job_config_default(4, 1);
    config.per_machine = 2;
    config.engine.local_sum = TRIB_LOCAL_SUM_ON;
    sim_job *job = sim_bed_open(&config);
    sim_job_leave(job, 0);
    sim_job_leave(job, 1);
    for (uint32_t rank = 2; rank < 4; rank++) {
        what[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t)), .reduce = TRIB_SUM};
        sim_bed_begin(job, rank, "tensor", COUNT, &what[rank], 0, NULL);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + 3 * SECOND, NULL, NULL);
    for (uint32_t rank = 2; rank < 4; rank++) {
        assert_int_equal(what[rank].done, 1);
        assert_int_equal(what[rank].status, TRIB_PEER_LEFT);
        assert_false(job->members[rank].ended_told);
        free(what[rank].buffer);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leave_at_once),
        cmocka_unit_test(leave_after_one_broadcast),
        cmocka_unit_test(leave_at_any_time),
        cmocka_unit_test(slowest_worker_sums_for_itself),
        cmocka_unit_test(slow_workers_exchange_for_themselves),
        cmocka_unit_test(first_machine_leaves),
    };
    return cmocka_run_group_tests_name("leaving early", tests, NULL, NULL);
}
