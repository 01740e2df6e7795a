/*
 * sum_tree.c - sums a chunk along the tree (sum_tree.h) or in order of arrival, and hands the sum out.
 *
 * No step here can fail, except that a payload taken back while it was read refuses its round.
 *
 * A sum is handed out by an upcall, which may call back at once: to return a reference, or to refuse the round. So the
 * caller holds the round (holds), and the sum has a reference of its own until the last receiver is served.
 */
#include "engine/aggregate/sum_scale.h"
#include "engine/aggregate/sum_tree.h"
#include "engine/base/scale.h"

/* ---- Handing out ---- */

void trib_sum_buffer_unref(trib_summation *self, trib_sum_buffer *sum)
{
    sum_chunk *chunk = sum->slot;
    trib_assert(sum == &chunk->sum || sum == &chunk->nothing);
    trib_assert(sum->references > 0);
    if (--sum->references == 0 && sum == &chunk->sum) {
        sum_block *result = chunk->result;
        chunk->result = NULL;
        trib_sum_block_give(self, result);
    }
}

/* Prepares the sum for its receivers. One reference belongs to the summation. */
static void begin_handing(sum_chunk *chunk, trib_sum_buffer *sum, sum_block *block)
{
    trib_assert(sum->references == 0);
    const bool carries = block != NULL && chunk->size > 0;
    *sum = (trib_sum_buffer){
        .data = carries ? block->data : NULL, .size = carries ? chunk->size : 0, .references = 1, .slot = chunk};
    if (sum == &chunk->sum) {
        trib_assert(chunk->result == NULL);
        chunk->result = block;
    }
}

static void hand_to(trib_summation *self, sum_chunk *chunk, trib_sum_buffer *sum, uint32_t receiver)
{
    sum_round *round = chunk->round;
    trib_contribution what = round->what;
    trib_assert(sum->references > 0 && round->holds > 0); /* the upcall may give references back at once */
    if (trib_sum_is_filled(round, receiver)) {
        return;
    }
    what.chunk = (uint32_t)(chunk - round->chunks);
    what.size = chunk->size;
    what.contributor = receiver;
    what.late = round->late == NULL ? NULL : round->late->is_late;
    sum->references++;
    round->references++;
    self->config.sum_ready(self->config.user, receiver, &what, sum);
}

/* ---- Adding ---- */

uint8_t trib_sum_acc_width(const trib_contribution *what)
{
    size_t times = trib_acc_size(what->dtype, what->reduce) / trib_dtype_size(what->dtype);
    uint8_t width = 0;
    while ((size_t)1 << width < times) {
        width++;
    }
    trib_assert(width < TRIB_SUM_WIDTHS);
    return width;
}

const sum_node *trib_sum_partner(const trib_summation *self, const sum_chunk *chunk, uint32_t rank)
{
    if (chunk->tree == NULL) {
        return NULL;
    }
    const sum_node *nodes = chunk->tree->nodes;
    if (self->config.order != TRIB_ORDER_RANK) {
        return nodes[0].data != NULL ? &nodes[0] : NULL;
    }
    const uint32_t n = self->config.contributor_count;
    for (uint32_t level = 0; (UINT32_C(1) << level) < n; level++, rank >>= 1) {
        const uint32_t sibling = (rank ^ 1) << level;
        if (sibling < n) {
            return nodes[sibling].data != NULL && nodes[sibling].level == level ? &nodes[sibling] : NULL;
        }
    }
    return NULL;
}

/* The operand's block if the result can overwrite it, else NULL. */
static sum_block *reusable(const sum_node *node, bool acc_is_wire)
{
    return acc_is_wire || node->form == TRIB_FORM_ACC ? node->block : NULL;
}

/* The payload was added to its partner's memory already (trib_summation_sum_at): *left becomes that sum. */
static void keep_sum(trib_summation *self, const sum_chunk *chunk, sum_node *left, sum_node *right)
{
    sum_block *block = left->block != NULL ? left->block : right->block;
    trib_assert(block != NULL && (left->block == NULL || right->block == NULL) && left->data == block->data);
    *left = (sum_node){.data = block->data, .block = block, .level = left->level, .form = TRIB_FORM_ACC};
    *right = (sum_node){.data = NULL};
    trib_charge(self->config.reactor, TRIB_COST_SUM, chunk->size);
}

/* Combines both operands into *left, and empties *right. */
static void combine(trib_summation *self, const sum_chunk *chunk, sum_node *left, sum_node *right, sum_block **spare)
{
    const trib_contribution *what = &chunk->round->what;
    const bool acc_is_wire = trib_acc_is_wire(what->dtype, what->reduce);
    if (left->data == right->data) {
        keep_sum(self, chunk, left, right);
        return;
    }
    sum_block *target = reusable(left, acc_is_wire);
    if (target == NULL) {
        target = reusable(right, acc_is_wire);
    }
    if (target == NULL) {
        target = *spare;
        *spare = NULL;
    }
    trib_assert(target != NULL);
    trib_kernel_combine(self->config.kernels, what->dtype, what->reduce, target->data, left->data,
                        (trib_form)left->form, right->data, (trib_form)right->form,
                        chunk->size / trib_dtype_size(what->dtype));
    trib_charge(self->config.reactor, TRIB_COST_SUM, chunk->size);
    const bool left_valid = trib_sum_lease_end(left->block), right_valid = trib_sum_lease_end(right->block);
    chunk->round->is_torn = chunk->round->is_torn || !left_valid || !right_valid;
    if (left->block != target) {
        trib_sum_block_give(self, left->block);
    }
    if (right->block != target) {
        trib_sum_block_give(self, right->block);
    }
    *left = (sum_node){.data = target->data, .block = target, .level = left->level, .form = TRIB_FORM_ACC};
    *right = (sum_node){.data = NULL};
}

static void add_by_rank(trib_summation *self, sum_chunk *chunk, uint32_t rank, sum_node payload, sum_block **spare)
{
    sum_node *nodes = chunk->tree->nodes;
    const uint32_t n = self->config.contributor_count;
    trib_assert(nodes[rank].data == NULL);
    nodes[rank] = payload;
    uint32_t index = rank; /* index of the node at its level */
    for (uint32_t level = 0; (UINT32_C(1) << level) < n; level++, index >>= 1) {
        uint32_t mine = index << level, sibling = (index ^ 1) << level;
        if (sibling < n) {
            if (nodes[sibling].data == NULL || nodes[sibling].level != level) {
                trib_assert(nodes[mine].block != NULL);
                return; /* the sibling's arrival continues from here */
            }
            const uint32_t low = mine < sibling ? mine : sibling, high = mine < sibling ? sibling : mine;
            combine(self, chunk, &nodes[low], &nodes[high], spare);
            mine = low;
        }
        nodes[mine].level = (uint8_t)(level + 1);
    }
}

static void add_on_arrival(trib_summation *self, sum_chunk *chunk, sum_node payload, sum_block **spare)
{
    sum_node *sum = &chunk->tree->nodes[0];
    if (sum->data != NULL) {
        combine(self, chunk, sum, &payload, spare);
    } else {
        trib_assert(payload.block != NULL);
        *sum = payload;
    }
}

/* Called when the tree's root holds all contributions. A partial sum is not rounded. */
static sum_block *finish(trib_summation *self, sum_chunk *chunk)
{
    if (chunk->size == 0) {
        return NULL;
    }
    const trib_contribution *what = &chunk->round->what;
    const sum_node root = chunk->tree->nodes[0];
    trib_assert(root.block != NULL);
    trib_assert(chunk->arrived == self->config.contributor_count);
    if (self->config.partial_ready == NULL) {
        const sum_late *late = chunk->round->late;
        const uint32_t contributors = (self->config.contributor_count - (late == NULL ? 0 : late->count)) *
                                      (self->config.weight > 1 ? self->config.weight : 1);
        const size_t count = chunk->size / trib_dtype_size(what->dtype);
        if (what->scale == 0) {
            trib_kernel_finish(self->config.kernels, what->dtype, what->reduce, root.block->data, root.data,
                               (trib_form)root.form, count, contributors);
        } else {
            trib_finish_scaled(self->config.kernels, what->dtype, what->reduce, root.block->data, root.data,
                               (trib_form)root.form, count, contributors, trib_scale_unpack(what->scale));
            trib_charge(self->config.reactor, TRIB_COST_SUM, chunk->size);
        }
    }
    chunk->tree->nodes[0] = (sum_node){.data = NULL};
    trib_sum_tree_give(self, chunk->tree);
    chunk->tree = NULL;
    return root.block;
}

/* All receivers get the same bytes, so the sum is encoded once. */
static void encode(trib_summation *self, sum_chunk *chunk)
{
    trib_contribution what = chunk->round->what;
    if (what.encoding != NULL && chunk->sum.data != NULL) {
        what.chunk = (uint32_t)(chunk - chunk->round->chunks);
        what.size = chunk->size;
        self->config.encode(self->config.user, &what, &chunk->sum);
        trib_assert(chunk->sum.size <= (chunk->size < TRIB_SUM_SMALL_BYTES ? TRIB_SUM_SMALL_BYTES : chunk->size));
    }
}

static void add_to_sum(trib_summation *self, sum_chunk *chunk, uint32_t rank, sum_node payload, sum_block *spare)
{
    if (payload.data != NULL) {
        trib_assert(chunk->tree != NULL);
        if (self->config.order == TRIB_ORDER_RANK) {
            add_by_rank(self, chunk, rank, payload, &spare);
        } else {
            add_on_arrival(self, chunk, payload, &spare);
        }
    }
    trib_sum_block_give(self, spare);
    if (chunk->round->is_torn) {
        trib_sum_round_refuse(self, chunk->round, TRIB_PEER_LOST, TRIB_SUM_TORN);
        return;
    }
    if (chunk->arrived < self->config.contributor_count) {
        return;
    }
    sum_block *result = finish(self, chunk);
    if (self->config.partial_ready != NULL) {
        trib_sum_partial_give_out(self, chunk, result);
    } else {
        begin_handing(chunk, &chunk->sum, result);
        encode(self, chunk);
        trib_sum_chunk_hand_out(self, chunk);
    }
}

/* Receivers are served in order of rank, except that receiver_last comes last. */
static uint32_t receiver_of(const trib_summation *self, uint32_t turn)
{
    const uint32_t last = self->config.receiver_last;
    if (last == 0 || turn + 1 < last) {
        return turn;
    }
    return turn + 1 < self->config.contributor_count ? turn + 1 : last - 1;
}

/* Returns true if the contributor gets the payload. The others learn that the chunk is done: the root of a broadcast
 * has the payload already, and in a reduce the root alone wants it. */
static bool receives(const trib_summation *self, const trib_contribution *what, uint32_t contributor)
{
    switch (what->collective) {
    case TRIB_COLLECTIVE_BROADCAST:
        return contributor != trib_sum_root(self, what);
    case TRIB_COLLECTIVE_REDUCE:
        return contributor == trib_sum_root(self, what);
    default:
        return true;
    }
}

void trib_sum_chunk_hand_out(trib_summation *self, sum_chunk *chunk)
{
    const uint32_t n = self->config.contributor_count;
    const sum_round *round = chunk->round;
    const uint32_t index = (uint32_t)(chunk - round->chunks);
    begin_handing(chunk, &chunk->nothing, NULL);
    for (uint32_t turn = 0; turn < n; turn++) {
        const uint32_t i = receiver_of(self, turn);
        if (!trib_sum_is_late(round, i) || trib_sum_late_has_asked(self, round, index, i)) {
            hand_to(self, chunk, receives(self, &round->what, i) ? &chunk->sum : &chunk->nothing, i);
        }
    }
    trib_sum_buffer_unref(self, &chunk->nothing);
    if (round->late != NULL && trib_sum_late_is_awaited(self, round, index)) {
        chunk->is_open = true;
    } else {
        trib_sum_buffer_unref(self, &chunk->sum);
    }
}

static void close_broadcast(trib_summation *self, sum_chunk *chunk)
{
    if (chunk->is_open) {
        chunk->is_open = false;
        trib_sum_buffer_unref(self, &chunk->sum);
    }
}

void trib_sum_chunk_close_late(trib_summation *self, sum_chunk *chunk)
{
    if (!trib_sum_late_is_awaited(self, chunk->round, (uint32_t)(chunk - chunk->round->chunks))) {
        close_broadcast(self, chunk);
    }
}

void trib_sum_chunk_hand_late(trib_summation *self, sum_chunk *chunk, uint32_t contributor)
{
    if (chunk->is_open) { /* else the sum is not complete yet */
        hand_to(self, chunk, &chunk->sum, contributor);
        trib_sum_chunk_close_late(self, chunk);
    }
}

static bool has_asked(const trib_summation *self, const sum_chunk *chunk, uint32_t rank)
{
    const sum_round *round = chunk->round;
    const size_t bit = (size_t)(chunk - round->chunks) * self->config.contributor_count + rank;
    return (round->arrived[bit / 64] >> bit % 64 & 1) != 0;
}

static void serve_broadcast(trib_summation *self, sum_chunk *chunk)
{
    const uint32_t n = self->config.contributor_count, root = trib_sum_root(self, &chunk->round->what);
    for (uint32_t i = chunk->served; i < n && chunk->is_open; i++) {
        /* a request from inside the upcall is served by this loop or by that call, never by both */
        chunk->served = i + 1;
        if (i != root && has_asked(self, chunk, i)) {
            hand_to(self, chunk, &chunk->sum, i);
        }
    }
}

/* If contributors may name different roots, nobody gets a payload before all have come and agree. From then on, or at
 * once if the root is certain, it goes to those that have asked. The root learns when all have. */
static void add_to_broadcast(trib_summation *self, sum_chunk *chunk, uint32_t rank, sum_block *block)
{
    const sum_round *round = chunk->round;
    const uint32_t n = self->config.contributor_count, root = trib_sum_root(self, &round->what);
    const bool may_serve = round->what.is_eager || round->come_count == n;
    if (rank == root) {
        begin_handing(chunk, &chunk->sum, block);
        chunk->is_open = true;
    } else {
        trib_assert(block == NULL);
        if (chunk->is_open && rank < chunk->served) {
            hand_to(self, chunk, &chunk->sum, rank);
        }
    }
    if (may_serve && round->counts[rank] == 1) { /* it may be the last to come */
        for (uint32_t i = 0; i < round->chunk_count && round->refused == TRIB_OK; i++) {
            serve_broadcast(self, &round->chunks[i]);
        }
    } else if (may_serve) {
        serve_broadcast(self, chunk);
    }
    if (chunk->arrived == n && chunk->is_open && chunk->served == n) {
        begin_handing(chunk, &chunk->nothing, NULL);
        hand_to(self, chunk, &chunk->nothing, root);
        trib_sum_buffer_unref(self, &chunk->nothing);
        close_broadcast(self, chunk);
    }
}

void trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node payload,
                        sum_block *spare)
{
    trib_assert(round->holds > 0);
    trib_assert(round->refused == TRIB_OK);
    sum_chunk *chunk = &round->chunks[what->chunk];
    if (round->is_torn) {
        trib_sum_block_give(self, payload.block);
        trib_sum_block_give(self, spare);
        trib_sum_round_refuse(self, round, TRIB_PEER_LOST, TRIB_SUM_TORN);
    } else if (round->what.collective == TRIB_COLLECTIVE_BROADCAST) {
        trib_assert(spare == NULL && (payload.data == NULL || payload.block != NULL));
        if (self->config.partial_ready != NULL) {
            trib_sum_partial_add_to_broadcast(self, chunk, payload.block);
        } else {
            add_to_broadcast(self, chunk, what->contributor, payload.block);
        }
    } else {
        add_to_sum(self, chunk, what->contributor, payload, spare);
    }
}

void trib_sum_round_clear(trib_summation *self, sum_round *round)
{
    for (uint32_t i = 0; i < round->chunk_count; i++) {
        sum_chunk *chunk = &round->chunks[i];
        trib_sum_tree_give(self, chunk->tree);
        chunk->tree = NULL;
        close_broadcast(self, chunk);
        trib_sum_partial_clear(self, chunk);
    }
}
