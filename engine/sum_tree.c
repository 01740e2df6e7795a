/* sum_tree.c - sums a chunk along the tree (sum_tree.h) or on arrival, and hands it out. */
#include "engine/sum_tree.h"

#include <stdlib.h>
#include <string.h>

/* Wide accumulators take up to four times the bytes on the wire (int8 averaged in int32). */
#define WIDEST 4u

/* ---- Blocks ---- */

static size_t block_size(const trib_summation *self)
{
    return (size_t)self->config.chunk_bytes * WIDEST;
}

sum_block *trib_sum_block_take(trib_summation *self)
{
    sum_block *block = self->free_blocks;
    if (block != NULL) {
        self->free_blocks = block->next;
        return block;
    }
    block = calloc(1, sizeof *block);
    void *data = block == NULL ? NULL : self->config.buffer_alloc(self->config.user, block_size(self));
    if (data == NULL) {
        free(block);
        return NULL;
    }
    block->data = data;
    block->all_next = self->all_blocks;
    self->all_blocks = block;
    HASH_ADD_PTR(self->blocks_by_data, data, block);
    return block;
}

/* Last in, first out: the block that is hot in the cache is used next. */
void trib_sum_block_give(trib_summation *self, sum_block *block)
{
    trib_assert(block->landing == NULL);
    block->next = self->free_blocks;
    self->free_blocks = block;
}

sum_block *trib_sum_block_of(trib_summation *self, const void *data)
{
    sum_block *block = NULL;
    HASH_FIND_PTR(self->blocks_by_data, &data, block);
    trib_assert(block != NULL);
    return block;
}

void trib_sum_blocks_free(trib_summation *self)
{
    HASH_CLEAR(hh, self->blocks_by_data);
    while (self->all_blocks != NULL) {
        sum_block *block = self->all_blocks;
        self->all_blocks = block->all_next;
        self->config.buffer_free(self->config.user, block->data, block_size(self));
        free(block);
    }
    while (self->free_outs != NULL) {
        sum_out *out = self->free_outs;
        self->free_outs = out->next;
        free(out);
    }
}

/* ---- Handing out ---- */

static sum_out *make_out(trib_summation *self, sum_round *round, sum_block *block, uint32_t size)
{
    sum_out *out = self->free_outs;
    if (out != NULL) {
        self->free_outs = out->next;
    } else {
        out = calloc(1, sizeof *out);
        if (out == NULL) {
            abort(); /* 64 bytes: the process is beyond help, and a lost sum would hang every worker */
        }
    }
    *out = (sum_out){.block = block};
    out->buffer.data = size > 0 && block != NULL ? block->data : NULL;
    out->buffer.size = block != NULL ? size : 0;
    out->buffer.slot = round;
    return out;
}

static void out_unref(trib_summation *self, sum_out *out)
{
    trib_assert(out->buffer.references > 0);
    if (--out->buffer.references == 0) {
        if (out->block != NULL) {
            trib_sum_block_give(self, out->block);
        }
        out->next = self->free_outs;
        self->free_outs = out;
    }
}

void trib_sum_buffer_unref(trib_summation *self, trib_sum_buffer *sum)
{
    out_unref(self, (sum_out *)sum);
}

static void hand_to(trib_summation *self, sum_round *round, sum_out *out, const trib_contribution *what,
                    uint32_t receiver)
{
    trib_contribution chunk = round->what;
    chunk.chunk = what->chunk;
    chunk.size = what->size;
    chunk.contributor = receiver;
    out->buffer.references++;
    round->references++;
    self->bytes_out += out->buffer.size;
    self->config.sum_ready(self->config.user, receiver, &chunk, &out->buffer);
}

/* ---- Adding ---- */

static void combine(trib_summation *self, const trib_contribution *what, sum_node *left, sum_node *right)
{
    size_t count = what->size / trib_dtype_size(what->dtype);
    sum_block *target = left->block, *spare = NULL;
    if (!trib_acc_is_wire(what->dtype, what->reduce) && left->form == TRIB_FORM_WIRE) {
        /* Wire elements are narrower than sums: the sum needs a place of its own, or the right operand's if that is a sum. */
        spare = right->form == TRIB_FORM_ACC ? right->block : trib_sum_block_take(self);
        if (spare == NULL) {
            abort(); /* see make_out */
        }
        target = spare;
    }
    trib_kernel_combine(self->config.kernels, what->dtype, what->reduce, target->data, left->block->data,
                        (trib_form)left->form, right->block->data, (trib_form)right->form, count);
    trib_charge(self->config.reactor, TRIB_COST_SUM, what->size);
    if (target != left->block) {
        trib_sum_block_give(self, left->block);
    }
    if (target != right->block) {
        trib_sum_block_give(self, right->block);
    }
    left->block = target;
    left->form = TRIB_FORM_ACC;
    *right = (sum_node){.block = NULL};
}

static void add_by_rank(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node *nodes)
{
    uint32_t n = self->config.contributor_count;
    uint32_t index = what->contributor; /* of the node at its level */
    for (uint32_t level = 0; (UINT32_C(1) << level) < n; level++, index >>= 1) {
        uint32_t mine = index << level, sibling = (index ^ 1) << level;
        if (sibling < n) {
            if (nodes[sibling].block == NULL || nodes[sibling].level != level) {
                return; /* its turn comes when the sibling does */
            }
            uint32_t low = mine < sibling ? mine : sibling, high = mine < sibling ? sibling : mine;
            combine(self, &round->what, &nodes[low], &nodes[high]);
            mine = low;
        }
        nodes[mine].level = (uint8_t)(level + 1);
    }
}

static void add_on_arrival(trib_summation *self, const trib_contribution *what, sum_node *nodes)
{
    if (what->contributor != 0 && nodes[0].block == NULL) {
        nodes[0] = nodes[what->contributor];
        nodes[what->contributor].block = NULL;
    } else if (what->contributor != 0) {
        combine(self, what, &nodes[0], &nodes[what->contributor]);
    }
}

static void finish_chunk(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node *root)
{
    uint32_t n = self->config.contributor_count;
    sum_block *block = root->block;
    *root = (sum_node){.block = NULL, .form = root->form};
    if (what->size > 0) {
        trib_kernel_finish(self->config.kernels, what->dtype, what->reduce, block->data, block->data,
                           (trib_form)root->form, what->size / trib_dtype_size(what->dtype), n);
    }
    sum_out *out = make_out(self, round, block, what->size);
    out->buffer.references++; /* ours, until all have theirs */
    for (uint32_t i = 0; i < n; i++) {
        hand_to(self, round, out, what, i);
    }
    out_unref(self, out);
}

static void add_to_sum(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block)
{
    uint32_t n = self->config.contributor_count;
    sum_node *nodes = &round->nodes[(size_t)what->chunk * n];
    bool last = round->chunks[what->chunk].arrived == n;
    if (block != NULL) {
        trib_contribution sized = round->what;
        sized.size = what->size;
        sized.contributor = what->contributor;
        round->what.size = what->size; /* combine works on this chunk's size */
        if (self->config.order == TRIB_ORDER_RANK) {
            nodes[what->contributor] = (sum_node){.block = block, .form = TRIB_FORM_WIRE};
            add_by_rank(self, round, what, nodes);
        } else if (what->contributor == 0 && nodes[0].block != NULL) {
            sum_node first = {.block = block, .form = TRIB_FORM_WIRE};
            combine(self, &sized, &nodes[0], &first);
        } else {
            nodes[what->contributor] = (sum_node){.block = block, .form = TRIB_FORM_WIRE};
            add_on_arrival(self, &sized, nodes);
        }
    }
    if (last) {
        finish_chunk(self, round, what, &nodes[0]);
    }
}

/* The root's payload goes to those who have asked as soon as it is there; the root learns that all have asked. */
static void add_to_broadcast(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block)
{
    uint32_t n = self->config.contributor_count;
    sum_chunk *chunk = &round->chunks[what->chunk];
    const unsigned char *arrived = &round->arrived[(size_t)what->chunk * n];
    if (what->contributor == what->root) {
        chunk->result = make_out(self, round, block, what->size);
        chunk->result->buffer.references++;
        for (uint32_t i = 0; i < n; i++) {
            if (i != what->root && arrived[i]) {
                hand_to(self, round, chunk->result, what, i);
            }
        }
    } else if (chunk->result != NULL) {
        hand_to(self, round, chunk->result, what, what->contributor);
    }
    if (chunk->arrived == n) {
        sum_out *nothing = make_out(self, round, NULL, 0);
        hand_to(self, round, nothing, what, what->root);
        sum_out *result = chunk->result;
        chunk->result = NULL;
        out_unref(self, result);
    }
}

void trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block)
{
    if (what->exchange == TRIB_EXCHANGE_BROADCAST) {
        add_to_broadcast(self, round, what, block);
    } else {
        add_to_sum(self, round, what, block);
    }
}

void trib_sum_round_clear(trib_summation *self, sum_round *round)
{
    uint32_t n = self->config.contributor_count;
    for (uint32_t chunk = 0; chunk < round->what.chunk_count && chunk < round->capacity; chunk++) {
        for (uint32_t i = 0; i < n; i++) {
            sum_node *node = &round->nodes[(size_t)chunk * n + i];
            if (node->block != NULL) {
                trib_sum_block_give(self, node->block);
                node->block = NULL;
            }
        }
        if (round->chunks[chunk].result != NULL) {
            out_unref(self, round->chunks[chunk].result);
            round->chunks[chunk].result = NULL;
        }
    }
}
