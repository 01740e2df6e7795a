/*
 * lease_bed.h - two sides of shared memory, a sender that offers its memory and a receiver that leases it. The test
 * turns both by hand under one clock.
 *
 * Every upcall checks the invariants of any test: order, contents, each send reported once, each lease ended or
 * recalled once and before `closed`.
 */
#ifndef TRIB_TESTS_LEASE_BED_H
#define TRIB_TESTS_LEASE_BED_H

#include "tests/contract/reactor_hand.h"
#include "transports/shm/shm_internal.h"

#define MESSAGES_MAX 1200u
#define PIECES 16u
#define PIECE 20000u /* larger than the payloads that go through the ring */
#define ROUNDS 8u
#define MS INT64_C(1000000)

/* A message that has been received, and the lease of its payload. */
typedef struct held {
    trib_lease *lease; /* NULL: no lease was asked for, or none was given, or it has ended */
    unsigned char *target;
    const unsigned char *payload;
    uint32_t size;
    unsigned recalled;
    bool valid;
} held;

typedef struct end {
    struct scene *scene;
    trib_conn *conn;
    trib_send sends[MESSAGES_MAX];
    unsigned begun, sent, sent_ok, received, recalled;
    bool closed;
    trib_status status;
    /* The receiver's behaviour: leases message n if bit n is set, or all; ends leases within `received`; closes when
     * one is recalled, or within `received`. */
    uint64_t leases;
    bool leases_all, ends_inside, closes_in_recall, closes_inside, close_flush;
    bool copies; /* takes nothing in place */
    held held[MESSAGES_MAX];
} end;

typedef struct scene {
    trib_logger logger;
    int64_t clock_ns;
    reactor_hand hands[2];
    trib_transport *transports[2];
    trib_listener *listener;
    trib_address address;
    trib_arena *arena;
    void *offer;
    unsigned char *pieces;
    unsigned char own[PIECES * PIECE]; /* not offered */
    uint32_t descriptors_before;
    end ends[2]; /* the sender, which connects, and the receiver */
} scene;

void lease_turn(scene *self, unsigned side);
void lease_turn_both(scene *self);        /* until nothing is under way */
void lease_pass(scene *self, int64_t ns); /* and then that */
scene *lease_open(void);
/* offers: the sender offers its memory. reads: the receiver may read the sender's memory. */
scene *lease_open_as(bool offers, bool reads);
/* Opens the receiver alone. The sender of the `count` messages is another process, which stands still until it is
 * killed. */
scene *lease_open_apart(unsigned count, pid_t *sender_out);
/* Checks that both sides gave everything back, however the test ended. */
void lease_close(scene *self);
void lease_close_end(scene *self, unsigned side, bool flush);
/* Ends the lease. Returns false if the lease had been taken back. */
bool lease_let_go(held *one);
/* memory: the scene's pieces, or its own. */
void lease_send_from(scene *self, const unsigned char *memory, uint32_t size);
void lease_send_offered(scene *self, unsigned count);
bool lease_has_content(const unsigned char *bytes, uint32_t number, uint32_t size);

#endif
