/* uneven_inputs.c - see uneven_inputs.h. */
#include "engine/membership/uneven_inputs.h"

#include "engine/base/assert.h"
#include "engine/membership/waits.h"

static void raise_count(uint32_t *count, uint32_t to)
{
    *count = *count < to ? to : *count;
}

/* ---- The end ---- */

typedef struct outgoing {
    const trib_coordinator *self;
    uint32_t rank;
    trib_writer writer;
} outgoing;

static void flush_entries(outgoing *out, uint32_t chunk)
{
    const trib_uneven_inputs_state *uneven = &out->self->uneven;
    const trib_frame frame = {.type = TRIB_FRAME_JOIN_OVER, .aux = uneven->last, .root = uneven->left, .chunk = chunk};
    trib_link_send_copy(out->self->slots[out->rank].link, frame, out->writer.data, out->writer.size);
    out->writer.size = 0;
}

static void put_entry(outgoing *out, trib_join_entry kind, uint32_t number, uint32_t count)
{
    if (count == 0) {
        return;
    }
    if (out->writer.capacity - out->writer.size < TRIB_JOIN_ENTRY_BYTES) {
        flush_entries(out, 0);
    }
    trib_put_u32(&out->writer, (uint32_t)kind);
    trib_put_u32(&out->writer, number);
    trib_put_u32(&out->writer, count);
}

static void tell_over(const trib_coordinator *self, uint32_t rank)
{
    const trib_coordinator_slot *slot = &self->slots[rank];
    if (slot->link == NULL) {
        return;
    }
    unsigned char payload[1024 * TRIB_JOIN_ENTRY_BYTES];
    outgoing out = {.self = self, .rank = rank, .writer = {.data = payload, .capacity = sizeof payload}};
    put_entry(&out, TRIB_JOIN_ONCE, 0, self->uneven.once);
    for (uint32_t i = 0; i < TRIB_GROUPS_MAX; i++) {
        put_entry(&out, TRIB_JOIN_BYTES, i, self->uneven.bytes[i]);
    }
    for (uint32_t tag = 0; tag < slot->tensors_capacity; tag++) {
        const trib_registry_entry *entry = slot->tensors[tag];
        if (entry != NULL && entry->is_known && !entry->bad) {
            put_entry(&out, TRIB_JOIN_TENSOR, tag, entry->join_round);
        }
    }
    flush_entries(&out, TRIB_JOIN_LAST);
}

static void finish_join(trib_coordinator *self)
{
    trib_uneven_inputs_state *uneven = &self->uneven;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].join_unheard && self->slots[i].link != NULL) {
            return;
        }
    }
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        raise_count(&entry->join_round, entry->join_round_next);
    }
    trib_waits_clear(self);
    for (uint32_t rank = 0; rank < self->worker_count; rank++) {
        if (self->slots[rank].is_out_of_data) {
            self->slots[rank].is_out_of_data = false;
            tell_over(self, rank);
        }
    }
    uneven->count = 0;
    uneven->left = 0;
    uneven->is_ending = false;
}

static void send_to_all(const trib_coordinator *self, const trib_frame *frame, trib_writer *writer)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) {
            trib_link_send_copy(self->slots[i].link, *frame, writer->data, writer->size);
        }
    }
    writer->size = 0;
}

static void tell_joined(const trib_coordinator *self, uint32_t rank)
{
    unsigned char payload[1024 * TRIB_JOINED_ENTRY_BYTES];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_frame frame = {.type = TRIB_FRAME_JOINED, .aux = rank};
    for (const trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        if (entry->given_up == NULL || entry->given_up[rank] == 0) {
            continue;
        }
        if (writer.size == sizeof payload) {
            send_to_all(self, &frame, &writer);
        }
        trib_put_u32(&writer, entry->id);
        trib_put_u32(&writer, entry->given_up[rank]);
    }
    frame.chunk = TRIB_JOIN_LAST;
    send_to_all(self, &frame, &writer);
}

static void tell_nobody_joined(trib_coordinator *self)
{
    const trib_frame frame = {.type = TRIB_FRAME_JOINED, .aux = self->uneven.last, .root = TRIB_JOINED_NOBODY};
    trib_writer nothing = {.data = NULL};
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        self->slots[i].join_unheard = self->slots[i].link != NULL;
    }
    send_to_all(self, &frame, &nothing);
}

void trib_uneven_inputs_check(trib_coordinator *self)
{
    trib_uneven_inputs_state *uneven = &self->uneven;
    if (uneven->count == 0 || self->over) {
        return;
    }
    for (uint32_t rank = 0; rank < self->worker_count && uneven->left == 0; rank++) {
        uneven->left = self->slots[rank].left ? rank + 1 : 0;
    }
    if (!uneven->is_ending && (uneven->left != 0 || uneven->count == self->worker_count)) {
        uneven->is_ending = true;
        tell_nobody_joined(self);
    }
    if (uneven->is_ending) {
        finish_join(self);
    }
}

/* ---- A worker has no more data ---- */

static trib_status take_entry(trib_coordinator *self, uint32_t rank, trib_reader *reader)
{
    const trib_coordinator_slot *slot = &self->slots[rank];
    const uint32_t kind = trib_get_u32(reader), number = trib_get_u32(reader), count = trib_get_u32(reader);
    trib_registry_entry *entry = trib_slot_entry(slot, number);
    if (kind == TRIB_JOIN_ONCE) {
        raise_count(&self->uneven.once, count);
    } else if (kind == TRIB_JOIN_BYTES && number < TRIB_GROUPS_MAX) {
        raise_count(&self->uneven.bytes[number], count);
    } else if (kind == TRIB_JOIN_TENSOR && entry != NULL && count <= TRIB_ROUNDS_MAX) {
        raise_count(&entry->join_round_next, count);
    } else if (kind == TRIB_JOIN_GIVEN_UP && entry != NULL) {
        return trib_registry_note_given_up(self, entry, rank, count) ? TRIB_OK : TRIB_NO_MEMORY;
    } else {
        return TRIB_PROTOCOL;
    }
    return TRIB_OK;
}

static trib_status take_done(trib_coordinator *self, uint32_t rank, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[rank];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    const bool is_possible = !slot->is_out_of_data && frame->payload_size % TRIB_JOIN_ENTRY_BYTES == 0;
    trib_status status = is_possible ? TRIB_OK : TRIB_PROTOCOL;
    while (status == TRIB_OK && reader.left > 0) {
        status = take_entry(self, rank, &reader);
    }
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "JOIN_DONE of %s: %s", trib_roster_name(self->roster, rank),
                              status == TRIB_PROTOCOL ? "malformed" : "out of memory for rounds that it has given up");
    }
    if (frame->aux != TRIB_JOIN_LAST || slot->left) {
        return TRIB_OK;
    }
    slot->is_out_of_data = true;
    self->uneven.count++;
    self->uneven.last = rank;
    if (!self->uneven.is_ending) {
        tell_joined(self, rank);
    }
    trib_registry_worker_joined(self, rank);
    trib_uneven_inputs_check(self);
    return TRIB_OK;
}

trib_status trib_uneven_inputs_take(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                    const void *payload, trib_error *error)
{
    const bool may_join = self->running && !self->roster->survives && !self->roster->shrinks;
    if (frame->type == TRIB_FRAME_JOIN_DONE && may_join && member < self->worker_count) {
        return take_done(self, member, frame, payload, error);
    }
    if (frame->type == TRIB_FRAME_JOIN_HEARD) {
        self->slots[member].join_unheard = false;
        trib_uneven_inputs_check(self);
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a member", trib_frame_name(frame->type));
}
