/* door_bed.c - see door_bed.h. */
#include "tests/sim/door_bed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/device/host/device_host.h"
#include "engine/local_group/group_internal.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define PAUSES 3u

struct run;

typedef struct attempt {
    struct run *run;
    uint32_t rank, step, index; /* index: in the step */
    uint32_t callbacks;
    trib_status status;
    bool refused; /* it was not taken */
    int32_t *buffer;
    trib_op *op;
    trib_sim_event cancel;
} attempt;

typedef struct driver {
    struct run *run;
    uint32_t rank, step, in_flight;
    bool refused, is_through;
    trib_sim_event go_on;
    int32_t *buffers[DOOR_TENSORS][2];
    trib_sim_stream chance;
} driver;

typedef struct pause {
    struct run *run;
    uint32_t rank;
    bool is_over;
    trib_sim_event event;
} pause_event;

typedef struct run {
    const door_plan *plan;
    sim_job *job;
    driver drivers[DOOR_RANKS_MAX];
    attempt attempts[DOOR_RANKS_MAX * DOOR_STEPS_MAX * DOOR_TENSORS];
    trib_host_world *world;
    pause_event pauses[PAUSES];
    trib_sim_event go;
    trib_sim_stream pace;
    door_verdict verdict;
} run;

static void broken(run *self, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void broken(run *self, const char *format, ...)
{
    if (self->verdict.held) {
        self->verdict.held = false;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(self->verdict.why, sizeof self->verdict.why, format, arguments);
        va_end(arguments);
    }
}

static attempt *attempt_of(run *self, uint32_t rank, uint32_t step, uint32_t index)
{
    return &self->attempts[(rank * DOOR_STEPS_MAX + step) * DOOR_TENSORS + index];
}

static int64_t between(trib_sim_stream *chance, int64_t low, int64_t high)
{
    return low + (int64_t)trib_sim_draw_below(chance, (uint64_t)(high - low + 1));
}

/* ---- What a rank hands in ---- */

static uint32_t tensor_of(const door_step *step, uint32_t index)
{
    return (step->first + index) % DOOR_TENSORS;
}

static uint32_t count_of(uint32_t tensor)
{
    return tensor == DOOR_TENSORS - 1 ? DOOR_LARGE : 1 + tensor * 300;
}

static int32_t value(const attempt *what, uint32_t rank, uint32_t i)
{
    return (int32_t)(i * 3 + rank * 1000 + what->index * 17 + what->step);
}

static void check(attempt *what)
{
    run *self = what->run;
    const door_step *step = &self->plan->steps[what->step];
    const uint32_t ranks = self->plan->ranks, count = count_of(tensor_of(step, what->index));
    for (uint32_t i = 0; i < count; i++) {
        int32_t right = step->kind == DOOR_BROADCAST ? value(what, step->odd, i) : 0;
        for (uint32_t rank = 0; rank < ranks && step->kind != DOOR_BROADCAST; rank++) {
            right += value(what, rank, i);
        }
        if (what->buffer[i] != right) {
            broken(self, "rank %u, step %u, tensor %u: %d at %u instead of %d", what->rank, what->step,
                   tensor_of(step, what->index), what->buffer[i], i, right);
            return;
        }
    }
}

static bool is_dead(const driver *self)
{
    return self->run->job->members[self->rank].killed;
}

static void next_step(driver *self)
{
    const door_plan *plan = self->run->plan;
    if (++self->step >= plan->step_count) {
        self->is_through = true;
        return;
    }
    sim_job *job = self->run->job;
    trib_sim_set(job->sim, &self->go_on, trib_sim_now(job->sim) + plan->steps[self->step].late_ns[self->rank]);
}

static void on_done(const trib_result *result, void *user)
{
    attempt *what = user;
    run *self = what->run;
    driver *mine = &self->drivers[what->rank];
    what->callbacks++;
    what->status = result->status;
    if (result->status == TRIB_OK) {
        check(what);
    }
    if (--mine->in_flight == 0 && !mine->refused) {
        next_step(mine);
    }
}

static void cancel_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    const attempt *what = (attempt *)((char *)event - offsetof(attempt, cancel));
    if (!is_dead(&what->run->drivers[what->rank])) {
        trib_op_cancel(what->op);
    }
}

static trib_status declare(const driver *self, uint32_t tensor, trib_tensor **out, trib_error *error)
{
    char name[16];
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    snprintf(name, sizeof name, "tensor %u", tensor);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = count_of(tensor);
    desc.flags = TRIB_TENSOR_DEVICE;
    return trib_tensor_declare(self->run->job->members[self->rank].engine, &desc, out, error);
}

static trib_status submit(driver *self, attempt *what, trib_op_params *params)
{
    const door_step *step = &self->run->plan->steps[what->step];
    const bool is_odd = step->odd == self->rank;
    trib_engine *engine = self->run->job->members[self->rank].engine;
    trib_error error = {.status = TRIB_OK};
    params->priority = (int32_t)between(&self->chance, -2, 2);
    params->has_priority = true;
    params->timeout_ns = step->kind == DOOR_HURRY && is_odd ? step->after_ns : -1;
    params->reduce = step->kind == DOOR_ODD && is_odd ? TRIB_MAX : TRIB_SUM;
    params->root = (int32_t)step->odd;
    const trib_status status = declare(self, tensor_of(step, what->index), &params->tensor, &error);
    if (status != TRIB_OK) {
        return status;
    }
    return (step->kind == DOOR_BROADCAST ? trib_broadcast : trib_push_pull)(engine, params, &what->op, &error);
}

static void hand_in(driver *self, uint32_t index)
{
    run *whole = self->run;
    const door_step *step = &whole->plan->steps[self->step];
    attempt *what = attempt_of(whole, self->rank, self->step, index);
    const uint32_t tensor = tensor_of(step, index);
    *what = (attempt){.run = whole, .rank = self->rank, .step = self->step, .index = index, .status = TRIB_PENDING};
    /* Mostly the buffer of the time before: a launch may be kept if it is so on all ranks. */
    what->buffer = self->buffers[tensor][trib_sim_draw_one_in(&self->chance, 4)];
    for (uint32_t i = 0; i < count_of(tensor); i++) {
        what->buffer[i] = value(what, self->rank, i);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = what->buffer;
    params.done_cb = on_done;
    params.user = what;
    if (submit(self, what, &params) != TRIB_OK) {
        what->refused = self->refused = true;
        return;
    }
    self->in_flight++;
    if (step->kind == DOOR_CANCEL && step->odd == self->rank) {
        what->cancel.fired = cancel_fired;
        trib_sim_set(whole->job->sim, &what->cancel, trib_sim_now(whole->job->sim) + step->after_ns);
    }
}

static void go_on(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    driver *self = (driver *)((char *)event - offsetof(driver, go_on));
    const door_step *step = &self->run->plan->steps[self->step];
    const uint32_t turn = (uint32_t)between(&self->chance, 0, step->count - 1);
    for (uint32_t i = 0; i < step->count && !is_dead(self) && !self->refused; i++) {
        hand_in(self, (i + turn) % step->count);
    }
}

/* ---- What happens to them ---- */

static void gone_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    run *self = (run *)((char *)event - offsetof(run, go));
    if (self->plan->end == DOOR_ENDS_LOST) {
        sim_job_kill(self->job, self->plan->gone);
    } else {
        self->drivers[self->plan->gone].refused = true;
        sim_job_leave(self->job, self->plan->gone);
    }
}

static void pause_fired(trib_sim *sim, trib_sim_event *event)
{
    pause_event *what = (pause_event *)((char *)event - offsetof(pause_event, event));
    const sim_member *member = &what->run->job->members[what->rank];
    if (!member->killed) {
        trib_sim_process_freeze(member->process, !what->is_over);
    }
    if (!what->is_over) {
        what->is_over = true;
        trib_sim_set(sim, event, trib_sim_now(sim) + what->run->plan->pause_ns);
    }
}

static void begin(run *self)
{
    const door_plan *plan = self->plan;
    trib_sim *sim = self->job->sim;
    trib_sim_stream chance = trib_sim_stream_make(sim, 99);
    const int64_t now_ns = trib_sim_now(sim);
    trib_assert(plan->ranks > 0);
    for (uint32_t rank = 0; rank < plan->ranks; rank++) {
        driver *mine = &self->drivers[rank];
        mine->go_on.fired = go_on;
        trib_sim_set(sim, &mine->go_on, now_ns + plan->steps[0].late_ns[rank]);
    }
    for (uint32_t i = 0; plan->pause_ns > 0 && i < PAUSES; i++) {
        self->pauses[i] = (pause_event){.run = self, .rank = i % plan->ranks, .event.fired = pause_fired};
        /* What happens while it stands still it hears of all at once. */
        const int64_t before_ns = plan->gone_ns - between(&chance, 0, MS);
        const bool is_timely = i == 0 && plan->end == DOOR_ENDS_LEAVING;
        trib_sim_set(sim, &self->pauses[i].event, now_ns + (is_timely ? before_ns : between(&chance, 1, 60 * MS)));
    }
    if (plan->end != DOOR_ENDS_ALL) {
        self->go.fired = gone_fired;
        trib_sim_set(sim, &self->go, now_ns + plan->gone_ns);
    }
}

/* ---- What must hold ---- */

static bool all_through(sim_job *job, void *user)
{
    const run *self = user;
    (void)job;
    for (uint32_t rank = 0; rank < self->plan->ranks; rank++) {
        const driver *mine = &self->drivers[rank];
        if (!is_dead(mine) && (mine->in_flight > 0 || !(mine->is_through || mine->refused))) {
            return false;
        }
    }
    return self->plan->end == DOOR_ENDS_ALL || self->job->members[self->plan->gone].killed ||
           self->job->members[self->plan->gone].closing;
}

/* At rest nobody is counted that is not there, and nothing is kept for what is over. */
static void check_rest(run *self)
{
    for (uint32_t rank = 0; rank < self->plan->ranks && self->plan->end == DOOR_ENDS_ALL; rank++) {
        const trib_group *group = self->job->members[rank].engine->group;
        const trib_door_page *page = group->door.page;
        if (group->announced != NULL || group->door.waiting != NULL || group->begun != group->carried_out ||
            (group->leader != NULL &&
             (trib_leader_waiting(group->leader) > 0 || trib_leader_in_flight(group->leader) > 0))) {
            broken(self, "rank %u: something is under way at rest", rank);
        }
        if (page != NULL && (atomic_load(&page->elsewhere) != 0 || atomic_load(&page->here) != self->plan->ranks)) {
            broken(self, "at rest %u ranks are elsewhere, and %u of %u here", atomic_load(&page->elsewhere),
                   atomic_load(&page->here), self->plan->ranks);
        }
    }
    const trib_door_page *page = self->world->doors[0];
    self->verdict.generations = page == NULL ? 0 : trib_door_generation(atomic_load(&page->state));
}

static bool is_explained(const run *self, const attempt *what)
{
    const door_step *step = &self->plan->steps[what->step];
    const bool is_gone = self->plan->end != DOOR_ENDS_ALL;
    switch (what->status) {
    case TRIB_OK:
        return step->kind != DOOR_ODD;
    case TRIB_MISMATCH:
        return step->kind == DOOR_ODD;
    case TRIB_CANCELLED:
        return step->kind == DOOR_CANCEL;
    case TRIB_TIMEOUT:
        return step->kind == DOOR_HURRY;
    case TRIB_PEER_LOST:
        return self->plan->end == DOOR_ENDS_LOST;
    default:
        return is_gone && (what->status == TRIB_PEER_LEFT || what->status == TRIB_CLOSED);
    }
}

/* A collective is carried out by all, or by nobody: who has not failed by itself ends as the others do. */
static void judge(run *self, uint32_t at, uint32_t index)
{
    const door_step *step = &self->plan->steps[at];
    const bool fails = step->kind == DOOR_CANCEL || step->kind == DOOR_HURRY;
    trib_status common = TRIB_PENDING, odd = TRIB_PENDING;
    for (uint32_t rank = 0; rank < self->plan->ranks; rank++) {
        const attempt *what = attempt_of(self, rank, at, index);
        if (what->run == NULL || what->refused) {
            continue;
        }
        *(what->status == TRIB_OK ? &self->verdict.succeeded : &self->verdict.failed) += 1;
        if (what->callbacks != 1 || !is_explained(self, what)) {
            broken(self, "rank %u, step %u, tensor %u: ended %u times, with %s", rank, at, tensor_of(step, index),
                   what->callbacks, trib_status_text(what->status));
        }
        if (self->plan->end == DOOR_ENDS_ALL && rank == step->odd && fails) {
            odd = what->status;
        } else if (self->plan->end == DOOR_ENDS_ALL && common != TRIB_PENDING && common != what->status) {
            broken(self, "rank %u, step %u, tensor %u: ended with %s, elsewhere with %s", rank, at,
                   tensor_of(step, index), trib_status_text(what->status), trib_status_text(common));
        } else {
            common = what->status;
        }
    }
    if (odd == TRIB_OK && common != TRIB_OK) {
        broken(self, "step %u, tensor %u: there on rank %u alone", at, tensor_of(step, index), step->odd);
    }
}

/* ---- Life ---- */

static void on_a_machine(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->device = "host";
    config->local_size = (int32_t)job->config.workers;
    config->local_rank = (int32_t)member;
    config->chunk_bytes = config->partition_bytes = 4096;
    config->close_timeout_ns = 3 * SECOND;
    config->peer_timeout_ns = 2 * SECOND;
}

static void take_buffers(run *self)
{
    for (uint32_t rank = 0; rank < self->plan->ranks; rank++) {
        driver *mine = &self->drivers[rank];
        mine->run = self;
        mine->rank = rank;
        mine->chance = (trib_sim_stream){.state = self->plan->seed * 64 + rank};
        for (uint32_t i = 0; i < DOOR_TENSORS * 2; i++) {
            mine->buffers[i / 2][i % 2] = calloc(count_of(i / 2), sizeof(int32_t));
        }
    }
}

static void drop_all(run *self)
{
    for (uint32_t rank = 0; rank < self->plan->ranks; rank++) {
        for (uint32_t i = 0; i < DOOR_TENSORS * 2; i++) {
            free(self->drivers[rank].buffers[i / 2][i % 2]);
        }
    }
}

static int64_t device_late_ns(void *user, int32_t machine, int32_t rank)
{
    (void)machine;
    (void)rank;
    run *self = user;
    return between(&self->pace, 0, self->plan->device_late_ns);
}

static void release_handles(run *self)
{
    for (uint32_t i = 0; i < DOOR_RANKS_MAX * DOOR_STEPS_MAX * DOOR_TENSORS; i++) {
        attempt *what = &self->attempts[i];
        trib_sim_clear(self->job->sim, &what->cancel);
        if (what->op != NULL) {
            trib_op_release(what->op);
        }
    }
}

door_verdict door_run(const door_plan *plan)
{
    static run whole;
    run *self = &whole;
    *self = (run){.plan = plan, .verdict.held = true};
    take_buffers(self);
    self->world = trib_host_world_create();
    sim_job_config config = sim_job_config_default(plan->ranks, 0);
    config.seed = plan->seed;
    config.per_machine = plan->ranks;
    config.device_world = self->world;
    config.tweak = on_a_machine;
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    const trib_host_pace pace = {
        .sim = self->job == NULL ? NULL : self->job->sim, .late_ns = device_late_ns, .user = self};
    self->pace.state = plan->seed;
    if (plan->device_late_ns > 0) {
        trib_host_world_pace(self->world, &pace);
    }
    if (self->job == NULL || !sim_job_run(self->job, 30 * SECOND, sim_job_all_ready, NULL)) {
        broken(self, "the job did not come together: %s", error.text);
        return self->verdict;
    }
    begin(self);
    if (!sim_job_run(self->job, trib_sim_now(self->job->sim) + 60 * SECOND, all_through, self)) {
        broken(self, "something hangs");
    }
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND / 2, NULL, NULL);
    check_rest(self);
    release_handles(self);
    if (!sim_job_close(self->job, 60 * SECOND)) {
        broken(self, "an engine does not close");
        return self->verdict;
    }
    for (uint32_t i = 0; i < plan->step_count * DOOR_TENSORS; i++) {
        judge(self, i / DOOR_TENSORS, i % DOOR_TENSORS);
    }
    if (trib_host_world_disorders(self->world) != 0) {
        broken(self, "collectives in different orders");
    }
    sim_job_free(self->job);
    trib_host_world_free(self->world);
    drop_all(self);
    return self->verdict;
}
