/*
 * fuzz_peer.c - a member that has the token sends anything to an engine in virtual time. Whatever it sends, the
 * engine does not crash, every operation of its caller completes exactly once, and the engine closes.
 *
 * The first byte's lowest bit chooses the roles. 0: the engine is rank 0 and coordinates, and the peer would join it.
 * 1: the peer coordinates and the engine would join. The next bit makes the peer mute: it gives no sign of life by
 * itself. With the third bit, receivers are asked about messages ahead of their turn, and consecutive frames are sent
 * at once. With the fourth bit the job goes on without members that are lost. The rest is a list of acts, a byte each
 * with its arguments (act_of).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/codec/encoding.h"
#include "engine/membership/job_settings.h"
#include "tests/fuzz/peer_world.h"

#define ACTS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- The input ---- */

typedef struct script {
    const uint8_t *data;
    size_t left;
} script;

static uint8_t next_u8(script *self)
{
    if (self->left == 0) {
        return 0;
    }
    self->left--;
    return *self->data++;
}

static uint32_t next_u32(script *self)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        value |= (uint32_t)next_u8(self) << 8 * i;
    }
    return value;
}

/* ---- Acts ---- */

static void act_frame(world *self, script *from)
{
    const uint8_t type = next_u8(from), shape = next_u8(from);
    unsigned char payload[PAYLOAD_MAX] = {0};
    trib_frame frame = {.type = (trib_frame_type)(1 + type % (TRIB_FRAME_COUNT - 1)),
                        .sender = self->coordinates ? 0 : 1,
                        .epoch = 1,
                        .tensor = self->tag,
                        .round = 1,
                        .chunk_count = 1,
                        .size = shape & 64 ? CHUNK_BYTES : ELEMENTS * sizeof(float),
                        .dtype = TRIB_FLOAT32};
    uint32_t *const fields[] = {&frame.epoch, &frame.tensor,      &frame.partition, &frame.round,
                                &frame.chunk, &frame.chunk_count, &frame.size,      &frame.root};
    for (unsigned changes = shape >> 1 & 3; changes > 0; changes--) {
        const uint8_t which = next_u8(from);
        *fields[which % 8] = which & 0x80 ? next_u32(from) : next_u8(from);
    }
    if (shape & 8) {
        frame.aux = next_u32(from);
    }
    if (shape & 16) {
        frame.collective = next_u8(from);
        frame.dtype = next_u8(from);
        frame.reduce = next_u8(from);
    }
    size_t size = frame.size;
    if (shape & 32) { /* with a payload of its own */
        size = next_u8(from);
        for (size_t i = 0; i < size; i++) {
            payload[i] = next_u8(from);
        }
    } else if (frame.type != TRIB_FRAME_PUSH && frame.type != TRIB_FRAME_SUM) {
        size = 0;
    }
    const uint32_t most =
        trib_frame_payload_max(frame.type) < PAYLOAD_MAX ? trib_frame_payload_max(frame.type) : PAYLOAD_MAX;
    world_send(world_find(self, shape & 1), frame, payload, size < most ? size : most);
}

/* Sends a chunk of the engine's tensor, or its sum, as a codec makes it; whole, cut short, or with bytes changed. */
static void act_encoded(world *self, script *from)
{
    static const char *const texts[] = {"int8",     "onebit,two_way",     "topk,k=5,two_way", "fp16",
                                        "fp8_e4m3", "randomk,k=7,seed=3", "dithering,k=4",    "bf16,two_way"};
    unsigned char payload[PAYLOAD_MAX] = {0};
    float elements[ELEMENTS];
    trib_codec_config config;
    const uint8_t shape = next_u8(from), damage = next_u8(from);
    require(trib_codec_parse(texts[shape % 8], &config, NULL) == TRIB_OK);
    require(config.codec->bound(&config.params, TRIB_FLOAT32, ELEMENTS) <= PAYLOAD_MAX - TRIB_ENCODING_BYTES);
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        elements[i] = (float)i - 299.0f;
    }
    const trib_encoding encoding = {
        .codec = config.codec, .params = config.params, .two_way = config.two_way, .partition_count = ELEMENTS};
    const trib_codec_place place = {.partition_count = ELEMENTS, .rank = 1};
    trib_encoding_put(&encoding, payload);
    if (damage & 16) { /* the partition's count, which trib_encoding_put asserts */
        memset(payload + TRIB_ENCODING_SHARED_BYTES, 0, TRIB_ENCODING_BYTES - TRIB_ENCODING_SHARED_BYTES);
        payload[TRIB_ENCODING_SHARED_BYTES] = next_u8(from);
    }
    uint32_t size = TRIB_ENCODING_BYTES + config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, elements,
                                                               ELEMENTS, payload + TRIB_ENCODING_BYTES);
    for (unsigned changes = damage & 7; changes > 0; changes--) {
        const uint32_t at = next_u32(from) % size;
        payload[at] = next_u8(from);
    }
    if (damage & 8) {
        size = size * next_u8(from) / 255;
    }
    const bool is_sum = (shape & 16) != 0 && size >= TRIB_ENCODING_BYTES; /* a sum has no description */
    const uint32_t skipped = is_sum ? TRIB_ENCODING_BYTES : 0;
    const trib_frame frame = {.type = is_sum ? TRIB_FRAME_SUM : TRIB_FRAME_PUSH,
                              .sender = self->coordinates ? 0 : 1,
                              .epoch = self->epoch,
                              .tensor = damage & 64 ? next_u8(from) : 1, /* 0 is the barrier's */
                              .round = 1,
                              .chunk_count = 1,
                              .size = ELEMENTS * sizeof(float),
                              .dtype = TRIB_FLOAT32,
                              .codec = damage & 32 ? next_u8(from) : config.codec->id};
    world_send(world_find(self, true), frame, payload + skipped, size - skipped);
}

/* Sends bytes that need not be a frame. */
static void act_raw(world *self, script *from)
{
    wire_conn *conn = world_find(self, next_u8(from) & 1);
    trib_send *send = world_send_new(0);
    for (unsigned i = 0; i < TRIB_HEADER_SIZE; i++) {
        send->header[i] = next_u8(from);
    }
    if (conn == NULL) {
        free(send);
        return;
    }
    conn->conn->transport->ops->send(conn->conn, send);
}

static trib_member_info own_info(void)
{
    trib_member_info info = {.roles = TRIB_ROLE_WORKER, .sums = true, .reactors = 1};
    (void)snprintf(info.name, sizeof info.name, "the peer");
    (void)snprintf(info.addresses[0].text, sizeof info.addresses[0].text, "n1:4000");
    return info;
}

/* Sends JOIN, or the roster that answers the engine's. */
static void act_join(world *self, script *from)
{
    unsigned char payload[PAYLOAD_MAX];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    const uint8_t shape = next_u8(from);
    const trib_member_info own = own_info();
    if (!self->coordinates) {
        trib_put_u32(&writer, 2);
        trib_put_u32(&writer, 0);
        trib_member_info_put(&writer, &own);
        trib_config config;
        trib_config_init(&config, sizeof config);
        const trib_job_settings settings = trib_job_settings_of(&config);
        trib_job_settings_put(&writer, &settings);
        world_send(world_find(self, false), (trib_frame){.type = TRIB_FRAME_JOIN, .sender = 1, .root = 1 + shape % 4},
                   payload, writer.size);
        return;
    }
    trib_roster *roster = trib_roster_create(2);
    require(roster != NULL);
    roster->epoch = self->epoch;
    roster->worker_count = roster->member_count = 2;
    roster->chunk_bytes = CHUNK_BYTES;
    roster->partition_bytes = shape & 1 ? CHUNK_BYTES : 2 * CHUNK_BYTES;
    roster->sum_order = shape & 2 ? TRIB_ORDER_ARRIVAL : TRIB_ORDER_RANK;
    roster->peer_timeout_ns = PEER_TIMEOUT_NS;
    roster->members[0] = own;
    roster->members[1] = self->engine_info;
    roster->members[1].sums = (shape & 4) == 0;
    trib_roster_put(&writer, roster);
    free(roster);
    world_send(world_find(self, false),
               (trib_frame){.type = TRIB_FRAME_ROSTER, .epoch = self->epoch, .root = shape & 8 ? 0 : 1}, payload,
               writer.overflow ? 0 : writer.size);
}

/* Writes the description of the engine's tensor, or of another one, by the bits of `shape`. */
static void put_tensor(trib_writer *writer, uint8_t shape, script *from)
{
    const bool sliced = (shape & 128) != 0;
    trib_put_text(writer, shape & 8 ? "w" : "other");
    trib_put_u8(writer, shape & 16 ? next_u8(from) : TRIB_FLOAT32);
    trib_put_u64(writer, shape & 32 ? (uint64_t)next_u32(from) << (shape & 64 ? 32 : 0) : ELEMENTS);
    trib_put_u8(writer, sliced ? next_u8(from) & 3 : TRIB_WHOLE);
    trib_put_u64(writer, sliced ? next_u8(from) : 1);
    trib_put_u8(writer, sliced ? 1 : 0);
    if (sliced) {
        trib_put_u64(writer, ELEMENTS);
    }
    const bool is_encoded = sliced ? next_u8(from) == 7 : (shape & 96) == 64;
    trib_put_text(writer, is_encoded ? "topk,k=5,ef=vanilla,two_way" : "none");
    trib_put_u32(writer, 0); /* no quorum */
    trib_put_u64(writer, 0);
    trib_put_u32(writer, sliced ? next_u8(from) & 3 : 0);
}

/* Writes the owners of the tensor's partitions, right or wrong by the bits of `shape`. */
static void put_owners(trib_writer *writer, uint8_t shape, script *from)
{
    const uint32_t count = shape & 1 ? next_u8(from) : 1;
    trib_put_u32(writer, shape & 2 ? next_u32(from) : 2 * CHUNK_BYTES);
    trib_put_u32(writer, count);
    for (uint32_t i = 0; i < count; i++) {
        trib_put_u16(writer, shape & 4 ? next_u8(from) : i % 2);
        trib_put_u16(writer, shape & 8 ? next_u8(from) : 0);
    }
    trib_put_u64(writer, shape & 32 ? next_u32(from) : ELEMENTS); /* of the only slice */
}

/* Sends DECLARE for the engine's tensor or for another one, or the owners of its partitions. */
static void act_declare(world *self, script *from)
{
    unsigned char payload[PAYLOAD_MAX];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    const uint8_t shape = next_u8(from);
    trib_frame frame = {.type = TRIB_FRAME_DECLARE, .sender = 1, .epoch = 1, .tensor = shape & 7};
    if (!self->coordinates) {
        put_tensor(&writer, shape, from);
    } else {
        frame = (trib_frame){
            .type = TRIB_FRAME_DECLARED, .epoch = 1, .tensor = self->tag, .aux = shape & 16 ? next_u32(from) : 1};
        put_owners(&writer, shape, from);
    }
    world_send(world_find(self, false), frame, payload, writer.overflow ? 0 : writer.size);
}

static void act_close(world *self, script *from)
{
    const uint8_t shape = next_u8(from);
    const wire_conn *conn = world_find(self, shape & 1);
    if (conn != NULL) {
        conn->conn->transport->ops->conn_close(conn->conn, (shape & 2) != 0);
    }
}

static void on_done(const trib_result *result, void *user)
{
    attempt *mine = user;
    mine->callbacks++;
    require(result->status != TRIB_PENDING && memchr(result->text, '\0', TRIB_ERROR_TEXT_SIZE) != NULL);
}

/* Makes a call as the engine's caller. */
static void act_call(world *self, script *from)
{
    const uint8_t shape = next_u8(from);
    if (shape % 4 == 3 && self->attempt_count > 0) {
        trib_op_cancel(self->attempts[self->attempt_count - 1].op);
        return;
    }
    if (self->attempt_count == OPS_MAX) {
        return;
    }
    attempt *mine = &self->attempts[self->attempt_count];
    trib_tensor_desc desc;
    trib_op_params params;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = shape & 4 ? "v" : "w";
    desc.dtype = TRIB_FLOAT32;
    desc.count = shape & 4 ? ELEMENTS_MAX : ELEMENTS;
    desc.codec = shape & 16 ? "topk,k=5,ef=vanilla,two_way" : NULL;
    params.input = params.output = mine->data;
    params.root = shape >> 3 & 1;
    params.timeout_ns = 2000 * MS;
    params.done_cb = on_done;
    params.user = mine;
    trib_status (*const calls[])(trib_engine *, const trib_op_params *, trib_op **,
                                 trib_error *) = {trib_push_pull, trib_broadcast, trib_barrier, trib_push_pull};
    trib_error error;
    if (trib_tensor_declare(self->engine, &desc, &params.tensor, &error) == TRIB_OK &&
        calls[shape % 4](self->engine, &params, &mine->op, &error) == TRIB_OK) {
        self->attempt_count++;
    }
}

static void act_of(world *self, script *from)
{
    if (self->coordinates && !self->mute) {
        world_send(world_find(self, false), (trib_frame){.type = TRIB_FRAME_PING, .epoch = 1}, NULL, 0);
    }
    static void (*const acts[])(world *, script *) = {act_frame, act_frame, act_raw,    act_join,
                                                      act_call,  act_close, act_declare};
    const uint8_t act = next_u8(from) % 10;
    if (act < sizeof acts / sizeof acts[0]) {
        acts[act](self, from);
    } else if (act == 9) {
        act_encoded(self, from);
    } else if (act == 7 && self->knows_engine) {
        world_dial(self, self->engine_info.addresses[0].text, TRIB_PURPOSE_DATA);
    }
    const bool more_follows = self->ahead > 0 && act < 3;
    world_run(self, act == 8 ? (next_u8(from) + 1) * 10 * MS : more_follows ? 0 : MS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world *self = calloc(1, sizeof *self);
    script from = {.data = data, .left = size};
    require(self != NULL);
    const uint8_t shape = next_u8(&from);
    self->coordinates = (shape & 1) != 0;
    self->epoch = trib_epoch_make(7, 1);
    self->mute = (shape & 2) != 0;
    self->ahead = (shape & 4) != 0 ? TRIB_AHEAD_MAX - 1 : 0;
    self->survives = (shape & 8) != 0;
    world_open(self);
    for (unsigned i = 0; i < ACTS_MAX && from.left > 0; i++) {
        act_of(self, &from);
    }
    world_close(self);
    free(self);
    return 0;
}
