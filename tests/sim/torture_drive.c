/* torture_drive.c - what the workers of a tortured job do: declare, submit, cancel, check what comes back. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/torture_internal.h"

#define SLACK_NS (5 * SECOND) /* from a deadline to the callback: the grace that landings have, and queues */

static void submit_more(driver *self);

static bool is_excused(const run *self, trib_status status)
{
    const torture_plan *plan = self->plan;
    const bool gives_up = plan->cancels > 0 || plan->hurried > 0; /* and may then run ahead of the others too far */
    return plan->may_end || (plan->cancels > 0 && status == TRIB_CANCELLED) ||
           (plan->hurried > 0 && status == TRIB_TIMEOUT) || (gives_up && status == TRIB_BUSY) ||
           (gives_up && plan->leaves && status == TRIB_PEER_LEFT); /* one gave up its last round, and has gone */
}

static void check_result(attempt *what, const trib_result *result)
{
    run *self = what->run;
    const torture_tensor *tensor = &self->plan->tensors[what->tensor];
    const uint32_t workers = self->plan->job.workers;
    if (result->status != TRIB_OK) {
        self->verdict.failed++;
        if (!is_excused(self, result->status)) {
            torture_broken(self, "rank %u, tensor %u, round %u: %s, though nothing happened that explains it: %s",
                           what->driver->rank, what->tensor, what->round, trib_status_text(result->status),
                           result->text);
        }
        return;
    }
    self->verdict.succeeded++;
    if (result->contributors != workers && tensor->root < 0) {
        torture_broken(self, "rank %u, tensor %u, round %u: %u contributors of %u", what->driver->rank, what->tensor,
                       what->round, result->contributors, workers);
    }
    const uint32_t wrong = torture_check(tensor, what->tensor, what->round, workers, what->output);
    if (wrong != UINT32_MAX) {
        torture_broken(self, "rank %u, tensor %u, round %u: element %u is not what the oracle says", what->driver->rank,
                       what->tensor, what->round, wrong);
    }
}

static void on_done(const trib_result *result, void *user)
{
    attempt *what = user;
    run *self = what->run;
    driver *mine = what->driver;
    if (++what->callbacks != 1 || !what->busy) {
        torture_broken(self, "rank %u, tensor %u, round %u: its callback ran %u times", mine->rank, what->tensor,
                       what->round, what->callbacks);
        return;
    }
    const int64_t took_ns = trib_sim_process_clock(self->job->members[mine->rank].process) - what->submit_clock_ns;
    if (took_ns > what->timeout_ns + SLACK_NS + self->excused_ns[mine->rank] &&
        !self->job->members[mine->rank].killed) {
        torture_broken(self, "rank %u, tensor %u, round %u: called back after %.3f s, its deadline was %.3f s",
                       mine->rank, what->tensor, what->round, (double)took_ns / 1e9, (double)what->timeout_ns / 1e9);
    }
    check_result(what, result);
    what->busy = false;
    mine->in_flight--;
    submit_more(mine);
}

static void cancel_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    attempt *what = (attempt *)((char *)event - offsetof(attempt, cancel));
    trib_op_cancel(what->op);
    trib_op_release(what->op);
    what->op = NULL;
}

/* ---- Streams ---- */

static void stream_fills(attempt *what)
{
    run *self = what->run;
    torture_fill(&self->plan->tensors[what->tensor], what->tensor, what->round, what->driver->rank, what->input);
    trib_host_stream_open(what->stream);
}

static void ready_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    stream_fills((attempt *)((char *)event - offsetof(attempt, ready)));
}

static void stream_end(attempt *what)
{
    if (what->stream != NULL) {
        trib_sim_clear(what->run->job->sim, &what->ready);
        trib_host_stream_open(what->stream);
        trib_host_stream_free(what->stream);
        what->stream = NULL;
    }
}

/* Whether the input will be there later only. Nothing is read from it before. */
static bool stream_begin(driver *self, attempt *what)
{
    const torture_plan *plan = self->run->plan;
    stream_end(what);
    if (!plan->tensors[what->tensor].on_device || trib_sim_draw_one_in(&self->stream, 2)) {
        return false;
    }
    trib_sim *sim = self->run->job->sim;
    what->stream = trib_host_stream_create(false);
    what->ready.fired = ready_fired;
    trib_sim_set(sim, &what->ready, trib_sim_now(sim) + (int64_t)trib_sim_draw_below(&self->stream, 3 * MS));
    return true;
}

/* ---- Operations ---- */

static bool declare(driver *self, uint32_t index, trib_tensor **tensor_out)
{
    const torture_tensor *what = &self->run->plan->tensors[index];
    char name[32];
    snprintf(name, sizeof name, "tensor %u", index);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = what->dtype;
    desc.count = what->count;
    desc.priority = -(int32_t)index;
    desc.flags = what->on_device ? TRIB_TENSOR_DEVICE : 0;
    return trib_tensor_declare(self->run->job->members[self->rank].engine, &desc, tensor_out, NULL) == TRIB_OK;
}

static trib_status submit(driver *self, attempt *what, trib_op_params *params, bool cancels)
{
    const torture_tensor *tensor = &self->run->plan->tensors[what->tensor];
    trib_engine *engine = self->run->job->members[self->rank].engine;
    trib_op **op_out = cancels ? &what->op : NULL;
    if (tensor->root >= 0) {
        params->root = tensor->root;
        return trib_broadcast(engine, params, op_out, NULL);
    }
    params->reduce = tensor->reduce;
    return trib_push_pull(engine, params, op_out, NULL);
}

static void begin(driver *self, uint32_t index)
{
    run *whole = self->run;
    const torture_plan *plan = whole->plan;
    attempt *what = &self->attempts[index][self->next_round[index] % SLOTS];
    if (what->op != NULL) { /* done before its time to be cancelled came */
        trib_sim_clear(whole->job->sim, &what->cancel);
        trib_op_release(what->op);
        what->op = NULL;
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    what->round = self->next_round[index];
    what->callbacks = 0;
    what->busy = true;
    if (!stream_begin(self, what)) {
        torture_fill(&plan->tensors[index], index, what->round, self->rank, what->input);
    }
    if (!declare(self, index, &params.tensor)) {
        self->refused = true;
        what->busy = false;
        return;
    }
    const bool hurried = plan->hurried > 0 && trib_sim_draw_one_in(&self->stream, plan->hurried);
    const bool cancels = plan->cancels > 0 && trib_sim_draw_one_in(&self->stream, plan->cancels);
    what->timeout_ns = hurried ? 1 + (int64_t)trib_sim_draw_below(&self->stream, 20 * MS) : 40 * SECOND;
    params.timeout_ns = what->timeout_ns;
    params.input = what->input;
    params.output = what->output;
    params.stream = what->stream;
    params.done_cb = on_done;
    params.user = what;
    what->submit_clock_ns = trib_sim_process_clock(whole->job->members[self->rank].process);
    if (submit(self, what, &params, cancels) != TRIB_OK) {
        self->refused = true;
        what->busy = false;
        if (!plan->may_end) {
            torture_broken(whole, "rank %u: an operation was refused, though nothing happened that explains it",
                           self->rank);
        }
        return;
    }
    self->next_round[index]++;
    self->in_flight++;
    if (cancels) {
        what->cancel.fired = cancel_fired;
        trib_sim_set(whole->job->sim, &what->cancel,
                     trib_sim_now(whole->job->sim) + (int64_t)trib_sim_draw_below(&self->stream, 5 * MS));
    }
}

static bool may_begin(const driver *self, uint32_t index)
{
    const uint32_t round = self->next_round[index];
    return round < self->run->plan->tensors[index].rounds && !self->attempts[index][round % SLOTS].busy;
}

/* The next in an order that is the same on every worker: first rounds of all tensors, second rounds, ... */
static bool begin_next(driver *self)
{
    const torture_plan *plan = self->run->plan;
    uint32_t index = 0;
    for (uint32_t i = 1; i < plan->tensor_count; i++) {
        const bool has_more = self->next_round[index] < plan->tensors[index].rounds;
        const bool is_next = self->next_round[i] < plan->tensors[i].rounds &&
                             (!has_more || self->next_round[i] < self->next_round[index]);
        index = is_next ? i : index;
    }
    if (!may_begin(self, index)) {
        return false;
    }
    begin(self, index);
    return true;
}

/* Any that can be begun. With less than all of them in flight workers would wait for each other. */
static bool begin_any(driver *self)
{
    const uint32_t count = self->run->plan->tensor_count;
    const uint32_t first = (uint32_t)trib_sim_draw_below(&self->stream, count);
    for (uint32_t i = 0; i < count; i++) {
        if (may_begin(self, (first + i) % count)) {
            begin(self, (first + i) % count);
            return true;
        }
    }
    return false;
}

/* Not from the callback of the last operation alone: a worker with nothing to do leaves as well. */
static void leave_if_done(driver *self)
{
    const torture_plan *plan = self->run->plan;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (self->next_round[i] < plan->tensors[i].rounds) {
            return;
        }
    }
    if (plan->leaves && self->in_flight == 0 && sim_job_all_ready(self->run->job, NULL)) {
        self->refused = true;
        sim_job_leave(self->run->job, self->rank);
    }
}

static void submit_more(driver *self)
{
    const uint32_t window = self->run->plan->window;
    bool began = true;
    while (began && !self->refused && (window == 0 || self->in_flight < window)) {
        began = window == 0 ? begin_any(self) : begin_next(self);
    }
    leave_if_done(self);
}

void torture_drive_open(run *self)
{
    const torture_plan *plan = self->plan;
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        driver *mine = &self->drivers[rank];
        mine->run = self;
        mine->rank = rank;
        mine->stream = trib_sim_stream_make(self->job->sim, 1000 + rank);
        for (uint32_t i = 0; i < plan->tensor_count; i++) {
            const size_t size = plan->tensors[i].count * trib_dtype_size(plan->tensors[i].dtype);
            for (uint32_t slot = 0; slot < SLOTS; slot++) {
                attempt *what = &mine->attempts[i][slot];
                *what = (attempt){.run = self, .driver = mine, .tensor = i};
                what->input = malloc(size + 1);
                what->output = malloc(size + 1);
            }
        }
        submit_more(mine);
    }
}

void torture_drive_close(run *self)
{
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
            for (uint32_t slot = 0; slot < SLOTS; slot++) {
                attempt *what = &self->drivers[rank].attempts[i][slot];
                trib_sim_clear(self->job->sim, &what->cancel);
                stream_end(what);
                trib_op_release(what->op);
                free(what->input);
                free(what->output);
            }
        }
    }
}
