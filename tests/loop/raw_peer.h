/*
 * raw_peer.h - a hand-written peer. It proves the token as a member would, then sends frames that no member sends.
 *
 * Its socket is blocking. Every wait ends within WAIT_S seconds, after which the test fails.
 */
#ifndef TRIB_TESTS_LOOP_RAW_PEER_H
#define TRIB_TESTS_LOOP_RAW_PEER_H

#include "engine/cluster/roster.h"
#include "engine/link/link.h"

typedef struct raw_peer {
    int fd;
    trib_handshake handshake; /* of a connection that was accepted and not answered yet */
    int listener;             /* the address in its JOIN, where members connect; raw_peer_accept answers; -1: none */
} raw_peer;

/* Connects to "127.0.0.1:PORT" and goes through the handshake. token may be NULL. */
void raw_peer_connect(raw_peer *self, const char *address, const char *token, trib_purpose purpose, uint32_t member);
/* As raw_peer_connect, but returns false if there is no WELCOME. */
bool raw_peer_ask(raw_peer *self, const char *address, const char *token, trib_purpose purpose, uint32_t member);
/* The same in steps, of which only the first needs descriptors. */
void raw_peer_open(raw_peer *self);
void raw_peer_reach(const raw_peer *self, const char *address);
bool raw_peer_ask_now(const raw_peer *self, const char *address, const char *token, trib_purpose purpose,
                      uint32_t member);
/* Greets in another version; returns false if there is no answer. */
bool raw_peer_greet_foreign(const char *address, uint8_t version, unsigned char answer[TRIB_HEADER_SIZE]);
/* Answers the next connection in another version, and ends it. */
void raw_peer_answer_foreign(int listener, uint8_t version);
/* Accepts a connection that a member makes to the address of this peer's JOIN. */
void raw_peer_accept(const raw_peer *self, raw_peer *taken, const char *token);
/* As raw_peer_accept, but sends no WELCOME; raw_peer_welcome does. */
void raw_peer_accept_proof(const raw_peer *self, raw_peer *taken, const char *token);
void raw_peer_welcome(const raw_peer *taken, const char *token);
/* Connects, waits for the engine's nonce and sends a wrong proof. Returns the status in the engine's answer; TRIB_OK if
 * there is none. proves false: closes without a proof, and nothing else than the nonce must have come. */
trib_status raw_peer_fail(const char *address, bool proves);
void raw_peer_send(const raw_peer *self, trib_frame frame, const void *payload, size_t size);
/* Sends the frame's header alone, as if that many bytes of payload were to follow. */
void raw_peer_send_header(const raw_peer *self, trib_frame frame, size_t size);
/* The epoch that connections for data bear from now on; otherwise that of the last roster received. */
void raw_peer_know_epoch(uint32_t epoch);
/* The epoch of every HELLO from now on, at first 0. */
void raw_peer_greet_with_epoch(uint32_t epoch);
/* Says HELLO on a connection that was made by raw_peer_reach. */
void raw_peer_greet(const raw_peer *self, trib_purpose purpose, uint32_t member);
/* Receives the next frame; false at the connection's end. payload has room for TRIB_PAYLOAD_MAX bytes. */
bool raw_peer_receive(const raw_peer *self, trib_frame *frame_out, unsigned char *payload);
/* Returns rank 0's entry of the roster that was received last, which payload holds. */
trib_member_info raw_peer_first_member(const unsigned char *payload);
/* Answers SERVEs up to that tensor's, and makes groups known. Returns the tensor's number. */
uint32_t raw_peer_serve(const raw_peer *self, const char *last, unsigned char *payload);
/* Reads until the other side has ended the connection. */
void raw_peer_expect_end(const raw_peer *self);
/* Ends its sending side, waits until the other side has ended its own, and closes. */
void raw_peer_close(raw_peer *self);

/* Sends JOIN as that rank, followed by `extra` bytes that do not belong there. */
void raw_peer_join(const raw_peer *self, uint32_t rank, uint32_t workers, size_t extra);

#endif
