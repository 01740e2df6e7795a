/* waits.c - see waits.h. */
#include "engine/membership/waits.h"

#include <stdio.h>
#include <string.h>

#include "engine/worker/op.h"

#define NAME_MAX_SHOWN 80 /* bytes of a tensor's name, so that all else fits into the text */

static trib_registry_entry *entry_of(const trib_coordinator *self, uint32_t rank)
{
    const trib_coordinator_slot *slot = &self->slots[rank];
    return slot->wait.is_told ? trib_slot_entry(slot, slot->wait.tag) : NULL;
}

/* ---- Workers disagree ---- */

static bool is_contradiction(const trib_coordinator *self, uint32_t rank, uint32_t other_rank)
{
    const trib_wait *mine = &self->slots[rank].wait, *its = &self->slots[other_rank].wait;
    const trib_registry_entry *entry = entry_of(self, rank), *other = entry_of(self, other_rank);
    return entry != NULL && other != NULL && !entry->bad && entry->group == other->group && mine->use > 0 &&
           mine->use == its->use && mine->name_length == its->name_length &&
           strncmp(entry->name + mine->name_begin, other->name + its->name_begin, mine->name_length) == 0 &&
           strcmp(entry->name, other->name) != 0;
}

/* Returns the first worker that is known to differ from this one; TRIB_NO_MEMBER: none is. Either may wait for a third
 * worker, so all are compared. */
static uint32_t find_contradiction(const trib_coordinator *self, uint32_t rank)
{
    for (uint32_t other = 0; self->slots[rank].wait.use > 0 && other < self->worker_count; other++) {
        if (is_contradiction(self, rank, other)) {
            return other;
        }
    }
    return TRIB_NO_MEMBER;
}

static const char *name_of(const trib_registry_entry *entry, trib_collective collective)
{
    const bool is_broadcast = collective == TRIB_COLLECTIVE_BROADCAST;
    switch (entry->layout) {
    case TRIB_SLICES:
        return is_broadcast ? "an all-gather" : "a reduce-scatter";
    case TRIB_PAIRS:
        return "an all-to-all";
    case TRIB_WHOLE:
    default:
        return is_broadcast ? "a broadcast" : "a sum";
    }
}

/* The slices of a tensor may have other lengths on each worker. */
static void describe_tensor(const trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank, char *text,
                            size_t size)
{
    if (entry->layout == TRIB_WHOLE) {
        trib_tensor_describe(text, size, entry->dtype, entry->count, entry->dims, entry->shape);
        return;
    }
    const uint32_t sharers = trib_registry_sharers(self, entry);
    const uint32_t place = entry->group == NULL ? rank : trib_rank_set_index(entry->group->ranks, rank);
    const uint32_t slices = entry->layout == TRIB_SLICES ? 1 : sharers;
    uint64_t count = 0;
    trib_assert(place < sharers);
    for (uint32_t i = 0; i < slices; i++) {
        count += entry->counts[(size_t)place * slices + i];
    }
    trib_tensor_describe(text, size, entry->dtype, count, 0, NULL);
}

/* Numbered operations of a kind have names that say more of it than the engine knows. */
static void describe(const trib_coordinator *self, uint32_t rank, char *text, size_t size)
{
    const trib_registry_entry *entry = entry_of(self, rank);
    const trib_wait *wait = &self->slots[rank].wait;
    char tensor[TRIB_TENSOR_TEXT_SIZE], name[NAME_MAX_SHOWN + 16] = "";
    trib_assert(entry != NULL);
    describe_tensor(self, entry, rank, tensor, sizeof tensor);
    if (wait->name_length == 0) {
        snprintf(name, sizeof name, " (\"%.*s\")", NAME_MAX_SHOWN, entry->name);
    }
    snprintf(text, size, "%s began %s of %s%s", trib_roster_name(self->roster, rank), name_of(entry, wait->collective),
             tensor, name);
}

static void refuse(const trib_coordinator *self, trib_registry_entry *entry, const char *text)
{
    if (!entry->bad) {
        trib_registry_mark_bad(self, entry, TRIB_MISMATCH, text);
        trib_registry_send_bad(self, entry);
    }
}

static void refuse_both(trib_coordinator *self, uint32_t rank, uint32_t other_rank)
{
    trib_registry_entry *const entries[] = {entry_of(self, rank), entry_of(self, other_rank)};
    const trib_wait *wait = &self->slots[rank].wait;
    trib_assert(entries[0] != NULL && entries[1] != NULL); /* is_contradiction has looked */
    char one[TRIB_ERROR_TEXT_SIZE / 2], other[sizeof one], text[TRIB_ERROR_TEXT_SIZE];
    describe(self, rank, one, sizeof one);
    describe(self, other_rank, other, sizeof other);
    if (wait->name_length == 0) {
        snprintf(text, sizeof text,
                 "workers differ in operation %u: %s, %s; begin the same operations in the same order on all workers",
                 wait->use - 1, one, other);
        self->difference.use = wait->use;
        self->difference.group = entries[0]->group;
        snprintf(self->difference.text, sizeof self->difference.text, "%s", text);
    } else {
        snprintf(text, sizeof text,
                 "workers differ in use %u of this name: %s, %s; use a name for the same on all workers, in the same "
                 "order, or take another name",
                 wait->use, one, other);
    }
    refuse(self, entries[0], text);
    refuse(self, entries[1], text);
}

/* A worker whose operation has the number of one in which two others differ. These may have released their tensors. */
static bool is_third(const trib_coordinator *self, uint32_t rank)
{
    const trib_wait *wait = &self->slots[rank].wait;
    const trib_registry_entry *entry = entry_of(self, rank);
    return wait->use > 0 && wait->name_length == 0 && wait->use == self->difference.use &&
           entry->group == self->difference.group;
}

/* ---- Who waits for whom ---- */

/* Returns the first worker whose declaration the tensor's placement waits for; TRIB_NO_MEMBER: it waits for none. */
static uint32_t find_undeclared(const trib_coordinator *self, const trib_registry_entry *entry)
{
    const uint32_t sharers = trib_registry_sharers(self, entry);
    for (uint32_t i = 0; i < sharers && entry->layout != TRIB_WHOLE && entry->cut == NULL; i++) {
        const uint32_t rank = entry->group == NULL ? i : entry->group->ranks->ranks[i];
        if (entry->tags[rank] == TRIB_TAG_NONE) {
            return rank;
        }
    }
    return TRIB_NO_MEMBER;
}

/* An answer without a text says that the worker has not declared the tensor, and waits for nothing that is known. */
static void answer(const trib_coordinator *self, uint32_t rank, bool is_undeclared)
{
    const trib_coordinator_slot *slot = &self->slots[rank], *missing = &self->slots[slot->wait.missing];
    const trib_registry_entry *entry = entry_of(self, slot->wait.missing);
    const int64_t age_ns = trib_now(self->core->reactor) - missing->wait.told_ns;
    const bool has_begun_it = entry == entry_of(self, rank) && missing->wait.round == slot->wait.round;
    const bool waits = entry != NULL && !has_begun_it && age_ns <= 3 * trib_stall_period_ns(self->worker_count);
    char text[TRIB_ERROR_TEXT_SIZE] = "", tensor[TRIB_TENSOR_TEXT_SIZE];
    if (waits) {
        describe_tensor(self, entry, slot->wait.missing, tensor, sizeof tensor);
        snprintf(text, sizeof text, "round %u of tensor \"%.*s\" (%s)", missing->wait.round, NAME_MAX_SHOWN,
                 entry->name, tensor);
    }
    if (waits || is_undeclared) {
        const trib_frame frame = {.type = TRIB_FRAME_WAITED_FOR,
                                  .tensor = slot->wait.tag,
                                  .round = slot->wait.round,
                                  .aux = slot->wait.missing,
                                  .root = waits && missing->wait.missing == rank};
        trib_link_send_copy(slot->link, frame, text, strlen(text));
    }
}

trib_status trib_waits_take(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[member];
    trib_registry_entry *entry = trib_slot_entry(slot, frame->tensor);
    const bool is_known = frame->aux == TRIB_NO_MEMBER || frame->aux < self->worker_count;
    const size_t length = entry == NULL ? 0 : strlen(entry->name);
    const bool has_name = entry != NULL && frame->chunk <= length && frame->size <= length - frame->chunk;
    if (!has_name || !is_known || frame->collective > TRIB_COLLECTIVE_PAIR) {
        return trib_error_set(error, TRIB_PROTOCOL, "WAITING for rank %u about the tensor %u, which cannot be",
                              frame->aux, frame->tensor);
    }
    const bool is_undeclared = frame->aux == TRIB_NO_MEMBER;
    const uint32_t missing = is_undeclared ? find_undeclared(self, entry) : frame->aux;
    const int64_t now_ns = trib_now(self->core->reactor), before_ns = slot->wait.told_ns;
    slot->wait = (trib_wait){.is_told = true,
                             .told_ns = now_ns,
                             .tag = frame->tensor,
                             .round = frame->round,
                             .missing = missing,
                             .use = frame->step,
                             .name_begin = frame->chunk,
                             .name_length = frame->size,
                             .collective = (trib_collective)frame->collective};
    const uint32_t other = find_contradiction(self, member);
    if (is_third(self, member)) {
        refuse(self, entry, self->difference.text);
    } else if (other != TRIB_NO_MEMBER) {
        refuse_both(self, member, other);
    } else if (missing == TRIB_NO_MEMBER || missing == member) {
        return TRIB_OK; /* its own contribution was on its way */
    } else if (before_ns == 0 || now_ns - before_ns >= trib_stall_period_ns(self->worker_count) / 2) {
        answer(self, member, is_undeclared); /* one that asks all the time might not read what it gets */
    }
    return TRIB_OK;
}

void trib_waits_clear(trib_coordinator *self)
{
    for (uint32_t rank = 0; rank < self->worker_count; rank++) {
        self->slots[rank].wait.is_told = false;
    }
    self->difference.use = 0;
}
