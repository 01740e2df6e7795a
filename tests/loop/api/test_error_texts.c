/* test_error_texts.c - the error texts of failures name the right member, or all members that may be the cause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>
#include <ev.h>

#include "engine/job/job.h"
#include "tests/loop/job.h"

static void must_say(const char *text, const char *what)
{
    if (strstr(text, what) == NULL) {
        fail_msg("\"%s\" is not in: %s", what, text);
    }
}

/* The deadline passes before the server reports whose contribution is missing. The server alone can be named, but it
 * need not be the cause. */
static void a_deadline_too_short_for_blame(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    float data[16] = {0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT32, 16);
    (void)job_declare(jobs.engines[1], "t", TRIB_FLOAT32, 16);
    params.input = params.output = data;
    params.timeout_ns = 250 * INT64_C(1000000);
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_TIMEOUT);
    must_say(error.text, "waiting for ");
    must_say(error.text, ", or for a worker whose contribution it lacked");
    job_close(&jobs);
}

typedef struct fate {
    int ready;
    trib_error ended;
} fate;

static void note_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    ((fate *)user)->ready += error->status == TRIB_OK;
}

static void note_ended(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    ((fate *)user)->ended = *error;
}

static trib_engine *join(const char *coordinator, int rank, struct ev_loop *loop, fate *mine, int64_t peer_timeout_ns)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = rank;
    config.worker_count = 2;
    config.coordinator = coordinator;
    config.reactors = 1;
    config.peer_timeout_ns = peer_timeout_ns;
    config.log_level = TRIB_LOG_NONE;
    config.mode = loop != NULL ? TRIB_MODE_ATTACHED : TRIB_MODE_THREADS;
    config.loop = loop;
    config.ready_cb = loop != NULL ? note_ready : NULL;
    config.ready_user = mine;
    config.ended_cb = loop != NULL ? note_ended : NULL;
    config.ended_user = mine;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    return engine;
}

/* A job of a member on this thread's loop, and of another one that has an operation. */
typedef struct couple {
    struct ev_loop *loop;
    fate mine;
    trib_engine *engines[2], *other;
    trib_op *op;
    float data[16];
} couple;

static void couple_close(couple *self)
{
    assert_int_equal(trib_engine_destroy(self->other), TRIB_OK);
    assert_int_equal(trib_engine_destroy(self->engines[self->other == self->engines[0]]), TRIB_OK);
    ev_loop_destroy(self->loop);
}

/* Runs the loop until the job has formed. A machine that stands still for as long as the peer timeout loses a member
 * before, and gets a longer one. */
static void couple_open(couple *self, int mine)
{
    for (int64_t peer_timeout_ns = 500 * INT64_C(1000000);; peer_timeout_ns *= 2) {
        assert_true(peer_timeout_ns < 30 * INT64_C(1000000000));
        char address[32];
        job_free_address(address, sizeof address);
        *self = (couple){.loop = ev_loop_new(EVFLAG_AUTO)};
        for (int rank = 0; rank < 2; rank++) {
            self->engines[rank] = join(address, rank, rank == mine ? self->loop : NULL, &self->mine, peer_timeout_ns);
        }
        self->other = self->engines[1 - mine];
        self->op = job_push_pull(self->other, job_declare(self->other, "t", TRIB_FLOAT32, 16), self->data, self->data,
                                 TRIB_SUM);
        while (self->mine.ready == 0 && self->mine.ended.status == TRIB_OK) {
            ev_run(self->loop, EVRUN_ONCE);
        }
        if (self->mine.ready > 0) {
            return;
        }
        trib_op_release(self->op);
        couple_close(self);
    }
}

/* A member whose loop is busy for too long is lost. The others read its name, and its own text names this process. */
static void a_loop_that_was_kept_busy(void **state)
{
    (void)state;
    couple self;
    couple_open(&self, 1);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(self.op, &error), TRIB_PEER_LOST); /* this thread does not run its loop meanwhile */
    must_say(error.text, "lost ");
    must_say(error.text, "rank 1 (");
    must_say(error.text, "or kept busy by a callback");
    while (self.mine.ended.status == TRIB_OK) {
        ev_run(self.loop, EVRUN_ONCE);
    }
    assert_int_equal(self.mine.ended.status, TRIB_PEER_LOST);
    must_say(self.mine.ended.text, "this process, rank 1 (");
    couple_close(&self);
}

/* The coordinator's process stands still. The text names it, and says that rank 0 runs there. */
static void a_coordinator_that_stands_still(void **state)
{
    (void)state;
    couple self;
    couple_open(&self, 0);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(self.op, &error), TRIB_PEER_LOST); /* this thread does not run its loop meanwhile */
    must_say(error.text, "lost ");
    must_say(error.text, "rank 0 (");
    must_say(error.text, ", which keeps the membership at 127.0.0.1:");
    must_say(error.text, "or kept busy by a callback");
    couple_close(&self);
}

static void note_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    snprintf((char *)user, 512, "%s", line);
}

/* The status alone does not say which resource is short. The limit that the test sets is never reached. */
static void memory_that_is_not_there(void **state)
{
    (void)state;
    char line[512] = "";
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.reactors = 1;
    config.log_cb = note_line;
    config.log_user = line;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    void *memory = NULL;
    struct rlimit limit = {0};
    assert_int_equal(getrlimit(RLIMIT_DATA, &limit), 0);
    for (int limited = 0; limited < 2; limited++) {
        const rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limited ? (rlim_t)1 << 60 : before;
        assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
        assert_int_equal(trib_alloc(engine, (size_t)1 << 60, &memory), TRIB_NO_MEMORY);
        limit.rlim_cur = before;
        assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
        must_say(line, "trib_alloc: no memory for 1152921504606846976 bytes: ");
        must_say(line, limited ? "1099511627776 MiB of data (ulimit -d)" : "ulimit -v");
    }
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

/* ---- Before the job has formed ---- */

static trib_engine *join_alone(const char *coordinator, int rank, int64_t join_timeout_ns)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = rank;
    config.worker_count = 3;
    config.server_count = 2;
    config.coordinator = coordinator;
    config.reactors = 1;
    config.join_timeout_ns = join_timeout_ns;
    config.log_level = TRIB_LOG_NONE;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    return engine;
}

/* A caller that waits for the engine to be ready reads in the end which members are missing. */
static void await_text(trib_engine *engine, const char *what)
{
    trib_error error = {.text = ""};
    while (strstr(error.text, what) == NULL) {
        assert_int_equal(trib_engine_wait_ready(engine, 10 * INT64_C(1000000), &error), TRIB_TIMEOUT);
        must_say(error.text, "not come together yet");
    }
}

static void rank_0_knows_who_is_missing(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_engine *engine = join_alone(address, 0, 0);
    await_text(engine, "missing rank 1, rank 2 and 2 of 2 servers");
    float data[16] = {0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(engine, "t", TRIB_FLOAT32, 16);
    params.input = params.output = data;
    params.timeout_ns = 20 * INT64_C(1000000);
    trib_op *op = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_push_pull(engine, &params, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_TIMEOUT);
    must_say(error.text, "missing rank 1, rank 2 and 2 of 2 servers");
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

/* A machine that stands still for the whole time to join has not reached its own coordinator, and gets more time. */
static void who_is_missing_ends_a_join(void **state)
{
    (void)state;
    trib_error error = {.text = "could not reach"};
    for (int64_t limit_ns = 300 * INT64_C(1000000); strstr(error.text, "could not reach") != NULL; limit_ns *= 2) {
        assert_true(limit_ns < 60 * INT64_C(1000000000));
        char address[32];
        job_free_address(address, sizeof address);
        trib_engine *engine = join_alone(address, 0, limit_ns);
        assert_int_equal(trib_engine_wait_ready(engine, -1, &error), TRIB_JOIN_FAILED);
        assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    }
    must_say(error.text, "missing rank 1, rank 2 and 2 of 2 servers");
    assert_null(strstr(error.text, "("));
}

static void others_know_why_it_is_not_reached(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_engine *engine = join_alone(address, 1, 0);
    await_text(engine, "Connection refused");
    trib_engine *first = join_alone(address, 0, 0);
    await_text(engine, "is reached, and waits for others");
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_int_equal(trib_engine_destroy(first), TRIB_OK);
}

/* ---- Numbers of servers ---- */

static const int32_t *asked; /* the numbers that the servers ask for, in turn */

static void ask(trib_config *config, int member)
{
    config->reactors = 1;
    config->rank = member == 0 ? 0 : asked[member - 1];
}

/* A server gets the number it asks for, so a launcher and the job agree on its name. A number out of range or already
 * taken is no error. */
static void servers_have_the_numbers_that_they_ask_for(void **state)
{
    (void)state;
    enum { SERVERS = 4 };
    static const int32_t wishes[][SERVERS] = {{3, 2, 1, 0}, {0, 1, 2, 3}, {2, 0, 3, 1}, {1, 1, 1, 1}, {-1, 4, -1, 9}};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        asked = wishes[i];
        job jobs;
        job_open(&jobs, 1, SERVERS, ask);
        unsigned seen = 0;
        for (int k = 0; k < SERVERS; k++) {
            const uint32_t number = jobs.engines[1 + k]->member_id - 1;
            assert_true(i >= 3 || number == (uint32_t)asked[k]);
            assert_true(number < SERVERS);
            seen |= 1u << number;
        }
        assert_int_equal(seen, (1u << SERVERS) - 1);
        job_close(&jobs);
    }
}

/* A server without a count serves any job. A server with another count is rejected, and the text gives both counts. */
static void servers_are_told_the_right_count_or_none(void **state)
{
    (void)state;
    static const int32_t told[] = {2, 0, 1};
    char address[32];
    job_free_address(address, sizeof address);
    trib_engine *engines[3], *worker = NULL;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.coordinator = address;
    config.reactors = 1;
    config.server_count = 1;
    config.log_level = TRIB_LOG_NONE;
    assert_int_equal(trib_engine_create(&config, &worker, NULL), TRIB_OK);
    config.roles = TRIB_ROLE_SERVER;
    config.rank = -1;
    for (int i = 0; i < 3; i++) {
        trib_error error = {.text = ""};
        config.server_count = told[i];
        assert_int_equal(trib_engine_create(&config, &engines[i], NULL), TRIB_OK);
        assert_int_equal(trib_engine_wait_ready(engines[i], -1, &error), i == 1 ? TRIB_OK : TRIB_JOIN_FAILED);
        if (i == 0) {
            must_say(error.text, "server ");
            must_say(error.text, "expects 1 workers and 2 servers, the coordinator 1 and 1: start all with the same");
        }
    }
    assert_int_equal(trib_engine_wait_ready(worker, -1, NULL), TRIB_OK);
    assert_int_equal(trib_engine_destroy(worker), TRIB_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(trib_engine_destroy(engines[i]), TRIB_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_too_short_for_blame),
        cmocka_unit_test(a_coordinator_that_stands_still),
        cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(a_loop_that_was_kept_busy),
        cmocka_unit_test(rank_0_knows_who_is_missing),
        cmocka_unit_test(who_is_missing_ends_a_join),
        cmocka_unit_test(others_know_why_it_is_not_reached),
        cmocka_unit_test(servers_have_the_numbers_that_they_ask_for),
        cmocka_unit_test(servers_are_told_the_right_count_or_none),
    };
    return cmocka_run_group_tests_name("texts", tests, NULL, NULL);
}
