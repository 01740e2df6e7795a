/*
 * test_direct.c - which bytes of device tensors bypass host memory (GPUDirect) over real verbs, and in which order with
 * the devices' own work. Copies are counted, and sums are compared bit by bit with those that went through the host.
 *
 * Without an RDMA device there is nothing to test; tests/rdma runs this program in a guest that has one.
 * test_direct_ends.c tests how operations end, and tests/sim tests failures at any moment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/transport/direct_wrap.h"

/* ---- Paths of the bytes ---- */

/* Registering a buffer switches its own direction only. The last share's end is so small that a processor would touch
 * it. */
static void goes_past_the_host(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    direct_bed self;
    direct_open(&self, &shape, 2, 1);
    const uint64_t staged = direct_exchange(&self, 1, SUMS), in_place = direct_exchange(&self, 2, IN_PLACE);
    const uint32_t partitions = self.to_host;
    assert_true(partitions > 10 && self.to_device == partitions && self.seen == 0 && self.direct == 0);
    direct_tell(self.jobs.engines[0], self.input[0]);
    direct_tell(self.jobs.engines[1], self.input[1]);
    assert_int_equal(direct_exchange(&self, 1, SUMS), staged);
    assert_true(self.to_host == 2 && self.to_device == partitions && self.seen == 0);
    assert_true(direct_was_logged("RDMA moves its bytes from the device's memory"));
    const uint64_t one_way = self.direct;
    assert_true(one_way > DIRECT_BYTES && one_way < 2 * DIRECT_BYTES && self.copied < 16384);
    direct_tell(self.jobs.engines[0], self.output[0]);
    direct_tell(self.jobs.engines[1], self.output[1]);
    assert_int_equal(direct_exchange(&self, 1, SUMS), staged);
    assert_true(self.to_host == 2 && self.to_device == 2 && self.seen == partitions - 2);
    assert_true(self.direct == 2 * one_way && self.copied < 16384);
    assert_int_equal(direct_exchange(&self, 2, IN_PLACE), in_place);
    assert_true(self.to_host == 2 && self.to_device == 2 && self.direct == 2 * one_way);
    assert_int_equal(trib_memory_unregister(self.jobs.engines[1], self.output[1], NULL), TRIB_OK);
    assert_int_equal(direct_exchange(&self, 1, SUMS), staged);
    assert_true(self.to_host == 2 && self.to_device == partitions / 2 + 1);
    direct_close(&self);
}

/* Bytes go through the host for the partitions of a worker's own server, where GPUDirect is off, and on other
 * connections. */
static void bytes_for_processors_go_through_the_host(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    direct_bed self;
    direct_open(&self, &shape, 2, 0);
    const uint64_t staged = direct_exchange(&self, 3, SUMS);
    const uint32_t partitions = self.to_host;
    direct_tell_all(&self);
    assert_int_equal(direct_exchange(&self, 3, SUMS), staged);
    assert_true(self.to_host > 2 && self.to_host < partitions && self.to_host == self.to_device);
    assert_int_equal(self.seen, partitions - self.to_host);
    direct_close(&self);
    shape.off = true;
    direct_open(&self, &shape, 2, 1);
    assert_int_equal(direct_exchange(&self, 3, SUMS), staged);
    const uint32_t all = self.to_host;
    direct_tell_all(&self);
    assert_int_equal(direct_exchange(&self, 3, SUMS), staged);
    assert_int_equal(self.to_host, all / 2 + 1);
    assert_false(direct_was_logged("GPUDirect"));
    direct_close(&self);
    shape.transport = "tcp";
    direct_open(&self, &shape, 2, 1);
    direct_tell_all(&self);
    assert_int_equal(direct_exchange(&self, 3, SUMS), staged);
    assert_true(self.to_host == all && self.direct == 0);
    direct_close(&self);
}

static void several_devices_a_machine(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    shape.local_size = 2;
    direct_bed self;
    direct_open(&self, &shape, 4, 1);
    uint64_t staged[8];
    for (int round = 0; round < 8; round++) {
        staged[round] = direct_exchange(&self, (uint32_t)round, round < 4 ? round : round % 2 == 0 ? SUMS : IN_PLACE);
    }
    const uint32_t collective = self.collective;
    direct_tell_all(&self);
    for (int round = 0; round < 24; round++) {
        const int kind = round % 8;
        assert_int_equal(direct_exchange(&self, (uint32_t)kind,
                                         kind < 4        ? kind
                                         : kind % 2 == 0 ? SUMS
                                                         : IN_PLACE),
                         staged[kind]);
        assert_true(self.direct > DIRECT_BYTES && self.to_host <= 2 && self.to_device <= 2);
    }
    assert_int_equal(self.collective, collective);
    direct_close(&self);
}

/* The peer has a second RDMA device, too. */
static void goes_by_two_networks(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    char both[200];
    const char *second = getenv("RDMA_SECOND");
    if (second == NULL) {
        print_message("# there is no second RDMA device (RDMA_SECOND)\n");
        skip();
    }
    snprintf(both, sizeof both, "%s,%s", getenv("RDMA_IP"), second);
    shape.listen = both;
    direct_bed self;
    direct_open(&self, &shape, 2, 1);
    const uint64_t staged = direct_exchange(&self, 4, SUMS);
    direct_tell_all(&self);
    assert_int_equal(direct_exchange(&self, 4, SUMS), staged);
    assert_true(self.to_host == 2 && self.to_device == 2);
    direct_close(&self);
}

/* The memory has only a dma-buf, and the RDMA device does not support one. All bytes go through the host, and the error
 * says why. */
static void is_refused_without_dmabuf(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    direct_bed self;
    trib_error error = {.text = ""};
    direct_open(&self, &shape, 2, 1);
    const uint64_t staged = direct_exchange(&self, 5, SUMS);
    const uint32_t partitions = self.to_host;
    direct_has_descriptors(true);
    assert_int_equal(trib_memory_register(self.jobs.engines[0], self.input[0], DIRECT_BYTES, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, " KiB of a device's memory with "));
    assert_non_null(strstr(error.text, "that know dma-buf"));
    assert_true(direct_was_logged("not registered, so payloads in them are copied: cannot register"));
    assert_int_equal(trib_memory_unregister(self.jobs.engines[0], self.input[0], NULL), TRIB_INVALID);
    assert_int_equal(direct_exchange(&self, 5, SUMS), staged);
    assert_true(self.to_host == partitions && self.to_device == partitions && self.direct == 0);
    direct_close(&self);
    shape.off = true;
    direct_open(&self, &shape, 1, 1);
    assert_int_equal(trib_memory_register(self.jobs.engines[0], self.input[0], DIRECT_BYTES, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "TRIB_GPU_DIRECT"));
    direct_has_descriptors(false);
    direct_close(&self);
}

/* ---- Order ---- */

/* Nothing is read before the reduction is over, and nothing completes before the device sees the bytes that were
 * written. */
static void waits_for_the_device(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    static const trib_device_kind held[] = {TRIB_DEVICE_REDUCE_SCATTER, TRIB_DEVICE_SEE, TRIB_DEVICE_SEE};
    for (int turn = 0; turn < 3; turn++) {
        direct_bed self;
        shape.local_size = turn < 2 ? 2 : 1;
        direct_open(&self, &shape, 2 * shape.local_size, 1);
        direct_tell_all(&self);
        const uint64_t sum = direct_exchange(&self, 6, SUMS);
        uint64_t before[DIRECT_WORKERS_MAX], least = UINT64_MAX;
        for (int rank = 0; rank < self.workers; rank++) {
            before[rank] = direct_stats(self.jobs.engines[rank]).bytes_pushed;
        }
        direct_hold(held[turn]);
        trib_op *ops[DIRECT_WORKERS_MAX];
        for (int rank = 0; rank < self.workers; rank++) {
            ops[rank] = direct_submit(&self, rank, SUMS, NULL);
        }
        usleep(500000);
        int pending = 0; /* one rank waits for its device, or all ranks of that machine do */
        for (int rank = 0; rank < self.workers; rank++) {
            const uint64_t pushed = direct_stats(self.jobs.engines[rank]).bytes_pushed - before[rank];
            least = pushed < least ? pushed : least;
            pending += trib_op_status(ops[rank]) == TRIB_PENDING;
        }
        assert_true(pending >= shape.local_size);
        assert_true(held[turn] == TRIB_DEVICE_REDUCE_SCATTER ? least == 0 : least > 0);
        direct_let_go();
        for (int rank = 0; rank < self.workers; rank++) {
            assert_int_equal(job_wait(ops[rank], NULL), TRIB_OK);
        }
        assert_int_equal(direct_exchange(&self, 6, SUMS), sum);
        direct_close(&self);
    }
}

static void is_not_taken_back_while_it_is_used(void **state)
{
    (void)state;
    direct_shape shape = direct_default_shape();
    direct_bed self;
    direct_open(&self, &shape, 2, 1);
    direct_tell_all(&self);
    trib_host_stream *stream = trib_host_stream_create(false);
    trib_op *late = direct_submit(&self, 0, SUMS, stream), *other = direct_submit(&self, 1, SUMS, NULL);
    assert_int_equal(trib_memory_unregister(self.jobs.engines[0], self.output[0], NULL), TRIB_STATE);
    trib_host_stream_open(stream);
    assert_int_equal(job_wait(late, NULL), TRIB_OK);
    assert_int_equal(job_wait(other, NULL), TRIB_OK);
    assert_int_equal(trib_memory_unregister(self.jobs.engines[0], self.output[0], NULL), TRIB_OK);
    direct_close(&self);
    trib_host_stream_free(stream);
}

int main(void)
{
    if (getenv("RDMA_IP") == NULL) {
        printf("no RDMA device here: tests/rdma runs this where one is\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_past_the_host),
        cmocka_unit_test(bytes_for_processors_go_through_the_host),
        cmocka_unit_test(several_devices_a_machine),
        cmocka_unit_test(goes_by_two_networks),
        cmocka_unit_test(is_refused_without_dmabuf),
        cmocka_unit_test(waits_for_the_device),
        cmocka_unit_test(is_not_taken_back_while_it_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
