/* gpu_exchanges.c - the scenario of tensors on GPUs that are exchanged in slices, or in a group: behind a stream that
 * fills them late, out of place and in place, and compared element by element. */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/gpu_worker.h"

enum { ROUNDS = 4, RANKS_MAX = 64, SLICE = 300007, PAIR = 70001 };

typedef trib_status (*submit_fn)(trib_engine *, const trib_op_params *, trib_op **, trib_error *);

typedef struct exchange {
    const char *name;
    submit_fn submit;
    trib_tensor *tensor;
    float *input, *output;         /* on the GPU */
    float *source, *seen, *wanted; /* on the host */
    uint64_t given, taken, offset; /* elements; offset: of the input in the output, where it is in place */
    uint64_t lengths[RANKS_MAX];   /* of slices */
    trib_op *op;
} exchange;

static float element(int rank_index, uint64_t i, unsigned round)
{
    return (float)((i * 7 + round) % 1000) + (float)(rank_index * 1000);
}

static float sum_of(int ranks, uint64_t i, unsigned round)
{
    return element(0, i, round) * (float)ranks + 500.0F * (float)(ranks * (ranks - 1));
}

static void *gpu_memory(uint64_t count)
{
    void *memory = NULL;
    check_cuda(cudaMalloc(&memory, (count + 1) * sizeof(float)), "cudaMalloc");
    return memory;
}

static void *host_memory(uint64_t count)
{
    void *memory = NULL;
    check_cuda(cudaMallocHost(&memory, (count + 1) * sizeof(float)), "cudaMallocHost");
    return memory;
}

static void open_exchange(rank *self, exchange *what, trib_layout layout, trib_group *group, bool in_place)
{
    trib_tensor_desc desc;
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = what->name;
    desc.dtype = TRIB_FLOAT32;
    desc.layout = layout;
    desc.group = group;
    desc.flags = TRIB_TENSOR_DEVICE;
    desc.count = layout == TRIB_SLICES ? what->lengths[self->index] : layout == TRIB_WHOLE ? what->given : 0;
    desc.splits = layout == TRIB_PAIRS ? what->lengths : NULL;
    desc.split_count = layout == TRIB_PAIRS ? (uint32_t)self->count : 0;
    check_status(trib_tensor_declare(self->engine, &desc, &what->tensor, &error), &error, "declare");
    what->output = gpu_memory(what->taken);
    what->input = in_place ? what->output + what->offset : gpu_memory(what->given);
    what->source = host_memory(what->given);
    what->seen = host_memory(what->taken);
    what->wanted = host_memory(what->taken);
}

static void open_gather(rank *self, exchange *what, bool in_place)
{
    *what = (exchange){.name = in_place ? "gathered in place" : "gathered", .submit = trib_all_gather};
    for (int i = 0; i < self->count; i++) {
        what->lengths[i] = (uint64_t)SLICE * (unsigned)i + 5; /* the first one is short */
        what->offset += i < self->index ? what->lengths[i] : 0;
        what->taken += what->lengths[i];
    }
    what->given = what->lengths[self->index];
    open_exchange(self, what, TRIB_SLICES, NULL, in_place);
}

static void open_scatter(rank *self, exchange *what)
{
    *what = (exchange){.name = "scattered", .submit = trib_reduce_scatter, .taken = SLICE};
    for (int i = 0; i < self->count; i++) {
        what->lengths[i] = SLICE;
    }
    what->given = (uint64_t)SLICE * (unsigned)self->count;
    open_exchange(self, what, TRIB_SLICES, NULL, false);
}

static uint64_t pair_of(int from, int to)
{
    return (uint64_t)PAIR * (unsigned)((from + 2 * to) % 3);
}

static void open_pairs(rank *self, exchange *what)
{
    *what = (exchange){.name = "pairs", .submit = trib_all_to_all};
    for (int i = 0; i < self->count; i++) {
        what->lengths[i] = pair_of(self->index, i);
        what->given += what->lengths[i];
        what->taken += pair_of(i, self->index);
    }
    open_exchange(self, what, TRIB_PAIRS, NULL, false);
}

/* A group of all ranks sums on hosts, where tensors of all workers would be summed by NCCL first. */
static void open_group_sum(rank *self, exchange *what)
{
    int32_t ranks[RANKS_MAX];
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
    *what = (exchange){.name = "sum in a group", .submit = trib_all_reduce, .given = SLICE, .taken = SLICE};
    open_exchange(self, what, TRIB_WHOLE, group, true);
}

static void expect(const rank *self, exchange *what, unsigned round)
{
    uint64_t n = 0;
    for (int from = 0; from < self->count; from++) {
        uint64_t first = 0;
        for (int to = 0; what->submit == trib_all_to_all && to < self->index; to++) {
            first += pair_of(from, to);
        }
        const uint64_t count = what->submit == trib_all_to_all ? pair_of(from, self->index) : what->lengths[from];
        for (uint64_t i = 0; (what->submit == trib_all_to_all || what->submit == trib_all_gather) && i < count; i++) {
            what->wanted[n++] = element(from, first + i, round);
        }
    }
    const uint64_t before = what->submit == trib_reduce_scatter ? (uint64_t)SLICE * (unsigned)self->index : 0;
    while (n < what->taken) {
        what->wanted[n] = sum_of(self->count, before + n, round);
        n++;
    }
}

static void begin(rank *self, exchange *what, unsigned round)
{
    trib_op_params params;
    trib_error error = {.status = TRIB_OK};
    for (uint64_t i = 0; i < what->given; i++) {
        what->source[i] = element(self->index, i, round);
    }
    check_cuda(
        cudaMemcpyAsync(what->input, what->source, what->given * sizeof(float), cudaMemcpyHostToDevice, self->stream),
        "copy");
    trib_op_params_init(&params, sizeof params);
    params.tensor = what->tensor;
    params.input = what->input;
    params.output = what->output;
    params.output_bytes = what->taken * sizeof(float);
    params.stream = self->stream;
    check_status(what->submit(self->engine, &params, &what->op, &error), &error, what->name);
}

/* A stream that waits for the operation copies its result. */
static void end(rank *self, exchange *what, unsigned round)
{
    trib_error error = {.status = TRIB_OK};
    expect(self, what, round);
    check_status(trib_op_stream_wait(what->op, self->stream, &error), &error, "stream_wait");
    check_cuda(
        cudaMemcpyAsync(what->seen, what->output, what->taken * sizeof(float), cudaMemcpyDeviceToHost, self->stream),
        "copy");
    check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    wait_for(what->op);
    for (uint64_t i = 0; i < what->taken; i++) {
        if (what->seen[i] != what->wanted[i]) {
            fail("%s, round %u: element %llu of %llu is %g, not %g", what->name, round, (unsigned long long)i,
                 (unsigned long long)what->taken, what->seen[i], what->wanted[i]);
        }
    }
}

void scenario_exchanges(rank *self)
{
    enum { KINDS = 5 };
    static __thread exchange all[KINDS];
    open_gather(self, &all[0], false);
    open_gather(self, &all[1], true);
    open_scatter(self, &all[2]);
    open_pairs(self, &all[3]);
    open_group_sum(self, &all[4]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KINDS; i++) {
            begin(self, &all[(i + self->index) % KINDS], round);
        }
        for (int i = 0; i < KINDS; i++) {
            end(self, &all[i], round);
        }
    }
    printf("rank %d: %d exchanges of %d kinds\n", self->index, ROUNDS * KINDS, KINDS);
}
