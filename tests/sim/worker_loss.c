/* worker_loss.c - see worker_loss.h. */
#include "tests/sim/worker_loss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/sanitized.h"

int worker_loss_planted;
volatile uint64_t *worker_loss_seed;

enum { IN_GROUP = 2 }; /* the number of the tensor that is the group's, with late_groups */

static uint32_t count_of(uint32_t tensor)
{
    static const uint32_t counts[TENSORS] = {COUNT_MAX, 1, 9000, 0};
    return counts[tensor];
}

static int32_t value(uint32_t epoch, uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    return (int32_t)((epoch * 15485863 + tensor * 7919 + round * 104729 + rank * 1299709 + i * 31) % 1000003);
}

static bool is_broadcast(const bed *self, const stream *at)
{
    return self->what->mixes && (at->round + at->tensor) % 3 == 0;
}

static int32_t expected(const stream *at, uint32_t i)
{
    const worker *me = at->worker;
    if (is_broadcast(me->bed, at)) {
        return value(at->epoch, at->tensor, at->round, at->round % me->count, i);
    }
    int32_t sum = 0;
    for (uint32_t rank = 0; rank < me->count; rank++) {
        sum += value(at->epoch, at->tensor, at->round, rank, i);
    }
    return sum;
}

static void begin(stream *at);
static void advance(worker *me);
static void make_group(worker *me);

static void begin_in_group(worker *me)
{
    make_group(me);
    if (me->group != NULL) { /* else the epoch is over */
        begin(&me->streams[IN_GROUP]);
    }
}

static void on_done(const trib_result *result, void *user)
{
    stream *at = user;
    worker *me = at->worker;
    bed *self = me->bed;
    self->results[at->epoch][at->tensor][at->round][me->index] = result->status;
    if (result->status != TRIB_OK) {
        if (result->status != TRIB_EPOCH_CHANGED) {
            snprintf(self->text, sizeof self->text, "%s", result->text);
            me->is_out = true;
        }
        return;
    }
    for (uint32_t i = 0; i < count_of(at->tensor); i++) {
        self->wrong += at->output[i] != expected(at, i);
    }
    memset(at->output, 0xa5, count_of(at->tensor) * sizeof *at->output);
    if (self->what->late_groups && at->tensor == 0 && at->round == 0) {
        begin_in_group(me);
    }
    if (++at->round < ROUNDS) {
        begin(at);
    } else if (++me->through == TENSORS && me->epoch <= self->what->boundaries && !me->changing) {
        advance(me);
    }
}

static void begin(stream *at)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    worker *me = at->worker;
    const bed *self = me->bed;
    trib_engine *engine = self->job->members[me->index].engine;
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_op_params params;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = names[at->tensor];
    desc.dtype = TRIB_INT32;
    desc.count = count_of(at->tensor);
    desc.flags = self->what->on_devices ? TRIB_TENSOR_DEVICE : 0;
    if (self->what->late_groups && at->tensor == IN_GROUP) {
        desc.name = "of the group";
        desc.group = me->group;
    }
    trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, &error);
    for (uint32_t i = 0; i < desc.count; i++) {
        at->input[i] = value(at->epoch, at->tensor, at->round, me->rank, i);
    }
    params.input = sim_devices_address(&self->devices, at->input);
    params.output = sim_devices_address(&self->devices, at->output);
    params.done_cb = on_done;
    params.user = at;
    params.root = (int32_t)(at->round % me->count);
    params.stream = self->what->on_devices && (at->round + at->tensor) % 2 == 0 ? self->devices.stream : NULL;
    if (status == TRIB_OK) {
        status = is_broadcast(self, at) ? trib_broadcast(engine, &params, NULL, &error)
                                        : trib_push_pull(engine, &params, NULL, &error);
    }
    const bool is_closing = status == TRIB_CLOSED && self->job->members[me->index].closing;
    const bool changes = status == TRIB_EPOCH_CHANGED;
    if (status != TRIB_OK && !changes && atomic_load(&engine->phase) == TRIB_PHASE_ENDED && !is_closing) {
        /* the job has ended for this worker just now, which an operation would have told, too */
        snprintf(me->bed->text, sizeof me->bed->text, "%s", error.text);
        me->is_out = true;
    } else if (status != TRIB_OK && !changes && !is_closing) {
        fail_msg("%s", error.text);
    }
}

/* A group ends with its epoch. One that cannot be made now has no part in the test. */
static void make_group(worker *me)
{
    trib_error error = {.status = TRIB_OK};
    int32_t ranks[ALL_MAX];
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "all";
    desc.ranks = ranks;
    desc.rank_count = (int32_t)me->count;
    for (uint32_t i = 0; i < me->count; i++) {
        ranks[i] = (int32_t)i;
    }
    if (trib_group_release(me->group, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    me->group = NULL;
    if (trib_group_create(me->bed->job->members[me->index].engine, &desc, &me->group, &error) != TRIB_OK) {
        me->group = NULL;
    }
}

static void start(worker *me, const trib_membership *now)
{
    me->epoch = now->epoch;
    me->rank = (uint32_t)now->rank;
    me->count = (uint32_t)now->worker_count;
    me->servers = (uint32_t)now->server_count;
    me->through = 0;
    me->changing = false;
    assert_true(me->epoch < EPOCHS_MAX);
    me->bed->began[me->epoch][me->index] = true;
    if (me->bed->what->has_groups && !me->bed->what->late_groups) {
        make_group(me);
    }
    for (uint32_t i = 0; i < TENSORS; i++) {
        me->streams[i].round = 0;
        me->streams[i].epoch = me->epoch;
        if (!me->bed->what->late_groups || i != IN_GROUP) {
            begin(&me->streams[i]);
        }
    }
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    if (now->status == TRIB_OK) {
        start(me, now);
    } else {
        snprintf(me->bed->text, sizeof me->bed->text, "%s", now->text);
        me->is_out = true;
    }
}

static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    assert_int_equal(now->status, TRIB_EPOCH_CHANGED);
    const bool goes_on =
        !me->bed->job->members[me->index].closing; /* it may hear of a change after it has begun to end */
    if (!me->changing && goes_on && me->index + 1 != me->bed->what->silent) {
        advance(me);
    }
}

static void advance(worker *me)
{
    trib_error error;
    me->changing = true;
    if (trib_membership_advance(me->bed->job->members[me->index].engine, on_advanced, me, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static bool is_over(sim_job *job, void *argument)
{
    bed *self = argument;
    const uint32_t last = self->what->workers - 1;
    if (self->what->joins > 0 && job->members[last].ready_told && !self->workers[last].is_there) {
        worker_loss_begin(self, last);
    }
    uint32_t left = 0, epoch = 0;
    for (uint32_t i = 0; i < self->what->workers; i++) {
        left += !job->members[i].killed;
        epoch = !job->members[i].killed ? self->workers[i].epoch : epoch;
    }
    for (uint32_t i = 0; i < self->what->workers; i++) {
        const worker *me = &self->workers[i];
        if (!job->members[i].killed &&
            (me->changing || me->epoch != epoch || me->count != left || me->through < TENSORS)) {
            return self->text[0] != '\0';
        }
    }
    return true;
}

bool worker_loss_are_over(const bed *self, uint32_t set)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < self->what->workers; i++) {
        left += (set >> i & 1) == 0;
    }
    for (uint32_t i = 0; i < self->what->workers; i++) {
        const worker *at = &self->workers[i];
        if ((set >> i & 1) == 0 && (at->is_out || at->changing || at->count != left || at->through < TENSORS)) {
            return false;
        }
    }
    return true;
}

void worker_loss_fail(const bed *self, const char *what)
{
    const setting *of = self->what;
    if (worker_loss_planted != BUG_NONE) {
        _exit(1);
    }
    fail_msg("%u workers, %u servers, %u reactors, %u deaths, %s, %s, %s, %s%s, seed %llu: %s", of->workers,
             of->servers, of->reactors, of->deaths, of->in_place ? "in place" : "apart",
             of->mixes ? "with broadcasts" : "sums", of->colocated ? "colocated" : "servers only",
             of->on_devices ? "on devices" : "on hosts", of->shares ? ", two a machine" : "",
             (unsigned long long)self->seed, what);
}

void worker_loss_check_alike(const bed *self)
{
    for (uint32_t e = 0; e < EPOCHS_MAX; e++) {
        for (uint32_t k = 0; k < TENSORS * ROUNDS; k++) {
            uint32_t some = 0, left = 0;
            for (uint32_t i = 0; i < self->what->workers; i++) {
                const bool lives = !self->job->members[i].killed && !self->workers[i].is_out;
                left += lives && (i + self->what->joins < self->what->workers || self->began[e][i]);
                some += lives && self->results[e][k / ROUNDS][k % ROUNDS][i] == TRIB_OK;
            }
            if (some != 0 && some != left) {
                char text[128];
                snprintf(text, sizeof text, "epoch %u, tensor %u, round %u: succeeded on %u of %u workers", e,
                         k / ROUNDS, k % ROUNDS, some, left);
                worker_loss_fail(self, text);
            }
        }
    }
}

void worker_loss_begin(bed *self, uint32_t index)
{
    worker *me = &self->workers[index];
    *me = (worker){.bed = self, .index = index, .is_there = true};
    for (uint32_t i = 0; i < TENSORS; i++) {
        me->streams[i] = (stream){.worker = me, .tensor = i};
        me->streams[i].input = calloc(COUNT_MAX, sizeof(int32_t));
        me->streams[i].output = self->what->in_place ? me->streams[i].input : calloc(COUNT_MAX, sizeof(int32_t));
    }
    trib_engine *engine = self->job->members[index].engine;
    trib_membership now = {.struct_size = sizeof now};
    assert_int_equal(trib_membership_watch(engine, on_changed, me, NULL), TRIB_OK);
    assert_int_equal(trib_membership_get(engine, &now), TRIB_OK);
    start(me, &now);
}

static void close_worker(worker *me)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        free(me->streams[i].input);
        if (!me->bed->what->in_place) {
            free(me->streams[i].output);
        }
    }
}

static void joins_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const bed *self = job->config.user;
    config->worker_count -= (int32_t)self->what->joins;
    config->server_count -= (int32_t)self->what->late;
    config->coordinator = "n0:4000,n1:4000,n2:4000,n3:4000,n4:4000,n5:4000,n6:4000";
    if (member < job->config.workers && member + self->what->joins >= job->config.workers) {
        config->rank = -1;
    }
}

static void coordinates_apart(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    static const char *const addresses[ALL_MAX + SERVERS_MAX] = {"n0:4000", "n1:4000", "n2:4000", "n3:4000", "n4:4000",
                                                                 "n5:4000", "n6:4000", "n7:4000", "n8:4000", "n9:4000"};
    const uint32_t last = job->config.workers + job->config.servers - 1;
    config->server_count--;
    config->coordinator = addresses[last];
    config->external_coordinator = member != last;
    config->roles = member == last ? TRIB_ROLE_COORDINATOR : config->roles;
}

/* A process that coordinates only has nothing to be ready for. */
static bool workers_are_ready(sim_job *job, void *unused)
{
    (void)unused;
    bool are_ready = true;
    for (uint32_t i = 0; i < job->config.workers; i++) {
        are_ready = are_ready && job->members[i].ready_told && job->members[i].ready.status == TRIB_OK;
    }
    return are_ready;
}

void worker_loss_start_late(const bed *self, uint32_t member)
{
    assert_true(member >= self->what->workers + self->what->servers - self->what->late);
    trib_sim_process_freeze(self->job->members[member].process, false);
}

bed *worker_loss_open(const setting *what, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(what->workers, what->servers);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.colocate = what->colocated ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.reactors = what->reactors;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 16384;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.has_store = what->has_store;
    config.per_machine = what->shares ? 2 : 0;
    config.stagger_one_in = what->stagger_one_in;
    config.stagger_ns = STAGGER_NS;
    config.net.sent_late_ns = what->sent_late_ns;
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    const bool some_join = what->joins > 0 || what->late > 0;
    assert_true(!some_join || !what->apart);
    config.tweak = some_join ? joins_later : what->apart ? coordinates_apart : NULL;
    config.user = self;
    self->what = what;
    if (what->on_devices) {
        sim_devices_open(&self->devices, &config, what->shares && (what->workers - what->joins) % 2 == 0 ? 2 : 1);
    }
    trib_error error = {.status = TRIB_OK};
    self->job = some_join || what->apart ? sim_job_open(&config, &error) : sim_bed_open(&config);
    assert_non_null(self->job);
    sim_devices_attach(&self->devices, self->job);
    assert_true(!what->apart || sim_job_run(self->job, 30 * SECOND, workers_are_ready, NULL));
    for (uint32_t i = what->workers - what->joins; what->asleep && i < what->workers; i++) {
        trib_sim_process_freeze(self->job->members[i].process, true);
    }
    for (uint32_t i = 0; i < what->late; i++) {
        trib_sim_process_freeze(self->job->members[what->workers + what->servers - 1 - i].process, true);
    }
    if (some_join) {
        (void)sim_job_run(self->job, SECOND, NULL, NULL); /* the others are at work, and the last workers wait */
    }
    self->seed = seed;
    for (size_t i = 0; i < sizeof self->results / sizeof(trib_status); i++) {
        ((trib_status *)self->results)[i] = TRIB_PENDING;
    }
    for (uint32_t i = 0; i < what->workers - what->joins; i++) {
        worker_loss_begin(self, i);
    }
    return self;
}

void worker_loss_close(bed *self)
{
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    sim_devices_close(&self->devices);
    for (uint32_t i = 0; i < self->what->workers; i++) {
        if (self->workers[i].is_there) {
            close_worker(&self->workers[i]);
        }
    }
    free(self);
}

int64_t worker_loss_run(const setting *what, const int64_t *die_ns, uint64_t seed)
{
    bed *self = worker_loss_open(what, seed);
    const int64_t began_ns = trib_sim_now(self->job->sim);
    for (uint32_t i = 0; i < what->deaths && i < DEATHS_MAX; i++) {
        (void)sim_job_run(self->job, began_ns + die_ns[i], NULL, NULL);
        if (i < what->first_dies) {
            sim_job_kill(self->job, i);
            continue;
        }
        /* the last member, a server or a worker, and so on downward */
        sim_job_kill(self->job, what->workers + (what->server_dies ? what->servers : 0) - (what->joins ? 2 : 1) -
                                    (i - what->first_dies));
    }
    const bool done = sim_job_run(self->job, began_ns + 200 * SECOND, is_over, self);
    const int64_t took_ns = trib_sim_now(self->job->sim) - began_ns;
    if (!done || self->text[0] != '\0' || self->wrong > 0) {
        char text[TRIB_ERROR_TEXT_SIZE + 64];
        snprintf(text, sizeof text, "%s, %u wrong: %s", done ? "over" : "not over", self->wrong, self->text);
        worker_loss_fail(self, text);
    }
    worker_loss_check_alike(self);
    worker_loss_close(self);
    return took_ns;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

void worker_loss_sweep(const setting *what, uint32_t times)
{
    const int64_t none[DEATHS_MAX] = {0};
    setting lives = *what;
    lives.deaths = 0;
    const int64_t took_ns = worker_loss_run(&lives, none, 1);
    assert_true(took_ns > 0);
    const uint64_t span_ns = took_ns > 0 ? (uint64_t)took_ns : 1;
    uint64_t state = what->workers * 31 + what->servers;
    for (uint32_t i = 0; i < times; i++) {
        const int64_t first_ns = (int64_t)(next_random(&state) % span_ns);
        /* the second one dies while the others are at work, or while the membership changes */
        const uint64_t later_ns = i % 2 == 0 ? span_ns : 8 * SECOND;
        int64_t die_ns[DEATHS_MAX] = {first_ns};
        for (uint32_t k = 1; k < DEATHS_MAX; k++) {
            die_ns[k] = die_ns[k - 1] + (int64_t)(next_random(&state) % later_ns);
        }
        if (worker_loss_seed != NULL) {
            *worker_loss_seed = i + 1;
        }
        if (i % SWEEP_STRIDE == 0) {
            (void)worker_loss_run(what, die_ns, i + 1);
        }
    }
}
