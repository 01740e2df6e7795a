/*
 * shm_ring.h - two rings of records in memory that two processes share, one ring for each direction.
 *
 * A side writes the words of its own shm_side and of the ring that it fills, and reads the other's; both sides write
 * only `sleeps`. Words of the peer are not trusted: positions are checked against this side's own copies, a record is
 * read once, and its length is checked before anything behind it is read. The functions tell a peer that breaks the
 * rules from one that is slow.
 *
 * A record begins at a multiple of SHM_ALIGN, never wraps, and is followed by what its kind says. The kind is written
 * last and makes the record visible; before that, SHM_NONE is written where the next record will begin. So a reader
 * polls the very line in which the record arrives, and no other line has to travel first. For the same reason words
 * that are polled and words that change with every record lie on different lines.
 *
 * This file makes no system calls, so a fuzzer can play the peer.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_RING_H
#define TRIB_TRANSPORTS_SHM_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_ALIGN 16u
#define SHM_APART 128u /* processors fetch lines of 64 bytes in pairs */
#define SHM_RING_BYTES (128u * 1024u)
#define SHM_INLINE_MAX                                                                                                 \
    (16u * 1024u) /* bytes; larger payloads go through the ring only if the kernel forbids reading memory */
#define SHM_FRAGMENT_MAX (32u * 1024u) /* bytes of a piece of such a payload */
#define SHM_RINGS_OFFSET 4096u
#define SHM_SEGMENT_BYTES (SHM_RINGS_OFFSET + 2u * SHM_RING_BYTES)

#define SHM_WAKE_ON_INPUT 1u
#define SHM_WAKE_ON_PROGRESS 2u

typedef struct shm_side {
    _Alignas(SHM_APART) _Atomic uint64_t head; /* bytes written to the ring that this side fills */
    _Atomic uint64_t tail;                     /* bytes read from the ring that the other side fills */
    _Alignas(SHM_APART) _Atomic uint64_t done; /* payloads read out of the other side's own memory */
    _Atomic uint32_t reading;                  /* this side reads a payload in place */
    _Alignas(SHM_APART) _Atomic uint32_t
        sleeps;                  /* SHM_WAKE_*: reasons to wake this side; the side that wakes it clears them */
    _Atomic uint32_t paused;     /* this side reads nothing because its user has no room, not because it is dead */
    _Atomic uint32_t revoked;    /* payloads in this side's own memory are no longer valid */
    _Atomic uint32_t ended;      /* this side has written its last record */
    _Atomic uint32_t unreadable; /* this side cannot read the other's memory any more (shm_resend.h) */
} shm_side;

typedef enum shm_kind {
    SHM_NONE = 0,     /* the next record is not there yet */
    SHM_SKIP = 1,     /* the rest of the ring before it wraps */
    SHM_INLINE = 2,   /* a header and its payload */
    SHM_REMOTE = 3,   /* a header; size bytes of payload lie at address in the sender */
    SHM_STREAM = 4,   /* a header; size bytes of payload follow in fragments */
    SHM_FRAGMENT = 5, /* size bytes of payload */
    SHM_OFFERED = 6,  /* as SHM_REMOTE, in memory that can be mapped (shm_memory.h) */
    SHM_RESENT = 7,   /* payloads that were not read out of the sender follow in fragments (shm_resend.h) */
} shm_kind;

typedef struct shm_record {
    uint32_t kind;
    uint32_t size;
    uint64_t address;
} shm_record;

_Static_assert(sizeof(shm_record) == SHM_ALIGN, "a record's beginning fills one unit of the ring");
_Static_assert(SHM_RING_BYTES % SHM_ALIGN == 0 && 2 * sizeof(shm_side) <= SHM_RINGS_OFFSET, "the segment's layout");

/* The ring that this side fills. */
typedef struct shm_out {
    shm_side *mine;
    shm_side *peer;
    unsigned char *ring;
    uint64_t head, tail;  /* own copies; tail is the last one seen */
    uint64_t begin, next; /* where the record begins that commit publishes, and head after that */
    shm_record record;
} shm_out;

/* The ring that this side empties. */
typedef struct shm_in {
    shm_side *mine;
    shm_side *peer;
    const unsigned char *ring;
    uint64_t tail;     /* own copy */
    uint64_t next;     /* tail after trib_shm_in_take */
    bool peer_is_over; /* the peer has ended: nothing comes after `end` */
    uint64_t end;
} shm_in;

typedef enum shm_found { SHM_NOTHING, SHM_RECORD, SHM_BROKEN } shm_found;

/* side 0 fills the first ring. segment: SHM_SEGMENT_BYTES, all zero at first. */
void trib_shm_rings_open(void *segment, unsigned side, shm_out *out, shm_in *in);

/* Reserves a record with so many bytes behind it. Returns where these go; NULL if there is no room now, or, with
 * *broken set, if the peer's words are invalid. trib_shm_out_commit makes it visible to the peer. */
unsigned char *trib_shm_out_reserve(shm_out *out, shm_record record, uint32_t behind, bool *broken);
void trib_shm_out_commit(shm_out *out);

/* The next record, and where its bytes lie; the peer can still change those. It stays in the ring until
 * trib_shm_in_take. */
shm_found trib_shm_in_next(shm_in *in, shm_record *record_out, const unsigned char **behind_out);
void trib_shm_in_take(shm_in *in);
/* True if there is a record. */
static inline bool trib_shm_in_has_more(const shm_in *in)
{
    const unsigned char *at = in->ring + in->tail % SHM_RING_BYTES;
    const uint32_t kind = atomic_load_explicit((const _Atomic uint32_t *)(const void *)at, memory_order_acquire);
    return kind != SHM_NONE && !(in->peer_is_over && in->tail == in->end);
}
/* The peer has ended, so the ring gets no more records. False if its words are invalid. */
bool trib_shm_in_end(shm_in *in);

/* Orders a write to the segment before a read of it; acquire and release do not. It is no atomic_thread_fence
 * because gcc's thread sanitizer rejects that, and needs none here. */
static inline void trib_shm_fence(void)
{
    __sync_synchronize();
}

#endif
