/*
 * tensor_registry.c - the tensors of the job, from their first declaration to their last release.
 *
 * The first worker that declares a name defines the tensor, whose partitions are dealt out then. If another worker
 * disagrees, the tensor becomes bad for all workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/quorums.h"
#include "engine/membership/rebalance.h"
#include "engine/membership/tensor_declaration.h"

static void send_bad(const trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    if (self->slots[rank].link == NULL || entry->tags[rank] >= TRIB_TAG_RELEASED) {
        return;
    }
    trib_assert(entry->bad && entry->bad_status != TRIB_OK);
    const trib_cause cause = trib_cause_about(entry->bad_status, TRIB_CAUSE_NOTE, TRIB_SUBJECT_TENSOR,
                                              entry->tags[rank], TRIB_NO_MEMBER, entry->bad_text);
    const trib_frame frame = {.type = TRIB_FRAME_TENSOR_BAD, .tensor = entry->tags[rank]};
    trib_link_send_cause(self->slots[rank].link, frame, &cause);
}

void trib_registry_mark_bad(const trib_coordinator *self, trib_registry_entry *entry, trib_status status,
                            const char *text)
{
    entry->bad = true;
    entry->bad_status = status;
    snprintf(entry->bad_text, sizeof entry->bad_text, "%s", text);
    trib_log(self->core->reactor->logger, status == TRIB_PEER_LEFT ? TRIB_LOG_WARN : TRIB_LOG_ERROR,
             "tensor \"%s\": %s", entry->name, text);
}

/* A worker's place among those that share the tensor. */
static uint32_t place_of(const trib_registry_entry *entry, uint32_t rank)
{
    return entry->group == NULL ? rank : trib_rank_set_index(entry->group->ranks, rank);
}

static void free_entry(trib_registry_entry *entry)
{
    free(entry->owners);
    free(entry->owners_next);
    free(entry->answered);
    free(entry->tags);
    free(entry->given_up);
    free(entry->counts);
    free(entry->cut);
    free(entry);
}

bool trib_registry_note_given_up(const trib_coordinator *self, trib_registry_entry *entry, uint32_t rank,
                                 uint32_t round)
{
    trib_assert(rank < self->worker_count);
    if (round > 0 && entry->given_up == NULL) {
        entry->given_up = calloc(self->worker_count, sizeof *entry->given_up);
    }
    if (entry->given_up != NULL) {
        entry->given_up[rank] = round;
    }
    return round == 0 || entry->given_up != NULL;
}

/* ---- The tensors of a name ---- */

static trib_registry_name *find_name(const trib_coordinator *self, const char *key)
{
    trib_registry_name *name = NULL;
    HASH_FIND_STR(self->registry, key, name);
    return name;
}

/* Finds the name, or adds it. Returns NULL if there is no memory. */
static trib_registry_name *find_or_add_name(trib_coordinator *self, const char *key)
{
    trib_registry_name *name = find_name(self, key);
    if (name != NULL) {
        return name;
    }
    name = calloc(1, sizeof *name + self->worker_count * sizeof(trib_registry_entry *));
    if (name != NULL) {
        snprintf(name->key, sizeof name->key, "%s", key);
        HASH_ADD_STR(self->registry, key, name);
        if (name->hh.tbl == NULL) {
            free(name);
            name = NULL;
        }
    }
    return name;
}

static void forget_name_without_tensors(trib_coordinator *self, trib_registry_name *name)
{
    trib_assert((name->first == NULL) == (name->last == NULL));
    if (name->first == NULL) {
        HASH_DEL(self->registry, name);
        free(name);
    }
}

/* Each rank declares the tensors of a name in turn, so behind the oldest that it has not declared all others are
 * undeclared, too. */
static void move_on(const trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    trib_assert(rank < self->worker_count);
    if (entry->named->undeclared[rank] == entry) {
        entry->named->undeclared[rank] = entry->later;
    }
}

/* Adds the entry behind those of its name. */
static void link_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_name *name = entry->named;
    entry->earlier = name->last;
    *(name->last == NULL ? &name->first : &name->last->later) = entry;
    name->last = entry;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        name->undeclared[i] = name->undeclared[i] == NULL ? entry : name->undeclared[i];
    }
    trib_assert((self->tensors_first == NULL) == (self->tensors_last == NULL));
    entry->older = self->tensors_last;
    *(self->tensors_last == NULL ? &self->tensors_first : &self->tensors_last->newer) = entry;
    self->tensors_last = entry;
    self->tensors_alive++;
}

static void unlink_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_name *name = entry->named;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        move_on(self, entry, i);
    }
    trib_assert(entry->earlier == NULL ? name->first == entry : entry->earlier->later == entry);
    *(entry->earlier == NULL ? &name->first : &entry->earlier->later) = entry->later;
    *(entry->later == NULL ? &name->last : &entry->later->earlier) = entry->earlier;
    forget_name_without_tensors(self, name);
    trib_assert(self->tensors_alive > 0);
    trib_assert(entry->older == NULL ? self->tensors_first == entry : entry->older->newer == entry);
    *(entry->older == NULL ? &self->tensors_first : &entry->older->newer) = entry->newer;
    *(entry->newer == NULL ? &self->tensors_last : &entry->newer->older) = entry->older;
    self->tensors_alive--;
}

static trib_registry_entry *new_entry(trib_coordinator *self, const trib_declaration *what, const char *key,
                                      uint32_t rank)
{
    trib_registry_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return NULL;
    }
    snprintf(entry->name, sizeof entry->name, "%s", what->name);
    entry->dtype = what->dtype;
    entry->count = what->count;
    entry->local_size = what->local_size;
    entry->group = what->group;
    entry->layout = what->layout;
    entry->row = what->row;
    entry->quorum = what->quorum;
    entry->quorum_timeout_ns = what->quorum_timeout_ns;
    memcpy(entry->codec, what->codec, sizeof entry->codec);
    entry->first_rank = rank;
    entry->tags = malloc(self->worker_count * sizeof *entry->tags);
    entry->counts =
        calloc(trib_partitioning_slice_count(what->layout, trib_registry_sharers(self, entry)), sizeof *entry->counts);
    const bool has_memory = entry->tags != NULL && entry->counts != NULL;
    entry->named = has_memory ? find_or_add_name(self, key) : NULL;
    if (entry->named == NULL || !trib_number_take(self, &entry->id)) {
        if (entry->named != NULL) {
            forget_name_without_tensors(self, entry->named);
        }
        free_entry(entry);
        return NULL;
    }
    memset(entry->tags, 0xff, self->worker_count * sizeof *entry->tags); /* TRIB_TAG_NONE */
    if (entry->id < self->number_count) {
        self->numbers[entry->id].ranks = entry->group == NULL ? NULL : entry->group->ranks;
    }
    link_entry(self, entry);
    return entry;
}

static void disagree(trib_coordinator *self, trib_registry_entry *entry, const trib_declaration *what, uint32_t rank)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_declaration_compare(self, entry, what, rank, text, sizeof text);
    trib_registry_mark_bad(self, entry, TRIB_MISMATCH, text);
}

/* Takes the lengths of the worker's slices. */
static void take_counts(const trib_coordinator *self, trib_registry_entry *entry, const trib_declaration *what,
                        uint32_t at, trib_reader *reader)
{
    const uint32_t n = trib_registry_sharers(self, entry);
    trib_assert(at < n && what->split_count <= n);
    for (uint32_t i = 0; i < what->split_count; i++) {
        const uint64_t count = trib_get_u64(reader);
        if (entry->layout == TRIB_PAIRS) {
            entry->counts[at * n + i] = count;
        }
    }
    if (entry->layout == what->layout && entry->layout != TRIB_PAIRS) {
        entry->counts[entry->layout == TRIB_SLICES ? at : 0] = what->count;
    }
}

/* Answers a declaration. A whole tensor is placed when the first worker declares it, any other one when all have. The
 * workers that have declared it by then are answered when all members that sum know it. */
static trib_status answer(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank)
{
    const bool is_complete = entry->declared_count == trib_registry_sharers(self, entry);
    if (!entry->bad && entry->cut == NULL && (entry->layout == TRIB_WHOLE || is_complete)) {
        const bool is_placed = trib_registry_place(self, entry);
        return !is_placed ? TRIB_NO_MEMORY : entry->bad ? TRIB_OK : trib_serve_begin(self, entry);
    }
    return entry->is_known && !entry->bad ? trib_registry_send_declared(self, entry, rank) : TRIB_OK;
}

static void tell_bad(trib_coordinator *self, const trib_registry_entry *entry, bool was_bad, uint32_t rank)
{
    for (uint32_t i = 0; entry->bad && i < self->worker_count; i++) {
        if (!was_bad || i == rank) {
            send_bad(self, entry, i);
        }
    }
}

void trib_registry_send_bad(const trib_coordinator *self, const trib_registry_entry *entry)
{
    for (uint32_t i = 0; i < self->worker_count; i++) {
        send_bad(self, entry, i);
    }
}

static bool has_released_group(const trib_registry_entry *entry, uint32_t rank)
{
    return entry->group != NULL && entry->group->tags[rank] == TRIB_TAG_RELEASED;
}

/* A tensor that lacks the rank's declaration for its placement becomes bad for those that wait. */
static void check_absent(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank)
{
    const bool is_sharer = entry->group == NULL || trib_rank_set_index(entry->group->ranks, rank) != TRIB_RANK_ABSENT;
    if (self->over || entry->bad || entry->cut != NULL || !is_sharer || entry->tags[rank] != TRIB_TAG_NONE ||
        !(self->slots[rank].left || self->slots[rank].is_out_of_data || has_released_group(entry, rank))) {
        return;
    }
    const bool has_left = self->slots[rank].left || has_released_group(entry, rank);
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text,
             self->slots[rank].left ? "%s left the job without declaring it"
             : has_left             ? "%s has released the group (trib_group_release) without declaring it"
                        : "%s has joined (trib_join) without declaring it: until all have, there are only all-reduces "
                          "among all workers",
             trib_roster_name(self->roster, rank));
    trib_registry_mark_bad(self, entry, has_left ? TRIB_PEER_LEFT : TRIB_UNSUPPORTED, text);
    tell_bad(self, entry, false, rank);
}

/* Remembers which tensor the rank's tag stands for. */
static trib_status note_tag(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank, uint32_t tag,
                            trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[rank];
    if (tag > TRIB_TENSORS_MAX || trib_slot_entry(slot, tag) != NULL) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "tensor \"%s\" declared with the tag %u, which is another's or too "
                              "high",
                              entry->name, tag);
    }
    if (tag >= slot->tensors_capacity) {
        uint32_t capacity = slot->tensors_capacity == 0 ? 64 : slot->tensors_capacity;
        while (capacity <= tag) {
            capacity *= 2;
        }
        trib_registry_entry **tensors = realloc(slot->tensors, capacity * sizeof(trib_registry_entry *));
        if (tensors == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", entry->name);
        }
        memset(tensors + slot->tensors_capacity, 0,
               (capacity - slot->tensors_capacity) * sizeof(trib_registry_entry *));
        slot->tensors = tensors;
        slot->tensors_capacity = capacity;
    }
    trib_assert(entry->tags[rank] == TRIB_TAG_NONE);
    slot->tensors[tag] = entry;
    entry->tags[rank] = tag;
    move_on(self, entry, rank);
    entry->declared_count++;
    trib_assert(entry->declared_count <= trib_registry_sharers(self, entry));
    return TRIB_OK;
}

trib_status trib_registry_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_declaration what = {.dtype = TRIB_FLOAT32};
    trib_status status = trib_declaration_read(self, rank, frame, &reader, &what, error);
    if (status != TRIB_OK) {
        return status;
    }
    char key[TRIB_TENSOR_NAME_MAX + 12];
    trib_declaration_key(&what, key, sizeof key);
    const trib_registry_name *name = find_name(self, key);
    trib_registry_entry *entry = name == NULL ? NULL : name->undeclared[rank];
    if (entry == NULL) {
        entry = new_entry(self, &what, key, rank);
        if (entry != NULL && entry->id >= TRIB_TENSORS_MAX) {
            trib_registry_mark_bad(self, entry, TRIB_MISMATCH, "the job has as many tensors as it can have");
        }
    }
    if (entry == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", what.name);
    }
    if (!entry->bad && entry->quorum > 0 &&
        (self->roster->local_size > 0 || self->roster->survives || self->roster->shrinks)) {
        trib_registry_mark_bad(self, entry, TRIB_UNSUPPORTED,
                               "it has a quorum (TRIB_QUORUM), which cannot be where machines sum first (set "
                               "TRIB_LOCAL_SUM=off) or the job goes on after losses (set TRIB_SURVIVE=nothing)");
    }
    const bool was_bad = entry->bad && entry->declared_count > 0;
    status = note_tag(self, entry, rank, frame->tensor, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!entry->bad && !trib_declaration_is_same(entry, &what)) {
        disagree(self, entry, &what, rank);
    }
    if (entry->dims == 0 && what.dims > 0) {
        entry->dims = what.dims;
        entry->shape_rank = rank;
        memcpy(entry->shape, what.shape, sizeof entry->shape);
    }
    take_counts(self, entry, &what, place_of(entry, rank), &reader);
    for (uint32_t i = 0; i < self->worker_count && entry->layout != TRIB_WHOLE; i++) {
        check_absent(self, entry, i); /* a worker may have left before the first declaration */
    }
    status = answer(self, entry, rank);
    tell_bad(self, entry, was_bad, rank);
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "out of memory for tensor \"%s\"", what.name);
}

void trib_registry_worker_left(trib_coordinator *self, uint32_t rank)
{
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL && rank < self->worker_count;
         entry = entry->newer) {
        check_absent(self, entry, rank);
    }
}

/* ---- The end of a tensor ---- */

static bool is_over(const trib_coordinator *self, const trib_registry_entry *entry)
{
    const uint32_t sharers = trib_registry_sharers(self, entry);
    const bool all_declare = self->workers_left == 0 && self->uneven.count == 0 &&
                             (entry->group == NULL || entry->group->released_count == 0);
    if (all_declare || entry->released_count == sharers) {
        return entry->released_count == sharers;
    }
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const bool is_sharer = place_of(entry, i) != TRIB_RANK_ABSENT;
        const bool lacks_it =
            entry->tags[i] == TRIB_TAG_NONE && (self->slots[i].is_out_of_data || has_released_group(entry, i));
        if (is_sharer && entry->tags[i] != TRIB_TAG_RELEASED && !self->slots[i].left && !lacks_it) {
            return false;
        }
    }
    return true;
}

static void end_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    unlink_entry(self, entry);
    for (uint32_t i = 0; i < self->worker_count; i++) { /* of those that left without releasing it */
        if (entry->tags[i] < TRIB_TAG_RELEASED) {
            trib_assert(self->slots[i].tensors[entry->tags[i]] == entry);
            self->slots[i].tensors[entry->tags[i]] = NULL;
        }
    }
    trib_rebalance_ended(self, entry);
    trib_serve_ended(self, entry);
    trib_quorums_entry_ended(self, entry);
    if (entry->serve == 0) {
        trib_number_give(self, entry->id); /* no member has heard of it */
    } else {
        trib_number_end(self, entry->id, entry->rounds, entry->partition_count);
    }
    free_entry(entry);
}

trib_status trib_registry_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[rank];
    trib_registry_entry *entry = trib_slot_entry(slot, frame->tensor);
    if (entry == NULL || frame->round > TRIB_ROUNDS_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "RELEASE of what was not declared, or after %u rounds",
                              frame->round);
    }
    if (!trib_registry_note_given_up(self, entry, rank, frame->aux)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", entry->name);
    }
    trib_assert(entry->tags[rank] == frame->tensor && entry->released_count < entry->declared_count);
    slot->tensors[frame->tensor] = NULL;
    slot->wait.is_told = slot->wait.is_told && slot->wait.tag != frame->tensor; /* the tag may become another's */
    entry->tags[rank] = TRIB_TAG_RELEASED;
    entry->released_count++;
    entry->rounds = frame->round > entry->rounds ? frame->round : entry->rounds;
    const uint32_t base = entry->serve == 0 ? 0 : self->numbers[entry->id].round_base;
    if (entry->join_round > base && entry->rounds < entry->join_round - base + frame->round) {
        entry->rounds =
            entry->join_round - base +
            frame->round; /* a late declarer counts from there; for others it is too high, which does no harm */
    }
    trib_link_send_copy(slot->link, (trib_frame){.type = TRIB_FRAME_RELEASED, .tensor = frame->tensor}, NULL, 0);
    trib_rebalance_released(self, entry, rank);
    if (is_over(self, entry)) {
        end_entry(self, entry);
    }
    return TRIB_OK;
}

static void end_entries(trib_coordinator *self)
{
    trib_registry_entry *next;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = next) {
        next = entry->newer;
        if (is_over(self, entry)) {
            end_entry(self, entry);
        }
    }
}

void trib_registry_worker_joined(trib_coordinator *self, uint32_t rank)
{
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        if (entry->layout != TRIB_WHOLE) {
            check_absent(self, entry, rank);
        }
    }
    end_entries(self);
}

void trib_registry_group_released(trib_coordinator *self, const trib_group_entry *group, uint32_t rank)
{
    trib_registry_entry *next;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = next) {
        next = entry->newer;
        if (entry->group == group) {
            if (entry->layout != TRIB_WHOLE) {
                check_absent(self, entry, rank);
            }
            if (is_over(self, entry)) {
                end_entry(self, entry);
            }
        }
    }
}

void trib_registry_member_left(trib_coordinator *self)
{
    if (self->workers_left > 0) {
        end_entries(self);
    }
}

void trib_registry_clear(trib_coordinator *self)
{
    for (trib_registry_entry *entry = self->tensors_first, *newer = NULL; entry != NULL; entry = newer) {
        newer = entry->newer;
        free_entry(entry);
    }
    trib_registry_name *name = NULL;
    trib_registry_name *next = NULL;
    HASH_ITER(hh, self->registry, name, next)
    {
        HASH_DEL(self->registry, name);
        free(name);
    }
    self->tensors_first = self->tensors_last = NULL;
    self->tensors_alive = 0;
    self->serve_first = self->serve_last = NULL;
    free(self->numbers);
    self->numbers = NULL;
}
