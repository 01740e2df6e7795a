/*
 * test_wireup.c - a member that can accept no more callers ends the job after two seconds of vain attempts. It does
 * not if all have come, or if an attempt succeeds meanwhile. It awaits exactly the callers that connect to it. A
 * member whose own connection fails asks the coordinator whether its peer has left, and leaves it time to say why.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/core/wireup.h"

#define TRY_NS INT64_C(100000000)
#define TRIES_MAX 20 /* two seconds without a break */
#define SERVER 6u    /* a member's number, after those of the workers */
#define MEMBERS 7u

static int64_t time_ns;
static trib_error ended;

static int64_t fake_now(trib_reactor *reactor)
{
    (void)reactor;
    return time_ns;
}

static void fake_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    (void)reactor;
    (void)at_ns;
    timer->armed = true;
}

static void fake_stop(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    timer->armed = false;
}

static void fake_wake(trib_reactor *reactor)
{
    (void)reactor;
}

static const trib_reactor_ops fake_reactor = {
    .name = "fake", .now_ns = fake_now, .timer_arm = fake_arm, .timer_stop = fake_stop, .wake = fake_wake};

static bool fake_ask(trib_engine *engine)
{
    atomic_fetch_add(&engine->questions, 1);
    return true;
}

static bool has_joined;

static void fake_joined(trib_core *core)
{
    (void)core;
    has_joined = true;
}

static const trib_job_hooks fake_hooks = {.ask_time = fake_ask, .core_joined = fake_joined};

void __wrap_trib_job_end(trib_engine *engine, const trib_cause *cause);
void __wrap_trib_job_end(trib_engine *engine, const trib_cause *cause)
{
    ended.status = cause->status;
    trib_job_render(engine, cause, ended.text);
}

void __wrap_trib_job_member_lost(trib_engine *engine, const trib_cause *cause);
void __wrap_trib_job_member_lost(trib_engine *engine, const trib_cause *cause)
{
    __wrap_trib_job_end(engine, cause);
}

typedef struct bed {
    trib_engine *engine;
    trib_roster *roster;
    trib_reactor reactor;
    trib_core core;
    trib_link *links[SERVER];
    trib_link link;
} bed;

static void bed_open(bed *self, uint32_t local_size)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    self->roster = trib_roster_create(MEMBERS);
    if (self->engine == NULL || self->roster == NULL) {
        fail_msg("out of memory");
        return; /* not reached; for analysers that do not know fail_msg */
    }
    self->roster->worker_count = SERVER;
    self->roster->local_size = local_size;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        self->roster->members[i].reactors = 1;
    }
    self->roster->members[SERVER].sums = true;
    snprintf(self->roster->members[SERVER].name, sizeof self->roster->members[SERVER].name, "server 0 (node4:902)");
    atomic_store(&self->engine->roster, self->roster);
    self->engine->core_count = 1;
    self->engine->member_id = SERVER;
    self->engine->hooks = &fake_hooks;
    self->roster->peer_timeout_ns = 50 * TRY_NS;
    assert_int_equal(trib_departed_open(&self->engine->departed, MEMBERS), TRIB_OK);
    self->reactor.ops = &fake_reactor;
    self->reactor.owner = &self->core;
    self->engine->reactors[0].reactor = &self->reactor;
    self->reactor.logger = &self->engine->logger;
    self->core.engine = self->engine;
    self->core.reactor = &self->reactor;
    self->core.host.core = &self->core;
    self->core.host.engine = self->engine;
    self->core.host.stats = &self->core.stats;
    self->core.worker_links = self->links;
    time_ns = 77 * TRY_NS;
    ended.status = TRIB_OK;
    has_joined = false;
}

static void bed_close(bed *self)
{
    trib_wireup_close(&self->core);
    trib_departed_close(&self->engine->departed);
    free(self->roster);
    free(self->engine);
}

static void try_in_vain(bed *self, int tries)
{
    for (int i = 0; i < tries; i++) {
        time_ns += TRY_NS;
        trib_reactor_note_shortage(&self->reactor, EMFILE);
        trib_wireup_check(&self->core);
    }
}

static void expected_peers_are_let_in_for_a_bounded_time(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    assert_int_equal(trib_wireup_expect_peers(&self.core), TRIB_OK);
    try_in_vain(&self, TRIES_MAX);
    assert_int_equal(ended.status, TRIB_OK);
    try_in_vain(&self, 1);
    assert_int_equal(ended.status, TRIB_SYSTEM);
    assert_non_null(
        strstr(ended.text, "server 0 (node4:902) could let nobody else connect for 2.0 s: Too many open files"));
    assert_non_null(strstr(ended.text, "(ulimit -n)"));
    bed_close(&self);
}

static void lets_one_in_meanwhile(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    assert_int_equal(trib_wireup_expect_peers(&self.core), TRIB_OK);
    try_in_vain(&self, TRIES_MAX);
    trib_reactor_end_shortage(&self.reactor);
    try_in_vain(&self, TRIES_MAX);
    time_ns += TRIB_SHORTAGE_GAP_NS; /* this process stood still, or no caller came */
    try_in_vain(&self, TRIES_MAX);
    assert_int_equal(ended.status, TRIB_OK);
    bed_close(&self);
}

/* Any further caller is a stranger. */
static void has_let_all_in(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    self.links[0] = self.links[1] = &self.link; /* they came early */
    assert_int_equal(trib_wireup_expect_peers(&self.core), TRIB_OK);
    for (uint32_t i = 2; i < SERVER; i++) {
        try_in_vain(&self, TRIES_MAX);
        trib_wireup_note_peer(&self.core, i);
        trib_reactor_end_shortage(&self.reactor);
    }
    try_in_vain(&self, 10 * TRIES_MAX);
    assert_int_equal(ended.status, TRIB_OK);
    bed_close(&self);
}

/* One of the core's connections to that member could not be made. */
static void defer(bed *self, uint32_t member, const char *detail)
{
    const trib_cause cause = trib_cause_note(TRIB_PEER_LOST, TRIB_NO_MEMBER, detail);
    self->core.links_missing++;
    trib_wireup_defer_failure(&self->core, member, &cause);
}

/* Core 0 runs the question, and time passes in steps of the doubts' timer. */
static void pass(bed *self, int64_t for_ns)
{
    const int64_t until_ns = time_ns + for_ns;
    if (atomic_exchange(&self->core.ask_posted, false)) {
        self->core.ask_post.run(&self->reactor, &self->core.ask_post);
    }
    while (self->core.doubt.armed && self->core.doubt.due_ns <= until_ns) {
        time_ns = self->core.doubt.due_ns;
        self->core.doubt.armed = false;
        self->core.doubt.fired(&self->reactor, &self->core.doubt);
    }
    time_ns = until_ns;
}

/* The first of several failures counts, once the coordinator has answered and has had a second to end the job. */
static void leaves_time_for_a_verdict(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    defer(&self, 0, "could not connect to rank 0");
    pass(&self, TRY_NS);
    defer(&self, 1, "could not connect to rank 1");
    atomic_store(&self.engine->answers, 2);
    pass(&self, 7 * TRY_NS);
    assert_int_equal(ended.status, TRIB_OK);
    pass(&self, 3 * TRY_NS);
    assert_int_equal(ended.status, TRIB_PEER_LOST);
    assert_string_equal(ended.text, "could not connect to rank 0");
    bed_close(&self);
}

/* The coordinator's news may be on its way for as long as it does not count as silent. */
static void waits_for_the_answer(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    defer(&self, 0, "could not connect to rank 0");
    pass(&self, 49 * TRY_NS);
    assert_int_equal(atomic_load(&self.engine->questions), 1);
    assert_int_equal(ended.status, TRIB_OK);
    pass(&self, 2 * TRY_NS);
    assert_int_equal(ended.status, TRIB_PEER_LOST);
    bed_close(&self);
}

/* Members that have left need no connection, whether the news of that comes before or after the failure. */
static void a_member_that_has_left_is_not_lost(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    defer(&self, 0, "could not connect to rank 0");
    defer(&self, 1, "could not connect to rank 1");
    pass(&self, 2 * TRY_NS);
    trib_departed_add(&self.engine->departed, 0, 0, time_ns);
    pass(&self, TRY_NS);
    assert_int_equal(self.core.links_missing, 1);
    assert_false(has_joined);
    trib_departed_add(&self.engine->departed, 1, 0, time_ns);
    trib_departed_add(&self.engine->departed, 2, 0, time_ns);
    defer(&self, 2, "could not connect to rank 2");
    pass(&self, TRY_NS);
    assert_int_equal(self.core.links_missing, 0);
    assert_true(has_joined);
    atomic_store(&self.engine->answers, 2);
    pass(&self, 20 * TRY_NS);
    assert_int_equal(ended.status, TRIB_OK);
    bed_close(&self);
}

static void needs_no_verdict_any_more(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    defer(&self, 0, "could not connect to rank 0");
    trib_wireup_stop(&self.core);
    assert_false(self.core.doubt.armed);
    self.core.ended = self.core.host.is_closed = true;
    defer(&self, 0, "could not connect to rank 0");
    assert_false(self.core.doubt.armed);
    bed_close(&self);
}

/* A member that leaves waits for workers that have yet to connect, but not for workers that have left. */
static void awaits_those_who_stay(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    assert_false(trib_wireup_awaits(&self.core));
    self.links[0] = &self.link;
    assert_int_equal(trib_wireup_expect_peers(&self.core), TRIB_OK);
    trib_departed_add(&self.engine->departed, 1, 0, time_ns);
    for (uint32_t i = 2; i < SERVER; i++) {
        assert_true(trib_wireup_awaits(&self.core));
        trib_wireup_note_peer(&self.core, i);
    }
    assert_false(trib_wireup_awaits(&self.core));
    bed_close(&self);
}

/* Checked for every pair, in both directions. */
static void reactors_await_their_callers(void **state)
{
    (void)state;
    for (uint32_t local_size = 0; local_size <= 3; local_size++) {
        if (local_size == 1) {
            continue; /* a single machine does not sum first */
        }
        bed self;
        bed_open(&self, local_size);
        self.roster->members[1].sums = true;
        uint32_t calls = 0;
        for (uint32_t from = 0; from < SERVER; from++) {
            for (uint32_t to = 0; to < MEMBERS; to++) {
                self.engine->member_id = from;
                const bool does = from != to && trib_wireup_connects_to(&self.core, to, 0);
                self.engine->member_id = to;
                assert_int_equal(trib_wireup_expects_worker(&self.core, from), does);
                calls += does;
            }
        }
        /* All connect to the server and to rank 1. If machines sum first, each rank also connects to each on its
         * machine, of which some are rank 1. */
        const uint32_t near = local_size == 0 ? 0 : (SERVER - 1) * (local_size - 1);
        assert_int_equal(calls, SERVER + SERVER - 1 + near);
        bed_close(&self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expected_peers_are_let_in_for_a_bounded_time),
        cmocka_unit_test(lets_one_in_meanwhile),
        cmocka_unit_test(has_let_all_in),
        cmocka_unit_test(leaves_time_for_a_verdict),
        cmocka_unit_test(waits_for_the_answer),
        cmocka_unit_test(a_member_that_has_left_is_not_lost),
        cmocka_unit_test(needs_no_verdict_any_more),
        cmocka_unit_test(awaits_those_who_stay),
        cmocka_unit_test(reactors_await_their_callers),
    };
    return cmocka_run_group_tests_name("callers", tests, NULL, NULL);
}
