/* wire.c - encodes and decodes frames and control payloads. Pure functions, which tests/fuzz fuzzes. */
#include "engine/wire/wire.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "engine/base/assert.h"

static const struct {
    const char *name;
    uint32_t payload_max;
} frame_types[TRIB_FRAME_COUNT] = {[TRIB_FRAME_NONE] = {"NONE", 0},
#define TRIB_FRAME_ROW(name, payload_max) [TRIB_FRAME_##name] = {#name, payload_max},
                                   TRIB_FRAME_LIST(TRIB_FRAME_ROW)
#undef TRIB_FRAME_ROW
};

const char *trib_frame_name(trib_frame_type type)
{
    return (unsigned)type < TRIB_FRAME_COUNT ? frame_types[type].name : "?";
}

uint32_t trib_frame_payload_max(trib_frame_type type)
{
    trib_assert((unsigned)type < TRIB_FRAME_COUNT);
    return frame_types[type].payload_max;
}

static void store_u32(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)value;
    at[1] = (unsigned char)(value >> 8);
    at[2] = (unsigned char)(value >> 16);
    at[3] = (unsigned char)(value >> 24);
}

static uint32_t load_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void store_u64(unsigned char *at, uint64_t value)
{
    store_u32(at, (uint32_t)value);
    store_u32(at + 4, (uint32_t)(value >> 32));
}

static uint64_t load_u64(const unsigned char *at)
{
    return (uint64_t)load_u32(at) | (uint64_t)load_u32(at + 4) << 32;
}

#define HEADER_WORDS (TRIB_HEADER_SIZE / 8)

/* The fields have no gaps, and no field crosses a border of 8 bytes. */
typedef struct header_layout {
#define LAYOUT(name, offset, bytes) unsigned char name[bytes];
    TRIB_HEADER_LIST(LAYOUT, LAYOUT, LAYOUT)
#undef LAYOUT
} header_layout;
#define CHECK(name, offset, bytes)                                                                                     \
    _Static_assert(offsetof(header_layout, name) == (offset) && (offset) % 8 + (bytes) <= 8, "its place");
TRIB_HEADER_LIST(CHECK, CHECK, CHECK)
#undef CHECK
_Static_assert(sizeof(header_layout) == TRIB_HEADER_SIZE, "the fields fill the header");

#define NONE(name, offset, bytes)
#define SHIFT(offset) ((offset) % 8 * 8)
#define MASK(bytes) (UINT64_MAX >> (64 - 8 * (bytes)))

static uint64_t mix(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * 0xff51afd7ed558ccdu;
    return sum ^ sum >> 32;
}

/* Each step is a bijection of the 64-bit sum, so a difference in one word changes the sum. The 32 bits that travel
 * miss an accidental change once in 2^32. Two sums run side by side for speed, because every message waits for the
 * checksum twice. The handshake, not the checksum, protects against intent. */
static uint32_t checksum(const uint64_t words[HEADER_WORDS])
{
    uint64_t even = 0x9e3779b97f4a7c15u, odd = 0xc2b2ae3d27d4eb4fu;
    for (size_t i = 0; i < HEADER_WORDS; i += 2) {
        even = mix(even, words[i]);
        /* the upper half of the last word is the checksum itself */
        odd = mix(odd, i + 1 < HEADER_WORDS - 1 ? words[i + 1] : (uint32_t)words[i + 1]);
    }
    return (uint32_t)mix(even, odd << 32 | odd >> 32);
}

void trib_frame_encode(const trib_frame *frame, unsigned char header[TRIB_HEADER_SIZE])
{
    trib_assert(frame->type > TRIB_FRAME_NONE && frame->type < TRIB_FRAME_COUNT);
    trib_assert(frame->payload_size <= frame_types[frame->type].payload_max);
#define OR_LATER(name, offset, bytes) | frame->name
    trib_assert((0 TRIB_HEADER_LIST(NONE, NONE, OR_LATER)) == 0);
#undef OR_LATER
    uint64_t words[HEADER_WORDS] = {TRIB_WIRE_MAGIC | (uint64_t)TRIB_WIRE_VERSION << SHIFT(4)};
#define PUT(name, offset, bytes) words[(offset) / 8] |= ((uint64_t)frame->name & MASK(bytes)) << SHIFT(offset);
    TRIB_HEADER_LIST(NONE, PUT, NONE)
#undef PUT
    words[HEADER_WORDS - 1] |= (uint64_t)checksum(words) << 32;
    for (size_t i = 0; i < HEADER_WORDS; i++) {
        store_u64(header + 8 * i, words[i]);
    }
}

bool trib_frame_is_http(const unsigned char header[TRIB_HEADER_SIZE])
{
    static const char methods[][5] = {"GET ", "HEAD", "POST", "OPTI"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (memcmp(header, methods[i], 4) == 0) {
            return true;
        }
    }
    return false;
}

/* Reports the first reserved field that is not 0. */
static trib_status refuse_later(const uint64_t words[HEADER_WORDS], const char *type, trib_error *error)
{
    static const struct {
        const char *name;
        uint32_t offset, bytes;
    } fields[] = {
#define LATER_ROW(name, offset, bytes) {#name, offset, bytes},
        TRIB_HEADER_LIST(NONE, NONE, LATER_ROW)
#undef LATER_ROW
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const uint64_t value = words[fields[i].offset / 8] >> SHIFT(fields[i].offset) & MASK(fields[i].bytes);
        if (value != 0) {
            return trib_error_set(error, TRIB_PROTOCOL, "%s frame with %s %" PRIu64 ", which is 0 so far", type,
                                  fields[i].name, value);
        }
    }
    trib_assert(false); /* the caller has found such a field */
    return TRIB_PROTOCOL;
}

static void load_words(const unsigned char header[TRIB_HEADER_SIZE], uint64_t words[HEADER_WORDS])
{
    for (size_t i = 0; i < HEADER_WORDS; i++) {
        words[i] = load_u64(header + 8 * i);
    }
}

/* True if the header ends with the checksum of the rest. */
static bool has_checksum(const unsigned char header[TRIB_HEADER_SIZE])
{
    uint64_t words[HEADER_WORDS];
    load_words(header, words);
    return words[HEADER_WORDS - 1] >> 32 == checksum(words);
}

bool trib_frame_is_foreign(const unsigned char header[TRIB_HEADER_SIZE])
{
    if (load_u32(header) != TRIB_WIRE_MAGIC || header[offsetof(header_layout, version)] == TRIB_WIRE_VERSION) {
        return false;
    }
    unsigned char ours[TRIB_HEADER_SIZE];
    memcpy(ours, header, sizeof ours);
    ours[offsetof(header_layout, version)] = TRIB_WIRE_VERSION;
    return !has_checksum(ours);
}

bool trib_frame_is_damaged(const unsigned char header[TRIB_HEADER_SIZE], bool speaks_this_version)
{
    if (load_u32(header) != TRIB_WIRE_MAGIC || trib_frame_is_foreign(header)) {
        return speaks_this_version;
    }
    return !has_checksum(header);
}

trib_status trib_frame_decode(const unsigned char header[TRIB_HEADER_SIZE], trib_frame *frame_out, trib_error *error)
{
    if (load_u32(header) != TRIB_WIRE_MAGIC) {
        return trib_error_set(
            error, TRIB_PROTOCOL,
            "not a frame of this protocol (first bytes %02x %02x %02x %02x): the other side is another program",
            header[0], header[1], header[2], header[3]);
    }
    if (trib_frame_is_foreign(header)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "protocol version %u, this side speaks %u: install the same release", header[4],
                              TRIB_WIRE_VERSION);
    }
    uint64_t words[HEADER_WORDS];
    load_words(header, words);
    if (words[HEADER_WORDS - 1] >> 32 != checksum(words)) {
        return trib_error_set(error, TRIB_PROTOCOL, "corrupt frame header (checksum does not match)");
    }
    const unsigned type = header[offsetof(header_layout, type)];
    if (type == TRIB_FRAME_NONE || type >= TRIB_FRAME_COUNT) {
        return trib_error_set(error, TRIB_PROTOCOL, "unknown frame type %u", type);
    }
    uint64_t later = 0;
#define OR_LATER(name, offset, bytes) later |= words[(offset) / 8] & MASK(bytes) << SHIFT(offset);
    TRIB_HEADER_LIST(NONE, NONE, OR_LATER)
#undef OR_LATER
    if (later != 0) {
        return refuse_later(words, frame_types[type].name, error);
    }
    trib_frame frame = {.flags = 0};
#define GET(name, offset, bytes)                                                                                       \
    frame.name = (__typeof__(frame.name))(words[(offset) / 8] >> SHIFT(offset) & MASK(bytes));
    TRIB_HEADER_LIST(NONE, GET, NONE)
#undef GET
    if (frame.payload_size > frame_types[type].payload_max) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s frame with a payload of %u bytes, at most %u are allowed",
                              frame_types[type].name, frame.payload_size, frame_types[type].payload_max);
    }
    const bool may_be_encoded = type == TRIB_FRAME_PUSH || type == TRIB_FRAME_SUM;
    if (frame.codec != 0 && (!may_be_encoded || frame.payload_size == 0)) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s frame with codec %u and %u bytes", frame_types[type].name,
                              frame.codec, frame.payload_size);
    }
    trib_assert(frame.type == (trib_frame_type)type && frame.payload_size <= TRIB_PAYLOAD_MAX);
    *frame_out = frame;
    return TRIB_OK;
}

/* A member without a roster joins, ends its connection or gives up. Every connection begins with a handshake before
 * that. */
static bool may_precede_roster(trib_frame_type type)
{
    return type <= TRIB_FRAME_JOIN || type == TRIB_FRAME_PING || type == TRIB_FRAME_PONG || type == TRIB_FRAME_LEAVE ||
           type == TRIB_FRAME_LOST || type == TRIB_FRAME_ACK || type == TRIB_FRAME_ADVANCE ||
           type == TRIB_FRAME_ELECTED || type == TRIB_FRAME_ROSTER_TAKEN;
}

/* A member that was left behind in an epoch finds others in a later one: it proves who it is, votes, and is told that
 * it is out. Who takes a connection compares the epoch itself. */
static bool may_cross_epochs(trib_frame_type type)
{
    return type <= TRIB_FRAME_BYE || type == TRIB_FRAME_VOTE || type == TRIB_FRAME_ENDED;
}

uint32_t trib_frame_payload_size(const unsigned char header[TRIB_HEADER_SIZE])
{
    trib_frame frame;
    return trib_frame_decode(header, &frame, NULL) == TRIB_OK ? frame.payload_size : UINT32_MAX;
}

trib_status trib_frame_check_epoch(const trib_frame *frame, uint32_t epoch, trib_error *error)
{
    if (trib_epoch_is_foreign(frame->epoch, epoch)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "%s frame of another start of this job: a process of an earlier attempt is still there, "
                              "and must be ended",
                              trib_frame_name(frame->type));
    }
    const uint32_t number = trib_epoch_number(frame->epoch), expected = trib_epoch_number(epoch);
    if (expected == 0 || number == expected || may_cross_epochs(frame->type) ||
        (number == 0 && may_precede_roster(frame->type))) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_PROTOCOL, "%s frame of epoch %u, this side is in epoch %u",
                          trib_frame_name(frame->type), number, expected);
}

trib_status trib_frame_take_error(const trib_frame *frame, trib_status *status_out, trib_error *error)
{
    switch ((int32_t)frame->aux) {
#define TRIB_STATUS_CASE(name, number, text) case (number):
        TRIB_STATUS_LIST(TRIB_STATUS_CASE)
#undef TRIB_STATUS_CASE
        if ((int32_t)frame->aux < 0) {
            *status_out = (trib_status)(int32_t)frame->aux;
            return TRIB_OK;
        }
        break;
    default:
        break;
    }
    return trib_error_set(error, TRIB_PROTOCOL, "%s frame with status %d, which is no error",
                          trib_frame_name(frame->type), (int32_t)frame->aux);
}

trib_status trib_frame_withdraw_reason(trib_status status)
{
    switch (status) {
    case TRIB_TIMEOUT:
    case TRIB_BUSY:
    case TRIB_MISMATCH:
    case TRIB_UNSUPPORTED:
    case TRIB_PEER_LOST:
    case TRIB_PEER_LEFT:
    case TRIB_EPOCH_CHANGED:
        return status;
    default:
        return TRIB_CANCELLED;
    }
}

static void copy_clean(char *text, const unsigned char *from, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        text[i] = (char)(from[i] < 0x20 || from[i] == 0x7f ? '?' : from[i]);
    }
    text[length] = '\0';
}

void trib_frame_take_text(const trib_frame *frame, const void *payload, char *text, size_t capacity)
{
    trib_assert(capacity > 0);
    copy_clean(text, payload, frame->payload_size < capacity ? frame->payload_size : capacity - 1);
}

static void put_bytes(trib_writer *writer, const void *bytes, size_t size)
{
    if (writer->overflow || writer->capacity - writer->size < size) {
        writer->overflow = true;
        return;
    }
    memcpy(writer->data + writer->size, bytes, size);
    writer->size += size;
    trib_assert(writer->size <= writer->capacity);
}

void trib_put_u8(trib_writer *writer, uint8_t value)
{
    put_bytes(writer, &value, 1);
}

void trib_put_u16(trib_writer *writer, uint16_t value)
{
    unsigned char bytes[2] = {(unsigned char)value, (unsigned char)(value >> 8)};
    put_bytes(writer, bytes, sizeof bytes);
}

void trib_put_u32(trib_writer *writer, uint32_t value)
{
    unsigned char bytes[4];
    store_u32(bytes, value);
    put_bytes(writer, bytes, sizeof bytes);
}

void trib_put_u64(trib_writer *writer, uint64_t value)
{
    trib_put_u32(writer, (uint32_t)value);
    trib_put_u32(writer, (uint32_t)(value >> 32));
}

void trib_put_text(trib_writer *writer, const char *text)
{
    size_t length = strnlen(text, 1023);
    trib_put_u16(writer, (uint16_t)length);
    put_bytes(writer, text, length);
}

static const unsigned char *take(trib_reader *reader, size_t size)
{
    if (reader->failed || reader->left < size) {
        reader->failed = true;
        return NULL;
    }
    trib_assert(reader->left >= size);
    const unsigned char *at = reader->data;
    reader->data += size;
    reader->left -= size;
    return at;
}

uint8_t trib_get_u8(trib_reader *reader)
{
    const unsigned char *at = take(reader, 1);
    return at == NULL ? 0 : at[0];
}

uint16_t trib_get_u16(trib_reader *reader)
{
    const unsigned char *at = take(reader, 2);
    return at == NULL ? 0 : (uint16_t)(at[0] | at[1] << 8);
}

uint32_t trib_get_u32(trib_reader *reader)
{
    const unsigned char *at = take(reader, 4);
    return at == NULL ? 0 : load_u32(at);
}

uint64_t trib_get_u64(trib_reader *reader)
{
    uint64_t low = trib_get_u32(reader);
    return low | (uint64_t)trib_get_u32(reader) << 32;
}

void trib_get_text(trib_reader *reader, char *text, size_t capacity)
{
    trib_assert(capacity > 0);
    size_t length = trib_get_u16(reader);
    const unsigned char *at = length < capacity ? take(reader, length) : NULL;
    if (at == NULL) {
        reader->failed = true;
        text[0] = '\0';
        return;
    }
    copy_clean(text, at, length);
}

trib_status trib_get_end(const trib_reader *reader, const char *what, trib_error *error)
{
    if (reader->failed) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed %s", what);
    }
    return reader->left == 0 ? TRIB_OK
                             : trib_error_set(error, TRIB_PROTOCOL, "%s with %zu bytes too many", what, reader->left);
}
