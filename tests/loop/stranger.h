/*
 * stranger.h - a peer written by hand: it proves the token as a member would, then says what no member says.
 *
 * Blocking, on a socket of its own; every wait ends within WAIT_S seconds, after which the test fails.
 */
#ifndef TRIB_TESTS_LOOP_STRANGER_H
#define TRIB_TESTS_LOOP_STRANGER_H

#include "engine/link/link.h"

typedef struct stranger {
    int fd;
    int listener; /* where those who believe its JOIN connect; nobody answers them before stranger_accept; -1: none */
} stranger;

/* Connects to "127.0.0.1:PORT" and goes through the handshake. token may be NULL. */
void stranger_connect(stranger *self, const char *address, const char *token, trib_purpose purpose, uint32_t member);
/* As that, but false if there is no WELCOME. */
bool stranger_ask(stranger *self, const char *address, const char *token, trib_purpose purpose, uint32_t member);
/* The same in steps, of which only the first needs descriptors. */
void stranger_open(stranger *self);
void stranger_reach(const stranger *self, const char *address);
bool stranger_ask_now(const stranger *self, const char *address, const char *token, trib_purpose purpose,
                      uint32_t member);
/* Greets in another version; false if there is no answer. */
bool stranger_greet_foreign(const char *address, uint8_t version, unsigned char answer[TRIB_HEADER_SIZE]);
/* As that, inside a session: the address is the first of a list. */
bool stranger_greet_foreign_session(const char *address, uint8_t version, unsigned char answer[TRIB_HEADER_SIZE]);
/* Answers whoever connects in another version, and ends. */
void stranger_answer_foreign(int listener, uint8_t version);
/* The other way round: takes a connection that a member makes to the address of its JOIN. */
void stranger_accept(const stranger *self, stranger *taken, const char *token);
/* As that, but gives no WELCOME. */
void stranger_accept_proof(const stranger *self, stranger *taken, const char *token);
/* Connects, and when it has the engine's proof goes without a word, or after a proof of its own that is none. */
void stranger_fail(const char *address, bool proves);
void stranger_send(const stranger *self, trib_frame frame, const void *payload, size_t size);
/* The frame's header alone, as if so many bytes of payload were to follow. */
void stranger_send_header(const stranger *self, trib_frame frame, size_t size);
/* The next frame, false at the connection's end. payload has room for TRIB_PAYLOAD_MAX bytes. */
bool stranger_receive(const stranger *self, trib_frame *frame_out, unsigned char *payload);
/* Reads until the other side has ended the connection. */
void stranger_expect_end(const stranger *self);
/* Says nothing more, waits until the other side has seen that, and goes. */
void stranger_close(stranger *self);

/* JOIN as that rank, and behind it `extra` bytes that do not belong there. */
void stranger_join(const stranger *self, uint32_t rank, uint32_t workers, size_t extra);

#endif
