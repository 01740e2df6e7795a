/*
 * test_leaving.c - a worker leaves normally while the others need it. All their operations fail with its name, however
 * many wait and whoever else is late, and its last messages arrive.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <ev.h>

#include "engine/core/core.h"
#include "tests/loop/job.h"

enum { WAITING = 300, COUNT = 4 };

static void tweak(trib_config *config, int member)
{
    (void)member;
    config->reactors = 1;
    config->op_timeout_ns = INT64_C(20000000000);
}

/* Long enough for small messages to arrive. The test covers less if they do not. */
static void let_messages_arrive(void)
{
    const struct timespec time = {.tv_nsec = 300000000};
    nanosleep(&time, NULL);
}

static void must_name(trib_op *op, const char *who)
{
    trib_error error = {.status = TRIB_OK};
    const trib_status status = job_wait(op, &error);
    if (status != TRIB_PEER_LEFT || strstr(error.text, who) == NULL) {
        fail_msg("%s: %s", trib_status_name(status), error.text);
    }
}

/* More operations wait than one stall notice can name. */
static void however_many_wait(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 3, 1, tweak);
    static float data[2][WAITING][COUNT];
    static trib_op *ops[2][WAITING];
    for (int i = 0; i < WAITING; i++) {
        for (int rank = 0; rank < 2; rank++) {
            char name[32];
            snprintf(name, sizeof name, "tensor %d", i);
            trib_tensor *tensor = job_declare(jobs.engines[rank], name, TRIB_FLOAT32, COUNT);
            ops[rank][i] = job_push_pull(jobs.engines[rank], tensor, data[rank][i], data[rank][i], TRIB_SUM);
        }
    }
    trib_engine_close(jobs.engines[2], NULL, NULL);
    for (int i = 0; i < WAITING; i++) {
        must_name(ops[0][i], "rank 2 ");
        must_name(ops[1][i], "rank 2 ");
    }
    job_close(&jobs);
}

/* A worker with a lower rank is late meanwhile. Later rounds fail for the same reason as the first. */
static void whoever_else_is_late(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 3, 1, tweak);
    float data[2][COUNT] = {{0}};
    trib_tensor *tensors[2];
    for (int rank = 0; rank < 2; rank++) {
        tensors[rank] = job_declare(jobs.engines[rank], "t", TRIB_FLOAT32, COUNT);
    }
    trib_engine_close(jobs.engines[2], NULL, NULL);
    for (int rank = 0; rank < 2; rank++) {
        for (int round = 0; round < 4; round++) {
            must_name(job_push_pull(jobs.engines[rank], tensors[rank], data[rank], data[rank], TRIB_SUM), "rank 2 ");
        }
    }
    job_close(&jobs);
}

static void only_servers_sum(trib_config *config, int member)
{
    tweak(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

/* A server leaves. Operations that start afterwards fail with its name. */
static void a_server_has_left(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, only_servers_sum);
    float data[2][COUNT] = {{0}};
    trib_tensor *tensors[2];
    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        tensors[rank] = job_declare(jobs.engines[rank], "t", TRIB_FLOAT32, COUNT);
        ops[rank] = job_push_pull(jobs.engines[rank], tensors[rank], data[rank], data[rank], TRIB_SUM);
    }
    assert_int_equal(job_wait(ops[0], NULL), TRIB_OK);
    assert_int_equal(job_wait(ops[1], NULL), TRIB_OK);
    trib_engine_close(jobs.engines[2], NULL, NULL);
    let_messages_arrive();
    for (int rank = 0; rank < 2; rank++) {
        must_name(job_push_pull(jobs.engines[rank], tensors[rank], data[rank], data[rank], TRIB_SUM), "server 0 (");
    }
    job_close(&jobs);
}

/* Rank stays waits for rank leaves, at the server of a rank that has contributed and is closing. */
static void run_closing_server(int closes, int stays, int leaves)
{
    job jobs;
    job_open(&jobs, 3, 0, tweak);
    enum { TENSORS = 12 };
    float data[3][TENSORS][COUNT] = {{{0}}};
    trib_op *ops[3][TENSORS];
    char who[16];
    snprintf(who, sizeof who, "rank %d ", leaves);
    for (int i = 0; i < TENSORS; i++) {
        for (int rank = 0; rank < 3; rank++) {
            char name[32];
            snprintf(name, sizeof name, "tensor %d", i);
            if (rank != leaves) {
                trib_tensor *tensor = job_declare(jobs.engines[rank], name, TRIB_FLOAT32, COUNT);
                ops[rank][i] = job_push_pull(jobs.engines[rank], tensor, data[rank][i], data[rank][i], TRIB_SUM);
            }
        }
    }
    job_await_contributed(jobs.engines[closes]);
    job_await_contributed(jobs.engines[stays]);
    trib_engine_close(jobs.engines[closes], NULL, NULL);
    let_messages_arrive();
    trib_engine_close(jobs.engines[leaves], NULL, NULL);
    for (int i = 0; i < TENSORS; i++) {
        must_name(ops[stays][i], who);
        assert_int_equal(job_wait(ops[closes][i], NULL), TRIB_CLOSED);
    }
    job_close(&jobs);
}

static void at_a_server_that_closes(void **state)
{
    (void)state;
    run_closing_server(1, 0, 2);
    run_closing_server(0, 1, 2);
    run_closing_server(2, 0, 1);
}

/* ---- Last messages ---- */

static void note_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    assert_int_equal(error->status, TRIB_OK);
    *(bool *)user = true;
}

static void note_closed(trib_engine *engine, void *user)
{
    (void)engine;
    atomic_store((atomic_bool *)user, true);
}

/* Both members have two addresses. Rank 0 runs on the caller's loop. */
static trib_engine *open_one(int rank, const char *coordinator, struct ev_loop *loop, bool *is_ready)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = rank;
    config.worker_count = 2;
    config.coordinator = coordinator;
    config.listen = "127.0.0.1,127.0.0.2";
    config.token = "a secret of the tests, long enough";
    config.transport = "tcp";
    config.reactors = 1;
    config.log_level = TRIB_LOG_NONE;
    config.mode = loop != NULL ? TRIB_MODE_ATTACHED : TRIB_MODE_THREADS;
    config.loop = loop;
    config.ready_cb = loop != NULL ? note_ready : NULL;
    config.ready_user = is_ready;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return engine;
}

static bool answers(const char *address)
{
    const char *colon = strchr(address, ':');
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_there = connect(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return is_there;
}

/* Rank 1 closes while rank 0, whose loop does not run, acknowledges nothing. Rank 1 still listens, because its last
 * messages may need a connection by the other address. */
static void closing_member_listens_until_its_links_end(void **state)
{
    (void)state;
    char coordinator[32];
    job_free_address(coordinator, sizeof coordinator);
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    bool is_ready = false;
    atomic_bool is_closed = false;
    trib_engine *stays = open_one(0, coordinator, loop, &is_ready), *leaves = open_one(1, coordinator, NULL, NULL);
    while (!is_ready || trib_engine_wait_ready(leaves, 0, NULL) != TRIB_OK) {
        ev_run(loop, EVRUN_NOWAIT);
    }
    const char *address = leaves->cores[0].host.address.text;
    assert_non_null(strchr(address, ','));
    trib_engine_close(leaves, note_closed, &is_closed);
    let_messages_arrive();
    assert_true(!atomic_load(&is_closed) && answers(address));
    while (!atomic_load(&is_closed)) {
        ev_run(loop, EVRUN_NOWAIT);
    }
    assert_false(answers(address));
    assert_int_equal(trib_engine_destroy(leaves), TRIB_OK);
    assert_int_equal(trib_engine_destroy(stays), TRIB_OK);
    ev_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(however_many_wait),
        cmocka_unit_test(whoever_else_is_late),
        cmocka_unit_test(a_server_has_left),
        cmocka_unit_test(at_a_server_that_closes),
        cmocka_unit_test(closing_member_listens_until_its_links_end),
    };
    return cmocka_run_group_tests_name("leaving", tests, NULL, NULL);
}
