/* test_sim.c - whole jobs in virtual time. They join, sum exactly, close and leave nothing, and the same seed gives the
 * same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

static void submit(sim_job *job, uint32_t rank, const char *name, uint32_t count, exchange *what)
{
    sim_bed_submit(job, rank, name, count, what, 0);
}

static void submit_urgent(sim_job *job, uint32_t rank, const char *name, uint32_t count, exchange *what)
{
    sim_bed_submit(job, rank, name, count, what, 1000);
}

/* Returns the world's time at the end, and how many events it took. */
static int64_t run_sums(const sim_job_config *config, uint32_t count, uint64_t *steps)
{
    sim_job *job = sim_bed_open(config);
    exchange exchanges[8] = {{0}};
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        exchanges[rank].buffer = malloc(count * sizeof(int32_t));
        for (uint32_t i = 0; i < count; i++) {
            exchanges[rank].buffer[i] = (int32_t)(i * 7 + rank);
        }
        submit(job, rank, "sum", count, &exchanges[rank]);
    }
    assert_true(sim_job_run(job, 60 * SECOND, sim_bed_all_done, exchanges));
    int64_t at_ns = trib_sim_now(job->sim);
    const uint32_t n = config->workers;
    for (uint32_t rank = 0; rank < n; rank++) {
        assert_int_equal(exchanges[rank].done, 1);
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(exchanges[rank].buffer[i], (int32_t)(i * 7 * n + n * (n - 1) / 2));
        }
        free(exchanges[rank].buffer);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    *steps = trib_sim_steps(job->sim);
    sim_job_free(job);
    return at_ns;
}

static void sums_are_exact(void **state)
{
    (void)state;
    uint64_t steps = 0;
    for (uint32_t servers = 0; servers <= 3; servers++) {
        sim_job_config config = sim_job_config_default(4, servers);
        config.engine.reactors = servers == 2 ? 3 : 1;
        run_sums(&config, 1000003, &steps);
    }
}

static void a_seed_is_a_run(void **state)
{
    (void)state;
    uint64_t steps[3];
    int64_t times[3];
    for (uint32_t i = 0; i < 3; i++) {
        sim_job_config config = sim_job_config_default(3, 2);
        config.seed = i == 2 ? 6 : 5;
        times[i] = run_sums(&config, 300000, &steps[i]);
    }
    assert_int_equal(times[0], times[1]);
    assert_int_equal(steps[0], steps[1]);
}

enum { FLOOD_TENSORS = 8, FLOOD_COUNT = 4096 };

/* A caller's thread that keeps two operations in flight on every tensor, between any two events. */
typedef struct flood {
    trib_engine *engine;
    trib_tensor *tensors[FLOOD_TENSORS];
    uint32_t going[FLOOD_TENSORS];
    int32_t buffers[FLOOD_TENSORS][FLOOD_COUNT];
    uint32_t lost, others;
    char other[400];
} flood;

static void flood_count(flood *self, trib_status status, const char *text)
{
    if (status == TRIB_PEER_LOST) {
        self->lost++;
    } else if (status != TRIB_OK) {
        self->others++;
        snprintf(self->other, sizeof self->other, "%s", text);
    }
}

static void flood_done(const trib_result *result, void *user)
{
    flood *self = user;
    self->going[result->tensor[1] - '0']--;
    flood_count(self, result->status, result->text);
}

static void flood_open(flood *self)
{
    for (uint32_t i = 0; i < FLOOD_TENSORS; i++) {
        const char name[] = {'t', (char)('0' + i), '\0'};
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.dtype = TRIB_INT32;
        desc.count = FLOOD_COUNT;
        trib_error error = {.status = TRIB_OK};
        assert_int_equal(trib_tensor_declare(self->engine, &desc, &self->tensors[i], &error), TRIB_OK);
    }
}

static bool flood_goes_on(sim_job *job, void *argument)
{
    flood *self = argument;
    bool busy = false;
    for (uint32_t i = 0; i < FLOOD_TENSORS; i++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = self->tensors[i];
        params.input = params.output = self->buffers[i];
        params.done_cb = flood_done;
        params.user = self;
        trib_error error = {.status = TRIB_OK};
        if (self->going[i] < 2) {
            const trib_status status = trib_push_pull(self->engine, &params, NULL, &error);
            self->going[i] += status == TRIB_OK;
            flood_count(self, status, error.text);
        }
        busy = busy || self->going[i] > 0;
    }
    return job->members[0].ended_told && !busy;
}

/* Operations may find the connection to a killed server gone before the job's end reaches them. They report a lost
 * peer, not one that left. */
static void a_killed_server_is_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sim_job_config config = sim_job_config_default(1, 2);
        config.seed = seed;
        config.engine.reactors = (int32_t)(1 + seed % 3);
        sim_job *job = sim_bed_open(&config);
        flood *self = calloc(1, sizeof *self);
        self->engine = job->members[0].engine;
        flood_open(self);
        const int64_t at_ns = trib_sim_now(job->sim) + (int64_t)seed * 100000;
        (void)sim_job_run(job, at_ns, flood_goes_on, self);
        sim_job_kill(job, 1);
        assert_true(sim_job_run(job, at_ns + 30 * SECOND, flood_goes_on, self));
        if (self->others > 0) {
            fail_msg("seed %llu: %u operations: %s", (unsigned long long)seed, self->others, self->other);
        }
        assert_true(self->lost > 0);
        assert_int_equal(job->members[0].ended.status, TRIB_PEER_LOST);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        free(self);
    }
}

static bool is_ready(sim_job *job, void *member)
{
    (void)job;
    return ((const sim_member *)member)->ready_told;
}

/* Members may join at any time until the join timeout. Members that wait in silence for the others are not lost. */
static void the_first_wait_for_the_last(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.peer_timeout_ns = SECOND;
    config.engine.join_timeout_ns = 60 * SECOND;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_node_regroup(job->members[2].node, 1);
    assert_false(sim_job_run(job, 8 * SECOND, is_ready, &job->members[0]));
    trib_sim_node_regroup(job->members[2].node, 0);
    assert_true(sim_job_run(job, 60 * SECOND, sim_job_all_ready, NULL));
    sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, NULL, NULL); /* idle members are not lost either */
    for (uint32_t i = 0; i < job->member_count; i++) {
        assert_int_equal(job->members[i].ready.status, TRIB_OK);
        assert_false(job->members[i].ended_told);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

static bool has_no_outbox(void *argument, size_t size)
{
    const sim_member *member = argument;
    return member->index != 2 ||
           size != TRIB_MIN_HEAP_CAPACITY_FIRST * sizeof(trib_min_heap_slot); /* this is the first heap of an outbox */
}

/* A server without memory to queue a sum reports it, so no worker waits for its deadline. */
static void server_without_memory_reports_its_sum(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    sim_job_config config = sim_job_config_default(2, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.may_alloc = has_no_outbox;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[2] = {{0}};
    for (uint32_t rank = 0; rank < 2; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        submit(job, rank, "sum", COUNT, &exchanges[rank]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_NO_MEMORY); /* the server tells what it lacks */
        free(exchanges[rank].buffer);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

/* Heartbeats arrive while the links are full for many times the peer timeout. */
static void heavy_traffic_is_no_silence(void **state)
{
    (void)state;
    enum { HEAVY = 4 << 20 };
    for (uint32_t servers = 0; servers < 2; servers++) {
        sim_job_config config = sim_job_config_default(2, servers);
        config.engine.peer_timeout_ns = SECOND;
        config.link.egress_bits = config.link.ingress_bits = UINT64_C(20000000);
        sim_job *job = sim_bed_open(&config);
        exchange heavy[2] = {{0}};
        for (uint32_t rank = 0; rank < 2; rank++) {
            heavy[rank].buffer = calloc(HEAVY, sizeof(int32_t));
            submit(job, rank, "heavy", HEAVY, &heavy[rank]);
        }
        const int64_t from_ns = trib_sim_now(job->sim);
        assert_true(sim_job_run(job, 120 * SECOND, sim_bed_all_done, heavy));
        assert_true(trib_sim_now(job->sim) - from_ns > 5 * SECOND);
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_int_equal(heavy[rank].status, TRIB_OK);
            free(heavy[rank].buffer);
        }
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
    }
}

/* Returns how long an urgent operation takes until every worker has it. */
static int64_t time_urgent(sim_job *job, exchange light[2], uint32_t count)
{
    const int64_t from_ns = trib_sim_now(job->sim);
    for (uint32_t rank = 0; rank < 2; rank++) {
        light[rank].done = 0;
        submit_urgent(job, rank, "light", count, &light[rank]);
    }
    assert_true(sim_job_run(job, 60 * SECOND, sim_bed_all_done, light));
    assert_int_equal(light[0].status + light[1].status, 0);
    return trib_sim_now(job->sim) - from_ns;
}

/* An urgent operation overtakes earlier ones, towards the server and back; either direction may be the bottleneck. With
 * a second connection it also overtakes frames that have been sent. */
static void the_urgent_overtakes(void **state)
{
    (void)state;
    enum { HEAVY = 4 << 20, LIGHT = 1 << 10 };
    for (uint32_t variant = 0; variant < 4; variant++) {
        const uint32_t narrow = variant % 2;
        sim_job_config config = sim_job_config_default(2, 1);
        config.engine.colocate = TRIB_COLOCATE_OFF;
        config.engine.push_credit_bytes = config.engine.pull_credit_bytes = 256 << 10;
        config.net.window_bytes = config.net.unsent_bytes = 128 << 10;
        config.net.second_connections = variant >= 2;
        *(narrow == 0 ? &config.link.egress_bits : &config.link.ingress_bits) = UINT64_C(1000000000);
        sim_job *job = sim_bed_open(&config);
        exchange heavy[2] = {{0}}, light[2] = {{0}};
        for (uint32_t rank = 0; rank < 2; rank++) {
            heavy[rank].buffer = calloc(HEAVY, sizeof(int32_t));
            light[rank].buffer = calloc(LIGHT, sizeof(int32_t));
            submit(job, rank, "heavy", HEAVY, &heavy[rank]);
        }
        /* 16 MiB from each of two workers take at least 268 ms. After 125 ms almost half is summed, and its sums queue
         * up. */
        sim_job_run(job, trib_sim_now(job->sim) + SECOND / 8, NULL, NULL);
        const int64_t first_ns = time_urgent(job, light, LIGHT), second_ns = time_urgent(job, light, LIGHT);
        print_message("# narrow way %s: urgent after %.1f ms, then %.1f ms\n", narrow == 0 ? "out" : "in",
                      (double)first_ns / 1e6, (double)second_ns / 1e6);
        assert_true(first_ns < SECOND / 40);
        assert_true(second_ns < (variant >= 2 ? SECOND / 200 : SECOND / 40));
        assert_int_equal(heavy[0].done + heavy[1].done, 0);
        assert_true(sim_job_run(job, 60 * SECOND, sim_bed_all_done, heavy));
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        for (uint32_t rank = 0; rank < 2; rank++) {
            free(heavy[rank].buffer);
            free(light[rank].buffer);
        }
    }
}

static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->ingress_bits = member == 1 ? UINT64_C(10000000) : link->ingress_bits;
}

/* A stall notice that names rank 2 is queued behind sums on a slow link to rank 1. Meanwhile rank 2 contributes and
 * leaves. */
static void old_stall_notice_is_ignored(void **state)
{
    (void)state;
    enum { HEAVY = 512 << 10, LIGHT = 1 << 10, WORKERS = 3 };
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.pull_credit_bytes = 4 << 20;
    config.net.window_bytes = config.net.unsent_bytes = 4 << 20;
    config.tweak = narrow_rank_1;
    sim_job *job = sim_bed_open(&config);
    exchange heavy[WORKERS] = {{0}}, light[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        heavy[rank].buffer = calloc(HEAVY, sizeof(int32_t));
        light[rank].buffer = calloc(LIGHT, sizeof(int32_t));
        submit_urgent(job, rank, "heavy", HEAVY, &heavy[rank]);
        if (rank < 2) {
            submit(job, rank, "light", LIGHT, &light[rank]);
        }
    }
    sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    submit(job, 2, "light", LIGHT, &light[2]);
    sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    assert_int_equal(heavy[2].done + light[2].done, 2);
    assert_int_equal(heavy[1].done + light[1].done, 0);
    sim_job_leave(job, 2);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, sim_bed_all_done, light));
    assert_int_equal(light[1].status, TRIB_OK);
    assert_int_equal(heavy[1].status, TRIB_OK);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(heavy[rank].buffer);
        free(light[rank].buffer);
    }
}

static bool four_are_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *exchanges = argument;
    return exchanges[0].done + exchanges[1].done + exchanges[2].done + exchanges[3].done == 4;
}

/* Machines that sum first disagree, and one machine never submits. When all close, no member stays to notify that
 * one. */
static void closing_waits_for_nobody_who_has_left(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20, WORKERS = 6 };
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.per_machine = 2;
    config.engine.local_sum = TRIB_LOCAL_SUM_ON;
    config.engine.reactors = 1;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        exchanges[rank].reduce = rank < 2 ? TRIB_SUM : TRIB_MAX;
        if (rank < 4) {
            submit(job, rank, "disputed", COUNT, &exchanges[rank]);
        } else {
            (void)sim_bed_declare(job, rank, "disputed", COUNT);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, four_are_done, exchanges));
    assert_int_equal(exchanges[0].status, TRIB_MISMATCH);
    const int64_t began_ns = trib_sim_now(job->sim);
    assert_true(sim_job_close(job, 20 * SECOND));
    assert_true(trib_sim_now(job->sim) - began_ns < SECOND);
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(exchanges[rank].buffer);
    }
}

static void nothing(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    (void)event;
}

/* Runs until that time even if no event happens before. */
static void pass(sim_job *job, int64_t time_ns)
{
    trib_sim_event end = {.fired = nothing};
    const int64_t until_ns = trib_sim_now(job->sim) + time_ns;
    trib_sim_set(job->sim, &end, until_ns);
    (void)sim_job_run(job, until_ns, NULL, NULL);
    assert_int_equal(trib_sim_now(job->sim), until_ns);
}

/* The member's loop runs once in half a second, as if it computed in between, so each of its timers is late. */
static void run_now_and_then(sim_job *job, uint32_t member, uint32_t times)
{
    trib_sim_process *process = job->members[member].process;
    for (uint32_t i = 0; i < times && !job->members[member].ended_told; i++) {
        trib_sim_process_freeze(process, true);
        pass(job, SECOND / 2);
        trib_sim_process_freeze(process, false);
        pass(job, SECOND / 100);
    }
}

/* The slow member, rank 0 or rank 1, still notices that the other one stands still, and does not declare a live one
 * lost. */
static void slow_member_notices_a_stopped_one(void **state)
{
    (void)state;
    enum { ENOUGH = 40 };
    for (uint32_t late = 0; late < 2; late++) {
        sim_job_config config = sim_job_config_default(2, 0);
        config.engine.peer_timeout_ns = SECOND;
        sim_job *job = sim_bed_open(&config);
        sim_member *judge = &job->members[late], *other = &job->members[1 - late];
        run_now_and_then(job, late, ENOUGH);
        assert_false(judge->ended_told);
        assert_false(other->ended_told);
        trib_sim_process_freeze(other->process, true);
        run_now_and_then(job, late, ENOUGH);
        assert_true(judge->ended_told);
        assert_int_equal(judge->ended.status, TRIB_PEER_LOST);
        assert_non_null(strstr(judge->ended.text, "no sign of life"));
        trib_sim_process_freeze(other->process, false);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_server_is_lost),
        cmocka_unit_test(sums_are_exact),
        cmocka_unit_test(a_seed_is_a_run),
        cmocka_unit_test(the_first_wait_for_the_last),
        cmocka_unit_test(server_without_memory_reports_its_sum),
        cmocka_unit_test(heavy_traffic_is_no_silence),
        cmocka_unit_test(the_urgent_overtakes),
        cmocka_unit_test(old_stall_notice_is_ignored),
        cmocka_unit_test(closing_waits_for_nobody_who_has_left),
        cmocka_unit_test(slow_member_notices_a_stopped_one),
    };
    return cmocka_run_group_tests_name("simulated jobs", tests, NULL, NULL);
}
