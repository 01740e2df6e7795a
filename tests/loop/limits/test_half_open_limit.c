/*
 * test_half_open_limit.c - more half-open connections than the process has descriptors for. They stay silent, the
 * oldest are closed to make room, the process keeps spare descriptors, and a real member still joins. So it is for
 * strangers that get an answer and do not go.
 *
 * This process is both sides, so its limit holds the peers' sockets and the spare descriptors, but not a descriptor for
 * each peer.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/half_open.h"
#include "tests/loop/host.h"
#include "tests/loop/raw_peer.h"
#include "tests/support/descriptors.h"
#include "tests/support/seal.h"

#define CROWD 120
#define WAIT_S 60

typedef struct scene {
    host host;
    struct rlimit before;
    int crowd[CROWD];
} scene;

static scene *scene_open(const char *more)
{
    scene *self = calloc(1, sizeof *self);
    assert_non_null(self);
    host_open(&self->host, 2, more);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &self->before), 0);
    const rlim_t most = descriptors_open() + CROWD + CROWD / 2;
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = self->before.rlim_max};
    assert_true(most <= self->before.rlim_cur && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return self;
}

static void scene_close(scene *self)
{
    for (int i = 0; i < CROWD; i++) {
        close(self->crowd[i]);
    }
    host_close(&self->host);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &self->before), 0);
    /* The engine's thread no longer writes the log. */
    assert_null(strstr(self->host.log, "cannot accept connections for now"));
    free(self);
}

/* Opens all connections, and checks that the engine has closed the oldest half. */
static void come(scene *self)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtoul(strrchr(self->host.address, ':') + 1, NULL, 10));
    for (int i = 0; i < CROWD; i++) {
        const struct timeval limit = {.tv_sec = WAIT_S};
        self->crowd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(self->crowd[i] >= 0);
        assert_int_equal(setsockopt(self->crowd[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
        assert_int_equal(connect(self->crowd[i], (struct sockaddr *)&to, sizeof to), 0);
    }
    for (int i = 0; i < CROWD / 2; i++) {
        char byte = 0;
        assert_int_equal(recv(self->crowd[i], &byte, 1, 0), 0);
    }
    const int own = dup(0); /* the process can still open a file */
    assert_true(own >= 0);
    close(own);
}

static void links_make_room(void **state)
{
    (void)state;
    scene *self = scene_open("");
    come(self);
    raw_peer peer;
    raw_peer_connect(&peer, self->host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_close(&peer);
    assert_true(host_has_said(&self->host, "too many others have come and not proved the token"));
    scene_close(self);
}

/* ---- Strangers of another version, who get an answer and stay ---- */

#define STRANGERS 600
#define ACCEPTED_IN_A_TURN 16u

/* Every transport and every layer may hold as many as half_open.h says; a turn may add what it accepts. */
static uint32_t most_strangers(uint32_t layers)
{
    return layers * (trib_half_open_max() + 8) + ACCEPTED_IN_A_TURN;
}

static void foreign_hello(unsigned char header[TRIB_HEADER_SIZE])
{
    trib_frame_encode(&(trib_frame){.type = TRIB_FRAME_HELLO}, header);
    header[4] = TRIB_WIRE_VERSION - 1;
    header_seal(header);
}

static void answered_strangers_make_room(void **state)
{
    (void)state;
    host target;
    host_open(&target, 2, "");
    unsigned char header[TRIB_HEADER_SIZE];
    foreign_hello(header);
    raw_peer *crowd = calloc(STRANGERS, sizeof *crowd);
    assert_non_null(crowd);
    const uint32_t before = descriptors_open();
    for (int i = 0; i < STRANGERS; i++) {
        raw_peer_open(&crowd[i]);
        close(crowd[i].listener);
        raw_peer_reach(&crowd[i], target.address);
        assert_int_equal(send(crowd[i].fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    }
    unsigned char answer[TRIB_HEADER_SIZE];
    assert_int_equal(recv(crowd[STRANGERS - 1].fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_true(descriptors_open() <= before + STRANGERS + most_strangers(2));
    for (int i = 0; i < STRANGERS; i++) {
        close(crowd[i].fd);
    }
    free(crowd);
    host_close(&target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_make_room),
        cmocka_unit_test(answered_strangers_make_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
