/*
 * lease_bed.h - two sides of shared memory, one that sends what it offers and one that leases it, both turned by hand under one
 * clock.
 *
 * Every upcall checks what must hold whatever the test is: order, contents, each send told of once, each lease ended or recalled
 * once and before `closed`.
 */
#ifndef TRIB_TESTS_LEASE_BED_H
#define TRIB_TESTS_LEASE_BED_H

#include "tests/contract/reactor_hand.h"
#include "transports/shm/shm_internal.h"

#define MESSAGES_MAX 1200u
#define PIECES 16u
#define PIECE 20000u /* more than goes through the ring */
#define ROUNDS 8u
#define MS INT64_C(1000000)

/* A message that has been received, and the lease of its payload. */
typedef struct held {
    trib_lease *lease; /* NULL: none was asked for, or given, or it is over */
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
    end ends[2]; /* the one that connects and sends, and the one that receives */
} scene;

void lease_turn(scene *self, unsigned side);
void lease_turn_both(scene *self);        /* until nothing is under way */
void lease_pass(scene *self, int64_t ns); /* and then that */
scene *lease_open(void);
/* Offering and reading: what the sender does, and what the receiver. */
scene *lease_open_as(bool offers, bool reads);
/* The receiver alone: who sends it so many is another process, whose clock stands still, until somebody ends that. */
scene *lease_open_apart(unsigned count, pid_t *sender_out);
/* Everything has been given back, whatever the test left behind. */
void lease_close(scene *self);
void lease_close_end(scene *self, unsigned side, bool flush);
/* False: what it said was none any more. */
bool lease_let_go(held *one);
/* memory: the scene's pieces, or its own. */
void lease_send_from(scene *self, const unsigned char *memory, uint32_t size);
void lease_send_offered(scene *self, unsigned count);
bool lease_has_content(const unsigned char *bytes, uint32_t number, uint32_t size);

#endif
