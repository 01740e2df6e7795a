/* torture_run.c - runs what was drawn, lets the faults happen, and checks; see torture.h. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/op.h"
#include "tests/sim/torture.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define LIMIT_NS (400 * SECOND) /* by then everything has succeeded or failed */
#define SLACK_NS (5 * SECOND)   /* from a deadline to the callback: the grace that landings have, and queues */
#define SLOTS 2u                /* rounds of a tensor that a worker has in flight at most */

struct run;

/* One operation. */
typedef struct attempt {
    struct run *run;
    struct driver *driver;
    uint32_t tensor, round;
    unsigned char *input, *output;
    bool taken, busy;
    uint32_t callbacks;
    int64_t submit_clock_ns, timeout_ns;
    trib_op *op; /* while it is to be cancelled */
    trib_sim_event cancel;
} attempt;

/* What one worker does. */
typedef struct driver {
    struct run *run;
    uint32_t rank;
    uint32_t next_round[TORTURE_TENSORS_MAX]; /* counted from 0 */
    attempt attempts[TORTURE_TENSORS_MAX][SLOTS];
    uint32_t in_flight;
    bool refused; /* the engine takes nothing any more */
    trib_sim_stream stream;
} driver;

typedef struct running_fault {
    struct run *run;
    const torture_fault *what;
    trib_sim_event begin, end;
} running_fault;

typedef struct run {
    const torture_plan *plan;
    sim_job *job;
    driver drivers[TORTURE_WORKERS_MAX];
    running_fault faults[TORTURE_FAULTS_MAX];
    int64_t
        excused_ns[TORTURE_MEMBERS_MAX]; /* time by which a member's callbacks may be late: it stood still, or jumped */
    uint32_t frozen[TORTURE_MEMBERS_MAX]; /* nested */
    uint64_t famine_one_in[TORTURE_MEMBERS_MAX];
    trib_sim_stream famine;
    bool lost_one; /* a member was killed after the job had come together */
    torture_verdict verdict;
} run;

__attribute__((format(printf, 2, 3))) static void broken(run *self, const char *format, ...)
{
    if (self->verdict.held) {
        self->verdict.held = false;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(self->verdict.why, sizeof self->verdict.why, format, arguments);
        va_end(arguments);
    }
}

/* ---- Workers ---- */

static void submit_more(driver *self);

static bool is_excused(const run *self, trib_status status)
{
    const torture_plan *plan = self->plan;
    const bool gives_up = plan->cancels > 0 || plan->hurried > 0; /* and may then run ahead of the others too far */
    return plan->may_end || (plan->cancels > 0 && status == TRIB_CANCELLED) ||
           (plan->hurried > 0 && status == TRIB_TIMEOUT) || (gives_up && status == TRIB_BUSY);
}

static void check_result(attempt *what, const trib_result *result)
{
    run *self = what->run;
    const torture_tensor *tensor = &self->plan->tensors[what->tensor];
    const uint32_t workers = self->plan->job.workers;
    if (result->status != TRIB_OK) {
        self->verdict.failed++;
        if (!is_excused(self, result->status)) {
            broken(self, "rank %u, tensor %u, round %u: %s, though nothing happened that explains it: %s",
                   what->driver->rank, what->tensor, what->round, trib_status_text(result->status), result->text);
        }
        return;
    }
    self->verdict.succeeded++;
    if (result->contributors != workers && tensor->root < 0) {
        broken(self, "rank %u, tensor %u, round %u: %u contributors of %u", what->driver->rank, what->tensor,
               what->round, result->contributors, workers);
    }
    const uint32_t wrong = torture_check(tensor, what->tensor, what->round, workers, what->output);
    if (wrong != UINT32_MAX) {
        broken(self, "rank %u, tensor %u, round %u: element %u is not what the oracle says", what->driver->rank,
               what->tensor, what->round, wrong);
    }
}

static void on_done(const trib_result *result, void *user)
{
    attempt *what = user;
    run *self = what->run;
    driver *mine = what->driver;
    if (++what->callbacks != 1 || !what->busy) {
        broken(self, "rank %u, tensor %u, round %u: its callback ran %u times", mine->rank, what->tensor, what->round,
               what->callbacks);
        return;
    }
    const int64_t took_ns = trib_sim_process_clock(self->job->members[mine->rank].process) - what->submit_clock_ns;
    if (took_ns > what->timeout_ns + SLACK_NS + self->excused_ns[mine->rank] &&
        !self->job->members[mine->rank].killed) {
        broken(self, "rank %u, tensor %u, round %u: called back after %.3f s, its deadline was %.3f s", mine->rank,
               what->tensor, what->round, (double)took_ns / 1e9, (double)what->timeout_ns / 1e9);
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
    torture_fill(&plan->tensors[index], index, what->round, self->rank, what->input);
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
    params.done_cb = on_done;
    params.user = what;
    what->submit_clock_ns = trib_sim_process_clock(whole->job->members[self->rank].process);
    if (submit(self, what, &params, cancels) != TRIB_OK) {
        self->refused = true;
        what->busy = false;
        if (!plan->may_end) {
            broken(whole, "rank %u: an operation was refused, though nothing happened that explains it", self->rank);
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

static void submit_more(driver *self)
{
    const uint32_t window = self->run->plan->window;
    bool began = true;
    while (began && !self->refused && (window == 0 || self->in_flight < window)) {
        began = window == 0 ? begin_any(self) : begin_next(self);
    }
}

static void open_drivers(run *self)
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

static void close_drivers(run *self)
{
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
            for (uint32_t slot = 0; slot < SLOTS; slot++) {
                attempt *what = &self->drivers[rank].attempts[i][slot];
                trib_sim_clear(self->job->sim, &what->cancel);
                trib_op_release(what->op);
                free(what->input);
                free(what->output);
            }
        }
    }
}

/* ---- Faults ---- */

static bool may_alloc(void *user, size_t size)
{
    (void)size;
    sim_member *member = user;
    run *self = member->job->config.user;
    const uint64_t one_in = self->famine_one_in[member->index];
    return one_in == 0 || !trib_sim_draw_one_in(&self->famine, one_in);
}

static void fault_begins(trib_sim *sim, trib_sim_event *event)
{
    running_fault *fault = (running_fault *)((char *)event - offsetof(running_fault, begin));
    run *self = fault->run;
    const torture_fault *what = fault->what;
    sim_member *member = &self->job->members[what->member];
    trib_sim_link link = self->plan->job.link;
    switch (what->kind) {
    case TORTURE_FREEZE:
        self->frozen[what->member]++;
        self->excused_ns[what->member] += what->for_ns;
        trib_sim_process_freeze(member->process, true);
        break;
    case TORTURE_SLOW:
        trib_sim_process_slow(member->process, what->amount);
        break;
    case TORTURE_PARTITION:
        trib_sim_node_regroup(member->node, 1 + what->member);
        break;
    case TORTURE_RELINK:
        link.egress_bits = link.ingress_bits = (uint64_t)what->amount;
        trib_sim_node_relink(member->node, &link);
        break;
    case TORTURE_JUMP:
        self->excused_ns[what->member] += what->for_ns;
        trib_sim_process_jump(member->process, what->for_ns);
        break;
    case TORTURE_RESET:
        trib_sim_net_reset(self->job->net, (uint64_t)what->at_ns);
        break;
    case TORTURE_KILL:
        self->lost_one = self->lost_one || sim_job_all_ready(self->job, NULL);
        sim_job_kill(self->job, what->member);
        break;
    default:
        self->famine_one_in[what->member] = (uint64_t)what->amount;
        break;
    }
    trib_sim_set(sim, &fault->end, trib_sim_now(sim) + what->for_ns);
}

static void fault_ends(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    running_fault *fault = (running_fault *)((char *)event - offsetof(running_fault, end));
    run *self = fault->run;
    sim_member *member = &self->job->members[fault->what->member];
    switch (fault->what->kind) {
    case TORTURE_FREEZE:
        if (--self->frozen[member->index] == 0 && !member->killed) {
            trib_sim_process_freeze(member->process, false);
        }
        break;
    case TORTURE_PARTITION:
        trib_sim_node_regroup(member->node, 0);
        break;
    case TORTURE_FAMINE:
        self->famine_one_in[member->index] = 0;
        break;
    default:
        break;
    }
}

static void set_faults(run *self)
{
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        running_fault *fault = &self->faults[i];
        *fault = (running_fault){.run = self, .what = &self->plan->faults[i]};
        fault->begin.fired = fault_begins;
        fault->end.fired = fault_ends;
        trib_sim_set(self->job->sim, &fault->begin, fault->what->at_ns);
    }
    trib_sim_net_weather(self->job->net, &self->plan->weather);
}

/* Is every fault over, and nothing of any worker that lives under way? */
static bool is_settled(sim_job *job, void *argument)
{
    const run *self = argument;
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        if (self->faults[i].begin.place != 0 || self->faults[i].end.place != 0) {
            return false;
        }
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        if (self->drivers[rank].in_flight > 0 && !job->members[rank].killed) {
            return false;
        }
    }
    return true;
}

/* ---- At rest ---- */

static void check_core(run *self, uint32_t member, const trib_core *core)
{
    for (const trib_link *link = core->links; link != NULL; link = link->next) {
        if (link->heap_size > 0 || link->in_flight > 0 || link->landed != NULL) {
            broken(self, "at rest, member %u has %u waiting and %u bytes under way on a link", member, link->heap_size,
                   (unsigned)link->in_flight);
        }
    }
    if (core->nodes != NULL || core->entries_waiting > 0) {
        broken(self, "at rest, member %u has operations or sums left", member);
    }
    if (core->summation != NULL && !trib_summation_is_idle(core->summation)) {
        broken(self, "at rest, member %u is still summing", member);
    }
}

static void check_rest(run *self)
{
    /* What goes without saying is under way for a moment yet. */
    sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND / 2, NULL, NULL);
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        if (atomic_load(&engine->ops_in_flight) > 0) {
            broken(self, "at rest, member %u counts operations in flight", i);
        }
        for (uint32_t core = 0; core < engine->core_count; core++) {
            check_core(self, i, &engine->cores[core]);
        }
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
            if (self->drivers[rank].next_round[i] < self->plan->tensors[i].rounds) {
                broken(self, "rank %u stopped before the last round of tensor %u", rank, i);
            }
        }
    }
}

static bool all_told(sim_job *job, void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (!job->members[i].killed && !job->members[i].ended_told) {
            return false;
        }
    }
    return true;
}

static void check_all_told(run *self)
{
    const int64_t until_ns = trib_sim_now(self->job->sim) + 5 * self->plan->job.engine.peer_timeout_ns;
    if (!sim_job_run(self->job, until_ns, all_told, NULL)) {
        broken(self, "a member was lost, and not every other has been told");
    }
}

/* ---- The whole ---- */

static void finish(run *self)
{
    sim_job *job = self->job;
    if (!is_settled(job, self)) {
        broken(self, "after %.0f s there are operations that neither succeeded nor failed", (double)LIMIT_NS / 1e9);
    }
    trib_sim_net_weather(job->net, &(trib_sim_weather){.shred_one_in = 0});
    if (self->lost_one) {
        check_all_told(self);
    }
    if (!self->plan->may_end && self->plan->cancels == 0 && self->plan->hurried == 0) {
        check_rest(self);
    }
    if (!sim_job_close(job, 60 * SECOND)) {
        broken(self, "not every engine could be closed");
        return; /* its memory is lost: there is no way to free what still runs */
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        if (self->drivers[rank].in_flight > 0) {
            broken(self, "rank %u was closed, and an operation has not been called back", rank);
        }
    }
    self->verdict.steps = trib_sim_steps(job->sim);
    self->verdict.virtual_ns = trib_sim_now(job->sim);
    close_drivers(self);
    sim_job_free(job);
}

torture_verdict torture_run(const torture_plan *plan)
{
    run *self = calloc(1, sizeof *self);
    torture_verdict verdict = {.held = false, .why = "out of memory for the test"};
    if (self == NULL) {
        return verdict;
    }
    self->plan = plan;
    self->verdict.held = true;
    sim_job_config config = plan->job;
    config.user = self;
    config.may_alloc = may_alloc;
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    if (self->job == NULL) {
        broken(self, "could not be set up: %s", error.text);
    } else {
        self->famine = trib_sim_stream_make(self->job->sim, UINT64_C(0xfa3));
        set_faults(self);
        open_drivers(self);
        sim_job_run(self->job, LIMIT_NS, is_settled, self);
        finish(self);
    }
    verdict = self->verdict;
    free(self);
    return verdict;
}
