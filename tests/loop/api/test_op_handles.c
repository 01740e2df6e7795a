/*
 * test_op_handles.c - handles of operations: how many there may be, what a refusal leaves behind, and cancellations
 * and questions while a handle is given back or started again.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { ROUNDS = 8, MOST = 8 };

static float values[MOST + 1][64];

static void eight_operations(trib_config *config, int member)
{
    (void)member;
    config->ops_max = 8;
}

/* A run that is complete makes room for the next one of the same operation. */
static void as_many_are_prepared_as_may_run(void **state)
{
    (void)state;
    job jobs;
    trib_op *ops[MOST], *op = NULL;
    trib_op_params one;
    job_open(&jobs, 1, 0, eight_operations);
    for (int i = 0; i < MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor %d", i);
        trib_op_params_init(&one, sizeof one);
        one.tensor = job_declare(jobs.engines[0], name, TRIB_FLOAT32, 10);
        one.input = one.output = values[i];
        assert_int_equal(trib_op_prepare(jobs.engines[0], &one, &ops[i], NULL), TRIB_OK);
    }
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(trib_op_start(ops, MOST, 0, NULL), TRIB_OK);
        assert_int_equal(trib_op_wait_some(ops, MOST, MOST, -1, NULL, NULL, NULL), TRIB_OK);
    }
    assert_int_equal(trib_push_pull(jobs.engines[0], &one, &op, NULL), TRIB_BUSY); /* it has handles of all */
    trib_op_release(ops[0]);
    assert_int_equal(trib_push_pull(jobs.engines[0], &one, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    job_close(&jobs);
}

/* An operation that was refused for want of room may be submitted again, with another size. */
static void a_refusal_uses_up_no_name(void **state)
{
    (void)state;
    job jobs;
    trib_op_params many[MOST + 1], bytes;
    trib_op *ops[MOST + 1] = {NULL}, *gathered = NULL;
    job_open(&jobs, 1, 0, eight_operations);
    for (int i = 0; i <= MOST; i++) {
        trib_op_params_init(&many[i], sizeof many[i]);
        many[i].flags = TRIB_OP_ONCE;
        many[i].dtype = TRIB_FLOAT32;
        many[i].bytes = 64;
        many[i].input = many[i].output = values[i];
    }
    trib_op_params_init(&bytes, sizeof bytes);
    bytes.input = "some bytes";
    bytes.input_bytes = 10;
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, MOST + 1, ops, NULL), TRIB_BUSY);
    for (int i = 0; i < MOST; i++) {
        many[i].bytes = 128;
    }
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, MOST, ops, NULL), TRIB_OK);
    assert_int_equal(trib_all_gather_bytes(jobs.engines[0], &bytes, &gathered, NULL), TRIB_BUSY);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
    }
    bytes.input_bytes = 4;
    assert_int_equal(trib_all_gather_bytes(jobs.engines[0], &bytes, &gathered, NULL), TRIB_OK);
    assert_int_equal(job_wait(gathered, NULL), TRIB_OK);
    job_close(&jobs);
}

typedef struct canceller {
    _Atomic(trib_op *) op;
    atomic_bool is_over;
} canceller;

static void *cancel_again_and_again(void *user)
{
    canceller *self = user;
    while (!atomic_load(&self->is_over)) {
        uint64_t counts[4];
        size_t count = 0;
        trib_op *const op = atomic_load(&self->op);
        trib_op_cancel(op);
        assert_int_not_equal(trib_op_counts(op, counts, 4, &count, NULL), TRIB_OK); /* a whole tensor has none */
    }
    return NULL;
}

/* An operation is cancelled while its handle is given back, or while it is started again. */
static void a_cancellation_races_with_the_end(void **state)
{
    (void)state;
    enum { TIMES = 4000 };
    job jobs;
    pthread_t thread;
    trib_op *op = NULL, *prepared = NULL;
    trib_op_params one;
    canceller self = {.is_over = false};
    job_open(&jobs, 1, 0, NULL);
    trib_op_params_init(&one, sizeof one);
    one.tensor = job_declare(jobs.engines[0], "one", TRIB_FLOAT32, 10);
    one.input = one.output = values[0];
    assert_int_equal(trib_op_prepare(jobs.engines[0], &one, &prepared, NULL), TRIB_OK);
    assert_int_equal(pthread_create(&thread, NULL, cancel_again_and_again, &self), 0);
    for (int i = 0; i < TIMES; i++) {
        const bool is_prepared = i % 2 == 0;
        assert_int_equal(is_prepared ? trib_op_start(&prepared, 1, 0, NULL)
                                     : trib_push_pull(jobs.engines[0], &one, &op, NULL),
                         TRIB_OK);
        atomic_store(&self.op, is_prepared ? prepared : op);
        const trib_status status = trib_op_wait(is_prepared ? prepared : op, -1, NULL);
        assert_true(status == TRIB_OK || status == TRIB_CANCELLED);
        trib_op_release(is_prepared ? NULL : op);
    }
    atomic_store(&self.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    trib_op_release(prepared);
    assert_int_equal(trib_tensor_release(one.tensor, NULL), TRIB_OK);
    job_close(&jobs);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    job jobs;
    trib_error error;
    trib_group *groups[2] = {NULL};
    trib_op *op = NULL;
    const int32_t ranks[] = {0};
    trib_op_params one;
    job_open(&jobs, 1, 0, NULL);
    for (int i = 0; i < 2; i++) {
        trib_group_desc what;
        trib_group_desc_init(&what, sizeof what);
        what.name = i == 0 ? "a" : "b";
        what.ranks = ranks;
        what.rank_count = 1;
        assert_int_equal(trib_group_create(jobs.engines[0], &what, &groups[i], NULL), TRIB_OK);
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "of a group";
    desc.dtype = TRIB_FLOAT32;
    desc.count = 4;
    desc.group = groups[0];
    trib_op_params_init(&one, sizeof one);
    assert_int_equal(trib_tensor_declare(jobs.engines[0], &desc, &one.tensor, NULL), TRIB_OK);
    one.input = one.output = values[0];
    one.group = groups[1];
    assert_int_equal(trib_push_pull(jobs.engines[0], &one, &op, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "params->group is not the group that it was declared in"));
    one.group = groups[0];
    assert_int_equal(trib_push_pull(jobs.engines[0], &one, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    one.tensor = NULL;
    one.flags = TRIB_OP_ONCE;
    one.dtype = TRIB_FLOAT32;
    one.bytes = 16;
    assert_int_equal(trib_push_pull(jobs.engines[0], &one, &op, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "TRIB_OP_ONCE is for all workers"));
    one.group = NULL;
    assert_int_equal(trib_all_gather(jobs.engines[0], &one, &op, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "TRIB_OP_ONCE is for whole tensors: declare one that is TRIB_SLICES"));
    desc.name = "of slices";
    desc.layout = TRIB_SLICES;
    desc.group = NULL;
    trib_op_params_init(&one, sizeof one);
    assert_int_equal(trib_tensor_declare(jobs.engines[0], &desc, &one.tensor, NULL), TRIB_OK);
    one.kind = TRIB_OP_ALL_GATHER;
    one.flags = TRIB_OP_ALLOCATE_OUTPUT;
    one.input = values[0];
    assert_int_equal(trib_submit_batch(jobs.engines[0], &one, 1, NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "operation 0 of the list: op_out is NULL"));
    one.input = NULL;
    assert_int_equal(trib_submit_batch(jobs.engines[0], &one, 1, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "input is NULL, and the operation reads 16 bytes"));
    job_close(&jobs);
}

/* ---- Questions ---- */

enum { ASKED = 4000 };

static struct {
    pthread_mutex_t mutex;
    const trib_op *op; /* the last operation, which may have been given back */
    uint64_t bytes;    /* of its result */
    bool is_over;
    const char *wrong; /* the first question with an answer about another operation; or NULL */
} asked = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *ask(const trib_op *op, uint64_t bytes)
{
    trib_result result;
    uint64_t length = 0, slice = 0;
    size_t count = 0;
    int32_t rank = -1;
    void *data = NULL;
    trib_error error;
    if (trib_op_get_result(op, &result, &error) == TRIB_OK && result.bytes != bytes) {
        return "trib_op_get_result";
    }
    if (trib_op_output(op, &data, &length, &error) == TRIB_OK && length != bytes) {
        return "trib_op_output";
    }
    if (trib_op_counts(op, &slice, 1, &count, &error) == TRIB_OK && slice != bytes) {
        return "trib_op_counts";
    }
    if (trib_op_contributors(op, &rank, 1, &count, &error) == TRIB_OK && (rank != 0 || count != 1)) {
        return "trib_op_contributors";
    }
    return NULL;
}

static void *ask_until_over(void *unused)
{
    (void)unused;
    for (bool is_over = false; !is_over;) {
        pthread_mutex_lock(&asked.mutex);
        const trib_op *op = asked.op;
        const uint64_t bytes = asked.bytes;
        is_over = asked.is_over || asked.wrong != NULL;
        pthread_mutex_unlock(&asked.mutex);
        const char *wrong = ask(op, bytes);
        if (wrong != NULL) {
            pthread_mutex_lock(&asked.mutex);
            asked.wrong = wrong;
            pthread_mutex_unlock(&asked.mutex);
        }
    }
    return NULL;
}

/* Each answer is about the operation of the handle, or there is none. */
static void answers_are_of_the_handle(void **state)
{
    (void)state;
    job jobs;
    pthread_t thread;
    job_open(&jobs, 1, 0, NULL);
    assert_int_equal(pthread_create(&thread, NULL, ask_until_over, NULL), 0);
    for (uint64_t i = 0; i < ASKED; i++) {
        trib_op *op = NULL;
        trib_op_params one;
        trib_op_params_init(&one, sizeof one);
        one.input = values;
        one.input_bytes = 1 + i % 200;
        assert_int_equal(trib_all_gather_bytes(jobs.engines[0], &one, &op, NULL), TRIB_OK);
        pthread_mutex_lock(&asked.mutex);
        asked.op = op;
        asked.bytes = one.input_bytes;
        pthread_mutex_unlock(&asked.mutex);
        assert_int_equal(trib_op_wait(op, -1, NULL), TRIB_OK);
        trib_op_release(op);
    }
    pthread_mutex_lock(&asked.mutex);
    asked.is_over = true;
    pthread_mutex_unlock(&asked.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (asked.wrong != NULL) {
        fail_msg("%s told of another operation", asked.wrong);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_are_prepared_as_may_run),   cmocka_unit_test(a_refusal_uses_up_no_name),
        cmocka_unit_test(a_cancellation_races_with_the_end), cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(answers_are_of_the_handle),
    };
    return cmocka_run_group_tests_name("handles of operations", tests, NULL, NULL);
}
