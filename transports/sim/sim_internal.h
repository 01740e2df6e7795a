/*
 * sim_internal.h - what the files of the simulated network share: sim.c (instance, listeners), sim_conn.c (connections
 * as their reactors see them), sim_net.c (nodes, links, what is under way) and sim_fault.c.
 */
#ifndef TRIB_TRANSPORTS_SIM_SIM_INTERNAL_H
#define TRIB_TRANSPORTS_SIM_SIM_INTERNAL_H

#include "transports/send_queue.h"
#include "transports/sim/sim.h"

typedef struct sim_pair sim_pair;
typedef struct sim_end sim_end;
typedef struct sim_flow sim_flow;
typedef struct sim_listener sim_listener;

/* Where streams take turns. */
typedef struct sim_port {
    trib_sim_event turn; /* the next quantum may go */
    sim_flow *head, *tail;
    trib_sim_net *net;
    double byte_ns;
    int64_t free_ns; /* when the last quantum has left */
} sim_port;

struct trib_sim_node {
    trib_sim_net *net;
    trib_sim_node *next;
    trib_sim_node *machine;                            /* whose wire it uses: mostly its own */
    trib_sim_node *further[TRIB_SIM_NETWORKS_MAX - 1]; /* its wires in other networks; no nodes of the network's */
    char name[TRIB_SIM_NAME_MAX];
    trib_sim_link link;
    sim_port wire, local;
    double ingress_byte_ns;
    int64_t ingress_free_ns;
    uint32_t group;
    bool dead;
    uint32_t last_port;
    sim_listener *listeners;
    uint64_t bytes_out, bytes_in;
};

typedef enum sim_kind { SIM_DATA, SIM_END_OF_STREAM, SIM_ACKNOWLEDGED, SIM_RESET } sim_kind;

/* Under way to the receiving end of a flow. */
typedef struct sim_quantum {
    trib_sim_event event;         /* first */
    struct sim_quantum *next;     /* free list */
    struct sim_quantum *all_next; /* every one there is */
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
    uint64_t pair_count;
    sim_quantum *free_quanta, *all_quanta;
    uint32_t transports;
    uint32_t asked; /* how often, whether devices alone would move something */
};

/* A message of which the sender's kernel has at least the beginning and the receiver has not all. */
typedef struct sim_message {
    struct sim_message *next;
    unsigned char header[TRIB_HEADER_SIZE];
    void *payload; /* a copy, once all of it is with the kernel; NULL: it has no contents */
    uint32_t payload_size;
    trib_recv_target target; /* the receiver's answer */
    trib_status refusal;     /* ... which ends the connection when the message's turn comes; TRIB_OK: it does not */
    bool asked;              /* the answer is there */
} sim_message;

/* One direction of a connection. */
struct sim_flow {
    sim_pair *pair;
    sim_flow *next; /* at its port */
    sim_port *port;
    sim_message *head, *tail;
    uint64_t unsent;      /* the kernel has it, the link not yet */
    uint64_t window_used; /* under way, or arrived and unread */
    uint64_t arrived;     /* unread */
    int64_t last_arrival_ns;
    int64_t progress_ns;            /* something was sent or read */
    int64_t busy_since_ns, busy_ns; /* it had something unsent or unread, and for how long before that */
    uint8_t from;                   /* index of the sending end */
    bool queued;                    /* at its port */
    bool finished;                  /* the sender sends no more; what it has sent is followed by an end of stream */
    bool ended;                     /* that has been sent */
    bool over;                      /* and has arrived */
    bool broken;                    /* reset: what is under way counts for nothing */
};

typedef enum sim_state {
    SIM_UNACCEPTED, /* the listener's side, before its turn */
    SIM_CONNECTING,
    SIM_OPEN,
    SIM_FLUSHING, /* hands what is queued to the kernel, reads nothing */
    SIM_ENDING,   /* end_work is on its way */
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
    trib_sim_node *node, *machine; /* whose wire of the connection's network is used */
    trib_sim_work connect_work, read_work, write_work, end_work;
    trib_post write_post;
    sim_state state;
    trib_send_queue sends;
    size_t head_sent;
    uint32_t header_got, payload_got;
    trib_status answer; /* of the attempt to connect */
    trib_status end_status;
    uint8_t index;
    bool want_write;                   /* the kernel had no room */
    bool paused, asking, resume_asked; /* as the contract's recv_resume needs */
    bool lingers;                      /* gone in order: what still arrives is read and thrown away */
    char reason[96];
};

struct sim_pair {
    trib_sim_net *net;
    sim_pair *next, *previous;
    sim_pair *next_waiting; /* at a listener */
    trib_sim_event knock;   /* the attempt to connect arrives */
    trib_sim_event silence; /* nothing came through for that long */
    int64_t retry_ns;
    uint32_t port;
    uint32_t references; /* ends that are not gone, quanta under way, posts */
    sim_end ends[2];     /* 0 has connected */
    sim_flow flows[2];   /* from the end of that index */
};

struct sim_listener {
    trib_listener base; /* first */
    trib_sim_node *node;
    sim_listener *next;
    uint32_t port;
    trib_sim_work work;
    sim_pair *head, *tail; /* waiting to be accepted */
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
/* An attempt to connect has arrived: it waits to be accepted, or false if nobody listens there. */
bool trib_sim_listener_offer(trib_sim_node *node, sim_pair *pair);
/* Where an address, or the first of a list, leads. */
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
/* On the listener's turn. */
void trib_sim_end_accept(sim_end *end, sim_transport *transport);
/* Ends it for that reason; no-op if it is ending already. */
void trib_sim_end_begin(sim_end *end, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* From the network: bytes or the end of the stream have arrived; the kernel has room again; the peer is no more. */
void trib_sim_end_readable(sim_end *end);
void trib_sim_end_writable(sim_end *end);
void trib_sim_end_reset(sim_end *end, const char *reason);

/* ---- sim_stream.c ---- */
/* Hands what is queued to the kernel, as far as it takes it. */
void trib_sim_stream_write(sim_end *end);
/* Reads a part of what has arrived and tells of the messages in it. */
void trib_sim_stream_read(sim_end *end);

/* ---- sim_net.c ---- */
void trib_sim_node_rates(trib_sim_node *node);
/* The flow has something to send, or has finished. */
void trib_sim_flow_ready(sim_flow *flow);
/* The receiver has read so much. */
void trib_sim_flow_read(sim_flow *flow, uint32_t bytes);
/* Forgets what the receiver has not read and what the link has not taken. */
void trib_sim_flow_drop(sim_flow *flow);
/* Tells the receiving end of the flow that the other is no more, one latency from now. */
void trib_sim_flow_reset(sim_flow *flow);
bool trib_sim_reachable(const sim_pair *pair);
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

/* Are both ends on one machine? */
static inline bool sim_is_local(const sim_pair *pair)
{
    return pair->ends[0].machine == pair->ends[1].machine;
}

static inline bool sim_is_in_memory(const sim_pair *pair)
{
    return sim_is_local(pair) && pair->net->config.local_memory;
}

/* Bytes for which the sender has no room any more: what waits for the link; in shared memory also what is unread. */
static inline uint64_t sim_flow_held(const sim_flow *flow)
{
    return flow->unsent + (sim_is_in_memory(flow->pair) ? flow->window_used : 0);
}

/* Has the flow bytes that the receiver has not read yet? */
static inline bool sim_flow_is_waiting(const sim_flow *flow)
{
    return flow->unsent > 0 || flow->window_used > 0;
}

/* May the end read what has arrived? One that is paused may take in what it has been asked about. */
static inline bool sim_end_reads(sim_end *end)
{
    const sim_message *first = sim_flow_to(end)->head;
    return end->state == SIM_OPEN && (!end->paused || (first != NULL && first->asked));
}

/* ---- sim_fault.c ---- */
/* The pair's limit of silence has passed. */
void trib_sim_pair_check_silence(trib_sim *sim, trib_sim_event *event);

#endif
