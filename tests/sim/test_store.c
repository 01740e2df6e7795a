/* test_store.c - jobs in a store (TRIB_STORE) whose answers are late, on purpose, or whose record is put back or taken
 * by another job; storm.h has what happens at random. */
#include <stdio.h>
#include <string.h>

#include "tests/sim/worker_loss.h"

enum { WORKERS = 3, CHANGES = 80, LOG_SIZE = 16384 };

static bool is_late(sim_job *job, void *argument)
{
    (void)argument;
    return job->store.late_of != NULL;
}

static bool two_go_on(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool go_on = true;
    for (uint32_t i = 0; i < 2; i++) {
        const worker *at = &self->workers[i];
        go_on = go_on && !at->changing && at->count == 2 && at->through == TENSORS;
    }
    return go_on || job->members[0].ended_told;
}

/* A coordinator in a process of its own asks for a swap that the store carries out when the epoch is over already. The
 * record names an epoch that has never begun then, and is the coordinator's own nevertheless. */
static void late_swap_of_an_epoch_that_is_over(void **state)
{
    (void)state;
    const setting what = {
        .workers = 4, .servers = 1, .apart = true, .colocated = true, .reactors = 1, .has_store = true};
    bed *self = worker_loss_open(&what, 1);
    self->job->store.late_one_in = 1;
    sim_job_kill(self->job, 3);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, is_late, NULL));
    self->job->store.late_one_in = 0;
    sim_job_kill(self->job, 2);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 60 * SECOND, two_go_on, self));
    if (self->job->members[0].ended_told) {
        fail_msg("the job has ended: %s", self->job->members[0].ended.text);
    }
    assert_int_equal(self->wrong, 0);
    worker_loss_close(self);
}

/* ---- Another record ---- */

static char logged[LOG_SIZE];

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    const size_t used = strnlen(logged, sizeof logged - 1);
    snprintf(logged + used, sizeof logged - used, "%s\n", line);
}

static void set_up(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const bool is_apart = job->config.servers == 1;
    const uint32_t first = is_apart ? WORKERS : 0; /* the coordinator */
    config->log_level = member == first ? TRIB_LOG_WARN : TRIB_LOG_NONE;
    config->log_cb = on_log;
    if (is_apart) {
        config->server_count = 0;
        config->coordinator = "n3:4000";
        config->external_coordinator = member != first;
        config->roles = member == first ? TRIB_ROLE_COORDINATOR : config->roles;
    }
}

static bool workers_are_ready(sim_job *job, void *unused)
{
    (void)unused;
    bool are_ready = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        are_ready = are_ready && job->members[i].ready_told && job->members[i].ready.status == TRIB_OK;
    }
    return are_ready;
}

/* apart: the coordinator is a process of its own. */
static sim_job *open_in_store(bool apart)
{
    sim_job_config config = sim_job_config_default(WORKERS, apart ? 1 : 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.has_store = true;
    config.tweak = set_up;
    memset(logged, 0, sizeof logged);
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    if (job == NULL || !sim_job_run(job, 30 * SECOND, workers_are_ready, NULL)) {
        fail_msg("did not join: %s", job == NULL ? error.text : job->members[0].ready.text);
    }
    return job;
}

static void on_change(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    *(uint32_t *)user += now->status == TRIB_OK;
}

static bool all_have_changed(sim_job *job, void *argument)
{
    const uint32_t *changed = argument;
    return *changed == WORKERS || job->members[0].ended_told;
}

static void change(sim_job *job)
{
    uint32_t changed = 0;
    trib_error error;
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(trib_membership_advance(job->members[i].engine, on_change, &changed, &error), TRIB_OK);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, all_have_changed, &changed));
}

static void put_record(trib_sim_store *store, const char *record)
{
    snprintf(store->record, sizeof store->record, "%s", record);
    store->revision++;
}

/* The store's data come from a copy, however old. The job goes on until its next change, which nobody may decide. */
static void a_record_from_an_old_copy_is_old(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        sim_job *job = open_in_store(kind % 2 != 0);
        const uint32_t changes = kind < 2 ? CHANGES : 1; /* the last epoch's roster is still there */
        change(job);
        char record[TRIB_STORE_TEXT_MAX];
        snprintf(record, sizeof record, "%s", job->store.record);
        for (uint32_t i = 0; i < changes; i++) {
            change(job);
        }
        assert_false(job->members[0].ended_told);
        put_record(&job->store, record);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, NULL, NULL);
        if (job->members[0].ended_told || strstr(logged, "has lost the record of this job") == NULL) {
            fail_msg("the job has not gone on: %s", logged);
        }
        change(job);
        assert_true(job->members[0].ended_told);
        assert_non_null(strstr(job->members[0].ended.text, "names an epoch that is over"));
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

/* The store says that it has taken a record, and has not: it is not asked again, as nobody can tell who goes on. */
static void a_swap_that_was_not_kept_ends_the_job(void **state)
{
    (void)state;
    sim_job *job = open_in_store(false);
    job->store.lie = TRIB_SIM_LIE_FORGETS;
    change(job);
    assert_true(job->members[0].ended_told);
    assert_non_null(strstr(job->members[0].ended.text, "has not kept what it said it had taken"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* Another job has begun under the same name, while this one could not be heard of. It is no copy, though its epoch has
 * a lower number. */
static void another_job_of_the_name_ends_this_one(void **state)
{
    (void)state;
    sim_job *job = open_in_store(false);
    for (uint32_t i = 0; i < 4; i++) {
        change(job);
    }
    put_record(&job->store, "epoch 1 ticket 0123456789abcdef at n9:4000");
    (void)sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, NULL, NULL);
    assert_true(job->members[0].ended_told);
    assert_non_null(strstr(job->members[0].ended.text, "other members have gone on without this one"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_swap_of_an_epoch_that_is_over),
        cmocka_unit_test(a_record_from_an_old_copy_is_old),
        cmocka_unit_test(another_job_of_the_name_ends_this_one),
        cmocka_unit_test(a_swap_that_was_not_kept_ends_the_job),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
