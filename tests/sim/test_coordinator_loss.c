/*
 * test_coordinator_loss.c - members die, stand still and are cut off at random, the coordinator's process among them,
 * in a job that goes on without them (TRIB_SURVIVE=workers), and servers join it. Each seed draws a job and its faults.
 *
 * Checked are: every sum; that an operation succeeds on all that go on or on none; that no epoch has two coordinators
 * and no rank two workers; that one side of a cut goes on at most; that nobody waits for ever; and that the majority
 * goes on where faults leave one.
 *
 *     test_coordinator_loss [FIRST LAST]     runs those seeds
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/wait.h>
#include <unistd.h>

#include "engine/membership/ballot.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/worker_loss.h"

enum { FAULTS_MAX = 3, MEMBERS_MAX = WORKERS_MAX + SERVERS_MAX, NUMBERS_MAX = 64 };
enum { BUG_MINORITY = 100, BUG_NOTHING_DECIDED, BUG_DECISION_IGNORED, BUG_STRANGER_VOTES };

typedef struct fault {
    enum { KILL, PAUSE, CUT } kind;
    uint32_t members; /* a set */
    int64_t at_ns, lasts_ns;
} fault;

typedef struct storm {
    bed *bed;
    setting what;
    uint32_t fault_count, hit; /* hit: the set of members that some fault concerns */
    bool mends;                /* some fault passes, so that those it hit may go on, too */
    fault faults[FAULTS_MAX];
    int64_t late_ns;                      /* when the server that joins starts */
    uint32_t coordinator_of[NUMBERS_MAX]; /* by epoch: the member that forms it, plus one */
    uint32_t paused;
    int64_t quiet_ns; /* after the last fault */
} storm;

static int planted;
static uint64_t first_seed = 1, last_seed = 250;

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

static uint32_t members_of(const storm *self)
{
    return self->what.workers + self->what.servers;
}

static void plan(storm *self, uint64_t seed)
{
    uint64_t state = seed * 7919 + 1;
    (void)draw(&state, 2);
    self->what = (setting){.workers = 2 + (uint32_t)draw(&state, WORKERS_MAX - 1),
                           .servers = (uint32_t)draw(&state, SERVERS_MAX),
                           .in_place = draw(&state, 2) != 0,
                           .mixes = draw(&state, 2) != 0,
                           .colocated = draw(&state, 2) != 0,
                           .reactors = 1 + (uint32_t)draw(&state, 2)};
    self->what.colocated = self->what.colocated || self->what.servers == 0;
    self->fault_count = 1 + (uint32_t)draw(&state, FAULTS_MAX);
    int64_t at_ns = (int64_t)draw(&state, 4000000);
    for (uint32_t i = 0; i < self->fault_count; i++) {
        fault *at = &self->faults[i];
        const uint64_t kind = draw(&state, 6);
        at->kind = kind < 4 ? KILL : kind == 4 ? PAUSE : CUT;
        at->members = 1u << (draw(&state, 3) == 0 ? draw(&state, members_of(self)) : draw(&state, 2));
        if (at->kind == CUT) {
            const uint64_t some = draw(&state, 1u << members_of(self)), others = draw(&state, 1u << members_of(self));
            at->members |= (uint32_t)(some & others);
        }
        at->at_ns = at_ns;
        at->lasts_ns = at->kind != KILL && draw(&state, 2) == 0 ? (int64_t)draw(&state, 12 * SECOND) : 0;
        self->mends = self->mends || at->lasts_ns > 0;
        self->hit |= at->members;
        at_ns += draw(&state, 2) == 0 ? (int64_t)draw(&state, 3000000) : (int64_t)draw(&state, 10 * SECOND);
    }
    if (draw(&state, 2) == 0) { /* a server joins; it is on either side of a cut */
        self->what.servers++;
        self->what.late = 1;
        self->what.boundaries = (uint32_t)draw(&state, 3);
        self->late_ns = (int64_t)draw(&state, draw(&state, 2) == 0 ? 4000000 : 10 * SECOND);
        for (uint32_t i = 0; i < self->fault_count; i++) {
            const bool is_inside = self->faults[i].kind == CUT && draw(&state, 2) == 0;
            self->faults[i].members |= is_inside ? 1u << (members_of(self) - 1) : 0;
        }
    }
    self->quiet_ns = at_ns + 14 * SECOND;
    if (first_seed == last_seed && self->what.late > 0) {
        printf("server %u joins from %.6f s on\n", self->what.servers - 1, (double)self->late_ns / 1e9);
    }
    for (uint32_t i = 0; first_seed == last_seed && i < self->fault_count; i++) {
        static const char *const kinds[] = {"kills", "pauses", "cuts off"};
        const fault *at = &self->faults[i];
        printf("fault %u %s the members %x at %.6f s for %.6f s\n", i, kinds[at->kind], at->members,
               (double)at->at_ns / 1e9, (double)at->lasts_ns / 1e9);
    }
}

static void fail_of(const storm *self, const char *what)
{
    worker_loss_fail(self->bed, what);
}

/* No epoch has two coordinators that have begun it. */
static void watch(storm *self)
{
    for (uint32_t i = 0; i < members_of(self); i++) {
        const trib_engine *engine = self->bed->job->members[i].engine;
        const trib_coordinator *coordinator = engine->coordinator;
        if (coordinator == NULL || !coordinator->running || self->bed->job->members[i].killed) {
            continue;
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
        if (!job->members[i].killed && !at->is_out && (self->paused >> i & 1) == 0) {
            one = at;
            count++;
        }
    }
    for (uint32_t i = 0; i < self->what.workers; i++) {
        const worker *at = &self->bed->workers[i];
        const bool goes_on = !job->members[i].killed && !at->is_out && (self->paused >> i & 1) == 0;
        if (goes_on && (at->changing || at->through < TENSORS || at->epoch != one->epoch || at->count != count)) {
            return false;
        }
    }
    return true;
}

static void change(storm *self, const fault *at, bool begins)
{
    for (uint32_t i = 0; i < members_of(self); i++) {
        sim_member *member = &self->bed->job->members[i];
        if ((at->members >> i & 1) == 0 || member->killed) {
            continue;
        }
        if (at->kind == KILL) {
            sim_job_kill(self->bed->job, i);
        } else if (at->kind == CUT) {
            trib_sim_node_regroup(member->node, begins ? (uint32_t)(at - self->faults) + 1 : 0);
        } else {
            trib_sim_process_freeze(member->process, begins);
            self->paused = begins ? self->paused | 1u << i : self->paused & ~(1u << i);
        }
    }
}

static bool look(sim_job *job, void *argument)
{
    (void)job;
    watch(argument);
    return false;
}

/* Runs the faults in the order of their times, beginnings and ends. */
static void run_faults(storm *self, int64_t began_ns)
{
    for (int64_t now_ns = 0; now_ns < self->quiet_ns;) {
        int64_t next_ns = self->late_ns > now_ns ? self->late_ns : self->quiet_ns;
        for (uint32_t i = 0; i < self->fault_count; i++) {
            const fault *at = &self->faults[i];
            const int64_t ends_ns = at->lasts_ns > 0 ? at->at_ns + at->lasts_ns : INT64_MAX;
            next_ns = at->at_ns > now_ns && at->at_ns < next_ns ? at->at_ns : next_ns;
            next_ns = ends_ns > now_ns && ends_ns < next_ns ? ends_ns : next_ns;
        }
        (void)sim_job_run(self->bed->job, began_ns + next_ns, look, self);
        if (self->what.late > 0 && next_ns == self->late_ns) {
            worker_loss_start_late(self->bed, members_of(self) - 1);
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

/* Where faults hit a minority only, for good, the others go on. */
static void check_majority(storm *self)
{
    uint32_t spared = 0, workers_out = 0;
    for (uint32_t i = 0; i < members_of(self); i++) {
        spared += i < members_of(self) - self->what.late && !is_hit(self, i); /* who is late may be no member */
        workers_out += i < self->what.workers && !is_hit(self, i) && self->bed->workers[i].is_out;
    }
    if (2 * spared > members_of(self) && workers_out > 0) {
        char text[TRIB_ERROR_TEXT_SIZE + 80];
        snprintf(text, sizeof text, "%u of %u members are spared, and %u workers ended: %s", spared, members_of(self),
                 workers_out, self->bed->text);
        fail_of(self, text);
    }
}

/* Returns true if somebody goes on. */
static bool run_seed(uint64_t seed)
{
    storm self = {.paused = 0};
    plan(&self, seed);
    self.bed = worker_loss_open(&self.what, seed);
    const trib_sim_weather weather = {.delay_one_in = seed % 2 == 0 ? 5 : 0, .delay_ns = 2000000};
    trib_sim_net_weather(self.bed->job->net, &weather);
    const int64_t began_ns = trib_sim_now(self.bed->job->sim);
    run_faults(&self, began_ns);
    const bool over = sim_job_run(self.bed->job, began_ns + self.quiet_ns + 200 * SECOND, is_over, &self);
    for (uint32_t i = 0; !over && i < self.what.workers; i++) {
        const worker *at = &self.bed->workers[i];
        printf("worker %u: epoch %u, rank %u of %u, %u through%s%s%s\n", i, at->epoch, at->rank, at->count, at->through,
               at->changing ? ", changing" : "", at->is_out ? ", out" : "",
               self.bed->job->members[i].killed ? ", killed" : "");
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
    if (!self.mends) {
        check_majority(&self);
    }
    uint32_t going = 0;
    for (uint32_t i = 0; i < members_of(&self); i++) {
        sim_member *member = &self.bed->job->members[i];
        if ((self.paused >> i & 1) != 0) { /* nothing else ends it */
            trib_sim_process_freeze(member->process, false);
            sim_job_kill(self.bed->job, i);
        }
        going += i < self.what.workers && !member->killed && !self.bed->workers[i].is_out;
    }
    worker_loss_close(self.bed);
    return going > 0;
}

static void storms(void **state)
{
    (void)state;
    uint64_t going = 0;
    for (uint64_t seed = first_seed; seed <= last_seed; seed++) {
        going += run_seed(seed);
    }
    printf("%llu of %llu jobs went on\n", (unsigned long long)going, (unsigned long long)(last_seed - first_seed + 1));
}

/* ---- Bugs that are planted, each in a process of its own, which must fail ---- */

__typeof__(trib_ballot_is_majority) __real_trib_ballot_is_majority, __wrap_trib_ballot_is_majority;
bool __wrap_trib_ballot_is_majority(const trib_majority *majority, bool with_coordinator)
{
    return planted == BUG_MINORITY || __real_trib_ballot_is_majority(majority, with_coordinator);
}

__typeof__(trib_ballot_tally) __real_trib_ballot_tally, __wrap_trib_ballot_tally;
bool __wrap_trib_ballot_tally(const trib_paper *papers, uint32_t members, trib_tally *tally_out)
{
    const bool done = __real_trib_ballot_tally(papers, members, tally_out);
    if (done && planted == BUG_NOTHING_DECIDED) { /* what has succeeded on some fails on the others */
        trib_paper_clear(&tally_out->decided);
    }
    return done;
}

__typeof__(trib_coordinator_take_join) __real_trib_coordinator_take_join, __wrap_trib_coordinator_take_join;
trib_status __wrap_trib_coordinator_take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                              const void *payload, trib_error *error)
{
    trib_frame claims = *frame;
    if (planted == BUG_STRANGER_VOTES && frame->tensor == 0) { /* a new server has the place of one that is cut off */
        claims.tensor = self->core->engine->formation.epoch;
    }
    return __real_trib_coordinator_take_join(self, link, &claims, payload, error);
}

__typeof__(trib_commit_settle) __real_trib_commit_settle, __wrap_trib_commit_settle;
void __wrap_trib_commit_settle(trib_core *core, uint32_t tensor, uint32_t round)
{
    if (planted != BUG_DECISION_IGNORED) {
        __real_trib_commit_settle(core, tensor, round);
    }
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
    for (int bug = BUG_MINORITY; bug <= BUG_STRANGER_VOTES; bug++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            planted = bug;
            worker_loss_planted = bug;
            for (uint64_t seed = 1; seed <= 2000; seed++) {
                (void)run_seed(seed);
            }
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            fail_msg("planted bug %d is not found", bug);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms), cmocka_unit_test(planted_bugs_are_found)};
    if (argc == 3) {
        first_seed = strtoull(argv[1], NULL, 10);
        last_seed = strtoull(argv[2], NULL, 10);
        return cmocka_run_group_tests_name("coordinator loss", (const struct CMUnitTest[]){cmocka_unit_test(storms)},
                                           NULL, NULL);
    }
    return cmocka_run_group_tests_name("coordinator loss", tests, NULL, NULL);
}
