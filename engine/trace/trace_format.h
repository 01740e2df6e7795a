/*
 * trace_format.h - the format of trace files (docs/trace.md): kinds of records, sections and their sizes.
 *
 * Shared by the writer (engine/tracer/trace_file.c) and by the reader (tools/trace/trace_read.c). Everything is
 * little-endian. A reader skips sections that it does not know and takes of each entry the part that it knows, so a
 * later minor version may append to both.
 */
#ifndef TRIB_ENGINE_TRACE_TRACE_FORMAT_H
#define TRIB_ENGINE_TRACE_TRACE_FORMAT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TRIB_TRACE_MAGIC "TRIBTRAC"
#define TRIB_TRACE_MAJOR 1u
#define TRIB_TRACE_MINOR 3u
#define TRIB_TRACE_HEADER_BYTES 64u
#define TRIB_TRACE_HEADER_SUMMED 56u /* the checksum at its end covers what is before, and the section table */
#define TRIB_TRACE_SECTION_BYTES 40u
#define TRIB_TRACE_SECTIONS_MAX 64u

/*
 * X(name, number): numbers never change. A worker's records name a tensor by the process's own number for it (tag),
 * a server's by the job's (id), because each is what that side knows.
 */
#define TRIB_TRACE_KIND_LIST(X)                                                                                        \
    /* operations of a worker: value is the priority, extra collective | reduce << 8 | root << 16; then the status */  \
    X(SUBMIT, 1)                                                                                                       \
    X(COMPLETE, 2)                                                                                                     \
    /* partitions of a worker: stage; peer sums the partition; value is its bytes (FAILED: a status) */                \
    X(ENTER, 3)   /* a stage was entered; the one before it, if any, is done */                                        \
    X(START, 4)   /* PUSH: its first chunk goes to the transport; until here it waited for its turn and for credit */  \
    X(EMITTED, 5) /* PUSH: its last chunk went to the transport, if it has several */                                  \
    X(LANDED, 6)  /* the first of its sum's chunks is there, if it has several */                                      \
    X(DONE, 7)    /* the last stage is done */                                                                         \
    X(FAILED, 8)  /* it was given up in this stage */                                                                  \
    X(STALL, 9)   /* the server says that it waits for peer's contribution */                                          \
    /* chunks on a server: extra is the chunk, value its bytes */                                                      \
    X(SUM_ARRIVE, 16)   /* peer's contribution is there, whole */                                                      \
    X(SUM_COMPLETE, 17) /* the sum is complete and waits in the outboxes */                                            \
    X(SUM_START, 18)    /* it goes to the transport for peer, if it had to wait for credit */                          \
    X(SUM_SENT, 19)     /* the transport has sent it to peer */                                                        \
    X(SUM_REFUSED, 20)  /* the round is refused to peer; value is the status */                                        \
    /* chunks on a relay (relay.h), of workers of its own machine: as on a server, numbers TRIB_TRACE_NEAR higher */   \
    X(NEAR_ARRIVE, 24)   /* peer's contribution is there, whole */                                                     \
    X(NEAR_COMPLETE, 25) /* the partial sum is complete and waits in the outbox to peer, which sums machines */        \
    X(NEAR_START, 26)    /* the sum goes to the transport for peer, if it had to wait for credit */                    \
    X(NEAR_SENT, 27)     /* the transport has handed it to peer */                                                     \
    X(NEAR_REFUSED, 28)  /* the round is refused to peer; value is the status */                                       \
    /* and the machine's partial sum */                                                                                \
    X(PARTIAL_START, 29) /* the partial sum goes to the transport, if it had to wait */                                \
    X(PARTIAL_SUM, 30)   /* the sum of all machines is back from peer */                                               \
    /* links: extra is the peer's reactor */                                                                           \
    X(LINK_READY, 32)  /* value: 1 control, 2 data */                                                                  \
    X(LINK_CLOSED, 33) /* value: the status */                                                                         \
    X(LINK_WAIT, 34)   /* something waits for credit; value: bytes with the transport */                               \
    X(LINK_FREE, 35)   /* nothing does any more */                                                                     \
    /* the core */                                                                                                     \
    X(JOINED, 48)                                                                                                      \
    X(ENDED, 49) /* value: the status */

typedef enum trib_trace_kind {
    TRIB_TRACE_NONE = 0,
#define TRIB_TRACE_ENUM(name, number) TRIB_TRACE_##name = (number),
    TRIB_TRACE_KIND_LIST(TRIB_TRACE_ENUM)
#undef TRIB_TRACE_ENUM
} trib_trace_kind;

#define TRIB_TRACE_NEAR 8u
#define TRIB_TRACE_NO_STAGE UINT8_MAX
#define TRIB_TRACE_NO_PEER UINT16_MAX

static inline uint16_t trib_trace_peer(uint32_t member)
{
    return member < TRIB_TRACE_NO_PEER ? (uint16_t)member : TRIB_TRACE_NO_PEER;
}

/* In memory and in files alike; times are those of the recording core's reactor. */
typedef struct trib_trace_record {
    int64_t at_ns;
    uint32_t tensor, partition, round;
    uint32_t value, extra;
    uint16_t peer; /* a member's id */
    uint8_t kind, stage;
} trib_trace_record;

#define TRIB_TRACE_RECORD_BYTES 32u
_Static_assert(sizeof(trib_trace_record) == TRIB_TRACE_RECORD_BYTES, "records are copied as they are");

/* X(name, number, bytes of an entry) */
#define TRIB_TRACE_SECTION_LIST(X)                                                                                     \
    X(STRINGS, 1, 1) /* texts, each ended by a 0 byte; others name them by offset; offset 0 is "" */                   \
    X(JOB, 2, 128)                                                                                                     \
    X(MEMBERS, 3, 24) /* by id; from minor version 1 on 32 bytes */                                                    \
    X(STAGES, 4, 4)   /* by the number that records use: the name */                                                   \
    X(TENSORS, 5, 48) /* by tag */                                                                                     \
    X(OWNERS, 6, 4)   /* of the tensors' partitions: member, reactor */                                                \
    X(CLOCK, 7, 24)   /* round trips to the coordinator: local time, offset, round trip */                             \
    X(CORES, 8, 24)   /* core, records, records lost; their records follow each other in RECORDS */                    \
    X(RECORDS, 9, TRIB_TRACE_RECORD_BYTES)                                                                             \
    X(CHOICES, 10, 4) /* texts: what this process has chosen for the job, and why */                                   \
    X(SHARES, 11, 8)  /* who shares a tensor, and its slices: number of ranks of its group, these, elements of each */

typedef enum trib_trace_section {
    TRIB_TRACE_SECTION_NONE = 0,
#define TRIB_TRACE_SECTION_ENUM(name, number, bytes) TRIB_TRACE_SECTION_##name = (number),
    TRIB_TRACE_SECTION_LIST(TRIB_TRACE_SECTION_ENUM)
#undef TRIB_TRACE_SECTION_ENUM
} trib_trace_section;

#define TRIB_TRACE_MEMBER_BYTES 32u
#define TRIB_TRACE_JOB_REFERENCE 1u /* flags: the clock that others are compared with is this process's */
#define TRIB_TRACE_TENSOR_PLACED 1u

static inline uint64_t trib_trace_load_u64(const void *at)
{
    const unsigned char *bytes = at;
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        value |= (uint64_t)bytes[i] << 8 * i;
    }
    return value;
}

/* Over words of 8 bytes, the last one filled with zeroes; each step is a bijection, so no single change is missed. */
#define TRIB_TRACE_CHECKSUM_SEED UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t trib_trace_checksum(uint64_t sum, const void *data, size_t size)
{
    const unsigned char *at = data;
    for (; size >= 8; at += 8, size -= 8) {
        sum = (sum ^ trib_trace_load_u64(at)) * UINT64_C(0xff51afd7ed558ccd);
        sum ^= sum >> 32;
    }
    if (size > 0) {
        unsigned char last[8] = {0};
        memcpy(last, at, size);
        sum = (sum ^ trib_trace_load_u64(last)) * UINT64_C(0xff51afd7ed558ccd);
        sum ^= sum >> 32;
    }
    return sum;
}

#endif
