/* job.c - see job.h. */
#include "tests/loop/job.h"

#include <arpa/inet.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

/* Reserves the port for this process until its next call, so no other test program finds it free before the coordinator
 * binds it. */
static bool claim_port(unsigned port)
{
    static int claim = -1;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "port %u of tributary's tests", port);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) == 0) {
        close(claim);
        claim = fd;
        return true;
    }
    close(fd);
    return false;
}

void job_free_address(char *text, size_t size)
{
    /* The range lies below the kernel's ephemeral ports, so that the port is still free when the coordinator binds it.
     * Each process starts at another place. */
    enum { FIRST = 10000, PORTS = 22000 };
    static atomic_uint tried;
    for (int i = 0; i < PORTS; i++) {
        const unsigned port = FIRST + ((unsigned)getpid() * 7919u + atomic_fetch_add(&tried, 1)) % PORTS;
        struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (is_free && claim_port(port)) {
            snprintf(text, size, "127.0.0.1:%u", port);
            return;
        }
    }
    fail_msg("no free port");
}

void job_open(job *self, int workers, int servers, job_tweak tweak)
{
    memset(self, 0, sizeof *self);
    self->worker_count = workers;
    self->server_count = servers;
    char address[32];
    job_free_address(address, sizeof address);
    for (int i = 0; i < workers + servers; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.roles = i < workers ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
        config.rank = i < workers ? i : -1;
        config.worker_count = workers;
        config.server_count = servers;
        config.coordinator = address;
        config.token = "a secret of the tests, long enough";
        config.join_timeout_ns = INT64_C(20000000000);
        config.op_timeout_ns = INT64_C(60000000000);
        config.log_level = TRIB_LOG_NONE;
        if (tweak != NULL) {
            tweak(&config, i);
        }
        trib_error error = {.status = TRIB_OK};
        if (trib_engine_create(&config, &self->engines[i], &error) != TRIB_OK) {
            fail_msg("member %d: %s", i, error.text);
        }
    }
    for (int i = 0; i < workers + servers; i++) {
        trib_error error = {.status = TRIB_OK};
        if (trib_engine_wait_ready(self->engines[i], -1, &error) != TRIB_OK) {
            fail_msg("member %d: %s", i, error.text);
        }
    }
}

void job_close(job *self)
{
    for (int i = 0; i < self->worker_count + self->server_count; i++) {
        if (self->engines[i] != NULL) {
            trib_engine_close(self->engines[i], NULL, NULL);
        }
    }
    for (int i = 0; i < self->worker_count + self->server_count; i++) {
        assert_int_equal(trib_engine_destroy(self->engines[i]), TRIB_OK);
    }
}

trib_tensor *job_declare(trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.count = count;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_tensor_declare(engine, &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

trib_op *job_push_pull(trib_engine *engine, trib_tensor *tensor, const void *input, void *output, trib_reduce reduce)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = input;
    params.output = output;
    params.reduce = reduce;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_push_pull(engine, &params, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

static bool has_contributed(trib_engine *engine)
{
    enum { WAITING_MAX = 256 };
    trib_waiting entries[WAITING_MAX];
    size_t count = 0;
    const trib_status status = trib_engine_waiting(engine, entries, WAITING_MAX, &count);
    bool all = status == TRIB_OK && count > 0;
    assert_true(status == TRIB_OK || status == TRIB_TIMEOUT); /* a thread of the engine's has not answered yet */
    assert_true(count <= WAITING_MAX);
    for (size_t i = 0; all && i < count; i++) {
        all = strcmp(entries[i].stage, "PULL") == 0;
    }
    return all;
}

void job_await_contributed(trib_engine *engine)
{
    while (!has_contributed(engine)) {
        sched_yield();
    }
}

trib_status job_wait(trib_op *op, trib_error *error)
{
    trib_status status = trib_op_wait(op, -1, error);
    trib_op_release(op);
    return status;
}
