/* test_cuda_codec.c - ENCODE jobs of the CUDA module over stand-ins: what a kernel is told, and that memory is taken
 * and given back in the order of the stream. Kernels themselves run in tests/gpu alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"
#include "engine/codec/codec_parts.h"
#include "stages/cuda/cuda_kernels.h"

/* ---- Stand-ins ---- */

static struct {
    cudaStream_t stream;
    int taken, given;
    size_t bytes; /* taken last */
    cudaError_t refusal;
    cuda_kernel_work work; /* launched last */
    int launched, copied;
    size_t copied_bytes;
} seen;

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): names of releases */
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    if (seen.refusal != cudaSuccess) {
        *memory = NULL;
        return seen.refusal;
    }
    *memory = malloc(bytes);
    assert_non_null(*memory);
    seen.taken++;
    seen.bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    free(memory);
    seen.given++;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    assert_ptr_equal(from, seen.work.target);
    assert_int_equal(kind, cudaMemcpyDeviceToHost);
    assert_int_equal(seen.launched, seen.copied + 1); /* behind its kernel */
    memset(to, 7, bytes);
    seen.copied++;
    seen.copied_bytes = bytes;
    return cudaSuccess;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

cudaError_t cuda_kernels_load(void)
{
    return cudaSuccess;
}

cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    seen.work = *work;
    seen.launched++;
    return cudaSuccess;
}

/* ---- Tests ---- */

static const trib_codec codec_fp16 = {.name = "fp16", .id = TRIB_CODEC_FP16};
static const trib_codec codec_int8 = {.name = "int8", .id = TRIB_CODEC_INT8};
static const trib_codec codec_topk = {.name = "topk", .id = TRIB_CODEC_TOPK};

static void it_encodes_what_kernels_have(void **state)
{
    (void)state;
    trib_codec_config config = {.codec = &codec_int8};
    assert_true(cuda_encodes(&config, TRIB_FLOAT32));
    assert_false(cuda_encodes(&config, TRIB_FLOAT16));
    config.feedback = TRIB_FEEDBACK_VANILLA;
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
    config.feedback = TRIB_FEEDBACK_NONE;
    config.momentum = TRIB_MOMENTUM_NESTEROV;
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
    config = (trib_codec_config){.codec = &codec_topk};
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
}

static void jobs_share_memory_that_grows(void **state)
{
    (void)state;
    static float elements[100];
    static unsigned char host[1000];
    int stream = 0;
    trib_device device = {.streams = {(cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {.codec = &codec_fp16};
    trib_device_encoding how = {.config = &config, .chunk_elements = 40, .room = 96, .target_bytes = 300};
    const trib_device_job job = {
        .kind = TRIB_DEVICE_ENCODE, .source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_int_equal(seen.work.count, 100);
    assert_int_equal(seen.work.codec, CUDA_KERNEL_FP16);
    assert_true(seen.work.chunk_elements == 40 && seen.work.room == 96 && seen.copied_bytes == 300);
    how.target_bytes = 200;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_int_equal(seen.taken, 1);
    how.target_bytes = 301;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_true(seen.taken == 2 && seen.given == 1 && seen.bytes == 301);
    how.target_bytes = 302;
    seen.refusal = cudaErrorMemoryAllocation;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaErrorMemoryAllocation);
    assert_true(seen.launched == 3 && seen.copied == 3);
    how.target_bytes = 100; /* what was given back is not used */
    seen.refusal = cudaSuccess;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_int_equal(seen.taken, 3);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, seen.taken);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, seen.taken);
}

/* The key is that of engine/codec/scaled.c before the chunk's own index: of seed, tensor, rank and round. */
static void a_kernel_draws_by_the_place(void **state)
{
    (void)state;
    static float elements[10];
    static unsigned char host[100];
    int stream = 0;
    trib_device device = {.streams = {(cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {.codec = &codec_int8, .params = {.seed = 3}};
    const trib_device_encoding how = {.config = &config,
                                      .place = {.tensor_key = 5, .rank = 7, .round = 9, .first_element = 11},
                                      .chunk_elements = 10,
                                      .room = 32,
                                      .target_bytes = 32};
    const trib_device_job job = {.source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    const uint64_t of_tensor = trib_codec_mix(trib_codec_mix(3, 5), 7);
    assert_int_equal(seen.work.key, trib_codec_mix(of_tensor, 9));
    assert_int_equal(seen.work.first_element, 11);
    assert_int_equal(seen.work.codec, CUDA_KERNEL_INT8);
    cuda_codec_free(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_encodes_what_kernels_have),
        cmocka_unit_test(jobs_share_memory_that_grows),
        cmocka_unit_test(a_kernel_draws_by_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
