/* commits.c - see commits.h. */
#include "engine/membership/commits.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/worker/op_commit.h"

#define TOLD_AT_ONCE 512u /* rounds in a COMMIT */

typedef struct round_key {
    uint32_t tensor, round;
} round_key;

/* A round that some workers are through with. */
struct trib_commit_entry {
    round_key key;
    const trib_rank_set *ranks; /* the workers that share the tensor; NULL: all */
    UT_hash_handle hh;
    bool settled[]; /* by rank */
};

typedef struct outgoing {
    trib_coordinator *self;
    trib_writer writer;
    unsigned char payload[TOLD_AT_ONCE * TRIB_SETTLED_BYTES];
} outgoing;

static void flush_commits(outgoing *out)
{
    const trib_coordinator *self = out->self;
    const trib_frame frame = {.type = TRIB_FRAME_COMMIT};
    trib_assert(out->writer.size % TRIB_SETTLED_BYTES == 0); /* check() writes whole rounds, and sends a full payload */
    for (uint32_t i = 0; i < self->worker_count && out->writer.size > 0; i++) {
        if (self->slots[i].link != NULL) {
            trib_link_send_copy(self->slots[i].link, frame, out->payload, out->writer.size);
        }
    }
    out->writer.size = 0;
}

static void begin_commits(outgoing *out, trib_coordinator *self)
{
    out->self = self;
    out->writer = (trib_writer){.data = out->payload, .capacity = sizeof out->payload};
}

static bool is_complete(const trib_coordinator *self, const struct trib_commit_entry *entry)
{
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const bool shares = entry->ranks == NULL || trib_rank_set_index(entry->ranks, i) != TRIB_RANK_ABSENT;
        if (shares && !entry->settled[i] && !self->slots[i].left) {
            return false;
        }
    }
    return true;
}

/* A coordinator in a process of its own hears no COMMIT, and may have to tell of the end of the epoch again. */
static void note(trib_coordinator *self, const round_key *key)
{
    trib_engine *engine = self->core->engine;
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0 &&
        !trib_commit_note(&engine->formation, key->tensor, key->round)) {
        trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the rounds that have succeeded");
    }
}

/* If all workers are through with the round, tells them so and forgets the round. */
static void check_entry(outgoing *out, struct trib_commit_entry *entry)
{
    trib_coordinator *self = out->self;
    if (!is_complete(self, entry)) {
        return;
    }
    trib_put_u32(&out->writer, entry->key.tensor);
    trib_put_u32(&out->writer, entry->key.round);
    trib_assert(!out->writer.overflow);
    if (out->writer.size == out->writer.capacity) {
        flush_commits(out);
    }
    note(self, &entry->key);
    HASH_DEL(self->commits, entry);
    free(entry);
}

/* NULL: out of memory. */
static struct trib_commit_entry *find_or_add(trib_coordinator *self, const round_key *key)
{
    struct trib_commit_entry *entry = NULL;
    HASH_FIND(hh, self->commits, key, sizeof *key, entry);
    if (entry != NULL) {
        return entry;
    }
    entry = trib_core_zalloc(self->core, sizeof *entry + self->worker_count * sizeof entry->settled[0]);
    if (entry == NULL) {
        return NULL;
    }
    entry->key = *key;
    entry->ranks = self->numbers[key->tensor].ranks;
    HASH_ADD(hh, self->commits, key, sizeof entry->key, entry);
    if (entry->hh.tbl == NULL) {
        free(entry);
        return NULL;
    }
    return entry;
}

trib_status trib_commits_take_settled(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                      const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    if (rank >= self->worker_count || !self->running || !self->roster->shrinks) {
        return trib_error_set(error, TRIB_PROTOCOL, "SETTLED of member %u, which has no part in that", rank);
    }
    if (self->over) {
        return TRIB_OK; /* the workers have been told of the end of the epoch, which decides */
    }
    outgoing out;
    begin_commits(&out, self);
    while (reader.left > 0 && !reader.failed) {
        round_key key = {.tensor = trib_get_u32(&reader)};
        key.round = trib_get_u32(&reader);
        if (key.tensor >= self->number_count) {
            return trib_error_set(error, TRIB_PROTOCOL, "SETTLED of %s: no tensor has number %u",
                                  trib_roster_name(self->roster, rank), key.tensor);
        }
        struct trib_commit_entry *entry = reader.failed ? NULL : find_or_add(self, &key);
        if (entry == NULL) {
            break;
        }
        entry->settled[rank] = true;
        check_entry(&out, entry);
    }
    flush_commits(&out);
    return reader.failed || reader.left > 0
               ? trib_error_set(error, reader.failed ? TRIB_PROTOCOL : TRIB_NO_MEMORY, "SETTLED of %s: %s",
                                trib_roster_name(self->roster, rank), reader.failed ? "malformed" : "out of memory")
               : TRIB_OK;
}

void trib_commits_group_ended(trib_coordinator *self, const trib_rank_set *ranks)
{
    struct trib_commit_entry *entry, *next;
    HASH_ITER(hh, self->commits, entry, next)
    {
        if (entry->ranks == ranks) {
            HASH_DEL(self->commits, entry);
            free(entry);
        }
    }
}

void trib_commits_worker_left(trib_coordinator *self)
{
    outgoing out;
    struct trib_commit_entry *entry, *next;
    trib_assert(!self->over);
    begin_commits(&out, self);
    HASH_ITER(hh, self->commits, entry, next)
    {
        check_entry(&out, entry);
    }
    flush_commits(&out);
}

void trib_commits_close(trib_coordinator *self)
{
    struct trib_commit_entry *entry = self->commits, *next;
    HASH_CLEAR(hh, self->commits); /* frees the table; the entries stay linked */
    for (; entry != NULL; entry = next) {
        next = entry->hh.next;
        free(entry);
    }
}
