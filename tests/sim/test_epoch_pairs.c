/*
 * test_epoch_pairs.c - a tensor has splits for three workers (TRIB_PAIRS), and one of them is lost in a job whose
 * operations go on. Nothing can be exchanged with it any more, and it is declared anew for two.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, LEFT = WORKERS - 1 };

typedef struct outcome {
    uint32_t done;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
} outcome;

static void on_done(const trib_result *result, void *user)
{
    outcome *self = user;
    self->done++;
    self->status = result->status;
    snprintf(self->text, sizeof self->text, "%s", result->text);
}

static bool are_over(sim_job *job, void *argument)
{
    const outcome *outcomes = argument;
    bool over = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        over = over && (job->members[i].killed || outcomes[i].done > 0);
    }
    return over;
}

static bool has_next_epoch(sim_job *job, void *argument)
{
    (void)argument;
    bool has = true;
    for (uint32_t i = 0; i < LEFT; i++) {
        const trib_engine *engine = job->members[i].engine;
        has = has && trib_epoch_number(engine->roster->epoch) == 2 && !atomic_load(&engine->changing);
    }
    return has;
}

static trib_tensor *declare(const sim_job *job, uint32_t rank, uint32_t workers)
{
    const uint64_t splits[WORKERS] = {1, 1, 1};
    trib_error error = {.text = ""};
    trib_tensor *tensor = NULL;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "pairs";
    desc.dtype = TRIB_INT32;
    desc.layout = TRIB_PAIRS;
    desc.splits = splits;
    desc.split_count = workers;
    if (trib_tensor_declare(job->members[rank].engine, &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

static void exchange_all(sim_job *job, trib_tensor *tensors[WORKERS], uint32_t workers, outcome outcomes[WORKERS])
{
    static int32_t input[WORKERS][WORKERS], output[WORKERS][WORKERS];
    for (uint32_t i = 0; i < workers; i++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensors[i];
        params.input = input[i];
        params.output = output[i];
        params.output_bytes = sizeof output[i];
        params.done_cb = on_done;
        params.user = &outcomes[i];
        outcomes[i].done = 0;
        assert_int_equal(trib_all_to_all(job->members[i].engine, &params, NULL, NULL), TRIB_OK);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, are_over, outcomes));
}

static void splits_are_for_those_that_were_there(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    sim_job *job = sim_bed_open(&config);
    trib_tensor *tensors[WORKERS];
    outcome outcomes[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        tensors[i] = declare(job, i, WORKERS);
    }
    exchange_all(job, tensors, WORKERS, outcomes);
    sim_job_kill(job, LEFT);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, has_next_epoch, NULL));
    exchange_all(job, tensors, LEFT, outcomes);
    for (uint32_t i = 0; i < LEFT; i++) {
        assert_int_equal(outcomes[i].status, TRIB_STATE);
        assert_non_null(strstr(outcomes[i].text, "its splits are for another number of workers"));
        assert_int_equal(trib_tensor_release(tensors[i], NULL), TRIB_OK);
        tensors[i] = declare(job, i, LEFT);
    }
    exchange_all(job, tensors, LEFT, outcomes);
    assert_int_equal(outcomes[0].status, TRIB_OK);
    assert_int_equal(outcomes[1].status, TRIB_OK);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(splits_are_for_those_that_were_there)};
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
