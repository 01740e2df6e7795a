/* test_cuda_codec.c - ENCODE and DECODE jobs of the CUDA module over stand-ins: what a kernel is told, that memory is
 * taken and given back in the order of the stream, and what a full device does. Kernels themselves run in tests/gpu
 * alone. */
#include <errno.h>
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
    /* Errors: one that no call has asked for, of memory, of filling it, and of kernels. */
    cudaError_t older, refusal, fill_refusal, launch_refusal;
    cuda_kernel_work work;             /* launched last */
    int calls, launched_at, copied_at; /* of all launches and copies, the number of the last one */
    size_t copied_bytes;
    enum cudaMemcpyKind kind;
    char order[16]; /* of kernels and copies: g, e, subtract, back, to the host, from it */
} seen;

static void note(char what)
{
    const size_t length = strlen(seen.order);
    assert_true(length + 1 < sizeof seen.order);
    seen.order[length] = what;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): names of releases */
cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = seen.older;
    seen.older = cudaSuccess;
    return code;
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
    memcpy(to, from, bytes); /* all memory is the host's here */
    seen.copied_at = ++seen.calls;
    note(kind == cudaMemcpyDeviceToHost ? 't' : 'f');
    seen.copied_bytes = bytes;
    seen.kind = kind;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    memset(memory, value, bytes);
    return seen.fill_refusal;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

static int signals;

void cuda_thread_signal_if_asleep(trib_device *device)
{
    assert_int_equal(pthread_mutex_trylock(&device->mutex), EBUSY);
    signals++;
}

cudaError_t cuda_kernels_load(void)
{
    return cudaSuccess;
}

static cudaError_t launch(const cuda_kernel_work *work, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    seen.work = *work;
    seen.launched_at = ++seen.calls;
    memset(work->encoded, 7, work->room);
    return seen.launch_refusal != cudaSuccess ? seen.launch_refusal : cudaGetLastError();
}

cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    assert_non_null(work->source);
    note('e');
    return launch(work, stream);
}

cudaError_t cuda_kernels_decode(const cuda_kernel_work *work, cudaStream_t stream)
{
    assert_non_null(work->target);
    note("dsb"[work->merge]);
    return launch(work, stream);
}

cudaError_t cuda_kernels_gather(const cuda_kernel_gathering *gathering, cudaStream_t stream)
{
    assert_ptr_equal(stream, seen.stream);
    assert_true(gathering->source != NULL && gathering->result != NULL);
    note('g');
    return cudaGetLastError();
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
    config.momentum = TRIB_MOMENTUM_NESTEROV;
    assert_true(cuda_encodes(&config, TRIB_FLOAT32));
    assert_true(cuda_decodes(&config, TRIB_FLOAT32));
    assert_false(cuda_decodes(&config, TRIB_FLOAT64));
    config = (trib_codec_config){.codec = &codec_topk, .params = {.ratio = 0.01}};
    assert_true(cuda_encodes(&config, TRIB_FLOAT32));
    config.params.select = 1; /* from a sample: processors */
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
    config = (trib_codec_config){.codec = &trib_codec_randomk, .params = {.ratio = 0.05}};
    assert_true(cuda_encodes(&config, TRIB_FLOAT32));
    config.params.ratio = 0.5; /* draws too many numbers */
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
    config.params = (trib_codec_params){.k = 100, .seed = 1}; /* the numbers go on from chunk to chunk */
    assert_false(cuda_encodes(&config, TRIB_FLOAT32));
    config = (trib_codec_config){.codec = &trib_codec_dithering};
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
    trib_device_encoding how = {.config = &config, .chunk_elements = 40, .room = 96, .encoded_bytes = 300};
    trib_device_job job = {
        .kind = TRIB_DEVICE_ENCODE, .source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_int_equal(seen.work.count, 100);
    assert_int_equal(seen.work.codec, CUDA_KERNEL_FP16);
    assert_true(seen.work.chunk_elements == 40 && seen.work.room == 96 && seen.copied_bytes == 300);
    assert_true(seen.copied_at > seen.launched_at && seen.kind == cudaMemcpyDeviceToHost);
    how.encoded_bytes = 200;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_int_equal(seen.taken, 1);
    how.encoded_bytes = 301;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_true(seen.taken == 2 && seen.given == 1 && seen.bytes == 301);
    how.encoded_bytes = 302;
    seen.refusal = cudaErrorNotReady; /* another failure than too little memory */
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaErrorNotReady);
    assert_true(seen.calls == 6 && !job.was_full);
    how.encoded_bytes = 100; /* what was given back is not used */
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
                                      .encoded_bytes = 32};
    trib_device_job job = {.source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    const uint64_t of_tensor = codec_mix(codec_mix(3, 5), 7);
    assert_int_equal(seen.work.key, codec_mix(of_tensor, 9));
    assert_int_equal(seen.work.first_element, 11);
    assert_int_equal(seen.work.codec, CUDA_KERNEL_INT8);
    cuda_codec_free(&device);
}

/* The elements go to the host as they are. */
static void a_full_device_does_not_encode(void **state)
{
    (void)state;
    static float elements[100], host[100];
    int stream = 0;
    trib_device device = {.streams = {(cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {.codec = &codec_int8};
    const trib_device_encoding how = {.config = &config, .chunk_elements = 40, .room = 96, .encoded_bytes = 300};
    trib_device_job job = {.source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    elements[99] = 3;
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    seen.refusal = cudaErrorMemoryAllocation;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_true(job.was_full && seen.launched_at == 0 && seen.kind == cudaMemcpyDeviceToHost);
    assert_memory_equal(host, elements, sizeof host);
    job.was_full = false; /* it has memory again */
    seen.refusal = cudaSuccess;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaSuccess);
    assert_true(!job.was_full && seen.launched_at > 0);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, seen.taken);
}

enum { ELEMENTS = 100, CHUNK = 40, ROOM = 112 };

static void lay_out(const float *elements, unsigned char *encoded)
{
    for (uint32_t first = 0; first < ELEMENTS; first += CHUNK, encoded += ROOM) {
        const uint32_t count = ELEMENTS - first < CHUNK ? ELEMENTS - first : CHUNK;
        const uint32_t bytes = trib_codec_bf16.encode(NULL, NULL, NULL, TRIB_FLOAT32, elements + first, count,
                                                      encoded + TRIB_DEVICE_ENCODED_AT);
        memcpy(encoded, &bytes, sizeof bytes);
    }
}

/* The kernel comes behind the copy. A full device gets elements that a processor has decoded. */
static void a_sum_is_decoded(void **state)
{
    (void)state;
    static float elements[ELEMENTS], target[ELEMENTS];
    static unsigned char encoded[3 * ROOM];
    int stream = 0;
    trib_device device = {.streams = {[CUDA_TO_DEVICE] = (cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {.codec = &trib_codec_bf16, .feedback = TRIB_FEEDBACK_VANILLA};
    const trib_device_encoding how = {
        .config = &config, .chunk_elements = CHUNK, .room = ROOM, .encoded_bytes = sizeof encoded};
    trib_device_job job = {
        .dtype = TRIB_FLOAT32, .source = encoded, .target = target, .bytes = sizeof target, .encoding = &how};
    for (int i = 0; i < ELEMENTS; i++) {
        elements[i] = (float)i;
    }
    lay_out(elements, encoded);
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[CUDA_TO_DEVICE];
    assert_int_equal(cuda_decode(&device, &job, seen.stream), cudaSuccess);
    assert_true(seen.launched_at > seen.copied_at && seen.kind == cudaMemcpyHostToDevice && !job.was_full);
    assert_true(seen.copied_bytes == sizeof encoded && seen.work.codec == CUDA_KERNEL_BF16);
    assert_ptr_equal(seen.work.target, target);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, 1);
    seen.refusal = cudaErrorMemoryAllocation;
    assert_int_equal(cuda_decode(&device, &job, seen.stream), cudaSuccess);
    assert_true(job.was_full && seen.kind == cudaMemcpyHostToDevice);
    assert_memory_equal(target, elements, sizeof target);
}

static void encode_in_order(trib_device *device, trib_device_job *job, const char *order)
{
    memset(seen.order, 0, sizeof seen.order);
    assert_int_equal(cuda_encode(device, job, seen.stream), cudaSuccess);
    assert_string_equal(seen.order, order);
}

/* A partition's residual and momentum have memory of their own, which is taken once. What did not count is added before
 * the next contribution. Memory that is forgotten is given back by the device's thread, which is woken for it, or when
 * the device is closed. */
static void residuals_stay_on_the_device(void **state)
{
    (void)state;
    static float elements[100];
    static unsigned char host[400];
    int stream = 0;
    void *kept[2] = {NULL, NULL};
    trib_device device = {.streams = {(cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {
        .codec = &codec_int8, .feedback = TRIB_FEEDBACK_VANILLA, .momentum = TRIB_MOMENTUM_NESTEROV};
    trib_device_encoding how = {
        .config = &config, .chunk_elements = 40, .room = 96, .encoded_bytes = 288, .kept = &kept[0]};
    trib_device_job job = {.source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    seen.older = cudaErrorInvalidValue; /* of another call */
    encode_in_order(&device, &job, "gest");
    assert_true(seen.taken == 1 && seen.bytes == 2 * sizeof elements + 288 && kept[0] != NULL);
    seen.refusal = cudaErrorMemoryAllocation; /* it needs no more */
    trib_codec_returned *returned = calloc(1, sizeof *returned + 288);
    assert_non_null(returned);
    how.returned = returned;
    assert_false(job.took_back);
    encode_in_order(&device, &job, "fbgest");
    assert_true(job.took_back && !job.was_full);
    job.took_back = false;
    seen.launch_refusal = cudaErrorInvalidValue; /* the job fails, but has begun to take it back */
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaErrorInvalidValue);
    assert_true(job.took_back);
    seen.launch_refusal = cudaSuccess;
    free(returned);
    how.returned = NULL;
    how.kept = &kept[1];
    encode_in_order(&device, &job, "t");
    assert_true(job.was_full && kept[1] == NULL);
    job.was_full = false;
    seen.refusal = cudaSuccess;
    encode_in_order(&device, &job, "gest");
    cuda_codec_sweep(&device);
    assert_true(seen.taken == 2 && seen.given == 0 && signals == 0);
    cuda_codec_forget(&device, kept[0]);
    assert_int_equal(signals, 1);
    cuda_codec_sweep(&device);
    assert_int_equal(seen.given, 1);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, 2);
    cuda_codec_forget(NULL, kept[1]);
}

/* Memory that could not be zeroed is no residual, and the next job takes it anew. */
static void a_residual_begins_with_zeros(void **state)
{
    (void)state;
    static float elements[100];
    static unsigned char host[400];
    int stream = 0;
    void *kept = NULL;
    trib_device device = {.streams = {(cudaStream_t)(void *)&stream}};
    const trib_codec_config config = {.codec = &codec_int8, .feedback = TRIB_FEEDBACK_VANILLA};
    const trib_device_encoding how = {
        .config = &config, .chunk_elements = 40, .room = 96, .encoded_bytes = 288, .kept = &kept};
    trib_device_job job = {.source = elements, .target = host, .bytes = sizeof elements, .encoding = &how};
    memset(&seen, 0, sizeof seen);
    seen.stream = device.streams[0];
    seen.fill_refusal = cudaErrorMemoryAllocation;
    encode_in_order(&device, &job, "t");
    assert_true(job.was_full && kept == NULL && seen.given == 1);
    job.was_full = false;
    seen.fill_refusal = cudaErrorInvalidValue;
    assert_int_equal(cuda_encode(&device, &job, seen.stream), cudaErrorInvalidValue);
    assert_true(!job.was_full && kept == NULL && seen.given == 2);
    seen.fill_refusal = cudaSuccess;
    encode_in_order(&device, &job, "gest");
    assert_non_null(kept);
    cuda_codec_forget(&device, kept);
    cuda_codec_free(&device);
    assert_int_equal(seen.given, seen.taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_encodes_what_kernels_have),
        cmocka_unit_test(jobs_share_memory_that_grows),
        cmocka_unit_test(a_kernel_draws_by_the_place),
        cmocka_unit_test(a_full_device_does_not_encode),
        cmocka_unit_test(a_sum_is_decoded),
        cmocka_unit_test(residuals_stay_on_the_device),
        cmocka_unit_test(a_residual_begins_with_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
