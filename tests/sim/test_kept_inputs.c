/*
 * test_kept_inputs.c - memory for copies of inputs that operations in place overwrite, where operations go on after a
 * loss (TRIB_SURVIVE=continue): one for each operation that is under way at a time, however many follow, and none once
 * the tensor is released, or where a loss ends the operations.
 */
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 2, COUNT = 12345, AT_ONCE = 5, TURNS = 20, COPIES_MAX = 64 };

static struct {
    void *copies[COPIES_MAX]; /* that are there */
    uint32_t taken, there, most;
} seen;

__typeof__(malloc) __real_malloc, __wrap_malloc;
void *__wrap_malloc(size_t size)
{
    void *memory = __real_malloc(size);
    if (size == COUNT * sizeof(int32_t) && memory != NULL) {
        assert_true(seen.there < COPIES_MAX);
        seen.copies[seen.there++] = memory;
        seen.taken++;
        seen.most = seen.there > seen.most ? seen.there : seen.most;
    }
    return memory;
}

__typeof__(free) __real_free, __wrap_free;
void __wrap_free(void *memory)
{
    for (uint32_t i = 0; memory != NULL && i < seen.there; i++) {
        if (seen.copies[i] == memory) {
            seen.copies[i] = seen.copies[--seen.there];
        }
    }
    __real_free(memory);
}

static bool all_are_done(sim_job *job, void *argument)
{
    const exchange *exchanges = argument;
    bool are = true;
    (void)job;
    for (uint32_t i = 0; i < WORKERS * AT_ONCE; i++) {
        are = are && exchanges[i].done > 0;
    }
    return are;
}

static void run(trib_survive survive, uint32_t expected)
{
    static int32_t buffers[WORKERS * AT_ONCE][COUNT];
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = survive;
    sim_job *job = sim_bed_open(&config);
    trib_error error = {.status = TRIB_OK};
    seen.taken = seen.there = seen.most = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        exchange exchanges[WORKERS * AT_ONCE];
        for (uint32_t i = 0; i < WORKERS * AT_ONCE; i++) {
            exchanges[i] = (exchange){.buffer = buffers[i], .reduce = TRIB_SUM};
            sim_bed_submit(job, i % WORKERS, "x", COUNT, &exchanges[i], 0);
        }
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, all_are_done, exchanges));
    }
    assert_int_equal(seen.most, expected);
    assert_int_equal(seen.taken, expected);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(trib_tensor_release(sim_bed_declare(job, i, "x", COUNT), &error), TRIB_OK);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_int_equal(seen.there, 0);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void one_for_each_operation_under_way(void **state)
{
    (void)state;
    run(TRIB_SURVIVE_CONTINUE, WORKERS * AT_ONCE);
    run(TRIB_SURVIVE_WORKERS, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_for_each_operation_under_way)};
    return cmocka_run_group_tests_name("kept inputs", tests, NULL, NULL);
}
