/*
 * test_wireup.c - a member that can accept no more callers ends the job after two seconds of vain attempts. It does
 * not if all have come, or if an attempt succeeds meanwhile. It awaits exactly the callers that connect to it. A
 * member whose own connection fails leaves others time to say why.
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

static const trib_reactor_ops fake_reactor = {
    .name = "fake", .now_ns = fake_now, .timer_arm = fake_arm, .timer_stop = fake_stop};

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
    self->reactor.ops = &fake_reactor;
    self->reactor.logger = &self->engine->logger;
    self->core.engine = self->engine;
    self->core.reactor = &self->reactor;
    self->core.worker_links = self->links;
    time_ns = 77 * TRY_NS;
    ended.status = TRIB_OK;
}

static void bed_close(bed *self)
{
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
    trib_wireup_expect_peers(&self.core);
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
    trib_wireup_expect_peers(&self.core);
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
    trib_wireup_expect_peers(&self.core);
    for (uint32_t i = 2; i < SERVER; i++) {
        try_in_vain(&self, TRIES_MAX);
        trib_wireup_note_peer(&self.core, i);
        trib_reactor_end_shortage(&self.reactor);
    }
    try_in_vain(&self, 10 * TRIES_MAX);
    assert_int_equal(ended.status, TRIB_OK);
    bed_close(&self);
}

static void defer(bed *self, const char *detail)
{
    const trib_cause cause = trib_cause_note(TRIB_PEER_LOST, TRIB_NO_MEMBER, detail);
    trib_wireup_defer_failure(&self->core, &cause);
}

/* One that this member was making ends: the coordinator may know why. The first of several counts. */
static void leaves_time_for_a_verdict(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    self.reactor.owner = &self.core;
    defer(&self, "lost the connection to server 0");
    const int64_t due_ns = self.core.doubt.due_ns;
    time_ns += TRY_NS;
    defer(&self, "lost the connection to server 1");
    assert_true(self.core.doubt.armed);
    assert_int_equal(self.core.doubt.due_ns, due_ns);
    assert_true(due_ns > time_ns);
    assert_int_equal(ended.status, TRIB_OK);
    self.core.doubt.fired(&self.reactor, &self.core.doubt);
    assert_int_equal(ended.status, TRIB_PEER_LOST);
    assert_string_equal(ended.text, "lost the connection to server 0");
    bed_close(&self);
}

static void needs_no_verdict_any_more(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    defer(&self, "lost the connection to server 0");
    trib_wireup_stop(&self.core);
    assert_false(self.core.doubt.armed);
    self.core.ended = self.core.host.is_closed = true;
    defer(&self, "lost the connection to server 0");
    assert_false(self.core.doubt.armed);
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
        /* All connect to the server and to rank 1. If machines sum first: all to the server, each machine's rank of
         * the same place to rank 1, and on each machine each rank to each. */
        const uint32_t by_machines = local_size == 0 ? 0 : SERVER + (SERVER / local_size - 1);
        assert_int_equal(calls, local_size == 0 ? SERVER + SERVER - 1 : by_machines + SERVER * (local_size - 1));
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
        cmocka_unit_test(needs_no_verdict_any_more),
        cmocka_unit_test(reactors_await_their_callers),
    };
    return cmocka_run_group_tests_name("callers", tests, NULL, NULL);
}
