/*
 * cuda_codec.c - ENCODE jobs: a kernel encodes a contribution into device memory, from where a copy brings it to the
 * host. The jobs of the stream follow each other, so they share that memory.
 */
#include "stages/cuda/cuda_internal.h"

#ifdef TRIB_CUDA_KERNELS
#include "stages/cuda/cuda_kernels.h"

bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    const uint8_t id = config->codec->id;
    return dtype == TRIB_FLOAT32 && config->feedback == TRIB_FEEDBACK_NONE && config->momentum == TRIB_MOMENTUM_NONE &&
           (id == TRIB_CODEC_FP16 || id == TRIB_CODEC_BF16 || id == TRIB_CODEC_INT8);
}

cudaError_t cuda_codec_load(void)
{
    return cuda_kernels_load();
}

void cuda_codec_free(trib_device *device)
{
    if (device->encoded != NULL) {
        (void)cudaFreeAsync(device->encoded, device->streams[CUDA_TO_HOST]);
        device->encoded = NULL;
    }
}

/* In the order of the stream: nothing waits for the device. */
static cudaError_t take_memory(trib_device *device, size_t bytes, cudaStream_t stream)
{
    if (device->encoded_bytes >= bytes) {
        return cudaSuccess;
    }
    cuda_codec_free(device);
    const cudaError_t code = cudaMallocAsync(&device->encoded, bytes, stream);
    device->encoded_bytes = code == cudaSuccess ? bytes : 0;
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

cudaError_t cuda_encode(trib_device *device, const trib_device_job *job, cudaStream_t stream)
{
    const trib_device_encoding *how = job->encoding;
    const trib_codec_place *place = &how->place;
    const uint8_t id = how->config->codec->id;
    cudaError_t code = take_memory(device, how->target_bytes, stream);
    if (code != cudaSuccess) {
        return code;
    }
    const cuda_kernel_work work = {
        .codec = id == TRIB_CODEC_FP16   ? CUDA_KERNEL_FP16
                 : id == TRIB_CODEC_BF16 ? CUDA_KERNEL_BF16
                                         : CUDA_KERNEL_INT8,
        .source = job->source,
        .target = device->encoded,
        .count = job->bytes / sizeof(float),
        .chunk_elements = how->chunk_elements,
        .room = how->room,
        .first_element = place->first_element,
        .key = mixed(mixed(mixed(how->config->params.seed, place->tensor_key), place->rank), place->round),
    };
    (void)cudaGetLastError(); /* of a call before: a launch returns its own */
    code = cuda_kernels_encode(&work, stream);
    return code != cudaSuccess
               ? code
               : cudaMemcpyAsync(job->target, device->encoded, how->target_bytes, cudaMemcpyDeviceToHost, stream);
}

#else /* built without nvcc: processors encode */

bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    (void)config;
    (void)dtype;
    return false;
}

cudaError_t cuda_codec_load(void)
{
    return cudaSuccess;
}

void cuda_codec_free(trib_device *device)
{
    (void)device;
}

cudaError_t cuda_encode(trib_device *device, const trib_device_job *job, cudaStream_t stream)
{
    (void)device;
    (void)job;
    (void)stream;
    return cudaErrorNotSupported;
}
#endif
