/*
 * shm_ring.h - two rings of records in memory shared by two processes, one for each direction.
 *
 * Each side writes the words of its own shm_side and of the ring that it fills, and reads the other's; only `sleeps` is
 * written by both. What the peer may have written is never trusted: positions are checked against this side's own
 * copies, a record is read once, and its length is checked before anything behind it is looked at. A peer that breaks
 * the rules is told from one that is slow.
 *
 * A record begins at a multiple of SHM_ALIGN, never wraps, and is followed by what its kind says. Its kind is what tells that it is
 * there: it is written last, and where the next record will begin there is SHM_NONE before that. So who looks for more looks at
 * the very line that the record will come in, and no other one has to travel first. Words that others look at often and those that
 * change with every record are on different lines for the same reason.
 *
 * Pure memory: no system calls, so that a fuzzer can be the peer.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_RING_H
#define TRIB_TRANSPORTS_SHM_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_ALIGN 16u
#define SHM_APART 128u /* processors fetch lines of 64 bytes by twos */
#define SHM_RING_BYTES (128u * 1024u)
#define SHM_INLINE_MAX (16u * 1024u)   /* larger payloads do not go through the ring, if that can be avoided */
#define SHM_FRAGMENT_MAX (32u * 1024u) /* ... and if it cannot, in pieces of this size */
#define SHM_RINGS_OFFSET 4096u
#define SHM_SEGMENT_BYTES (SHM_RINGS_OFFSET + 2u * SHM_RING_BYTES)

#define SHM_WAKE_ON_INPUT 1u
#define SHM_WAKE_ON_PROGRESS 2u

typedef struct shm_side {
    _Alignas(SHM_APART) _Atomic uint64_t head;   /* bytes written to the ring that this side fills */
    _Atomic uint64_t tail;                       /* bytes taken from the ring that the other fills */
    _Alignas(SHM_APART) _Atomic uint64_t done;   /* payloads read out of the other's own memory */
    _Atomic uint32_t reading;                    /* it reads one where it is */
    _Alignas(SHM_APART) _Atomic uint32_t sleeps; /* SHM_WAKE_*: what to wake it for; the one who does takes them away */
    _Atomic uint32_t paused;  /* takes nothing because its user has no room, not because it is dead */
    _Atomic uint32_t revoked; /* payloads in its own memory are no longer valid */
    _Atomic uint32_t ended;   /* everything that it had to say is in the ring */
} shm_side;

typedef enum shm_kind {
    SHM_NONE = 0,     /* the next record is not there yet */
    SHM_SKIP = 1,     /* the rest of the ring before it wraps */
    SHM_INLINE = 2,   /* a header and its payload */
    SHM_REMOTE = 3,   /* a header; size bytes of payload lie at address in the sender */
    SHM_STREAM = 4,   /* a header; size bytes of payload follow in fragments */
    SHM_FRAGMENT = 5, /* size bytes of payload */
    SHM_OFFERED = 6,  /* as SHM_REMOTE, and that memory can be mapped (shm_memory.h) */
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
    uint64_t head, tail;  /* own copies; tail: last seen */
    uint64_t begin, next; /* where the record begins that commit writes, and head after that */
    shm_record record;
} shm_out;

/* The ring that this side empties. */
typedef struct shm_in {
    shm_side *mine;
    shm_side *peer;
    const unsigned char *ring;
    uint64_t tail;     /* own copy */
    uint64_t next;     /* tail after take */
    bool peer_is_over; /* it writes no more: nothing comes after `end` */
    uint64_t end;
} shm_in;

typedef enum shm_found { SHM_NOTHING, SHM_RECORD, SHM_BROKEN } shm_found;

/* side 0 fills the first ring; segment: SHM_SEGMENT_BYTES of zeroes at the beginning. */
void trib_shm_rings_open(void *segment, unsigned side, shm_out *out, shm_in *in);

/* Bytes that a record takes with so many bytes behind it. */
uint32_t trib_shm_record_bytes(uint32_t behind);

/* Room for a record with so many bytes behind it: where they go, or NULL if there is none now. *broken is set if the
 * peer's words make no sense. The record is seen by the peer after trib_shm_out_commit. */
unsigned char *trib_shm_out_reserve(shm_out *out, shm_record record, uint32_t behind, bool *broken);
void trib_shm_out_commit(shm_out *out);

/* The next record and where its bytes lie (the peer can still change those). It stays in the ring until
 * trib_shm_in_take. */
shm_found trib_shm_in_next(shm_in *in, shm_record *record_out, const unsigned char **behind_out);
void trib_shm_in_take(shm_in *in);
/* True if there is one. */
static inline bool trib_shm_in_has_more(const shm_in *in)
{
    const unsigned char *at = in->ring + in->tail % SHM_RING_BYTES;
    const uint32_t kind = atomic_load_explicit((const _Atomic uint32_t *)(const void *)at, memory_order_acquire);
    return kind != SHM_NONE && !(in->peer_is_over && in->tail == in->end);
}
/* The peer has gone: what is in the ring now is all that will ever be. False: that makes no sense. */
bool trib_shm_in_end(shm_in *in);

/* Orders a write to the segment before a read of it, which acquire and release do not. Not atomic_thread_fence: gcc's
 * thread sanitizer refuses that one, and has no use for it here. */
static inline void trib_shm_fence(void)
{
    __sync_synchronize();
}

#endif
