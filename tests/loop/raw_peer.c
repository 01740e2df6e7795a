/* raw_peer.c - see raw_peer.h. */
#include "tests/loop/raw_peer.h"

#include <arpa/inet.h>
#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/membership/job_settings.h"
#include "tests/support/seal.h"

#define WAIT_S 30

static void write_all(int fd, const void *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0) {
            return; /* the other side closed the connection; the test finds its reason by reading */
        }
        bytes = (const char *)bytes + sent;
        size -= (size_t)sent;
    }
}

static bool read_all(int fd, void *bytes, size_t size)
{
    while (size > 0) {
        ssize_t got = recv(fd, bytes, size, 0);
        if (got <= 0) {
            return false;
        }
        bytes = (char *)bytes + got;
        size -= (size_t)got;
    }
    return true;
}

void raw_peer_send_header(const raw_peer *self, trib_frame frame, size_t size)
{
    unsigned char header[TRIB_HEADER_SIZE];
    frame.payload_size = (uint32_t)size;
    trib_frame_encode(&frame, header);
    write_all(self->fd, header, sizeof header);
}

void raw_peer_send(const raw_peer *self, trib_frame frame, const void *payload, size_t size)
{
    raw_peer_send_header(self, frame, size);
    write_all(self->fd, payload, size);
}

/* The epoch of the job, from the last roster. A connection for data must bear it. */
static uint32_t known_epoch;
static size_t roster_size;   /* bytes of the last roster */
static uint32_t hello_epoch; /* of HELLO; 0: the peer knows no coordinator yet */

void raw_peer_greet_with_epoch(uint32_t epoch)
{
    hello_epoch = epoch;
}

void raw_peer_know_epoch(uint32_t epoch)
{
    known_epoch = epoch;
}

/* NOLINTNEXTLINE(misc-no-recursion): a member gets one such PING */
bool raw_peer_receive(const raw_peer *self, trib_frame *frame_out, unsigned char *payload)
{
    unsigned char header[TRIB_HEADER_SIZE];
    trib_error error = {.text = ""};
    do { /* an ACK may come at any time */
        if (!read_all(self->fd, header, sizeof header)) {
            return false;
        }
        if (trib_frame_decode(header, frame_out, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    } while (frame_out->type == TRIB_FRAME_ACK);
    if (frame_out->type == TRIB_FRAME_ROSTER) {
        known_epoch = frame_out->epoch;
        roster_size = frame_out->payload_size;
    }
    if (frame_out->type == TRIB_FRAME_PING && trib_epoch_number(frame_out->epoch) == 0) {
        return raw_peer_receive(self, frame_out, payload); /* the answer to JOIN, whose header alone matters */
    }
    return read_all(self->fd, payload, frame_out->payload_size);
}

trib_member_info raw_peer_first_member(const unsigned char *payload)
{
    trib_reader reader = {.data = payload, .left = roster_size};
    trib_roster *roster = NULL;
    trib_error error = {.text = ""};
    if (trib_roster_get(&reader, &roster, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    const trib_member_info first = roster->members[0];
    free(roster);
    return first;
}

static void receive_type(const raw_peer *self, trib_frame_type type, unsigned char *payload)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    if (!raw_peer_receive(self, &frame, payload) || frame.type != type) {
        fail_msg("expected %s, got %s", trib_frame_name(type), trib_frame_name(frame.type));
    }
}

static void say_hello(const raw_peer *self, trib_handshake *handshake)
{
    unsigned char bytes[TRIB_HELLO_SIZE];
    memset(handshake->connector_nonce, 0x5a, TRIB_NONCE_SIZE); /* this nonce need be neither secret nor fresh */
    trib_auth_put_hello(handshake, bytes);
    raw_peer_send(self, (trib_frame){.type = TRIB_FRAME_HELLO, .epoch = hello_epoch}, bytes, sizeof bytes);
}

void raw_peer_greet(const raw_peer *self, trib_purpose purpose, uint32_t member)
{
    trib_handshake handshake = {.purpose = purpose, .member = member};
    say_hello(self, &handshake);
}

static bool shake_hands(const raw_peer *self, const char *token, trib_purpose purpose, uint32_t member)
{
    unsigned char key[TRIB_KEY_SIZE], answer[TRIB_CAUSE_PAYLOAD_MAX], proof[TRIB_PROOF_SIZE];
    trib_handshake handshake = {.purpose = purpose, .member = member};
    assert_int_equal(trib_auth_key(token, "default", key), TRIB_OK);
    say_hello(self, &handshake);
    receive_type(self, TRIB_FRAME_CHALLENGE, handshake.acceptor_nonce);
    trib_auth_prove(key, &handshake, true, proof);
    const trib_frame frame_of_proof = {.type = TRIB_FRAME_PROOF,
                                       .epoch = purpose == TRIB_PURPOSE_CONTROL ? 0 : known_epoch};
    raw_peer_send(self, frame_of_proof, proof, sizeof proof);
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    if (!raw_peer_receive(self, &frame, answer) || frame.type != TRIB_FRAME_WELCOME) {
        return false;
    }
    assert_true(trib_auth_verify(key, &handshake, false, answer));
    return true;
}

static void limit_waits(int fd)
{
    const struct timeval limit = {.tv_sec = WAIT_S};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

void raw_peer_open(raw_peer *self)
{
    self->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(listen(self->listener, 8), 0); /* the socket is not bound, so the kernel chooses the port */
    self->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    limit_waits(self->fd);
    limit_waits(self->listener);
}

void raw_peer_reach(const raw_peer *self, const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *port = strrchr(address, ':');
    assert_non_null(port);
    to.sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10));
    assert_int_equal(connect(self->fd, (struct sockaddr *)&to, sizeof to), 0);
}

static void dial(raw_peer *self, const char *address)
{
    raw_peer_open(self);
    raw_peer_reach(self, address);
}

void raw_peer_connect(raw_peer *self, const char *address, const char *token, trib_purpose purpose, uint32_t member)
{
    if (!raw_peer_ask(self, address, token, purpose, member)) {
        fail_msg("no WELCOME from %s", address);
    }
}

bool raw_peer_ask_now(const raw_peer *self, const char *address, const char *token, trib_purpose purpose,
                      uint32_t member)
{
    raw_peer_reach(self, address);
    return shake_hands(self, token, purpose, member);
}

bool raw_peer_ask(raw_peer *self, const char *address, const char *token, trib_purpose purpose, uint32_t member)
{
    raw_peer_open(self);
    return raw_peer_ask_now(self, address, token, purpose, member);
}

static void say_foreign_hello(const raw_peer *self, uint8_t version)
{
    unsigned char hello[TRIB_HEADER_SIZE + TRIB_HELLO_SIZE] = {0};
    trib_frame_encode(&(trib_frame){.type = TRIB_FRAME_HELLO, .payload_size = TRIB_HELLO_SIZE}, hello);
    hello[4] = version;
    header_seal(hello);
    write_all(self->fd, hello, sizeof hello);
}

bool raw_peer_greet_foreign(const char *address, uint8_t version, unsigned char answer[TRIB_HEADER_SIZE])
{
    raw_peer self;
    dial(&self, address);
    say_foreign_hello(&self, version);
    const bool answered = read_all(self.fd, answer, TRIB_HEADER_SIZE);
    raw_peer_close(&self);
    return answered;
}

void raw_peer_answer_foreign(int listener, uint8_t version)
{
    unsigned char header[TRIB_HEADER_SIZE];
    trib_frame_encode(&(trib_frame){.type = TRIB_FRAME_BYE, .aux = (uint32_t)TRIB_PROTOCOL}, header);
    header[4] = version;
    header_seal(header);
    raw_peer taken = {.fd = accept(listener, NULL, NULL), .listener = -1};
    assert_true(taken.fd >= 0);
    limit_waits(taken.fd);
    write_all(taken.fd, header, sizeof header);
    raw_peer_close(&taken);
}

void raw_peer_accept_proof(const raw_peer *self, raw_peer *taken, const char *token)
{
    unsigned char key[TRIB_KEY_SIZE], bytes[TRIB_HELLO_SIZE];
    *taken = (raw_peer){.fd = accept(self->listener, NULL, NULL), .listener = -1};
    assert_true(taken->fd >= 0);
    limit_waits(taken->fd);
    assert_int_equal(trib_auth_key(token, "default", key), TRIB_OK);
    receive_type(taken, TRIB_FRAME_HELLO, bytes);
    trib_handshake *handshake = &taken->handshake;
    trib_auth_get_hello(bytes, handshake);
    memset(handshake->acceptor_nonce, 0xa5, TRIB_NONCE_SIZE);
    raw_peer_send(taken, (trib_frame){.type = TRIB_FRAME_CHALLENGE}, handshake->acceptor_nonce, TRIB_NONCE_SIZE);
    receive_type(taken, TRIB_FRAME_PROOF, bytes);
    assert_true(trib_auth_verify(key, handshake, true, bytes));
}

void raw_peer_welcome(const raw_peer *taken, const char *token)
{
    unsigned char key[TRIB_KEY_SIZE], welcome[TRIB_WELCOME_SIZE] = {0}; /* a proof, and that nothing was received */
    assert_int_equal(trib_auth_key(token, "default", key), TRIB_OK);
    trib_auth_prove(key, &taken->handshake, false, welcome);
    raw_peer_send(taken, (trib_frame){.type = TRIB_FRAME_WELCOME}, welcome, sizeof welcome);
}

void raw_peer_accept(const raw_peer *self, raw_peer *taken, const char *token)
{
    raw_peer_accept_proof(self, taken, token);
    raw_peer_welcome(taken, token);
}

trib_status raw_peer_fail(const char *address, bool proves)
{
    raw_peer self;
    unsigned char answer[TRIB_CAUSE_PAYLOAD_MAX] = {0};
    trib_status status = TRIB_OK;
    trib_handshake handshake = {.purpose = TRIB_PURPOSE_CONTROL, .member = 1};
    dial(&self, address);
    say_hello(&self, &handshake);
    receive_type(&self, TRIB_FRAME_CHALLENGE, answer);
    if (proves) {
        trib_frame frame = {.type = TRIB_FRAME_NONE};
        raw_peer_send(&self, (trib_frame){.type = TRIB_FRAME_PROOF}, answer, TRIB_PROOF_SIZE);
        if (raw_peer_receive(&self, &frame, answer)) {
            assert_int_equal(frame.type, TRIB_FRAME_BYE);
            assert_int_equal(frame.payload_size, 0);
            status = (trib_status)(int32_t)frame.aux;
        }
        raw_peer_expect_end(&self);
    }
    raw_peer_close(&self);
    return status;
}

uint32_t raw_peer_serve(const raw_peer *self, const char *last, unsigned char *payload)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    char name[TRIB_TENSOR_NAME_MAX + 1] = "";
    while (strcmp(name, last) != 0) {
        assert_true(raw_peer_receive(self, &frame, payload));
        trib_frame answer = {.type = TRIB_FRAME_NONE, .epoch = 1, .group = frame.group};
        if (frame.type == TRIB_FRAME_GROUP_RANKS) {
            answer.type = TRIB_FRAME_GROUP_KNOWN;
            raw_peer_send(self, answer, NULL, 0);
        } else if (frame.type == TRIB_FRAME_SERVE) {
            trib_reader reader = {.data = payload + 4, .left = frame.payload_size - 4}; /* behind the size */
            trib_get_text(&reader, name, sizeof name);
            answer = (trib_frame){.type = TRIB_FRAME_SERVING, .epoch = 1};
            raw_peer_send(self, answer, NULL, 0);
        }
    }
    return frame.tensor;
}

void raw_peer_expect_end(const raw_peer *self)
{
    unsigned char bytes[4096];
    ssize_t got;
    do {
        got = recv(self->fd, bytes, sizeof bytes, 0);
    } while (got > 0);
    if (got < 0) {
        /* A connection that was reset has ended too. A silent one has not. */
        char rest;
        assert_int_equal(recv(self->fd, &rest, 1, MSG_DONTWAIT), 0);
    }
}

void raw_peer_close(raw_peer *self)
{
    (void)shutdown(self->fd, SHUT_WR);
    raw_peer_expect_end(self);
    close(self->fd);
    if (self->listener >= 0) {
        close(self->listener);
    }
}

void raw_peer_join(const raw_peer *self, uint32_t rank, uint32_t workers, size_t extra)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    assert_int_equal(getsockname(self->listener, (struct sockaddr *)&at, &length), 0);
    trib_member_info info = {.roles = TRIB_ROLE_WORKER, .reactors = 1};
    snprintf(info.name, sizeof info.name, "rank %u (by hand)", rank);
    snprintf(info.addresses[0].text, sizeof info.addresses[0].text, "127.0.0.1:%d", ntohs(at.sin_port));
    unsigned char payload[512];
    trib_writer writer = {.data = payload, .capacity = sizeof payload - extra};
    trib_put_u32(&writer, workers);
    trib_put_u32(&writer, 0);
    trib_member_info_put(&writer, &info);
    trib_config config;
    trib_config_init(&config, sizeof config);
    const trib_job_settings settings = trib_job_settings_of(&config);
    trib_job_settings_put(&writer, &settings);
    assert_false(writer.overflow);
    memset(payload + writer.size, 0, extra);
    raw_peer_send(self, (trib_frame){.type = TRIB_FRAME_JOIN, .root = rank}, payload, writer.size + extra);
}
