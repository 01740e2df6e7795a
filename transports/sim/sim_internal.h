/*
 * sim_internal.h - declarations that the files of the simulated network share.
 *
 * sim.c has the instance and listeners, sim_conn.c the connections as their reactors see them, sim_stream.c the
 * messages, sim_net.c nodes, links and what is under way, sim_fault.c the faults.
 */
#ifndef TRIB_TRANSPORTS_SIM_SIM_INTERNAL_H
#define TRIB_TRANSPORTS_SIM_SIM_INTERNAL_H

#include "transports/send_queue.h"
#include "transports/sim/sim.h"

typedef struct sim_pair sim_pair;
typedef struct sim_end sim_end;
typedef struct sim_flow sim_flow;
typedef struct sim_listener sim_listener;

/* The place where streams take turns on a link. */
typedef struct sim_port {
    trib_sim_event turn; /* fires when the next quantum may be sent */
    sim_flow *head, *tail;
    trib_sim_net *net;
    double byte_ns;
    int64_t free_ns; /* when the last quantum has left */
} sim_port;

struct trib_sim_node {
    trib_sim_net *net;
    trib_sim_node *next;
    trib_sim_node *machine; /* the node whose link it uses; mostly itself */
    trib_sim_node *further[TRIB_SIM_NETWORKS_MAX -
                           1]; /* its links in other networks; they are not in the network's list of nodes */
    char name[TRIB_SIM_NAME_MAX];
    trib_sim_link link;
    sim_port wire, local;
    double ingress_byte_ns;
    int64_t ingress_free_ns;
    uint32_t group, index;      /* index: its place in the order of creation */
    uint64_t shuns;             /* a bit for each node that it does not reach, by index */
    bool blocks_out, blocks_in; /* nothing leaves it, or reaches it */
    bool is_rejected;           /* its own connections are refused everywhere */
    bool dead;
    uint32_t last_port;
    sim_listener *listeners;
    uint64_t bytes_out, bytes_in;
};

typedef enum sim_kind { SIM_DATA, SIM_END_OF_STREAM, SIM_ACKNOWLEDGED, SIM_RESET } sim_kind;

/* A piece of a flow on its way to the receiving end. */
typedef struct sim_quantum {
    trib_sim_event event;         /* first */
    struct sim_quantum *next;     /* in the free list */
    struct sim_quantum *all_next; /* in the list of all quanta */
    sim_flow *flow;
    uint32_t bytes;
    sim_kind kind;
} sim_quantum;

struct trib_sim_net {
    trib_sim *sim;
    trib_sim_net_config config;
    trib_sim_weather weather;
    trib_sim_stream stream;
    trib_sim_node *nodes;
    sim_pair *pairs; /* newest first */
    sim_quantum *free_quanta, *all_quanta;
    struct sim_message *free_messages; /* by next */
    uint32_t transports;
    uint32_t asked;        /* calls of offloads */
    trib_sim_forge *forge; /* NULL: no message is forged */
    void *forge_user;
};

/* A message whose beginning the sender's kernel has, and of which the receiver has not read everything. */
typedef struct sim_message {
    struct sim_message *next;
    unsigned char header[TRIB_HEADER_SIZE];
    void *payload; /* a copy, once the kernel has all of it; NULL: it has no contents */
    uint32_t payload_size;
    trib_recv_target target; /* the receiver's answer */
    trib_status refusal;     /* an error ends the connection when the message's turn comes */
    bool asked;              /* the receiver has answered */
    bool flips;              /* a bit of the payload flips on the way: flip_bit */
    uint32_t flip_bit;
} sim_message;

/* One direction of a connection. */
struct sim_flow {
    sim_pair *pair;
    sim_flow *next; /* in its port's queue */
    sim_port *port;
    sim_message *head, *tail;
    uint64_t unsent;      /* bytes that the kernel has and the link has not */
    uint64_t window_used; /* bytes under way, or arrived and unread */
    uint64_t arrived;     /* bytes arrived and unread */
    uint64_t unheard;     /* part of window_used that was read, but whose acknowledgement does not pass */
    int64_t last_arrival_ns;
    int64_t progress_ns; /* when bytes were last acknowledged, or the first ones sent */
    int64_t arrived_ns;  /* when bytes last arrived */
    /* since when the flow has unsent or unread bytes; and for how long it had some before */
    int64_t busy_since_ns, busy_ns;
    uint8_t from;  /* index of the sending end */
    bool queued;   /* in its port's queue */
    bool finished; /* the sender sends no more; an end of stream follows its bytes */
    bool ended;    /* the end of stream was sent */
    bool over;     /* the end of stream has arrived */
    bool broken;   /* reset: what is under way is dropped */
};

typedef enum sim_state {
    SIM_UNACCEPTED, /* the listener's side, before it was accepted */
    SIM_CONNECTING,
    SIM_OPEN,
    SIM_FLUSHING, /* hands what is queued to the kernel, reads nothing */
    SIM_ENDING,   /* end_work is queued */
    SIM_GONE,
} sim_state;

typedef struct sim_transport {
    trib_transport base; /* first */
    trib_sim_node *node;
    int64_t silence_ns;
    trib_transport_counters stats;
    uint32_t open_count;
} sim_transport;

struct sim_end {
    trib_conn base; /* first */
    sim_pair *pair;
    sim_transport *transport;      /* NULL: not accepted */
    trib_sim_node *node, *machine; /* machine: the node whose link in the connection's network is used */
    trib_sim_work connect_work, read_work, write_work, sent_work, end_work;
    trib_sim_event report;  /* gives sent_work, if `sent` is reported late */
    trib_send_queue handed; /* messages that the kernel has, and that are not reported yet */
    trib_post write_post;
    sim_state state;
    trib_send_queue sends;
    size_t head_sent;
    uint32_t header_got, payload_got;
    trib_status answer; /* answer to the attempt to connect */
    trib_status end_status;
    uint8_t index;
    bool want_write;                   /* the kernel has no room */
    bool paused, asking, resume_asked; /* as the contract's recv_resume needs */
    bool lingers;                      /* ended in order: what still arrives is read and dropped */
    char reason[96];
};

struct sim_pair {
    trib_sim_net *net;
    sim_pair *next, *previous;
    sim_pair *next_waiting; /* in a listener's queue */
    trib_sim_event knock;   /* the attempt to connect arrives */
    trib_sim_event silence; /* nothing came through for the silence limit */
    int64_t retry_ns;
    uint32_t port;
    bool forgotten;      /* nothing passes any more */
    uint32_t references; /* ends that are not gone, quanta under way, posts */
    sim_end ends[2];     /* 0 has connected, 1 was accepted */
    sim_flow flows[2];   /* index: the sending end */
};

struct sim_listener {
    trib_listener base; /* first */
    trib_sim_node *node;
    sim_listener *next;
    uint32_t port;
    trib_sim_work work;
    sim_pair *head, *tail; /* pairs that wait to be accepted */
    bool accepting, closed;
};

static inline sim_end *sim_other(sim_end *end)
{
    return &end->pair->ends[1 - end->index];
}

static inline trib_reactor *sim_reactor_of(sim_end *end)
{
    return end->transport->base.reactor;
}

/* ---- sim.c ---- */
/* An attempt to connect has arrived and waits to be accepted. False if nobody listens there. */
bool trib_sim_listener_offer(trib_sim_node *node, sim_pair *pair);
/* The place that an address leads to, or the first one of a list. */
typedef struct sim_place {
    trib_sim_node *node;
    uint32_t network, port;
} sim_place;

TRIB_CHECKED bool trib_sim_address_parse(trib_sim_net *net, const char *text, sim_place *place_out);

/* ---- sim_conn.c ---- */
TRIB_CHECKED trib_status trib_sim_connect(trib_transport *transport, const trib_address *to, void *user,
                                          trib_conn **conn_out);
void trib_sim_send(trib_conn *conn, trib_send *send);
void trib_sim_recv_resume(trib_conn *conn);
void trib_sim_conn_close(trib_conn *conn, bool flush);
/* Called in the listener's turn. */
void trib_sim_end_accept(sim_end *end, sim_transport *transport);
/* Ends the connection for that reason; does nothing if it is ending already. */
void trib_sim_end_begin(sim_end *end, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Called by the network: bytes or the end of the stream have arrived; the kernel has room again; the peer is gone. */
void trib_sim_end_readable(sim_end *end);
void trib_sim_end_writable(sim_end *end);
void trib_sim_end_reset(sim_end *end, const char *reason);

/* ---- sim_stream.c ---- */
/* Hands queued messages to the kernel, as far as it accepts them. */
void trib_sim_stream_write(sim_end *end);
/* Reports the messages that the kernel has, where that is late. */
void trib_sim_stream_report(sim_end *end);
/* The connection ends: reports those messages if the peer has read them, or leaves them to be returned as unsent. */
void trib_sim_stream_end_report(sim_end *end);
/* Reads a part of the arrived bytes, and reports the messages in it. */
void trib_sim_stream_read(sim_end *end);

/* ---- sim_net.c ---- */
void trib_sim_node_rates(trib_sim_node *node);
/* The flow has something to send, or has finished. */
void trib_sim_flow_ready(sim_flow *flow);
/* The receiver has read that many bytes. */
void trib_sim_flow_read(sim_flow *flow, uint32_t bytes);
/* Drops bytes that the receiver has not read and that the link has not sent. */
void trib_sim_flow_drop(sim_flow *flow);
/* Takes a zeroed message, and gives it back with its payload. */
sim_message *trib_sim_message_take(trib_sim_net *net);
void trib_sim_message_give(trib_sim_net *net, sim_message *message);
/* The receiving end of the flow learns one latency from now that the sender is gone. */
void trib_sim_flow_reset(sim_flow *flow);
/* True if the two ends reach each other, both ways. */
bool trib_sim_reachable(const sim_pair *pair);
/* Looks at the pair again, because something that kept its flows from passing has changed. */
void trib_sim_pair_look(sim_pair *pair);
int64_t trib_sim_latency(const sim_pair *pair);
void trib_sim_pair_ref(sim_pair *pair);
void trib_sim_pair_unref(sim_pair *pair);

static inline sim_flow *sim_flow_from(sim_end *end)
{
    return &end->pair->flows[end->index];
}

static inline sim_flow *sim_flow_to(sim_end *end)
{
    return &end->pair->flows[1 - end->index];
}

/* True if both ends are on one machine. */
static inline bool sim_is_local(const sim_pair *pair)
{
    return pair->ends[0].machine == pair->ends[1].machine;
}

static inline bool sim_is_in_memory(const sim_pair *pair)
{
    return sim_is_local(pair) && pair->net->config.local_memory;
}

/* Bytes that take up the sender's room: those that wait for the link; in shared memory also the unread ones. */
static inline uint64_t sim_flow_held(const sim_flow *flow)
{
    return flow->unsent + (sim_is_in_memory(flow->pair) ? flow->window_used : 0);
}

/* True if the flow has bytes that the receiver has not read. */
static inline bool sim_flow_is_waiting(const sim_flow *flow)
{
    return flow->unsent > 0 || flow->window_used > 0;
}

/* True if the end may read arrived bytes. A paused end may read the messages that it was asked about. */
static inline bool sim_end_reads(sim_end *end)
{
    const sim_message *first = sim_flow_to(end)->head;
    return end->state == SIM_OPEN && (!end->paused || (first != NULL && first->asked));
}

/* ---- sim_fault.c ---- */
/* Ends the connection's ends whose data under way is not acknowledged in time, from now on until nothing is. */
void trib_sim_pair_watch_silence(sim_pair *pair);
/* The silence limit of the pair has passed. */
void trib_sim_pair_check_silence(trib_sim *sim, trib_sim_event *event);

#endif
