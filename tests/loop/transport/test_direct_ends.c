/*
 * test_direct_ends.c - how operations that bypass host memory (GPUDirect) end over real verbs: cancelled, on a device
 * that fails, with a server that is killed. The last case compares connections that chose RDMA with ones that chose
 * TCP.
 *
 * Like test_direct.c it needs an RDMA device. With a role as its argument it is a member of a test's job.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/transport/direct_wrap.h"

/* Checks that a buffer that was given back is no longer written. */
static void assert_left_alone(float *memory)
{
    memset(memory, 0x5a, DIRECT_BYTES);
    usleep(200000);
    for (size_t i = 0; i < DIRECT_BYTES; i++) {
        assert_int_equal(((unsigned char *)memory)[i], 0x5a);
    }
}

static void gives_up_in_the_middle(void **state)
{
    (void)state;
    const direct_shape shape = direct_default_shape();
    direct_bed self;
    direct_open(&self, &shape, 2, 1);
    const uint64_t staged = direct_exchange(&self, 7, SUMS);
    direct_tell_all(&self);
    for (int turn = 0; turn < 6; turn++) {
        trib_op *ops[2] = {direct_submit(&self, 0, SUMS, NULL), direct_submit(&self, 1, SUMS, NULL)};
        usleep((useconds_t)turn * 3000);
        trib_op_cancel(ops[turn % 2]);
        for (int rank = 0; rank < 2; rank++) {
            const trib_status status = job_wait(ops[rank], NULL);
            assert_true(status == TRIB_OK || status == TRIB_CANCELLED);
            assert_left_alone(self.output[rank]);
        }
        assert_int_equal(direct_exchange(&self, 7, SUMS), staged);
        assert_true(self.to_host == 2 && self.to_device == 2);
    }
    trib_host_world_fault(direct_world(), 0, 0, TRIB_HOST_FAULT_FAIL);
    trib_op *ops[2] = {direct_submit(&self, 0, SUMS, NULL), direct_submit(&self, 1, SUMS, NULL)};
    trib_error error = {.text = ""};
    assert_int_equal(job_wait(ops[0], &error), TRIB_SYSTEM);
    assert_non_null(strstr(error.text, "the device failed"));
    (void)job_wait(ops[1], NULL);
    trib_host_world_fault(direct_world(), 0, 0, TRIB_HOST_FAULT_NONE);
    assert_int_equal(direct_exchange(&self, 7, SUMS), staged);
    direct_close(&self);
}

/* ---- Other processes ---- */

/* A child of this program, by role: "server", "stranger" (a server of another user), "poor" (a server that may lock no
 * memory) or "worker". */
static int be_member(const char *role, const char *transport, const char *address)
{
    direct_shape shape = direct_default_shape();
    shape.transport = transport;
    if (strcmp(role, "poor") == 0) {
        const struct rlimit small = {.rlim_cur = 65536, .rlim_max = 65536};
        assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    }
    if (strcmp(role, "poor") == 0 || strcmp(role, "stranger") == 0) {
        assert_int_equal(setuid(65534), 0);
    }
    if (strcmp(role, "worker") != 0) {
        (void)direct_member(&shape, address, -1, 2, 1);
        for (;;) {
            pause();
        }
    }
    direct_bed self;
    trib_op *op;
    direct_open_one(&self, &shape, address, 1, 2);
    do {
        direct_fill(self.input[0], 1, 8);
        op = direct_try(&self, 0, SUMS, NULL, NULL);
    } while (op != NULL && job_wait(op, NULL) == TRIB_OK);
    return 0;
}

static pid_t spawn(const char *role, const char *transport, const char *address)
{
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_direct_ends", role, transport, address, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static void bury(pid_t child)
{
    int status = 0;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

/* The server is killed while peers write to it and it writes to them. */
static void server_is_killed(void **state)
{
    (void)state;
    const direct_shape shape = direct_default_shape();
    for (int turn = 0; turn < 4; turn++) {
        direct_bed self;
        const char *address = direct_new_address();
        const pid_t server = spawn("server", shape.transport, address);
        const pid_t other = spawn("worker", shape.transport, address);
        direct_open_one(&self, &shape, address, 0, 2);
        assert_int_equal(job_wait(direct_submit(&self, 0, SUMS, NULL), NULL), TRIB_OK);
        assert_true(direct_stats(self.jobs.engines[0]).bytes_direct > DIRECT_BYTES);
        trib_op *op = direct_submit(&self, 0, SUMS, NULL);
        usleep((useconds_t)turn * 5000);
        bury(server);
        trib_status status = job_wait(op, NULL);
        for (op = NULL; status == TRIB_OK;) { /* the operation was over before the kill */
            trib_error error = {.status = TRIB_OK};
            op = direct_try(&self, 0, SUMS, NULL, &error);
            status = op != NULL ? job_wait(op, NULL) : error.status;
        }
        assert_int_equal(status, TRIB_PEER_LOST);
        assert_left_alone(self.output[0]);
        bury(other);
        direct_close(&self);
    }
}

/* A connection of transport "auto" stays with RDMA or with TCP, whichever it chose. */
static void auto_goes_by_what_it_took(void **state)
{
    (void)state;
    uint64_t hashes[2];
    direct_shape shape = direct_default_shape();
    shape.transport = "auto";
    for (int turn = 0; turn < 2; turn++) {
        direct_bed self;
        const char *address = direct_new_address();
        const pid_t server = spawn(turn == 0 ? "stranger" : "poor", shape.transport, address);
        const pid_t other = spawn("worker", shape.transport, address);
        direct_open_one(&self, &shape, address, 0, 2);
        hashes[turn] = direct_exchange(&self, 8, SUMS);
        assert_int_equal(direct_was_logged("over RDMA"), turn == 0);
        assert_int_equal(direct_was_logged("over TCP"), turn == 1);
        assert_true(turn == 0 ? self.to_host == 1 && self.direct > DIRECT_BYTES : self.to_host > 1 && self.direct == 0);
        bury(other);
        bury(server);
        direct_close(&self);
    }
    assert_int_equal(hashes[0], hashes[1]);
}

int main(int argc, char **argv)
{
    if (getenv("RDMA_IP") == NULL) {
        printf("no RDMA device here: tests/rdma runs this where one is\n");
        return 77;
    }
    if (argc == 4) {
        return be_member(argv[1], argv[2], argv[3]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_up_in_the_middle),
        cmocka_unit_test(server_is_killed),
        cmocka_unit_test(auto_goes_by_what_it_took),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
