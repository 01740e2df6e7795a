/*
 * reactor_sim.c - struct trib_reactor_ops in virtual time; see reactor_sim.h. The world's clock and queue of events are
 * in sim_world.c.
 *
 * Invariants
 * - A reactor's turn event is set exactly when there is something to run and nothing forbids it (frozen, running).
 * - A turn begins when its reactor's last one has ended and a core is free, and never before what caused it.
 * - Posts come late to one turn at most, and those of one thread run in the order in which they were posted.
 * - Timers are kept at the time of the process's clock; the event that fires one is set to the world's time for it.
 */
#include "engine/sim/reactor_sim.h"

#include <stdlib.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/sim/sim_world.h"

/* Work of the simulated kernel is run until so much time has passed in a turn, then posts: as a loop's budget has
 * it. */
#define TURN_BUDGET_NS 50000

typedef struct sim_reactor {
    trib_reactor base; /* first */
    trib_sim_process *process;
    struct sim_reactor *next; /* next reactor of its process */
    trib_sim_event turn;
    trib_sim_work *head, *tail; /* work that has arrived, oldest first */
    trib_post *late;            /* posts that come late to the turn that runs, newest first */
    int64_t busy_until_ns;      /* when its last turn ended, or will */
    bool runs;                  /* its turn is running right now */
    bool was_late;              /* posts came late to its last turn */
} sim_reactor;

struct trib_sim_machine {
    trib_sim *sim;
    uint32_t processes; /* on it */
    uint32_t cores;
    int64_t free_at_ns[]; /* by core */
};

struct trib_sim_process {
    trib_sim *sim;
    trib_sim_machine *machine;
    trib_sim_costs costs;
    sim_reactor *reactors;
    trib_sim_stream random, staggers;
    uint32_t stagger_one_in;
    int64_t stagger_ns; /* the longest time for which a reactor is held up before the posts that are late */
    double factor;      /* factor by which its work takes longer */
    int64_t ahead_ns;   /* its clock minus the world's */
    void *node;         /* the simulated network's */
    bool frozen;
};

typedef struct sim_timer {
    trib_sim_event event; /* first */
    trib_sim_work work;   /* added to the reactor's work when due */
    sim_reactor *reactor;
} sim_timer;

_Static_assert(sizeof(sim_timer) <= TRIB_TIMER_STORAGE, "a virtual timer fits the storage of a trib_timer");
_Static_assert(sizeof(trib_sim_event) == 32, "and so it stays");

static sim_reactor *reactor_of(trib_reactor *reactor)
{
    return trib_container_of(reactor, sim_reactor, base);
}

/* ---- Turns ---- */

static bool has_work(const sim_reactor *self)
{
    return self->head != NULL || self->base.deferred_head != NULL || atomic_load(&self->base.mail) != NULL;
}

static void schedule_turn(sim_reactor *self)
{
    trib_sim_process *process = self->process;
    if (self->runs || process->frozen || trib_sim_event_is_set(&self->turn)) {
        return;
    }
    int64_t at_ns = trib_sim_now(process->sim) + process->costs.wake_ns;
    trib_sim_set(process->sim, &self->turn, at_ns > self->busy_until_ns ? at_ns : self->busy_until_ns);
}

/* Returns the core that is free first. */
static int64_t *pick_core(trib_sim_machine *machine)
{
    int64_t *best = &machine->free_at_ns[0];
    for (uint32_t i = 1; i < machine->cores; i++) {
        best = machine->free_at_ns[i] < *best ? &machine->free_at_ns[i] : best;
    }
    return best;
}

static void spend_ns(trib_sim_process *process, double ns)
{
    trib_sim_world_spend(process->sim, (int64_t)(ns * process->factor));
}

static void run_work(sim_reactor *self)
{
    trib_sim *sim = self->process->sim;
    int64_t until_ns = trib_sim_now(sim) + TURN_BUDGET_NS;
    const trib_sim_work *last = self->tail; /* work that arrives from here on is for the next turn */
    bool more = last != NULL;
    while (more && self->head != NULL && trib_sim_now(sim) <= until_ns) {
        trib_sim_work *work = self->head;
        more = work != last;
        self->head = work->next;
        self->tail = self->head != NULL ? self->tail : NULL;
        work->queued = false;
        work->run(&self->base, work);
    }
}

/* ---- Posts that come late ---- */

/* Adds what has been posted to what is late. */
static void keep_late(sim_reactor *self)
{
    trib_post *newest = atomic_exchange(&self->base.mail, NULL), *last = newest;
    while (last != NULL && atomic_load(&last->next) != NULL) {
        last = atomic_load(&last->next);
    }
    if (last != NULL) {
        atomic_store(&last->next, self->late);
        self->late = newest;
    }
}

/* In some turns a number of the newest posts, or all, come late. Returns true then. */
static bool draw_late(sim_reactor *self)
{
    trib_sim_process *process = self->process;
    trib_post *first = atomic_load(&self->base.mail), *last = first;
    if (first == NULL || self->was_late || process->stagger_one_in == 0 ||
        !trib_sim_draw_one_in(&process->staggers, process->stagger_one_in)) {
        return false;
    }
    while (atomic_load(&last->next) != NULL && !trib_sim_draw_one_in(&process->staggers, 3)) {
        last = atomic_load(&last->next);
    }
    atomic_store(&self->base.mail, atomic_load(&last->next));
    atomic_store(&last->next, NULL);
    self->late = first;
    return true;
}

/* Runs the posts of a turn, and returns for how long the reactor is held up then. */
static int64_t run_posts(sim_reactor *self, bool *more_out)
{
    trib_sim_process *process = self->process;
    self->was_late = draw_late(self);
    *more_out = trib_reactor_run_posts(&self->base);
    keep_late(self);
    atomic_store(&self->base.mail, self->late);
    self->late = NULL;
    return self->was_late ? (int64_t)trib_sim_draw_below(&process->staggers, (uint64_t)process->stagger_ns + 1) : 0;
}

static void turn_fired(trib_sim *sim, trib_sim_event *event)
{
    sim_reactor *self = trib_container_of(event, sim_reactor, turn);
    trib_assert(!self->runs && !self->process->frozen);
    int64_t *core_free_ns = pick_core(self->process->machine);
    if (*core_free_ns > trib_sim_now(sim)) {
        trib_sim_set(sim, &self->turn, *core_free_ns);
        return;
    }
    self->runs = true;
    trib_sim_world_enter(sim);
    spend_ns(self->process, (double)self->process->costs.turn_ns);
    run_work(self);
    bool more;
    const int64_t held_ns = run_posts(self, &more);
    *core_free_ns = trib_sim_world_leave(sim);
    self->busy_until_ns = *core_free_ns + held_ns;
    self->runs = false;
    if ((more || has_work(self)) && !self->process->frozen) {
        trib_sim_set(sim, &self->turn, self->busy_until_ns);
    }
}

void trib_sim_reactor_give(trib_reactor *reactor, trib_sim_work *work)
{
    sim_reactor *self = reactor_of(reactor);
    trib_assert(work->run != NULL);
    if (work->queued) {
        return;
    }
    work->queued = true;
    work->next = NULL;
    *(self->tail != NULL ? &self->tail->next : &self->head) = work;
    self->tail = work;
    schedule_turn(self);
}

void trib_sim_reactor_take_back(trib_reactor *reactor, trib_sim_work *work)
{
    sim_reactor *self = reactor_of(reactor);
    trib_sim_work *before = NULL;
    for (trib_sim_work *at = self->head; work->queued && at != NULL; before = at, at = at->next) {
        if (at == work) {
            *(before != NULL ? &before->next : &self->head) = work->next;
            self->tail = self->tail == work ? before : self->tail;
            work->queued = false;
        }
    }
}

/* ---- The table ---- */

static int64_t now_ns(trib_reactor *reactor)
{
    return trib_sim_process_clock(reactor_of(reactor)->process);
}

static void wake_reactor(trib_reactor *reactor)
{
    sim_reactor *self = reactor_of(reactor);
    if (self->late != NULL) { /* it posts to itself: that is newer than what is late */
        keep_late(self);
    }
    schedule_turn(self);
}

static sim_timer *state_of(trib_timer *timer)
{
    return (sim_timer *)(void *)timer->storage;
}

static void timer_run(trib_reactor *reactor, trib_sim_work *work)
{
    sim_timer *state = trib_container_of(work, sim_timer, work);
    trib_timer *timer = trib_container_of((unsigned char(*)[TRIB_TIMER_STORAGE])(void *)state, trib_timer, storage);
    timer->armed = false;
    timer->fired(reactor, timer);
}

static void timer_due(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    sim_timer *state = trib_container_of(event, sim_timer, event);
    trib_sim_reactor_give(&state->reactor->base, &state->work);
}

static void timer_stop(trib_reactor *reactor, trib_timer *timer)
{
    if (timer->armed) {
        sim_timer *state = state_of(timer);
        trib_sim_clear(state->reactor->process->sim, &state->event);
        trib_sim_reactor_take_back(reactor, &state->work);
        timer->armed = false;
    }
}

static void timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    trib_assert(timer->fired != NULL);
    sim_reactor *self = reactor_of(reactor);
    timer_stop(reactor, timer);
    sim_timer *state = state_of(timer);
    *state = (sim_timer){.event.fired = timer_due, .work.run = timer_run, .reactor = self};
    timer->armed = true;
    trib_sim_set(self->process->sim, &state->event, at_ns - self->process->ahead_ns);
}

/* Simulated transports have no descriptors. A connection may still stop watching one that it never had. */
static void io_watch(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)io;
    trib_assert(events == 0);
}

static void charge_cost(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    sim_reactor *self = reactor_of(reactor);
    trib_assert((unsigned)cost <= TRIB_COST_MESSAGE);
    if (self->runs) {
        const trib_sim_costs *costs = &self->process->costs;
        spend_ns(self->process, costs->work[cost].fixed_ns + costs->work[cost].byte_ns * (double)bytes);
    }
}

static void random_bytes(trib_reactor *reactor, void *buffer, size_t size)
{
    unsigned char *bytes = buffer;
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)trib_sim_draw(&reactor_of(reactor)->process->random);
    }
}

static const trib_reactor_ops sim_ops = {
    .name = "sim",
    .now_ns = now_ns,
    .now_fast_ns = now_ns,
    .wake = wake_reactor,
    .timer_arm = timer_arm,
    .timer_stop = timer_stop,
    .io_watch = io_watch,
    .charge = charge_cost,
    .random = random_bytes,
};

trib_reactor *trib_sim_reactor_create(trib_sim_process *process, uint32_t index, trib_logger *logger)
{
    sim_reactor *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    trib_reactor_init(&self->base, &sim_ops, index, logger);
    self->process = process;
    self->turn.fired = turn_fired;
    LL_PREPEND(process->reactors, self);
    return &self->base;
}

void trib_sim_reactor_free(trib_reactor *reactor)
{
    sim_reactor *self = reactor_of(reactor);
    trib_assert(!self->runs);
    trib_sim_clear(self->process->sim, &self->turn);
    LL_DELETE(self->process->reactors, self);
    free(self);
}

bool trib_sim_reactor_runs(const trib_reactor *reactor)
{
    return ((const sim_reactor *)reactor)->runs;
}

trib_sim_process *trib_sim_reactor_process(const trib_reactor *reactor)
{
    return ((const sim_reactor *)reactor)->process;
}

/* ---- Machines and processes ---- */

trib_sim_machine *trib_sim_machine_create(trib_sim *sim, uint32_t cores)
{
    trib_assert(cores > 0);
    trib_sim_machine *self = calloc(1, sizeof *self + cores * sizeof self->free_at_ns[0]);
    if (self != NULL) {
        self->sim = sim;
        self->cores = cores;
    }
    return self;
}

void trib_sim_machine_free(trib_sim_machine *machine)
{
    trib_assert(machine == NULL || machine->processes == 0);
    free(machine);
}

trib_sim_costs trib_sim_costs_default(void)
{
    return (trib_sim_costs){
        .wake_ns = 8000,
        .turn_ns = 1500,
        .work =
            {
                [TRIB_COST_SUM] = {.fixed_ns = 200, .byte_ns = 0.12},
                [TRIB_COST_COPY] = {.fixed_ns = 100, .byte_ns = 0.1},
                [TRIB_COST_ENCODE] = {.fixed_ns = 500, .byte_ns = 0.5},
                [TRIB_COST_DECODE] = {.fixed_ns = 500, .byte_ns = 0.5},
                [TRIB_COST_CHECK] = {.fixed_ns = 30, .byte_ns = 0.05},
                [TRIB_COST_MESSAGE] = {.fixed_ns = 1500, .byte_ns = 0.25},
            },
    };
}

trib_sim_costs trib_sim_costs_rdma(void)
{
    trib_sim_costs costs = trib_sim_costs_default();
    costs.wake_ns = 4000; /* the event of a completion channel, without the stack of TCP above it */
    costs.work[TRIB_COST_MESSAGE].fixed_ns = 700;
    costs.work[TRIB_COST_MESSAGE].byte_ns = 0;
    costs.work[TRIB_COST_CHECK].fixed_ns = 0; /* the device checks */
    costs.work[TRIB_COST_CHECK].byte_ns = 0;
    return costs;
}

trib_sim_process *trib_sim_process_create(trib_sim_machine *machine, const trib_sim_costs *costs, uint64_t label)
{
    trib_sim_process *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->sim = machine->sim;
    self->machine = machine;
    self->costs = *costs;
    self->factor = 1;
    self->random = trib_sim_stream_make(machine->sim, label);
    self->staggers = trib_sim_stream_make(machine->sim, ~label);
    machine->processes++;
    return self;
}

void trib_sim_process_free(trib_sim_process *process)
{
    if (process != NULL) {
        trib_assert(process->reactors == NULL);
        process->machine->processes--;
        free(process);
    }
}

void trib_sim_process_attach(trib_sim_process *process, void *node)
{
    process->node = node;
}

void *trib_sim_process_attached(const trib_sim_process *process)
{
    return process->node;
}

void trib_sim_process_freeze(trib_sim_process *process, bool frozen)
{
    process->frozen = frozen;
    for (sim_reactor *one = process->reactors; one != NULL; one = one->next) {
        if (frozen) {
            trib_sim_clear(process->sim, &one->turn);
        } else if (has_work(one)) {
            schedule_turn(one);
        }
    }
}

typedef struct jump {
    const trib_sim_process *process;
    int64_t by_ns;
} jump;

static int64_t moved_to(const trib_sim_event *event, void *argument)
{
    const jump *how = argument;
    bool mine = event->fired == timer_due && ((const sim_timer *)event)->reactor->process == how->process;
    return mine ? event->at_ns - how->by_ns : event->at_ns;
}

void trib_sim_process_jump(trib_sim_process *process, int64_t jump_ns)
{
    trib_assert(jump_ns >= 0);
    process->ahead_ns += jump_ns;
    trib_sim_world_move(process->sim, moved_to, &(jump){.process = process, .by_ns = jump_ns});
}

void trib_sim_process_slow(trib_sim_process *process, double factor)
{
    trib_assert(factor > 0);
    process->factor = factor;
}

void trib_sim_process_stagger(trib_sim_process *process, uint32_t one_in, int64_t longest_ns)
{
    trib_assert(longest_ns >= 0);
    process->stagger_one_in = one_in;
    process->stagger_ns = longest_ns;
}

int64_t trib_sim_process_clock(const trib_sim_process *process)
{
    return trib_sim_now(process->sim) + process->ahead_ns;
}
