/*
 * sum_absent.c - lets contributors that have no more data bring neutral elements, so that the others' sums complete.
 *
 * An absent contributor brings a chunk as soon as somebody else has brought it, for only then its length is known. The
 * chunk goes the way of any other contribution, so all rules of rounds hold for it, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/sum_tree.h"

/* ---- Neutral elements ---- */

typedef struct float_bits {
    uint64_t negative_zero, one, largest, smallest;
} float_bits;

/* MIN and MAX of E4M3 have its largest number for infinity. */
static const float_bits *bits_of(trib_dtype dtype)
{
    static const float_bits float32 = {0x80000000, 0x3f800000, 0x7f800000, 0xff800000};
    static const float_bits float64 = {UINT64_C(1) << 63, UINT64_C(0x3ff) << 52, UINT64_C(0x7ff) << 52,
                                       UINT64_C(0xfff) << 52};
    static const float_bits float16 = {0x8000, 0x3c00, 0x7c00, 0xfc00};
    static const float_bits bfloat16 = {0x8000, 0x3f80, 0x7f80, 0xff80};
    static const float_bits e4m3 = {0x80, 0x38, 0x7e, 0xfe};
    static const float_bits e5m2 = {0x80, 0x3c, 0x7c, 0xfc};
    switch (dtype) {
    case TRIB_FLOAT32:
        return &float32;
    case TRIB_FLOAT64:
        return &float64;
    case TRIB_FLOAT16:
        return &float16;
    case TRIB_BFLOAT16:
        return &bfloat16;
    case TRIB_FLOAT8_E4M3:
        return &e4m3;
    case TRIB_FLOAT8_E5M2:
        return &e5m2;
    default:
        return NULL;
    }
}

static bool is_signed(trib_dtype dtype)
{
    return dtype == TRIB_INT8 || dtype == TRIB_INT16 || dtype == TRIB_INT32 || dtype == TRIB_INT64;
}

uint64_t trib_sum_neutral(trib_dtype dtype, trib_reduce reduce)
{
    const float_bits *bits = bits_of(dtype);
    const uint64_t top = UINT64_C(1) << (8 * trib_dtype_size(dtype) - 1), ones = top - 1 + top;
    switch (reduce) {
    case TRIB_PRODUCT:
        return bits != NULL ? bits->one : 1;
    case TRIB_MIN:
        return bits != NULL ? bits->largest : dtype == TRIB_BOOL ? 1 : is_signed(dtype) ? top - 1 : ones;
    case TRIB_MAX:
        return bits != NULL ? bits->smallest : is_signed(dtype) ? top : 0;
    case TRIB_BIT_AND:
        return dtype == TRIB_BOOL ? 1 : ones;
    default: /* SUM, AVG, and the other bitwise ones */
        return bits != NULL ? bits->negative_zero : 0;
    }
}

/* Returns as many bytes of neutral elements, or NULL if there is no memory. */
static const void *neutral_bytes(trib_summation *self, const trib_contribution *what)
{
    const trib_dtype dtype = self->config.takes_partials ? trib_acc_dtype(what->dtype, what->reduce) : what->dtype;
    const size_t element = trib_dtype_size(dtype), bytes = what->size / trib_dtype_size(what->dtype) * element;
    if (self->neutral != NULL && self->neutral_bytes >= bytes && self->neutral_dtype == dtype &&
        self->neutral_reduce == what->reduce) {
        return self->neutral;
    }
    if (self->neutral == NULL || self->neutral_bytes < bytes) {
        free(self->neutral);
        self->neutral_bytes = 0;
        self->neutral = malloc(bytes > 0 ? bytes : element);
        if (self->neutral == NULL) {
            return NULL;
        }
        self->neutral_bytes = bytes;
    }
    const uint64_t value = trib_sum_neutral(dtype, what->reduce);
    for (size_t at = 0; at + element <= self->neutral_bytes; at += element) {
        memcpy((unsigned char *)self->neutral + at, &value, element); /* little-endian, as elements are */
    }
    trib_assert(bytes <= self->neutral_bytes && bytes % element == 0);
    self->neutral_dtype = dtype;
    self->neutral_reduce = what->reduce;
    return self->neutral;
}

/* ---- Rounds ---- */

/* The contributor knows nothing of the round, and is told nothing of it. */
static void pass_by(sum_round *round, uint32_t contributor, sum_notice notice)
{
    round->notified_count += round->notified[contributor] == 0;
    round->notified[contributor] = notice;
}

bool trib_sum_is_replaced(const trib_summation *self, const sum_round *round, const trib_contribution *what)
{
    return !self->is_filling && (trib_sum_is_filled(round, what->contributor) ||
                                 (round->refused == TRIB_OK && trib_sum_is_late(round, what->contributor)));
}

bool trib_sum_was_replaced(const sum_key *key, const trib_contribution *what)
{
    return what->round <= key->filled_last && what->round <= key->finished;
}

/* Brings the chunks that others have brought. Without memory, some are left for a later call. Either all of a round's
 * chunks are neutral, or none: if a contributor had begun to send the round before it joined, the rest of its chunks or
 * a withdrawal is on its way. */
void trib_sum_bring_chunks(trib_summation *self, sum_round *round, uint32_t contributor, bool has_joined)
{
    trib_status status = TRIB_OK;
    trib_assert(!self->is_filling);
    self->is_filling = true;
    for (uint32_t i = 0; i < round->chunk_count && round->refused == TRIB_OK && status == TRIB_OK; i++) {
        const sum_chunk *chunk = &round->chunks[i];
        trib_contribution what = round->what;
        what.contributor = contributor;
        what.chunk = i;
        what.size = chunk->size;
        if (chunk->arrived == 0 || trib_sum_has_arrived(self, round, &what)) {
            continue;
        }
        if (has_joined) {
            pass_by(round, contributor, SUM_FILLED);
            round->key->filled_last =
                round->key->filled_last < round->what.round ? round->what.round : round->key->filled_last;
        }
        const trib_arrived neutral = {.payload = what.size == 0 ? NULL : neutral_bytes(self, &what)};
        trib_error error;
        status = neutral.payload == NULL && what.size > 0 ? TRIB_NO_MEMORY
                                                          : trib_summation_arrived(self, &what, &neutral, &error);
    }
    self->is_filling = false;
}

static void fill_round(trib_summation *self, sum_round *round, trib_is_gone *is_absent)
{
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_contribution what = round->what;
        what.contributor = i;
        if (!is_absent(self->config.user, &what, text, sizeof text)) {
            continue;
        }
        const bool has_begun = round->counts[i] > 0 && !trib_sum_is_filled(round, i);
        if (round->refused == TRIB_OK && round->counts[i] < round->what.chunk_count && !has_begun) {
            if (self->config.fills_absent && round->what.collective == TRIB_COLLECTIVE_ALL_REDUCE) {
                if (trib_sum_is_through(round->key, round, i)) { /* partial sums are in order */
                    trib_sum_bring_chunks(self, round, i, true);
                }
            } else {
                trib_sum_round_refuse(self, round, TRIB_UNSUPPORTED, text);
            }
        }
    }
    for (uint32_t i = 0; i < self->config.contributor_count && round->refused != TRIB_OK; i++) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_contribution what = round->what;
        what.contributor = i;
        if (!round->notified[i] && is_absent(self->config.user, &what, text, sizeof text)) {
            /* the round does not wait for the contributor; its frames on their way are dropped */
            pass_by(round, i, SUM_FILLED);
        }
    }
}

/* The key's oldest live round from that of `what` on. */
static sum_round *oldest_from(const trib_summation *self, const trib_contribution *what)
{
    const sum_key *key = trib_sum_key_find(self, what);
    sum_round *round = key == NULL ? NULL : key->live;
    while (round != NULL && round->next != NULL && round->next->what.round >= what->round) {
        round = round->next;
    }
    return round == NULL || round->what.round < what->round ? NULL : round;
}

void trib_summation_fill(trib_summation *self, const trib_contribution *what, trib_is_gone *is_absent)
{
    sum_round *round = what == NULL ? self->oldest : oldest_from(self, what);
    while (round != NULL) {
        round->holds++;
        fill_round(self, round, is_absent);
        trib_assert(round->holds > 0); /* the round has not ended inside */
        round->holds--;
        sum_round *younger = what == NULL ? round->younger : round->newer;
        trib_sum_round_try_end(self, round);
        round = younger;
    }
}

/* ---- After a join ---- */

/* The newest round of the key, also of its earlier tensors. */
static uint32_t newest_over(const sum_key *key, const trib_contribution *what)
{
    const uint32_t newest = key == NULL ? 0 : trib_sum_round_newest(key);
    return newest < what->round_base ? what->round_base : newest;
}

static bool has_come(const sum_round *round, uint32_t contributor)
{
    return round->counts[contributor] > 0 || round->notified[contributor];
}

/* True if the contributor has not come to some round before what->round. */
static bool skips(const sum_key *key, const sum_round *round, const trib_contribution *what)
{
    bool skips = round == NULL && what->round > newest_over(key, what) + 1;
    for (const sum_round *older = key == NULL ? NULL : key->live; older != NULL && !skips; older = older->next) {
        skips = older->what.round < what->round && !has_come(older, what->contributor);
    }
    return skips;
}

static void refuse_passed(trib_summation *self, const sum_key *key, const trib_contribution *what)
{
    for (sum_round *round = key->live, *older; round != NULL; round = older) {
        older = round->next;
        if (round->what.round >= what->round || has_come(round, what->contributor)) {
            continue;
        }
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "rank %u joined (trib_join) before round %u, and has gone on to round %u",
                 trib_sum_rank(self, what, what->contributor), round->what.round, what->round);
        pass_by(round, what->contributor, SUM_TOLD);
        trib_sum_round_refuse(self, round, TRIB_CANCELLED, text);
        trib_sum_round_try_end(self, round);
    }
}

/* All go on from the same round after a join, so each join lets one round begin behind a gap. A worker whose numbers
 * are wrong is out of turn then, as it would be without joins. */
bool trib_sum_pass_over(trib_summation *self, sum_key **key_inout, const sum_round *round,
                        const trib_contribution *what)
{
    sum_key *key = *key_inout;
    if (!skips(key, round, what) || (key != NULL && key->joins == what->joins && what->round > key->join_round)) {
        return true;
    }
    *key_inout = key = key == NULL ? trib_sum_key_make(self, what) : key;
    if (key == NULL) {
        return false;
    }
    if (round == NULL && key->joins != what->joins) {
        key->joins = what->joins;
        key->join_round = what->round;
    }
    refuse_passed(self, key, what);
    const uint32_t over = newest_over(key, what);
    if (what->round > over + 1) { /* what others have sent to rounds between is still on its way, and is dropped */
        key->refused_first = key->refused_last == over && over != 0 ? key->refused_first : over + 1;
        key->refused_last = key->finished = what->round - 1;
    }
    return true;
}
