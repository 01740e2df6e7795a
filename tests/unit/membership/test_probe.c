/*
 * test_probe.c - who is asked for signs of life, and what counts as one: a process that is slow, or is reached at its
 * last address only, lives. Refusals count in a row, and a lack of this process's own says nothing about another one.
 * Many that do not answer take turns with the attempts that there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/membership/election_internal.h"
#include "engine/membership/probe.h"

#define SECOND INT64_C(1000000000)
#define MICROSECOND INT64_C(1000)
#define TIMEOUT_NS (4 * SECOND)
#define TURN_NS (SECOND / 20)
#define MEMBERS 600u
#define ATTEMPTS 128u /* at a time */
#define LINKS_MAX 4000u

/* ---- Links that the test plays ---- */

static int64_t time_ns;
static trib_link *links[LINKS_MAX]; /* oldest first */
static uint32_t link_count;
static trib_status connect_status;

/* Time goes on while code runs, as it does outside of virtual time. */
static int64_t fake_now(trib_reactor *reactor)
{
    (void)reactor;
    return time_ns++;
}

/* Each look at the clock takes a nanosecond. */
static void assert_at(int64_t time, int64_t expected)
{
    assert_in_range(time, expected - MICROSECOND, expected + MICROSECOND);
}

static const trib_reactor_ops fake_reactor = {.name = "fake", .now_ns = fake_now};

__typeof__(trib_link_connect) __wrap_trib_link_connect;
trib_status __wrap_trib_link_connect(trib_link_host *host, const trib_address *to, trib_purpose purpose, uint32_t peer,
                                     uint32_t peer_reactor, const trib_link_upcalls *upcalls, void *user,
                                     trib_link **link_out)
{
    (void)peer_reactor;
    if (connect_status != TRIB_OK) {
        return connect_status;
    }
    trib_link *link = calloc(1, sizeof *link);
    if (link == NULL || link_count == LINKS_MAX) {
        fail_msg("out of memory, or too many attempts");
        return TRIB_NO_MEMORY; /* not reached; for analysers that do not know fail_msg */
    }
    *link = (trib_link){.host = host,
                        .core = host->core,
                        .upcalls = upcalls,
                        .user = user,
                        .purpose = purpose,
                        .peer = peer,
                        .state = TRIB_LINK_CONNECTING,
                        .last_received_ns = fake_now(NULL),
                        .redial = {.to = *to, .tries = 1}};
    links[link_count++] = *link_out = link;
    return TRIB_OK;
}

__typeof__(trib_link_close) __wrap_trib_link_close;
void __wrap_trib_link_close(trib_link *link, bool flush, trib_status status, const char *reason)
{
    (void)flush;
    (void)status;
    (void)reason;
    link->state = TRIB_LINK_CLOSING;
}

static trib_link *last_link(void)
{
    assert_true(link_count > 0);
    return links[link_count - 1];
}

/* The process has taken the connection, or sends the next part of the handshake. */
static void come_to(trib_link *link, trib_link_state state)
{
    link->last_received_ns = state == TRIB_LINK_AWAIT_CHALLENGE ? link->last_received_ns : time_ns;
    link->state = state;
    if (state == TRIB_LINK_READY) {
        link->upcalls->ready(link);
        link->upcalls->closed(link, TRIB_CLOSED, "");
    }
}

static void end(trib_link *link, trib_status status, bool is_refused)
{
    link->state = TRIB_LINK_CLOSING;
    link->redial.is_refused = is_refused;
    link->upcalls->closed(link, status, "");
}

/* ---- The process that asks ---- */

typedef struct bed {
    trib_engine *engine;
    trib_reactor reactor;
    trib_core core;
    trib_probe probe;
} bed;

static void bed_open(bed *self)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    assert_non_null(self->engine);
    self->engine->config.peer_timeout_ns = TIMEOUT_NS;
    self->engine->env.half_open_max = ATTEMPTS;
    self->reactor.ops = &fake_reactor;
    self->core.engine = self->engine;
    self->core.reactor = &self->reactor;
    self->core.host.core = &self->core;
    self->probe.refused_for_ns = TRIB_ELECTION_REFUSED_NS;
    time_ns = 77 * SECOND;
    link_count = 0;
    connect_status = TRIB_OK;
}

static void bed_close(bed *self)
{
    trib_probe_end(&self->probe, "");
    for (uint32_t i = 0; i < link_count; i++) {
        free(links[i]);
    }
    free(self->engine);
}

/* Asks in each turn of that time. */
static void ask_for(bed *self, int64_t for_ns)
{
    static const trib_address address = {.text = "10.0.0.1:1"};
    for (const int64_t until_ns = time_ns + for_ns; time_ns < until_ns; time_ns += TURN_NS) {
        (void)trib_probe_ask(&self->core, &self->probe, &address);
    }
}

/* ---- What counts as a sign of life ---- */

static void a_slow_one_lives(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    ask_for(&self, TURN_NS);
    come_to(last_link(), TRIB_LINK_AWAIT_CHALLENGE);
    ask_for(&self, 3 * SECOND / 2);
    come_to(last_link(), TRIB_LINK_AWAIT_WELCOME);
    ask_for(&self, 3 * SECOND / 2);
    assert_int_equal(link_count, 1);
    come_to(last_link(), TRIB_LINK_READY);
    assert_int_equal(trib_probe_silent_since(&self.probe), 0);
    assert_at(self.probe.heard_ns, time_ns);
    bed_close(&self);
}

/* It stands still in the middle of a handshake, and is silent from then on. */
static void part_of_a_handshake_is_a_sign(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    ask_for(&self, TURN_NS);
    come_to(last_link(), TRIB_LINK_AWAIT_CHALLENGE);
    ask_for(&self, 3 * SECOND / 2);
    come_to(last_link(), TRIB_LINK_AWAIT_WELCOME);
    const int64_t heard_ns = time_ns;
    assert_at(trib_probe_silent_since(&self.probe), heard_ns);
    ask_for(&self, TIMEOUT_NS);
    assert_true(link_count > 1);
    assert_at(trib_probe_silent_since(&self.probe), heard_ns);
    bed_close(&self);
}

static void a_stranger_gives_none(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    const int64_t began_ns = time_ns;
    ask_for(&self, SECOND / 2);
    come_to(last_link(), TRIB_LINK_AWAIT_WELCOME);
    end(last_link(), TRIB_UNAUTHORIZED, false);
    ask_for(&self, SECOND / 2);
    assert_at(trib_probe_silent_since(&self.probe), began_ns);
    bed_close(&self);
}

/* The link tries one address after the other. */
static void each_address_has_its_time(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    for (uint32_t tries = 1; tries <= 5; tries++) {
        ask_for(&self, TIMEOUT_NS / 5);
        last_link()->redial.tries = tries + 1;
    }
    assert_int_equal(link_count, 1);
    ask_for(&self, 2 * SECOND);
    assert_true(link_count > 1); /* the last address hangs, too */
    bed_close(&self);
}

static void own_lack_is_no_silence(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    connect_status = TRIB_SYSTEM;
    ask_for(&self, TIMEOUT_NS);
    assert_int_equal(trib_probe_silent_since(&self.probe), 0);
    connect_status = TRIB_OK;
    const int64_t began_ns = time_ns;
    ask_for(&self, SECOND);
    assert_at(trib_probe_silent_since(&self.probe), began_ns);
    bed_close(&self);
}

/* ---- Refusals ---- */

static void refusals_count_in_a_row(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    ask_for(&self, TURN_NS);
    end(last_link(), TRIB_PEER_LOST, true);
    ask_for(&self, SECOND + 3 * TURN_NS); /* an attempt hangs, and is given up */
    assert_int_equal(link_count, 3);
    end(last_link(), TRIB_PEER_LOST, true);
    assert_false(self.probe.is_dead);
    ask_for(&self, 3 * TURN_NS);
    end(last_link(), TRIB_PEER_LOST, true);
    assert_true(self.probe.is_dead);
    ask_for(&self, TURN_NS);
    come_to(last_link(), TRIB_LINK_READY);
    assert_false(self.probe.is_dead);
    bed_close(&self);
}

/* ---- Many that do not answer ---- */

typedef struct candidate_bed {
    bed base;
    trib_roster *roster;
    trib_election *election;
} candidate_bed;

static bool candidate_open(candidate_bed *self)
{
    bed_open(&self->base);
    self->roster = trib_roster_create(MEMBERS);
    self->election = calloc(1, sizeof *self->election + MEMBERS * sizeof(trib_vote));
    self->base.engine->formation.gone = calloc(MEMBERS, sizeof(bool));
    if (self->roster == NULL || self->election == NULL || self->base.engine->formation.gone == NULL) {
        fail_msg("out of memory");
        return false; /* not reached; for analysers that do not know fail_msg */
    }
    self->roster->worker_count = MEMBERS;
    self->roster->peer_timeout_ns = TIMEOUT_NS;
    self->election->core = &self->base.core;
    self->election->roster = self->roster;
    return true;
}

static void candidate_close(candidate_bed *self)
{
    trib_election_end_asking(self->election);
    free(self->base.engine->formation.gone);
    free(self->election);
    free(self->roster);
    bed_close(&self->base);
}

static uint32_t count_attempts(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link_count; i++) {
        count += links[i]->state != TRIB_LINK_CLOSING;
    }
    return count;
}

static void run_turns(const candidate_bed *self, int64_t for_ns)
{
    for (const int64_t until_ns = time_ns + for_ns; time_ns < until_ns; time_ns += TURN_NS) {
        const uint32_t before = link_count;
        trib_election_ask_members(self->election, false);
        assert_true(link_count - before <= 64);
        assert_true(count_attempts() <= ATTEMPTS);
    }
}

/* The candidate hears of nobody, has descriptors for some at a time, and asks each of the others soon all the same. */
static void all_are_asked_soon(void **state)
{
    (void)state;
    candidate_bed self;
    if (!candidate_open(&self)) {
        return; /* not reached; for analysers that do not know fail_msg */
    }
    assert_true(MEMBERS > ATTEMPTS);
    run_turns(&self, (MEMBERS / ATTEMPTS + 1) * SECOND);
    for (uint32_t i = 1; i < MEMBERS; i++) {
        assert_true(self.election->probes.each[i].began_ns != 0);
    }
    assert_int_equal(self.election->probes.each[0].began_ns, 0); /* its own */
    candidate_close(&self);
}

/* Many members hang, so each has its attempts in turns. One counts as silent when it has not answered the second one
 * either: it may have lived in between. */
static void one_that_waits_for_its_turn_is_not_silent(void **state)
{
    (void)state;
    candidate_bed self;
    if (!candidate_open(&self)) {
        return; /* not reached; for analysers that do not know fail_msg */
    }
    const uint32_t member = MEMBERS - 1;
    self.election->votes[1].has_voted = true; /* not all are silent */
    run_turns(&self, TURN_NS);
    const trib_probe *probe = &self.election->probes.each[member];
    for (int64_t left_ns = 4 * TIMEOUT_NS; probe->began_ns == 0 && left_ns > 0; left_ns -= TURN_NS) {
        run_turns(&self, TURN_NS);
    }
    const int64_t first_ns = probe->began_ns;
    for (int64_t left_ns = 4 * TIMEOUT_NS; probe->began_ns == first_ns && left_ns > 0; left_ns -= TURN_NS) {
        run_turns(&self, TURN_NS);
        assert_false(trib_election_is_silent(self.election, member));
    }
    assert_true(probe->began_ns - first_ns > TIMEOUT_NS);
    run_turns(&self, SECOND - 2 * TURN_NS);
    assert_false(trib_election_is_silent(self.election, member));
    run_turns(&self, 3 * TURN_NS);
    assert_true(trib_election_is_silent(self.election, member));
    candidate_close(&self);
}

static const trib_address *find_all(const void *user, uint32_t index)
{
    (void)index;
    return user;
}

/* A process that is slow to come back lives. It would spend its time on handshakes if it were asked in each turn. */
static void one_that_has_answered_is_left_alone(void **state)
{
    (void)state;
    static const trib_address address = {.text = "10.0.0.1:1"};
    bed self;
    bed_open(&self);
    trib_probes two;
    trib_probes_open(&two, 2, TRIB_ELECTION_REFUSED_NS, SECOND / 2, NULL);
    trib_probes_ask(&self.core, &two, find_all, &address);
    assert_int_equal(link_count, 2);
    come_to(links[0], TRIB_LINK_READY);
    end(links[1], TRIB_PEER_LOST, true);
    for (uint32_t i = 0; i < 9; i++, time_ns += TURN_NS) {
        trib_probes_ask(&self.core, &two, find_all, &address);
        assert_int_equal(link_count, 3); /* the one that refuses is asked at once */
        assert_ptr_equal(last_link()->user, &two.each[1]);
    }
    time_ns += 2 * TURN_NS;
    trib_probes_ask(&self.core, &two, find_all, &address);
    assert_int_equal(link_count, 4);
    assert_ptr_equal(last_link()->user, &two.each[0]);
    trib_probes_close(&two, "");
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_one_lives),
        cmocka_unit_test(part_of_a_handshake_is_a_sign),
        cmocka_unit_test(a_stranger_gives_none),
        cmocka_unit_test(each_address_has_its_time),
        cmocka_unit_test(own_lack_is_no_silence),
        cmocka_unit_test(refusals_count_in_a_row),
        cmocka_unit_test(all_are_asked_soon),
        cmocka_unit_test(one_that_waits_for_its_turn_is_not_silent),
        cmocka_unit_test(one_that_has_answered_is_left_alone),
    };
    return cmocka_run_group_tests_name("signs of life", tests, NULL, NULL);
}
