/*
 * contract_bed.h - the world of a contract test: two sides, peers that send, check what they receive, and misbehave
 * on request.
 *
 * Every upcall checks what must hold whatever the test is: order, contents, each message reported once, nothing after
 * `closed`. Side 0 runs on the test's thread; side 1 too, or on its own. What belongs to a side is only touched on its
 * thread: tests reach it through trib_bed_on_side.
 */
#ifndef TRIB_TESTS_CONTRACT_BED_H
#define TRIB_TESTS_CONTRACT_BED_H

#include "engine/reactor/reactor_ev.h"
#include "tests/contract/transport_contract.h"

#define WINDOW 64u
#define PEERS_MAX 256u
#define OFFSETS 4096u

typedef enum moment { NOWHERE, IN_ACCEPTED, IN_CONNECTED, IN_HEADER, IN_RECEIVED, IN_SENT, MOMENT_COUNT } moment;

typedef struct habits {
    uint32_t to_send;
    uint32_t size_fixed;  /* 0: random */
    uint32_t again_every; /* every n-th header is first answered AGAIN */
    bool stays_paused;    /* and never resumed */
    bool resume_inside;   /* or resumed from within that upcall */
    uint32_t refuse_at;   /* this message, counted from 1, is refused */
    moment close_in;
    bool close_flush;
    bool close_after_sending; /* at once, without waiting for `sent` */
} habits;

struct side;
typedef struct peer {
    struct side *side;
    trib_conn *conn;
    habits habits;
    uint64_t random_state;
    struct slot {
        trib_send send; /* first */
        uint32_t sequence;
        bool taken;
    } slots[WINDOW];
    uint32_t sent_begun, sent_ok, sent_failed, received;
    uint32_t agains;
    bool again_given, paused, connected, close_called, closed;
    trib_status connect_status, closed_status;
    char reason[256];
    trib_post resume_post;
    uint32_t asked; /* headers taken; those that are not received yet have targets */
    uint32_t ahead_max;
    unsigned char *targets[TRIB_AHEAD_MAX];
    uint32_t target_sizes[TRIB_AHEAD_MAX];
} peer;

typedef struct side {
    struct bed *bed;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    habits accepted_habits;
    peer *peers[PEERS_MAX];
    uint32_t peer_count, closed_count;
    uint64_t upcalls;
} side;

typedef struct bed {
    const trib_contract_maker *maker;
    void *shared;
    struct ev_loop *loop;
    trib_logger logger;
    unsigned char *block; /* payloads are pieces of it */
    side sides[2];
    trib_address address;
} bed;

/* One turn of the loop; may_wait: which sleeps if there is nothing to do. */
void trib_bed_turn(bed *self, bool may_wait);
bool trib_bed_on_side(bed *self, unsigned index, bool (*function)(side *, void *), void *argument);
void trib_bed_until(bed *self, unsigned index, bool (*function)(side *, void *), void *argument);
bool trib_bed_all_closed(side *where, void *argument); /* *(uint32_t *)argument or more, and all of them */
bool trib_bed_stop_listening(side *where, void *argument);
int trib_bed_setup(void **state); /* state: the maker, then the bed */
int trib_bed_teardown(void **state);
/* Connects side 0 to side 1; accepting is how the other end will behave. */
peer *trib_bed_start(bed *self, const habits *connecting, const habits *accepting);
void trib_bed_wait_closed(bed *self, uint32_t count);
bool trib_bed_has_received(side *where, void *argument); /* its latest peer, *(uint32_t *)argument messages */
bool trib_bed_has_peers(side *where, void *argument);    /* *(uint32_t *)argument or more */
bool trib_bed_send_one(side *where, void *argument);     /* its latest peer sends one message more */
void trib_bed_close_peer(peer *mine, bool flush);
bool trib_bed_close_all(side *where, void *argument);
/* The peer of side 1 as it was at the end; its thread does not touch it any more. */
const peer *trib_bed_theirs(bed *self, uint32_t index);

#endif
