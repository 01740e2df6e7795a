/*
 * summation.h - the aggregator that sums the keys of one reactor (aggregator.h).
 *
 * The summation is pure state and arithmetic, and knows nothing of connections or the wire. The server checks the
 * lengths of contributions, passes them in, and receives sums and refusals through the upcalls. All calls run on the
 * reactor's thread. The owner of a partial sum is the member that sums it with those of other machines.
 *
 * A key is a pair (tensor, partition), with rounds 1, 2 and so on. A round has chunk_count chunks, each summed
 * separately. Usually at most two rounds of a key are live: one whose sums are being sent, and the next one being
 * summed.
 *
 * A contributor goes on to round r + 1 only after it has finished round r: it has contributed in full, withdrawn, or
 * been refused. Any other contribution violates the protocol. Round numbers have gaps where keys move between servers
 * (may_jump).
 *
 * A contributor that gives up waiting at a deadline can run ahead of a late one. Two such rounds of a key may wait for
 * the late one, and workers hold further ones back (worker_held.c). So memory stays bounded. A contributor that begins
 * one too many all the same is refused with TRIB_BUSY.
 *
 * The upcalls sum_ready, refused and stalled may call the summation again, but not destroy it.
 *
 * Each contributor counts once in each chunk of a round and epoch. A second contribution is rejected with
 * TRIB_PROTOCOL.
 */
#ifndef TRIB_ENGINE_SUMMATION_H
#define TRIB_ENGINE_SUMMATION_H

#include "engine/aggregate/aggregator.h"
#include "engine/base/kernel_ops.h"
#include "engine/reactor/reactor.h"

typedef struct trib_summation trib_summation;

typedef struct trib_summation_config {
    trib_reactor *reactor;
    const trib_kernels *kernels;
    trib_sum_order order;
    uint32_t contributor_count; /* n; contributors are numbered 0..n-1 */
    uint32_t weight;            /* for AVG: workers that each contribution sums; 0 means one */
    uint32_t chunk_bytes;       /* bytes of the largest chunk in a tensor */
    /* Allocates a page-aligned buffer. Returns NULL when out of memory. */
    void *(*buffer_alloc)(void *user, size_t size);
    void (*buffer_free)(void *user, void *buffer, size_t size);
    /* A chunk's sum is complete. The server sends it to `receiver` and then calls trib_summation_sent once. Called
     * once for each receiver, with one reference each. `what` describes the chunk, and what->contributor is the
     * receiver. */
    void (*sum_ready)(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum);
    /* The round is refused, and the server tells `receiver`. Called once for each contributor that has shown up in
     * the round. */
    void (*refused)(void *user, uint32_t receiver, const trib_contribution *what, trib_status status, const char *text);
    /* Encodes the sum of a chunk that was encoded itself, in place, and sets sum->size and sum->codec; or leaves it as
     * it is. NULL: no chunk is encoded. */
    void (*encode)(void *user, const trib_contribution *what, trib_sum_buffer *sum);
    void *user;

    /* For contributors that are not simply all workers of the job: contributor i stands for rank_step ranks (0 means
     * 1), from rank_first + i * rank_step on. Roots are below rank_limit (0 means the number of contributors). */
    uint32_t rank_first, rank_step, rank_limit;
    /* The rank of a contributor whose ranks have no such pattern, for texts; roots are contributors then. NULL: they
     * have it. */
    uint32_t (*rank_of)(void *user, const trib_contribution *what, uint32_t contributor);
    uint32_t receiver_last; /* the contributor that is served last, plus one; 0 means none */
    bool may_jump;          /* keys move between servers, so a round may be any number above the earlier ones */
    bool fills_absent;      /* an all-reduce goes on without contributors that are absent (trib_summation_fill) */
    /* Contributions are partial sums in accumulator form, of trib_sum_partial_bytes bytes each. `refused` answers each
     * one that is dropped, too. */
    bool takes_partials;
    /*
     * If set, the sums here are partial sums of a larger sum. The upcall then replaces sum_ready, once per chunk whose
     * contributions have all arrived. The server gets one reference, for its send to the owner. sum->data has the
     * partial sum in accumulator form; in a broadcast, the root's payload, if the root is a contributor. The chunk then
     * waits until the finished sum has been written over it and trib_summation_complete hands it out, or until its
     * round is refused.
     */
    void (*partial_ready)(void *user, const trib_contribution *what, trib_sum_buffer *sum);
    /* Used with partial_ready: the round is refused, except by trib_summation_refuse. Called once per round, after
     * every older round of the key is complete or has been reported here. */
    void (*round_refused)(void *user, const trib_contribution *what, trib_status status, const char *text);
} trib_summation_config;

TRIB_CHECKED trib_status trib_summation_create(const trib_summation_config *config, trib_summation **out);
/* The summation as an aggregator, and the way back. Its ops behave as the functions below. */
trib_aggregator *trib_sum_aggregator(trib_summation *self);
trib_summation *trib_sum_aggregator_summation(trib_aggregator *aggregator);
/* Frees everything. Unsent sums are dropped, and trib_summation_sent must not follow for them. NULL is fine. */
void trib_summation_destroy(trib_summation *self);

/*
 * Answers in *buffer_out where the payload of a contribution shall land. Until arrived or abandon, the caller may fill
 * the buffer.
 *
 * - TRIB_AGAIN: there is no memory now, and the caller asks again later.
 * - TRIB_PROTOCOL with *error: a duplicate, or an impossible round or chunk; the caller disconnects the contributor.
 *
 * A disagreement with other contributors is no error here: the payload lands in a scratch buffer, and `refused` follows
 * on arrival.
 */
TRIB_CHECKED trib_status trib_summation_recv_target(trib_summation *self, const trib_contribution *what,
                                                    void **buffer_out, trib_error *error);
/* A contribution has arrived. recv_target was not called for one without a buffer: it has no payload, or one that is
 * lent. A payload outside the buffer is summed where it lies if its partner has arrived, else leased if possible, else
 * copied. TRIB_NO_MEMORY is possible only without a buffer. Nothing has changed then, and the caller may try again. */
TRIB_CHECKED trib_status trib_summation_arrived(trib_summation *self, const trib_contribution *what,
                                                const trib_arrived *arrived, trib_error *error);
/* Called instead of arrived when the connection ended before the payload was complete. */
void trib_summation_abandon(trib_summation *self, void *buffer);

/* As trib_aggregator_ops.sum_at. What was added there arrives in place, with that place as its payload. */
TRIB_CHECKED trib_status trib_summation_sum_at(trib_summation *self, const trib_contribution *what, void **sum_out,
                                               trib_error *error);

/* Gives back one reference of a sum, after it was sent or its receiver is gone. */
void trib_summation_sent(trib_summation *self, trib_sum_buffer *sum);

/* A contributor withdraws from a round because it was cancelled or timed out. The round is refused to all
 * contributors, present or late. No effect if its contribution to every chunk has arrived. */
TRIB_CHECKED trib_status trib_summation_withdraw(trib_summation *self, const trib_contribution *what,
                                                 trib_status status, const char *text);

/* Calls `stalled` for the receivers that wait for incomplete rounds older than `older_than_ns`. It names the lowest
 * missing contributor and the number of missing ones. After `limit` calls it stops, and the next scan continues
 * there; otherwise scans begin with the oldest round. */
void trib_summation_stalls(trib_summation *self, int64_t older_than_ns, uint32_t limit, trib_stalled *stalled);

/* Refuses with TRIB_PEER_LEFT each incomplete round that misses a contributor for which is_gone returns true.
 * The refusal has the text of is_gone. */
void trib_summation_refuse_gone(trib_summation *self, trib_is_gone *is_gone);

/* ---- A quorum (sum_quorum.c) ---- */

/* A round that lacks contributions, with the number of contributors that have begun it, and of older rounds of its key
 * that are live. */
typedef void trib_open_round(void *user, const trib_contribution *what, uint32_t begun, uint32_t older,
                             int64_t began_ns);

/* Calls notify for each all-reduce whose set of contributors is not decided. It may not call the summation. */
void trib_summation_each_open(trib_summation *self, trib_open_round *notify, void *user);
/* True if the contributor has begun the round of that key, or may not any more. */
bool trib_summation_has_begun(const trib_summation *self, const trib_contribution *what);
/* Sets the bits of contributors that have begun the round in some key of the tensor; of all, once it is decided. */
void trib_summation_note_begun(trib_summation *self, uint32_t tensor, uint32_t round, unsigned char *begun);
/* The round of the tensor goes on without the contributors whose bits are not set. Has no effect on keys that have not
 * come to the round, and the second time. *keys_out is the number of keys that have come to it. If memory runs out for
 * the record of who is late, the round is refused. TRIB_PROTOCOL: some of them has begun it. */
TRIB_CHECKED trib_status trib_summation_exclude(trib_summation *self, uint32_t tensor, uint32_t round,
                                                const unsigned char *set, uint32_t *keys_out);
/* Begins the round of that key for a contributor that is not in the set, and comes first of all. No effect if it is not
 * the contributor's turn. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_summation_begin_late(trib_summation *self, const trib_contribution *what,
                                                   const unsigned char *set);
/* Neutral elements for which there was no memory are brought now. */
void trib_summation_fill_late(trib_summation *self);

/* Lets absent contributors bring neutral elements, as trib_aggregator_ops.fill says (sum_absent.c). */
void trib_summation_fill(trib_summation *self, const trib_contribution *what, trib_is_gone *is_absent);

/* The key's tensor has ended with what->round: gives up its rounds that lack contributions, and tells nobody. The key's
 * memory goes when its last sum has been sent. Later contributions to those rounds have them below their round_base. */
void trib_summation_forget(trib_summation *self, const trib_contribution *what);

/* Rounds up to what->round of the key were summed elsewhere, and are over. Fails with TRIB_NO_MEMORY only. */
TRIB_CHECKED trib_status trib_summation_take_over(trib_summation *self, const trib_contribution *what);

/* ---- Partial sums (partial_ready) ---- */

/* The bytes of that chunk's partial sum. */
uint32_t trib_sum_partial_bytes(const trib_contribution *what);
/* The buffer of a chunk whose partial sum is out and whose sum has not arrived. NULL if nothing waits for it any
 * more. */
trib_sum_buffer *trib_summation_awaited(const trib_summation *self, const trib_contribution *what);
/* Takes a reference, which trib_summation_sent gives back, and describes the chunk. */
void trib_summation_hold(trib_sum_buffer *sum, trib_contribution *what_out);
/* Hands the sum out, after the caller has written it to the buffer of trib_summation_awaited. */
void trib_summation_complete(trib_summation *self, const trib_contribution *what);
/* The owner refuses the round to all contributors, present or late. No effect if no contribution has begun the
 * round, or all its sums have arrived. */
void trib_summation_refuse(trib_summation *self, const trib_contribution *what, trib_status status, const char *text);
/* Refuses all rounds whose partial sums go to that owner, as trib_summation_refuse does. */
void trib_summation_refuse_owner(trib_summation *self, uint32_t owner, trib_status status, const char *text);
/* The owner that gets the partial sums of the round. False if the round is not live. */
bool trib_summation_find_owner(const trib_summation *self, const trib_contribution *what, uint32_t *owner_out);
/* True if the key has an older live round than this one. */
bool trib_summation_is_behind(const trib_summation *self, const trib_contribution *what);
/* Calls notify for each contributor that is in the round and has not been refused. */
void trib_summation_each_waiting(trib_summation *self, const trib_contribution *what, trib_waits *notify, void *user);

/* True if nothing is being summed or sent. */
bool trib_summation_is_idle(const trib_summation *self);
/* True if this contributor has finished a round that others have not. A member that leaves stays until this is
 * false: in a broadcast, others may still have to ask for its payload. A disagreement of the workers also counts
 * until all have heard of it, except those for which is_gone returns true. Otherwise a late contributor would hear
 * of the departure instead. */
bool trib_summation_owes(const trib_summation *self, uint32_t contributor, trib_is_gone *is_gone);
/* Keys that have not been forgotten, or of which something is being sent. */
uint32_t trib_summation_keys(const trib_summation *self);

#endif
