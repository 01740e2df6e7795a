/* test_trace.c - a core's ring of records loses nothing, and the distance between two clocks is estimated. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/wire/clock.h"
#include "engine/trace/trace_ring.h"

#define RING_BYTES (256u * TRIB_TRACE_RECORD_BYTES)

static trib_trace_record numbered(uint32_t number)
{
    return (trib_trace_record){.at_ns = number, .tensor = number, .value = ~number, .extra = number * 3};
}

static void assert_numbered(const trib_trace_record *record, uint32_t number)
{
    assert_int_equal(record->at_ns, number);
    assert_int_equal(record->tensor, number);
    assert_int_equal(record->value, ~number);
    assert_int_equal(record->extra, number * 3);
}

static void put(trib_trace_ring *ring, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        trib_trace_record record = numbered(i);
        trib_trace_ring_put(ring, &record);
    }
}

static void the_oldest_go_first(void **state)
{
    (void)state;
    trib_trace_ring ring = {.capacity = 0};
    trib_trace_record there[256];
    uint64_t lost = 1;
    assert_true(trib_trace_ring_open(&ring, RING_BYTES));
    assert_int_equal(ring.capacity, 256);
    assert_int_equal(trib_trace_ring_copy(&ring, there, &lost), 0);
    assert_int_equal(lost, 0);
    put(&ring, 0, 100);
    assert_int_equal(trib_trace_ring_copy(&ring, there, &lost), 100);
    assert_int_equal(lost, 0);
    assert_numbered(&there[0], 0);
    assert_numbered(&there[99], 99);
    put(&ring, 100, 1000);
    assert_int_equal(trib_trace_ring_copy(&ring, there, &lost), 256);
    assert_int_equal(lost, 744);
    for (uint32_t i = 0; i < 256; i++) {
        assert_numbered(&there[i], 744 + i);
    }
    trib_trace_ring_clear(&ring);
    assert_int_equal(trib_trace_ring_copy(&ring, there, &lost), 0);
    put(&ring, 1000, 1010);
    assert_int_equal(trib_trace_ring_copy(&ring, there, &lost), 10);
    assert_int_equal(lost, 0);
    assert_numbered(&there[0], 1000);
    trib_trace_ring_close(&ring);
}

static void sizes_are_powers_of_two(void **state)
{
    (void)state;
    const struct {
        uint64_t bytes, records;
    } sizes[] = {{0, 256}, {1, 256}, {RING_BYTES * 2 - 1, 256}, {RING_BYTES * 2, 512}, {1000000, 16384}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        trib_trace_ring ring = {.capacity = 0};
        assert_true(trib_trace_ring_open(&ring, sizes[i].bytes));
        assert_int_equal(ring.capacity, sizes[i].records);
        trib_trace_ring_close(&ring);
    }
}

typedef struct writing {
    trib_trace_ring ring;
    atomic_bool stop;
} writing;

static void *write_on(void *argument)
{
    writing *self = argument;
    for (uint32_t i = 0; !atomic_load(&self->stop); i++) {
        put(&self->ring, i, i + 1);
    }
    return NULL;
}

/* Records that are copied while the writer goes on are whole and without a gap. */
static void copies_are_whole(void **state)
{
    (void)state;
    writing self = {.stop = false};
    trib_trace_record there[256];
    assert_true(trib_trace_ring_open(&self.ring, RING_BYTES));
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_on, &self), 0);
    for (uint32_t round = 0; round < 2000; round++) {
        uint64_t lost = 0;
        const uint64_t count = trib_trace_ring_copy(&self.ring, there, &lost);
        assert_in_range(count, 0, 256);
        for (uint64_t i = 0; i < count; i++) {
            assert_numbered(&there[i], (uint32_t)(lost + i));
        }
    }
    atomic_store(&self.stop, true);
    pthread_join(writer, NULL);
    trib_trace_ring_close(&self.ring);
}

/* ---- The clock ---- */

/* Makes the answer of a round trip that begins at t1; the other clock is ahead by that much. */
static trib_frame answer_to(int64_t t1, int64_t ahead, int64_t there, int64_t stay)
{
    trib_frame question = trib_clock_question(t1);
    assert_int_equal(question.type, TRIB_FRAME_PING);
    trib_frame answer = trib_clock_answer(&question, t1 + there + ahead, t1 + there + stay + ahead);
    assert_int_equal(answer.type, TRIB_FRAME_PONG);
    unsigned char bytes[TRIB_HEADER_SIZE];
    trib_frame_encode(&answer, bytes);
    trib_frame received;
    assert_int_equal(trib_frame_decode(bytes, &received, NULL), TRIB_OK);
    return received;
}

static void the_middle_of_a_round_trip(void **state)
{
    (void)state;
    const int64_t aheads[] = {0, 1, -1, 123456789012345, -123456789012345, INT64_C(1) << 40};
    for (size_t i = 0; i < sizeof aheads / sizeof aheads[0]; i++) {
        trib_clock_sample sample;
        trib_frame answer = answer_to(INT64_C(200000000000000), aheads[i], 5000, 700);
        assert_true(trib_clock_take(&answer, INT64_C(200000000000000) + 5000 + 700 + 5000, &sample));
        assert_int_equal(sample.offset_ns, aheads[i]);
        assert_int_equal(sample.rtt_ns, 10000);
        assert_int_equal(sample.at_ns, INT64_C(200000000010700));
        /* Unequal ways make the estimate wrong by half their difference. */
        answer = answer_to(INT64_C(200000000000000), aheads[i], 9000, 700);
        assert_true(trib_clock_take(&answer, INT64_C(200000000010700), &sample));
        assert_int_equal(sample.offset_ns, aheads[i] + 4000);
    }
}

static void times_that_cannot_be(void **state)
{
    (void)state;
    trib_clock_sample sample;
    trib_frame answer = answer_to(1000, 0, 500, 100);
    assert_false(trib_clock_take(&answer, 999, &sample));  /* it came back before it was asked */
    assert_false(trib_clock_take(&answer, 1050, &sample)); /* it stayed at the peer for longer than the round trip */
    answer = answer_to(1000, INT64_MAX - 5000, 500, 100);
    assert_true(trib_clock_take(&answer, 3000, &sample));
    answer.priority = INT32_MIN; /* t3 is far before t2 */
    assert_false(trib_clock_take(&answer, 3000, &sample));
    trib_frame plain = {.type = TRIB_FRAME_PONG};
    assert_false(trib_clock_take(&plain, 3000, &sample));
}

static void the_best_samples_stay(void **state)
{
    (void)state;
    trib_clock *clock = calloc(1, sizeof *clock);
    assert_non_null(clock);
    trib_clock_reset(clock);
    for (uint32_t i = 0; i < 100000; i++) {
        /* One round trip in fifty is short. */
        trib_clock_add(clock,
                       &(trib_clock_sample){.at_ns = i, .offset_ns = 7, .rtt_ns = i % 50 == 17 ? 100 : 5000 + i});
        assert_in_range(clock->count, 1, TRIB_CLOCK_SAMPLES_MAX);
    }
    assert_in_range(clock->count, TRIB_CLOCK_SAMPLES_MAX / 2, TRIB_CLOCK_SAMPLES_MAX);
    for (uint32_t i = 0; i < clock->count; i++) {
        assert_true(i == 0 || clock->samples[i].at_ns > clock->samples[i - 1].at_ns);
        assert_true(clock->samples[i].rtt_ns == 100 || i + 1 == clock->count);
    }
    free(clock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_go_first),  cmocka_unit_test(sizes_are_powers_of_two),
        cmocka_unit_test(copies_are_whole),     cmocka_unit_test(the_middle_of_a_round_trip),
        cmocka_unit_test(times_that_cannot_be), cmocka_unit_test(the_best_samples_stay),
    };
    return cmocka_run_group_tests_name("recording", tests, NULL, NULL);
}
