/*
 * sum_quorum.c - rounds whose set of contributors was decided without some of them (server/quorum.h).
 *
 * A contributor that is not in the set is late. Neutral elements stand in its place, so that the sums complete. It may
 * come at any time later: what it sends is dropped, and each of its chunks asks for the sum of that chunk. A sum stays
 * until all late contributors have asked for it.
 *
 * Invariants
 * - A late contributor has brought nothing of its own to any chunk of the round: the set has all that have begun.
 * - A complete round with late contributors stays live until each of them has asked for all of its chunks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/sum_tree.h"

/* ---- Begun rounds ---- */

static bool is_receiving(const trib_summation *self, const sum_round *round, uint32_t contributor)
{
    bool found = false;
    for (const sum_block *block = self->all_blocks; block != NULL && !found && round->receives > 0;
         block = block->all_next) {
        found = block->is_receiving && block->receiving_for == round && block->receiving_from == contributor;
    }
    return found;
}

static bool has_begun(const trib_summation *self, const sum_round *round, uint32_t contributor)
{
    return round->refused != TRIB_OK || round->counts[contributor] > 0 || round->notified[contributor] != SUM_UNTOLD ||
           trib_sum_is_late(round, contributor) || is_receiving(self, round, contributor);
}

bool trib_summation_has_begun(const trib_summation *self, const trib_contribution *what)
{
    const sum_key *key = trib_sum_key_find(self, what);
    const sum_round *round = key == NULL ? NULL : trib_sum_round_find(self, key, what->round);
    return round == NULL ? what->round <= what->round_base || (key != NULL && what->round <= key->finished)
                         : has_begun(self, round, what->contributor);
}

/* Calls `visit` for each key of the tensor. The calls may not add or free keys. */
static void each_key(trib_summation *self, uint32_t tensor, void (*visit)(trib_summation *, sum_key *, void *),
                     void *user)
{
    for (uint32_t i = 0; i < self->keys.capacity; i++) {
        const struct sum_slot *slot = &self->keys.slots[i];
        if (slot->value != NULL && trib_sum_key_tensor(slot->value) == tensor) {
            visit(self, slot->value, user);
        }
    }
}

typedef struct begun_note {
    uint32_t round;
    unsigned char *begun;
} begun_note;

static void note_begun(trib_summation *self, sum_key *key, void *user)
{
    const begun_note *note = user;
    const sum_round *round = trib_sum_round_find(self, key, note->round);
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        const bool begun =
            round == NULL ? note->round <= key->finished : round->is_decided || has_begun(self, round, i);
        note->begun[i / 8] |= (unsigned char)(begun << i % 8);
    }
}

void trib_summation_note_begun(trib_summation *self, uint32_t tensor, uint32_t round, unsigned char *begun)
{
    begun_note note = {.round = round, .begun = begun};
    each_key(self, tensor, note_begun, &note);
}

void trib_summation_each_open(trib_summation *self, trib_open_round *notify, void *user)
{
    for (sum_round *round = self->oldest, *younger; round != NULL; round = younger) {
        younger = round->younger;
        if (round->refused != TRIB_OK || round->is_decided || round->chunks_done == round->what.chunk_count ||
            round->what.collective != TRIB_COLLECTIVE_ALL_REDUCE) {
            continue;
        }
        uint32_t begun = 0, older = 0;
        for (uint32_t i = 0; i < self->config.contributor_count; i++) {
            begun += has_begun(self, round, i);
        }
        for (const sum_round *at = round->next; at != NULL; at = at->next) {
            older++;
        }
        notify(user, &round->what, begun, older, round->began_ns);
    }
}

/* ---- The decision ---- */

static bool is_in(const unsigned char *set, uint32_t contributor)
{
    return (set[contributor / 8] >> contributor % 8 & 1) != 0;
}

/* One allocation has all arrays. Returns NULL if memory runs out. */
static sum_late *make_late(const trib_summation *self, const sum_round *round, const unsigned char *set)
{
    const uint32_t n = self->config.contributor_count, chunks = round->what.chunk_count;
    const size_t words = ((size_t)chunks * n + 63) / 64, asked_at = sizeof(sum_late) + words * sizeof(uint64_t),
                 is_late_at = asked_at + n * sizeof(uint32_t);
    unsigned char *memory = calloc(1, is_late_at + n);
    if (memory == NULL) {
        return NULL;
    }
    sum_late *late = (sum_late *)(void *)memory;
    late->asks = (uint64_t *)(void *)(memory + sizeof *late);
    late->asked = (uint32_t *)(void *)(memory + asked_at);
    late->is_late = memory + is_late_at;
    for (uint32_t i = 0; i < n; i++) {
        late->is_late[i] = !is_in(set, i);
        late->count += late->is_late[i];
    }
    late->left = late->count * chunks;
    return late;
}

typedef struct exclusion {
    uint32_t round, keys;
    const unsigned char *set;
    trib_status status;
} exclusion;

static void exclude_from_key(trib_summation *self, sum_key *key, void *user)
{
    exclusion *what = user;
    sum_round *round = trib_sum_round_find(self, key, what->round);
    if (round == NULL) {
        what->keys += what->round <= key->finished;
        return;
    }
    what->keys++;
    if (round->is_decided || round->refused != TRIB_OK || what->status != TRIB_OK) {
        return;
    }
    if (round->what.collective != TRIB_COLLECTIVE_ALL_REDUCE) {
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, "the workers disagree: only all-reduces have a quorum");
        return; /* a refused round stays: not all have come to it */
    }
    bool is_full = true;
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        if (!is_in(what->set, i) && has_begun(self, round, i)) {
            what->status = TRIB_PROTOCOL;
            return;
        }
        is_full = is_full && is_in(what->set, i);
    }
    round->is_decided = true;
    if (is_full) {
        return; /* nobody is late, and sums may be out already: there is nothing that memory could be short of */
    }
    round->late = make_late(self, round, what->set);
    if (round->late == NULL) {
        trib_sum_round_refuse(self, round, TRIB_NO_MEMORY, "out of memory for a quorum");
        return;
    }
    trib_sum_fill_late(self, round); /* the round stays: late contributors have asked for nothing yet */
}

trib_status trib_summation_exclude(trib_summation *self, uint32_t tensor, uint32_t round, const unsigned char *set,
                                   uint32_t *keys_out)
{
    exclusion what = {.round = round, .set = set};
    each_key(self, tensor, exclude_from_key, &what);
    *keys_out = what.keys;
    return what.status;
}

trib_status trib_summation_begin_late(trib_summation *self, const trib_contribution *what, const unsigned char *set)
{
    sum_round *round = NULL;
    const trib_status status = trib_sum_begin_for_late(self, what, &round);
    if (round != NULL) {
        round->is_decided = true;
        round->late = make_late(self, round, set);
    }
    if (round != NULL && round->late == NULL) {
        trib_sum_round_refuse(self, round, TRIB_NO_MEMORY, "out of memory for a quorum");
    }
    return status == TRIB_NO_MEMORY ? TRIB_NO_MEMORY : TRIB_OK; /* else the contribution is refused as any other */
}

/* ---- Neutral elements in the place of late contributors ---- */

void trib_sum_fill_late(trib_summation *self, sum_round *round)
{
    round->holds++;
    for (uint32_t i = 0; i < self->config.contributor_count && round->refused == TRIB_OK && !self->is_filling; i++) {
        if (round->late->is_late[i] && round->counts[i] < round->what.chunk_count) {
            trib_sum_bring_chunks(self, round, i, false);
        }
    }
    trib_assert(round->holds > 0);
    round->holds--;
}

void trib_summation_fill_late(trib_summation *self)
{
    for (sum_round *round = self->oldest, *younger; round != NULL; round = younger) {
        younger = round->younger;
        if (round->late != NULL && round->refused == TRIB_OK && round->chunks_done < round->what.chunk_count) {
            trib_sum_fill_late(self, round);
            trib_sum_round_try_end(self, round); /* all that are late may have come, and nobody's link may be left */
        }
    }
}

/* ---- Late contributors come ---- */

static size_t bit_of(const trib_summation *self, uint32_t chunk, uint32_t contributor)
{
    return (size_t)chunk * self->config.contributor_count + contributor;
}

bool trib_sum_late_has_asked(const trib_summation *self, const sum_round *round, uint32_t chunk, uint32_t contributor)
{
    const size_t bit = bit_of(self, chunk, contributor);
    return (round->late->asks[bit / 64] >> bit % 64 & 1) != 0;
}

bool trib_sum_late_is_awaited(const trib_summation *self, const sum_round *round, uint32_t chunk)
{
    bool is_awaited = false;
    for (uint32_t i = 0; i < self->config.contributor_count && !is_awaited; i++) {
        is_awaited = round->late->is_late[i] && !trib_sum_late_has_asked(self, round, chunk, i);
    }
    return is_awaited;
}

static void note_asked(const trib_summation *self, sum_round *round, uint32_t chunk, uint32_t contributor)
{
    const size_t bit = bit_of(self, chunk, contributor);
    trib_assert(!trib_sum_late_has_asked(self, round, chunk, contributor) && round->late->left > 0);
    round->late->asks[bit / 64] |= UINT64_C(1) << bit % 64;
    round->late->asked[contributor]++;
    round->late->left--;
}

void trib_sum_late_withdraw(trib_summation *self, sum_round *round, uint32_t contributor)
{
    round->holds++;
    for (uint32_t i = 0; i < round->what.chunk_count; i++) {
        if (!trib_sum_late_has_asked(self, round, i, contributor)) {
            note_asked(self, round, i, contributor);
            trib_sum_chunk_close_late(self, &round->chunks[i]);
        }
    }
    trib_assert(round->late->asked[contributor] == round->what.chunk_count);
    round->holds--;
    trib_sum_round_try_end(self, round);
}

/* A late contributor that means another operation learns that, alone: the others' sums are complete, or will be. */
static bool is_other(const sum_round *round, const trib_contribution *what)
{
    const trib_contribution *first = &round->what;
    const sum_chunk *chunk = what->chunk < round->chunk_count ? &round->chunks[what->chunk] : NULL;
    return chunk == NULL || first->chunk_count != what->chunk_count || first->collective != what->collective ||
           first->dtype != what->dtype || first->reduce != what->reduce || first->step != what->step ||
           first->scale != what->scale || first->prescale != what->prescale ||
           (chunk->is_sized && chunk->size != what->size);
}

static void refuse_late(trib_summation *self, sum_round *round, uint32_t contributor)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_contribution mine = round->what;
    mine.contributor = contributor;
    snprintf(text, sizeof text,
             "rank %u came late to round %u, which went on without it, with another operation than the others, or at "
             "another step",
             trib_sum_rank(self, &mine, contributor), round->what.round);
    self->config.refused(self->config.user, contributor, &mine, TRIB_MISMATCH, text);
    trib_sum_late_withdraw(self, round, contributor);
}

void trib_sum_late_describe(trib_summation *self, sum_round *round, const trib_contribution *what)
{
    bool is_first = true;
    for (uint32_t i = 0; i < round->chunk_count && is_first; i++) {
        is_first = !round->chunks[i].is_sized;
    }
    if (!is_first || what->chunk_count != round->what.chunk_count) {
        return;
    }
    const bool differs = is_other(round, what);
    round->what = *what;
    for (uint32_t i = 0; i < self->config.contributor_count && differs; i++) {
        if (round->late->is_late[i] && round->late->asked[i] > 0) {
            refuse_late(self, round, i);
        }
    }
}

trib_status trib_sum_late_came(trib_summation *self, const trib_contribution *what, trib_error *error)
{
    sum_key *key = trib_sum_key_find(self, what);
    sum_round *round = key == NULL ? NULL : trib_sum_round_find(self, key, what->round);
    if (round != NULL && round->refused != TRIB_OK) { /* since the payload began to arrive */
        trib_sum_round_notify(self, round, what->contributor);
        trib_sum_round_try_end(self, round);
        return TRIB_OK;
    }
    if (round == NULL || !trib_sum_is_late(round, what->contributor)) {
        return TRIB_OK;
    }
    if (is_other(round, what)) {
        if (round->late->asked[what->contributor] < round->what.chunk_count) { /* else it knows, or has given up */
            refuse_late(self, round, what->contributor);
        }
        return TRIB_OK;
    }
    if (trib_sum_late_has_asked(self, round, what->chunk, what->contributor)) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u contributes twice to chunk %u of round %u",
                              what->contributor, what->chunk, what->round);
    }
    round->holds++;
    note_asked(self, round, what->chunk, what->contributor);
    trib_sum_chunk_hand_late(self, &round->chunks[what->chunk], what->contributor);
    trib_assert(round->holds > 0);
    round->holds--;
    trib_sum_round_try_end(self, round);
    return TRIB_OK;
}
