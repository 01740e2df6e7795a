/* module_job.c - jobs over the fake of CUDA, with an oracle written without the engine's code; see module_job.h. */
#include "tests/cuda/module_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"
#include "tests/support/values.h"

#define DEADLINE_S 60
#define SECOND INT64_C(1000000000)

unsigned module_seed = 1;

/* The number of ranks of this process that have submitted each tensor in each round. */
static atomic_uint submitted[JOB_ROUNDS_MAX][JOB_TENSORS_MAX];

typedef struct tensor {
    trib_tensor *handle;
    trib_dtype type;
    size_t count, bytes;
    bool broadcasts;
    trib_reduce reduce;
    unsigned char *source, *input, *output, *seen; /* input and output are in GPU memory */
    trib_op *op;
    cudaStream_t on; /* copies the output to `seen` */
} tensor;

typedef struct rank {
    const module_job *job;
    const char *address;
    int number, size;
    int chosen; /* device of its thread; below 0: none */
    unsigned seed;
    trib_engine *engine;
    cudaStream_t streams[JOB_STREAMS_MAX];
    tensor tensors[JOB_TENSORS_MAX];
    bool over; /* the rank must stop */
    uint32_t go;
    unsigned rights, errors, wrongs;
    int64_t half_ns, error_ns;
    char text[256];
    pthread_barrier_t *gate;
} rank;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static unsigned any(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245u + 12345u;
    return below == 0 ? 0 : (*seed >> 8) % below;
}

/* ---- The deadline ---- */

typedef struct watch {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool is_over;
    const char *name;
} watch;

static void *watch_main(void *argument)
{
    watch *self = argument;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&self->mutex);
    while (!self->is_over) {
        if (pthread_cond_timedwait(&self->ended, &self->mutex, &until) != 0) {
            printf("Bail out! %s: not over after %d s (seed %u)\n", self->name, DEADLINE_S, module_seed);
            fake_show();
            fflush(stdout);
            _exit(1);
        }
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void watch_begin(watch *self, const char *name)
{
    *self = (watch){.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER, .name = name};
    assert_int_equal(pthread_create(&self->thread, NULL, watch_main, self), 0);
}

static void watch_end(watch *self)
{
    pthread_mutex_lock(&self->mutex);
    self->is_over = true;
    pthread_cond_signal(&self->ended);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
}

/* ---- Values: small whole numbers, whose sums and averages all types can hold ---- */

static double part(unsigned which, unsigned round, size_t i)
{
    const uint32_t mixed = ((uint32_t)i * 2654435761u + which * 40503u + round * 69621u) >> 13;
    return 4.0 * (mixed & 3);
}

static double right(const rank *self, const tensor *of, unsigned which, unsigned round, size_t i)
{
    const double one = part(which, round, i), all = one * self->size * (self->size + 1) / 2;
    if (of->broadcasts) {
        return one * ((int)round % self->size + 1);
    }
    return of->reduce == TRIB_MIN   ? one
           : of->reduce == TRIB_MAX ? one * self->size
           : of->reduce == TRIB_AVG ? all / self->size
                                    : all;
}

/* ---- Functions of a rank ---- */

static void failed(rank *self, const char *what, const trib_error *error)
{
    if (self->errors++ == 0) {
        self->error_ns = now_ns();
        snprintf(self->text, sizeof self->text, "%s: %.200s", what, error->text);
        if (self->job->failed != NULL) {
            self->job->failed();
        }
    }
    self->over = true;
    __atomic_store_n(&self->go, 1, __ATOMIC_RELEASE);
}

static void hush(trib_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

static void configure(const rank *self, trib_config *config)
{
    const module_job *plan = self->job;
    trib_config_init(config, sizeof *config);
    config->rank = self->number;
    config->worker_count = self->size;
    config->coordinator = self->address;
    config->device = "cuda";
    config->device_index = self->number;
    config->local_size = plan->gpus;
    config->local_rank = self->number % plan->gpus;
    config->join_timeout_ns = plan->join_ns > 0 ? plan->join_ns : 60 * SECOND;
    config->op_timeout_ns = plan->op_ns > 0 ? plan->op_ns : 60 * SECOND;
    config->peer_timeout_ns = 20 * SECOND;
    config->log_level = TRIB_LOG_ERROR;
    config->log_cb = hush;
    config->reactors = 1 + self->job->seed % 2;
    config->pin = false;
    config->partition_bytes = 65536;
    config->chunk_bytes = 16384;
}

/* Declares tensors of all types: one element, odd numbers of elements, more than a partition holds. */
static void declare(rank *self, unsigned which)
{
    static const size_t counts[] = {1, 4097, 17, 1000, 3, 70003, 255, 9001};
    tensor *of = &self->tensors[which];
    char name[16];
    trib_tensor_desc desc;
    trib_error error = {.text = ""};
    snprintf(name, sizeof name, "t%u", which);
    trib_tensor_desc_init(&desc, sizeof desc);
    of->type = (trib_dtype)(which % (TRIB_INT64 + 1u));
    of->count = counts[(which + which / 8) % 8];
    of->bytes = of->count * trib_dtype_size(of->type);
    of->broadcasts = which % 7 == 6;
    of->reduce = (trib_reduce)(which % 3 == 2 ? which % (TRIB_MAX + 1u) : TRIB_SUM);
    of->reduce = of->reduce == TRIB_AVG && !trib_dtype_is_float(of->type) ? TRIB_SUM : of->reduce;
    desc.name = name;
    desc.count = of->count;
    desc.dtype = of->type;
    desc.flags = TRIB_TENSOR_DEVICE;
    if (trib_tensor_declare(self->engine, &desc, &of->handle, &error) != TRIB_OK) {
        failed(self, "declare", &error);
    }
    of->source = calloc(4, of->bytes);
    assert_non_null(of->source);
    of->input = of->source + of->bytes;
    of->output = of->input + of->bytes;
    of->seen = of->output + of->bytes;
}

/* Two engines created at once make libudev, which hwloc uses, write its seed twice: the thread sanitizer reports
 * that. */
static pthread_mutex_t one_creates = PTHREAD_MUTEX_INITIALIZER;

static bool set_up(rank *self)
{
    trib_config config;
    trib_error error = {.text = ""};
    configure(self, &config);
    self->chosen = (int)any(&self->seed, FAKE_GPUS + 1) - 1;
    if (self->chosen >= 0) {
        (void)cudaSetDevice(self->chosen); /* its own device or another: the engine must not depend on it */
    }
    pthread_mutex_lock(&one_creates);
    const trib_status status = trib_engine_create(&config, &self->engine, &error);
    pthread_mutex_unlock(&one_creates);
    if (status != TRIB_OK) {
        failed(self, "create", &error);
        return false;
    }
    for (unsigned i = 0; i < self->job->streams; i++) {
        self->streams[i] = fake_stream_make(self->number);
    }
    for (unsigned i = 0; i < self->job->tensors && !self->over; i++) {
        declare(self, i);
    }
    if (self->job->may_fail && !self->job->no_stream_waits && !self->over &&
        trib_engine_wait_ready(self->engine, -1, &error) != TRIB_OK) {
        failed(self, "wait for the others",
               &error); /* a rank that leaves early would keep NCCL's other members waiting */
    }
    return !self->over;
}

static cudaStream_t any_stream(rank *self)
{
    return self->streams[any(&self->seed, self->job->streams)];
}

static void wait_idle(cudaStream_t stream)
{
    const struct timespec pause = {.tv_nsec = 100000};
    while (!fake_stream_is_idle(stream)) {
        nanosleep(&pause, NULL);
    }
}

static void take_down(rank *self)
{
    trib_engine_destroy(self->engine);
    __atomic_store_n(&self->go, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < self->job->streams && self->streams[i] != NULL; i++) {
        wait_idle(self->streams[i]);
        fake_stream_drop(self->streams[i]);
    }
    for (unsigned i = 0; i < self->job->tensors; i++) {
        free(self->tensors[i].source);
    }
}

/* ---- A round ---- */

static void hand_in(rank *self, unsigned which, unsigned round)
{
    tensor *of = &self->tensors[which];
    cudaStream_t stream = any_stream(self);
    trib_error error = {.text = ""};
    trib_op_params params;
    for (size_t i = 0; i < of->count; i++) {
        values_store(of->type, of->source, i, part(which, round, i) * (self->number + 1));
    }
    if (any(&self->seed, 3) > 0) {
        fake_stream_work(stream, any(&self->seed, self->job->only_stream_waits ? 2000 : 100));
    }
    if (self->job->held == self->number + 1 && round >= self->job->rounds / 2) {
        fake_stream_hold(stream, &self->go);
    }
    fake_stream_copy(stream, of->input, of->source, of->bytes);
    if (any(&self->seed, 4) == 0 && self->job->held != self->number + 1) {
        wait_idle(stream);
    }
    trib_op_params_init(&params, sizeof params);
    params.tensor = of->handle;
    params.input = of->input;
    params.output = of->output;
    params.reduce = of->reduce;
    params.root = (int)round % self->size;
    params.stream = stream;
    atomic_fetch_add(&submitted[round][which], 1);
    const trib_status status = of->broadcasts ? trib_broadcast(self->engine, &params, &of->op, &error)
                                              : trib_push_pull(self->engine, &params, &of->op, &error);
    if (status != TRIB_OK) {
        of->op = NULL;
        failed(self, "hand in", &error);
    }
}

/* Copies the sum to where the program sees it, behind the operation. The end of a sum cannot have been launched before
 * all ranks have submitted it. */
static void wait_on_stream(rank *self, unsigned which, unsigned round)
{
    tensor *of = &self->tensors[which];
    const bool needs_all = self->job->count == 0 && self->job->leaves == 0 && !self->job->may_fail && !of->broadcasts;
    trib_error error = {.text = ""};
    cudaStream_t stream = any_stream(self);
    if (trib_op_stream_wait(of->op, stream, &error) != TRIB_OK) {
        failed(self, "stream wait", &error);
        return;
    }
    if (needs_all && atomic_load(&submitted[round][which]) != (unsigned)self->size) {
        printf("# %s (seed %u), rank %d, round %u, tensor %u: the call has returned before the launch\n",
               self->job->name, self->job->seed, self->number, round, which);
        self->wrongs++;
    }
    of->on = stream;
    fake_stream_copy(of->on, of->seen, of->output, of->bytes);
}

static void finish(rank *self, unsigned which, unsigned round)
{
    tensor *of = &self->tensors[which];
    trib_error error = {.text = ""};
    const trib_status status = trib_op_wait(of->op, -1, &error);
    trib_op_release(of->op);
    of->op = NULL;
    if (of->on != NULL) {
        wait_idle(of->on);
    }
    if (status != TRIB_OK) {
        failed(self, "wait", &error);
        return;
    }
    self->rights++;
    const unsigned char *result = of->on != NULL ? of->seen : of->output;
    for (size_t i = 0; i < of->count; i++) {
        const double want = right(self, of, which, round, i), got = values_load(of->type, result, i);
        if (got != want) {
            printf("# %s (seed %u), rank %d, round %u, tensor %u (%s, %s), element %zu of %zu: %g, not %g\n",
                   self->job->name, self->job->seed, self->number, round, which, trib_dtype_name(of->type),
                   of->broadcasts ? "broadcast" : trib_reduce_name(of->reduce), i, of->count, got, want);
            self->wrongs++;
            return;
        }
    }
}

/* Each rank chooses an order of its own. */
static void shuffle(rank *self, unsigned *order)
{
    for (unsigned i = 0; i < self->job->tensors; i++) {
        order[i] = i;
    }
    for (unsigned i = self->job->tensors - 1; i > 0; i--) {
        const unsigned j = any(&self->seed, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void play(rank *self, unsigned round)
{
    const module_job *plan = self->job;
    const bool is_half = round == plan->rounds / 2;
    unsigned order[JOB_TENSORS_MAX] = {0};
    shuffle(self, order);
    for (unsigned i = 0; i < plan->tensors && !self->over; i++) {
        hand_in(self, order[i], round);
    }
    self->half_ns = is_half ? now_ns() : self->half_ns;
    if (is_half && plan->leaves == self->number + 1) {
        self->over = true;
    }
    if (is_half && plan->half != NULL && self->number == plan->first) {
        plan->half();
    }
    for (unsigned i = 0; i < plan->tensors; i++) {
        tensor *of = &self->tensors[i];
        of->on = NULL;
        if (of->op != NULL && !self->over && !plan->no_stream_waits &&
            (plan->only_stream_waits || any(&self->seed, 2) == 0)) {
            wait_on_stream(self, i, round);
        }
    }
    if (plan->only_stream_waits) {
        fake_wait_for_gpu(self->number);
    }
    for (unsigned i = 0; i < plan->tensors; i++) {
        tensor *of = &self->tensors[i];
        if (of->op != NULL && plan->leaves == self->number + 1 && self->over) {
            trib_op_release(of->op);
        } else if (of->op != NULL) {
            finish(self, i, round);
        }
    }
}

static void *rank_main(void *argument)
{
    rank *self = argument;
    if (set_up(self)) {
        for (unsigned round = 0; round < self->job->rounds && !self->over; round++) {
            play(self, round);
        }
    }
    if (!self->job->may_fail && self->job->leaves == 0) {
        pthread_barrier_wait(self->gate);
    }
    take_down(self);
    fake_expect_chosen(self->chosen);
    return NULL;
}

/* ---- The job ---- */

static void add_up(module_outcome *outcome, const rank *ranks, int count)
{
    for (int i = 0; i < count; i++) {
        const rank *of = &ranks[i];
        outcome->rights += of->rights;
        outcome->errors += of->errors;
        const int64_t took_ns = of->errors > 0 && of->half_ns > 0 ? of->error_ns - of->half_ns : 0;
        outcome->slowest_ns = took_ns > outcome->slowest_ns ? took_ns : outcome->slowest_ns;
        if (outcome->text[0] == '\0') {
            memcpy(outcome->text, of->text, sizeof outcome->text);
        }
        assert_int_equal(of->wrongs, 0);
    }
    if (outcome->errors > 0 && !ranks[0].job->may_fail && ranks[0].job->leaves == 0) {
        print_message("# %s: %s\n", ranks[0].job->name, outcome->text);
        fail();
    }
}

module_outcome module_job_run(const module_job *plan, fake_call call, unsigned fails_at)
{
    static rank ranks[JOB_RANKS_MAX];
    pthread_t threads[JOB_RANKS_MAX];
    const int size = plan->machines * plan->gpus, count = plan->count > 0 ? plan->count : size;
    module_outcome outcome = {.errors = 0};
    pthread_barrier_t gate;
    watch guard;
    char address[64];
    job_free_address(address, sizeof address);
    watch_begin(&guard, plan->name);
    fake_open(plan->queues > 0 ? plan->queues : 32, plan->seed);
    fake_fail(call, fails_at);
    pthread_barrier_init(&gate, NULL, (unsigned)count);
    memset(ranks, 0, sizeof ranks);
    memset(submitted, 0, sizeof submitted);
    assert_in_range(plan->rounds, 1, JOB_ROUNDS_MAX);
    for (int i = 0; i < count; i++) {
        ranks[i] = (rank){.job = plan,
                          .address = plan->address != NULL ? plan->address : address,
                          .number = plan->first + i,
                          .size = size,
                          .seed = plan->seed + (unsigned)i * 77,
                          .gate = &gate};
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&gate);
    outcome.closed = fake_close();
    outcome.counts = fake_count();
    outcome.failed = fake_has_failed();
    watch_end(&guard);
    add_up(&outcome, ranks, count);
    assert_int_equal(outcome.counts.faults, 0);
    return outcome;
}

void module_job_expect_nothing_left(const module_outcome *outcome, unsigned untried)
{
    const fake_counts *counts = &outcome->counts;
    assert_true(outcome->closed);
    assert_int_equal(counts->events, 0);
    assert_in_range(counts->streams, 0, untried);
    assert_in_range(counts->device_memory, 0, untried);
    assert_int_equal(counts->pinned, 0);
    assert_int_equal(counts->communicators, 0);
    assert_in_range(counts->contexts, 0, untried);
}
