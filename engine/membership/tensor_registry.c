/*
 * tensor_registry.c - the tensors of the job: their declarations, and the owners of their partitions.
 *
 * The first worker that declares a name defines the tensor, whose partitions are dealt out then. If another worker
 * disagrees, the tensor becomes bad for all workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/link/egress.h"
#include "engine/link/link_cause.h"
#include "engine/worker/op.h"
#include "engine/cluster/tensor_owners.h"

static void send_bad(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    if (self->slots[rank].link == NULL || entry->tags[rank] == UINT32_MAX) {
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

static trib_registry_entry *new_entry(trib_coordinator *self, const char *name, trib_dtype dtype, uint64_t count,
                                      uint32_t local_size, uint32_t rank)
{
    trib_registry_entry *entry = calloc(1, sizeof *entry);
    uint32_t *tags = malloc(self->worker_count * sizeof *tags);
    uint64_t bytes = count * trib_dtype_size(dtype);
    const bool is_slow = local_size == 0 && trib_egress_is_slow(&self->core->host);
    uint32_t partition_bytes = is_slow ? trib_tensor_partition_bytes_slow(self->roster, bytes)
                                       : trib_tensor_partition_bytes(self->roster, bytes, local_size);
    uint32_t partitions = trib_tensor_partition_count(bytes, partition_bytes);
    trib_place_owner *owners = malloc(partitions * sizeof *owners);
    if (entry == NULL || tags == NULL || owners == NULL) {
        free(entry);
        free(tags);
        free(owners);
        return NULL;
    }
    trib_dealer_begin(self->dealer, bytes, partition_bytes);
    for (uint32_t i = 0; i < partitions; i++) {
        uint64_t left = bytes - (uint64_t)i * partition_bytes;
        owners[i] = trib_dealer_next(self->dealer, left < partition_bytes ? left : partition_bytes);
    }
    memset(tags, 0xff, self->worker_count * sizeof *tags);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->dtype = dtype;
    entry->count = count;
    entry->local_size = local_size;
    entry->id = self->registry_count++;
    entry->first_rank = rank;
    entry->owners = owners;
    entry->partition_count = partitions;
    entry->partition_bytes = partition_bytes;
    entry->tags = tags;
    HASH_ADD_STR(self->registry, name, entry);
    if (entry->hh.tbl == NULL) {
        free(entry);
        free(tags);
        free(owners);
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
    trib_frame frame = {.type = TRIB_FRAME_DECLARED, .tensor = entry->tags[rank], .aux = entry->id};
    trib_link_send_copy(self->slots[rank].link, frame, payload, size);
    free(payload);
    return TRIB_OK;
}

/* Writes "float32[10]", followed by the place of a tensor on devices. */
static void describe(char *text, size_t size, trib_dtype dtype, uint64_t count, uint32_t local_size)
{
    int length = snprintf(text, size, "%s[%llu]", trib_dtype_name(dtype), (unsigned long long)count);
    if (local_size > 0 && length > 0 && (size_t)length < size) {
        snprintf(text + length, size - (size_t)length, " on devices, %u a machine", local_size);
    }
}

static void disagree(trib_coordinator *self, trib_registry_entry *entry, trib_dtype dtype, uint64_t count,
                     uint32_t local_size, uint32_t rank)
{
    char one[96], other[96], text[TRIB_ERROR_TEXT_SIZE];
    describe(one, sizeof one, entry->dtype, entry->count, entry->local_size);
    describe(other, sizeof other, dtype, count, local_size);
    snprintf(text, sizeof text, "%s declared it as %s, %s as %s", trib_roster_name(self->roster, entry->first_rank),
             one, trib_roster_name(self->roster, rank), other);
    mark_bad(self, entry, text);
    for (uint32_t i = 0; i < self->worker_count; i++) {
        if (i != rank) {
            send_bad(self, entry, i);
        }
    }
}

trib_status trib_registry_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       const void *payload, trib_error *error)
{
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, name, sizeof name);
    trib_dtype dtype = (trib_dtype)trib_get_u8(&reader);
    uint64_t count = trib_get_u64(&reader);
    const uint32_t local_size = frame->root;
    trib_status status = trib_get_end(&reader, "DECLARE", error);
    if (status != TRIB_OK) {
        return status;
    }
    const size_t element = trib_dtype_size(dtype);
    if (element == 0 || rank >= self->worker_count || count > TRIB_TENSOR_BYTES_MAX / element ||
        local_size > self->worker_count || (local_size > 0 && self->worker_count % local_size != 0)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "DECLARE of what cannot be: type %d, %llu elements, member %u, %u local ranks",
                              (int)dtype, (unsigned long long)count, rank, local_size);
    }
    trib_registry_entry *entry = NULL;
    HASH_FIND_STR(self->registry, name, entry);
    if (entry == NULL) {
        entry = new_entry(self, name, dtype, count, local_size, rank);
        if (entry != NULL && entry->id >= TRIB_TENSORS_MAX) {
            mark_bad(self, entry, "the job has as many tensors as it can have");
        }
    }
    if (entry == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", name);
    }
    if (entry->tags[rank] != UINT32_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" declared twice", name);
    }
    entry->tags[rank] = frame->tensor;
    entry->declared_count++;
    if (!entry->bad && (entry->dtype != dtype || entry->count != count || entry->local_size != local_size)) {
        disagree(self, entry, dtype, count, local_size, rank);
    }
    if (entry->bad) {
        send_bad(self, entry, rank);
        return TRIB_OK;
    }
    return send_declared(self, entry, rank);
}

void trib_registry_clear(trib_coordinator *self)
{
    trib_registry_entry *entry = self->registry, *next;
    HASH_CLEAR(hh, self->registry); /* the entries stay linked in the order of their declaration */
    for (; entry != NULL; entry = next) {
        next = entry->hh.next;
        free(entry->owners);
        free(entry->owners_next);
        free(entry->answered);
        free(entry->tags);
        free(entry);
    }
}
