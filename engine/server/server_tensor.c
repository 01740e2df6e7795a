/* server_tensor.c - see server_tensor.h. */
#include "engine/server/server_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/cluster/partitioning.h"
#include "engine/server/server_sum.h"

/* A tensor as all workers have declared it. */
struct trib_served_tensor {
    atomic_uint cores; /* cores that know it, or have yet to learn it */
    uint32_t id, group, local_size, chunk_bytes;
    uint32_t quorum; /* 0: none (quorum.h) */
    int64_t quorum_timeout_ns;
    trib_dtype dtype;
    trib_partitioning *cut;
    char name[TRIB_TENSOR_NAME_MAX + 1];
};

typedef struct serve_core {
    trib_post post;
    struct serve *whole;
} serve_core;

/* A tensor on its way through the cores. */
typedef struct serve {
    trib_engine *engine;
    struct trib_served_tensor *tensor;
    void (*done)(trib_engine *engine, bool lacks_codec);
    bool lacks_codec;
    atomic_uint cores_left;
    trib_post done_post;
    serve_core cores[];
} serve;

static void release_tensor(struct trib_served_tensor *tensor)
{
    const unsigned before = atomic_fetch_sub(&tensor->cores, 1);
    trib_assert(before > 0);
    if (before == 1) {
        free(tensor->cut);
        free(tensor);
    }
}

/* ---- The table of a core ---- */

static struct trib_served_tensor *find_tensor(const trib_core *core, uint32_t id)
{
    return id < core->served_capacity ? core->served[id] : NULL;
}

static bool reserve_id(trib_core *core, uint32_t id)
{
    if (id < core->served_capacity) {
        return true;
    }
    uint32_t capacity = core->served_capacity == 0 ? 64 : core->served_capacity;
    while (capacity <= id) {
        capacity *= 2;
    }
    struct trib_served_tensor **bigger = trib_core_zalloc(core, capacity * sizeof *bigger);
    if (bigger == NULL) {
        return false;
    }
    if (core->served_capacity > 0) {
        memcpy(bigger, core->served, core->served_capacity * sizeof *bigger);
    }
    free(core->served);
    core->served = bigger;
    core->served_capacity = capacity;
    return true;
}

uint32_t trib_server_quorum(const trib_core *core, uint32_t id, int64_t *timeout_ns_out)
{
    const struct trib_served_tensor *tensor = find_tensor(core, id);
    if (tensor != NULL && timeout_ns_out != NULL) {
        *timeout_ns_out = tensor->quorum_timeout_ns;
    }
    return tensor == NULL ? 0 : tensor->quorum;
}

void trib_server_forget_tensor(trib_core *core, uint32_t id)
{
    struct trib_served_tensor *tensor = find_tensor(core, id);
    if (tensor != NULL) {
        trib_assert(tensor->id == id);
        core->served[id] = NULL;
        release_tensor(tensor);
    }
}

void trib_server_forget_tensors(trib_core *core)
{
    for (uint32_t i = 0; i < core->served_capacity; i++) {
        trib_server_forget_tensor(core, i);
    }
    free(core->served);
    core->served = NULL;
    core->served_capacity = 0;
}

/* ---- A new tensor ---- */

static void served_everywhere(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    serve *self = trib_container_of(post, serve, done_post);
    trib_assert(atomic_load(&self->cores_left) == 0);
    self->done(self->engine, self->lacks_codec);
    free(self);
}

static void serve_on_core(trib_reactor *reactor, trib_post *post)
{
    serve *self = trib_container_of(post, serve_core, post)->whole;
    trib_core *core = reactor->owner;
    struct trib_served_tensor *tensor = self->tensor;
    const uint32_t id = tensor->id;
    if (core->sums != NULL && reserve_id(core, id)) {
        trib_assert(core->served[id] == NULL); /* a number is used again when all cores have forgotten it */
        core->served[id] = tensor;
    } else {
        if (core->sums != NULL) {
            trib_job_fail(core->engine, TRIB_NO_MEMORY, "out of memory for a tensor");
        }
        release_tensor(tensor); /* a core that is closed takes no contributions */
    }
    trib_assert(trib_core_is_here(core));
    const unsigned left = atomic_fetch_sub(&self->cores_left, 1);
    trib_assert(left > 0 && left <= core->engine->core_count);
    if (left == 1) {
        self->done_post.run = served_everywhere;
        trib_reactor_post(self->engine->cores[0].reactor, &self->done_post);
    }
}

/* Returns NULL if the coordinator cannot mean that, or if memory runs out. */
static trib_partitioning *read_cut(const trib_engine *engine, const trib_frame *frame, trib_reader *reader,
                                   uint32_t partition_bytes)
{
    const trib_rank_set *ranks = trib_engine_rank_set(engine, frame->group);
    const size_t element = trib_dtype_size((trib_dtype)frame->dtype);
    if ((frame->group > 0 && ranks == NULL) || element == 0 || frame->collective > TRIB_PAIRS || partition_bytes == 0) {
        return NULL;
    }
    const uint32_t members = frame->group > 0 ? ranks->count : engine->roster->worker_count;
    const uint64_t slices = trib_partitioning_slice_count((trib_layout)frame->collective, members);
    uint64_t *counts = slices <= TRIB_PARTITIONS_MAX && reader->left == slices * 8 ? malloc(reader->left) : NULL;
    if (counts == NULL) {
        return NULL;
    }
    for (uint64_t i = 0; i < slices; i++) {
        counts[i] = trib_get_u64(reader);
    }
    trib_partitioning *cut = trib_partitioning_create((trib_layout)frame->collective, members, counts, element);
    free(counts);
    if (cut != NULL && cut->bytes <= TRIB_TENSOR_BYTES_MAX) {
        trib_partitioning_divide(cut, partition_bytes);
        return cut;
    }
    free(cut);
    return NULL;
}

static bool lacks_codec(const trib_engine *engine, const char *text)
{
    trib_codec_config codec;
    return trib_codec_parse_with(&engine->codecs, text, &codec, NULL) != TRIB_OK;
}

static struct trib_served_tensor *read_tensor(const trib_engine *engine, const trib_frame *frame, const void *payload,
                                              bool *lacks_codec_out)
{
    char codec[TRIB_CODEC_TEXT_SIZE];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    struct trib_served_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) {
        return NULL;
    }
    tensor->id = frame->tensor;
    tensor->group = frame->group;
    tensor->local_size = frame->root;
    tensor->chunk_bytes = frame->size;
    tensor->dtype = (trib_dtype)frame->dtype;
    const uint32_t partition_bytes = trib_get_u32(&reader);
    trib_get_text(&reader, tensor->name, sizeof tensor->name);
    trib_get_text(&reader, codec, sizeof codec);
    tensor->quorum = trib_get_u32(&reader);
    tensor->quorum_timeout_ns = (int64_t)trib_get_u64(&reader);
    *lacks_codec_out = !reader.failed && lacks_codec(engine, codec);
    tensor->cut = reader.failed ? NULL : read_cut(engine, frame, &reader, partition_bytes);
    if (tensor->cut == NULL || frame->size == 0 || tensor->cut->partition_bytes != partition_bytes) {
        free(tensor->cut);
        free(tensor);
        return NULL;
    }
    return tensor;
}

trib_status trib_server_take_serve(trib_engine *engine, const trib_frame *frame, const void *payload,
                                   void (*done)(trib_engine *engine, bool lacks_codec), trib_error *error)
{
    trib_assert(trib_core_is_here(&engine->cores[0]));
    if (frame->tensor >= TRIB_TENSORS_MAX || find_tensor(&engine->cores[0], frame->tensor) != NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "SERVE of tensor %u, which is another's or too high",
                              frame->tensor);
    }
    serve *self = calloc(1, sizeof *self + engine->core_count * sizeof self->cores[0]);
    bool lacks = false;
    struct trib_served_tensor *tensor = self == NULL ? NULL : read_tensor(engine, frame, payload, &lacks);
    if (tensor == NULL) {
        const bool is_full = self == NULL;
        free(self);
        return is_full ? trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a tensor")
                       : trib_error_set(error, TRIB_PROTOCOL, "malformed SERVE, or no memory for its tensor");
    }
    atomic_store(&tensor->cores, engine->core_count);
    *self = (serve){.engine = engine, .tensor = tensor, .done = done, .lacks_codec = lacks};
    atomic_store(&self->cores_left, engine->core_count);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        self->cores[i].whole = self;
        self->cores[i].post.run = serve_on_core;
        trib_reactor_post(engine->cores[i].reactor, &self->cores[i].post);
    }
    return TRIB_OK;
}

/* ---- A contribution ---- */

/* A frame about a tensor that has ended may come late, and the aggregator drops it. A member that has left without
 * releasing the tensor may have used more rounds than those that have released it. */
static bool may_be_late(const trib_link *link, const trib_frame *frame, const struct trib_served_tensor *tensor)
{
    int64_t since_ns = 0;
    return frame->round <= trib_server_rounds_over(link->core, frame->tensor) ||
           (tensor == NULL && trib_departed_has(&link->core->engine->departed, link->peer, &since_ns));
}

bool trib_server_is_late(const trib_link *link, const trib_frame *frame)
{
    return may_be_late(link, frame, find_tensor(link->core, frame->tensor));
}

bool trib_server_knows_tensor(const trib_core *core, uint32_t id)
{
    return find_tensor(core, id) != NULL;
}

bool trib_server_is_whole(const trib_core *core, uint32_t id)
{
    const struct trib_served_tensor *tensor = find_tensor(core, id);
    return tensor == NULL || tensor->cut->layout == TRIB_WHOLE;
}

/* Workers that exchange slices name each other by their ranks in the job. */
static bool is_sharer(const trib_link *link, const trib_frame *frame, const struct trib_served_tensor *tensor)
{
    const trib_rank_set *ranks = trib_engine_rank_set(link->core->engine, tensor->group);
    const bool is_pair = frame->collective == TRIB_COLLECTIVE_PAIR;
    return (is_pair || frame->group == tensor->group) &&
           (tensor->group == 0 || trib_rank_set_index(ranks, link->peer) != TRIB_RANK_ABSENT);
}

static bool is_layout(const trib_frame *frame, const struct trib_served_tensor *tensor)
{
    const bool is_on_devices = trib_collective_is_sharded(frame->collective);
    return (frame->collective == TRIB_COLLECTIVE_PAIR) == (tensor->cut->layout == TRIB_PAIRS) &&
           is_on_devices == (tensor->local_size > 0);
}

static uint32_t chunk_bytes(uint32_t size, uint32_t chunk, uint32_t most)
{
    const uint64_t begin = (uint64_t)chunk * most;
    return begin >= size ? 0 : size - begin < most ? (uint32_t)(size - begin) : most;
}

/* Writes how the PUSH differs from the tensor. Returns false if it does not. */
static bool differs_from_frame(const trib_frame *frame, const struct trib_served_tensor *tensor, char *text,
                               size_t size)
{
    const uint32_t most = tensor->chunk_bytes;
    const uint32_t bytes = trib_partitioning_size(tensor->cut, frame->partition);
    const uint32_t chunks = bytes <= most ? 1 : (uint32_t)(((uint64_t)bytes + most - 1) / most);
    if (frame->dtype != (uint8_t)tensor->dtype || !is_layout(frame, tensor)) {
        snprintf(text, size, "another type or layout than declared");
        return true;
    }
    if (frame->chunk_count != chunks || frame->chunk >= chunks ||
        frame->size != chunk_bytes(bytes, frame->chunk, most)) {
        snprintf(text, size, "chunk %u of %u with %u bytes, of a partition of %u bytes in %u chunks", frame->chunk,
                 frame->chunk_count, frame->size, bytes, chunks);
        return true;
    }
    return false;
}

trib_status trib_server_check_tensor(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const struct trib_served_tensor *tensor = find_tensor(link->core, frame->tensor);
    char why[128];
    if (may_be_late(link, frame, tensor)) {
        return TRIB_OK;
    }
    const char *type = trib_frame_name(frame->type);
    const char *peer = trib_roster_name(link->core->engine->roster, link->peer);
    if (tensor == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s from %s for tensor %u, which nobody has declared", type, peer,
                              frame->tensor);
    }
    if (!is_sharer(link, frame, tensor)) {
        snprintf(why, sizeof why, "it belongs to another group of workers");
    } else if (frame->partition >= tensor->cut->partition_count) {
        snprintf(why, sizeof why, "partition %u of %u", frame->partition, tensor->cut->partition_count);
    } else if (frame->type != TRIB_FRAME_PUSH || !differs_from_frame(frame, tensor, why, sizeof why)) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_PROTOCOL, "%s from %s for tensor \"%.100s\": %s", type, peer, tensor->name, why);
}
