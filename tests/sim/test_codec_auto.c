/* test_codec_auto.c - the codec "auto" in virtual time: all members make the same choice, by what the links carry, and
 * the step is about as short as with the best fixed choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/tracer/tracer.h"
#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"
#include "tools/trace/trace_read.h"

enum { WORKERS = 4, COUNT = 1 << 20, ROUNDS = 3 };
#define GBIT UINT64_C(1000000000)

typedef struct bed {
    const char *codec;
    uint64_t bits, slow_bits; /* slow_bits: of the last member's link; 0: as the others' */
    uint32_t servers;
    void (*change)(trib_config *config); /* may be NULL */
    bool is_told;                        /* members are told their bandwidth */
    char chosen[TRIB_CODEC_TEXT_SIZE];
    int64_t round_ns;
    char reason[600]; /* in the coordinator's trace */
} bed;

static void set_link(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const bed *self = job->config.user;
    if (member + 1 == job->config.workers + job->config.servers && self->slow_bits > 0) {
        link->egress_bits = link->ingress_bits = self->slow_bits;
    }
    config->bandwidth_bits = self->is_told ? link->egress_bits : 0;
    if (self->change != NULL) {
        self->change(config);
    }
}

static void sum_once(sim_job *job, trib_tensor *const tensors[], float *const values[], float *const sums[])
{
    exchange exchanges[WORKERS] = {{.done = 0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_op_params params;
        trib_error error = {.text = ""};
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensors[rank];
        params.input = values[rank];
        params.output = sums[rank];
        params.done_cb = sim_bed_on_done;
        params.user = &exchanges[rank];
        if (trib_push_pull(job->members[rank].engine, &params, NULL, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        assert_memory_equal(sums[rank], sums[0], COUNT * sizeof(float));
    }
}

/* Writes the trace of the coordinator's process, and reads it. */
static void read_reason(trib_engine *engine, bed *self)
{
    char path[] = "/tmp/tributary-auto-XXXXXX";
    const int fd = mkstemp(path);
    trace_file *file = NULL;
    trib_error error = {.text = ""};
    assert_true(fd >= 0);
    close(fd);
    if (trib_tracer_write(engine, path, &error) != TRIB_OK || trace_file_load(path, &file, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a failed assertion has ended the test */
    assert_int_equal(file->choice_count, 1);
    snprintf(self->reason, sizeof self->reason, "%s", file->choices[0]);
    trace_file_free(file);
    assert_int_equal(unlink(path), 0);
}

/* Notes what the members chose, which is the same on all, and the time of the last round. */
static void run_job(bed *self)
{
    sim_job_config config = sim_job_config_default(WORKERS, self->servers);
    config.link.egress_bits = config.link.ingress_bits = self->bits;
    config.engine.codec = self->codec;
    config.tweak = set_link;
    config.user = self;
    sim_job *job = sim_bed_open(&config);
    trib_tensor *tensors[WORKERS];
    float *values[WORKERS], *sums[WORKERS];
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_tensor_desc desc;
        trib_error error = {.text = ""};
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = "gradient";
        desc.count = COUNT;
        if (trib_tensor_declare(job->members[rank].engine, &desc, &tensors[rank], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        values[rank] = malloc(COUNT * sizeof(float));
        sums[rank] = calloc(COUNT, sizeof(float));
        assert_true(values[rank] != NULL && sums[rank] != NULL);
        for (uint32_t i = 0; i < COUNT; i++) {
            values[rank][i] = (float)((i * 2654435761u + rank) % 2001) - 1000;
        }
    }
    trib_error why = {.text = ""};
    assert_int_equal(trib_tracer_start(job->members[0].engine, 1 << 20, &why), TRIB_OK);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const int64_t began_ns = trib_sim_now(job->sim);
        sum_once(job, tensors, values, sums);
        self->round_ns = trib_sim_now(job->sim) - began_ns;
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const trib_engine *engine = job->members[rank].engine;
        char text[TRIB_CODEC_TEXT_SIZE] = "";
        for (uint32_t i = 0; i < engine->tensor_count; i++) {
            if (strcmp(engine->tensors[i]->name, "gradient") == 0) {
                trib_codec_format(&engine->tensors[i]->codec, text);
            }
        }
        if (rank == 0) {
            memcpy(self->chosen, text, sizeof text);
        }
        assert_string_equal(text, self->chosen);
    }
    if (strncmp(self->codec, "auto", 4) == 0) {
        read_reason(job->members[0].engine, self);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(values[rank]);
        free(sums[rank]);
    }
}

static void expect(uint64_t bits, uint64_t slow_bits, uint32_t servers, bool is_told, const char *codec)
{
    bed self = {.codec = "auto", .bits = bits, .slow_bits = slow_bits, .servers = servers, .is_told = is_told};
    run_job(&self);
    assert_string_equal(self.chosen, codec);
}

static void slow_links_get_a_codec_and_fast_ones_none(void **state)
{
    (void)state;
    expect(GBIT / 2, 0, 0, false, "int8,ef=vanilla,two_way");
    expect(GBIT / 2, 0, 2, false, "int8,ef=vanilla,two_way");
    expect(400 * GBIT, 0, 0, false, "none");
    expect(400 * GBIT, 0, 2, false, "none");
}

static void configured_rates_count(void **state)
{
    (void)state;
    expect(GBIT / 2, 0, 0, true, "int8,ef=vanilla,two_way");
    expect(400 * GBIT, 0, 0, true, "none");
}

static void the_slowest_link_counts(void **state)
{
    (void)state;
    expect(400 * GBIT, GBIT / 2, 0, false, "int8,ef=vanilla,two_way");
}

static void a_list_is_all_that_may_be_chosen(void **state)
{
    (void)state;
    bed self = {.codec = "auto:fp16,two_way", .bits = GBIT / 2};
    run_job(&self);
    assert_string_equal(self.chosen, "fp16,two_way");
    assert_non_null(strstr(self.reason, "tensor \"gradient\" and its like: auto chose fp16,two_way; links carry 0."));
    assert_non_null(strstr(self.reason, "a step, in ns a byte: none "));
}

static void survives(trib_config *config)
{
    config->survive = TRIB_SURVIVE_SERVERS;
}

/* The job goes without a codec, and the trace says why. */
static void a_job_that_survives_has_none(void **state)
{
    (void)state;
    bed self = {.codec = "auto", .bits = GBIT, .servers = 2, .change = survives};
    run_job(&self);
    assert_string_equal(self.chosen, "none");
    assert_non_null(strstr(self.reason, "auto chose none: the job survives the loss of servers"));
}

static void the_step_is_about_the_shortest(void **state)
{
    (void)state;
    static const char *const fixed[] = {"none", "bf16,two_way", "int8,ef=vanilla,two_way"};
    static const uint64_t rates[] = {GBIT, 4 * GBIT, 10 * GBIT, 40 * GBIT};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        bed chosen = {.codec = "auto", .bits = rates[i]};
        int64_t best_ns = INT64_MAX;
        run_job(&chosen);
        for (size_t k = 0; k < sizeof fixed / sizeof fixed[0]; k++) {
            bed one = {.codec = fixed[k], .bits = rates[i]};
            run_job(&one);
            print_message("# %llu Gbit/s: %s %.3f ms\n", (unsigned long long)(rates[i] / GBIT), fixed[k],
                          (double)one.round_ns / 1e6);
            best_ns = one.round_ns < best_ns ? one.round_ns : best_ns;
        }
        print_message("# %llu Gbit/s: auto took %s, %.3f ms\n", (unsigned long long)(rates[i] / GBIT), chosen.chosen,
                      (double)chosen.round_ns / 1e6);
        assert_true((double)chosen.round_ns < 1.25 * (double)best_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_links_get_a_codec_and_fast_ones_none),
        cmocka_unit_test(configured_rates_count),
        cmocka_unit_test(the_slowest_link_counts),
        cmocka_unit_test(a_list_is_all_that_may_be_chosen),
        cmocka_unit_test(a_job_that_survives_has_none),
        cmocka_unit_test(the_step_is_about_the_shortest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
