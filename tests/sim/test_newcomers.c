/*
 * test_newcomers.c - the coordinator is lost just after it has sent the roster that lets workers in. These count in the
 * majority of that epoch, also where they lack the roster: they may have gone on with it, for all that the others know.
 * Those that live get it from the others, and vote (membership/election.h).
 */
#include <string.h>

#include "engine/membership/coordinator_internal.h"
#include "engine/membership/election.h"
#include "engine/membership/election_internal.h"
#include "engine/membership/member_internal.h"
#include "tests/sim/worker_loss.h"

enum { FORMER = 3, NEWCOMERS = 2 };

/* The coordinator has just sent the roster of the second epoch. */
static bool has_sent_roster(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator != NULL && coordinator->running && trib_epoch_number(coordinator->roster->epoch) == 2;
}

/* The coordinator has heard that all have the roster. */
static bool is_known(sim_job *job, void *argument)
{
    return has_sent_roster(job, argument) && job->members[0].engine->formation.is_known;
}

/* All that have been there before have the roster of the second epoch. */
static bool members_have_roster(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool have = true;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const bool is_new = i >= self->what->workers - self->what->joins && i < self->what->workers;
        have = have && (is_new || trib_epoch_number(job->members[i].engine->roster->epoch) == 2);
    }
    return have;
}

/* The job has ended for the workers of the first epoch, but for the coordinator. */
static bool others_have_ended(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool have_ended = true;
    for (uint32_t i = 1; i < self->what->workers - self->what->joins; i++) {
        have_ended = have_ended && job->members[i].ended_told;
    }
    return have_ended;
}

static bool coordinator_goes_on(sim_job *job, void *argument)
{
    const bed *self = argument;
    return !job->members[0].ended_told && self->workers[0].count == 1 + NEWCOMERS;
}

/* All workers are at work without the coordinator, those with the roster and those that have got it since. */
static bool all_others_go_on(sim_job *job, void *argument)
{
    bed *self = argument;
    const uint32_t workers = self->what->workers, former = workers - self->what->joins;
    bool go_on = true;
    for (uint32_t i = 1; i < workers; i++) {
        const worker *at = &self->workers[i];
        if (i >= former && job->members[i].ready_told && !at->is_there) {
            worker_loss_begin(self, i);
        }
        go_on = go_on && at->is_there && !at->changing && at->count == workers - 1 && at->through == TENSORS;
    }
    return go_on;
}

/* The workers of the first epoch are at work, and wait for nobody else. */
static bool former_go_on(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool go_on = true;
    (void)job;
    for (uint32_t i = 1; i < FORMER; i++) {
        const worker *at = &self->workers[i];
        go_on = go_on && !at->changing && at->count == FORMER - 1 && at->through == TENSORS;
    }
    return go_on;
}

/* are_others: other processes have the newcomers' addresses by now. */
static void run(const setting *what, bool are_others, bool (*ends)(sim_job *job, void *argument))
{
    bed *self = worker_loss_open(what, 1);
    sim_job *job = self->job;
    const uint32_t former = what->workers - what->joins;
    assert_true(sim_job_run(job, 20 * SECOND, has_sent_roster, self));
    for (uint32_t i = former; i < what->workers; i++) {
        trib_sim_node_shun(job->members[0].node, job->members[i].node, true);
    }
    assert_true(sim_job_run(job, 20 * SECOND, members_have_roster, self));
    sim_job_kill(job, 0);
    for (uint32_t i = former; i < what->workers; i++) {
        assert_null(job->members[i].engine->roster);
        job->members[i].engine->start += are_others;
        job->members[i].engine->member->has_begun = true; /* the beginning of the roster has come */
        trib_sim_node_shun(job->members[0].node, job->members[i].node, false);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, ends, self));
    assert_int_equal(self->wrong, 0);
    worker_loss_close(self);
}

static setting with_newcomers(uint32_t newcomers)
{
    return (setting){.workers = FORMER + newcomers, .servers = 1, .reactors = 1, .joins = newcomers, .boundaries = 1};
}

/* Three of five members have the roster, or three of six, which are no majority. */
static void newcomers_get_the_roster_from_others(void **state)
{
    (void)state;
    const setting one = with_newcomers(1), two = with_newcomers(2);
    run(&one, false, all_others_go_on);
    run(&two, false, all_others_go_on);
}

/* The worker of the lowest rank that is left has joined just now. Two servers have the roster. */
static void a_newcomer_is_elected(void **state)
{
    (void)state;
    const setting what = {.workers = 2, .servers = 2, .reactors = 1, .joins = 1, .boundaries = 1};
    run(&what, false, all_others_go_on);
}

/* A newcomer may have gone on with the coordinator and died. Who is at its address then is no member. */
static void another_start_gets_no_roster(void **state)
{
    (void)state;
    const setting one = with_newcomers(1), two = with_newcomers(2);
    run(&one, true, former_go_on);
    run(&two, true, others_have_ended);
}

/* Worker 1 and the server are cut off, a majority of the epoch before. They do not know that all have the roster, but
 * the coordinator does, and goes on with the newcomers. */
static void newcomers_with_the_roster(void **state)
{
    (void)state;
    const setting what = {.workers = 2 + NEWCOMERS, .servers = 1, .reactors = 1, .joins = NEWCOMERS, .boundaries = 1};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    const uint32_t server = what.workers;
    assert_true(sim_job_run(job, 20 * SECOND, is_known, self));
    trib_sim_node_regroup(job->members[1].node, 1);
    trib_sim_node_regroup(job->members[server].node, 1);
    assert_false(job->members[1].engine->formation.is_known || job->members[server].engine->formation.is_known);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, others_have_ended, self));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, coordinator_goes_on, self));
    worker_loss_close(self);
}

static uint32_t epoch_of(const sim_job *job, uint32_t member)
{
    const trib_roster *roster = job->members[member].engine->roster;
    return roster != NULL ? trib_epoch_number(roster->epoch) : 0;
}

enum { BEHIND = 1, ELECTED = 2, NEW = 3 }; /* workers of the next test */

static bool new_is_in_third_epoch(sim_job *job, void *argument)
{
    bed *self = argument;
    if (job->members[NEW].ready_told && !self->workers[NEW].is_there) {
        worker_loss_begin(self, NEW);
    }
    return epoch_of(job, NEW) == 3 && job->members[NEW].engine->formation.is_known;
}

static bool new_is_between_epochs(sim_job *job, void *argument)
{
    (void)argument;
    const trib_engine *engine = job->members[NEW].engine;
    return job->members[ELECTED].engine->formation.coordinates && engine->member != NULL && !engine->member->joined;
}

static bool new_elects(sim_job *job, void *argument)
{
    (void)argument;
    const trib_engine *engine = job->members[NEW].engine;
    return engine->member != NULL && !engine->member->joined && trib_election_is_open(engine);
}

static bool new_goes_back_or_ends(sim_job *job, void *argument)
{
    (void)argument;
    return epoch_of(job, NEW) < 3 || job->members[NEW].ended_told;
}

/* A newcomer has gone on to a third epoch, and loses two coordinators. A worker that was cut off before it knew that
 * all have the roster of the second one sends that to the newcomer. It must not step back: it could vote twice. */
static void nobody_goes_back_to_an_old_roster(void **state)
{
    (void)state;
    const setting what = with_newcomers(1);
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    assert_true(sim_job_run(job, 20 * SECOND, is_known, self));
    trib_sim_node_regroup(job->members[BEHIND].node, 1);
    assert_false(job->members[BEHIND].engine->formation.is_known);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, new_is_in_third_epoch, self));
    sim_job_kill(job, 0);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, new_is_between_epochs, self));
    sim_job_kill(job, ELECTED);
    trib_sim_process_freeze(job->members[what.workers].process, true);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, new_elects, self));
    assert_true(trib_election_is_open(job->members[BEHIND].engine));
    trib_sim_node_regroup(job->members[BEHIND].node, 0);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, new_goes_back_or_ends, self));
    assert_int_equal(epoch_of(job, NEW), 3);
    trib_sim_process_freeze(job->members[what.workers].process, false);
    worker_loss_close(self);
}

/* A process at a newcomer's address takes no roster, and is asked for life signs all the while. It is not sent the
 * roster each time. */
static void a_roster_is_sent_once(void **state)
{
    (void)state;
    const setting what = with_newcomers(1);
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    assert_true(sim_job_run(job, 20 * SECOND, has_sent_roster, self));
    trib_sim_node_shun(job->members[0].node, job->members[NEW].node, true);
    assert_true(sim_job_run(job, 20 * SECOND, members_have_roster, self));
    sim_job_kill(job, 0);
    job->members[NEW].engine->start++;
    trib_sim_process_freeze(job->members[what.workers].process, true); /* its vote is waited for */
    const uint64_t before = trib_sim_node_bytes_in(job->members[NEW].node);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 3 * SECOND, NULL, NULL);
    assert_true(trib_election_is_open(job->members[1].engine));
    /* that many bytes are two thirds of what a roster in each answer makes of it, and more than the questions alone */
    const uint64_t told = trib_sim_node_bytes_in(job->members[NEW].node) - before;
    if (told > 15000) {
        fail_msg("%llu bytes", (unsigned long long)told);
    }
    worker_loss_close(self);
}

static bool has_no_election(void *member, size_t size)
{
    (void)member;
    return size < sizeof(trib_election) || size > sizeof(trib_election) + 2 * ALL_MAX * sizeof(trib_vote);
}

static bool new_has_ended(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[NEW].ended_told;
}

/* A newcomer that gets the roster from others and has no memory for the election says so. */
static void a_newcomer_has_no_memory(void **state)
{
    (void)state;
    const setting what = with_newcomers(1);
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    assert_true(sim_job_run(job, 20 * SECOND, has_sent_roster, self));
    trib_sim_node_shun(job->members[0].node, job->members[NEW].node, true);
    assert_true(sim_job_run(job, 20 * SECOND, members_have_roster, self));
    sim_job_kill(job, 0);
    trib_engine *engine = job->members[NEW].engine;
    assert_null(engine->roster);
    engine->member->has_begun = true;
    engine->env.may_alloc = has_no_election;
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, new_has_ended, self));
    assert_int_equal(job->members[NEW].ended.status, TRIB_NO_MEMORY);
    engine->env.may_alloc = NULL;
    worker_loss_close(self);
}

/* The first worker keeps the membership, the last one and the server come when the job is under way. */
static void one_comes_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->survive = TRIB_SURVIVE_WORKERS;
    config->join_timeout_ns = 300 * SECOND;
    config->worker_count = FORMER - 1;
    config->server_count = 0;
    if (member + 1 == job->config.workers) {
        config->rank = -1;
    }
}

static bool some_wait(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator != NULL && coordinator->parked == 2;
}

static bool those_are_told(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[FORMER - 1].ready_told && job->members[FORMER].ended_told;
}

/* All workers leave while a worker and a server wait: these hear of it, and do not wait until their deadlines. */
static void the_job_ends_meanwhile(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(FORMER, 1);
    config.tweak = one_comes_later;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    assert_true(sim_job_run(job, 20 * SECOND, some_wait, NULL));
    for (uint32_t i = 0; i < FORMER - 1; i++) {
        sim_job_leave(job, i);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, those_are_told, NULL));
    for (uint32_t i = FORMER - 1; i <= FORMER; i++) {
        assert_int_equal(job->members[i].ready.status, TRIB_JOIN_FAILED);
        assert_non_null(strstr(job->members[i].ready.text, "ended before this process could join"));
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void joins_alone(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->survive = TRIB_SURVIVE_WORKERS;
    config->join_timeout_ns = 300 * SECOND;
    config->worker_count = (int32_t)job->config.workers - 1;
    if (member + 1 == job->config.workers) {
        config->rank = -1;
    }
}

static bool one_waits(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator != NULL && coordinator->parked == 1;
}

static bool epoch_is_over(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator == NULL || coordinator->over;
}

static bool joiner_is_told(sim_job *job, void *argument)
{
    (void)argument;
    const sim_member *joiner = &job->members[job->config.workers - 1];
    return joiner->ended_told || joiner->ready_told;
}

/* The coordinator leaves just after the epoch has ended, as a worker was lost. The others may go on, so a process that
 * waits is not told that the job has ended. */
static void the_coordinator_leaves_meanwhile(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(FORMER + 2, 0);
    config.tweak = joins_alone;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    assert_true(sim_job_run(job, 20 * SECOND, one_waits, NULL));
    sim_job_kill(job, FORMER);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, epoch_is_over, NULL));
    assert_non_null(job->members[0].engine->coordinator);
    sim_job_leave(job, 0);
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, joiner_is_told, NULL));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(newcomers_get_the_roster_from_others),
                                       cmocka_unit_test(a_newcomer_is_elected),
                                       cmocka_unit_test(another_start_gets_no_roster),
                                       cmocka_unit_test(newcomers_with_the_roster),
                                       cmocka_unit_test(the_job_ends_meanwhile),
                                       cmocka_unit_test(the_coordinator_leaves_meanwhile),
                                       cmocka_unit_test(nobody_goes_back_to_an_old_roster),
                                       cmocka_unit_test(a_roster_is_sent_once),
                                       cmocka_unit_test(a_newcomer_has_no_memory)};
    return cmocka_run_group_tests_name("newcomers", tests, NULL, NULL);
}
