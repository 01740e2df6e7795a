/*
 * soak_worker.c - a worker of tests/process/soak.py: it exchanges tensors without end, checks every result, and prints
 * each outcome, so that the script can compare those of all workers.
 *
 *     soak_worker ROUNDS GATE [PACE_US]
 *
 * A phase has ROUNDS rounds of each tensor. It ends at a boundary, where workers and servers may join. When a file GATE
 * is there all workers end together. Contributions are a formula of the rank, the round and the element; a result is
 * compared with the formula's closed form over the ranks that the result names. Nothing is summed for that.
 *
 * Prints one line for each event, with the time of CLOCK_MONOTONIC in ns:
 *
 *     m NS STATUS EPOCH RANK WORKERS SERVERS TEXT   the membership has changed, or the job has ended
 *     e NS PHASE RANK                               a phase begins
 *     o NS PHASE TENSOR ROUND STATUS RANKS          an operation is over; the ranks as bits
 *     w NS TEXT                                     a result is wrong, or an operation does not end
 *     l NS TEXT                                     a line of the log
 *     f NS STATUS TEXT                              the worker ends with that error
 *     d NS TEXT                                     the worker ends as the others do
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tributary.h>
#include <unistd.h>

enum { TENSORS = 5, AHEAD = 2, RANKS_MAX = 64 };
static const int64_t PATIENCE_NS = INT64_C(120000000000); /* an operation that takes longer does not end */

typedef struct shape {
    const char *name;
    trib_dtype dtype;
    uint64_t count;
    trib_reduce reduce;
    bool is_broadcast, in_place;
} shape;

static const shape shapes[TENSORS] = {
    {.name = "wide", .dtype = TRIB_INT32, .count = 200003, .reduce = TRIB_SUM},
    {.name = "place", .dtype = TRIB_FLOAT32, .count = 70001, .reduce = TRIB_SUM, .in_place = true},
    {.name = "mean", .dtype = TRIB_FLOAT64, .count = 9001, .reduce = TRIB_AVG},
    {.name = "most", .dtype = TRIB_INT64, .count = 1, .reduce = TRIB_MAX},
    {.name = "given", .dtype = TRIB_INT32, .count = 40009, .is_broadcast = true},
};

typedef struct slot {
    trib_op *op;
    trib_status status; /* of the call that submits it */
    trib_error error;
    void *input, *output;
} slot;

typedef struct worker {
    trib_engine *engine;
    trib_tensor *tensors[TENSORS], *agree;
    slot slots[TENSORS][AHEAD];
    bool changes, stays; /* operations fail at a loss; go on after it */
    int32_t rank, roots;
    int64_t phase;
    uint32_t rounds;
    long pace_us;
    const char *gate;
    bool is_wrong;
} worker;

static __attribute__((format(printf, 2, 3))) void say(char kind, const char *format, ...)
{
    char line[TRIB_ERROR_TEXT_SIZE + 256];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "%c %lld ", kind, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    length = length < (int)sizeof line - 1 ? length : (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)length) != length) { /* one call, so that threads' lines stay whole */
        _exit(4);
    }
}

/* ---- The formula: value(rank, i) = base(i) + weight(rank) * slope(i), small enough to be exact in every type ---- */

static uint32_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + c * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(x >> 40);
}

static int64_t base(uint32_t tensor, uint64_t key, uint64_t i)
{
    return mix(key, i, tensor) & 0x7fff;
}

static int64_t slope(uint64_t i)
{
    return (int64_t)(i % 61) + 1;
}

static int64_t weight(uint64_t key, int32_t rank)
{
    return mix(key, (uint64_t)rank, 77) & 0xff;
}

static uint64_t key_of(const worker *self, uint32_t round)
{
    return (uint64_t)self->phase * 100003 + round;
}

static void put(void *buffer, trib_dtype dtype, uint64_t i, double value)
{
    if (dtype == TRIB_FLOAT32) {
        ((float *)buffer)[i] = (float)value;
    } else if (dtype == TRIB_FLOAT64) {
        ((double *)buffer)[i] = value;
    } else if (dtype == TRIB_INT64) {
        ((int64_t *)buffer)[i] = (int64_t)value;
    } else {
        ((int32_t *)buffer)[i] = (int32_t)value;
    }
}

static double get(const void *buffer, trib_dtype dtype, uint64_t i)
{
    return dtype == TRIB_FLOAT32   ? (double)((const float *)buffer)[i]
           : dtype == TRIB_FLOAT64 ? ((const double *)buffer)[i]
           : dtype == TRIB_INT64   ? (double)((const int64_t *)buffer)[i]
                                   : (double)((const int32_t *)buffer)[i];
}

/* ---- Operations ---- */

/* With TRIB_SURVIVE=continue the root may be lost: the operation ends with TRIB_PEER_LEFT on all then. */
static int32_t root_of(const worker *self, uint32_t round)
{
    return (int32_t)round % self->roots;
}

static void submit(worker *self, uint32_t tensor, uint32_t round)
{
    const shape *what = &shapes[tensor];
    slot *at = &self->slots[tensor][round % AHEAD];
    const uint64_t key = key_of(self, round);
    const int64_t own = weight(key, self->rank);
    for (uint64_t i = 0; i < what->count; i++) {
        put(at->input, what->dtype, i, (double)(base(tensor, key, i) + own * slope(i)));
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[tensor];
    params.input = at->input;
    params.output = at->output;
    params.reduce = what->reduce;
    params.root = root_of(self, round);
    at->op = NULL;
    at->status = what->is_broadcast ? trib_broadcast(self->engine, &params, &at->op, &at->error)
                                    : trib_push_pull(self->engine, &params, &at->op, &at->error);
}

/* Compares a result with the closed form over the ranks in it. */
static void check(worker *self, uint32_t tensor, uint32_t round, const int32_t *ranks, size_t count)
{
    const shape *what = &shapes[tensor];
    const void *output = self->slots[tensor][round % AHEAD].output;
    const uint64_t key = key_of(self, round);
    int64_t weights = 0, most = 0;
    for (size_t k = 0; k < count; k++) {
        const int64_t one = weight(key, ranks[k]);
        weights += one;
        most = one > most ? one : most;
    }
    for (uint64_t i = 0; i < what->count; i++) {
        const int64_t b = base(tensor, key, i);
        const double sum = (double)(b * (int64_t)count + weights * slope(i));
        const double expected = what->is_broadcast         ? (double)(b + weight(key, root_of(self, round)) * slope(i))
                                : what->reduce == TRIB_MAX ? (double)(b + most * slope(i))
                                : what->reduce == TRIB_AVG ? sum / (double)count
                                                           : sum;
        const double got = get(output, what->dtype, i);
        if (got != expected) {
            say('w', "%s, phase %lld, round %u, element %llu: %.17g, not %.17g (%zu contributors)", what->name,
                (long long)self->phase, round, (unsigned long long)i, got, expected, count);
            self->is_wrong = true;
            return;
        }
    }
}

/* Waits for the operation's end, checks the result and tells of it. */
static trib_status finish(worker *self, uint32_t tensor, uint32_t round, trib_error *error_out)
{
    slot *at = &self->slots[tensor][round % AHEAD];
    int32_t ranks[RANKS_MAX];
    size_t count = 0;
    uint64_t mask = 0;
    trib_error error = at->error;
    trib_status status = at->status == TRIB_OK ? trib_op_wait(at->op, PATIENCE_NS, &error) : at->status;
    if (status == TRIB_OK &&
        (trib_op_contributors(at->op, ranks, RANKS_MAX, &count, &error) != TRIB_OK || count == 0)) {
        say('w', "%s: a result without contributors: %s", shapes[tensor].name, error.text);
        self->is_wrong = true;
    }
    for (size_t k = 0; k < count; k++) {
        mask |= UINT64_C(1) << ranks[k] % 64;
    }
    if (status == TRIB_OK) {
        check(self, tensor, round, ranks, count);
    } else if (status == TRIB_TIMEOUT) {
        say('w', "%s, phase %lld, round %u does not end", shapes[tensor].name, (long long)self->phase, round);
        _exit(3); /* the engine still has the buffers */
    }
    say('o', "%lld %u %u %s %llx", (long long)self->phase, tensor, round, trib_status_name(status),
        (unsigned long long)mask);
    trib_op_release(at->op);
    if (status != TRIB_OK) {
        *error_out = error;
    }
    const bool lacks_root = shapes[tensor].is_broadcast && self->stays && status == TRIB_PEER_LEFT;
    return lacks_root ? TRIB_OK : status;
}

/* ---- Phases ---- */

/* All workers get the number of the phase, which those that have joined lack, and whether one of them has seen the
 * gate open. */
static trib_status agree(worker *self, bool *ends_out, trib_error *error)
{
    int64_t both[2] = {self->phase, access(self->gate, F_OK) == 0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->agree;
    params.input = params.output = both;
    params.reduce = TRIB_MAX;
    trib_op *op = NULL;
    trib_status status = trib_push_pull(self->engine, &params, &op, error);
    status = status == TRIB_OK ? trib_op_wait(op, PATIENCE_NS, error) : status;
    if (status == TRIB_TIMEOUT) {
        say('w', "the agreement about a phase does not end");
        _exit(3);
    }
    trib_op_release(op);
    self->phase = status == TRIB_OK ? both[0] : self->phase;
    *ends_out = status == TRIB_OK && both[1] != 0;
    return status;
}

static trib_status exchange(worker *self, trib_error *error)
{
    trib_status worst = TRIB_OK;
    uint32_t begun[TENSORS] = {0};
    bool some = true;
    for (uint32_t round = 0; some && round < self->rounds; round++) {
        some = false;
        for (uint32_t t = 0; t < TENSORS; t++) {
            while (worst == TRIB_OK && begun[t] < self->rounds && begun[t] < round + AHEAD) {
                submit(self, t, begun[t]++);
            }
        }
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (round < begun[t]) {
                const trib_status status = finish(self, t, round, error);
                worst = status != TRIB_OK ? status : worst;
                some = true;
            }
        }
        usleep((useconds_t)self->pace_us);
    }
    return worst;
}

static void tell(const trib_membership *now)
{
    say('m', "%s %u %d %d %d %s", trib_status_name(now->status), now->epoch, now->rank, now->worker_count,
        now->server_count, now->text);
}

static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    (void)user;
    tell(now);
}

static void take(worker *self, const trib_membership *now)
{
    self->rank = now->rank;
    self->roots = self->stays ? self->roots : now->worker_count;
    tell(now);
}

static trib_status advance(worker *self, trib_error *error)
{
    trib_membership now = {.struct_size = sizeof now};
    trib_status status = trib_membership_advance(self->engine, NULL, NULL, error);
    status = status == TRIB_OK ? trib_membership_wait(self->engine, PATIENCE_NS, &now, error) : status;
    if (status == TRIB_TIMEOUT) {
        say('w', "a boundary does not end");
        _exit(3);
    }
    if (status == TRIB_OK) {
        take(self, &now);
    }
    return status;
}

static trib_status work(worker *self, trib_error *error)
{
    trib_status status = TRIB_OK;
    for (bool ends = false; !self->is_wrong; self->phase++) {
        status = agree(self, &ends, error);
        if (status == TRIB_OK && ends) {
            return TRIB_OK;
        }
        if (status == TRIB_OK) {
            say('e', "%lld %d", (long long)self->phase, self->rank);
            status = exchange(self, error);
        }
        if (status == TRIB_EPOCH_CHANGED || (status == TRIB_OK && (self->changes || self->stays))) {
            do {
                status = self->stays && status != TRIB_OK ? status : advance(self, error);
            } while (status == TRIB_EPOCH_CHANGED && self->changes);
        }
        if (status != TRIB_OK) {
            return status;
        }
    }
    return status;
}

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    say('l', "%s", line);
}

/* ---- Beginning and end ---- */

static trib_status declare(worker *self, const shape *what, trib_tensor **tensor_out, trib_error *error)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = what->name;
    desc.dtype = what->dtype;
    desc.count = what->count;
    return trib_tensor_declare(self->engine, &desc, tensor_out, error);
}

static trib_status prepare(worker *self, trib_error *error)
{
    static const shape agreement = {.name = "agree", .dtype = TRIB_INT64, .count = 2};
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_status status = trib_config_from_env(&config, error);
    config.log_cb = on_log;
    self->changes = config.survive == TRIB_SURVIVE_WORKERS;
    self->stays = config.survive == TRIB_SURVIVE_CONTINUE;
    self->roots = config.worker_count;
    status = status == TRIB_OK ? trib_engine_create(&config, &self->engine, error) : status;
    status = status == TRIB_OK ? declare(self, &agreement, &self->agree, error) : status;
    for (uint32_t t = 0; t < TENSORS && status == TRIB_OK; t++) {
        status = declare(self, &shapes[t], &self->tensors[t], error);
        for (uint32_t k = 0; k < AHEAD; k++) {
            slot *at = &self->slots[t][k];
            const size_t bytes = shapes[t].count * trib_dtype_size(shapes[t].dtype);
            at->input = malloc(bytes);
            at->output = shapes[t].in_place ? at->input : malloc(bytes);
            if (at->input == NULL || at->output == NULL) {
                abort();
            }
        }
    }
    status = status == TRIB_OK ? trib_engine_wait_ready(self->engine, -1, error) : status;
    trib_membership now = {.struct_size = sizeof now};
    status = status == TRIB_OK ? trib_membership_watch(self->engine, on_changed, NULL, error) : status;
    status = status == TRIB_OK ? trib_membership_get(self->engine, &now) : status;
    if (status == TRIB_OK) {
        take(self, &now);
    }
    return status;
}

static void dispose(worker *self)
{
    for (uint32_t k = 0; k < TENSORS * AHEAD; k++) {
        const slot *at = &self->slots[k / AHEAD][k % AHEAD];
        free(at->output != at->input ? at->output : NULL);
        free(at->input);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "Usage: soak_worker ROUNDS GATE [PACE_US]\n");
        return 2;
    }
    worker self = {.rounds = (uint32_t)strtoul(argv[1], NULL, 10),
                   .gate = argv[2],
                   .pace_us = argc > 3 ? strtol(argv[3], NULL, 10) : 0};
    trib_error error = {.status = TRIB_OK};
    trib_status status = prepare(&self, &error);
    status = status == TRIB_OK ? work(&self, &error) : status;
    if (status != TRIB_OK) {
        trib_membership now = {.struct_size = sizeof now};
        const bool is_known = self.engine != NULL && trib_membership_get(self.engine, &now) == TRIB_OK;
        say('f', "%s %s (%s)", trib_status_name(status), error.text, is_known ? now.text : "");
    }
    trib_engine_destroy(self.engine);
    dispose(&self);
    if (status == TRIB_OK && !self.is_wrong) {
        say('d', "with the others");
    }
    return status == TRIB_OK && !self.is_wrong ? 0 : 1;
}
