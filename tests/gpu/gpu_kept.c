/* gpu_kept.c - sums whose buffers stay the same for some rounds: launches are kept, dropped and made anew. */
#include <stdbool.h>
#include <stdio.h>

#include "tests/gpu/gpu_worker.h"

enum { ROUNDS = 12, MOVES_ONE = 4, MOVE_ALL = 7 };

typedef struct kept_sum {
    trib_dtype dtype;
    trib_reduce reduce;
    uint64_t count;
    bool in_place, is_pooled;
    trib_tensor *tensor;
    trib_op *op;
    unsigned char *input, *output, *host;
} kept_sum;

static size_t size_of(const kept_sum *what)
{
    return what->count * trib_dtype_size(what->dtype);
}

/* With room behind for the next round, if that is to lie elsewhere. */
static unsigned char *take(const rank *self, const kept_sum *what)
{
    void *memory = NULL;
    const size_t bytes = 2 * size_of(what);
    check_cuda(what->is_pooled ? cudaMallocAsync(&memory, bytes, self->stream) : cudaMalloc(&memory, bytes),
               "cudaMalloc");
    return memory;
}

static void give(const rank *self, const kept_sum *what)
{
    check_cuda(cudaStreamSynchronize(self->stream), "synchronize");
    check_cuda(what->is_pooled ? cudaFreeAsync(what->input, self->stream) : cudaFree(what->input), "cudaFree");
    if (!what->in_place) {
        check_cuda(what->is_pooled ? cudaFreeAsync(what->output, self->stream) : cudaFree(what->output), "cudaFree");
    }
}

static void place(const rank *self, kept_sum *what)
{
    what->input = take(self, what);
    what->output = what->in_place ? what->input : take(self, what);
}

static void begin_sum(rank *self, kept_sum *what, size_t offset, unsigned seed)
{
    data_fill(what->dtype, what->host, what->count, seed, self->index);
    check_cuda(cudaMemcpyAsync(what->input + offset, what->host, size_of(what), cudaMemcpyHostToDevice, self->stream),
               "copy");
    what->op = push_pull(self, what->tensor, what->input + offset, what->output + offset, what->reduce);
}

static void end_sum(rank *self, const kept_sum *what, size_t offset, unsigned seed)
{
    wait_for(what->op);
    check_cuda(cudaMemcpy(what->host, what->output + offset, size_of(what), cudaMemcpyDeviceToHost), "copy");
    const int64_t wrong = data_check(what->dtype, what->reduce, what->host, what->count, seed, self->count,
                                     self->local_size == self->count);
    if (wrong >= 0) {
        fail("kept: %s of %llu %s, seed %u: element %lld is wrong", trib_reduce_name(what->reduce),
             (unsigned long long)what->count, trib_dtype_name(what->dtype), seed, (long long)wrong);
    }
}

static void refuse_other_buffers(rank *self, const kept_sum *what)
{
    trib_op_params params;
    trib_error error = {.status = TRIB_OK};
    trib_op_params_init(&params, sizeof params);
    params.tensor = what->tensor;
    params.input = what->input;
    params.output = what->output + size_of(what);
    params.stream = self->stream;
    if (trib_push_pull(self->engine, &params, NULL, &error) != TRIB_INVALID) {
        fail("another buffer of a fixed tensor was taken");
    }
}

/* In program order the buffers stay, as was promised. Else those of one rank move, and then those of all. */
void scenario_kept(rank *self)
{
    kept_sum sums[] = {
        {TRIB_FLOAT32, TRIB_SUM, 1 << 20, true, false, NULL, NULL, NULL, NULL, NULL},
        {TRIB_FLOAT32, TRIB_AVG, 70001, false, false, NULL, NULL, NULL, NULL, NULL},
        {TRIB_FLOAT16, TRIB_SUM, 3000017, false, false, NULL, NULL, NULL, NULL, NULL},
        {TRIB_INT32, TRIB_MAX, 1, true, false, NULL, NULL, NULL, NULL, NULL},
        {TRIB_FLOAT32, TRIB_SUM, 1000, true, true, NULL, NULL, NULL, NULL, NULL},
    };
    const int n = (int)(sizeof sums / sizeof sums[0]);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "kept %d", i);
        void *host = NULL;
        check_cuda(cudaMallocHost(&host, size_of(&sums[i])), "cudaMallocHost");
        sums[i].host = host;
        place(self, &sums[i]);
        sums[i].tensor =
            declare_with(self, name, sums[i].dtype, sums[i].count, i % 2, self->in_order ? TRIB_TENSOR_FIXED : 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        const bool moves = !self->in_order && round == MOVES_ONE && self->local_rank == self->local_size - 1;
        for (int i = 0; i < n; i++) {
            if (!self->in_order && round == MOVE_ALL) {
                give(self, &sums[i]);
                place(self, &sums[i]); /* often where they were */
            }
            begin_sum(self, &sums[i], moves ? size_of(&sums[i]) : 0, (unsigned)(round * n + i));
        }
        for (int i = 0; i < n; i++) {
            end_sum(self, &sums[i], moves ? size_of(&sums[i]) : 0, (unsigned)(round * n + i));
        }
    }
    for (int i = 0; i < n; i++) {
        if (self->in_order) {
            refuse_other_buffers(self, &sums[i]);
        }
        give(self, &sums[i]);
        check_cuda(cudaFreeHost(sums[i].host), "cudaFreeHost");
    }
}
