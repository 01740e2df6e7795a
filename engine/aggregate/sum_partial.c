/*
 * sum_partial.c - gives out partial sums, which are parts of a larger sum.
 *
 * A chunk whose contributions have all arrived is given out unrounded. It then waits until the finished sum has been
 * written over it.
 *
 * Invariants
 * - A chunk that is out keeps its round and its block until its sum has arrived or the round is refused.
 * - The owner expects this contributor's rounds of a key in order. So a refusal is reported to the owner only after
 *   every older round of the key is complete or reported.
 * - Partial sums are in order by themselves: a chunk of round r + 1 is complete only after every contributor has
 *   finished round r.
 * - If a round is complete or reported, then all older rounds of its key are too.
 */
#include "engine/aggregate/sum_tree.h"

static bool gives_partials(const trib_summation *self)
{
    return self->config.partial_ready != NULL;
}

uint32_t trib_sum_partial_bytes(const trib_contribution *what)
{
    return trib_collective_is_sum(what->collective) ? what->size << trib_sum_acc_width(what) : what->size;
}

static trib_contribution describe(const sum_chunk *chunk)
{
    trib_assert(chunk >= chunk->round->chunks && chunk < chunk->round->chunks + chunk->round->chunk_count);
    const sum_round *round = chunk->round;
    trib_contribution what = round->what;
    what.chunk = (uint32_t)(chunk - round->chunks);
    what.size = chunk->size;
    return what;
}

/* ---- Giving out ---- */

bool trib_sum_partial_take_block(trib_summation *self, const sum_round *round, const trib_contribution *what,
                                 sum_block **block)
{
    *block = NULL;
    if (!gives_partials(self) || round->refused != TRIB_OK || what->collective != TRIB_COLLECTIVE_BROADCAST ||
        what->size == 0 || trib_sum_root(self, what) < self->config.contributor_count ||
        round->chunks[what->chunk].arrived + 1 < self->config.contributor_count) {
        return true;
    }
    *block = trib_sum_block_take(self, what->size, 0);
    return *block != NULL;
}

void trib_sum_partial_give_out(trib_summation *self, sum_chunk *chunk, sum_block *block)
{
    sum_round *round = chunk->round;
    const bool carries = block != NULL && chunk->size > 0;
    trib_assert(!chunk->is_out && chunk->result == NULL && chunk->sum.references == 0);
    chunk->result = block;
    chunk->is_out = true;
    round->partials_out++;
    round->references++; /* this reference is the caller's; partials_out counts the summation's own */
    chunk->sum = (trib_sum_buffer){
        .data = carries ? block->data : NULL, .size = carries ? chunk->size : 0, .references = 2, .slot = chunk};
    const trib_contribution what = describe(chunk);
    self->config.partial_ready(self->config.user, &what, &chunk->sum);
}

void trib_sum_partial_add_to_broadcast(trib_summation *self, sum_chunk *chunk, sum_block *block)
{
    if (block != NULL) {
        trib_assert(chunk->kept == NULL);
        chunk->kept = block;
    }
    if (chunk->arrived == self->config.contributor_count) {
        sum_block *kept = chunk->kept;
        chunk->kept = NULL;
        trib_sum_partial_give_out(self, chunk, kept);
    }
}

void trib_sum_partial_clear(trib_summation *self, sum_chunk *chunk)
{
    trib_sum_block_give(self, chunk->kept);
    chunk->kept = NULL;
    if (chunk->is_out) {
        chunk->is_out = false;
        trib_assert(chunk->round->partials_out > 0);
        chunk->round->partials_out--;
        trib_sum_buffer_unref(self, &chunk->sum);
    }
}

/* ---- Reporting ---- */

static bool is_settled(const sum_round *round)
{
    const bool is_complete = round->refused == TRIB_OK && round->chunks_done == round->what.chunk_count;
    return is_complete || round->is_reported;
}

void trib_sum_partial_report(trib_summation *self, sum_round *round)
{
    if (!gives_partials(self) || (round->next != NULL && !is_settled(round->next))) {
        return; /* the older round reports this one when its turn comes */
    }
    sum_round *first = NULL, **last = &first; /* the rounds to report, oldest first */
    for (sum_round *at = round; at != NULL && (at->refused != TRIB_OK || is_settled(at)); at = at->newer) {
        if (!is_settled(at)) { /* the loop stops at an open round: no younger one is reported yet */
            *last = at;
            last = &at->report_next;
            at->report_next = NULL;
            at->is_reported = true;
            at->holds++;
        }
    }
    while (first != NULL) {
        sum_round *next = first->report_next;
        trib_assert(first->is_reported && first->refused != TRIB_OK && first->holds > 0);
        self->config.round_refused(self->config.user, &first->what, first->refused, first->text);
        first->holds--;
        trib_sum_round_try_end(self, first);
        first = next;
    }
}

bool trib_sum_partial_may_end(const trib_summation *self, const sum_round *round)
{
    return !gives_partials(self) || (round->partials_out == 0 && (round->refused == TRIB_OK || round->is_reported));
}

/* ---- Answers from the owner ---- */

static sum_round *find_live(const trib_summation *self, const trib_contribution *what)
{
    const sum_key *key = trib_sum_key_find(self, what);
    return key == NULL ? NULL : trib_sum_round_find(self, key, what->round);
}

static sum_chunk *find_awaited(const trib_summation *self, const trib_contribution *what)
{
    const sum_round *round = find_live(self, what);
    if (round == NULL || what->chunk >= round->chunk_count || !round->chunks[what->chunk].is_out) {
        return NULL;
    }
    return &round->chunks[what->chunk];
}

trib_sum_buffer *trib_summation_awaited(const trib_summation *self, const trib_contribution *what)
{
    sum_chunk *chunk = find_awaited(self, what);
    return chunk == NULL ? NULL : &chunk->sum;
}

void trib_summation_hold(trib_sum_buffer *sum, trib_contribution *what_out)
{
    sum_chunk *chunk = sum->slot;
    trib_assert(sum == &chunk->sum && chunk->is_out && sum->references > 0);
    sum->references++;
    chunk->round->references++;
    *what_out = describe(chunk);
}

void trib_summation_complete(trib_summation *self, const trib_contribution *what)
{
    sum_chunk *chunk = find_awaited(self, what);
    trib_assert(chunk != NULL);
    sum_round *round = chunk->round;
    chunk->is_out = false;
    trib_assert(round->partials_out > 0);
    round->partials_out--;
    round->holds++;
    trib_sum_chunk_hand_out(self, chunk);
    round->holds--;
    trib_sum_round_try_end(self, round);
}

/* True while the round depends on its owner. Otherwise all its sums have arrived, and at most wait to be sent. */
static bool needs_above(const sum_round *round)
{
    return round->refused == TRIB_OK && (round->chunks_done < round->what.chunk_count || round->partials_out > 0);
}

static void refuse_from_above(trib_summation *self, sum_round *round, trib_status status, const char *text)
{
    round->is_reported = round->is_reported || round->refused == TRIB_OK; /* the owner knows of the refusal already */
    round->holds++;
    trib_sum_round_refuse(self, round, status, text);
    round->holds--;
    trib_sum_round_try_end(self, round);
}

void trib_summation_refuse(trib_summation *self, const trib_contribution *what, trib_status status, const char *text)
{
    sum_round *round = find_live(self, what);
    if (round != NULL && needs_above(round)) {
        refuse_from_above(self, round, status, text);
    }
}

void trib_summation_refuse_owner(trib_summation *self, uint32_t owner, trib_status status, const char *text)
{
    for (sum_round *round = self->oldest; round != NULL;) {
        if (round->what.owner == owner && needs_above(round)) {
            refuse_from_above(self, round, status, text);
            round = self->oldest; /* the refusal may have ended other rounds too */
        } else {
            round = round->younger;
        }
    }
}

bool trib_summation_find_owner(const trib_summation *self, const trib_contribution *what, uint32_t *owner_out)
{
    const sum_round *round = find_live(self, what);
    *owner_out = round == NULL ? 0 : round->what.owner;
    return round != NULL;
}

bool trib_summation_is_behind(const trib_summation *self, const trib_contribution *what)
{
    const sum_round *round = find_live(self, what);
    return round != NULL && round->next != NULL;
}

void trib_summation_each_waiting(trib_summation *self, const trib_contribution *what,
                                 void (*notify)(void *user, uint32_t receiver, const trib_contribution *what),
                                 void *user)
{
    sum_round *round = find_live(self, what);
    if (round == NULL || round->refused != TRIB_OK) {
        return;
    }
    round->holds++;
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        if (round->counts[i] > 0 && !trib_sum_is_filled(round, i)) {
            trib_contribution one = round->what;
            one.contributor = i;
            notify(user, i, &one);
        }
    }
    round->holds--;
    trib_sum_round_try_end(self, round);
}
