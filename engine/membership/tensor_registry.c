/*
 * tensor_registry.c - the tensors of the job: their declarations, and the owners of their partitions.
 *
 * The first worker that declares a name defines the tensor, whose partitions are dealt out then. If another worker
 * disagrees, the tensor becomes bad for all workers.
 *
 * A worker may release a tensor and declare the name again while others have not done so. So there may be several
 * tensors of a name: the n-th DECLARE of a name by a worker is about the n-th of them. A tensor ends, bad or not, when
 * every worker has released it or has left; tensor_numbers.c has what follows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/rebalance.h"
#include "engine/link/egress.h"
#include "engine/link/link_cause.h"
#include "engine/worker/op.h"
#include "engine/cluster/tensor_owners.h"

static void send_bad(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    if (self->slots[rank].link == NULL || entry->tags[rank] >= TRIB_TAG_RELEASED) {
        return;
    }
    const trib_cause cause = trib_cause_about(TRIB_MISMATCH, TRIB_CAUSE_NOTE, TRIB_SUBJECT_TENSOR, entry->tags[rank],
                                              TRIB_NO_MEMBER, entry->bad_text);
    const trib_frame frame = {.type = TRIB_FRAME_TENSOR_BAD, .tensor = entry->tags[rank]};
    trib_link_send_cause(self->slots[rank].link, frame, &cause);
}

static void mark_bad(const trib_coordinator *self, trib_registry_entry *entry, const char *text)
{
    entry->bad = true;
    snprintf(entry->bad_text, sizeof entry->bad_text, "%s", text);
    trib_log(self->core->reactor->logger, TRIB_LOG_ERROR, "tensor \"%s\": %s", entry->name, text);
}

/* What a DECLARE says. */
typedef struct declaration {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    uint64_t count;
    uint32_t local_size;
    uint8_t dims;
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
} declaration;

static void free_entry(trib_registry_entry *entry)
{
    if (entry != NULL) {
        free(entry->owners);
        free(entry->owners_next);
        free(entry->answered);
        free(entry->tags);
        free(entry);
    }
}

static void deal_partitions(trib_coordinator *self, trib_registry_entry *entry)
{
    const uint64_t bytes = entry->count * trib_dtype_size(entry->dtype);
    trib_dealer_begin(self->dealer, bytes, entry->partition_bytes);
    for (uint32_t i = 0; i < entry->partition_count; i++) {
        uint64_t left = bytes - (uint64_t)i * entry->partition_bytes;
        entry->owners[i] =
            trib_dealer_next(self->dealer, left < entry->partition_bytes ? left : entry->partition_bytes);
    }
}

/* Adds the entry behind those of its name. Returns false if there is no memory. */
static bool link_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_entry *first = NULL;
    HASH_FIND_STR(self->registry, entry->name, first);
    if (first == NULL) {
        HASH_ADD_STR(self->registry, name, entry);
        if (entry->hh.tbl == NULL) {
            return false;
        }
    }
    for (; first != NULL; first = first->later) {
        if (first->later == NULL) {
            first->later = entry;
            break;
        }
    }
    entry->older = self->tensors_last;
    *(self->tensors_last == NULL ? &self->tensors_first : &self->tensors_last->newer) = entry;
    self->tensors_last = entry;
    self->tensors_alive++;
    return true;
}

static trib_registry_entry *new_entry(trib_coordinator *self, const declaration *what, uint32_t rank)
{
    trib_registry_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return NULL;
    }
    const uint64_t bytes = what->count * trib_dtype_size(what->dtype);
    const bool is_slow = what->local_size == 0 && trib_egress_is_slow(&self->core->host);
    entry->partition_bytes = is_slow ? trib_tensor_partition_bytes_slow(self->roster, bytes)
                                     : trib_tensor_partition_bytes(self->roster, bytes, what->local_size);
    entry->partition_count = trib_tensor_partition_count(bytes, entry->partition_bytes);
    entry->tags = malloc(self->worker_count * sizeof *entry->tags);
    entry->owners = malloc(entry->partition_count * sizeof *entry->owners);
    if (entry->tags == NULL || entry->owners == NULL || !trib_number_take(self, &entry->id)) {
        free_entry(entry);
        return NULL;
    }
    memset(entry->tags, 0xff, self->worker_count * sizeof *entry->tags); /* TRIB_TAG_NONE */
    snprintf(entry->name, sizeof entry->name, "%s", what->name);
    entry->dtype = what->dtype;
    entry->count = what->count;
    entry->local_size = what->local_size;
    entry->first_rank = rank;
    deal_partitions(self, entry);
    if (!link_entry(self, entry)) {
        trib_number_give(self, entry->id);
        free_entry(entry);
        return NULL;
    }
    return entry;
}

static trib_status send_declared(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    size_t size = trib_owners_size(entry->partition_count);
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_owners_put(&writer, entry->partition_bytes, entry->partition_count, entry->owners);
    trib_assert(!writer.overflow);
    trib_frame frame = {.type = TRIB_FRAME_DECLARED,
                        .tensor = entry->tags[rank],
                        .aux = entry->id,
                        .round = entry->id < TRIB_TENSORS_MAX ? self->numbers[entry->id].round_base : 0};
    trib_link_send_copy(self->slots[rank].link, frame, payload, size);
    free(payload);
    return TRIB_OK;
}

/* Writes "float32[2x5]", followed by the place of a tensor on devices. */
static void describe(char text[TRIB_TENSOR_TEXT_SIZE + 32], trib_dtype dtype, uint64_t count, uint32_t dims,
                     const uint64_t *shape, uint32_t local_size)
{
    trib_tensor_describe(text, TRIB_TENSOR_TEXT_SIZE, dtype, count, dims, shape);
    if (local_size > 0) {
        const size_t length = strlen(text);
        snprintf(text + length, TRIB_TENSOR_TEXT_SIZE + 32 - length, " on devices, %u a machine", local_size);
    }
}

static void disagree(trib_coordinator *self, trib_registry_entry *entry, const declaration *what, uint32_t rank)
{
    char one[TRIB_TENSOR_TEXT_SIZE + 32], other[TRIB_TENSOR_TEXT_SIZE + 32], text[TRIB_ERROR_TEXT_SIZE];
    /* Shapes are part of the texts if they are all that differs. */
    const bool is_shape =
        entry->dtype == what->dtype && entry->count == what->count && entry->local_size == what->local_size;
    const uint32_t first = is_shape ? entry->shape_rank : entry->first_rank;
    describe(one, entry->dtype, entry->count, is_shape ? entry->dims : 0, entry->shape, entry->local_size);
    describe(other, what->dtype, what->count, is_shape ? what->dims : 0, what->shape, what->local_size);
    snprintf(text, sizeof text, "%s declared it as %s, %s as %s", trib_roster_name(self->roster, first), one,
             trib_roster_name(self->roster, rank), other);
    mark_bad(self, entry, text);
    for (uint32_t i = 0; i < self->worker_count; i++) {
        if (i != rank) {
            send_bad(self, entry, i);
        }
    }
}

static bool is_same(const trib_registry_entry *entry, const declaration *what)
{
    return entry->dtype == what->dtype && entry->count == what->count && entry->local_size == what->local_size &&
           (entry->dims == 0 || what->dims == 0 ||
            (entry->dims == what->dims && memcmp(entry->shape, what->shape, what->dims * sizeof *what->shape) == 0));
}

static trib_status read_declaration(const trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                    const void *payload, declaration *what, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, what->name, sizeof what->name);
    what->dtype = (trib_dtype)trib_get_u8(&reader);
    what->count = trib_get_u64(&reader);
    what->local_size = frame->root;
    what->dims = trib_get_u8(&reader);
    for (uint32_t i = 0; i < what->dims && i < TRIB_TENSOR_DIMS_MAX; i++) {
        what->shape[i] = trib_get_u64(&reader);
    }
    trib_status status = trib_get_end(&reader, "DECLARE", error);
    if (status != TRIB_OK) {
        return status;
    }
    const size_t element = trib_dtype_size(what->dtype);
    if (element == 0 || rank >= self->worker_count || what->count > TRIB_TENSOR_BYTES_MAX / element ||
        what->dims > TRIB_TENSOR_DIMS_MAX || what->local_size > self->worker_count ||
        (what->local_size > 0 && self->worker_count % what->local_size != 0)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "DECLARE of what cannot be: type %d, %llu elements, %u dimensions, member %u, %u local "
                              "ranks",
                              (int)what->dtype, (unsigned long long)what->count, what->dims, rank, what->local_size);
    }
    return TRIB_OK;
}

/* Remembers which tensor the rank's tag stands for. */
static trib_status note_tag(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank, uint32_t tag,
                            trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[rank];
    if (tag > TRIB_TENSORS_MAX || (tag < slot->tensors_capacity && slot->tensors[tag] != NULL)) {
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
    slot->tensors[tag] = entry;
    entry->tags[rank] = tag;
    entry->declared_count++;
    return TRIB_OK;
}

/* Returns the oldest tensor of the name that the rank has not declared, or NULL. */
static trib_registry_entry *find_undeclared(const trib_coordinator *self, const char *name, uint32_t rank)
{
    trib_registry_entry *entry = NULL;
    HASH_FIND_STR(self->registry, name, entry);
    while (entry != NULL && entry->tags[rank] != TRIB_TAG_NONE) {
        entry = entry->later;
    }
    return entry;
}

trib_status trib_registry_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       const void *payload, trib_error *error)
{
    declaration what;
    trib_status status = read_declaration(self, rank, frame, payload, &what, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_registry_entry *entry = find_undeclared(self, what.name, rank);
    if (entry == NULL) {
        entry = new_entry(self, &what, rank);
        if (entry != NULL && entry->id >= TRIB_TENSORS_MAX) {
            mark_bad(self, entry, "the job has as many tensors as it can have");
        }
    }
    if (entry == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", what.name);
    }
    status = note_tag(self, entry, rank, frame->tensor, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!entry->bad && !is_same(entry, &what)) {
        disagree(self, entry, &what, rank);
    }
    if (entry->dims == 0 && what.dims > 0) {
        entry->dims = what.dims;
        entry->shape_rank = rank;
        memcpy(entry->shape, what.shape, sizeof entry->shape);
    }
    if (entry->bad) {
        send_bad(self, entry, rank);
        return TRIB_OK;
    }
    return send_declared(self, entry, rank);
}

/* ---- The end of a tensor ---- */

static bool is_over(const trib_coordinator *self, const trib_registry_entry *entry)
{
    if (self->workers_left == 0 || entry->released_count == self->worker_count) {
        return entry->released_count == self->worker_count;
    }
    for (uint32_t i = 0; i < self->worker_count; i++) {
        if (entry->tags[i] != TRIB_TAG_RELEASED && !self->slots[i].left) {
            return false;
        }
    }
    return true;
}

static void end_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_entry *first = NULL;
    HASH_FIND_STR(self->registry, entry->name, first);
    /* Workers declare and release the tensors of a name in turn, so the oldest one mostly ends first. */
    if (first == entry) {
        HASH_DEL(self->registry, entry);
        if (entry->later != NULL) {
            HASH_ADD_STR(self->registry, name, entry->later);
        }
    } else {
        while (first != NULL && first->later != entry) {
            first = first->later;
        }
        trib_assert(first != NULL);
        first->later = entry->later;
    }
    *(entry->older == NULL ? &self->tensors_first : &entry->older->newer) = entry->newer;
    *(entry->newer == NULL ? &self->tensors_last : &entry->newer->older) = entry->older;
    self->tensors_alive--;
    for (uint32_t i = 0; i < self->worker_count; i++) { /* of those that left without releasing it */
        if (entry->tags[i] < TRIB_TAG_RELEASED) {
            self->slots[i].tensors[entry->tags[i]] = NULL;
        }
    }
    trib_rebalance_ended(self, entry);
    trib_number_end(self, entry->id, entry->rounds, entry->partition_count);
    free_entry(entry);
}

trib_status trib_registry_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[rank];
    trib_registry_entry *entry = frame->tensor < slot->tensors_capacity ? slot->tensors[frame->tensor] : NULL;
    if (entry == NULL || frame->round > TRIB_ROUNDS_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "RELEASE of what was not declared, or after %u rounds",
                              frame->round);
    }
    slot->tensors[frame->tensor] = NULL;
    entry->tags[rank] = TRIB_TAG_RELEASED;
    entry->released_count++;
    entry->rounds = frame->round > entry->rounds ? frame->round : entry->rounds;
    trib_link_send_copy(slot->link, (trib_frame){.type = TRIB_FRAME_RELEASED, .tensor = frame->tensor}, NULL, 0);
    trib_rebalance_released(self, entry, rank);
    if (is_over(self, entry)) {
        end_entry(self, entry);
    }
    return TRIB_OK;
}

void trib_registry_member_left(trib_coordinator *self)
{
    trib_registry_entry *next;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL && self->workers_left > 0; entry = next) {
        next = entry->newer;
        if (is_over(self, entry)) {
            end_entry(self, entry);
        }
    }
}

void trib_registry_clear(trib_coordinator *self)
{
    HASH_CLEAR(hh, self->registry);
    while (self->tensors_first != NULL) {
        trib_registry_entry *entry = self->tensors_first;
        self->tensors_first = entry->newer;
        free_entry(entry);
    }
    self->tensors_last = NULL;
    self->tensors_alive = 0;
    free(self->numbers);
    self->numbers = NULL;
}
