/* member_tensors.c - frames of the coordinator about tensors: where their partitions are, that they move, that they are
 * bad. */
#include <stdlib.h>

#include "engine/membership/member.h"
#include "engine/server/server_sum.h"
#include "engine/worker/worker.h"

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

/* True if the coordinator may choose that partition size. The size of a tensor never changes once it is placed. */
static bool is_cut(const trib_engine *engine, const trib_tensor *tensor, uint32_t partition_bytes)
{
    if (atomic_load(&tensor->placed)) {
        return partition_bytes == tensor->partition_bytes;
    }
    const uint32_t local_size = tensor->on_device ? trib_engine_local_size(engine) : 0;
    return partition_bytes == trib_tensor_partition_bytes(engine->roster, tensor->bytes, local_size) ||
           (local_size == 0 && partition_bytes == trib_tensor_partition_bytes_slow(engine->roster, tensor->bytes));
}

/* Reads the owners of the tensor's partitions from a DECLARED or MOVE frame. */
static trib_status read_owners(const trib_engine *engine, const trib_tensor *tensor, const trib_frame *frame,
                               const void *payload, trib_place_owner **owners_out, uint32_t *partition_bytes_out,
                               trib_error *error)
{
    const trib_roster *roster = engine->roster;
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    uint32_t partition_bytes = trib_get_u32(&reader);
    uint32_t count = trib_get_u32(&reader);
    if (reader.failed || !is_cut(engine, tensor, partition_bytes) ||
        count != trib_tensor_partition_count(tensor->bytes, partition_bytes) || reader.left != (size_t)count * 4) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed placement of a tensor");
    }
    trib_place_owner *owners = calloc(count, sizeof *owners);
    if (owners == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", tensor->name);
    }
    for (uint32_t i = 0; i < count; i++) {
        owners[i].member = trib_get_u16(&reader);
        owners[i].reactor = trib_get_u16(&reader);
        if (owners[i].member >= roster->member_count || !roster->members[owners[i].member].sums ||
            owners[i].reactor >= roster->members[owners[i].member].reactors) {
            free(owners);
            return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" is placed where nobody is", tensor->name);
        }
    }
    *owners_out = owners;
    *partition_bytes_out = partition_bytes;
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
    trib_core *core = &engine->cores[0];
    trib_place_owner *owners = NULL;
    uint32_t partition_bytes = 0;
    const trib_status status = read_owners(engine, tensor, frame, payload, &owners, &partition_bytes, error);
    if (status != TRIB_OK) {
        return status;
    }
    const uint32_t id = frame->aux;
    if (frame->round > TRIB_ROUND_BASE_MAX) {
        free(owners);
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" begins behind round %u", tensor->name, frame->round);
    }
    if (id >= TRIB_TENSORS_MAX || (id < core->tensors_capacity && core->tensors[id] != NULL)) {
        free(owners);
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" has the number %u, which is another's or too high",
                              tensor->name, id);
    }
    trib_tensor_placed(tensor, id, frame->round, owners, trib_tensor_partition_count(tensor->bytes, partition_bytes),
                       partition_bytes);
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

static void send_forgotten(trib_engine *engine)
{
    const trib_frame answer = {.type = TRIB_FRAME_FORGOTTEN};
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

/* Returns the tensor if it is in host memory, has been placed, and may move. NULL: it may not. */
static trib_tensor *movable(trib_engine *engine, uint32_t tag)
{
    trib_tensor *tensor = engine->roster->follows ? tensor_by_tag(engine, tag) : NULL;
    return tensor != NULL && atomic_load(&tensor->placed) && !tensor->on_device ? tensor : NULL;
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
    trib_place_owner *owners = NULL;
    uint32_t partition_bytes = 0;
    const trib_status status = read_owners(engine, tensor, frame, payload, &owners, &partition_bytes, error);
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
        trib_tensor_bad(tensor, text);
    }
    return status;
}
