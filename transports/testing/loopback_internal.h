/*
 * loopback_internal.h - declarations that the files of the loopback transport share.
 *
 * loopback.c has the hub, the instance and the listeners, loopback_conn.c the pairs of connected ends.
 */
#ifndef TRIB_TRANSPORTS_TESTING_LOOPBACK_INTERNAL_H
#define TRIB_TRANSPORTS_TESTING_LOOPBACK_INTERNAL_H

#include <pthread.h>

#include "transports/send_queue.h"
#include "transports/testing/loopback.h"

typedef struct loop_pair loop_pair;
typedef struct loop_listener loop_listener;

struct trib_loopback_hub {
    pthread_mutex_t mutex;
    loop_listener *listeners;
    unsigned names_given;
};

typedef struct loop_transport {
    trib_transport base; /* first */
    trib_loopback_hub *hub;
    trib_transport_counters stats;
    uint32_t open_count;
} loop_transport;

struct loop_listener {
    trib_listener base; /* first */
    trib_address address;
    trib_post post;
    bool accepting, closed; /* used by the listener's own thread */
    /* Guarded by the hub's mutex. */
    loop_listener *next;
    loop_pair *waiting_head, *waiting_tail;
    bool posted;
};

typedef enum loop_state { LOOP_CONNECTING, LOOP_OPEN, LOOP_FLUSHING, LOOP_ENDING } loop_state;

typedef struct loop_end {
    trib_conn base; /* first */
    loop_pair *pair;
    loop_transport *transport;
    trib_post post;
    /* Used by the end's own thread. */
    loop_state state;
    trib_send_queue held;     /* sends that were not handed to the peer: not connected yet, or too late */
    trib_send_queue incoming; /* sends of the peer, to be presented */
    uint32_t with_peer;       /* own sends that the peer has */
    bool paused, asking, resume_asked;
    bool left; /* the peer knows that nothing more is sent or received here */
    trib_status end_status;
    const char *reason;
    /* Guarded by the pair's mutex: state that the other thread has stored. */
    bool posted;
    bool answered; /* the attempt to connect has this answer: */
    trib_status answer;
    bool gone;                                    /* this end takes nothing any more */
    bool finished;                                /* its `closed` is being reported: it must not be posted any more */
    bool peer_left;                               /* the other end has left */
    trib_send_queue mail;                         /* sends of the peer, not looked at yet */
    trib_send_queue back_presented, back_dropped; /* own sends that the peer returned, in this order */
} loop_end;

struct loop_pair {
    pthread_mutex_t mutex;
    loop_end ends[2];    /* 0 has connected, 1 was accepted */
    unsigned references; /* guarded by the mutex; the last one frees it */
    loop_pair *next;     /* in a listener's queue; guarded by the hub's mutex */
};

/* loopback.c. False if nobody listens there. */
bool trib_loop_listener_offer(trib_loopback_hub *hub, const trib_address *to, loop_pair *pair);

/* loopback_conn.c, on the listener's thread. accept: false if the connecting end has given up. */
bool trib_loop_pair_accept(loop_pair *pair, loop_transport *transport);
void trib_loop_pair_refuse(loop_pair *pair);
TRIB_CHECKED trib_status trib_loop_connect(trib_transport *transport, const trib_address *to, void *user,
                                           trib_conn **conn_out);
void trib_loop_send(trib_conn *conn, trib_send *send);
void trib_loop_recv_resume(trib_conn *conn);
void trib_loop_conn_close(trib_conn *conn, bool flush);

#endif
