/*
 * group_conflict.c - finds groups of one name that their members cannot all use, because they disagree about ranks or
 * about the order of the groups.
 *
 * A worker has only one group of a name at a time. So a worker that has asked for one group of the name, and not for
 * another one that it is in, uses that one before this one. All its members agree about the order of the groups if
 * these relations have no cycle. In a cycle each group lacks a member that has come to another one: all wait for
 * ever.
 */
#include <string.h>

#include "engine/membership/coordinator_internal.h"

enum { AFTER = 1, BEFORE = 2 }; /* the group of the search: of sides */

static bool is_before(const trib_coordinator *self, const trib_group_entry *first, const trib_group_entry *later)
{
    bool is_before = false;
    for (uint32_t i = 0; i < later->ranks->count && !is_before; i++) {
        const uint32_t rank = later->ranks->ranks[i];
        is_before = first->tags[rank] != TRIB_TAG_NONE && later->tags[rank] == TRIB_TAG_NONE && !self->slots[rank].left;
    }
    return is_before;
}

static bool awaits_some(const trib_group_entry *entry)
{
    bool awaits = false;
    for (uint32_t i = 0; i < entry->ranks->count && !awaits; i++) {
        awaits = trib_group_awaits(entry, entry->ranks->ranks[i]);
    }
    return awaits;
}

/* Lists the groups of the name that can be in a cycle: the good ones that await somebody. */
static trib_group_entry *list_peers(const trib_coordinator *self, const trib_group_entry *entry)
{
    trib_group_entry *peers = NULL;
    for (trib_group_entry *other = self->groups; other != NULL; other = other->next) {
        if (!other->bad && strcmp(other->name, entry->name) == 0 && awaits_some(other)) {
            other->sides = other == entry ? AFTER | BEFORE : 0;
            other->peer = peers;
            peers = other;
        }
    }
    return peers;
}

/* Marks the peers that come after the group, or before it, also by way of others. Each that is marked is compared with
 * all once: a worker may be ahead of others by as many groups as the job can have. */
static void mark_side(const trib_coordinator *self, trib_group_entry *peers, trib_group_entry *entry, unsigned side)
{
    trib_group_entry *last = entry;
    entry->marked = NULL;
    for (const trib_group_entry *one = entry; one != NULL; one = one->marked) {
        for (trib_group_entry *other = peers; other != NULL; other = other->peer) {
            const bool is_new = (other->sides & side) == 0;
            if (is_new && (side == AFTER ? is_before(self, one, other) : is_before(self, other, one))) {
                other->sides |= side;
                other->marked = NULL;
                last->marked = other;
                last = other;
            }
        }
    }
}

const trib_group_entry *trib_group_find_conflict(trib_coordinator *self, trib_group_entry *entry, uint32_t rank)
{
    trib_group_entry *peers = entry->bad || !awaits_some(entry) ? NULL : list_peers(self, entry);
    if (peers != NULL && peers->peer != NULL) {
        mark_side(self, peers, entry, AFTER);
        mark_side(self, peers, entry, BEFORE);
    }
    const trib_group_entry *next = NULL; /* in the cycle, the one behind the group */
    for (trib_group_entry *other = peers; other != NULL; other = other->peer) {
        const bool is_in_cycle = other != entry && other->sides == (AFTER | BEFORE);
        next = is_in_cycle && trib_group_awaits(other, rank) ? other : next;
    }
    self->group_conflicts += next != NULL;
    for (trib_group_entry *other = peers; other != NULL && next != NULL; other = other->peer) {
        other->conflict = other->sides == (AFTER | BEFORE) ? self->group_conflicts : other->conflict;
    }
    return next;
}
