/* peer_world.h - an engine in virtual time and a simulated peer, which has the token. fuzz_peer.c acts as this peer. */
#ifndef TRIB_TESTS_FUZZ_PEER_WORLD_H
#define TRIB_TESTS_FUZZ_PEER_WORLD_H

#include "api/env/sim/env_sim.h"
#include "engine/link/link.h"
#include "engine/cluster/roster.h"

#define MS INT64_C(1000000)
#define PEER_TIMEOUT_NS (4000 * MS)
#define OPS_MAX 16
#define CONNS_MAX 8
#define PAYLOAD_MAX 4096
#define CHUNK_BYTES 4096
#define ELEMENTS 600       /* of "w": a part of a chunk */
#define ELEMENTS_MAX 3000u /* of "v": two partitions */
#define WORLD_TOKEN "a virtual secret of the fuzzed world"

static inline void require(bool holds)
{
    if (!holds) {
        __builtin_trap();
    }
}

typedef struct world world;

typedef struct wire_conn {
    world *world;
    trib_conn *conn; /* NULL: over */
    bool ready;
    uint32_t purpose;
    trib_handshake handshake;
    unsigned char target[PAYLOAD_MAX];
} wire_conn;

typedef struct attempt {
    trib_op *op;
    unsigned callbacks;
    float data[ELEMENTS_MAX];
} attempt;

struct world {
    bool coordinates; /* the peer is the coordinator */
    uint32_t epoch;   /* of the job; the peer's own choice, or what the engine's frames bear */
    bool mute;        /* it gives no sign of life by itself */
    bool survives;    /* TRIB_SURVIVE=workers */
    uint32_t ahead;   /* messages that receivers are asked about before their turn */
    trib_sim *sim;
    trib_sim_net *net;
    trib_sim_machine *machines[2]; /* the engine's, the peer's */
    trib_sim_process *processes[2];
    trib_sim_node *nodes[2];
    trib_engine *engine;
    bool closed;
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    unsigned char key[TRIB_KEY_SIZE];
    wire_conn conns[CONNS_MAX];
    uint32_t conn_count;
    trib_member_info engine_info; /* the description that the member has sent of itself */
    bool knows_engine;
    uint32_t tag; /* of the tensor that the engine declared last */
    unsigned char discard[TRIB_PAYLOAD_MAX];
    attempt attempts[OPS_MAX];
    uint32_t attempt_count;
};

/* Creates the engine, which has no peer yet; the peer listens at n1:4000 or has called n0:4000. */
void world_open(world *self);
/* Closes both and checks what must hold then. */
void world_close(world *self);
void world_run(world *self, int64_t ns);

/* No-op if there is no connection. */
void world_send(wire_conn *self, trib_frame frame, const void *payload, size_t size);
/* Returns the youngest live connection that has finished the handshake; NULL if there is none. */
wire_conn *world_find(world *self, bool data);
void world_dial(world *self, const char *to, trib_purpose purpose);
/* Returns memory that is freed with the `sent` upcall. */
trib_send *world_send_new(size_t payload_size);

#endif
