/*
 * test_election_mutants.c - a test of the storms (storm.h): bugs are planted in the election of a coordinator and in
 * what follows the loss of a worker, one at a time, and the seeds must find each.
 *
 * See test_mutants.c. Each bug runs in a process of its own, which it must end.
 *
 *     test_election_mutants [WORD]     plants those whose text contains the word
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/link/link_cause.h"
#include "engine/membership/ballot.h"
#include "engine/membership/commits.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/election_internal.h"
#include "engine/membership/formation.h"
#include "engine/membership/tenure.h"
#include "engine/membership/verdict.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/storm.h"
#include "tests/sim/worker_loss.h"

#define SEEDS 2000u
#define CPU_SECONDS 600u /* a bug may loop for ever */

/* Each bug has a seed that has found it and is tried before all others. The seed only saves time. */
#define BUG_LIST(X)                                                                                                    \
    X(MINORITY, 14, "a minority goes on, too")                                                                         \
    X(HALF, 213, "exactly half goes on without the last coordinator")                                                  \
    X(VOTE_TWICE, 26, "a vote counts twice")                                                                           \
    X(NOTHING_DECIDED, 167, "what has succeeded on some voter fails on the others")                                    \
    X(CONTRADICTION_COUNTS, 69, "votes that contradict the decision count")                                            \
    X(DECISION_IGNORED, 167, "a voter does not take the decision over")                                                \
    X(STRANGER_VOTES, 418, "a new server has the place, and the vote, of one that may be cut off")                     \
    X(LOST_ONE_IGNORED, 105, "a majority is counted of one member fewer than there are")                               \
    X(NEWCOMERS_VOTE, 929, "members that are new vote about the epoch before, too")                                    \
    X(ROSTER_PRESUMED, 929, "a voter takes it for granted that all have the roster")                                   \
    X(KNOWN_TOO_SOON, 929, "members are told that all have the roster when one has")                                   \
    X(NUMBER_TWICE, 929, "two coordinators give their epochs one number")                                              \
    X(CANDIDATE_FORGETS, 69, "a candidate does not count what has succeeded on itself")                                \
    X(TOLD_TOO_MUCH, 503, "a member that comes back is told of one success too many")                                  \
    X(REPORTER_BLAMED, 4, "who reports a loss is taken for lost")                                                      \
    X(END_UNTOLD, 7, "members are not told of the end of an epoch, 1 in 3")                                            \
    X(COMMITTED_UNSETTLED, 8, "a round is committed when all workers but one are through with it")                     \
    X(UNCLAIMED, 4, "nobody asks the store whether another one goes on")                                               \
    X(NOT_FORGONE, 28, "an epoch that is over begins by the store")
#define BUG_ENUM(name, seed, text) PLANT_##name,
#define BUG_NAME(name, seed, text) [PLANT_##name] = (text),
#define BUG_SEED(name, seed, text) [PLANT_##name] = (seed),

enum { PLANT_NOTHING, BUG_LIST(BUG_ENUM) PLANT_COUNT };
static const char *const names[PLANT_COUNT] = {BUG_LIST(BUG_NAME)};
static const uint16_t known_seeds[PLANT_COUNT] = {BUG_LIST(BUG_SEED)};

static bool is_planted(int bug)
{
    return worker_loss_planted == bug;
}

/* ---- The bugs ---- */

__typeof__(trib_ballot_is_majority) __real_trib_ballot_is_majority, __wrap_trib_ballot_is_majority;
bool __wrap_trib_ballot_is_majority(const trib_majority *majority, bool with_coordinator)
{
    trib_majority counted = *majority;
    counted.votes += is_planted(PLANT_VOTE_TWICE);
    counted.former += is_planted(PLANT_VOTE_TWICE);
    counted.electors -= is_planted(PLANT_LOST_ONE_IGNORED);
    counted.before -= is_planted(PLANT_LOST_ONE_IGNORED);
    counted.former = is_planted(PLANT_NEWCOMERS_VOTE) ? counted.votes : counted.former;
    counted.knows_roster = counted.knows_roster || is_planted(PLANT_ROSTER_PRESUMED);
    return is_planted(PLANT_MINORITY) ||
           __real_trib_ballot_is_majority(&counted, with_coordinator || is_planted(PLANT_HALF));
}

__typeof__(trib_ballot_tally) __real_trib_ballot_tally, __wrap_trib_ballot_tally;
bool __wrap_trib_ballot_tally(const trib_vote *votes, uint32_t members, trib_tally *tally_out)
{
    const bool done = __real_trib_ballot_tally(votes, members, tally_out);
    if (done && is_planted(PLANT_NOTHING_DECIDED)) {
        trib_vote_clear(&tally_out->decided);
    }
    for (uint32_t i = 0; done && is_planted(PLANT_CONTRADICTION_COUNTS) && i < members; i++) {
        tally_out->elects[i] = votes[i].has_voted;
    }
    return done;
}

__typeof__(trib_coordinator_take_join) __real_trib_coordinator_take_join, __wrap_trib_coordinator_take_join;
trib_status __wrap_trib_coordinator_take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                              const void *payload, trib_error *error)
{
    trib_frame claims = *frame;
    trib_reader reader = {.data = (const unsigned char *)payload + 8, .left = frame->payload_size - 8};
    trib_member_info info;
    const bool is_known = trib_member_info_get(&reader, &info, error) == TRIB_OK;
    if (is_planted(PLANT_STRANGER_VOTES) && is_known && (info.roles & TRIB_ROLE_WORKER) == 0 && frame->tensor == 0) {
        claims.tensor = self->core->engine->formation.epoch;
        claims.root = 0;
        while (claims.root + 1 < self->server_count && self->slots[self->worker_count + claims.root].joined) {
            claims.root++;
        }
    }
    return __real_trib_coordinator_take_join(self, link, &claims, payload, error);
}

__typeof__(trib_commit_settle) __real_trib_commit_settle, __wrap_trib_commit_settle;
void __wrap_trib_commit_settle(trib_core *core, uint32_t tensor, uint32_t round)
{
    if (!is_planted(PLANT_DECISION_IGNORED)) {
        __real_trib_commit_settle(core, tensor, round);
    }
}

__typeof__(trib_formation_take_losses_taken) __real_trib_formation_take_losses_taken,
    __wrap_trib_formation_take_losses_taken;
void __wrap_trib_formation_take_losses_taken(trib_coordinator *self, uint32_t member)
{
    for (uint32_t i = 0; is_planted(PLANT_KNOWN_TOO_SOON) && i < trib_coordinator_slots(self); i++) {
        self->slots[i].has_roster = i != member;
    }
    __real_trib_formation_take_losses_taken(self, member);
}

__typeof__(trib_formation_next_epoch) __real_trib_formation_next_epoch, __wrap_trib_formation_next_epoch;
uint32_t __wrap_trib_formation_next_epoch(const trib_coordinator *self)
{
    trib_formation *formation = &self->core->engine->formation;
    const uint32_t ballot = formation->ballot;
    formation->ballot = is_planted(PLANT_NUMBER_TWICE) ? 0 : ballot;
    const uint32_t next = __real_trib_formation_next_epoch(self);
    formation->ballot = ballot;
    return next;
}

__typeof__(trib_election_own_vote) __real_trib_election_own_vote, __wrap_trib_election_own_vote;
trib_vote __wrap_trib_election_own_vote(const trib_election *self)
{
    trib_vote vote = __real_trib_election_own_vote(self);
    vote.count = is_planted(PLANT_CANDIDATE_FORGETS) ? 0 : vote.count;
    return vote;
}

__typeof__(trib_election_put_rounds) __real_trib_election_put_rounds, __wrap_trib_election_put_rounds;
void __wrap_trib_election_put_rounds(trib_link *link, const trib_frame *head, const trib_vote *vote)
{
    uint32_t more[TENSORS] = {0};
    trib_vote told = *vote;
    if (is_planted(PLANT_TOLD_TOO_MUCH) && head->type == TRIB_FRAME_ELECTED &&
        link->core->engine->coordinator != NULL) {
        told.rounds = more;
        told.count = vote->count < TENSORS ? vote->count : TENSORS;
        for (uint32_t i = 0; i < told.count; i++) {
            more[i] = vote->rounds[i] + 1;
        }
    }
    __real_trib_election_put_rounds(link, head, &told);
}

__typeof__(trib_verdict_judge) __real_trib_verdict_judge, __wrap_trib_verdict_judge;
void __wrap_trib_verdict_judge(const trib_coordinator *self, uint32_t reporter, trib_cause *cause)
{
    __real_trib_verdict_judge(self, reporter, cause);
    cause->subject = is_planted(PLANT_REPORTER_BLAMED) ? reporter : cause->subject;
}

__typeof__(trib_link_send_cause) __real_trib_link_send_cause, __wrap_trib_link_send_cause;
void __wrap_trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause)
{
    static uint32_t calls;
    if (!is_planted(PLANT_END_UNTOLD) || frame.type != TRIB_FRAME_ENDED || ++calls % 3 != 0) {
        __real_trib_link_send_cause(link, frame, cause);
    }
}

__typeof__(trib_commits_take_settled) __real_trib_commits_take_settled, __wrap_trib_commits_take_settled;
trib_status __wrap_trib_commits_take_settled(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                             const void *payload, trib_error *error)
{
    const trib_status status = __real_trib_commits_take_settled(self, rank, frame, payload, error);
    const uint32_t other = (rank + 1) % self->worker_count;
    return status == TRIB_OK && is_planted(PLANT_COMMITTED_UNSETTLED)
               ? __real_trib_commits_take_settled(self, other, frame, payload, error)
               : status;
}

__typeof__(trib_tenure_claim) __real_trib_tenure_claim, __wrap_trib_tenure_claim;
void __wrap_trib_tenure_claim(trib_coordinator *self)
{
    if (is_planted(PLANT_UNCLAIMED)) {
        trib_formation_begun(self);
    } else {
        __real_trib_tenure_claim(self);
    }
}

__typeof__(trib_tenure_forgo) __real_trib_tenure_forgo, __wrap_trib_tenure_forgo;
void __wrap_trib_tenure_forgo(trib_engine *engine)
{
    if (!is_planted(PLANT_NOT_FORGONE)) {
        __real_trib_tenure_forgo(engine);
    }
}

/* ---- The search ---- */

static const char *word = ""; /* of the bugs that are planted */

static void planted_bugs_are_found(void **state)
{
    (void)state;
    volatile uint64_t *seed = mmap(NULL, sizeof *seed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seed != MAP_FAILED);
    uint32_t missed = 0;
    for (int bug = PLANT_NOTHING + 1; bug < PLANT_COUNT; bug++) {
        if (strstr(names[bug], word) == NULL) {
            continue;
        }
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            const struct rlimit limit = {.rlim_cur = CPU_SECONDS, .rlim_max = CPU_SECONDS};
            setrlimit(RLIMIT_CPU, &limit);
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            worker_loss_planted = bug;
            *seed = known_seeds[bug];
            (void)storm_seed(&(storm_run){.seed = *seed});
            for (*seed = 1; *seed <= SEEDS; ++*seed) {
                (void)storm_seed(&(storm_run){.seed = *seed});
            }
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool is_found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        missed += !is_found;
        printf("%s by seed %llu: %s\n", is_found ? "found" : "NOT FOUND", (unsigned long long)*seed, names[bug]);
    }
    munmap((void *)(uintptr_t)seed, sizeof *seed);
    assert_int_equal(missed, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(planted_bugs_are_found)};
    word = argc > 1 ? argv[1] : word;
    return cmocka_run_group_tests_name("election mutants", tests, NULL, NULL);
}
