/*
 * group_leader.c - the leader's books: the collectives for which local ranks are ready, and their order.
 *
 * Invariants
 *
 * - A collective is ordered once, when every rank has announced it, and never after its operation was called off.
 * - Gathers are ordered at once. Reductions are ordered by (priority, age) while fewer than `credit` bytes of them are
 *   in flight. The credit returns when the leader's own device is done, which depends on no other machine. So machines
 *   cannot deadlock, however different their orders are.
 * - A failed round is remembered. Its reason is kept until every rank is known to have come to the round, and for
 *   TRIB_LEADER_KEPT further rounds.
 * - A round that has not failed is never mistaken for a failed one, however far the cores of a rank are apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/local_group/group.h"
#include "engine/base/hash.h"

/* NOLINTBEGIN(clang-analyzer-*): the analyzer loses its way inside uthash */

typedef struct entry_key {
    uint32_t tensor, slice, round, kind;
} entry_key;

typedef struct entry {
    entry_key key;
    UT_hash_handle hh;
    uint64_t seen; /* one bit for each local rank that has announced it */
    uint32_t count;
    trib_announcement what;
    struct entry *next, *previous; /* neighbours in the queue for credit */
} entry;

#define LAG_MAX (1u << 20) /* most rounds between two cores of a rank for one tensor, all of which are in flight */
#define RUNS_LEAST 4u

/* A run of consecutive failed rounds. */
typedef struct round_run {
    uint32_t first, last;
} round_run;

typedef struct failed_round {
    uint32_t round;
    uint64_t seen;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
    struct failed_round *next;
} failed_round;

/* A tensor with failed rounds. */
typedef struct failed_tensor {
    uint32_t tensor;
    failed_round *rounds;
    round_run *runs; /* oldest first; the reasons are forgotten */
    uint32_t run_count, run_capacity;
    UT_hash_handle hh;
} failed_tensor;

struct trib_leader {
    uint32_t local_size;
    uint64_t credit, in_flight;
    trib_leader_upcalls upcalls;
    entry *entries;
    entry *head, *tail; /* reductions that wait for credit; `head` is the next one */
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

static uint64_t all_ranks(const trib_leader *leader)
{
    return leader->local_size == 64 ? UINT64_MAX : (UINT64_C(1) << leader->local_size) - 1;
}

static void add_to_queue(trib_leader *leader, entry *at)
{
    entry *before = leader->tail;
    while (before != NULL && before->what.priority < at->what.priority) {
        before = before->previous;
    }
    trib_assert(at->count == leader->local_size && (leader->head == NULL) == (leader->tail == NULL));
    at->previous = before;
    at->next = before == NULL ? leader->head : before->next;
    *(before == NULL ? &leader->head : &before->next) = at;
    *(at->next == NULL ? &leader->tail : &at->next->previous) = at;
}

static void remove_from_queue(trib_leader *leader, entry *at)
{
    trib_assert(leader->head != NULL && leader->tail != NULL);
    trib_assert(at->previous == NULL ? leader->head == at : at->previous->next == at);
    *(at->previous == NULL ? &leader->head : &at->previous->next) = at->next;
    *(at->next == NULL ? &leader->tail : &at->next->previous) = at->previous;
}

static bool waits_for_credit(const trib_leader *leader, const entry *at)
{
    return at->count == leader->local_size;
}

static void forget_entry(trib_leader *leader, entry *at)
{
    if (waits_for_credit(leader, at)) {
        remove_from_queue(leader, at);
    }
    HASH_DEL(leader->entries, at);
    free(at);
}

/* ---- Rounds that have failed ---- */

static failed_tensor *find_failed_tensor(trib_leader *leader, uint32_t tensor)
{
    failed_tensor *found = NULL;
    HASH_FIND(hh, leader->failed, &tensor, sizeof tensor, found);
    return found;
}

static failed_round *find_failed_round(const failed_tensor *tensor, uint32_t round)
{
    failed_round *at = tensor == NULL ? NULL : tensor->rounds;
    while (at != NULL && at->round != round) {
        at = at->next;
    }
    return at;
}

/* Returns the index of the first run that does not end before the round. */
static uint32_t find_run(const failed_tensor *tensor, uint32_t round)
{
    uint32_t low = 0, high = tensor->run_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (tensor->runs[middle].last < round) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool has_failed_long_ago(const failed_tensor *tensor, uint32_t round)
{
    const uint32_t at = find_run(tensor, round);
    return at < tensor->run_count && tensor->runs[at].first <= round;
}

static void drop_runs(failed_tensor *tensor, uint32_t from, uint32_t count)
{
    trib_assert(from + count <= tensor->run_count && tensor->run_count <= tensor->run_capacity);
    tensor->run_count -= count;
    memmove(tensor->runs + from, tensor->runs + from + count, (tensor->run_count - from) * sizeof *tensor->runs);
}

/* Makes room for another run. Runs of rounds that no rank can have in flight any more are dropped first. */
static bool make_room_for_run(failed_tensor *tensor, uint32_t round)
{
    if (tensor->run_count < tensor->run_capacity) {
        return true;
    }
    const uint32_t old = round < LAG_MAX ? 0 : find_run(tensor, round - LAG_MAX);
    if (old > 0) {
        drop_runs(tensor, 0, old);
        return true;
    }
    const uint32_t capacity = tensor->run_capacity == 0 ? RUNS_LEAST : tensor->run_capacity * 2;
    round_run *runs = realloc(tensor->runs, capacity * sizeof *runs);
    if (runs != NULL) {
        tensor->runs = runs;
        tensor->run_capacity = capacity;
    }
    return runs != NULL;
}

/* Remembers without the reason that the round has failed. Returns false if there is no memory. */
static bool remember_failed(failed_tensor *tensor, uint32_t round)
{
    trib_assert(!has_failed_long_ago(tensor, round)); /* a round goes from `rounds` to `runs` once */
    if (!make_room_for_run(tensor, round)) {
        return false;
    }
    const uint32_t at = find_run(tensor, round);
    round_run *before = at > 0 ? &tensor->runs[at - 1] : NULL;
    round_run *behind = at < tensor->run_count ? &tensor->runs[at] : NULL;
    const bool follows = before != NULL && before->last + 1 == round;
    const bool is_followed = behind != NULL && behind->first == round + 1;
    if (follows && is_followed) {
        before->last = behind->last;
        drop_runs(tensor, at, 1);
    } else if (follows) {
        before->last = round;
    } else if (is_followed) {
        behind->first = round;
    } else {
        memmove(tensor->runs + at + 1, tensor->runs + at, (tensor->run_count - at) * sizeof *tensor->runs);
        tensor->runs[at] = (round_run){.first = round, .last = round};
        tensor->run_count++;
    }
    return true;
}

/* Notes that a rank has come to a round, so it has also come to all failed rounds before it. */
static void note_progress(trib_leader *leader, failed_tensor *tensor, uint32_t rank, uint32_t round)
{
    for (failed_round **at = &tensor->rounds; *at != NULL;) {
        failed_round *failed = *at;
        failed->seen |= failed->round <= round ? UINT64_C(1) << rank : 0;
        const bool is_old = failed->seen == all_ranks(leader) && failed->round + TRIB_LEADER_KEPT <= round;
        if (is_old && remember_failed(tensor, failed->round)) {
            *at = failed->next;
            free(failed);
        } else {
            at = &failed->next;
        }
    }
}

static failed_round *make_failed_round(trib_leader *leader, uint32_t tensor, uint32_t round, trib_status status,
                                       const char *text)
{
    failed_tensor *of = find_failed_tensor(leader, tensor);
    failed_round *made = calloc(1, sizeof *made);
    trib_assert(find_failed_round(of, round) == NULL);
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
    trib_assert(rank < leader->local_size);
    failed_tensor *of = find_failed_tensor(leader, tensor);
    failed_round *failed = find_failed_round(of, round);
    if (of != NULL && failed == NULL && has_failed_long_ago(of, round)) {
        return TRIB_OK;
    }
    const bool first = failed == NULL;
    if (first) {
        failed = make_failed_round(leader, tensor, round, status, text);
        if (failed == NULL) {
            return TRIB_NO_MEMORY;
        }
    }
    trib_assert(failed->round == round && failed->status != TRIB_OK);
    failed->seen |= UINT64_C(1) << rank;
    uint64_t seen = 0;
    entry *at, *next;
    for (at = leader->entries; first && at != NULL; at = next) {
        next = at->hh.next;
        if (at->key.tensor == tensor && at->key.round == round) {
            seen |= at->seen;
            forget_entry(leader, at);
        }
    }
    failed->seen |= seen;
    for (uint32_t i = 0; i < leader->local_size; i++) {
        if (seen >> i & 1) {
            leader->upcalls.called_off(leader->upcalls.user, i, tensor, round, status, text);
        }
    }
    return TRIB_OK;
}

trib_status trib_leader_fail_all(trib_leader *leader, uint32_t rank, trib_status status, const char *text)
{
    while (leader->entries != NULL) {
        const entry_key key = leader->entries->key; /* a copy, because failing the round frees all of its entries */
        trib_status failed = trib_leader_fail(leader, rank, key.tensor, key.round, status, text);
        if (failed != TRIB_OK) {
            return failed;
        }
    }
    return TRIB_OK;
}

void trib_leader_tell_failed(trib_leader *leader, uint32_t rank)
{
    const uint64_t bit = UINT64_C(1) << rank;
    for (failed_tensor *tensor = leader->failed; tensor != NULL; tensor = tensor->hh.next) {
        for (failed_round *at = tensor->rounds; at != NULL; at = at->next) {
            if ((at->seen & bit) == 0) {
                at->seen |= bit;
                leader->upcalls.called_off(leader->upcalls.user, rank, tensor->tensor, at->round, at->status, at->text);
            }
        }
    }
}

/* ---- Announcements ---- */

static entry *find_entry(trib_leader *leader, const trib_announcement *what, trib_announcement_kind kind)
{
    const entry_key key = {what->tensor, what->slice, what->round, (uint32_t)kind};
    entry *found = NULL;
    HASH_FIND(hh, leader->entries, &key, sizeof key, found);
    return found;
}

static bool is_alike(const trib_announcement *one, const trib_announcement *other)
{
    return one->variant == other->variant && one->step == other->step;
}

/* True if the announcement has the variant and the step of the entry. A rank that sums and a rank that broadcasts begin
 * with different kinds of collectives, so the entry of the other kind is compared, too. */
static bool agrees_with_entry(trib_leader *leader, const entry *at, const trib_announcement *what)
{
    const trib_announcement_kind other_kind =
        what->kind == TRIB_ANNOUNCE_GATHER ? TRIB_ANNOUNCE_REDUCE : TRIB_ANNOUNCE_GATHER;
    const entry *other = find_entry(leader, what, other_kind);
    return is_alike(&at->what, what) && (other == NULL || is_alike(&other->what, what));
}

static entry *find_or_make_entry(trib_leader *leader, const trib_announcement *what)
{
    entry *at = find_entry(leader, what, what->kind);
    if (at == NULL) {
        const entry_key key = {what->tensor, what->slice, what->round, (uint32_t)what->kind};
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
    failed_tensor *of = leader->failed == NULL ? NULL : find_failed_tensor(leader, what->tensor);
    if (of != NULL) {
        const failed_round *failed = find_failed_round(of, what->round);
        if (failed != NULL) {
            leader->upcalls.called_off(leader->upcalls.user, rank, what->tensor, what->round, failed->status,
                                       failed->text);
        }
        const bool over = failed != NULL || has_failed_long_ago(of, what->round);
        if (failed == NULL && over) {
            /* The announcement was on its way when another slice was called off, so it needs an answer as well. */
            leader->upcalls.called_off(leader->upcalls.user, rank, what->tensor, what->round, TRIB_CANCELLED,
                                       "the operation has failed on another local rank");
        }
        note_progress(leader, of, rank, what->round);
        if (over) {
            return TRIB_OK;
        }
    }
    entry *at = find_or_make_entry(leader, what);
    if (at == NULL) {
        return TRIB_NO_MEMORY;
    }
    if (at->seen >> rank & 1) {
        return TRIB_PROTOCOL;
    }
    at->seen |= UINT64_C(1) << rank;
    if (!agrees_with_entry(leader, at, what)) {
        return trib_leader_fail(leader, rank, what->tensor, what->round, TRIB_MISMATCH,
                                "the machine's local ranks disagree about the operation: not the same reduction or "
                                "step, a broadcast from another root, or a sum and a broadcast");
    }
    if (rank == 0) {
        at->what.bytes = what->bytes; /* the credit is counted in the leader's own bytes */
    }
    trib_assert(at->count < leader->local_size && __builtin_popcountll(at->seen) == (int)at->count + 1);
    if (++at->count < leader->local_size) {
        return TRIB_OK;
    }
    if (what->kind == TRIB_ANNOUNCE_REDUCE) {
        add_to_queue(leader, at);
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
        trib_assert(waits_for_credit(leader, at));
        trib_announcement ordered = at->what;
        forget_entry(leader, at);
        leader->in_flight += ordered.bytes;
        leader->upcalls.order(leader->upcalls.user, &ordered);
    }
}

void trib_leader_reduced(trib_leader *leader, uint32_t bytes)
{
    trib_assert(leader->in_flight >= bytes);
    leader->in_flight -= bytes;
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
        free(tensor->runs);
        free(tensor);
    }
    free(leader);
}

/* NOLINTEND(clang-analyzer-*) */
