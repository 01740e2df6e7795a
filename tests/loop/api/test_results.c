/* test_results.c - the contents of results and of trib_engine_info, and the priority of an operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/handle.h"
#include "engine/worker/op.h"
#include "tests/loop/job.h"

enum { WORKERS = 3 };

static void keep_contributors(const trib_result *result, void *user)
{
    *(uint32_t *)user = result->contributors;
}

typedef trib_status (*submit)(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error);

/* Returns the value on which all workers' results agree. */
static uint32_t contributors_of(const job *jobs, submit submits)
{
    float data[WORKERS] = {0};
    uint32_t seen[WORKERS] = {0};
    trib_op *ops[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = job_declare(jobs->engines[rank], "t", TRIB_FLOAT32, 1);
        params.input = params.output = &data[rank];
        params.root = 1;
        params.done_cb = keep_contributors;
        params.user = &seen[rank];
        assert_int_equal(submits(jobs->engines[rank], &params, &ops[rank], NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(job_wait(ops[rank], NULL), TRIB_OK);
        assert_int_equal(seen[rank], seen[0]);
    }
    return seen[0];
}

static void contributors(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, 0, NULL);
    assert_int_equal(contributors_of(&jobs, trib_push_pull), WORKERS);
    assert_int_equal(contributors_of(&jobs, trib_broadcast), 1);
    assert_int_equal(contributors_of(&jobs, trib_barrier), WORKERS);
    job_close(&jobs);
}

static void ranks_on_the_machine(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, 1, NULL);
    for (int i = 0; i < WORKERS + 1; i++) {
        trib_engine_info info = {.struct_size = sizeof info};
        assert_int_equal(trib_engine_get_info(jobs.engines[i], &info), TRIB_OK);
        const bool is_worker = i < WORKERS; /* all workers listen at one address, so they are on one machine */
        assert_int_equal(info.local_rank, is_worker ? i : -1);
        assert_int_equal(info.local_size, is_worker ? WORKERS : 0);
        assert_int_equal(info.cross_rank, is_worker ? 0 : -1);
        assert_int_equal(info.cross_size, is_worker ? 1 : 0);
    }
    job_close(&jobs);
}

static trib_tensor *declare(trib_engine *engine, int32_t priority)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "t";
    desc.count = 1;
    desc.priority = priority;
    trib_tensor *tensor = NULL;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static void later_priority_holds(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, NULL);
    static const int32_t priorities[] = {3, -7, 0};
    for (int i = 0; i < 3; i++) {
        float data = 0;
        trib_op *op = job_push_pull(jobs.engines[0], declare(jobs.engines[0], priorities[i]), &data, &data, TRIB_SUM);
        const trib_op *of = trib_handle_find((uintptr_t)op, TRIB_HANDLE_OP);
        assert_int_equal(of->priority, priorities[i]);
        assert_int_equal(job_wait(op, NULL), TRIB_OK);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contributors),
        cmocka_unit_test(ranks_on_the_machine),
        cmocka_unit_test(later_priority_holds),
    };
    return cmocka_run_group_tests_name("results", tests, NULL, NULL);
}
