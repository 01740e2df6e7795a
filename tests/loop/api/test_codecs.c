/* test_codecs.c - sums of three workers in each codec, over several rounds, compared with the pure codecs' results for
 * the same elements, chunk by chunk, with residuals and momenta kept by the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/codec/encoding.h"
#include "engine/worker/op.h"
#include "tests/loop/party.h"

enum { WORKERS = 3, COUNT = 50000, ROUNDS = 4 };

static const char *const codecs[] = {
    "fp16",
    "bf16,two_way",
    "fp8_e4m3,two_way",
    "fp8_e5m2",
    "int8,seed=7",
    "int8,two_way,ef=vanilla",
    "onebit",
    "onebit,ef=vanilla,two_way",
    "onebit,scaling=false",
    "topk,ratio=0.01,ef=vanilla,two_way",
    "topk,k=50,ef=vanilla",
    "topk,k=50,two_way",
    "topk,ratio=0.1,select=sampled,ef=vanilla,two_way",
    "uniform,ef=vanilla",
    "uniform,two_way",
    "randomk,k=40,seed=3,ef=vanilla",
    "dithering,k=4,seed=5",
    "dithering,k=8,partition=natural,normalize=l2,ef=vanilla,momentum=nesterov,mu=0.9",
    "onebit,ef=vanilla,momentum=heavy_ball,mu=0.5",
};

static float value(uint32_t rank, uint32_t round, uint64_t i)
{
    const uint32_t mixed = (uint32_t)(i * 2654435761u) ^ rank * 40503u ^ round * 9176u;
    return (float)((int)(mixed >> 7 & 0xfff) - 2048) / 1024.0f;
}

static void *zeros(size_t size)
{
    void *memory = calloc(1, size);
    assert_non_null(memory);
    return memory;
}

/* Each rank's residual: over all elements of the tensor, and by partition. */
typedef struct oracle {
    trib_codec_config config;
    float *residual[WORKERS], *momentum[WORKERS];
    unsigned char *states[WORKERS];
    float *sum;
    const trib_tensor *tensor;
    const int32_t *ranks; /* in the job, by place */
} oracle;

static const trib_tensor *find(const trib_engine *engine, const char *name)
{
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        if (strcmp(engine->tensors[i]->name, name) == 0) {
            return engine->tensors[i];
        }
    }
    fail();
    return NULL;
}

static void sum_chunk(oracle *self, uint32_t round, uint32_t partition, uint32_t first, uint32_t count)
{
    const trib_tensor *tensor = self->tensor;
    const trib_codec *codec = self->config.codec;
    const uint32_t begin = (uint32_t)trib_cut_begin(tensor->cut, partition) / 4;
    const uint32_t partition_count = trib_cut_size(tensor->cut, partition) / 4;
    unsigned char *encoded = zeros(codec->bound(&self->config.params, TRIB_FLOAT32, count));
    float *elements = zeros(count * 4u), *scratch = zeros(count * 4u), *decoded[WORKERS];
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < count; i++) {
            elements[i] = value(rank, round, first + i);
        }
        const trib_codec_place place = {.tensor_key = tensor->key,
                                        .round = tensor->round_base + round,
                                        .first_element = first,
                                        .partition_first = begin,
                                        .partition_count = partition_count,
                                        .rank = (uint32_t)self->ranks[rank]};
        const trib_codec_memory memory = {.state = self->states[rank] + (size_t)partition * codec->state_bytes,
                                          .residual = self->residual[rank] + first,
                                          .momentum = self->momentum[rank] + first,
                                          .scratch = scratch};
        const uint32_t bytes =
            trib_codec_encode(&self->config, &memory, &place, TRIB_FLOAT32, elements, count, encoded);
        decoded[rank] = zeros(count * 4u);
        assert_int_equal(codec->decode(&self->config.params, TRIB_FLOAT32, encoded, bytes, decoded[rank], count, NULL),
                         TRIB_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        const float pair = decoded[0][i] + decoded[1][i];
        self->sum[first + i] = pair + decoded[2][i];
    }
    const trib_encoding encoding = {.codec = codec,
                                    .params = self->config.params,
                                    .two_way = self->config.two_way,
                                    .partition_count = partition_count};
    if (trib_encoding_answers(&encoding, TRIB_FLOAT32, count)) {
        const trib_codec_place place =
            trib_encoding_sum_place(partition, partition_count, tensor->round_base + round, first - begin);
        memcpy(elements, self->sum + first, count * 4u);
        const uint32_t bytes =
            codec->encode(&self->config.params, &place, NULL, TRIB_FLOAT32, elements, count, encoded);
        assert_int_equal(
            codec->decode(&self->config.params, TRIB_FLOAT32, encoded, bytes, self->sum + first, count, NULL), TRIB_OK);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(decoded[rank]);
    }
    free(encoded);
    free(elements);
    free(scratch);
}

static void sum_round(oracle *self, uint32_t round)
{
    for (uint32_t i = 0; i < self->tensor->partition_count; i++) {
        const uint32_t begin = (uint32_t)trib_cut_begin(self->tensor->cut, i) / 4;
        const uint32_t end = begin + trib_cut_size(self->tensor->cut, i) / 4, step = self->tensor->chunk_bytes / 4;
        for (uint32_t first = begin; first < end; first += step) {
            sum_chunk(self, round, i, first, end - first < step ? end - first : step);
        }
    }
}

static uint64_t pushed(const party *self)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        trib_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(trib_engine_get_stats(party_engine_of(self, i), &stats), TRIB_OK);
        bytes += stats.bytes_pushed;
    }
    return bytes;
}

static void run_codec(const party *self, const char *text)
{
    oracle expected = {.sum = zeros(COUNT * sizeof(float)), .ranks = self->ranks};
    trib_tensor *tensors[WORKERS];
    float *inputs[WORKERS], *outputs[WORKERS];
    assert_int_equal(trib_codec_parse(text, &expected.config, NULL), TRIB_OK);
    for (uint32_t i = 0; i < WORKERS; i++) {
        tensors[i] = party_declare(
            self, i, (trib_tensor_desc){.name = text, .dtype = TRIB_FLOAT32, .count = COUNT, .codec = text});
        inputs[i] = zeros(COUNT * sizeof(float));
        outputs[i] = zeros(COUNT * sizeof(float));
        expected.residual[i] = zeros(COUNT * sizeof(float));
        expected.momentum[i] = zeros(COUNT * sizeof(float));
        expected.states[i] = zeros((size_t)expected.config.codec->state_bytes * 1000 + 1);
    }
    const uint64_t before = pushed(self);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        trib_op *ops[WORKERS];
        for (uint32_t i = 0; i < WORKERS; i++) {
            for (uint64_t e = 0; e < COUNT; e++) {
                inputs[i][e] = value(i, round, e);
            }
            ops[i] = party_submit(
                self, i, trib_all_reduce,
                (trib_op_params){.tensor = tensors[i], .input = inputs[i], .output = outputs[i], .reduce = TRIB_SUM});
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        expected.tensor = find(party_engine_of(self, 0), text);
        sum_round(&expected, round);
        for (uint32_t i = 0; i < WORKERS; i++) {
            for (uint64_t e = 0; e < COUNT; e++) {
                if (memcmp(&outputs[i][e], &expected.sum[e], sizeof(float)) != 0) {
                    fail_msg("%s: rank %u, round %u, element %u: %g instead of %g", text, i, round, (unsigned)e,
                             (double)outputs[i][e], (double)expected.sum[e]);
                }
            }
        }
    }
    assert_true(pushed(self) - before < (uint64_t)ROUNDS * WORKERS * COUNT * sizeof(float) * 3 / 4);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(trib_tensor_release(tensors[i], NULL), TRIB_OK);
        free(inputs[i]);
        free(outputs[i]);
        free(expected.residual[i]);
        free(expected.momentum[i]);
        free(expected.states[i]);
    }
    free(expected.sum);
}

static void every_codec(job_tweak tweak, int servers)
{
    party self = {.count = WORKERS, .ranks = {0, 1, 2}};
    job_open(&self.jobs, WORKERS, servers, tweak);
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        run_codec(&self, codecs[i]);
    }
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
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        run_codec(&self, codecs[i]);
    }
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
                    TRIB_UNSUPPORTED, "whole tensors in host memory");
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
        const uint64_t before = pushed(&self);
        for (uint32_t i = 0; i < WORKERS; i++) {
            ops[i] = party_submit(&self, i, trib_all_reduce,
                                  (trib_op_params){.tensor = party_declare(&self, i, cases[c].desc),
                                                   .input = data[i],
                                                   .output = data[i]});
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        assert_int_equal(pushed(&self) - before < WORKERS * 1000, cases[c].is_encoded);
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
                inputs[i][e] = value(i, round, e);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
