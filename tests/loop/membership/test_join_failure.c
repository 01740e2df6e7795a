/* test_join_failure.c - the job fails for one member's reason while connections are being made. All members report that
 * reason, even if their connection ended without a message or is half-open. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "engine/wire/cause_wire.h"
#include "engine/core/core.h"
#include "tests/loop/host.h"
#include "tests/loop/raw_peer.h"

#define DETAIL "has a reason of its own"
#define REASON "rank 1 (by hand): " DETAIL

typedef struct bed {
    host host;
    raw_peer control, data; /* rank 1's connections: to the coordinator, and from rank 0's worker */
    unsigned char *payload;
} bed;

static void bed_open(bed *self)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    self->payload = malloc(TRIB_PAYLOAD_MAX);
    assert_non_null(self->payload);
    host_open(&self->host, 2, "");
    raw_peer_connect(&self->control, self->host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&self->control, 1, 2, 0);
    assert_true(raw_peer_receive(&self->control, &frame, self->payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
}

/* The answer comes after everything that the host's loop had to do when it was asked. */
static void look_at_clock(bed *self)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    raw_peer_send(&self->control, (trib_frame){.type = TRIB_FRAME_PING, .epoch = 1}, NULL, 0);
    while (frame.type != TRIB_FRAME_PONG) {
        assert_true(raw_peer_receive(&self->control, &frame, self->payload));
    }
}

static void give_reason(bed *self)
{
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const trib_cause cause = trib_cause_trouble(TRIB_SYSTEM, 1, DETAIL);
    const size_t size = trib_cause_encode(&cause, payload);
    const trib_frame lost = {.type = TRIB_FRAME_LOST, .aux = (uint32_t)TRIB_SYSTEM, .epoch = 1};
    raw_peer_send(&self->control, lost, payload, size);
}

static void bed_close(bed *self)
{
    trib_error error = {.text = ""};
    assert_int_equal(trib_engine_wait_ready(self->host.engine, -1, &error), TRIB_SYSTEM);
    assert_string_equal(error.text, REASON);
    raw_peer_close(&self->control);
    host_close(&self->host);
    free(self->payload);
}

/* The connection ends as if the process had died before it accepted it. */
static void a_reason_is_waited_for(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    raw_peer_accept_proof(&self.control, &self.data, HOST_TOKEN);
    raw_peer_close(&self.data);
    for (int i = 0; i < 3; i++) {
        look_at_clock(&self);
    }
    give_reason(&self);
    bed_close(&self);
}

static void can_be_closed_while_it_waits(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    raw_peer_accept_proof(&self.control, &self.data, HOST_TOKEN);
    raw_peer_close(&self.data);
    look_at_clock(&self);
    raw_peer_close(&self.control);
    host_close(&self.host);
    free(self.payload);
}

/* The peer considers the connection open once it has the proof. If it ended without a message, the peer would report a
 * loss. */
static void last_words_follow_the_proof(void **state)
{
    (void)state;
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    trib_cause cause;
    bed self;
    bed_open(&self);
    raw_peer_accept_proof(&self.control, &self.data, HOST_TOKEN);
    give_reason(&self);
    assert_true(raw_peer_receive(&self.data, &frame, self.payload));
    assert_int_equal(frame.type, TRIB_FRAME_BYE);
    assert_int_equal(trib_cause_decode(&frame, self.payload, &cause, NULL), TRIB_OK);
    assert_int_equal(cause.status, TRIB_SYSTEM);
    assert_int_equal(cause.kind, TRIB_CAUSE_TROUBLE);
    assert_int_equal(cause.subject_kind, TRIB_SUBJECT_MEMBER);
    assert_int_equal(cause.subject, 1);
    assert_int_equal(cause.origin, 1);
    assert_string_equal(cause.detail, DETAIL);
    raw_peer_close(&self.data);
    bed_close(&self);
}

/* Finds where rank 0's worker listens, before a roster says so. */
static void find_door(const host *self, char *address, size_t size)
{
    const unsigned known = (unsigned)strtoul(strrchr(self->address, ':') + 1, NULL, 10);
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in at = {.sin_port = 0};
        int listens = 0;
        socklen_t length = sizeof listens, room = sizeof at;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 &&
            getsockname(fd, (struct sockaddr *)&at, &room) == 0 && at.sin_family == AF_INET &&
            ntohs(at.sin_port) != known) {
            snprintf(address, size, "127.0.0.1:%u", ntohs(at.sin_port));
            return;
        }
    }
    fail_msg("no data listener found");
}

/* The peer's roster may arrive first, and then the early peer speaks as a rank. */
static void early_peer_speaks_as_a_rank(void **state)
{
    (void)state;
    host first;
    raw_peer data;
    char door[32];
    trib_error error = {.text = ""};
    host_open(&first, 3, "");
    find_door(&first, door, sizeof door);
    raw_peer_know_epoch(trib_epoch_make(trib_epoch_incarnation(first.engine->cores[0].host.epoch), 1));
    raw_peer_connect(&data, door, HOST_TOKEN, TRIB_PURPOSE_DATA, 2);
    const trib_cause cause = trib_cause_note(TRIB_SYSTEM, TRIB_NO_MEMBER, REASON);
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const size_t size = trib_cause_encode(&cause, payload);
    raw_peer_send(&data, (trib_frame){.type = TRIB_FRAME_BYE, .aux = (uint32_t)TRIB_SYSTEM, .epoch = 1}, payload, size);
    raw_peer_close(&data);
    assert_int_equal(trib_engine_wait_ready(first.engine, -1, &error), TRIB_PEER_LOST);
    assert_string_equal(error.text, REASON ", as rank 2 says");
    host_close(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reason_is_waited_for),
        cmocka_unit_test(can_be_closed_while_it_waits),
        cmocka_unit_test(last_words_follow_the_proof),
        cmocka_unit_test(early_peer_speaks_as_a_rank),
    };
    return cmocka_run_group_tests_name("meeting", tests, NULL, NULL);
}
