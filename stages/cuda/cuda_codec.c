/*
 * cuda_codec.c - ENCODE and DECODE jobs: a kernel encodes a contribution into device memory, from where a copy brings
 * it to the host, or a copy brings an encoded sum into device memory, and a kernel decodes it. The jobs of a stream
 * follow each other, so they share that memory.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef TRIB_CUDA_KERNELS
#include "stages/cuda/cuda_kernels.h"

static bool find_kernel(const trib_codec_config *config, trib_dtype dtype, cuda_kernel_codec *which)
{
    static const cuda_kernel_codec kernels[] = {[TRIB_CODEC_FP16] = CUDA_KERNEL_FP16,
                                                [TRIB_CODEC_BF16] = CUDA_KERNEL_BF16,
                                                [TRIB_CODEC_FP8_E4M3] = CUDA_KERNEL_E4M3,
                                                [TRIB_CODEC_FP8_E5M2] = CUDA_KERNEL_E5M2,
                                                [TRIB_CODEC_INT8] = CUDA_KERNEL_INT8};
    const uint8_t id = config->codec->id;
    const bool has_one = dtype == TRIB_FLOAT32 && id >= TRIB_CODEC_FP16 && id <= TRIB_CODEC_INT8;
    *which = has_one ? kernels[id] : CUDA_KERNEL_FP16;
    return has_one;
}

bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    cuda_kernel_codec which;
    return find_kernel(config, dtype, &which) && config->feedback == TRIB_FEEDBACK_NONE &&
           config->momentum == TRIB_MOMENTUM_NONE;
}

/* Feedback and momentum concern contributions only. */
bool cuda_decodes(const trib_codec_config *config, trib_dtype dtype)
{
    cuda_kernel_codec which;
    return find_kernel(config, dtype, &which);
}

cudaError_t cuda_codec_load(void)
{
    return cuda_kernels_load();
}

static void free_memory(trib_device *device, cuda_stream_id which)
{
    cuda_encoded *mine = &device->encoded[which];
    if (mine->memory != NULL) {
        (void)cudaFreeAsync(mine->memory, device->streams[which]);
    }
    *mine = (cuda_encoded){.memory = NULL};
}

void cuda_codec_free(trib_device *device)
{
    free_memory(device, CUDA_TO_HOST);
    free_memory(device, CUDA_TO_DEVICE);
}

/* In the order of the stream: nothing waits for the device. */
static cudaError_t take_memory(trib_device *device, cuda_stream_id which, size_t bytes)
{
    cuda_encoded *mine = &device->encoded[which];
    if (mine->bytes >= bytes) {
        return cudaSuccess;
    }
    free_memory(device, which);
    const cudaError_t code = cudaMallocAsync(&mine->memory, bytes, device->streams[which]);
    if (code == cudaSuccess) {
        mine->bytes = bytes;
    } else {
        mine->memory = NULL;
        (void)cudaGetLastError(); /* must not show up among errors of later calls */
    }
    return code;
}

/* As trib_codec_mix. The module has no symbol of the library. */
static uint64_t mixed(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) + UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
    return hash ^ hash >> 31;
}

static cuda_kernel_work work_of(const trib_device_job *job, void *encoded)
{
    const trib_device_encoding *how = job->encoding;
    const trib_codec_place *place = &how->place;
    cuda_kernel_work work = {
        .encoded = encoded,
        .count = job->bytes / sizeof(float),
        .chunk_elements = how->chunk_elements,
        .room = how->room,
        .first_element = place->first_element,
        .key = mixed(mixed(mixed(how->config->params.seed, place->tensor_key), place->rank), place->round),
    };
    (void)find_kernel(how->config, TRIB_FLOAT32, &work.codec);
    return work;
}

/* A launch returns its own error, and not that of a call before. */
static cudaError_t launch(cudaError_t (*kernel)(const cuda_kernel_work *work, cudaStream_t stream),
                          const cuda_kernel_work *work, cudaStream_t stream)
{
    (void)cudaGetLastError();
    return kernel(work, stream);
}

cudaError_t cuda_encode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    const size_t bytes = job->encoding->encoded_bytes;
    cudaError_t code = take_memory(device, CUDA_TO_HOST, bytes);
    if (code == cudaErrorMemoryAllocation) {
        job->was_full = true;
        return cudaMemcpyAsync(job->target, job->source, job->bytes, cudaMemcpyDeviceToHost, stream);
    }
    if (code != cudaSuccess) {
        return code;
    }
    void *memory = device->encoded[CUDA_TO_HOST].memory;
    cuda_kernel_work work = work_of(job, memory);
    work.source = job->source;
    code = launch(cuda_kernels_encode, &work, stream);
    return code != cudaSuccess ? code : cudaMemcpyAsync(job->target, memory, bytes, cudaMemcpyDeviceToHost, stream);
}

/* The copy has read the host's memory when the call returns, because that is not registered. */
static cudaError_t decode_here(const trib_device_job *job, cudaStream_t stream)
{
    const trib_device_encoding *how = job->encoding;
    const size_t count = job->bytes / sizeof(float);
    const unsigned char *at = job->source;
    float *elements = malloc(job->bytes);
    cudaError_t code = elements == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
    for (size_t first = 0; code == cudaSuccess && first < count; first += how->chunk_elements, at += how->room) {
        const size_t left = count - first, length = left < how->chunk_elements ? left : how->chunk_elements;
        uint32_t size;
        memcpy(&size, at, sizeof size);
        const trib_status status =
            how->config->codec->decode(&how->config->params, job->dtype, at + TRIB_DEVICE_ENCODED_AT, size,
                                       elements + first, (uint32_t)length, NULL);
        code = status == TRIB_OK ? cudaSuccess : cudaErrorInvalidValue;
    }
    code =
        code != cudaSuccess ? code : cudaMemcpyAsync(job->target, elements, job->bytes, cudaMemcpyHostToDevice, stream);
    free(elements);
    return code;
}

cudaError_t cuda_decode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    const size_t bytes = job->encoding->encoded_bytes;
    cudaError_t code = take_memory(device, CUDA_TO_DEVICE, bytes);
    if (code == cudaErrorMemoryAllocation) {
        job->was_full = true;
        return decode_here(job, stream);
    }
    void *memory = device->encoded[CUDA_TO_DEVICE].memory;
    code = code != cudaSuccess ? code : cudaMemcpyAsync(memory, job->source, bytes, cudaMemcpyHostToDevice, stream);
    if (code != cudaSuccess) {
        return code;
    }
    cuda_kernel_work work = work_of(job, memory);
    work.target = job->target;
    return launch(cuda_kernels_decode, &work, stream);
}

#else /* built without nvcc: processors encode and decode */

bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    (void)config;
    (void)dtype;
    return false;
}

bool cuda_decodes(const trib_codec_config *config, trib_dtype dtype)
{
    return cuda_encodes(config, dtype);
}

cudaError_t cuda_codec_load(void)
{
    return cudaSuccess;
}

void cuda_codec_free(trib_device *device)
{
    (void)device;
}

cudaError_t cuda_encode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    (void)device;
    (void)job;
    (void)stream;
    return cudaErrorNotSupported;
}

cudaError_t cuda_decode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    return cuda_encode(device, job, stream);
}
#endif
