/*
 * bench_codecs.c - measures how fast one core encodes and decodes with each codec, beside memcpy of the same elements.
 *
 * The elements are normally distributed float32, 32 MiB of them, so that they come from memory and go there. They are
 * encoded and decoded in chunks, and the encoded bytes stay in a cache, as where they are sent at once. Times are
 * medians of processor time. GB/s count the elements' bytes; the ratio is theirs to the encoded.
 *
 * Usage: bench_codecs [bytes of a chunk [codec...]]
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, where the build asks for plain C11 */
#endif

#include "engine/codec/codec.h"
#include "engine/codec/kernels/codec_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 9
#define ELEMENTS ((size_t)8 << 20)
#define PI 3.14159265358979323846

static const char *const usual[] = {"fp16",
                                    "bf16",
                                    "fp8_e4m3",
                                    "fp8_e5m2",
                                    "int8",
                                    "onebit",
                                    "onebit,ef=vanilla",
                                    "topk,ratio=0.01",
                                    "uniform",
                                    "topk,ratio=0.01,select=sampled",
                                    "topk,ratio=0.01,ef=vanilla",
                                    "randomk,ratio=0.01",
                                    "dithering,k=2,seed=7",
                                    "dithering,k=16,seed=7",
                                    "dithering,k=4,partition=natural,seed=7",
                                    "dithering,k=16,normalize=l2,seed=7"};

typedef struct bench_memory {
    float *source, *decoded, *residual, *momentum, *scratch;
    uint32_t count;  /* elements of a chunk */
    uint32_t *sizes; /* encoded bytes of each chunk */
} bench_memory;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median_gbs(double times[SAMPLES])
{
    qsort(times, SAMPLES, sizeof *times, compare_doubles);
    return (double)(ELEMENTS * sizeof(float)) / times[SAMPLES / 2] / 1e9;
}

static void *room(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        (void)fprintf(stderr, "bench_codecs: no memory\n");
        exit(1);
    }
    return memory;
}

static double memcpy_gbs(const bench_memory *bench)
{
    double times[SAMPLES];
    for (int sample = 0; sample < SAMPLES; sample++) {
        const double begin = seconds();
        memcpy(bench->decoded, bench->source, ELEMENTS * sizeof(float));
        times[sample] = seconds() - begin;
    }
    return median_gbs(times);
}

/* Each chunk is decoded from where it was encoded last, so the bytes of all are kept. */
static void measure(bench_memory *bench, const char *text)
{
    trib_codec_config config;
    trib_error error;
    if (trib_codec_parse(text, &config, &error) != TRIB_OK || config.codec == NULL) {
        (void)fprintf(stderr, "bench_codecs: %s\n", config.codec == NULL ? "none is no codec" : error.text);
        exit(2);
    }
    const trib_codec *codec = config.codec;
    const uint64_t bound = codec->bound(&config.params, TRIB_FLOAT32, bench->count);
    const size_t chunks = ELEMENTS / bench->count;
    unsigned char *kept = room(chunks * bound);
    uint64_t state[2] = {0, 0}, bytes = 0;
    double encoding[SAMPLES], decoding[SAMPLES];
    for (int sample = 0; sample < SAMPLES; sample++) {
        double begin = seconds();
        bytes = 0;
        for (size_t i = 0; i < chunks; i++) {
            const size_t first = i * bench->count;
            const trib_codec_place place = {.round = (uint64_t)sample, .first_element = first};
            const trib_codec_memory memory = {state, bench->residual + first, bench->momentum + first, bench->scratch};
            bench->sizes[i] = trib_codec_encode(&config, &memory, &place, TRIB_FLOAT32, bench->source + first,
                                                bench->count, kept + i * bound);
            bytes += bench->sizes[i];
        }
        encoding[sample] = seconds() - begin;
        begin = seconds();
        for (size_t i = 0; i < chunks; i++) {
            if (codec->decode(&config.params, TRIB_FLOAT32, kept + i * bound, bench->sizes[i],
                              bench->decoded + i * bench->count, bench->count, NULL) != TRIB_OK) {
                abort();
            }
        }
        decoding[sample] = seconds() - begin;
    }
    printf("%-42s %8.2f %9.2f %9.2f\n", text, (double)(ELEMENTS * sizeof(float)) / (double)bytes, median_gbs(encoding),
           median_gbs(decoding));
    free(kept);
}

int main(int argc, char **argv)
{
    const long chunk = argc > 1 ? strtol(argv[1], NULL, 10) : 65536;
    if (chunk < 4 || (size_t)chunk > ELEMENTS * sizeof(float) || ELEMENTS * sizeof(float) % (size_t)chunk != 0) {
        (void)fprintf(stderr, "Usage: bench_codecs [bytes of a chunk, a power of two from 4 on [codec...]]\n");
        return 2;
    }
    bench_memory bench = {.count = (uint32_t)((size_t)chunk / sizeof(float))};
    float **const arrays[] = {&bench.source, &bench.decoded, &bench.residual, &bench.momentum, &bench.scratch};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i] = room(ELEMENTS * sizeof(float));
    }
    bench.sizes = room(ELEMENTS / bench.count * sizeof *bench.sizes);
    uint64_t random = 1;
    for (size_t i = 0; i < ELEMENTS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const double radius = sqrt(-2 * log(((double)(random >> 40) + 1) * 0x1p-24));
        bench.source[i] = (float)(radius * cos(2 * PI * (double)(random & 0xffffff00) * 0x1p-32));
    }
    printf("chunks of %ld bytes, kernels %s, memcpy %.2f GB/s\n", chunk, trib_codec_kernels_best()->name,
           memcpy_gbs(&bench));
    printf("%-42s %8s %9s %9s\n", "codec", "ratio", "encode", "decode");
    const size_t count = argc > 2 ? (size_t)argc - 2 : sizeof usual / sizeof usual[0];
    for (size_t i = 0; i < count; i++) {
        memset(bench.residual, 0, ELEMENTS * sizeof(float));
        measure(&bench, argc > 2 ? argv[i + 2] : usual[i]);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(*arrays[i]);
    }
    free(bench.sizes);
    return 0;
}
