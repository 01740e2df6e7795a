/* gpu_kernels.c - the speed of the kernels that encode and decode, beside a copy within the GPU's memory. The bytes of
 * both are those read and written; what a kernel reads twice counts once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/gpu_worker.h"

#ifdef TRIB_CUDA_KERNELS
#include "stages/cuda/cuda_kernels.h"

enum {
    ELEMENTS = 64 << 20,
    CHUNK = 64 << 10,
    ROOM_WIDE = 16 + 2 * CHUNK,
    ROOM_NARROW = 32 + CHUNK,
    RUNS = 20,
    PARTITION = 256 << 10
};

typedef struct bench {
    cudaStream_t stream;
    cudaEvent_t began, ended;
    float *elements;
    unsigned char *encoded;
    double copied; /* bytes in a second */
} bench;

static double seconds_each(const bench *self)
{
    float milliseconds = 0;
    check_cuda(cudaEventRecord(self->ended, self->stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(self->ended), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, self->began, self->ended), "cudaEventElapsedTime");
    return (double)milliseconds / 1e3 / RUNS;
}

static void copy_beside(bench *self)
{
    const size_t half = sizeof(float) * ELEMENTS / 2;
    for (int run = -2; run < RUNS; run++) {
        if (run == 0) {
            check_cuda(cudaEventRecord(self->began, self->stream), "cudaEventRecord");
        }
        check_cuda(cudaMemcpyAsync(self->elements, self->elements + ELEMENTS / 2, half, cudaMemcpyDeviceToDevice,
                                   self->stream),
                   "cudaMemcpyAsync");
    }
    self->copied = 2 * (double)half / seconds_each(self);
    printf("kernels: a copy: %.0f GB/s\n", self->copied / 1e9);
}

static uint32_t encoded_room(cuda_kernel_codec codec)
{
    return codec <= CUDA_KERNEL_BF16 ? ROOM_WIDE : ROOM_NARROW;
}

/* The bytes of an element and of what it becomes. */
static double moved(cuda_kernel_codec codec)
{
    return codec <= CUDA_KERNEL_BF16     ? 6.0
           : codec <= CUDA_KERNEL_INT8   ? 5.0
           : codec == CUDA_KERNEL_ONEBIT ? 4.125
                                         : 4.08;
}

/* Returns the seconds that a run takes over that many elements. */
static double time_runs(const bench *self, cuda_kernel_codec codec, uint64_t count, bool decodes)
{
    const cuda_kernel_work work = {.codec = codec,
                                   .source = self->elements,
                                   .target = self->elements,
                                   .encoded = self->encoded,
                                   .count = count,
                                   .chunk_elements = CHUNK,
                                   .room = encoded_room(codec),
                                   .ratio = 0.01,
                                   .scaling = true};
    for (int run = -2; run < RUNS; run++) {
        if (run == 0) {
            check_cuda(cudaEventRecord(self->began, self->stream), "cudaEventRecord");
        }
        check_cuda((decodes ? cuda_kernels_decode : cuda_kernels_encode)(&work, self->stream), "a kernel");
    }
    return seconds_each(self);
}

static void measure(const bench *self, cuda_kernel_codec codec, const char *name, bool decodes)
{
    const double speed = (double)ELEMENTS * moved(codec) / time_runs(self, codec, ELEMENTS, decodes);
    printf("kernels: %s %s: %.0f GB/s, %.2f of a copy\n", decodes ? "decode" : "encode", name, speed / 1e9,
           speed / self->copied);
}

/* Time of a job of one partition. */
static void measure_partition(const bench *self, cuda_kernel_codec codec, const char *name)
{
    printf("kernels: encode %s: 1 MiB in %.1f us\n", name, time_runs(self, codec, PARTITION, false) * 1e6);
}

/* Numbers of many sizes, both signs; or distinct ones, no two of a chunk with the same magnitude. */
static void fill(const bench *self, bool are_distinct)
{
    float *numbers = malloc(sizeof(float) * ELEMENTS);
    uint32_t drawn = 1;
    for (size_t i = 0; numbers != NULL && i < ELEMENTS; i++) {
        drawn = drawn * 1664525u + 1013904223u;
        const float part = (float)((int32_t)drawn >> 8) * 0x1p-23F;
        const uint32_t magnitude = ((uint32_t)i * 2654435761u & 0xffffff) + 1;
        numbers[i] = are_distinct ? copysignf((float)magnitude, part) : part * part * part;
    }
    if (numbers == NULL) {
        fail("no memory");
    }
    check_cuda(cudaMemcpy(self->elements, numbers, sizeof(float) * ELEMENTS, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(numbers);
}

void scenario_kernels(rank *self)
{
    static const char *const names[] = {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "onebit", "topk", "randomk"};
    bench bed = {.stream = self->stream};
    check_cuda(cudaEventCreate(&bed.began), "cudaEventCreate");
    check_cuda(cudaEventCreate(&bed.ended), "cudaEventCreate");
    check_cuda(cudaMalloc((void **)&bed.elements, sizeof(float) * ELEMENTS), "cudaMalloc");
    check_cuda(cudaMalloc((void **)&bed.encoded, (size_t)ELEMENTS / CHUNK * ROOM_WIDE), "cudaMalloc");
    check_cuda(cuda_kernels_load(), "cuda_kernels_load");
    copy_beside(&bed);
    for (int codec = CUDA_KERNEL_FP16; codec <= CUDA_KERNEL_RANDOMK; codec++) {
        fill(&bed, false);
        measure_partition(&bed, (cuda_kernel_codec)codec, names[codec]);
        measure(&bed, (cuda_kernel_codec)codec, names[codec], false);
        measure(&bed, (cuda_kernel_codec)codec, names[codec], true);
    }
    fill(&bed, true);
    measure_partition(&bed, CUDA_KERNEL_TOPK, "topk of distinct numbers");
    measure(&bed, CUDA_KERNEL_TOPK, "topk of distinct numbers", false);
    check_cuda(cudaFree(bed.elements), "cudaFree");
    check_cuda(cudaFree(bed.encoded), "cudaFree");
}
#else
void scenario_kernels(rank *self)
{
    (void)self;
    printf("kernels: this build has none\n");
}
#endif
