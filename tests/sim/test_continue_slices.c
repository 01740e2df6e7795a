/*
 * test_continue_slices.c - reduce-scatters and all-to-alls in a job whose operations go on (TRIB_SURVIVE=continue). The
 * loss of a server of its own costs none; the loss of a worker ends those that it cuts short, alike on all that are
 * left. A server joins at a boundary. All that is so for tensors on devices, too.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/membership/coordinator_internal.h"
#include "tests/sim/sim_devices.h"

enum { WORKERS = 3, SERVERS = 2, MEMBERS = WORKERS + SERVERS, STREAMS = 2, ROUNDS = 5, COUNT_MAX = 20000 };
enum { SCATTER, PAIRS };

typedef struct stream {
    struct worker *worker;
    uint32_t index, round;
    trib_status results[2 * ROUNDS]; /* by round; the second half is behind the boundary */
    int32_t *input, *output;
} stream;

typedef struct worker {
    struct bed *bed;
    uint32_t index, over; /* over: streams that have ended, here or at a loss */
    bool has_passed;      /* the boundary */
    uint32_t servers;     /* behind it */
    stream streams[STREAMS];
} worker;

typedef struct bed {
    sim_job *job;
    bool joins; /* the last server comes at the boundary behind the first ROUNDS */
    bool on_devices;
    sim_devices devices;
    worker workers[WORKERS];
    char text[TRIB_ERROR_TEXT_SIZE];
} bed;

/* Elements that go from one worker to another; in a scatter those of the taker's slice. */
static uint32_t count_of(uint32_t index, uint32_t from, uint32_t to)
{
    return index == SCATTER ? 3000 + 1000 * to : 2000 + 100 * from + 10 * to;
}

static int32_t value(const stream *at, uint32_t from, uint32_t i)
{
    return (int32_t)((at->index * 7919 + at->round * 104729 + from * 1299709 + i * 31) % 1000003);
}

static void begin(stream *at);

static void check(const stream *at)
{
    const uint32_t me = at->worker->index;
    uint32_t before = 0, wrong = 0;
    for (uint32_t i = 0; at->index == SCATTER && i < me; i++) {
        before += count_of(SCATTER, 0, i);
    }
    for (uint32_t i = 0; at->index == SCATTER && i < count_of(SCATTER, 0, me); i++) {
        int32_t sum = 0;
        for (uint32_t from = 0; from < WORKERS; from++) {
            sum += value(at, from, before + i);
        }
        wrong += at->output[i] != sum;
    }
    for (uint32_t from = 0, taken = 0; at->index == PAIRS && from < WORKERS; from++) {
        uint32_t given = 0;
        for (uint32_t to = 0; to < me; to++) {
            given += count_of(PAIRS, from, to);
        }
        for (uint32_t i = 0; i < count_of(PAIRS, from, me); i++) {
            wrong += at->output[taken++] != value(at, from, given + i);
        }
    }
    if (wrong > 0) {
        fail_msg("worker %u, stream %u, round %u: %u elements are wrong", me, at->index, at->round, wrong);
    }
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    assert_int_equal(now->status, TRIB_OK);
    me->servers = (uint32_t)now->server_count;
    me->has_passed = true;
    me->over = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        begin(&me->streams[i]);
    }
}

static void on_done(const trib_result *result, void *user)
{
    stream *at = user;
    worker *me = at->worker;
    trib_error error = {.status = TRIB_OK};
    at->results[at->round] = result->status;
    if (result->status == TRIB_OK) {
        check(at);
        at->round++;
    } else {
        snprintf(me->bed->text, sizeof me->bed->text, "%s", result->text);
    }
    if (result->status == TRIB_OK && at->round % ROUNDS != 0) {
        begin(at);
    } else if (++me->over == STREAMS && me->bed->joins && !me->has_passed) {
        trib_engine *engine = me->bed->job->members[me->index].engine;
        assert_int_equal(trib_membership_advance(engine, on_advanced, me, &error), TRIB_OK);
    }
}

static void begin(stream *at)
{
    const worker *me = at->worker;
    const sim_devices *devices = &me->bed->devices;
    trib_engine *engine = me->bed->job->members[me->index].engine;
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_tensor_desc desc;
    uint64_t splits[WORKERS];
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = at->index == SCATTER ? "scatter" : "pairs";
    desc.dtype = TRIB_INT32;
    desc.layout = at->index == SCATTER ? TRIB_SLICES : TRIB_PAIRS;
    desc.count = at->index == SCATTER ? count_of(SCATTER, 0, me->index) : 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        splits[i] = count_of(PAIRS, me->index, i);
    }
    desc.splits = at->index == PAIRS ? splits : NULL;
    desc.split_count = at->index == PAIRS ? WORKERS : 0;
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        at->input[i] = value(at, me->index, i);
        at->output[i] = -1;
    }
    desc.flags = me->bed->on_devices ? TRIB_TENSOR_DEVICE : 0;
    params.stream = me->bed->on_devices && at->round % 2 == 0 ? devices->stream : NULL;
    params.input = sim_devices_address(devices, at->input);
    params.output = sim_devices_address(devices, at->output);
    params.output_bytes = COUNT_MAX * sizeof(int32_t);
    params.done_cb = on_done;
    params.user = at;
    trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, &error);
    if (status == TRIB_OK) {
        status = at->index == SCATTER ? trib_reduce_scatter(engine, &params, NULL, &error)
                                      : trib_all_to_all(engine, &params, NULL, &error);
    }
    if (status != TRIB_OK) { /* pairs of another number of workers are refused */
        assert_true(me->bed->job->members[WORKERS - 1].killed);
        at->results[at->round] = TRIB_PEER_LEFT;
        at->worker->over++;
    }
}

static void comes_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    (void)member;
    config->server_count -= ((const bed *)job->config.user)->joins;
}

static bool founders_are_ready(sim_job *job, void *unused)
{
    (void)unused;
    bool are_ready = true;
    for (uint32_t i = 0; i < MEMBERS - 1; i++) {
        are_ready = are_ready && job->members[i].ready_told;
    }
    return are_ready;
}

static bool one_waits(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[0].engine->coordinator->parked == 1;
}

static void open_bed(bed *self, uint32_t reactors, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
    trib_error error = {.status = TRIB_OK};
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.reactors = reactors;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 16384;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.tweak = comes_later;
    config.user = self;
    if (self->on_devices) {
        sim_devices_open(&self->devices, &config, 1);
    }
    self->job = sim_job_open(&config, &error);
    assert_non_null(self->job);
    sim_devices_attach(&self->devices, self->job);
    trib_sim_process_freeze(self->job->members[MEMBERS - 1].process, self->joins);
    assert_true(sim_job_run(self->job, 30 * SECOND, founders_are_ready, NULL));
    trib_sim_process_freeze(self->job->members[MEMBERS - 1].process, false);
    assert_true(sim_job_run(self->job, 30 * SECOND, self->joins ? one_waits : sim_job_all_ready, NULL));
    for (uint32_t i = 0; i < WORKERS * STREAMS; i++) {
        worker *me = &self->workers[i / STREAMS];
        stream *at = &me->streams[i % STREAMS];
        me->bed = self;
        me->index = i / STREAMS;
        *at = (stream){.worker = me, .index = i % STREAMS, .input = calloc(COUNT_MAX, sizeof(int32_t))};
        at->output = calloc(COUNT_MAX, sizeof(int32_t));
        for (uint32_t round = 0; round < 2 * ROUNDS; round++) {
            at->results[round] = TRIB_PENDING;
        }
        begin(at);
    }
}

static bool is_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool over = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        over = over && (job->members[i].killed ||
                        (self->workers[i].over == STREAMS && (!self->joins || self->workers[i].has_passed)));
    }
    return over;
}

static void close_bed(bed *self)
{
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    sim_devices_close(&self->devices);
    for (uint32_t i = 0; i < WORKERS * STREAMS; i++) {
        free(self->workers[i / STREAMS].streams[i % STREAMS].input);
        free(self->workers[i / STREAMS].streams[i % STREAMS].output);
    }
}

/* Returns the time that it took. dies: a member; MEMBERS: none. */
static int64_t run(bed *self, uint32_t reactors, uint32_t dies, int64_t at_ns, uint64_t seed)
{
    open_bed(self, reactors, seed);
    const int64_t began_ns = trib_sim_now(self->job->sim);
    if (dies < MEMBERS) {
        (void)sim_job_run(self->job, began_ns + at_ns, is_over, self);
        sim_job_kill(self->job, dies);
    }
    if (!sim_job_run(self->job, began_ns + 100 * SECOND, is_over, self)) {
        fail_msg("seed %llu, member %u dies: not over: %s", (unsigned long long)seed, dies, self->text);
    }
    return trib_sim_now(self->job->sim) - began_ns;
}

/* A member dies at 90 moments of a run: of the servers in turn, or the last worker. */
static void die_at_each_moment(bool is_server, void (*judge)(const bed *self, uint32_t kill))
{
    bed still = {.joins = false};
    const int64_t span_ns = run(&still, 1, MEMBERS, 0, 1);
    close_bed(&still);
    for (uint32_t i = 0; i < 90; i++) {
        bed self = {.on_devices = i % 3 == 0};
        const uint32_t dies = is_server ? WORKERS + i % SERVERS : WORKERS - 1;
        (void)run(&self, 1 + i % 2, dies, span_ns * i / 90, i + 1);
        judge(&self, i);
        close_bed(&self);
    }
}

static void check_all_done(const bed *self, uint32_t kill)
{
    for (uint32_t k = 0; k < WORKERS * STREAMS; k++) {
        const stream *at = &self->workers[k / STREAMS].streams[k % STREAMS];
        if (at->round != ROUNDS) {
            fail_msg("kill %u, worker %u, stream %u, round %u: %s", kill, k / STREAMS, at->index, at->round,
                     self->text);
        }
    }
}

static void server_dies(void **state)
{
    (void)state;
    die_at_each_moment(true, check_all_done);
}

/* Both workers that are left have the same result of each round. */
static void check_alike(const bed *self, uint32_t kill)
{
    for (uint32_t k = 0; k < STREAMS * ROUNDS; k++) {
        const uint32_t round = k / STREAMS, index = k % STREAMS;
        if (self->workers[0].streams[index].results[round] != self->workers[1].streams[index].results[round]) {
            fail_msg("kill %u, stream %u, round %u: the results differ", kill, index, round);
        }
    }
}

static void worker_dies(void **state)
{
    (void)state;
    die_at_each_moment(false, check_alike);
}

/* A server of its own joins a job whose operations go on, at the workers' boundary, and sums from then on. */
static void server_joins(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        bed self = {.joins = true, .on_devices = i % 3 == 0};
        const bool dies = i % 2 == 1; /* the one that was there does, while the other one waits, or afterwards */
        (void)run(&self, 1 + i % 2, dies ? WORKERS : MEMBERS, (int64_t)i * 300000, i + 1);
        for (uint32_t k = 0; k < WORKERS; k++) {
            assert_int_equal(self.workers[k].streams[SCATTER].round, 2 * ROUNDS);
            assert_int_equal(self.workers[k].streams[PAIRS].round, 2 * ROUNDS);
            assert_true(dies || self.workers[k].servers == SERVERS); /* after a loss it asks again, perhaps too late */
        }
        close_bed(&self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(server_dies), cmocka_unit_test(worker_dies),
                                       cmocka_unit_test(server_joins)};
    return cmocka_run_group_tests_name("slices go on", tests, NULL, NULL);
}
