/* gpu_scenarios.c - what the ranks of a GPU test do. test_gpu.py says which scenarios run with how many GPUs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/gpu_worker.h"
#include "tests/support/values.h"

#define SECOND INT64_C(1000000000)

/* ---- Sums: every type, operation and odd size, in each rank's own order ---- */

#define SUMS_MAX 256

typedef struct sum {
    trib_dtype dtype;
    trib_reduce reduce;
    uint64_t count;
    bool in_place;
    unsigned char *input, *output, *host;
    trib_tensor *tensor;
    trib_op *op;
} sum;

static bool is_float(trib_dtype dtype)
{
    return dtype <= TRIB_BFLOAT16;
}

static int plan_sums(sum *sums)
{
    static const uint64_t counts[] = {0, 1, 3, 1000, 65537, 1048583, 3000017};
    int n = 0;
    for (int dtype = 0; dtype <= TRIB_INT64; dtype++) {
        for (int i = 0; i < 7; i++) {
            sums[n] = (sum){.dtype = (trib_dtype)dtype, .reduce = TRIB_SUM, .count = counts[i], .in_place = i % 2 != 0};
            n++;
        }
        for (int reduce = TRIB_AVG; reduce <= TRIB_MAX; reduce++) {
            if (reduce != TRIB_AVG || is_float((trib_dtype)dtype)) {
                sums[n] = (sum){.dtype = (trib_dtype)dtype, .reduce = (trib_reduce)reduce, .count = 70001};
                n++;
            }
        }
    }
    return n;
}

static void prepare(rank *self, sum *what, int index)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype) + 1;
    void *memory = NULL;
    check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    what->input = what->output = memory;
    if (!what->in_place) {
        check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
        what->output = memory;
    }
    check_cuda(cudaMallocHost(&memory, bytes), "cudaMallocHost");
    what->host = memory;
    char name[32];
    snprintf(name, sizeof name, "sum %d", index);
    what->tensor = declare(self, name, what->dtype, what->count, index % 5);
}

static void begin_sum(rank *self, sum *what, unsigned seed)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype);
    data_fill(what->dtype, what->host, what->count, seed, self->index);
    check_cuda(cudaMemcpyAsync(what->input, what->host, bytes, cudaMemcpyHostToDevice, self->stream), "copy");
    what->op = push_pull(self, what->tensor, what->input, what->output, what->reduce);
}

static void end_sum(rank *self, sum *what, unsigned seed, int index)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype);
    wait_for(what->op);
    check_cuda(cudaMemcpy(what->host, what->output, bytes, cudaMemcpyDeviceToHost), "copy");
    const int64_t wrong = data_check(what->dtype, what->reduce, what->host, what->count, seed, self->count,
                                     self->local_size == self->count);
    if (wrong >= 0) {
        fail("sum %d, %s of %llu %s%s: element %lld is wrong", index, trib_reduce_name(what->reduce),
             (unsigned long long)what->count, trib_dtype_name(what->dtype), what->in_place ? " in place" : "",
             (long long)wrong);
    }
}

static void free_sums(const sum *sums, int n)
{
    for (int i = 0; i < n; i++) {
        check_cuda(cudaFree(sums[i].input), "cudaFree");
        check_cuda(sums[i].in_place ? cudaSuccess : cudaFree(sums[i].output), "cudaFree");
        check_cuda(cudaFreeHost(sums[i].host), "cudaFreeHost");
    }
}

void scenario_sums(rank *self)
{
    static __thread sum sums[SUMS_MAX];
    const int n = plan_sums(sums);
    for (int i = 0; i < n; i++) {
        prepare(self, &sums[i], i);
    }
    for (unsigned round = 0; round < 3; round++) {
        unsigned order[SUMS_MAX], state = self->seed + round * 977u + (unsigned)self->index * 131u;
        for (int i = 0; i < n; i++) {
            order[i] = (unsigned)i;
        }
        for (int i = n - 1; i > 0; i--) {
            state = state * 1664525u + 1013904223u;
            const unsigned other = (state >> 8) % (unsigned)(i + 1), kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
        for (int i = 0; i < n; i++) {
            begin_sum(self, &sums[order[i]], round + order[i]);
        }
        for (int i = 0; i < n; i++) {
            end_sum(self, &sums[i], round + (unsigned)i, i);
        }
    }
    free_sums(sums, n);
    printf("rank %d: %d sums, 3 rounds\n", self->index, n);
}

/* ---- Broadcasts: from every root, whose output is its input, separate, or absent ---- */

static void begin_broadcast(rank *self, sum *what, int index, int root)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype);
    const bool is_root = self->index == root;
    data_fill(what->dtype, what->host, what->count, (unsigned)index, self->index);
    check_cuda(cudaMemcpyAsync(what->input, what->host, bytes, cudaMemcpyHostToDevice, self->stream), "copy");
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = what->tensor;
    params.root = root;
    params.stream = self->stream;
    params.input = is_root ? what->input : NULL;
    params.output = is_root && index % 3 == 0 ? NULL : what->output;
    trib_error error = {.status = TRIB_OK};
    check_status(trib_broadcast(self->engine, &params, &what->op, &error), &error, "broadcast");
    check_status(trib_op_stream_wait(what->op, self->stream, &error), &error, "stream_wait");
}

static void end_broadcast(rank *self, sum *what, int index, int root)
{
    const size_t bytes = what->count * trib_dtype_size(what->dtype);
    const void *result = self->index == root && index % 3 == 0 ? what->input : what->output;
    check_cuda(cudaMemcpyAsync(what->host, result, bytes, cudaMemcpyDeviceToHost, self->stream), "copy");
    check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    for (uint64_t i = 0; i < what->count; i++) {
        unsigned char wanted[8] = {0};
        const size_t size = trib_dtype_size(what->dtype);
        values_store(what->dtype, wanted, 0, data_value(what->dtype, i, (unsigned)index, root));
        if (memcmp(wanted, what->host + i * size, size) != 0) {
            fail("broadcast %d of %llu %s from rank %d: element %llu is wrong", index, (unsigned long long)what->count,
                 trib_dtype_name(what->dtype), root, (unsigned long long)i);
        }
    }
    wait_for(what->op);
}

void scenario_broadcast(rank *self)
{
    static __thread sum sums[SUMS_MAX];
    const int n = plan_sums(sums);
    for (int i = 0; i < n; i++) {
        prepare(self, &sums[i], i);
    }
    for (int root = 0; root < self->count; root++) {
        for (int i = 0; i < n; i++) {
            begin_broadcast(self, &sums[i], i + root, root);
        }
        for (int i = 0; i < n; i++) {
            end_broadcast(self, &sums[i], i + root, root);
        }
    }
    free_sums(sums, n);
    printf("rank %d: %d broadcasts from each rank\n", self->index, n);
}

/* ---- Streams: submitting waits for nothing, and nothing is read early ---- */

static void CUDART_CB sleep_on_stream(void *user)
{
    (void)user;
    const struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
}

enum { STREAM_COUNT = 1 << 20, STREAM_ROUNDS = 9 };

void scenario_stream(rank *self)
{
    const size_t bytes = STREAM_COUNT * sizeof(float);
    void *device = NULL, *host = NULL, *back = NULL;
    check_cuda(cudaMalloc(&device, bytes), "cudaMalloc");
    check_cuda(cudaMallocHost(&host, bytes), "cudaMallocHost");
    check_cuda(cudaMallocHost(&back, bytes), "cudaMallocHost");
    trib_tensor *tensor = declare(self, "streamed", TRIB_FLOAT32, STREAM_COUNT, 0);
    double longest = 0, all = 0;
    for (unsigned round = 0; round < STREAM_ROUNDS; round++) {
        data_fill(TRIB_FLOAT32, host, STREAM_COUNT, round, self->index);
        memset(back, 0, bytes);
        check_cuda(cudaLaunchHostFunc(self->stream, sleep_on_stream, NULL), "cudaLaunchHostFunc");
        check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, self->stream), "copy");
        const double began = now_s();
        trib_op *op = push_pull(self, tensor, device, device, TRIB_SUM);
        trib_error error = {.status = TRIB_OK};
        const double took = now_s() - began;
        if (trib_op_status(op) != TRIB_PENDING) {
            fail("complete before its input was there");
        }
        check_status(trib_op_stream_wait(op, self->stream, &error), &error, "stream_wait");
        check_cuda(cudaMemcpyAsync(back, device, bytes, cudaMemcpyDeviceToHost, self->stream), "copy");
        longest = round > 0 && took > longest ? took : longest; /* the first round places the tensor */
        all += round > 0 ? took : 0;
        check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
        const int64_t wrong = data_check(TRIB_FLOAT32, TRIB_SUM, back, STREAM_COUNT, round, self->count, false);
        if (wrong >= 0) {
            fail("round %u: what came after the wait on the stream read element %lld too early", round,
                 (long long)wrong);
        }
        wait_for(op);
    }
    printf("rank %d: push_pull took %.1f us of the caller's time, at most %.1f us\n", self->index,
           all / (STREAM_ROUNDS - 1) * 1e6, longest * 1e6);
    check_cuda(cudaFree(device), "cudaFree");
}

/* ---- Graphs: rejected, and the capture stays valid ---- */

/* Other threads work meanwhile: one rank is late, and the device's thread asks whether the others have come. */
static void capture_beside(rank *self, enum cudaStreamCaptureMode mode, trib_tensor *tensor, void *device)
{
    if (self->index == self->count - 1) {
        usleep(100000);
    }
    trib_op *before = push_pull(self, tensor, device, device, TRIB_SUM);
    cudaGraph_t graph = NULL;
    check_cuda(cudaStreamBeginCapture(self->stream, mode), "begin capture");
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = device;
    params.stream = self->stream;
    trib_error error = {.status = TRIB_OK};
    if (trib_push_pull(self->engine, &params, NULL, &error) != TRIB_UNSUPPORTED ||
        strstr(error.text, "graph") == NULL) {
        fail("push_pull during capture: %s", error.text);
    }
    if (trib_op_stream_wait(before, self->stream, &error) != TRIB_UNSUPPORTED) {
        fail("stream_wait during capture: %s", error.text);
    }
    check_cuda(cudaMemsetAsync(device, 0, 4096, self->stream), "memset");
    usleep(150000);
    check_cuda(cudaStreamEndCapture(self->stream, &graph), "end capture");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    wait_for(before);
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    printf("rank %d: %s\n", self->index, error.text);
}

void scenario_graph(rank *self)
{
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 4096), "cudaMalloc");
    trib_tensor *tensor = declare(self, "captured", TRIB_FLOAT32, 1024, 0);
    capture_beside(self, cudaStreamCaptureModeThreadLocal, tensor, device);
    capture_beside(self, cudaStreamCaptureModeGlobal, tensor, device);
}

/* ---- Tensors are declared, and memory is pinned, while an operation waits for a rank ---- */

void scenario_declare(rank *self)
{
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 64 << 20), "cudaMalloc");
    trib_tensor *first = declare(self, "first", TRIB_FLOAT32, 1 << 20, 0);
    wait_for(push_pull(self, first, device, device, TRIB_SUM));
    if (self->index == self->count - 1) {
        sleep(1);
    }
    trib_op *op = push_pull(self, first, device, device, TRIB_SUM);
    trib_error error = {.status = TRIB_OK};
    trib_op *others[8];
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "second %d", i);
        trib_tensor *second = declare(self, name, TRIB_UINT8, (uint64_t)(4 + i) << 20, 0);
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = second;
        params.input = params.output = (char *)device + (8 << 20);
        params.reduce = TRIB_MAX;
        check_status(trib_push_pull(self->engine, &params, &others[i], &error), &error, "push_pull");
        wait_for(others[i]);
    }
    wait_on_stream(self, op);
}

/* ---- Failures ---- */

/* The last rank does not come in time, and the next round works. The contributions of the others were complete, so the
 * round may get its own sum. */
void scenario_late(rank *self)
{
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 8 << 20), "cudaMalloc");
    trib_tensor *tensor = declare(self, "late", TRIB_FLOAT32, 2 << 20, 0);
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = device;
    params.stream = self->stream;
    params.timeout_ns = SECOND / 2;
    if (self->index == self->count - 1) {
        sleep(2);
    }
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    check_status(trib_push_pull(self->engine, &params, &op, &error), &error, "push_pull");
    const double began = now_s();
    trib_status status = trib_op_wait(op, 60 * SECOND, &error);
    const bool may_succeed = self->index == self->count - 1;
    if ((status == TRIB_OK && !may_succeed) || now_s() - began > 5) {
        fail("an operation whose time was over: %s after %.1f s", trib_status_name(status), now_s() - began);
    }
    trib_op_release(op);
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    printf("rank %d: %s\n", self->index, status == TRIB_OK ? "succeeded" : error.text);
}

/* One rank ends, or stops, while collectives and copies are under way. */
static void lose_one(rank *self, int number)
{
    const int victim = atoi(self->argument);
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 64 << 20), "cudaMalloc");
    trib_tensor *tensor = declare(self, "doomed", TRIB_FLOAT32, 16 << 20, 0);
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    double began = now_s();
    for (int round = 0; round < 1000000; round++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensor;
        params.input = params.output = device;
        params.stream = self->stream;
        trib_op *op = NULL;
        trib_error error = {.status = TRIB_OK};
        trib_status status = trib_push_pull(self->engine, &params, &op, &error);
        if (status == TRIB_OK) {
            if (self->index == victim && round == 3 + (int)(self->seed % 5)) {
                const struct timespec pause = {.tv_nsec = (self->seed * 977 % 40) * 100000};
                nanosleep(&pause, NULL);
                kill(getpid(), number);
            }
            const double waits = now_s();
            status = trib_op_wait(op, 60 * SECOND, &error);
            if (now_s() - waits > 20) {
                fail("learned of the death after %.1f s", now_s() - waits);
            }
            trib_op_release(op);
        }
        if (status != TRIB_OK) {
            printf("rank %d: after %.2f s: %s\n", self->index, now_s() - began, error.text);
            return;
        }
        began = now_s();
    }
}

void scenario_killed(rank *self)
{
    lose_one(self, SIGKILL);
}

void scenario_stopped(rank *self)
{
    lose_one(self, SIGSTOP);
}

/* One rank closes while the others wait for it; with the argument "stream" it closes as soon as its GPU has
 * finished. */
void scenario_leave(rank *self)
{
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 8 << 20), "cudaMalloc");
    trib_tensor *tensor = declare(self, "left", TRIB_FLOAT32, 2 << 20, 0);
    const bool leaves = self->index == self->count - 1;
    trib_op *first = push_pull(self, tensor, device, device, TRIB_SUM);
    if (leaves && strcmp(self->argument, "stream") == 0) {
        wait_on_stream(self, first);
    } else {
        wait_for(first);
    }
    if (leaves) {
        return;
    }
    trib_op *op = push_pull(self, tensor, device, device, TRIB_SUM);
    trib_error error = {.status = TRIB_OK};
    trib_status status = trib_op_wait(op, 30 * SECOND, &error);
    trib_op_release(op);
    if (status != TRIB_PEER_LEFT && status != TRIB_CANCELLED) { /* passed on by a rank that had heard of it first */
        fail("after a rank had left: %s: %s", trib_status_name(status), error.text);
    }
    printf("rank %d: %s\n", self->index, error.text);
}

/* ---- Idleness ---- */

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void scenario_idle(rank *self)
{
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 8 << 20), "cudaMalloc");
    trib_tensor *tensor = declare(self, "idle", TRIB_FLOAT32, 2 << 20, 0);
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    const double before = cpu_s();
    sleep(3);
    const double share = (cpu_s() - before) / 3;
    check_cuda(cudaLaunchHostFunc(self->stream, sleep_on_stream, NULL), "cudaLaunchHostFunc");
    const double then = cpu_s(), began = now_s();
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
    printf("rank %d: an idle engine takes %.2f %% of a core, one that waits for a stream %.1f %%\n", self->index,
           share * 100, (cpu_s() - then) / (now_s() - began) * 100);
    if (share > 0.1) {
        fail("an idle engine takes %.0f %% of a core", share * 100);
    }
    wait_for(push_pull(self, tensor, device, device, TRIB_SUM));
}
