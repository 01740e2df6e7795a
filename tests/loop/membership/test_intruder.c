/* test_intruder.c - processes that have the token and do not belong to the job: their frames end their own connections
 * and nothing else, the log has their address, and no member is blamed for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "engine/core/core.h"
#include "tests/loop/host.h"
#include "tests/loop/job.h"
#include "tests/loop/raw_peer.h"

#define OTHER_START 0x123456u

/* Rank 0, and rank 1 by hand with all its connections. */
typedef struct bed {
    host host;
    raw_peer control, from_host, to_host;
    char door[64]; /* where rank 0 takes data */
    uint32_t epoch;
    unsigned char *payload;
} bed;

static void bed_open(bed *self)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    trib_error error = {.text = ""};
    trib_member_info info;
    self->payload = malloc(TRIB_PAYLOAD_MAX);
    assert_non_null(self->payload);
    host_open(&self->host, 2, "");
    raw_peer_connect(&self->control, self->host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&self->control, 1, 2, 0);
    assert_true(raw_peer_receive(&self->control, &frame, self->payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    self->epoch = frame.epoch;
    trib_reader reader = {.data = self->payload, .left = frame.payload_size};
    trib_roster *roster = NULL;
    assert_int_equal(trib_roster_get(&reader, &roster, &error), TRIB_OK);
    assert_non_null(roster);
    info = roster->members[0];
    free(roster);
    snprintf(self->door, sizeof self->door, "%s", info.addresses[0].text);
    raw_peer_accept(&self->control, &self->from_host, HOST_TOKEN);
    raw_peer_connect(&self->to_host, self->door, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    assert_int_equal(trib_engine_wait_ready(self->host.engine, -1, &error), TRIB_OK);
}

/* The job goes on: rank 0 answers, and has not said that it is over. */
static void expect_life(bed *self)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    raw_peer_send(&self->control, (trib_frame){.type = TRIB_FRAME_PING, .epoch = 1}, NULL, 0);
    while (frame.type != TRIB_FRAME_PONG) {
        assert_true(raw_peer_receive(&self->control, &frame, self->payload));
        assert_int_not_equal(frame.type, TRIB_FRAME_ENDED);
    }
    assert_false(host_has_said(&self->host, "the job is over"));
}

static void bed_close(bed *self)
{
    raw_peer_close(&self->to_host);
    raw_peer_close(&self->from_host);
    raw_peer_close(&self->control);
    host_close(&self->host);
    free(self->payload);
}

static void expect_log(bed *self, const char *words)
{
    for (int i = 0; i < 500 && !host_has_said(&self->host, words); i++) {
        usleep(10000);
    }
    if (!host_has_said(&self->host, words)) {
        fail_msg("\"%s\" is not in: %s", words, self->host.log);
    }
}

/* It has the token and not the roster. */
static void without_the_roster(void **state)
{
    (void)state;
    const trib_purpose purposes[] = {TRIB_PURPOSE_DATA, TRIB_PURPOSE_PRIORITY, TRIB_PURPOSE_SUBFLOW};
    bed self;
    bed_open(&self);
    for (size_t i = 0; i < sizeof purposes / sizeof purposes[0]; i++) {
        raw_peer intruder;
        raw_peer_know_epoch(i == 1 ? 1 : 0);
        assert_false(raw_peer_ask(&intruder, self.door, HOST_TOKEN, purposes[i], 1));
        raw_peer_close(&intruder);
        expect_life(&self);
    }
    expect_log(&self, "turned away 127.0.0.1:");
    expect_log(&self, "a process without the roster of this job claims to be member 1");
    bed_close(&self);
}

/* The rank is taken: its own connection lives on. */
static void with_a_rank_that_is_taken(void **state)
{
    (void)state;
    bed self;
    raw_peer intruder;
    bed_open(&self);
    for (uint32_t rank = 1; rank < 3; rank++) {
        if (raw_peer_ask(&intruder, self.door, HOST_TOKEN, TRIB_PURPOSE_DATA, rank)) {
            raw_peer_expect_end(&intruder);
        }
        raw_peer_close(&intruder);
        expect_life(&self);
    }
    expect_log(&self, "turned away 127.0.0.1:");
    expect_log(&self, "it claims to be rank 1, which has a connection");
    bed_close(&self);
}

/* It has the roster of the last attempt, which had the same token, name and address. */
static void of_the_last_attempt(void **state)
{
    (void)state;
    bed self;
    raw_peer intruder;
    bed_open(&self);
    raw_peer_know_epoch(trib_epoch_make(OTHER_START, 1));
    assert_false(raw_peer_ask(&intruder, self.door, HOST_TOKEN, TRIB_PURPOSE_DATA, 1));
    raw_peer_close(&intruder);
    expect_life(&self);
    expect_log(&self, "PROOF frame of another start of this job");
    bed_close(&self);
}

/* The process had joined the previous coordinator, and would take the rank of a process of this attempt. The answer
 * says so. */
static void of_the_last_coordinator(void **state)
{
    (void)state;
    host first;
    raw_peer old, right;
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    unsigned char *payload = malloc(TRIB_PAYLOAD_MAX);
    host_open(&first, 2, "");
    raw_peer_greet_with_epoch(trib_epoch_make(OTHER_START, 0));
    raw_peer_open(&old);
    raw_peer_reach(&old, first.address);
    raw_peer_greet(&old, TRIB_PURPOSE_CONTROL, 1);
    assert_true(raw_peer_receive(&old, &frame, payload));
    assert_int_equal(frame.type, TRIB_FRAME_BYE);
    assert_true(trib_epoch_is_foreign(frame.epoch, trib_epoch_make(OTHER_START, 0)));
    raw_peer_expect_end(&old);
    raw_peer_close(&old);
    raw_peer_greet_with_epoch(0);
    raw_peer_connect(&right, first.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&right, 1, 2, 0);
    assert_true(raw_peer_receive(&right, &frame, payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    raw_peer_close(&right);
    host_close(&first);
    free(payload);
}

/* The rank in JOIN is that of the handshake. */
static void with_two_ranks(void **state)
{
    (void)state;
    host first;
    raw_peer intruder;
    host_open(&first, 3, "");
    raw_peer_connect(&intruder, first.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&intruder, 2, 3, 0);
    raw_peer_expect_end(&intruder);
    raw_peer_close(&intruder);
    host_close(&first);
    assert_non_null(strstr(first.log, "of a process that proved to be member 1 (on a connection from 127.0.0.1:"));
}

/* A rule that a member's own connection breaks ends the job, and the cause has the connection's address. */
static void with_the_connection_of_a_member(void **state)
{
    (void)state;
    bed self;
    trib_error error = {.text = ""};
    bed_open(&self);
    raw_peer_send(&self.to_host, (trib_frame){.type = TRIB_FRAME_JOIN, .epoch = 1}, NULL, 0);
    raw_peer_expect_end(&self.to_host);
    while (trib_engine_wait_ready(self.host.engine, -1, &error) == TRIB_OK) {
        usleep(1000);
    }
    assert_non_null(strstr(error.text, "unexpected JOIN frame from a worker (on a connection from 127.0.0.1:"));
    bed_close(&self);
}

/* It proves the token and never joins: its connection ends. */
static void without_a_word(void **state)
{
    (void)state;
    host first;
    raw_peer intruder;
    host_open(&first, 2, "");
    raw_peer_connect(&intruder, first.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_expect_end(&intruder);
    raw_peer_close(&intruder);
    host_close(&first);
    assert_non_null(strstr(first.log, "has not joined within 10 s"));
}

/* It leaves and has never joined, as a voter may that the coordinator has answered. The connection ends in good order,
 * so that it has all that it was told before. */
static void that_only_leaves(void **state)
{
    (void)state;
    bed self;
    raw_peer voter;
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    bed_open(&self);
    raw_peer_connect(&voter, self.host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_send(&voter, (trib_frame){.type = TRIB_FRAME_LEAVE}, NULL, 0);
    while (frame.type != TRIB_FRAME_BYE) {
        assert_true(raw_peer_receive(&voter, &frame, self.payload));
    }
    raw_peer_expect_end(&voter);
    raw_peer_close(&voter);
    expect_life(&self);
    bed_close(&self);
    assert_null(strstr(self.host.log, "unexpected LEAVE"));
}

static void may_lose_workers(trib_config *config, int member)
{
    (void)member;
    config->survive = TRIB_SURVIVE_WORKERS;
    config->transport = "tcp";
    config->reactors = 1;
}

/* It proves the token to a worker that would take votes if the coordinator were lost, and never votes. */
static void without_a_vote(void **state)
{
    (void)state;
    job jobs;
    raw_peer intruder;
    job_open(&jobs, 3, 0, may_lose_workers);
    for (int i = 0; i < 2; i++) {
        raw_peer_connect(&intruder, jobs.engines[1]->cores[0].host.address.text, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 2);
        if (i > 0) { /* a ping is no vote */
            raw_peer_send(&intruder, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
        }
        raw_peer_expect_end(&intruder);
        raw_peer_close(&intruder);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_roster),  cmocka_unit_test(with_a_rank_that_is_taken),
        cmocka_unit_test(of_the_last_attempt), cmocka_unit_test(of_the_last_coordinator),
        cmocka_unit_test(with_two_ranks),      cmocka_unit_test(with_the_connection_of_a_member),
        cmocka_unit_test(without_a_word),      cmocka_unit_test(without_a_vote),
        cmocka_unit_test(that_only_leaves),
    };
    return cmocka_run_group_tests_name("intruders", tests, NULL, NULL);
}
