/*
 * sum_operand.c - decides where an operand of the sum lies when its payload is outside the block taken for it.
 *
 * The payload is summed at once where it lies, stays there under a lease until its partner arrives, or is copied. An
 * encoded one may be added to its partner without being an operand of its own.
 */
#include "engine/aggregate/sum_tree.h"

uint8_t trib_sum_payload_width(const trib_summation *self, const trib_contribution *what)
{
    return self->config.takes_partials && trib_collective_is_sum(what->collective) ? trib_sum_acc_width(what) : 0;
}

uint8_t trib_sum_payload_form(const trib_summation *self)
{
    return self->config.takes_partials ? TRIB_FORM_ACC : TRIB_FORM_WIRE;
}

static void copy_in(const trib_summation *self, const trib_contribution *what, uint32_t chunk_size, sum_block *block,
                    const void *payload)
{
    trib_assert(block->data != payload);
    const uint32_t size = chunk_size << trib_sum_payload_width(self, what);
    self->config.kernels->copy(block->data, payload, size);
    trib_charge(self->config.reactor, TRIB_COST_COPY, size);
}

/* The sender takes its memory back, so the payload is copied to the block reserved for it. If the copy was torn, the
 * round is refused. */
static void recalled(trib_lease *lease)
{
    sum_block *block = lease->user;
    trib_summation *self = block->owner;
    sum_round *round = block->leased_to->round;
    sum_node *node = block->leased;
    trib_assert(block->lease == lease && node->block == block && node->data != block->data);
    copy_in(self, &round->what, block->leased_to->size, block, node->data);
    node->data = block->data;
    if (!trib_sum_lease_end(block)) {
        round->holds++;
        trib_sum_round_refuse(self, round, TRIB_PEER_LOST, TRIB_SUM_TORN);
        round->holds--;
        trib_sum_round_try_end(self, round);
    }
}

/* `keeps` is true while the partner has not arrived, so that the lease outlasts the call. */
static bool take_lease(trib_summation *self, const sum_round *round, const trib_contribution *what, sum_block *block,
                       const trib_lender *lender, bool keeps)
{
    trib_lease *lease = trib_lender_lease(lender, keeps);
    if (lease == NULL) {
        return false;
    }
    sum_chunk *chunk = &round->chunks[what->chunk];
    trib_assert(block->lease == NULL && chunk->tree != NULL);
    lease->recalled = recalled;
    lease->user = block;
    block->lease = lease;
    block->leased = &chunk->tree->nodes[self->config.order == TRIB_ORDER_RANK ? what->contributor : 0];
    trib_assert(chunk->round == round);
    block->leased_to = chunk;
    block->owner = self;
    return true;
}

/* True if the payload can be summed where it lies, now or when its partner arrives. */
static bool stays(trib_summation *self, const sum_round *round, const trib_contribution *what, sum_block *block,
                  const trib_lender *lender, const sum_block *spare)
{
    if (!trib_collective_is_sum(what->collective) || self->config.contributor_count == 1) {
        return false;
    }
    const sum_node *partner = trib_sum_partner(self, &round->chunks[what->chunk], what->contributor);
    if (partner == NULL) {
        return take_lease(self, round, what, block, lender, true);
    }
    const bool has_target =
        partner->form == TRIB_FORM_ACC || spare != NULL || trib_acc_is_wire(what->dtype, what->reduce);
    if (has_target) {
        /* a payload that is not the sender's memory needs no lease */
        (void)take_lease(self, round, what, block, lender, false);
    }
    return has_target;
}

sum_node trib_sum_operand(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block,
                          const void *payload, const trib_lender *lender, const sum_block *spare)
{
    sum_node node = {.data = block->data, .block = block, .form = trib_sum_payload_form(self)};
    if (payload == block->data || round->refused != TRIB_OK) {
        return node;
    }
    if (stays(self, round, what, block, lender, spare)) {
        node.data = payload;
        return node;
    }
    trib_lease *lease = trib_lender_lease(lender, false);
    copy_in(self, what, what->size, block, payload);
    round->is_torn = lease != NULL && !lease->end(lease);
    return node;
}

trib_status trib_summation_sum_at(trib_summation *self, const trib_contribution *what, void **sum_out,
                                  trib_error *error)
{
    sum_round *round = NULL;
    const trib_status status = trib_sum_find_place(self, what, true, &round, error);
    *sum_out = NULL;
    if (status != TRIB_OK || round == NULL || round->refused != TRIB_OK || round->is_torn ||
        self->config.takes_partials || !trib_collective_is_sum(what->collective) ||
        (what->reduce != TRIB_SUM && what->reduce != TRIB_AVG)) {
        return status == TRIB_AGAIN ? TRIB_OK : status;
    }
    const sum_node *partner = trib_sum_partner(self, &round->chunks[what->chunk], what->contributor);
    const bool is_sum =
        partner != NULL && (partner->form == TRIB_FORM_ACC || trib_acc_is_wire(what->dtype, what->reduce));
    if (is_sum && partner->block != NULL && partner->data == partner->block->data) {
        *sum_out = partner->block->data;
    }
    return TRIB_OK;
}
