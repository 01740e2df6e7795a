/* codec_oracle.c - see codec_oracle.h. */
#include "tests/loop/codec_oracle.h"

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
#include "tests/support/sanitized.h"

enum { COUNT = 50000, ROUNDS = 4 };

static const char *const texts[] = {
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
    "onebit,ef=vanilla,momentum=nesterov,mu=0.9,warmup=2,two_way",
};

float codec_oracle_value(uint32_t rank, uint32_t round, uint64_t i)
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

/* Each contributor's residual: over all elements of the tensor, and by partition. */
typedef struct oracle {
    trib_codec_config config;
    uint32_t contributors, shared; /* each of so many workers, whose sum is encoded by the one that has the partition */
    float *residual[PARTY_MAX], *momentum[PARTY_MAX];
    unsigned char *states[PARTY_MAX];
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

static void fill_contribution(const oracle *self, uint32_t who, uint32_t round, uint32_t first, uint32_t count,
                              float *elements)
{
    for (uint32_t i = 0; i < count; i++) {
        elements[i] = 0;
        for (uint32_t k = 0; k < self->shared; k++) {
            elements[i] += codec_oracle_value(who * self->shared + k, round, first + i);
        }
    }
}

/* The first rounds travel as they are. */
static bool is_warm(const oracle *self, uint32_t round)
{
    return round <= self->config.warmup;
}

static void sum_chunk(oracle *self, uint32_t round, uint32_t partition, uint32_t first, uint32_t count)
{
    const trib_tensor *tensor = self->tensor;
    const trib_codec *codec = self->config.codec;
    const uint32_t begin = (uint32_t)trib_partitioning_offset(tensor->cut, partition) / 4;
    const uint32_t partition_count = trib_partitioning_size(tensor->cut, partition) / 4;
    unsigned char *encoded = zeros(codec->bound(&self->config.params, TRIB_FLOAT32, count));
    float *elements = zeros(count * 4u), *scratch = zeros(count * 4u), *decoded[PARTY_MAX];
    for (uint32_t who = 0; who < self->contributors; who++) {
        fill_contribution(self, who, round, first, count, elements);
        const trib_codec_place place = {
            .tensor_key = tensor->key,
            .round = tensor->round_base + round,
            .first_element = first,
            .partition_first = begin,
            .partition_count = partition_count,
            /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a failed assertion has ended the test */
            .rank = (uint32_t)self->ranks[who * self->shared + partition % self->shared]};
        const trib_codec_memory memory = {.state = self->states[who] + (size_t)partition * codec->state_bytes,
                                          .residual = self->residual[who] + first,
                                          .momentum = self->momentum[who] + first,
                                          .scratch = scratch};
        decoded[who] = zeros(count * 4u);
        if (is_warm(self, round)) {
            memcpy(decoded[who], elements, count * 4u);
            continue;
        }
        const uint32_t bytes =
            trib_codec_encode(&self->config, &memory, &place, TRIB_FLOAT32, elements, count, encoded);
        assert_int_equal(codec->decode(&self->config.params, TRIB_FLOAT32, encoded, bytes, decoded[who], count, NULL),
                         TRIB_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a failed assertion has ended the test */
        const float pair = decoded[0][i] + decoded[1][i];
        self->sum[first + i] = self->contributors > 2 ? pair + decoded[2][i] : pair;
    }
    const trib_encoding encoding = {.codec = codec,
                                    .params = self->config.params,
                                    .two_way = self->config.two_way,
                                    .partition_count = partition_count};
    if (!is_warm(self, round) && trib_encoding_answers(&encoding, TRIB_FLOAT32, count)) {
        const trib_codec_place place =
            trib_encoding_sum_place(partition, partition_count, tensor->round_base + round, first - begin);
        memcpy(elements, self->sum + first, count * 4u);
        const uint32_t bytes =
            codec->encode(&self->config.params, &place, NULL, TRIB_FLOAT32, elements, count, encoded);
        assert_int_equal(
            codec->decode(&self->config.params, TRIB_FLOAT32, encoded, bytes, self->sum + first, count, NULL), TRIB_OK);
    }
    for (uint32_t who = 0; who < self->contributors; who++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): a failed assertion has ended the test */
        free(decoded[who]);
    }
    free(encoded);
    free(elements);
    free(scratch);
}

static void sum_round(oracle *self, uint32_t round)
{
    for (uint32_t i = 0; i < self->tensor->partition_count; i++) {
        const uint32_t begin = (uint32_t)trib_partitioning_offset(self->tensor->cut, i) / 4;
        const uint32_t end = begin + trib_partitioning_size(self->tensor->cut, i) / 4,
                       step = self->tensor->chunk_bytes / 4;
        for (uint32_t first = begin; first < end; first += step) {
            sum_chunk(self, round, i, first, end - first < step ? end - first : step);
        }
    }
}

uint64_t codec_oracle_pushed(const party *self)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        trib_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(trib_engine_get_stats(party_engine_of(self, i), &stats), TRIB_OK);
        bytes += stats.bytes_pushed;
    }
    return bytes;
}

void codec_oracle_run(const party *self, const char *text, uint32_t flags, uint32_t shared)
{
    oracle expected = {.sum = zeros(COUNT * sizeof(float)),
                       .ranks = self->ranks,
                       .contributors = self->count / shared,
                       .shared = shared};
    trib_tensor *tensors[PARTY_MAX];
    float *inputs[PARTY_MAX], *outputs[PARTY_MAX];
    assert_true(self->count % shared == 0 && expected.contributors >= 2 && expected.contributors <= 3);
    assert_int_equal(trib_codec_parse(text, &expected.config, NULL), TRIB_OK);
    for (uint32_t i = 0; i < self->count; i++) {
        tensors[i] = party_declare(
            self, i,
            (trib_tensor_desc){.name = text, .dtype = TRIB_FLOAT32, .count = COUNT, .codec = text, .flags = flags});
        inputs[i] = zeros(COUNT * sizeof(float));
        outputs[i] = zeros(COUNT * sizeof(float));
        expected.residual[i] = zeros(COUNT * sizeof(float));
        expected.momentum[i] = zeros(COUNT * sizeof(float));
        expected.states[i] = zeros((size_t)expected.config.codec->state_bytes * 1000 + 1);
    }
    const uint64_t before = codec_oracle_pushed(self);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        trib_op *ops[PARTY_MAX];
        for (uint32_t i = 0; i < self->count; i++) {
            for (uint64_t e = 0; e < COUNT; e++) {
                inputs[i][e] = codec_oracle_value(i, round, e);
            }
            ops[i] = party_submit(
                self, i, trib_all_reduce,
                (trib_op_params){.tensor = tensors[i], .input = inputs[i], .output = outputs[i], .reduce = TRIB_SUM});
        }
        for (uint32_t i = 0; i < self->count; i++) {
            party_succeeds(ops[i]);
        }
        expected.tensor = find(party_engine_of(self, 0), text);
        sum_round(&expected, round);
        for (uint32_t i = 0; i < self->count; i++) {
            for (uint64_t e = 0; e < COUNT; e++) {
                if (memcmp(&outputs[i][e], &expected.sum[e], sizeof(float)) != 0) {
                    fail_msg("%s: rank %u, round %u, element %u: %g instead of %g", text, i, round, (unsigned)e,
                             (double)outputs[i][e], (double)expected.sum[e]);
                }
            }
        }
    }
    assert_true(codec_oracle_pushed(self) - before <
                (uint64_t)ROUNDS * expected.contributors * COUNT * sizeof(float) * 3 / 4);
    for (uint32_t i = 0; i < self->count; i++) {
        assert_int_equal(trib_tensor_release(tensors[i], NULL), TRIB_OK);
        free(inputs[i]);
        free(outputs[i]);
        free(expected.residual[i]);
        free(expected.momentum[i]);
        free(expected.states[i]);
    }
    free(expected.sum);
}

void codec_oracle_run_all(const party *self, uint32_t flags, uint32_t shared)
{
    static size_t calls;
    for (size_t i = calls++ % TSAN_STRIDE; i < sizeof texts / sizeof texts[0]; i += TSAN_STRIDE) {
        codec_oracle_run(self, texts[i], flags, shared);
    }
}
