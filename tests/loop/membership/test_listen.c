/* test_listen.c - with several addresses to listen on, each reactor has one as its own and the others as further
 * paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/core/core.h"
#include "tests/loop/job.h"

#define COUNT 100000

static uint32_t reactors;

static void on_two_addresses(trib_config *config, int member)
{
    (void)member;
    config->listen = "127.0.0.1,127.0.0.2";
    config->reactors = reactors;
}

/* Address 0 is 127.0.0.1. */
static void assert_listens(const trib_engine *engine, uint32_t reactor, uint32_t address)
{
    const char *text = engine->cores[reactor].host.address.text;
    assert_memory_equal(text, address == 0 ? "127.0.0.1:" : "127.0.0.2:", 10);
    assert_memory_equal(strchr(text, ',') + 1, address == 0 ? "127.0.0.2:" : "127.0.0.1:", 10);
}

static void assert_sums(job *jobs)
{
    float *data[2] = {calloc(COUNT, sizeof(float)), calloc(COUNT, sizeof(float))};
    trib_op *ops[2];
    for (int i = 0; i < 2; i++) {
        assert_non_null(data[i]);
        data[i][COUNT - 1] = (float)(i + 1);
        trib_tensor *tensor = job_declare(jobs->engines[i], "weights", TRIB_FLOAT32, COUNT);
        ops[i] = job_push_pull(jobs->engines[i], tensor, data[i], data[i], TRIB_SUM);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        assert_true(data[i][COUNT - 1] == 3);
        free(data[i]);
    }
}

/* No NIC has these addresses, so none is nearer than another. */
static void reactors_take_turns(void **state)
{
    (void)state;
    job jobs;
    reactors = 3;
    job_open(&jobs, 2, 0, on_two_addresses);
    for (int member = 0; member < 2; member++) {
        for (uint32_t i = 0; i < 3; i++) {
            assert_listens(jobs.engines[member], i, i % 2);
        }
    }
    assert_sums(&jobs);
    job_close(&jobs);
}

/* The assignment continues where the previous process of the same launcher ended. */
static void processes_take_turns(void **state)
{
    (void)state;
    job jobs;
    reactors = 1;
    assert_int_equal(setenv("TRIB_LOCAL_RANK", "1", 1), 0);
    assert_int_equal(setenv("TRIB_LOCAL_COUNT", "2", 1), 0);
    job_open(&jobs, 2, 0, on_two_addresses);
    assert_listens(jobs.engines[0], 0, 1);
    assert_sums(&jobs);
    job_close(&jobs);
    assert_int_equal(unsetenv("TRIB_LOCAL_RANK"), 0);
    assert_int_equal(unsetenv("TRIB_LOCAL_COUNT"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reactors_take_turns),
        cmocka_unit_test(processes_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
