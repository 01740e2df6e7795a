/*
 * bench_recovery.c - measures in virtual time how long a job takes to go on after the loss of a member: from the loss,
 * and from the moment when the first of the others knows of it, to the first operation that succeeds on all of them.
 *
 *     build/release/tests/bench_recovery [KILLS]     so many of each kind; 1000
 *
 * Three workers and two servers, on links of 10 Gbit/s, sum three tensors over and over. In each job one member is lost
 * at a random time: its process dies, so that connections end, or it stands still, so that silence tells. The peer
 * timeout is 10 s.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/core/core.h"
#include "tools/study/step.h"

#define SECOND INT64_C(1000000000)
enum { WORKERS = 3, SERVERS = 2, TENSORS = 3, COUNT_MAX = 250000 };

typedef struct kind {
    const char *name;
    trib_survive survive;
    uint32_t member;
    bool stands_still;
} kind;

static const kind kinds[] = {
    {"servers: a server dies", TRIB_SURVIVE_SERVERS, WORKERS, false},
    {"servers: a server stands still", TRIB_SURVIVE_SERVERS, WORKERS, true},
    {"workers: a worker dies", TRIB_SURVIVE_WORKERS, 1, false},
    {"workers: a worker stands still", TRIB_SURVIVE_WORKERS, 1, true},
    {"workers: the coordinator dies", TRIB_SURVIVE_WORKERS, 0, false},
    {"workers: the coordinator stands still", TRIB_SURVIVE_WORKERS, 0, true},
    {"continue: a worker dies", TRIB_SURVIVE_CONTINUE, 1, false},
    {"continue: the coordinator dies", TRIB_SURVIVE_CONTINUE, 0, false},
};

typedef struct worker {
    struct bed *bed;
    uint32_t index;
    bool changing;
    int64_t recovered_ns;
    int32_t *buffers[TENSORS];
} worker;

typedef struct stream {
    worker *of;
    uint32_t tensor;
} stream;

typedef struct bed {
    sim_job *job;
    const kind *what;
    int64_t lost_ns, known_ns; /* 0: not yet */
    bool is_closing;
    worker workers[WORKERS];
    stream streams[WORKERS][TENSORS];
} bed;

static void fail(const char *text)
{
    fprintf(stderr, "bench_recovery: %s\n", text);
    exit(1);
}

static void begin(stream *at);

static bool knows(const bed *self, const worker *me)
{
    const trib_engine *engine = self->job->members[me->index].engine;
    return self->lost_ns > 0 && self->what->survive == TRIB_SURVIVE_SERVERS
               ? trib_losses_has(&engine->losses, self->what->member)
               : self->known_ns > 0 && trib_epoch_number(engine->roster->epoch) > 1;
}

static void on_done(const trib_result *result, void *user)
{
    stream *at = user;
    bed *self = at->of->bed;
    if (result->status == TRIB_EPOCH_CHANGED || self->is_closing) {
        return;
    }
    if (result->status != TRIB_OK) {
        fail(result->text);
    }
    if (at->of->recovered_ns == 0 && knows(self, at->of)) {
        at->of->recovered_ns = trib_sim_now(self->job->sim);
    }
    begin(at);
}

static void begin(stream *at)
{
    static const struct {
        const char *name;
        uint32_t count;
    } tensors[TENSORS] = {{"a", COUNT_MAX}, {"b", 20000}, {"c", 100}};
    trib_engine *engine = at->of->bed->job->members[at->of->index].engine;
    trib_error error = {.text = ""};
    trib_tensor_desc desc;
    trib_op_params params;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = tensors[at->tensor].name;
    desc.dtype = TRIB_INT32;
    desc.count = tensors[at->tensor].count;
    params.input = params.output = at->of->buffers[at->tensor];
    params.done_cb = on_done;
    params.user = at;
    trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, &error);
    status = status == TRIB_OK ? trib_push_pull(engine, &params, NULL, &error) : status;
    if (status != TRIB_OK && status != TRIB_EPOCH_CHANGED) {
        fail(error.text);
    }
}

static void begin_all(worker *me)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        begin(&me->bed->streams[me->index][i]);
    }
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    if (me->bed->is_closing) {
        return;
    }
    if (now->status != TRIB_OK) {
        fail(now->text);
    }
    begin_all(me);
}

static void on_changed(trib_engine *engine, const trib_membership *now, void *user)
{
    worker *me = user;
    trib_error error;
    me->bed->known_ns = me->bed->known_ns > 0 ? me->bed->known_ns : trib_sim_now(me->bed->job->sim);
    if (me->bed->what->survive == TRIB_SURVIVE_WORKERS && now->status == TRIB_EPOCH_CHANGED && !me->changing &&
        !me->bed->is_closing) {
        me->changing = true;
        if (trib_membership_advance(engine, on_advanced, me, &error) != TRIB_OK) {
            fail(error.text);
        }
    }
}

static bool is_over(sim_job *job, void *argument)
{
    bed *self = argument;
    bool over = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        over = over && (i == self->what->member || self->workers[i].recovered_ns > 0);
        if (self->known_ns == 0 && self->what->survive == TRIB_SURVIVE_SERVERS && knows(self, &self->workers[i])) {
            self->known_ns = trib_sim_now(job->sim);
        }
    }
    return over;
}

static void open_bed(bed *self, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
    trib_error error = {.text = ""};
    config.seed = seed;
    config.engine.survive = self->what->survive;
    self->job = sim_job_open(&config, &error);
    if (self->job == NULL || !sim_job_run(self->job, 30 * SECOND, sim_job_all_ready, NULL)) {
        fail("the job has not come together");
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        worker *me = &self->workers[i];
        me->bed = self;
        me->index = i;
        for (uint32_t t = 0; t < TENSORS; t++) {
            me->buffers[t] = calloc(COUNT_MAX, sizeof(int32_t));
            self->streams[i][t] = (stream){.of = me, .tensor = t};
        }
        trib_engine *engine = self->job->members[i].engine;
        if (self->what->survive != TRIB_SURVIVE_SERVERS &&
            trib_membership_watch(engine, on_changed, me, &error) != TRIB_OK) {
            fail(error.text);
        }
        begin_all(me);
    }
}

/* Loses the member at a time that the seed draws. Returns the times from the loss, and from when it was known. */
static void lose(const kind *what, uint64_t seed, int64_t *happened_out, int64_t *known_out)
{
    bed *self = calloc(1, sizeof *self);
    if (self == NULL) {
        fail("out of memory");
        return;
    }
    self->what = what;
    open_bed(self, seed);
    const uint64_t drawn = seed * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    self->lost_ns = trib_sim_now(self->job->sim) + SECOND / 100 + (int64_t)(drawn % (SECOND / 100));
    (void)sim_job_run(self->job, self->lost_ns, NULL, NULL);
    if (what->stands_still) {
        trib_sim_process_freeze(self->job->members[what->member].process, true);
    } else {
        sim_job_kill(self->job, what->member);
    }
    if (!sim_job_run(self->job, self->lost_ns + 100 * SECOND, is_over, self)) {
        fail("the job does not go on");
    }
    const int64_t now_ns = trib_sim_now(self->job->sim);
    *happened_out = now_ns - self->lost_ns;
    *known_out = now_ns - self->known_ns;
    if (what->stands_still) {
        trib_sim_process_freeze(self->job->members[what->member].process, false);
        sim_job_kill(self->job, what->member);
    }
    self->is_closing = true;
    if (!sim_job_close(self->job, 100 * SECOND)) {
        fail("the job does not close");
    }
    sim_job_free(self->job);
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        free(self->workers[i / TENSORS].buffers[i % TENSORS]);
    }
    free(self);
}

static int compare(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

int main(int argc, char **argv)
{
    const size_t kills = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    int64_t *happened = calloc(kills, sizeof *happened), *known = calloc(kills, sizeof *known);
    if (kills == 0 || happened == NULL || known == NULL) {
        fail("the number of kills must be at least 1");
        return 1;
    }
    printf("%-40s %6s %10s %10s %12s %12s\n", "ms", "kills", "p50", "max", "known: p50", "known: max");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t i = 0; i < kills; i++) {
            lose(&kinds[k], i + 1, &happened[i], &known[i]);
        }
        qsort(happened, kills, sizeof *happened, compare);
        qsort(known, kills, sizeof *known, compare);
        printf("%-40s %6zu %10.2f %10.2f %12.2f %12.2f\n", kinds[k].name, kills, (double)happened[kills / 2] / 1e6,
               (double)happened[kills - 1] / 1e6, (double)known[kills / 2] / 1e6, (double)known[kills - 1] / 1e6);
        fflush(stdout);
    }
    free(happened);
    free(known);
    return 0;
}
