/*
 * test_shm_name_taken.c - an engine listens on a TCP port that the kernel chooses, and for its own machine on a name
 * made from that port. Another job over shared memory alone may already have the name, and peers must not reach that
 * job.
 */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/core/core.h"
#include "tests/loop/job.h"

#define COUNT 1000
#define UNINVITED_MAX 8
#define FIRST_DEALT_PORT 32768 /* ports below are the coordinators', which the test chooses */

static atomic_int uninvited_wanted, uninvited_count;
static int uninvited_fds[UNINVITED_MAX];

/* Before the library binds a name, another socket takes it and listens. */
int __real_bind(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t size)
{
    static const char prefix[] = "tributary/127.0.0.1:";
    const char *name = ((const struct sockaddr_un *)(const void *)address)->sun_path + 1;
    if (address->sa_family == AF_UNIX && strncmp(name, prefix, sizeof prefix - 1) == 0 &&
        strtol(name + sizeof prefix - 1, NULL, 10) >= FIRST_DEALT_PORT && atomic_fetch_sub(&uninvited_wanted, 1) > 0) {
        const int uninvited = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (__real_bind(uninvited, address, size) != 0) { /* a job of another program has the name: the next will do */
            assert_int_equal(errno, EADDRINUSE);
            close(uninvited);
            atomic_fetch_add(&uninvited_wanted, 1);
        } else {
            assert_int_equal(listen(uninvited, 8), 0);
            uninvited_fds[atomic_fetch_add(&uninvited_count, 1)] = uninvited;
        }
    }
    return __real_bind(fd, address, size);
}

static void one_reactor(trib_config *config, int member)
{
    (void)member;
    config->reactors = 1;
}

static void peers_reach_each_other(void **state)
{
    (void)state;
    job jobs;
    float data[2][COUNT] = {{0}};
    trib_op *ops[2];
    atomic_store(&uninvited_wanted, 5);
    job_open(&jobs, 2, 0, one_reactor);
    assert_int_equal(atomic_load(&uninvited_count), 5);
    for (int i = 0; i < 2; i++) {
        data[i][COUNT - 1] = (float)(i + 1);
        trib_tensor *tensor = job_declare(jobs.engines[i], "weights", TRIB_FLOAT32, COUNT);
        ops[i] = job_push_pull(jobs.engines[i], tensor, data[i], data[i], TRIB_SUM);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        assert_true(data[i][COUNT - 1] == 3);
    }
    job_close(&jobs);
    for (int i = 0; i < atomic_load(&uninvited_count); i++) {
        assert_int_equal(accept4(uninvited_fds[i], NULL, NULL, SOCK_CLOEXEC), -1); /* no peer has connected to it */
        assert_int_equal(errno, EAGAIN);
        close(uninvited_fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_reach_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
