/* test_codecs.c - sums of three workers in each codec (codec_oracle.h), what is refused, and contributions that did not
 * count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/codec/codec.h"
#include "tests/loop/codec_oracle.h"

enum { WORKERS = 3 };

static void every_codec(job_tweak tweak, int servers)
{
    party self = {.count = WORKERS, .ranks = {0, 1, 2}};
    job_open(&self.jobs, WORKERS, servers, tweak);
    codec_oracle_run_all(&self, 0, 1);
    job_close(&self.jobs);
}

static void colocated_servers_sum_in_every_codec(void **state)
{
    (void)state;
    every_codec(party_small_pieces, 0);
}

static void dedicated_servers_sum_in_every_codec(void **state)
{
    (void)state;
    every_codec(party_dedicated, 2);
}

/* A group sums in the order of its places; the codecs draw their numbers by the ranks of the job. */
static void groups_sum_in_every_codec(void **state)
{
    (void)state;
    static const int32_t ranks[WORKERS] = {3, 0, 2};
    party self;
    job_open(&self.jobs, 4, 0, party_small_pieces);
    party_make_group(&self, "three of four", ranks, WORKERS);
    codec_oracle_run_all(&self, 0, 1);
    job_close(&self.jobs);
}

/* ---- What is refused ---- */

static void a_codec_that_differs_is_told(void **state)
{
    (void)state;
    party self;
    static float data[WORKERS][100];
    trib_op *ops[WORKERS];
    job_open(&self.jobs, WORKERS, 0, party_small_pieces);
    party_all_workers(&self);
    for (uint32_t i = 0; i < WORKERS; i++) {
        const trib_tensor_desc desc = {
            .name = "odd", .dtype = TRIB_FLOAT32, .count = 100, .codec = i == 1 ? "int8" : "compressor=onebit"};
        ops[i] = party_submit(
            &self, i, trib_all_reduce,
            (trib_op_params){.tensor = party_declare(&self, i, desc), .input = data[i], .output = data[i]});
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        party_fails_with(ops[i], TRIB_MISMATCH, "with codec \"int8\"", "with codec \"onebit,scaling=false\"");
    }
    job_close(&self.jobs);
}

static void declaring_fails(trib_engine *engine, trib_tensor_desc what, trib_status status, const char *words)
{
    trib_tensor_desc desc;
    trib_tensor *tensor = NULL;
    trib_error error = {.text = ""};
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "refused";
    desc.dtype = what.dtype;
    desc.count = 100;
    desc.layout = what.layout;
    desc.codec = what.codec;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), status);
    if (strstr(error.text, words) == NULL || strstr(error.text, "refused") == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
}

static void what_cannot_have_a_codec_is_refused(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, NULL);
    trib_engine *engine = jobs.engines[0];
    declaring_fails(engine, (trib_tensor_desc){.dtype = TRIB_INT32, .codec = "onebit"}, TRIB_INVALID, "onebit");
    declaring_fails(engine, (trib_tensor_desc){.dtype = TRIB_FLOAT32, .codec = "zip"}, TRIB_INVALID,
                    "there is no codec 'zip'");
    declaring_fails(engine, (trib_tensor_desc){.dtype = TRIB_FLOAT32, .codec = "randomk,k=3,two_way"}, TRIB_INVALID,
                    "two_way");
    declaring_fails(engine, (trib_tensor_desc){.dtype = TRIB_FLOAT32, .layout = TRIB_SLICES, .codec = "fp16"},
                    TRIB_UNSUPPORTED, "whole tensors");
    job_close(&jobs);
}

static void a_codec_for_all(trib_config *config, int member)
{
    party_small_pieces(config, member);
    config->codec = "onebit,two_way";
    config->codec_min_bytes = 4000;
}

/* The job's codec serves tensors that can have it, are large enough, and do not say "none". */
static void the_jobs_codec_is_for_those_that_can(void **state)
{
    (void)state;
    static const struct {
        trib_tensor_desc desc;
        bool is_encoded;
    } cases[] = {
        {{.name = "large", .dtype = TRIB_FLOAT32, .count = 1000}, true},
        {{.name = "small", .dtype = TRIB_FLOAT32, .count = 999}, false},
        {{.name = "whole numbers", .dtype = TRIB_INT32, .count = 1000}, false},
        {{.name = "plain", .dtype = TRIB_FLOAT32, .count = 1000, .codec = "none"}, false},
    };
    party self;
    static float data[WORKERS][1000];
    job_open(&self.jobs, WORKERS, 0, a_codec_for_all);
    party_all_workers(&self);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        trib_op *ops[WORKERS];
        const uint64_t before = codec_oracle_pushed(&self);
        for (uint32_t i = 0; i < WORKERS; i++) {
            ops[i] = party_submit(&self, i, trib_all_reduce,
                                  (trib_op_params){.tensor = party_declare(&self, i, cases[c].desc),
                                                   .input = data[i],
                                                   .output = data[i]});
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        assert_int_equal(codec_oracle_pushed(&self) - before < WORKERS * 1000, cases[c].is_encoded);
    }
    job_close(&self.jobs);
}

/* ---- What did not count ---- */

/* The workers disagree about the step of the first round, which is refused. Its gradients come with the next round. */
static void a_refused_contribution_is_not_lost(void **state)
{
    (void)state;
    enum { FEW = 64 };
    party self;
    static float inputs[2][FEW], sums[2][FEW], expected[FEW];
    float residual[2][FEW] = {{0}}, scratch[FEW], decoded[2][FEW];
    unsigned char encoded[4 * FEW + 64];
    trib_codec_config config;
    trib_tensor *tensors[2];
    assert_int_equal(trib_codec_parse("onebit,ef=vanilla", &config, NULL), TRIB_OK);
    job_open(&self.jobs, 2, 0, party_small_pieces);
    party_all_workers(&self);
    for (uint32_t round = 1; round <= 2; round++) {
        trib_op *ops[2];
        for (uint32_t i = 0; i < 2; i++) {
            tensors[i] = party_declare(
                &self, i,
                (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = FEW, .codec = "onebit,ef=vanilla"});
            for (uint32_t e = 0; e < FEW; e++) {
                inputs[i][e] = codec_oracle_value(i, round, e);
            }
            const trib_codec_memory memory = {.residual = residual[i], .scratch = scratch};
            const trib_codec_place place = {.round = round, .partition_count = FEW, .rank = i};
            const uint32_t bytes = trib_codec_encode(&config, &memory, &place, TRIB_FLOAT32, inputs[i], FEW, encoded);
            if (round == 1) {
                trib_codec_take_back(&config, &memory, TRIB_FLOAT32, encoded, bytes, FEW);
            }
            assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded[i], FEW, NULL),
                             TRIB_OK);
            trib_op_params params = {.tensor = tensors[i], .input = inputs[i], .output = sums[i]};
            params.step = round == 1 ? i : 5;
            ops[i] = party_submit(&self, i, trib_all_reduce, params);
        }
        for (uint32_t i = 0; i < 2; i++) {
            if (round == 1) {
                party_fails_with(ops[i], TRIB_MISMATCH, "at step 0", "at step 1");
            } else {
                party_succeeds(ops[i]);
            }
        }
    }
    for (uint32_t e = 0; e < FEW; e++) {
        expected[e] = decoded[0][e] + decoded[1][e];
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_memory_equal(sums[i], expected, sizeof expected);
    }
    job_close(&self.jobs);
}

static trib_op *join(const party *self, uint32_t i)
{
    trib_op *op = NULL;
    assert_int_equal(trib_join(party_engine_of(self, i), NULL, &op, NULL), TRIB_OK);
    return op;
}

static trib_op *sum_ones(const party *self, uint32_t i, float *data, uint32_t count)
{
    const trib_tensor_desc desc = {.name = "t", .dtype = TRIB_FLOAT32, .count = count, .codec = "fp16,warmup=4"};
    for (uint32_t e = 0; e < count; e++) {
        data[e] = 1.0f + 0x1p-12f; /* fp16 rounds it to 1 */
    }
    return party_submit(self, i, trib_all_reduce,
                        (trib_op_params){.tensor = party_declare(self, i, desc), .input = data, .output = data});
}

/* Worker 1 has no data for the first rounds, and declares the tensor when it has joined and some rounds are over. All
 * count the same rounds as the first ones, which travel as they are. */
static void a_late_declarer_counts_the_same_first_rounds(void **state)
{
    (void)state;
    enum { FEW = 64, ALONE = 3 };
    party self;
    static float data[2][FEW];
    job_open(&self.jobs, 2, 0, party_small_pieces);
    party_all_workers(&self);
    trib_op *joined = join(&self, 1);
    for (int round = 1; round <= ALONE; round++) {
        party_succeeds(sum_ones(&self, 0, data[0], FEW));
        assert_true(data[0][0] == 1.0f + 0x1p-12f);
    }
    party_succeeds(join(&self, 0));
    party_succeeds(joined);
    for (int round = ALONE + 1; round <= ALONE + 3; round++) {
        trib_op *ops[2];
        for (uint32_t i = 0; i < 2; i++) {
            ops[i] = sum_ones(&self, i, data[i], FEW);
        }
        for (uint32_t i = 0; i < 2; i++) {
            party_succeeds(ops[i]);
            assert_true(data[i][FEW - 1] == (round <= 4 ? 2.0f + 0x1p-11f : 2.0f));
        }
    }
    job_close(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_servers_sum_in_every_codec),
        cmocka_unit_test(dedicated_servers_sum_in_every_codec),
        cmocka_unit_test(groups_sum_in_every_codec),
        cmocka_unit_test(a_codec_that_differs_is_told),
        cmocka_unit_test(what_cannot_have_a_codec_is_refused),
        cmocka_unit_test(the_jobs_codec_is_for_those_that_can),
        cmocka_unit_test(a_refused_contribution_is_not_lost),
        cmocka_unit_test(a_late_declarer_counts_the_same_first_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
