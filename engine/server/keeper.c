/* keeper.c - see keeper.h. */
#include "engine/server/keeper.h"

#include <stdlib.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/cluster/succession.h"

/* A partition whose keeper has announced itself. */
typedef struct trib_keeper {
    uint64_t key; /* tensor and partition */
    uint32_t round;
    bool waits;  /* the round's sums wait for the keeper */
    bool is_old; /* they did so at the last check */
    trib_sum_entry *sums;
    UT_hash_handle hh; /* in core->keepers */
} trib_keeper;

static trib_keeper *find(const trib_core *core, uint32_t tensor, uint32_t partition)
{
    const uint64_t key = (uint64_t)tensor << 32 | partition;
    trib_keeper *self = NULL;
    HASH_FIND(hh, core->keepers, &key, sizeof key, self);
    return self;
}

/* Ends the wait. Sums of the round that come later do not wait either. */
static void let_go(trib_keeper *self, bool is_kept)
{
    trib_assert(self->waits || self->sums == NULL); /* sums wait only while the keeper is awaited */
    self->waits = self->is_old = false;
    while (self->sums != NULL) {
        trib_sum_entry *entry = self->sums;
        LL_DELETE(self->sums, entry);
        entry->next = NULL;
        entry->is_kept = is_kept;
        trib_server_send_sum(entry);
    }
}

/* Returns NULL if memory runs out: then nothing waits. */
static trib_keeper *find_or_add(trib_core *core, const trib_frame *frame)
{
    trib_keeper *self = find(core, frame->tensor, frame->partition);
    if (self == NULL && (self = trib_core_zalloc(core, sizeof *self)) != NULL) {
        self->key = (uint64_t)frame->tensor << 32 | frame->partition;
        HASH_ADD(hh, core->keepers, key, sizeof self->key, self);
        if (self->hh.tbl == NULL) { /* out of memory */
            free(self);
            self = NULL;
        }
    }
    return self;
}

void trib_keeper_pushes(trib_server_sum *sum, const trib_link *link, const trib_frame *frame)
{
    trib_core *core = sum->core;
    const trib_roster *roster = core->engine->roster;
    if (frame->aux != TRIB_PUSH_KEEPS || sum->level != TRIB_SUM_RANK || !roster->survives ||
        core->engine->member_id < roster->worker_count || frame->collective != TRIB_COLLECTIVE_ALL_REDUCE ||
        link->peer != trib_keeper_rank(roster, frame->partition)) {
        return;
    }
    trib_keeper *self = find_or_add(core, frame);
    if (self != NULL && frame->round > self->round) {
        let_go(self, false);
        self->round = frame->round;
        self->waits = true;
    }
}

bool trib_keeper_awaits(trib_core *core, trib_sum_entry *entry)
{
    const trib_contribution *what = &entry->what;
    trib_keeper *self =
        core->keepers == NULL || entry->sum->level != TRIB_SUM_RANK ? NULL : find(core, what->tensor, what->partition);
    if (self == NULL || self->round != what->round || !self->waits || core->ended ||
        entry->rank == trib_keeper_rank(core->engine->roster, what->partition)) {
        return false;
    }
    trib_assert(entry->next == NULL && !trib_send_request_waits(&entry->request));
    LL_APPEND(self->sums, entry);
    return true;
}

trib_status trib_keeper_has(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_core *core = link->core;
    if (link->peer != trib_keeper_rank(core->engine->roster, frame->partition)) {
        return trib_error_set(error, TRIB_PROTOCOL, "KEPT of partition %u, whose keeper is another worker",
                              frame->partition);
    }
    trib_keeper *self = find(core, frame->tensor, frame->partition);
    if (self != NULL && self->round == frame->round && self->waits) {
        let_go(self, true);
    }
    return TRIB_OK;
}

void trib_keepers_check(trib_core *core)
{
    trib_keeper *self, *next;
    HASH_ITER(hh, core->keepers, self, next)
    {
        trib_assert(!self->is_old || self->waits);
        if (self->is_old) {
            let_go(self, false);
        }
        self->is_old = self->sums != NULL;
    }
}

void trib_keepers_release(trib_core *core)
{
    trib_keeper *self, *next;
    HASH_ITER(hh, core->keepers, self, next)
    {
        if (self->sums != NULL) {
            let_go(self, false);
        }
    }
}

static void drop(trib_core *core, trib_keeper *self)
{
    trib_assert(self->sums == NULL);
    HASH_DEL(core->keepers, self);
    free(self);
}

void trib_keepers_forget(trib_core *core, uint32_t tensor)
{
    trib_keeper *self, *next;
    HASH_ITER(hh, core->keepers, self, next)
    {
        if (self->key >> 32 == tensor) {
            let_go(self, false);
            drop(core, self);
        }
    }
}

void trib_keepers_close(trib_core *core)
{
    trib_keepers_release(core);
    trib_keeper *self, *next;
    HASH_ITER(hh, core->keepers, self, next)
    {
        drop(core, self);
    }
}
