/* summation_bed.h - a summation with simulated surroundings: time, memory that can run out, and a receiver of its
 * reports. It also makes contributions, with an oracle for their sums in wide arithmetic. For one test program. */
#ifndef TRIB_TESTS_SUMMATION_BED_H
#define TRIB_TESTS_SUMMATION_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "engine/aggregate/sum_tree.h"
#include "stages/kernels/kernels.h"
#include "tests/unit/stages/kernels_reference.h"

#define CHUNK_BYTES 256u
#define RANKS_MAX 9u
#define EVENTS_MAX 256u

typedef struct event {
    uint32_t receiver;
    trib_contribution what;
    trib_sum_buffer *sum; /* NULL: rejected, or sent already */
    trib_status status;   /* of a rejection */
    uint32_t size;
    unsigned char bytes[CHUNK_BYTES];
} event;

typedef struct bed {
    trib_reactor reactor;
    trib_summation *summation;
    int64_t now_ns;
    uint64_t random, charged_sum;
    uint32_t n, event_count, buffers, stall_calls, stall_rank, stall_missing;
    int64_t allocs_left; /* -1: no limit */
    bool holds_sums;     /* the test keeps its references until release_all */
    char text[TRIB_ERROR_TEXT_SIZE];
    event events[EVENTS_MAX];
} bed;

static bed the; /* the summation's allocator takes no argument */

static int64_t fake_now(trib_reactor *reactor)
{
    return ((bed *)reactor->owner)->now_ns;
}

static void fake_charge(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    ((bed *)reactor->owner)->charged_sum += cost == TRIB_COST_SUM ? bytes : 0;
}

static const trib_reactor_ops fake_ops = {
    .name = "fake", .now_ns = fake_now, .now_fast_ns = fake_now, .charge = fake_charge};

static bool may_allocate(void)
{
    if (the.allocs_left == 0) {
        return false;
    }
    the.allocs_left -= the.allocs_left > 0;
    return true;
}

static void *inner_alloc(size_t size)
{
    return may_allocate() ? calloc(1, size) : NULL;
}

static void *buffer_alloc(void *user, size_t size)
{
    (void)user;
    void *buffer = may_allocate() ? malloc(size) : NULL;
    the.buffers += buffer != NULL;
    return buffer;
}

static void buffer_free(void *user, void *buffer, size_t size)
{
    (void)user;
    memset(buffer, 0xdd, size); /* a wrong size would be reported by the sanitizer */
    free(buffer);
    the.buffers--;
}

static void sum_ready(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    assert_true(the.event_count < EVENTS_MAX);
    event *at = &the.events[the.event_count++];
    *at = (event){.receiver = receiver, .what = *what, .sum = sum, .size = sum->size};
    assert_int_equal(what->contributor, receiver);
    assert_true(sum->size == 0 || sum->size == what->size);
    assert_true((sum->data == NULL) == (sum->size == 0));
    if (sum->size > 0) {
        memcpy(at->bytes, sum->data, sum->size);
    }
    if (!the.holds_sums) {
        at->sum = NULL;
        trib_summation_sent(the.summation, sum);
    }
}

static void refused(void *user, uint32_t receiver, const trib_contribution *what, trib_status status, const char *text)
{
    (void)user;
    assert_true(the.event_count < EVENTS_MAX);
    the.events[the.event_count++] = (event){.receiver = receiver, .what = *what, .status = status};
    snprintf(the.text, sizeof the.text, "%s", text);
}

static trib_summation_config bed_config(uint32_t n, trib_sum_order order)
{
    return (trib_summation_config){.reactor = &the.reactor,
                                   .kernels = trib_kernels_best(),
                                   .order = order,
                                   .contributor_count = n,
                                   .chunk_bytes = CHUNK_BYTES,
                                   .buffer_alloc = buffer_alloc,
                                   .buffer_free = buffer_free,
                                   .sum_ready = sum_ready,
                                   .receiver_last = n / 2,
                                   .refused = refused,
                                   .user = &the};
}

static void open_configured(const trib_summation_config *config)
{
    memset(&the, 0, sizeof the);
    the.n = config->contributor_count;
    the.random = 7 + the.n;
    the.allocs_left = -1;
    the.reactor = (trib_reactor){.ops = &fake_ops, .owner = &the};
    assert_int_equal(trib_summation_create(config, &the.summation), TRIB_OK);
    the.summation->memory_alloc = inner_alloc;
}

static inline void open_bed(uint32_t n, trib_sum_order order)
{
    const trib_summation_config config = bed_config(n, order);
    open_configured(&config);
}

static void check_idle(void)
{
    assert_true(trib_summation_is_idle(the.summation));
    assert_int_equal(the.summation->blocks_out, 0);
    assert_int_equal(the.buffers, the.summation->blocks.count);
    assert_true(trib_sum_memory_is_consistent(the.summation));
}

static void close_bed(void)
{
    check_idle();
    trib_summation_destroy(the.summation);
    assert_int_equal(the.buffers, 0);
}

static inline void release_all(void)
{
    for (uint32_t i = 0; i < the.event_count; i++) {
        if (the.events[i].sum != NULL) {
            trib_summation_sent(the.summation, the.events[i].sum);
            the.events[i].sum = NULL;
        }
    }
}

static uint32_t random_below(uint32_t bound)
{
    the.random = the.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((the.random >> 33) % bound);
}

static inline void shuffle(uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t j = random_below(i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

static trib_contribution make(uint32_t round, uint32_t rank, trib_dtype dtype, trib_reduce reduce)
{
    return (trib_contribution){.tensor = 3,
                               .partition = 1,
                               .round = round,
                               .chunk_count = 1,
                               .size = CHUNK_BYTES,
                               .contributor = rank,
                               .dtype = dtype,
                               .reduce = reduce};
}

/* Gives a contribution through a landing buffer, or lent for the call: at random. */
static trib_status give(const trib_contribution *what, const void *payload, trib_error *error)
{
    void *buffer = NULL;
    if (random_below(2) == 0) {
        return trib_summation_arrived(the.summation, what, &(trib_arrived){.payload = payload}, error);
    }
    trib_status status = trib_summation_recv_target(the.summation, what, &buffer, error);
    if (status == TRIB_OK) {
        memcpy(buffer, payload, what->size);
        status =
            trib_summation_arrived(the.summation, what, &(trib_arrived){.buffer = buffer, .payload = buffer}, error);
    }
    return status;
}

static inline void must_give(const trib_contribution *what, const void *payload)
{
    trib_error error;
    assert_int_equal(give(what, payload, &error), TRIB_OK);
}

/* ---- Contributions and their sums ---- */

/* Whole numbers that every type can hold and that add up exactly; for integers any bits. */
static uint64_t element(trib_dtype dtype, uint32_t rank, uint32_t index)
{
    const ref_type *type = &ref_types[dtype];
    const uint64_t seed = rank * UINT64_C(2654435761) + index * UINT64_C(40503) + 12345;
    const uint64_t mixed = seed * UINT64_C(0x9e3779b97f4a7c15);
    return dtype == TRIB_BOOL ? mixed >> 63
           : type->is_float   ? ref_round(type, (double)(mixed >> 40 & 15) - 8)
                              : mixed >> (64 - 8 * type->bytes);
}

/* Products of the floats are powers of two: they are exact, too. */
static uint64_t element_of(trib_dtype dtype, trib_reduce reduce, uint32_t rank, uint32_t index)
{
    const ref_type *type = &ref_types[dtype];
    const uint64_t bits = element(dtype, rank, index);
    return type->is_float && reduce == TRIB_PRODUCT ? ref_round(type, bits & 1 ? -0.5 : 2) : bits;
}

static uint64_t float_oracle(trib_dtype dtype, trib_reduce reduce, uint32_t n, uint32_t index)
{
    const ref_type *type = &ref_types[dtype], *acc = &ref_types[trib_acc_dtype(dtype, reduce)];
    long double sum = 0, product = 1, least = INFINITY, most = -INFINITY;
    for (uint32_t rank = 0; rank < n; rank++) {
        const double value = ref_float(type, element_of(dtype, reduce, rank, index));
        sum += value;
        product *= value;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    const long double all = reduce == TRIB_MIN       ? least
                            : reduce == TRIB_MAX     ? most
                            : reduce == TRIB_PRODUCT ? product
                            : reduce == TRIB_AVG     ? (double)sum / n
                                                     : sum;
    return ref_round(type, acc->bytes == 4 ? (double)(float)all : (double)all);
}

static uint64_t oracle(trib_dtype dtype, trib_reduce reduce, uint32_t n, uint32_t index)
{
    const ref_type *type = &ref_types[dtype];
    uint64_t all = (uint64_t)ref_integer(type, element(dtype, 0, index));
    if (type->is_float) {
        return float_oracle(dtype, reduce, n, index);
    }
    for (uint32_t rank = 1; rank < n; rank++) {
        all = ref_combine_integers(type, ref_reduce(dtype, reduce), all,
                                   (uint64_t)ref_integer(type, element(dtype, rank, index)));
    }
    return reduce != TRIB_AVG ? all : type->is_signed ? (uint64_t)((int64_t)all / (int64_t)n) : all / n;
}

static inline void fill_for(unsigned char *bytes, trib_dtype dtype, trib_reduce reduce, uint32_t rank)
{
    const ref_type *type = &ref_types[dtype];
    for (uint32_t i = 0; i < CHUNK_BYTES / type->bytes; i++) {
        ref_store(type, bytes + (size_t)i * type->bytes, element_of(dtype, reduce, rank, i));
    }
}

static inline void fill(unsigned char *bytes, trib_dtype dtype, uint32_t rank)
{
    fill_for(bytes, dtype, TRIB_SUM, rank);
}

static void check_elements(const event *at, trib_dtype dtype, trib_reduce reduce, uint32_t n, uint32_t size)
{
    const ref_type *type = &ref_types[dtype];
    const uint64_t mask = type->bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * type->bytes) - 1;
    assert_int_equal(at->size, size);
    for (uint32_t i = 0; i < size / type->bytes; i++) {
        const uint64_t is = ref_load(type, at->bytes + (size_t)i * type->bytes),
                       wanted = oracle(dtype, reduce, n, i) & mask;
        /* a sum of zeros may have either sign here */
        assert_true(is == wanted || (type->is_float && ref_float(type, is) == 0 && ref_float(type, wanted) == 0));
    }
}

static inline void check_sum(const event *at, trib_dtype dtype, trib_reduce reduce, uint32_t n)
{
    check_elements(at, dtype, reduce, n, CHUNK_BYTES);
}

#endif
