/*
 * torture_watch.c - counts that must balance between the turns of the reactors, whatever has happened; see torture.h.
 *
 * Each count is computed again from its source: credit from the messages that links have with the transport, memory
 * from what rounds and receives hold, open rounds from the rounds. Nothing may wait for a credit that is available. A
 * wrong count shows at once here, long before an operation hangs because of it, if it ever does.
 */
#include <string.h>

#include "engine/local_group/group_internal.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/base/container_of.h"
#include "engine/link/link_host.h"
#include "engine/server/server_sum.h"
#include "engine/worker/pipeline.h"
#include "engine/aggregate/sum_tree.h"
#include "tests/sim/torture_internal.h"

/* ---- Links ---- */

static const trib_send_request *request_at(const trib_link *link, uint32_t i)
{
    return trib_container_of(link->outbox.slots[i].node, trib_send_request, node);
}

static bool goes_before(const trib_send_request *a, const trib_send_request *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->age < b->age);
}

static const char *outbox_fault(const trib_core *core, trib_link *link)
{
    for (uint32_t i = 0; i < link->outbox.count; i++) {
        if (request_at(link, i)->node.place != i + 1) {
            return "a request is not at the heap index that it stores";
        }
        if (i > 0 && goes_before(request_at(link, i), request_at(link, (i - 1) / 2))) {
            return "an outbox is not in the order of priority and age";
        }
    }
    const bool has_credit = link->flow.egress == NULL && trib_scheduler_connection_with_credit(link) != NULL;
    if (link->outbox.count > 0 && has_credit && link->state == TRIB_LINK_READY && !link->pump_queued) {
        return "a request waits in an outbox though credit is available";
    }
    return link->pump_queued && !core->host.scheduler.wake_post.queued
               ? "an outbox waits for a turn that was not scheduled"
               : NULL;
}

static const char *egress_fault(const trib_core *core, const trib_egress *egress)
{
    uint64_t in_flight = 0;
    for (const trib_link *link = core->host.links; link != NULL; link = link->next) {
        in_flight += link->flow.egress == egress ? link->in_flight : 0;
    }
    if (in_flight != egress->in_flight || (in_flight == 0) != (egress->messages == 0)) {
        return "the credit of pushes is not what the links have in flight";
    }
    for (uint32_t i = 0; i < egress->waiting.count; i++) {
        const trib_link *link = trib_egress_waiting_link(egress, i);
        const trib_egress_flow *flow = &link->flow;
        if (flow->node.place != i + 1 || !trib_scheduler_has_work(link)) {
            return "a link waits for its turn at another heap index than it stores, or has nothing to send";
        }
        if (flow->at < egress->clock || flow->at < trib_egress_waiting_link(egress, i > 0 ? (i - 1) / 2 : 0)->flow.at) {
            return "a link is ahead of its turn";
        }
    }
    return egress->waiting.count > 0 && egress->in_flight < egress->limit && !core->host.scheduler.wake_post.queued
               ? "a link waits for its turn though credit is available"
               : NULL;
}

/* ---- Sums ---- */

static const char *round_fault(const trib_summation *self, const sum_round *round, uint32_t *blocks)
{
    uint32_t references = 0, receives = 0, partials_out = 0;
    for (uint32_t i = 0; i < round->chunk_count; i++) {
        const sum_chunk *chunk = &round->chunks[i];
        const uint32_t ours = chunk->is_open || chunk->is_out ? 1 : 0;
        if (chunk->sum.references < ours) {
            return "a broadcast has lost its payload, or a partial sum its memory";
        }
        partials_out += chunk->is_out;
        references += chunk->sum.references - ours + chunk->nothing.references;
        *blocks += (chunk->result != NULL) + (chunk->kept != NULL);
        const uint32_t nodes = self->config.order == TRIB_ORDER_RANK ? self->config.contributor_count : 1;
        for (uint32_t node = 0; chunk->tree != NULL && node < nodes; node++) {
            *blocks += chunk->tree->nodes[node].block != NULL;
        }
    }
    for (const sum_block *block = self->all_blocks; block != NULL; block = block->all_next) {
        receives += block->receiving_for == round;
    }
    if (references != round->references || receives != round->receives || round->holds > 0 ||
        partials_out != round->partials_out) {
        return "a round's references, receives, holds or partial sums are miscounted";
    }
    return NULL;
}

/* For partial sums: returns true if a round is complete or reported before an older one. */
static bool is_out_of_turn(const sum_round *round)
{
    const sum_round *before = round->next;
    const bool is_settled =
        round->is_reported || (round->refused == TRIB_OK && round->chunks_done == round->what.chunk_count);
    return is_settled && before != NULL && !before->is_reported &&
           (before->refused != TRIB_OK || before->chunks_done < before->what.chunk_count);
}

static const char *keys_fault(const trib_summation *self)
{
    uint32_t rounds = 0;
    for (uint32_t i = 0; i < self->keys.capacity; i++) {
        const sum_key *key = self->keys.slots[i].value;
        uint32_t open = 0, live = 0;
        for (const sum_round *at = key == NULL ? NULL : key->live; at != NULL; at = at->next) {
            live++;
            open += at->refused == TRIB_OK && at->chunks_done < at->what.chunk_count;
            if (self->config.partial_ready != NULL && is_out_of_turn(at)) {
                return "a refusal was reported before its turn";
            }
        }
        if (key != NULL && (open != key->open_count || live != key->live_count)) {
            return "a key's counts do not match its rounds";
        }
        rounds += live;
    }
    return rounds == self->live_rounds ? NULL : "a round belongs to no key";
}

static const char *summation_fault(const trib_summation *self, uint32_t *receiving)
{
    uint32_t held = 0;
    for (const sum_block *block = self->all_blocks; block != NULL; block = block->all_next) {
        *receiving += block->is_receiving;
        held += block->is_receiving + (block->spare != NULL);
    }
    for (const sum_round *round = self->oldest; round != NULL; round = round->younger) {
        const char *fault = round_fault(self, round, &held);
        if (fault != NULL) {
            return fault;
        }
    }
    if (held != self->blocks_out || !trib_sum_memory_is_consistent(self)) {
        return "a block of memory for sums is neither free nor in use";
    }
    return keys_fault(self);
}

/* ---- Cores ---- */

/* Returns the number of sums that are being received, or UINT32_MAX if a task waits with another priority than its
 * operation's. */
static uint32_t task_receives(const trib_engine *engine, uint32_t core)
{
    uint32_t receives = 0;
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        const trib_tensor *tensor = engine->tensors[i];
        const trib_tensor_core *part = &tensor->cores[core];
        for (uint32_t t = 0; atomic_load(&tensor->placed) && t < part->task_count; t++) {
            const trib_task *task = &part->tasks[t];
            receives += task->held[TRIB_HOLD_RECEIVE];
            if (trib_send_request_waits(&task->request) && task->request.priority != task->op_core->op->priority) {
                return UINT32_MAX;
            }
        }
    }
    return receives;
}

/* Returns how many sums the members have yet to get. */
static uint64_t sums_owed(const trib_summation *self)
{
    uint64_t owed = 0;
    for (const sum_round *round = self == NULL ? NULL : self->oldest; round != NULL; round = round->younger) {
        owed += round->references;
    }
    return owed;
}

/* NULL: there is none. */
static const trib_summation *summation_of(const trib_server_sum *sum)
{
    trib_aggregator *aggregator = sum->aggregator;
    return aggregator == NULL ? NULL : trib_sum_aggregator_summation(aggregator);
}

/* Each is in an outbox, or with a transport. A relay's partial sums and what is on its way back to it are counted
 * elsewhere. */
static bool are_sums_kept(const trib_core *core)
{
    uint64_t owed = 0;
    for (const trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        owed += sums_owed(summation_of(sum));
    }
    return core->relay == NULL && owed != core->entries_waiting;
}

/* Returns true if the device uses the operation's buffers and no core does. */
static bool has_job(const trib_op *op)
{
    const trib_device_op *device = op->tensor->on_device ? op->device : NULL;
    return device != NULL && device->ahead_bytes > 0 && !device->is_over;
}

static const char *core_fault(const trib_engine *engine, const trib_core *core)
{
    const char *fault = NULL;
    for (uint32_t i = 0; i < core->host.scheduler.network_count && fault == NULL; i++) {
        fault = egress_fault(core, &core->host.scheduler.networks[i]);
    }
    uint32_t to_worker = 0, to_server = 0, receiving = 0;
    for (trib_link *link = core->host.links; link != NULL && fault == NULL; link = link->next) {
        fault = outbox_fault(core, link);
        const trib_link_upcalls *upcalls = link->main != NULL ? link->main->upcalls : link->upcalls;
        for (uint32_t i = 0; i < link->arrival_count; i++) {
            const trib_recv_claim *recv_claim = &trib_link_arrival(link, i)->recv_claim;
            /* The sum of a partial sum has an owner, which counts its references. A task's sum has none. */
            to_worker += recv_claim->what != NULL && recv_claim->owner == NULL;
            /* An encoded contribution lands elsewhere, and gets the summation's memory when it is decoded. */
            to_server += recv_claim->what != NULL && upcalls == &trib_server_upcalls &&
                         trib_link_arrival(link, i)->frame.codec == 0;
        }
    }
    if (fault == NULL && are_sums_kept(core)) {
        fault = "a sum is kept that no link delivers";
    }
    for (const trib_server_sum *sum = NULL; fault == NULL && (sum = trib_server_sums_next(core, sum)) != NULL;) {
        const trib_summation *summation = summation_of(sum);
        fault = summation == NULL ? NULL : summation_fault(summation, &receiving);
    }
    if (fault == NULL && to_server != receiving && core->sums != NULL) {
        fault = "memory waits for a payload that no link brings";
    }
    if (fault == NULL && to_worker != task_receives(engine, core->reactor->index)) {
        fault = "a task waits for a sum that no link receives, or with another priority than its operation's";
    }
    for (trib_op_core *at = core->op_cores; fault == NULL && at != NULL; at = at->next) {
        fault = atomic_load(&at->op->cores_left) > engine->core_count + has_job(at->op) ||
                        atomic_load(&at->op->cores_booked) == 0
                    ? "an operation's count of cores is wrong"
                    : NULL;
    }
    for (const trib_task *at = core->stages[TRIB_STAGE_COPY_D2H].head; fault == NULL && at != NULL;
         at = at->queue_next) {
        const trib_task *next = at->queue_next;
        fault = next != NULL && next->op_core->op->priority > at->op_core->op->priority
                    ? "copies to the host are not in the order of priority"
                    : NULL;
    }
    return fault;
}

void torture_watch(run *self)
{
    for (uint32_t i = 0; i < self->job->member_count && self->verdict.held; i++) {
        const sim_member *member = &self->job->members[i];
        for (uint32_t c = 0; !member->killed && !member->closed && c < member->engine->core_count; c++) {
            const char *fault = core_fault(member->engine, &member->engine->cores[c]);
            if (fault != NULL) {
                torture_broken(self, "member %u, reactor %u, at %.6f s: %s", i, c,
                               (double)trib_sim_now(self->job->sim) / 1e9, fault);
            }
        }
    }
}

/* Returns how many operations are referenced. */
static uint32_t kept_ops(const trib_engine *engine, bool with_cancelled)
{
    uint32_t kept = 0;
    for (trib_op *op = engine->all_ops; op != NULL; op = op->made_next) {
        kept += atomic_load(&op->references) > 0 && (with_cancelled || !atomic_load(&op->cancelled));
    }
    return kept;
}

bool torture_has_begun(sim_job *job, void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t core = 0; !job->members[i].killed && core < engine->core_count; core++) {
            if (!engine->cores[core].joined && !engine->cores[core].ended) {
                return false;
            }
        }
    }
    return true;
}

/* True if the engine has a tensor of that name in the same group. */
static bool has_tensor(const trib_engine *engine, const trib_tensor *tensor)
{
    for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
        const trib_tensor *mine = engine->tensors[tag];
        const bool same_group = mine->group == NULL || tensor->group == NULL
                                    ? mine->group == NULL && tensor->group == NULL
                                    : strcmp(mine->group->name, tensor->group->name) == 0;
        if (mine->state == TRIB_TENSOR_DECLARED && same_group && strcmp(mine->name, tensor->name) == 0) {
            return true;
        }
    }
    return false;
}

/* True if no worker of a lower rank shares the tensor. */
static bool is_first_to_have(const run *self, uint32_t rank, const trib_tensor *tensor)
{
    for (uint32_t i = 0; i < rank; i++) {
        if (has_tensor(self->job->members[i].engine, tensor)) {
            return false;
        }
    }
    return true;
}

/* Of tensors that were released nothing is left, and the coordinator knows as many as the workers. */
static void watch_tensors(run *self)
{
    const trib_coordinator *coordinator = self->job->members[0].engine->coordinator;
    uint32_t all = 0;
    for (uint32_t i = 0; i < self->plan->job.workers; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
            const trib_tensor_state state = engine->tensors[tag]->state;
            all += state == TRIB_TENSOR_DECLARED && is_first_to_have(self, i, engine->tensors[tag]);
            if (state != TRIB_TENSOR_DECLARED && state != TRIB_TENSOR_UNUSED) {
                torture_broken(self, "at rest, rank %u has tensor \"%s\" in state %d", i, engine->tensors[tag]->name,
                               (int)state);
            }
        }
    }
    if (coordinator != NULL && coordinator->workers_left == 0 && coordinator->tensors_alive != all) {
        torture_broken(self, "at rest, the coordinator knows %u tensors, and workers have %u",
                       coordinator->tensors_alive, all);
    }
}

/* Returns what is wrong with the groups that a live member of a job at rest knows, or NULL. */
static const char *groups_fault(const trib_engine *engine, uint32_t alive)
{
    uint32_t known = 0;
    for (uint32_t id = 1; id < TRIB_GROUPS_MAX; id++) {
        known += trib_engine_rank_set(engine, id) != NULL;
    }
    if (known != alive) {
        return "it knows groups that have ended, or lacks some";
    }
    for (uint32_t c = 0; c < engine->core_count; c++) {
        for (const trib_server_sum *sum = engine->cores[c].group_sum_list; sum != NULL; sum = sum->next) {
            if (sum->is_over || trib_engine_rank_set(engine, sum->ranks->id) != sum->ranks) {
                return "it sums for a group that has ended";
            }
        }
    }
    return NULL;
}

/* The same groups are alive on the workers, at the coordinator, and on all that sum. */
static void watch_groups(run *self)
{
    const trib_coordinator *coordinator = self->job->members[0].engine->coordinator;
    uint32_t alive = 0;
    for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
        bool is_alive = false;
        for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
            is_alive = is_alive || self->drivers[rank].groups[i] != NULL;
        }
        alive += is_alive;
    }
    if (coordinator == NULL || coordinator->workers_left > 0) {
        return;
    }
    if (coordinator->groups_numbered != alive) {
        torture_broken(self, "at rest, the coordinator knows %u groups, and workers have %u",
                       coordinator->groups_numbered, alive);
    }
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const bool is_there = !self->job->members[i].killed && !self->drained[i];
        const char *fault = is_there ? groups_fault(self->job->members[i].engine, alive) : NULL;
        if (fault != NULL) {
            torture_broken(self, "at rest, of %u groups member %u: %s", alive, i, fault);
        }
    }
}

void torture_watch_rest(run *self)
{
    watch_tensors(self);
    watch_groups(self);
    for (uint32_t i = 0; i < self->plan->job.workers; i++) {
        const uint32_t kept = kept_ops(self->job->members[i].engine, true),
                       held = torture_drive_handles(&self->drivers[i]);
        if (kept > held) {
            torture_broken(self, "at rest, %u operations of rank %u have references but no handle", kept - held, i);
        }
    }
}

void torture_watch_closed(run *self)
{
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        /* An operation that was cancelled after the job's end waits for posts that no reactor runs any more. */
        const uint32_t kept = kept_ops(engine, false);
        if (kept > 0) {
            torture_broken(self, "member %u is closed, but %u of its operations have references", i, kept);
        }
        for (uint32_t c = 0; c < engine->core_count; c++) {
            const trib_core *core = &engine->cores[c];
            if (core->entries_waiting > 0) {
                torture_broken(self, "member %u is closed, and has sums under way", i);
            }
        }
        const trib_local_group *group = engine->group;
        if (group != NULL && group->leader != NULL && trib_leader_in_flight(group->leader) > 0) {
            torture_broken(self, "member %u is closed, and has given out credit for collectives", i);
        }
    }
}
