/*
 * test_huge.c - a tensor of more than 4 GiB: two workers, each with a server, and every checked element is exact.
 *
 * The test is skipped where memory is short, and under sanitizers, whose shadow would need a multiple of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define COUNT ((UINT64_C(4) << 30) + (UINT64_C(96) << 20) + 12345u) /* both bytes and elements, as the type is uint8 */
#define NEEDED_KB (UINT64_C(13) << 20)

/* The inputs repeat a piece of this size, mapped again and again, so filling them costs nothing. The size does not
 * divide 2^32, so an offset that is cut to 32 bits shows. */
#define PERIOD (UINT64_C(12345) * 4096)

static uint8_t value_of(int rank, uint64_t index)
{
    return (uint8_t)((index * UINT64_C(0x9e3779b97f4a7c15) >> 56) % 100 + (unsigned)rank);
}

static uint8_t *map_input(int rank)
{
    const int fd = memfd_create("piece", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)PERIOD) == 0);
    uint8_t *all = mmap(NULL, COUNT + PERIOD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(all != MAP_FAILED);
    for (uint64_t at = 0; at < COUNT; at += PERIOD) {
        assert_true(mmap(all + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    }
    for (uint64_t i = 0; i < PERIOD; i++) {
        all[i] = value_of(rank, i);
    }
    close(fd);
    return all;
}

static void check_output(int rank, const uint8_t *output)
{
    uint8_t *expected = malloc(PERIOD);
    assert_non_null(expected);
    for (uint64_t i = 0; i < PERIOD; i++) {
        expected[i] = (uint8_t)(value_of(0, i) + value_of(1, i));
    }
    for (uint64_t at = 0; at < COUNT; at += PERIOD) {
        const uint64_t size = COUNT - at < PERIOD ? COUNT - at : PERIOD;
        if (memcmp(output + at, expected, size) != 0) {
            fail_msg("rank %d: wrong between %llu and %llu", rank, (unsigned long long)at,
                     (unsigned long long)(at + size));
        }
    }
    free(expected);
}

static uint64_t available_kb(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kb = 0;
    while (file != NULL && kb == 0 && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "MemAvailable: %llu kB", &kb);
    }
    if (file != NULL) {
        fclose(file);
    }
    return kb;
}

static bool is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

static void give_time(trib_config *config, int member)
{
    (void)member;
    config->op_timeout_ns = INT64_C(150000000000);
}

static void more_than_4_gib(void **state)
{
    (void)state;
    if (is_sanitized() || available_kb() < NEEDED_KB) {
        print_message("# more_than_4_gib needs %llu GiB of memory and no sanitizer\n",
                      (unsigned long long)NEEDED_KB >> 20);
        skip();
    }
    job jobs;
    job_open(&jobs, 2, 0, give_time);
    uint8_t *input[2], *output[2];
    trib_op *ops[2];
    for (int i = 0; i < 2; i++) {
        input[i] = map_input(i);
        output[i] = mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(output[i] != MAP_FAILED);
        trib_tensor *tensor = job_declare(jobs.engines[i], "huge", TRIB_UINT8, COUNT);
        ops[i] = job_push_pull(jobs.engines[i], tensor, input[i], output[i], TRIB_SUM);
    }
    for (int i = 0; i < 2; i++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(ops[i], &error) != TRIB_OK) {
            fail_msg("rank %d: %s", i, error.text);
        }
    }
    for (int i = 0; i < 2; i++) {
        check_output(i, output[i]);
        munmap(output[i], COUNT);
        munmap(input[i], COUNT + PERIOD);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_than_4_gib)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
