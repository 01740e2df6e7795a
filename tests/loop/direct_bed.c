/* direct_bed.c - see direct_bed.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/loop/direct_bed.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PORT_FIRST 12500

/* ---- The device ---- */

static trib_device_ops counting;
static trib_host_world *world;
static struct {
    pthread_mutex_t mutex;
    trib_device *device; /* the device whose jobs are held */
    trib_device_job *held, *last;
    trib_device_kind hold; /* kind of the next job to hold; KIND_COUNT: none */
    uint32_t jobs[TRIB_DEVICE_KIND_COUNT];
    bool has_descriptors;
} watched = {.mutex = PTHREAD_MUTEX_INITIALIZER, .hold = TRIB_DEVICE_KIND_COUNT};

static void counted_submit(trib_device *device, trib_device_job *given)
{
    pthread_mutex_lock(&watched.mutex);
    watched.jobs[given->kind]++;
    const bool first = given->kind == watched.hold && watched.held == NULL;
    const bool held = first || (watched.held != NULL && watched.device == device);
    if (held) {
        watched.device = device;
        given->slot = device;
        given->next = NULL;
        *(first ? &watched.held : &watched.last->next) = given;
        watched.last = given;
    }
    pthread_mutex_unlock(&watched.mutex);
    if (!held) {
        trib_device_host_ops.submit(device, given);
    }
}

void direct_let_go(void)
{
    pthread_mutex_lock(&watched.mutex);
    const bool any = watched.held != NULL;
    watched.hold = TRIB_DEVICE_KIND_COUNT;
    while (watched.held != NULL) {
        trib_device_job *given = watched.held;
        watched.held = given->next;
        trib_device_host_ops.submit(watched.device, given); /* under the mutex, so that later jobs stay behind */
    }
    pthread_mutex_unlock(&watched.mutex);
    assert_true(any);
}

static uint32_t jobs_of(trib_device_kind kind)
{
    pthread_mutex_lock(&watched.mutex);
    const uint32_t count = watched.jobs[kind];
    pthread_mutex_unlock(&watched.mutex);
    return count;
}

/* Exposes a range by a descriptor, as a GPU's driver does. The device is asked before anyone reads the content. */
static trib_status expose(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                          trib_error *error)
{
    trib_status status = trib_device_host_ops.expose(device, base, size, memory_out, error);
    if (watched.has_descriptors) {
        memory_out->fd = memfd_create("stands for a dma-buf", MFD_CLOEXEC);
        assert_true(memory_out->fd >= 0);
    }
    return status;
}

void direct_watch(trib_env *env)
{
    if (counting.abi == 0) { /* before any thread reads it */
        counting = trib_device_host_ops;
        counting.submit = counted_submit;
        counting.expose = expose;
    }
    if (env->device != NULL) {
        env->device = &counting;
        env->device_world = world;
    }
}

void direct_hold(trib_device_kind kind)
{
    pthread_mutex_lock(&watched.mutex);
    watched.hold = kind;
    pthread_mutex_unlock(&watched.mutex);
}

void direct_has_descriptors(bool has)
{
    watched.has_descriptors = has;
}

trib_host_world *direct_world(void)
{
    return world;
}

/* ---- A job ---- */

static direct_shape shape;
static char address[128];
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];

direct_shape direct_default_shape(void)
{
    return (direct_shape){.transport = "rdma", .listen = getenv("RDMA_IP"), .local_size = 1};
}

static void log_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    pthread_mutex_lock(&log_mutex);
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
    pthread_mutex_unlock(&log_mutex);
}

bool direct_was_logged(const char *words)
{
    pthread_mutex_lock(&log_mutex);
    const bool found = strstr(log_text, words) != NULL;
    pthread_mutex_unlock(&log_mutex);
    return found;
}

static void shape_config(trib_config *config, int member)
{
    config->transport = shape.transport;
    config->coordinator = address;
    config->listen = shape.listen;
    config->device = "host";
    config->local_size = shape.local_size;
    config->local_rank = config->rank < 0 ? 0 : member % shape.local_size;
    config->reactors = 2;
    config->peer_timeout_ns = INT64_C(30000000000); /* the guest may be slow */
    config->chunk_bytes = 64 << 10;
    config->partition_bytes = 256 << 10;
    config->gpu_direct = shape.off && member == 0 ? TRIB_GPU_DIRECT_OFF : TRIB_GPU_DIRECT_AUTO;
    config->log_level = member == 0 ? TRIB_LOG_INFO : TRIB_LOG_NONE;
    config->log_cb = log_line;
}

const char *direct_new_address(void)
{
    static int port = PORT_FIRST;
    snprintf(address, sizeof address, "%s:%d", getenv("RDMA_IP"), port++);
    log_text[0] = '\0';
    return address;
}

static trib_tensor *declare(trib_engine *engine)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "weights";
    desc.count = DIRECT_COUNT;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static void take_buffers(direct_bed *self)
{
    for (int rank = 0; rank < self->workers; rank++) {
        float **const buffers[] = {&self->input[rank], &self->output[rank]};
        for (int i = 0; i < 2; i++) {
            *buffers[i] = mmap(NULL, DIRECT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_ptr_not_equal(*buffers[i], MAP_FAILED);
        }
        self->tensors[rank] = declare(self->jobs.engines[rank]);
    }
}

void direct_open(direct_bed *self, const direct_shape *like, int workers, int servers)
{
    *self = (direct_bed){.workers = workers};
    (void)direct_new_address();
    shape = *like;
    world = trib_host_world_create();
    job_open(&self->jobs, workers, servers, shape_config);
    take_buffers(self);
}

void direct_close(direct_bed *self)
{
    job_close(&self->jobs);
    for (int rank = 0; rank < self->workers; rank++) {
        munmap(self->input[rank], DIRECT_BYTES);
        munmap(self->output[rank], DIRECT_BYTES);
    }
    assert_int_equal(trib_host_world_order_conflicts(world), 0);
    trib_host_world_free(world);
    world = NULL;
}

trib_engine *direct_member(const direct_shape *like, const char *at, int rank, int workers, int servers)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = rank >= 0 ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
    config.rank = rank;
    config.worker_count = workers;
    config.server_count = servers;
    config.token = "a secret of the tests, long enough";
    shape = *like;
    memmove(address, at, strlen(at) + 1);
    shape_config(&config, rank);
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return engine;
}

void direct_open_one(direct_bed *self, const direct_shape *like, const char *at, int rank, int workers)
{
    *self = (direct_bed){.workers = 1, .jobs.worker_count = 1};
    world = trib_host_world_create();
    self->jobs.engines[0] = direct_member(like, at, rank, workers, 1);
    take_buffers(self);
    direct_tell_all(self);
    trib_error error = {.text = ""};
    if (trib_engine_wait_ready(self->jobs.engines[0], -1, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

/* ---- Operations ---- */

void direct_tell(trib_engine *engine, void *memory)
{
    trib_error error = {.text = ""};
    if (trib_memory_register(engine, memory, DIRECT_BYTES, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

void direct_tell_all(const direct_bed *self)
{
    for (int rank = 0; rank < self->workers; rank++) {
        direct_tell(self->jobs.engines[rank], self->input[rank]);
        direct_tell(self->jobs.engines[rank], self->output[rank]);
    }
}

trib_stats direct_stats(trib_engine *engine)
{
    trib_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(trib_engine_get_stats(engine, &stats), TRIB_OK);
    return stats;
}

static void note(direct_bed *self, int sign)
{
    const uint32_t by = (uint32_t)sign;
    self->to_host += by * jobs_of(TRIB_DEVICE_TO_HOST);
    self->to_device += by * jobs_of(TRIB_DEVICE_TO_DEVICE);
    self->seen += by * jobs_of(TRIB_DEVICE_SEE);
    self->collective += by * (jobs_of(TRIB_DEVICE_REDUCE_SCATTER) + jobs_of(TRIB_DEVICE_ALL_GATHER));
    for (int rank = 0; rank < self->workers; rank++) {
        const trib_stats stats = direct_stats(self->jobs.engines[rank]);
        self->direct += (uint64_t)(int64_t)sign * stats.bytes_direct;
        self->copied += (uint64_t)(int64_t)sign * stats.bytes_copied;
    }
}

void direct_fill(float *data, int rank, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + (uint32_t)rank;
    for (size_t i = 0; i < DIRECT_COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (float)(int32_t)state / 1e6f;
    }
}

trib_op *direct_try(const direct_bed *self, int rank, int what, void *stream, trib_error *error)
{
    const bool broadcasts = what >= 0;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[rank];
    params.input = self->input[rank];
    params.output = what == SUMS || (broadcasts && what != rank) ? self->output[rank] : self->input[rank];
    params.root = broadcasts ? what : 0;
    params.stream = stream;
    trib_op *op = NULL;
    trib_engine *engine = self->jobs.engines[rank];
    const trib_status status = (broadcasts ? trib_broadcast : trib_push_pull)(engine, &params, &op, error);
    return status == TRIB_OK ? op : NULL;
}

trib_op *direct_submit(const direct_bed *self, int rank, int what, void *stream)
{
    trib_error error = {.text = ""};
    trib_op *op = direct_try(self, rank, what, stream, &error);
    if (op == NULL) {
        fail_msg("%s", error.text);
    }
    return op;
}

static const float *result_of(const direct_bed *self, int rank, int what)
{
    return what == IN_PLACE || what == rank ? self->input[rank] : self->output[rank];
}

uint64_t direct_exchange(direct_bed *self, uint32_t seed, int what)
{
    trib_op *ops[DIRECT_WORKERS_MAX];
    self->direct = self->copied = 0;
    self->to_host = self->to_device = self->seen = self->collective = 0;
    for (int rank = 0; rank < self->workers; rank++) {
        memset(self->output[rank], 0xa5, DIRECT_BYTES);
        direct_fill(self->input[rank], rank, seed);
    }
    note(self, -1);
    /* The streams open after the call, so nothing is copied early and each partition has a copy of its own. */
    trib_host_stream *streams[DIRECT_WORKERS_MAX];
    for (int rank = 0; rank < self->workers; rank++) {
        streams[rank] = trib_host_stream_create(false);
        ops[rank] = direct_submit(self, rank, what, streams[rank]);
        trib_host_stream_open(streams[rank]);
    }
    for (int rank = 0; rank < self->workers; rank++) {
        trib_error error = {.text = ""};
        if (job_wait(ops[rank], &error) != TRIB_OK) {
            fail_msg("rank %d: %s", rank, error.text);
        }
        assert_memory_equal(result_of(self, rank, what), result_of(self, 0, what), DIRECT_BYTES);
        trib_host_stream_free(streams[rank]);
    }
    note(self, 1);
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)result_of(self, 0, what);
    for (size_t i = 0; i < DIRECT_BYTES; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}
