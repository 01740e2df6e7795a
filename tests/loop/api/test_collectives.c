/* test_collectives.c - every collective, with lengths of all kinds, in the whole job and in groups, against results
 * that are computed element by element. */
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

/* Small enough that all types hold it, and that sums of all but the 8-bit floats and bool are exact. */
static double value(uint32_t giver, uint64_t i)
{
    return (double)((giver * 7 + i * 3 + i / 11) % 9);
}

/* Returns the value as an element of the type holds it. */
static double held(trib_dtype dtype, double number)
{
    return dtype == TRIB_BOOL ? number != 0 : values_round(dtype, number);
}

static void *filled(trib_dtype dtype, uint32_t giver, uint64_t from, uint64_t count)
{
    unsigned char *data = malloc(count * trib_dtype_size(dtype) + 1);
    assert_non_null(data);
    for (uint64_t i = 0; i < count; i++) {
        values_store(dtype, data, i, value(giver, from + i));
    }
    return data;
}

static void *blank(trib_dtype dtype, uint64_t count)
{
    unsigned char *data = malloc(count * trib_dtype_size(dtype) + 1);
    assert_non_null(data);
    memset(data, 0x55, count * trib_dtype_size(dtype) + 1);
    return data;
}

/* The byte behind a buffer shows that nothing was written past its end. */
static void is_bounded(const void *data, trib_dtype dtype, uint64_t count)
{
    assert_int_equal(((const unsigned char *)data)[count * trib_dtype_size(dtype)], 0x55);
}

static double sum_of(const party *self, uint64_t i)
{
    double sum = 0;
    for (uint32_t k = 0; k < self->count; k++) {
        sum += value(k, i);
    }
    return sum;
}

static const char *name_for(const char *what, trib_dtype dtype, uint64_t length)
{
    static char name[64];
    snprintf(name, sizeof name, "%s.%d.%llu", what, (int)dtype, (unsigned long long)length);
    return name;
}

/* ---- Each collective, once ---- */

static void all_reduce_and_reduce(const party *self, trib_dtype dtype, uint64_t count, uint32_t root)
{
    void *inputs[PARTY_MAX], *sums[PARTY_MAX], *outputs[PARTY_MAX];
    trib_op *ops[PARTY_MAX][2];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = party_declare(
            self, i, (trib_tensor_desc){.name = name_for("whole", dtype, count), .dtype = dtype, .count = count});
        inputs[i] = filled(dtype, i, 0, count);
        sums[i] = blank(dtype, count);
        outputs[i] = blank(dtype, count);
        const bool is_root = i == root;
        ops[i][0] = party_submit(self, i, trib_all_reduce,
                                 (trib_op_params){.tensor = tensor, .input = inputs[i], .output = sums[i]});
        ops[i][1] = party_submit(self, i, trib_reduce_to,
                                 (trib_op_params){.tensor = tensor,
                                                  .input = inputs[i],
                                                  .output = is_root || i % 2 == 0 ? outputs[i] : NULL,
                                                  .root = (int32_t)root});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        party_succeeds(ops[i][0]);
        party_succeeds(ops[i][1]);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        for (uint64_t e = 0; e < count; e++) {
            assert_true(values_load(dtype, sums[i], e) == held(dtype, sum_of(self, e)));
            if (i == root) {
                assert_true(values_load(dtype, outputs[i], e) == held(dtype, sum_of(self, e)));
            }
        }
        if (i != root && count > 0) {
            is_bounded(outputs[i], dtype, 0); /* elsewhere nothing is written */
        }
        is_bounded(sums[i], dtype, count);
        is_bounded(outputs[i], dtype, count);
        free(inputs[i]);
        free(sums[i]);
        free(outputs[i]);
    }
}

static void broadcast(const party *self, trib_dtype dtype, uint64_t count, uint32_t root)
{
    void *inputs[PARTY_MAX], *outputs[PARTY_MAX];
    trib_op *ops[PARTY_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = party_declare(
            self, i, (trib_tensor_desc){.name = name_for("bcast", dtype, count), .dtype = dtype, .count = count});
        inputs[i] = filled(dtype, i, 0, count);
        outputs[i] = blank(dtype, count);
        ops[i] = party_submit(
            self, i, trib_broadcast,
            (trib_op_params){.tensor = tensor, .input = inputs[i], .output = outputs[i], .root = (int32_t)root});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        party_succeeds(ops[i]);
        for (uint64_t e = 0; e < count; e++) {
            assert_true(values_load(dtype, outputs[i], e) == held(dtype, value(root, e)));
        }
        is_bounded(outputs[i], dtype, count);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
}

static uint64_t total_of(const uint64_t *counts, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += counts[i];
    }
    return total;
}

static void check_gathered(const party *self, trib_dtype dtype, const uint64_t *counts, const void *output)
{
    uint64_t at = 0;
    for (uint32_t k = 0; k < self->count; k++) {
        for (uint64_t e = 0; e < counts[k]; e++) {
            assert_true(values_load(dtype, output, at++) == held(dtype, value(k, e)));
        }
    }
}

/* Worker i has counts[i] elements. In place, its input is its part of the output. */
static void gather_and_scatter(const party *self, trib_dtype dtype, const uint64_t *counts, const char *what,
                               bool in_place)
{
    const uint64_t total = total_of(counts, self->count);
    const size_t size = trib_dtype_size(dtype);
    void *inputs[PARTY_MAX], *outputs[PARTY_MAX], *wholes[PARTY_MAX], *slices[PARTY_MAX];
    trib_op *ops[PARTY_MAX][3];
    uint64_t before = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = party_declare(
            self, i,
            (trib_tensor_desc){
                .name = name_for(what, dtype, total), .dtype = dtype, .count = counts[i], .layout = TRIB_SLICES});
        inputs[i] = filled(dtype, i, 0, counts[i]);
        outputs[i] = blank(dtype, total);
        wholes[i] = filled(dtype, i, 0, total);
        slices[i] = blank(dtype, counts[i]);
        unsigned char *mine = (unsigned char *)outputs[i] + before * size;
        if (in_place) {
            memcpy(mine, inputs[i], counts[i] * size);
        }
        ops[i][0] = party_submit(self, i, trib_all_gather,
                                 (trib_op_params){.tensor = tensor,
                                                  .input = in_place ? mine : inputs[i],
                                                  .output = outputs[i],
                                                  .output_bytes = total * size});
        ops[i][1] = party_submit(self, i, trib_reduce_scatter,
                                 (trib_op_params){.tensor = tensor, .input = wholes[i], .output = slices[i]});
        ops[i][2] =
            party_submit(self, i, trib_all_gather,
                         (trib_op_params){.tensor = tensor, .input = inputs[i], .flags = TRIB_OP_ALLOCATE_OUTPUT});
        before += counts[i];
    }
    before = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        party_succeeds(ops[i][0]);
        party_succeeds(ops[i][1]);
        check_gathered(self, dtype, counts, outputs[i]);
        is_bounded(outputs[i], dtype, total);
        for (uint64_t e = 0; e < counts[i]; e++) {
            assert_true(values_load(dtype, slices[i], e) == held(dtype, sum_of(self, before + e)));
        }
        is_bounded(slices[i], dtype, counts[i]);
        before += counts[i];
        trib_error error;
        uint64_t found[PARTY_MAX], bytes = 0;
        size_t found_count = 0;
        void *output = NULL;
        assert_int_equal(trib_op_wait(ops[i][2], -1, &error), TRIB_OK);
        assert_int_equal(trib_op_output(ops[i][2], &output, &bytes, &error), TRIB_OK);
        assert_int_equal(bytes, total * size);
        check_gathered(self, dtype, counts, output);
        assert_int_equal(trib_op_counts(ops[i][2], found, PARTY_MAX, &found_count, &error), TRIB_OK);
        assert_int_equal(found_count, self->count);
        assert_memory_equal(found, counts, self->count * sizeof *counts);
        trib_op_release(ops[i][2]);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        free(inputs[i]);
        free(outputs[i]);
        free(wholes[i]);
        free(slices[i]);
    }
}

/* splits[i][j] elements go from worker i to worker j. */
static void exchange(const party *self, trib_dtype dtype, uint64_t splits[PARTY_MAX][PARTY_MAX], const char *what)
{
    const size_t size = trib_dtype_size(dtype);
    void *inputs[PARTY_MAX], *outputs[PARTY_MAX];
    uint64_t taken[PARTY_MAX] = {0};
    trib_op *ops[PARTY_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = party_declare(self, i,
                                            (trib_tensor_desc){.name = name_for(what, dtype, splits[0][0]),
                                                               .dtype = dtype,
                                                               .layout = TRIB_PAIRS,
                                                               .splits = splits[i],
                                                               .split_count = self->count});
        for (uint32_t j = 0; j < self->count; j++) {
            taken[i] += splits[j][i];
        }
        inputs[i] = filled(dtype, i, 0, total_of(splits[i], self->count));
        outputs[i] = blank(dtype, taken[i]);
        ops[i] = party_submit(
            self, i, trib_all_to_all,
            (trib_op_params){
                .tensor = tensor, .input = inputs[i], .output = outputs[i], .output_bytes = taken[i] * size});
    }
    for (uint32_t j = 0; j < self->count; j++) {
        party_succeeds(ops[j]);
        uint64_t at = 0;
        for (uint32_t i = 0; i < self->count; i++) {
            const uint64_t from = total_of(splits[i], j);
            for (uint64_t e = 0; e < splits[i][j]; e++) {
                assert_true(values_load(dtype, outputs[j], at++) == held(dtype, value(i, from + e)));
            }
        }
        is_bounded(outputs[j], dtype, taken[j]);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
}

static void bytes(const party *self)
{
    trib_op *ops[PARTY_MAX][2];
    const uint32_t root = self->count - 1;
    void *data[PARTY_MAX];
    uint64_t counts[PARTY_MAX], total = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        counts[i] = i * 5003;
        total += counts[i];
        data[i] = filled(TRIB_UINT8, i, 0, counts[i]);
        const trib_op_params params = {
            .input = data[i], .input_bytes = counts[i], .root = (int32_t)root, .group = self->groups[self->ranks[i]]};
        ops[i][0] = party_submit(self, i, trib_broadcast_bytes, params);
        ops[i][1] = party_submit(self, i, trib_all_gather_bytes, params);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        void *output = NULL;
        uint64_t size = 0;
        trib_error error;
        assert_int_equal(trib_op_wait(ops[i][0], -1, &error), TRIB_OK);
        assert_int_equal(trib_op_output(ops[i][0], &output, &size, &error), TRIB_OK);
        assert_int_equal(size, counts[root]);
        assert_memory_equal(output, data[root], size);
        assert_int_equal(trib_op_wait(ops[i][1], -1, &error), TRIB_OK);
        assert_int_equal(trib_op_output(ops[i][1], &output, &size, &error), TRIB_OK);
        assert_int_equal(size, total);
        check_gathered(self, TRIB_UINT8, counts, output);
        trib_op_release(ops[i][0]);
        trib_op_release(ops[i][1]);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        free(data[i]);
    }
}

static void barrier(const party *self)
{
    trib_op *ops[PARTY_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        ops[i] = party_submit(self, i, trib_barrier, (trib_op_params){.group = self->groups[self->ranks[i]]});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        party_succeeds(ops[i]);
    }
}

/* ---- All of them ---- */

/* Nothing, one, primes, one below and above a chunk, more than a partition. */
static const uint64_t lengths[] = {0, 1, 7, 997, 1023, 1025, 5003};

static void every_collective(const party *self)
{
    if (self->count == 0) {
        fail_msg("nobody takes part");
        return; /* not reached; for readers that do not know fail_msg */
    }
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        const uint64_t length = lengths[l];
        const trib_dtype dtype = (trib_dtype)(l % TRIB_DTYPE_COUNT);
        uint64_t equal[PARTY_MAX] = {0}, unequal[PARTY_MAX] = {0}, only_one[PARTY_MAX] = {0};
        uint64_t splits[PARTY_MAX][PARTY_MAX] = {{0}}, even[PARTY_MAX][PARTY_MAX] = {{0}};
        for (uint32_t i = 0; i < self->count; i++) {
            equal[i] = length;
            unequal[i] = lengths[(l + i * 3) % (sizeof lengths / sizeof lengths[0])];
            for (uint32_t j = 0; j < self->count; j++) {
                even[i][j] = length;
                splits[i][j] = lengths[(l + i * 2 + j) % (sizeof lengths / sizeof lengths[0])];
            }
        }
        only_one[l % self->count] = length;
        all_reduce_and_reduce(self, dtype, length, (uint32_t)l % self->count);
        broadcast(self, dtype, length, (uint32_t)(l + 1) % self->count);
        gather_and_scatter(self, dtype, equal, "equal", false);
        gather_and_scatter(self, dtype, unequal, "unequal", true);
        gather_and_scatter(self, dtype, only_one, "one", false);
        exchange(self, dtype, even, "even");
        exchange(self, dtype, splits, "splits");
    }
    bytes(self);
    barrier(self);
    bytes(self);
}

static void every_type(const party *self)
{
    for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        uint64_t counts[PARTY_MAX] = {0}, splits[PARTY_MAX][PARTY_MAX] = {{0}};
        for (uint32_t i = 0; i < self->count; i++) {
            counts[i] = 301 + 13 * i;
            for (uint32_t j = 0; j < self->count; j++) {
                splits[i][j] = 17 * i + 31 * j;
            }
        }
        all_reduce_and_reduce(self, (trib_dtype)dtype, 317, 0);
        gather_and_scatter(self, (trib_dtype)dtype, counts, "typed", false);
        exchange(self, (trib_dtype)dtype, splits, "typed pairs");
    }
}

static void test_colocated_servers(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 4, 0, party_small_pieces);
    party_all_workers(&self);
    every_collective(&self);
    every_type(&self);
    job_close(&self.jobs);
}

static void test_dedicated_servers(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 3, 2, party_dedicated);
    party_all_workers(&self);
    every_collective(&self);
    job_close(&self.jobs);
}

static void test_one_worker(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 1, 0, party_small_pieces);
    party_all_workers(&self);
    every_collective(&self);
    job_close(&self.jobs);
}

/* Two groups that share a worker, and the whole job, use the same names at the same time. */
static void test_groups(void **state)
{
    (void)state;
    static const int32_t some[] = {3, 0, 2}, others[] = {1, 3}, alone[] = {2};
    for (int servers = 0; servers <= 1; servers++) {
        party self;
        job_open(&self.jobs, 4, servers, servers > 0 ? party_dedicated : party_small_pieces);
        party_make_group(&self, "some", some, 3);
        every_collective(&self);
        party_make_group(&self, "others", others, 2);
        every_collective(&self);
        party_make_group(&self, "alone", alone, 1);
        every_collective(&self);
        party_all_workers(&self);
        every_collective(&self);
        party_make_group(&self, "some", some, 3); /* the same handles again */
        barrier(&self);
        job_close(&self.jobs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_colocated_servers),
        cmocka_unit_test(test_dedicated_servers),
        cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
