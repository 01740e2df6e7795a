/* peer_world.c - see peer_world.h. */
#include "tests/fuzz/peer_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_LIMIT_NS (120 * 1000 * MS)

void world_run(world *self, int64_t ns)
{
    const int64_t until_ns = trib_sim_now(self->sim) + ns;
    while (trib_sim_next(self->sim) <= until_ns && trib_sim_step(self->sim)) {}
}

/* ---- The peer's connections ---- */

trib_send *world_send_new(size_t payload_size)
{
    trib_send *send = calloc(1, sizeof *send + payload_size);
    require(send != NULL);
    return send;
}

void world_send(wire_conn *self, trib_frame frame, const void *payload, size_t size)
{
    if (self == NULL || self->conn == NULL) {
        return;
    }
    trib_send *send = world_send_new(size);
    frame.payload_size = (uint32_t)size;
    trib_frame_encode(&frame, send->header);
    if (size > 0) {
        memcpy(send + 1, payload, size);
    }
    send->payload = send + 1;
    send->payload_size = (uint32_t)size;
    self->conn->transport->ops->send(self->conn, send);
}

static void sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)conn;
    (void)status;
    free(send);
}

static wire_conn *conn_new(world *self, trib_conn *conn)
{
    require(self->conn_count < CONNS_MAX);
    wire_conn *mine = &self->conns[self->conn_count++];
    *mine = (wire_conn){.world = self, .conn = conn};
    return mine;
}

static void accepted(trib_listener *listener, trib_conn *conn)
{
    world *self = listener->user;
    if (self->conn_count == CONNS_MAX) {
        conn->user = NULL;
        conn->transport->ops->conn_close(conn, false);
        return;
    }
    conn->user = conn_new(self, conn);
}

static void connected(trib_conn *conn, trib_status status)
{
    wire_conn *self = conn->user;
    if (status != TRIB_OK) {
        return;
    }
    unsigned char bytes[TRIB_HELLO_SIZE];
    self->handshake.purpose = self->purpose;
    self->handshake.member = 1;
    trib_auth_put_hello(&self->handshake, bytes);
    world_send(self, (trib_frame){.type = TRIB_FRAME_HELLO}, bytes, sizeof bytes);
}

static trib_status header(trib_conn *conn, const unsigned char bytes[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    wire_conn *self = conn->user;
    trib_frame frame;
    trib_error error;
    require(trib_frame_decode(bytes, &frame, &error) == TRIB_OK); /* the engine itself keeps to the protocol */
    target->payload_size = frame.payload_size;
    target->buffer = frame.payload_size <= PAYLOAD_MAX ? self->target : self->world->discard;
    return TRIB_OK;
}

/* Plays the other side of a handshake that the engine begins; its nonce is 0. */
static void take_hello(wire_conn *self, const unsigned char *payload)
{
    trib_auth_get_hello(payload, &self->handshake);
    self->purpose = self->handshake.purpose;
    world_send(self, (trib_frame){.type = TRIB_FRAME_CHALLENGE}, self->handshake.acceptor_nonce, TRIB_NONCE_SIZE);
}

static void take_proof(wire_conn *self)
{
    unsigned char welcome[TRIB_WELCOME_SIZE] = {0}; /* a proof, and that nothing was received */
    trib_auth_prove(self->world->key, &self->handshake, false, welcome);
    self->ready = true;
    world_send(self, (trib_frame){.type = TRIB_FRAME_WELCOME}, welcome, sizeof welcome);
}

static void take_challenge(wire_conn *self, const unsigned char *payload)
{
    unsigned char proof[TRIB_PROOF_SIZE];
    memcpy(self->handshake.acceptor_nonce, payload, TRIB_NONCE_SIZE);
    trib_auth_prove(self->world->key, &self->handshake, true, proof);
    world_send(self, (trib_frame){.type = TRIB_FRAME_PROOF, .epoch = self->world->epoch}, proof, sizeof proof);
}

static void learn(world *self, const trib_member_info *info)
{
    self->engine_info = *info;
    self->knows_engine = true;
}

/* A JOIN's description of its sender comes behind two words. */
static void take_join(world *self, const unsigned char *payload, size_t size)
{
    trib_reader reader = {.data = payload, .left = size};
    trib_member_info info;
    (void)trib_get_u32(&reader);
    (void)trib_get_u32(&reader);
    if (trib_member_info_get(&reader, &info, NULL) == TRIB_OK) {
        learn(self, &info);
    }
}

static void take_roster(world *self, const unsigned char *payload, size_t size)
{
    trib_reader reader = {.data = payload, .left = size};
    trib_roster *roster = NULL;
    if (trib_roster_get(&reader, &roster, NULL) == TRIB_OK) {
        learn(self, &roster->members[0]);
        free(roster);
    }
}

static void received(trib_conn *conn, const unsigned char bytes[TRIB_HEADER_SIZE], const void *payload, uint32_t size)
{
    wire_conn *self = conn->user;
    trib_frame frame;
    trib_error error;
    require(trib_frame_decode(bytes, &frame, &error) == TRIB_OK);
    if (trib_epoch_incarnation(frame.epoch) != 0) {
        self->world->epoch = trib_epoch_make(trib_epoch_incarnation(frame.epoch), 1);
    }
    switch (frame.type) {
    case TRIB_FRAME_HELLO:
        take_hello(self, payload);
        break;
    case TRIB_FRAME_CHALLENGE:
        take_challenge(self, payload);
        break;
    case TRIB_FRAME_PROOF:
        take_proof(self);
        break;
    case TRIB_FRAME_WELCOME:
        self->ready = true;
        break;
    case TRIB_FRAME_PING:
        if (!self->world->mute) {
            world_send(self, (trib_frame){.type = TRIB_FRAME_PONG, .sender = frame.sender ^ 1, .epoch = frame.epoch},
                       NULL, 0);
        }
        break;
    case TRIB_FRAME_JOIN:
        take_join(self->world, payload, size);
        break;
    case TRIB_FRAME_ROSTER:
        take_roster(self->world, payload, size);
        break;
    case TRIB_FRAME_DECLARE:
        self->world->tag = frame.tensor;
        break;
    default:
        break;
    }
}

static void conn_closed(trib_conn *conn, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    wire_conn *self = conn->user;
    if (self != NULL) {
        self->conn = NULL;
        self->ready = false;
    }
}

static const trib_transport_upcalls upcalls = {.accepted = accepted,
                                               .connected = connected,
                                               .header = header,
                                               .received = received,
                                               .sent = sent,
                                               .closed = conn_closed};

wire_conn *world_find(world *self, bool data)
{
    for (uint32_t i = self->conn_count; i > 0; i--) {
        wire_conn *conn = &self->conns[i - 1];
        if (conn->conn != NULL && conn->ready && (conn->purpose == TRIB_PURPOSE_DATA) == data) {
            return conn;
        }
    }
    return NULL;
}

void world_dial(world *self, const char *to, trib_purpose purpose)
{
    trib_address address;
    if (self->conn_count == CONNS_MAX) {
        return;
    }
    (void)snprintf(address.text, sizeof address.text, "%s", to);
    wire_conn *conn = conn_new(self, NULL);
    conn->purpose = purpose;
    if (self->transport->ops->connect(self->transport, &address, conn, &conn->conn) != TRIB_OK) {
        conn->conn = NULL;
    }
}

/* ---- Beginning and end ---- */

static void on_closed(trib_engine *engine, void *user)
{
    (void)engine;
    ((world *)user)->closed = true;
}

static void open_engine(world *self)
{
    trib_config config;
    trib_error error = {.text = ""};
    trib_config_init(&config, sizeof config);
    config.worker_count = 2;
    config.rank = self->coordinates ? 1 : 0;
    config.coordinator = self->coordinates ? "n1:4000" : "n0:4000";
    config.listen = "n0";
    config.token = WORLD_TOKEN;
    config.reactors = 1;
    config.chunk_bytes = CHUNK_BYTES;
    config.partition_bytes = 2 * CHUNK_BYTES;
    config.log_level = TRIB_LOG_NONE;
    config.join_timeout_ns = 3000 * MS;
    config.peer_timeout_ns = PEER_TIMEOUT_NS;
    config.close_timeout_ns = 1000 * MS;
    config.survive = self->survives ? TRIB_SURVIVE_WORKERS : TRIB_SURVIVE_NOTHING;
    const trib_sim_host host = {.process = self->processes[0], .place = "n0:1"};
    require(trib_engine_create_sim(&host, &config, &self->engine, &error) == TRIB_OK);
}

static void open_peer(world *self)
{
    const trib_transport_config config = {.send_buffer_bytes = 0};
    trib_address at, bound;
    trib_error error = {.text = ""};
    self->logger.level = TRIB_LOG_NONE;
    self->reactor = trib_sim_reactor_create(self->processes[1], 0, &self->logger);
    require(self->reactor != NULL);
    require(trib_sim_transport_ops.open(self->reactor, &config, &upcalls, &self->transport) == TRIB_OK);
    (void)snprintf(at.text, sizeof at.text, "n1:4000");
    require(trib_sim_transport_ops.listen(self->transport, &at, self, &self->listener, &bound, &error) == TRIB_OK);
    trib_assert(trib_auth_key(WORLD_TOKEN, "default", self->key) == TRIB_OK);
}

void world_open(world *self)
{
    static const char *const names[] = {"n0", "n1"};
    trib_sim_net_config net = trib_sim_net_config_default();
    const trib_sim_costs costs = trib_sim_costs_default();
    const trib_sim_link link = {.egress_bits = 10000000000, .ingress_bits = 10000000000, .latency_ns = 15000};
    net.ahead = self->ahead;
    self->sim = trib_sim_create(1);
    self->net = self->sim != NULL ? trib_sim_net_create(self->sim, &net) : NULL;
    require(self->net != NULL);
    for (unsigned i = 0; i < 2; i++) {
        self->machines[i] = trib_sim_machine_create(self->sim, 2);
        require(self->machines[i] != NULL);
        self->processes[i] = trib_sim_process_create(self->machines[i], &costs, i);
        self->nodes[i] = trib_sim_node_create(self->net, names[i], &link);
        require(self->processes[i] != NULL && self->nodes[i] != NULL);
        trib_sim_node_host(self->nodes[i], self->processes[i]);
    }
    open_peer(self);
    open_engine(self);
    if (!self->coordinates) {
        world_dial(self, "n0:4000", TRIB_PURPOSE_CONTROL);
    }
    world_run(self, 2 * MS);
}

void world_close(world *self)
{
    trib_engine_close(self->engine, on_closed, self);
    const int64_t limit_ns = trib_sim_now(self->sim) + CLOSE_LIMIT_NS;
    while (!self->closed && trib_sim_next(self->sim) <= limit_ns && trib_sim_step(self->sim)) {}
    require(self->closed); /* an engine closes whatever a peer sends */
    for (uint32_t i = 0; i < self->attempt_count; i++) {
        require(self->attempts[i].callbacks == 1);
        trib_op_release(self->attempts[i].op);
    }
    require(trib_engine_destroy(self->engine) == TRIB_OK);
    for (uint32_t i = 0; i < self->conn_count; i++) {
        if (self->conns[i].conn != NULL) {
            self->transport->ops->conn_close(self->conns[i].conn, false);
        }
    }
    self->transport->ops->listener_close(self->listener);
    world_run(self, 1000 * MS);
    self->transport->ops->close(self->transport);
    trib_sim_reactor_free(self->reactor);
    for (unsigned i = 0; i < 2; i++) {
        trib_sim_process_free(self->processes[i]);
        trib_sim_machine_free(self->machines[i]);
    }
    trib_sim_net_free(self->net);
    trib_sim_free(self->sim);
}
