/*
 * test_checkpoint.c - boundaries between operations (trib_checkpoint) in jobs whose members die at every moment. All
 * that are left get the same answer, all sums before a boundary are there when it completes, and a boundary succeeds
 * only if the workers' states are the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/worker/boundary.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS_MAX = 5, STEPS = 5, SUMS = 3, LATER = SUMS, OPERATIONS, COUNT = 3000, POISON = 0x5a5a5a5a };

enum { BUG_NONE, BUG_NOT_AWAITED, BUG_FAILURE_UNCOUNTED, BUG_NOT_RESET, BUG_COUNT };
static int planted;                     /* the bug in this process */
static volatile uint32_t *run_in_child; /* the run that is under way there; else NULL */

typedef struct setting {
    trib_survive survive;
    uint32_t workers, servers, reactors;
    bool gives_up; /* some operations have little time: the states may differ then */
} setting;

typedef struct answer {
    trib_status status; /* TRIB_PENDING: none yet */
    trib_boundary boundary;
    uint32_t failed; /* a bit for each of the step's sums that has failed here */
    char text[160];
} answer;

typedef struct worker {
    struct bed *bed;
    uint32_t index, step, first, saved, over; /* first: its step in this count of operations */
    bool is_lost;
    trib_op *boundary_op;
    int32_t input[COUNT], output[OPERATIONS][COUNT];
    trib_status status[OPERATIONS];
    answer answers[STEPS + 1];
} worker;

typedef struct slot {
    worker *worker;
    uint32_t operation;
} slot;

typedef struct bed {
    sim_job *job;
    const setting *what;
    uint64_t seed;
    worker *workers;
    slot slots[WORKERS_MAX][OPERATIONS];
    char text[TRIB_ERROR_TEXT_SIZE + 80]; /* the first thing that went wrong */
} bed;

static void note(const worker *me, const char *what)
{
    if (me->bed->text[0] == '\0') {
        snprintf(me->bed->text, sizeof me->bed->text, "rank %u, step %u: %.380s", me->index, me->step, what);
    }
}

static void begin_step(worker *me);

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    worker *me = user;
    me->is_lost = false;
    me->step = me->first = me->saved + 1;
    if (now->status != TRIB_OK) {
        note(me, now->text);
    } else if (me->step <= STEPS) {
        begin_step(me);
    }
}

/* The step is done when its boundary and its operations are. After a loss it is done again by all, or by none. */
static void one_over(worker *me)
{
    trib_error error = {.text = ""};
    if (++me->over < OPERATIONS + 1) {
        return;
    }
    trib_op_release(me->boundary_op);
    me->boundary_op = NULL;
    for (uint32_t k = 0; k < SUMS; k++) {
        me->answers[me->step].failed |= (me->status[k] != TRIB_OK ? 1u : 0u) << k;
    }
    if (me->is_lost) {
        if (trib_membership_advance(me->bed->job->members[me->index].engine, on_advanced, me, &error) != TRIB_OK) {
            note(me, error.text);
        }
    } else if (++me->step <= STEPS) {
        begin_step(me);
    }
}

static void on_sum(const trib_result *result, void *user)
{
    const slot *at = user;
    worker *me = at->worker;
    const setting *what = me->bed->what;
    me->status[at->operation] = result->status;
    me->is_lost = me->is_lost || result->status == TRIB_EPOCH_CHANGED;
    if (result->status != TRIB_OK && !(what->survive == TRIB_SURVIVE_WORKERS && result->status == TRIB_EPOCH_CHANGED) &&
        !(what->gives_up && (result->status == TRIB_CANCELLED || result->status == TRIB_TIMEOUT))) {
        note(me, result->text);
    }
    one_over(me);
}

/* Sums of before the checkpoint are there, even if their callbacks have not run. */
static void check_sums(const worker *me)
{
    bool is_there = true;
    for (uint32_t k = 0; k < SUMS; k++) {
        for (uint32_t i = 0; i < COUNT && (me->status[k] == TRIB_OK || me->status[k] == TRIB_PENDING); i++) {
            is_there = is_there && (me->output[k][i] != POISON || me->bed->what->gives_up);
        }
    }
    if (!is_there) {
        note(me, "the boundary has succeeded before a sum that was submitted before");
    }
}

static void on_boundary(const trib_result *result, void *user)
{
    worker *me = user;
    trib_error error = {.text = ""};
    answer *mine = &me->answers[me->step];
    mine->status = result->status;
    snprintf(mine->text, sizeof mine->text, "%.150s", result->text);
    me->is_lost = me->is_lost || result->status == TRIB_EPOCH_CHANGED;
    if (result->status == TRIB_OK) {
        mine->boundary.struct_size = sizeof mine->boundary;
        if (trib_op_boundary(me->boundary_op, &mine->boundary, &error) != TRIB_OK) {
            note(me, error.text);
        }
        const uint32_t before = me->step - me->first;
        if (mine->boundary.step != me->step || mine->boundary.operations != before * OPERATIONS + SUMS) {
            note(me, "the boundary tells another step, or another number of operations");
        }
        me->saved = me->step;
        check_sums(me);
    } else if (result->status != TRIB_EPOCH_CHANGED && !(me->bed->what->gives_up && result->status == TRIB_MISMATCH)) {
        note(me, result->text);
    }
    one_over(me);
}

/* An operation is refused between two epochs. */
static void note_refused(worker *me, const trib_error *error)
{
    if (error->status != TRIB_EPOCH_CHANGED) {
        note(me, error->text);
    }
    me->is_lost = true;
    one_over(me);
}

/* The third sum is named by the engine, where the loss of a server does not end it (docs/failure.md). */
static trib_status submit_sum(worker *me, uint32_t k, trib_op **op_out, trib_error *error)
{
    trib_engine *engine = me->bed->job->members[me->index].engine;
    const bool is_once = k == 2 && me->bed->what->survive != TRIB_SURVIVE_SERVERS;
    static const char *const names[OPERATIONS] = {"a", "b", "c", "later"};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = names[k];
    desc.dtype = params.dtype = TRIB_INT32;
    desc.count = COUNT;
    params.flags = is_once ? TRIB_OP_ONCE : 0;
    params.bytes = sizeof me->output[k];
    params.input = me->input;
    params.output = me->output[k];
    params.done_cb = on_sum;
    params.user = &me->bed->slots[me->index][k];
    /* Some have little time: they fail before others have the result, or when others have it. */
    const uint32_t drawn = (uint32_t)((me->bed->seed * 31 + me->step * 7 + me->index * 3 + k) % 41);
    params.timeout_ns = me->bed->what->gives_up && k < 2 && drawn < 20 ? 20000 * (int64_t)(drawn + 1) : 0;
    const trib_status status = is_once ? TRIB_OK : trib_tensor_declare(engine, &desc, &params.tensor, error);
    return status == TRIB_OK ? trib_all_reduce(engine, &params, op_out, error) : status;
}

static void begin_step(worker *me)
{
    trib_error error = {.text = ""};
    me->over = 0;
    me->answers[me->step] = (answer){.status = TRIB_PENDING};
    for (uint32_t k = 0; k < OPERATIONS; k++) {
        trib_op *op = NULL;
        if (k == LATER) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.step = me->step;
            params.done_cb = on_boundary;
            params.user = me;
            if (trib_checkpoint(me->bed->job->members[me->index].engine, &params, &me->boundary_op, &error) !=
                TRIB_OK) {
                note_refused(me, &error);
            }
        }
        memset(me->output[k], 0x5a, sizeof me->output[k]);
        me->status[k] = TRIB_PENDING;
        if (submit_sum(me, k, &op, &error) != TRIB_OK) {
            me->status[k] = error.status;
            note_refused(me, &error);
        }
        trib_op_release(op);
    }
}

static bool is_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    for (uint32_t i = 0; i < self->what->workers && self->text[0] == '\0'; i++) {
        if (!job->members[i].killed && self->workers[i].step <= STEPS) {
            return false;
        }
    }
    return true;
}

static void give_in(const bed *self, const char *what)
{
    if (planted != BUG_NONE) {
        _exit(1);
    }
    fail_msg("survive %d, %u workers, %u servers, %u reactors, seed %llu: %s", (int)self->what->survive,
             self->what->workers, self->what->servers, self->what->reactors, (unsigned long long)self->seed, what);
}

/* All that are left have the same answer for each step; a step that is done again has its last one. A boundary succeeds
 * only where the same sums have failed on all. */
static void check_alike(const bed *self)
{
    for (uint32_t step = 1; step <= STEPS; step++) {
        const answer *first = NULL;
        for (uint32_t i = 0; i < self->what->workers; i++) {
            const answer *other = &self->workers[i].answers[step];
            if (self->job->members[i].killed) {
                continue;
            }
            if (first != NULL && (first->status != other->status || strcmp(first->text, other->text) != 0 ||
                                  memcmp(&first->boundary, &other->boundary, sizeof first->boundary) != 0)) {
                char text[480];
                snprintf(text, sizeof text, "step %u: %s %s, and %s %s", step, trib_status_name(first->status),
                         first->text, trib_status_name(other->status), other->text);
                give_in(self, text);
            }
            if (first != NULL && other->status == TRIB_OK && first->failed != other->failed) {
                give_in(self, "a boundary has succeeded, and the workers' states differ");
            }
            first = other;
        }
    }
}

static bed *open_bed(const setting *what, uint64_t seed)
{
    sim_job_config config = sim_job_config_default(what->workers, what->servers);
    config.seed = seed;
    config.engine.survive = what->survive;
    config.engine.reactors = what->reactors;
    config.engine.colocate = what->servers > 0 ? TRIB_COLOCATE_OFF : TRIB_COLOCATE_ON;
    config.engine.chunk_bytes = config.engine.partition_bytes = 4096;
    config.engine.peer_timeout_ns = 4 * SECOND;
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->what = what;
    self->seed = seed;
    self->workers = calloc(what->workers, sizeof *self->workers);
    assert_non_null(self->workers);
    self->job = sim_bed_open(&config);
    for (uint32_t i = 0; i < what->workers; i++) {
        worker *me = &self->workers[i];
        me->bed = self;
        me->index = i;
        me->step = me->first = 1;
        for (uint32_t k = 0; k < OPERATIONS; k++) {
            self->slots[i][k] = (slot){.worker = me, .operation = k};
        }
        for (uint32_t k = 0; k <= STEPS; k++) {
            me->answers[k].status = TRIB_PENDING;
        }
        begin_step(me);
    }
    return self;
}

/* Returns the virtual time that it took. dies: the member that does, at that time; UINT32_MAX: none. */
static int64_t run(const setting *what, uint32_t dies, int64_t die_ns, uint64_t seed)
{
    bed *self = open_bed(what, seed);
    const int64_t began_ns = trib_sim_now(self->job->sim);
    if (dies != UINT32_MAX) {
        (void)sim_job_run(self->job, began_ns + die_ns, is_over, self);
        sim_job_kill(self->job, dies);
    }
    const bool done = sim_job_run(self->job, began_ns + 200 * SECOND, is_over, self);
    const int64_t took_ns = trib_sim_now(self->job->sim) - began_ns;
    if (!done || self->text[0] != '\0') {
        give_in(self, self->text[0] != '\0' ? self->text : "not over");
    }
    check_alike(self);
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    free(self->workers);
    free(self);
    return took_ns;
}

static void sweep(const setting *what, uint32_t first, uint32_t last, uint32_t times)
{
    const int64_t span_ns = run(what, UINT32_MAX, 0, 1);
    for (uint32_t i = 0; i < times; i++) {
        if (run_in_child != NULL) {
            *run_in_child = i + 1;
        }
        (void)run(what, first + i % (last - first + 1), span_ns * i / times, i + 1);
    }
}

static void worker_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.survive = kind < 4 ? TRIB_SURVIVE_WORKERS : TRIB_SURVIVE_CONTINUE,
                              .workers = 3 + kind % 2 * 2,
                              .servers = kind / 2 % 2,
                              .reactors = 1 + kind % 2};
        sweep(&what, 0, what.workers - 1, 40);
    }
}

static void server_dies(void **state)
{
    (void)state;
    const setting what = {.survive = TRIB_SURVIVE_SERVERS, .workers = 3, .servers = 2, .reactors = 2};
    sweep(&what, 3, 4, 40);
}

/* Operations that fail on one worker alone: no boundary succeeds where the workers' states differ. */
static void states_differ(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 3; kind++) {
        const setting what = {.survive = kind == 0 ? TRIB_SURVIVE_NOTHING : TRIB_SURVIVE_CONTINUE,
                              .workers = 3,
                              .reactors = 1 + kind % 2,
                              .gives_up = true};
        for (uint32_t seed = 1; seed <= 30; seed++) {
            (void)run(&what, UINT32_MAX, 0, seed);
        }
    }
}

/* ---- Bugs that are planted, each in a process of its own, which must fail ---- */

__typeof__(trib_boundary_waits) __real_trib_boundary_waits, __wrap_trib_boundary_waits;
bool __wrap_trib_boundary_waits(trib_core *core, trib_op_core *op_core)
{
    trib_boundaries *boundaries = &core->engine->boundaries;
    const uint32_t left = atomic_load(&boundaries->left);
    if (planted == BUG_NOT_AWAITED) { /* it begins before earlier operations are over */
        atomic_store(&boundaries->left, 0);
    }
    const bool waits = __real_trib_boundary_waits(core, op_core);
    atomic_store(&boundaries->left, left);
    return waits;
}

__typeof__(trib_boundary_op_over) __real_trib_boundary_op_over, __wrap_trib_boundary_op_over;
void __wrap_trib_boundary_op_over(trib_op *op)
{
    const int claim = atomic_load(&op->claim);
    const bool strikes = planted == BUG_FAILURE_UNCOUNTED && !op->is_boundary;
    if (strikes) { /* a worker whose operation has failed says that all is well */
        atomic_store(&op->claim, 0);
    }
    __real_trib_boundary_op_over(op);
    if (strikes) {
        atomic_store(&op->claim, claim);
    }
}

__typeof__(trib_boundaries_reset) __real_trib_boundaries_reset, __wrap_trib_boundaries_reset;
void __wrap_trib_boundaries_reset(trib_engine *engine)
{
    if (planted != BUG_NOT_RESET) { /* else what was submitted in an epoch that is over counts in the next one */
        __real_trib_boundaries_reset(engine);
    }
}

static void look_for_bugs(void)
{
    const setting dies = {.survive = TRIB_SURVIVE_WORKERS, .workers = 3, .reactors = 2};
    const setting gives_up = {.survive = TRIB_SURVIVE_CONTINUE, .workers = 3, .reactors = 1, .gives_up = true};
    sweep(&dies, 0, 2, 60);
    for (uint32_t seed = 1; seed <= 60; seed++) {
        *run_in_child = seed;
        (void)run(&gives_up, UINT32_MAX, 0, seed);
    }
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
    run_in_child = mmap(NULL, sizeof *run_in_child, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(run_in_child != MAP_FAILED);
    for (int bug = BUG_NONE; bug < BUG_COUNT; bug++) {
        *run_in_child = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            planted = bug;
            look_for_bugs();
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (passed != (bug == BUG_NONE)) {
            fail_msg("planted bug %d %s", bug, passed ? "is not found" : "is found where there is none");
        }
        if (!passed) {
            printf("planted bug %d is found by run %u\n", bug, *run_in_child);
        }
    }
    munmap((void *)(uintptr_t)run_in_child, sizeof *run_in_child);
    run_in_child = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_dies),
        cmocka_unit_test(server_dies),
        cmocka_unit_test(states_differ),
        cmocka_unit_test(planted_bugs_are_found),
    };
    return cmocka_run_group_tests_name("boundaries between operations", tests, NULL, NULL);
}
