/* test_gathering.c - a member that joins and dies while the job gathers is logged at once, and is named when the join
 * deadline passes without it. */
#include <stdio.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_member_that_dies_is_named),
    };
    return cmocka_run_group_tests_name("gathering", tests, NULL, NULL);
}
