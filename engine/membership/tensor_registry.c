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
#include "engine/membership/rebalance.h"
#include "engine/link/egress.h"
#include "engine/link/link_cause.h"
#include "engine/worker/op.h"
#include "engine/cluster/tensor_owners.h"

/* What a DECLARE says, but for its splits. */
typedef struct trib_declaration {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    uint64_t count, row;
    trib_layout layout;
    uint32_t split_count, local_size;
    uint8_t dims;
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    trib_group_entry *group;
} trib_declaration;

static void make_key(const trib_declaration *what, char *text, size_t size)
{
    snprintf(text, size, "%u/%s", what->group == NULL ? 0 : what->group->ranks->id, what->name);
}

static void send_bad(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    if (self->slots[rank].link == NULL || entry->tags[rank] >= TRIB_TAG_RELEASED) {
        return;
    }
    const trib_cause cause = trib_cause_about(entry->bad_status, TRIB_CAUSE_NOTE, TRIB_SUBJECT_TENSOR,
                                              entry->tags[rank], TRIB_NO_MEMBER, entry->bad_text);
    const trib_frame frame = {.type = TRIB_FRAME_TENSOR_BAD, .tensor = entry->tags[rank]};
    trib_link_send_cause(self->slots[rank].link, frame, &cause);
}

static void mark_bad(const trib_coordinator *self, trib_registry_entry *entry, trib_status status, const char *text)
{
    entry->bad = true;
    entry->bad_status = status;
    snprintf(entry->bad_text, sizeof entry->bad_text, "%s", text);
    trib_log(self->core->reactor->logger, status == TRIB_PEER_LEFT ? TRIB_LOG_WARN : TRIB_LOG_ERROR,
             "tensor \"%s\": %s", entry->name, text);
}

/* The number of workers that share the tensor, and a worker's place among them. */
static uint32_t sharers_of(const trib_coordinator *self, const trib_registry_entry *entry)
{
    return entry->group == NULL ? self->worker_count : entry->group->ranks->count;
}

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
    free(entry->counts);
    free(entry->cut);
    free(entry);
}

/* Adds the entry behind those of its name. Returns false if there is no memory. */
static bool link_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_entry *first = NULL;
    HASH_FIND_STR(self->registry, entry->table_key, first);
    if (first == NULL) {
        HASH_ADD_STR(self->registry, table_key, entry);
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

static trib_registry_entry *new_entry(trib_coordinator *self, const trib_declaration *what, uint32_t rank)
{
    trib_registry_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return NULL;
    }
    snprintf(entry->name, sizeof entry->name, "%s", what->name);
    make_key(what, entry->table_key, sizeof entry->table_key);
    entry->dtype = what->dtype;
    entry->count = what->count;
    entry->local_size = what->local_size;
    entry->group = what->group;
    entry->layout = what->layout;
    entry->row = what->row;
    entry->first_rank = rank;
    entry->tags = malloc(self->worker_count * sizeof *entry->tags);
    entry->counts = calloc(trib_cut_slices(what->layout, sharers_of(self, entry)), sizeof *entry->counts);
    if (entry->tags == NULL || entry->counts == NULL || !trib_number_take(self, &entry->id)) {
        free_entry(entry);
        return NULL;
    }
    memset(entry->tags, 0xff, self->worker_count * sizeof *entry->tags); /* TRIB_TAG_NONE */
    if (!link_entry(self, entry)) {
        trib_number_give(self, entry->id);
        free_entry(entry);
        return NULL;
    }
    return entry;
}

/* ---- Placement ---- */

/* A slice is summed or handed out by the worker that it belongs to or goes to, if that one sums at all: then it crosses
 * the network once. *is_bound is false if the slice may be anywhere. */
static trib_place_owner slice_owner(const trib_coordinator *self, const trib_registry_entry *entry, uint32_t slice,
                                    uint32_t turn, bool *is_bound)
{
    const uint32_t place = entry->layout == TRIB_PAIRS ? slice % sharers_of(self, entry) : slice;
    const uint32_t rank = entry->group == NULL ? place : entry->group->ranks->ranks[place];
    const trib_member_info *info = &self->roster->members[rank];
    *is_bound = entry->layout != TRIB_WHOLE && info->sums;
    return (trib_place_owner){.member = (uint16_t)rank, .reactor = (uint16_t)(turn % info->reactors)};
}

static bool deal_partitions(trib_coordinator *self, trib_registry_entry *entry)
{
    const trib_cut *cut = entry->cut;
    entry->owners = malloc((cut->partition_count > 0 ? cut->partition_count : 1) * sizeof *entry->owners);
    if (entry->owners == NULL) {
        return false;
    }
    trib_dealer *dealer = entry->group != NULL && entry->group->dealer != NULL ? entry->group->dealer : self->dealer;
    trib_dealer_begin(dealer, cut->bytes, cut->partition_bytes);
    for (uint32_t i = 0; i < cut->partition_count; i++) {
        bool is_bound = false;
        const uint32_t slice = trib_cut_find(cut, i);
        entry->owners[i] = slice_owner(self, entry, slice, slice + i - cut->slices[slice].first, &is_bound);
        if (!is_bound) {
            entry->owners[i] = trib_dealer_next(dealer, trib_cut_size(cut, i));
        }
    }
    entry->partition_count = cut->partition_count;
    entry->partition_bytes = cut->partition_bytes;
    return true;
}

/* Returns false if memory runs out. A tensor that is too large becomes bad. */
static bool place(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_cut *cut =
        trib_cut_create(entry->layout, sharers_of(self, entry), entry->counts, trib_dtype_size(entry->dtype));
    if (cut == NULL) {
        return false;
    }
    if (cut->bytes > TRIB_TENSOR_BYTES_MAX || cut->slice_count > TRIB_PARTITIONS_MAX ||
        (size_t)cut->slice_count * 8 > TRIB_PAYLOAD_MAX / 2) {
        free(cut);
        mark_bad(self, entry, TRIB_MISMATCH, "its slices are too many, or have more than 2^44 bytes together");
        return true;
    }
    const bool is_slow = entry->local_size == 0 && trib_egress_is_slow(&self->core->host);
    trib_cut_into(cut, is_slow ? trib_tensor_partition_bytes_slow(self->roster, cut->bytes)
                               : trib_tensor_partition_bytes(self->roster, cut->bytes, entry->local_size));
    entry->cut = cut;
    return deal_partitions(self, entry);
}

static trib_status send_declared(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    const uint32_t slices = entry->cut->slice_count;
    size_t size = trib_owners_size(entry->partition_count) + (size_t)slices * 8;
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_owners_put(&writer, entry->partition_bytes, entry->partition_count, entry->owners);
    for (uint32_t i = 0; i < slices; i++) {
        trib_put_u64(&writer, entry->counts[i]);
    }
    trib_assert(!writer.overflow);
    trib_frame frame = {.type = TRIB_FRAME_DECLARED,
                        .tensor = entry->tags[rank],
                        .aux = entry->id,
                        .round = entry->id < TRIB_TENSORS_MAX ? self->numbers[entry->id].round_base : 0};
    trib_link_send_copy(self->slots[rank].link, frame, payload, size);
    free(payload);
    return TRIB_OK;
}

/* Writes "float32[10]" or "float32[2x5]", followed by the layout, the row, and the place of a tensor on devices. */
static void describe(char *text, size_t size, const trib_declaration *what)
{
    static const char *const layouts[] = {"", " in slices", " in pairs"};
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
    if (what->local_size > 0) {
        snprintf(text + length, size - (size_t)length, " on devices, %u a machine", what->local_size);
    }
}

static bool is_same_but_shape(const trib_registry_entry *entry, const trib_declaration *what)
{
    return entry->dtype == what->dtype && entry->local_size == what->local_size && entry->layout == what->layout &&
           entry->row == what->row && (entry->layout != TRIB_WHOLE || entry->count == what->count);
}

/* Shapes are compared only if both are given. Slices may have different lengths, which is their first dimension. */
static bool is_same(const trib_registry_entry *entry, const trib_declaration *what)
{
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

static void disagree(trib_coordinator *self, trib_registry_entry *entry, const trib_declaration *what, uint32_t rank)
{
    char one[TRIB_TENSOR_TEXT_SIZE + 64], other[TRIB_TENSOR_TEXT_SIZE + 64], text[TRIB_ERROR_TEXT_SIZE];
    /* Shapes are part of the texts if they are all that differs. */
    const bool is_shape = is_same_but_shape(entry, what);
    trib_declaration first = {.dtype = entry->dtype,
                              .count = entry->count,
                              .layout = entry->layout,
                              .row = entry->row,
                              .local_size = entry->local_size,
                              .dims = is_shape ? entry->dims : 0};
    trib_declaration second = *what;
    memcpy(first.shape, entry->shape, sizeof first.shape);
    second.dims = is_shape ? what->dims : 0;
    describe(one, sizeof one, &first);
    describe(other, sizeof other, &second);
    snprintf(text, sizeof text, "%s declared it as %s, %s as %s",
             trib_roster_name(self->roster, is_shape ? entry->shape_rank : entry->first_rank), one,
             trib_roster_name(self->roster, rank), other);
    mark_bad(self, entry, TRIB_MISMATCH, text);
}

/* Reads the declaration but for its splits, which the reader has next. */
static bool read_declaration(const trib_coordinator *self, const trib_frame *frame, trib_reader *reader,
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
           what->split_count == (what->layout == TRIB_PAIRS ? sharers : 0);
}

/* Takes the lengths of the worker's slices. */
static void take_counts(const trib_coordinator *self, trib_registry_entry *entry, const trib_declaration *what,
                        uint32_t at, trib_reader *reader)
{
    const uint32_t n = sharers_of(self, entry);
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

/* Answers a declaration. A whole tensor is placed when the first worker declares it, any other one when all have. */
static trib_status answer(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank)
{
    const bool is_complete = entry->declared_count == sharers_of(self, entry);
    if (!entry->bad && entry->cut == NULL && (entry->layout == TRIB_WHOLE || is_complete)) {
        if (!place(self, entry)) {
            return TRIB_NO_MEMORY;
        }
    }
    trib_status status = TRIB_OK;
    const bool to_all = entry->layout != TRIB_WHOLE && is_complete;
    for (uint32_t i = 0; i < self->worker_count && status == TRIB_OK && !entry->bad && entry->cut != NULL; i++) {
        if ((to_all || i == rank) && entry->tags[i] < TRIB_TAG_RELEASED && self->slots[i].link != NULL) {
            status = send_declared(self, entry, i);
        }
    }
    return status;
}

static void tell_bad(trib_coordinator *self, const trib_registry_entry *entry, bool was_bad, uint32_t rank)
{
    for (uint32_t i = 0; entry->bad && i < self->worker_count; i++) {
        if (!was_bad || i == rank) {
            send_bad(self, entry, i);
        }
    }
}

/* A tensor that lacks the rank's declaration for its placement becomes bad for those that wait. */
static void check_left(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank)
{
    const bool is_sharer = entry->group == NULL || trib_rank_set_index(entry->group->ranks, rank) != TRIB_RANK_ABSENT;
    if (entry->bad || entry->cut != NULL || !is_sharer || entry->tags[rank] != TRIB_TAG_NONE ||
        !self->slots[rank].left) {
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%s left the job without declaring it", trib_roster_name(self->roster, rank));
    mark_bad(self, entry, TRIB_PEER_LEFT, text);
    tell_bad(self, entry, false, rank);
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
static trib_registry_entry *find_undeclared(const trib_coordinator *self, const char *key, uint32_t rank)
{
    trib_registry_entry *entry = NULL;
    HASH_FIND_STR(self->registry, key, entry);
    while (entry != NULL && entry->tags[rank] != TRIB_TAG_NONE) {
        entry = entry->later;
    }
    return entry;
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

trib_status trib_registry_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                       const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_declaration what = {.dtype = TRIB_FLOAT32};
    const bool is_possible = read_declaration(self, frame, &reader, &what);
    const trib_status form = check_end(&reader, what.split_count, error);
    if (form != TRIB_OK) {
        return form;
    }
    if (!is_possible || rank >= self->worker_count ||
        (what.group != NULL && trib_rank_set_index(what.group->ranks, rank) == TRIB_RANK_ABSENT)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "DECLARE of what cannot be: type %d, %llu elements, member %u, %u local ranks",
                              (int)what.dtype, (unsigned long long)what.count, rank, what.local_size);
    }
    char key[TRIB_TENSOR_NAME_MAX + 12];
    make_key(&what, key, sizeof key);
    trib_registry_entry *entry = find_undeclared(self, key, rank);
    if (entry == NULL) {
        entry = new_entry(self, &what, rank);
        if (entry != NULL && entry->id >= TRIB_TENSORS_MAX) {
            mark_bad(self, entry, TRIB_MISMATCH, "the job has as many tensors as it can have");
        }
    }
    if (entry == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", what.name);
    }
    const bool was_bad = entry->bad && entry->declared_count > 0;
    trib_status status = note_tag(self, entry, rank, frame->tensor, error);
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
    take_counts(self, entry, &what, place_of(entry, rank), &reader);
    for (uint32_t i = 0; i < self->worker_count && entry->layout != TRIB_WHOLE; i++) {
        check_left(self, entry, i); /* a worker may have left before the first declaration */
    }
    status = answer(self, entry, rank);
    tell_bad(self, entry, was_bad, rank);
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "out of memory for tensor \"%s\"", what.name);
}

void trib_registry_worker_left(trib_coordinator *self, uint32_t rank)
{
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL && rank < self->worker_count;
         entry = entry->newer) {
        check_left(self, entry, rank);
    }
}

/* ---- The end of a tensor ---- */

static bool is_over(const trib_coordinator *self, const trib_registry_entry *entry)
{
    const uint32_t sharers = sharers_of(self, entry);
    if (self->workers_left == 0 || entry->released_count == sharers) {
        return entry->released_count == sharers;
    }
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const bool is_sharer = place_of(entry, i) != TRIB_RANK_ABSENT;
        if (is_sharer && entry->tags[i] != TRIB_TAG_RELEASED && !self->slots[i].left) {
            return false;
        }
    }
    return true;
}

static void end_entry(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_registry_entry *first = NULL;
    HASH_FIND_STR(self->registry, entry->table_key, first);
    /* Workers declare and release the tensors of a name in turn, so the oldest one mostly ends first. */
    if (first == entry) {
        HASH_DEL(self->registry, entry);
        if (entry->later != NULL) {
            HASH_ADD_STR(self->registry, table_key, entry->later);
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
