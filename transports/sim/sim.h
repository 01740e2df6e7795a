/*
 * sim.h - a simulated network as a transport: nodes whose links have a rate and a latency, streams that share them,
 * and faults on request. Time is that of engine/sim/reactor_sim.h.
 *
 * A node is a process's place in the network. Its full-duplex link leads to a switch that is never the bottleneck; the
 * nodes of one machine share one link. Traffic between nodes of one machine does not touch the link and has a rate of
 * its own. Streams that have something to send take turns on their node's link, a quantum each; at the receiving link
 * quanta queue in the order of their arrival. A stream has at most a window of bytes under way and unread, as in TCP.
 * The kernel accepts bytes from a sender while fewer than a limit wait to be sent, and reports `sent` then.
 *
 * Addresses are "NAME:PORT"; NAME is a node's, port 0 picks a free one. A node may have further links, each in a
 * network of its own; its address in the first of these is "NAME~1". A listener takes a list of its node's addresses
 * with commas between, and a connection to a list uses the first address. A process must be attached to a node before
 * its reactors open the transport.
 */
#ifndef TRIB_TRANSPORTS_SIM_SIM_H
#define TRIB_TRANSPORTS_SIM_SIM_H

#include "engine/sim/reactor_sim.h"
#include "transports/transport.h"

extern const trib_transport_ops trib_sim_transport_ops;

typedef struct trib_sim_net trib_sim_net;
typedef struct trib_sim_node trib_sim_node;

#define TRIB_SIM_NAME_MAX 24
#define TRIB_SIM_NETWORKS_MAX 4u

typedef struct trib_sim_net_config {
    uint32_t quantum_bytes;  /* bytes of one stream before another has its turn, at most */
    uint32_t window_bytes;   /* bytes of one stream under way and unread, at most */
    uint32_t unsent_bytes;   /* the kernel accepts more of a stream while less than this waits for the link */
    bool second_connections; /* has TRIB_TRANSPORT_QUEUES: urgent messages get a connection of their own */
    bool offloads;       /* offloads is true two times in three, for any memory, as with RDMA and registered memory */
    double goodput;      /* part of a link's rate that carries our bytes; 0.956: TCP over Ethernet, MTU 1500 */
    uint64_t local_bits; /* rate between nodes of one machine, bits per second */
    int64_t local_latency_ns; /* latency between nodes of one machine */
    bool local_memory;        /* nodes of one machine use shared memory: a message costs its reader only a copy */
    /* Payloads in this memory have no contents: nothing is copied, and only their times are right. For studies of
     * jobs that are larger than this machine's memory. */
    const void *void_base;
    size_t void_bytes;
    /* Messages that a receiver is asked about while an earlier payload arrives, 0 to TRIB_AHEAD_MAX - 1: their headers
     * come early, as over RDMA. */
    uint32_t ahead;
    /* `sent` is reported by so much later at most, drawn for each batch: a device reports it when the peer has
     * acknowledged the message, as over RDMA. The answer may come first. 0: when the kernel has the message. */
    int64_t sent_late_ns;
} trib_sim_net_config;

trib_sim_net_config trib_sim_net_config_default(void);

/* NULL if out of memory. */
trib_sim_net *trib_sim_net_create(trib_sim *sim, const trib_sim_net_config *config);
/* Every transport on it must have been closed. */
void trib_sim_net_free(trib_sim_net *net);

typedef struct trib_sim_link {
    uint64_t egress_bits, ingress_bits; /* bits per second */
    int64_t latency_ns;                 /* to or from the switch; two nodes are the sum of theirs apart */
} trib_sim_link;

/* The network owns the node. NULL if out of memory. */
trib_sim_node *trib_sim_node_create(trib_sim_net *net, const char *name, const trib_sim_link *link);
/* Puts the node on the other one's machine, whose link it shares; before anything is connected. */
void trib_sim_node_join(trib_sim_node *node, trib_sim_node *other);
/* Adds another link to the node's machine; before the node hosts a process. NULL if out of memory. The node owns it,
 * and it can be relinked as a node. */
trib_sim_node *trib_sim_node_add_link(trib_sim_node *node, const trib_sim_link *link);
/* Puts the process on the node (trib_sim_process_attach). */
void trib_sim_node_host(trib_sim_node *node, trib_sim_process *process);
/* Changes the link that the node has or shares, from the next quantum on. */
void trib_sim_node_relink(trib_sim_node *node, const trib_sim_link *link);
uint64_t
trib_sim_node_bytes_out(const trib_sim_node *node); /* over its machine's link; not between nodes of the machine */
uint64_t trib_sim_node_bytes_in(const trib_sim_node *node);

/* ---- Faults ---- */

/* Nodes reach each other if they are in the same group; all begin in group 0. */
void trib_sim_node_regroup(trib_sim_node *node, uint32_t group);
/* Lets nothing leave the node, or nothing reach it. */
void trib_sim_node_block(trib_sim_node *node, bool out, bool in);
/* Nothing passes between the two nodes, which reach all others, or it does again. Of a network's first 64 nodes. */
void trib_sim_node_shun(trib_sim_node *node, trib_sim_node *other, bool begins);
/* A firewall begins to refuse connections that the node makes, or ends that. Others reach the node. */
void trib_sim_node_reject(trib_sim_node *node, bool begins);
/* Ends the process there: its connections end, the peers that it reaches see a reset, nobody can connect to it. */
void trib_sim_node_kill(trib_sim_node *node);
/* Resets the open connection number index modulo their count. False if there is none. */
bool trib_sim_net_reset(trib_sim_net *net, uint64_t index);
/* Forgets one as a gateway does: nothing passes on it any more, and neither end is told. */
bool trib_sim_net_forget(trib_sim_net *net, uint64_t index);

/* Small disturbances, drawn for each quantum or message. 0: never. */
typedef struct trib_sim_weather {
    uint64_t shred_one_in; /* a quantum has 1 to 100 bytes only */
    uint64_t delay_one_in; /* it comes later by up to delay_ns, and so does what the stream sends after it */
    int64_t delay_ns;
    uint64_t flip_one_in; /* drawn for each message between machines: one of its bits flips on the way */
} trib_sim_weather;

void trib_sim_net_weather(trib_sim_net *net, const trib_sim_weather *weather);

/* A forged message that is put into a stream. The network frees the payload. */
typedef struct trib_sim_forged {
    unsigned char header[TRIB_HEADER_SIZE];
    void *payload; /* NULL if payload_size is 0 */
    uint32_t payload_size;
} trib_sim_forged;

/* Called when a stream between machines begins with a message. True: *forged_out goes before it. `stream` tells the
 * directions of connections apart. */
typedef bool trib_sim_forge(void *user, const void *stream, const trib_send *send, trib_sim_forged *forged_out);

void trib_sim_net_forge(trib_sim_net *net, trib_sim_forge *forge, void *user); /* NULL: no message is forged */

#endif
