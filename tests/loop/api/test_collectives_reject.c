/* test_collectives_reject.c - lengths, splits, ranks and buffers that do not fit, and members that disagree: errors
 * that name them, on every member alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/party.h"

static bool mentions(const char *text, const char *what)
{
    return strstr(text, what) != NULL;
}

static void test_members_that_disagree(void **state)
{
    (void)state;
    party self;
    static float data[4096];
    static float out[3][4096];
    job_open(&self.jobs, 3, 0, party_small_pieces);
    party_all_workers(&self);
    static const struct {
        const char *name;
        trib_tensor_desc usual, odd;
    } cases[] = {
        {"type",
         {.dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES},
         {.dtype = TRIB_INT32, .count = 8, .layout = TRIB_SLICES}},
        {"row",
         {.dtype = TRIB_FLOAT32, .count = 8, .row = 2, .layout = TRIB_SLICES},
         {.dtype = TRIB_FLOAT32, .count = 8, .row = 4, .layout = TRIB_SLICES}},
        {"layout", {.dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES}, {.dtype = TRIB_FLOAT32, .count = 8}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        trib_op *ops[3];
        for (uint32_t i = 0; i < 3; i++) {
            trib_tensor_desc desc = i == 1 ? cases[c].odd : cases[c].usual;
            desc.name = cases[c].name;
            trib_tensor *tensor = party_declare(&self, i, desc);
            ops[i] = party_submit(&self, i, desc.layout == TRIB_WHOLE ? trib_all_reduce : trib_all_gather,
                                  (trib_op_params){.tensor = tensor,
                                                   .input = data,
                                                   .output = out[i],
                                                   .output_bytes = desc.layout == TRIB_WHOLE ? 0 : sizeof out[i]});
        }
        for (uint32_t i = 0; i < 3; i++) {
            party_fails_with(ops[i], TRIB_MISMATCH, "rank 1", "declared it as");
        }
    }
    /* one worker gathers where the others scatter */
    trib_op *ops[3];
    for (uint32_t i = 0; i < 3; i++) {
        trib_tensor *tensor = party_declare(
            &self, i, (trib_tensor_desc){.name = "both", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
        ops[i] = party_submit(
            &self, i, i == 1 ? trib_all_gather : trib_reduce_scatter,
            (trib_op_params){.tensor = tensor, .input = data, .output = out[i], .output_bytes = sizeof out[i]});
    }
    for (uint32_t i = 0; i < 3; i++) {
        party_fails_with(ops[i], TRIB_MISMATCH, "rank 1 says all_gather of float32",
                         "says reduce_scatter, sum of float32");
    }
    for (uint32_t i = 0; i < 3; i++) {
        trib_tensor *tensor =
            party_declare(&self, i, (trib_tensor_desc){.name = "next", .dtype = TRIB_FLOAT32, .count = 8});
        ops[i] = party_submit(&self, i, trib_all_reduce,
                              (trib_op_params){.tensor = tensor, .input = data, .output = out[i]});
    }
    for (uint32_t i = 0; i < 3; i++) {
        party_succeeds(ops[i]);
    }
    job_close(&self.jobs);
}

/* One worker's output is too small. Its own error says so, and the others' errors name the worker that withdrew. The
 * next operation works. */
static void test_output_too_small(void **state)
{
    (void)state;
    for (int placed = 0; placed <= 1; placed++) {
        party self;
        static float data[64], out[3][256];
        job_open(&self.jobs, 3, 0, party_small_pieces);
        party_all_workers(&self);
        trib_tensor *tensors[3];
        trib_op *ops[3];
        for (uint32_t i = 0; i < 3; i++) {
            tensors[i] = party_declare(
                &self, i,
                (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8 * (i + 1), .layout = TRIB_SLICES});
        }
        for (int round = 0; round < (placed ? 1 : 0); round++) {
            for (uint32_t i = 0; i < 3; i++) {
                ops[i] = party_submit(
                    &self, i, trib_all_gather,
                    (trib_op_params){
                        .tensor = tensors[i], .input = data, .output = out[i], .output_bytes = sizeof out[i]});
            }
            for (uint32_t i = 0; i < 3; i++) {
                party_succeeds(ops[i]);
            }
        }
        for (uint32_t i = 0; i < 3; i++) {
            ops[i] = party_submit(
                &self, i, trib_all_gather,
                (trib_op_params){
                    .tensor = tensors[i], .input = data, .output = out[i], .output_bytes = i == 2 ? 4 : sizeof out[i]});
        }
        party_fails_with(ops[2], TRIB_INVALID, "output has 4 bytes", "192");
        party_fails_with(ops[0], TRIB_CANCELLED, "rank 2", "output has 4 bytes");
        party_fails_with(ops[1], TRIB_CANCELLED, "rank 2", "output has 4 bytes");
        for (uint32_t i = 0; i < 3; i++) {
            ops[i] = party_submit(
                &self, i, trib_all_gather,
                (trib_op_params){.tensor = tensors[i], .input = data, .output = out[i], .output_bytes = sizeof out[i]});
        }
        for (uint32_t i = 0; i < 3; i++) {
            party_succeeds(ops[i]);
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
        job_open(&self.jobs, 3, 0, party_small_pieces);
        party_all_workers(&self);
        if (first) {
            assert_int_equal(trib_engine_destroy(self.jobs.engines[2]), TRIB_OK);
        }
        for (uint32_t i = 0; i < 2; i++) {
            trib_tensor *tensor = party_declare(
                &self, i, (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
            ops[i] = party_submit(&self, i, trib_all_gather,
                                  (trib_op_params){.tensor = tensor, .input = data, .flags = TRIB_OP_ALLOCATE_OUTPUT});
        }
        if (!first) {
            assert_int_equal(trib_engine_destroy(self.jobs.engines[2]), TRIB_OK);
        }
        party_fails_with(ops[0], TRIB_PEER_LEFT, "rank 2", "without declaring");
        party_fails_with(ops[1], TRIB_PEER_LEFT, "rank 2", "without declaring");
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
    job_open(&self.jobs, 2, 0, party_small_pieces);
    party_all_workers(&self);
    for (uint32_t i = 0; i < 2; i++) {
        trib_tensor *tensor = party_declare(
            &self, i, (trib_tensor_desc){.name = "t", .dtype = TRIB_FLOAT32, .count = 8, .layout = TRIB_SLICES});
        ops[i] = party_submit(
            &self, i, trib_all_gather,
            (trib_op_params){
                .tensor = tensor, .input = data[i] + (i == 0 ? 1 : 8), .output = data[i], .output_bytes = 64});
    }
    party_fails_with(ops[0], TRIB_INVALID, "overlap", "its place");
    party_fails_with(ops[1], TRIB_CANCELLED, "rank 0", "overlap");
    job_close(&self.jobs);
}

static void test_groups_that_disagree(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 3, 0, party_small_pieces);
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
    party_fails_with(ops[0], TRIB_MISMATCH, "2 ranks (0, 1)", "3 ranks (0, 1, 2)");
    party_fails_with(ops[1], TRIB_MISMATCH, "2 ranks (0, 1)", "3 ranks (0, 1, 2)");
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
    job_open(&self.jobs, 2, 0, party_small_pieces);
    party_all_workers(&self);
    trib_engine *engine = self.jobs.engines[0];
    refuses_group(engine, (const int32_t[]){0, 2}, 2, "2 is not a rank below 2");
    refuses_group(engine, (const int32_t[]){0, -1}, 2, "-1 is not a rank");
    refuses_group(engine, (const int32_t[]){0, 0}, 2, "rank 0 comes twice");
    refuses_group(engine, (const int32_t[]){1}, 1, "none of its members");
    refuses_group(engine, NULL, 0, "0 ranks");
    refuses_group(engine, NULL, 2, "ranks is NULL, and rank_count 2");
    static const uint64_t splits[] = {1, 2, 3}, huge[] = {UINT64_C(1) << 43, UINT64_C(1) << 43};
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = splits, .split_count = 3}, "needs 2");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .split_count = 2}, "splits is NULL");
    refuses_tensor(engine, (trib_tensor_desc){.splits = splits, .split_count = 2}, "splits are for TRIB_PAIRS");
    refuses_tensor(engine, (trib_tensor_desc){.splits = splits}, "splits are for TRIB_PAIRS");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = huge, .split_count = 2}, "rank 0");
    refuses_tensor(engine, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = splits, .split_count = 2, .row = 2},
                   "rows of 2");
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
    params.flags = TRIB_OP_ONCE;
    assert_int_equal(trib_all_reduce(engine, &params, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "params->tensor is not NULL"));
    assert_int_equal(trib_tensor_counts(tensor, (uint64_t[2]){0}, 2, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "\"whole\"") && mentions(error.text, "no slices"));
    assert_int_equal(trib_tensor_find(engine, NULL, &tensor, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "the name is NULL"));
    trib_op *none = NULL;
    assert_int_equal(trib_op_wait_some(&none, 1, 3, 0, NULL, NULL, &error), TRIB_INVALID);
    assert_true(mentions(error.text, "least is 3, of 1"));
    job_close(&self.jobs);
}

/* Submits one operation on each worker, of which rank 1 asks for the odd one. */
static void disagree(const party *self, const char *name, party_operation run, trib_op_params usual,
                     party_operation odd_run, trib_op_params odd, const char *words)
{
    static float data[3][8], out[3][64];
    trib_op *ops[3];
    for (uint32_t i = 0; i < 3; i++) {
        trib_op_params params = i == 1 ? odd : usual;
        if (name != NULL) {
            params.tensor = party_declare(self, i, (trib_tensor_desc){.name = name, .dtype = TRIB_FLOAT32, .count = 8});
            params.output = out[i];
        }
        params.input = data[i];
        params.group = name == NULL ? self->groups[self->ranks[i]] : NULL;
        ops[i] = party_submit(self, i, i == 1 ? odd_run : run, params);
    }
    for (uint32_t i = 0; i < 3; i++) {
        party_fails_with(ops[i], TRIB_MISMATCH, words, "rank 1");
    }
}

/* Everybody hears the same, and what comes next on the tensor is as good as ever. */
static void operations_that_disagree(const party *self)
{
    const trib_op_params none = {.root = 0}, other_root = {.root = 2}, most = {.reduce = TRIB_MAX};
    for (int again = 0; again < 2; again++) {
        disagree(self, "sums", trib_all_reduce, none, trib_all_reduce, most, "disagree");
        disagree(self, "sums", trib_all_reduce, none, trib_broadcast, none, "disagree");
        disagree(self, "sums", trib_reduce_to, none, trib_all_reduce, none, "disagree");
        disagree(self, "sums", trib_reduce_to, none, trib_reduce_to, other_root, "disagree");
        disagree(self, "sums", trib_all_reduce, (trib_op_params){.postscale = 2}, trib_all_reduce, none, "scales");
        disagree(self, "sums", trib_all_reduce, (trib_op_params){.step = 7}, trib_all_reduce,
                 (trib_op_params){.step = 8}, "step");
        trib_op *ops[3];
        static float data[3][8];
        for (uint32_t i = 0; i < 3; i++) {
            trib_tensor *tensor =
                party_declare(self, i, (trib_tensor_desc){.name = "sums", .dtype = TRIB_FLOAT32, .count = 8});
            data[i][7] = 1;
            ops[i] = party_submit(self, i, trib_all_reduce,
                                  (trib_op_params){.tensor = tensor, .input = data[i], .output = data[i]});
        }
        for (uint32_t i = 0; i < 3; i++) {
            party_succeeds(ops[i]);
            assert_true(data[i][7] == 3);
        }
    }
}

static void test_operations_that_disagree(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 4, 0, party_small_pieces);
    party_make_group(&self, "three", (const int32_t[]){0, 1, 3}, 3);
    operations_that_disagree(&self);
    job_close(&self.jobs);
    job_open(&self.jobs, 3, 1, party_dedicated);
    party_all_workers(&self);
    operations_that_disagree(&self);
    job_close(&self.jobs);
}

/* Operations on bytes of workers that call different ones, or name different roots. */
static void test_bytes_that_disagree(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 3, 0, party_small_pieces);
    party_all_workers(&self);
    const trib_op_params some = {.input_bytes = 8, .root = 0}, other_root = {.input_bytes = 8, .root = 1};
    disagree(&self, NULL, trib_broadcast_bytes, some, trib_all_gather_bytes, some, "bytes");
    disagree(&self, NULL, trib_broadcast_bytes, some, trib_broadcast_bytes, other_root, "root");
    static char data[3][8];
    trib_op *ops[3];
    for (uint32_t i = 0; i < 3; i++) {
        ops[i] = party_submit(&self, i, trib_all_gather_bytes, (trib_op_params){.input = data[i], .input_bytes = i});
    }
    for (uint32_t i = 0; i < 3; i++) {
        party_succeeds(ops[i]);
    }
    job_close(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_that_disagree),    cmocka_unit_test(test_output_too_small),
        cmocka_unit_test(test_groups_that_disagree),     cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_member_that_left),         cmocka_unit_test(test_overlapping_buffers),
        cmocka_unit_test(test_operations_that_disagree), cmocka_unit_test(test_bytes_that_disagree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
