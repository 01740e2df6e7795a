/* test_stall.c - every worker says in its log which ranks a stalled operation waits for: after 30 s, and again at twice
 * the age; and nothing when the next one goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 4, WORKERS_MAX = 9, COUNT = 1000, LOG_SIZE = 8192 };

static char logs[WORKERS_MAX + 2][LOG_SIZE];

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    char *text = user;
    const size_t used = strnlen(text, LOG_SIZE - 1);
    snprintf(text + used, LOG_SIZE - used, "%s\n", line);
}

static void listen_to_log(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->log_level = TRIB_LOG_WARN;
    config->log_cb = on_log;
    config->log_user = logs[member];
    config->op_timeout_ns = -1;
}

static uint32_t count_stalls(const char *log)
{
    uint32_t count = 0;
    for (const char *at = log; (at = strstr(at, "stalled for ")) != NULL; at++) {
        count++;
    }
    return count;
}

typedef struct stall {
    uint32_t workers, servers, reactors;
    uint32_t per_machine;   /* 0: workers of a machine do not sum first */
    uint32_t group_members; /* ranks below it are a group, whose tensor it is; 0: no group */
    uint32_t late;          /* a bit for each rank that comes late */
    const char *words;      /* in the logs of all others */
} stall;

static bool is_late(const stall *what, uint32_t rank)
{
    return (what->late >> rank & 1) != 0;
}

static uint32_t members_of(const stall *what)
{
    return what->group_members > 0 ? what->group_members : what->workers;
}

static void submit(sim_job *job, const stall *what, uint32_t rank, exchange *of_rank)
{
    const int32_t ranks[] = {0, 1, 2, 3};
    trib_group_desc group;
    trib_group_desc_init(&group, sizeof group);
    group.name = "group";
    group.ranks = ranks;
    group.rank_count = what->group_members;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "weights of layer 7";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = of_rank->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = of_rank;
    trib_engine *engine = job->members[rank].engine;
    if (what->group_members > 0) {
        assert_int_equal(trib_group_create(engine, &group, &desc.group, NULL), TRIB_OK);
    }
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, NULL), TRIB_OK);
    assert_int_equal(trib_push_pull(engine, &params, NULL, NULL), TRIB_OK);
}

static void watch_logs(sim_job *job, const stall *what)
{
    const int64_t from_ns = trib_sim_now(job->sim);
    const uint32_t expected[] = {0, 1, 2, 2, 2, 3}; /* after 22 s, 44 s, ... */
    for (uint32_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        (void)sim_job_run(job, from_ns + (int64_t)(i + 1) * 22 * SECOND, NULL, NULL);
        for (uint32_t rank = 0; rank < members_of(what); rank++) {
            if (count_stalls(logs[rank]) != (is_late(what, rank) ? 0 : expected[i])) {
                fail_msg("after %u s, rank %u: %s", (i + 1) * 22, rank, logs[rank]);
            }
        }
    }
    for (uint32_t rank = 0; rank < members_of(what); rank++) {
        if (!is_late(what, rank) &&
            (strstr(logs[rank], what->words) == NULL || strstr(logs[rank], "\"weights of layer 7\"") == NULL)) {
            fail_msg("rank %u: \"%s\" is not in: %s", rank, what->words, logs[rank]);
        }
    }
}

static void run(stall what)
{
    memset(logs, 0, sizeof logs);
    sim_job_config config = sim_job_config_default(what.workers, what.servers);
    config.engine.reactors = (int32_t)what.reactors;
    config.per_machine = what.per_machine;
    config.tweak = listen_to_log;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS_MAX] = {{0}};
    for (uint32_t rank = 0; rank < members_of(&what); rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        if (!is_late(&what, rank)) {
            submit(job, &what, rank, &exchanges[rank]);
        }
    }
    watch_logs(job, &what);
    for (uint32_t rank = 0; rank < members_of(&what); rank++) {
        if (is_late(&what, rank)) {
            submit(job, &what, rank, &exchanges[rank]);
        }
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + 300 * SECOND, NULL, NULL);
    for (uint32_t rank = 0; rank < members_of(&what); rank++) {
        assert_true(exchanges[rank].done);
        free(exchanges[rank].buffer);
    }
    assert_int_equal(count_stalls(logs[0]), 3);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

static void one_rank_is_missing(void **state)
{
    (void)state;
    const char *words = "lacked the contribution of rank 3 (n3:1003)\n";
    run((stall){.workers = 4, .reactors = 1, .late = 1u << 3, .words = words});
    run((stall){.workers = 4, .servers = 1, .reactors = 3, .late = 1u << 3, .words = words});
}

static void several_ranks_are_missing(void **state)
{
    (void)state;
    run((stall){.workers = 4,
                .servers = 1,
                .reactors = 1,
                .late = 1u << 2 | 1u << 3,
                .words = "lacked the contribution of rank 2 (n2:1002) and of rank 3 (2 of 4)\n"});
    run((stall){.workers = 9,
                .servers = 2,
                .reactors = 2,
                .late = 0x1dau,
                .words = "lacked the contribution of rank 1 (n1:1001) and of ranks 3, 4, 6 to 8 (6 of 9)\n"});
    run((stall){.workers = 5,
                .reactors = 1,
                .group_members = 4,
                .late = 1u << 1 | 1u << 3,
                .words = "lacked the contribution of rank 1 (n1:1001) and of rank 3 (2 of 4)\n"});
}

/* A machine that has contributed in part tells which of its workers are missing; one that has not lacks all. */
static void ranks_of_machines_are_missing(void **state)
{
    (void)state;
    run((stall){.workers = 4,
                .reactors = 1,
                .per_machine = 2,
                .late = 1u << 2 | 1u << 3,
                .words = "lacked the contribution of rank 3 (n2:1003) and of rank 2 (2 of 4)\n"});
    run((stall){.workers = 4,
                .reactors = 1,
                .per_machine = 2,
                .late = 1u << 2,
                .words = "lacked the contribution of rank 2 (n2:1002)\n"});
    run((stall){.workers = 4,
                .reactors = 1,
                .per_machine = 4,
                .late = 1u << 1 | 1u << 3,
                .words = "lacked the contribution of rank 1 (n0:1001) and of rank 3 (2 of 4)\n"});
}

/* A name that fills an error text is cut in the middle, and leaves room for the missing ranks. */
static void a_long_name_hides_nothing(void **state)
{
    (void)state;
    char name[TRIB_TENSOR_NAME_MAX + 1];
    memset(name, 'x', sizeof name - 1);
    memcpy(name + sizeof name - 8, ".weight", 8);
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.op_timeout_ns = SECOND;
    sim_job *job = sim_bed_open(&config);
    exchange what = {.buffer = calloc(COUNT, sizeof(int32_t))};
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = sim_bed_declare(job, 0, name, COUNT);
    params.input = params.output = what.buffer;
    trib_op *op = NULL;
    assert_int_equal(trib_push_pull(job->members[0].engine, &params, &op, &error), TRIB_OK);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 3 * SECOND, NULL, NULL);
    assert_int_equal(trib_op_wait(op, 0, &error), TRIB_TIMEOUT);
    trib_op_release(op);
    if (strstr(error.text, "...xxx") == NULL || strstr(error.text, ".weight\": ") == NULL ||
        strstr(error.text, "lacked the contribution of rank 1 (n1:1001) and of ranks 2, 3 (3 of 4)") == NULL) {
        fail_msg("%s", error.text);
    }
    free(what.buffer);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

static void may_lose_workers(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    listen_to_log(job, member, config, link);
    config->survive = TRIB_SURVIVE_WORKERS;
}

static void on_advanced(trib_engine *engine, const trib_membership *membership, void *user)
{
    (void)engine;
    (void)membership;
    *(uint32_t *)user += 1;
}

/* A worker is lost, and the program of another one does not go on: the coordinator says whose. */
static void a_program_does_not_advance(void **state)
{
    (void)state;
    memset(logs, 0, sizeof logs);
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.tweak = may_lose_workers;
    sim_job *job = sim_bed_open(&config);
    uint32_t advanced = 0;
    sim_job_kill(job, 3);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        if (rank == 2) {
            (void)sim_job_run(job, trib_sim_now(job->sim) + 25 * SECOND, NULL, NULL);
            assert_int_equal(count_stalls(logs[0]), 0);
            (void)sim_job_run(job, trib_sim_now(job->sim) + 15 * SECOND, NULL, NULL);
            assert_int_equal(advanced, 0);
            assert_int_equal(count_stalls(logs[0]), 1);
            assert_non_null(strstr(logs[0], "lacks trib_membership_advance of rank 2 (n2:1002)"));
        }
        assert_int_equal(trib_membership_advance(job->members[rank].engine, on_advanced, &advanced, NULL), TRIB_OK);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, NULL, NULL);
    assert_int_equal(advanced, 3);
    assert_int_equal(count_stalls(logs[0]), 1);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_missing),           cmocka_unit_test(several_ranks_are_missing),
        cmocka_unit_test(ranks_of_machines_are_missing), cmocka_unit_test(a_long_name_hides_nothing),
        cmocka_unit_test(a_program_does_not_advance),
    };
    return cmocka_run_group_tests_name("stalls", tests, NULL, NULL);
}
