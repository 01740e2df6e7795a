/*
 * cuda_codec.c - ENCODE and DECODE jobs: a kernel encodes a contribution into device memory, from where a copy brings
 * it to the host, or a copy brings an encoded sum into device memory, and a kernel decodes it. The jobs of a stream
 * follow each other, so they share that memory.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef TRIB_CUDA_KERNELS
#include "engine/codec/codec_share.h"
#include "stages/cuda/cuda_kernels.h"

/* A warp draws the numbers of a chunk one after the other: of large parts processors draw faster. */
#define RANDOMK_RATIO_MOST (1.0 / 16)
#define RANDOMK_K_MOST 4096u

static bool find_kernel(const trib_codec_config *config, trib_dtype dtype, cuda_kernel_codec *which)
{
    static const cuda_kernel_codec kernels[] = {
        [TRIB_CODEC_FP16] = CUDA_KERNEL_FP16,     [TRIB_CODEC_BF16] = CUDA_KERNEL_BF16,
        [TRIB_CODEC_FP8_E4M3] = CUDA_KERNEL_E4M3, [TRIB_CODEC_FP8_E5M2] = CUDA_KERNEL_E5M2,
        [TRIB_CODEC_INT8] = CUDA_KERNEL_INT8,     [TRIB_CODEC_ONEBIT] = CUDA_KERNEL_ONEBIT,
        [TRIB_CODEC_TOPK] = CUDA_KERNEL_TOPK,     [TRIB_CODEC_RANDOMK] = CUDA_KERNEL_RANDOMK};
    const trib_codec_params *params = &config->params;
    const uint8_t id = config->codec->id;
    const bool is_sampled = id == TRIB_CODEC_TOPK && params->select != 0;
    /* With a seed of its own a partition's numbers go on from chunk to chunk and round to round, on processors. */
    const bool is_slow = id == TRIB_CODEC_RANDOMK &&
                         (params->seed != 0 || params->ratio > RANDOMK_RATIO_MOST || params->k > RANDOMK_K_MOST);
    const bool has_one =
        dtype == TRIB_FLOAT32 && id >= TRIB_CODEC_FP16 && id <= TRIB_CODEC_RANDOMK && !is_sampled && !is_slow;
    *which = has_one ? kernels[id] : CUDA_KERNEL_FP16;
    return has_one;
}

bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    cuda_kernel_codec which;
    return find_kernel(config, dtype, &which);
}

cudaError_t cuda_codec_load(void)
{
    return cuda_kernels_load();
}

static void free_kept(trib_device *device, bool all)
{
    cuda_kept **at = &device->kept;
    while (*at != NULL) {
        cuda_kept *kept = *at;
        const bool is_dropped = atomic_load(&kept->is_dropped);
        if (!all && !is_dropped) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        (void)cudaFreeAsync(kept->memory, device->streams[CUDA_TO_HOST]);
        kept->memory = NULL;
        if (is_dropped) {
            free(kept);
        }
    }
}

void cuda_codec_sweep(trib_device *device)
{
    if (atomic_exchange(&device->has_dropped, false)) {
        free_kept(device, false);
    }
}

/* The engine's mutex may be held, which comes before the device's. */
void cuda_codec_forget(trib_device *device, void *kept)
{
    if (device == NULL) {
        free(kept); /* the device has freed its memory when it was closed */
        return;
    }
    atomic_store(&((cuda_kept *)kept)->is_dropped, true);
    atomic_store(&device->has_dropped, true);
    pthread_mutex_lock(&device->mutex);
    cuda_thread_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
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
    free_kept(device, true);
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

static uint64_t key_of(const trib_device_encoding *how)
{
    const trib_codec_place *place = &how->place;
    if (how->config->codec->id == TRIB_CODEC_RANDOMK) { /* alike on all workers */
        return codec_mix(codec_mix(TRIB_CODEC_RANDOMK, place->tensor_key), place->round);
    }
    const uint64_t of_tensor = codec_mix(codec_mix(how->config->params.seed, place->tensor_key), place->rank);
    return codec_mix(of_tensor, place->round);
}

static cuda_kernel_work work_of(const trib_device_job *job, void *encoded)
{
    const trib_device_encoding *how = job->encoding;
    const trib_codec_params *params = &how->config->params;
    cuda_kernel_work work = {.encoded = encoded,
                             .count = job->bytes / sizeof(float),
                             .chunk_elements = how->chunk_elements,
                             .room = how->room,
                             .first_element = how->place.first_element,
                             .key = key_of(how),
                             .ratio = params->ratio,
                             .k = params->k,
                             .scaling = params->scaling != 0};
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

/* ---- Feedback and momentum ---- */

/* Takes a partition's memory at its first job: all that it will ever need, so that no later job finds none. */
static cudaError_t take_kept(trib_device *device, const trib_device_job *job, cudaStream_t stream)
{
    const trib_device_encoding *how = job->encoding;
    const bool has_momentum = how->config->momentum != TRIB_MOMENTUM_NONE;
    const size_t array = (job->bytes + 15) / 16 * 16, arrays = has_momentum ? 2 * array : array;
    if (*how->kept != NULL) {
        return cudaSuccess;
    }
    cuda_kept *kept = calloc(1, sizeof *kept);
    void *memory = NULL;
    cudaError_t code =
        kept == NULL ? cudaErrorMemoryAllocation : cudaMallocAsync(&memory, arrays + how->encoded_bytes, stream);
    const bool is_taken = code == cudaSuccess;
    code = is_taken ? cudaMemsetAsync(memory, 0, arrays, stream) : code;
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        if (is_taken) {
            (void)cudaFreeAsync(memory, stream);
        }
        free(kept);
        return code;
    }
    *kept = (cuda_kept){.next = device->kept, .memory = memory, .encoded = (unsigned char *)memory + arrays};
    kept->momentum = has_momentum ? kept->memory + array / sizeof(float) : NULL;
    device->kept = kept;
    *how->kept = kept;
    return cudaSuccess;
}

static cudaError_t merge(const trib_device_job *job, const cuda_kept *kept, cuda_kernel_merge how, cudaStream_t stream)
{
    cuda_kernel_work work = work_of(job, kept->encoded);
    work.target = kept->memory;
    work.merge = how;
    return launch(cuda_kernels_decode, &work, stream);
}

/* Adds to the residual what did not count. A copy has read the host's memory when the call returns, because that is
 * not registered. */
static cudaError_t take_back(trib_device_job *job, const cuda_kept *kept, cudaStream_t stream)
{
    const trib_device_encoding *how = job->encoding;
    cudaError_t code = cudaSuccess;
    job->took_back = how->returned != NULL;
    for (const trib_codec_returned *at = how->returned; code == cudaSuccess && at != NULL; at = at->next) {
        code = cudaMemcpyAsync(kept->encoded, at->chunks, how->encoded_bytes, cudaMemcpyHostToDevice, stream);
        code = code != cudaSuccess ? code : merge(job, kept, CUDA_KERNEL_GIVE_BACK, stream);
    }
    return code;
}

static cudaError_t encode_kept(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    const trib_device_encoding *how = job->encoding;
    const bool has_feedback = how->config->feedback != TRIB_FEEDBACK_NONE;
    cudaError_t code = take_kept(device, job, stream);
    if (code == cudaErrorMemoryAllocation) {
        job->was_full = true;
        return cudaMemcpyAsync(job->target, job->source, job->bytes, cudaMemcpyDeviceToHost, stream);
    }
    if (code != cudaSuccess) {
        return code;
    }
    const cuda_kept *kept = *how->kept;
    const cuda_kernel_gathering gathering = {.source = job->source,
                                             .momentum = kept->momentum,
                                             .result = kept->memory,
                                             .count = job->bytes / sizeof(float),
                                             .mu = how->config->mu,
                                             .is_nesterov = how->config->momentum == TRIB_MOMENTUM_NESTEROV,
                                             .has_feedback = has_feedback};
    cuda_kernel_work work = work_of(job, kept->encoded);
    work.source = kept->memory;
    code = take_back(job, kept, stream);
    (void)cudaGetLastError(); /* as in launch */
    code = code != cudaSuccess ? code : cuda_kernels_gather(&gathering, stream);
    code = code != cudaSuccess ? code : launch(cuda_kernels_encode, &work, stream);
    code = code != cudaSuccess || !has_feedback ? code : merge(job, kept, CUDA_KERNEL_SUBTRACT, stream);
    return code != cudaSuccess
               ? code
               : cudaMemcpyAsync(job->target, kept->encoded, how->encoded_bytes, cudaMemcpyDeviceToHost, stream);
}

cudaError_t cuda_encode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    if (job->encoding->kept != NULL) {
        return encode_kept(device, job, stream);
    }
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

void cuda_codec_forget(trib_device *device, void *kept)
{
    (void)device;
    (void)kept;
}

void cuda_codec_sweep(trib_device *device)
{
    (void)device;
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

bool cuda_decodes(const trib_codec_config *config, trib_dtype dtype)
{
    return cuda_encodes(config, dtype);
}
