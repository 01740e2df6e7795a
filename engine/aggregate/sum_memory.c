/*
 * sum_memory.c - the memory of the summation: its keys, blocks, trees and rounds.
 *
 * Memory stays allocated for reuse until the summation is destroyed. The free lists are last-in-first-out, because the
 * newest entry is the most likely to be in the cache.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/sum_tree.h"

static void *take_memory(trib_summation *self, size_t size)
{
    self->allocations++;
    return self->memory_alloc(size);
}

/* ---- Tables ---- */

static uint32_t table_index(const sum_table *table, uint64_t id)
{
    uint64_t hash = (id ^ id >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash >> 32) & (table->capacity - 1);
}

static struct sum_slot *table_slot(const sum_table *table, uint64_t id)
{
    uint32_t at = table_index(table, id);
    while (table->slots[at].value != NULL && table->slots[at].id != id) {
        at = (at + 1) & (table->capacity - 1);
    }
    return &table->slots[at];
}

static void *table_find(const sum_table *table, uint64_t id)
{
    return table->capacity == 0 ? NULL : table_slot(table, id)->value;
}

/* Makes room for one more entry, so that the next insertion cannot fail. At most three quarters of the slots are
 * used. */
static bool table_reserve(trib_summation *self, sum_table *table)
{
    if (table->count < table->capacity / 4 * 3) {
        return true;
    }
    sum_table bigger = {.capacity = table->capacity == 0 ? 64 : table->capacity * 2, .count = table->count};
    if (bigger.capacity == 0) {
        return false;
    }
    bigger.slots = take_memory(self, bigger.capacity * sizeof *bigger.slots);
    if (bigger.slots == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (table->slots[i].value != NULL) {
            *table_slot(&bigger, table->slots[i].id) = table->slots[i];
        }
    }
    free(table->slots);
    *table = bigger;
    return true;
}

static void table_insert(sum_table *table, uint64_t id, void *value)
{
    struct sum_slot *slot = table_slot(table, id);
    trib_assert(slot->value == NULL);
    trib_assert(value != NULL && table->count < table->capacity); /* table_reserve has made room */
    *slot = (struct sum_slot){.id = id, .value = value};
    table->count++;
    trib_assert(table->count < table->capacity);
}

/* Removes the entry. Entries behind it move up, so that each is still found from its own place on. */
static void table_remove(sum_table *table, uint64_t id)
{
    const uint32_t mask = table->capacity - 1;
    struct sum_slot *slot = table_slot(table, id);
    trib_assert(slot->value != NULL && table->count > 0);
    uint32_t hole = (uint32_t)(slot - table->slots);
    for (uint32_t at = (hole + 1) & mask; table->slots[at].value != NULL; at = (at + 1) & mask) {
        const uint32_t home = table_index(table, table->slots[at].id);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    }
    table->slots[hole].value = NULL;
    table->count--;
    trib_assert_slow(table_find(table, id) == NULL);
}

/* ---- Keys ---- */

static uint64_t key_id(const trib_contribution *what)
{
    return (uint64_t)what->tensor << 32 | what->partition;
}

sum_key *trib_sum_key_find(const trib_summation *self, const trib_contribution *what)
{
    return table_find(&self->keys, key_id(what));
}

uint32_t trib_sum_key_tensor(const sum_key *key)
{
    return (uint32_t)(key->id >> 32);
}

sum_key *trib_sum_key_make(trib_summation *self, const trib_contribution *what)
{
    sum_key *key = table_reserve(self, &self->keys) ? take_memory(self, sizeof *key) : NULL;
    if (key != NULL) {
        key->id = key_id(what);
        trib_assert(key->live == NULL && key->finished == 0);
        table_insert(&self->keys, key->id, key);
    }
    return key;
}

void trib_sum_key_free(trib_summation *self, sum_key *key)
{
    trib_assert(key->live == NULL && key->live_count == 0 && key->open_count == 0);
    table_remove(&self->keys, key->id);
    free(key);
}

/* ---- Blocks ---- */

static size_t block_size(const trib_summation *self, uint8_t size_class)
{
    bool is_small = size_class >= TRIB_SUM_WIDTHS;
    return is_small ? (size_t)TRIB_SUM_SMALL_BYTES << (size_class - TRIB_SUM_WIDTHS)
                    : (size_t)self->config.chunk_bytes << size_class;
}

static sum_block *make_block(trib_summation *self, uint8_t size_class)
{
    sum_block *block = table_reserve(self, &self->blocks) ? take_memory(self, sizeof *block) : NULL;
    if (block == NULL) {
        return NULL;
    }
    self->allocations++;
    block->data = self->config.buffer_alloc(self->config.user, block_size(self, size_class));
    if (block->data == NULL) {
        free(block);
        return NULL;
    }
    block->size_class = size_class;
    block->all_next = self->all_blocks;
    self->all_blocks = block;
    table_insert(&self->blocks, (uintptr_t)block->data, block);
    return block;
}

/* Adds a sixteenth to the blocks. How many are out depends on when workers acknowledge their sums, so the next peak is
 * often a little higher; it shall not allocate in the middle of a job. Without memory there are fewer. */
static void make_spares(trib_summation *self, uint8_t size_class)
{
    for (uint32_t i = self->blocks.count / 16; i > 0; i--) {
        sum_block *block = make_block(self, size_class);
        if (block == NULL) {
            return;
        }
        block->is_free = true;
        block->next = self->free_blocks[size_class];
        self->free_blocks[size_class] = block;
    }
}

sum_block *trib_sum_block_take(trib_summation *self, uint32_t chunk_size, uint8_t width)
{
    trib_assert(width < TRIB_SUM_WIDTHS);
    uint8_t size_class = chunk_size <= TRIB_SUM_SMALL_BYTES ? (uint8_t)(width + TRIB_SUM_WIDTHS) : width;
    sum_block *block = self->free_blocks[size_class];
    if (block != NULL) {
        self->free_blocks[size_class] = block->next;
        trib_assert(block->is_free);
        block->is_free = false;
    } else {
        block = make_block(self, size_class);
        if (block != NULL) {
            make_spares(self, size_class);
        }
    }
    self->blocks_out += block != NULL;
    return block;
}

static void put_back(trib_summation *self, sum_block *block)
{
    trib_assert(!block->is_free);
    trib_assert(!block->is_receiving && block->lease == NULL);
    trib_assert(self->blocks_out > 0);
    trib_assert(block->size_class < TRIB_SUM_CLASSES && block->receiving_for == NULL);
    block->is_free = true;
    block->next = self->free_blocks[block->size_class];
    self->free_blocks[block->size_class] = block;
    self->blocks_out--;
}

bool trib_sum_lease_end(sum_block *block)
{
    trib_lease *lease = block != NULL ? block->lease : NULL;
    if (lease != NULL) {
        block->lease = NULL;
    }
    return lease == NULL || lease->end(lease);
}

void trib_sum_block_give(trib_summation *self, sum_block *block)
{
    if (block == NULL) {
        return;
    }
    sum_block *spare = block->spare;
    block->spare = NULL;
    (void)trib_sum_lease_end(block);
    put_back(self, block);
    if (spare != NULL) {
        trib_assert(spare->spare == NULL);
        put_back(self, spare);
    }
}

sum_block *trib_sum_block_of(const trib_summation *self, const void *data)
{
    sum_block *block = table_find(&self->blocks, (uintptr_t)data);
    trib_assert(block != NULL);
    trib_assert(!block->is_free);
    return block;
}

/* ---- Trees ---- */

static uint32_t node_count(const trib_summation *self)
{
    return self->config.order == TRIB_ORDER_RANK ? self->config.contributor_count : 1;
}

sum_tree *trib_sum_tree_take(trib_summation *self)
{
    sum_tree *tree = self->free_trees;
    if (tree != NULL) {
        self->free_trees = tree->next;
        trib_assert(tree->nodes[0].data == NULL && tree->nodes[0].block == NULL); /* trib_sum_tree_give empties it */
        return tree;
    }
    return take_memory(self, sizeof *tree + node_count(self) * sizeof tree->nodes[0]);
}

void trib_sum_tree_give(trib_summation *self, sum_tree *tree)
{
    if (tree == NULL) {
        return;
    }
    for (uint32_t i = 0; i < node_count(self); i++) {
        trib_sum_block_give(self, tree->nodes[i].block);
        tree->nodes[i] = (sum_node){.data = NULL};
    }
    tree->next = self->free_trees;
    self->free_trees = tree;
}

/* ---- Rounds ---- */

static size_t arrived_words(const trib_summation *self, uint32_t chunk_count)
{
    return ((size_t)chunk_count * self->config.contributor_count + 63) / 64;
}

/* One allocation holds the round, its chunks and its marks, in the order of falling alignment. */
static sum_round *make_round(trib_summation *self, uint32_t class_index)
{
    const uint32_t n = self->config.contributor_count, capacity = UINT32_C(1) << class_index;
    _Static_assert(sizeof(sum_round) % _Alignof(sum_chunk) == 0, "chunks follow the round");
    _Static_assert(_Alignof(sum_chunk) >= _Alignof(uint64_t), "marks follow the chunks");
    const size_t chunks_at = sizeof(sum_round), arrived_at = chunks_at + capacity * sizeof(sum_chunk),
                 counts_at = arrived_at + arrived_words(self, capacity) * sizeof(uint64_t),
                 notified_at = counts_at + n * sizeof(uint32_t);
    unsigned char *memory = take_memory(self, notified_at + n);
    if (memory == NULL) {
        return NULL;
    }
    sum_round *round = (sum_round *)(void *)memory;
    round->class_index = class_index;
    round->chunks = (sum_chunk *)(void *)(memory + chunks_at);
    round->arrived = (uint64_t *)(void *)(memory + arrived_at);
    round->counts = (uint32_t *)(void *)(memory + counts_at);
    round->notified = memory + notified_at;
    return round;
}

static void link_youngest(trib_summation *self, sum_round *round)
{
    round->older = self->youngest;
    round->younger = NULL;
    *(self->youngest == NULL ? &self->oldest : &self->youngest->younger) = round;
    self->youngest = round;
    self->live_rounds++;
}

sum_round *trib_sum_round_take(trib_summation *self, uint32_t chunk_count)
{
    trib_assert(chunk_count >= 1 && chunk_count <= TRIB_SUM_CHUNKS_MAX);
    uint32_t class_index = 0;
    while (UINT32_C(1) << class_index < chunk_count) {
        class_index++;
    }
    sum_round *round = self->free_rounds[class_index];
    if (round != NULL) {
        self->free_rounds[class_index] = round->next;
    } else {
        round = make_round(self, class_index);
        if (round == NULL) {
            return NULL;
        }
    }
    /* The caller sets all other fields. The text is long, so it is only terminated, not cleared. */
    round->chunk_count = chunk_count;
    round->next = round->report_next = NULL;
    round->late = NULL;
    round->refused = TRIB_OK;
    round->is_decided = round->is_torn = false;
    round->chunks_done = round->notified_count = round->come_count = round->partials_out = 0;
    round->receives = round->references = round->holds = 0;
    round->is_reported = false;
    round->text[0] = '\0';
    memset(round->chunks, 0, chunk_count * sizeof *round->chunks);
    memset(round->arrived, 0, arrived_words(self, chunk_count) * sizeof *round->arrived);
    memset(round->counts, 0, self->config.contributor_count * sizeof *round->counts);
    memset(round->notified, 0, self->config.contributor_count);
    for (uint32_t i = 0; i < chunk_count; i++) {
        round->chunks[i].round = round;
    }
    link_youngest(self, round);
    return round;
}

/* ---- Rounds by their number ---- */

static sum_round **bucket_of(const sum_round_table *table, const sum_key *key, uint32_t round)
{
    const uint64_t mixed = ((uintptr_t)key ^ (uint64_t)round << 40 ^ round) * UINT64_C(0x9e3779b97f4a7c15);
    return &table->buckets[mixed >> 32 & (table->bucket_count - 1)];
}

/* Keeps at least one bucket for each live round. Without memory the table stays as it is, and each bucket holds more
 * rounds. */
static void widen(trib_summation *self)
{
    const sum_round_table old = self->by_number;
    sum_round_table *table = &self->by_number;
    if (self->live_rounds <= old.bucket_count || old.bucket_count > UINT32_MAX / 2) {
        return;
    }
    sum_round **buckets = take_memory(self, old.bucket_count * 2 * sizeof(sum_round *));
    if (buckets == NULL) {
        return;
    }
    *table = (sum_round_table){.buckets = buckets, .bucket_count = old.bucket_count * 2};
    for (uint32_t i = 0; i < old.bucket_count; i++) {
        while (old.buckets[i] != NULL) {
            sum_round *round = old.buckets[i];
            old.buckets[i] = round->bucket_next;
            sum_round **bucket = bucket_of(table, round->key, round->what.round);
            round->bucket_next = *bucket;
            *bucket = round;
        }
    }
    free(old.buckets);
}

void trib_sum_round_put_in(trib_summation *self, sum_key *key, sum_round *round)
{
    trib_assert(key->live == NULL || key->live->what.round < round->what.round);
    trib_assert(trib_sum_round_find(self, key, round->what.round) == NULL);
    widen(self);
    round->key = key;
    round->newer = NULL;
    round->next = key->live;
    if (key->live != NULL) {
        key->live->newer = round;
    }
    key->live = round;
    key->live_count++;
    sum_round **bucket = bucket_of(&self->by_number, key, round->what.round);
    round->bucket_next = *bucket;
    *bucket = round;
}

void trib_sum_round_take_out(trib_summation *self, sum_round *round)
{
    sum_key *key = round->key;
    trib_assert(key->live != NULL && key->live_count > 0);
    trib_assert(round->newer == NULL ? key->live == round : round->newer->next == round);
    sum_round **at = bucket_of(&self->by_number, key, round->what.round);
    while (*at != round) {
        trib_assert(*at != NULL);
        at = &(*at)->bucket_next;
    }
    *at = round->bucket_next;
    *(round->newer == NULL ? &key->live : &round->newer->next) = round->next;
    if (round->next != NULL) {
        round->next->newer = round->newer;
    }
    key->live_count--;
}

sum_round *trib_sum_round_find(const trib_summation *self, const sum_key *key, uint32_t round)
{
    /* most frames are about the newest round or one yet to come */
    if (key->live == NULL || key->live->what.round <= round) {
        return key->live != NULL && key->live->what.round == round ? key->live : NULL;
    }
    sum_round *at = *bucket_of(&self->by_number, key, round);
    while (at != NULL && (at->key != key || at->what.round != round)) {
        at = at->bucket_next;
    }
    return at;
}

void trib_sum_round_give(trib_summation *self, sum_round *round)
{
    trib_assert(round->receives == 0 && round->references == 0 && round->holds == 0);
    trib_assert(self->live_rounds > 0 && round->partials_out == 0);
    trib_assert(round->older == NULL ? self->oldest == round : round->older->younger == round);
    *(round->older == NULL ? &self->oldest : &round->older->younger) = round->younger;
    *(round->younger == NULL ? &self->youngest : &round->younger->older) = round->older;
    self->live_rounds--;
    free(round->late);
    round->late = NULL;
    round->next = self->free_rounds[round->class_index];
    self->free_rounds[round->class_index] = round;
}

/* ---- Opening and closing ---- */

trib_status trib_sum_memory_init(trib_summation *self)
{
    enum { BUCKETS = 64 };
    self->by_number = (sum_round_table){.buckets = calloc(BUCKETS, sizeof(sum_round *)), .bucket_count = BUCKETS};
    return self->by_number.buckets == NULL ? TRIB_NO_MEMORY : TRIB_OK;
}

void trib_sum_memory_free(trib_summation *self)
{
    while (self->oldest != NULL) {
        sum_round *round = self->oldest;
        self->oldest = round->younger;
        for (uint32_t i = 0; i < round->chunk_count; i++) {
            free(round->chunks[i].tree); /* the loop over all_blocks frees its blocks */
        }
        free(round->late);
        free(round);
    }
    for (uint32_t i = 0; i < TRIB_SUM_ROUND_CLASSES; i++) {
        while (self->free_rounds[i] != NULL) {
            sum_round *round = self->free_rounds[i];
            self->free_rounds[i] = round->next;
            free(round);
        }
    }
    while (self->free_trees != NULL) {
        sum_tree *tree = self->free_trees;
        self->free_trees = tree->next;
        free(tree);
    }
    while (self->all_blocks != NULL) {
        sum_block *block = self->all_blocks;
        self->all_blocks = block->all_next;
        (void)trib_sum_lease_end(block);
        self->config.buffer_free(self->config.user, block->data, block_size(self, block->size_class));
        free(block);
    }
    for (uint32_t i = 0; i < self->keys.capacity; i++) {
        free(self->keys.slots[i].value);
    }
    free(self->by_number.buckets);
    free(self->keys.slots);
    free(self->blocks.slots);
}

bool trib_sum_memory_is_consistent(const trib_summation *self)
{
    uint32_t all = 0, unused = 0, rounds = 0;
    for (const sum_block *block = self->all_blocks; block != NULL; block = block->all_next) {
        all++;
    }
    for (uint32_t width = 0; width < TRIB_SUM_CLASSES; width++) {
        for (const sum_block *block = self->free_blocks[width]; block != NULL; block = block->next) {
            unused++;
        }
    }
    for (const sum_round *round = self->oldest; round != NULL; round = round->younger) {
        rounds++;
    }
    return all == self->blocks.count && all == unused + self->blocks_out && rounds == self->live_rounds;
}
