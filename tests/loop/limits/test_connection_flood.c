/*
 * test_connection_flood.c - half-open connections take every descriptor that a member has left, while another member
 * has yet to connect. The member closes them, the other connects, and the job goes on.
 *
 * This process is both sides, so the sockets of the flood are made before its limit is set.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "tests/loop/host.h"
#include "tests/loop/job.h"
#include "tests/loop/raw_peer.h"
#include "tests/support/descriptors.h"

#define LEFT 8
#define CROWD (LEFT + 2) /* two of them wait in the listen queue, and the member behind them */

typedef struct bed {
    host host;
    raw_peer control, taken, data; /* the connections of rank 1 */
    raw_peer crowd[CROWD];
    char address[TRIB_ADDRESS_MAX]; /* where rank 0 listens for data connections */
    unsigned char *payload;
    struct rlimit before;
} bed;

static void take_roster(bed *self)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    trib_error error = {.text = ""};
    trib_roster *roster = NULL;
    assert_true(raw_peer_receive(&self->control, &frame, self->payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    trib_reader reader = {.data = self->payload, .left = frame.payload_size};
    assert_int_equal(trib_roster_get(&reader, &roster, &error), TRIB_OK);
    snprintf(self->address, sizeof self->address, "%s", roster->members[0].addresses[0].text);
    self->address[strcspn(self->address, "+,")] = '\0';
    free(roster);
}

static void leave_few(bed *self)
{
    int fds[LEFT];
    for (int i = 0; i < LEFT; i++) {
        fds[i] = fcntl(0, F_DUPFD_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &self->before), 0);
    const struct rlimit limit = {.rlim_cur = (rlim_t)fds[LEFT - 1] + 1, .rlim_max = self->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < LEFT; i++) {
        close(fds[i]);
    }
}

static void bed_open(bed *self)
{
    memset(self, 0, sizeof *self);
    self->payload = malloc(TRIB_PAYLOAD_MAX);
    assert_non_null(self->payload);
    host_open(&self->host, 2, "");
    raw_peer_connect(&self->control, self->host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&self->control, 1, 2, 0);
    take_roster(self);
    raw_peer_accept(&self->control, &self->taken, HOST_TOKEN);
    raw_peer_open(&self->data);
    for (int i = 0; i < CROWD; i++) {
        raw_peer_open(&self->crowd[i]);
    }
    leave_few(self);
}

static void bed_close(bed *self)
{
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &self->before), 0);
    for (int i = 0; i < CROWD; i++) {
        close(self->crowd[i].fd);
        close(self->crowd[i].listener);
    }
    raw_peer_close(&self->data);
    raw_peer_close(&self->taken);
    raw_peer_close(&self->control);
    host_close(&self->host);
    free(self->payload);
}

static void half_open_connections_make_way(void **state)
{
    (void)state;
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    bed self;
    char address[32];
    job_free_address(address, sizeof address); /* from now on this includes the socket that reserves the address */
    const uint32_t open = descriptors_open();
    bed_open(&self);
    for (int i = 0; i < CROWD; i++) {
        raw_peer_reach(&self.crowd[i], self.address);
    }
    assert_true(raw_peer_ask_now(&self.data, self.address, HOST_TOKEN, TRIB_PURPOSE_DATA, 1));
    assert_true(host_has_said(&self.host, "cannot accept connections for now: Too many open files"));
    raw_peer_send(&self.control, (trib_frame){.type = TRIB_FRAME_PING, .epoch = 1}, NULL, 0);
    while (frame.type != TRIB_FRAME_PONG) {
        assert_true(raw_peer_receive(&self.control, &frame, self.payload));
    }
    assert_false(host_has_said(&self.host, "the job is over"));
    bed_close(&self);
    assert_int_equal(descriptors_open(), open);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_open_connections_make_way),
    };
    return cmocka_run_group_tests_name("besieged", tests, NULL, NULL);
}
