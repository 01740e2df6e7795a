/*
 * test_held.c - a worker cancels round after round while another is late. Payloads that it has pushed count when the
 * late worker contributes. A contribution that it may not push yet waits for that, or for its own deadline. No other
 * worker's round fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define SHORT_NS (100 * INT64_C(1000000))

enum { COUNT = 60000, GIVEN_UP = 2, WAITING_MAX = 256 };

typedef struct pair {
    job jobs;
    trib_tensor *tensors[2], *others[2];
    float data[2][COUNT], other_data[2][COUNT];
} pair;

static void two_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
    config->pin = false;
    config->chunk_bytes = 4096; /* several partitions of several chunks each */
    config->partition_bytes = 16384;
    config->op_timeout_ns = 60 * INT64_C(1000000000);
}

static pair *open_pair(int servers)
{
    pair *self = calloc(1, sizeof *self);
    assert_non_null(self);
    job_open(&self->jobs, 2, servers, two_reactors);
    for (int i = 0; i < 2; i++) {
        self->tensors[i] = job_declare(self->jobs.engines[i], "t", TRIB_FLOAT32, COUNT);
        self->others[i] = job_declare(self->jobs.engines[i], "other", TRIB_FLOAT32, COUNT);
    }
    return self;
}

static void close_pair(pair *self)
{
    job_close(&self->jobs);
    free(self);
}

static trib_op *submit(trib_engine *engine, trib_tensor *tensor, float *data, float value, int64_t timeout_ns)
{
    for (int i = 0; i < COUNT; i++) {
        data[i] = value;
    }
    trib_op *op = NULL;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.timeout_ns = timeout_ns;
    assert_int_equal(trib_push_pull(engine, &params, &op, NULL), TRIB_OK);
    return op;
}

static trib_op *submit_as(pair *self, int rank, float value, int64_t timeout_ns)
{
    return submit(self->jobs.engines[rank], self->tensors[rank], self->data[rank], value, timeout_ns);
}

static void must_sum(const float *data, float wanted)
{
    for (int i = 0; i < COUNT; i++) {
        assert_true(data[i] == wanted);
    }
}

/* Cancels a round of rank 1 when all of it has been pushed and nothing has come back. */
static void push_and_give_up(pair *self)
{
    trib_op *op = submit_as(self, 1, 10, 0);
    job_await_contributed(self->jobs.engines[1]);
    trib_op_cancel(op);
    assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
}

/* One round of both workers, then as many cancelled rounds of rank 1 as are kept. */
static void give_up_on_rank_0(pair *self)
{
    trib_op *op = submit_as(self, 0, 1, 0);
    assert_int_equal(job_wait(submit_as(self, 1, 2, 0), NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    for (int i = 0; i < GIVEN_UP; i++) {
        push_and_give_up(self);
    }
}

/* Polls until the tensor waits for rank 0 in the stage before it is pushed. */
static void await_blame(trib_engine *engine)
{
    trib_waiting entries[WAITING_MAX];
    for (;;) {
        size_t count = 0;
        const trib_status status = trib_engine_waiting(engine, entries, WAITING_MAX, &count);
        assert_true(status == TRIB_OK || status == TRIB_TIMEOUT); /* a thread of the engine's has not answered yet */
        for (size_t i = 0; status == TRIB_OK && i < count && i < WAITING_MAX; i++) {
            if (strcmp(entries[i].stage, "PUSH") == 0 && strncmp(entries[i].peer, "rank 0", 6) == 0) {
                return;
            }
        }
    }
}

static void the_next_one_waits(int servers)
{
    pair *self = open_pair(servers);
    give_up_on_rank_0(self);
    trib_op *held = submit_as(self, 1, 20, 0);
    await_blame(self->jobs.engines[1]);
    assert_int_equal(trib_op_status(held), TRIB_PENDING);
    /* Another tensor goes on meanwhile. */
    trib_op *other = submit(self->jobs.engines[0], self->others[0], self->other_data[0], 5, 0);
    assert_int_equal(job_wait(submit(self->jobs.engines[1], self->others[1], self->other_data[1], 6, 0), NULL),
                     TRIB_OK);
    assert_int_equal(job_wait(other, NULL), TRIB_OK);
    must_sum(self->other_data[1], 11);
    for (int i = 0; i < GIVEN_UP; i++) {
        assert_int_equal(job_wait(submit_as(self, 0, 1, 0), NULL), TRIB_OK);
        must_sum(self->data[0], 11); /* rank 1's cancelled rounds had been pushed */
    }
    assert_int_equal(job_wait(submit_as(self, 0, 1, 0), NULL), TRIB_OK);
    must_sum(self->data[0], 21);
    assert_int_equal(job_wait(held, NULL), TRIB_OK);
    must_sum(self->data[1], 21);
    close_pair(self);
}

static void held_until_the_late_one_comes(void **state)
{
    (void)state;
    the_next_one_waits(0);
}

static void held_until_the_late_one_comes_to_a_server(void **state)
{
    (void)state;
    the_next_one_waits(1);
}

/* The late worker does not contribute in time. The deadline applies as always, and the text names the cause. Later
 * rounds match again. */
static void held_until_its_deadline(void **state)
{
    (void)state;
    pair *self = open_pair(0);
    trib_error error = {.text = ""};
    give_up_on_rank_0(self);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(job_wait(submit_as(self, 1, 20, SHORT_NS), &error), TRIB_TIMEOUT);
        if (strstr(error.text, "waits to be pushed") == NULL || strstr(error.text, "given up here") == NULL) {
            fail_msg("%s", error.text);
        }
    }
    for (int i = 0; i < GIVEN_UP; i++) {
        assert_int_equal(job_wait(submit_as(self, 0, 1, 0), NULL), TRIB_OK);
        must_sum(self->data[0], 11);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(job_wait(submit_as(self, 0, 1, 0), NULL), TRIB_TIMEOUT); /* rank 1 has withdrawn */
    }
    trib_op *op = submit_as(self, 0, 1, 0);
    assert_int_equal(job_wait(submit_as(self, 1, 2, 0), NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    must_sum(self->data[0], 3);
    close_pair(self);
}

/* The late worker cancels too. A refusal answers the kept rounds just as a sum does. */
static void held_until_the_late_one_gives_up(void **state)
{
    (void)state;
    pair *self = open_pair(0);
    give_up_on_rank_0(self);
    trib_op *held = submit_as(self, 1, 20, 0);
    await_blame(self->jobs.engines[1]);
    for (int i = 0; i < GIVEN_UP; i++) {
        trib_op *op = submit_as(self, 0, 1, 0);
        trib_op_cancel(op);
        const trib_status status = job_wait(op, NULL);
        assert_true(status == TRIB_CANCELLED || status == TRIB_OK);
    }
    assert_int_equal(job_wait(submit_as(self, 0, 1, 0), NULL), TRIB_OK);
    must_sum(self->data[0], 21);
    assert_int_equal(job_wait(held, NULL), TRIB_OK);
    close_pair(self);
}

/* The late worker leaves instead. */
static void held_until_the_late_one_leaves(void **state)
{
    (void)state;
    pair *self = open_pair(1);
    give_up_on_rank_0(self);
    trib_op *held = submit_as(self, 1, 20, 0);
    await_blame(self->jobs.engines[1]);
    trib_engine_close(self->jobs.engines[0], NULL, NULL);
    trib_error error = {.text = ""};
    assert_int_equal(job_wait(held, &error), TRIB_PEER_LEFT);
    close_pair(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_until_the_late_one_comes),  cmocka_unit_test(held_until_the_late_one_comes_to_a_server),
        cmocka_unit_test(held_until_its_deadline),        cmocka_unit_test(held_until_the_late_one_gives_up),
        cmocka_unit_test(held_until_the_late_one_leaves),
    };
    return cmocka_run_group_tests_name("held", tests, NULL, NULL);
}
