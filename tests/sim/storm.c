/*
 * storm.c - draws a job and its faults from a seed, and runs it. See storm.h.
 *
 * Checked are: every sum; that an operation succeeds on all that go on or on none; that no epoch has two coordinators
 * and no rank two workers; that one side of a cut goes on at most; that nobody waits for ever; and that the majority
 * goes on where faults leave one.
 *
 * Half of the jobs have a store (TRIB_STORE), which is slow, away for a while, reached by some only, or lies. Where it
 * does not lie all that are spared go on, however few, if others are killed.
 *
 * In a third of the jobs the tensors are in the memory of devices. In a third of them there are groups, in half of
 * these not before the first sum.
 */
#include "tests/sim/storm.h"

#include <stdio.h>
#include <string.h>

#include "engine/membership/coordinator_internal.h"
#include "tests/sim/storm_internal.h"

enum { RESETS = 3 }; /* connections that are reset at a time */

/* Returns when the last fault begins. */
static int64_t draw_faults(storm *self, uint64_t seed)
{
    uint64_t state = seed * 7919 + 1;
    (void)storm_draw(&state, 2);
    self->what = (setting){.workers = 2 + (uint32_t)storm_draw(&state, WORKERS_MAX - 1),
                           .servers = (uint32_t)storm_draw(&state, SERVERS_MAX),
                           .in_place = storm_draw(&state, 2) != 0,
                           .mixes = storm_draw(&state, 2) != 0,
                           .colocated = storm_draw(&state, 2) != 0,
                           .reactors = 1 + (uint32_t)storm_draw(&state, 2)};
    storm_plan_strikes(self, seed);
    self->what.colocated = self->what.colocated || self->what.servers == 0;
    self->fault_count = 1 + (uint32_t)storm_draw(&state, DRAWN_MAX);
    int64_t at_ns = (int64_t)storm_draw(&state, 4000000);
    for (uint32_t i = 0; i < self->fault_count; i++) {
        fault *at = &self->faults[i];
        const uint64_t kind = storm_draw(&state, 6);
        at->kind = kind < 4 ? KILL : kind == 4 ? PAUSE : CUT;
        at->members =
            1u << (storm_draw(&state, 3) == 0 ? storm_draw(&state, storm_members(self)) : storm_draw(&state, 2));
        if (at->kind == CUT) {
            const uint64_t some = storm_draw(&state, 1u << storm_members(self)),
                           others = storm_draw(&state, 1u << storm_members(self));
            at->members |= (uint32_t)(some & others);
        }
        at->at_ns = at_ns;
        at->lasts_ns = at->kind != KILL && storm_draw(&state, 2) == 0 ? (int64_t)storm_draw(&state, 12 * SECOND) : 0;
        at->members = self->strike_count > 0 && i == 0 ? at->members | 1 : at->members; /* an election there is */
        at_ns += storm_draw(&state, 2) == 0 ? (int64_t)storm_draw(&state, 3000000)
                                            : (int64_t)storm_draw(&state, 10 * SECOND);
    }
    return at_ns;
}

/* A member that joins is started, and may die soon. Returns when the last fault begins. */
static int64_t draw_start(storm *self, uint64_t *state, uint32_t member, int64_t at_ns)
{
    const bool dies = storm_draw(state, 4) == 0;
    const int64_t comes_ns =
        storm_draw(state, 2) == 0 ? (int64_t)storm_draw(state, 3000000) : (int64_t)storm_draw(state, 12 * SECOND);
    const int64_t lives_ns =
        storm_draw(state, 2) == 0 ? (int64_t)storm_draw(state, 3000000) : (int64_t)storm_draw(state, 6 * SECOND);
    self->faults[self->fault_count++] = (fault){.kind = START, .members = 1u << member, .at_ns = 1 + comes_ns};
    if (dies) {
        self->faults[self->fault_count++] =
            (fault){.kind = KILL, .members = 1u << member, .at_ns = 1 + comes_ns + lives_ns};
    }
    const int64_t last_ns = comes_ns + (dies ? lives_ns : 0);
    return last_ns > at_ns ? last_ns : at_ns;
}

/* Workers that join, at any time, and may die soon after they have come; and members that are cut off one way. */
static int64_t draw_more(storm *self, uint64_t seed, int64_t at_ns)
{
    uint64_t state = seed * 104729 + 3;
    for (uint32_t i = 0; i < self->fault_count; i++) {
        const uint64_t way = storm_draw(&state, 3);
        self->faults[i].kind = self->faults[i].kind == CUT && way > 0 ? (way == 1 ? DEAF : MUTE) : self->faults[i].kind;
    }
    const uint32_t initial = self->what.workers;
    self->what.joins = storm_draw(&state, 2) == 0 ? 1 + (uint32_t)storm_draw(&state, JOINERS_MAX) : 0;
    self->what.asleep = true;
    self->what.boundaries = (uint32_t)storm_draw(&state, 4);
    for (uint32_t i = 0; i < self->fault_count; i++) { /* servers follow the workers */
        const uint32_t workers = self->faults[i].members & ((1u << initial) - 1);
        self->faults[i].members = (self->faults[i].members ^ workers) << self->what.joins | workers;
    }
    self->what.workers += self->what.joins;
    for (uint32_t i = 0; i < self->what.joins; i++) {
        at_ns = draw_start(self, &state, initial + i, at_ns);
    }
    return at_ns;
}

/* A server that joins, which is on either side of a cut. In some jobs it is alone with the coordinator, and must not
 * make a majority with it. */
static int64_t draw_late_server(storm *self, uint64_t seed, int64_t at_ns)
{
    uint64_t state = seed * 15485863 + 5;
    (void)storm_draw(&state, 2);
    const bool is_alone = storm_draw(&state, 8) == 0 && self->fault_count > 0;
    if (storm_draw(&state, 2) == 0 && !is_alone) {
        return at_ns;
    }
    const uint32_t late = storm_members(self);
    for (uint32_t i = 0; i < self->fault_count; i++) {
        const int kind = self->faults[i].kind;
        const bool is_cut = kind == CUT || kind == DEAF || kind == MUTE;
        self->faults[i].members |= is_cut && storm_draw(&state, 2) == 0 ? 1u << late : 0;
        self->faults[i].members = is_alone && kind != START ? 0 : self->faults[i].members;
    }
    if (is_alone) {
        self->faults[0] = (fault){.kind = CUT, .members = 1u | 1u << late, .at_ns = self->faults[0].at_ns};
        self->what.boundaries = 0;
    }
    self->what.servers++;
    self->what.late = 1;
    return draw_start(self, &state, late, at_ns);
}

/* The coordinator is a process of its own, which faults may hit, too. */
static void draw_apart(storm *self, uint64_t seed)
{
    uint64_t state = seed * 32452843 + 9;
    (void)storm_draw(&state, 2);
    if (self->what.joins > 0 || self->what.late > 0 || storm_draw(&state, 3) > 0) {
        return;
    }
    const uint32_t coordinator = storm_members(self);
    self->what.servers++;
    self->what.apart = true;
    for (uint32_t i = 0; i < self->fault_count; i++) {
        self->faults[i].members |= storm_draw(&state, 3) == 0 ? 1u << coordinator : 0;
    }
}

/* Numbers of its own, as those of the store. */
static void plan_devices(storm *self, uint64_t seed)
{
    uint64_t state = seed * 67867967 + 17;
    (void)storm_draw(&state, 2);
    self->what.on_devices = storm_draw(&state, 3) == 0;
}

/* The epoch ends where a server is drained. */
static void plan_groups(storm *self, uint64_t seed)
{
    uint64_t state = seed * 982451653 + 19;
    (void)storm_draw(&state, 2);
    self->what.has_groups = storm_draw(&state, 3) == 0;
    self->what.late_groups = self->what.has_groups && storm_draw(&state, 2) == 0;
}

/* Posts to a member's reactors, from each other and from the program, come late in half of the jobs. In a quarter
 * messages are reported as sent when the peer may have answered already. */
static void plan_staggers(storm *self, uint64_t seed)
{
    uint64_t state = seed * 141650939 + 23;
    (void)storm_draw(&state, 2);
    self->what.stagger_one_in = storm_draw(&state, 2) == 0 ? 2u << storm_draw(&state, 4) : 0;
    self->what.sent_late_ns = storm_draw(&state, 4) == 0 ? (int64_t)1000 << storm_draw(&state, 15) : 0;
}

static void plan(storm *self, const storm_run *how)
{
    int64_t last_ns = draw_more(self, how->seed, draw_faults(self, how->seed));
    last_ns = draw_late_server(self, how->seed, last_ns);
    draw_apart(self, how->seed);
    storm_plan_breaks(self, how->seed, last_ns);
    self->quiet_ns = last_ns + 14 * SECOND;
    storm_plan_store(self, how->seed);
    plan_devices(self, how->seed);
    plan_groups(self, how->seed);
    storm_plan_lonely_drain(self, how->seed);
    plan_staggers(self, how->seed);
    for (uint32_t i = 0; i < self->fault_count; i++) {
        const fault *at = &self->faults[i];
        self->hit |= at->kind != START && at->kind != RESET ? at->members : 0;
    }
}

static void show(const storm *self);

static void fail_of(const storm *self, const char *what)
{
    show(self);
    worker_loss_fail(self->bed, what);
}

/* No member has taken another one's place. */
static void check_place(const storm *self, uint32_t member)
{
    const trib_engine *engine = self->bed->job->members[member].engine;
    const trib_roster *roster = engine->roster;
    const trib_member_info *info = roster != NULL ? &roster->members[engine->formation.place] : NULL;
    const bool is_old = info != NULL && roster->before != NULL && info->former != TRIB_NO_MEMBER;
    if ((is_old && strcmp(info->addresses[0].text, roster->before->members[info->former].addresses[0].text) != 0) ||
        (info != NULL && strcmp(info->addresses[0].text, engine->cores[0].host.address.text) != 0)) {
        fail_of(self, "a member has another one's place");
    }
}

/* A worker that has joined goes to work. No epoch has two coordinators that have begun it. */
static void watch(storm *self)
{
    for (uint32_t i = self->what.workers - self->what.joins; i < self->what.workers; i++) {
        const sim_member *member = &self->bed->job->members[i];
        if (!self->bed->workers[i].is_there && !member->killed && member->ready_told &&
            member->ready.status == TRIB_OK) {
            worker_loss_begin(self->bed, i);
        }
    }
    for (uint32_t i = 0; i < storm_members(self); i++) {
        const trib_engine *engine = self->bed->job->members[i].engine;
        const trib_coordinator *coordinator = engine->coordinator;
        check_place(self, i);
        if (coordinator == NULL || !coordinator->running || self->bed->job->members[i].killed ||
            self->lie == TRIB_SIM_LIE_TWO_WINS) {
            continue;
        }
        if (coordinator->roster->ticket != 0 && !engine->formation.is_known) {
            continue; /* its epoch has not begun */
        }
        const uint32_t number = trib_epoch_number(coordinator->roster->epoch);
        assert_true(number < NUMBERS_MAX);
        uint32_t *owner = &self->coordinator_of[number];
        if (*owner != 0 && *owner != i + 1) {
            char text[80];
            snprintf(text, sizeof text, "members %u and %u coordinate epoch %u", *owner - 1, i, number);
            fail_of(self, text);
        }
        *owner = i + 1;
    }
}

static bool is_initial(const storm *self, uint32_t member)
{
    return member < self->what.workers - self->what.joins ||
           (member >= self->what.workers && member < storm_members(self) - self->what.late);
}

/* True for a worker that has joined and has not ended. */
static bool goes_on(const storm *self, uint32_t rank)
{
    const worker *at = &self->bed->workers[rank];
    return at->is_there && !self->bed->job->members[rank].killed && !at->is_out && (self->paused >> rank & 1) == 0;
}

static bool is_hit(const storm *self, uint32_t member)
{
    return (self->hit >> member & 1) != 0;
}

/* All that go on are through with an epoch that has no others, and whoever does not go on knows it. */
static bool is_over(sim_job *job, void *argument)
{
    storm *self = argument;
    const worker *one = NULL;
    uint32_t count = 0;
    watch(self);
    for (uint32_t i = 0; i < self->what.workers; i++) {
        worker *at = &self->bed->workers[i];
        at->is_out = at->is_out || job->members[i].ended_told;
        if (goes_on(self, i)) {
            one = at;
            count++;
        }
    }
    for (uint32_t i = 0; i < self->what.workers; i++) {
        const worker *at = &self->bed->workers[i];
        if (goes_on(self, i) &&
            (at->changing || at->through < TENSORS || at->epoch != one->epoch || at->count != count)) {
            return false;
        }
    }
    return true;
}

static void shun(const storm *self, const fault *at, bool begins)
{
    uint32_t ends[2] = {0, 0}, count = 0;
    for (uint32_t i = 0; i < storm_members(self); i++) {
        if ((at->members >> i & 1) != 0 && count < 2) {
            ends[count++] = i;
        }
    }
    if (count == 2) {
        trib_sim_node_shun(self->bed->job->members[ends[0]].node, self->bed->job->members[ends[1]].node, begins);
    }
}

static void change(storm *self, const fault *at, bool begins)
{
    if (at->kind == SHUN) {
        shun(self, at, begins);
        return;
    }
    for (uint32_t i = 0; at->kind == RESET && i < RESETS; i++) {
        (void)trib_sim_net_reset(self->bed->job->net, at->members + i);
    }
    for (uint32_t i = 0; i < storm_members(self); i++) {
        sim_member *member = &self->bed->job->members[i];
        if (at->kind == RESET || (at->members >> i & 1) == 0 || member->killed) {
            continue;
        }
        if (at->kind == DRAIN) {
            (void)sim_job_drain(self->bed->job, i); /* a server that is about to join, or has ended, does not ask */
        } else if (at->kind == KILL) {
            sim_job_kill(self->bed->job, i);
        } else if (at->kind == START || at->kind == WAKE) {
            trib_sim_process_freeze(member->process, false);
            self->paused &= ~(1u << i);
        } else if (at->kind == DEAF || at->kind == MUTE) {
            trib_sim_node_block(member->node, begins && at->kind == MUTE, begins && at->kind == DEAF);
        } else if (at->kind == CUT) {
            trib_sim_node_regroup(member->node, begins ? (uint32_t)(at - self->faults) + 1 : 0);
            self->cut = begins ? self->cut | 1u << i : self->cut & ~(1u << i);
        } else {
            trib_sim_process_freeze(member->process, begins);
            self->paused = begins ? self->paused | 1u << i : self->paused & ~(1u << i);
        }
    }
}

typedef struct looking {
    storm *of;
    int64_t began_ns;
} looking;

static bool look(sim_job *job, void *argument)
{
    const looking *at = argument;
    (void)job;
    watch(at->of);
    return storm_strikes(at->of, at->began_ns);
}

/* Returns the time of the next beginning or end of a fault. */
static int64_t next_fault(const storm *self, int64_t now_ns)
{
    int64_t next_ns = self->quiet_ns;
    for (uint32_t i = 0; i < self->fault_count; i++) {
        const fault *at = &self->faults[i];
        const int64_t ends_ns = at->lasts_ns > 0 ? at->at_ns + at->lasts_ns : INT64_MAX;
        next_ns = at->at_ns > now_ns && at->at_ns < next_ns ? at->at_ns : next_ns;
        next_ns = ends_ns > now_ns && ends_ns < next_ns ? ends_ns : next_ns;
    }
    return next_ns;
}

/* Runs the faults in the order of their times, beginnings and ends. */
static void run_faults(storm *self, int64_t began_ns)
{
    looking at_all = {.of = self, .began_ns = began_ns};
    for (int64_t now_ns = 0; now_ns < self->quiet_ns;) {
        const int64_t store_ns = storm_keep_store(self, now_ns), fault_ns = next_fault(self, now_ns);
        const int64_t next_ns = store_ns < fault_ns ? store_ns : fault_ns;
        if (sim_job_run(self->bed->job, began_ns + next_ns, look, &at_all)) {
            now_ns = trib_sim_now(self->bed->job->sim) - began_ns - 1; /* a strike is a further fault */
            continue;
        }
        for (uint32_t i = 0; i < self->fault_count; i++) {
            const fault *at = &self->faults[i];
            if (at->at_ns == next_ns) {
                change(self, at, true);
            } else if (at->lasts_ns > 0 && at->at_ns + at->lasts_ns == next_ns) {
                change(self, at, false);
            }
        }
        now_ns = next_ns;
    }
}

/* True if the member is new in the last roster of some worker that has ended, and never got that roster: it cannot vote
 * about the epoch in whose majority it counts. */
static bool lacks_roster(const storm *self, uint32_t member)
{
    const trib_engine *engine = self->bed->job->members[member].engine;
    bool lacks = false;
    for (uint32_t i = 0; i < self->what.workers && engine->roster == NULL; i++) {
        const trib_roster *roster = self->bed->job->members[i].engine->roster;
        const bool has_ended = roster != NULL && is_initial(self, i) && self->bed->workers[i].is_out;
        for (uint32_t k = 0; has_ended && k < roster->member_count; k++) {
            const char *address = roster->members[k].addresses[0].text;
            lacks = lacks || strcmp(address, engine->cores[0].host.address.text) == 0;
        }
    }
    return lacks;
}

/* Where faults hit a minority only the others go on, also if faults pass. A member that joins has a vote as soon as it
 * has the roster. With a store a minority goes on if the others are dead. */
static void check_majority(storm *self)
{
    uint32_t spared = 0, hit = 0, mute = 0, workers_out = 0;
    bool suffices = self->what.has_store && self->lie == TRIB_SIM_TRUTH;
    for (uint32_t i = 0; i < self->fault_count; i++) {
        suffices = suffices && (self->faults[i].kind == KILL || self->faults[i].kind == START);
    }
    for (uint32_t i = 0; i < storm_members(self); i++) {
        spared += !is_hit(self, i) && is_initial(self, i);
        hit += is_hit(self, i);
        mute += !is_hit(self, i) && lacks_roster(self, i);
        workers_out +=
            i < self->what.workers && !is_hit(self, i) && is_initial(self, i) && self->bed->workers[i].is_out;
    }
    suffices = self->what.has_store ? suffices : spared > hit + mute;
    if (suffices && workers_out > 0) {
        char text[TRIB_ERROR_TEXT_SIZE + 80];
        snprintf(text, sizeof text, "%u of %u members are spared, %u hit, %u without a vote, and %u workers ended: %s",
                 spared, storm_members(self), hit, mute, workers_out, self->bed->text);
        fail_of(self, text);
    }
}

static void show(const storm *self)
{
    for (uint32_t i = 0; i < self->fault_count; i++) {
        static const char *const kinds[] = {"kills",  "pauses", "cuts off", "deafens", "mutes",
                                            "starts", "parts",  "wakes",    "resets",  "drains"};
        const fault *at = &self->faults[i];
        printf("fault %u %s the members %x at %.6f s for %.6f s\n", i, kinds[at->kind], at->members,
               (double)at->at_ns / 1e9, (double)at->lasts_ns / 1e9);
    }
    for (uint32_t i = 0; i < self->what.workers; i++) {
        const worker *at = &self->bed->workers[i];
        const sim_member *member = &self->bed->job->members[i];
        printf("worker %u: epoch %u, rank %u of %u, %u through%s%s%s%s%s%s\n", i, at->epoch, at->rank, at->count,
               at->through, at->changing ? ", changing" : "", at->is_out ? ", out" : "", at->is_there ? "" : ", waits",
               member->killed ? ", killed" : "", member->ended_told ? ": " : "",
               member->ended_told ? member->ended.text : "");
    }
}

bool storm_seed(const storm_run *how)
{
    const uint64_t seed = how->seed;
    storm self = {.paused = 0};
    plan(&self, how);
    self.bed = worker_loss_open(&self.what, seed);
    storm_open_store(&self, seed);
    const trib_sim_weather weather = {.delay_one_in = seed % 2 == 0 ? 5 : 0, .delay_ns = 2000000};
    trib_sim_net_weather(self.bed->job->net, &weather);
    const int64_t began_ns = trib_sim_now(self.bed->job->sim);
    run_faults(&self, began_ns);
    self.bed->job->store.is_away = false;
    const bool over = sim_job_run(self.bed->job, began_ns + self.quiet_ns + 200 * SECOND, is_over, &self);
    if (how->tells) {
        show(&self);
    }
    if (!over || self.bed->wrong > 0) {
        char text[TRIB_ERROR_TEXT_SIZE + 64];
        snprintf(text, sizeof text, "%s, %u wrong: %s", over ? "over" : "not over", self.bed->wrong, self.bed->text);
        fail_of(&self, text);
    }
    for (uint32_t i = 0; i < self.what.workers; i++) { /* who stands still has not heard of anything */
        self.bed->workers[i].is_out = self.bed->workers[i].is_out || (self.paused >> i & 1) != 0;
    }
    worker_loss_check_alike(self.bed);
    check_majority(&self);
    uint32_t going = 0;
    for (uint32_t i = 0; i < storm_members(&self); i++) {
        sim_member *member = &self.bed->job->members[i];
        if ((self.paused >> i & 1) != 0) { /* nothing else ends it */
            trib_sim_process_freeze(member->process, false);
            sim_job_kill(self.bed->job, i);
        }
        going +=
            i < self.what.workers && self.bed->workers[i].is_there && !member->killed && !self.bed->workers[i].is_out;
    }
    worker_loss_close(self.bed);
    return going > 0;
}
