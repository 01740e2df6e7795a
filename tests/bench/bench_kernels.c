/*
 * bench_kernels.c - measures how fast the kernels sum, beside a plain loop over the same bytes.
 *
 * For each size and implementation it runs the plain loop and every kernel in turn, many times over, and prints the
 * medians: gigabytes of accumulators per second, and the ratio to the plain loop. The ratio is the median of the
 * ratios of neighbouring runs, so that a machine that slows down slows both. "plain" is a[i] += b[i] in float32 as
 * the compiler vectorises it for the same instructions.
 *
 * Usage: bench_kernels [scalar|avx2|avx512|best|all [bytes...]]
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, where the build asks for plain C11 */
#endif

#include "stages/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 31
#define SAMPLE_BYTES ((size_t)32 << 20)
#define CASES_MAX 32

typedef struct bench_case {
    const char *name;
    trib_dtype dtype;
    trib_reduce reduce;
    trib_form right_form;
    bool finishes;
} bench_case;

static const bench_case cases[] = {
    {"plain f32", TRIB_FLOAT32, TRIB_SUM, TRIB_FORM_WIRE, false}, /* the first is not a kernel */
    {"f32 sum", TRIB_FLOAT32, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"f32 max", TRIB_FLOAT32, TRIB_MAX, TRIB_FORM_WIRE, false},
    {"f32 avg finish", TRIB_FLOAT32, TRIB_AVG, TRIB_FORM_WIRE, true},
    {"f64 sum", TRIB_FLOAT64, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"f16 sum to f32", TRIB_FLOAT16, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"f16 finish", TRIB_FLOAT16, TRIB_SUM, TRIB_FORM_ACC, true},
    {"bf16 sum to f32", TRIB_BFLOAT16, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"bf16 finish", TRIB_BFLOAT16, TRIB_SUM, TRIB_FORM_ACC, true},
    {"bf16 max", TRIB_BFLOAT16, TRIB_MAX, TRIB_FORM_WIRE, false},
    {"i8 sum", TRIB_INT8, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"i8 avg to i32", TRIB_INT8, TRIB_AVG, TRIB_FORM_WIRE, false},
    {"i8 avg finish", TRIB_INT8, TRIB_AVG, TRIB_FORM_ACC, true},
    {"i64 sum", TRIB_INT64, TRIB_SUM, TRIB_FORM_WIRE, false},
    {"i64 avg finish", TRIB_INT64, TRIB_AVG, TRIB_FORM_WIRE, true},
};

#define CASE_COUNT (sizeof(cases) / sizeof(cases[0]))
_Static_assert(CASE_COUNT <= CASES_MAX, "the samples have room for all cases");

/* NOLINTBEGIN(bugprone-macro-parentheses): attributes cannot stand in parentheses */
#define PLAIN_LOOP(name, attributes)                                                                                   \
    __attribute__((noinline)) attributes static void name(float *restrict a, const float *restrict b, size_t count)    \
    {                                                                                                                  \
        for (size_t i = 0; i < count; i++) {                                                                           \
            a[i] += b[i];                                                                                              \
        }                                                                                                              \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

#if defined(__clang__)
#define VECTORISED
#else
#define VECTORISED __attribute__((optimize("O3")))
#endif
PLAIN_LOOP(plain_base, VECTORISED)
#if defined(__x86_64__)
PLAIN_LOOP(plain_avx2, VECTORISED __attribute__((target("avx2"))))
#if defined(__clang__)
PLAIN_LOOP(plain_avx512, __attribute__((target("avx512f"), min_vector_width(512))))
#else
PLAIN_LOOP(plain_avx512, VECTORISED __attribute__((target("avx512f,prefer-vector-width=512"))))
#endif
#endif

/* The loop is given the instructions that the kernels beside it have. */
static void plain(const trib_kernels *kernels, void *dst, const void *right, size_t count)
{
#if defined(__x86_64__)
    if (strcmp(kernels->name, "avx512") == 0) {
        plain_avx512(dst, right, count);
        return;
    }
    if (strcmp(kernels->name, "avx2") == 0) {
        plain_avx2(dst, right, count);
        return;
    }
#endif
    (void)kernels;
    plain_base(dst, right, count);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void pass(const trib_kernels *kernels, const bench_case *bench, void *dst, const void *right, size_t count)
{
    if (bench == &cases[0]) {
        plain(kernels, dst, right, count);
    } else if (bench->finishes) {
        trib_kernel_finish(kernels, bench->dtype, bench->reduce, dst, right, bench->right_form, count, 3);
    } else {
        trib_kernel_combine(kernels, bench->dtype, bench->reduce, dst, dst, TRIB_FORM_ACC, right, bench->right_form,
                            count);
    }
}

/* Takes one sample: enough passes over that many bytes of accumulators to be timed. One untimed pass before them
 * fills the caches. Returns bytes per second. */
static double run(const trib_kernels *kernels, const bench_case *bench, void *dst, const void *right, size_t bytes)
{
    const size_t acc_size = trib_acc_size(bench->dtype, bench->reduce);
    const size_t count = bytes / acc_size;
    const size_t passes = bytes < SAMPLE_BYTES ? SAMPLE_BYTES / bytes : 1;
    double start;

    pass(kernels, bench, dst, right, count);
    start = now();
    for (size_t i = 0; i < passes; i++) {
        pass(kernels, bench, dst, right, count);
    }
    return (double)(count * acc_size * passes) / (now() - start);
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), compare_doubles);
    return values[count / 2];
}

static void bench_size(const trib_kernels *kernels, void *dst, const void *right, size_t bytes)
{
    static double rates[CASES_MAX][SAMPLES];
    static double ratios[CASES_MAX][SAMPLES];
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        for (size_t i = 0; i < CASE_COUNT; i++) {
            const double reference = run(kernels, &cases[0], dst, right, bytes);
            rates[i][sample] = run(kernels, &cases[i], dst, right, bytes);
            ratios[i][sample] = rates[i][sample] / reference;
        }
    }
    for (size_t i = 0; i < CASE_COUNT; i++) {
        printf("%-7s %11zu  %-16s %8.2f GB/s  %5.2f\n", kernels->name, bytes, cases[i].name,
               median(rates[i], SAMPLES) * 1e-9, median(ratios[i], SAMPLES));
    }
    fflush(stdout);
}

static void bench_kernels(const trib_kernels *kernels, int sizes_count, char **sizes, void *dst, const void *right,
                          size_t bytes_max)
{
    for (int i = 0; i < sizes_count; i++) {
        const size_t bytes = strtoull(sizes[i], NULL, 0);
        if (bytes < 64 || bytes > bytes_max) {
            fprintf(stderr, "bench_kernels: size %s is not in 64..%zu\n", sizes[i], bytes_max);
        } else {
            bench_size(kernels, dst, right, bytes);
        }
    }
    for (size_t bytes = 4096; sizes_count == 0 && bytes <= bytes_max; bytes *= 4) {
        bench_size(kernels, dst, right, bytes);
    }
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "best";
    const size_t bytes_max = (size_t)256 << 20;
    unsigned char *dst = aligned_alloc(4096, bytes_max);
    unsigned char *right = aligned_alloc(4096, bytes_max);
    int found = 0;

    if (dst == NULL || right == NULL) {
        fprintf(stderr, "bench_kernels: no memory for two buffers of %zu bytes\n", bytes_max);
        return 1;
    }
    /* Zeros stay zeros in every type: no denormal, no overflow and no NaN slows a run. */
    memset(dst, 0, bytes_max);
    memset(right, 0, bytes_max);
    printf("%-7s %11s  %-16s %13s  ratio to plain\n", "kernels", "bytes", "case", "median");
    for (size_t i = 0; trib_kernels_at(i) != NULL; i++) {
        const trib_kernels *kernels = trib_kernels_at(i);
        const bool best = strcmp(which, "best") == 0 && kernels == trib_kernels_best();
        if (best || strcmp(which, "all") == 0 || strcmp(which, kernels->name) == 0) {
            bench_kernels(kernels, argc > 2 ? argc - 2 : 0, argv + 2, dst, right, bytes_max);
            found++;
        }
    }
    free(dst);
    free(right);
    if (found == 0) {
        fprintf(stderr, "bench_kernels: this processor runs no kernels called %s\n", which);
    }
    return found > 0 ? 0 : 1;
}
