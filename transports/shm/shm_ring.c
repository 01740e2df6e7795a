/* shm_ring.c - see shm_ring.h. */
#include "transports/shm/shm_ring.h"

#include <string.h>

#include "engine/base/assert.h"
#include "transports/transport.h"

void trib_shm_rings_open(void *segment, unsigned side, shm_out *out, shm_in *in)
{
    trib_assert(side < 2);
    shm_side *sides = segment;
    unsigned char *rings = (unsigned char *)segment + SHM_RINGS_OFFSET;
    *out = (shm_out){.mine = &sides[side], .peer = &sides[1 - side], .ring = rings + side * (size_t)SHM_RING_BYTES};
    *in = (shm_in){.mine = &sides[side], .peer = &sides[1 - side], .ring = rings + (1 - side) * (size_t)SHM_RING_BYTES};
}

static uint32_t round_up(uint32_t bytes)
{
    return (bytes + SHM_ALIGN - 1) & ~(SHM_ALIGN - 1);
}

/* Bytes that a record takes with so many bytes behind it. */
static uint32_t record_bytes(uint32_t behind)
{
    return SHM_ALIGN + round_up(behind);
}

/* Bytes behind a record; UINT32_MAX for an invalid one. */
static uint32_t bytes_behind(const shm_record *record)
{
    switch (record->kind) {
    case SHM_SKIP:
        return record->size <= SHM_RING_BYTES ? record->size : UINT32_MAX;
    case SHM_INLINE:
        return record->size <= SHM_INLINE_MAX ? TRIB_HEADER_SIZE + record->size : UINT32_MAX;
    case SHM_REMOTE: /* Small payloads never come so: nothing is read in place of a peer that has proved nothing yet. */
    case SHM_OFFERED:
    case SHM_STREAM:
        if (record->size <= SHM_INLINE_MAX) {
            return UINT32_MAX;
        }
        return record->size <= TRIB_PAYLOAD_MAX ? TRIB_HEADER_SIZE : UINT32_MAX;
    case SHM_RESENT:
        return record->size == 0 ? 0 : UINT32_MAX;
    case SHM_FRAGMENT:
        return record->size > 0 && record->size <= SHM_FRAGMENT_MAX ? record->size : UINT32_MAX;
    default:
        return UINT32_MAX;
    }
}

#define LINE 64u
#define FETCH_BYTES (4096u + 2 * LINE) /* beyond it the processor's own prefetcher has recognized the pattern */

/* ---- Filling ---- */

/* Reads how far the peer has read. False if its position is impossible. */
static bool read_tail(shm_out *out)
{
    uint64_t tail = atomic_load_explicit(&out->peer->tail, memory_order_acquire);
    if (tail - out->tail > out->head - out->tail) {
        return false; /* behind its earlier position, or ahead of what was written */
    }
    out->tail = tail;
    return true;
}

/* The address of a record's kind. */
static _Atomic uint32_t *kind_at(unsigned char *ring, uint64_t position)
{
    return (_Atomic uint32_t *)(void *)(ring + position % SHM_RING_BYTES);
}

/* Writes the beginning of a record except its kind. */
static void write_record_head(unsigned char *ring, uint64_t position, const shm_record *record)
{
    const size_t kind = sizeof record->kind;
    memcpy(ring + position % SHM_RING_BYTES + kind, (const unsigned char *)record + kind, sizeof *record - kind);
}

unsigned char *trib_shm_out_reserve(shm_out *out, shm_record record, uint32_t behind, bool *broken)
{
    uint32_t bytes = record_bytes(behind);
    trib_assert(bytes <= SHM_RING_BYTES / 2);
    uint32_t at = (uint32_t)(out->head % SHM_RING_BYTES);
    uint32_t skip = at + bytes > SHM_RING_BYTES ? SHM_RING_BYTES - at : 0;
    const uint64_t end = out->head + skip + bytes + SHM_ALIGN; /* with the SHM_NONE behind it */
    if (end - out->tail > SHM_RING_BYTES) {
        *broken = !read_tail(out);
        if (*broken || end - out->tail > SHM_RING_BYTES) {
            return NULL;
        }
    }
    out->record = record;
    out->begin = out->head + skip;
    out->next = out->begin + bytes;
    return out->ring + (skip > 0 ? 0 : at) + sizeof record;
}

void trib_shm_out_commit(shm_out *out)
{
    trib_assert(out->begin >= out->head && out->next > out->begin && out->next - out->tail < SHM_RING_BYTES);
    atomic_store_explicit(kind_at(out->ring, out->next), SHM_NONE, memory_order_relaxed);
    atomic_store_explicit(&out->mine->head, out->next, memory_order_relaxed);
    write_record_head(out->ring, out->begin, &out->record);
    if (out->begin > out->head) {
        const shm_record filler = {.size = (uint32_t)(out->begin - out->head) - SHM_ALIGN};
        atomic_store_explicit(kind_at(out->ring, out->begin), out->record.kind, memory_order_relaxed);
        write_record_head(out->ring, out->head, &filler);
        out->record.kind = SHM_SKIP;
    }
    /* A reader that sees the kind sees everything that was written before, the SHM_NONE too. */
    atomic_store_explicit(kind_at(out->ring, out->head), out->record.kind, memory_order_release);
    out->head = out->next;
}

/* ---- Emptying ---- */

bool trib_shm_in_end(shm_in *in)
{
    in->end = atomic_load_explicit(&in->peer->head, memory_order_acquire);
    in->peer_is_over = true;
    return in->end - in->tail <= SHM_RING_BYTES;
}

/* New records lie in another core's cache. Prefetched at once, they travel while their header is being read. */
static void prefetch_bytes(const unsigned char *from, uint32_t bytes)
{
    for (uint32_t i = LINE; i < bytes && i < FETCH_BYTES; i += LINE) {
        __builtin_prefetch(from + i);
    }
}

/* Reads the record at in->tail once, because the peer can still change it. */
static shm_found read_record(shm_in *in, shm_record *record_out, const unsigned char **behind_out)
{
    if (!trib_shm_in_has_more(in)) {
        return SHM_NOTHING;
    }
    const uint32_t at = (uint32_t)(in->tail % SHM_RING_BYTES);
    const volatile shm_record *there = (const volatile shm_record *)(const void *)(in->ring + at);
    *record_out = (shm_record){.kind = there->kind, .size = there->size, .address = there->address};
    const uint32_t behind = bytes_behind(record_out);
    if (behind == UINT32_MAX) {
        return SHM_BROKEN;
    }
    const uint32_t bytes = record_bytes(behind);
    if (bytes > SHM_RING_BYTES - at || (in->peer_is_over && bytes > in->end - in->tail)) {
        return SHM_BROKEN;
    }
    in->next = in->tail + bytes;
    *behind_out = in->ring + at + sizeof *record_out;
    return SHM_RECORD;
}

shm_found trib_shm_in_next(shm_in *in, shm_record *record_out, const unsigned char **behind_out)
{
    shm_found found = read_record(in, record_out, behind_out);
    if (found == SHM_RECORD && record_out->kind == SHM_SKIP) {
        /* The record reaches to the end of the ring, and is published together with the record behind it. */
        trib_shm_in_take(in);
        const bool good = in->tail % SHM_RING_BYTES == 0 && read_record(in, record_out, behind_out) == SHM_RECORD;
        found = good && record_out->kind != SHM_SKIP ? SHM_RECORD : SHM_BROKEN;
    }
    if (found == SHM_RECORD) {
        prefetch_bytes(in->ring + in->tail % SHM_RING_BYTES, (uint32_t)(in->next - in->tail));
    }
    return found;
}

void trib_shm_in_take(shm_in *in)
{
    trib_assert(in->next > in->tail && in->next - in->tail <= SHM_RING_BYTES);
    in->tail = in->next;
    atomic_store_explicit(&in->mine->tail, in->tail, memory_order_release);
}
