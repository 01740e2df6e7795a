/*
 * test_sweep.c - collectives of every type, reduction, length and group, in place or not, drawn from a seed: several
 * at a time in one batch, by jobs of several shapes. Results are computed from the inputs of all, each element for
 * itself, in 128-bit integers or in double precision.
 *
 *     test_sweep             the usual seeds
 *     test_sweep 17 100      seed 17, with 100 batches for each job
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/party.h"
#include "tests/support/values.h"

enum { BATCH = 6 };

/* One collective; the buffers and handles are by place in the party. */
typedef struct collective {
    trib_op_kind kind;
    trib_dtype dtype;
    trib_reduce reduce;
    uint32_t root;
    bool in_place, is_prepared;
    uint64_t lengths[PARTY_MAX][PARTY_MAX]; /* PAIRS: [from][to]; SLICES: [0][of]; WHOLE: [0][0] */
    unsigned char *inputs[PARTY_MAX], *outputs[PARTY_MAX], *kept[PARTY_MAX];
    trib_tensor *tensors[PARTY_MAX];
    trib_op *ops[PARTY_MAX];
    uint64_t input_counts[PARTY_MAX], output_counts[PARTY_MAX], input_at[PARTY_MAX];
} collective;

typedef struct sweep {
    party party;
    uint64_t random;
    uint32_t named;
} sweep;

static uint64_t draw(sweep *self)
{
    uint64_t x = self->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint32_t below(sweep *self, uint32_t bound)
{
    return bound == 0 ? 0 : (uint32_t)(draw(self) % bound);
}

/* None, few, what lies about the ends of vectors, chunks and partitions, and any. */
static uint64_t draw_length(sweep *self)
{
    static const uint64_t odd[] = {0, 1, 2, 3, 15, 17, 63, 65, 511, 513, 1023, 1024, 1025, 4095, 4097, 8191, 8193};
    return below(self, 3) == 0 ? below(self, 9001) : odd[below(self, sizeof odd / sizeof odd[0])];
}

static bool is_reduced(trib_op_kind kind)
{
    return kind == TRIB_OP_PUSH_PULL || kind == TRIB_OP_REDUCE || kind == TRIB_OP_REDUCE_SCATTER;
}

static trib_layout layout_of(trib_op_kind kind)
{
    return kind == TRIB_OP_ALL_TO_ALL                                     ? TRIB_PAIRS
           : kind == TRIB_OP_ALL_GATHER || kind == TRIB_OP_REDUCE_SCATTER ? TRIB_SLICES
                                                                          : TRIB_WHOLE;
}

/* ---- What each worker has, and gets ---- */

static void set_counts(collective *what, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += layout_of(what->kind) == TRIB_SLICES ? what->lengths[0][i] : 0;
    }
    uint64_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t given = 0, got = 0;
        for (uint32_t j = 0; j < n; j++) {
            given += what->lengths[i][j];
            got += what->lengths[j][i];
        }
        const uint64_t mine = what->lengths[0][i];
        const bool gathers = what->kind == TRIB_OP_ALL_GATHER, scatters = what->kind == TRIB_OP_REDUCE_SCATTER;
        what->input_counts[i] = gathers ? mine : scatters ? total : what->kind == TRIB_OP_ALL_TO_ALL ? given : mine;
        what->output_counts[i] = gathers ? total : scatters ? mine : what->kind == TRIB_OP_ALL_TO_ALL ? got : mine;
        what->input_at[i] = before;
        before += mine;
    }
}

static void draw_collective(sweep *self, collective *what)
{
    const uint32_t n = self->party.count;
    *what = (collective){.kind = (trib_op_kind)below(self, TRIB_OP_KIND_COUNT),
                         .dtype = (trib_dtype)below(self, TRIB_DTYPE_COUNT),
                         .root = below(self, n),
                         .in_place = below(self, 2) == 0,
                         .is_prepared = below(self, 4) == 0};
    do {
        what->reduce = (trib_reduce)below(self, TRIB_REDUCE_COUNT);
    } while (!trib_reduce_suits(what->dtype, what->reduce));
    const bool is_even = below(self, 3) == 0;
    const uint64_t length = draw_length(self);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            const bool is_same = is_even || layout_of(what->kind) == TRIB_WHOLE;
            what->lengths[i][j] = is_same ? length : draw_length(self);
        }
    }
    what->in_place = what->in_place && what->kind != TRIB_OP_ALL_TO_ALL;
    set_counts(what, n);
}

/* Small numbers of which half are negative, where there are such; of the wide integers any bits. */
static void fill(sweep *self, const collective *what, unsigned char *data, uint64_t count)
{
    const size_t size = trib_dtype_size(what->dtype);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t bits = draw(self);
        if (what->dtype == TRIB_BOOL) {
            data[i] = bits & 1;
        } else if (trib_dtype_is_float(what->dtype)) {
            values_store(what->dtype, data, i, (double)(bits % 4 + 1) * ((bits & 64) != 0 ? -0.5 : 0.5));
        } else {
            memcpy(data + i * size, &bits, size);
        }
    }
}

/* ---- The reference ---- */

static bool is_signed(trib_dtype dtype)
{
    return dtype == TRIB_INT8 || dtype == TRIB_INT16 || dtype == TRIB_INT32 || dtype == TRIB_INT64;
}

static __int128 load_integer(trib_dtype dtype, const unsigned char *data, uint64_t i)
{
    const unsigned bits = 8 * (unsigned)trib_dtype_size(dtype);
    uint64_t raw = 0;
    memcpy(&raw, data + i * (bits / 8), bits / 8);
    const bool is_negative = is_signed(dtype) && (raw >> (bits - 1) & 1) != 0;
    return (__int128)raw - (is_negative ? (__int128)1 << bits : 0);
}

static __int128 wrapped(__int128 number, unsigned bits, bool has_sign)
{
    const __int128 span = (__int128)1 << bits;
    number = ((number % span) + span) % span;
    return has_sign && number >= span / 2 ? number - span : number;
}

/* Of 64 bits an average wraps before it is divided; narrower sums do not. */
static __int128 fold_integer(const collective *what, __int128 a, __int128 b)
{
    switch (what->reduce) {
    case TRIB_MIN:
        return a < b ? a : b;
    case TRIB_MAX:
        return a > b ? a : b;
    case TRIB_PRODUCT:
        /* NOLINTNEXTLINE(bugprone-misplaced-widening-cast): the sum wraps as the type does */
        return (__int128)((uint64_t)a * (uint64_t)b);
    case TRIB_BIT_AND:
        return a & b;
    case TRIB_BIT_OR:
        return a | b;
    case TRIB_BIT_XOR:
        return a ^ b;
    default:
        return a + b;
    }
}

static double fold_float(trib_reduce reduce, double a, double b)
{
    switch (reduce) {
    case TRIB_MIN:
        return a < b ? a : b;
    case TRIB_MAX:
        return a > b ? a : b;
    case TRIB_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

static bool is_right_float(const collective *what, uint32_t n, uint64_t from, const unsigned char *out, uint64_t i)
{
    double result = values_load(what->dtype, what->kept[0], from);
    for (uint32_t k = 1; k < n; k++) {
        result = fold_float(what->reduce, result, values_load(what->dtype, what->kept[k], from));
    }
    result = what->reduce == TRIB_AVG ? result / n : result;
    return values_load(what->dtype, out, i) == values_round(what->dtype, result);
}

static bool is_right_integer(const collective *what, uint32_t n, uint64_t from, const unsigned char *out, uint64_t i)
{
    const unsigned bits = 8 * (unsigned)trib_dtype_size(what->dtype);
    const bool has_sign = is_signed(what->dtype);
    __int128 result = load_integer(what->dtype, what->kept[0], from);
    for (uint32_t k = 1; k < n; k++) {
        result = wrapped(fold_integer(what, result, load_integer(what->dtype, what->kept[k], from)), 64, has_sign);
    }
    if (what->dtype == TRIB_BOOL) {
        result = result != 0;
    } else {
        result = what->reduce == TRIB_AVG ? result / n : wrapped(result, bits, has_sign);
    }
    return load_integer(what->dtype, out, i) == result;
}

/* Element i of the output is element `from` of what `giver` has; of a reduction of what all have. */
static bool is_right(const collective *what, uint32_t n, uint32_t giver, uint64_t from, const unsigned char *out,
                     uint64_t i)
{
    const size_t size = trib_dtype_size(what->dtype);
    if (!is_reduced(what->kind)) {
        return memcmp(out + i * size, what->kept[giver] + from * size, size) == 0;
    }
    return trib_dtype_is_float(what->dtype) ? is_right_float(what, n, from, out, i)
                                            : is_right_integer(what, n, from, out, i);
}

static void wrong(const collective *what, uint32_t place, uint64_t i)
{
    static const char *const names[] = {"all_reduce", "broadcast",      "reduce_to",
                                        "all_gather", "reduce_scatter", "all_to_all"};
    fail_msg("%s, %s of %s, %s: element %llu of %llu is wrong at place %u", names[what->kind],
             trib_reduce_name(what->reduce), trib_dtype_name(what->dtype), what->in_place ? "in place" : "apart",
             (unsigned long long)i, (unsigned long long)what->output_counts[place], place);
}

static void check_range(const collective *what, uint32_t n, uint32_t place, uint32_t giver, uint64_t from,
                        const unsigned char *out, uint64_t at, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (!is_right(what, n, giver, from + i, out, at + i)) {
            wrong(what, place, at + i);
        }
    }
}

static void check(const collective *what, uint32_t n, uint32_t place)
{
    const unsigned char *out = what->outputs[place];
    uint64_t at = 0;
    switch (what->kind) {
    case TRIB_OP_ALL_GATHER:
        for (uint32_t k = 0; k < n; at += what->lengths[0][k], k++) {
            check_range(what, n, place, k, 0, out, at, what->lengths[0][k]);
        }
        return;
    case TRIB_OP_ALL_TO_ALL:
        for (uint32_t k = 0; k < n; at += what->lengths[k][place], k++) {
            uint64_t from = 0;
            for (uint32_t j = 0; j < place; j++) {
                from += what->lengths[k][j];
            }
            check_range(what, n, place, k, from, out, at, what->lengths[k][place]);
        }
        return;
    case TRIB_OP_REDUCE_SCATTER:
        check_range(what, n, place, 0, what->input_at[place], out, 0, what->lengths[0][place]);
        return;
    default:
        if (what->kind != TRIB_OP_REDUCE || place == what->root) {
            check_range(what, n, place, what->root, 0, out, 0, what->lengths[0][0]);
        }
    }
}

/* ---- Carrying it out ---- */

static unsigned char *guarded(uint64_t bytes)
{
    unsigned char *data = malloc(bytes + 1);
    assert_non_null(data);
    memset(data, 0x55, bytes + 1);
    return data;
}

/* In place: of an all-gather the input lies in the output, of a reduce-scatter the output in the input, where this
 * worker's slice is. */
static void make_buffers(sweep *self, collective *what, uint32_t i)
{
    const size_t size = trib_dtype_size(what->dtype);
    const uint64_t in = what->input_counts[i] * size, out = what->output_counts[i] * size;
    what->kept[i] = guarded(in);
    fill(self, what, what->kept[i], what->input_counts[i]);
    const bool gathers = what->in_place && what->kind == TRIB_OP_ALL_GATHER;
    const bool scatters = what->in_place && what->kind == TRIB_OP_REDUCE_SCATTER;
    if (gathers) {
        what->outputs[i] = guarded(out);
        what->inputs[i] = what->outputs[i] + what->input_at[i] * size;
    } else {
        what->inputs[i] = guarded(in);
        what->outputs[i] = scatters         ? what->inputs[i] + what->input_at[i] * size
                           : what->in_place ? what->inputs[i]
                                            : guarded(out);
    }
    memcpy(what->inputs[i], what->kept[i], in);
}

static void free_buffers(const collective *what, uint32_t i)
{
    const size_t size = trib_dtype_size(what->dtype);
    const bool gathers = what->in_place && what->kind == TRIB_OP_ALL_GATHER;
    unsigned char *last = gathers ? what->outputs[i] : what->inputs[i];
    const uint64_t bytes = (gathers ? what->output_counts[i] : what->input_counts[i]) * size;
    assert_int_equal(last[bytes], 0x55);
    if (!what->in_place) {
        assert_memory_equal(what->inputs[i], what->kept[i], what->input_counts[i] * size);
        assert_int_equal(what->outputs[i][what->output_counts[i] * size], 0x55);
        free(what->outputs[i]);
    }
    free(last);
    free(what->kept[i]);
}

static trib_op_params params_of(const collective *what, uint32_t i)
{
    const size_t size = trib_dtype_size(what->dtype);
    const bool is_sized = layout_of(what->kind) != TRIB_WHOLE;
    return (trib_op_params){.struct_size = sizeof(trib_op_params),
                            .kind = what->kind,
                            .tensor = what->tensors[i],
                            .input = what->inputs[i],
                            .output = what->outputs[i],
                            .input_bytes = what->input_counts[i] * size,
                            .output_bytes = is_sized ? what->output_counts[i] * size : 0,
                            .reduce = is_reduced(what->kind) ? what->reduce : TRIB_SUM,
                            .root = is_sized || what->kind == TRIB_OP_PUSH_PULL ? 0 : (int32_t)what->root};
}

/* Prepared operations are started one by one; the others go as one batch. */
static void submit(const party *all, collective *batch, uint32_t i)
{
    trib_op_params params[BATCH];
    trib_op *ops[BATCH] = {NULL};
    collective *plain[BATCH];
    trib_error error;
    size_t count = 0;
    trib_engine *engine = party_engine_of(all, i);
    for (int b = 0; b < BATCH; b++) {
        const trib_op_params one = params_of(&batch[b], i);
        if (!batch[b].is_prepared) {
            plain[count] = &batch[b];
            params[count++] = one;
        } else if (trib_op_prepare(engine, &one, &batch[b].ops[i], &error) != TRIB_OK ||
                   trib_op_start(&batch[b].ops[i], 1, 7, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    }
    if (trib_submit_batch(engine, params, count, ops, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    for (size_t k = 0; k < count; k++) {
        plain[k]->ops[i] = ops[k];
    }
}

static void run_batch(sweep *self)
{
    static collective batch[BATCH];
    const party *all = &self->party;
    for (int b = 0; b < BATCH; b++) {
        collective *what = &batch[b];
        char name[32];
        draw_collective(self, what);
        snprintf(name, sizeof name, "tensor %u", self->named++ % 50);
        for (uint32_t i = 0; i < all->count; i++) {
            const trib_layout layout = layout_of(what->kind);
            what->tensors[i] = party_declare(
                all, i,
                (trib_tensor_desc){.name = name,
                                   .dtype = what->dtype,
                                   .flags = TRIB_TENSOR_NEW,
                                   .layout = layout,
                                   .count = layout == TRIB_SLICES ? what->lengths[0][i] : what->lengths[0][0],
                                   .splits = layout == TRIB_PAIRS ? what->lengths[i] : NULL,
                                   .split_count = layout == TRIB_PAIRS ? all->count : 0});
            make_buffers(self, what, i);
        }
    }
    for (uint32_t i = 0; i < all->count; i++) {
        submit(all, batch, i);
    }
    for (int b = 0; b < BATCH; b++) {
        for (uint32_t i = 0; i < all->count; i++) {
            trib_error error;
            party_succeeds(batch[b].ops[i]);
            check(&batch[b], all->count, i);
            assert_int_equal(trib_tensor_release(batch[b].tensors[i], &error), TRIB_OK);
        }
        for (uint32_t i = 0; i < all->count; i++) {
            free_buffers(&batch[b], i);
        }
    }
}

/* ---- Jobs ---- */

static void by_arrival(trib_config *config, int member)
{
    party_small_pieces(config, member);
    config->sum_order = TRIB_ORDER_ARRIVAL;
}

static void by_machine(trib_config *config, int member)
{
    party_small_pieces(config, member);
    config->local_sum = TRIB_LOCAL_SUM_ON;
    config->listen = member < 2 ? "127.0.0.1" : "127.0.0.2";
}

static void large_pieces(trib_config *config, int member)
{
    (void)member;
    config->transport = "tcp";
}

static const struct {
    int workers, servers;
    job_tweak tweak;
} shapes[] = {{4, 0, party_small_pieces}, {3, 2, party_dedicated}, {5, 1, by_arrival},
              {4, 0, by_machine},         {2, 1, large_pieces},    {1, 0, party_small_pieces}};

static void draw_party(sweep *self)
{
    const uint32_t workers = (uint32_t)self->party.jobs.worker_count;
    party_all_workers(&self->party);
    if (workers == 1 || below(self, 3) == 0) {
        return;
    }
    int32_t ranks[PARTY_MAX];
    uint32_t count = 0;
    const uint32_t members = below(self, 1U << workers), shift = below(self, workers);
    char name[32];
    for (uint32_t i = 0; i < workers; i++) {
        const uint32_t rank = (i + shift) % workers;
        if ((members >> rank & 1) != 0) {
            ranks[count++] = (int32_t)rank;
        }
    }
    if (count > 0) {
        snprintf(name, sizeof name, "group %u.%u", members, shift);
        party_make_group(&self->party, name, ranks, count);
    }
}

static uint64_t seed = 1;
static int batches = 25;

static void test_sweep(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        static sweep self;
        self = (sweep){.random = seed * 1000 + k};
        job_open(&self.party.jobs, shapes[k].workers, shapes[k].servers, shapes[k].tweak);
        for (int i = 0; i < batches; i++) {
            draw_party(&self);
            run_batch(&self);
        }
        job_close(&self.party.jobs);
    }
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : seed;
    batches = argc > 2 ? atoi(argv[2]) : batches;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sweep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
