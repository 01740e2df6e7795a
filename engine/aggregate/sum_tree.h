/*
 * sum_tree.h - the internals of the summation: its memory (sum_memory.c), the tree along which a chunk is summed
 * (sum_tree.c), operands that stay where they arrived (sum_operand.c), the end and refusal of rounds (sum_round.c),
 * partial sums (sum_partial.c), and the acceptance of contributions (summation.c).
 *
 * RANK order is a balanced binary tree over ranks. Level 0 holds the contributions. Node i of level l combines nodes 2i
 * and 2i + 1 of level l - 1, with the lower ranks as the left operand. A node without a right sibling moves up
 * unchanged. Two nodes are combined as soon as both are there. So the bits of the sum depend only on the values and the
 * number of contributors, and few operands have to wait. The result of a subtree is kept at the index of its lowest
 * rank, with its level.
 *
 * Invariants
 * - All memory for a payload is taken when it announces itself, and only that call returns TRIB_AGAIN. So no step
 *   between its arrival and the sending of its sum can fail, unless the sender takes the payload back while it is read.
 * - A wide block is needed only where two operands in wire form meet. The later of the two brings it along (spare).
 * - A round keeps its address while a receive, a reference of a sum, or a function in an upcall (holds) uses it.
 * - Blocks, trees and rounds come from last-in-first-out lists, which grow to the job's need and never shrink.
 */
#ifndef TRIB_ENGINE_SUM_TREE_H
#define TRIB_ENGINE_SUM_TREE_H

#include "engine/base/assert.h"
#include "engine/aggregate/summation.h"
#include "engine/codec/encoding.h"

#define TRIB_SUM_WIDTHS 3u         /* blocks of 1, 2 and 4 times chunk_bytes, up to the widest accumulator */
#define TRIB_SUM_SMALL_BYTES 4096u /* bytes; chunks up to this use smaller blocks of 1, 2 and 4 times this size */
#define TRIB_SUM_CLASSES (2 * TRIB_SUM_WIDTHS)
#define TRIB_SUM_ROUND_CLASSES 17u /* rounds with room for 2^0 .. 2^16 chunks */
_Static_assert(TRIB_SUM_CHUNKS_MAX == 1u << (TRIB_SUM_ROUND_CLASSES - 1),
               "rounds for all partitions, and no larger ones");

_Static_assert(TRIB_ENCODING_SMALL == TRIB_SUM_SMALL_BYTES, "the room of a small encoded sum");

#define TRIB_SUM_TORN "a contribution was lost with its connection while it was summed"
#define TRIB_SUM_DROPPED "the round was over when the partial sum of a machine came"

typedef struct sum_round sum_round;

/* Memory for one chunk. */
typedef struct sum_block {
    struct sum_block *next; /* next in the free list */
    struct sum_block *all_next;
    void *data;
    /* the round of the payload that is being received here; NULL: the payload will be dropped */
    sum_round *receiving_for;
    uint32_t receiving_from; /* contributor of that payload */
    struct sum_block *spare; /* for the combination that the received payload may need, or NULL */
    /* NULL if there is none; otherwise the operand in `leased` lies elsewhere, and a recall copies it to data */
    trib_lease *lease;
    struct sum_node *leased;
    struct sum_chunk *leased_to;
    trib_summation *owner;
    uint8_t size_class; /* the width; plus TRIB_SUM_WIDTHS for a small block */
    bool is_receiving;
    bool is_free;
} sum_block;

typedef struct sum_node {
    const void *data; /* NULL until the operand has arrived */
    sum_block *block; /* holds data, or is reserved for it while it is leased; NULL if data is lent for the call only */
    uint8_t level;
    uint8_t form; /* a trib_form */
} sum_node;

/* One node for each rank. In arrival order the only node is the accumulator. */
typedef struct sum_tree {
    struct sum_tree *next;
    sum_node nodes[];
} sum_tree;

typedef struct sum_chunk {
    sum_round *round;
    sum_tree *tree;          /* set while payloads are being summed */
    sum_block *result;       /* the block of sum, held until its last reference is back */
    trib_sum_buffer sum;     /* the receivers' view of result */
    trib_sum_buffer nothing; /* tells those that get no payload that the chunk is done */
    uint32_t size, arrived;
    uint32_t first;  /* the contributor that set size */
    uint32_t served; /* broadcast: contributors below this have the root's payload, or get it when they ask */
    bool is_sized;   /* size and first are known */
    /* broadcast: the root's payload has arrived, and the summation holds a reference until all have asked. The same of
     * a complete sum that late contributors have yet to ask for (sum_quorum.c). */
    bool is_open;
    bool is_out;     /* a partial sum that is given out; the summation holds a reference until its sum has arrived */
    sum_block *kept; /* broadcast of a partial sum: the root's payload until all have asked */
} sum_chunk;

/* How it comes that a contributor needs no notice of the round's refusal. */
typedef enum sum_notice {
    SUM_UNTOLD,
    SUM_TOLD, /* it knows, or it never comes */
    /* it has joined: neutral elements stand in its place, or the round is refused without it, and what it has sent and
     * given up is dropped */
    SUM_FILLED,
} sum_notice;

typedef struct sum_key {
    uint64_t id;
    bool is_forgotten; /* its tensor has ended, so it goes with its last live round */
    uint32_t finished; /* number of the newest round that is over */
    /* The newest run of consecutive refused rounds that are over. Contributions still on their way to them are
     * dropped. 0 if there is none. */
    uint32_t refused_first, refused_last;
    uint32_t filled_last;       /* the last round with a contributor that is SUM_FILLED */
    uint32_t joins, join_round; /* the last join after which a round was begun behind a gap, and that round */
    uint32_t live_count;
    uint32_t open_count; /* live rounds that are neither refused nor complete */
    sum_round *live;     /* newest first; rounds that are over may leave gaps */
} sum_key;

/* The contributors without which a round goes on (sum_quorum.c). */
typedef struct sum_late {
    uint32_t count;
    uint32_t left;          /* pairs of a late contributor and a chunk that it has not asked for */
    uint64_t *asks;         /* bit chunk * n + contributor */
    uint32_t *asked;        /* [contributor]: the number of those chunks */
    unsigned char *is_late; /* [contributor] */
} sum_late;

struct sum_round {
    sum_round *next;            /* the next older round of its key; also the link of the free list */
    sum_round *newer;           /* the next newer round of its key */
    sum_round *bucket_next;     /* the next round in its bucket of by_number */
    sum_round *older, *younger; /* neighbours among all live rounds, by age */
    sum_key *key;
    trib_contribution what; /* as the first contribution described it */
    trib_status refused;    /* TRIB_OK while it is not refused */
    uint32_t class_index;
    uint32_t chunk_count; /* entries of chunks that are in use */
    uint32_t chunks_done, notified_count, receives, references, holds;
    uint32_t come_count;   /* contributors of which a chunk has arrived */
    uint32_t partials_out; /* chunks whose partial sum is out */
    sum_round *report_next;
    bool is_reported; /* the owner knows of the refusal, or will (sum_partial.c) */
    int64_t began_ns;
    uint64_t serial; /* younger rounds have higher serials */
    sum_chunk *chunks;
    uint32_t *counts;        /* [contributor]: the number of its chunks that have arrived */
    uint64_t *arrived;       /* bit chunk * n + contributor */
    unsigned char *notified; /* [contributor]: a sum_notice */
    sum_late *late;          /* NULL: all contribute */
    bool is_decided;         /* who contributes is settled (sum_quorum.c) */
    bool is_torn; /* an operand was taken back while it was read, so the round is refused before a sum goes out */
    char text[TRIB_ERROR_TEXT_SIZE];
};

/* Maps a number to a value by open addressing. */
typedef struct sum_table {
    struct sum_slot {
        uint64_t id;
        void *value; /* NULL: free slot */
    } * slots;
    uint32_t capacity, count; /* capacity: 0 or a power of two */
} sum_table;

/* The live rounds by key and number. A key may have many of them, and a frame may be about any. */
typedef struct sum_round_table {
    sum_round **buckets;
    uint32_t bucket_count; /* a power of two */
} sum_round_table;

struct trib_summation {
    trib_aggregator base;
    trib_summation_config config;
    void *(*memory_alloc)(size_t size); /* returns zeroed memory; tests replace it */
    uint64_t allocations;               /* calls of memory_alloc and buffer_alloc */
    sum_table keys, blocks;
    sum_round_table by_number;
    sum_round *oldest, *youngest;
    uint64_t rounds_begun;
    uint64_t stall_serial; /* trib_summation_stalls continues at this round, with stall_receiver */
    uint32_t stall_receiver;
    sum_round *free_rounds[TRIB_SUM_ROUND_CLASSES];
    sum_block *free_blocks[TRIB_SUM_CLASSES], *all_blocks;
    sum_tree *free_trees;
    uint32_t live_rounds;
    bool is_filling; /* a contribution is of the summation's own making (sum_absent.c) */
    void *neutral;   /* neutral elements, of the type and reduction that were asked for last; NULL: none */
    size_t neutral_bytes;
    trib_dtype neutral_dtype;
    trib_reduce neutral_reduce;
    uint32_t blocks_out; /* blocks that are not in a free list */
};

/* ---- sum_aggregator.c ---- */

/* summation.c: finds the round of a contribution that is to be added, or begins it. Refuses the round if the
 * contribution contradicts the others. *round_out is NULL if the round is over, and the contribution is dropped. */
TRIB_CHECKED trib_status trib_sum_find_place(trib_summation *self, const trib_contribution *what, bool with_payload,
                                             sum_round **round_out, trib_error *error);
extern const trib_aggregator_ops trib_sum_aggregator_ops;

/* ---- sum_memory.c: all of these answer NULL when out of memory ---- */

sum_key *trib_sum_key_find(const trib_summation *self, const trib_contribution *what); /* NULL: never seen */
uint32_t trib_sum_key_tensor(const sum_key *key);
sum_key *trib_sum_key_make(trib_summation *self, const trib_contribution *what);
void trib_sum_key_free(trib_summation *self, sum_key *key); /* it has no live rounds */
sum_block *trib_sum_block_take(trib_summation *self, uint32_t chunk_size, uint8_t width);
void trib_sum_block_give(trib_summation *self, sum_block *block); /* also gives its spare back; NULL is fine */
/* Ends the block's lease, if any; the block may be NULL. False if the data read under the lease must not be used. */
bool trib_sum_lease_end(sum_block *block);
sum_block *trib_sum_block_of(const trib_summation *self, const void *data);
sum_tree *trib_sum_tree_take(trib_summation *self);
void trib_sum_tree_give(trib_summation *self, sum_tree *tree); /* also gives its nodes' blocks back; NULL is fine */
/* An empty round with chunk_count records, which becomes the youngest live round. */
sum_round *trib_sum_round_take(trib_summation *self, uint32_t chunk_count);
void trib_sum_round_give(trib_summation *self, sum_round *round);
/* Adds the round as the newest of its key, by the number in round->what. */
void trib_sum_round_put_in(trib_summation *self, sum_key *key, sum_round *round);
void trib_sum_round_take_out(trib_summation *self, sum_round *round);
/* Finds a live round of the key by its number, or NULL. */
sum_round *trib_sum_round_find(const trib_summation *self, const sum_key *key, uint32_t round);
/* Allocates the first table of rounds. All other memory is allocated when needed. */
TRIB_CHECKED trib_status trib_sum_memory_init(trib_summation *self);
void trib_sum_memory_free(trib_summation *self);
/* Recounts blocks and live rounds for trib_assert_slow. Takes time in proportion to their number. */
bool trib_sum_memory_is_consistent(const trib_summation *self);

/* ---- sum_round.c ---- */

uint32_t trib_sum_round_newest(const sum_key *key); /* number of the newest round, live or over; 0 if there is none */
/* Gives the round back if it is over. Must follow every change that can end it. */
void trib_sum_round_try_end(trib_summation *self, sum_round *round);
/* Refuses the round to all contributors that have shown up, unless it is refused already. trib_sum_round_try_end
 * must follow. */
void trib_sum_round_refuse(trib_summation *self, sum_round *round, trib_status status, const char *text);
/* Tells the contributor of the refusal, at most once. */
void trib_sum_round_notify(trib_summation *self, sum_round *round, uint32_t contributor);
/* Refuses the round if this contribution contradicts earlier ones. Otherwise records what it adds to them. */
void trib_sum_round_check(trib_summation *self, sum_round *round, const trib_contribution *what);

/* ---- sum_absent.c ---- */

/* The bits of the element that changes no other one in a reduction: -0.0 in a sum of floats. */
uint64_t trib_sum_neutral(trib_dtype dtype, trib_reduce reduce);
/* True if neutral elements stand in the place of the contribution, which was on its way when all had joined. */
bool trib_sum_is_replaced(const trib_summation *self, const sum_round *round, const trib_contribution *what);
/* The same where the round is over. */
bool trib_sum_was_replaced(const sum_key *key, const trib_contribution *what);
/* After a join (what->joins): the contributor never shows up in rounds before what->round that it has not come to. If
 * there may be such rounds they are refused, unless they are over. *key_inout is made then if it is NULL. Returns false
 * if there is no memory for it. */
bool trib_sum_pass_over(trib_summation *self, sum_key **key_inout, const sum_round *round,
                        const trib_contribution *what);

/* The contributor's chunk has come. */
static inline bool trib_sum_has_arrived(const trib_summation *self, const sum_round *round,
                                        const trib_contribution *what)
{
    const size_t bit = (size_t)what->chunk * self->config.contributor_count + what->contributor;
    return (round->arrived[bit / 64] >> bit % 64 & 1) != 0;
}

/* Brings the contributor's neutral elements for the chunks that others have brought. If it has joined, it hears nothing
 * of the round. */
void trib_sum_bring_chunks(trib_summation *self, sum_round *round, uint32_t contributor, bool has_joined);

/* ---- sum_quorum.c ---- */

static inline bool trib_sum_is_late(const sum_round *round, uint32_t contributor)
{
    return round->late != NULL && round->late->is_late[contributor];
}

/* True if the contributor has come to the round, or need not. */
static inline bool trib_sum_has_come(const sum_round *round, uint32_t contributor)
{
    const uint32_t chunks =
        trib_sum_is_late(round, contributor) ? round->late->asked[contributor] : round->counts[contributor];
    return chunks > 0 || round->notified[contributor] != SUM_UNTOLD;
}

/* True if neutral elements stand in the contributor's place. It may not have begun the round, and is told nothing. */
static inline bool trib_sum_is_filled(const sum_round *round, uint32_t contributor)
{
    return round->notified[contributor] == SUM_FILLED;
}

/* summation.c: true if the contributor has finished the live round before `round`, or the newest one if `round` is
 * NULL. A finished contributor has contributed in full, withdrawn, or heard of a refusal. */
bool trib_sum_is_through(const sum_key *key, const sum_round *round, uint32_t contributor);
/* summation.c: begins the round of a late contributor that comes first of all. */
TRIB_CHECKED trib_status trib_sum_begin_for_late(trib_summation *self, const trib_contribution *what,
                                                 sum_round **round_out);
/* A contribution is about to be checked. The first one says what the round is about, not a late contributor. */
void trib_sum_late_describe(trib_summation *self, sum_round *round, const trib_contribution *what);
/* Brings what late contributors lack of the chunks that others have brought. The caller holds the round, or it cannot
 * end. */
void trib_sum_fill_late(trib_summation *self, sum_round *round);
/* A contribution was dropped. If its contributor is late, it asks for that chunk's sum. */
TRIB_CHECKED trib_status trib_sum_late_came(trib_summation *self, const trib_contribution *what, trib_error *error);
/* The late contributor wants no more sums of the round. */
void trib_sum_late_withdraw(trib_summation *self, sum_round *round, uint32_t contributor);
bool trib_sum_late_has_asked(const trib_summation *self, const sum_round *round, uint32_t chunk, uint32_t contributor);
/* True while a late contributor has not asked for that chunk. */
bool trib_sum_late_is_awaited(const trib_summation *self, const sum_round *round, uint32_t chunk);

/* ---- Contributors and ranks ---- */

static inline uint32_t trib_sum_rank(const trib_summation *self, const trib_contribution *what, uint32_t contributor)
{
    if (self->config.rank_of != NULL) {
        return self->config.rank_of(self->config.user, what, contributor);
    }
    const uint32_t step = self->config.rank_step == 0 ? 1 : self->config.rank_step;
    return self->config.rank_first + contributor * step;
}

/* The contributor that stands for the root. Returns contributor_count if the root is elsewhere. */
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

/* Hands the complete sum to all receivers, and gives the summation's own reference back. */
void trib_sum_chunk_hand_out(trib_summation *self, sum_chunk *chunk);
/* A late contributor has asked for the chunk, and gets its sum if that is complete. */
void trib_sum_chunk_hand_late(trib_summation *self, sum_chunk *chunk, uint32_t contributor);
/* Gives the summation's reference back if no late contributor needs the chunk's sum any more. */
void trib_sum_chunk_close_late(trib_summation *self, sum_chunk *chunk);

/* The binary logarithm of the ratio between the sizes of an accumulator and of an element on the wire. */
uint8_t trib_sum_acc_width(const trib_contribution *what);
/* The operand that can be combined with this contribution at once, or NULL. */
const sum_node *trib_sum_partner(const trib_summation *self, const sum_chunk *chunk, uint32_t rank);
/* Adds a payload to the chunk, combines all ready operands, and hands out a finished sum. Takes over payload->block
 * and spare. payload->data is NULL if no payload travels. Data without a block was received in place and needs a
 * partner. */
void trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node payload,
                        sum_block *spare);
/* Gives back everything that the round holds and has not handed out. */
void trib_sum_round_clear(trib_summation *self, sum_round *round);
void trib_sum_buffer_unref(trib_summation *self, trib_sum_buffer *sum);

/* ---- sum_operand.c ---- */

/* The binary logarithm of the payload's size relative to the chunk's; and the payload's trib_form. */
uint8_t trib_sum_payload_width(const trib_summation *self, const trib_contribution *what);
uint8_t trib_sum_payload_form(const trib_summation *self);
/* Makes an operand of a payload, for which `block` was taken. The payload lies in the block, is copied there, or
 * stays under a lease while the block is reserved. `spare` is the block for its combination, or NULL. */
sum_node trib_sum_operand(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block,
                          const void *payload, const trib_lender *lender, const sum_block *spare);

/* ---- sum_partial.c: without partial_ready these change nothing ---- */

/* Takes a block for the payload of a root on another machine, if this contribution is the last. False: out of
 * memory. */
bool trib_sum_partial_take_block(trib_summation *self, const sum_round *round, const trib_contribution *what,
                                 sum_block **block);
void trib_sum_partial_give_out(trib_summation *self, sum_chunk *chunk, sum_block *block);
void trib_sum_partial_add_to_broadcast(trib_summation *self, sum_chunk *chunk, sum_block *block);
void trib_sum_partial_clear(trib_summation *self, sum_chunk *chunk);
/* Reports the refusals whose turn has come. Called after each refusal and completion of the round, which the caller
 * holds. */
void trib_sum_partial_report(trib_summation *self, sum_round *round);
bool trib_sum_partial_may_end(const trib_summation *self, const sum_round *round);

#endif
