/*
 * count_exchange.c - measures what an exchange costs in countable things, which are the same on a busy machine.
 *
 *     build/release/tests/count_exchange                    every scene, a line of JSON each
 *     build/release/tests/count_exchange SCENE STEPS        one scene, that many steps, no output: for callgrind
 *     build/release/tests/count_exchange SCENE STEPS HOST   a pair on the address HOST, which may be an RDMA device's;
 *                                                           0 steps: prints the counts and the processor time
 *
 * Virtual scenes run over the simulated network with buffers without contents. Only the engine's own work is done,
 * and every figure is the same in every run. Real scenes run over TCP and shared memory, with all engines on one
 * loop of one thread. There the kernel has an influence, and the least of several repetitions counts.
 * tests/process/test_counters.py compares the figures with tests/process/counters.json, and
 * tests/rdma/test_counters.py those of pairs, in a guest.
 */
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/core/core.h"
#include "tools/study/job.h"

#define MEMBERS_MAX 8u
#define TENSORS_MAX 128u
#define WARM_STEPS 3u
#define REPETITIONS 7u

typedef struct scene {
    const char *name, *transport; /* NULL: a virtual scene */
    uint32_t workers, servers, tensors, bytes, steps;
    bool is_pair; /* its two ends could be on two hosts: it needs an address, and memory of the engines' own */
} scene;

static const scene scenes[] = {
    {"virtual small", NULL, 2, 1, 100, 4 << 10, 20, false}, {"virtual large", NULL, 4, 0, 1, 64 << 20, 3, false},
    {"virtual servers", NULL, 4, 2, 20, 1 << 20, 5, false}, {"tcp small", "tcp", 2, 1, 100, 4 << 10, 10, false},
    {"tcp large", "tcp", 2, 1, 2, 16 << 20, 3, false},      {"shm small", "shm", 2, 1, 100, 4 << 10, 10, false},
    {"shm large", "shm", 2, 1, 2, 16 << 20, 3, false},      {"tcp pair", "tcp", 1, 1, 1, 16 << 20, 3, true},
    {"rdma pair", "rdma", 1, 1, 1, 16 << 20, 3, true},
};

typedef struct bed {
    const scene *what;
    const char *host;
    trib_engine *engines[MEMBERS_MAX];
    uint32_t members;
    trib_tensor *tensors[MEMBERS_MAX][TENSORS_MAX];
    unsigned char *buffers[MEMBERS_MAX];
    uint32_t ready, going, closed;
    sim_job *job;         /* of a virtual scene */
    struct ev_loop *loop; /* of a real scene */
    uint64_t turns;
} bed;

/* Sums over all members. */
typedef struct counts {
    uint64_t system_calls, copied, wire, messages, allocations, turns;
    double processor; /* seconds of this process */
} counts;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "count_exchange: %s: %s\n", what, why);
    exit(1);
}

static bool is_worker(const bed *self, uint32_t member)
{
    return member < self->what->workers;
}

/* ---- Members ---- */

static void on_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    bed *self = user;
    if (error->status != TRIB_OK) {
        die("join", error->text);
    }
    self->ready++;
}

static void on_closed(trib_engine *engine, void *user)
{
    (void)engine;
    ((bed *)user)->closed++;
}

static trib_config settings_of(const scene *what)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.reactors = 1;
    config.worker_count = (int32_t)what->workers;
    config.server_count = (int32_t)what->servers;
    config.colocate = what->servers > 0 ? TRIB_COLOCATE_OFF : TRIB_COLOCATE_ON;
    config.pin = false;
    config.log_level = TRIB_LOG_ERROR;
    return config;
}

static void open_virtual(bed *self)
{
    const scene *what = self->what;
    sim_job_config config = sim_job_config_default(what->workers, what->servers);
    config.engine.colocate = what->servers > 0 ? TRIB_COLOCATE_OFF : TRIB_COLOCATE_ON;
    config.void_bytes = UINT64_C(1) << 34;
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    if (self->job == NULL || !sim_job_run(self->job, INT64_C(60000000000), sim_job_all_ready, NULL)) {
        die(what->name, "did not join");
    }
    self->members = self->job->member_count;
    unsigned char *at = (unsigned char *)self->job->nothing.base + (config.void_bytes >> 1);
    for (uint32_t i = 0; i < self->members; i++) {
        self->engines[i] = self->job->members[i].engine;
        self->buffers[i] = at;
        at += (uint64_t)what->tensors * what->bytes;
    }
}

static void *memory_of(trib_engine *engine, const scene *what, size_t size)
{
    void *memory = NULL;
    if (what->is_pair) {
        return trib_alloc(engine, size, &memory) == TRIB_OK ? memory : NULL;
    }
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

enum { PORT_TRIES = 100 };

/* Returns a port below those that the kernel gives out by itself; each process begins somewhere else. */
static unsigned port_of_try(unsigned tries)
{
    return 10000 + ((unsigned)getpid() * 7919u + tries) % 22000;
}

static void open_real(bed *self)
{
    const scene *what = self->what;
    self->loop = ev_loop_new(EVFLAG_AUTO);
    self->members = what->workers + what->servers;
    char address[128];
    unsigned tries = 0;
    for (uint32_t i = 0; i < self->members; i++) {
        trib_config config = settings_of(what);
        config.mode = TRIB_MODE_ATTACHED;
        config.loop = self->loop;
        config.roles = is_worker(self, i) ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
        config.rank = is_worker(self, i) ? (int32_t)i : -1;
        config.coordinator = address;
        config.transport = what->transport;
        if (what->is_pair) {
            config.listen = self->host;
            config.token = "the token of a job that is counted"; /* required if the address is not loopback */
        }
        config.ready_cb = on_ready;
        config.ready_user = self;
        trib_error error = {.status = TRIB_OK};
        trib_status status;
        do { /* until rank 0 has found a free port */
            if (i == 0) {
                snprintf(address, sizeof address, "%s:%u", self->host, port_of_try(tries++));
            }
            status = trib_engine_create(&config, &self->engines[i], &error);
        } while (status == TRIB_SYSTEM && i == 0 && tries < PORT_TRIES);
        if (status != TRIB_OK) {
            die(what->name, error.text);
        }
        self->buffers[i] = memory_of(self->engines[i], what, (size_t)what->tensors * what->bytes);
        if (self->buffers[i] == NULL) {
            die(what->name, "out of memory");
        }
    }
    while (self->ready < self->members) {
        ev_run(self->loop, EVRUN_ONCE);
    }
}

static void close_bed(bed *self)
{
    if (self->job != NULL) {
        if (!sim_job_close(self->job, INT64_C(60000000000))) {
            die(self->what->name, "did not close");
        }
        sim_job_free(self->job);
        return;
    }
    for (uint32_t i = 0; i < self->members; i++) {
        trib_engine_close(self->engines[i], on_closed, self);
    }
    while (self->closed < self->members) {
        ev_run(self->loop, EVRUN_ONCE);
    }
    for (uint32_t i = 0; i < self->members; i++) {
        if (self->what->is_pair) {
            trib_free(self->engines[i], self->buffers[i]);
        } else {
            munmap(self->buffers[i], (size_t)self->what->tensors * self->what->bytes);
        }
        (void)!trib_engine_destroy(self->engines[i]);
    }
    ev_loop_destroy(self->loop);
}

/* ---- Steps ---- */

static void on_done(const trib_result *result, void *user)
{
    bed *self = user;
    if (result->status != TRIB_OK) {
        die(self->what->name, result->text);
    }
    self->going--;
}

static void begin(bed *self, uint32_t member, uint32_t index)
{
    trib_error error = {.status = TRIB_OK};
    if (self->tensors[member][index] == NULL) {
        char name[32];
        snprintf(name, sizeof name, "tensor %u", index);
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.dtype = TRIB_FLOAT32;
        desc.count = self->what->bytes / 4;
        desc.priority = -(int32_t)index;
        if (trib_tensor_declare(self->engines[member], &desc, &self->tensors[member][index], &error) != TRIB_OK) {
            die("declare", error.text);
        }
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[member][index];
    params.input = params.output = self->buffers[member] + (uint64_t)index * self->what->bytes;
    params.done_cb = on_done;
    params.user = self;
    self->going++;
    if (trib_push_pull(self->engines[member], &params, NULL, &error) != TRIB_OK) {
        die("push_pull", error.text);
    }
}

static bool is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const bed *)argument)->going == 0;
}

static void run_steps(bed *self, uint32_t steps)
{
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t index = 0; index < self->what->tensors; index++) {
            for (uint32_t member = 0; member < self->what->workers; member++) {
                begin(self, member, index);
            }
        }
        if (self->job != NULL) {
            sim_job_run(self->job, INT64_MAX, is_done, self);
            continue;
        }
        while (self->going > 0) {
            ev_run(self->loop, EVRUN_ONCE);
        }
    }
}

static counts count(const bed *self)
{
    counts sum = {.turns = self->job != NULL ? trib_sim_steps(self->job->sim) : ev_iteration(self->loop)};
    for (uint32_t i = 0; i < self->members; i++) {
        const trib_core *core = &self->engines[i]->cores[0];
        trib_transport_stats stats = {.system_calls = 0};
        core->host.transport->ops->stats(core->host.transport, &stats);
        trib_stats all = {.struct_size = sizeof all};
        if (trib_engine_get_stats(self->engines[i], &all) != TRIB_OK) {
            die("stats", "refused");
        }
        sum.system_calls += stats.system_calls;
        sum.copied += stats.bytes_copied;
        sum.wire += stats.bytes_sent;
        sum.messages += stats.messages_sent;
        sum.allocations += all.allocations;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    sum.processor = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                    (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    return sum;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Prints counts per MB that the workers push and pull, and per step. */
static void report(bed *self)
{
    const scene *what = self->what;
    const double step_mb = 2.0 * what->workers * what->tensors * what->bytes / 1e6, mb = step_mb * what->steps;
    double calls = 1e300, copied = 1e300, wire = 1e300, messages = 1e300, allocations = 1e300, turns = 1e300;
    double processor = 1e300;
    run_steps(self, WARM_STEPS);
    for (uint32_t i = 0; i < (self->job != NULL ? 1 : what->is_pair ? 3 : REPETITIONS); i++) {
        const counts before = count(self);
        run_steps(self, what->steps);
        const counts after = count(self);
        calls = least(calls, (double)(after.system_calls - before.system_calls) / mb);
        copied = least(copied, (double)(after.copied - before.copied) / mb / 1e6);
        wire = least(wire, (double)(after.wire - before.wire) / mb / 1e6);
        messages = least(messages, (double)(after.messages - before.messages) / what->steps);
        allocations = least(allocations, (double)(after.allocations - before.allocations) / what->steps);
        turns = least(turns, (double)(after.turns - before.turns) / mb);
        processor = least(processor, (after.processor - before.processor) / mb);
    }
    printf("{\"scene\": \"%s\", \"system_calls_per_mb\": %.4f, \"copied_per_byte\": %.4f, \"wire_per_byte\": %.4f, "
           "\"messages_per_step\": %.1f, \"allocations_per_step\": %.2f, \"%s_per_mb\": %.4f",
           what->name, calls, copied, wire, messages, allocations, self->job != NULL ? "events" : "wakeups", turns);
    if (what->is_pair) {
        printf(", \"processor_us_per_mb\": %.1f", processor * 1e6);
    }
    printf("}\n");
    fflush(stdout);
}

static void run_scene(const scene *what, uint32_t steps, const char *host)
{
    bed *self = calloc(1, sizeof *self);
    if (self == NULL) {
        die(what->name, "out of memory");
        return;
    }
    self->what = what;
    self->host = host;
    if (what->transport == NULL) {
        open_virtual(self);
    } else {
        open_real(self);
    }
    if (steps > 0) {
        run_steps(self, steps);
    } else {
        report(self);
    }
    close_bed(self);
    free(self);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        if (argc < 2 ? !scenes[i].is_pair : strcmp(argv[1], scenes[i].name) == 0) {
            run_scene(&scenes[i], argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0,
                      argc > 3 ? argv[3] : "127.0.0.1");
        }
    }
    return 0;
}
