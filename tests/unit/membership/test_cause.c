/* test_cause.c - causes travel whole and are checked on arrival. As texts they name the subject, the place, the
 * duration and the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/core/core.h"
#include "engine/job/cause.h"
#include "engine/link/link_cause.h"

#define ADDRESS "10.0.0.1:7077"
#define SECOND_NS INT64_C(1000000000)

static trib_roster *roster_of_two(void)
{
    trib_roster *roster = trib_roster_create(2);
    assert_non_null(roster);
    roster->worker_count = roster->server_count = 1;
    snprintf(roster->members[0].name, sizeof roster->members[0].name, "rank 0 (node7:4711)");
    snprintf(roster->members[1].name, sizeof roster->members[1].name, "server 0 (node4:902)");
    return roster;
}

static void must_read(const trib_cause *cause, const trib_roster *roster, uint32_t member, const char *expected)
{
    const trib_cause_reader reader = {
        .roster = roster, .member = member, .worker_count = 1, .coordinator_address = ADDRESS};
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_cause_render(cause, &reader, text);
    assert_string_equal(text, expected);
}

/* ---- On the wire ---- */

static trib_status decode(trib_frame_type type, trib_status status, const void *payload, size_t size, trib_cause *out)
{
    const trib_frame frame = {.type = type, .aux = (uint32_t)status, .payload_size = (uint32_t)size};
    return trib_cause_decode(&frame, payload, out, NULL);
}

static void travels_whole(void **state)
{
    (void)state;
    trib_cause sent = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER, 7, 3, "why"), got;
    sent.silence_ns = 12 * SECOND_NS;
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const size_t size = trib_cause_encode(&sent, payload);
    assert_int_equal(decode(TRIB_FRAME_LOST, TRIB_PEER_LOST, payload, size, &got), TRIB_OK);
    assert_int_equal(got.status, TRIB_PEER_LOST);
    assert_int_equal(got.kind, TRIB_CAUSE_SILENT);
    assert_int_equal(got.subject_kind, TRIB_SUBJECT_MEMBER);
    assert_int_equal(got.subject, 7);
    assert_int_equal(got.origin, 3);
    assert_int_equal(got.silence_ns, 12 * SECOND_NS);
    assert_string_equal(got.detail, "why");
}

static void the_longest_detail_fits(void **state)
{
    (void)state;
    char detail[TRIB_ERROR_TEXT_SIZE + 10];
    memset(detail, 'x', sizeof detail - 1);
    detail[sizeof detail - 1] = '\0';
    const trib_cause sent = trib_cause_note(TRIB_SYSTEM, 0, detail);
    trib_cause got;
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const size_t size = trib_cause_encode(&sent, payload);
    const trib_frame_type types[] = {TRIB_FRAME_BYE,     TRIB_FRAME_LOST,     TRIB_FRAME_ENDED,
                                     TRIB_FRAME_REFUSED, TRIB_FRAME_WITHDRAW, TRIB_FRAME_TENSOR_BAD};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        assert_true(size <= trib_frame_payload_max(types[i]));
    }
    assert_int_equal(decode(TRIB_FRAME_BYE, TRIB_SYSTEM, payload, size, &got), TRIB_OK);
    assert_int_equal(strlen(got.detail), TRIB_ERROR_TEXT_SIZE - 1);
}

/* Every length but the right one is rejected, and so are values that only a newer peer can send. */
static void received_causes_are_checked(void **state)
{
    (void)state;
    const trib_cause sent = trib_cause_trouble(TRIB_SYSTEM, 1, "a\033b");
    trib_cause got;
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX + 1] = {0};
    const size_t size = trib_cause_encode(&sent, payload);
    for (size_t i = 0; i <= size + 1; i++) {
        assert_int_equal(decode(TRIB_FRAME_LOST, TRIB_SYSTEM, payload, i, &got), i == size ? TRIB_OK : TRIB_PROTOCOL);
    }
    assert_string_equal(got.detail, "a?b");
    assert_int_equal(decode(TRIB_FRAME_LOST, TRIB_OK, payload, size, &got), TRIB_PROTOCOL);
    assert_int_equal(decode(TRIB_FRAME_LOST, (trib_status)-9999, payload, size, &got), TRIB_PROTOCOL);
    assert_int_equal(decode(TRIB_FRAME_ENDED, TRIB_OK, payload, size, &got), TRIB_OK);
    payload[0] = TRIB_CAUSE_KIND_COUNT;
    payload[1] = TRIB_SUBJECT_COUNT;
    assert_int_equal(decode(TRIB_FRAME_LOST, TRIB_SYSTEM, payload, size, &got), TRIB_OK);
    assert_int_equal(got.kind, TRIB_CAUSE_NOTE);
    assert_int_equal(got.subject_kind, TRIB_SUBJECT_NONE);
}

static void the_sender_is_the_origin(void **state)
{
    (void)state;
    trib_cause own = trib_cause_trouble(TRIB_SYSTEM, TRIB_NO_MEMBER, "why"),
               others = trib_cause_trouble(TRIB_SYSTEM, 2, "");
    trib_cause_set_sender(&own, 5);
    trib_cause_set_sender(&others, 5);
    assert_int_equal(own.subject, 5);
    assert_int_equal(own.origin, 5);
    assert_int_equal(others.subject, 2);
    assert_int_equal(others.origin, 2);
}

/* ---- As a text ---- */

/* The coordinator is named by the member whose process it is in, because that process is the one to look at. */
static void the_coordinator_is_named(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    trib_cause cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_MEMBER_LOST, TRIB_SUBJECT_COORDINATOR, 0, 1, "why");
    cause.silence_ns = SECOND_NS / 2;
    const trib_cause left =
        trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_COORDINATOR, 0, TRIB_NO_MEMBER, "left the job");
    must_read(&cause, NULL, 1, "lost the coordinator at 10.0.0.1:7077: why (last heard of 0.5 s ago)");
    must_read(&left, NULL, 1, "the coordinator at 10.0.0.1:7077 left the job");
    must_read(&cause, roster, 1,
              "lost the coordinator, a process of its own at 10.0.0.1:7077: why (last heard of 0.5 s ago)");
    assert_true(trib_cause_is_about_coordinator(&cause, roster));
    roster->members[0].roles = TRIB_ROLE_WORKER | TRIB_ROLE_COORDINATOR;
    must_read(&cause, roster, 1,
              "lost rank 0 (node7:4711), which keeps the membership at 10.0.0.1:7077: why (last heard of 0.5 s ago)");
    must_read(&left, roster, 1, "rank 0 (node7:4711), which keeps the membership at 10.0.0.1:7077, left the job");
    const trib_cause member = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER, 0, 1, "");
    const trib_cause another = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER, 1, 0, "");
    assert_true(trib_cause_is_about_coordinator(&member, roster));
    assert_false(trib_cause_is_about_coordinator(&another, roster));
    assert_false(trib_cause_is_about_coordinator(&member, NULL));
    free(roster);
}

/* The same text is read on other members. */
static void trouble_of_its_own_bears_a_name(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    const trib_cause trouble = trib_cause_trouble(TRIB_NO_MEMORY, 1, "out of memory for a sum");
    const trib_cause shortage =
        trib_cause_about(TRIB_SYSTEM, TRIB_CAUSE_SHORTAGE, TRIB_SUBJECT_MEMBER, 1, 1, "could let nobody else connect");
    must_read(&trouble, roster, 1, "out of memory for a sum");
    must_read(&trouble, roster, 0, "server 0 (node4:902): out of memory for a sum");
    must_read(&trouble, NULL, 0, "server 0: out of memory for a sum");
    must_read(&shortage, roster, 1, "server 0 (node4:902) could let nobody else connect");
    must_read(&shortage, roster, 0, "server 0 (node4:902) could let nobody else connect");
    free(roster);
}

static void the_reader_sees_that_it_is_meant(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    const trib_cause lost =
        trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_CONNECTION_LOST, TRIB_SUBJECT_MEMBER, 1, 0, "why");
    trib_cause silent = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER, 1, TRIB_NO_MEMBER, "");
    silent.silence_ns = 3 * SECOND_NS / 2;
    must_read(&lost, roster, 0, "lost the connection to server 0 (node4:902): why");
    must_read(&lost, roster, 1,
              "lost the connection to this process, server 0 (node4:902): why, as rank 0 (node7:4711) says");
    must_read(&lost, roster, TRIB_NO_MEMBER,
              "lost the connection to server 0 (node4:902): why, as rank 0 (node7:4711) says");
    must_read(&lost, NULL, TRIB_NO_MEMBER, "lost the connection to server 0: why, as rank 0 says");
    must_read(&silent, roster, 1,
              "lost this process, server 0 (node4:902): no sign of life for 1.5 s (stopped, cut off, or kept busy "
              "by a callback, which its log names)");
    free(roster);
}

/* However long the detail is, and whatever ids a peer sends. */
static void the_origin_is_always_named(void **state)
{
    (void)state;
    char detail[TRIB_ERROR_TEXT_SIZE], text[TRIB_ERROR_TEXT_SIZE];
    memset(detail, 'x', sizeof detail - 1);
    detail[sizeof detail - 1] = '\0';
    trib_roster *roster = roster_of_two();
    const trib_cause_reader reader = {.roster = roster, .member = 1, .worker_count = 1, .coordinator_address = ADDRESS};
    for (int kind = 0; kind < TRIB_CAUSE_KIND_COUNT; kind++) {
        for (int subject = 0; subject < TRIB_SUBJECT_COUNT; subject++) {
            const trib_cause cause = trib_cause_about(TRIB_PEER_LOST, (trib_cause_kind)kind,
                                                      (trib_cause_subject)subject, UINT32_MAX - 1, 0, detail);
            trib_cause_render(&cause, &reader, text);
            assert_non_null(strstr(text, ", as rank 0 (node7:4711) says"));
        }
    }
    free(roster);
}

/* ---- Of a link ---- */

typedef struct bed {
    trib_roster *roster;
    trib_engine *engine;
    trib_link_host host;
    trib_link link;
} bed;

static void bed_open(bed *self)
{
    memset(self, 0, sizeof *self);
    self->roster = roster_of_two();
    snprintf(self->roster->members[1].addresses[2].text, TRIB_ADDRESS_MAX, "10.0.0.4:81+shm,10.1.0.4:82");
    self->engine = calloc(1, sizeof *self->engine);
    assert_non_null(self->engine);
    self->engine->roster = self->roster;
    self->host.engine = self->engine;
    self->link = (trib_link){.host = &self->host, .peer = 1, .peer_reactor = 2, .outgoing = true, .is_ended = true};
}

static void bed_close(bed *self)
{
    free(self->engine);
    free(self->roster);
}

static void must_tell(bed *self, trib_status status, const char *expected)
{
    trib_cause cause;
    trib_link_end_cause(&self->link, &cause);
    assert_int_equal(cause.status, status);
    must_read(&cause, self->roster, 0, expected);
}

/*
 * A connection that was never made cannot be lost. Its text has the address, which a reader needs to find the reason.
 */
static void a_link_that_was_never_made_has_an_address(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    self.link.end = trib_cause_note(TRIB_PEER_LOST, 0, "No route to host");
    must_tell(&self, TRIB_PEER_LOST, "could not connect to server 0 (node4:902) at 10.0.0.4:81: No route to host");
    self.link.proved = true;
    must_tell(&self, TRIB_PEER_LOST, "lost the connection to server 0 (node4:902): No route to host");
    bed_close(&self);
}

static void nobody_is_lost_for_want_of_memory(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    self.link.end = trib_cause_note(TRIB_NO_MEMORY, 0, "out of memory for a sum");
    must_tell(&self, TRIB_NO_MEMORY, "out of memory for a sum");
    bed_close(&self);
}

/* A peer's farewell names another member, itself, or an end of the whole job. */
static void a_farewell_is_passed_on(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    self.link.end_from_peer = true;
    self.link.end = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER, 9, 1, "");
    must_tell(&self, TRIB_PEER_LOST,
              "lost an unknown member: no sign of life for 0.0 s (stopped, cut off, or kept busy by a callback, "
              "which its log names), as server 0 (node4:902) says");
    self.link.end = trib_cause_trouble(TRIB_NO_MEMORY, 1, "out of memory for a sum");
    must_tell(&self, TRIB_PEER_LOST, "server 0 (node4:902): out of memory for a sum");
    self.link.end = trib_cause_note(TRIB_MISMATCH, 1, "the workers disagree");
    must_tell(&self, TRIB_MISMATCH, "the workers disagree, as server 0 (node4:902) says");
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(travels_whole),
        cmocka_unit_test(the_longest_detail_fits),
        cmocka_unit_test(received_causes_are_checked),
        cmocka_unit_test(the_sender_is_the_origin),
        cmocka_unit_test(the_coordinator_is_named),
        cmocka_unit_test(trouble_of_its_own_bears_a_name),
        cmocka_unit_test(the_reader_sees_that_it_is_meant),
        cmocka_unit_test(the_origin_is_always_named),
        cmocka_unit_test(a_link_that_was_never_made_has_an_address),
        cmocka_unit_test(nobody_is_lost_for_want_of_memory),
        cmocka_unit_test(a_farewell_is_passed_on),
    };
    return cmocka_run_group_tests_name("cause", tests, NULL, NULL);
}
