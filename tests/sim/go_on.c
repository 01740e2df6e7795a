/* go_on.c - see go_on.h. */
#include "tests/sim/go_on.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/sanitized.h"

int go_on_planted;
volatile uint64_t *go_on_seed;

enum { STREAMS = 5, ROUNDS = 6, AHEAD = 3, COUNT_MAX = 20000, PHASES = 2 };

/* The streams of a worker. BYTES gathers bytes whose number only the worker knows; ONCE names no tensor. */
enum { SUM, AVERAGE, BROADCAST, ONCE, BYTES };

typedef struct slot {
    struct worker *worker;
    uint32_t stream, round, phase;
    trib_op *op;
    int32_t *input, *output;
    trib_status status; /* TRIB_PENDING: not over */
    uint32_t mask;      /* of the contributors' ranks */
} slot;

typedef struct worker {
    struct bed *bed;
    uint32_t index, phase, done, changes;
    uint32_t begun[STREAMS]; /* rounds of this phase, which begin in their order whatever ends first */
    bool is_there;
    slot slots[PHASES][STREAMS][ROUNDS];
} worker;

typedef struct bed {
    sim_job *job;
    const go_on_setting *what;
    uint64_t seed;
    sim_devices devices;
    worker workers[GO_ON_WORKERS_MAX];
    char text[TRIB_ERROR_TEXT_SIZE + 160]; /* the first thing that went wrong */
} bed;

static void note(bed *self, const slot *at, const char *what)
{
    if (self->text[0] == '\0') {
        snprintf(self->text, sizeof self->text, "rank %u, phase %u, stream %u, round %u: %.380s", at->worker->index,
                 at->phase, at->stream, at->round, what);
    }
}

static uint32_t count_of(const slot *at, uint32_t rank)
{
    static const uint32_t counts[STREAMS] = {COUNT_MAX, 9000, 5000, 3000, 0};
    return at->stream == BYTES ? 50 + 13 * rank + at->round : counts[at->stream];
}

static int32_t value(const slot *at, uint32_t rank, uint32_t i)
{
    return (int32_t)((at->phase * 15485863 + at->stream * 7919 + at->round * 104729 + rank * 1299709 + i * 31) %
                     1000003);
}

static uint32_t root_of(const slot *at)
{
    return at->round % (at->worker->bed->what->workers - (at->worker->bed->what->joins ? 1 : 0));
}

static int32_t expected(const slot *at, uint32_t i, uint32_t count)
{
    int64_t sum = 0;
    for (uint32_t rank = 0; rank < GO_ON_WORKERS_MAX; rank++) {
        sum += (at->mask >> rank & 1) != 0 ? value(at, rank, i) : 0;
    }
    return (int32_t)(at->stream == AVERAGE ? sum / count : sum);
}

static void check_bytes(slot *at)
{
    void *data = NULL;
    uint64_t bytes = 0, before = 0;
    for (uint32_t rank = 0; rank < GO_ON_WORKERS_MAX; rank++) {
        before += (at->mask >> rank & 1) != 0 ? count_of(at, rank) * sizeof(int32_t) : 0;
    }
    if (trib_op_output(at->op, &data, &bytes, NULL) != TRIB_OK || bytes != before) {
        note(at->worker->bed, at, "other bytes than the contributors'");
        return;
    }
    const int32_t *next = data;
    bool is_right = true;
    for (uint32_t rank = 0; rank < GO_ON_WORKERS_MAX; rank++) {
        for (uint32_t i = 0; (at->mask >> rank & 1) != 0 && i < count_of(at, rank); i++) {
            is_right = is_right && *next++ == value(at, rank, i);
        }
    }
    if (!is_right) {
        note(at->worker->bed, at, "a worker's bytes are wrong");
    }
}

static void begin(slot *at);
static void begin_phase(worker *me, uint32_t phase);

/* The program's boundary, after all rounds of the first phase. */
static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    if (now->status == TRIB_OK) {
        begin_phase(me, 1);
    } else {
        note(me->bed, &me->slots[0][0][0], now->text);
    }
}

static void advance(worker *me)
{
    trib_error error;
    if (trib_membership_advance(me->bed->job->members[me->index].engine, on_advanced, me, &error) != TRIB_OK) {
        note(me->bed, &me->slots[0][0][0], error.text);
    }
}

static void over(slot *at)
{
    worker *me = at->worker;
    bed *self = me->bed;
    if (me->begun[at->stream] < ROUNDS) {
        begin(&me->slots[at->phase][at->stream][me->begun[at->stream]++]);
    }
    if (++me->done == STREAMS * ROUNDS && self->what->joins && at->phase == 0) {
        advance(me);
    }
}

static void check(slot *at, uint32_t count)
{
    const uint32_t elements = count_of(at, at->worker->index);
    if (at->stream == BROADCAST && at->mask != 1u << root_of(at)) {
        note(at->worker->bed, at, "another root");
    }
    if (at->stream != BROADCAST && (at->mask >> at->worker->index & 1) == 0) {
        note(at->worker->bed, at, "this worker's own contribution is not told");
    }
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < elements && at->stream != BYTES; i++) {
        wrong += at->output[i] != expected(at, i, count);
    }
    if (wrong > 0) {
        note(at->worker->bed, at, "the result is not that of the contributors");
    }
}

static void on_done(const trib_result *result, void *user)
{
    slot *at = user;
    bed *self = at->worker->bed;
    const bool gave_up = self->what->gives_up && (result->status == TRIB_CANCELLED || result->status == TRIB_TIMEOUT);
    const bool lacks_root =
        result->status == TRIB_PEER_LEFT && at->stream == BROADCAST && self->job->members[root_of(at)].killed;
    if (at->status != TRIB_PENDING) {
        note(self, at, "it was over before");
    }
    at->status = result->status;
    if (result->status != TRIB_OK) {
        if (!gave_up && !lacks_root) {
            note(self, at, result->text);
        }
        over(at);
        return;
    }
    int32_t ranks[GO_ON_WORKERS_MAX];
    size_t count = 0;
    trib_error error = {.text = ""};
    if (trib_op_contributors(at->op, ranks, GO_ON_WORKERS_MAX, &count, &error) != TRIB_OK ||
        count != result->contributors || count > GO_ON_WORKERS_MAX) {
        note(self, at, error.text);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        at->mask |= 1u << ranks[i];
    }
    check(at, result->contributors);
    if (at->output != NULL) {
        memset(at->output, 0xa5, count_of(at, at->worker->index) * sizeof *at->output);
    }
    over(at);
}

static trib_status submit(const slot *at, trib_op_params *params, trib_op **op_out, trib_error *error)
{
    static const char *const names[STREAMS] = {"a", "b", "c", "d", "e"};
    trib_engine *engine = at->worker->bed->job->members[at->worker->index].engine;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = names[at->stream];
    desc.dtype = TRIB_INT32;
    desc.count = count_of(at, at->worker->index);
    desc.flags = at->worker->bed->what->on_devices ? TRIB_TENSOR_DEVICE : 0;
    if (at->stream == BYTES) {
        params->output = NULL;
        params->input_bytes = desc.count * sizeof(int32_t);
        return trib_all_gather_bytes(engine, params, op_out, error);
    }
    if (at->stream == ONCE) {
        params->flags = TRIB_OP_ONCE;
        params->dtype = TRIB_INT32;
        params->bytes = desc.count * sizeof(int32_t);
        return trib_push_pull(engine, params, op_out, error);
    }
    const trib_status status = trib_tensor_declare(engine, &desc, &params->tensor, error);
    return status != TRIB_OK         ? status
           : at->stream == BROADCAST ? trib_broadcast(engine, params, op_out, error)
                                     : trib_push_pull(engine, params, op_out, error);
}

static void begin(slot *at)
{
    worker *me = at->worker;
    const bed *self = me->bed;
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    at->input = calloc(COUNT_MAX, sizeof(int32_t));
    at->output = self->what->in_place || at->stream == BYTES ? at->input : calloc(COUNT_MAX, sizeof(int32_t));
    for (uint32_t i = 0; i < count_of(at, me->index); i++) {
        at->input[i] = value(at, me->index, i);
    }
    const bool is_there = self->what->on_devices && at->stream < ONCE; /* in a device's memory */
    params.input = is_there ? sim_devices_address(&self->devices, at->input) : at->input;
    params.output = is_there ? sim_devices_address(&self->devices, at->output) : at->output;
    params.done_cb = on_done;
    params.user = at;
    params.root = (int32_t)root_of(at);
    params.stream = is_there && at->round % 2 == 0 ? self->devices.stream : NULL;
    params.reduce = at->stream == AVERAGE ? TRIB_AVG : TRIB_SUM;
    const uint32_t drawn = (uint32_t)((self->seed * 31 + at->stream * 7 + at->round * 13 + me->index * 3) % 29);
    const bool gives_up = self->what->gives_up && at->stream < ONCE;
    params.timeout_ns = gives_up && drawn == 0 ? 1000000 : 0;
    if (submit(at, &params, &at->op, &error) != TRIB_OK) {
        note(me->bed, at, error.text);
    }
    if (gives_up && drawn == 1) {
        trib_op_cancel(at->op);
    }
}

static void begin_phase(worker *me, uint32_t phase)
{
    me->phase = phase;
    me->done = 0;
    for (uint32_t s = 0; s < STREAMS; s++) {
        me->begun[s] = AHEAD;
        for (uint32_t round = 0; round < AHEAD; round++) {
            begin(&me->slots[phase][s][round]);
        }
    }
}

/* Tells of the end of an epoch, and of the next one: ranks stay as they were. */
static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    me->changes += now->status == TRIB_OK;
    if (now->rank != (int32_t)me->index || (now->status != TRIB_OK && now->status != TRIB_EPOCH_CHANGED)) {
        note(me->bed, &me->slots[0][0][0], "another rank, or an unknown change");
    }
}

static void open_worker(bed *self, uint32_t index, uint32_t phase)
{
    worker *me = &self->workers[index];
    trib_engine *engine = self->job->members[index].engine;
    trib_membership now = {.struct_size = sizeof now};
    me->is_there = true;
    assert_int_equal(trib_membership_watch(engine, on_changed, me, NULL), TRIB_OK);
    assert_int_equal(trib_membership_get(engine, &now), TRIB_OK);
    assert_int_equal(now.rank, index);
    begin_phase(me, phase);
}

static bool is_over(sim_job *job, void *argument)
{
    bed *self = argument;
    const uint32_t last = self->what->workers - 1;
    if (self->what->joins && job->members[last].ready_told && !self->workers[last].is_there) {
        open_worker(self, last, 1);
    }
    for (uint32_t i = 0; i < self->what->workers && self->text[0] == '\0'; i++) {
        const worker *me = &self->workers[i];
        const bool is_late = i == last && self->what->joins && self->what->deaths > 0 && !me->is_there;
        if (!job->members[i].killed && !is_late &&
            (me->done < STREAMS * ROUNDS || me->phase != (self->what->joins ? 1 : 0))) {
            return false;
        }
    }
    return true;
}

static void give_in(const bed *self, const char *what)
{
    const go_on_setting *of = self->what;
    if (go_on_planted != BUG_NONE) {
        _exit(1);
    }
    fail_msg("%u workers, %u servers, %u reactors, %u deaths, %s, %s, %s, %s%s, seed %llu: %s", of->workers,
             of->servers, of->reactors, of->deaths, of->in_place ? "in place" : "apart",
             of->colocated ? "colocated" : "servers only", of->joins ? "one joins" : "nobody joins",
             of->on_devices ? "on devices" : "on hosts", of->shares ? ", two a machine" : "",
             (unsigned long long)self->seed, what);
}

/* All that are left have the same contributors, with every one of them that has taken part, or none has a result. */
static void check_alike(const bed *self, uint32_t phase, uint32_t stream, uint32_t round)
{
    const slot *first = NULL;
    uint32_t left = 0;
    for (uint32_t i = 0; i < self->what->workers; i++) {
        const slot *at = &self->workers[i].slots[phase][stream][round];
        if (self->job->members[i].killed || !self->workers[i].is_there ||
            (phase == 0 && self->what->joins && i + 1 == self->what->workers) ||
            (self->what->gives_up && at->status != TRIB_OK)) {
            continue;
        }
        left |= 1u << i;
        if (first != NULL && (first->status != at->status || first->mask != at->mask)) {
            char text[160];
            snprintf(text, sizeof text, "phase %u, stream %u, round %u: %s of %x on rank %u, %s of %x on rank %u",
                     phase, stream, round, trib_status_name(first->status), first->mask, first->worker->index,
                     trib_status_name(at->status), at->mask, i);
            give_in(self, text);
        }
        first = at;
    }
    if (first != NULL && first->status == TRIB_OK && stream != BROADCAST && (first->mask & left) != left) {
        give_in(self, "a worker that is left is no contributor");
    }
}

static void joins_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->worker_count--;
    config->rank = member == job->config.workers - 1 ? -1 : config->rank;
}

static bed *open_bed(const go_on_setting *what, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(what->workers, what->servers);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    config.engine.colocate = what->colocated ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.reactors = what->reactors;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 16384;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.tweak = what->joins ? joins_later : NULL;
    config.per_machine = what->shares ? 2 : 0;
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->what = what;
    self->seed = seed;
    for (uint32_t i = 0; i < GO_ON_WORKERS_MAX; i++) {
        self->workers[i].bed = self;
        self->workers[i].index = i;
        for (uint32_t k = 0; k < PHASES * STREAMS * ROUNDS; k++) {
            self->workers[i].slots[k / (STREAMS * ROUNDS)][k / ROUNDS % STREAMS][k % ROUNDS] =
                (slot){.worker = &self->workers[i],
                       .phase = k / (STREAMS * ROUNDS),
                       .stream = k / ROUNDS % STREAMS,
                       .round = k % ROUNDS,
                       .status = TRIB_PENDING};
        }
    }
    if (what->on_devices) {
        sim_devices_open(&self->devices, &config, what->shares && (what->workers - what->joins) % 2 == 0 ? 2 : 1);
    }
    trib_error error = {.status = TRIB_OK};
    self->job = what->joins ? sim_job_open(&config, &error) : sim_bed_open(&config);
    assert_non_null(self->job);
    sim_devices_attach(&self->devices, self->job);
    if (what->joins) {
        (void)sim_job_run(self->job, SECOND, NULL, NULL); /* the others are at work, and the last worker waits */
    }
    for (uint32_t i = 0; i < what->workers - (what->joins ? 1 : 0); i++) {
        open_worker(self, i, 0);
    }
    return self;
}

static void close_bed(bed *self)
{
    for (uint32_t i = 0; i < GO_ON_WORKERS_MAX * PHASES * STREAMS * ROUNDS; i++) {
        const slot *at =
            &self->workers[i / (PHASES * STREAMS * ROUNDS)].slots[0][0][0] + i % (PHASES * STREAMS * ROUNDS);
        if (at->stream == BYTES && at->status == TRIB_OK && !self->job->members[at->worker->index].killed) {
            check_bytes((slot *)(uintptr_t)at);
        }
        trib_op_release(at->op);
    }
    if (self->text[0] != '\0') {
        give_in(self, self->text);
    }
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    sim_devices_close(&self->devices);
    for (uint32_t i = 0; i < GO_ON_WORKERS_MAX * PHASES * STREAMS * ROUNDS; i++) {
        const slot *at =
            &self->workers[i / (PHASES * STREAMS * ROUNDS)].slots[0][0][0] + i % (PHASES * STREAMS * ROUNDS);
        free(at->output != at->input ? at->output : NULL);
        free(at->input);
    }
    free(self);
}

/* Returns the virtual time that it took. */
static int64_t run(const go_on_setting *what, const int64_t *die_ns, uint64_t seed)
{
    bed *self = open_bed(what, seed);
    const int64_t began_ns = trib_sim_now(self->job->sim);
    for (uint32_t i = 0; i < what->deaths && i < GO_ON_DEATHS_MAX; i++) {
        (void)sim_job_run(self->job, began_ns + die_ns[i], is_over, self);
        sim_job_kill(self->job,
                     i < what->first_dies ? i : what->workers - (what->joins ? 2 : 1) - (i - what->first_dies));
    }
    const bool done = sim_job_run(self->job, began_ns + 200 * SECOND, is_over, self);
    const int64_t took_ns = trib_sim_now(self->job->sim) - began_ns;
    if (!done || self->text[0] != '\0') {
        give_in(self, done ? self->text : "not over");
    }
    for (uint32_t k = 0; k < PHASES * STREAMS * ROUNDS; k++) {
        check_alike(self, k / (STREAMS * ROUNDS), k / ROUNDS % STREAMS, k % ROUNDS);
    }
    close_bed(self);
    return took_ns;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

void go_on_sweep(const go_on_setting *what, uint32_t times)
{
    const int64_t none[GO_ON_DEATHS_MAX] = {0};
    go_on_setting lives = *what;
    lives.deaths = 0;
    const uint64_t span_ns = (uint64_t)run(&lives, none, 1) + 1;
    uint64_t state = what->workers * 31 + what->servers + what->reactors;
    for (uint32_t i = 0; i < times; i++) {
        /* the second one dies while the others are at work, or while the membership changes */
        const uint64_t later_ns = i % 2 == 0 ? span_ns : 8 * SECOND;
        int64_t die_ns[GO_ON_DEATHS_MAX] = {(int64_t)(next_random(&state) % span_ns)};
        for (uint32_t k = 1; k < GO_ON_DEATHS_MAX; k++) {
            die_ns[k] = die_ns[k - 1] + (int64_t)(next_random(&state) % later_ns);
        }
        if (go_on_seed != NULL) {
            *go_on_seed = i + 1;
        }
        if (i % SWEEP_STRIDE == 0) {
            (void)run(what, die_ns, i + 1);
        }
    }
}
