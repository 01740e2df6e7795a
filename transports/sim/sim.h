/*
 * sim.h - a simulated network as a transport: nodes whose links have a rate and a latency, streams that share them,
 * and faults on request. Time is that of engine/sim/reactor_sim.h.
 *
 * A node is a process's place in the network: one full-duplex link to a switch that never is the bottleneck, which nodes
 * of one machine share; what goes between those does not touch it, and leaves each at a rate of its own. Streams that
 * have something to send take turns on their node's link, a quantum each; at the receiving link quanta queue in the
 * order of their arrival. A stream has at most a window of bytes under way and unread, as TCP does; the kernel takes
 * bytes from a sender while fewer than a limit wait to be sent, and that is when `sent` is reported.
 *
 * Addresses are "NAME:PORT"; NAME is a node's, port 0 picks one. A node may have further links, each in a network of its own;
 * by the first of these it is "NAME~1". A listener takes a list of its node's addresses, with commas between, and a connection
 * to one goes by the first. A process must be attached to a node before its reactors open the transport.
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
    uint32_t quantum_bytes;  /* at most so much of one stream before another has its turn */
    uint32_t window_bytes;   /* of one stream, under way and unread */
    uint32_t unsent_bytes;   /* the kernel takes more of a stream while less than this waits for the link */
    bool second_connections; /* says of itself TRIB_TRANSPORT_QUEUES: what is urgent may have a connection of its own */
    bool moves_alone;        /* says so two times in three, of any memory, as RDMA does of what its devices know */
    double goodput;          /* share of a link's rate that carries our bytes; 0.956: TCP over Ethernet, MTU 1500 */
    uint64_t local_bits;     /* at which a node sends to others of its machine, bits per second */
    int64_t local_latency_ns; /* and the time it takes */
    bool local_memory;        /* that way is shared memory: a message costs its reader a copy, and no system's work */
    const void *void_base;    /* payloads that lie in this piece of memory have no contents: only their times are */
    size_t void_bytes;        /* right, nothing is copied; for studies of jobs larger than this machine's memory */
    uint32_t ahead; /* while a payload lands its receiver is asked about up to so many messages that follow, */
                    /* at most TRIB_AHEAD_MAX - 1: their headers come before their time, as over RDMA; 0: none */
} trib_sim_net_config;

trib_sim_net_config trib_sim_net_config_default(void);

/* NULL when out of memory. */
trib_sim_net *trib_sim_net_create(trib_sim *sim, const trib_sim_net_config *config);
/* Every transport on it must have been closed. */
void trib_sim_net_free(trib_sim_net *net);

typedef struct trib_sim_link {
    uint64_t egress_bits, ingress_bits; /* per second */
    int64_t latency_ns;                 /* to the switch or from it; two nodes are the sum of theirs apart */
} trib_sim_link;

/* The network owns it. NULL when out of memory. */
trib_sim_node *trib_sim_node_create(trib_sim_net *net, const char *name, const trib_sim_link *link);
/* It is on the other one's machine from now on, and shares its link; before anything is connected. */
void trib_sim_node_join(trib_sim_node *node, trib_sim_node *other);
/* Another link, for whatever shares the node's machine, too; before it hosts a process. NULL when out of memory. It belongs to
 * the node, and can be relinked as one. */
trib_sim_node *trib_sim_node_add_link(trib_sim_node *node, const trib_sim_link *link);
/* Puts the process there: trib_sim_process_attach. */
void trib_sim_node_host(trib_sim_node *node, trib_sim_process *process);
/* The link that it has or shares, from the next quantum on. */
void trib_sim_node_relink(trib_sim_node *node, const trib_sim_link *link);
uint64_t trib_sim_node_bytes_out(const trib_sim_node *node); /* over its machine's link, without what stayed there */
uint64_t trib_sim_node_bytes_in(const trib_sim_node *node);

/* ---- Faults ---- */

/* Nodes reach each other if they are in the same group; all begin in group 0. */
void trib_sim_node_regroup(trib_sim_node *node, uint32_t group);
/* The process there is gone: its connections end, the peers that it reaches see a reset, nobody can connect to it. */
void trib_sim_node_kill(trib_sim_node *node);
/* Resets an open connection, the index-th of those there are, modulo their number. False: there is none. */
bool trib_sim_net_reset(trib_sim_net *net, uint64_t index);

/* Small disturbances, drawn for each quantum. 0 everywhere: none. */
typedef struct trib_sim_weather {
    uint64_t shred_one_in; /* a quantum of 1 to 100 bytes */
    uint64_t delay_one_in; /* it comes later by up to delay_ns, and with it what the stream sends after it */
    int64_t delay_ns;
} trib_sim_weather;

void trib_sim_net_weather(trib_sim_net *net, const trib_sim_weather *weather);

#endif
