/*
 * bench_crc32c.c - measures how fast the CRC32C of a payload is computed, by every implementation that this processor
 * runs: the median of many runs over memory that is in a core's cache, and over memory that is not.
 *
 * Usage: bench_crc32c [bytes...]
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, where the build asks for plain C11 */
#endif

#include "stages/kernels/crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 31
#define SAMPLE_BYTES ((size_t)32 << 20)
#define POOL_BYTES ((size_t)256 << 20)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int by_value(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Gigabytes per second. pool_bytes: the memory through which the payloads go, one after another. */
static double measure(const trib_crc32c *crc, const unsigned char *pool, size_t pool_bytes, size_t bytes)
{
    double rates[SAMPLES];
    const size_t count = SAMPLE_BYTES / bytes > 0 ? SAMPLE_BYTES / bytes : 1;
    volatile uint32_t kept = 0;
    size_t at = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const double begin = now();
        for (size_t k = 0; k < count; k++) {
            kept = kept ^ crc->compute(pool + at, bytes);
            at = at + 2 * bytes <= pool_bytes ? at + bytes : 0;
        }
        rates[i] = (double)(count * bytes) / (now() - begin) * 1e-9;
    }
    (void)kept;
    qsort(rates, SAMPLES, sizeof rates[0], by_value);
    return rates[SAMPLES / 2];
}

int main(int argc, char **argv)
{
    static const size_t usual[] = {4096, 65536, 262144, 1048576};
    unsigned char *pool = malloc(POOL_BYTES);
    if (pool == NULL) {
        return 1;
    }
    memset(pool, 0x5a, POOL_BYTES);
    printf("%-8s %10s %14s %14s\n", "", "bytes", "cached GB/s", "memory GB/s");
    for (size_t i = 0; trib_crc32c_at(i) != NULL; i++) {
        for (int k = 0; k < (argc > 1 ? argc - 1 : 4); k++) {
            const size_t bytes = argc > 1 ? strtoul(argv[k + 1], NULL, 10) : usual[k];
            if (bytes == 0 || bytes > POOL_BYTES / 2) {
                continue;
            }
            printf("%-8s %10zu %14.2f %14.2f\n", trib_crc32c_at(i)->name, bytes,
                   measure(trib_crc32c_at(i), pool, bytes, bytes), measure(trib_crc32c_at(i), pool, POOL_BYTES, bytes));
        }
    }
    free(pool);
    return 0;
}
