/* boundary.c - see boundary.h. */
#include "engine/worker/boundary.h"

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/worker.h"

/* An operation's mark. */
enum { MARK_OVER, MARK_OPEN, MARK_AWAITED };

/* Elements of the all-reduce, which takes the greatest. A value is there twice, once as its complement, each above the
 * rank that it is from: so the greatest and the smallest one come out, and whose they are. */
enum { AT_OPERATIONS = 0, AT_FAILURES = 2, AT_DIGEST = 4, AT_NUMBER = 6 };

static uint64_t mix(uint64_t key)
{
    key = (key ^ key >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return key ^ key >> 29;
}

/* Workers that differ in a shape have used the same name, or begun operations of one number, and all have failed. Any
 * other failure is one of just this operation: a worker that has failed it and one that has failed another one have
 * different states. So one boundary fails if a worker's deadline or cancellation has come before its TRIB_MISMATCH. */
static uint64_t digest_failure(const trib_op *op)
{
    const trib_tensor *tensor = op->tensor;
    if (atomic_load(&op->claim) == TRIB_MISMATCH && (tensor->is_numbered || tensor->name_length > 0)) {
        return mix(~tensor->known_key) + (tensor->is_numbered ? op->step : 0);
    }
    return mix(mix(~tensor->key) + op->ordinal);
}

/* A group's operations are not everybody's. A boundary is none of those that it counts. */
static bool is_counted(const trib_op *op)
{
    return op->tensor->group == NULL && !op->is_boundary;
}

/* ---- Submitting ---- */

trib_status trib_boundary_check(trib_engine *engine, trib_error *error)
{
    trib_boundaries *self = &engine->boundaries;
    pthread_mutex_lock(&self->mutex);
    const bool is_free = self->op == NULL;
    pthread_mutex_unlock(&self->mutex);
    return is_free ? TRIB_OK
                   : trib_error_set(error, TRIB_STATE, "an earlier call of trib_checkpoint is still under way");
}

static void mark_all(trib_engine *engine)
{
    trib_boundaries *self = &engine->boundaries;
    for (trib_op *op = engine->all_ops; op != NULL; op = op->made_next) {
        int open = MARK_OPEN;
        if (!op->is_boundary && atomic_compare_exchange_strong(&op->mark, &open, MARK_AWAITED)) {
            atomic_fetch_add(&self->left, 1);
        }
    }
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        engine->tensors[i]->rounds_before = engine->tensors[i]->submitted;
    }
}

void trib_boundary_count(trib_op *op)
{
    trib_boundaries *self = &op->engine->boundaries;
    op->ordinal = ++op->tensor->submitted;
    op->tensor->last_number = op->number;
    if (op->is_boundary) {
        pthread_mutex_lock(&self->mutex);
        trib_assert(self->op == NULL);
        self->op = op;
        op->boundary_operations = self->operations;
        self->told_failures = self->failures;
        self->told_digest = self->failures_digest;
        self->late_failures = self->late_digest = 0;
        self->digest_before = self->digest;
        atomic_fetch_add(&self->left, 1); /* until it is posted */
        mark_all(op->engine);             /* an operation that fails now has failed before the snapshot, or is marked */
        pthread_mutex_unlock(&self->mutex);
    } else if (is_counted(op)) {
        self->operations++;
        self->digest += mix(op->tensor->known_key);
    }
    atomic_store(&op->mark, MARK_OPEN);
}

void trib_boundaries_reset(trib_engine *engine)
{
    trib_boundaries *self = &engine->boundaries;
    pthread_mutex_lock(&self->mutex);
    self->operations = self->digest = self->digest_base = self->failures = self->failures_digest = 0;
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        engine->tensors[i]->submitted = engine->tensors[i]->rounds_before = 0;
    }
    const trib_formation *formation = &engine->formation;
    engine->stalls.has_gap = formation->carried != NULL || formation->parked != NULL; /* they have been counted */
    for (trib_group *group = engine->groups; group != NULL; group = group->next) {
        group->has_gap = false;
    }
}

/* ---- Core 0 ---- */

static void put(uint64_t *at, uint64_t value, uint32_t rank)
{
    at[0] = value << 32 | rank;
    at[1] = ~value << 32 | rank;
}

/* Writes this worker's digests. Operations that were under way at the call and have failed since count, too. */
static void write_own(trib_engine *engine)
{
    trib_boundaries *self = &engine->boundaries;
    const uint32_t rank = (uint32_t)engine->config.rank;
    pthread_mutex_lock(&self->mutex);
    if (self->op != NULL) {
        const uint64_t digest = mix(self->digest_before - self->digest_base) + self->told_digest + self->late_digest;
        put(self->own + AT_OPERATIONS, self->op->boundary_operations, rank);
        put(self->own + AT_FAILURES, self->told_failures + self->late_failures, rank);
        put(self->own + AT_DIGEST, digest ^ digest >> 32, rank);
        self->own[AT_NUMBER] = self->number;
    }
    pthread_mutex_unlock(&self->mutex);
}

bool trib_boundary_waits(trib_core *core, trib_op_core *op_core)
{
    trib_boundaries *self = &core->engine->boundaries;
    trib_assert(core->reactor->index == 0 && op_core->op->is_boundary);
    if (atomic_load(&self->left) == 0) {
        write_own(core->engine);
        return false;
    }
    trib_op_core **at = &self->waiting;
    while (*at != NULL) {
        at = &(*at)->queue_next;
    }
    *at = op_core;
    op_core->queue_next = NULL;
    return true;
}

void trib_boundary_drop_all(trib_core *core)
{
    if (core->reactor->index == 0) {
        core->engine->boundaries.waiting = NULL;
    }
}

static void none_left(trib_reactor *reactor, trib_post *post)
{
    trib_boundaries *self = trib_container_of(post, trib_boundaries, post);
    atomic_store(&self->is_posted, false);
    trib_op_core *op_core = self->waiting;
    self->waiting = NULL;
    while (op_core != NULL) {
        trib_op_core *next = op_core->queue_next;
        op_core->queue_next = NULL;
        trib_worker_arrived(reactor->owner, op_core);
        op_core = next;
    }
}

static void await_one_less(trib_engine *engine)
{
    trib_boundaries *self = &engine->boundaries;
    trib_assert(atomic_load(&self->left) > 0);
    if (atomic_fetch_sub(&self->left, 1) == 1 && !atomic_exchange(&self->is_posted, true)) {
        self->post.run = none_left;
        trib_reactor_post(engine->reactors[0].reactor, &self->post);
    }
}

void trib_boundary_posted(trib_engine *engine)
{
    await_one_less(engine);
}

/* ---- Any core ---- */

static uint32_t most(const uint64_t *at)
{
    return (uint32_t)(at[0] >> 32);
}

static uint32_t least(const uint64_t *at)
{
    return ~(uint32_t)(at[1] >> 32);
}

static bool differs(const uint64_t *at)
{
    return most(at) != least(at);
}

/* All workers have the same result, and find the same. */
static void judge(trib_op *op)
{
    const uint64_t *all = op->engine->boundaries.all;
    const uint64_t *operations = all + AT_OPERATIONS, *failures = all + AT_FAILURES, *digest = all + AT_DIGEST;
    if (differs(operations)) {
        trib_op_fail(op, TRIB_MISMATCH,
                     "rank %u has submitted %u operations among all workers, and rank %u %u: call trib_checkpoint at "
                     "the same place of every worker's program",
                     (uint32_t)operations[0], most(operations), (uint32_t)operations[1], least(operations));
    } else if (differs(failures)) {
        trib_op_fail(op, TRIB_MISMATCH,
                     "%u operations have failed on rank %u since the last boundary, and %u on rank %u: the workers' "
                     "states differ",
                     most(failures), (uint32_t)failures[0], least(failures), (uint32_t)failures[1]);
    } else if (differs(digest)) {
        trib_op_fail(op, TRIB_MISMATCH,
                     "rank %u and rank %u have finished as many operations, but not the same: call trib_checkpoint at "
                     "the same place of every worker's program",
                     (uint32_t)digest[0], (uint32_t)digest[1]);
    }
}

/* A failure is told by one boundary, if that has a result, and so are operations that differ, as many as there are: all
 * workers have the same result, and count from this boundary on. */
static void end_boundary(trib_op *op)
{
    trib_boundaries *self = &op->engine->boundaries;
    const bool has_result = atomic_load(&op->claim) == 0;
    if (has_result) {
        judge(op);
    }
    pthread_mutex_lock(&self->mutex);
    trib_assert(self->op == op);
    self->op = NULL;
    if (has_result) {
        const bool are_others = !differs(self->all + AT_OPERATIONS) && differs(self->all + AT_DIGEST);
        self->digest_base = are_others ? self->digest_before : self->digest_base;
        self->failures -= self->told_failures;
        self->failures_digest -= self->told_digest;
    } else {
        self->failures += self->late_failures;
        self->failures_digest += self->late_digest;
    }
    if (atomic_load(&op->claim) == 0) {
        self->number = self->all[AT_NUMBER] + 1;
        op->boundary_number = self->number;
    }
    pthread_mutex_unlock(&self->mutex);
}

void trib_boundary_op_over(trib_op *op)
{
    trib_boundaries *self = &op->engine->boundaries;
    if (op->is_boundary) {
        atomic_store(&op->mark, MARK_OVER);
        end_boundary(op);
        return;
    }
    const bool has_failed = atomic_load(&op->claim) != 0 && is_counted(op);
    if (has_failed) { /* it counts where the call of a boundary has found it, before or after */
        pthread_mutex_lock(&self->mutex);
    }
    const bool is_awaited = atomic_exchange(&op->mark, MARK_OVER) == MARK_AWAITED;
    if (has_failed) {
        const bool is_late = is_awaited && self->op != NULL;
        *(is_late ? &self->late_failures : &self->failures) += 1;
        *(is_late ? &self->late_digest : &self->failures_digest) += digest_failure(op);
        pthread_mutex_unlock(&self->mutex);
    }
    if (is_awaited) {
        await_one_less(op->engine);
    }
}
