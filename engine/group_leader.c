/*
 * group_leader.c - which collectives all local ranks are ready for, and their order.
 *
 * Invariants
 * - A collective is ordered once, when every rank has announced it, and never after its operation was called off.
 * - Gathers are ordered at once; reductions by (priority, age) while fewer than `credit` bytes of them are under way. The
 *   credit comes back when the leader's own device is through, which waits for no other machine: no deadlock across
 *   machines, however different their orders.
 * - A failed round is remembered until every rank is known to be through with it, and why it failed for some rounds more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assert.h"
#include "engine/group.h"
#include "engine/hash.h"

/* NOLINTBEGIN(clang-analyzer-*): the analyzer loses its way inside uthash */

typedef struct entry_key {
    uint32_t tensor, slice, round, kind;
} entry_key;

typedef struct entry {
    entry_key key;
    UT_hash_handle hh;
    uint64_t seen; /* bit: local rank */
    uint32_t count;
    trib_announcement what;
    struct entry *next, *previous; /* among those that wait for credit */
} entry;

/* A process goes from round to round on each of its cores by itself: one may still announce slices of a round that has failed
 * when another is in later ones, and is to hear why it failed. Of rounds longer ago than so many it hears only that. */
#define FAILED_KEPT 8u

typedef struct failed_round {
    uint32_t round;
    uint64_t seen;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
    struct failed_round *next;
} failed_round;

/* Made when an operation on it fails for the first time. */
typedef struct failed_tensor {
    uint32_t tensor;
    uint32_t through; /* failed rounds up to here that are forgotten: what still comes for them is called off as well */
    failed_round *rounds;
    UT_hash_handle hh;
} failed_tensor;

struct trib_leader {
    uint32_t local_size;
    uint64_t credit, in_flight;
    trib_leader_upcalls upcalls;
    entry *entries;
    entry *head, *tail; /* reductions that wait for credit, first to go first */
    failed_tensor *failed;
};

trib_leader *trib_leader_create(uint32_t local_size, uint64_t credit_bytes, const trib_leader_upcalls *upcalls)
{
    trib_assert(local_size >= 1 && local_size <= TRIB_LOCAL_SIZE_MAX);
    trib_leader *leader = calloc(1, sizeof *leader);
    if (leader != NULL) {
        leader->local_size = local_size;
        leader->credit = credit_bytes;
        leader->upcalls = *upcalls;
    }
    return leader;
}

static uint64_t everyone(const trib_leader *leader)
{
    return leader->local_size == 64 ? UINT64_MAX : (UINT64_C(1) << leader->local_size) - 1;
}

static void queue_add(trib_leader *leader, entry *at)
{
    entry *before = leader->tail;
    while (before != NULL && before->what.priority < at->what.priority) {
        before = before->previous;
    }
    at->previous = before;
    at->next = before == NULL ? leader->head : before->next;
    *(before == NULL ? &leader->head : &before->next) = at;
    *(at->next == NULL ? &leader->tail : &at->next->previous) = at;
}

static void queue_remove(trib_leader *leader, entry *at)
{
    *(at->previous == NULL ? &leader->head : &at->previous->next) = at->next;
    *(at->next == NULL ? &leader->tail : &at->next->previous) = at->previous;
}

static bool waits_for_credit(const trib_leader *leader, const entry *at)
{
    return at->count == leader->local_size;
}

static void forget(trib_leader *leader, entry *at)
{
    if (waits_for_credit(leader, at)) {
        queue_remove(leader, at);
    }
    HASH_DEL(leader->entries, at);
    free(at);
}

/* ---- Rounds that have failed ---- */

static failed_tensor *failed_of(trib_leader *leader, uint32_t tensor)
{
    failed_tensor *found = NULL;
    HASH_FIND(hh, leader->failed, &tensor, sizeof tensor, found);
    return found;
}

static failed_round *find_failed(const failed_tensor *tensor, uint32_t round)
{
    failed_round *at = tensor == NULL ? NULL : tensor->rounds;
    while (at != NULL && at->round != round) {
        at = at->next;
    }
    return at;
}

/* The rank has shown up in that round: it is through with those long before it. */
static void note_progress(trib_leader *leader, failed_tensor *tensor, uint32_t rank, uint32_t round)
{
    for (failed_round **at = &tensor->rounds; *at != NULL;) {
        failed_round *failed = *at;
        failed->seen |= failed->round <= round ? UINT64_C(1) << rank : 0;
        if (failed->seen == everyone(leader) && failed->round + FAILED_KEPT <= round) {
            tensor->through = failed->round > tensor->through ? failed->round : tensor->through;
            *at = failed->next;
            free(failed);
        } else {
            at = &failed->next;
        }
    }
}

static failed_round *make_failed(trib_leader *leader, uint32_t tensor, uint32_t round, trib_status status,
                                 const char *text)
{
    failed_tensor *of = failed_of(leader, tensor);
    failed_round *made = calloc(1, sizeof *made);
    if (of == NULL && made != NULL) {
        of = calloc(1, sizeof *of);
        if (of != NULL) {
            of->tensor = tensor;
            HASH_ADD(hh, leader->failed, tensor, sizeof of->tensor, of);
        }
        if (of != NULL && of->hh.tbl == NULL) {
            free(of);
            of = NULL;
        }
    }
    if (of == NULL || made == NULL) {
        free(made);
        return NULL;
    }
    made->round = round;
    made->status = status;
    snprintf(made->text, sizeof made->text, "%s", text);
    made->next = of->rounds;
    of->rounds = made;
    return made;
}

trib_status trib_leader_fail(trib_leader *leader, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                             const char *text)
{
    failed_tensor *of = failed_of(leader, tensor);
    failed_round *failed = find_failed(of, round);
    if (of != NULL && failed == NULL && round <= of->through) {
        return TRIB_OK;
    }
    const bool first = failed == NULL;
    if (first) {
        failed = make_failed(leader, tensor, round, status, text);
        if (failed == NULL) {
            return TRIB_NO_MEMORY;
        }
    }
    failed->seen |= UINT64_C(1) << rank;
    uint64_t told = 0;
    entry *at, *next;
    for (at = leader->entries; first && at != NULL; at = next) {
        next = at->hh.next;
        if (at->key.tensor == tensor && at->key.round == round) {
            told |= at->seen;
            forget(leader, at);
        }
    }
    failed->seen |= told;
    for (uint32_t i = 0; i < leader->local_size; i++) {
        if (told >> i & 1) {
            leader->upcalls.called_off(leader->upcalls.user, i, tensor, round, status, text);
        }
    }
    return TRIB_OK;
}

trib_status trib_leader_fail_all(trib_leader *leader, uint32_t rank, trib_status status, const char *text)
{
    while (leader->entries != NULL) {
        const entry_key key = leader->entries->key; /* it goes, with all others of its round */
        trib_status failed = trib_leader_fail(leader, rank, key.tensor, key.round, status, text);
        if (failed != TRIB_OK) {
            return failed;
        }
    }
    return TRIB_OK;
}

/* ---- Announcements ---- */

static entry *find_or_make(trib_leader *leader, const trib_announcement *what)
{
    const entry_key key = {what->tensor, what->slice, what->round, (uint32_t)what->kind};
    entry *at = NULL;
    HASH_FIND(hh, leader->entries, &key, sizeof key, at);
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at != NULL) {
            at->key = key;
            at->what = *what;
            HASH_ADD(hh, leader->entries, key, sizeof at->key, at);
        }
        if (at != NULL && at->hh.tbl == NULL) {
            free(at);
            at = NULL;
        }
    }
    return at;
}

trib_status trib_leader_ready(trib_leader *leader, uint32_t rank, const trib_announcement *what)
{
    trib_assert(rank < leader->local_size);
    failed_tensor *of = leader->failed == NULL ? NULL : failed_of(leader, what->tensor);
    if (of != NULL) {
        const failed_round *failed = find_failed(of, what->round);
        if (failed != NULL) {
            leader->upcalls.called_off(leader->upcalls.user, rank, what->tensor, what->round, failed->status,
                                       failed->text);
        }
        const bool over = failed != NULL || what->round <= of->through;
        if (failed == NULL && over) {
            /* Another of its slices was called off, and this one was on its way: it waits for an answer like any. */
            leader->upcalls.called_off(leader->upcalls.user, rank, what->tensor, what->round, TRIB_CANCELLED,
                                       "the operation has failed on another local rank");
        }
        note_progress(leader, of, rank, what->round);
        if (over) {
            return TRIB_OK;
        }
    }
    entry *at = find_or_make(leader, what);
    if (at == NULL) {
        return TRIB_NO_MEMORY;
    }
    if (at->seen >> rank & 1) {
        return TRIB_PROTOCOL;
    }
    at->seen |= UINT64_C(1) << rank;
    at->what.steady = at->what.steady && what->steady;
    if (at->what.variant != what->variant) {
        return trib_leader_fail(leader, rank, what->tensor, what->round, TRIB_MISMATCH,
                                "the machine's local ranks disagree about the operation: not the same reduction, or a "
                                "broadcast from another root");
    }
    if (rank == 0) {
        at->what.bytes = what->bytes; /* the leader's device gives the credit back: what others say does not count */
    }
    if (++at->count < leader->local_size) {
        return TRIB_OK;
    }
    if (what->kind == TRIB_COLLECTIVE_REDUCE) {
        queue_add(leader, at);
        return TRIB_OK;
    }
    trib_announcement ordered = at->what;
    HASH_DEL(leader->entries, at);
    free(at);
    leader->upcalls.order(leader->upcalls.user, &ordered);
    return TRIB_OK;
}

void trib_leader_pump(trib_leader *leader)
{
    while (leader->head != NULL && leader->in_flight < leader->credit) {
        entry *at = leader->head;
        trib_announcement ordered = at->what;
        forget(leader, at);
        leader->in_flight += ordered.bytes;
        leader->upcalls.order(leader->upcalls.user, &ordered);
    }
}

void trib_leader_reduced(trib_leader *leader, uint32_t bytes)
{
    trib_assert(leader->in_flight >= bytes);
    leader->in_flight -= bytes;
}

void trib_leader_passed(trib_leader *leader, const trib_announcement *what)
{
    leader->in_flight += what->bytes;
    failed_tensor *of = leader->failed == NULL ? NULL : failed_of(leader, what->tensor);
    for (uint32_t i = 0; of != NULL && i < leader->local_size; i++) {
        note_progress(leader, of, i, what->round);
    }
}

uint32_t trib_leader_waiting(const trib_leader *leader)
{
    return HASH_COUNT(leader->entries);
}

uint64_t trib_leader_in_flight(const trib_leader *leader)
{
    return leader->in_flight;
}

void trib_leader_free(trib_leader *leader)
{
    if (leader == NULL) {
        return;
    }
    entry *at, *next;
    HASH_ITER(hh, leader->entries, at, next)
    {
        HASH_DEL(leader->entries, at);
        free(at);
    }
    failed_tensor *tensor, *tensor_next;
    HASH_ITER(hh, leader->failed, tensor, tensor_next)
    {
        HASH_DEL(leader->failed, tensor);
        for (failed_round *round = tensor->rounds; round != NULL;) {
            failed_round *round_next = round->next;
            free(round);
            round = round_next;
        }
        free(tensor);
    }
    free(leader);
}

/* NOLINTEND(clang-analyzer-*) */
