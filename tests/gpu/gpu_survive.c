/* gpu_survive.c - the scenario of a job with TRIB_SURVIVE=workers that loses members while sums of tensors on GPUs are
 * under way. The ranks that are left repeat the sums that nobody has. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/gpu_worker.h"

#define SECOND INT64_C(1000000000)

enum { ROUNDS = 12, FIRST_LOSS = 4, SECOND_LOSS = 8, SUMS = 5 };

typedef struct sum {
    const char *name, *codec;
    trib_dtype dtype;
    uint64_t count;
    bool in_place;
    unsigned char *input, *output, *host;
    trib_tensor *tensor;
    trib_op *op;
    bool is_done;
} sum;

static const sum plans[SUMS] = {
    {.name = "in place", .dtype = TRIB_FLOAT32, .count = 3000017, .in_place = true},
    {.name = "apart", .dtype = TRIB_BFLOAT16, .count = 1048583},
    {.name = "small", .dtype = TRIB_INT64, .count = 1001, .in_place = true},
    {.name = "encoded", .codec = "fp16,two_way", .dtype = TRIB_FLOAT32, .count = 700001, .in_place = true},
    {.name = "encoded apart", .codec = "fp8_e4m3,ef=vanilla", .dtype = TRIB_FLOAT32, .count = 70001},
};

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

static void prepare(rank *self, sum *what, bool has_servers)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype);
    void *host = NULL;
    check_cuda(cudaMallocHost(&host, bytes), "cudaMallocHost");
    what->host = host;
    what->input = device_memory(bytes);
    what->output = what->in_place ? what->input : device_memory(bytes);
    trib_tensor_desc desc;
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = what->name;
    desc.codec = has_servers ? NULL : what->codec; /* servers of their own keep no encoded sums */
    desc.dtype = what->dtype;
    desc.count = what->count;
    desc.flags = TRIB_TENSOR_DEVICE;
    check_status(trib_tensor_declare(self->engine, &desc, &what->tensor, &error), &error, "declare");
}

static void release(sum *what)
{
    check_cuda(cudaFree(what->input), "cudaFree");
    check_cuda(what->in_place ? cudaSuccess : cudaFree(what->output), "cudaFree");
    check_cuda(cudaFreeHost(what->host), "cudaFreeHost");
}

static void begin(rank *self, sum *what, unsigned seed)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    data_fill(what->dtype, what->host, what->count, seed, self->index);
    check_cuda(cudaMemcpyAsync(what->input, what->host, what->count * trib_dtype_size(what->dtype),
                               cudaMemcpyHostToDevice, self->stream),
               "copy");
    trib_op_params_init(&params, sizeof params);
    params.tensor = what->tensor;
    params.input = what->input;
    params.output = what->output;
    params.stream = self->stream;
    const trib_status status = trib_push_pull(self->engine, &params, &what->op, &error);
    if (status != TRIB_OK && status != TRIB_EPOCH_CHANGED) {
        fail("%s: %s: %s", what->name, trib_status_name(status), error.text);
    }
}

/* The sum is right, or the membership has changed and nobody has it. */
static void end(const rank *self, sum *what, unsigned seed)
{
    trib_error error = {.status = TRIB_OK};
    if (what->op == NULL) {
        return;
    }
    const trib_status status = trib_op_wait(what->op, 60 * SECOND, &error);
    trib_op_release(what->op);
    what->op = NULL;
    if (status == TRIB_OK) {
        const size_t bytes = what->count * trib_dtype_size(what->dtype);
        check_cuda(cudaMemcpy(what->host, what->output, bytes, cudaMemcpyDeviceToHost), "copy");
        const int64_t wrong = data_check(what->dtype, TRIB_SUM, what->host, what->count, seed, self->count, false);
        if (wrong >= 0) {
            fail("%s, with %d ranks: element %lld is wrong", what->name, self->count, (long long)wrong);
        }
        what->is_done = true;
    } else if (status != TRIB_EPOCH_CHANGED) {
        fail("%s: %s: %s", what->name, trib_status_name(status), error.text);
    }
}

static void advance(rank *self)
{
    trib_membership now = {.struct_size = sizeof now};
    trib_error error = {.status = TRIB_OK};
    trib_status status = TRIB_EPOCH_CHANGED;
    while (status == TRIB_EPOCH_CHANGED) {
        check_status(trib_membership_advance(self->engine, NULL, NULL, &error), &error, "advance");
        status = trib_membership_wait(self->engine, 60 * SECOND, &now, &error);
    }
    check_status(status, &error, "membership");
    printf("rank %d is rank %d of %d now: %s\n", self->index, now.rank, now.worker_count, now.text);
    self->index = now.rank;
    self->count = now.worker_count;
}

/* In the middle of a round the last rank ends, and later rank 0, which coordinates; or rank 0 ends the server. */
static void lose_one(const rank *self, unsigned round, int first_count)
{
    const struct timespec pause = {.tv_nsec = (self->seed * 977 % 40) * 100000};
    const bool loses_server = strcmp(self->argument, "server") == 0;
    pid_t lost = 0;
    if (round == FIRST_LOSS && loses_server) {
        lost = self->index == 0 ? (pid_t)atoi(getenv("GPU_SERVER")) : 0;
    } else if (round == FIRST_LOSS && self->count == first_count) {
        lost = self->index == self->count - 1 ? getpid() : 0;
    } else if (round == SECOND_LOSS && !loses_server && self->count == first_count - 1 && self->count > 2) {
        lost = self->index == 0 ? getpid() : 0;
    }
    if (lost > 0) {
        nanosleep(&pause, NULL);
        kill(lost, SIGKILL);
    }
}

static void sum_in_all(rank *self, sum *sums, unsigned round, int first_count)
{
    int done = 0;
    for (int i = 0; i < SUMS; i++) {
        sums[i].is_done = false;
    }
    while (done < SUMS) {
        for (int i = 0; i < SUMS; i++) {
            if (!sums[i].is_done) {
                begin(self, &sums[i], round * SUMS + (unsigned)i);
            }
        }
        lose_one(self, round, first_count);
        done = 0;
        for (int i = 0; i < SUMS; i++) {
            end(self, &sums[i], round * SUMS + (unsigned)i);
            done += sums[i].is_done;
        }
        if (done < SUMS) {
            advance(self);
        }
    }
}

void scenario_survive(rank *self)
{
    const int first_count = self->count;
    trib_membership now = {.struct_size = sizeof now};
    sum sums[SUMS];
    trib_error error = {.status = TRIB_OK};
    check_status(trib_membership_get(self->engine, &now), &error, "membership");
    memcpy(sums, plans, sizeof sums);
    for (int i = 0; i < SUMS; i++) {
        prepare(self, &sums[i], now.server_count > 0);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        sum_in_all(self, sums, round, first_count);
    }
    for (int i = 0; i < SUMS; i++) {
        release(&sums[i]);
    }
    const int lost = strcmp(self->argument, "server") == 0 ? 0 : first_count > 3 ? 2 : 1;
    if (self->count != first_count - lost) {
        fail("%d ranks are left of %d, not %d", self->count, first_count, first_count - lost);
    }
}
