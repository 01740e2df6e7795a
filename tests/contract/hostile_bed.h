/*
 * hostile_bed.h - both ends of a connection over shared memory in one process, on one loop, for a test that writes for
 * one of them what a correct peer never writes.
 *
 * Every upcall checks that sends come back in order and once, and leases before `closed`.
 */
#ifndef TRIB_TESTS_HOSTILE_BED_H
#define TRIB_TESTS_HOSTILE_BED_H

#include "engine/reactor/reactor_ev.h"
#include "transports/shm/shm_internal.h"

#define SENDS 24u

typedef struct end {
    trib_conn *conn;
    trib_send sends[SENDS];
    unsigned sent, received, in_place, leases;
    bool closed;
    unsigned char *target; /* as large as a payload, so that an extra byte is seen */
    char reason[256];
} end;

typedef struct scene {
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    trib_address address;
    end ends[2]; /* the connecting side and the accepting side */
    uint64_t random;
    trib_arena *arena;
    void *offer; /* of the arena; NULL: the arena is not offered */
    unsigned char *payload;
} scene;

/* The way of payloads: in offered memory, read by the kernel, or copied through the ring. */
typedef enum way { IN_PLACE, READING, COPYING } way;

uint64_t hostile_draw(scene *self);
scene *hostile_open(way how);
scene *hostile_open_for(way how, int64_t silence_ns);
void hostile_turn(scene *self);
void hostile_close(scene *self);
/* Connects, anew. */
void hostile_meet(scene *self);

#endif
