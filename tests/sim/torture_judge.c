/* torture_judge.c - decides whether an operation of a tortured job may end the way it did. See torture.h. */
#include <string.h>

#include "tests/sim/torture_internal.h"

#define SLACK_NS (5 * SECOND) /* from a deadline to its callback: receives get a grace period, and queues take time */
#define SLACK_CALM_NS (1 * SECOND) /* where nothing delays messages */
#define CALM_BITS UINT64_C(1000000000)

static bool has_fault(const torture_plan *plan, torture_kind kind)
{
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        if (plan->faults[i].kind == kind) {
            return true;
        }
    }
    return false;
}

bool torture_is_calm(const torture_plan *plan)
{
    if (plan->attack == TORTURE_FLIPS || plan->attack == TORTURE_FORGERY) {
        return false;
    }
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const torture_kind kind = plan->faults[i].kind;
        if (kind != TORTURE_JUMP && kind != TORTURE_RESET && kind != TORTURE_KILL) {
            return false;
        }
    }
    return plan->narrow == TORTURE_NOBODY && !plan->prompt && plan->job.link.egress_bits >= CALM_BITS &&
           plan->job.link.ingress_bits >= CALM_BITS;
}

bool torture_may_end_so(const run *self, trib_status status)
{
    if (!self->plan->may_end) {
        return false;
    }
    switch (status) {
    case TRIB_PEER_LOST:
    case TRIB_PEER_LEFT:
    case TRIB_JOIN_FAILED:
    case TRIB_CLOSED:
        return true;
    case TRIB_NO_MEMORY:
        return has_fault(self->plan, TORTURE_ALLOC_FAILURE) || has_fault(self->plan, TORTURE_MISS);
    case TRIB_CANCELLED: /* the other members' status after any of these faults */
        return has_fault(self->plan, TORTURE_DEVICE) || has_fault(self->plan, TORTURE_ALLOC_FAILURE) ||
               has_fault(self->plan, TORTURE_MISS);
    case TRIB_PROTOCOL: /* a header that does not look like one, while a member joins */
        return self->plan->attack == TORTURE_FLIPS;
    case TRIB_SYSTEM:
    case TRIB_TIMEOUT:
        return has_fault(self->plan, TORTURE_DEVICE);
    default:
        return false;
    }
}

torture_tensor torture_tensor_of(const torture_plan *plan, uint32_t index, uint32_t round)
{
    const uint32_t nth = index - plan->tensor_count;
    if (index >= plan->tensor_count) {
        return (torture_tensor){
            .dtype = (trib_dtype)(nth % TRIB_DTYPE_COUNT), .count = 1 + nth % 9, .rounds = 1, .root = -1};
    }
    torture_tensor what = plan->tensors[index];
    const bool turns = what.regroups && round / plan->lives % 2 == 1;
    what.backwards = what.backwards != turns;
    if (turns && what.other_group != 0) {
        what.group = what.other_group;
        what.root = what.root >= 0 ? what.root % (int32_t)torture_members(&what, plan->job.workers) : -1;
    }
    return what;
}

/* Returns true if the workers disagree about that operation. */
bool torture_is_disputed(const torture_plan *plan, uint32_t index, uint32_t round)
{
    return plan->odd_rank != TORTURE_NOBODY && index == plan->odd_tensor &&
           (plan->odd_round < 0 || (uint32_t)plan->odd_round == round);
}

/* Rank 0 closes and waits for the others, but its clock may jump past the close timeout. For members that still work,
 * the job then ends as if rank 0 had left early. */
bool torture_may_leave_early(const torture_plan *plan)
{
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const torture_fault *fault = &plan->faults[i];
        if (plan->leaves && fault->kind == TORTURE_JUMP && fault->member == 0 &&
            fault->for_ns >= plan->job.engine.close_timeout_ns / 2) {
            return true;
        }
    }
    return false;
}

static bool grace_extended(const run *self, trib_status status)
{
    const torture_plan *plan = self->plan;
    if (self->is_last) {
        return false;
    }
    const bool deserted = plan->early_leaver != TORTURE_NOBODY;
    const bool breaks = torture_may_end_so(self, TRIB_SYSTEM);
    const bool gives_up = plan->cancels > 0 || plan->hurried > 0 || deserted || breaks;
    if (deserted && (status == TRIB_PEER_LEFT || status == TRIB_CLOSED)) {
        return true;
    }
    if (plan->haste_ns > 0 && status == TRIB_CANCELLED) {
        return true; /* the leaving worker withdrew from operations that it had begun */
    }
    if (torture_may_leave_early(plan) && status == TRIB_PEER_LEFT) {
        return true;
    }
    if (plan->early_leaver == 0 && status == TRIB_PEER_LOST) {
        return true; /* the coordinator leaves, and the others hear of it in several ways */
    }
    return torture_may_end_so(self, status) || (plan->cancels > 0 && status == TRIB_CANCELLED) ||
           (plan->hurried > 0 && status == TRIB_TIMEOUT) ||
           (gives_up && plan->leaves && status == TRIB_PEER_LEFT); /* another worker gave up its last round and left */
}

/* A worker that leaves has heard that the tensor is disputed. If another one's control connection is dead, or cut off,
 * the refusal of a member that sums overtakes that word there: the round lacks what the departed worker will never
 * contribute. The coordinator says that it has left behind that word, so the worker has not heard of that either. */
static bool has_left_after_dispute(const attempt *what, trib_status status)
{
    const run *self = what->run;
    const trib_engine *engine = self->job->members[what->driver->rank].engine;
    return status == TRIB_PEER_LEFT && self->plan->leaves && self->plan->odd_round < 0 &&
           torture_is_disputed(self->plan, what->tensor, what->round) && !trib_departed_any(&engine->departed);
}

/* A broadcast may be over on workers that agree with its root: before all have declared the tensor, or where machines
 * pass it on. Elsewhere nobody gets the payload before all have come and agree. */
static bool may_win(const torture_plan *plan, const torture_tensor *tensor, uint32_t rank)
{
    const bool is_certain = plan->odd_round >= 0 && !tensor->on_device && plan->job.per_machine == 0;
    return tensor->root >= 0 && tensor->exchange == TORTURE_WHOLE && rank != plan->odd_rank && !is_certain;
}

/* A reduce to one rank that is under way when its server goes is refused where it is not complete (docs/failure.md). */
static bool may_be_called_off(const run *self, const torture_tensor *tensor, trib_status status)
{
    const uint64_t gone = self->verdict.checks[TORTURE_CHECK_LOSE] + self->verdict.checks[TORTURE_CHECK_DRAIN];
    return gone > 0 && tensor->exchange == TORTURE_REDUCE && status == TRIB_CANCELLED && !self->is_last;
}

static void check_result(attempt *what, const trib_result *result)
{
    run *self = what->run;
    torture_tensor tensor = torture_tensor_of(self->plan, what->tensor, what->round);
    tensor.absent = torture_absent(self->plan, what->tensor, what->round);
    const uint32_t workers = self->plan->job.workers;
    const bool disputed = torture_is_disputed(self->plan, what->tensor, what->round);
    if (result->status != TRIB_OK) {
        self->verdict.failed++;
        self->verdict.checks[TORTURE_CHECK_FAILURE]++;
        torture_blame(what, result);
        if (!grace_extended(self, result->status) && !(disputed && result->status == TRIB_MISMATCH) &&
            !may_be_called_off(self, &tensor, result->status) && !has_left_after_dispute(what, result->status) &&
            !(result->status == TRIB_PEER_LOST && torture_is_silenced(self, result->text))) {
            torture_broken(self, "rank %u, tensor %u, round %u: %s, though nothing happened that explains it: %s",
                           what->driver->rank, what->tensor, what->round, trib_status_text(result->status),
                           result->text);
        }
        return;
    }
    self->verdict.succeeded++;
    self->verdict.checks[TORTURE_CHECK_RESULT]++;
    if (disputed && !may_win(self->plan, &tensor, what->driver->rank)) {
        torture_broken(self, "rank %u, tensor %u, round %u: succeeded, though the workers disagreed",
                       what->driver->rank, what->tensor, what->round);
        return;
    }
    const uint32_t members = torture_members(&tensor, workers);
    if (result->contributors != members && tensor.root < 0) {
        torture_broken(self, "rank %u, tensor %u, round %u: %u contributors of %u", what->driver->rank, what->tensor,
                       what->round, result->contributors, members);
    }
    const trib_engine *engine = self->job->members[what->driver->rank].engine;
    const struct trib_tensor *encoded = torture_encoded_tensor(engine, &tensor, what->tensor);
    self->verdict.checks[TORTURE_CHECK_ENCODED] += encoded != NULL;
    const uint32_t wrong =
        encoded != NULL
            ? torture_check_encoded(encoded, &tensor, what->tensor, what->round, workers, torture_output(what))
            : torture_check(&tensor, what->tensor, what->round, workers, what->driver->rank, torture_output(what));
    if (wrong != UINT32_MAX) {
        torture_broken(self, "rank %u, tensor %u, round %u: element %u differs from the oracle's", what->driver->rank,
                       what->tensor, what->round, wrong);
    }
}

static void check_time(attempt *what, const trib_result *result)
{
    run *self = what->run;
    const driver *mine = what->driver;
    const int64_t slack_ns = torture_is_calm(self->plan) ? SLACK_CALM_NS : SLACK_NS;
    const int64_t took_ns = trib_sim_process_clock(self->job->members[mine->rank].process) - what->submit_clock_ns;
    if (took_ns > what->timeout_ns + slack_ns + self->grace_extended_ns[mine->rank] &&
        !self->job->members[mine->rank].killed) {
        torture_broken(self, "rank %u, tensor %u, round %u: called back after %.3f s, its deadline was %.3f s",
                       mine->rank, what->tensor, what->round, (double)took_ns / 1e9, (double)what->timeout_ns / 1e9);
    }
    const bool is_late_news =
        result->status != TRIB_OK && result->status != TRIB_TIMEOUT && took_ns >= what->timeout_ns;
    if (is_late_news && what->timeout_ns > SECOND && torture_is_calm(self->plan) && !self->plan->may_end) {
        torture_broken(self,
                       "rank %u, tensor %u, round %u: it failed early, but was called back only at its deadline: %s",
                       mine->rank, what->tensor, what->round, result->text);
    }
}

void torture_judge(attempt *what, const trib_result *result)
{
    check_time(what, result);
    check_result(what, result);
}
