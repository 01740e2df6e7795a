/*
 * test_registered.c - the caller's own memory over RDMA: payloads are copied, and counted, until it is registered, and
 * not copied afterwards; also in a process that forks, and where no more memory may be locked.
 *
 * Where this machine has no RDMA device there is nothing to test. tests/rdma runs this program in a guest that has one,
 * with its address in the environment (RDMA_IP).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/capability.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define COUNT ((size_t)1 << 20)
#define BYTES (COUNT * sizeof(float))
#define CHUNK ((size_t)256 << 10)
#define CHUNKS (BYTES / CHUNK)
#define PORT_FIRST 12300

static char address[64];
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];

static void log_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    pthread_mutex_lock(&log_mutex);
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
    pthread_mutex_unlock(&log_mutex);
}

static void assert_logged(const char *words)
{
    pthread_mutex_lock(&log_mutex);
    if (strstr(log_text, words) == NULL) {
        fail_msg("\"%s\" was not logged, but: %s", words, log_text);
    }
    pthread_mutex_unlock(&log_mutex);
}

static void over_rdma(trib_config *config, int member)
{
    config->transport = "rdma";
    config->coordinator = address;
    config->listen = getenv("RDMA_IP");
    config->chunk_bytes = CHUNK;
    if (member == 0) {
        config->log_level = TRIB_LOG_INFO;
        config->log_cb = log_line;
    }
}

typedef struct exchange {
    job jobs;
    trib_engine *engine;
    trib_tensor *tensor;
    float *input, *output; /* neither is page-aligned */
    void *blocks[2];
    int round;
} exchange;

static int setup(void **state)
{
    static int port = PORT_FIRST;
    exchange *self = calloc(1, sizeof *self);
    assert_non_null(self);
    snprintf(address, sizeof address, "%s:%d", getenv("RDMA_IP"), port++);
    log_text[0] = '\0';
    for (int i = 0; i < 2; i++) {
        self->blocks[i] = mmap(NULL, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(self->blocks[i], MAP_FAILED);
    }
    self->input = (float *)self->blocks[0] + 3;
    self->output = (float *)self->blocks[1] + 5;
    job_open(&self->jobs, 1, 1, over_rdma);
    self->engine = self->jobs.engines[0];
    self->tensor = job_declare(self->engine, "weights", TRIB_FLOAT32, COUNT);
    *state = self;
    return 0;
}

static int teardown(void **state)
{
    exchange *self = *state;
    job_close(&self->jobs);
    for (int i = 0; i < 2; i++) {
        munmap(self->blocks[i], BYTES + 4096);
    }
    free(self);
    return 0;
}

static uint64_t copied(const exchange *self)
{
    trib_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(trib_engine_get_stats(self->engine, &stats), TRIB_OK);
    return stats.bytes_copied;
}

/* Counts the chunks that are copied while the worker pushes its values and gets them back. Small messages are always
 * copied. */
static uint64_t copied_by(exchange *self, float *input, float *output)
{
    const uint64_t before = copied(self);
    const float first = (float)(++self->round * 1000);
    for (size_t i = 0; i < COUNT; i++) {
        output[i] = -1; /* before the input is written, which may be the same memory */
        input[i] = first + (float)(i % 1000);
    }
    assert_int_equal(job_wait(job_push_pull(self->engine, self->tensor, input, output, TRIB_SUM), NULL), TRIB_OK);
    for (size_t i = 0; i < COUNT; i++) {
        if (output[i] != first + (float)(i % 1000)) {
            fail_msg("round %d: element %zu is %g", self->round, i, (double)output[i]);
        }
    }
    const uint64_t bytes = copied(self) - before;
    assert_true(bytes % CHUNK < 4096);
    return bytes / CHUNK;
}

static void register_all(const exchange *self, float *memory, size_t size)
{
    trib_error error = {.text = ""};
    if (trib_memory_register(self->engine, memory, size, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static void is_copied_until_registered(void **state)
{
    exchange *self = *state;
    assert_int_equal(copied_by(self, self->input, self->output), 2 * CHUNKS);
    assert_logged("this is neither");
    register_all(self, self->input, BYTES);
    assert_logged("are registered");
    assert_int_equal(copied_by(self, self->input, self->output), CHUNKS);
    register_all(self, self->output, BYTES);
    assert_int_equal(copied_by(self, self->input, self->output), 0);
    assert_int_equal(copied_by(self, self->output, self->output), 0);
    assert_int_equal(trib_memory_unregister(self->engine, self->output, NULL), TRIB_OK);
    assert_int_equal(copied_by(self, self->input, self->output), CHUNKS);
    register_all(self, self->output, BYTES - 1); /* all but the last chunk are registered whole */
    assert_int_equal(copied_by(self, self->input, self->output), 1);
}

/* Blocks come and go as in an allocator: buffers are cut from a block, the block is freed, and another takes its
 * address. */
static void blocks_come_and_go(void **state)
{
    exchange *self = *state;
    for (int turn = 0; turn < 4; turn++) {
        register_all(self, self->blocks[0], BYTES + 4096);
        assert_int_equal(copied_by(self, (float *)self->blocks[0] + turn, (float *)self->blocks[0] + turn), 0);
        assert_int_equal(trib_memory_unregister(self->engine, self->blocks[0], NULL), TRIB_OK);
        void *again =
            mmap(self->blocks[0], BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        assert_ptr_equal(again, self->blocks[0]);
    }
}

/* The child has its own copy, and the parent keeps the pages that the device knows. */
static void stays_registered_over_a_fork(void **state)
{
    exchange *self = *state;
    register_all(self, self->input, BYTES);
    register_all(self, self->output, BYTES);
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            memset(self->input, 0xa5, BYTES);
            memset(self->output, 0xa5, BYTES);
            _exit(0);
        }
        assert_int_equal(copied_by(self, self->input, self->output), 0);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* Sets this thread's right to lock any amount of memory. */
static void may_lock_anything(bool may)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct rights[2];
    assert_int_equal(syscall(SYS_capget, &header, rights), 0);
    const uint32_t bit = 1u << CAP_IPC_LOCK;
    rights[0].effective = may ? rights[0].effective | bit : rights[0].effective & ~bit;
    assert_int_equal(syscall(SYS_capset, &header, rights), 0);
}

static void is_copied_where_it_cannot_be_registered(void **state)
{
    exchange *self = *state;
    trib_error error = {.text = ""};
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    const struct rlimit small = {.rlim_cur = 65536, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    may_lock_anything(false);
    assert_int_equal(trib_memory_register(self->engine, self->input, BYTES, &error), TRIB_SYSTEM);
    may_lock_anything(true);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_non_null(strstr(error.text, "cannot register 4096 KiB of memory with "));
    assert_non_null(strstr(error.text, "the limit on locked memory (ulimit -l) is 64 KiB"));
    assert_logged("not registered, so payloads in them are copied: cannot register 4096 KiB");
    assert_int_equal(trib_memory_unregister(self->engine, self->input, NULL), TRIB_INVALID);
    assert_int_equal(copied_by(self, self->input, self->output), 2 * CHUNKS);

    void *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(constant, MAP_FAILED);
    assert_int_equal(trib_memory_register(self->engine, constant, 4096, &error), TRIB_SYSTEM);
    assert_int_equal(munmap(constant, 4096), 0);
    assert_int_equal(trib_memory_register(self->engine, constant, 4096, &error), TRIB_SYSTEM);
    register_all(self, self->input, BYTES); /* the original limit is back */
    assert_int_equal(copied_by(self, self->input, self->output), CHUNKS);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    if (getenv("RDMA_IP") == NULL) {
        printf("no RDMA device here: tests/rdma runs this where one is\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        CASE(is_copied_until_registered),
        CASE(blocks_come_and_go),
        CASE(stays_registered_over_a_fork),
        CASE(is_copied_where_it_cannot_be_registered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
