/* test_checkpoint_calls.c - calls of trib_checkpoint that cannot be right, each with its error, and workers that have
 * joined (trib_join). */
#include <stdio.h>
#include <string.h>

#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

static char last_line[1024]; /* of rank 0's log */

typedef struct call {
    trib_op *op;
    trib_status status;
    bool is_over;
    char text[TRIB_ERROR_TEXT_SIZE];
} call;

static void on_call(const trib_result *result, void *user)
{
    call *self = user;
    self->status = result->status;
    self->is_over = true;
    snprintf(self->text, sizeof self->text, "%s", result->text);
}

static trib_status begin_call(sim_job *job, uint32_t rank, uint32_t step, int64_t timeout_ns, call *self,
                              trib_error *error)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    *self = (call){.status = TRIB_PENDING};
    params.step = step;
    params.timeout_ns = timeout_ns;
    params.done_cb = on_call;
    params.user = self;
    return trib_checkpoint(job->members[rank].engine, &params, &self->op, error);
}

static bool two_are_over(sim_job *job, void *argument)
{
    (void)job;
    const call *calls = argument;
    return calls[0].is_over && calls[1].is_over;
}

static void expect_calls(sim_job *job, call *calls, trib_status status, const char *part)
{
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, two_are_over, calls));
    for (uint32_t i = 0; i < 2; i++) {
        if (calls[i].status != status || strstr(calls[i].text, part) == NULL) {
            fail_msg("%s, not %s with \"%s\": %s", trib_status_name(calls[i].status), trib_status_name(status), part,
                     calls[i].text);
        }
        trib_op_release(calls[i].op);
    }
}

static sim_job *open_two(void)
{
    sim_job_config config = sim_job_config_default(2, 0);
    config.engine.colocate = TRIB_COLOCATE_ON;
    return sim_bed_open(&config);
}

static void wrong_calls_are_told(void **state)
{
    (void)state;
    sim_job *job = open_two();
    trib_error error = {.text = ""};
    call calls[2];
    exchange sums[2] = {{.done = 0}, {.done = 0}};
    int32_t buffers[2][100] = {{0}};
    /* another place of the program */
    for (uint32_t i = 0; i < 2; i++) {
        sums[i].buffer = buffers[i];
    }
    sim_bed_submit(job, 1, "a", 100, &sums[1], 0);
    sim_bed_submit(job, 0, "b", 100, &sums[0], 0);
    assert_int_equal(begin_call(job, 0, 1, SECOND, &calls[0], &error), TRIB_OK);
    assert_int_equal(begin_call(job, 1, 1, SECOND, &calls[1], &error), TRIB_OK);
    trib_error again = {.text = ""};
    call third;
    assert_int_equal(begin_call(job, 0, 1, 0, &third, &again), TRIB_STATE);
    assert_non_null(strstr(again.text, "still under way"));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, two_are_over, calls));
    assert_int_equal(calls[0].status, TRIB_TIMEOUT);
    assert_non_null(strstr(calls[0].text, "1 operations that this worker has submitted before"));
    trib_op_release(calls[0].op);
    trib_op_release(calls[1].op);
    sim_bed_submit(job, 0, "a", 100, &sums[0], 0);
    sim_bed_submit(job, 1, "b", 100, &sums[1], 0);
    assert_int_equal(begin_call(job, 0, 1, 0, &calls[0], &error), TRIB_OK);
    sim_bed_submit(job, 0, "c", 100, &sums[0], 0);
    sim_bed_submit(job, 1, "c", 100, &sums[1], 0);
    assert_int_equal(begin_call(job, 1, 1, 0, &calls[1], &error), TRIB_OK);
    expect_calls(job, calls, TRIB_MISMATCH, "rank 1 has submitted 3 operations among all workers, and rank 0 2");
    assert_int_equal(begin_call(job, 0, 7, 0, &calls[0], &error), TRIB_OK);
    assert_int_equal(begin_call(job, 1, 8, 0, &calls[1], &error), TRIB_OK);
    expect_calls(job, calls, TRIB_MISMATCH, "step 7");
    assert_int_equal(begin_call(job, 0, 9, 0, &calls[0], &error), TRIB_OK);
    assert_int_equal(begin_call(job, 1, 9, 0, &calls[1], &error), TRIB_OK);
    expect_calls(job, calls, TRIB_OK, "");
    uint32_t rounds = 0;
    assert_int_equal(trib_tensor_rounds(sim_bed_declare(job, 0, "b", 100), &rounds, &error), TRIB_OK);
    assert_int_equal(rounds, 1);
    /* only one calls */
    assert_int_equal(begin_call(job, 0, 10, 2 * SECOND, &calls[0], &error), TRIB_OK);
    calls[1] = (call){.is_over = true, .status = TRIB_TIMEOUT, .text = "rank 1"};
    expect_calls(job, calls, TRIB_TIMEOUT, "rank 1");
    assert_true(sim_job_close(job, 60 * SECOND));
    assert_int_equal(begin_call(job, 0, 1, 0, &third, &error), TRIB_CLOSED);
    sim_job_free(job);
}

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void listen_to_log(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->log_level = member == 0 ? TRIB_LOG_WARN : config->log_level;
    config->log_cb = member == 0 ? on_log : config->log_cb;
}

/* The first call of a job, too: the log says whom it waits for. */
static void missing_caller_is_named(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(2, 1);
    config.tweak = listen_to_log;
    sim_job *job = sim_bed_open(&config);
    trib_error error = {.text = ""};
    call calls[2];
    assert_int_equal(begin_call(job, 0, 1, -1, &calls[0], &error), TRIB_OK);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 40 * SECOND, NULL, NULL);
    if (strstr(last_line, "stalled") == NULL || strstr(last_line, "__checkpoint") == NULL ||
        strstr(last_line, "lacked the contribution of rank 1") == NULL) {
        fail_msg("the log says: %s", last_line);
    }
    assert_int_equal(begin_call(job, 1, 1, -1, &calls[1], &error), TRIB_OK);
    expect_calls(job, calls, TRIB_OK, "");
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void joined_worker_counts_as_come(void **state)
{
    (void)state;
    sim_job *job = open_two();
    trib_error error = {.text = ""};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    exchange sums[2] = {{.done = 0}, {.done = 0}};
    int32_t buffer[100] = {0};
    call calls[2], joins[2] = {{.status = TRIB_PENDING}, {.status = TRIB_PENDING}};
    params.done_cb = on_call;
    params.user = &joins[1];
    assert_int_equal(trib_join(job->members[1].engine, &params, &joins[1].op, &error), TRIB_OK);
    assert_int_equal(begin_call(job, 1, 1, 0, &calls[1], &error), TRIB_STATE);
    sums[0].buffer = buffer;
    sim_bed_submit(job, 0, "a", 100, &sums[0], 0);
    assert_int_equal(begin_call(job, 0, 1, 0, &calls[0], &error), TRIB_OK);
    calls[1] = (call){.is_over = true};
    expect_calls(job, calls, TRIB_OK, "");
    params.user = &joins[0];
    assert_int_equal(trib_join(job->members[0].engine, &params, &joins[0].op, &error), TRIB_OK);
    expect_calls(job, joins, TRIB_OK, "");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(begin_call(job, i, 2, 0, &calls[i], &error), TRIB_OK);
    }
    expect_calls(job, calls, TRIB_OK, "");
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void on_failed(const trib_result *result, void *user)
{
    trib_status *status = user;
    *status = result->status;
}

static bool both_have_failed(sim_job *job, void *argument)
{
    (void)job;
    const trib_status *statuses = argument;
    return statuses[0] != TRIB_PENDING && statuses[1] != TRIB_PENDING;
}

static void begin_sum(sim_job *job, uint32_t rank, const char *name, uint32_t count, int32_t *buffer,
                      trib_status *status)
{
    trib_error error = {.text = ""};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.name_length = 1;
    desc.dtype = TRIB_INT32;
    desc.count = count;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = buffer;
    params.timeout_ns = 5 * SECOND;
    params.done_cb = on_failed;
    params.user = status;
    *status = TRIB_PENDING;
    assert_int_equal(trib_tensor_declare(job->members[rank].engine, &desc, &params.tensor, &error), TRIB_OK);
    assert_int_equal(trib_push_pull(job->members[rank].engine, &params, NULL, &error), TRIB_OK);
}

static void begin_calls(sim_job *job, uint32_t step, call *calls)
{
    trib_error error = {.text = ""};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(begin_call(job, i, step, 0, &calls[i], &error), TRIB_OK);
    }
}

/* The workers differ in a shape of one name, and go on: all have failed alike. */
static void shapes_that_differed_are_over(void **state)
{
    (void)state;
    sim_job *job = open_two();
    int32_t buffers[2][100] = {{0}};
    trib_status statuses[2];
    call calls[2];
    for (uint32_t use = 0; use < 3; use++) {
        begin_sum(job, 0, use == 1 ? "g#2" : "g#1", use == 1 ? 2 : 1, buffers[0], &statuses[0]);
        begin_sum(job, 1, use == 0 ? "g#1" : "g#2", use == 0 ? 1 : 2, buffers[1], &statuses[1]);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, both_have_failed, statuses));
    }
    assert_int_equal(statuses[0], TRIB_MISMATCH);
    assert_int_equal(statuses[1], TRIB_MISMATCH);
    begin_calls(job, 1, calls);
    expect_calls(job, calls, TRIB_OK, "");
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* The workers wait for each other under different names until their deadlines. One boundary says so. */
static void names_that_differed_are_told_once(void **state)
{
    (void)state;
    sim_job *job = open_two();
    int32_t buffers[2][100] = {{0}};
    trib_status statuses[2];
    call calls[2];
    begin_sum(job, 0, "a", 1, buffers[0], &statuses[0]);
    begin_sum(job, 1, "b", 1, buffers[1], &statuses[1]);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, both_have_failed, statuses));
    begin_calls(job, 1, calls);
    expect_calls(job, calls, TRIB_MISMATCH, "have finished as many operations, but not the same");
    for (uint32_t step = 2; step < 4; step++) {
        begin_calls(job, step, calls);
        expect_calls(job, calls, TRIB_OK, "");
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static bool is_done(sim_job *job, void *argument)
{
    (void)job;
    return *(const trib_status *)argument != TRIB_PENDING;
}

/* The rank gives up an operation to which it has contributed, and the other one has the sum. */
static void fail_on(sim_job *job, uint32_t rank, const char *name, uint32_t known_from)
{
    int32_t buffers[2][100] = {{0}};
    trib_status statuses[2] = {TRIB_PENDING, TRIB_PENDING};
    trib_error error = {.text = ""};
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = i == 0 ? rank : 1 - rank;
        trib_op *op = NULL;
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.name_begin = known_from;
        desc.name_length = 1;
        desc.dtype = TRIB_INT32;
        desc.count = 100;
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.input = params.output = buffers[at];
        params.done_cb = on_failed;
        params.user = &statuses[at];
        assert_int_equal(trib_tensor_declare(job->members[at].engine, &desc, &params.tensor, &error), TRIB_OK);
        assert_int_equal(trib_push_pull(job->members[at].engine, &params, &op, &error), TRIB_OK);
        if (i == 0) {
            (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
            trib_op_cancel(op);
        }
        trib_op_release(op);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, is_done, &statuses[at]));
        assert_int_equal(statuses[at], i == 0 ? TRIB_CANCELLED : TRIB_OK);
    }
}

/* Each rank has failed one operation that the other has the result of: on tensors of one name, or on one tensor. */
static void other_failures_are_told(void **state)
{
    (void)state;
    sim_job *job = open_two();
    call calls[2];
    fail_on(job, 0, "sum.w", 4);
    fail_on(job, 1, "cast.w", 5);
    begin_calls(job, 1, calls);
    expect_calls(job, calls, TRIB_MISMATCH, "not the same");
    fail_on(job, 0, "w", 0);
    fail_on(job, 1, "w", 0);
    begin_calls(job, 2, calls);
    expect_calls(job, calls, TRIB_MISMATCH, "not the same");
    begin_calls(job, 3, calls);
    expect_calls(job, calls, TRIB_OK, "");
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- Operations that fail while a boundary waits for them ---- */

typedef struct sum {
    trib_op *op;
    trib_status status;
    int32_t buffer[100];
} sum;

static void submit_sum(sim_job *job, uint32_t rank, const char *name, sum *self)
{
    trib_error error = {.text = ""};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    *self = (sum){.status = TRIB_PENDING};
    params.tensor = sim_bed_declare(job, rank, name, 100);
    params.input = params.output = self->buffer;
    params.done_cb = on_failed;
    params.user = &self->status;
    assert_int_equal(trib_push_pull(job->members[rank].engine, &params, &self->op, &error), TRIB_OK);
}

/* Each rank sums one of the tensors, and has that sum before the other one has it. */
static bool owners_are_done(sim_job *job, void *argument)
{
    const sum(*sums)[2] = argument;
    (void)job;
    return sums[0][0].status == TRIB_OK && sums[1][1].status == TRIB_OK;
}

/* Finds for each rank a tensor that it sums. All are declared, and have had a round. */
static void find_owned(sim_job *job, const char *owned[2])
{
    static const char *const names[] = {"a", "b", "c", "d"};
    static sum sums[2];
    owned[0] = owned[1] = NULL;
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            submit_sum(job, rank, names[i], &sums[rank]);
        }
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, is_done, &sums[rank].status));
            trib_op_release(sums[rank].op);
        }
        const trib_engine *engine = job->members[0].engine;
        for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
            const trib_tensor *tensor = engine->tensors[tag];
            if (strcmp(tensor->name, names[i]) == 0) {
                owned[tensor->owners[0].member] = names[i];
            }
        }
    }
    assert_true(owned[0] != NULL && owned[1] != NULL);
}

/* Each rank has called, and gives up the operation that the other one has the result of. */
static void failures_behind_the_call_are_compared(void **state)
{
    (void)state;
    sim_job *job = open_two();
    const char *owned[2];
    sum sums[2][2]; /* by rank, and who sums it */
    call calls[2];
    find_owned(job, owned);
    for (uint32_t i = 0; i < 4; i++) {
        submit_sum(job, i / 2, owned[i % 2], &sums[i / 2][i % 2]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, owners_are_done, sums));
    begin_calls(job, 1, calls);
    trib_op_cancel(sums[0][1].op);
    trib_op_cancel(sums[1][0].op);
    expect_calls(job, calls, TRIB_MISMATCH, "not the same");
    assert_int_equal(sums[0][1].status, TRIB_CANCELLED);
    assert_int_equal(sums[1][0].status, TRIB_CANCELLED);
    begin_calls(job, 2, calls);
    expect_calls(job, calls, TRIB_OK, "");
    for (uint32_t i = 0; i < 4; i++) {
        trib_op_release(sums[i / 2][i % 2].op);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* A boundary that fails itself, as it still waits for another operation, leaves it to the next one to tell of that. */
static void a_later_boundary_tells_of_them(void **state)
{
    (void)state;
    sim_job *job = open_two();
    trib_error error = {.text = ""};
    sum sums[2][2]; /* by rank */
    call calls[2];
    submit_sum(job, 0, "a", &sums[0][0]);
    submit_sum(job, 0, "b", &sums[0][1]);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    assert_int_equal(begin_call(job, 0, 1, SECOND, &calls[0], &error), TRIB_OK);
    trib_op_cancel(sums[0][0].op);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
    assert_int_equal(sums[0][0].status, TRIB_CANCELLED);
    submit_sum(job, 1, "a", &sums[1][0]);
    submit_sum(job, 1, "b", &sums[1][1]);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, is_done, &sums[0][1].status));
    assert_int_equal(begin_call(job, 1, 1, SECOND, &calls[1], &error), TRIB_OK);
    expect_calls(job, calls, TRIB_TIMEOUT, "");
    assert_int_equal(sums[1][0].status, TRIB_OK);
    assert_int_equal(sums[1][1].status, TRIB_OK);
    begin_calls(job, 2, calls);
    expect_calls(job, calls, TRIB_MISMATCH, "1 operations have failed on rank 0");
    begin_calls(job, 3, calls);
    expect_calls(job, calls, TRIB_OK, "");
    for (uint32_t i = 0; i < 4; i++) {
        trib_op_release(sums[i / 2][i % 2].op);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_calls_are_told),
        cmocka_unit_test(missing_caller_is_named),
        cmocka_unit_test(joined_worker_counts_as_come),
        cmocka_unit_test(shapes_that_differed_are_over),
        cmocka_unit_test(names_that_differed_are_told_once),
        cmocka_unit_test(other_failures_are_told),
        cmocka_unit_test(failures_behind_the_call_are_compared),
        cmocka_unit_test(a_later_boundary_tells_of_them),
    };
    return cmocka_run_group_tests_name("calls of trib_checkpoint", tests, NULL, NULL);
}
