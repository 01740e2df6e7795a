/*
 * sum_tree.h - inside of the summation: rounds, chunks, blocks of memory, and the tree along which a chunk is summed.
 *
 * RANK order: a balanced binary tree over ranks. Level 0 holds the contributions; node i of level l combines nodes 2i and 2i + 1 of
 * level l - 1, left operand the lower ranks; a node without a right sibling moves up as it is. A node is combined as soon as
 * both are there, so the bits depend on the number of contributors and the values alone, and little has to wait.
 * A subtree's result is kept at the index of its lowest rank, with its level.
 */
#ifndef TRIB_ENGINE_SUM_TREE_H
#define TRIB_ENGINE_SUM_TREE_H

#include <uthash.h>

#include "engine/assert.h"
#include "engine/summation.h"

/* Memory for one chunk in either form. All blocks of a summation have one size, so any fits anywhere. */
typedef struct sum_block {
    struct sum_block *next; /* free list */
    void *data;
    struct sum_round *landing; /* payload is landing here for that round */
    struct sum_block *all_next;
    UT_hash_handle hh; /* by data */
} sum_block;

typedef struct sum_node {
    sum_block *block; /* NULL: not there yet */
    uint8_t level;
    uint8_t form; /* trib_form */
} sum_node;

/* What is handed out as trib_sum_buffer. */
typedef struct sum_out {
    trib_sum_buffer buffer; /* first */
    sum_block *block;
    struct sum_out *next;
} sum_out;

typedef struct sum_chunk {
    uint32_t size, arrived;
    bool has_size;
    sum_out *result; /* broadcast: the root's payload, while receivers may still ask */
} sum_chunk;

typedef struct sum_round {
    struct sum_round *next;
    struct sum_key *key;
    trib_contribution what; /* of the first contribution */
    trib_status refused;    /* TRIB_OK: not */
    char text[TRIB_ERROR_TEXT_SIZE];
    uint32_t capacity; /* chunks */
    uint32_t told_count, landings, references, chunks_done;
    int64_t began_ns;
    sum_chunk *chunks;
    sum_node *nodes;        /* [chunk][rank] */
    unsigned char *arrived; /* [chunk][rank] */
    unsigned char *told;    /* [rank] */
} sum_round;

typedef struct sum_key {
    uint64_t id;
    uint32_t finished; /* all rounds up to this are over */
    uint32_t refused;  /* the last of them that was refused: stragglers to it are swallowed */
    sum_round *live;
    UT_hash_handle hh;
} sum_key;

struct trib_summation {
    trib_summation_config config;
    sum_key *keys;
    sum_round *free_rounds;
    sum_block *free_blocks, *all_blocks, *blocks_by_data;
    sum_out *free_outs;
    uint32_t live_rounds;
    uint64_t bytes_in, bytes_out;
};

sum_block *trib_sum_block_take(trib_summation *self); /* NULL: out of memory */
void trib_sum_block_give(trib_summation *self, sum_block *block);
sum_block *trib_sum_block_of(trib_summation *self, const void *data);
void trib_sum_blocks_free(trib_summation *self);

/* A contribution takes its place in the tree; what can be combined is, and a finished sum is handed out. */
void trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block);
/* Gives back what the round holds and has not handed out. */
void trib_sum_round_clear(trib_summation *self, sum_round *round);
void trib_sum_buffer_unref(trib_summation *self, trib_sum_buffer *sum);

#endif
