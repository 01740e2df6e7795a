/*
 * sum_round.c - the end, the refusal and the stalls of a round.
 *
 * A refused round holds no payloads, but stays until every contributor has shown up and been told. Its key then
 * remembers the newest run of consecutive refused rounds, so that late frames to them are dropped.
 */
#include <stdio.h>
#include <string.h>

#include "engine/aggregate/sum_tree.h"
#include "engine/base/scale.h"

uint32_t trib_sum_round_newest(const sum_key *key)
{
    const uint32_t live = key->live == NULL ? 0 : key->live->what.round;
    return live > key->finished ? live : key->finished;
}

static void remember_refused(sum_key *key, uint32_t round)
{
    if (key->refused_last != 0 && round + 1 == key->refused_first) {
        key->refused_first = round;
    } else if (key->refused_last != 0 && round == key->refused_last + 1) {
        key->refused_last = round;
    } else if (round > key->refused_last) {
        key->refused_first = key->refused_last = round;
    }
}

void trib_sum_round_try_end(trib_summation *self, sum_round *round)
{
    const bool served = round->refused == TRIB_OK ? round->chunks_done == round->what.chunk_count &&
                                                        (round->late == NULL || round->late->left == 0)
                                                  : round->notified_count == self->config.contributor_count;
    if (!served || round->references > 0 || round->receives > 0 || round->holds > 0 ||
        !trib_sum_partial_may_end(self, round)) {
        return;
    }
    sum_key *key = round->key;
    trib_assert(round->chunks_done <= round->what.chunk_count);
    trib_assert(round->notified_count <= self->config.contributor_count);
    trib_sum_round_take_out(self, round);
    key->finished = round->what.round > key->finished ? round->what.round : key->finished;
    if (round->refused != TRIB_OK) {
        remember_refused(key, round->what.round);
    }
    trib_sum_round_give(self, round);
    if (key->is_forgotten && key->live == NULL) {
        trib_sum_key_free(self, key);
    }
    trib_assert_slow(trib_sum_memory_is_consistent(self));
}

/* ---- Rounds of other owners, and of tensors that ended ---- */

/* The newest round that cannot end by itself: it lacks contributions, a sum from its owner, or contributors that have
 * to be told of its refusal. */
static sum_round *find_stuck(const trib_summation *self, const sum_key *key, uint32_t last)
{
    sum_round *round = key->live;
    while (round != NULL &&
           (round->what.round > last ||
            (round->refused != TRIB_OK ? round->notified_count == self->config.contributor_count
                                       : round->chunks_done == round->what.chunk_count && round->partials_out == 0 &&
                                             (round->late == NULL || round->late->left == 0)))) {
        round = round->next;
    }
    return round;
}

void trib_summation_forget(trib_summation *self, const trib_contribution *what)
{
    sum_key *key = trib_sum_key_find(self, what);
    if (key == NULL) {
        return;
    }
    key->finished = what->round > key->finished ? what->round : key->finished;
    key->is_forgotten = true;
    if (key->live == NULL) {
        trib_sum_key_free(self, key);
        return;
    }
    key->live->holds++; /* keeps the key while its rounds end */
    sum_round *held = key->live, *round;
    while ((round = find_stuck(self, key, what->round)) != NULL) {
        memset(round->notified, SUM_TOLD, self->config.contributor_count);
        round->notified_count = self->config.contributor_count;
        round->is_reported = true;
        round->holds++;
        trib_sum_round_refuse(self, round, TRIB_CANCELLED, "all workers have released the tensor");
        round->holds--;
        trib_sum_round_try_end(self, round);
    }
    trib_assert(held->holds > 0 && held->key == key);
    held->holds--;
    trib_sum_round_try_end(self, held);
}

trib_status trib_summation_take_over(trib_summation *self, const trib_contribution *what)
{
    sum_key *key = trib_sum_key_find(self, what);
    key = key == NULL ? trib_sum_key_make(self, what) : key;
    if (key == NULL) {
        return TRIB_NO_MEMORY;
    }
    key->finished = what->round > key->finished ? what->round : key->finished;
    key->is_forgotten = false;
    return TRIB_OK;
}

/* ---- Refusing ---- */

void trib_sum_round_notify(trib_summation *self, sum_round *round, uint32_t contributor)
{
    trib_assert(round->refused != TRIB_OK);
    if (!round->notified[contributor]) {
        round->notified[contributor] = SUM_TOLD;
        round->notified_count++;
        trib_assert(round->notified_count <= self->config.contributor_count);
        trib_contribution what = round->what;
        what.contributor = contributor;
        self->config.refused(self->config.user, contributor, &what, round->refused, round->text);
    }
}

void trib_sum_round_refuse(trib_summation *self, sum_round *round, trib_status status, const char *text)
{
    trib_assert(status != TRIB_OK);
    if (round->refused != TRIB_OK) {
        return;
    }
    if (round->chunks_done < round->what.chunk_count) {
        trib_assert(round->key->open_count > 0);
        round->key->open_count--;
    }
    round->refused = status;
    snprintf(round->text, sizeof round->text, "%s", text);
    round->holds++;
    trib_sum_round_clear(self, round);
    trib_sum_partial_report(self, round);
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        if (trib_sum_has_come(round, i)) {
            trib_sum_round_notify(self, round, i);
        }
    }
    round->holds--;
}

static void describe(const trib_summation *self, const trib_contribution *what, bool with_chunks, char *text,
                     size_t size)
{
    char chunks[32] = "", who[48];
    const uint32_t rank = trib_sum_rank(self, what, what->contributor);
    const uint32_t root = self->config.rank_of != NULL ? trib_sum_rank(self, what, what->root) : what->root;
    snprintf(who, sizeof who, self->config.rank_step > 1 ? "the machine of rank %u" : "rank %u", rank);
    if (with_chunks) {
        snprintf(chunks, sizeof chunks, " in %u chunks", what->chunk_count);
    }
    if (what->is_eager && what->collective != TRIB_COLLECTIVE_ALL_REDUCE) { /* a slice, in the words of the program */
        const bool gives = what->collective != TRIB_COLLECTIVE_REDUCE;
        snprintf(text, size, "%s says %s%s of %s%s", who, gives ? "all_gather" : "reduce_scatter, ",
                 gives ? "" : trib_reduce_name(what->reduce), trib_dtype_name(what->dtype), chunks);
    } else if (what->collective == TRIB_COLLECTIVE_BROADCAST) {
        snprintf(text, size, "%s says broadcast of %s from rank %u%s", who, trib_dtype_name(what->dtype), root, chunks);
    } else if (what->collective == TRIB_COLLECTIVE_REDUCE) {
        snprintf(text, size, "%s says %s of %s for rank %u alone%s", who, trib_reduce_name(what->reduce),
                 trib_dtype_name(what->dtype), root, chunks);
    } else {
        snprintf(text, size, "%s says %s of %s%s", who, trib_reduce_name(what->reduce), trib_dtype_name(what->dtype),
                 chunks);
    }
}

void trib_sum_round_check(trib_summation *self, sum_round *round, const trib_contribution *what)
{
    if (round->refused != TRIB_OK) {
        return;
    }
    if (round->late != NULL) {
        trib_sum_late_describe(self, round, what);
    }
    const trib_contribution *first = &round->what;
    char one[128], other[128], text[TRIB_ERROR_TEXT_SIZE];
    const bool same_kind = first->collective == what->collective && first->dtype == what->dtype &&
                           first->reduce == what->reduce && first->root == what->root;
    if (!same_kind || first->chunk_count != what->chunk_count) {
        describe(self, first, same_kind, one, sizeof one);
        describe(self, what, same_kind, other, sizeof other);
        snprintf(text, sizeof text, "the workers disagree in round %u: %s, %s", what->round, one, other);
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, text);
        return;
    }
    if (first->step != what->step) {
        snprintf(text, sizeof text, "the workers disagree in round %u: rank %u is at step %u, rank %u at step %u",
                 what->round, trib_sum_rank(self, first, first->contributor), first->step,
                 trib_sum_rank(self, what, what->contributor), what->step);
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, text);
        return;
    }
    const bool same_scale = first->scale == what->scale;
    const int digits = same_scale ? 7 : 17; /* of a float32, of a float64 */
    if ((!same_scale || first->prescale != what->prescale) && trib_collective_is_sum(what->collective)) {
        snprintf(text, sizeof text,
                 "the workers disagree in round %u: rank %u scales the %s by %.*g, rank %u by %.*g (%s): give both "
                 "the same on all workers",
                 what->round, trib_sum_rank(self, first, first->contributor), same_scale ? "integers" : "sum", digits,
                 same_scale ? trib_prescale_unpack(first->prescale) : trib_scale_unpack(first->scale),
                 trib_sum_rank(self, what, what->contributor), digits,
                 same_scale ? trib_prescale_unpack(what->prescale) : trib_scale_unpack(what->scale),
                 same_scale ? "prescale" : "prescale times postscale, and of integers the postscale alone");
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, text);
        return;
    }
    if (first->encoding != what->encoding) {
        snprintf(text, sizeof text,
                 "the workers disagree in round %u: rank %u and rank %u do not encode chunks in the same way",
                 what->round, trib_sum_rank(self, first, first->contributor),
                 trib_sum_rank(self, what, what->contributor));
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, text);
        return;
    }
    sum_chunk *chunk = &round->chunks[what->chunk];
    if (!chunk->is_sized) {
        chunk->is_sized = true;
        chunk->size = what->size;
        chunk->first = what->contributor;
    } else if (chunk->size != what->size) {
        snprintf(text, sizeof text,
                 "the workers disagree in round %u about chunk %u: rank %u says %u bytes, rank %u says %u bytes",
                 what->round, what->chunk, trib_sum_rank(self, what, chunk->first), chunk->size,
                 trib_sum_rank(self, what, what->contributor), what->size);
        trib_sum_round_refuse(self, round, TRIB_MISMATCH, text);
    }
}

/* ---- Scans of waiting rounds ---- */

/* Finds the contributors that have not contributed every chunk. */
static void find_missing(const trib_summation *self, const sum_round *round, trib_missing *missing_out)
{
    memset(missing_out, 0, sizeof *missing_out);
    for (uint32_t i = self->config.contributor_count; i-- > 0 && round->refused == TRIB_OK;) {
        if (round->counts[i] < round->what.chunk_count && !trib_sum_is_late(round, i)) {
            trib_rank_bits_put(missing_out->bits, i, true);
            missing_out->count++;
            missing_out->lowest = i;
        }
    }
}

/* Begins with the round and the contributor at which the limit ended the previous scan. */
static sum_round *first_to_notify(trib_summation *self, uint32_t *receiver)
{
    sum_round *round = self->oldest;
    while (round != NULL && round->serial < self->stall_serial) {
        round = round->younger;
    }
    *receiver = round != NULL && round->serial == self->stall_serial ? self->stall_receiver : 0;
    self->stall_serial = 0;
    self->stall_receiver = 0;
    return round;
}

void trib_summation_stalls(trib_summation *self, int64_t older_than_ns, uint32_t limit,
                           void (*stalled)(void *user, uint32_t receiver, const trib_contribution *what,
                                           const trib_missing *missing))
{
    const int64_t now_ns = trib_now(self->config.reactor);
    uint32_t first, i;
    trib_missing missing;
    for (sum_round *round = first_to_notify(self, &first);
         round != NULL && now_ns - round->began_ns >= older_than_ns;) {
        find_missing(self, round, &missing);
        round->holds++;
        for (i = first; missing.count > 0 && i < self->config.contributor_count && limit > 0; i++) {
            if (trib_sum_has_come(round, i) && !trib_sum_is_filled(round, i)) {
                trib_contribution what = round->what;
                what.contributor = i;
                stalled(self->config.user, i, &what, &missing);
                limit--;
            }
        }
        round->holds--;
        if (limit == 0) {
            self->stall_serial = round->serial;
            self->stall_receiver = i;
        }
        sum_round *younger = limit > 0 ? round->younger : NULL;
        trib_sum_round_try_end(self, round);
        round = younger;
        first = 0;
    }
}

void trib_summation_refuse_gone(trib_summation *self,
                                bool (*is_gone)(void *user, const trib_contribution *what, char *text, size_t size))
{
    for (sum_round *round = self->oldest; round != NULL;) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_contribution what = round->what;
        round->holds++;
        for (uint32_t i = 0; i < self->config.contributor_count && round->refused == TRIB_OK; i++) {
            what.contributor = i;
            if (round->counts[i] < round->what.chunk_count && !trib_sum_is_late(round, i) &&
                is_gone(self->config.user, &what, text, sizeof text)) {
                trib_sum_round_refuse(self, round, TRIB_PEER_LEFT, text);
            }
        }
        round->holds--;
        sum_round *younger = round->younger;
        trib_sum_round_try_end(self, round);
        round = younger;
    }
}

/* True if a contributor that is not gone has yet to hear that the workers disagree. */
static bool owes_refusal(const trib_summation *self, const sum_round *round,
                         bool (*is_gone)(void *user, const trib_contribution *what, char *text, size_t size))
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_contribution what = round->what;
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        what.contributor = i;
        if (round->notified[i] == 0 && !is_gone(self->config.user, &what, text, sizeof text)) {
            return true;
        }
    }
    return false;
}

/* True if a late contributor that is not gone has yet to ask for sums that are complete. */
static bool owes_late(const trib_summation *self, const sum_round *round, uint32_t contributor,
                      bool (*is_gone)(void *user, const trib_contribution *what, char *text, size_t size))
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_contribution what = round->what;
    bool owes = round->references > 0;
    for (uint32_t i = 0; i < self->config.contributor_count && !owes; i++) {
        what.contributor = i;
        owes = i != contributor && round->late->is_late[i] && round->late->asked[i] < round->what.chunk_count &&
               !is_gone(self->config.user, &what, text, sizeof text);
    }
    return owes;
}

/* True if a contributor of the round is not gone. */
static bool owes_others(const trib_summation *self, const sum_round *round,
                        bool (*is_gone)(void *user, const trib_contribution *what, char *text, size_t size))
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_contribution what = round->what;
    bool owes = false;
    for (uint32_t i = 0; i < self->config.contributor_count && !owes; i++) {
        what.contributor = i;
        owes = !is_gone(self->config.user, &what, text, sizeof text);
    }
    return owes;
}

bool trib_summation_owes(const trib_summation *self, uint32_t contributor,
                         bool (*is_gone)(void *user, const trib_contribution *what, char *text, size_t size))
{
    for (const sum_round *round = self->oldest; round != NULL; round = round->younger) {
        const bool is_through =
            contributor < self->config.contributor_count && round->counts[contributor] == round->what.chunk_count;
        const bool is_for_late = round->chunks_done == round->what.chunk_count && round->late != NULL;
        if (round->refused == TRIB_OK ? is_through && (!is_for_late || owes_late(self, round, contributor, is_gone))
                                      : round->refused == TRIB_MISMATCH && owes_refusal(self, round, is_gone)) {
            return true;
        }
        if (contributor == TRIB_SUM_FOR_OTHERS && round->refused == TRIB_OK && owes_others(self, round, is_gone)) {
            return true;
        }
    }
    return false;
}
