/*
 * tensor_declaration.c - reads a worker's DECLARE of a tensor, and compares it with that of the tensor's first worker.
 */
#include "engine/membership/tensor_declaration.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/worker/op.h"

/* Returns false if there cannot be such a tensor. */
static bool read_fields(const trib_coordinator *self, const trib_frame *frame, trib_reader *reader,
                        trib_declaration *what)
{
    trib_get_text(reader, what->name, sizeof what->name);
    what->dtype = (trib_dtype)trib_get_u8(reader);
    what->count = trib_get_u64(reader);
    what->layout = (trib_layout)trib_get_u8(reader);
    what->row = trib_get_u64(reader);
    what->dims = trib_get_u8(reader);
    for (uint32_t i = 0; i < what->dims && i < TRIB_TENSOR_DIMS_MAX; i++) {
        what->shape[i] = trib_get_u64(reader);
    }
    trib_get_text(reader, what->codec, sizeof what->codec);
    what->quorum = trib_get_u32(reader);
    what->quorum_timeout_ns = (int64_t)trib_get_u64(reader);
    what->split_count = trib_get_u32(reader);
    what->local_size = frame->root;
    what->group = trib_groups_find(self, frame->group);
    const size_t element = trib_dtype_size(what->dtype);
    const uint32_t sharers = what->group == NULL ? self->worker_count : what->group->ranks->count;
    return !reader->failed && element != 0 && what->dims <= TRIB_TENSOR_DIMS_MAX &&
           what->count <= TRIB_TENSOR_BYTES_MAX / element && what->local_size <= self->worker_count &&
           (what->local_size == 0 || self->worker_count % what->local_size == 0) &&
           (unsigned)what->layout <= TRIB_PAIRS && what->row > 0 && (frame->group == 0 || what->group != NULL) &&
           (what->layout == TRIB_WHOLE || what->local_size == 0) &&
           (what->quorum == 0 || (what->layout == TRIB_WHOLE && what->local_size == 0 && what->group == NULL &&
                                  what->quorum_timeout_ns >= 0)) &&
           what->split_count == (what->layout == TRIB_PAIRS ? sharers : 0);
}

/* The splits are all that the reader has left. */
static trib_status check_end(const trib_reader *reader, uint32_t split_count, trib_error *error)
{
    trib_reader rest = *reader;
    const size_t size = (size_t)split_count * sizeof(uint64_t);
    rest.failed = rest.failed || rest.left < size;
    rest.left -= rest.failed ? rest.left : size;
    return trib_get_end(&rest, "DECLARE", error);
}

trib_status trib_declaration_read(const trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                  trib_reader *reader, trib_declaration *what, trib_error *error)
{
    const bool is_possible = read_fields(self, frame, reader, what);
    const trib_status form = check_end(reader, what->split_count, error);
    if (form != TRIB_OK) {
        return form;
    }
    if (!is_possible || rank >= self->worker_count ||
        (what->group != NULL && trib_rank_set_index(what->group->ranks, rank) == TRIB_RANK_ABSENT)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "DECLARE of what cannot be: type %d, %llu elements, member %u, %u local ranks",
                              (int)what->dtype, (unsigned long long)what->count, rank, what->local_size);
    }
    return TRIB_OK;
}

void trib_declaration_key(const trib_declaration *what, char *text, size_t size)
{
    snprintf(text, size, "%u/%s", what->group == NULL ? 0 : what->group->ranks->id, what->name);
}

/* Writes "float32[10]" or "float32[2x5]", followed by the layout, the row, and the place of a tensor on devices. */
static void describe(char *text, size_t size, const trib_declaration *what)
{
    static const char *const layouts[] = {"", " in slices", " in pairs"};
    if (strncmp(what->name, TRIB_BYTES_NAME, strlen(TRIB_BYTES_NAME)) == 0 && what->dims == 2) {
        if (what->shape[1] == 0) {
            snprintf(text, size, "bytes gathered by all");
        } else {
            snprintf(text, size, "bytes broadcast by root %llu", (unsigned long long)what->shape[1] - 1);
        }
        return;
    }
    if (what->layout == TRIB_WHOLE || what->dims > 0) {
        trib_tensor_describe(text, size, what->dtype, what->count, what->dims, what->shape);
    } else {
        snprintf(text, size, "%s", trib_dtype_name(what->dtype));
    }
    int length = (int)strlen(text);
    length += snprintf(text + length, size - (size_t)length, "%s", layouts[what->layout]);
    if (what->row > 1) {
        length += snprintf(text + length, size - (size_t)length, " of rows of %llu", (unsigned long long)what->row);
    }
    if (strcmp(what->codec, "none") != 0) {
        length += snprintf(text + length, size - (size_t)length, " with codec \"%s\"", what->codec);
    }
    if (what->quorum > 0) {
        length += snprintf(text + length, size - (size_t)length, " with a quorum of %u after %.3f s", what->quorum,
                           (double)what->quorum_timeout_ns / 1e9);
    }
    if (what->local_size > 0) {
        snprintf(text + length, size - (size_t)length, " on devices, %u a machine", what->local_size);
    }
}

static bool is_same_but_shape(const trib_registry_entry *entry, const trib_declaration *what)
{
    return entry->dtype == what->dtype && entry->local_size == what->local_size && entry->layout == what->layout &&
           strcmp(entry->codec, what->codec) == 0 && entry->row == what->row && entry->quorum == what->quorum &&
           entry->quorum_timeout_ns == what->quorum_timeout_ns &&
           (entry->layout != TRIB_WHOLE || entry->count == what->count);
}

bool trib_declaration_is_same(const trib_registry_entry *entry, const trib_declaration *what)
{
    /* Slices may have different lengths, which is their first dimension. */
    const uint32_t first = entry->layout == TRIB_WHOLE ? 0 : 1;
    bool same = is_same_but_shape(entry, what);
    if (entry->dims > 0 && what->dims > 0) {
        same = same && entry->dims == what->dims;
        for (uint32_t i = first; same && i < what->dims; i++) {
            same = entry->shape[i] == what->shape[i];
        }
    }
    return same;
}

void trib_declaration_compare(const trib_coordinator *self, const trib_registry_entry *entry,
                              const trib_declaration *what, uint32_t rank, char *text, size_t size)
{
    char one[TRIB_TENSOR_TEXT_SIZE + TRIB_CODEC_TEXT_SIZE + 80], other[sizeof one];
    trib_assert(!trib_declaration_is_same(entry, what));
    /* Shapes are part of the texts if they are all that differs. */
    const bool is_shape = is_same_but_shape(entry, what);
    trib_declaration first = {.dtype = entry->dtype,
                              .count = entry->count,
                              .layout = entry->layout,
                              .row = entry->row,
                              .local_size = entry->local_size,
                              .quorum = entry->quorum,
                              .quorum_timeout_ns = entry->quorum_timeout_ns,
                              .dims = is_shape ? entry->dims : 0};
    trib_declaration second = *what;
    memcpy(first.shape, entry->shape, sizeof first.shape);
    memcpy(first.codec, entry->codec, sizeof first.codec);
    memcpy(first.name, what->name, sizeof first.name);
    second.dims = is_shape ? what->dims : 0;
    describe(one, sizeof one, &first);
    describe(other, sizeof other, &second);
    snprintf(text, size, "%s declared it as %s, %s as %s",
             trib_roster_name(self->roster, is_shape ? entry->shape_rank : entry->first_rank), one,
             trib_roster_name(self->roster, rank), other);
}
