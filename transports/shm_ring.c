/* shm_ring.c - see shm_ring.h. */
#include "transports/shm_ring.h"

#include <string.h>

#include "engine/assert.h"
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

uint32_t trib_shm_record_bytes(uint32_t behind)
{
    return SHM_ALIGN + round_up(behind);
}

#define LINE 64u
#define FETCH_BYTES (4096u + 2 * LINE) /* beyond that the processor itself has seen where this goes */

/* ---- Filling ---- */

/* Looks how far the peer has come. False if it says what cannot be. */
static bool see_tail(shm_out *out)
{
    uint64_t tail = atomic_load_explicit(&out->peer->tail, memory_order_acquire);
    if (tail - out->tail > out->head - out->tail) {
        return false; /* behind what it has said before, or ahead of what there is */
    }
    out->tail = tail;
    return true;
}

unsigned char *trib_shm_out_reserve(shm_out *out, shm_record record, uint32_t behind, bool *broken)
{
    uint32_t bytes = trib_shm_record_bytes(behind);
    trib_assert(bytes <= SHM_RING_BYTES / 2);
    uint32_t at = (uint32_t)(out->head % SHM_RING_BYTES);
    uint32_t skip = at + bytes > SHM_RING_BYTES ? SHM_RING_BYTES - at : 0;
    if (out->head + skip + bytes - out->tail > SHM_RING_BYTES) {
        *broken = !see_tail(out);
        if (*broken || out->head + skip + bytes - out->tail > SHM_RING_BYTES) {
            return NULL;
        }
    }
    if (skip > 0) {
        shm_record filler = {.kind = SHM_SKIP, .size = skip - SHM_ALIGN};
        memcpy(out->ring + at, &filler, sizeof filler);
        at = 0;
    }
    memcpy(out->ring + at, &record, sizeof record);
    out->next = out->head + skip + bytes;
    return out->ring + at + sizeof record;
}

void trib_shm_out_commit(shm_out *out)
{
    trib_assert(out->next > out->head && out->next - out->tail <= SHM_RING_BYTES);
    out->head = out->next;
    atomic_store_explicit(&out->mine->head, out->head, memory_order_release);
}

/* ---- Emptying ---- */

bool trib_shm_in_has_more(const shm_in *in)
{
    return atomic_load_explicit(&in->peer->head, memory_order_acquire) != in->tail;
}

/* Bytes behind a record; UINT32_MAX for what is none. */
static uint32_t bytes_behind(const shm_record *record)
{
    switch (record->kind) {
    case SHM_SKIP:
        return record->size <= SHM_RING_BYTES ? record->size : UINT32_MAX;
    case SHM_INLINE:
        return record->size <= SHM_INLINE_MAX ? TRIB_HEADER_SIZE + record->size : UINT32_MAX;
    case SHM_REMOTE: /* small ones are never lent, so that nothing is read of a peer that has proved nothing yet */
    case SHM_STREAM:
        if (record->size <= SHM_INLINE_MAX) {
            return UINT32_MAX;
        }
        return record->size <= TRIB_PAYLOAD_MAX ? TRIB_HEADER_SIZE : UINT32_MAX;
    case SHM_FRAGMENT:
        return record->size > 0 && record->size <= SHM_FRAGMENT_MAX ? record->size : UINT32_MAX;
    default:
        return UINT32_MAX;
    }
}

static shm_record read_once(const unsigned char *from)
{
    const volatile uint32_t *words = (const volatile uint32_t *)(const void *)from;
    shm_record record = {.kind = words[0], .size = words[1]};
    record.address = *(const volatile uint64_t *)(const void *)(from + offsetof(shm_record, address));
    return record;
}

/* What has come lies in another core's cache. Asked for at once it is on its way while its header is read and thought about. */
static void fetch(const shm_in *in)
{
    const uint64_t there = in->head - in->tail;
    for (uint64_t i = 0; i < there && i < FETCH_BYTES; i += LINE) {
        __builtin_prefetch(in->ring + (in->tail + i) % SHM_RING_BYTES);
    }
}

/* The record at `in->tail`; false if there is none that fits. */
static bool look(shm_in *in, shm_record *record_out, const unsigned char **behind_out)
{
    uint32_t at = (uint32_t)(in->tail % SHM_RING_BYTES);
    uint64_t there = in->head - in->tail;
    *record_out = read_once(in->ring + at);
    uint32_t behind = bytes_behind(record_out);
    if (behind == UINT32_MAX) {
        return false;
    }
    uint32_t bytes = trib_shm_record_bytes(behind);
    if (bytes > there || bytes > SHM_RING_BYTES - at) {
        return false;
    }
    in->next = in->tail + bytes;
    *behind_out = in->ring + at + sizeof *record_out;
    return true;
}

shm_found trib_shm_in_next(shm_in *in, shm_record *record_out, const unsigned char **behind_out)
{
    uint64_t head = atomic_load_explicit(&in->peer->head, memory_order_acquire);
    if (head - in->tail > SHM_RING_BYTES || head % SHM_ALIGN != 0) {
        return SHM_BROKEN;
    }
    if (head == in->tail) {
        in->head = head;
        return SHM_NOTHING;
    }
    if (head != in->head) {
        in->head = head;
        fetch(in);
    }
    if (!look(in, record_out, behind_out)) {
        return SHM_BROKEN;
    }
    if (record_out->kind != SHM_SKIP) {
        return SHM_RECORD;
    }
    /* It reaches to the end of the ring and is published together with the record after it. */
    trib_shm_in_take(in);
    bool good = in->tail % SHM_RING_BYTES == 0 && in->tail != in->head && look(in, record_out, behind_out);
    return good && record_out->kind != SHM_SKIP ? SHM_RECORD : SHM_BROKEN;
}

void trib_shm_in_take(shm_in *in)
{
    trib_assert(in->next > in->tail && in->next <= in->head);
    in->tail = in->next;
    atomic_store_explicit(&in->mine->tail, in->tail, memory_order_release);
}
