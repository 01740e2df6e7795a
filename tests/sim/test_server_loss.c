/*
 * test_server_loss.c - servers die, or are drained, in a job that survives that (TRIB_SURVIVE=servers): no operation
 * fails but those that a worker gives up, and every result is the reference's. Each job is run many times, and its
 * servers go at another moment each time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/container_of.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/server_loss.h"
#include "engine/worker/op.h"
#include "engine/worker/worker_orphan.h"
#include "tests/sim/sim_bed.h"
#include "tests/support/sanitized.h"

enum { WORKERS_MAX = 4, TENSORS = 5, ROUNDS = 6, COUNT_MAX = 40000 };

typedef struct stream {
    struct bed *bed;
    uint32_t rank, tensor, round; /* the round that is under way */
    bool begun;
    int32_t *input, *output;
} stream;

typedef struct bed {
    sim_job *job;
    uint32_t workers, done, failed, wrong;
    bool in_place, mixes; /* mixes: every third round is a broadcast */
    bool hurries;         /* some operations have deadlines that are too short */
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
    stream streams[WORKERS_MAX][TENSORS];
} bed;

/* ---- What threads may do in between ---- */

static bool takes_at_once;     /* all cores take a loss at the moment in which it is in the list */
static uint32_t taken_at_once; /* such losses */
static bool lacks_links;       /* reports of rank 0 find no link to the next owner in the first ms */
static int64_t lost_ns;        /* when it heard of the last loss */
static uint32_t links_lacked;  /* how often that was so */

__typeof__(trib_losses_add) __real_trib_losses_add, __wrap_trib_losses_add;
void __wrap_trib_losses_add(trib_losses *losses, uint32_t member)
{
    trib_engine *engine = trib_container_of(losses, trib_engine, losses);
    __real_trib_losses_add(losses, member);
    lost_ns = engine->member_id == 0 ? trib_now(engine->cores[0].reactor) : lost_ns;
    for (uint32_t i = 1; takes_at_once && (engine->config.roles & TRIB_ROLE_WORKER) && i < engine->core_count; i++) {
        const uint32_t before = engine->cores[i].losses_taken;
        trib_worker_take_losses(&engine->cores[i]);
        taken_at_once += engine->cores[i].losses_taken - before;
    }
}

static bool workers_are_slow; /* the coordinator finds a loss by itself, as no worker tells it */

__typeof__(trib_loss_suspected) __real_trib_loss_suspected, __wrap_trib_loss_suspected;
void __wrap_trib_loss_suspected(trib_engine *engine, uint32_t member)
{
    if (!workers_are_slow) {
        __real_trib_loss_suspected(engine, member);
    }
}

__typeof__(trib_worker_owner_link) __real_trib_worker_owner_link, __wrap_trib_worker_owner_link;
trib_link *__wrap_trib_worker_owner_link(const trib_core *core, const trib_task *task)
{
    /* All workers know a tensor after its first round, so the others report and the next owner asks. */
    if (lacks_links && core->engine->member_id == 0 && task->orphan != NULL &&
        trib_tensor_core_of(core, task->tensor)->round_next > 2 && trib_now(core->reactor) - lost_ns < SECOND / 1000) {
        links_lacked++;
        return NULL;
    }
    return __real_trib_worker_owner_link(core, task);
}

static uint32_t count_of(uint32_t tensor)
{
    static const uint32_t counts[TENSORS] = {COUNT_MAX, 1, 9000, 0, 3000};
    return counts[tensor];
}

static int32_t value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    return (int32_t)((tensor * 7919 + round * 104729 + rank * 1299709 + i * 31) % 1000003);
}

static bool is_broadcast(const bed *self, uint32_t tensor, uint32_t round)
{
    return self->mixes && (round + tensor) % 3 == 0;
}

static uint32_t root_of(const bed *self, uint32_t round)
{
    return round % self->workers;
}

static trib_reduce reduce_of(uint32_t tensor)
{
    return tensor == 2 ? TRIB_MAX : TRIB_SUM;
}

static int32_t expected(const bed *self, uint32_t tensor, uint32_t round, uint32_t i)
{
    if (is_broadcast(self, tensor, round)) {
        return value(tensor, round, root_of(self, round), i);
    }
    int32_t sum = 0;
    for (uint32_t rank = 0; rank < self->workers; rank++) {
        const int32_t next = value(tensor, round, rank, i);
        sum = reduce_of(tensor) == TRIB_SUM ? sum + next : next > sum ? next : sum;
    }
    return sum;
}

static void begin(stream *at);

static void on_done(const trib_result *result, void *user)
{
    stream *at = user;
    bed *self = at->bed;
    const uint32_t count = count_of(at->tensor);
    const bool given_up = self->hurries && result->status == TRIB_TIMEOUT;
    self->done++;
    if (result->status != TRIB_OK && !given_up) {
        self->failed++;
        self->status = result->status;
        snprintf(self->text, sizeof self->text, "%s", result->text);
        return;
    }
    for (uint32_t i = 0; i < count && !given_up; i++) {
        self->wrong += at->output[i] != expected(self, at->tensor, at->round, i);
    }
    memset(at->input, 0x5a, count * sizeof *at->input); /* the caller's again */
    memset(at->output, 0xa5, count * sizeof *at->output);
    if (++at->round < ROUNDS) {
        begin(at);
    }
}

static void begin(stream *at)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
    const bed *self = at->bed;
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_engine *engine = self->job->members[at->rank].engine;
    for (uint32_t i = 0; i < count_of(at->tensor); i++) {
        at->input[i] = value(at->tensor, at->round, at->rank, i);
    }
    params.tensor = sim_bed_declare(self->job, at->rank, names[at->tensor], count_of(at->tensor));
    params.input = at->input;
    params.output = at->output;
    params.done_cb = on_done;
    params.user = at;
    params.root = (int32_t)root_of(self, at->round);
    params.reduce = reduce_of(at->tensor);
    params.step = at->round + 1;
    if (self->hurries && value(at->tensor, at->round, at->rank, 0) % 3 == 0) {
        params.timeout_ns = SECOND / 1000;
    }
    const trib_status status = is_broadcast(self, at->tensor, at->round)
                                   ? trib_broadcast(engine, &params, NULL, &error)
                                   : trib_push_pull(engine, &params, NULL, &error);
    if (status != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static bool all_done(sim_job *job, void *argument)
{
    (void)job;
    const bed *self = argument;
    return self->failed > 0 || self->done == self->workers * TENSORS * ROUNDS;
}

typedef struct setting {
    uint32_t workers, servers, deaths;
    bool in_place, mixes, colocated, hurries;
    uint32_t drained; /* number of the leaving servers that are drained; the others are killed */
    uint32_t reactors;
} setting;

static bool is_told(sim_job *job, void *argument)
{
    return job->members[*(const uint32_t *)argument].ended_told;
}

/* A server that was drained is let go at once, and in good order. */
static void check_drained(const bed *self, const setting *what)
{
    for (uint32_t i = what->workers; i < what->workers + what->drained; i++) {
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_told, &i));
        assert_string_equal(trib_status_text(self->job->members[i].ended.status), trib_status_text(TRIB_OK));
    }
}

/* Returns the virtual time that the exchange took. `die_ns`: when each server dies, after the beginning; 0: it
 * lives. */
static int64_t run(const setting *what, const int64_t *die_ns, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(what->workers, what->servers);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_SERVERS;
    config.engine.colocate = what->colocated ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.reactors = what->reactors;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 16384;
    if (what->hurries) { /* over links of which one is late, what comes later may come first */
        config.link.egress_bits = config.link.ingress_bits = UINT64_C(1000000000);
        config.further[0] = config.link;
        config.further[0].latency_ns = 5 * (SECOND / 1000);
    }
    bed self = {.job = sim_bed_open(&config),
                .workers = what->workers,
                .in_place = what->in_place,
                .mixes = what->mixes,
                .hurries = what->hurries};
    if (self.job == NULL) {
        return 0; /* not reached; for analysers */
    }
    const int64_t began_ns = trib_sim_now(self.job->sim);
    for (uint32_t rank = 0; rank < what->workers; rank++) {
        for (uint32_t i = 0; i < TENSORS; i++) {
            stream *at = &self.streams[rank][i];
            *at = (stream){.bed = &self, .rank = rank, .tensor = i};
            at->input = calloc(COUNT_MAX, sizeof *at->input);
            at->output = what->in_place ? at->input : calloc(COUNT_MAX, sizeof *at->output);
            begin(at);
        }
    }
    for (uint32_t i = 0; i < what->deaths; i++) {
        (void)sim_job_run(self.job, began_ns + die_ns[i], NULL, NULL);
        if (i < what->drained) {
            assert_true(self.failed > 0 || sim_job_drain(self.job, what->workers + i));
        } else {
            sim_job_kill(self.job, what->workers + i);
        }
    }
    const bool done = sim_job_run(self.job, began_ns + 100 * SECOND, all_done, &self);
    const int64_t took_ns = trib_sim_now(self.job->sim) - began_ns;
    if (!done || self.failed > 0 || self.wrong > 0) {
        fail_msg("%u workers, %u servers, %s, %s, seed %llu, died at %lld and %lld ns: %s, %u of %u done, %u wrong: %s",
                 what->workers, what->servers, what->in_place ? "in place" : "apart",
                 what->mixes ? "with broadcasts" : "sums", (unsigned long long)seed, (long long)die_ns[0],
                 (long long)die_ns[1], trib_status_text(self.status), self.done, what->workers * TENSORS * ROUNDS,
                 self.wrong, self.text);
    }
    check_drained(&self, what);
    assert_true(sim_job_close(self.job, 60 * SECOND));
    sim_job_free(self.job);
    for (uint32_t rank = 0; rank < what->workers; rank++) {
        for (uint32_t i = 0; i < TENSORS; i++) {
            free(self.streams[rank][i].input);
            if (!what->in_place) {
                free(self.streams[rank][i].output);
            }
        }
    }
    return took_ns;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void sweep(const setting *what, uint32_t times)
{
    const int64_t none[2] = {0, 0};
    setting lives = *what;
    lives.deaths = lives.drained = 0;
    const int64_t took_ns = run(&lives, none, 1);
    assert_true(took_ns > 0);
    const uint64_t span_ns = took_ns > 0 ? (uint64_t)took_ns : 1;
    uint64_t state = what->workers * 31 + what->servers;
    for (uint32_t i = 0; i < times; i++) {
        const int64_t first_ns = (int64_t)(next_random(&state) % span_ns);
        const int64_t die_ns[2] = {first_ns, first_ns + (int64_t)(next_random(&state) % span_ns)};
        if (i % SWEEP_STRIDE == 0) {
            (void)run(what, die_ns, i + 1);
        }
    }
}

static void one_of_two_dies(void **state)
{
    (void)state;
    for (uint32_t workers = 2; workers <= 4; workers++) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            const setting what = {.workers = workers,
                                  .servers = 2,
                                  .deaths = 1,
                                  .in_place = (kind & 1) != 0,
                                  .mixes = (kind & 2) != 0,
                                  .reactors = 1 + workers % 2};
            sweep(&what, 25);
        }
    }
}

static void two_of_three_die(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {.workers = 3,
                              .servers = 3,
                              .deaths = 2,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 2};
        sweep(&what, 25);
    }
}

static void workers_take_over(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {.workers = 3,
                              .servers = 1,
                              .deaths = 1,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .colocated = true,
                              .reactors = 1};
        sweep(&what, 25);
    }
}

/* All is done; a server dies, and the tensors are released while the others are told. */
static void released_tensors_end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i += SWEEP_STRIDE) {
        sim_job_config config = sim_job_config_default(2, 2);
        config.seed = i + 1;
        config.engine.survive = TRIB_SURVIVE_SERVERS;
        config.engine.colocate = TRIB_COLOCATE_OFF;
        config.engine.reactors = 3;
        config.engine.chunk_bytes = 4096;
        config.engine.partition_bytes = 16384;
        bed self = {.job = sim_bed_open(&config), .workers = 2};
        for (uint32_t rank = 0; rank < 2; rank++) {
            for (uint32_t k = 0; k < TENSORS; k++) {
                stream *at = &self.streams[rank][k];
                *at = (stream){.bed = &self, .rank = rank, .tensor = k, .round = ROUNDS - 1};
                at->input = calloc(COUNT_MAX, sizeof *at->input);
                at->output = calloc(COUNT_MAX, sizeof *at->output);
                begin(at);
            }
        }
        while (self.done < 2 * TENSORS) {
            (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + 100000, NULL, NULL);
        }
        sim_job_kill(self.job, 2);
        const int64_t killed_ns = trib_sim_now(self.job->sim);
        for (uint32_t k = 0; k < 2 * TENSORS; k++) {
            trib_error error;
            (void)sim_job_run(self.job, killed_ns + (int64_t)(i * 5000 + k * 1000), NULL, NULL);
            static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
            trib_tensor *tensor = sim_bed_declare(self.job, k % 2, names[k / 2], count_of(k / 2));
            assert_int_equal(trib_tensor_release(tensor, &error), TRIB_OK);
        }
        (void)sim_job_run(self.job, killed_ns + SECOND, NULL, NULL);
        assert_true(sim_job_close(self.job, 60 * SECOND));
        sim_job_free(self.job);
        for (uint32_t k = 0; k < 2 * TENSORS; k++) {
            free(self.streams[k % 2][k / 2].input);
            free(self.streams[k % 2][k / 2].output);
        }
    }
}

static void servers_are_drained(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 12; kind++) {
        const setting what = {.workers = 2 + kind % 3,
                              .servers = kind % 4 == 3 ? 1 : 3,
                              .deaths = kind % 4 == 3 ? 1 : 2,
                              .drained = kind % 4 == 0 || kind % 4 == 3 ? 1 : 2,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .colocated = kind % 4 == 3,
                              .reactors = 1 + kind % 2};
        sweep(&what, 25);
    }
}

/* A round that is given up while its server is lost is withdrawn at the next one, before anything of a later round. */
static void given_up_rounds_are_withdrawn_in_order(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 2 + kind % 3,
                              .servers = 2,
                              .deaths = 1,
                              .drained = kind & 1,
                              .mixes = (kind & 2) != 0,
                              .in_place = (kind & 4) != 0,
                              .hurries = true,
                              .reactors = 1 + kind % 2};
        sweep(&what, 25);
    }
}

/* The last link of another core ends while core 0 is being told: that core takes the loss before core 0 goes on. */
static void another_core_is_first(void **state)
{
    (void)state;
    taken_at_once = 0;
    takes_at_once = true;
    for (uint32_t kind = 0; kind < 2; kind++) {
        const setting what = {.workers = 3, .servers = 2, .deaths = 1, .colocated = kind == 1, .reactors = 2};
        sweep(&what, 10);
    }
    takes_at_once = false;
    assert_true(taken_at_once > 0);
}

static void a_report_that_was_not_sent_is_asked_for(void **state)
{
    (void)state;
    links_lacked = 0;
    lacks_links = true;
    const setting what = {.workers = 3, .servers = 2, .deaths = 1, .mixes = true, .reactors = 2};
    sweep(&what, 15);
    lacks_links = false;
    assert_true(links_lacked > 0);
}

/* A server dies while it is being told of the tensors, and the coordinator's own connection to it ends first. */
static void nobody_waits_for_a_lost_server_to_know_a_tensor(void **state)
{
    (void)state;
    const setting what = {.workers = 2, .servers = 2, .deaths = 1, .reactors = 1};
    workers_are_slow = true;
    for (uint32_t i = 1; i <= 20; i++) {
        const int64_t die_ns[2] = {i * INT64_C(20000), 0};
        (void)run(&what, die_ns, i);
    }
    workers_are_slow = false;
}

static bool has_sent_roster(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[0].engine->coordinator != NULL && job->members[0].engine->coordinator->running;
}

static bool can_be_drained(sim_job *job, void *argument)
{
    return sim_job_drain(job, *(const uint32_t *)argument);
}

/* A server hears of another one's leave together with the roster: it has nothing to close. */
static void a_server_goes_before_another_one_has_the_roster(void **state)
{
    (void)state;
    trib_error error = {.status = TRIB_OK};
    sim_job_config config = sim_job_config_default(2, 3);
    config.engine.survive = TRIB_SURVIVE_SERVERS;
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    uint32_t leaving = 4;
    assert_true(sim_job_run(job, SECOND, has_sent_roster, NULL));
    trib_sim_process_freeze(job->members[3].process, true);
    assert_true(sim_job_run(job, 2 * SECOND, can_be_drained, &leaving));
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    trib_sim_process_freeze(job->members[3].process, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, is_told, &leaving));
    assert_true(sim_job_all_ready(job, NULL));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_goes_before_another_one_has_the_roster),
        cmocka_unit_test(nobody_waits_for_a_lost_server_to_know_a_tensor),
        cmocka_unit_test(a_report_that_was_not_sent_is_asked_for),
        cmocka_unit_test(another_core_is_first),
        cmocka_unit_test(one_of_two_dies),
        cmocka_unit_test(two_of_three_die),
        cmocka_unit_test(workers_take_over),
        cmocka_unit_test(servers_are_drained),
        cmocka_unit_test(given_up_rounds_are_withdrawn_in_order),
        cmocka_unit_test(released_tensors_end),
    };
    return cmocka_run_group_tests_name("server loss", tests, NULL, NULL);
}
