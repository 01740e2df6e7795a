/* rebalance.c - see rebalance.h. */
#include "engine/membership/rebalance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/cluster/rate_estimator.h"
#include "engine/cluster/tensor_owners.h"

#define MOVING_MAX 32u   /* most tensors that are proposed to workers at the same time */
#define NEW_WEIGHT 0.005 /* smallest change of a share that is logged */

struct trib_rebalance_state {
    trib_rate_estimator *estimator;
    uint32_t reactors;                           /* reactors of each worker; all have the same number */
    uint32_t moving_count;                       /* tensors that are proposed and not decided */
    struct trib_registry_entry *next_to_propose; /* the first registry entry that may still have to be proposed */
    bool is_over;
    trib_place_member members[]; /* with the latest shares and rates */
};

bool trib_rebalance_is_possible(const trib_roster *roster)
{
    uint32_t summing = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        summing += roster->members[i].sums;
        if (i < roster->worker_count && roster->members[i].reactors != roster->members[0].reactors) {
            return false; /* a partition would have to change its core at some workers */
        }
    }
    return summing > 1 && roster->worker_count > 1 && roster->local_size == 0 &&
           roster->member_count <= TRIB_RATE_MEMBERS_MAX && !trib_roster_is_one_host(roster);
}

trib_status trib_rebalance_open(trib_coordinator *self, const trib_place_member *members)
{
    const uint32_t count = trib_coordinator_slots(self);
    trib_assert(self->rebalance == NULL && count <= TRIB_RATE_MEMBERS_MAX);
    trib_rebalance_state *rebalance = calloc(1, sizeof *rebalance + count * sizeof rebalance->members[0]);
    if (rebalance == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_status status = trib_rate_estimator_create(members, count, &rebalance->estimator);
    if (status != TRIB_OK) {
        free(rebalance);
        return status;
    }
    rebalance->reactors = self->roster->members[0].reactors;
    memcpy(rebalance->members, members, count * sizeof *members);
    for (uint32_t i = 0; i < count; i++) {
        self->slots[i].loads_buffer =
            trib_core_zalloc(self->core, trib_frame_payload_max(TRIB_FRAME_LOADS)); /* may be NULL */
    }
    self->rebalance = rebalance;
    return TRIB_OK;
}

void trib_rebalance_close(trib_coordinator *self)
{
    if (self->rebalance != NULL) {
        trib_rate_estimator_destroy(self->rebalance->estimator);
        free(self->rebalance);
        self->rebalance = NULL;
    }
}

/* ---- The move of one tensor ---- */

static uint64_t partition_size(const trib_registry_entry *entry, uint32_t partition)
{
    return trib_partitioning_size(entry->cut, partition);
}

static void send_to_all(trib_coordinator *self, const trib_registry_entry *entry, trib_frame frame, const void *payload,
                        size_t size)
{
    for (uint32_t i = 0; i < self->worker_count; i++) {
        trib_link *link = self->slots[i].link;
        if (link != NULL && !self->slots[i].left && entry->tags[i] < TRIB_TAG_RELEASED) {
            frame.tensor = entry->tags[i];
            trib_link_send_copy(link, frame, payload, size);
        }
    }
}

static void forget_move(trib_registry_entry *entry)
{
    free(entry->owners_next);
    free(entry->answered);
    entry->owners_next = NULL;
    entry->answered = NULL;
}

/* Returns false if there is no memory. The tensor stays with its owners then. */
static bool propose_move(trib_coordinator *self, trib_registry_entry *entry)
{
    const size_t size = trib_owners_size(entry->partition_count);
    trib_assert(entry->owners_next != NULL && entry->answered == NULL && self->rebalance->moving_count < MOVING_MAX);
    unsigned char *payload = malloc(size);
    entry->answered = calloc(self->worker_count, 1);
    if (payload == NULL || entry->answered == NULL) {
        free(payload);
        forget_move(entry);
        return false;
    }
    entry->answer_count = entry->first_round = 0;
    entry->not_now = false;
    trib_writer writer = {.data = payload, .capacity = size};
    trib_owners_put(&writer, entry->partition_bytes, entry->partition_count, entry->owners_next);
    trib_assert(!writer.overflow);
    self->rebalance->moving_count++;
    send_to_all(self, entry, (trib_frame){.type = TRIB_FRAME_MOVE}, payload, size);
    free(payload);
    return true;
}

static void propose_moves(trib_coordinator *self)
{
    trib_rebalance_state *rebalance = self->rebalance;
    while (rebalance->next_to_propose != NULL && rebalance->moving_count < MOVING_MAX && !rebalance->is_over) {
        trib_registry_entry *entry = rebalance->next_to_propose;
        rebalance->next_to_propose = entry->newer;
        if (entry->released_count > 0) {
            forget_move(entry);
        } else if (entry->owners_next != NULL) {
            (void)propose_move(self, entry);
        }
    }
    if (rebalance->moving_count == 0) {
        trib_rate_estimator_restart(rebalance->estimator);
    }
}

static void decide_move(trib_coordinator *self, trib_registry_entry *entry, uint32_t round)
{
    send_to_all(self, entry, (trib_frame){.type = TRIB_FRAME_MOVE_DECIDED, .round = round}, NULL, 0);
    if (round > 0) {
        trib_assert(entry->owners_next != NULL);
        free(entry->owners);
        entry->owners = entry->owners_next;
        entry->owners_next = NULL;
    }
    trib_assert(self->rebalance->moving_count > 0);
    forget_move(entry);
    self->rebalance->moving_count--;
}

/* The rank says from which round on it can; 0: not now. */
static void take_answer(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank, uint32_t round)
{
    trib_assert(entry->owners_next != NULL && entry->answered[rank] == 0 && self->rebalance->moving_count > 0);
    entry->answered[rank] = 1;
    trib_assert(entry->answer_count < self->worker_count);
    entry->answer_count++;
    entry->not_now = entry->not_now || round == 0;
    entry->first_round = round > entry->first_round ? round : entry->first_round;
    if (entry->answer_count == self->worker_count) {
        decide_move(self, entry, entry->not_now ? 0 : entry->first_round);
        propose_moves(self);
    }
}

trib_status trib_rebalance_take_ready(trib_coordinator *self, uint32_t rank, const trib_frame *frame, trib_error *error)
{
    trib_registry_entry *entry = self->tensors_first;
    if (self->rebalance == NULL || rank >= self->worker_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "MOVE_READY for what was not proposed");
    }
    if (self->rebalance->is_over) {
        return TRIB_OK; /* the move was called off, and the worker will be told */
    }
    while (entry != NULL && entry->id != frame->tensor) {
        entry = entry->newer;
    }
    if (entry == NULL || entry->answered == NULL || entry->answered[rank] != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "MOVE_READY for what was not proposed");
    }
    take_answer(self, entry, rank, frame->round);
    return TRIB_OK;
}

void trib_rebalance_released(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank)
{
    if (entry->answered != NULL && entry->answered[rank] == 0 && !self->rebalance->is_over) {
        take_answer(self, entry, rank, 0);
    }
}

void trib_rebalance_ended(trib_coordinator *self, const trib_registry_entry *entry)
{
    trib_assert(entry->answered == NULL || self->rebalance->is_over);
    if (self->rebalance != NULL && self->rebalance->next_to_propose == entry) {
        self->rebalance->next_to_propose = entry->newer;
    }
}

void trib_rebalance_stop(trib_coordinator *self)
{
    if (self->rebalance == NULL || self->rebalance->is_over) {
        return;
    }
    self->rebalance->is_over = true;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        if (entry->answered != NULL) {
            decide_move(self, entry, 0);
        } else {
            forget_move(entry);
        }
    }
    trib_assert(self->rebalance->moving_count == 0);
}

/* ---- A new deal of all tensors ---- */

/* Device tensors cannot move, because their tasks hold memory of one core. Tensors without bytes need no move. Slices
 * stay with the workers that they belong to, and a group's tensors where they are. */
static bool may_move(const trib_coordinator *self, const trib_registry_entry *entry)
{
    return entry->local_size == 0 && entry->quorum == 0 && entry->count > 0 && entry->layout == TRIB_WHOLE &&
           entry->group == NULL && !entry->bad && entry->is_known && entry->declared_count == self->worker_count &&
           entry->released_count == 0;
}

static void deal_entry(trib_coordinator *self, trib_dealer *dealer, trib_registry_entry *entry)
{
    trib_place_owner *owners = may_move(self, entry) ? calloc(entry->partition_count, sizeof *owners) : NULL;
    bool differs = false;
    if (entry->layout != TRIB_WHOLE || entry->cut == NULL) {
        free(owners);
        return;
    }
    trib_dealer_begin(dealer, entry->cut->bytes, entry->partition_bytes);
    for (uint32_t i = 0; i < entry->partition_count; i++) {
        const uint64_t size = partition_size(entry, i);
        if (owners == NULL) {
            trib_dealer_keep(dealer, size, entry->owners[i]);
            continue;
        }
        owners[i] = trib_dealer_next_like(dealer, size, entry->owners[i], self->rebalance->reactors);
        differs = differs || memcmp(&owners[i], &entry->owners[i], sizeof owners[i]) != 0;
    }
    if (differs) {
        trib_assert(entry->owners_next == NULL); /* the last move was decided */
        entry->owners_next = owners;
    } else {
        free(owners);
    }
}

bool trib_rebalance_deal(trib_coordinator *self, const double *weights)
{
    trib_rebalance_state *mine = self->rebalance;
    trib_dealer *dealer = NULL;
    if (mine == NULL || mine->is_over || mine->moving_count > 0 || mine->next_to_propose != NULL) {
        return false;
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        mine->members[i].weight = mine->members[i].can_sum ? weights[i] : 0;
    }
    if (trib_dealer_create(mine->members, trib_coordinator_slots(self), &dealer) != TRIB_OK) {
        return false;
    }
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        deal_entry(self, dealer, entry);
    }
    trib_dealer_destroy(self->dealer);
    self->dealer = dealer;
    mine->next_to_propose = self->tensors_first;
    propose_moves(self);
    return true;
}

/* ---- Reports of the members ---- */

/* Fills in each member's share of all bytes. Returns the number of bytes; 0: no tensor has been declared. */
static uint64_t count_weights(const trib_coordinator *self, trib_place_member *members)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        members[i].weight = 0;
    }
    for (const trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        for (uint32_t i = 0; entry->layout == TRIB_WHOLE && i < entry->partition_count; i++) {
            const uint64_t size = partition_size(entry, i);
            members[entry->owners[i].member].weight += (double)size;
            total += size;
        }
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && total > 0; i++) {
        members[i].weight /= (double)total;
    }
    return total;
}

static void log_weights(const trib_coordinator *self, const trib_place_member *members)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        trib_log(self->core->reactor->logger, TRIB_LOG_INFO,
                 "%s: link taken for %.0f Mbit/s, sums %.1f %% of the bytes", trib_roster_name(self->roster, i),
                 (double)members[i].bandwidth / 1e6, members[i].weight * 100);
    }
}

/* True if the shares differ from the last ones. They may be equal where a tensor cannot move. */
static bool are_new(const trib_coordinator *self, const trib_place_member *members)
{
    bool differ = false;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        const double more = members[i].weight - self->rebalance->members[i].weight;
        differ = differ || more > NEW_WEIGHT || more < -NEW_WEIGHT;
    }
    return differ;
}

static void decide_weights(trib_coordinator *self)
{
    trib_rebalance_state *rebalance = self->rebalance;
    trib_place_member members[TRIB_RATE_MEMBERS_MAX];
    double found[TRIB_RATE_MEMBERS_MAX];
    const uint32_t count = trib_coordinator_slots(self);
    memcpy(members, rebalance->members, count * sizeof *members);
    const uint64_t bytes = count_weights(self, members);
    if (bytes == 0 || !trib_rate_estimator_decide(rebalance->estimator, members, bytes)) {
        return;
    }
    if (are_new(self, members)) {
        log_weights(self, members);
    }
    for (uint32_t i = 0; i < count; i++) {
        found[i] = members[i].weight;
    }
    (void)trib_rebalance_deal(self, found);
}

trib_status trib_rebalance_take_loads(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                      const void *payload, trib_error *error)
{
    trib_rebalance_state *rebalance = self->rebalance;
    if (rebalance == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "LOADS in a job whose shares stay as they are");
    }
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    const uint32_t elapsed_us = trib_get_u32(&reader), unsettled = trib_get_u32(&reader), count = trib_get_u32(&reader);
    bool counts = !rebalance->is_over && rebalance->moving_count == 0 && !reader.failed;
    if (counts && unsettled > 0) {
        trib_rate_estimator_restart(rebalance->estimator); /* the last decision is not in effect everywhere yet */
        counts = false;
    }
    counts = counts && trib_rate_estimator_begin(rebalance->estimator, member, (int64_t)elapsed_us * 1000);
    for (uint32_t i = 0; i < count && !reader.failed; i++) {
        const uint32_t peer = trib_get_u16(&reader), busy_us = trib_get_u32(&reader);
        const uint64_t bytes = trib_get_u64(&reader);
        if (peer >= trib_coordinator_slots(self)) {
            return trib_error_set(error, TRIB_PROTOCOL, "LOADS about member %u, of %u", peer,
                                  trib_coordinator_slots(self));
        }
        if (counts && !reader.failed) {
            trib_rate_estimator_add(rebalance->estimator, member, peer, bytes, (int64_t)busy_us * 1000);
        }
    }
    const trib_status status = trib_get_end(&reader, "LOADS", error);
    if (status == TRIB_OK && counts && trib_rate_estimator_is_full(rebalance->estimator)) {
        decide_weights(self);
    }
    return status;
}
