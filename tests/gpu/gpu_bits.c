/* gpu_bits.c - the kernels of codecs, with momentum and feedback, beside the processors' codecs: the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_worker.h"

#ifdef TRIB_CUDA_KERNELS
#include "engine/codec/codec.h"
#include "engine/codec/codec_share.h"
#include "stages/cuda/cuda_kernels.h"

enum { MOST = 3 * 65536 + 777, ROUNDS = 3, AT = 16 };

typedef struct subject {
    const char *text;
    cuda_kernel_codec kernel;
} subject;

static const subject subjects[] = {
    {"fp16", CUDA_KERNEL_FP16},
    {"bf16", CUDA_KERNEL_BF16},
    {"fp8_e4m3", CUDA_KERNEL_E4M3},
    {"fp8_e5m2", CUDA_KERNEL_E5M2},
    {"int8,seed=5", CUDA_KERNEL_INT8},
    {"onebit", CUDA_KERNEL_ONEBIT},
    {"onebit,scaling=false", CUDA_KERNEL_ONEBIT},
    {"topk,ratio=0.01", CUDA_KERNEL_TOPK},
    {"topk,ratio=0.3", CUDA_KERNEL_TOPK},
    {"topk,k=1000", CUDA_KERNEL_TOPK},
    {"randomk,ratio=0.01", CUDA_KERNEL_RANDOMK},
    {"randomk,k=1000", CUDA_KERNEL_RANDOMK},
};

/* Arrays of the host, and of the device. */
typedef struct bed {
    cudaStream_t stream;
    float *source, *residual, *momentum, *scratch, *seen;
    unsigned char *encoded, *read;
    float *d_source, *d_residual, *d_momentum, *d_target;
    unsigned char *d_encoded;
    size_t room_bytes;
} bed;

typedef struct trial {
    const subject *what;
    trib_codec_config config;
    const char *data;
    uint64_t count, room;
    uint32_t chunk, shift, round; /* the arrays on the device begin `shift` elements later */
} trial;

static void differ(const trial *self, const char *what, uint64_t at)
{
    fail("%s of %s numbers, %llu in chunks of %u, round %u: %s differs at %llu", self->what->text, self->data,
         (unsigned long long)self->count, self->chunk, self->round, what, (unsigned long long)at);
}

static float number(const char *data, uint64_t i)
{
    static const float special[] = {0.0F, -0.0F, 1e-40F, -1e-42F, 3e38F, __builtin_inff(), __builtin_nanf(""), -1e-30F};
    const uint64_t drawn = codec_mix(7, i);
    const float sign = (drawn & 1) != 0 ? -1.0F : 1.0F, even = (float)(drawn >> 40) * 0x1p-24F;
    switch (*data) {
    case 'o': /* ordinary */
        return sign * even * even * 3;
    case 'w': /* wide */
        return sign * even * __builtin_ldexpf(1, (int)(drawn >> 8 & 63) - 40);
    case 'e': /* equal */
        return (drawn >> 8 & 15) != 0 ? sign * 0.0F : sign * (float)(drawn >> 16 & 3);
    case 's': /* special */
        return drawn >> 8 & 1023 ? sign * even : special[drawn >> 20 & 7];
    default:
        return 0;
    }
}

static uint32_t chunk_count(const trial *self, uint64_t first)
{
    return self->count - first < self->chunk ? (uint32_t)(self->count - first) : self->chunk;
}

static trib_codec_place place_of(const trial *self, uint64_t first)
{
    return (trib_codec_place){.tensor_key = 11,
                              .round = self->round,
                              .first_element = 4096 + first,
                              .partition_first = 4096,
                              .partition_count = self->count,
                              .rank = 3};
}

static cuda_kernel_work work_of(const trial *self, const bed *on)
{
    const trib_codec_params *params = &self->config.params;
    const bool is_random = self->what->kernel == CUDA_KERNEL_RANDOMK;
    const uint64_t of_rank = codec_mix(codec_mix(codec_mix(params->seed, 11), 3), self->round);
    return (cuda_kernel_work){.codec = self->what->kernel,
                              .encoded = on->d_encoded,
                              .count = self->count,
                              .chunk_elements = self->chunk,
                              .room = (uint32_t)self->room,
                              .first_element = 4096,
                              .key = is_random ? codec_mix(codec_mix(TRIB_CODEC_RANDOMK, 11), self->round) : of_rank,
                              .ratio = params->ratio,
                              .k = params->k,
                              .scaling = params->scaling};
}

static void copy(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream), "a kernel");
}

static void compare(const trial *self, const bed *on, const char *what, const float *wanted, const float *on_device)
{
    copy(on->seen, on_device, self->count * sizeof(float), on->stream);
    for (uint64_t i = 0; i < self->count; i++) {
        if (memcmp(&wanted[i], &on->seen[i], sizeof(float)) != 0) {
            uint32_t bits[2];
            memcpy(&bits[0], &wanted[i], 4);
            memcpy(&bits[1], &on->seen[i], 4);
            printf("bits: wanted %08x, seen %08x\n", bits[0], bits[1]);
            differ(self, what, i);
        }
    }
}

static int by_index(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

/* topk's pairs may come in another order. */
static void compare_encoded(const trial *self, const bed *on)
{
    const uint64_t chunks = (self->count + self->chunk - 1) / self->chunk;
    copy(on->read, on->d_encoded, chunks * self->room, on->stream);
    for (uint64_t i = 0; i < chunks; i++) {
        unsigned char *wanted = on->encoded + i * self->room, *seen = on->read + i * self->room;
        uint32_t bytes, size;
        memcpy(&bytes, wanted, sizeof bytes);
        memcpy(&size, seen, sizeof size);
        if (bytes != size) {
            fail("%s: chunk %llu has %u bytes, not %u", self->what->text, (unsigned long long)i, size, bytes);
        }
        if (self->what->kernel == CUDA_KERNEL_TOPK) {
            qsort(wanted + AT, bytes / 8, 8, by_index);
            qsort(seen + AT, bytes / 8, 8, by_index);
        }
        for (uint32_t j = 0; j < bytes; j++) {
            if (wanted[AT + j] != seen[AT + j]) {
                differ(self, "an encoded chunk", i * self->chunk + j);
            }
        }
    }
}

static trib_codec_memory memory_at(const bed *on, uint64_t first)
{
    return (trib_codec_memory){
        .residual = on->residual + first, .momentum = on->momentum + first, .scratch = on->scratch + first};
}

static void encode_here(const trial *self, const bed *on)
{
    unsigned char *at = on->encoded;
    for (uint64_t first = 0; first < self->count; first += self->chunk, at += self->room) {
        const trib_codec_memory memory = memory_at(on, first);
        const trib_codec_place place = place_of(self, first);
        const uint32_t bytes = trib_codec_encode(&self->config, &memory, &place, TRIB_FLOAT32, on->source + first,
                                                 chunk_count(self, first), at + AT);
        memcpy(at, &bytes, sizeof bytes);
    }
}

static void encode_there(const trial *self, const bed *on)
{
    cuda_kernel_work work = work_of(self, on);
    const cuda_kernel_gathering gathering = {.source = on->d_source + self->shift,
                                             .momentum = on->d_momentum + self->shift,
                                             .result = on->d_residual + self->shift,
                                             .count = self->count,
                                             .mu = self->config.mu,
                                             .is_nesterov = self->config.momentum == TRIB_MOMENTUM_NESTEROV,
                                             .has_feedback = true};
    check_cuda(cuda_kernels_gather(&gathering, on->stream), "gather");
    work.source = on->d_residual + self->shift;
    check_cuda(cuda_kernels_encode(&work, on->stream), "encode");
}

static void decode_both(const trial *self, const bed *on)
{
    cuda_kernel_work work = work_of(self, on);
    const unsigned char *at = on->encoded;
    for (uint64_t first = 0; first < self->count; first += self->chunk, at += self->room) {
        uint32_t bytes;
        memcpy(&bytes, at, sizeof bytes);
        if (self->config.codec->decode(&self->config.params, TRIB_FLOAT32, at + AT, bytes, on->scratch + first,
                                       chunk_count(self, first), NULL) != TRIB_OK) {
            differ(self, "what is to be decoded", first);
        }
    }
    work.target = on->d_target + self->shift;
    check_cuda(cuda_kernels_decode(&work, on->stream), "decode");
    compare(self, on, "what is decoded", on->scratch, work.target);
    work.target = on->d_residual + self->shift;
    work.merge = CUDA_KERNEL_SUBTRACT;
    check_cuda(cuda_kernels_decode(&work, on->stream), "subtract");
}

/* Each second chunk did not count. */
static void give_back_both(const trial *self, const bed *on)
{
    cuda_kernel_work work = work_of(self, on);
    unsigned char *at = on->encoded;
    for (uint64_t first = 0; first < self->count; first += self->chunk, at += self->room) {
        const trib_codec_memory memory = memory_at(on, first);
        uint32_t bytes = 0;
        if (first / self->chunk % 2 == 0) {
            memcpy(&bytes, at, sizeof bytes);
            trib_codec_take_back(&self->config, &memory, TRIB_FLOAT32, at + AT, bytes, chunk_count(self, first));
        }
        memcpy(at, &bytes, sizeof bytes);
    }
    copy(on->d_encoded, on->encoded, (size_t)(at - on->encoded), on->stream);
    work.target = on->d_residual + self->shift;
    work.merge = CUDA_KERNEL_GIVE_BACK;
    check_cuda(cuda_kernels_decode(&work, on->stream), "give back");
    compare(self, on, "the residual with what is given back", on->residual, on->d_residual + self->shift);
}

static void try(const bed *on, trial *self)
{
    const size_t bytes = (self->count + self->shift) * sizeof(float);
    memset(on->residual, 0, bytes);
    memset(on->momentum, 0, bytes);
    check_cuda(cudaMemsetAsync(on->d_residual, 0, bytes, on->stream), "cudaMemsetAsync");
    check_cuda(cudaMemsetAsync(on->d_momentum, 0, bytes, on->stream), "cudaMemsetAsync");
    for (self->round = 1; self->round <= ROUNDS; self->round++) {
        for (uint64_t i = 0; i < self->count; i++) {
            on->source[i] = number(self->data, i * self->round);
        }
        copy(on->d_source + self->shift, on->source, self->count * sizeof(float), on->stream);
        encode_here(self, on);
        encode_there(self, on);
        compare_encoded(self, on);
        compare(self, on, "the momentum", on->momentum, on->d_momentum + self->shift);
        decode_both(self, on);
        compare(self, on, "the residual", on->residual, on->d_residual + self->shift);
    }
    give_back_both(self, on);
}

static void try_codec(const bed *on, const subject *what)
{
    static const char *const data[] = {"ordinary", "wide", "equal", "special", "no"};
    static const uint32_t layouts[][3] = {{MOST, 65536, 0}, {40001, 1000, 1}, {65536 + 1, 65536, 0}, {1, 4, 0}};
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++) {
        for (size_t j = 0; j < sizeof layouts / sizeof layouts[0]; j++) {
            trial self = {
                .what = what, .data = data[i], .count = layouts[j][0], .chunk = layouts[j][1], .shift = layouts[j][2]};
            char text[TRIB_CODEC_TEXT_SIZE];
            trib_error error = {.status = TRIB_OK};
            snprintf(text, sizeof text, "%s,ef=vanilla,momentum=%s,mu=0.9", what->text,
                     j % 2 == 0 ? "nesterov" : "heavy_ball");
            check_status(trib_codec_parse(text, &self.config, &error), &error, text);
            const trib_codec *codec = self.config.codec;
            self.room = (AT + codec->bound(&self.config.params, TRIB_FLOAT32, self.chunk) + 15) / 16 * 16;
            if ((self.count + self.chunk - 1) / self.chunk * self.room > on->room_bytes) {
                fail("%s: the test has too little memory", text);
            }
            try(on, &self);
        }
    }
    printf("bits: %s\n", what->text);
}

void scenario_bits(rank *self)
{
    const size_t bytes = (MOST + 1) * sizeof(float), room = 4 * bytes;
    bed on = {.stream = self->stream, .room_bytes = room};
    float **const of_host[] = {&on.source, &on.residual, &on.momentum, &on.scratch, &on.seen};
    float **const of_device[] = {&on.d_source, &on.d_residual, &on.d_momentum, &on.d_target};
    for (size_t i = 0; i < sizeof of_host / sizeof of_host[0]; i++) {
        check_cuda(cudaMallocHost((void **)of_host[i], bytes), "cudaMallocHost");
    }
    for (size_t i = 0; i < sizeof of_device / sizeof of_device[0]; i++) {
        check_cuda(cudaMalloc((void **)of_device[i], bytes), "cudaMalloc");
    }
    check_cuda(cudaMallocHost((void **)&on.encoded, room), "cudaMallocHost");
    check_cuda(cudaMallocHost((void **)&on.read, room), "cudaMallocHost");
    check_cuda(cudaMalloc((void **)&on.d_encoded, room), "cudaMalloc");
    check_cuda(cuda_kernels_load(), "cuda_kernels_load");
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        try_codec(&on, &subjects[i]);
    }
}
#else
void scenario_bits(rank *self)
{
    (void)self;
    printf("bits: this build has no kernels\n");
}
#endif
