/* member_tensors.c - declares tensors, tells of their end, and takes the coordinator's frames about them: where their
 * partitions are, that they move, that they are bad. */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/membership/member_internal.h"
#include "engine/server/server_sum.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/worker.h"

void trib_member_send_declare(const trib_engine *engine, trib_tensor *tensor)
{
    const uint32_t splits = tensor->layout == TRIB_PAIRS ? tensor->members : 0;
    const size_t size =
        sizeof tensor->name + sizeof tensor->codec_text + 44 + (tensor->dims + splits) * sizeof(uint64_t);
    trib_assert(!tensor->is_declared && !tensor->waits_for_group);
    tensor->is_declared = true;
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        trib_job_fail(tensor->engine, TRIB_NO_MEMORY, "out of memory for the declaration of a tensor");
        return;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_put_text(&writer, tensor->name);
    trib_put_u8(&writer, (uint8_t)tensor->dtype);
    trib_put_u64(&writer, tensor->count);
    trib_put_u8(&writer, (uint8_t)tensor->layout);
    trib_put_u64(&writer, tensor->row);
    trib_put_u8(&writer, tensor->dims);
    for (uint32_t i = 0; i < tensor->dims; i++) {
        trib_put_u64(&writer, tensor->shape[i]);
    }
    trib_put_text(&writer, tensor->codec_text);
    trib_put_u32(&writer, tensor->quorum);
    trib_put_u64(&writer, (uint64_t)tensor->quorum_timeout_ns);
    trib_put_u32(&writer, splits);
    for (uint32_t i = 0; i < splits; i++) {
        trib_put_u64(&writer, tensor->splits[i]);
    }
    trib_assert(!writer.overflow);
    const trib_frame frame = {.type = TRIB_FRAME_DECLARE,
                              .group = tensor->group == NULL ? 0 : tensor->group->id,
                              .tensor = tensor->tag,
                              .root = tensor->is_sharded ? trib_engine_local_size(engine) : 0};
    trib_member_send(engine->member, &frame, payload, writer.size);
    free(payload);
}

void trib_member_declare(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_member *member = core->engine->member;
    trib_tensor *tensor = trib_container_of(post, trib_tensor, declare_post);
    /* Tensors are declared once each, in the order in which callers did so. trib_member_take_roster declares the
     * tensors that were made before the roster came. */
    if (member == NULL || !member->joined || member->link == NULL || tensor->is_declared || tensor->is_stale ||
        atomic_load(&tensor->waits_for_use) || tensor->waits_for_group) {
        return;
    }
    trib_member_declare_in_group(core->engine, tensor);
}

void trib_member_tensor_ended(trib_tensor *tensor)
{
    const trib_member *member = tensor->engine->member;
    const bool is_unknown = /* the coordinator has never heard of it, nor will it */
        tensor->group != NULL && tensor->group->state == TRIB_GROUP_BAD && !tensor->is_declared;
    if (tensor->is_stale || atomic_load(&tensor->waits_for_use) || is_unknown) {
        trib_tensor_forgotten(tensor);
    } else if (tensor->is_declared) {
        trib_assert(tensor->state == TRIB_TENSOR_ENDED && tensor->rounds >= tensor->round_base);
        const trib_frame frame = {.type = TRIB_FRAME_RELEASE,
                                  .tensor = tensor->tag,
                                  .round = tensor->rounds - tensor->round_base,
                                  .aux = atomic_load(&tensor->gave_up_round)};
        trib_member_send(member, &frame, NULL, 0);
    }
}

static trib_tensor *tensor_by_tag(trib_engine *engine, uint32_t tag)
{
    pthread_mutex_lock(&engine->mutex);
    trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
    if (tensor != NULL && tensor->state == TRIB_TENSOR_UNUSED) {
        tensor = NULL;
    }
    pthread_mutex_unlock(&engine->mutex);
    return tensor;
}

/* Core 0 alone begins and ends these states. Frames that the coordinator sent before it learned of the end are about
 * nothing then. */
static bool has_ended(const trib_tensor *tensor)
{
    return tensor->state == TRIB_TENSOR_ENDING || tensor->state == TRIB_TENSOR_ENDED;
}

static bool is_ending(trib_engine *engine, uint32_t tag)
{
    const trib_tensor *tensor = tensor_by_tag(engine, tag);
    return tensor != NULL && has_ended(tensor);
}

/* The lengths of the slices end a DECLARED frame. Returns NULL if they or the partition size are not what the
 * coordinator may choose, or if memory runs out. */
static trib_partitioning *read_cut(const trib_engine *engine, const trib_tensor *tensor, trib_reader *reader,
                                   uint32_t partition_bytes)
{
    const uint32_t slices = (uint32_t)trib_partitioning_slice_count(tensor->layout, tensor->members);
    uint64_t *counts = reader->left == (size_t)slices * 8 ? malloc((size_t)slices * sizeof *counts) : NULL;
    for (uint32_t i = 0; counts != NULL && i < slices; i++) {
        counts[i] = trib_get_u64(reader);
    }
    trib_partitioning *cut = counts == NULL ? NULL
                                            : trib_partitioning_create(tensor->layout, tensor->members, counts,
                                                                       trib_dtype_size(tensor->dtype));
    const uint32_t local_size = tensor->is_sharded ? trib_engine_local_size(engine) : 0;
    const uint32_t least = trib_tensor_chunk_least(tensor);
    bool is_cut = cut != NULL && cut->bytes <= TRIB_TENSOR_BYTES_MAX;
    if (is_cut) {
        trib_partitioning_divide(cut, trib_tensor_partition_bytes(engine->roster, cut->bytes, local_size, least));
        if (cut->partition_bytes != partition_bytes && local_size == 0) {
            trib_partitioning_divide(cut, trib_tensor_partition_bytes_slow(engine->roster, cut->bytes, least));
        }
        is_cut = cut->partition_bytes == partition_bytes &&
                 trib_partitioning_send_bytes(cut, tensor->group_place) == tensor->bytes;
    }
    free(counts);
    if (!is_cut) {
        free(cut);
        return NULL;
    }
    return cut;
}

/* Reads the owners of the tensor's partitions from a DECLARED or MOVE frame. */
static trib_status read_owners(const trib_engine *engine, const trib_tensor *tensor, trib_reader *reader,
                               uint32_t count, trib_place_owner **owners_out, trib_error *error)
{
    const trib_roster *roster = engine->roster;
    if (count > reader->left / 4) {
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" is placed by a list that is too short",
                              tensor->name);
    }
    trib_place_owner *owners = calloc(count > 0 ? count : 1, sizeof *owners);
    if (owners == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", tensor->name);
    }
    for (uint32_t i = 0; i < count; i++) {
        owners[i].member = trib_get_u16(reader);
        owners[i].reactor = trib_get_u16(reader);
        if (reader->failed || owners[i].member >= roster->member_count || !roster->members[owners[i].member].sums ||
            owners[i].reactor >= roster->members[owners[i].member].reactors) {
            free(owners);
            return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" is placed where nobody is", tensor->name);
        }
    }
    *owners_out = owners;
    return TRIB_OK;
}

trib_status trib_member_take_declared(trib_engine *engine, const trib_frame *frame, const void *payload,
                                      trib_error *error)
{
    trib_tensor *tensor = tensor_by_tag(engine, frame->tensor);
    if (tensor == NULL || (atomic_load(&tensor->placed) && !has_ended(tensor))) {
        return trib_error_set(error, TRIB_PROTOCOL, "DECLARED for what has not been declared, or is placed already");
    }
    if (has_ended(tensor)) {
        return TRIB_OK;
    }
    if (!tensor->is_declared) {
        return trib_error_set(error, TRIB_PROTOCOL, "DECLARED for tensor \"%s\" before it was declared", tensor->name);
    }
    trib_core *core = &engine->cores[0];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    const uint32_t partition_bytes = trib_get_u32(&reader), count = trib_get_u32(&reader);
    trib_place_owner *owners = NULL;
    const trib_status status = read_owners(engine, tensor, &reader, count, &owners, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_partitioning *cut = read_cut(engine, tensor, &reader, partition_bytes);
    if (cut == NULL || cut->partition_count != count) {
        free(cut);
        free(owners);
        return trib_error_set(error, TRIB_PROTOCOL, "malformed placement of a tensor");
    }
    const uint32_t id = frame->aux;
    if (frame->round > TRIB_ROUND_BASE_MAX || frame->partition > frame->round) {
        free(owners);
        free(cut);
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" begins behind round %u", tensor->name, frame->round);
    }
    if (id >= TRIB_TENSORS_MAX || (id < core->tensors_capacity && core->tensors[id] != NULL)) {
        free(owners);
        free(cut);
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" has the number %u, which is another's or too high",
                              tensor->name, id);
    }
    const trib_status choice = trib_codec_take_choice(tensor, frame->root, error);
    if (choice != TRIB_OK) {
        free(owners);
        free(cut);
        return choice;
    }
    trib_assert(cut->partition_bytes == partition_bytes);
    tensor->number_base = frame->partition;
    trib_tensor_placed(tensor, id, frame->round, owners, cut);
    if (atomic_load(&tensor->placed) && !trib_worker_know_tensor(core, tensor)) {
        /* The number of the tensor is taken from here on. */
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", tensor->name);
    }
    return TRIB_OK;
}

trib_status trib_member_take_released(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    trib_tensor *tensor = tensor_by_tag(engine, frame->tensor);
    if (tensor == NULL || tensor->state != TRIB_TENSOR_ENDED) {
        return trib_error_set(error, TRIB_PROTOCOL, "RELEASED for what was not released");
    }
    trib_tensor_forgotten(tensor);
    return TRIB_OK;
}

static void send_forgotten(trib_engine *engine, uint32_t group)
{
    (void)group;
    const trib_frame answer = {.type = TRIB_FRAME_FORGOTTEN};
    trib_assert(trib_core_is_here(&engine->cores[0]));
    trib_member_send(engine->member, &answer, NULL, 0);
}

trib_status trib_member_take_forget(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    if (frame->tensor >= TRIB_TENSORS_MAX || frame->partition > TRIB_PARTITIONS_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "FORGET of %u partitions of tensor %u", frame->partition,
                              frame->tensor);
    }
    return trib_server_forget(engine, frame, send_forgotten) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the end of a tensor");
}

/* Returns the tensor if it is whole, in host memory, shared by all workers, and has been placed. NULL: it may not
 * move. */
static trib_tensor *movable(trib_engine *engine, uint32_t tag)
{
    trib_tensor *tensor = engine->roster->follows ? tensor_by_tag(engine, tag) : NULL;
    return tensor != NULL && atomic_load(&tensor->placed) && !tensor->on_device && tensor->layout == TRIB_WHOLE &&
                   tensor->group == NULL
               ? tensor
               : NULL;
}

trib_status trib_member_take_move(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    if (is_ending(engine, frame->tensor)) {
        return TRIB_OK; /* the news of the end is the answer */
    }
    trib_tensor *tensor = movable(engine, frame->tensor);
    if (tensor == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "MOVE of what cannot move");
    }
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    const uint32_t partition_bytes = trib_get_u32(&reader), count = trib_get_u32(&reader);
    if (partition_bytes != tensor->partition_bytes || count != tensor->partition_count ||
        reader.left != (size_t)count * 4) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed placement of a tensor");
    }
    trib_place_owner *owners = NULL;
    const trib_status status = read_owners(engine, tensor, &reader, count, &owners, error);
    if (status != TRIB_OK) {
        return status;
    }
    for (uint32_t i = 0; i < tensor->partition_count; i++) {
        if (owners[i].reactor % engine->core_count != tensor->owners[i].reactor % engine->core_count) {
            free(owners);
            return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" moves to another reactor", tensor->name);
        }
    }
    trib_frame answer = {.type = TRIB_FRAME_MOVE_READY, .tensor = tensor->id};
    trib_tensor_move_propose(tensor, owners, &answer.round);
    trib_member_send(engine->member, &answer, NULL, 0);
    return TRIB_OK;
}

trib_status trib_member_take_decided(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    if (is_ending(engine, frame->tensor)) {
        return TRIB_OK;
    }
    trib_tensor *tensor = movable(engine, frame->tensor);
    const bool was_proposed = tensor != NULL && tensor->owners_next != NULL;
    if (tensor == NULL || (frame->round > 0 && (!was_proposed || frame->round < atomic_load(&tensor->move_round)))) {
        return trib_error_set(error, TRIB_PROTOCOL, "MOVE_DECIDED for round %u of what was not proposed", frame->round);
    }
    if (was_proposed) {
        trib_tensor_move_decide(tensor, frame->round);
    }
    return TRIB_OK;
}

trib_status trib_member_take_tensor_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                        trib_error *error)
{
    trib_tensor *tensor = tensor_by_tag(engine, frame->tensor);
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status == TRIB_OK && tensor != NULL && !has_ended(tensor)) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render(engine, &cause, text);
        trib_tensor_bad(tensor, cause.status, text);
    }
    return status;
}
