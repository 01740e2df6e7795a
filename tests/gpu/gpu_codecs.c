/* gpu_codecs.c - the scenario of tensors on GPUs whose sums travel encoded: numbers that codecs keep exactly, and any
 * numbers beside a tensor in host memory with the same codec, which gives the same bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_worker.h"

enum { COUNT = 3000017, ROUNDS = 3 };

typedef struct encoded {
    const char *codec;
    bool is_exact; /* it keeps numbers that all have one magnitude, and their sums */
    /* Its bits depend on the partition. Without servers a tensor of a group has others. */
    bool draws_by_partition;
} encoded;

static const encoded codecs[] = {
    {"fp16", true, false}, /* the GPU encodes, and decodes what is two_way */
    {"fp16,two_way", true, false},
    {"bf16,two_way", true, false},
    {"int8,seed=5", false, false},
    {"int8,seed=5,two_way", false, true},
    {"int8,ef=vanilla,two_way", false, true},
    {"fp8_e4m3,two_way", true, false},
    {"fp8_e5m2,two_way", true, false},
    {"fp8_e4m3,ef=vanilla,two_way", true, false},
    {"onebit,ef=vanilla,two_way", true, false},
    {"onebit,ef=vanilla,momentum=nesterov,mu=0.9", false, false},
    {"onebit,two_way", true, false},
    {"topk,ratio=0.01,ef=vanilla,two_way", false, false},
    {"topk,k=5000,ef=vanilla,momentum=heavy_ball,mu=0.9", false, true}, /* k is shared by a partition's chunks */
    {"topk,ratio=0.01,select=sampled,ef=vanilla", false, false}, /* processors encode this, and the next but one */
    {"randomk,ratio=0.01,ef=vanilla", false, false},
    {"randomk,ratio=0.01,seed=3,ef=vanilla", false, true}, /* a state for each partition */
};

static float sign_of(uint64_t i)
{
    return (i * 2654435761u >> 9 & 1) != 0 ? 1.0F : -1.0F;
}

static float rough(int rank_index, unsigned round, uint64_t i)
{
    static const float special[] = {0.0F,  -0.0F,           1e-40F,     -1e-42F, 65520.0F,
                                    3e38F, (float)INFINITY, (float)NAN, 6e-8F,   1e-30F};
    const uint32_t mixed = (uint32_t)(i * 2654435761u) ^ (uint32_t)rank_index * 40503u ^ round * 9176u;
    if (round == ROUNDS - 1 && i % 4099 == 0) {
        return special[mixed % (sizeof special / sizeof special[0])];
    }
    return (float)((int)(mixed >> 7 & 0xfff) - 2048) / 1000.0F;
}

static trib_tensor *declare_as(rank *self, trib_group *group, const encoded *what, bool is_exact, uint32_t flags)
{
    char name[256];
    trib_tensor_desc desc;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc_init(&desc, sizeof desc);
    /* Numbers that a codec draws depend on the name, and on the round: so no tensor is released. The one in host memory
     * has a group of its own. */
    snprintf(name, sizeof name, "%s%s", what->codec, is_exact ? ", exact" : "");
    desc.name = name;
    desc.group = group;
    desc.dtype = TRIB_FLOAT32;
    desc.count = COUNT;
    desc.codec = what->codec;
    desc.flags = flags;
    check_status(trib_tensor_declare(self->engine, &desc, &tensor, &error), &error, "declare");
    return tensor;
}

static float *host_memory(void)
{
    void *memory = NULL;
    check_cuda(cudaMallocHost(&memory, COUNT * sizeof(float)), "cudaMallocHost");
    return memory;
}

/* Sums `input` on the GPU, and brings the sum to `output`. */
static void sum_on_gpu(rank *self, trib_tensor *tensor, const float *input, float *device, float *output)
{
    const size_t bytes = COUNT * sizeof(float);
    check_cuda(cudaMemcpyAsync(device, input, bytes, cudaMemcpyHostToDevice, self->stream), "cudaMemcpyAsync");
    trib_op *op = push_pull(self, tensor, device, device, TRIB_SUM);
    wait_on_stream(self, op);
    check_cuda(cudaMemcpy(output, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

static void sum_on_host(rank *self, trib_tensor *tensor, const float *input, float *output)
{
    trib_op_params params;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = input;
    params.output = output;
    check_status(trib_push_pull(self->engine, &params, &op, &error), &error, "push_pull");
    wait_for(op);
}

static void compare(const encoded *what, const char *with, unsigned round, const float *seen, const float *wanted)
{
    for (uint64_t i = 0; i < COUNT; i++) {
        if (memcmp(&seen[i], &wanted[i], sizeof seen[i]) != 0) {
            fail("%s beside %s, round %u: element %llu is %.9g, not %.9g", what->codec, with, round,
                 (unsigned long long)i, (double)seen[i], (double)wanted[i]);
        }
    }
}

static void sum_exactly(rank *self, const encoded *what, float *device, float *const host[3])
{
    trib_tensor *tensor = declare_as(self, NULL, what, true, TRIB_TENSOR_DEVICE);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            host[0][i] = sign_of(i + round);
            host[2][i] = host[0][i] * (float)self->count;
        }
        sum_on_gpu(self, tensor, host[0], device, host[1]);
        compare(what, "exact sums", round, host[1], host[2]);
    }
}

static void sum_as_on_host(rank *self, trib_group *group, const encoded *what, float *device, float *const host[3])
{
    trib_tensor *tensor = declare_as(self, NULL, what, false, TRIB_TENSOR_DEVICE);
    trib_tensor *beside = declare_as(self, group, what, false, 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            host[0][i] = rough(self->index, round, i);
        }
        sum_on_gpu(self, tensor, host[0], device, host[1]);
        sum_on_host(self, beside, host[0], host[2]);
        compare(what, "a tensor in host memory", round, host[1], host[2]);
    }
}

static trib_group *everybody(rank *self)
{
    int32_t ranks[64];
    trib_group *group = NULL;
    trib_group_desc desc;
    trib_error error = {.status = TRIB_OK};
    trib_group_desc_init(&desc, sizeof desc);
    for (int i = 0; i < self->count; i++) {
        ranks[i] = i;
    }
    desc.name = "everybody";
    desc.ranks = ranks;
    desc.rank_count = (uint32_t)self->count;
    check_status(trib_group_create(self->engine, &desc, &group, &error), &error, "group");
    return group;
}

/* Takes the GPU's memory, so that none is left for encoded bytes. The process's end gives it back. */
static void fill_gpu(void)
{
    void *memory = NULL;
    for (size_t bytes = (size_t)1 << 30; bytes >= 4096; bytes /= 2) {
        while (cudaMalloc(&memory, bytes) == cudaSuccess) {}
        (void)cudaGetLastError();
    }
}

/* On one machine alone NCCL sums, without a codec. Where GPUs sum first the host's tensor would be encoded before. */
void scenario_codecs(rank *self)
{
    float *const host[3] = {host_memory(), host_memory(), host_memory()};
    trib_group *group = everybody(self);
    void *device = NULL;
    check_cuda(cudaMalloc(&device, COUNT * sizeof(float)), "cudaMalloc");
    if (strcmp(self->argument, "full") == 0) {
        fill_gpu();
    }
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (codecs[i].is_exact) {
            sum_exactly(self, &codecs[i], device, host);
        }
        const char *servers = getenv("TRIB_SERVERS");
        const bool has_servers = servers != NULL && atoi(servers) > 0;
        if (self->local_size == 1 && self->count > 1 && (has_servers || !codecs[i].draws_by_partition)) {
            sum_as_on_host(self, group, &codecs[i], device, host);
        }
    }
    trib_stats stats = {.struct_size = sizeof stats};
    trib_error error = {.status = TRIB_OK};
    check_status(trib_engine_get_stats(self->engine, &stats), &error, "get_stats");
    const uint64_t all = (uint64_t)COUNT * sizeof(float) / (uint64_t)self->local_size * ROUNDS;
    printf("pushed %llu bytes; one tensor as it is would push %llu in all rounds\n",
           (unsigned long long)stats.bytes_pushed, (unsigned long long)all);
    check_cuda(cudaFree(device), "cudaFree");
    for (int i = 0; i < 3; i++) {
        check_cuda(cudaFreeHost(host[i]), "cudaFreeHost");
    }
}
