/* test_local_sum_errors.c - where the workers of a machine sum first, every worker gets the same errors as without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/loop/machines.h"

#define SECOND INT64_C(1000000000)

enum { COUNT = 30001 };

typedef struct four {
    job jobs;
    trib_tensor *tensors[4];
    float data[4][COUNT];
} four;

static four *open_some(int servers, machines_shape shape)
{
    four *self = calloc(1, sizeof *self);
    assert_non_null(self);
    machines_open(&self->jobs, 4, servers, shape);
    assert_int_equal(machines_info(self->jobs.engines[0]).local_sum, 2);
    for (int i = 0; i < 4; i++) {
        self->tensors[i] = job_declare(self->jobs.engines[i], "t", TRIB_FLOAT32, COUNT);
    }
    return self;
}

static four *open_four(uint32_t reactors)
{
    return open_some(0, (machines_shape){.local = 2, .reactors = reactors});
}

static void close_four(four *self)
{
    job_close(&self->jobs);
    free(self);
}

static trib_op *submit(four *self, int i, trib_reduce reduce, int64_t timeout_ns)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[i];
    params.input = params.output = self->data[i];
    params.reduce = reduce;
    params.timeout_ns = timeout_ns;
    trib_op *op = NULL;
    assert_int_equal(trib_push_pull(self->jobs.engines[i], &params, &op, NULL), TRIB_OK);
    return op;
}

static void everybody_sums(four *self)
{
    trib_op *ops[4];
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < COUNT; k++) {
            self->data[i][k] = (float)(i + k % 100);
        }
        ops[i] = submit(self, i, TRIB_SUM, 0);
    }
    for (int i = 0; i < 4; i++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(ops[i], &error) != TRIB_OK) {
            fail_msg("rank %d: %s", i, error.text);
        }
        assert_true(self->data[i][COUNT - 1] == (float)(6 + 4 * ((COUNT - 1) % 100)));
    }
}

/* The two workers that disagree are on one machine or on two. All four get the error, and the next round succeeds. */
static void disagreements_reach_everybody(void **state)
{
    (void)state;
    four *self = open_four(1); /* with two reactors a worker may withdraw what another has not begun */
    for (int odd = 0; odd < 4; odd++) {
        trib_op *ops[4];
        for (int i = 0; i < 4; i++) {
            ops[i] = submit(self, i, i == odd ? TRIB_MAX : TRIB_SUM, 0);
        }
        for (int i = 0; i < 4; i++) {
            trib_error error = {.status = TRIB_OK};
            const trib_status status = job_wait(ops[i], &error);
            if (status != TRIB_MISMATCH) {
                fail_msg("rank %d, when %d is odd: %s", i, odd, error.text);
            }
            assert_non_null(strstr(error.text, "disagree"));
            assert_non_null(strstr(error.text, "max of float32"));
        }
        everybody_sums(self);
    }
    /* Whole machines disagree. */
    trib_op *ops[4];
    for (int i = 0; i < 4; i++) {
        ops[i] = submit(self, i, i < 2 ? TRIB_SUM : TRIB_MIN, 0);
    }
    for (int i = 0; i < 4; i++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_equal(job_wait(ops[i], &error), TRIB_MISMATCH);
        assert_non_null(strstr(error.text, "the machine of rank"));
    }
    everybody_sums(self);
    close_four(self);
}

static void a_cancelled_operation_fails_everywhere(void **state)
{
    (void)state;
    four *self = open_four(2);
    for (int who = 0; who < 4; who++) {
        trib_op *ops[4];
        /* The operation must have begun on the others and have a round of its own. A worker that has not contributed
         * withdraws by cancelling what waits behind an operation that misses a contribution. */
        for (int i = 0; i < 4; i++) {
            ops[i] = i == who ? NULL : submit(self, i, TRIB_SUM, 0);
        }
        ops[who] = submit(self, who, TRIB_SUM, 1);
        for (int i = 0; i < 4; i++) {
            trib_error error = {.status = TRIB_OK};
            const trib_status status = job_wait(ops[i], &error);
            /* One nanosecond passes before anything is sent, unless the round was complete already. */
            assert_true(status == TRIB_TIMEOUT || status == TRIB_OK);
        }
        everybody_sums(self);
    }
    close_four(self);
}

static void late_worker_is_named(void **state)
{
    (void)state;
    four *self = open_four(2);
    for (int late = 0; late < 4; late++) {
        trib_op *ops[4] = {NULL};
        for (int i = 0; i < 4; i++) {
            if (i != late) {
                ops[i] = submit(self, i, TRIB_SUM, 3 * SECOND / 2);
            }
        }
        char name[16];
        snprintf(name, sizeof name, "rank %d ", late);
        for (int i = 0; i < 4; i++) {
            trib_error error = {.status = TRIB_OK};
            if (i != late) {
                assert_int_equal(job_wait(ops[i], &error), TRIB_TIMEOUT);
                if (strstr(error.text, name) == NULL && strstr(error.text, "withdrew") == NULL) {
                    fail_msg("rank %d should say that %sis late: %s", i, name, error.text);
                }
            }
        }
        /* The others' contributions were complete, and count. */
        assert_int_equal(job_wait(submit(self, late, TRIB_SUM, 0), NULL), TRIB_OK);
        everybody_sums(self);
    }
    close_four(self);
}

/* Rounds pile up on both machines while a worker is away. No member breaks the protocol when it returns. */
static void rounds_given_up_behind_one_that_is_late(void **state)
{
    (void)state;
    four *self = open_four(2);
    for (int late = 0; late < 4; late++) {
        for (int round = 0; round < 5; round++) {
            trib_op *ops[4] = {NULL};
            for (int i = 0; i < 4; i++) {
                ops[i] = i == late ? NULL : submit(self, i, TRIB_SUM, SECOND / 50);
            }
            for (int i = 0; i < 4; i++) {
                if (ops[i] != NULL) {
                    const trib_status status = job_wait(ops[i], NULL);
                    assert_true(status == TRIB_TIMEOUT || status == TRIB_CANCELLED);
                }
            }
        }
        for (int round = 0; round < 5; round++) {
            const trib_status status = job_wait(submit(self, late, TRIB_SUM, 0), NULL);
            assert_true(status == TRIB_OK || status == TRIB_TIMEOUT || status == TRIB_CANCELLED);
        }
        everybody_sums(self);
    }
    close_four(self);
}

static void leaving_member_is_named(void **state)
{
    (void)state;
    for (int departed = 0; departed < 4; departed++) {
        four *self = open_four(2);
        everybody_sums(self);
        trib_op *ops[4] = {NULL};
        for (int i = 0; i < 4; i++) {
            if (i != departed) {
                ops[i] = submit(self, i, TRIB_SUM, 20 * SECOND);
            }
        }
        trib_engine_close(self->jobs.engines[departed], NULL, NULL);
        for (int i = 0; i < 4; i++) {
            trib_error error = {.status = TRIB_OK};
            if (i != departed) {
                const trib_status status = job_wait(ops[i], &error);
                if (status != TRIB_PEER_LEFT && status != TRIB_CANCELLED) {
                    fail_msg("rank %d, when %d left: %s, %s", i, departed, trib_status_name(status), error.text);
                }
            }
        }
        close_four(self);
    }
}

/* Only this server sums for the machines, and their relays find that it has left. */
static void a_server_that_has_left_is_named(void **state)
{
    (void)state;
    four *self = open_some(1, (machines_shape){.local = 2, .reactors = 1, .colocate = TRIB_COLOCATE_OFF});
    everybody_sums(self);
    trib_engine_close(self->jobs.engines[4], NULL, NULL);
    /* Long enough for the message to arrive; the test covers less if it does not. */
    const struct timespec time = {.tv_nsec = 300000000};
    nanosleep(&time, NULL);
    trib_op *ops[4];
    for (int i = 0; i < 4; i++) {
        ops[i] = submit(self, i, TRIB_SUM, 20 * SECOND);
    }
    for (int i = 0; i < 4; i++) {
        trib_error error = {.status = TRIB_OK};
        const trib_status status = job_wait(ops[i], &error);
        if ((status != TRIB_PEER_LEFT && status != TRIB_CANCELLED) || strstr(error.text, "server 0 (") == NULL) {
            fail_msg("rank %d: %s, %s", i, trib_status_name(status), error.text);
        }
    }
    close_four(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disagreements_reach_everybody), cmocka_unit_test(a_cancelled_operation_fails_everywhere),
        cmocka_unit_test(late_worker_is_named),          cmocka_unit_test(rounds_given_up_behind_one_that_is_late),
        cmocka_unit_test(leaving_member_is_named),       cmocka_unit_test(a_server_that_has_left_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
