/*
 * summation.h - the aggregator that sums, for the keys of one reactor (aggregator.h).
 *
 * Pure state and arithmetic: it knows nothing of connections or the wire. Its owner feeds it
 * checked-for-length contributions and gets sums and refusals back through the upcalls. All of it runs on one
 * reactor's thread.
 *
 * A key is (tensor, partition); it has rounds 1, 2, ...; a round of a key has chunk_count chunks, each summed for
 * itself. Usually at most two rounds of a key are alive: one whose sums are being sent, and the next one being summed.
 * A contributor goes on to round r + 1 only when it is through with round r: has contributed all of it, has withdrawn,
 * or has been refused. Anything else is a protocol violation of the contributor. Where keys move between servers
 * (may_jump) the rounds that are here have gaps. One that gives up waiting (a deadline) may thus run ahead of a late
 * one; two rounds wait for the late one, and workers hold further ones back (worker_held.c). So memory stays bounded; a
 * contributor that begins one too many all the same is refused with TRIB_BUSY.
 *
 * Upcalls: from inside sum_ready, refused and stalled the summation may be called again, except for destroy.
 *
 * Exactly once: (epoch, round, contributor) of a chunk counts once; a second one is refused with TRIB_PROTOCOL.
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
    uint32_t contributor_count; /* n: ranks 0..n-1 */
    uint32_t weight;            /* workers whose sum each contribution is, for AVG; 0: one */
    uint32_t chunk_bytes;       /* largest chunk on the wire */
    /* Page-aligned buffers; may return NULL (out of memory). */
    void *(*buffer_alloc)(void *user, size_t size);
    void (*buffer_free)(void *user, void *buffer, size_t size);
    /* A chunk's sum is complete: send it to `receiver`, then trib_summation_sent once. Called once per receiver,
     * holding one reference each. what describes the chunk (what->contributor == receiver). */
    void (*sum_ready)(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum);
    /* The round of this key is refused to `receiver`: tell it. Once per contributor that has shown up in the round. */
    void (*refused)(void *user, uint32_t receiver, const trib_contribution *what, trib_status status, const char *text);
    void *user;

    /* Where the contributors are not all the job's workers, each for itself: contributor i is rank rank_first, or
     * begins there and stands for rank_step ranks (0: 1); roots are below rank_limit (0: the number of
     * contributors). */
    uint32_t rank_first, rank_step, rank_limit;
    uint32_t receiver_last; /* one more than the contributor that is handed a sum after all others; 0: none */
    bool may_jump;          /* keys come and go: a round may be any number above those that were here before */
    /* Contributions are partial sums, in accumulator form, of trib_sum_partial_bytes. */
    bool takes_partials;
    /*
     * Not NULL: what is summed here is a partial sum. When a chunk's contributions are all in this is called instead of
     * sum_ready, once, with a reference for the caller's send: the partial sum is at sum->data in accumulator form
     * (broadcast: the root's payload, if the root is one of the contributors). The chunk then waits until what it is a
     * part of has been written over it and trib_summation_complete hands that out, or its round is refused.
     */
    void (*partial_ready)(void *user, const trib_contribution *what, trib_sum_buffer *sum);
    /* With partial_ready: the round is refused, but not by trib_summation_refuse. Once, and only when this has been
     * called for every older round of the key that was refused, and all others of them are complete. */
    void (*round_refused)(void *user, const trib_contribution *what, trib_status status, const char *text);
} trib_summation_config;

TRIB_CHECKED trib_status trib_summation_create(const trib_summation_config *config, trib_summation **out);
/* As an aggregator, and back. The ops answer as the functions below. */
trib_aggregator *trib_sum_aggregator(trib_summation *self);
trib_summation *trib_sum_aggregator_summation(trib_aggregator *aggregator);
/* Gives everything back; sums not yet sent are forgotten (their sent must not follow). NULL is fine. */
void trib_summation_destroy(trib_summation *self);

/*
 * A contribution with a payload announces itself: *buffer_out is where its size bytes shall land. TRIB_OK; TRIB_AGAIN:
 * no memory now (ask again later); TRIB_PROTOCOL with *error: the contributor broke the protocol (duplicate, impossible
 * round or chunk), disconnect it. A mere disagreement with the others is not an error here: the payload lands in a
 * scratch buffer, and `refused` follows on arrival. Between recv_target and arrived/abandoned the buffer is the
 * caller's to fill.
 */
TRIB_CHECKED trib_status trib_summation_recv_target(trib_summation *self, const trib_contribution *what,
                                                    void **buffer_out, trib_error *error);
/* The payload has landed in that buffer (or size is 0, or no payload travels: buffer NULL, no recv_target call before).
 * TRIB_NO_MEMORY, only with buffer NULL: nothing has changed, and it may be tried again. */
TRIB_CHECKED trib_status trib_summation_arrived(trib_summation *self, const trib_contribution *what, void *buffer,
                                                trib_error *error);
/* The connection ended before the payload was there. */
void trib_summation_abandon(trib_summation *self, void *buffer);
/* As arrived. payload: buffer, or where else the lender (NULL: none) presents it during this call: summed from there
 * if its partner is here, else leased if that can be had, else copied. */
TRIB_CHECKED trib_status trib_summation_presented(trib_summation *self, const trib_contribution *what, void *buffer,
                                                  const void *payload, const trib_lender *lender, trib_error *error);

/* A payload that was not asked about (in-process contributors), else as presented. Without a lender it is valid
 * during the call only. TRIB_NO_MEMORY: nothing has changed, and it may be tried again. */
TRIB_CHECKED trib_status trib_summation_arrived_in_place(trib_summation *self, const trib_contribution *what,
                                                         const void *payload, const trib_lender *lender,
                                                         trib_error *error);

/* One reference of a sum is given back: it was sent, or its receiver is gone. */
void trib_summation_sent(trib_summation *self, trib_sum_buffer *sum);

/* A contributor withdraws from a round of a key (cancelled, timed out): the round is refused with status and text to
 * all who are in it or come later; no-op if its contribution to every chunk is already in. */
TRIB_CHECKED trib_status trib_summation_withdraw(trib_summation *self, const trib_contribution *what,
                                                 trib_status status, const char *text);

/* Calls stalled for each incomplete round older than older_than_ns with the lowest rank that has not contributed and
 * how many are missing; at most limit calls; `receiver` runs over those who wait. The next call goes on where the
 * limit ended this one, else with the oldest round. */
void trib_summation_stalls(trib_summation *self, int64_t older_than_ns, uint32_t limit, trib_stalled *stalled);

/* Refuses with TRIB_PEER_LEFT each incomplete round older than older_than_ns that misses a contributor of whom
 * is_gone says that it will not come, and why it cannot in *text. */
void trib_summation_refuse_gone(trib_summation *self, int64_t older_than_ns, trib_is_gone *is_gone);

/* ---- Partial sums (partial_ready) ---- */

/* Bytes of a partial sum of that chunk. */
uint32_t trib_sum_partial_bytes(const trib_contribution *what);
/* The chunk whose partial sum is out and whose sum has not come; NULL: nobody waits for it (any more). */
trib_sum_buffer *trib_summation_awaited(const trib_summation *self, const trib_contribution *what);
/* Takes a reference, to be given back as after a send, and says what the chunk is about. */
void trib_summation_hold(trib_sum_buffer *sum, trib_contribution *what_out);
/* The sum has been written to what trib_summation_awaited named: hands it out. */
void trib_summation_complete(trib_summation *self, const trib_contribution *what);
/* The round is refused from above, to all who are in it or come later; no-op if nobody has begun it, or all its sums
 * are here. */
void trib_summation_refuse(trib_summation *self, const trib_contribution *what, trib_status status, const char *text);
/* As trib_summation_refuse, all rounds whose partial sums go to that owner. */
void trib_summation_refuse_owner(trib_summation *self, uint32_t owner, trib_status status, const char *text);
/* Whom the partial sums of that round go to; false: it is not there (any more). */
bool trib_summation_find_owner(const trib_summation *self, const trib_contribution *what, uint32_t *owner_out);
/* Has an older round of the key partial sums out? */
bool trib_summation_is_behind(const trib_summation *self, const trib_contribution *what);
/* Calls notify for each contributor that is in the round and has not been refused. */
void trib_summation_each_waiting(trib_summation *self, const trib_contribution *what, trib_waits *notify, void *user);

/* Nothing is being summed or sent. */
bool trib_summation_is_idle(const trib_summation *self);
/* Is there a round that this contributor is through with and others are not? One who leaves stays until there is none:
 * in a broadcast others may still have to ask for what it has long got. And that the workers disagree all are told, but
 * those of whom is_gone says that they have left: who comes last would else be told that this one has. */
bool trib_summation_owes(const trib_summation *self, uint32_t contributor, trib_is_gone *is_gone);
/* Bytes of contributions taken in, and of sums handed out. */
uint64_t trib_summation_bytes_in(const trib_summation *self);
uint64_t trib_summation_bytes_out(const trib_summation *self);

#endif
