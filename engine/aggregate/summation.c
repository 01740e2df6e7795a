/*
 * summation.c - accepts contributions to the rounds of keys. sum_tree.c has the arithmetic, and sum_memory.c the
 * memory. sum_tree.h states the invariants of all three.
 *
 * A round ends when every contributor has been handed every sum or told of the refusal, and no buffer of it is in use.
 * Refused rounds can pile up behind one late contributor, because the others go on to their next rounds. They hold no
 * payloads. Only a few rounds that hold payloads may be open at once.
 */
#include "engine/aggregate/summation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/sum_tree.h"

#define LIVE_ROUNDS_MAX (1u << 17) /* more than the operations that a worker can have queued and cancelled */

/* The number of ranks that a root may have. */
static uint32_t rank_count(const trib_summation *self)
{
    return self->config.rank_limit == 0 ? self->config.contributor_count : self->config.rank_limit;
}

/* The limit of open rounds of a key, which miss contributions. Each has a worker that has contributed and waits. In
 * a broadcast that is the root, because receivers get the payload at once and go on. A worker has given up at most
 * TRIB_SUM_KEPT_ROUNDS_MAX such rounds, and waits in one more. */
static uint32_t open_rounds_max(const trib_summation *self)
{
    return (TRIB_SUM_KEPT_ROUNDS_MAX + 1) * rank_count(self);
}

/* ---- Checking ---- */

static bool carries_payload(const trib_summation *self, const trib_contribution *what)
{
    return what->size > 0 &&
           (trib_collective_is_sum(what->collective) || what->contributor == trib_sum_root(self, what));
}

static trib_status check_bounds(const trib_summation *self, const trib_contribution *what, bool with_payload,
                                trib_error *error)
{
    const uint32_t n = self->config.contributor_count;
    if (what->contributor >= n || what->root >= rank_count(self) || what->round == 0 || what->chunk_count == 0 ||
        what->chunk_count > TRIB_SUM_CHUNKS_MAX || what->chunk >= what->chunk_count ||
        what->size > self->config.chunk_bytes) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "impossible contribution: rank %u of %u, round %u, chunk %u of %u, %u bytes of at most "
                              "%u, root %u",
                              what->contributor, n, what->round, what->chunk, what->chunk_count, what->size,
                              self->config.chunk_bytes, what->root);
    }
    const size_t element = trib_dtype_size(what->dtype);
    if (element == 0 || what->size % element != 0 || (unsigned)what->reduce >= TRIB_REDUCE_COUNT ||
        (what->collective != TRIB_COLLECTIVE_BROADCAST && !trib_collective_is_sum(what->collective))) {
        return trib_error_set(
            error, TRIB_PROTOCOL, "impossible contribution of rank %u: %u bytes of type %d, reduce %d, collective %d",
            what->contributor, what->size, (int)what->dtype, (int)what->reduce, (int)what->collective);
    }
    if (with_payload != carries_payload(self, what)) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u %s a payload of %u bytes in round %u", what->contributor,
                              with_payload ? "brings" : "owes", what->size, what->round);
    }
    return TRIB_OK;
}

bool trib_sum_is_through(const sum_key *key, const sum_round *round, uint32_t contributor)
{
    const sum_round *before = round == NULL ? key->live : round->next;
    return before == NULL || before->notified[contributor] ||
           (trib_sum_is_late(before, contributor) ? before->late->asked[contributor] : before->counts[contributor]) ==
               before->what.chunk_count;
}

static trib_status check_turn(trib_summation *self, sum_key *key, const sum_round *round, const trib_contribution *what,
                              trib_error *error)
{
    if (what->joins > 0 && !what->is_ahead && !trib_sum_pass_over(self, &key, round, what)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the rounds of a key");
    }
    uint32_t newest = key == NULL ? 0 : trib_sum_round_newest(key);
    newest = newest < what->round_base ? what->round_base : newest;
    if (round == NULL &&
        (what->round <= newest || (what->round - newest != 1 && (!self->config.may_jump || what->is_ahead)))) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u contributes to round %u of a key whose newest round is %u",
                              what->contributor, what->round, newest);
    }
    if (key != NULL && !trib_sum_is_through(key, round, what->contributor)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "rank %u contributes to round %u before it is through with round %u", what->contributor,
                              what->round, what->round - 1);
    }
    if (round == NULL && key != NULL && key->live_count >= LIVE_ROUNDS_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u runs %u rounds ahead of the others", what->contributor,
                              key->live_count);
    }
    return TRIB_OK;
}

static trib_status check_duplicate(const trib_summation *self, const sum_round *round, const trib_contribution *what,
                                   trib_error *error)
{
    const bool all = round->counts[what->contributor] == round->what.chunk_count;
    if (round->refused == TRIB_OK &&
        (all || (what->chunk < round->chunk_count && trib_sum_has_arrived(self, round, what)))) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u contributes twice to chunk %u of round %u",
                              what->contributor, what->chunk, what->round);
    }
    return TRIB_OK;
}

/* ---- Contributions ---- */

/* The round keeps records of chunk_count chunks. A round that begins refused needs only one. */
static sum_round *begin_round(trib_summation *self, const trib_contribution *what, uint32_t chunk_count)
{
    sum_key *key = trib_sum_key_find(self, what);
    key = key == NULL ? trib_sum_key_make(self, what) : key;
    sum_round *round = key == NULL ? NULL : trib_sum_round_take(self, chunk_count);
    if (round == NULL) {
        return NULL;
    }
    trib_assert(what->round > what->round_base && what->round > trib_sum_round_newest(key));
    round->what = *what;
    round->began_ns = trib_now_fast(self->config.reactor);
    round->serial = self->rounds_begun++;
    trib_sum_round_put_in(self, key, round);
    key->is_forgotten = false;
    key->open_count++;
    return round;
}

trib_status trib_sum_begin_for_late(trib_summation *self, const trib_contribution *what, sum_round **round_out)
{
    trib_error error;
    sum_key *key = trib_sum_key_find(self, what);
    trib_assert(key == NULL || trib_sum_round_find(self, key, what->round) == NULL);
    const bool is_possible = what->chunk_count > 0 && what->chunk_count <= TRIB_SUM_CHUNKS_MAX;
    const trib_status status = is_possible ? check_turn(self, key, NULL, what, &error) : TRIB_PROTOCOL;
    *round_out = status == TRIB_OK ? begin_round(self, what, what->chunk_count) : NULL;
    return status == TRIB_OK && *round_out == NULL ? TRIB_NO_MEMORY : status;
}

/* Finds the round of a contribution, and begins it if it is its turn. *round_out is NULL if the round is over and
 * was refused, its tensor has ended, or all workers have joined since, so that nobody waits for it. The contribution
 * was still on its way then, and is dropped. */
static trib_status find_round(trib_summation *self, const trib_contribution *what, sum_round **round_out,
                              trib_error *error)
{
    sum_key *key = trib_sum_key_find(self, what);
    sum_round *round = key == NULL ? NULL : trib_sum_round_find(self, key, what->round);
    *round_out = NULL;
    if (what->round <= what->round_base) {
        return TRIB_OK; /* the tensor of that round has ended */
    }
    *round_out = round;
    if (round == NULL && what->is_late) {
        return TRIB_OK;
    }
    if (round == NULL && key != NULL &&
        ((what->round >= key->refused_first && what->round <= key->refused_last) || trib_sum_was_replaced(key, what))) {
        return TRIB_OK;
    }
    if (round == NULL || (!self->is_filling && !trib_sum_has_come(round, what->contributor))) {
        trib_status status = check_turn(self, key, round, what, error);
        if (status != TRIB_OK) {
            return status;
        }
    }
    if (round == NULL) {
        const bool too_far = key != NULL && key->open_count >= open_rounds_max(self);
        round = begin_round(self, what, too_far ? 1 : what->chunk_count);
        if (round == NULL) {
            return TRIB_AGAIN;
        }
        if (too_far) {
            char text[128];
            snprintf(text, sizeof text, "rank %u begins round %u while %u earlier rounds lack contributions",
                     what->contributor, what->round, open_rounds_max(self));
            trib_sum_round_refuse(self, round, TRIB_BUSY, text);
        }
        *round_out = round;
    }
    return TRIB_OK;
}

/* A contribution is dropped. Workers know that they have given the round up, but a relay waits for its sum. */
static void tell_dropped(const trib_summation *self, const trib_contribution *what)
{
    if (self->config.takes_partials) {
        self->config.refused(self->config.user, what->contributor, what, TRIB_CANCELLED, TRIB_SUM_DROPPED);
    }
}

trib_status trib_sum_find_place(trib_summation *self, const trib_contribution *what, bool with_payload,
                                sum_round **round_out, trib_error *error)
{
    trib_status status = check_bounds(self, what, with_payload, error);
    if (status == TRIB_OK) {
        status = find_round(self, what, round_out, error);
    }
    const bool is_replaced = status == TRIB_OK && *round_out != NULL && trib_sum_is_replaced(self, *round_out, what);
    if (status == TRIB_OK && (is_replaced || *round_out == NULL)) {
        tell_dropped(self, what);
    }
    if (is_replaced) {
        *round_out = NULL;
    } else if (status == TRIB_OK && *round_out != NULL) {
        status = check_duplicate(self, *round_out, what, error);
    }
    if (status == TRIB_OK && *round_out != NULL) {
        trib_sum_round_check(self, *round_out, what);
    }
    return status;
}

static bool ensure_tree(trib_summation *self, const sum_round *round, const trib_contribution *what)
{
    if (what->collective == TRIB_COLLECTIVE_BROADCAST) {
        return true;
    }
    sum_chunk *chunk = &round->chunks[what->chunk];
    if (chunk->tree == NULL) {
        chunk->tree = trib_sum_tree_take(self);
    }
    return chunk->tree != NULL;
}

/* Takes the spare block that an operand in wire form may need. *spare is NULL if none is needed. False: out of
 * memory. */
static bool take_spare(trib_summation *self, const sum_round *round, const trib_contribution *what, sum_block **spare)
{
    *spare = NULL;
    if (what->collective == TRIB_COLLECTIVE_BROADCAST || trib_acc_is_wire(what->dtype, what->reduce) ||
        self->config.contributor_count == 1 || self->config.takes_partials) {
        return true;
    }
    const sum_node *partner = trib_sum_partner(self, &round->chunks[what->chunk], what->contributor);
    if (partner != NULL && partner->form == TRIB_FORM_ACC) {
        return true;
    }
    *spare = trib_sum_block_take(self, what->size, trib_sum_acc_width(what));
    return *spare != NULL;
}

trib_status trib_summation_recv_target(trib_summation *self, const trib_contribution *what, void **buffer_out,
                                       trib_error *error)
{
    sum_round *round = NULL;
    trib_status status = trib_sum_find_place(self, what, true, &round, error);
    if (status != TRIB_OK) {
        return status;
    }
    sum_block *block = trib_sum_block_take(self, what->size, trib_sum_payload_width(self, what));
    if (block == NULL) {
        return TRIB_AGAIN;
    }
    if (round != NULL && round->refused == TRIB_OK &&
        (!ensure_tree(self, round, what) || !take_spare(self, round, what, &block->spare))) {
        trib_sum_block_give(self, block);
        return TRIB_AGAIN;
    }
    block->is_receiving = true;
    block->receiving_for = round;
    block->receiving_from = what->contributor;
    if (round != NULL) {
        round->receives++;
    }
    *buffer_out = block->data;
    return TRIB_OK;
}

static sum_round *end_receive(sum_block *block)
{
    trib_assert(block->is_receiving);
    sum_round *round = block->receiving_for;
    block->is_receiving = false;
    block->receiving_for = NULL;
    if (round != NULL) {
        trib_assert(round->receives > 0);
        round->receives--;
    }
    return round;
}

void trib_summation_abandon(trib_summation *self, void *buffer)
{
    sum_block *block = trib_sum_block_of(self, buffer);
    sum_round *round = end_receive(block);
    trib_sum_block_give(self, block);
    if (round != NULL) {
        trib_sum_round_try_end(self, round);
    }
}

/* Accepts a contribution that has arrived completely. payload.data is NULL if no payload travels. */
static void take_in(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node payload,
                    sum_block *spare)
{
    round->holds++;
    if (round->refused != TRIB_OK) {
        trib_sum_block_give(self, payload.block);
        trib_sum_block_give(self, spare);
        trib_sum_round_notify(self, round, what->contributor);
    } else {
        trib_assert(!trib_sum_has_arrived(self, round, what));
        const size_t bit = (size_t)what->chunk * self->config.contributor_count + what->contributor;
        round->arrived[bit / 64] |= UINT64_C(1) << bit % 64;
        round->come_count += round->counts[what->contributor]++ == 0;
        sum_chunk *chunk = &round->chunks[what->chunk];
        trib_assert(chunk->is_sized && chunk->size == what->size);
        const bool is_last = ++chunk->arrived == self->config.contributor_count;
        trib_assert(chunk->arrived <= self->config.contributor_count);
        trib_assert(round->counts[what->contributor] <= round->what.chunk_count);
        trib_sum_chunk_add(self, round, what, payload, spare);
        round->chunks_done += is_last;
        if (is_last && round->chunks_done == round->what.chunk_count && round->refused == TRIB_OK) {
            trib_assert(round->key->open_count > 0);
            round->key->open_count--;
            trib_sum_partial_report(self, round);
        }
        if (round->late != NULL && round->refused == TRIB_OK && !is_last) {
            trib_sum_fill_late(self, round);
        }
    }
    round->holds--;
    trib_sum_round_try_end(self, round);
}

/* Accepts a contribution without a payload. */
static trib_status empty_arrived(trib_summation *self, const trib_contribution *what, trib_error *error)
{
    sum_round *round = NULL;
    trib_status status = trib_sum_find_place(self, what, false, &round, error);
    if (status == TRIB_AGAIN) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for round %u of a key", what->round);
    }
    sum_block *block = NULL;
    if (status == TRIB_OK && round != NULL && !trib_sum_partial_take_block(self, round, what, &block)) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a chunk of %u bytes", what->size);
    }
    if (status == TRIB_OK && round != NULL) {
        take_in(self, round, what, (sum_node){.data = NULL, .block = block}, NULL);
    }
    return status == TRIB_OK && round == NULL ? trib_sum_late_came(self, what, error) : status;
}

/* Accepts a contribution that has a buffer. */
static trib_status received_arrived(trib_summation *self, const trib_contribution *what, const trib_arrived *arrived,
                                    trib_error *error)
{
    sum_block *block = trib_sum_block_of(self, arrived->buffer), *spare = block->spare;
    sum_round *round = end_receive(block);
    if (round == NULL) {
        trib_sum_block_give(self, block);
        return trib_sum_late_came(self, what, error);
    }
    trib_assert(round->what.round == what->round);
    /* neutral elements may have replaced the contribution, or it was received twice in parallel */
    const bool is_replaced = trib_sum_is_replaced(self, round, what);
    trib_status status = is_replaced ? TRIB_OK : check_duplicate(self, round, what, error);
    if (status != TRIB_OK || is_replaced) {
        trib_sum_block_give(self, block);
        trib_sum_round_try_end(self, round);
        if (is_replaced) {
            tell_dropped(self, what);
        }
        return status;
    }
    block->spare = NULL;
    const sum_node operand = trib_sum_operand(self, round, what, block, arrived->payload, arrived->lender, spare);
    take_in(self, round, what, operand, spare);
    return TRIB_OK;
}

/* A payload received in place is combined where it lies if its partner has arrived. Otherwise it is leased or
 * copied. */
static bool take_in_place(trib_summation *self, sum_round *round, const trib_contribution *what,
                          const trib_arrived *arrived, sum_node *node, sum_block **spare)
{
    *node = (sum_node){.data = arrived->payload, .form = trib_sum_payload_form(self)};
    *spare = NULL;
    const bool sums = trib_collective_is_sum(what->collective);
    if (sums && trib_sum_partner(self, &round->chunks[what->chunk], what->contributor) != NULL) {
        return take_spare(self, round, what, spare);
    }
    const uint8_t width = trib_sum_payload_width(self, what);
    sum_block *block = ensure_tree(self, round, what) ? trib_sum_block_take(self, what->size, width) : NULL;
    if (block != NULL) {
        *node = trib_sum_operand(self, round, what, block, arrived->payload, arrived->lender, NULL);
    }
    return block != NULL;
}

static trib_status arrived_in_place(trib_summation *self, const trib_contribution *what, const trib_arrived *arrived,
                                    trib_error *error)
{
    sum_round *round = NULL;
    sum_node node = {.data = NULL};
    sum_block *spare = NULL;
    trib_status status = trib_sum_find_place(self, what, true, &round, error);
    if (status == TRIB_OK && round != NULL && round->refused == TRIB_OK &&
        !take_in_place(self, round, what, arrived, &node, &spare)) {
        status = TRIB_AGAIN;
    }
    if (status == TRIB_AGAIN) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a chunk of %u bytes", what->size);
    }
    if (status == TRIB_OK && round != NULL) {
        take_in(self, round, what, node, spare);
    }
    return status == TRIB_OK && round == NULL ? trib_sum_late_came(self, what, error) : status;
}

trib_status trib_summation_arrived(trib_summation *self, const trib_contribution *what, const trib_arrived *arrived,
                                   trib_error *error)
{
    if (arrived->buffer != NULL) {
        return received_arrived(self, what, arrived, error);
    }
    return arrived->payload != NULL && carries_payload(self, what) ? arrived_in_place(self, what, arrived, error)
                                                                   : empty_arrived(self, what, error);
}

trib_status trib_summation_withdraw(trib_summation *self, const trib_contribution *what, trib_status why,
                                    const char *text)
{
    if (what->contributor >= self->config.contributor_count || what->round == 0 || what->chunk_count == 0 ||
        what->chunk_count > TRIB_SUM_CHUNKS_MAX) {
        return TRIB_PROTOCOL;
    }
    if (what->round <= what->round_base) {
        return TRIB_OK;
    }
    trib_error error;
    sum_key *key = trib_sum_key_find(self, what);
    sum_round *round = key == NULL ? NULL : trib_sum_round_find(self, key, what->round);
    if (round == NULL) {
        if (what->is_late || (key != NULL && what->round <= key->finished)) {
            return TRIB_OK;
        }
        trib_status status = check_turn(self, key, NULL, what, &error);
        if (status != TRIB_OK) {
            return status;
        }
        round = begin_round(self, what, 1);
        if (round == NULL) {
            return TRIB_NO_MEMORY;
        }
    }
    if (round->refused == TRIB_OK && trib_sum_is_late(round, what->contributor)) {
        trib_sum_late_withdraw(self, round, what->contributor);
        return TRIB_OK;
    }
    if (round->refused == TRIB_OK && round->counts[what->contributor] == round->what.chunk_count) {
        return TRIB_OK;
    }
    trib_sum_round_refuse(self, round, why, text);
    if (!round->notified[what->contributor]) {
        round->notified[what->contributor] = SUM_TOLD; /* a contributor that withdraws needs no notice */
        round->notified_count++;
    }
    trib_sum_round_try_end(self, round);
    return TRIB_OK;
}

void trib_summation_sent(trib_summation *self, trib_sum_buffer *sum)
{
    sum_round *round = ((sum_chunk *)sum->slot)->round;
    trib_assert(round->references > 0);
    round->references--;
    trib_sum_buffer_unref(self, sum);
    trib_sum_round_try_end(self, round);
}
