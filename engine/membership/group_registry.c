/*
 * group_registry.c - the groups of the job, from the first request for them to their last release. The first worker
 * that asks for a name and ranks defines the group.
 *
 * The coordinator tells all members the ranks, and waits until each has answered. Only then may the group be used: a
 * server knows the ranks before the first contribution of the group can reach it.
 *
 * A group ends when all its workers have released it, or left; their tensors in it have ended then. Its number is free
 * when all members have forgotten it. The n-th group of a name and ranks on one worker is the n-th on all. A worker may
 * ask for the next group of a name, with other ranks, before the releases of the last one have come from others. Groups
 * of one name therefore live side by side, and are bad only where their members' orders differ (group_conflict.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/commits.h"
#include "engine/membership/coordinator_internal.h"

static bool are_equal(const trib_rank_set *one, const trib_rank_set *other)
{
    return one->count == other->count && memcmp(one->ranks, other->ranks, one->count * sizeof one->ranks[0]) == 0;
}

/* Returns the group that the rank means: the oldest one of the name and ranks that it has not asked for, else one that
 * is in conflict and has the rank. NULL: a group that nobody has asked for. */
static trib_group_entry *find_unasked(const trib_coordinator *self, const char *name, const trib_rank_set *ranks,
                                      uint32_t rank)
{
    trib_group_entry *oldest = NULL, *in_conflict = NULL;
    for (trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
        if (!entry->is_ending && trib_group_awaits(entry, rank) && strcmp(entry->name, name) == 0) {
            oldest = are_equal(entry->ranks, ranks) ? entry : oldest;
            in_conflict = entry->conflict != 0 ? entry : in_conflict;
        }
    }
    return oldest != NULL ? oldest : in_conflict;
}

/* The group that the rank calls so and has not released. */
static trib_group_entry *find_tag(const trib_coordinator *self, uint32_t rank, uint32_t tag)
{
    trib_group_entry *entry = self->groups;
    while (entry != NULL && entry->tags[rank] != tag) {
        entry = entry->next;
    }
    return entry;
}

static trib_group_entry *find_id(const trib_coordinator *self, uint32_t id)
{
    return id < TRIB_GROUPS_MAX ? self->groups_by_id[id] : NULL;
}

trib_group_entry *trib_groups_find(const trib_coordinator *self, uint32_t id)
{
    trib_group_entry *entry = find_id(self, id);
    return entry != NULL && entry->is_known && !entry->is_ending ? entry : NULL;
}

/* ---- What the workers are told ---- */

static void answer_create(trib_coordinator *self, const trib_group_entry *entry, uint32_t rank)
{
    trib_link *link = self->slots[rank].link;
    if (link == NULL || entry->tags[rank] >= TRIB_TAG_RELEASED) {
        return;
    }
    if (entry->bad) {
        const trib_cause cause = trib_cause_note(entry->bad_status, TRIB_NO_MEMBER, entry->bad_text);
        trib_link_send_cause(link, (trib_frame){.type = TRIB_FRAME_GROUP_BAD, .tensor = entry->tags[rank]}, &cause);
    } else if (entry->is_known) {
        trib_assert(trib_rank_set_index(entry->ranks, rank) != TRIB_RANK_ABSENT);
        const trib_frame frame = {
            .type = TRIB_FRAME_GROUP_MADE, .tensor = entry->tags[rank], .group = entry->ranks->id};
        trib_link_send_copy(link, frame, NULL, 0);
    }
}

static void answer_all(trib_coordinator *self, const trib_group_entry *entry)
{
    for (uint32_t i = 0; i < self->worker_count; i++) {
        answer_create(self, entry, i);
    }
}

/* ---- What all members know ---- */

/* True if nobody's answer about the group is awaited. */
static bool have_answered(const trib_coordinator *self, const trib_group_entry *entry)
{
    bool all = entry->ranks->id > 0;
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && all; i++) {
        all = entry->knows[i] || self->slots[i].left || self->slots[i].link == NULL;
    }
    return all;
}

static void check_over(trib_coordinator *self, trib_group_entry *entry);

static void check_known(trib_coordinator *self, trib_group_entry *entry)
{
    if (!entry->is_ending && !entry->is_known && have_answered(self, entry)) {
        entry->is_known = true;
        answer_all(self, entry);
    }
}

trib_status trib_groups_take_known(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_group_entry *entry = find_id(self, frame->group);
    if (entry == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_KNOWN for group %u, which does not exist", frame->group);
    }
    if (!entry->is_ending) { /* else it is no answer to the end */
        entry->knows[member] = 1;
        check_known(self, entry);
        check_over(self, entry); /* all may have released it while it waited for its number */
    }
    return TRIB_OK;
}

static void tell_members(trib_coordinator *self, const trib_frame *frame, const void *payload, size_t size)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL && !self->slots[i].left) {
            trib_link_send_copy(self->slots[i].link, *frame, payload, size);
        }
    }
}

/* Returns false if memory runs out. */
static bool tell_ranks(trib_coordinator *self, const trib_group_entry *entry)
{
    const size_t size = ((size_t)entry->ranks->count + 1) * sizeof(uint32_t);
    void *payload = malloc(size);
    if (payload == NULL) {
        return false;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_put_u32(&writer, entry->ranks->count);
    for (uint32_t i = 0; i < entry->ranks->count; i++) {
        trib_put_u32(&writer, entry->ranks->ranks[i]);
    }
    trib_assert(!writer.overflow && writer.size == size);
    tell_members(self, &(trib_frame){.type = TRIB_FRAME_GROUP_RANKS, .group = entry->ranks->id}, payload, writer.size);
    free(payload);
    return true;
}

/* ---- Making a group ---- */

static void entry_free(trib_group_entry *entry)
{
    trib_dealer_destroy(entry->dealer);
    trib_rank_set_unref(entry->ranks);
    free(entry->tags);
    free(entry->knows);
    free(entry);
}

/* Only members of the group and servers sum its tensors: another worker may leave when it is done with its own. */
static void limit_to_group(const void *user, uint32_t member, trib_place_member *place)
{
    if (place->is_worker && trib_rank_set_index(user, member) == TRIB_RANK_ABSENT) {
        place->is_worker = place->can_sum = false;
    }
}

/* The group gets a number, if one is free, and the members learn of it. Returns false if memory runs out. */
static bool number_entry(trib_coordinator *self, trib_group_entry *entry)
{
    trib_assert(entry->ranks->id == 0);
    if (self->groups_numbered + 1 >= TRIB_GROUPS_MAX) {
        return true;
    }
    do {
        self->group_last = self->group_last % (TRIB_GROUPS_MAX - 1) + 1;
    } while (find_id(self, self->group_last) != NULL);
    entry->ranks->id = self->group_last;
    self->groups_by_id[entry->ranks->id] = entry;
    self->groups_numbered++;
    entry->dealer = trib_registry_make_dealer(self, limit_to_group, entry->ranks);
    return tell_ranks(self, entry);
}

/* True if a number will be free: some worker has released its group. */
static bool may_wait(const trib_coordinator *self)
{
    uint32_t alive = 0;
    bool some_end = false;
    for (const trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
        if (entry->ranks->id > 0 || !entry->bad) { /* others neither have a number nor get one */
            alive++;
            some_end = some_end || entry->released_count > 0;
        }
    }
    return alive + 1 < TRIB_GROUPS_MAX || some_end;
}

/* Takes over the ranks on success. */
static trib_group_entry *new_entry(trib_coordinator *self, const char *name, trib_rank_set *ranks, uint32_t rank)
{
    trib_group_entry *entry = calloc(1, sizeof *entry);
    uint32_t *tags = malloc(self->worker_count * sizeof *tags);
    unsigned char *knows = calloc(trib_coordinator_slots(self), 1);
    if (entry == NULL || tags == NULL || knows == NULL) {
        free(entry);
        free(tags);
        free(knows);
        return NULL;
    }
    memset(tags, 0xff, self->worker_count * sizeof *tags); /* TRIB_TAG_NONE */
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->ranks = ranks;
    entry->first_rank = rank;
    entry->tags = tags;
    entry->knows = knows;
    entry->next = self->groups;
    self->groups = entry;
    return entry;
}

static void describe_ranks(const trib_rank_set *set, char *text, size_t size)
{
    int length = snprintf(text, size, "%u ranks (", set->count);
    for (uint32_t i = 0; i < set->count && (size_t)length + 16 < size; i++) {
        length += snprintf(text + length, size - (size_t)length, "%s%u", i > 0 ? ", " : "", set->ranks[i]);
    }
    snprintf(text + length, size - (size_t)length, ")");
}

static void reject_for_number(trib_coordinator *self, trib_group_entry *entry)
{
    entry->bad = true;
    entry->bad_status = TRIB_BUSY;
    snprintf(entry->bad_text, sizeof entry->bad_text,
             "group \"%.64s\": the job has %u groups, as many as it can have: release some first", entry->name,
             self->groups_numbered);
    trib_log(self->core->reactor->logger, TRIB_LOG_ERROR, "%s", entry->bad_text);
}

/* ---- The end of a group ---- */

static void free_ended(trib_coordinator *self, trib_group_entry *entry)
{
    trib_group_entry **at = &self->groups;
    while (*at != entry) {
        trib_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = entry->next;
    trib_commits_group_ended(self, entry->ranks);
    trib_numbers_group_ended(self, entry->ranks);
    if (entry->ranks->id > 0) {
        trib_assert(self->groups_numbered > 0 && find_id(self, entry->ranks->id) == entry);
        self->groups_by_id[entry->ranks->id] = NULL;
        self->groups_numbered--;
        self->uneven.bytes[entry->ranks->id] = 0;
    }
    self->difference.use = self->difference.group == entry ? 0 : self->difference.use;
    entry_free(entry);
}

/* Gives the numbers of ended groups to those that wait for one, the oldest first. */
static void number_waiting(trib_coordinator *self)
{
    trib_group_entry *oldest;
    do {
        oldest = NULL;
        for (trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
            oldest = entry->ranks->id == 0 && !entry->bad ? entry : oldest;
        }
        if (oldest != NULL && !number_entry(self, oldest)) {
            trib_job_fail(self->core->engine, TRIB_NO_MEMORY, "out of memory for a group");
        }
    } while (oldest != NULL && oldest->ranks->id > 0);
}

/* All workers of the group have released it, or left, and not all have left. A good one that waits for its number is
 * made first, because its workers wait for it. */
static bool is_over(const trib_coordinator *self, const trib_group_entry *entry)
{
    bool is_over = entry->released_count > 0 && !entry->is_ending && (entry->ranks->id > 0 || entry->bad);
    for (uint32_t i = 0; i < self->worker_count && is_over; i++) {
        const bool has_part = trib_rank_set_index(entry->ranks, i) != TRIB_RANK_ABSENT;
        is_over = !has_part || entry->tags[i] == TRIB_TAG_RELEASED || self->slots[i].left;
    }
    return is_over;
}

static void check_over(trib_coordinator *self, trib_group_entry *entry)
{
    if (is_over(self, entry)) {
        if (entry->ranks->id == 0) { /* no member has heard of it */
            free_ended(self, entry);
            return;
        }
        entry->is_ending = true;
        memset(entry->knows, 0, trib_coordinator_slots(self));
        tell_members(self, &(trib_frame){.type = TRIB_FRAME_GROUP_FORGET, .group = entry->ranks->id}, NULL, 0);
    }
    if (entry->is_ending && have_answered(self, entry)) {
        free_ended(self, entry);
        number_waiting(self);
    }
}

static void release_rank(trib_coordinator *self, trib_group_entry *entry, uint32_t rank)
{
    entry->tags[rank] = TRIB_TAG_RELEASED;
    entry->released_count++;
    trib_registry_group_released(self, entry, rank);
}

/* ---- Members that disagree ---- */

/* Tells all that have asked for one of the groups that are in conflict with this one. */
static void reject_conflict(trib_coordinator *self, const trib_group_entry *entry, const trib_group_entry *other,
                            uint32_t rank)
{
    char mine[96], theirs[96], text[TRIB_ERROR_TEXT_SIZE];
    describe_ranks(other->ranks, theirs, sizeof theirs);
    describe_ranks(entry->ranks, mine, sizeof mine);
    snprintf(text, sizeof text, "group \"%.64s\": %.60s gave it %s, %.60s gave it %s", entry->name,
             trib_roster_name(self->roster, other->first_rank), theirs, trib_roster_name(self->roster, rank), mine);
    trib_log(self->core->reactor->logger, TRIB_LOG_ERROR, "%s", text);
    for (trib_group_entry *bad = self->groups; bad != NULL; bad = bad->next) {
        if (bad->conflict == entry->conflict) {
            bad->bad = true;
            bad->bad_status = TRIB_MISMATCH;
            snprintf(bad->bad_text, sizeof bad->bad_text, "%s", text);
            answer_all(self, bad);
        }
    }
}

static bool has_asked_one(const trib_coordinator *self, uint32_t conflict, uint32_t rank)
{
    bool has = false;
    for (const trib_group_entry *entry = self->groups; entry != NULL && !has; entry = entry->next) {
        has = entry->conflict == conflict && entry->tags[rank] != TRIB_TAG_NONE;
    }
    return has;
}

/* A rank that has asked for one of the groups does not ask for the others: the next one of the name that it asks for is
 * a new one. */
static void settle_conflict(trib_coordinator *self, uint32_t conflict)
{
    trib_group_entry *next;
    for (trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
        for (uint32_t i = 0; entry->conflict == conflict && i < self->worker_count; i++) {
            if (trib_group_awaits(entry, i) && has_asked_one(self, conflict, i)) {
                release_rank(self, entry, i);
            }
        }
    }
    for (trib_group_entry *entry = self->groups; entry != NULL; entry = next) { /* those that are over are freed */
        next = entry->next;
        if (entry->conflict == conflict) {
            check_over(self, entry);
        }
    }
}

/* ---- A worker's request ---- */

/* Takes over the ranks. */
static trib_status add_group(trib_coordinator *self, const char *name, trib_rank_set *ranks, uint32_t rank,
                             uint32_t tag, trib_error *error)
{
    trib_group_entry *entry = find_unasked(self, name, ranks, rank);
    const bool is_new = entry == NULL;
    const bool gets_number = !is_new || may_wait(self);
    if (is_new) {
        entry = new_entry(self, name, ranks, rank);
        if (entry == NULL) {
            trib_rank_set_unref(ranks);
        }
    }
    if (entry == NULL || (is_new && !number_entry(self, entry))) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for group \"%s\"", name);
    }
    trib_assert(trib_group_awaits(entry, rank));
    entry->tags[rank] = tag;
    if (!gets_number) {
        reject_for_number(self, entry);
    }
    const trib_group_entry *other = trib_group_find_conflict(self, entry, rank);
    if (other != NULL) {
        reject_conflict(self, entry, other, rank);
    } else {
        answer_create(self, entry, rank);
    }
    if (entry->conflict != 0) {
        settle_conflict(self, entry->conflict);
    }
    trib_rank_set_unref(is_new ? NULL : ranks);
    return TRIB_OK;
}

trib_status trib_groups_take_create(trib_coordinator *self, uint32_t rank, const trib_frame *frame, const void *payload,
                                    trib_error *error)
{
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, name, sizeof name);
    const uint32_t count = trib_get_u32(&reader);
    if (reader.failed || rank >= self->worker_count || count > self->worker_count ||
        reader.left != (size_t)count * sizeof(uint32_t) || frame->tensor >= TRIB_TAG_RELEASED ||
        find_tag(self, rank, frame->tensor) != NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed GROUP_CREATE, or one with a number that is in use");
    }
    uint32_t *ranks = malloc((count > 0 ? count : 1) * sizeof *ranks);
    if (ranks == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for group \"%s\"", name);
    }
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = trib_get_u32(&reader);
    }
    bool is_valid = false;
    trib_rank_set *set = trib_rank_set_create(0, ranks, count, self->worker_count, &is_valid);
    free(ranks);
    if (set == NULL) {
        return is_valid ? trib_error_set(error, TRIB_NO_MEMORY, "out of memory for group \"%s\"", name)
                        : trib_error_set(error, TRIB_PROTOCOL, "GROUP_CREATE with ranks that cannot be");
    }
    if (trib_rank_set_index(set, rank) == TRIB_RANK_ABSENT) {
        trib_rank_set_unref(set);
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_CREATE from a rank that is none of the group's");
    }
    return add_group(self, name, set, rank, frame->tensor, error);
}

/* ---- What the members say of its end ---- */

trib_status trib_groups_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame, trib_error *error)
{
    trib_group_entry *entry = rank < self->worker_count ? find_tag(self, rank, frame->tensor) : NULL;
    if (entry == NULL || frame->tensor >= TRIB_TAG_RELEASED) {
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_RELEASE of what was not created");
    }
    release_rank(self, entry, rank);
    check_over(self, entry);
    return TRIB_OK;
}

trib_status trib_groups_take_forgotten(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                       trib_error *error)
{
    trib_group_entry *entry = find_id(self, frame->group);
    if (entry == NULL || !entry->is_ending || entry->knows[member]) {
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_FORGOTTEN for group %u, which does not end", frame->group);
    }
    entry->knows[member] = 1;
    check_over(self, entry);
    return TRIB_OK;
}

void trib_groups_member_left(trib_coordinator *self)
{
    trib_group_entry *next;
    for (trib_group_entry *entry = self->groups; entry != NULL; entry = next) {
        next = entry->next;
        check_known(self, entry);
        check_over(self, entry);
    }
}

void trib_groups_clear(trib_coordinator *self)
{
    while (self->groups != NULL) {
        trib_group_entry *entry = self->groups;
        self->groups = entry->next;
        entry_free(entry);
    }
}
