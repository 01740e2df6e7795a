/* test_uneven.c - the links of one recording differ. A replay gives all links one rate, and warns of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/study/replay.h"

enum { WORKERS = 4, TENSORS = 4, SLOW = 2 };

static char folder[64], pattern[80];
static char paths[WORKERS][96];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/trib-uneven-%d", (int)getpid());
    snprintf(pattern, sizeof pattern, "%s/%%r", folder);
    for (uint32_t i = 0; i < WORKERS; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/rank%u", folder, i);
    }
    return mkdir(folder, 0700);
}

static int remove_folder(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WORKERS; i++) {
        unlink(paths[i]);
    }
    return rmdir(folder);
}

/* Configures the links; passed as `user`. */
typedef struct weather {
    bool is_slow, is_told;
} weather;

static void set_link(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const weather *self = job->config.user;
    if (member == SLOW && self->is_slow) {
        link->egress_bits /= 4;
        link->ingress_bits /= 4;
    }
    config->bandwidth_bits = self->is_told ? link->egress_bits : 0;
}

static const char *said_of(weather *self, study_replay *replay)
{
    study_model *model = calloc(1, sizeof *model + TENSORS * sizeof model->tensors[0]);
    assert_non_null(model);
    snprintf(model->name, sizeof model->name, "four");
    model->forward_ns = model->backward_ns = 1000000;
    model->count = TENSORS;
    for (uint32_t i = 0; i < TENSORS; i++) {
        study_tensor *tensor = &model->tensors[i];
        *tensor = (study_tensor){.bytes = 8 << 20, .ready_ns = 250000 * (int64_t)(i + 1)};
        snprintf(tensor->name, sizeof tensor->name, "tensor%u", i);
        model->bytes += tensor->bytes;
    }
    study_step_config config = {.job = sim_job_config_default(WORKERS, 0),
                                .model = model,
                                .iterations = 12,
                                .priorities = true,
                                .codec_ratio = 1};
    config.job.link.egress_bits = config.job.link.ingress_bits = UINT64_C(1000000000);
    config.job.tweak = set_link;
    config.job.user = self;
    config.job.engine.trace = pattern;
    config.job.engine.shares = TRIB_SHARES_FOLLOW;
    study_step_result result;
    trib_error error = {.text = ""};
    char *files[WORKERS] = {paths[0], paths[1], paths[2], paths[3]};
    trace_run *run = NULL;
    trace_stats stats;
    if (study_step_run(&config, &result, &error) != TRIB_OK ||
        trace_run_load(files, WORKERS, &run, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    assert_true(trace_stats_make(run, &stats));
    if (study_replay_make(run, &stats, replay, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    trace_stats_free(&stats);
    trace_run_free(run);
    free(model);
    return replay->uneven;
}

static void has(const char *text, const char *what)
{
    if (strstr(text, what) == NULL) {
        fail_msg("\"%s\" is not in: \"%s\"", what, text);
    }
}

static void configured_rates_are_reported(void **state)
{
    (void)state;
    study_replay replay;
    const char *said = said_of(&(weather){.is_slow = true, .is_told = true}, &replay);
    has(said, "rank 2 (n2:1002) was said to have 0.25 Gbit/s, rank ");
    has(said, ") 1 Gbit/s");
    study_replay_free(&replay);
}

static void seen(void **state)
{
    (void)state;
    study_replay replay;
    const char *said = said_of(&(weather){.is_slow = true}, &replay);
    has(said, "rank 2 (n2:1002) held 0.");
    study_replay_free(&replay);
}

static void alike(void **state)
{
    (void)state;
    for (int is_told = 0; is_told < 2; is_told++) {
        study_replay replay;
        assert_string_equal(said_of(&(weather){.is_told = is_told != 0}, &replay), "");
        study_replay_free(&replay);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(configured_rates_are_reported), cmocka_unit_test(seen),
                                       cmocka_unit_test(alike)};
    return cmocka_run_group_tests_name("uneven", tests, make_folder, remove_folder);
}
