/*
 * test_device_ahead.c - the first bytes of a sum go to the host early, while the cores wake up, if no other sum is in
 * flight (engine/device/device_op.c). The cases check which sums copy early, and what follows when a copy fails or is
 * late.
 */
#include "engine/base/handle.h"
#include "engine/device/device_task.h"
#include "tests/loop/device/ahead_bed.h"
#include "tests/loop/device/device_wrap.h" /* included here because the functions it wraps are called in this file */

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void the_first_bytes_go_ahead(void **state)
{
    static const uint64_t sizes[] = {1, 777, 65536, 262144, 262145, 1000003};
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        bed self;
        bed_open(&self, 2 + (int)k % 2, k % 3 == 0 ? 1 : 0, 1, sizes[k]);
        sum_all(&self, 0); /* the tensor has its placement now */
        for (int round = 1; round < 4; round++) {
            const uint64_t each = sizes[k] * sizeof(int32_t), ranks = (uint64_t)self.ranks;
            forget();
            sum_all(&self, round);
            expect(self.ranks, ranks * lesser(each, AHEAD_BYTES), ranks * each);
        }
        bed_close(&self);
    }
}

static void others_do_not(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);

    trib_host_stream *streams[2] = {trib_host_stream_create(false), trib_host_stream_create(false)};
    forget();
    for (int rank = 0; rank < 2; rank++) {
        hand_in(&self, 1, rank, streams[rank]);
    }
    for (int rank = 0; rank < 2; rank++) {
        trib_host_stream_open(streams[rank]);
    }
    check(&self, 1);
    expect(0, 0, 40000);
    assert_int_equal(seen.waits, 2);
    for (int rank = 0; rank < 2; rank++) {
        trib_host_stream_free(streams[rank]);
    }

    /* Another sum is in flight in both engines. */
    trib_tensor *beside[2];
    trib_op *under_way[2];
    int32_t memory[2] = {1, 2};
    for (int rank = 0; rank < 2; rank++) {
        beside[rank] = job_declare(self.jobs.engines[rank], "beside", TRIB_INT32, 1);
    }
    under_way[0] = job_push_pull(self.jobs.engines[0], beside[0], &memory[0], &memory[0], TRIB_SUM);
    forget();
    hand_in(&self, 2, 0, NULL);
    assert_int_equal(seen.ahead, 0);
    hand_in(&self, 2, 1, NULL); /* no other sum is in flight there */
    check(&self, 2);
    expect(1, 20000, 40000);
    under_way[1] = job_push_pull(self.jobs.engines[1], beside[1], &memory[1], &memory[1], TRIB_SUM);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(under_way[rank], NULL), TRIB_OK);
        assert_int_equal(memory[rank], 3);
    }
    bed_close(&self);

    bed_open(&self, 4, 1, 2, 5000); /* NCCL runs first, so nothing is copied early */
    sum_all(&self, 0);
    forget();
    sum_all(&self, 1);
    assert_int_equal(seen.ahead, 0);
    bed_close(&self);
}

static void a_copy_that_fails_fails_its_sum(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);
    seen.fails = true;
    hand_in(&self, 1, 0, NULL);
    hand_in(&self, 1, 1, NULL);
    for (int rank = 0; rank < 2; rank++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_not_equal(job_wait(self.ops[rank], &error), TRIB_OK);
        if (rank == 0) {
            assert_int_equal(error.status, TRIB_SYSTEM);
            assert_string_equal(error.text,
                                "tensor \"a tensor\": its input did not come to the host: a fault of the test's");
        }
    }
    sum_all(&self, 2);
    bed_close(&self);
}

/* Rank 0's operation is cancelled while its copy is in flight, and rank 1 hears of it. */
static void give_up_early(bed *self, int round)
{
    seen.holds = true;
    hand_in(self, round, 0, NULL);
    trib_op_cancel(self->ops[0]);
    hand_in(self, round, 1, NULL);
    assert_int_not_equal(job_wait(self->ops[1], NULL), TRIB_OK);
}

/* The caller gets its buffer back when the device no longer reads it. The next sum reads its own bytes. */
static void a_late_copy_keeps_the_buffer(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);
    give_up_early(&self, 1);
    assert_true(is_held());
    assert_int_equal(trib_op_wait(self.ops[0], 50 * INT64_C(1000000), NULL), TRIB_TIMEOUT);
    assert_int_equal(trib_op_status(self.ops[0]), TRIB_PENDING);
    let_go(NULL);
    assert_int_equal(job_wait(self.ops[0], NULL), TRIB_CANCELLED);
    sum_all(&self, 2);
    bed_close(&self);
}

/* A later round receives into memory that the cancelled round's copy still has to write. */
static void a_late_copy_overwrites_no_later_round(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);
    give_up_early(&self, 1);
    trib_op *ends[2];
    int32_t *data[2];
    for (int rank = 1; rank >= 0; rank--) {
        data[rank] = calloc(self.count, sizeof(int32_t));
        for (uint64_t i = 0; rank == 1 && i < self.count; i++) {
            data[rank][i] = value(2, 1, 1, i);
        }
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = self.tensors[rank];
        params.root = 1;
        params.input = rank == 1 ? data[rank] : NULL;
        params.output = rank == 1 ? NULL : data[rank];
        trib_error error = {.status = TRIB_OK};
        pthread_mutex_lock(&seen.mutex);
        seen.lets_go_late = true;
        pthread_mutex_unlock(&seen.mutex);
        assert_int_equal(trib_broadcast(self.jobs.engines[rank], &params, &ends[rank], &error), TRIB_OK);
    }
    /* The broadcast waits for the copy. Without that wait it would be complete by now, and taking its bytes would let
     * the copy go on. */
    assert_int_equal(trib_op_wait(ends[0], 100 * INT64_C(1000000), NULL), TRIB_TIMEOUT);
    let_go(NULL);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ends[rank], NULL), TRIB_OK);
    }
    assert_int_equal(job_wait(self.ops[0], NULL), TRIB_CANCELLED);
    for (uint64_t i = 0; i < self.count; i++) {
        assert_int_equal(data[0][i], value(2, 1, 1, i));
    }
    pthread_mutex_lock(&seen.mutex);
    seen.lets_go_late = false;
    pthread_mutex_unlock(&seen.mutex);
    sum_all(&self, 3);
    bed_close(&self);
    free(data[0]);
    free(data[1]);
}

/* The operation's deadline passes before its device has done anything. */
static void a_late_copy_outlasts_a_deadline(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);
    seen.holds = true;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self.tensors[0];
    params.input = params.output = self.data[0];
    params.timeout_ns = 20 * INT64_C(1000000);
    trib_op *late = push_pull_or(self.jobs.engines[0], &params, TRIB_OK);
    hand_in(&self, 1, 1, NULL);
    assert_int_not_equal(job_wait(self.ops[1], NULL), TRIB_OK);
    assert_int_equal(trib_op_status(late), TRIB_PENDING);
    let_go(NULL);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(late, &error), TRIB_TIMEOUT);
    sum_all(&self, 2);
    bed_close(&self);
}

/* A device is waited for as long as a peer, and longer. The peers live: none may be lost on a busy machine. */
static void short_wait(trib_config *config, int member)
{
    on_devices(config, member);
    config->peer_timeout_ns = 3 * INT64_C(1000000000);
}

/* A device that never finishes ends its job with a text that says so. */
static void a_copy_that_never_ends_ends_the_job(void **state)
{
    (void)state;
    bed self;
    bed_open_with(&self, 2, 1, 1, 5000, short_wait);
    sum_all(&self, 0);
    seen.holds = true;
    hand_in(&self, 1, 0, NULL);
    trib_op_cancel(self.ops[0]);
    /* The handle is complete once every job is returned. */
    assert_int_equal(job_wait(self.ops[0], NULL), TRIB_CANCELLED);
    assert_false(is_held());
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self.tensors[0];
    params.input = params.output = self.data[0];
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_push_pull(self.jobs.engines[0], &params, &op, &error), TRIB_TIMEOUT);
    assert_non_null(strstr(error.text, "the device has not copied its input yet"));
    bed_close(&self);
}

/* A sum over both ranks passes through both cores 0, behind everything that was posted there before. */
static void pass_through(bed *self)
{
    trib_op *ends[2];
    int32_t memory[2] = {1, 2};
    for (int rank = 0; rank < 2; rank++) {
        trib_engine *engine = self->jobs.engines[rank];
        ends[rank] =
            job_push_pull(engine, job_declare(engine, "beside", TRIB_INT32, 1), &memory[rank], &memory[rank], TRIB_SUM);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ends[rank], NULL), TRIB_OK);
        assert_int_equal(memory[rank], 3);
    }
}

/* A copy that is returned in time ends nothing, and the timer that watched it is stopped. Core 0 arms the timer before
 * the sum that passes through, and stops it before the operation completes. */
static void a_copy_that_came_back_ends_nothing(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 2, 1, 1, 5000);
    sum_all(&self, 0);
    for (int round = 1; round < 5; round += 2) { /* the second time the operation still holds the first time's state */
        give_up_early(&self, round);
        pass_through(&self);
        const trib_op *op = trib_handle_find((uintptr_t)self.ops[0], TRIB_HANDLE_OP);
        assert_true(op->device->grace.armed);
        let_go(NULL);
        assert_int_equal(trib_op_wait(self.ops[0], -1, NULL), TRIB_CANCELLED);
        assert_false(op->device->grace.armed);
        trib_op_release(self.ops[0]);
        sum_all(&self, round + 1);
    }
    bed_close(&self);
}

static void expect_wake(uint32_t reactors, bool hurries)
{
    pthread_mutex_lock(&wakes.mutex);
    assert_int_equal(wakes.calls, 1);
    assert_int_equal(wakes.reactors, reactors);
    assert_int_equal(wakes.hurries, hurries);
    wakes.calls = 0;
    pthread_mutex_unlock(&wakes.mutex);
}

static void the_device_wakes_the_cores(void **state)
{
    (void)state;
    for (int refuses = 0; refuses < 2; refuses++) {
        bed self;
        wakes.refuses = refuses == 1;
        bed_open(&self, 2, 1, 1, 300000);
        sum_all(&self, 0);
        wakes.calls = 0;
        seen.holds = true;
        hand_in(&self, 1, 0, NULL);
        expect_wake(3, false); /* both cores, for the early copy */
        trib_host_stream *stream = trib_host_stream_create(false);
        hand_in(&self, 1, 1, stream);
        expect_wake(3, false); /* both cores, for a stream */
        trib_host_stream_open(stream);
        int32_t *memory = malloc(self.count * sizeof *memory);
        trib_op *ends[2];
        for (int rank = 0; rank < 2; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = declare_on_device(self.jobs.engines[rank], "another", 1, 0, TRIB_OK);
            params.input = params.output = &memory[rank];
            memory[rank] = rank;
            wakes.calls = 0;
            ends[rank] = push_pull_or(self.jobs.engines[rank], &params, TRIB_OK);
            /* The input is ready, another sum is in flight, and only core 0 knows the tensor so far. */
            expect_wake(1, true);
        }
        let_go(NULL);
        check(&self, 1);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(job_wait(ends[rank], NULL), TRIB_OK);
            assert_int_equal(memory[rank], 1);
        }
        bed_close(&self);
        trib_host_stream_free(stream);
        free(memory);
    }
    wakes.refuses = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_bytes_go_ahead),
        cmocka_unit_test(others_do_not),
        cmocka_unit_test(a_copy_that_fails_fails_its_sum),
        cmocka_unit_test(a_late_copy_keeps_the_buffer),
        cmocka_unit_test(a_late_copy_outlasts_a_deadline),
        cmocka_unit_test(a_copy_that_never_ends_ends_the_job),
        cmocka_unit_test(a_late_copy_overwrites_no_later_round),
        cmocka_unit_test(a_copy_that_came_back_ends_nothing),
        cmocka_unit_test(the_device_wakes_the_cores),
    };
    return cmocka_run_group_tests_name("what goes ahead", tests, NULL, NULL);
}
