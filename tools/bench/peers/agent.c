/*
 * agent.c - the commands of agent.h. The measured code allocates and writes nothing: the times are kept and printed
 * after the last iteration, and a barrier of the peer ends each command, so that no rank sleeps while another one
 * still needs it.
 */
#include "tools/bench/peers/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ITERATIONS_MAX 100000
#define ALIGNMENT 4096

typedef struct agent {
    const agent_peer *peer;
    int in;
    FILE *out;
    char line[1024];
    size_t used; /* bytes of the line so far */
    agent_tensor *tensors;
    size_t count;
    void *memory; /* memory of all tensors */
    size_t bytes;
} agent;

int64_t agent_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

agent_op agent_which(void)
{
    const char *name = getenv("AGENT_OP");
    return name == NULL || strcmp(name, "all_reduce") == 0 ? AGENT_ALL_REDUCE
           : strcmp(name, "all_gather") == 0               ? AGENT_ALL_GATHER
                                                           : AGENT_REDUCE_SCATTER;
}

void *agent_allocate(void *self, size_t bytes)
{
    (void)self;
    void *memory = NULL;
    return posix_memalign(&memory, ALIGNMENT, bytes) == 0 ? memory : NULL;
}

void agent_release(void *self, void *memory)
{
    (void)self;
    free(memory);
}

void agent_await_input(void *self, int fd)
{
    (void)self;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (poll(&one, 1, -1) < 0 && errno == EINTR) {}
}

static _Noreturn void die(const char *what, const char *detail)
{
    fprintf(stderr, "agent: %s: %s\n", what, detail);
    exit(1);
}

static size_t pad_count(uint64_t count)
{
    return ((size_t)count * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void unload_tensors(agent *self)
{
    if (self->count > 0) {
        self->peer->unload(self->peer->self, self->tensors, self->count);
        self->peer->release(self->peer->self, self->memory);
        free(self->tensors);
    }
    self->tensors = NULL;
    self->memory = NULL;
    self->count = 0;
    self->bytes = 0;
}

/* Reads the tensors; other lines (comments, the head) are skipped. */
static void read_tensors(agent *self, const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        die(path, strerror(errno));
    }
    char line[512];
    size_t room = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        agent_tensor one = {.count = 0};
        if (line[0] == '#' || sscanf(line, "%159[^,],%" SCNu64 ",%lf", one.name, &one.count, &one.ready_us) != 3) {
            continue;
        }
        if (self->count == room) {
            room = room == 0 ? 64 : room * 2;
            self->tensors = realloc(self->tensors, room * sizeof one);
            if (self->tensors == NULL) {
                die(path, "out of memory");
            }
        }
        const uint64_t ranks = (uint64_t)self->peer->size;
        if (agent_which() != AGENT_ALL_REDUCE) {
            one.slice = one.count < ranks ? 1 : one.count / ranks;
            one.count = one.slice * ranks;
        }
        self->tensors[self->count++] = one;
        self->bytes += pad_count(one.count) + pad_count(one.slice);
    }
    fclose(file);
    if (self->count == 0) {
        die(path, "has no tensors");
    }
}

static void load_tensors(agent *self, const char *path)
{
    unload_tensors(self);
    read_tensors(self, path);
    self->memory = self->peer->allocate(self->peer->self, self->bytes > 0 ? self->bytes : 1);
    if (self->memory == NULL) {
        die(path, "out of memory for the tensors");
    }
    memset(self->memory, 0, self->bytes);
    char *at = self->memory;
    for (size_t i = 0; i < self->count; i++) {
        self->tensors[i].data = (float *)(void *)at;
        at += pad_count(self->tensors[i].count);
        self->tensors[i].result = (float *)(void *)at;
        at += pad_count(self->tensors[i].slice);
    }
    self->peer->load(self->peer->self, self->tensors, self->count);
    fprintf(self->out, "ok\n");
}

/* Sleeps until a tensor is ready; a time in the past returns at once. */
static void wait_until(int64_t at_ns)
{
    struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
}

/* Runs one step: submits every tensor and waits for all. */
static void run_step(agent *self, double scale, int64_t times[4])
{
    const agent_peer *peer = self->peer;
    times[0] = agent_now_ns();
    for (size_t i = 0; i < self->count; i++) {
        agent_tensor *tensor = &self->tensors[i];
        if (scale > 0) {
            wait_until(times[0] + (int64_t)(tensor->ready_us * 1e3 * scale));
        }
        tensor->in_ns = agent_now_ns();
        peer->hand_in(peer->self, tensor, i);
    }
    peer->finish(peer->self);
    times[1] = agent_now_ns();
    times[2] = self->tensors[self->count - 1].in_ns;
    times[3] = self->tensors[self->count - 1].done_ns;
}

/* Returns a small whole number; sums of these are exact in any order. */
static float input_value(size_t tensor, uint64_t index, int rank)
{
    return (float)((index + tensor) % 1009) + (float)rank;
}

/* Returns the first wrong element of a tensor's result, or -1. */
static int64_t first_wrong(const agent *self, size_t t)
{
    const agent_tensor *tensor = &self->tensors[t];
    const agent_op op = agent_which();
    const int size = self->peer->size;
    const float ranks = (float)(size * (size - 1) / 2);
    const uint64_t before = op == AGENT_REDUCE_SCATTER ? (uint64_t)self->peer->rank * tensor->slice : 0;
    const float *data = op == AGENT_REDUCE_SCATTER ? tensor->result : tensor->data;
    for (uint64_t i = 0; i < (op == AGENT_REDUCE_SCATTER ? tensor->slice : tensor->count); i++) {
        const float wanted = op == AGENT_ALL_GATHER ? input_value(t, i, (int)(i / tensor->slice))
                                                    : input_value(t, before + i, 0) * (float)size + ranks;
        if (data[i] != wanted) {
            return (int64_t)i;
        }
    }
    return -1;
}

static void check_sums(agent *self)
{
    const agent_peer *peer = self->peer;
    for (size_t t = 0; t < self->count; t++) {
        for (uint64_t i = 0; i < self->tensors[t].count; i++) {
            self->tensors[t].data[i] = input_value(t, i, peer->rank);
        }
    }
    int64_t times[4];
    peer->barrier(peer->self);
    run_step(self, 0, times);
    peer->barrier(peer->self);
    for (size_t t = 0; t < self->count; t++) {
        const int64_t wrong = first_wrong(self, t);
        if (wrong >= 0) {
            fprintf(self->out, "wrong element %" PRId64 " of %s\n", wrong, self->tensors[t].name);
            return;
        }
    }
    memset(self->memory, 0, self->bytes);
    fprintf(self->out, "ok\n");
}

static double cpu_us(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e6 +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void measure_steps(agent *self, int warmup, int iterations, double scale)
{
    const agent_peer *peer = self->peer;
    int64_t(*times)[4] = calloc((size_t)iterations + 1, sizeof *times);
    if (times == NULL) {
        die("run", "out of memory");
    }
    for (int i = 0; i < warmup; i++) {
        peer->barrier(peer->self);
        run_step(self, scale, times[0]);
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < iterations; i++) {
        peer->barrier(peer->self);
        run_step(self, scale, times[i]);
    }
    getrusage(RUSAGE_SELF, &after);
    peer->barrier(peer->self);
    fprintf(self->out, "times %.0f %ld %ld", cpu_us(&after) - cpu_us(&before), after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw);
    for (int i = 0; i < iterations; i++) {
        fprintf(self->out, " %" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, times[i][0], times[i][1], times[i][2],
                times[i][3]);
    }
    fprintf(self->out, "\n");
    free(times);
}

/* Reads the next line, without its end; false: there are no more. */
static bool next_line(agent *self, char *line, size_t room)
{
    for (;;) {
        char *newline = memchr(self->line, '\n', self->used);
        if (newline != NULL) {
            size_t length = (size_t)(newline - self->line);
            snprintf(line, room, "%.*s", (int)length, self->line);
            self->used -= length + 1;
            memmove(self->line, newline + 1, self->used);
            return true;
        }
        self->peer->await_input(self->peer->self, self->in);
        ssize_t got = read(self->in, self->line + self->used, sizeof self->line - self->used);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
            return false;
        }
        self->used += got > 0 ? (size_t)got : 0;
    }
}

static void run_command(agent *self, const char *line)
{
    int warmup = 0, iterations = 0;
    double scale = 0;
    if (strncmp(line, "load ", 5) == 0) {
        load_tensors(self, line + 5);
    } else if (strcmp(line, "check") == 0 && self->count > 0) {
        check_sums(self);
    } else if (sscanf(line, "run %d %d %lf", &warmup, &iterations, &scale) == 3 && self->count > 0 && warmup >= 0 &&
               iterations >= 1 && iterations <= ITERATIONS_MAX && scale >= 0) {
        measure_steps(self, warmup, iterations, scale);
    } else {
        fprintf(self->out, "what? %s\n", line);
    }
    fflush(self->out);
}

int agent_serve(const agent_peer *peer, const char *prefix)
{
    agent self = {.peer = peer, .in = -1};
    char path[512], line[1024];
    snprintf(path, sizeof path, "%s.%d.in", prefix, peer->rank);
    self.in = open(path, O_RDONLY | O_CLOEXEC);
    if (self.in < 0) {
        die(path, strerror(errno));
    }
    snprintf(path, sizeof path, "%s.%d.out", prefix, peer->rank);
    self.out = fopen(path, "we");
    if (self.out == NULL) {
        die(path, strerror(errno));
    }
    prctl(PR_SET_TIMERSLACK, 1000UL); /* tensors are submitted when they are ready, not 50 us later */
    fprintf(self.out, "ready %d %d\n", peer->rank, peer->size);
    fflush(self.out);
    while (next_line(&self, line, sizeof line) && strcmp(line, "quit") != 0) {
        run_command(&self, line);
    }
    unload_tensors(&self);
    fclose(self.out);
    close(self.in);
    return 0;
}
