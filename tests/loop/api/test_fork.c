/* test_fork.c - a process with engines forks, and the child lives on without exec: the parent and its peers are as
 * without it, and the child's copies of the engines do nothing. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <ev.h>

#include "tests/loop/job.h"

enum { COUNT = 1000, GUARD_S = 60 /* ends a child that hangs */ };

#define SECOND_NS INT64_C(1000000000)

static void fill(trib_config *config, const char *address, int rank)
{
    trib_config_init(config, sizeof *config);
    config->rank = rank;
    config->worker_count = 2;
    config->coordinator = address;
    config->reactors = 1;
    config->pin = false;
    config->join_timeout_ns = 20 * SECOND_NS;
    config->op_timeout_ns = 30 * SECOND_NS;
    config->log_level = TRIB_LOG_NONE;
}

static trib_engine *make(const char *address, int rank)
{
    trib_config config;
    fill(&config, address, rank);
    trib_error error = {.status = TRIB_OK};
    trib_engine *engine = NULL;
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("rank %d: %s", rank, error.text);
    }
    return engine;
}

/* Both ranks are in this process and compute one sum. */
static void sum(trib_engine *engines[2])
{
    static float data[2][COUNT];
    trib_op *ops[2];
    for (int i = 0; i < 2; i++) {
        data[i][COUNT - 1] = (float)(i + 1);
        ops[i] =
            job_push_pull(engines[i], job_declare(engines[i], "sum", TRIB_FLOAT32, COUNT), data[i], data[i], TRIB_SUM);
    }
    for (int i = 0; i < 2; i++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(ops[i], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_true(data[i][COUNT - 1] == 3.0f);
    }
}

/* Takes no memory: in a child, one of the parent's threads may have had the lock of a sanitizer's allocator. */
static uint32_t sockets_open(void)
{
    enum { FDS = 1024 }; /* far more than the test has */
    uint32_t count = 0;
    for (int fd = 0; fd < FDS; fd++) {
        struct stat about;
        count += fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
    }
    return count;
}

static int end_of(pid_t child)
{
    int how = 0;
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(how)) {
        print_message("# the child ended by signal %d\n", WTERMSIG(how));
    }
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

/* ---- The parent goes on ---- */

/* The child gets its own copy of memory that other processes may map, as of all other memory. */
static void writes_to_memory_of_its_own(void **state)
{
    (void)state;
    enum { BYTES = 3 << 20, STEP = 4096 };
    char address[32];
    job_free_address(address, sizeof address);
    trib_engine *engines[2] = {make(address, 0), make(address, 1)};
    void *memory[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trib_alloc(engines[i], BYTES, &memory[i]), TRIB_OK);
        memset(memory[i], i + 1, BYTES);
    }
    sum(engines);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool is_same = true;
        for (int i = 0; i < 2; i++) {
            unsigned char *bytes = memory[i];
            for (int at = 0; at < BYTES; at += STEP) {
                is_same = is_same && bytes[at] == i + 1;
                bytes[at] = 77;
            }
        }
        _exit(is_same ? 0 : 1);
    }
    assert_int_equal(end_of(child), 0);
    for (int i = 0; i < 2; i++) {
        const unsigned char *bytes = memory[i];
        for (int at = 0; at < BYTES; at += STEP) {
            assert_int_equal(bytes[at], i + 1);
        }
        trib_free(engines[i], memory[i]);
    }
    sum(engines);
    for (int i = 0; i < 2; i++) {
        trib_engine_close(engines[i], NULL, NULL);
    }
    for (int i = 0; i < 2; i++) {
        trib_engine_destroy(engines[i]);
    }
}

static void engine_restarts_at_its_address(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    const uint32_t before = sockets_open(); /* includes the socket that reserves the address */
    trib_engine *engines[2] = {make(address, 0), make(address, 1)};
    sum(engines);
    int until[2];
    assert_int_equal(pipe(until), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* the child acts like a data loader: it computes and never calls the engine */
        char none;
        alarm(GUARD_S);
        close(until[1]);
        const bool clean = sockets_open() == before;
        _exit(read(until[0], &none, 1) == 0 && clean ? 0 : 1);
    }
    close(until[0]);
    for (int again = 0; again < 2; again++) {
        sum(engines);
        for (int i = 0; i < 2; i++) {
            trib_engine_close(engines[i], NULL, NULL);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(trib_engine_destroy(engines[i]), TRIB_OK);
            engines[i] = NULL;
        }
        for (int i = 0; again == 0 && i < 2; i++) {
            engines[i] = make(address, i);
        }
    }
    close(until[1]);
    assert_int_equal(end_of(child), 0);
}

/* ---- The child's calls ---- */

static int failures;

static void expect(bool is_true, const char *what)
{
    if (!is_true) {
        fprintf(stderr, "in the child: %s\n", what);
        failures++;
    }
}

#define EXPECT(condition) expect((condition), #condition)
#define EXPECT_FOREIGN(call)                                                                                           \
    do {                                                                                                               \
        error.text[0] = '\0';                                                                                          \
        expect((call) == TRIB_STATE && strstr(error.text, "forked") != NULL, #call);                                   \
    } while (0)

static void call_everything(trib_engine *engine, trib_tensor *tensor, trib_op *op, void *memory)
{
    trib_error error = {.status = TRIB_OK};
    float data[COUNT] = {0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "another";
    trib_tensor *another = NULL;
    EXPECT_FOREIGN(trib_engine_wait_ready(engine, -1, &error));
    EXPECT_FOREIGN(trib_tensor_declare(engine, &desc, &another, &error));
    EXPECT_FOREIGN(trib_push_pull(engine, &params, NULL, &error));
    EXPECT_FOREIGN(trib_broadcast(engine, &params, NULL, &error));
    EXPECT_FOREIGN(trib_barrier(engine, NULL, NULL, &error));
    EXPECT_FOREIGN(trib_op_wait(op, -1, &error));
    EXPECT_FOREIGN(trib_op_stream_wait(op, NULL, &error));
    EXPECT_FOREIGN(trib_memory_register(engine, data, sizeof data, &error));
    EXPECT_FOREIGN(trib_memory_unregister(engine, data, &error));
    EXPECT_FOREIGN(trib_trace_start(engine, 0, &error));
    EXPECT_FOREIGN(trib_trace_write(engine, "never", &error));
    trib_stats stats = {.struct_size = sizeof stats};
    trib_engine_info info = {.struct_size = sizeof info};
    size_t count = 0;
    void *more = NULL;
    EXPECT(trib_op_status(op) == TRIB_STATE);
    EXPECT(trib_engine_get_stats(engine, &stats) == TRIB_STATE);
    EXPECT(trib_engine_get_info(engine, &info) == TRIB_STATE);
    EXPECT(trib_engine_waiting(engine, NULL, 0, &count) == TRIB_STATE);
    EXPECT(trib_alloc(engine, 4096, &more) == TRIB_STATE);
    EXPECT(trib_engine_get_fd(engine) == -1);
    EXPECT(trib_engine_dispatch(engine, 0) == 0);
    trib_op_cancel(op);
    trib_op_release(op);
    trib_free(engine, memory);
    trib_trace_stop(engine);
    trib_engine_close(engine, NULL, NULL);
    EXPECT(trib_engine_destroy(engine) == TRIB_OK);
}

/* The sanitizers keep locks that other threads may have held at the fork, so under one a child must not create
 * threads. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CHILD_MAKES_ENGINES 1
#else
#define CHILD_MAKES_ENGINES 0
#endif

#if CHILD_MAKES_ENGINES
static void sum_alone(void)
{
    char address[32];
    trib_config config;
    job_free_address(address, sizeof address);
    fill(&config, address, 0);
    config.worker_count = 1;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    float data[COUNT] = {1};
    EXPECT(trib_engine_create(&config, &engine, &error) == TRIB_OK);
    trib_tensor *tensor = job_declare(engine, "alone", TRIB_FLOAT32, COUNT);
    EXPECT(job_wait(job_push_pull(engine, tensor, data, data, TRIB_SUM), &error) == TRIB_OK);
    EXPECT(trib_engine_destroy(engine) == TRIB_OK);
}
#endif

static void answers_in_the_child(void **state)
{
    const trib_mode mode = (trib_mode)(uintptr_t)*state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    fill(&config, address, 0);
    config.mode = mode;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    trib_tensor *tensor = job_declare(engine, "waits", TRIB_FLOAT32, COUNT);
    float data[COUNT] = {0};
    trib_op *op = job_push_pull(engine, tensor, data, data, TRIB_SUM); /* rank 1 has not joined */
    void *memory = NULL;
    assert_int_equal(trib_alloc(engine, 4096, &memory), TRIB_OK);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(GUARD_S);
        call_everything(engine, tensor, op, memory);
#if CHILD_MAKES_ENGINES
        sum_alone();
#endif
        _exit(failures);
    }
    assert_int_equal(end_of(child), 0);
    assert_int_equal(trib_op_status(op), TRIB_PENDING);
    trib_op_release(op);
    trib_free(engine, memory);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void host_ready(struct ev_loop *loop, ev_io *watcher, int events)
{
    (void)events;
    char byte;
    EXPECT(read(watcher->fd, &byte, 1) == 1);
    ev_break(loop, EVBREAK_ALL);
}

static void a_host_loop_in_the_child(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    assert_non_null(loop);
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    fill(&config, address, 0);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = loop;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    int mine[2];
    assert_int_equal(pipe(mine), 0);
    ev_io watcher;
    ev_io_init(&watcher, host_ready, mine[0], EV_READ);
    ev_io_start(loop, &watcher);
    ev_run(loop, EVRUN_NOWAIT);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* the host's own watchers go on */
        alarm(GUARD_S);
        ev_loop_fork(loop);
        EXPECT(trib_engine_destroy(engine) == TRIB_OK);
        for (int i = 0; i < 10; i++) {
            ev_run(loop, EVRUN_NOWAIT);
        }
        EXPECT(write(mine[1], "", 1) == 1);
        ev_run(loop, 0);
        _exit(failures);
    }
    assert_int_equal(end_of(child), 0);
    ev_io_stop(loop, &watcher);
    close(mine[0]);
    close(mine[1]);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(loop);
}

/* ---- The parent is killed ---- */

/* Rank 1 in a process of its own, with a child that outlives it. */
static void be_rank_1(const char *address, int ready, int until)
{
    trib_engine *engine = make(address, 1);
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_wait_ready(engine, -1, &error) != TRIB_OK) {
        _exit(1);
    }
    if (fork() == 0) {
        char none;
        alarm(GUARD_S);
        _exit(read(until, &none, 1) == 0 ? 0 : 1);
    }
    (void)!write(ready, "", 1);
    for (;;) {
        pause();
    }
}

static void is_missed_at_once(void **state)
{
    (void)state;
    char address[32], byte;
    job_free_address(address, sizeof address);
    int ready[2], until[2];
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(until), 0);
    const pid_t peer = fork();
    assert_true(peer >= 0);
    if (peer == 0) {
        close(until[1]);
        be_rank_1(address, ready[1], until[0]);
    }
    close(until[0]);
    trib_config config;
    fill(&config, address, 0);
    config.peer_timeout_ns = 3600 * SECOND_NS; /* only the end of its connections can reveal the loss */
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    float data[COUNT] = {0};
    trib_op *op = job_push_pull(engine, job_declare(engine, "missed", TRIB_FLOAT32, COUNT), data, data, TRIB_SUM);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(peer, SIGKILL), 0);
    assert_int_equal(end_of(peer), -1);
    assert_int_equal(job_wait(op, &error), TRIB_PEER_LOST); /* a missed loss would give TRIB_TIMEOUT at the deadline */
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    close(until[1]);
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_missed_at_once), /* first: rank 1 must be forked from a process without threads */
        cmocka_unit_test(engine_restarts_at_its_address),
        cmocka_unit_test(writes_to_memory_of_its_own),
        cmocka_unit_test_prestate(answers_in_the_child, (void *)TRIB_MODE_THREADS),
        cmocka_unit_test_prestate(answers_in_the_child, (void *)TRIB_MODE_QUEUE),
        cmocka_unit_test(a_host_loop_in_the_child),
    };
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
