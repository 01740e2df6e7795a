/*
 * test_boundaries.c - programs that call trib_membership_advance again and again, without anything in between. A worker
 * or a server that starts meanwhile joins nevertheless, however short the epochs are.
 */
#include <stdio.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, MEMBERS = WORKERS + 1, BOUNDARIES = 60 };

typedef struct program {
    sim_job *job;
    uint32_t index, boundaries;
    trib_status status;
} program;

static void advance(program *self);

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    program *self = user;
    self->status = now->status;
    if (now->status == TRIB_OK && ++self->boundaries < BOUNDARIES) {
        advance(self);
    }
}

static void advance(program *self)
{
    trib_error error = {.status = TRIB_OK};
    if (trib_membership_advance(self->job->members[self->index].engine, on_advanced, self, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

/* The last member is far away, as its connections take longer than the others' epochs. */
static void joins_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const bool is_last = member == MEMBERS - 1;
    config->worker_count = WORKERS;
    config->server_count = 0;
    config->rank = is_last ? -1 : config->rank;
    link->latency_ns = is_last ? *(const int64_t *)job->config.user : link->latency_ns;
}

static bool is_over(sim_job *job, void *argument)
{
    const program *first = argument;
    return job->members[MEMBERS - 1].ready_told || first->boundaries == BOUNDARIES || first->status != TRIB_OK;
}

/* Returns the number of boundaries that the last member has waited for. */
static uint32_t run(bool is_server, int64_t latency_ns, int64_t starts_ns)
{
    sim_job_config config = sim_job_config_default(WORKERS + (is_server ? 0 : 1), is_server ? 1 : 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.tweak = joins_later;
    config.user = &latency_ns;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, true);
    (void)sim_job_run(job, SECOND, NULL, NULL);
    program programs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_true(job->members[i].ready_told && job->members[i].ready.status == TRIB_OK);
        programs[i] = (program){.job = job, .index = i};
        advance(&programs[i]);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + starts_ns, NULL, NULL);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, false);
    const uint32_t before = programs[0].boundaries;
    assert_true(sim_job_run(job, 200 * SECOND, is_over, &programs[0]));
    assert_int_equal(programs[0].status, TRIB_OK);
    const bool joined = job->members[MEMBERS - 1].ready_told;
    const uint32_t waited = programs[0].boundaries - before;
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
    return joined ? waited : BOUNDARIES;
}

static void sweep(bool is_server, int64_t latency_ns)
{
    uint32_t most = 0, starved = 0;
    for (int64_t i = 0; i < 20; i++) {
        const uint32_t waited = run(is_server, latency_ns, i * 137000);
        most = waited > most ? waited : most;
        starved += waited == BOUNDARIES;
    }
    printf("%s, %lld us: %u boundaries at most, %u starved\n", is_server ? "server" : "worker",
           (long long)latency_ns / 1000, most, starved);
    assert_int_equal(starved, 0);
}

static void worker_joins(void **state)
{
    (void)state;
    sweep(false, 50000);
    sweep(false, 5000000);
}

static void server_joins(void **state)
{
    (void)state;
    sweep(true, 50000);
    sweep(true, 5000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(worker_joins), cmocka_unit_test(server_joins)};
    return cmocka_run_group_tests_name("boundaries", tests, NULL, NULL);
}
