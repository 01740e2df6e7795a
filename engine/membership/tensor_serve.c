/*
 * tensor_serve.c - describes a tensor to the members that know partitions (SERVE), before its workers may use it.
 *
 * A worker gets DECLARED when all of these members have answered, so no contribution comes to a member that does not
 * know its tensor. Members answer in order, so each has a count and not a list.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/codec_choice.h"
#include "engine/worker/op.h"

/* A member that has left still sums for others, and answers until its link ends. */
static bool is_awaited(const trib_coordinator *self, uint32_t member)
{
    const trib_coordinator_slot *slot = &self->slots[member];
    return slot->link != NULL && !slot->lost && trib_coordinator_knows_partitions(self, member);
}

static void send_all(trib_coordinator *self, trib_frame frame, const void *payload, size_t size)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (is_awaited(self, i)) {
            self->slots[i].serves_sent++;
            trib_link_send_copy(self->slots[i].link, frame, payload, size);
        }
    }
}

/* Some members cannot decode what workers would send: the tensor is bad for all. */
static void refuse_codec(trib_coordinator *self, trib_registry_entry *entry)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text,
             "codec \"%.60s\" is unknown to %.200s, which sums: give it the codec in that version (TRIB_CODEC_LIBRARY, "
             "or trib_config.codecs)",
             entry->codec, entry->lacking);
    if (!entry->bad) {
        trib_registry_mark_bad(self, entry, TRIB_UNSUPPORTED, text);
        trib_registry_send_bad(self, entry);
    }
}

/* The tensor is known everywhere: the workers that have declared it may use it. */
static void answer_workers(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_status status = TRIB_OK;
    entry->is_known = true;
    trib_assert(entry->owners != NULL && entry->serve > 0 && entry->serve <= self->serves);
    if (entry->lacking[0] != '\0') {
        refuse_codec(self, entry);
    }
    for (uint32_t i = 0; i < self->worker_count && !entry->bad && status == TRIB_OK; i++) {
        if (entry->tags[i] < TRIB_TAG_RELEASED && self->slots[i].link != NULL) {
            status = trib_registry_send_declared(self, entry, i);
        }
    }
    if (status != TRIB_OK) {
        const trib_cause cause = trib_cause_note(status, TRIB_NO_MEMBER, "out of memory for a tensor");
        trib_coordinator_end_job(self, &cause);
    }
}

void trib_serves_check(trib_coordinator *self)
{
    uint64_t answered = self->serves;
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && self->serve_first != NULL; i++) {
        if (is_awaited(self, i) && self->slots[i].serves_answered < answered) {
            answered = self->slots[i].serves_answered;
        }
    }
    while (self->serve_first != NULL && self->serve_first->serve <= answered && !self->over &&
           trib_codec_choice_make(self, self->serve_first)) {
        trib_registry_entry *entry = self->serve_first;
        trib_assert(!entry->is_known && entry->cut != NULL);
        self->serve_first = entry->serve_next;
        answer_workers(self, entry);
    }
}

trib_status trib_serve_begin(trib_coordinator *self, trib_registry_entry *entry)
{
    const uint32_t slices = entry->cut->slice_count;
    const size_t size = 4 + sizeof entry->name + sizeof entry->codec + 16 + (size_t)slices * 8;
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_put_u32(&writer, entry->partition_bytes);
    trib_put_text(&writer, entry->name);
    trib_put_text(&writer, entry->codec);
    trib_put_u32(&writer, entry->quorum);
    trib_put_u64(&writer, (uint64_t)entry->quorum_timeout_ns);
    for (uint32_t i = 0; i < slices; i++) {
        trib_put_u64(&writer, entry->counts[i]);
    }
    trib_assert(!writer.overflow && entry->serve == 0);
    const trib_frame frame = {
        .type = TRIB_FRAME_SERVE,
        .group = entry->group == NULL ? 0 : entry->group->ranks->id,
        .tensor = entry->id,
        .size = trib_tensor_chunk_bytes(self->roster, entry->cut->bytes, trib_registry_chunk_least(self, entry)),
        .collective = (uint8_t)entry->layout,
        .dtype = (uint8_t)entry->dtype,
        .root = entry->local_size};
    trib_assert(self->serve_first == NULL || self->serve_last->serve_next == NULL);
    entry->serve = ++self->serves;
    *(self->serve_first == NULL ? &self->serve_first : &self->serve_last->serve_next) = entry;
    self->serve_last = entry;
    send_all(self, frame, payload, writer.size);
    free(payload);
    trib_serves_check(self); /* there may be nobody to wait for */
    return TRIB_OK;
}

void trib_serve_ended(trib_coordinator *self, const trib_registry_entry *entry)
{
    trib_registry_entry *before = NULL, *at = self->serve_first;
    for (; at != NULL && at != entry; at = at->serve_next) {
        before = at;
    }
    if (at != NULL) {
        *(before == NULL ? &self->serve_first : &before->serve_next) = at->serve_next;
        self->serve_last = self->serve_last == at ? before : self->serve_last;
    }
}

static void note_lacking(const trib_coordinator *self, uint32_t member)
{
    trib_registry_entry *entry = self->serve_first;
    while (entry != NULL && entry->serve != self->slots[member].serves_answered) {
        entry = entry->serve_next;
    }
    if (entry != NULL) { /* else it has ended meanwhile */
        const size_t used = strlen(entry->lacking);
        (void)snprintf(entry->lacking + used, sizeof entry->lacking - used, "%s%s", used > 0 ? ", " : "",
                       trib_roster_name(self->roster, member));
    }
}

trib_status trib_serve_take_serving(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[member];
    if (slot->serves_answered >= slot->serves_sent) {
        return trib_error_set(error, TRIB_PROTOCOL, "SERVING without a SERVE");
    }
    trib_assert(slot->serves_sent <= self->serves);
    slot->serves_answered++;
    if (frame->aux == TRIB_SERVING_LACKS_CODEC) {
        note_lacking(self, member);
    }
    trib_serves_check(self);
    return TRIB_OK;
}
