/*
 * fuzz_shm_ring.c - a peer writes anything into the memory that it shares with this side. Reading and writing the
 * rings must stay inside them, and must end.
 *
 * The input is taken in steps of 12 bytes: where the peer writes in the segment (4), and what (8). After each step
 * this side takes some records and writes one. At the end the peer has gone.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transports/shm/shm_ring.h"
#include "transports/transport.h"

#define STEP 12u
#define RECORDS_PER_STEP 64u
#define RECORDS_MAX (SHM_RING_BYTES / SHM_ALIGN)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Every other step is aimed at a word with a meaning: one of the two sides' words, or one of the record that is read
 * next. */
static size_t aim(uint32_t at, size_t step, const shm_in *in)
{
    static const size_t words[] = {offsetof(shm_side, head), offsetof(shm_side, tail), offsetof(shm_side, done),
                                   offsetof(shm_side, sleeps), offsetof(shm_side, revoked)};
    const size_t count = sizeof words / sizeof words[0], which = (at >> 8) % 8;
    if (step % 2 != 0) {
        return at % (SHM_SEGMENT_BYTES - 8);
    }
    return which < count ? words[which] + (at & 1) * sizeof(shm_side)
                         : SHM_RINGS_OFFSET + in->tail % SHM_RING_BYTES + (at & 1) * 8;
}

static bool take_one(shm_in *in)
{
    shm_record record = {.kind = 0};
    const unsigned char *behind = NULL;
    if (trib_shm_in_next(in, &record, &behind) != SHM_RECORD) {
        return false;
    }
    size_t header = record.kind == SHM_FRAGMENT || record.kind == SHM_RESENT ? 0 : TRIB_HEADER_SIZE;
    size_t bytes = record.kind == SHM_INLINE || record.kind == SHM_FRAGMENT ? header + record.size : header;
    require(behind >= in->ring && bytes <= (size_t)(in->ring + SHM_RING_BYTES - behind));
    require(record.size <= TRIB_PAYLOAD_MAX);
    const bool is_lent = record.kind == SHM_REMOTE || record.kind == SHM_OFFERED;
    require(record.kind <= SHM_RESENT && (!is_lent || record.size > SHM_INLINE_MAX));
    trib_shm_in_take(in);
    return true;
}

static bool write_one(shm_out *out, uint32_t size)
{
    bool broken = false;
    unsigned char *place =
        trib_shm_out_reserve(out, (shm_record){.kind = SHM_INLINE, .size = size}, TRIB_HEADER_SIZE + size, &broken);
    if (place == NULL) {
        return !broken;
    }
    require(place >= out->ring && TRIB_HEADER_SIZE + size <= (size_t)(out->ring + SHM_RING_BYTES - place));
    memset(place, 0, TRIB_HEADER_SIZE + size);
    trib_shm_out_commit(out);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *segment = aligned_alloc(4096, SHM_SEGMENT_BYTES);
    require(segment != NULL);
    memset(segment, 0, SHM_SEGMENT_BYTES);
    shm_out out;
    shm_in in;
    trib_shm_rings_open(segment, 1, &out, &in);
    bool alive = true;
    for (size_t step = 0; alive && (step + 1) * STEP <= size; step++) {
        uint32_t at = 0;
        memcpy(&at, data + step * STEP, sizeof at);
        memcpy(segment + aim(at, step, &in), data + step * STEP + 4, 8);
        for (uint32_t taken = 0; taken < RECORDS_PER_STEP && take_one(&in);) {
            taken++;
        }
        alive = write_one(&out, at % (SHM_INLINE_MAX + 1));
    }
    uint32_t left = 0;
    const bool makes_sense = trib_shm_in_end(&in);
    while (makes_sense && left <= RECORDS_MAX && take_one(&in)) {
        left++;
    }
    require(left <= RECORDS_MAX); /* no more than fit the ring */
    free(segment);
    return 0;
}
