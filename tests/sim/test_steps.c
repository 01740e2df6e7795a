/* test_steps.c - training steps in virtual time: how long they take, and the errors of steps that do not end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

/* All tensors are ready at once and bytes matter more than latencies, so the links are full, whoever sums. In virtual
 * time this is arithmetic, not a race. */
static void links_are_full(void **state)
{
    (void)state;
    enum { TENSORS = 16, MIB = 1 << 20 };
    study_model *model = calloc(1, sizeof *model + TENSORS * sizeof model->tensors[0]);
    assert_non_null(model);
    model->count = TENSORS;
    model->bytes = (uint64_t)TENSORS * 16 * MIB;
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(model->tensors[i].name, sizeof model->tensors[i].name, "t%u", i);
        model->tensors[i].bytes = 16 * MIB;
    }
    static const uint32_t members[][2] = {{4, 0}, {4, 2}, {4, 4}, {3, 1}, {2, 1}, {6, 5}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        study_step_config config = {.job = sim_job_config_default(members[i][0], members[i][1]),
                                    .model = model,
                                    .iterations = 1,
                                    .priorities = true,
                                    .codec_ratio = 1};
        config.job.cores = 32;
        config.job.costs = trib_sim_costs_rdma();
        study_step_result result;
        trib_error error = {.status = TRIB_OK};
        if (study_step_run(&config, &result, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        const double ratio = (double)result.step_ns / result.t_opt_ns;
        print_message("# %u workers + %u servers: %.3f t_opt\n", members[i][0], members[i][1], ratio);
        assert_true(ratio < 1.05);
    }
    free(model);
}

/* A model of many small gradients between large ones, on a worker that computes with delays of its own. */
static study_model *make_late_model(uint32_t rank)
{
    enum { GRADIENTS = 160, US = 1000 };
    study_model *model = calloc(1, sizeof *model + GRADIENTS * sizeof model->tensors[0]);
    assert_non_null(model);
    int64_t ready_ns = (int64_t)rank * 3000 * US; /* it begins late */
    model->count = GRADIENTS;
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        study_tensor *tensor = &model->tensors[i];
        ready_ns += (int64_t)(50 + (i * 7 + rank * 5) % 13 * 15) * US;
        snprintf(tensor->name, sizeof tensor->name, "t%u", i);
        tensor->bytes = i % 3 == 0 ? (UINT64_C(4) << 20) / (1 + i / 20) : 2048;
        tensor->ready_ns = ready_ns;
        model->bytes += tensor->bytes;
    }
    model->forward_ns = model->backward_ns = ready_ns;
    return model;
}

static int64_t time_late_steps(uint32_t workers, uint32_t servers, bool priorities)
{
    study_model *models[3];
    for (uint32_t i = 0; i < workers; i++) {
        models[i] = make_late_model(i);
    }
    study_step_config config = {.job = sim_job_config_default(workers, servers),
                                .model = models[0],
                                .models = (const study_model *const *)models,
                                .iterations = 1,
                                .priorities = priorities,
                                .codec_ratio = 1};
    config.job.link.egress_bits = config.job.link.ingress_bits = UINT64_C(1000000000);
    study_step_result result;
    trib_error error = {.status = TRIB_OK};
    if (study_step_run(&config, &result, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    print_message("# %u workers + %u servers, priorities %d: %.1f ms; %.3f of t_opt and computing\n", workers, servers,
                  priorities, (double)result.step_ns / 1e6,
                  (double)result.step_ns / (result.t_opt_ns + (double)result.compute_ns));
    for (uint32_t i = 0; i < workers; i++) {
        free(models[i]);
    }
    return result.step_ns;
}

/* In the backward pass each new gradient is the most urgent one. Workers that compute at different times then send
 * different gradients, so no sum is complete and the servers' way out stands idle, until all workers have all. A step
 * must not take much longer for that. */
static void priorities_cost_little(void **state)
{
    (void)state;
    static const uint32_t members[][2] = {{3, 0}, {3, 1}, {3, 2}, {3, 3}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const int64_t with = time_late_steps(members[i][0], members[i][1], true);
        const int64_t without = time_late_steps(members[i][0], members[i][1], false);
        assert_true((double)with / (double)without < 1.02);
    }
}

static void remember_job(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)member;
    (void)config;
    (void)link;
    *(sim_job **)job->config.user = job;
}

static void kill_all(void *user, uint32_t iteration, uint32_t iterations)
{
    (void)iterations;
    sim_job *job = *(sim_job **)user;
    for (uint32_t i = 0; i < job->member_count && iteration == 1; i++) {
        sim_job_kill(job, i);
    }
}

/* No deadline passes, because no member is left. */
static void steps_that_stand_still_are_told(void **state)
{
    (void)state;
    study_model *model = calloc(1, sizeof *model + sizeof model->tensors[0]);
    assert_non_null(model);
    model->count = 1;
    model->bytes = model->tensors[0].bytes = 4096;
    snprintf(model->tensors[0].name, sizeof model->tensors[0].name, "t");
    sim_job *job = NULL;
    study_step_config config = {.job = sim_job_config_default(2, 0),
                                .model = model,
                                .iterations = 3,
                                .codec_ratio = 1,
                                .progress = kill_all,
                                .user = &job};
    config.job.tweak = remember_job;
    config.job.user = &job;
    study_step_result result;
    trib_error error = {.text = ""};
    assert_int_equal(study_step_run(&config, &result, &error), TRIB_TIMEOUT);
    assert_non_null(strstr(error.text, "no event is left"));
    free(model);
}

static uint32_t looks, looks_fine;

static study_memory look_at_nothing(void)
{
    const bool fine = looks++ < looks_fine;
    return (study_memory){.taken = UINT64_C(1) << 34, .left = fine ? UINT64_C(1) << 34 : UINT64_C(1) << 28};
}

/* The first check is for the memory that the study is sure to need. Memory runs out while the members join, while they
 * declare, and during steps. */
static void steps_that_take_too_much_memory_are_told(void **state)
{
    (void)state;
    study_model *model = calloc(1, sizeof *model + sizeof model->tensors[0]);
    assert_non_null(model);
    model->count = 1;
    model->bytes = model->tensors[0].bytes = 4 << 20;
    snprintf(model->tensors[0].name, sizeof model->tensors[0].name, "t");
    const study_step_config config = {.job = sim_job_config_default(3, 1),
                                      .model = model,
                                      .iterations = 100,
                                      .codec_ratio = 1,
                                      .look = look_at_nothing};
    for (looks_fine = 1; looks_fine < 7; looks_fine++) {
        study_step_result result;
        trib_error error = {.text = ""};
        looks = 0;
        assert_int_equal(study_step_run(&config, &result, &error), TRIB_NO_MEMORY);
        assert_string_equal(error.text, "3 workers and 1 servers with 1 gradients need more memory than there is: "
                                        "16.0 GiB are taken, 0.2 GiB left");
        assert_int_equal(looks, looks_fine + 1);
    }
    free(model);
}

/* A study that is sure to take more memory than there is ends at the first look, before any member joins. */
static void steps_that_cannot_fit_are_told_before(void **state)
{
    (void)state;
    enum { GRADIENTS = 1500 };
    study_model *model = calloc(1, sizeof *model + GRADIENTS * sizeof model->tensors[0]);
    assert_non_null(model);
    model->count = GRADIENTS;
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        snprintf(model->tensors[i].name, sizeof model->tensors[i].name, "t%u", i);
        model->tensors[i].bytes = 4096;
    }
    const study_step_config config = {.job = sim_job_config_default(2048, 0),
                                      .model = model,
                                      .iterations = 1,
                                      .codec_ratio = 1,
                                      .look = look_at_nothing};
    study_step_result result;
    trib_error error = {.text = ""};
    looks = looks_fine = 0;
    assert_int_equal(study_step_run(&config, &result, &error), TRIB_NO_MEMORY);
    assert_int_equal(looks, 1);
    assert_memory_equal(error.text, "2048 workers and 0 servers with 1500 gradients need at least ", 61);
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_full),
        cmocka_unit_test(priorities_cost_little),
        cmocka_unit_test(steps_that_stand_still_are_told),
        cmocka_unit_test(steps_that_take_too_much_memory_are_told),
        cmocka_unit_test(steps_that_cannot_fit_are_told_before),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
