/*
 * tensor.c - the table of tensors, and the placement of a tensor.
 *
 * A tensor's partitions, tasks and bit maps are allocated once, at placement; operations allocate nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op.h"

#define PARTITIONS_EACH 64u      /* partitions for each owner of a large tensor, to balance the load */
#define PARTITIONS_EACH_NEAR 16u /* partitions for each owner within one host */
#define PARTITION_MIN (32u << 10)
#define PARTITION_FEW (64u << 10) /* smaller partitions are for jobs of few workers */
#define CHUNKS_EACH 128u          /* chunks for each core that sums */
#define CHUNKS_EACH_SMALL 32u     /* chunks below CHUNK_SMALL for each core, where the cost of a message weighs more */
#define CHUNK_SMALL (64u << 10)
#define CHUNK_MIN (16u << 10)
#define PARTITION_ONE_WAY (128u << 10) /* largest partition where members have several networks */

/*
 * A worker sends to all cores that sum at the same time. The first sums can return when each core has received one
 * chunk. A tensor therefore takes longer than its bytes by that time, one part in CHUNKS_EACH if it is large enough.
 */
static uint32_t fair_chunk(uint64_t bytes, const trib_roster *roster)
{
    const uint64_t cores = trib_roster_summing_cores(roster);
    uint32_t chunk = roster->chunk_bytes;
    while (chunk > CHUNK_MIN && roster->partition_bytes / (chunk / 2) <= TRIB_SUM_CHUNKS_MAX &&
           chunk * cores * (chunk > CHUNK_SMALL ? CHUNKS_EACH : CHUNKS_EACH_SMALL) > bytes) {
        chunk /= 2;
    }
    return chunk;
}

uint32_t trib_tensor_chunk_bytes(const trib_roster *roster, uint64_t bytes)
{
    return trib_roster_is_one_host(roster) ? roster->chunk_bytes : fair_chunk(bytes, roster);
}

/*
 * Partitions are smaller than configured if there would be too few for all owners. With one partition all workers
 * push to one server over one link, and the sum of a large partition returns late.
 *
 * Every worker sends and receives each partition, so the number of small partitions is limited, more tightly with
 * more workers.
 *
 * Within one host there are no links to share and the cost of a message weighs more, so partitions are not smaller
 * than a chunk.
 *
 * Members with several networks use partitions no larger than a chunk. A whole partition goes over one network, and
 * the others wait for the last one on a slow network.
 *
 * Sizes are powers of two, so a partition larger than a chunk consists of whole chunks.
 */
static uint32_t fair_partition(uint64_t bytes, const trib_roster *roster, uint32_t summing)
{
    const bool is_one_host = trib_roster_is_one_host(roster);
    const uint64_t wanted = (uint64_t)(is_one_host ? PARTITIONS_EACH_NEAR : PARTITIONS_EACH) * summing;
    const uint64_t pushed = bytes * roster->worker_count;
    const uint32_t one_way = roster->chunk_bytes < PARTITION_ONE_WAY ? roster->chunk_bytes : PARTITION_ONE_WAY;
    const uint32_t most = !is_one_host && trib_roster_has_networks(roster) ? one_way : roster->partition_bytes;
    const uint32_t few = fair_chunk(bytes, roster) > PARTITION_FEW ? fair_chunk(bytes, roster) : PARTITION_FEW;
    uint64_t fair = is_one_host ? roster->chunk_bytes : PARTITION_MIN;
    while (fair < most &&
           (fair * wanted < bytes || ((is_one_host || fair < few) && fair * TRIB_TENSOR_MESSAGES_MAX < pushed))) {
        fair *= 2;
    }
    return fair < most ? (uint32_t)fair : most;
}

uint32_t trib_tensor_partition_bytes(const trib_roster *roster, uint64_t bytes, uint32_t local_size)
{
    const uint64_t chunk = roster->chunk_bytes;
    const uint32_t asked = roster->partition_bytes, summing = trib_roster_summing(roster);
    const bool is_alone = local_size >= roster->worker_count; /* a job of one machine has no owners */
    const uint32_t wanted = local_size == 0
                                ? fair_partition(bytes, roster, summing)
                                : trib_shard_bytes(bytes, asked, roster->chunk_bytes, local_size,
                                                   roster->worker_count / local_size, is_alone ? 0 : summing);
    if (bytes <= (uint64_t)TRIB_PARTITIONS_MAX * wanted) {
        return wanted;
    }
    /* A DECLARED frame holds TRIB_PARTITIONS_MAX partitions, so larger ones of whole chunks are used. */
    return (uint32_t)(((bytes + TRIB_PARTITIONS_MAX - 1) / TRIB_PARTITIONS_MAX + chunk - 1) / chunk * chunk);
}

/*
 * On a slow link a message takes so long that its processing cost does not count. Partitions may then be small
 * enough for a small tensor to have some for every owner.
 */
uint32_t trib_tensor_partition_bytes_slow(const trib_roster *roster, uint64_t bytes)
{
    const uint32_t usual = trib_tensor_partition_bytes(roster, bytes, 0), summing = trib_roster_summing(roster);
    if (trib_roster_is_one_host(roster)) {
        return usual;
    }
    static const struct {
        uint32_t bytes, each;
    } steps[] = {{PARTITION_MIN, PARTITIONS_EACH}, {PARTITION_MIN / 2, 16}, {PARTITION_MIN / 4, 2}};
    uint32_t fair = usual;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint64_t most =
            (uint64_t)steps[i].each * summing < TRIB_PARTITIONS_MAX ? steps[i].each * summing : TRIB_PARTITIONS_MAX;
        while (fair > steps[i].bytes && fair / 2 * most >= bytes) {
            fair /= 2;
        }
    }
    return fair;
}

uint32_t trib_tensor_partition_count(uint64_t bytes, uint32_t partition_bytes)
{
    return bytes == 0 ? 1 : (uint32_t)((bytes + partition_bytes - 1) / partition_bytes);
}

/* The FNV-1a hash of the name. */
static uint64_t key_of(const char *name)
{
    uint64_t key = UINT64_C(14695981039346656037);
    for (; *name != '\0'; name++) {
        key = (key ^ (unsigned char)*name) * UINT64_C(1099511628211);
    }
    return key;
}

static trib_tensor *tensor_create(trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count)
{
    trib_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) {
        return NULL;
    }
    tensor->cores = calloc(engine->core_count, sizeof *tensor->cores);
    if (tensor->cores == NULL) {
        free(tensor);
        return NULL;
    }
    tensor->engine = engine;
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->key = key_of(name);
    tensor->dtype = dtype;
    tensor->count = count;
    tensor->bytes = count * trib_dtype_size(dtype);
    tensor->declare_post.run = engine->hooks->declare;
    return tensor;
}

static bool add_to_tables(trib_engine *engine, trib_tensor *tensor)
{
    if (engine->tensor_count == engine->tensors_capacity) {
        uint32_t capacity = engine->tensors_capacity == 0 ? 256 : engine->tensors_capacity * 2;
        trib_tensor **tensors = realloc(engine->tensors, capacity * sizeof(trib_tensor *));
        if (tensors == NULL) {
            return false;
        }
        engine->tensors = tensors;
        engine->tensors_capacity = capacity;
    }
    HASH_ADD_STR(engine->tensors_by_name, name, tensor);
    if (tensor->hh.tbl == NULL) {
        return false;
    }
    tensor->tag = engine->tensor_count;
    engine->tensors[engine->tensor_count++] = tensor;
    return true;
}

static trib_tensor *find(const trib_engine *engine, const char *name)
{
    trib_tensor *tensor = NULL;
    HASH_FIND_STR(engine->tensors_by_name, name, tensor);
    return tensor;
}

static trib_status check_same(const trib_tensor *tensor, trib_dtype dtype, uint64_t count, uint32_t flags,
                              trib_error *error)
{
    const bool on_device = (flags & TRIB_TENSOR_DEVICE) != 0;
    if (tensor->dtype == dtype && tensor->count == count && tensor->on_device == on_device) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_MISMATCH,
                          "tensor \"%s\" was declared before as %s[%llu] in %s memory, now as %s[%llu] in %s "
                          "memory: use another name",
                          tensor->name, trib_dtype_name(tensor->dtype), (unsigned long long)tensor->count,
                          tensor->on_device ? "device" : "host", trib_dtype_name(dtype), (unsigned long long)count,
                          on_device ? "device" : "host");
}

static trib_status add(trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count,
                       trib_tensor **tensor_out, trib_error *error)
{
    trib_tensor *tensor = tensor_create(engine, name, dtype, count);
    if (tensor == NULL || !add_to_tables(engine, tensor)) {
        if (tensor != NULL) {
            free(tensor->cores);
            free(tensor);
        }
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", name);
    }
    *tensor_out = tensor;
    return TRIB_OK;
}

/* The caller holds the mutex, which is released meanwhile: another thread may declare the tensor or close the
 * engine. */
static trib_status take_ahead(trib_engine *engine, const char *name, uint64_t bytes,
                              struct trib_device_tensor **device_out, trib_error *error)
{
    pthread_mutex_unlock(&engine->mutex);
    const trib_status status = engine->device_hooks->take_ahead(engine, name, bytes, device_out, error);
    pthread_mutex_lock(&engine->mutex);
    const trib_status fate = trib_engine_check_open_locked(engine, error);
    return fate != TRIB_OK ? fate : find(engine, name) != NULL ? TRIB_OK : status;
}

trib_status trib_tensor_find_or_add(trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count,
                                    int32_t priority, uint32_t flags, trib_tensor **tensor_out, trib_error *error)
{
    const bool on_device = (flags & TRIB_TENSOR_DEVICE) != 0;
    struct trib_device_tensor *device = NULL;
    trib_status status = TRIB_OK;
    pthread_mutex_lock(&engine->mutex);
    if (on_device && find(engine, name) == NULL) {
        status = take_ahead(engine, name, count * trib_dtype_size(dtype), &device, error);
    }
    trib_tensor *tensor = find(engine, name);
    if (status == TRIB_OK && tensor != NULL) {
        status = check_same(tensor, dtype, count, flags, error);
        tensor->priority = status == TRIB_OK ? priority : tensor->priority; /* of the operations from now on */
    } else if (status == TRIB_OK) {
        status = add(engine, name, dtype, count, &tensor, error);
        if (status == TRIB_OK) {
            tensor->priority = priority;
            tensor->on_device = on_device;
            tensor->device = device;
            device = NULL;
            trib_reactor_post(engine->cores[0].reactor, &tensor->declare_post);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    if (device != NULL) {
        engine->device_hooks->drop(engine, device);
    }
    if (status == TRIB_OK) {
        *tensor_out = tensor;
    }
    return status;
}

static uint32_t core_of(const trib_tensor *tensor, uint32_t partition)
{
    return tensor->owners[partition].reactor % tensor->engine->core_count;
}

uint64_t *trib_tensor_make_bits(const trib_tensor *tensor, uint32_t tasks)
{
    const uint32_t chunks_max = (tensor->partition_bytes + tensor->chunk_bytes - 1) / tensor->chunk_bytes;
    return calloc((size_t)tasks * ((chunks_max + 63) / 64), sizeof(uint64_t));
}

void trib_tensor_make_task(trib_tensor *tensor, uint32_t partition, trib_task *task, uint64_t **bits)
{
    uint64_t offset = (uint64_t)partition * tensor->partition_bytes;
    uint64_t left = offset < tensor->bytes ? tensor->bytes - offset : 0;
    *task = (trib_task){
        .tensor = tensor,
        .offset = offset,
        .size = left < tensor->partition_bytes ? (uint32_t)left : tensor->partition_bytes,
        .partition = partition,
        .owner = partition < tensor->partition_count ? tensor->owners[partition] : (trib_place_owner){0},
        .missing_rank = TRIB_NO_MEMBER,
        .received = *bits,
    };
    task->chunk_count = (task->size + tensor->chunk_bytes - 1) / tensor->chunk_bytes;
    if (task->size == 0 && partition < tensor->partition_count) {
        task->chunk_count = 1; /* an empty tensor takes part with one chunk; an absent share of a slice has none */
    }
    *bits += (task->chunk_count + 63) / 64;
}

bool trib_tensor_take_tasks(trib_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        trib_tensor_core *mine = &tensor->cores[i];
        mine->round_next = 1;
        mine->tensor = tensor;
        mine->tasks = calloc(mine->task_count > 0 ? mine->task_count : 1, sizeof *mine->tasks);
        if (mine->tasks == NULL) {
            return false;
        }
    }
    return true;
}

static bool make_tasks(trib_tensor *tensor)
{
    tensor->task_index = calloc(tensor->partition_count, sizeof *tensor->task_index);
    tensor->received_bits = trib_tensor_make_bits(tensor, tensor->partition_count);
    if (tensor->task_index == NULL || tensor->received_bits == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < tensor->partition_count; i++) {
        trib_tensor_core *mine = &tensor->cores[core_of(tensor, i)];
        tensor->task_index[i] = mine->task_count++;
    }
    if (!trib_tensor_take_tasks(tensor)) {
        return false;
    }
    uint64_t *bits = tensor->received_bits;
    for (uint32_t i = 0; i < tensor->partition_count; i++) {
        trib_tensor_make_task(tensor, i, &tensor->cores[core_of(tensor, i)].tasks[tensor->task_index[i]], &bits);
    }
    return true;
}

static void release_waiting(trib_tensor *tensor)
{
    trib_op_core *op_core = tensor->waiting_head;
    tensor->waiting_head = tensor->waiting_tail = NULL;
    while (op_core != NULL) {
        trib_op_core *next = op_core->queue_next;
        op_core->queue_next = NULL;
        trib_worker_arrived(&tensor->engine->cores[0], op_core);
        op_core = next;
    }
}

void trib_tensor_placed(trib_tensor *tensor, uint32_t id, trib_place_owner *owners_owned, uint32_t partition_count,
                        uint32_t partition_bytes)
{
    trib_assert(!atomic_load(&tensor->placed));
    const trib_roster *roster = tensor->engine->roster;
    tensor->id = id;
    tensor->chunk_bytes = trib_tensor_chunk_bytes(roster, tensor->bytes);
    tensor->partition_bytes = partition_bytes;
    tensor->partition_count = partition_count;
    tensor->owners = owners_owned;
    tensor->plan = tensor->engine->env.choose_plan(tensor);
    if (!(tensor->on_device ? tensor->engine->device_hooks->place(tensor) : make_tasks(tensor))) {
        /* The other workers would wait for pushes that this worker will never send. */
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "out of memory for the partitions of tensor \"%s\"", tensor->name);
        trib_job_fail(tensor->engine, TRIB_NO_MEMORY, text);
        return;
    }
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        tensor->cores_used += trib_tensor_is_used(tensor, i);
    }
    atomic_store(&tensor->placed, true);
    release_waiting(tensor);
}

void trib_tensor_bad(trib_tensor *tensor, const char *text)
{
    if (atomic_load(&tensor->bad)) {
        return;
    }
    snprintf(tensor->bad_text, sizeof tensor->bad_text, "%s", text);
    atomic_store(&tensor->bad, true);
    if (!atomic_load(&tensor->placed)) {
        release_waiting(tensor);
        return;
    }
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        tensor->cores[i].bad_post.run = trib_worker_tensor_bad;
        trib_reactor_post(tensor->engine->cores[i].reactor, &tensor->cores[i].bad_post);
    }
}

const char *trib_tensor_name_of(const trib_engine *engine, uint32_t tag)
{
    const trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
    return tensor != NULL ? tensor->name : "?";
}

void trib_tensors_free(trib_engine *engine)
{
    HASH_CLEAR(hh, engine->tensors_by_name);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        trib_tensor *tensor = engine->tensors[i];
        for (uint32_t core = 0; core < engine->core_count; core++) {
            free(tensor->cores[core].tasks);
        }
        if (tensor->on_device) {
            engine->device_hooks->free(tensor);
        }
        free(tensor->cores);
        free(tensor->task_index);
        free(tensor->received_bits);
        free(tensor->owners);
        free(tensor->owners_next);
        free(tensor);
    }
    free(engine->tensors);
    engine->tensors = NULL;
    engine->tensor_count = 0;
}
