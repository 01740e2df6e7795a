/*
 * torture_codec.c - jobs whose sums are encoded, and the oracle for them: the pure codec encodes and decodes the chunks
 * of every worker and of the sum.
 *
 * Codecs that draw numbers by the round, and feedback, are left to tests/loop/api/test_codecs.c: a torture job's rounds
 * fail and begin anew.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/codec/encoding.h"
#include "engine/worker/op.h"
#include "tests/sim/torture_internal.h"
#include "tests/support/values.h"

static const char *const codecs[] = {
    "fp16",           "bf16,two_way",   "fp8_e4m3",         "fp8_e5m2,two_way",          "onebit",
    "onebit,two_way", "topk,ratio=0.1", "topk,k=9,two_way", "auto:fp16,fp8_e4m3,two_way"};

void torture_draw_codec(torture_plan *plan)
{
    torture_draw_losses(plan);
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 131};
    const uint64_t chosen = trib_sim_draw_below(&stream, sizeof codecs / sizeof codecs[0]);
    if (!trib_sim_draw_one_in(&stream, 3) || plan->job.engine.sum_order != TRIB_ORDER_RANK) {
        return;
    }
    plan->job.engine.codec = codecs[chosen];
    plan->job.engine.codec_min_bytes = 1;
    const uint64_t bytes = torture_sum_bytes(plan);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        const bool is_disputed = plan->odd_rank != TORTURE_NOBODY && plan->odd_tensor == i;
        const uint32_t count = 1000 + (uint32_t)trib_sim_draw_below(&stream, 29000);
        if (!is_disputed && trib_sim_draw_one_in(&stream, 2)) { /* of several chunks */
            const bool inexact = what->inexact;
            *what = (torture_tensor){.dtype = TRIB_FLOAT32,
                                     .count = count,
                                     .rounds = what->rounds,
                                     .root = -1,
                                     .inexact = inexact,
                                     .on_device = what->on_device,
                                     .stays = what->stays};
        }
    }
    /* The backlog takes as long as it was drawn: who leaves waits for less than 3 s. */
    const uint64_t more = torture_sum_bytes(plan) / bytes;
    plan->narrow_bits *= more > 0 ? more + 1 : 1;
}

const trib_tensor *torture_encoded_tensor(const trib_engine *engine, const torture_tensor *what, uint32_t index)
{
    char name[32];
    torture_name(what, index, name, sizeof name);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        const trib_tensor *tensor = engine->tensors[i];
        if (tensor->state <= TRIB_TENSOR_RELEASED && tensor->state != TRIB_TENSOR_UNUSED && tensor->placed &&
            strcmp(tensor->name, name) == 0) {
            const bool sums = what->exchange == TORTURE_WHOLE && what->root < 0;
            const bool adds = what->reduce == TRIB_SUM || what->reduce == TRIB_AVG;
            return sums && adds && tensor->codec.codec != NULL ? tensor : NULL;
        }
    }
    return NULL;
}

/* Sums in place, the left half first, each sum in the accumulators' type. */
static double tree_sum(unsigned char *const decoded[], trib_dtype dtype, uint32_t first, uint32_t width,
                       uint32_t workers, uint32_t i)
{
    double sum = values_load(dtype, decoded[first], i);
    for (uint32_t level = 1; level < width; level *= 2) {
        if (first + level < workers) {
            const double right = tree_sum(decoded, dtype, first + level, level, workers, i);
            sum = dtype != TRIB_FLOAT64 ? (double)((float)sum + (float)right) : sum + right;
        }
    }
    return sum;
}

static void through_codec(const trib_tensor *tensor, const trib_codec_place *place, unsigned char *values,
                          uint32_t count)
{
    const trib_codec *codec = tensor->codec.codec;
    unsigned char *encoded = malloc(codec->bound(&tensor->codec.params, tensor->dtype, count));
    const uint32_t bytes =
        encoded == NULL ? 0 : codec->encode(&tensor->codec.params, place, NULL, tensor->dtype, values, count, encoded);
    if (codec->decode(&tensor->codec.params, tensor->dtype, encoded, bytes, values, count, NULL) != TRIB_OK) {
        abort();
    }
    free(encoded);
}

/* `shared` contributors make one: the devices of a machine, whose sum is encoded, or a worker alone. */
static uint32_t check_chunk(const trib_tensor *tensor, const torture_tensor *what, unsigned char *const all[],
                            uint32_t workers, uint32_t shared, uint32_t partition, uint32_t first, uint32_t count,
                            const unsigned char *result)
{
    const uint32_t element = (uint32_t)trib_dtype_size(what->dtype);
    const trib_encoding encoding = {.codec = tensor->codec.codec,
                                    .params = tensor->codec.params,
                                    .two_way = tensor->codec.two_way,
                                    .partition_count = trib_partitioning_size(tensor->cut, partition) / element};
    const uint32_t begin = (uint32_t)(trib_partitioning_offset(tensor->cut, partition) / element);
    const trib_codec_place place = {
        .first_element = first, .partition_first = begin, .partition_count = encoding.partition_count};
    unsigned char *decoded[TORTURE_WORKERS_MAX] = {NULL}, *sum = calloc(count, element);
    for (uint32_t k = 0; k < workers / shared; k++) {
        decoded[k] = malloc((size_t)count * element);
        memcpy(decoded[k], all[k] + (size_t)first * element, (size_t)count * element);
        through_codec(tensor, &place, decoded[k], count);
        for (uint32_t i = 0; i < count && (what->absent >> k & 1) != 0; i++) {
            values_store(what->dtype, decoded[k], i, -0.0);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        double value = tree_sum(decoded, what->dtype, 0, 8, workers / shared, i);
        if (what->reduce == TRIB_AVG) {
            value = what->dtype == TRIB_FLOAT64 ? value / workers : (double)((float)value / (float)workers);
        }
        values_store(what->dtype, sum, i, values_round(what->dtype, value));
    }
    if (trib_encoding_answers(&encoding, what->dtype, count)) {
        const trib_codec_place sum_place =
            trib_encoding_sum_place(partition, encoding.partition_count, 1, first - begin);
        through_codec(tensor, &sum_place, sum, count);
    }
    uint32_t wrong = UINT32_MAX;
    for (uint32_t i = 0; i < count && wrong == UINT32_MAX; i++) {
        const bool is_same = memcmp(sum + (size_t)i * element, result + (size_t)(first + i) * element, element) == 0;
        wrong = is_same ? UINT32_MAX : first + i;
    }
    for (uint32_t k = 0; k < workers / shared; k++) {
        free(decoded[k]);
    }
    free(sum);
    return wrong;
}

/* Sums what the devices of each machine contribute: whole numbers, in any order. */
static void sum_on_devices(const torture_tensor *what, unsigned char *const all[], uint32_t workers, uint32_t shared)
{
    for (uint32_t k = 0; k < workers; k++) {
        for (uint32_t i = 0; i < what->count && k % shared > 0; i++) {
            unsigned char *sum = all[k / shared * shared];
            const double value = values_load(what->dtype, sum, i) + values_load(what->dtype, all[k], i);
            values_store(what->dtype, sum, i, value);
        }
    }
    for (uint32_t k = 1; k < workers / shared; k++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): a failed assertion has ended the test */
        memcpy(all[k], all[k * shared], (size_t)what->count * trib_dtype_size(what->dtype));
    }
}

uint32_t torture_check_encoded(const trib_tensor *tensor, const torture_tensor *what, uint32_t index, uint32_t round,
                               uint32_t all_workers, const void *buffer)
{
    const uint32_t workers = torture_members(what, all_workers);
    const uint32_t element = (uint32_t)trib_dtype_size(what->dtype), step = tensor->chunk_bytes / element;
    const uint32_t shared = tensor->is_sharded ? trib_engine_local_size(tensor->engine) : 1;
    unsigned char *all[TORTURE_WORKERS_MAX];
    for (uint32_t k = 0; k < workers; k++) {
        all[k] = malloc((size_t)what->count * element + 1);
        torture_fill(what, index, round, torture_rank_at(what, all_workers, k), what->count, all[k]);
    }
    sum_on_devices(what, all, workers, shared);
    uint32_t wrong = UINT32_MAX;
    for (uint32_t p = 0; p < tensor->partition_count && wrong == UINT32_MAX; p++) {
        const uint32_t begin = (uint32_t)(trib_partitioning_offset(tensor->cut, p) / element);
        const uint32_t end = begin + trib_partitioning_size(tensor->cut, p) / element;
        for (uint32_t first = begin; first < end && wrong == UINT32_MAX; first += step) {
            const uint32_t count = end - first < step ? end - first : step;
            wrong = check_chunk(tensor, what, all, workers, shared, p, first, count, buffer);
        }
    }
    for (uint32_t k = 0; k < workers; k++) {
        free(all[k]);
    }
    return wrong;
}
