/* test_collectives.c - every collective, with lengths of all kinds, in the whole job and in groups, against results that
 * are computed element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"
#include "tests/support/values.h"

#define WORKERS_MAX 5
#define CHUNK 4096u

typedef trib_status (*operation)(trib_engine *, const trib_op_params *, trib_op **, trib_error *);

/* A job, and the workers of it that take part, in the order of their group. */
typedef struct party {
    job jobs;
    uint32_t count;
    int32_t ranks[WORKERS_MAX];
    trib_group *groups[JOB_MEMBERS_MAX]; /* by rank; NULL: all workers take part */
} party;

static void small_pieces(trib_config *config, int member)
{
    (void)member;
    config->chunk_bytes = CHUNK;
    config->partition_bytes = 2 * CHUNK;
    config->reactors = 2;
    config->op_timeout_ns = INT64_C(60000000000);
}

static void dedicated(trib_config *config, int member)
{
    small_pieces(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

static void all_workers(party *self)
{
    self->count = (uint32_t)self->jobs.worker_count;
    for (uint32_t i = 0; i < self->count; i++) {
        self->ranks[i] = (int32_t)i;
        self->groups[i] = NULL;
    }
}

static void make_group(party *self, const char *name, const int32_t *ranks, uint32_t count)
{
    self->count = count;
    for (uint32_t i = 0; i < count; i++) {
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.ranks = ranks;
        desc.rank_count = count;
        self->ranks[i] = ranks[i];
        trib_error error;
        if (trib_group_create(self->jobs.engines[ranks[i]], &desc, &self->groups[ranks[i]], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(trib_group_rank(self->groups[ranks[i]]), i);
        assert_int_equal(trib_group_size(self->groups[ranks[i]]), count);
    }
}

static trib_engine *engine_of(const party *self, uint32_t i)
{
    return self->jobs.engines[self->ranks[i]];
}

/* Small enough that sums of all types are exact. */
static double value(uint32_t giver, uint64_t i)
{
    return (double)((giver * 7 + i * 3 + i / 11) % 9);
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

static trib_tensor *declare(const party *self, uint32_t i, trib_tensor_desc desc)
{
    trib_tensor *tensor = NULL;
    trib_error error;
    desc.struct_size = sizeof desc;
    desc.group = self->groups[self->ranks[i]];
    if (trib_tensor_declare(engine_of(self, i), &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

static trib_op *submit(const party *self, uint32_t i, operation run, trib_op_params params)
{
    trib_op *op = NULL;
    trib_error error;
    params.struct_size = sizeof params;
    if (run(engine_of(self, i), &params, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

static void succeeds(trib_op *op)
{
    trib_error error;
    if (job_wait(op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
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
    void *inputs[WORKERS_MAX], *sums[WORKERS_MAX], *outputs[WORKERS_MAX];
    trib_op *ops[WORKERS_MAX][2];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = declare(
            self, i, (trib_tensor_desc){.name = name_for("whole", dtype, count), .dtype = dtype, .count = count});
        inputs[i] = filled(dtype, i, 0, count);
        sums[i] = blank(dtype, count);
        outputs[i] = blank(dtype, count);
        const bool is_root = i == root;
        ops[i][0] = submit(self, i, trib_all_reduce,
                           (trib_op_params){.tensor = tensor, .input = inputs[i], .output = sums[i]});
        ops[i][1] = submit(self, i, trib_reduce_to,
                           (trib_op_params){.tensor = tensor,
                                            .input = inputs[i],
                                            .output = is_root || i % 2 == 0 ? outputs[i] : NULL,
                                            .root = (int32_t)root});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        succeeds(ops[i][0]);
        succeeds(ops[i][1]);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        for (uint64_t e = 0; e < count; e++) {
            assert_true(values_load(dtype, sums[i], e) == sum_of(self, e));
            if (i == root) {
                assert_true(values_load(dtype, outputs[i], e) == sum_of(self, e));
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
    void *inputs[WORKERS_MAX], *outputs[WORKERS_MAX];
    trib_op *ops[WORKERS_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = declare(
            self, i, (trib_tensor_desc){.name = name_for("bcast", dtype, count), .dtype = dtype, .count = count});
        inputs[i] = filled(dtype, i, 0, count);
        outputs[i] = blank(dtype, count);
        ops[i] = submit(self, i, trib_broadcast,
                        (trib_op_params){
                            .tensor = tensor, .input = inputs[i], .output = outputs[i], .root = (int32_t)root});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        succeeds(ops[i]);
        for (uint64_t e = 0; e < count; e++) {
            assert_true(values_load(dtype, outputs[i], e) == value(root, e));
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
            assert_true(values_load(dtype, output, at++) == value(k, e));
        }
    }
}

/* Worker i has counts[i] elements. In place, its input is its part of the output. */
static void gather_and_scatter(const party *self, trib_dtype dtype, const uint64_t *counts, const char *what,
                               bool in_place)
{
    const uint64_t total = total_of(counts, self->count);
    const size_t size = trib_dtype_size(dtype);
    void *inputs[WORKERS_MAX], *outputs[WORKERS_MAX], *wholes[WORKERS_MAX], *slices[WORKERS_MAX];
    trib_op *ops[WORKERS_MAX][3];
    uint64_t before = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = declare(self, i,
                                      (trib_tensor_desc){.name = name_for(what, dtype, total),
                                                         .dtype = dtype,
                                                         .count = counts[i],
                                                         .layout = TRIB_SLICES});
        inputs[i] = filled(dtype, i, 0, counts[i]);
        outputs[i] = blank(dtype, total);
        wholes[i] = filled(dtype, i, 0, total);
        slices[i] = blank(dtype, counts[i]);
        unsigned char *mine = (unsigned char *)outputs[i] + before * size;
        if (in_place) {
            memcpy(mine, inputs[i], counts[i] * size);
        }
        ops[i][0] = submit(self, i, trib_all_gather,
                           (trib_op_params){.tensor = tensor,
                                            .input = in_place ? mine : inputs[i],
                                            .output = outputs[i],
                                            .output_bytes = total * size});
        ops[i][1] = submit(self, i, trib_reduce_scatter,
                           (trib_op_params){.tensor = tensor, .input = wholes[i], .output = slices[i]});
        ops[i][2] = submit(
            self, i, trib_all_gather,
            (trib_op_params){.tensor = tensor, .input = inputs[i], .flags = TRIB_OP_ALLOCATE_OUTPUT});
        before += counts[i];
    }
    before = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        succeeds(ops[i][0]);
        succeeds(ops[i][1]);
        check_gathered(self, dtype, counts, outputs[i]);
        is_bounded(outputs[i], dtype, total);
        for (uint64_t e = 0; e < counts[i]; e++) {
            assert_true(values_load(dtype, slices[i], e) == sum_of(self, before + e));
        }
        is_bounded(slices[i], dtype, counts[i]);
        before += counts[i];
        trib_error error;
        uint64_t found[WORKERS_MAX], bytes = 0;
        size_t found_count = 0;
        void *output = NULL;
        assert_int_equal(trib_op_wait(ops[i][2], -1, &error), TRIB_OK);
        assert_int_equal(trib_op_output(ops[i][2], &output, &bytes, &error), TRIB_OK);
        assert_int_equal(bytes, total * size);
        check_gathered(self, dtype, counts, output);
        assert_int_equal(trib_op_counts(ops[i][2], found, WORKERS_MAX, &found_count, &error), TRIB_OK);
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
static void exchange(const party *self, trib_dtype dtype, uint64_t splits[WORKERS_MAX][WORKERS_MAX], const char *what)
{
    const size_t size = trib_dtype_size(dtype);
    void *inputs[WORKERS_MAX], *outputs[WORKERS_MAX];
    uint64_t taken[WORKERS_MAX] = {0};
    trib_op *ops[WORKERS_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = declare(self, i,
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
        ops[i] = submit(self, i, trib_all_to_all,
                        (trib_op_params){.tensor = tensor,
                                         .input = inputs[i],
                                         .output = outputs[i],
                                         .output_bytes = taken[i] * size});
    }
    for (uint32_t j = 0; j < self->count; j++) {
        succeeds(ops[j]);
        uint64_t at = 0;
        for (uint32_t i = 0; i < self->count; i++) {
            const uint64_t from = total_of(splits[i], j);
            for (uint64_t e = 0; e < splits[i][j]; e++) {
                assert_true(values_load(dtype, outputs[j], at++) == value(i, from + e));
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
    trib_op *ops[WORKERS_MAX][2];
    const uint32_t root = self->count - 1;
    void *data[WORKERS_MAX];
    uint64_t counts[WORKERS_MAX], total = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        counts[i] = i * 5003;
        total += counts[i];
        data[i] = filled(TRIB_UINT8, i, 0, counts[i]);
        const trib_op_params params = {.input = data[i],
                                       .input_bytes = counts[i],
                                       .root = (int32_t)root,
                                       .group = self->groups[self->ranks[i]]};
        ops[i][0] = submit(self, i, trib_broadcast_bytes, params);
        ops[i][1] = submit(self, i, trib_all_gather_bytes, params);
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
    trib_op *ops[WORKERS_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        ops[i] = submit(self, i, trib_barrier, (trib_op_params){.group = self->groups[self->ranks[i]]});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        succeeds(ops[i]);
    }
}

/* ---- All of them ---- */

/* Nothing, one, primes, one below and above a chunk, more than a partition. */
static const uint64_t lengths[] = {0, 1, 7, 997, 1023, 1025, 5003};

static void every_collective(const party *self)
{
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        const uint64_t length = lengths[l];
        const trib_dtype dtype = (trib_dtype)(l % TRIB_DTYPE_COUNT);
        uint64_t equal[WORKERS_MAX], unequal[WORKERS_MAX], only_one[WORKERS_MAX] = {0};
        uint64_t splits[WORKERS_MAX][WORKERS_MAX], even[WORKERS_MAX][WORKERS_MAX];
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
        uint64_t counts[WORKERS_MAX], splits[WORKERS_MAX][WORKERS_MAX];
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
    job_open(&self.jobs, 4, 0, small_pieces);
    all_workers(&self);
    every_collective(&self);
    every_type(&self);
    job_close(&self.jobs);
}

static void test_dedicated_servers(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 3, 2, dedicated);
    all_workers(&self);
    every_collective(&self);
    job_close(&self.jobs);
}

static void test_one_worker(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 1, 0, small_pieces);
    all_workers(&self);
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
        job_open(&self.jobs, 4, servers, servers > 0 ? dedicated : small_pieces);
        make_group(&self, "some", some, 3);
        every_collective(&self);
        make_group(&self, "others", others, 2);
        every_collective(&self);
        make_group(&self, "alone", alone, 1);
        every_collective(&self);
        all_workers(&self);
        every_collective(&self);
        make_group(&self, "some", some, 3); /* the same handles again */
        barrier(&self);
        job_close(&self.jobs);
    }
}

/* ---- What does not fit ---- */

static bool mentions(const char *text, const char *what)
{
    return strstr(text, what) != NULL;
}

static void fails_with(trib_op *op, trib_status status, const char *one, const char *other)
{
    trib_error error;
    assert_int_equal(job_wait(op, &error), status);
    if (!mentions(error.text, one) || !mentions(error.text, other)) {
        fail_msg("\"%s\" names neither \"%s\" nor \"%s\"", error.text, one, other);
    }
}

static void test_members_that_disagree(void **state)
{
    (void)state;
    party self;
    static float data[4096];
    static float out[3][4096];
    job_open(&self.jobs, 3, 0, small_pieces);
    all_workers(&self);
    static const struct {
        const char *name;
        trib_tensor_desc usual, odd;
        operation run;
    } cases[] = {
        {"type", {.dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES}, {.dtype = TRIB_INT32, .count = 8, .layout = TRIB_SLICES}, trib_all_gather},
        {"row", {.dtype = TRIB_FLOAT32, .count = 8, .row = 2, .layout = TRIB_SLICES}, {.dtype = TRIB_FLOAT32, .count = 8, .row = 4, .layout = TRIB_SLICES}, trib_all_gather},
        {"layout", {.dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES}, {.dtype = TRIB_FLOAT32, .count = 8}, NULL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        trib_op *ops[3];
        for (uint32_t i = 0; i < 3; i++) {
            trib_tensor_desc desc = i == 1 ? cases[c].odd : cases[c].usual;
            desc.name = cases[c].name;
            trib_tensor *tensor = declare(&self, i, desc);
            ops[i] = submit(&self, i, desc.layout == TRIB_WHOLE ? trib_all_reduce : trib_all_gather,
                            (trib_op_params){.tensor = tensor, .input = data, .output = out[i],
                                             .output_bytes = desc.layout == TRIB_WHOLE ? 0 : sizeof out[i]});
        }
        for (uint32_t i = 0; i < 3; i++) {
            fails_with(ops[i], TRIB_MISMATCH, "rank 1", "declared it as");
        }
    }
    /* one worker gathers where the others scatter */
    trib_op *ops[3];
    for (uint32_t i = 0; i < 3; i++) {
        trib_tensor *tensor =
            declare(&self, i, (trib_tensor_desc){.name = "both", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
        ops[i] = submit(&self, i, i == 1 ? trib_all_gather : trib_reduce_scatter,
                        (trib_op_params){.tensor = tensor, .input = data, .output = out[i],
                                         .output_bytes = sizeof out[i]});
    }
    for (uint32_t i = 0; i < 3; i++) {
        fails_with(ops[i], TRIB_MISMATCH, "rank 1", "disagree");
    }
    all_reduce_and_reduce(&self, TRIB_FLOAT32, 100, 0);
    job_close(&self.jobs);
}

/* One worker's output is too small: it says so, and the others hear who withdrew. The next operation works. */
static void test_output_too_small(void **state)
{
    (void)state;
    for (int placed = 0; placed <= 1; placed++) {
        party self;
        static float data[64], out[3][256];
        job_open(&self.jobs, 3, 0, small_pieces);
        all_workers(&self);
        trib_tensor *tensors[3];
        trib_op *ops[3];
        for (uint32_t i = 0; i < 3; i++) {
            tensors[i] = declare(&self, i, (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8 * (i + 1), .layout = TRIB_SLICES});
        }
        for (int round = 0; round < (placed ? 1 : 0); round++) {
            for (uint32_t i = 0; i < 3; i++) {
                ops[i] = submit(&self, i, trib_all_gather, (trib_op_params){.tensor = tensors[i], .input = data, .output = out[i], .output_bytes = sizeof out[i]});
            }
            for (uint32_t i = 0; i < 3; i++) {
                succeeds(ops[i]);
            }
        }
        for (uint32_t i = 0; i < 3; i++) {
            ops[i] = submit(&self, i, trib_all_gather,
                            (trib_op_params){.tensor = tensors[i], .input = data, .output = out[i],
                                             .output_bytes = i == 2 ? 4 : sizeof out[i]});
        }
        fails_with(ops[2], TRIB_INVALID, "output has 4 bytes", "192");
        fails_with(ops[0], TRIB_CANCELLED, "rank 2", "output has 4 bytes");
        fails_with(ops[1], TRIB_CANCELLED, "rank 2", "output has 4 bytes");
        for (uint32_t i = 0; i < 3; i++) {
            ops[i] = submit(&self, i, trib_all_gather, (trib_op_params){.tensor = tensors[i], .input = data, .output = out[i], .output_bytes = sizeof out[i]});
        }
        for (uint32_t i = 0; i < 3; i++) {
            succeeds(ops[i]);
        }
        job_close(&self.jobs);
    }
}

/* A worker that leaves without having declared the slices that the others wait for. */
static void test_member_that_left(void **state)
{
    (void)state;
    for (int first = 0; first <= 1; first++) { /* it leaves before the others declare, or afterwards */
        party self;
        static float data[8];
        trib_op *ops[2];
        job_open(&self.jobs, 3, 0, small_pieces);
        all_workers(&self);
        if (first) {
            assert_int_equal(trib_engine_destroy(self.jobs.engines[2]), TRIB_OK);
        }
        for (uint32_t i = 0; i < 2; i++) {
            trib_tensor *tensor = declare(
                &self, i, (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
            ops[i] = submit(&self, i, trib_all_gather,
                            (trib_op_params){.tensor = tensor, .input = data, .flags = TRIB_OP_ALLOCATE_OUTPUT});
        }
        if (!first) {
            assert_int_equal(trib_engine_destroy(self.jobs.engines[2]), TRIB_OK);
        }
        fails_with(ops[0], TRIB_PEER_LEFT, "rank 2", "without declaring");
        fails_with(ops[1], TRIB_PEER_LEFT, "rank 2", "without declaring");
        self.jobs.worker_count = 2;
        job_close(&self.jobs);
    }
}

static void test_overlapping_buffers(void **state)
{
    (void)state;
    party self;
    static float data[2][64];
    trib_op *ops[2];
    job_open(&self.jobs, 2, 0, small_pieces);
    all_workers(&self);
    for (uint32_t i = 0; i < 2; i++) {
        trib_tensor *tensor = declare(
            &self, i, (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
        ops[i] = submit(&self, i, trib_all_gather,
                        (trib_op_params){.tensor = tensor, .input = data[i] + (i == 0 ? 1 : 8), .output = data[i], .output_bytes = 64});
    }
    fails_with(ops[0], TRIB_INVALID, "overlap", "its place");
    fails_with(ops[1], TRIB_CANCELLED, "rank 0", "overlap");
    job_close(&self.jobs);
}

static void test_groups_that_disagree(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 3, 0, small_pieces);
    static const int32_t two[] = {0, 1}, three[] = {0, 1, 2};
    static float data[8], out[2][8];
    trib_op *ops[2];
    for (uint32_t i = 0; i < 2; i++) {
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = "g";
        desc.ranks = i == 0 ? two : three;
        desc.rank_count = i == 0 ? 2 : 3;
        trib_group *group = NULL;
        assert_int_equal(trib_group_create(self.jobs.engines[i], &desc, &group, NULL), TRIB_OK);
        trib_tensor_desc tensor_desc;
        trib_tensor_desc_init(&tensor_desc, sizeof tensor_desc);
        tensor_desc.name = "t";
        tensor_desc.count = 8;
        tensor_desc.group = group;
        trib_tensor *tensor = NULL;
        assert_int_equal(trib_tensor_declare(self.jobs.engines[i], &tensor_desc, &tensor, NULL), TRIB_OK);
        ops[i] = job_push_pull(self.jobs.engines[i], tensor, data, out[i], TRIB_SUM);
    }
    fails_with(ops[0], TRIB_MISMATCH, "2 ranks (0, 1)", "3 ranks (0, 1, 2)");
    fails_with(ops[1], TRIB_MISMATCH, "2 ranks (0, 1)", "3 ranks (0, 1, 2)");
    job_close(&self.jobs);
}

static void refuses_group(trib_engine *engine, const int32_t *ranks, uint32_t count, const char *why)
{
    trib_group_desc desc;
    trib_group *group = NULL;
    trib_error error;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "bad";
    desc.ranks = ranks;
    desc.rank_count = count;
    assert_int_equal(trib_group_create(engine, &desc, &group, &error), TRIB_INVALID);
    if (!mentions(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static void refuses_tensor(trib_engine *engine, trib_tensor_desc desc, const char *why)
{
    trib_tensor *tensor = NULL;
    trib_error error;
    desc.struct_size = sizeof desc;
    desc.name = "bad";
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), TRIB_INVALID);
    if (!mentions(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static void test_bad_arguments(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 2, 0, small_pieces);
    all_workers(&self);
    trib_engine *engine = self.jobs.engines[0];
    refuses_group(engine, (const int32_t[]){0, 2}, 2, "2 is not a rank below 2");
    refuses_group(engine, (const int32_t[]){0, -1}, 2, "-1 is not a rank");
    refuses_group(engine, (const int32_t[]){0, 0}, 2, "rank 0 comes twice");
    refuses_group(engine, (const int32_t[]){1}, 1, "none of its members");
    refuses_group(engine, NULL, 0, "0 ranks");
    static const uint64_t splits[] = {1, 2, 3}, huge[] = {UINT64_C(1) << 43, UINT64_C(1) << 43};
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = splits, .split_count = 3}, "needs 2");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .split_count = 2}, "needs 2");
    refuses_tensor(engine, (trib_tensor_desc){.splits = splits, .split_count = 2}, "needs 0");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = huge, .split_count = 2}, "rank 0");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = splits, .split_count = 2, .row = 2}, "rows of 2");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_SLICES, .count = 7, .row = 2}, "rows of 2");
    refuses_tensor(engine, (trib_tensor_desc){.layout = (trib_layout)3}, "layout 3");
    trib_tensor *tensor = job_declare(engine, "whole", TRIB_FLOAT32, 4);
    float data[4] = {0}, out[4];
    trib_error error;
    trib_op_params params = {.struct_size = sizeof params, .tensor = tensor, .input = data, .output = out};
    assert_int_equal(trib_all_gather(engine, &params, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "TRIB_WHOLE") && mentions(error.text, "TRIB_SLICES"));
    params.root = 2;
    assert_int_equal(trib_reduce_to(engine, &params, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "root 2"));
    params.root = 0;
    params.input_bytes = 12;
    assert_int_equal(trib_all_reduce(engine, &params, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "input 12"));
    assert_int_equal(trib_broadcast_bytes(engine, &params, NULL, &error), TRIB_INVALID);
    job_close(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_colocated_servers),     cmocka_unit_test(test_dedicated_servers),
        cmocka_unit_test(test_one_worker),            cmocka_unit_test(test_groups),
        cmocka_unit_test(test_members_that_disagree), cmocka_unit_test(test_output_too_small),
        cmocka_unit_test(test_groups_that_disagree),  cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_member_that_left),      cmocka_unit_test(test_overlapping_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
