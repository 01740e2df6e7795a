/* torture_drive.c - the workers of a tortured job: they declare, submit, cancel, and leave. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/torture_internal.h"

attempt *torture_attempt(driver *self, uint32_t index, uint32_t round)
{
    const torture_plan *plan = self->run->plan;
    if (index >= plan->tensor_count) {
        return &self->crowd[index - plan->tensor_count];
    }
    return &self->attempts[index][plan->tensors[index].stays >> self->rank & 1 ? 0 : round % SLOTS];
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
    torture_judge(what, result);
    torture_buffers_give_back(what);
    what->busy = false;
    what->done_ns = trib_sim_now(self->job->sim);
    *(what->tensor < self->plan->tensor_count ? &mine->in_flight : &mine->crowd_in_flight) -= 1;
    torture_submit_more(mine);
}

static void cancel_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    attempt *what = (attempt *)((char *)event - offsetof(attempt, cancel));
    trib_op_cancel(what->op);
    trib_op_release(what->op);
    what->op = NULL;
}

/* ---- Operations ---- */

void torture_name(const torture_tensor *what, uint32_t index, char *name, size_t size)
{
    snprintf(name, size, what->has_mates ? "mates#%u" : "tensor %u", index);
}

static bool declare(driver *self, uint32_t index, trib_tensor **tensor_out)
{
    const torture_plan *plan = self->run->plan;
    const torture_tensor what = torture_tensor_of(plan, index, self->next_round[index]);
    const bool is_odd = plan->odd_rank == self->rank && plan->odd_tensor == index && plan->odd_round < 0;
    char name[32];
    torture_name(&what, index, name, sizeof name);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.name_length = what.has_mates ? (uint32_t)strlen("mates") : 0;
    desc.dtype = what.dtype;
    desc.count = what.count + (is_odd ? 1 : 0);
    desc.priority = -(int32_t)index;
    desc.flags = what.on_device ? TRIB_TENSOR_DEVICE : 0;
    uint64_t splits[TORTURE_WORKERS_MAX];
    torture_describe_slices(self, &what, &desc, splits);
    if (what.group != 0 && !torture_make_group(self, index, &what)) {
        return false;
    }
    desc.group = index < plan->tensor_count ? self->groups[index] : NULL;
    return trib_tensor_declare(self->run->job->members[self->rank].engine, &desc, tensor_out, NULL) == TRIB_OK;
}

/* A reduction that suits the tensor's type as well, and is not the one that the others ask for. */
static trib_reduce another_reduce(const torture_tensor *tensor)
{
    trib_reduce other = tensor->reduce;
    do {
        other = (trib_reduce)((other + 1) % TRIB_REDUCE_COUNT);
    } while (!trib_reduce_suits(tensor->dtype, other));
    return other;
}

static trib_status submit(driver *self, attempt *what, trib_op_params *params, bool cancels, trib_error *error)
{
    const torture_plan *plan = self->run->plan;
    const torture_tensor tensor = torture_tensor_of(plan, what->tensor, what->round);
    const bool is_odd = plan->odd_rank == self->rank && torture_is_disputed(plan, what->tensor, what->round);
    trib_engine *engine = self->run->job->members[self->rank].engine;
    trib_op **op_out = cancels ? &what->op : NULL;
    params->prescale = tensor.prescale;
    params->postscale = tensor.postscale;
    if (tensor.exchange != TORTURE_WHOLE) {
        return torture_submit_other(engine, &tensor, torture_buffers_size(what), params, op_out, error);
    }
    const bool swaps = is_odd && plan->odd_exchange; /* the dispute is about the exchange alone, if possible */
    if ((tensor.root >= 0) != swaps) {
        const int32_t other = (tensor.root + 1) % (int32_t)torture_members(&tensor, plan->job.workers);
        params->root = swaps ? 0 : is_odd ? other : tensor.root;
        return trib_broadcast(engine, params, op_out, error);
    }
    params->reduce = swaps ? TRIB_SUM : is_odd ? another_reduce(&tensor) : tensor.reduce;
    return trib_push_pull(engine, params, op_out, error);
}

/* True if the tensor that the next operation is on is to be another one than the last operation's. */
static bool is_reborn(const driver *self, uint32_t index)
{
    const torture_plan *plan = self->run->plan;
    const uint32_t round = self->next_round[index];
    return plan->lives > 0 && index < plan->tensor_count && round > 0 && round % plan->lives == 0;
}

void torture_release_last(driver *self, uint32_t index)
{
    trib_error error = {.text = ""};
    const bool with_group = self->run->plan->tensors[index].regroups;
    const trib_status status = with_group                      ? trib_group_release(self->groups[index], &error)
                               : self->declared[index] != NULL ? trib_tensor_release(self->declared[index], &error)
                                                               : TRIB_OK;
    if (status != TRIB_OK) {
        torture_broken(self->run, "rank %u: tensor %u%s was not released: %s", self->rank, index,
                       with_group ? " with its group" : "", error.text);
    }
    self->declared[index] = NULL;
    self->groups[index] = with_group ? NULL : self->groups[index];
}

static void begin(driver *self, uint32_t index)
{
    run *whole = self->run;
    const torture_plan *plan = whole->plan;
    attempt *what = torture_attempt(self, index, self->next_round[index]);
    if (what->op != NULL) { /* the operation completed before its time to be cancelled */
        trib_sim_clear(whole->job->sim, &what->cancel);
        trib_op_release(what->op);
        what->op = NULL;
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    what->round = self->next_round[index];
    what->callbacks = 0;
    what->busy = true;
    torture_buffers_begin(what);
    if (is_reborn(self, index)) {
        torture_release_last(self, index);
    }
    if (!declare(self, index, &params.tensor)) {
        self->refused = true;
        what->busy = false;
        return;
    }
    if (index < plan->tensor_count) {
        self->declared[index] = params.tensor;
    }
    params.step = what->round + 1;
    const bool hurried = plan->hurried > 0 && !whole->is_last && trib_sim_draw_one_in(&self->stream, plan->hurried);
    const bool cancels = plan->cancels > 0 && !whole->is_last && trib_sim_draw_one_in(&self->stream, plan->cancels);
    what->timeout_ns =
        hurried ? 1 + (int64_t)trib_sim_draw_below(&self->stream, (uint64_t)plan->hurry_ns) : 40 * SECOND;
    params.timeout_ns = what->timeout_ns;
    params.input = torture_input(what);
    params.output = torture_output(what);
    params.stream = what->stream;
    params.has_priority = plan->shuffled;
    params.priority = (int32_t)trib_sim_draw_below(&self->stream, 7) - 3;
    params.done_cb = on_done;
    params.user = what;
    what->submit_ns = trib_sim_now(whole->job->sim);
    what->submit_clock_ns = trib_sim_process_clock(whole->job->members[self->rank].process);
    trib_error error = {.status = TRIB_OK};
    if (submit(self, what, &params, cancels, &error) != TRIB_OK) {
        self->refused = true;
        what->busy = false;
        if (!plan->may_end || whole->is_last) {
            torture_broken(whole, "rank %u: an operation was refused, though nothing happened that explains it: %s",
                           self->rank, error.text);
        }
        return;
    }
    self->next_round[index]++;
    *(index < plan->tensor_count ? &self->in_flight : &self->crowd_in_flight) += 1;
    if (cancels) {
        what->cancel.fired = cancel_fired;
        trib_sim_set(whole->job->sim, &what->cancel,
                     trib_sim_now(whole->job->sim) + (int64_t)trib_sim_draw_below(&self->stream, 5 * MS));
    }
}

static uint32_t rounds_of(const driver *self, uint32_t index)
{
    const torture_plan *plan = self->run->plan;
    const uint32_t rounds = torture_lap_ends(self, index);
    return plan->early_leaver == self->rank && plan->early_leaver_rounds < rounds ? plan->early_leaver_rounds : rounds;
}

static bool has_part(const driver *self, uint32_t index)
{
    const torture_tensor what = torture_tensor_of(self->run->plan, index, self->next_round[index]);
    return torture_is_member(&what, self->rank);
}

/* Passes over rounds of groups that the worker is not in, and so is done with its last group of the name. */
static void skip_rounds(driver *self, uint32_t index, uint32_t end)
{
    const bool is_busy = self->attempts[index][0].busy || self->attempts[index][1].busy;
    const uint32_t first = self->next_round[index];
    while (!is_busy && self->next_round[index] < end && !has_part(self, index)) {
        self->next_round[index]++;
    }
    if (self->next_round[index] > first && self->groups[index] != NULL) {
        torture_release_last(self, index);
    }
}

/* Operations of one name begin in the same order on all workers: all first rounds, then all second rounds, and so
 * on. */
static bool waits_for_mates(const driver *self, uint32_t index)
{
    const torture_plan *plan = self->run->plan;
    const uint32_t round = self->next_round[index];
    bool waits = false;
    for (uint32_t i = 0; i < plan->tensor_count && plan->tensors[index].has_mates; i++) {
        const uint32_t next = self->next_round[i];
        waits = waits || (plan->tensors[i].has_mates && next < rounds_of(self, i) &&
                          (next < round || (next == round && i < index)));
    }
    return waits;
}

static bool may_begin(driver *self, uint32_t index)
{
    const uint32_t round = self->next_round[index];
    const torture_plan *plan = self->run->plan;
    const bool is_held = plan->held_rank == self->rank && plan->held_tensor == index;
    if (is_held && trib_sim_now(self->run->job->sim) < plan->held_ns) {
        return false;
    }
    if (is_reborn(self, index) && torture_attempt(self, index, round - 1)->busy) {
        return false;
    }
    return round < rounds_of(self, index) && has_part(self, index) && !torture_attempt(self, index, round)->busy &&
           !waits_for_mates(self, index);
}

/* Begins the next operation in an order that is the same on every worker: all first rounds, then all second rounds, and
 * so on. */
static bool begin_next(driver *self)
{
    const torture_plan *plan = self->run->plan;
    uint32_t index = 0;
    for (uint32_t i = 1; i < plan->tensor_count; i++) {
        const bool has_more = self->next_round[index] < rounds_of(self, index);
        const bool is_next =
            self->next_round[i] < rounds_of(self, i) && (!has_more || self->next_round[i] < self->next_round[index]);
        index = is_next ? i : index;
    }
    if (!may_begin(self, index)) {
        return false;
    }
    begin(self, index);
    return true;
}

/* Begins any operation that can begin. Every tensor must be in flight, because workers would else wait for each
 * other. */
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

/* Returns true if the worker may leave with operations in flight. */
static bool is_in_haste(driver *self)
{
    const torture_plan *plan = self->run->plan;
    trib_sim *sim = self->run->job->sim;
    if (plan->early_leaver != self->rank || plan->haste_ns == 0) {
        return false;
    }
    if (self->leaves_at_ns == 0) {
        self->leaves_at_ns =
            trib_sim_now(sim) + 1 + (int64_t)trib_sim_draw_below(&self->stream, (uint64_t)plan->haste_ns);
        trib_sim_set(sim, &self->leave, self->leaves_at_ns);
    }
    return trib_sim_now(sim) >= self->leaves_at_ns;
}

/* Called not only from the last operation's callback, because a worker with nothing to do leaves as well. */
static void leave_if_done(driver *self)
{
    const torture_plan *plan = self->run->plan;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (self->next_round[i] < rounds_of(self, i)) {
            return;
        }
    }
    const bool leaves = plan->leaves || plan->early_leaver == self->rank;
    sim_job *job = self->run->job;
    const bool is_busy = self->in_flight + self->crowd_in_flight > 0;
    if (!leaves || torture_has_laps(self) || (is_busy && !is_in_haste(self)) || job->members[self->rank].ended_told) {
        return;
    }
    if (plan->prompt ? !job->members[self->rank].ready_told : !sim_job_all_ready(job, NULL)) {
        trib_sim_set(job->sim, &self->leave, trib_sim_now(job->sim) + (plan->prompt ? MS / 10 : 100 * MS));
        return;
    }
    self->refused = true;
    sim_job_leave(job, self->rank);
}

static void leave_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    driver *mine = (driver *)((char *)event - offsetof(driver, leave));
    if (!mine->refused && !mine->run->job->members[mine->rank].killed) {
        leave_if_done(mine);
    }
}

void torture_submit_more(driver *self)
{
    const uint32_t window = self->run->plan->window;
    bool began = !self->run->is_last && !self->joins;
    for (uint32_t i = 0; i < self->run->plan->tensor_count && began && !self->refused; i++) {
        skip_rounds(self, i, rounds_of(self, i));
    }
    while (began && !self->refused && (window == 0 || self->in_flight < window)) {
        began = window == 0 ? begin_any(self) : begin_next(self);
    }
    torture_join_if_done(self);
    leave_if_done(self);
}

static void begin_crowd(driver *self)
{
    const torture_plan *plan = self->run->plan;
    for (uint32_t i = 0; i < plan->crowd && !self->refused; i++) {
        begin(self, plan->tensor_count + i);
    }
}

static void late_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    driver *mine = (driver *)((char *)event - offsetof(driver, begin));
    if (!mine->run->job->members[mine->rank].killed) {
        begin_crowd(mine);
        torture_submit_more(mine);
    }
}

/* ---- Life ---- */

/* A device often takes no time. It may also be held up while its process stands still. */
static int64_t device_takes_ns(void *user, int32_t machine, int32_t rank)
{
    run *self = user;
    const torture_plan *plan = self->plan;
    const uint32_t member = (uint32_t)machine * plan->local_size + (uint32_t)rank;
    const bool is_quick = trib_sim_draw_one_in(&self->pace, 2), is_held = trib_sim_draw_one_in(&self->pace, 4);
    const int64_t time_ns = (int64_t)trib_sim_draw_below(&self->pace, (uint64_t)plan->pace_ns);
    if (self->frozen[member] > 0 && is_held) {
        return 20 * MS;
    }
    return is_quick ? 0 : member == plan->dawdler ? 5 * time_ns : time_ns;
}

static void open_attempt(driver *mine, attempt *what, uint32_t index)
{
    *what = (attempt){.run = mine->run, .driver = mine, .tensor = index};
    torture_buffers_open(what);
}

static void close_attempt(attempt *what)
{
    trib_sim_clear(what->run->job->sim, &what->cancel);
    torture_stream_end(what);
    trib_op_release(what->op);
    torture_buffers_close(what);
}

void torture_drive_open(run *self)
{
    const torture_plan *plan = self->plan;
    self->pace = trib_sim_stream_make(self->job->sim, UINT64_C(0x9ace));
    if (plan->pace_ns > 0) {
        trib_host_world_pace(self->world, &(trib_host_pace){self->job->sim, device_takes_ns, self});
    }
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        driver *mine = &self->drivers[rank];
        mine->run = self;
        mine->rank = rank;
        mine->stream = trib_sim_stream_make(self->job->sim, 1000 + rank);
        for (uint32_t i = 0; i < plan->tensor_count * SLOTS; i++) {
            open_attempt(mine, &mine->attempts[i / SLOTS][i % SLOTS], i / SLOTS);
        }
        for (uint32_t i = 0; i < plan->crowd; i++) {
            open_attempt(mine, &mine->crowd[i], plan->tensor_count + i);
        }
        mine->begin.fired = late_fired;
        mine->leave.fired = leave_fired;
        if (plan->late_ns[rank] > 0) {
            trib_sim_set(self->job->sim, &mine->begin, plan->late_ns[rank]);
        } else {
            late_fired(self->job->sim, &mine->begin);
        }
        plan->held_rank == rank ? trib_sim_set(self->job->sim, &mine->begin, plan->held_ns) : (void)0;
    }
}

void torture_drive_last(run *self)
{
    const torture_plan *plan = self->plan;
    self->is_last = true;
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        for (uint32_t i = 0; i < plan->tensor_count; i++) {
            driver *mine = &self->drivers[rank];
            skip_rounds(mine, i, plan->tensors[i].rounds + 1);
            if (mine->next_round[i] > plan->tensors[i].rounds) {
                continue;
            }
            if (plan->odd_rank == TORTURE_NOBODY || plan->odd_round >= 0 || i != plan->odd_tensor) {
                begin(mine, i);
            }
        }
    }
}

uint32_t torture_drive_handles(const driver *self)
{
    const torture_plan *plan = self->run->plan;
    uint32_t handles = 0;
    for (uint32_t i = 0; i < plan->tensor_count * SLOTS; i++) {
        handles += self->attempts[i / SLOTS][i % SLOTS].op != NULL;
    }
    for (uint32_t i = 0; i < plan->crowd; i++) {
        handles += self->crowd[i].op != NULL;
    }
    return handles;
}

void torture_drive_close(run *self)
{
    const torture_plan *plan = self->plan;
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        driver *mine = &self->drivers[rank];
        trib_sim_clear(self->job->sim, &mine->begin);
        trib_sim_clear(self->job->sim, &mine->leave);
        for (uint32_t i = 0; i < plan->tensor_count * SLOTS; i++) {
            close_attempt(&mine->attempts[i / SLOTS][i % SLOTS]);
        }
        for (uint32_t i = 0; i < plan->crowd; i++) {
            close_attempt(&mine->crowd[i]);
        }
    }
}
