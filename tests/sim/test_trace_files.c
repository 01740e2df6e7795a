/* test_trace_files.c - a stored trace is read, damaged ones are rejected, and samples of clocks become one clock. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/trace/trace_run.h"

#define SECOND INT64_C(1000000000)
#define STORED "tests/fuzz/corpus/trace/worker" /* version 1.0, which later readers must still read */
#define STORED_RELAY "tests/fuzz/corpus/trace/relay"

static trace_file *load(const char *path)
{
    trace_file *file = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trace_file_load(path, &file, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return file;
}

static void a_stored_file(void **state)
{
    (void)state;
    trace_file *file = load(STORED);
    assert_int_equal(file->member, 0);
    assert_int_equal(file->worker_count, 2);
    assert_int_equal(file->server_count, 1);
    assert_string_equal(file->members[1].name, "rank 1 (n1:1001)");
    assert_string_equal(file->transport, "sim");
    assert_string_equal(file->stages[0], "PUSH");
    assert_string_equal(file->tensors[2].name, "middle");
    assert_int_equal(file->tensors[2].bytes, 80000);
    assert_int_equal(file->records[0].kind, TRIB_TRACE_LINK_READY);
    trace_file_free(file);
}

/* Version 1.0 does not record machines; 1.1 does. */
static void recorded_machines_are_read(void **state)
{
    (void)state;
    trace_file *file = load(STORED);
    assert_false(file->machines_told);
    assert_int_equal(file->local_size, 0);
    for (uint32_t i = 0; i < file->member_count; i++) {
        assert_int_equal(file->members[i].machine, i);
    }
    trace_file_free(file);
    file = load(STORED_RELAY);
    assert_true(file->machines_told);
    assert_int_equal(file->local_size, 2);
    assert_int_equal(file->member_count, 4);
    uint32_t kinds[256] = {0};
    for (uint32_t i = 0; i < file->member_count; i++) {
        assert_int_equal(file->members[i].machine, i / 2 * 2);
    }
    for (uint64_t i = 0; i < file->record_count; i++) {
        kinds[file->records[i].kind]++;
    }
    assert_true(kinds[TRIB_TRACE_PARTIAL_SUM] > 0);
    assert_int_equal(kinds[TRIB_TRACE_NEAR_COMPLETE], kinds[TRIB_TRACE_PARTIAL_SUM]);
    assert_int_equal(kinds[TRIB_TRACE_NEAR_ARRIVE], 2 * kinds[TRIB_TRACE_PARTIAL_SUM]);
    trace_file_free(file);
}

static void a_damaged_file(void **state)
{
    (void)state;
    trace_file *whole = load(STORED);
    const size_t size = whole->size;
    FILE *from = fopen(STORED, "rb");
    if (from == NULL) {
        fail_msg("%s: %s", STORED, strerror(errno));
        return;
    }
    unsigned char *bytes = malloc(size), *copy = malloc(size);
    assert_int_equal(fread(bytes, 1, size, from), size);
    fclose(from);
    trace_file *file = NULL;
    trib_error error = {.status = TRIB_OK};
    for (size_t cut = 0; cut < size; cut += cut < 600 ? 1 : 61) {
        /* An exact size, so that the sanitizer sees reads past the end. */
        unsigned char *exact = malloc(cut > 0 ? cut : 1);
        memcpy(exact, bytes, cut);
        assert_int_equal(trace_file_parse(exact, cut, "short", &file, &error), TRIB_INVALID);
        assert_non_null(strstr(error.text, "short: "));
        free(exact);
    }
    for (size_t at = 0; at < size; at += at < 600 ? 1 : 17) {
        memcpy(copy, bytes, size);
        copy[at] ^= (unsigned char)(1u << (at % 8));
        trib_status status = trace_file_parse(copy, size, "flipped", &file, &error);
        if (status == TRIB_OK) {
            assert_int_equal(bytes[at], 0); /* padding between two sections */
            trace_file_free(file);
        } else {
            assert_int_equal(status, TRIB_INVALID);
        }
    }
    assert_int_equal(trace_file_load("/nowhere", &file, &error), TRIB_SYSTEM);
    assert_int_equal(trace_file_load("/tmp", &file, &error), TRIB_SYSTEM);
    trace_file_free(whole);
    free(bytes);
    free(copy);
}

/* A clock drifts by 100 parts per million. Few of the round trips that show it are short. */
static void a_clock_that_drifts(void **state)
{
    (void)state;
    trib_clock_sample samples[200];
    for (uint32_t i = 0; i < 200; i++) {
        const int64_t at_ns = i * SECOND / 4;
        const int64_t rtt_ns = i % 20 == 3 ? 40000 : 40000 + (int64_t)(i * 7919 % 13) * 100000;
        const int64_t lopsided_ns = (rtt_ns - 40000) / 2; /* all of the delay is in one direction */
        samples[i] = (trib_clock_sample){
            .at_ns = at_ns, .offset_ns = 5 * SECOND + at_ns / 10000 + lopsided_ns, .rtt_ns = (uint64_t)rtt_ns};
    }
    trace_clock clock;
    assert_true(trace_clock_make(&clock, samples, 200));
    assert_false(clock.broken);
    for (int64_t at_ns = 0; at_ns < 50 * SECOND; at_ns += SECOND / 7) {
        int64_t error_ns = 0;
        const int64_t off_ns = trace_clock_map(&clock, at_ns, &error_ns) - at_ns - 5 * SECOND - at_ns / 10000;
        assert_in_range(error_ns, 0, 60000); /* although most round trips allow a larger error */
        assert_true(off_ns <= error_ns && -off_ns <= error_ns);
    }
    free(clock.knots);
    samples[100].offset_ns += SECOND; /* the clock jumped */
    assert_true(trace_clock_make(&clock, samples, 200));
    assert_true(clock.broken);
    free(clock.knots);
    assert_true(trace_clock_make(&clock, NULL, 0));
    int64_t error_ns = 0;
    assert_int_equal(trace_clock_map(&clock, 77, &error_ns), 77);
    assert_int_equal(error_ns, INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stored_file),
        cmocka_unit_test(recorded_machines_are_read),
        cmocka_unit_test(a_damaged_file),
        cmocka_unit_test(a_clock_that_drifts),
    };
    return cmocka_run_group_tests_name("trace files", tests, NULL, NULL);
}
