/*
 * test_election.c - elections that are brought about on purpose: a member that was left behind is told so, and two
 * elections in one epoch decide the same.
 */
#include <stdio.h>
#include <string.h>

#include "engine/membership/election_internal.h"
#include "engine/membership/formation.h"
#include "engine/membership/member_internal.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/worker_loss.h"

static bool never(sim_job *job, void *argument)
{
    (void)job;
    (void)argument;
    return false;
}

static void run_for(const bed *self, int64_t for_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + for_ns, never, NULL);
}

static void expect_all_but(bed *self, uint32_t set, uint32_t kind);

static void cut_off(const bed *self, uint32_t member, bool begins)
{
    trib_sim_node_regroup(self->job->members[member].node, begins ? 1 : 0);
}

static bool has_ended(sim_job *job, void *argument)
{
    const uint32_t *member = argument;
    return job->members[*member].ended_told;
}

/* ---- A member that was left behind ---- */

/* A worker is cut off, and the others go on without it, with the old coordinator or with a new one. When it is back, it
 * is told that it is out. */
static void left_behind(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const bool dies = (kind & 1) != 0;                /* rank 0 does, so that rank 1 keeps the membership */
        const uint32_t behind = (kind & 2) != 0 ? 6 : 4;  /* a server of its own, or a worker */
        const int64_t back_ns = (kind & 4) != 0 ? 7 : 12; /* while others change the membership, or after that */
        const setting what = {.workers = 5, .servers = 2, .colocated = true, .reactors = 1 + kind % 2};
        bed *self = worker_loss_open(&what, kind + 1);
        run_for(self, SECOND / 1000);
        cut_off(self, behind, true);
        if (dies) {
            sim_job_kill(self->job, 0);
        }
        const uint32_t others_out = (dies ? 1 : 0) | 1u << behind;
        run_for(self, back_ns * SECOND);
        cut_off(self, behind, false);
        uint32_t member = behind;
        if (!sim_job_run(self->job, trib_sim_now(self->job->sim) + 60 * SECOND, has_ended, &member)) {
            fail_msg("kind %u: the member that was left behind has not ended", kind);
        }
        const trib_error *ended = &self->job->members[behind].ended;
        assert_int_equal(ended->status, TRIB_PEER_LOST);
        if (strstr(ended->text, "the membership has changed without this process") == NULL) {
            fail_msg("kind %u: %s", kind, ended->text);
        }
        run_for(self, 60 * SECOND);
        if (!worker_loss_are_over(self, others_out)) {
            fail_msg("kind %u: the others have not gone on: %s", kind, self->text);
        }
        worker_loss_close(self);
    }
}

/* ---- Two elections in one epoch ---- */

static struct {
    uint32_t told[2];         /* by election: members that have taken its decision */
    uint32_t rounds[TENSORS]; /* what the first election has decided */
    uint32_t differ;          /* decisions that are not the same */
} votes;

/* A member has taken a decision: the candidate's own, or one that it was told. Which election was it, in this epoch? */
static void note_decision(const trib_engine *engine)
{
    const trib_formation *last = &engine->formation;
    const uint32_t place = last->place;
    if (trib_epoch_number(engine->roster->epoch) != 1 || last->settled_ballot == 0 || last->settled_ballot > 2) {
        return;
    }
    uint32_t rounds[TENSORS] = {0};
    for (uint32_t i = 0; i < last->committed_count && i < TENSORS; i++) {
        rounds[i] = last->committed[i];
    }
    const bool is_first = (votes.told[0] | votes.told[1]) == 0;
    votes.told[last->settled_ballot - 1] |= 1u << place;
    if (place >= WORKERS_MAX) { /* a server counts no operations */
        return;
    }
    if (is_first) {
        memcpy(votes.rounds, rounds, sizeof rounds);
    }
    votes.differ += memcmp(votes.rounds, rounds, sizeof rounds) != 0;
}

__typeof__(trib_member_redirect) __real_trib_member_redirect, __wrap_trib_member_redirect;
void __wrap_trib_member_redirect(trib_engine *engine, const trib_address *coordinator, bool joins)
{
    note_decision(engine);
    __real_trib_member_redirect(engine, coordinator, joins);
}

/* Rank 4 alone has heard of a success, and nobody but the old coordinator. */
static bool one_has_more(sim_job *job, void *argument)
{
    (void)argument;
    const trib_formation *last = &job->members[4].engine->formation;
    for (uint32_t t = 0; t < last->committed_count; t++) {
        bool alone = last->committed[t] > 0;
        for (uint32_t i = 1; alone && i < job->member_count; i++) {
            const trib_formation *at = &job->members[i].engine->formation;
            alone = i == 4 || t >= at->committed_count || at->committed[t] < last->committed[t];
        }
        if (alone) {
            return true;
        }
    }
    return false;
}

static bool is_decided(sim_job *job, void *argument)
{
    (void)job;
    (void)argument;
    return votes.told[0] != 0;
}

/* The first candidate's decision has reached another member, too. */
static bool is_told_to_one(sim_job *job, void *argument)
{
    (void)job;
    (void)argument;
    return (votes.told[0] & ~2u) != 0;
}

/* Rank 0 dies when rank 4 alone has heard of an operation's success, and rank 4 is cut off. Rank 1 is elected by the
 * others, so the operation has failed; it dies as soon as one of them has heard of that. Rank 4 is back for the second
 * election. The others decide again, the same, and rank 4 cannot go on with them. */
static bool two_elections_seed(uint64_t seed)
{
    const setting what = {.workers = 5, .servers = 2, .colocated = seed % 2 == 0, .reactors = 1 + (uint32_t)seed % 2};
    memset(&votes, 0, sizeof votes);
    bed *self = worker_loss_open(&what, seed);
    const trib_sim_weather weather = {.delay_one_in = 2, .delay_ns = 3000000};
    trib_sim_net_weather(self->job->net, &weather);
    const int64_t began_ns = trib_sim_now(self->job->sim);
    const bool differs = sim_job_run(self->job, began_ns + SECOND, one_has_more, NULL);
    cut_off(self, 4, true);
    sim_job_kill(self->job, 0);
    bool one_is_told = differs && sim_job_run(self->job, began_ns + 40 * SECOND, is_decided, NULL);
    const uint32_t deaf = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 3 : 6;
    trib_sim_node_block(self->job->members[deaf].node, false, true);
    one_is_told = one_is_told && sim_job_run(self->job, began_ns + 40 * SECOND, is_told_to_one, NULL);
    const uint32_t told = votes.told[0];
    sim_job_kill(self->job, 1);
    cut_off(self, 4, false);
    run_for(self, seed % 2 == 0 ? 5 * SECOND : 0); /* until it has given rank 1 up, or what is under way arrives */
    trib_sim_node_block(self->job->members[deaf].node, false, false);
    run_for(self, 90 * SECOND);
    const bool counts =
        one_is_told && told != 0x6e && votes.told[1] != 0; /* some had not heard of the first decision */
    const sim_member *last = &self->job->members[4];
    for (uint32_t i = 0; i < what.workers; i++) {
        self->workers[i].is_out = self->job->members[i].ended_told;
    }
    if (counts) {
        assert_int_equal(votes.differ, 0);
        assert_true(last->ended_told);
        if (!worker_loss_are_over(self, 0x13)) {
            fail_msg("seed %llu: the others have not gone on: %s", (unsigned long long)seed, self->text);
        }
        if (strstr(last->ended.text, "another member has decided") == NULL &&
            strstr(last->ended.text, "the membership has changed without this process") == NULL) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, last->ended.text);
        }
    }
    worker_loss_check_alike(self);
    worker_loss_close(self);
    return counts;
}

static void two_elections(void **state)
{
    (void)state;
    uint32_t counted = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        counted += two_elections_seed(seed);
    }
    assert_true(counted >= 30); /* the others had nothing to decide differently */
}

/* ---- A decision that is lost on its way ---- */

static bool all_know_of_the_end(sim_job *job, void *argument)
{
    (void)argument;
    bool all = true;
    for (uint32_t i = 0; i < job->member_count; i++) {
        all = all && job->members[i].engine->formation.is_settled;
    }
    return all;
}

static bool has_decided(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[1].engine->formation.coordinates;
}

/* The coordinator dies at a boundary of which it has told all. The voters' connections break when the next one has
 * decided the same; they vote again, and hear of it. */
static void a_lost_decision_is_told_again(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {
            .workers = 4, .servers = kind % 2, .colocated = true, .reactors = 1 + kind / 2, .boundaries = 1};
        bed *self = worker_loss_open(&what, kind + 1);
        const int64_t until_ns = trib_sim_now(self->job->sim) + SECOND;
        assert_true(sim_job_run(self->job, until_ns, all_know_of_the_end, NULL));
        sim_job_kill(self->job, 0);
        assert_true(sim_job_run(self->job, until_ns + 20 * SECOND, has_decided, NULL));
        for (uint64_t i = 0; i < 64; i++) {
            assert_true(trib_sim_net_reset(self->job->net, i));
        }
        run_for(self, 60 * SECOND);
        expect_all_but(self, 1, kind);
    }
}

/* A voter takes another decision before it hears of the candidate's, and reaches nobody then. It says that another
 * member was elected. */
static void an_election_that_is_not_shared_is_told(void **state)
{
    (void)state;
    const setting what = {.workers = 4, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    const sim_member *last = &self->job->members[3];
    sim_job_kill(self->job, 0);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, has_decided, NULL));
    assert_false(last->engine->formation.is_settled);
    last->engine->formation.is_settled = last->engine->formation.at_boundary = true;
    run_for(self, SECOND);
    sim_job_kill(self->job, 1);
    sim_job_kill(self->job, 2);
    cut_off(self, 3, true);
    run_for(self, 90 * SECOND);
    assert_true(last->ended_told);
    if (strstr(last->ended.text, "another member was elected, and has decided otherwise") == NULL) {
        fail_msg("%s", last->ended.text);
    }
    worker_loss_close(self);
}

/* ---- Servers that come back in another order ---- */

static bool comes_back(sim_job *job, void *argument)
{
    const uint32_t *member = argument;
    const trib_engine *engine = job->members[*member].engine;
    return atomic_load(&engine->changing) && engine->member != NULL && !engine->member->joined;
}

/* One of the servers is there again. */
static bool one_is_back(sim_job *job, void *argument)
{
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    bool is_back = false;
    (void)argument;
    for (uint32_t i = 0; coordinator != NULL && trib_formation_gathers(coordinator) && i < coordinator->server_count;
         i++) {
        is_back = is_back || coordinator->slots[coordinator->worker_count + i].joined;
    }
    return is_back;
}

/* Each has the id of its own vote: it may get the roster from another member, which finds it by that. */
static void servers_keep_their_ids(void **state)
{
    (void)state;
    const setting what = {.workers = 3, .servers = 2, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    uint32_t first = 3;
    run_for(self, SECOND / 1000);
    sim_job_kill(self->job, 2);
    const int64_t until_ns = trib_sim_now(self->job->sim) + 3 * SECOND;
    assert_true(sim_job_run(self->job, until_ns, comes_back, &first));
    trib_sim_process_freeze(self->job->members[first].process, true);
    assert_true(sim_job_run(self->job, until_ns, one_is_back, NULL));
    trib_sim_process_freeze(self->job->members[first].process, false);
    run_for(self, 30 * SECOND);
    assert_true(worker_loss_are_over(self, 1u << 2));
    for (uint32_t i = first; i < first + 2; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        assert_int_equal(engine->roster->members[engine->formation.place].former, i);
    }
    worker_loss_close(self);
}

/* ---- One refusal ---- */

static bool was_refused(sim_job *job, void *argument)
{
    const trib_election *election = job->members[*(const uint32_t *)argument].engine->election;
    return election != NULL && election->refused_since_ns != 0;
}

/* A voter does not reach the candidate for a while, then is refused once. The candidate keeps its turn. */
static void one_refusal_is_no_death(void **state)
{
    (void)state;
    const setting what = {.workers = 3, .servers = 0, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    uint32_t voter = 2;
    trib_sim_node *node = self->job->members[voter].node;
    run_for(self, SECOND / 1000);
    trib_sim_node_block(node, true, false);
    sim_job_kill(self->job, 0);
    run_for(self, SECOND / 5);
    trib_sim_node_reject(node, true);
    trib_sim_node_block(node, false, false);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 3 * SECOND, was_refused, &voter));
    trib_sim_node_reject(node, false);
    run_for(self, 60 * SECOND);
    if (!worker_loss_are_over(self, 1)) {
        fail_msg("the others have not gone on: %s", self->text);
    }
    worker_loss_close(self);
}

/* ---- A coordinator that lives ---- */

static void expect_all_but(bed *self, uint32_t set, uint32_t kind)
{
    if (!worker_loss_are_over(self, set)) {
        fail_msg("kind %u: the others have not gone on: %s", kind, self->text);
    }
    worker_loss_check_alike(self);
    worker_loss_close(self);
}

/* A member is cut off when another one dies, and does not hear of the end of the epoch. When it is back it finds no
 * session at the coordinator, which lives and waits for it. */
static void cut_off_at_the_end_of_an_epoch(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 24; kind++) {
        const bool is_small = (kind & 1) != 0; /* the others are no majority without that member */
        const uint32_t workers = is_small ? 3 : 5;
        /* the first candidate, another worker, or a server */
        const uint32_t cut = kind % 3 == 0 ? 1 : kind % 3 == 1 ? workers - 1 : workers;
        const setting what = {.workers = workers,
                              .servers = 2, /* the last one is the coordinator in half of the jobs */
                              .colocated = true,
                              .apart = (kind & 4) != 0,
                              .reactors = 1 + kind % 2};
        const uint32_t dies = cut == 2 ? 1 : 2;
        bed *self = worker_loss_open(&what, kind + 1);
        run_for(self, SECOND / 1000 + kind * (SECOND / 10000));
        cut_off(self, cut, true);
        run_for(self, SECOND / 5000); /* the coordinator may tell of more successes */
        sim_job_kill(self->job, dies);
        run_for(self, kind < 12 ? SECOND / 2 : 3 * SECOND);
        cut_off(self, cut, false);
        run_for(self, 60 * SECOND);
        expect_all_but(self, 1u << dies, kind);
    }
}

static bool takes_it_for_lost(sim_job *job, void *argument)
{
    const uint32_t *members = argument;
    uint32_t open = 0;
    for (uint32_t i = 0; i < job->member_count; i++) {
        open += trib_election_is_open(job->members[i].engine);
    }
    return open >= *members;
}

/* The coordinator stands still, and goes on when some have taken it for lost. It may be in time for all, and then
 * nobody waits for long. */
static void comes_back_in_time(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 12; kind++) {
        const setting what = {.workers = 3 + kind % 3, .servers = kind / 3 % 2, .colocated = true, .reactors = 1};
        bed *self = worker_loss_open(&what, kind + 1);
        uint32_t members = 1;
        run_for(self, SECOND / 1000);
        /* one hears nothing from it a little earlier than the others do */
        trib_sim_node_block(self->job->members[1 + kind % 2].node, false, true);
        run_for(self, SECOND / 5);
        trib_sim_process_freeze(self->job->members[0].process, true);
        trib_sim_node_block(self->job->members[1 + kind % 2].node, false, false);
        const int64_t until_ns = trib_sim_now(self->job->sim) + 10 * SECOND;
        assert_true(sim_job_run(self->job, until_ns, takes_it_for_lost, &members));
        trib_sim_process_freeze(self->job->members[0].process, false);
        run_for(self, SECOND);
        expect_all_but(self, 0, kind);
    }
}

/* The coordinator stands still while the members come back to it. Those whose connections are only half made notice
 * that as soon as the others do, and nobody waits for the member whose loss has ended the epoch. */
static void stands_still_between_epochs(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 20; kind++) {
        const setting what = {.workers = 5, .servers = 2, .colocated = true, .reactors = 1};
        bed *self = worker_loss_open(&what, kind + 1);
        uint32_t first = 1;
        run_for(self, SECOND / 1000);
        sim_job_kill(self->job, 4);
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 3 * SECOND, comes_back, &first));
        run_for(self, kind * (SECOND / 50000));
        trib_sim_process_freeze(self->job->members[0].process, true);
        run_for(self, 4 * SECOND + SECOND);
        for (uint32_t i = 1; i < 4; i++) {
            if (self->workers[i].changing || self->workers[i].count != 3) {
                fail_msg("kind %u: worker %u has not gone on: %s", kind, i, self->text);
            }
        }
        sim_job_kill(self->job, 0);
        trib_sim_process_freeze(self->job->members[0].process, false);
        run_for(self, 60 * SECOND);
        expect_all_but(self, 1 | 1u << 4, kind);
    }
}

/* ---- A candidate that holds its voters ---- */

static const trib_engine *holder; /* it decides nothing and lets nobody go, and does not reach the coordinator */

__typeof__(trib_election_stand) __real_trib_election_stand, __wrap_trib_election_stand;
void __wrap_trib_election_stand(trib_election *self)
{
    if (self->core->engine != holder) {
        __real_trib_election_stand(self);
    }
}

__typeof__(trib_election_ask_former) __real_trib_election_ask_former, __wrap_trib_election_ask_former;
void __wrap_trib_election_ask_former(trib_election *self)
{
    if (self->core->engine != holder) {
        __real_trib_election_ask_former(self);
    }
}

/* The coordinator answers the voters shortly before their time for the election is over. They come back to it then. */
static void held_until_the_end(void **state)
{
    (void)state;
    const setting what = {.workers = 4, .servers = 1, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    uint32_t members = 4;
    run_for(self, SECOND / 1000);
    holder = self->job->members[1].engine;
    trib_sim_process_freeze(self->job->members[0].process, true);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 10 * SECOND, takes_it_for_lost, &members));
    run_for(self, 3 * trib_election_time(holder->election) - 2 * SECOND);
    trib_sim_process_freeze(self->job->members[0].process, false);
    run_for(self, 30 * SECOND);
    holder = NULL;
    run_for(self, 30 * SECOND);
    assert_true(self->job->members[1].ended_told);
    expect_all_but(self, 1u << 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(left_behind),
                                       cmocka_unit_test(two_elections),
                                       cmocka_unit_test(a_lost_decision_is_told_again),
                                       cmocka_unit_test(an_election_that_is_not_shared_is_told),
                                       cmocka_unit_test(servers_keep_their_ids),
                                       cmocka_unit_test(one_refusal_is_no_death),
                                       cmocka_unit_test(cut_off_at_the_end_of_an_epoch),
                                       cmocka_unit_test(comes_back_in_time),
                                       cmocka_unit_test(stands_still_between_epochs),
                                       cmocka_unit_test(held_until_the_end)};
    return cmocka_run_group_tests_name("election", tests, NULL, NULL);
}
