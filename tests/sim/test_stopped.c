/*
 * test_stopped.c - the coordinator and other members stand still at the same time, and a majority goes on soon after
 * that is known: a member counts as lost when it has not answered for the peer timeout, and it is asked from a quarter
 * of the timeout after the coordinator's last sign of life on. One that stands still for less than that stays a member.
 * A coordinator that is back in the middle of the election leaves no healthy member alone with it.
 */
#include <stdio.h>
#include <string.h>

#include "engine/membership/ballot.h"
#include "engine/membership/election.h"
#include "tests/sim/worker_loss.h"

#define TIMEOUT_NS (4 * SECOND) /* of worker_loss.c */
#define MOST_NS (SECOND / 2)

enum { WORKERS = 5, STOPS = 2 };

typedef struct stop {
    uint32_t member;
    int64_t at_ns, lasts_ns; /* lasts_ns 0: for good */
} stop;

typedef struct kind {
    uint32_t servers;
    stop stops[STOPS]; /* besides the coordinator's; member 0: none */
} kind;

static const kind kinds[] = {
    {0, {{1, 0, 0}}},
    {0, {{2, 0, 0}}},
    {1, {{WORKERS, 0, 0}}},
    {0, {{3, 2 * SECOND, 0}}},
    {2, {{1, SECOND / 2, 0}, {WORKERS, SECOND, 0}}},
    {2, {{1, 0, 0}, {2, 0, 0}}},
    {2, {{4, SECOND, 0}, {WORKERS + 1, 3 * SECOND, 0}}},
    {1, {{2, 2 * SECOND, 2 * SECOND}}},
    {0, {{1, 3 * SECOND / 2, 5 * SECOND / 2}}},
};

typedef struct run {
    bed *bed;
    uint32_t stopped; /* a set */
    uint32_t left;    /* workers that go on in the end */
} run;

/* All that do not stand still are at work in another epoch. */
static bool goes_on(sim_job *job, void *argument)
{
    const run *self = argument;
    (void)job;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const worker *at = &self->bed->workers[i];
        if ((self->stopped >> i & 1) == 0 &&
            (at->is_out || at->changing || at->epoch < 2 || at->count != self->left || at->through < TENSORS)) {
            return false;
        }
    }
    return true;
}

static bool never(sim_job *job, void *argument)
{
    (void)job;
    (void)argument;
    return false;
}

static void set_stopped(run *self, uint32_t member, bool is_stopped)
{
    trib_sim_process_freeze(self->bed->job->members[member].process, is_stopped);
    self->stopped = is_stopped ? self->stopped | 1u << member : self->stopped & ~(1u << member);
}

/* All begins and ends at quarters of a second, before the coordinator and those that stand still with it are lost. */
static void run_stops(run *self, const stop *stops, int64_t began_ns)
{
    for (int64_t now_ns = 0; now_ns <= TIMEOUT_NS; now_ns += SECOND / 4) {
        (void)sim_job_run(self->bed->job, began_ns + now_ns, never, NULL);
        if (now_ns == 0) {
            set_stopped(self, 0, true);
        }
        for (uint32_t i = 0; i < STOPS; i++) {
            const bool ends = stops[i].lasts_ns > 0 && now_ns == stops[i].at_ns + stops[i].lasts_ns;
            if (stops[i].member != 0 && (ends || now_ns == stops[i].at_ns)) {
                set_stopped(self, stops[i].member, !ends);
            }
        }
    }
}

/* When the last loss is known. A process that has stood still gives the coordinator as much time more. */
static int64_t last_known(const stop *stops)
{
    int64_t known_ns = TIMEOUT_NS + TIMEOUT_NS / TRIB_ELECTION_DOUBT_SHARE;
    for (uint32_t i = 0; i < STOPS; i++) {
        const int64_t own_ns = TIMEOUT_NS + (stops[i].lasts_ns > 0 ? stops[i].lasts_ns : stops[i].at_ns);
        known_ns = stops[i].member != 0 && own_ns > known_ns ? own_ns : known_ns;
    }
    return known_ns;
}

static void close_without_stopped(const run *self)
{
    sim_job *job = self->bed->job;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if ((self->stopped >> i & 1) != 0) {
            trib_sim_process_freeze(job->members[i].process, false);
            sim_job_kill(job, i);
        }
    }
    worker_loss_close(self->bed);
}

static void stand_still(const kind *what, uint32_t index)
{
    const setting how = {.workers = WORKERS, .servers = what->servers, .colocated = true, .reactors = 1 + index % 2};
    run self = {.bed = worker_loss_open(&how, index + 1), .left = WORKERS - 1};
    sim_job *job = self.bed->job;
    const int64_t began_ns = trib_sim_now(job->sim) + SECOND / 500, known_ns = last_known(what->stops);
    for (uint32_t i = 0; i < STOPS; i++) {
        const stop *at = &what->stops[i];
        self.left -= at->member != 0 && at->member < WORKERS && at->lasts_ns == 0;
    }
    run_stops(&self, what->stops, began_ns);
    if (!sim_job_run(job, began_ns + known_ns + MOST_NS, goes_on, &self)) {
        fail_msg("kind %u: the others have not gone on %.2f s after the last loss was known: %s", index,
                 (double)MOST_NS / 1e9, self.bed->text);
    }
    close_without_stopped(&self);
}

static void a_majority_goes_on(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        stand_still(&kinds[i], i);
    }
}

/* ---- A coordinator that is back ---- */

/* The coordinator and a server stand still. The coordinator is back when another one is about to be elected, and
 * answers some of the members first. No other member is left out, whoever keeps the membership then. */
static void come_back_at(uint32_t servers, int64_t back_ns, uint64_t seed)
{
    const setting how = {.workers = WORKERS, .servers = servers, .colocated = true, .reactors = 1 + seed % 2};
    run self = {.bed = worker_loss_open(&how, seed)};
    sim_job *job = self.bed->job;
    const trib_sim_weather weather = {.delay_one_in = 3, .delay_ns = 3000000};
    trib_sim_net_weather(job->net, &weather);
    const int64_t began_ns = trib_sim_now(job->sim) + SECOND / 500;
    (void)sim_job_run(job, began_ns, never, NULL);
    set_stopped(&self, 0, true);
    set_stopped(&self, WORKERS, true);
    (void)sim_job_run(job, began_ns + back_ns, never, NULL);
    set_stopped(&self, 0, false);
    (void)sim_job_run(job, began_ns + 3 * TIMEOUT_NS, never, NULL);
    set_stopped(&self, WORKERS, false);
    (void)sim_job_run(job, began_ns + 6 * TIMEOUT_NS, never, NULL);
    for (uint32_t i = 1; i < job->member_count; i++) {
        if (i != WORKERS && job->members[i].ended_told) {
            fail_msg("%u servers, back after %.4f s: member %u is left out: %s", servers, (double)back_ns / 1e9, i,
                     job->members[i].ended.text);
        }
    }
    worker_loss_close(self.bed);
}

static void nobody_is_left_out(void **state)
{
    (void)state;
    const int64_t decided_ns = TIMEOUT_NS + TIMEOUT_NS / TRIB_ELECTION_DOUBT_SHARE;
    for (uint32_t i = 0; i < 120; i++) {
        come_back_at(1 + i % 2, decided_ns + ((int64_t)i - 80) * (SECOND / 1000), i + 1);
    }
}

/* ---- A candidate that holds its voters ---- */

static struct {
    const sim_job *job;
    const trib_vote *votes; /* of the candidate that counted last */
    int64_t counted_ns;
    uint32_t counted;
    uint32_t again; /* so often a candidate counted votes that it had counted less than a turn ago */
} counts;

__typeof__(trib_ballot_tally) __real_trib_ballot_tally, __wrap_trib_ballot_tally;
bool __wrap_trib_ballot_tally(const trib_vote *votes, uint32_t members, trib_tally *tally_out)
{
    const int64_t now_ns = counts.job != NULL ? trib_sim_now(counts.job->sim) : 0;
    counts.again += counts.job != NULL && counts.votes == votes && now_ns - counts.counted_ns < SECOND / 20;
    counts.counted++;
    counts.votes = votes;
    counts.counted_ns = now_ns;
    return __real_trib_ballot_tally(votes, members, tally_out);
}

/* The coordinator is back, answers the voters, and is not reached by the candidate, which waits for a server. They ask
 * it to let them go, which costs it no more than a count in each turn. */
static void voters_are_held_at_no_cost(void **state)
{
    (void)state;
    const setting how = {.workers = WORKERS, .servers = 1, .colocated = true, .reactors = 1};
    run self = {.bed = worker_loss_open(&how, 1), .left = WORKERS - 1};
    sim_job *job = self.bed->job;
    const int64_t decided_ns = TIMEOUT_NS + TIMEOUT_NS / TRIB_ELECTION_DOUBT_SHARE;
    const int64_t began_ns = trib_sim_now(job->sim) + SECOND / 500;
    memset(&counts, 0, sizeof counts);
    counts.job = job;
    (void)sim_job_run(job, began_ns, never, NULL);
    set_stopped(&self, 0, true);
    set_stopped(&self, WORKERS, true);
    (void)sim_job_run(job, began_ns + decided_ns - SECOND / 2, never, NULL);
    trib_sim_node_shun(job->members[0].node, job->members[1].node, true);
    trib_sim_process_freeze(job->members[0].process, false);
    assert_true(sim_job_run(job, began_ns + decided_ns + MOST_NS, goes_on, &self));
    assert_true(counts.counted > 1);
    assert_int_equal(counts.again, 0);
    counts.job = NULL;
    close_without_stopped(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_majority_goes_on), cmocka_unit_test(nobody_is_left_out),
                                       cmocka_unit_test(voters_are_held_at_no_cost)};
    return cmocka_run_group_tests_name("members that stand still", tests, NULL, NULL);
}
