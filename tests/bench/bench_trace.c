/*
 * bench_trace.c - measures what recording costs: the time of a hook with recording off and on, and exchanges between
 * two workers in this process, in alternating blocks with and without recording. It prints medians.
 *
 *     build/release/tests/bench_trace [PAIRS]     pairs of blocks for each size (60)
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/reactor/reactor_ev.h"
#include "engine/core/core_trace.h"
#include "engine/tracer/tracer.h"

#define ROUNDS 31
#define RECORDS 200000u
#define WARM_NS INT64_C(25000000)

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static double round_of(trib_core *core, bool on)
{
    const trib_contribution what = {.tensor = 3, .partition = 5, .round = 7};
    atomic_store(&core->trace.on, on);
    const int64_t began_ns = now_ns();
    for (uint32_t i = 0; i < RECORDS; i++) {
        trib_trace_sum(core, TRIB_TRACE_SUM_SENT, &what, 1, i);
    }
    return (double)(now_ns() - began_ns) / RECORDS;
}

static void bench_hook(void)
{
    trib_logger logger = {.level = TRIB_LOG_NONE};
    trib_reactor *reactor = NULL;
    trib_core *core = calloc(1, sizeof *core);
    if (core == NULL || !trib_trace_ring_open(&core->trace, TRIB_TRACE_BYTES_DEFAULT) ||
        trib_reactor_ev_create(0, &logger, NULL, &reactor) != TRIB_OK) {
        exit(1);
    }
    core->reactor = reactor;
    double off[ROUNDS], on[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        off[i] = round_of(core, false);
        on[i] = round_of(core, true);
    }
    qsort(off, ROUNDS, sizeof off[0], compare);
    qsort(on, ROUNDS, sizeof on[0], compare);
    printf("a hook: %.1f ns while nothing is recorded, %.1f ns while it is (quartiles %.1f, %.1f)\n", off[ROUNDS / 2],
           on[ROUNDS / 2], on[ROUNDS / 4], on[ROUNDS * 3 / 4]);
    trib_trace_ring_close(&core->trace);
    trib_reactor_ev_destroy(reactor);
    free(core);
}

/* ---- Exchanges ---- */

typedef struct pair {
    trib_engine *engines[2];
    trib_tensor *tensors[2];
    float *buffers[2];
} pair;

static void check(trib_status status, const trib_error *error)
{
    if (status != TRIB_OK) {
        fprintf(stderr, "%s\n", error->text);
        exit(1);
    }
}

static unsigned free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    if (probe < 0 || bind(probe, (struct sockaddr *)&at, size) != 0 ||
        getsockname(probe, (struct sockaddr *)&at, &size) != 0) {
        exit(1);
    }
    close(probe);
    return ntohs(at.sin_port);
}

static void open_pair(pair *self)
{
    trib_error error = {.status = TRIB_OK};
    char coordinator[32];
    snprintf(coordinator, sizeof coordinator, "127.0.0.1:%u", free_port());
    for (int rank = 0; rank < 2; rank++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.rank = rank;
        config.worker_count = 2;
        config.coordinator = coordinator;
        config.transport = "tcp";
        config.reactors = 1;
        config.pin = false;
        check(trib_engine_create(&config, &self->engines[rank], &error), &error);
    }
    for (int rank = 0; rank < 2; rank++) {
        check(trib_engine_wait_ready(self->engines[rank], -1, &error), &error);
    }
}

static void exchange(pair *self)
{
    trib_op *ops[2] = {NULL, NULL};
    trib_error error = {.status = TRIB_OK};
    for (int rank = 0; rank < 2; rank++) {
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = self->tensors[rank];
        params.input = params.output = self->buffers[rank];
        check(trib_push_pull(self->engines[rank], &params, &ops[rank], &error), &error);
    }
    for (int rank = 0; rank < 2; rank++) {
        check(trib_op_wait(ops[rank], -1, &error), &error);
        trib_op_release(ops[rank]);
    }
}

typedef struct cost {
    double time_ns, cpu_ns; /* of an exchange; CPU: of this process, both engines and the caller */
} cost;

static double cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e9 + (double)used.tv_nsec;
}

static cost block(pair *self, bool on, int iterations)
{
    trib_error error = {.status = TRIB_OK};
    for (int rank = 0; rank < 2; rank++) {
        if (on) {
            check(trib_trace_start(self->engines[rank], 4 << 20, &error), &error);
        } else {
            trib_trace_stop(self->engines[rank]);
        }
    }
    /* A recording reads the clock a few times when it begins. That is not part of the cost of a hook. */
    for (const int64_t warm_ns = now_ns() + WARM_NS; now_ns() < warm_ns;) {
        exchange(self);
    }
    const int64_t began_ns = now_ns();
    const double used_ns = cpu_ns();
    for (int i = 0; i < iterations; i++) {
        exchange(self);
    }
    return (cost){(double)(now_ns() - began_ns) / iterations, (cpu_ns() - used_ns) / iterations};
}

static void print_ratios(const char *what, const cost *off, const cost *on, int pairs, bool cpu, double *ratios)
{
    for (int i = 0; i < pairs; i++) {
        ratios[i] = cpu ? on[i].cpu_ns / off[i].cpu_ns : on[i].time_ns / off[i].time_ns;
    }
    qsort(ratios, (size_t)pairs, sizeof *ratios, compare);
    printf("  %s %.4f (%.4f .. %.4f)", what, ratios[pairs / 2], ratios[pairs / 4], ratios[pairs * 3 / 4]);
}

static void bench_exchange(pair *self, size_t bytes, int pairs, int iterations)
{
    trib_error error = {.status = TRIB_OK};
    double *ratios = calloc((size_t)pairs, sizeof *ratios);
    cost *off = calloc((size_t)pairs, sizeof *off), *on = calloc((size_t)pairs, sizeof *on);
    for (int rank = 0; rank < 2; rank++) {
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        char name[32];
        snprintf(name, sizeof name, "of %zu bytes", bytes);
        desc.name = name;
        desc.count = bytes / sizeof(float);
        check(trib_tensor_declare(self->engines[rank], &desc, &self->tensors[rank], &error), &error);
        self->buffers[rank] = calloc(1, bytes);
    }
    for (int i = -3; i < pairs; i++) {
        const bool first = i % 2 != 0; /* the first of the two alternates */
        const cost a = block(self, first, iterations), b = block(self, !first, iterations);
        if (i >= 0) {
            on[i] = first ? a : b;
            off[i] = first ? b : a;
        }
    }
    printf("an exchange of %8zu bytes, with / without:", bytes);
    print_ratios("time", off, on, pairs, false, ratios);
    print_ratios("CPU", off, on, pairs, true, ratios);
    printf("\n");
    for (int rank = 0; rank < 2; rank++) {
        free(self->buffers[rank]);
    }
    free(ratios);
    free(off);
    free(on);
}

int main(int argc, char **argv)
{
    const int pairs = argc > 1 ? atoi(argv[1]) : 60;
    bench_hook();
    pair self;
    open_pair(&self);
    bench_exchange(&self, 4096, pairs > 0 ? pairs : 1, 1500);
    bench_exchange(&self, 65536, pairs > 0 ? pairs : 1, 600);
    bench_exchange(&self, 1 << 20, pairs > 0 ? pairs : 1, 100);
    bench_exchange(&self, 16 << 20, pairs > 0 ? pairs : 1, 6);
    trib_engine_close(self.engines[1], NULL, NULL);
    return trib_engine_destroy(self.engines[0]) == TRIB_OK && trib_engine_destroy(self.engines[1]) == TRIB_OK ? 0 : 1;
}
