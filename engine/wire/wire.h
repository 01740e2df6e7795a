/*
 * wire.h - the format of frames: the header, and the encoding of control payloads. Pure functions, no I/O
 * (docs/protocol.md).
 *
 * All fields are little-endian at fixed offsets. Decoding never trusts the peer: every length is checked before use. A
 * frame with a wrong magic, version, checksum, type or size is rejected with a text.
 */
#ifndef TRIB_ENGINE_WIRE_H
#define TRIB_ENGINE_WIRE_H

#include "api/tributary.h"
#include "transports/transport.h"

#define TRIB_WIRE_MAGIC 0x42495254u /* "TRIB" */
#define TRIB_WIRE_VERSION 20u /* version of all that members exchange, including their transports (docs/protocol.md) */
#define TRIB_NO_MEMBER UINT32_MAX

/* X(name, payload_max): payload_max is the largest payload of the frame type, in bytes. */
#define TRIB_FRAME_LIST(X)                                                                                             \
    /* handshake, either way of a connection being made */                                                             \
    X(HELLO, 64)                                                                                                       \
    X(CHALLENGE, 32)                                                                                                   \
    X(PROOF, 32)                                                                                                       \
    X(WELCOME, 40)                                                                                                     \
    /* BYE: the sender closes, in good order (aux 0) or because of a status, and the payload says why */               \
    X(BYE, 512)                                                                                                        \
    /* membership, between a member and the coordinator */                                                             \
    X(JOIN, 4096)                                                                                                      \
    X(ROSTER, TRIB_PAYLOAD_MAX)                                                                                        \
    X(DECLARE, TRIB_PAYLOAD_MAX)                                                                                       \
    X(DECLARED, TRIB_PAYLOAD_MAX)                                                                                      \
    X(TENSOR_BAD, 1024)                                                                                                \
    X(PING, 0)                                                                                                         \
    X(PONG, 0)                                                                                                         \
    X(LOST, 1024)                                                                                                      \
    X(LEAVE, 0)                                                                                                        \
    X(LEFT, 0)                                                                                                         \
    X(ENDED, 1024)                                                                                                     \
    /* data, between a worker's reactor and a server's */                                                              \
    X(PUSH, TRIB_PAYLOAD_MAX)                                                                                          \
    X(SUM, TRIB_PAYLOAD_MAX)                                                                                           \
    X(REFUSED, 1024)                                                                                                   \
    X(WITHDRAW, 1024)                                                                                                  \
    X(STALL, 512)                                                                                                      \
    /* the order of collectives, between a machine's local ranks and its local rank 0 */                               \
    X(GROUP_ID, 128)                                                                                                   \
    X(GROUP_READY, 0)                                                                                                  \
    X(GROUP_ORDER, 0)                                                                                                  \
    X(GROUP_FAIL, 1024)                                                                                                \
    /* shares that follow the load of links, between a member and the coordinator */                                   \
    X(LOADS, 8192)                                                                                                     \
    X(MOVE, TRIB_PAYLOAD_MAX)                                                                                          \
    X(MOVE_READY, 0)                                                                                                   \
    X(MOVE_DECIDED, 0)                                                                                                 \
    /* the end of a tensor, between a member and the coordinator */                                                    \
    X(RELEASE, 0)                                                                                                      \
    X(RELEASED, 0)                                                                                                     \
    X(FORGET, 0)                                                                                                       \
    X(FORGOTTEN, 0)                                                                                                    \
    /* groups of workers, between a member and the coordinator */                                                      \
    X(GROUP_CREATE, TRIB_PAYLOAD_MAX)                                                                                  \
    X(GROUP_RANKS, TRIB_PAYLOAD_MAX)                                                                                   \
    X(GROUP_KNOWN, 0)                                                                                                  \
    X(GROUP_MADE, 0)                                                                                                   \
    X(GROUP_BAD, 1024)                                                                                                 \
    /* ACK: the sender is there, and has received as many frames as `acknowledged` says */                             \
    X(ACK, 0)                                                                                                          \
    /* a server is lost: a member tells the coordinator, and the coordinator all members */                            \
    X(SERVER_LOST, 1024)                                                                                               \
    /* a partition gets another owner: what a worker has of it, and how the worker goes on */                          \
    X(ASK_REPORT, 0)                                                                                                   \
    X(REPORT, 28)                                                                                                      \
    X(RESUME, 0)                                                                                                       \
    /* a partition's keeper has the sum of the round (server/keeper.h) */                                              \
    X(KEPT, 0)                                                                                                         \
    /* a server asks to be let go, which a worker is through with; between a member and the coordinator */             \
    X(DRAIN, 0)                                                                                                        \
    X(LOSSES_TAKEN, 0)                                                                                                 \
    /* a tensor, as its workers have declared it: the coordinator tells the members that sum, which answer */          \
    X(SERVE, TRIB_PAYLOAD_MAX)                                                                                         \
    X(SERVING, 0)                                                                                                      \
    /* another membership: rounds that a worker is through with, those that all are, and its wish to go on */          \
    X(SETTLED, TRIB_PAYLOAD_MAX)                                                                                       \
    X(COMMIT, TRIB_PAYLOAD_MAX)                                                                                        \
    X(ADVANCE, 0)                                                                                                      \
    /* what a link carries, for the choice of a codec: bytes that the coordinator sends, and the answer */             \
    X(PROBE, 256u << 10)                                                                                               \
    X(PROBED, 0)                                                                                                       \
    /* the coordinator is lost: a member's vote for another one, and what that one has decided */                      \
    X(VOTE, TRIB_PAYLOAD_MAX)                                                                                          \
    X(ELECTED, TRIB_PAYLOAD_MAX)                                                                                       \
    /* a member has taken the roster, and all have; between a member and the coordinator */                            \
    X(ROSTER_TAKEN, 0)                                                                                                 \
    X(ROSTER_KNOWN, 0)                                                                                                 \
    /* workers without further data (membership/uneven_inputs.h), between a member and the coordinator */              \
    X(JOIN_DONE, TRIB_PAYLOAD_MAX)                                                                                     \
    X(JOINED, TRIB_PAYLOAD_MAX)                                                                                        \
    X(JOIN_HEARD, 0)                                                                                                   \
    X(JOIN_OVER, TRIB_PAYLOAD_MAX)                                                                                     \
    /* a round goes on without stragglers (server/quorum.h): between a member that sums and the coordinator; */        \
    /* QUORUM_SET also from a server to a worker */                                                                    \
    X(QUORUM_CALL, 0)                                                                                                  \
    X(QUORUM_ASK, 0)                                                                                                   \
    X(QUORUM_BEGUN, 512)                                                                                               \
    X(QUORUM_SET, 1024)                                                                                                \
    /* the end of a group, between a member and the coordinator */                                                     \
    X(GROUP_RELEASE, 0)                                                                                                \
    X(GROUP_FORGET, 0)                                                                                                 \
    X(GROUP_FORGOTTEN, 0)                                                                                              \
    /* what a worker waits for, and what the worker that it waits for itself waits for (membership/waits.h) */         \
    X(WAITING, 0)                                                                                                      \
    X(WAITED_FOR, 512)

typedef enum trib_frame_type {
    TRIB_FRAME_NONE = 0,
#define TRIB_FRAME_ENUM(name, payload_max) TRIB_FRAME_##name,
    TRIB_FRAME_LIST(TRIB_FRAME_ENUM)
#undef TRIB_FRAME_ENUM
        TRIB_FRAME_COUNT
} trib_frame_type;

/* A bit of `collective`: the frame goes from or to a worker that speaks for its machine (relay.h). */
#define TRIB_COLLECTIVE_PARTIAL 0x80u
_Static_assert(TRIB_FRAME_COUNT <= 256, "a header has one byte for the type");

/* `aux` of a PUSH: the sender keeps a copy of the sum for all, and says when it has it (KEPT). `aux` of a SUM: the
 * partition's keeper has the whole sum. */
#define TRIB_PUSH_KEEPS 1u
#define TRIB_SUM_IS_KEPT 1u
/* `root` of an ENDED: the epoch is over, and the job goes on without the subject. `root` of a SERVER_LOST: the sender
 * cannot go on without that server (STOPS), or has not reached that member for the peer timeout, and still tries
 * (DOUBTS). */
#define TRIB_ENDED_CHANGES 1u
#define TRIB_PING_WAITS 1u /* root of a PING: the receiver joins when all workers have asked for the next epoch */
#define TRIB_SERVER_LOST_STOPS 1u
#define TRIB_SERVER_LOST_DOUBTS 2u
#define TRIB_SETTLED_BYTES 8u /* bytes of each round in SETTLED and COMMIT */
#define TRIB_VOTE_BYTES 8u    /* bytes of each tensor in VOTE and ELECTED */
/* Each entry of JOIN_DONE and JOIN_OVER: a trib_join_entry, a number, and a count. */
#define TRIB_JOIN_ENTRY_BYTES 12u
#define TRIB_JOIN_LAST 1u     /* aux of JOIN_DONE, chunk of JOINED and JOIN_OVER: no frame follows about this */
#define TRIB_JOINED_NOBODY 1u /* root of JOINED: all have joined, so from now on nobody has */
typedef enum trib_join_entry {
    TRIB_JOIN_TENSOR, /* an entry's number is a tag of the receiver or sender; its count is the tensor's last round */
    TRIB_JOIN_ONCE,   /* an entry about operations whose tensor the engine named */
    TRIB_JOIN_BYTES,  /* an entry about the group with that number: its operations on bytes */
    /* JOIN_DONE: an entry's number is a tag of the sender; its count is the last round that has failed there */
    TRIB_JOIN_GIVEN_UP,
} trib_join_entry;
#define TRIB_JOINED_ENTRY_BYTES 8u /* bytes of each entry of JOINED: a tensor and the last round that has failed */
/* aux of SERVING: this member does not have the tensor's codec. */
#define TRIB_SERVING_LACKS_CODEC 1u
/* The state of a REPORT's worker. */
#define TRIB_REPORT_OPEN 1u              /* its last round is open, and it has the input */
#define TRIB_REPORT_WAITS_FOR_NOTHING 2u /* it needs no RESUME */
#define TRIB_REPORT_BYTES 28u            /* bytes of a REPORT's payload */
#define TRIB_REPORT_COPY_AT 12u /* offset in a REPORT's payload of the round whose sum is in the worker's copy */
_Static_assert(TRIB_REPORT_BYTES == 7 * sizeof(uint32_t) && TRIB_REPORT_COPY_AT % sizeof(uint32_t) == 0,
               "a REPORT is a list of numbers");

/*
 * The header's fields in wire order: name, offset, bytes (docs/protocol.md).
 * - OWN fields are not in a trib_frame.
 * - FIELD fields are.
 * - LATER fields are reserved and must be 0. A frame with another value is rejected, because it would be misread.
 */
#define TRIB_HEADER_LIST(OWN, FIELD, LATER)                                                                            \
    OWN(magic, 0, 4)                                                                                                   \
    OWN(version, 4, 1)                                                                                                 \
    FIELD(type, 5, 1)                                                                                                  \
    LATER(flags, 6, 1)                                                                                                 \
    FIELD(joins, 7, 1)                                                                                                 \
    FIELD(payload_size, 8, 4)                                                                                          \
    FIELD(sender, 12, 4)                                                                                               \
    FIELD(epoch, 16, 4)                                                                                                \
    FIELD(step, 20, 4)                                                                                                 \
    FIELD(group, 24, 4)                                                                                                \
    FIELD(tensor, 28, 4)                                                                                               \
    FIELD(partition, 32, 4)                                                                                            \
    FIELD(round, 36, 4)                                                                                                \
    FIELD(chunk, 40, 4)                                                                                                \
    FIELD(chunk_count, 44, 4)                                                                                          \
    FIELD(size, 48, 4)                                                                                                 \
    FIELD(prescale, 52, 4)                                                                                             \
    FIELD(priority, 56, 4)                                                                                             \
    FIELD(collective, 60, 1)                                                                                           \
    FIELD(dtype, 61, 1)                                                                                                \
    FIELD(reduce, 62, 1)                                                                                               \
    FIELD(codec, 63, 1)                                                                                                \
    FIELD(root, 64, 4)                                                                                                 \
    FIELD(aux, 68, 4)                                                                                                  \
    FIELD(acknowledged, 72, 8)                                                                                         \
    FIELD(scale, 80, 8)                                                                                                \
    FIELD(crc, 88, 4)                                                                                                  \
    OWN(checksum, 92, 4)

/* A decoded header. The type decides which fields are used; all others are 0. The sending link fills in sender and
 * epoch. */
typedef struct trib_frame {
    trib_frame_type type;
    uint32_t payload_size;
    uint32_t sender; /* member id */
    uint32_t epoch;  /* epoch of the sender's roster; 0: the sender has none yet */
    uint32_t step;   /* the caller's training step; all contributions to a round have the same */
    uint32_t group;  /* the group of workers in which the tensor was declared; 0: all of the job */
    /* id; in DECLARE, DECLARED, TENSOR_BAD, MOVE, MOVE_DECIDED, RELEASE and RELEASED the declaring member's tag */
    uint32_t tensor;
    uint32_t partition;
    uint32_t round;
    uint32_t chunk;
    uint32_t chunk_count;
    uint32_t size;     /* bytes of the chunk in the tensor */
    uint32_t prescale; /* of integers before the sum, packed (base/scale.h); as with scale */
    int32_t priority;
    uint8_t collective, dtype, reduce, codec;
    uint8_t flags;
    uint8_t joins; /* PUSH, WITHDRAW: how often all had joined when the round began (trib_join), modulo 256 */
    uint32_t root;
    uint32_t aux;          /* a status, a rank or an owner, depending on the type */
    uint64_t acknowledged; /* the number of frames that the sender has received (link_session.h) */
    uint64_t scale;        /* of the sum, packed (base/scale.h); all contributions to a round have the same */
    uint32_t crc;          /* of the payload (link_checksum.h); 0: none was computed */
} trib_frame;

static inline bool trib_frame_is_partial(const trib_frame *frame)
{
    return (frame->collective & TRIB_COLLECTIVE_PARTIAL) != 0;
}

const char *trib_frame_name(trib_frame_type type);
uint32_t trib_frame_payload_max(trib_frame_type type);

void trib_frame_encode(const trib_frame *frame, unsigned char header[TRIB_HEADER_SIZE]);
/* TRIB_PROTOCOL, with the reason in *error, for a malformed header. *frame_out is written only on success. */
TRIB_CHECKED trib_status trib_frame_decode(const unsigned char header[TRIB_HEADER_SIZE], trib_frame *frame_out,
                                           trib_error *error);

/* True for a header of this protocol in another version, which has the same place in all versions. Where the checksum
 * is right for this version, only the byte was damaged. */
bool trib_frame_is_foreign(const unsigned char header[TRIB_HEADER_SIZE]);
/* True for a header of this version whose checksum does not match, so that it was damaged. If the peer has proved that
 * it speaks this version, a header that claims anything else was damaged, too. */
bool trib_frame_is_damaged(const unsigned char header[TRIB_HEADER_SIZE], bool speaks_this_version);
/* True for the beginning of an HTTP request, such as a load balancer's. */
bool trib_frame_is_http(const unsigned char header[TRIB_HEADER_SIZE]);

/* The payload size of an encoded header; UINT32_MAX if it is malformed (see trib_transport_config). */
uint32_t trib_frame_payload_size(const unsigned char header[TRIB_HEADER_SIZE]);

/*
 * An epoch is the incarnation of the job, which the coordinator draws at random when it starts, and the number of the
 * roster in the lowest 12 bits: 0 means that there is none yet. So a process of an earlier attempt, with the same
 * token, name and address, is told apart. Epoch 0 belongs to a process that knows no coordinator yet.
 */
#define TRIB_EPOCH_NUMBER_BITS 12u

static inline uint32_t trib_epoch_make(uint32_t incarnation, uint32_t number)
{
    return incarnation << TRIB_EPOCH_NUMBER_BITS | number;
}

static inline uint32_t trib_epoch_incarnation(uint32_t epoch)
{
    return epoch >> TRIB_EPOCH_NUMBER_BITS;
}

static inline uint32_t trib_epoch_number(uint32_t epoch)
{
    return epoch & ((1u << TRIB_EPOCH_NUMBER_BITS) - 1);
}

/* True if the first number, which is not 0, belongs to an earlier epoch than the other one: numbers begin again. */
static inline bool trib_epoch_is_before(uint32_t epoch, uint32_t other)
{
    const uint32_t most = (1u << TRIB_EPOCH_NUMBER_BITS) - 1;
    const uint32_t ahead = (trib_epoch_number(other) + most - trib_epoch_number(epoch)) % most;
    return ahead != 0 && ahead <= most / 2;
}

/* True if both epochs name an incarnation of the job, and not the same one. */
static inline bool trib_epoch_is_foreign(uint32_t epoch, uint32_t other)
{
    const uint32_t one = trib_epoch_incarnation(epoch), two = trib_epoch_incarnation(other);
    return one != 0 && two != 0 && one != two;
}

/* Checks a frame's epoch against the receiver's. A receiver without a roster accepts every frame of its incarnation,
 * and its upper layers check what may precede the roster. TRIB_PROTOCOL for another incarnation or epoch, except for
 * frames that a member may send without a roster, and those that may come from another epoch. */
TRIB_CHECKED trib_status trib_frame_check_epoch(const trib_frame *frame, uint32_t epoch, trib_error *error);

/* Reads aux as the status of a failure. TRIB_PROTOCOL if it is not the number of an error. */
TRIB_CHECKED trib_status trib_frame_take_error(const trib_frame *frame, trib_status *status_out, trib_error *error);
/* Copies a payload of text, terminated and cut to the capacity. Control bytes become '?'. The payload may be `text`
 * itself. */
void trib_frame_take_text(const trib_frame *frame, const void *payload, char *text, size_t capacity);
/* The status that a WITHDRAW reports in aux for an operation that failed at one worker. Failures of the worker
 * alone, as of its memory or device, become TRIB_CANCELLED. */
TRIB_CHECKED trib_status trib_frame_withdraw_reason(trib_status status);

/* Writes a control payload. `overflow` stays set once a value did not fit. */
typedef struct trib_writer {
    unsigned char *data;
    size_t size, capacity;
    bool overflow;
} trib_writer;

void trib_put_u8(trib_writer *writer, uint8_t value);
void trib_put_u16(trib_writer *writer, uint16_t value);
void trib_put_u32(trib_writer *writer, uint32_t value);
void trib_put_u64(trib_writer *writer, uint64_t value);
void trib_put_text(trib_writer *writer, const char *text); /* writes the length and at most 1023 bytes */

typedef struct trib_reader {
    const unsigned char *data;
    size_t left;
    bool failed; /* a value was missing or did not fit; every later value is 0 or "" */
} trib_reader;

uint8_t trib_get_u8(trib_reader *reader);
uint16_t trib_get_u16(trib_reader *reader);
uint32_t trib_get_u32(trib_reader *reader);
uint64_t trib_get_u64(trib_reader *reader);
void trib_get_text(trib_reader *reader, char *text, size_t capacity); /* terminated; control bytes become '?' */
/* Called after the last value. TRIB_PROTOCOL if a value was missing or malformed, or if bytes are left over. The
 * text names `what`, for example "DECLARE". */
TRIB_CHECKED trib_status trib_get_end(const trib_reader *reader, const char *what, trib_error *error);

#endif
