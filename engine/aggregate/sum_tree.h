/*
 * sum_tree.h - inside of the summation: its memory (sum_memory.c), the tree along which a chunk is summed
 * (sum_tree.c), payloads that are summed where they are (sum_operand.c), how rounds end and are refused (sum_round.c),
 * and who contributes to them when (summation.c).
 *
 * RANK order: a balanced binary tree over ranks. Level 0 holds the contributions; node i of level l combines nodes 2i
 * and 2i + 1 of level l - 1, left operand the lower ranks; a node without a right sibling moves up as it is. A node
 * is combined as soon as both are there, so the bits depend on the number of contributors and the values alone, and
 * little has to wait. A subtree's result is kept at the index of its lowest rank, with its level.
 *
 * Invariants
 * - Whatever a payload may need is taken when it announces itself, the only place that can say TRIB_AGAIN. So nothing
 *   fails between a payload's arrival and its sum's departure, but for one that its sender takes back while it is read.
 * - A wide block is needed only where two operands in wire form meet; the later of the two brings it along (spare).
 * - A round stays where it is while anything points to it: receives, references of sums, or a function in an upcall
 *   (holds).
 * - Blocks, trees and rounds come from last-in-first-out lists that grow to what the job needs and stay.
 */
#ifndef TRIB_ENGINE_SUM_TREE_H
#define TRIB_ENGINE_SUM_TREE_H

#include "engine/base/assert.h"
#include "engine/aggregate/summation.h"

#define TRIB_SUM_WIDTHS 3u         /* blocks of 1, 2 and 4 times chunk_bytes, as wide as accumulators get */
#define TRIB_SUM_SMALL_BYTES 4096u /* chunks up to this have blocks of their own, 1, 2 and 4 times as large */
#define TRIB_SUM_CLASSES (2 * TRIB_SUM_WIDTHS)
#define TRIB_SUM_ROUND_CLASSES 17u /* rounds with room for 2^0 .. 2^16 chunks */
_Static_assert(TRIB_SUM_CHUNKS_MAX == 1u << (TRIB_SUM_ROUND_CLASSES - 1),
               "rounds for all partitions, and no larger ones");

#define TRIB_SUM_TORN "a contribution was lost with its connection while it was summed"

typedef struct sum_round sum_round;

/* Memory for one chunk. */
typedef struct sum_block {
    struct sum_block *next; /* free list */
    struct sum_block *all_next;
    void *data;
    sum_round
        *receiving_for; /* a payload is being received here for that round; NULL: for nobody, it will be swallowed */
    struct sum_block *spare; /* kept for the combination that the received payload may cause, or NULL */
    trib_lease *lease;       /* NULL: none; else the operand in `leased` lies elsewhere, and data is written over it */
    struct sum_node *leased;
    struct sum_chunk *leased_to;
    trib_summation *owner;
    uint8_t size_class; /* width, plus TRIB_SUM_WIDTHS if it is small */
    bool is_receiving;
    bool is_free;
} sum_block;

typedef struct sum_node {
    const void *data; /* NULL: not there yet */
    sum_block *block; /* that data lies in, or stands by while data is leased; NULL: lent for the time of the call */
    uint8_t level;
    uint8_t form; /* trib_form */
} sum_node;

/* By rank; in arrival order there is one node, the accumulator. */
typedef struct sum_tree {
    struct sum_tree *next;
    sum_node nodes[];
} sum_tree;

typedef struct sum_chunk {
    sum_round *round;
    sum_tree *tree;          /* while payloads are being summed */
    sum_block *result;       /* until the last reference of sum is back */
    trib_sum_buffer sum;     /* what is handed out of result */
    trib_sum_buffer nothing; /* broadcast: tells the root that all have asked */
    uint32_t size, arrived;
    uint32_t first;  /* the rank that said size */
    uint32_t served; /* broadcast: ranks below this get the root's payload when they ask, or have it */
    bool is_sized;   /* size and first are known */
    bool is_open;    /* broadcast: the root's payload is there, and we hold a reference for those who have yet to ask */
    bool is_out;     /* a partial sum: it has been given out, and we hold a reference until the sum is there */
    sum_block *kept; /* broadcast of a partial sum: the root's payload until all have asked */
} sum_chunk;

typedef struct sum_key {
    uint32_t finished; /* the last round that is over */
    /* Of the rounds that are over, these in a row were refused: what was still on its way to them is swallowed. 0:
     * none. */
    uint32_t refused_first, refused_last;
    uint32_t live_count;
    uint32_t open_count; /* live rounds that are neither refused nor complete */
    sum_round *live;     /* newest first, without gaps in between except for rounds that are over */
} sum_key;

struct sum_round {
    sum_round *next;            /* of its key, the one before it; or in the free list */
    sum_round *newer;           /* of its key, the one after it */
    sum_round *bucket_next;     /* in the table of live rounds */
    sum_round *older, *younger; /* among all live rounds */
    sum_key *key;
    trib_contribution what; /* of the first contribution */
    trib_status refused;    /* TRIB_OK: not */
    uint32_t class_index;
    uint32_t chunk_count; /* records below that are in use */
    uint32_t chunks_done, notified_count, receives, references, holds;
    uint32_t partials_out; /* chunks that are */
    sum_round *report_next;
    bool is_reported; /* sum_partial.c: whoever sums the partial sums knows of the refusal, or will */
    int64_t began_ns;
    uint64_t serial; /* younger rounds have higher ones */
    sum_chunk *chunks;
    uint32_t *counts;        /* [rank]: chunks contributed */
    uint64_t *arrived;       /* bit chunk * n + rank */
    unsigned char *notified; /* [rank]: of the refusal */
    bool is_torn;            /* an operand was taken back while it was read: refused before anything is handed out */
    char text[TRIB_ERROR_TEXT_SIZE];
};

/* Open addressing from a number to what it stands for. Nothing is ever taken out. */
typedef struct sum_table {
    struct sum_slot {
        uint64_t id;
        void *value; /* NULL: free slot */
    } * slots;
    uint32_t capacity, count; /* capacity: 0 or a power of two */
} sum_table;

/* The live rounds by key and number: those of one key may be many, and what comes is about any of them. */
typedef struct sum_round_table {
    sum_round **buckets;
    uint32_t bucket_count; /* a power of two */
} sum_round_table;

struct trib_summation {
    trib_aggregator base;
    trib_summation_config config;
    void *(*memory_alloc)(size_t size); /* zeroed; a test puts its own here */
    uint64_t allocations;               /* calls of memory_alloc and buffer_alloc */
    sum_table keys, blocks;
    sum_round_table by_number;
    sum_round *oldest, *youngest;
    uint64_t rounds_begun;
    uint64_t stall_serial; /* trib_summation_stalls goes on at that round, with that contributor */
    uint32_t stall_receiver;
    sum_round *free_rounds[TRIB_SUM_ROUND_CLASSES];
    sum_block *free_blocks[TRIB_SUM_CLASSES], *all_blocks;
    sum_tree *free_trees;
    uint32_t live_rounds;
    uint32_t blocks_out; /* not in a free list */
    uint64_t bytes_in, bytes_out;
};

/* ---- sum_aggregator.c ---- */

extern const trib_aggregator_ops trib_sum_aggregator_ops;

/* ---- sum_memory.c: all of these answer NULL when out of memory ---- */

sum_key *trib_sum_key_find(const trib_summation *self, const trib_contribution *what); /* NULL: never seen */
sum_key *trib_sum_key_make(trib_summation *self, const trib_contribution *what);
sum_block *trib_sum_block_take(trib_summation *self, uint32_t chunk_size, uint8_t width);
void trib_sum_block_give(trib_summation *self, sum_block *block); /* with its spare; NULL is fine */
/* If it has one; NULL is fine. False: what was read under it may not be used. */
bool trib_sum_lease_end(sum_block *block);
sum_block *trib_sum_block_of(const trib_summation *self, const void *data);
sum_tree *trib_sum_tree_take(trib_summation *self);
void trib_sum_tree_give(trib_summation *self, sum_tree *tree); /* with what its nodes hold; NULL is fine */
/* Empty, with chunk_count records, and the youngest of the live rounds. */
sum_round *trib_sum_round_take(trib_summation *self, uint32_t chunk_count);
void trib_sum_round_give(trib_summation *self, sum_round *round);
/* The round is the newest of the key, by the number in round->what; it stays in the table until it is taken out. */
void trib_sum_round_put_in(trib_summation *self, sum_key *key, sum_round *round);
void trib_sum_round_take_out(trib_summation *self, sum_round *round);
/* Among the live ones; NULL if it is none. */
sum_round *trib_sum_round_find(const trib_summation *self, const sum_key *key, uint32_t round);
/* Room for the table; the rest is made when it is needed. */
TRIB_CHECKED trib_status trib_sum_memory_init(trib_summation *self);
void trib_sum_memory_free(trib_summation *self);
/* Counts blocks and live rounds again: for trib_assert_slow. */
bool trib_sum_memory_adds_up(const trib_summation *self);

/* ---- sum_round.c ---- */

uint32_t trib_sum_round_newest(const sum_key *key); /* live or over; 0: none yet */
/* Gives the round back if it is over. Every change that can be the last one is followed by this. */
void trib_sum_round_try_end(trib_summation *self, sum_round *round);
/* Refuses the round to all who have shown up, unless it is refused already. trib_sum_round_try_end shall follow. */
void trib_sum_round_refuse(trib_summation *self, sum_round *round, trib_status status, const char *text);
/* Tells the contributor of the refusal, at most once. */
void trib_sum_round_notify(trib_summation *self, sum_round *round, uint32_t contributor);
/* Refuses the round if this contribution contradicts what is known of it; otherwise takes over what is new. */
void trib_sum_round_check(trib_summation *self, sum_round *round, const trib_contribution *what);

/* ---- Who stands for which ranks ---- */

static inline uint32_t trib_sum_rank(const trib_summation *self, uint32_t contributor)
{
    const uint32_t step = self->config.rank_step == 0 ? 1 : self->config.rank_step;
    return self->config.rank_first + contributor * step;
}

/* The contributor that brings the root's payload; as many as there are contributors: none of these. */
static inline uint32_t trib_sum_root(const trib_summation *self, const trib_contribution *what)
{
    const uint32_t step = self->config.rank_step == 0 ? 1 : self->config.rank_step, n = self->config.contributor_count;
    if (what->root < self->config.rank_first) {
        return n;
    }
    const uint32_t index = (what->root - self->config.rank_first) / step;
    return index < n ? index : n;
}

/* ---- sum_tree.c ---- */

/* A partial sum's total is there: to all contributors. Our reference is given back. */
void trib_sum_chunk_hand_out(trib_summation *self, sum_chunk *chunk);

/* log2 of how much wider an accumulator of that sum is than what travels. */
uint8_t trib_sum_acc_width(const trib_contribution *what);
/* The operand that this contribution would be combined with right away, or NULL. */
const sum_node *trib_sum_partner(const trib_summation *self, const sum_chunk *chunk, uint32_t rank);
/* A payload takes its place in the chunk, what can be combined is, and a finished sum is handed out. Takes
 * payload->block and spare over. payload->data is NULL if no payload travels; data received in place (no block)
 * needs a partner. */
void trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node payload,
                        sum_block *spare);
/* Gives back what the round holds and has not handed out. */
void trib_sum_round_clear(trib_summation *self, sum_round *round);
void trib_sum_buffer_unref(trib_summation *self, trib_sum_buffer *sum);

/* ---- sum_operand.c ---- */

/* How much wider than the chunk its payload is, as a power of two; and its trib_form. */
uint8_t trib_sum_payload_width(const trib_summation *self, const trib_contribution *what);
uint8_t trib_sum_payload_form(const trib_summation *self);
/* The operand that a payload becomes for which block was taken: it lies there, or is copied there, or stays where it
 * is under a lease of the lender's and the block stands by. spare: what was taken for its combination, or NULL. */
sum_node trib_sum_operand(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block,
                          const void *payload, const trib_lender *lender, const sum_block *spare);

/* ---- sum_partial.c: for those that give partial sums out; the others pass through ---- */

/* Where the payload of a root elsewhere shall land, when this contribution is the last. False: out of memory. */
bool trib_sum_partial_take_block(trib_summation *self, const sum_round *round, const trib_contribution *what,
                                 sum_block **block);
void trib_sum_partial_give_out(trib_summation *self, sum_chunk *chunk, sum_block *block);
void trib_sum_partial_add_to_broadcast(trib_summation *self, sum_chunk *chunk, sum_block *block);
void trib_sum_partial_clear(trib_summation *self, sum_chunk *chunk);
/* Reports refusals whose turn has come. After every refusal and every completion, of that round, which is held. */
void trib_sum_partial_report(trib_summation *self, sum_round *round);
bool trib_sum_partial_may_end(const trib_summation *self, const sum_round *round);

#endif
