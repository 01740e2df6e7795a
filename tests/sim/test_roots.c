/* test_roots.c - a broadcast whose members name different roots ends alike on all of them, whoever comes last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS_MAX = 4, COUNT = 200000 };

typedef struct heard {
    uint32_t done;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
} heard;

static void on_done(const trib_result *result, void *user)
{
    heard *self = user;
    self->done++;
    self->status = result->status;
    snprintf(self->text, sizeof self->text, "%s", result->text);
}

static void submit(sim_job *job, uint32_t rank, int32_t root, int32_t *buffer, heard *what)
{
    trib_error error = {.text = ""};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = sim_bed_declare(job, rank, "weights", COUNT);
    params.input = params.output = buffer;
    params.root = root;
    params.done_cb = on_done;
    params.user = what;
    *what = (heard){.done = 0};
    assert_int_equal(trib_broadcast(job->members[rank].engine, &params, NULL, &error), TRIB_OK);
}

static bool all_heard(sim_job *job, void *argument)
{
    const heard *what = argument;
    uint32_t done = 0;
    for (uint32_t i = 0; i < job->config.workers; i++) {
        done += what[i].done;
    }
    return done == job->config.workers;
}

/* The rank `odd` comes last and names the root 1, all others before it the root 0. Then all name the root 0. */
static void disagree(const sim_job_config *config, uint32_t odd)
{
    sim_job *job = sim_bed_open(config);
    int32_t *buffers[WORKERS_MAX];
    heard what[WORKERS_MAX] = {{0}};
    char mine[16];
    snprintf(mine, sizeof mine, "rank %u says", odd);
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        buffers[rank] = calloc(COUNT, sizeof(int32_t));
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t rank = 0; rank < config->workers; rank++) {
            if (rank != odd) {
                submit(job, rank, 0, buffers[rank], &what[rank]);
            }
        }
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        submit(job, odd, round == 0 ? 1 : 0, buffers[odd], &what[odd]);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, all_heard, what));
        for (uint32_t rank = 0; rank < config->workers; rank++) {
            assert_int_equal(what[rank].status, round == 0 ? TRIB_MISMATCH : TRIB_OK);
            assert_true(round > 0 || (strstr(what[rank].text, "from rank 0") != NULL &&
                                      strstr(what[rank].text, "from rank 1") != NULL &&
                                      (config->per_machine > 0 || strstr(what[rank].text, mine) != NULL)));
        }
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        free(buffers[rank]);
    }
}

static void workers_apart(void **state)
{
    (void)state;
    for (uint32_t odd = 0; odd < 3; odd++) {
        sim_job_config config = sim_job_config_default(3, odd % 2);
        disagree(&config, odd);
    }
}

static void workers_of_machines(void **state)
{
    (void)state;
    for (uint32_t odd = 0; odd < 4; odd++) {
        sim_job_config config = sim_job_config_default(4, odd % 2);
        config.per_machine = 2;
        config.engine.local_sum = TRIB_LOCAL_SUM_ON;
        config.engine.reactors = 1;
        disagree(&config, odd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workers_apart), cmocka_unit_test(workers_of_machines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
