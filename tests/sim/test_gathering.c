/* test_gathering.c - a member that joins and dies while the job gathers is logged at once, and is named when the join
 * deadline passes without it; one that stands still for longer than a handshake may take joins all the same. Between
 * two epochs a process that is started again gets no place of another one. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/link/link_handshake.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/formation.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, SERVERS = 2, LOG_SIZE = 16384 };

static char host_log[LOG_SIZE];

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    const size_t used = strnlen(host_log, sizeof host_log - 1);
    snprintf(host_log + used, sizeof host_log - used, "%s\n", line);
}

static void set_up(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->join_timeout_ns = 5 * SECOND;
    config->log_level = member == 0 ? TRIB_LOG_WARN : TRIB_LOG_NONE;
    config->log_cb = on_log;
}

static void expect(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

static void a_member_that_dies_is_named(void **state)
{
    (void)state;
    for (uint32_t victim = 1; victim < WORKERS + SERVERS; victim++) {
        sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
        config.tweak = set_up;
        memset(host_log, 0, sizeof host_log);
        const uint32_t absent = victim == 1 ? 2 : 1;
        trib_error error = {.status = TRIB_OK};
        sim_job *job = sim_job_open(&config, &error);
        assert_non_null(job);
        trib_sim_node_regroup(job->members[absent].node, 1);
        (void)sim_job_run(job, SECOND, NULL, NULL);
        char place[32], missing[16];
        snprintf(place, sizeof place, "(n%u:%u)", victim, 1000 + victim);
        snprintf(missing, sizeof missing, "rank %u", absent);
        assert_null(strstr(host_log, place));
        sim_job_kill(job, victim);
        (void)sim_job_run(job, 2 * SECOND, NULL, NULL);
        expect(host_log, "a member that had joined is gone before the job has begun: ");
        expect(host_log, place);
        (void)sim_job_run(job, 8 * SECOND, NULL, NULL);
        assert_true(job->members[0].ready_told);
        assert_int_equal(job->members[0].ready.status, TRIB_JOIN_FAILED);
        expect(job->members[0].ready.text, missing);
        expect(job->members[0].ready.text, "had joined and is gone: ");
        expect(job->members[0].ready.text, place);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
    }
}

static bool all_are_told(sim_job *job, void *argument)
{
    (void)argument;
    bool all = true;
    for (uint32_t i = 0; i < job->member_count; i++) {
        all = all && job->members[i].ready_told;
    }
    return all;
}

/* The answer of the other side is there, and this process has not read it when its own limit passes. */
static void time_that_a_member_missed_ends_no_handshake(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 40 * WORKERS; i++) {
        sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
        config.engine.join_timeout_ns = 100 * SECOND;
        trib_error error = {.status = TRIB_OK};
        sim_job *job = sim_job_open(&config, &error);
        assert_non_null(job);
        (void)sim_job_run(job, (i / WORKERS + 1) * (SECOND / 10000), NULL, NULL);
        trib_sim_process_jump(job->members[i % WORKERS].process, 11 * SECOND);
        assert_true(sim_job_run(job, 30 * SECOND, all_are_told, NULL));
        for (uint32_t k = 0; k < job->member_count; k++) {
            if (job->members[k].ready.status != TRIB_OK) {
                fail_msg("try %u, member %u: %s", i, k, job->members[k].ready.text);
            }
        }
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
    }
}

/* The last process has the rank of the third worker, as if a service manager had started that one again. */
static void is_started_again(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->worker_count = WORKERS;
    config->rank = member == WORKERS ? WORKERS - 1 : config->rank;
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    *(uint32_t *)user += now->status == TRIB_OK;
}

static bool workers_are_ready(sim_job *job, void *unused)
{
    bool are_ready = true;
    (void)unused;
    for (uint32_t i = 0; i < WORKERS; i++) {
        are_ready = are_ready && job->members[i].ready_told && job->members[i].ready.status == TRIB_OK;
    }
    return are_ready;
}

static bool both_are_told(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[WORKERS].ready_told && atomic_load(&job->members[0].engine->phase) == TRIB_PHASE_ENDED;
}

/* One worker dies, and another one is cut off, so that its place is kept for it. A new process with its rank gets
 * neither that place nor its vote: rank 0 is alone, and must end. */
static void no_place_of_another_is_taken(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS + 1, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.tweak = is_started_again;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_process_freeze(job->members[WORKERS].process, true);
    assert_true(sim_job_run(job, 5 * SECOND, workers_are_ready, NULL));
    trib_sim_node_regroup(job->members[WORKERS - 1].node, 1);
    sim_job_kill(job, 1);
    uint32_t passed = 0;
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_int_equal(trib_membership_advance(job->members[0].engine, on_advanced, &passed, &error), TRIB_OK);
    trib_sim_process_freeze(job->members[WORKERS].process, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, both_are_told, NULL));
    assert_int_equal(job->members[WORKERS].ready.status, TRIB_JOIN_FAILED);
    assert_non_null(strstr(job->members[WORKERS].ready.text, "TRIB_RANK=-1"));
    assert_int_equal(passed, 0);
    assert_non_null(strstr(job->members[0].engine->fate.text, "no majority"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void joins(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->worker_count = WORKERS;
    config->rank = member == WORKERS ? -1 : config->rank;
}

/* Returns true if that process had a connection to the coordinator. */
static bool break_joiner(const sim_job *job)
{
    for (trib_link *link = job->members[0].engine->cores[0].host.links; link != NULL; link = link->next) {
        if (link->conn != NULL && link->state == TRIB_LINK_READY && link->purpose == TRIB_PURPOSE_CONTROL &&
            !link->outgoing && link->peer >= WORKERS && link->peer < TRIB_MEMBERS_MAX) {
            link->conn->transport->ops->conn_close(link->conn, false);
            return true;
        }
    }
    return false;
}

static bool is_told(sim_job *job, void *unused)
{
    (void)unused;
    return atomic_load(&job->members[0].engine->phase) == TRIB_PHASE_ENDED;
}

/* One worker dies, and another one is cut off. A process that joins, breaks off and comes again all the while gives
 * that one no more time. */
static void a_joiner_that_comes_and_goes_gives_no_time(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS + 1, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = 2 * SECOND;
    config.tweak = joins;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    assert_true(sim_job_run(job, 5 * SECOND, workers_are_ready, NULL));
    trib_sim_node_regroup(job->members[WORKERS - 1].node, 1);
    sim_job_kill(job, 1);
    uint32_t passed = 0, broken = 0;
    const int64_t killed_ns = trib_sim_now(job->sim);
    (void)sim_job_run(job, killed_ns + SECOND / 2, NULL, NULL);
    assert_int_equal(trib_membership_advance(job->members[0].engine, on_advanced, &passed, &error), TRIB_OK);
    for (int64_t at_ns = SECOND; at_ns < 8 * SECOND && !is_told(job, NULL); at_ns += SECOND) {
        (void)sim_job_run(job, killed_ns + at_ns, is_told, NULL);
        broken += break_joiner(job);
    }
    assert_true(is_told(job, NULL));
    assert_true(broken >= 3);
    assert_non_null(strstr(job->members[0].engine->fate.text, "no majority"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static bool is_epoch_over(sim_job *job, void *unused)
{
    (void)unused;
    return trib_formation_gathers(job->members[0].engine->coordinator);
}

static bool passed_are(sim_job *job, void *argument)
{
    const uint32_t *passed = argument; /* by each worker, and in the last place the number that is awaited */
    (void)job;
    return passed[0] >= passed[WORKERS] && passed[2] >= passed[WORKERS];
}

static void advance(sim_job *job, uint32_t member, uint32_t *passed)
{
    trib_error error;
    assert_int_equal(trib_membership_advance(job->members[member].engine, on_advanced, &passed[member], &error),
                     TRIB_OK);
}

/* A worker stands still while the job gathers, and the others go on without it, so that another one has its rank. It
 * comes back when the job gathers again, before that one: the place is not its own any more. */
static void a_member_of_an_old_epoch_takes_no_place(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = 2 * SECOND;
    sim_job *job = sim_bed_open(&config);
    uint32_t passed[WORKERS + 1] = {[WORKERS] = 1};
    advance(job, 1, passed);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    trib_sim_process_freeze(job->members[1].process, true);
    advance(job, 0, passed);
    advance(job, 2, passed);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, passed_are, passed));
    assert_int_equal(job->members[2].engine->member_id, 1);
    advance(job, 2, passed);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    trib_sim_process_freeze(job->members[2].process, true);
    advance(job, 0, passed);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, is_epoch_over, NULL));
    trib_sim_process_freeze(job->members[1].process, false);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    trib_sim_process_freeze(job->members[2].process, false);
    passed[WORKERS] = 2;
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, passed_are, passed));
    assert_int_equal(passed[1], 0);
    assert_non_null(strstr(job->members[1].engine->fate.text, "TRIB_RANK=-1"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

enum { MANY = 40, CUT_OFF = 17, ATTEMPTS = 16 };

static void logs_at_rank_0(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->log_level = member == 0 ? TRIB_LOG_WARN : TRIB_LOG_NONE;
    config->log_cb = on_log;
}

static bool both_deaths_are_known(sim_job *job, void *unused)
{
    const trib_formation *formation = &job->members[0].engine->formation;
    (void)unused;
    return is_epoch_over(job, NULL) && !formation->expected[MANY - 1] && !formation->expected[MANY - 2];
}

/* Two workers die, and so many of lower ranks are cut off that attempts to reach these hang, more than the coordinator
 * has at a time. The epoch ends with the first death, and the other one is known soon all the same. */
static void members_that_hang_hide_no_death(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(MANY, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.tweak = logs_at_rank_0;
    memset(host_log, 0, sizeof host_log);
    sim_job *job = sim_bed_open(&config);
    job->members[0].engine->env.half_open_max = ATTEMPTS;
    for (uint32_t i = 1; i <= CUT_OFF; i++) {
        trib_sim_node_regroup(job->members[i].node, 1);
    }
    sim_job_kill(job, MANY - 1);
    sim_job_kill(job, MANY - 2);
    /* Its address has to refuse twice, and the others have two turns of a second meanwhile. */
    if (!sim_job_run(job, trib_sim_now(job->sim) + 4 * SECOND, both_deaths_are_known, NULL)) {
        fail_msg("a death is not known: %s", host_log);
    }
    expect(host_log, "its address refuses");
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static bool some_are_half_open(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[0].engine->cores[0].host.half_open != NULL;
}

/* The bound on half-open connections is the environment's, so that a seed does the same wherever it runs. */
static void limits_of_this_process_change_nothing(void **state)
{
    (void)state;
    const sim_job_config config = sim_job_config_default(WORKERS, 0);
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    assert_true(sim_job_run(job, SECOND, some_are_half_open, NULL));
    trib_link_host *host = &job->members[0].engine->cores[0].host;
    const uint32_t more = TRIB_HALF_OPEN_MAX - host->half_open_count - 1;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit few = {.rlim_cur = 8 * TRIB_HALF_OPEN_MIN, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    host->half_open_count += more;
    trib_link_handshake_make_room(host);
    assert_non_null(host->half_open);
    host->half_open_count -= more;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(sim_job_run(job, 30 * SECOND, sim_job_all_ready, NULL));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_member_that_dies_is_named),
        cmocka_unit_test(time_that_a_member_missed_ends_no_handshake),
        cmocka_unit_test(no_place_of_another_is_taken),
        cmocka_unit_test(a_joiner_that_comes_and_goes_gives_no_time),
        cmocka_unit_test(a_member_of_an_old_epoch_takes_no_place),
        cmocka_unit_test(members_that_hang_hide_no_death),
        cmocka_unit_test(limits_of_this_process_change_nothing),
    };
    return cmocka_run_group_tests_name("gathering", tests, NULL, NULL);
}
