/*
 * gpu_worker.c - a rank of the GPU tests: gpu_worker SCENARIO [ARGUMENT], in the environment that test_gpu.py sets
 * (TRIB_*, GPU_INDEX, GPU_LOCAL_RANK, GPU_LOCAL_SIZE, GPU_THREADS). With GPU_THREADS=n one process has n ranks, on n
 * GPUs.
 */
#include "tests/gpu/gpu_worker.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %s: ", getenv("TRIB_RANK") != NULL ? getenv("TRIB_RANK") : "-");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(1);
}

void check_cuda(cudaError_t code, const char *what)
{
    if (code != cudaSuccess) {
        fail("%s: %s", what, cudaGetErrorString(code));
    }
}

void check_status(trib_status status, const trib_error *error, const char *what)
{
    if (status != TRIB_OK) {
        fail("%s: %s: %s", what, trib_status_name(status), error->text);
    }
}

double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

trib_tensor *declare(rank *self, const char *name, trib_dtype dtype, uint64_t count, int priority)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.count = count;
    desc.priority = priority;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    check_status(trib_tensor_declare(self->engine, &desc, &tensor, &error), &error, "declare");
    return tensor;
}

trib_op *push_pull(rank *self, trib_tensor *tensor, const void *input, void *output, trib_reduce reduce)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = input;
    params.output = output;
    params.reduce = reduce;
    params.stream = self->stream;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    check_status(trib_push_pull(self->engine, &params, &op, &error), &error, "push_pull");
    return op;
}

void wait_for(trib_op *op)
{
    trib_error error = {.status = TRIB_OK};
    check_status(trib_op_wait(op, 120 * SECOND, &error), &error, "wait");
    trib_op_release(op);
}

void wait_on_stream(const rank *self, trib_op *op)
{
    trib_error error = {.status = TRIB_OK};
    check_status(trib_op_stream_wait(op, self->stream, &error), &error, "stream_wait");
    check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    trib_op_release(op);
}

static int number(const char *name, int missing)
{
    const char *text = getenv(name);
    return text == NULL ? missing : atoi(text);
}

static const struct {
    const char *name;
    void (*run)(rank *self);
} scenarios[] = {
    {"sums", scenario_sums},         {"stream", scenario_stream},       {"graph", scenario_graph},
    {"declare", scenario_declare},   {"late", scenario_late},           {"killed", scenario_killed},
    {"stopped", scenario_stopped},   {"leave", scenario_leave},         {"idle", scenario_idle},
    {"speed", scenario_speed},       {"broadcast", scenario_broadcast}, {"exit", scenario_exit},
    {"captured", scenario_captured}, {"streams", scenario_streams},     {"unchosen", scenario_unchosen},
    {"ahead", scenario_ahead},       {"exchanges", scenario_exchanges}, {"codecs", scenario_codecs},
    {"kernels", scenario_kernels},   {"bits", scenario_bits},           {"survive", scenario_survive},
};

typedef struct plan {
    const char *scenario, *argument;
    int local_rank_offset;
} plan;

/* GPU_STREAM chooses the stream: frameworks use the default stream, and a stream of cudaStreamCreate waits for that
 * one. */
static void open_stream(rank *self)
{
    const char *kind = getenv("GPU_STREAM");
    if (kind == NULL || strcmp(kind, "own") == 0) {
        check_cuda(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    } else if (strcmp(kind, "blocking") == 0) {
        check_cuda(cudaStreamCreate(&self->stream), "cudaStreamCreate");
    } else if (strcmp(kind, "default") != 0) {
        fail("GPU_STREAM=%s is none of own, blocking, default", kind);
    }
}

static void open_rank(rank *self, int offset, bool captures)
{
    trib_config config;
    trib_error error = {.status = TRIB_OK};
    trib_config_init(&config, sizeof config);
    check_status(trib_config_from_env(&config, &error), &error, "environment");
    config.rank += offset;
    config.device = "cuda";
    config.device_index = number("GPU_INDEX", 0) + offset;
    config.local_size = self->local_size = number("GPU_LOCAL_SIZE", 1);
    config.local_rank = self->local_rank = number("GPU_LOCAL_RANK", 0) + offset;
    config.join_timeout_ns = 60 * SECOND;
    config.peer_timeout_ns = 5 * SECOND;
    self->index = config.rank;
    self->count = config.worker_count;
    self->seed = (unsigned)number("GPU_SEED", 1);
    check_cuda(cudaSetDevice(config.device_index), "cudaSetDevice");
    open_stream(self);
    if (captures) {
        capture_hold(config.device_index);
    }
    check_status(trib_engine_create(&config, &self->engine, &error), &error, "create");
    check_status(trib_engine_wait_ready(self->engine, -1, &error), &error, "join");
}

static void *rank_main(void *argument)
{
    const plan *what = argument;
    rank self = {.argument = what->argument};
    open_rank(&self, what->local_rank_offset, strcmp(what->scenario, "captured") == 0);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (strcmp(scenarios[i].name, what->scenario) == 0) {
            scenarios[i].run(&self);
        }
    }
    const double began = now_s();
    trib_engine_close(self.engine, NULL, NULL);
    if (trib_engine_destroy(self.engine) != TRIB_OK || now_s() - began > 30) {
        fail("closing took %.1f s", now_s() - began);
    }
    if (self.stream != NULL) {
        check_cuda(cudaStreamDestroy(self.stream), "cudaStreamDestroy");
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fprintf(stderr, "usage: gpu_worker SCENARIO [ARGUMENT]; see tests/gpu/test_gpu.py\n");
        return 2;
    }
    if (strcmp(arguments[1], "count") == 0) {
        int devices = 0;
        cudaError_t code = cudaGetDeviceCount(&devices);
        printf("%d %s\n", code == cudaSuccess ? devices : 0, code == cudaSuccess ? "" : cudaGetErrorString(code));
        return 0;
    }
    enum { THREADS_MAX = 16 };
    const int threads = number("GPU_THREADS", 1);
    plan plans[THREADS_MAX];
    pthread_t handles[THREADS_MAX];
    for (int i = 0; i < threads && i < THREADS_MAX; i++) {
        plans[i] = (plan){arguments[1], count > 2 ? arguments[2] : "", i};
        if (pthread_create(&handles[i], NULL, rank_main, &plans[i]) != 0) {
            fail("pthread_create");
        }
    }
    for (int i = 0; i < threads && i < THREADS_MAX; i++) {
        pthread_join(handles[i], NULL);
    }
    return 0;
}
