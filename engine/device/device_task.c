/*
 * device_task.c - partitions of tensors on a device: memory, holds and failures. The stages are in stages/.
 */
#include "engine/device/device_task.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/worker.h"
#include "numa/arena.h"

/* bytes of a shard from which its memory is taken ahead; registering takes 0.3 ms for each MiB */
#define AHEAD_BYTES (UINT64_C(16) << 20)
#define AHEAD_PARTITIONS 512u /* from this number on, partitions have their full size, however many members sum */

/* ---- Holds ---- */

void trib_device_submit(trib_core *core, trib_device_task *device, trib_device_job *job,
                        void (*done)(trib_reactor *reactor, trib_post *post))
{
    trib_assert(job->slot == NULL && trib_core_is_here(core)); /* the device does not have it already */
    trib_task_hold(device->task, TRIB_HOLD_DEVICE);
    job->owner = device;
    job->reactor = core->reactor;
    job->post.run = done;
    core->engine->env.device->submit(core->engine->device, job);
}

/* Drops a hold. Settles the task if it has failed; resumes it if it waits for its last hold. */
static void release_hold(trib_core *core, trib_task *task)
{
    trib_task_release(core, task, TRIB_HOLD_DEVICE);
    if (trib_task_is_open(task) && task->held[TRIB_HOLD_DEVICE] == 0 && task->device->awaits_jobs) {
        task->device->awaits_jobs = false;
        trib_pipeline_resume(core, task);
    }
}

/* Aborts the round of an operation that has failed already. Servers are told, so that other machines do not wait. */
static void abort_round(trib_core *core, trib_task *task)
{
    if (trib_task_is_open(task)) {
        trib_worker_abort_active(core, task->op_core);
    }
}

/* Fails the operation with the loss that ended the engine. A stopped device and an ended group give no reason of their
 * own. A core may not have heard of the end yet, and would tell other members that this process was closed. */
void trib_device_fail_if_job_lost(trib_op *op, trib_status status)
{
    trib_error fate = {.status = TRIB_OK};
    if (status == TRIB_CLOSED && trib_engine_check_open(op->engine, &fate) != TRIB_OK && fate.status != TRIB_CLOSED) {
        trib_op_fail(op, fate.status, "%s", fate.text);
    }
}

bool trib_device_job_back(trib_core *core, trib_device_task *device, const trib_device_job *job)
{
    trib_task *task = device->task;
    trib_assert(job->slot == NULL && job->owner == device && task->held[TRIB_HOLD_DEVICE] > 0);
    const bool ok = job->status == TRIB_OK && trib_task_is_open(task);
    if (job->status != TRIB_OK) {
        trib_device_fail_if_job_lost(task->op_core->op, job->status);
        trib_op_fail(task->op_core->op, job->status, "partition %u in %s: %s", task->partition,
                     trib_pipeline_stage_name(task), job->text);
        abort_round(core, task);
    }
    release_hold(core, task);
    return ok;
}

void trib_device_collective_done(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_device_task *device = job->owner;
    (void)trib_device_job_back(reactor->owner, device, job);
}

/* Runs by order_post, when the announced collective was submitted to the device, or called off. */
static void handle_order_answer(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_task *device = trib_container_of(post, trib_device_task, order_post);
    trib_task *task = device->task;
    trib_status status = device->order_status;
    trib_assert(status != TRIB_PENDING && task->held[TRIB_HOLD_DEVICE] > 0 && trib_core_is_here(core));
    if (status == TRIB_OK) {
        /* The job takes over the hold of the announcement. */
        if (!device->awaits_jobs && trib_task_is_open(task)) {
            trib_pipeline_resume(core, task);
        }
        return;
    }
    trib_device_fail_if_job_lost(task->op_core->op, status);
    trib_op_fail(task->op_core->op, status, "a collective was called off (%s)", trib_status_text(status));
    abort_round(core, task);
    release_hold(core, task);
}

/* ---- GPUDirect ---- */

/* True if the network device can move all the bytes without a processor. A connection that may need a processor later
 * refuses, and so does one that has a priority link (link_priority.h). */
static bool may_go_direct(const trib_core *core, const trib_task *task, const unsigned char *memory)
{
    const trib_conn *conn = task->link != NULL ? task->link->conn : NULL;
    if (memory == NULL || conn == NULL || task->size == 0 || core->engine->config.gpu_direct == TRIB_GPU_DIRECT_OFF) {
        return false;
    }
    const uint32_t chunk = task->tensor->chunk_bytes, rest = task->size % chunk;
    const bool is_direct = conn->transport->ops->offloads(conn, memory, task->size, rest > 0 ? rest : chunk);
    task->link->redial.needs_offer = task->link->redial.needs_offer || is_direct;
    return is_direct;
}

bool trib_device_route(trib_core *core, trib_task *task, bool pushes, bool pulls)
{
    trib_engine *engine = core->engine;
    const bool encodes = trib_task_will_encode(task); /* a processor reads and writes the bytes */
    pushes = pushes && !encodes && may_go_direct(core, task, task->io.source.data);
    pulls = pulls && !encodes && may_go_direct(core, task, task->io.destination.data);
    if (!pulls) {
        task->io.destination.data = task->device->staging;
    }
    if (!pushes && !pulls) {
        return false;
    }
    trib_counter_add(&core->stats.bytes_direct, (uint64_t)task->size * ((uint64_t)pushes + (uint64_t)pulls));
    if (!atomic_exchange(&engine->direct_logged, true)) {
        trib_log(&engine->logger, TRIB_LOG_INFO,
                 "tensor \"%s\": RDMA moves its bytes %s the device's memory, past the host's (GPUDirect)",
                 task->tensor->name,
                 !pulls    ? "from"
                 : !pushes ? "to"
                           : "from and to");
    }
    return pushes;
}

/* ---- Encoding ---- */

/* Returns false if the encoded chunks would not fit where the elements do. */
static bool lay_out_chunks(const trib_task *task, trib_device_encoding *how)
{
    const trib_tensor *tensor = task->tensor;
    const trib_codec_config *config = &tensor->codec;
    const uint32_t element = (uint32_t)trib_dtype_size(tensor->dtype), chunk = tensor->chunk_bytes / element;
    const uint32_t whole = task->chunk_count - 1, rest = task->size / element - whole * chunk;
    const uint64_t bound = config->codec->bound(&config->params, tensor->dtype, chunk);
    const uint64_t room = (TRIB_DEVICE_ENCODED_AT + bound + 15) / 16 * 16;
    const uint64_t last = TRIB_DEVICE_ENCODED_AT + config->codec->bound(&config->params, tensor->dtype, rest);
    *how = (trib_device_encoding){.config = config,
                                  .place = trib_task_first_place(task),
                                  .chunk_elements = chunk,
                                  .room = (uint32_t)room,
                                  .encoded_bytes = whole * room + last};
    return how->encoded_bytes <= task->size;
}

bool trib_device_keeps(const trib_tensor *tensor)
{
    const trib_device_ops *ops = tensor->engine->env.device;
    return tensor->codec.codec != NULL && trib_codec_is_stateful(&tensor->codec) && ops->encodes != NULL &&
           ops->encodes(&tensor->codec, tensor->dtype);
}

bool trib_device_encode_there(const trib_core *core, trib_task *task)
{
    const trib_tensor *tensor = task->tensor;
    const trib_device_ops *ops = core->engine->env.device;
    trib_device_encoding *how = &task->device->encoding;
    /* An input that was kept on the host is encoded there, so that processors have the residual of all inputs. */
    const bool may_be_kept = trib_codec_is_stateful(&tensor->codec) && atomic_load(&core->engine->continues);
    if (!trib_task_will_encode(task) || task->device->encodes_here || may_be_kept || ops->encodes == NULL ||
        !ops->encodes(&tensor->codec, tensor->dtype) || !lay_out_chunks(task, how)) {
        return false;
    }
    if (trib_codec_is_stateful(&tensor->codec)) {
        how->kept = &task->device->kept;
        how->returned = trib_task_give_returned(task);
    }
    trib_task_note_encoded(task, task->device->staging, how->room, TRIB_DEVICE_ENCODED_AT);
    return true;
}

void trib_device_decode_there(const trib_core *core, trib_task *task)
{
    const trib_tensor *tensor = task->tensor;
    const trib_device_ops *ops = core->engine->env.device;
    trib_device_task *device = task->device;
    const bool goes_back =
        task->io.destination.data == device->staging && (tensor->device->slice_count > 0 || device->wanted != NULL);
    if (goes_back && tensor->codec.codec->inspect != NULL && ops->decodes != NULL &&
        ops->decodes(&tensor->codec, tensor->dtype) && lay_out_chunks(task, &device->encoding)) {
        (void)trib_task_hand_sums(task, device->staging, device->encoding.room, TRIB_DEVICE_ENCODED_AT);
    }
}

void trib_device_note_encoded(trib_core *core, trib_task *task, const trib_device_job *job)
{
    if (job->was_full) {
        trib_assert(task->device->kept == NULL);
        task->device->encodes_here = trib_codec_is_stateful(&task->tensor->codec);
        trib_device_note_full(core, task);
        trib_task_note_plain(task);
        return;
    }
    if (job->took_back) {
        trib_task_note_taken_back(task); /* also by a job that failed: the next one must not do so again */
    }
    if (job->kind == TRIB_DEVICE_ENCODE && job->status == TRIB_OK) {
        trib_task_note_there(task);
    }
}

void trib_device_note_full(trib_core *core, const trib_task *task)
{
    trib_engine *engine = core->engine;
    if (!atomic_exchange(&engine->full_logged, true)) {
        trib_log(&engine->logger, TRIB_LOG_WARN,
                 "tensor \"%s\": the device has no memory left to encode and decode in (%llu bytes); processors do it",
                 task->tensor->name, (unsigned long long)task->device->encoding.encoded_bytes);
    }
}

/* ---- Tensors ---- */

static void make_task(trib_tensor *tensor, uint32_t slice, trib_task *task, trib_device_task *device)
{
    const uint32_t local_size = trib_engine_local_size(tensor->engine);
    const uint64_t slice_bytes = (uint64_t)tensor->partition_bytes * local_size, begin = slice * slice_bytes;
    const uint64_t left = tensor->bytes - begin;
    trib_assert(local_size >= 1 && local_size <= TRIB_LOCAL_SIZE_MAX && begin <= tensor->bytes);
    *device = (trib_device_task){.task = task,
                                 .slice = slice,
                                 .slice_offset = begin,
                                 .slice_bytes = (uint32_t)(left < slice_bytes ? left : slice_bytes)};
    device->order_post.run = handle_order_answer;
    if (tensor->device->staging != NULL) {
        device->staging = tensor->device->staging + (uint64_t)slice * tensor->partition_bytes;
    }
    task->device = device;
}

static uint32_t core_of_slice(const trib_tensor *tensor, uint32_t slice)
{
    const uint32_t local_size = trib_engine_local_size(tensor->engine);
    const uint32_t partition = slice * local_size + tensor->engine->member_id % local_size;
    if (trib_engine_is_one_machine(tensor->engine)) {
        return 0; /* no bytes pass through the host, and on the group's core no thread has to wake another */
    }
    return partition < tensor->partition_count ? tensor->owners[partition].reactor % tensor->engine->core_count
                                               : slice % tensor->engine->core_count;
}

/* Returns the most staging memory that the tensor can need. Before the placement the size of the partitions is unknown.
 * They are smaller than configured if not all members that sum would have several. */
static uint64_t staging_most(const trib_engine *engine, uint64_t bytes, uint32_t local_size)
{
    const uint64_t part = engine->config.partition_bytes;
    const uint64_t shard = (bytes + local_size - 1) / local_size, parts = (shard + part - 1) / part;
    return (parts < AHEAD_PARTITIONS ? parts + 1 : parts) * part;
}

trib_status trib_device_tensor_ahead(trib_engine *engine, const char *name, uint64_t bytes,
                                     trib_device_tensor **device_out, trib_error *error)
{
    *device_out = NULL;
    const bool is_staged = trib_engine_stages_devices(engine);
    const uint32_t local_size = is_staged ? 1 : trib_engine_local_size(engine);
    if ((trib_engine_is_one_machine(engine) && !is_staged) || bytes / local_size < AHEAD_BYTES) {
        return TRIB_OK;
    }
    const uint64_t most = staging_most(engine, bytes, local_size);
    trib_device_tensor *device = calloc(1, sizeof *device);
    unsigned char *staging = device != NULL ? engine->env.memory_alloc_blocking(engine->env.memory, most) : NULL;
    if (staging == NULL) {
        free(device);
        return trib_error_set(error, TRIB_NO_MEMORY,
                              "tensor \"%s\": no memory for the %llu bytes of the host's that it passes through", name,
                              (unsigned long long)most);
    }
    device->staging = staging;
    device->staging_bytes = most;
    *device_out = device;
    return TRIB_OK;
}

void trib_device_tensor_drop(trib_engine *engine, trib_device_tensor *device)
{
    if (device == NULL) {
        return;
    }
    if (device->staging != NULL) {
        engine->env.memory_free(engine->env.memory, device->staging);
    }
    for (uint32_t i = 0; device->tasks != NULL && i < device->task_count; i++) {
        if (device->tasks[i].kept != NULL) {
            engine->env.device->forget(engine->device, device->tasks[i].kept);
        }
    }
    free(device->tasks);
    free(device);
}

/* Takes staging memory. Memory that was taken before the declaration is kept if it is large enough. */
static bool take_staging(trib_tensor *tensor, uint64_t bytes)
{
    trib_engine *engine = tensor->engine;
    trib_device_tensor *device = tensor->device;
    if (device->staging_bytes < bytes) {
        if (device->staging != NULL) {
            engine->env.memory_free(engine->env.memory, device->staging);
        }
        device->staging = engine->env.memory_alloc(engine->env.memory, bytes);
        device->staging_bytes = device->staging != NULL ? bytes : 0;
    }
    return device->staging != NULL;
}

static bool take_memory(trib_tensor *tensor, uint32_t slices)
{
    tensor->device = tensor->device != NULL ? tensor->device : calloc(1, sizeof *tensor->device);
    tensor->task_index = malloc((size_t)tensor->partition_count * sizeof *tensor->task_index);
    tensor->received_bits = trib_tensor_make_bits(tensor, slices);
    if (tensor->device == NULL || tensor->task_index == NULL || tensor->received_bits == NULL) {
        return false;
    }
    memset(tensor->task_index, 0xff, (size_t)tensor->partition_count * sizeof *tensor->task_index);
    tensor->device->slice_count = tensor->device->task_count = slices;
    tensor->device->tasks = calloc(slices, sizeof *tensor->device->tasks);
    const bool is_staged = !trib_engine_is_one_machine(tensor->engine) && tensor->bytes > 0;
    return tensor->device->tasks != NULL &&
           (!is_staged || take_staging(tensor, (uint64_t)slices * tensor->partition_bytes));
}

bool trib_device_tensor_place(trib_tensor *tensor)
{
    trib_engine *engine = tensor->engine;
    const uint32_t local_size = trib_engine_local_size(engine), local_rank = engine->member_id % local_size;
    const uint64_t slice_bytes = (uint64_t)tensor->partition_bytes * local_size;
    const uint32_t slices = tensor->bytes == 0 ? 1 : (uint32_t)((tensor->bytes + slice_bytes - 1) / slice_bytes);
    if (!take_memory(tensor, slices)) {
        return false;
    }
    for (uint32_t i = 0; i < slices; i++) {
        tensor->cores[core_of_slice(tensor, i)].task_count++;
    }
    if (!trib_tensor_take_tasks(tensor)) {
        return false;
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        tensor->cores[i].task_count = 0; /* counted again below */
    }
    uint64_t *bits = tensor->received_bits;
    for (uint32_t i = 0; i < slices; i++) {
        trib_tensor_core *mine = &tensor->cores[core_of_slice(tensor, i)];
        const uint32_t partition = i * local_size + local_rank, index = mine->task_count++;
        trib_task *task = &mine->tasks[index];
        trib_tensor_make_task(tensor, partition, task, &bits);
        if (!trib_task_codec_open(task)) {
            return false;
        }
        make_task(tensor, i, task, &tensor->device->tasks[i]);
        if (partition < tensor->partition_count) {
            tensor->task_index[partition] = index;
        }
    }
    return true;
}

/* Pieces of staging memory begin on cache lines of their own. */
static uint64_t staged_bytes(const trib_task *task)
{
    return ((uint64_t)task->size + TRIB_CACHE_LINE_BYTES - 1) / TRIB_CACHE_LINE_BYTES * TRIB_CACHE_LINE_BYTES;
}

bool trib_device_tensor_stage(trib_tensor *tensor)
{
    const trib_engine *engine = tensor->engine;
    trib_device_tensor *device = tensor->device != NULL ? tensor->device : calloc(1, sizeof *device);
    uint64_t bytes = 0;
    uint32_t count = 0;
    tensor->device = device;
    for (uint32_t core = 0; core < engine->core_count; core++) {
        for (uint32_t i = 0; i < tensor->cores[core].task_count; i++, count++) {
            bytes += staged_bytes(&tensor->cores[core].tasks[i]);
        }
    }
    if (device == NULL || count == 0) {
        return device != NULL;
    }
    device->task_count = count;
    device->tasks = calloc(count, sizeof *device->tasks);
    if (device->tasks == NULL || (bytes > 0 && !take_staging(tensor, bytes))) {
        return false;
    }
    trib_device_task *next = device->tasks;
    unsigned char *staging = device->staging;
    for (uint32_t core = 0; core < engine->core_count; core++) {
        for (uint32_t i = 0; i < tensor->cores[core].task_count; i++, next++) {
            trib_task *task = &tensor->cores[core].tasks[i];
            *next = (trib_device_task){.task = task, .staging = staging};
            task->device = next;
            staging += staged_bytes(task);
        }
    }
    return true;
}

void trib_device_tensor_free(trib_tensor *tensor)
{
    trib_device_tensor_drop(tensor->engine, tensor->device);
}
