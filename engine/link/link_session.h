/*
 * link_session.h - the state by which a link outlives its connection: frames are counted, and kept until the peer has
 * them.
 *
 * Both sides count the frames that they send and receive, except those of the handshake and ACK. Each frame tells in
 * `acknowledged` how many the sender has received. Where nothing else goes that way, an ACK goes after a short delay or
 * every so many bytes. After a break the handshake of the next connection tells both counts, and what the peer lacks is
 * sent again in order (link_reconnect.h).
 *
 * Frames are kept by reference, so nothing is copied. A frame's credit returns when the transport has sent it, as
 * without a session; its `done` is called when the peer has acknowledged it. A session lasts as long as the link.
 *
 * Where a connection ends only with a process, as over shared memory, the session keeps nothing and costs nothing.
 *
 * Invariants
 *
 * - The kept frames are those with the numbers acknowledged to sent - 1, in order. Frames that are acknowledged but
 *   still with the transport precede them.
 * - The two sides never use two connections of a session at the same time: the earlier one has had its `closed` on both
 *   sides before a frame goes over the later one.
 */
#ifndef TRIB_ENGINE_LINK_LINK_SESSION_H
#define TRIB_ENGINE_LINK_LINK_SESSION_H

#include "engine/reactor/reactor.h"
#include "engine/wire/wire.h"

struct trib_link;
struct trib_link_host;
struct trib_send_record;

typedef struct trib_link_session {
    uint64_t id;         /* drawn by the connector; not 0 */
    bool is_established; /* the link has been READY */
    bool is_kept;        /* frames are counted and kept */
    uint64_t sent, acknowledged;
    uint64_t received;
    uint64_t told;                         /* number of received frames that the peer knows of */
    uint64_t told_before;                  /* value of `told` when the timer was armed */
    uint32_t unacknowledged_bytes;         /* bytes of frames that the peer does not know to be received */
    int64_t last_sent_ns;                  /* time of the last frame that was given to the transport */
    struct trib_send_record *first, *last; /* kept frames, oldest first (utlist.h) */
    trib_timer ack;                        /* armed while an ACK may be due */
} trib_link_session;

/* The search for another connection of a link, owned by link_reconnect.c. */
typedef struct trib_link_redial {
    trib_address to;             /* the list of the peer's addresses */
    uint32_t address;            /* index of the address that is tried, or that worked */
    uint32_t attempts;           /* connections whose handshake was begun */
    uint32_t tries;              /* attempts since the last break */
    uint32_t refused;            /* number of the last attempts that found nobody listening */
    bool is_refused;             /* nobody listened at any of the addresses in the last attempts */
    bool is_late;                /* this attempt took too long */
    bool needs_offer;            /* only an address with an offer (RDMA) will do, because payloads need a device */
    bool survives;               /* a broken connection is made again */
    bool is_damaged;             /* a damaged frame has come, and the connection ends */
    uint32_t damaged;            /* damaged frames since the last sound one that was no part of a handshake */
    uint32_t extensions;         /* how often the deadline was extended because the peer lives */
    trib_timer timer;            /* the next attempt, or the limit of this one */
    struct trib_link *successor; /* acceptor: holds the next connection, which has proved the token; NULL: none */
    struct trib_link *resumes;   /* of a successor: the link that gets its connection */
    struct trib_link *call;      /* acceptor: asks the connector to connect; NULL: none */
    struct trib_link *caller;    /* of a call: the link for which it asks; NULL: that one has ended */
    char reason[128];            /* why the last connection or attempt ended */
} trib_link_redial;

/* Begins the session of a new link. */
void trib_session_open(struct trib_link *link);
/* The link is READY for the first time. */
void trib_session_establish(struct trib_link *link);
/* Calls `done` for all kept frames, because the link ends. */
void trib_session_close(struct trib_link *link);

/* The transport has given a counted frame back, which the peer has acknowledged. */
void trib_session_release(struct trib_link *link);
/* Takes the peer's count from a frame's header; `done` is called for what it acknowledges. TRIB_PROTOCOL: the peer
 * counts frames that were not sent. */
TRIB_CHECKED trib_status trib_session_take_count(struct trib_link *link, const trib_frame *frame, trib_error *error);
/* Arms the timer that sends an ACK if no other frame carries the count before. */
void trib_session_await_ack(struct trib_link *link);
/* Sends ACKs about the link's other connections over this one, before a frame that the peer may take for their
 * acknowledgement. */
void trib_session_acknowledge_others(struct trib_link *link);
/* Sends an ACK now, if the link can send. */
void trib_session_acknowledge(struct trib_link *link);

/* True if the peer may have received that many frames and needs only those that are kept. */
bool trib_session_may_resume(const struct trib_link *link, uint64_t received);
/* Gives back the buffers of frames that were sent with that `context`: the link goes on with copies. Buffers that the
 * transport holds, or fills for the context, come back soon: its connection breaks. The link ends if it cannot be made
 * again, or there is no memory. */
void trib_session_give_back(struct trib_link *link, const void *context);
/* Sends what the peer lacks over a new connection. */
void trib_session_resend(struct trib_link *link, uint64_t received);

/* Shows life on all links of the reactor that were silent for long; armed by the host's opening. */
void trib_session_open_host(struct trib_link_host *host);
void trib_session_close_host(struct trib_link_host *host);
/* How long a peer may be silent before it is lost. */
int64_t trib_session_peer_timeout(const struct trib_link_host *host);

#endif
