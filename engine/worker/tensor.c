/*
 * tensor.c - the table of tensors, and the placement of a tensor.
 *
 * A tensor's partitions, tasks and bit maps are allocated once, at placement; operations allocate nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/handle.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/task_codec.h"

/* FNV-1a */
static uint64_t hash(const char *name, size_t length)
{
    uint64_t key = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < length; i++) {
        key = (key ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    }
    return key;
}

static uint64_t declared_count(const trib_tensor_desc *desc)
{
    uint64_t count = desc->layout == TRIB_PAIRS ? 0 : desc->count;
    for (uint32_t i = 0; i < desc->split_count; i++) {
        count += desc->splits[i];
    }
    return count;
}

static uint64_t declared_row(const trib_tensor_desc *desc)
{
    return desc->row == 0 ? 1 : desc->row;
}

static void make_table_key(const trib_group *group, const char *name, char *text, size_t size)
{
    snprintf(text, size, "%u/%s", group == NULL ? 0 : group->tag + 1, name);
}

/* Makes memory for one more tensor, whose tag it is from then on. The memory stays until the engine is freed, so a
 * caller that uses a handle while another thread releases it reads a tensor all the same. */
static trib_tensor *make_tensor(trib_engine *engine)
{
    if (engine->tensor_count == engine->tensors_capacity) {
        uint32_t capacity = engine->tensors_capacity == 0 ? 256 : engine->tensors_capacity * 2;
        trib_tensor **tensors = realloc(engine->tensors, capacity * sizeof(trib_tensor *));
        if (tensors == NULL) {
            return NULL;
        }
        engine->tensors = tensors;
        engine->tensors_capacity = capacity;
    }
    trib_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL) {
        return NULL;
    }
    tensor->cores = calloc(engine->core_count, sizeof *tensor->cores);
    tensor->place = tensor->cores == NULL ? TRIB_NO_PLACE : trib_handle_take_place(tensor);
    if (tensor->place == TRIB_NO_PLACE) {
        free(tensor->cores);
        free(tensor);
        return NULL;
    }
    tensor->engine = engine;
    tensor->tag = engine->tensor_count;
    tensor->declare_post.run = engine->hooks->declare;
    engine->tensors[engine->tensor_count++] = tensor;
    return tensor;
}

static trib_tensor *find(const trib_engine *engine, const trib_tensor_desc *desc)
{
    char key[TRIB_TENSOR_NAME_MAX + 12];
    trib_tensor *tensor = NULL;
    make_table_key(desc->group, desc->name, key, sizeof key);
    HASH_FIND_STR(engine->tensors_by_name, key, tensor);
    return tensor;
}

uintptr_t trib_tensor_lookup(trib_engine *engine, const char *name)
{
    pthread_mutex_lock(&engine->mutex);
    const trib_tensor_desc desc = {.name = name};
    const trib_tensor *tensor = find(engine, &desc);
    const uintptr_t handle = tensor == NULL ? 0 : tensor->handle;
    pthread_mutex_unlock(&engine->mutex);
    return handle;
}

void trib_tensor_describe(char *text, size_t size, trib_dtype dtype, uint64_t count, uint32_t dims,
                          const uint64_t *shape)
{
    int used = snprintf(text, size, "%s[", trib_dtype_name(dtype));
    for (uint32_t i = 0; i < dims && used > 0 && (size_t)used < size; i++) {
        used += snprintf(text + used, size - (size_t)used, "%s%llu", i > 0 ? "x" : "", (unsigned long long)shape[i]);
    }
    if (dims == 0 && used > 0 && (size_t)used < size) {
        used += snprintf(text + used, size - (size_t)used, "%llu", (unsigned long long)count);
    }
    if (used > 0 && (size_t)used < size) {
        snprintf(text + used, size - (size_t)used, "]");
    }
}

/* Whole tensors of all workers are summed by the GPUs of a machine first, unless the job goes on without workers. That
 * is not known before the roster comes. */
static bool is_sharded(const trib_engine *engine, bool on_device, trib_layout layout, const trib_group *group)
{
    const trib_roster *roster = engine->roster;
    return on_device && layout == TRIB_WHOLE && group == NULL && roster != NULL && !roster->shrinks;
}

void trib_tensors_choose_sharded(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        trib_tensor *tensor = engine->tensors[i];
        tensor->is_sharded = is_sharded(engine, tensor->on_device, tensor->layout, tensor->group);
    }
    pthread_mutex_unlock(&engine->mutex);
}

/* Shapes are compared only if both are given. */
static bool is_same_shape(const trib_tensor *tensor, const trib_tensor_desc *desc)
{
    return tensor->dims == 0 || desc->dims == 0 ||
           (tensor->dims == desc->dims && memcmp(tensor->shape, desc->shape, desc->dims * sizeof *desc->shape) == 0);
}

static bool may_have_quorum(const trib_tensor_desc *desc, const trib_codec_config *codec)
{
    return desc->layout == TRIB_WHOLE && (desc->flags & TRIB_TENSOR_DEVICE) == 0 && desc->group == NULL &&
           codec->codec == NULL && codec->choices[0] == '\0' && strncmp(desc->name, "__", 2) != 0;
}

/* The job's quorum is for the tensors that can have one. */
static uint32_t quorum_of(const trib_engine *engine, const trib_tensor_desc *desc, const trib_codec_config *codec)
{
    const uint32_t quorum = desc->quorum != 0 ? desc->quorum : engine->config.quorum;
    return quorum == TRIB_QUORUM_ALL || !may_have_quorum(desc, codec) ? 0 : quorum;
}

static trib_status check_same(const trib_tensor *tensor, const trib_tensor_desc *desc, const trib_codec_config *codec,
                              trib_error *error)
{
    const bool on_device = (desc->flags & TRIB_TENSOR_DEVICE) != 0;
    if ((desc->flags & TRIB_TENSOR_NEW) != 0) {
        return trib_error_set(error, TRIB_STATE,
                              "tensor \"%s\" is declared already, and TRIB_TENSOR_NEW says that it is not: use another "
                              "name, or release the first one",
                              tensor->name);
    }
    if (tensor->quorum != quorum_of(tensor->engine, desc, codec)) {
        return trib_error_set(error, TRIB_MISMATCH, "tensor \"%s\" was declared before with another quorum",
                              tensor->name);
    }
    if (tensor->is_numbered != ((desc->flags & TRIB_TENSOR_NUMBERED) != 0)) {
        return trib_error_set(error, TRIB_MISMATCH,
                              "tensor \"%s\" was declared before %s TRIB_TENSOR_NUMBERED: use another name",
                              tensor->name, tensor->is_numbered ? "with" : "without");
    }
    if (tensor->layout != desc->layout || tensor->row != declared_row(desc) ||
        (tensor->splits != NULL && memcmp(tensor->splits, desc->splits, desc->split_count * sizeof(uint64_t)) != 0)) {
        return trib_error_set(error, TRIB_MISMATCH,
                              "tensor \"%s\" was declared before with another layout, row or splits: use another name",
                              tensor->name);
    }
    if (tensor->dtype == desc->dtype && tensor->count == declared_count(desc) && tensor->on_device == on_device &&
        is_same_shape(tensor, desc)) {
        return trib_codec_check_same(tensor, desc, codec, error);
    }
    char before[TRIB_TENSOR_TEXT_SIZE], now[TRIB_TENSOR_TEXT_SIZE];
    trib_tensor_describe(before, sizeof before, tensor->dtype, tensor->count, tensor->dims, tensor->shape);
    trib_tensor_describe(now, sizeof now, desc->dtype, desc->count, desc->dims, desc->shape);
    return trib_error_set(error, TRIB_MISMATCH,
                          "tensor \"%s\" was declared before as %s in %s memory, now as %s in %s memory: use another "
                          "name, or release the first one",
                          tensor->name, before, tensor->on_device ? "device" : "host", now,
                          on_device ? "device" : "host");
}

static trib_status check_quorum(const trib_engine *engine, const trib_tensor_desc *desc, const trib_codec_config *codec,
                                trib_error *error)
{
    const bool asks = desc->quorum != 0 && desc->quorum != TRIB_QUORUM_ALL;
    if (asks && !may_have_quorum(desc, codec)) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\" cannot have a quorum: only whole tensors of all workers in host memory "
                              "without a codec can (trib_tensor_desc.quorum)",
                              desc->name);
    }
    /* A job whose number of workers may grow has no quorum. */
    if (asks && desc->quorum > (uint32_t)engine->config.worker_count) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\" cannot have a quorum of %u of %d workers (trib_tensor_desc.quorum): at "
                              "most all, which TRIB_QUORUM_ALL means",
                              desc->name, desc->quorum, engine->config.worker_count);
    }
    return asks && engine->config.survive != TRIB_SURVIVE_NOTHING
               ? trib_error_set(error, TRIB_UNSUPPORTED,
                                "tensor \"%s\" cannot have a quorum (trib_tensor_desc.quorum) in a job that goes on "
                                "after losses: TRIB_SURVIVE must be nothing",
                                desc->name)
               : TRIB_OK;
}

/* Fills in a tensor that is all zero but for what stays with its memory. Returns false if memory runs out. */
static bool fill_tensor(trib_tensor *tensor, const trib_tensor_desc *desc, const trib_codec_config *codec)
{
    tensor->codec = *codec;
    tensor->names_codec = desc->codec != NULL;
    (void)trib_codec_format(codec, tensor->codec_text);
    tensor->splits = desc->split_count == 0 ? NULL : calloc(desc->split_count, sizeof *tensor->splits);
    if ((tensor->splits == NULL) != (desc->split_count == 0)) {
        return false;
    }
    if (tensor->splits != NULL) {
        memcpy(tensor->splits, desc->splits, desc->split_count * sizeof *tensor->splits);
    }
    make_table_key(desc->group, desc->name, tensor->table_key, sizeof tensor->table_key);
    tensor->layout = desc->layout;
    tensor->row = declared_row(desc);
    tensor->group = desc->group;
    tensor->group_place = trib_rank_group_place(tensor->engine, desc->group);
    tensor->members = trib_rank_group_count(tensor->engine, desc->group);
    snprintf(tensor->name, sizeof tensor->name, "%s", desc->name);
    tensor->name_begin = desc->name_length > 0 ? desc->name_begin : 0;
    tensor->name_length = desc->name_length;
    tensor->key = hash(desc->name, strlen(desc->name));
    tensor->is_numbered = (desc->flags & TRIB_TENSOR_NUMBERED) != 0;
    /* A program knows no name of a numbered tensor. */
    const bool knows_name = desc->name_length == 0 && !tensor->is_numbered;
    tensor->known_key = knows_name ? tensor->key : hash(desc->name + tensor->name_begin, desc->name_length);
    tensor->dtype = desc->dtype;
    tensor->count = declared_count(desc);
    tensor->bytes = tensor->count * trib_dtype_size(desc->dtype);
    tensor->priority = desc->priority;
    tensor->on_device = (desc->flags & TRIB_TENSOR_DEVICE) != 0;
    tensor->is_sharded = is_sharded(tensor->engine, tensor->on_device, tensor->layout, tensor->group);
    tensor->dims = (uint8_t)desc->dims;
    tensor->quorum = quorum_of(tensor->engine, desc, codec);
    tensor->quorum_timeout_ns = tensor->quorum == 0 ? 0 : tensor->engine->config.quorum_timeout_ns;
    tensor->submitted = tensor->rounds_before = 0;
    if (desc->dims > 0) {
        memcpy(tensor->shape, desc->shape, desc->dims * sizeof *desc->shape);
    }
    atomic_init(&tensor->references, 1);
    return true;
}

static trib_status add(trib_engine *engine, const trib_tensor_desc *desc, const trib_codec_config *codec,
                       trib_tensor **tensor_out, trib_error *error)
{
    trib_tensor *tensor = engine->free_tensors;
    if (tensor != NULL) {
        engine->free_tensors = tensor->next_free;
    } else {
        tensor = make_tensor(engine);
    }
    const bool is_filled = tensor != NULL && fill_tensor(tensor, desc, codec);
    if (is_filled) {
        HASH_ADD_STR(engine->tensors_by_name, table_key, tensor);
    }
    if (!is_filled || tensor->hh.tbl == NULL) {
        if (tensor != NULL) {
            free(tensor->splits);
            tensor->splits = NULL;
            tensor->next_free = engine->free_tensors;
            engine->free_tensors = tensor;
        }
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", desc->name);
    }
    trib_tensor_set_state(tensor, TRIB_TENSOR_DECLARED);
    if (tensor->group != NULL) {
        tensor->group->references++;
    }
    tensor->handle = trib_tensor_is_reserved(tensor) ? 0 : trib_handle_open(tensor->place, TRIB_HANDLE_TENSOR);
    *tensor_out = tensor;
    return TRIB_OK;
}

/* The caller holds the mutex, which is released meanwhile: another thread may declare the tensor or close the
 * engine. */
static trib_status take_ahead(trib_engine *engine, const trib_tensor_desc *desc, struct trib_device_tensor **device_out,
                              trib_error *error)
{
    const uint64_t bytes = desc->count * trib_dtype_size(desc->dtype);
    pthread_mutex_unlock(&engine->mutex);
    const trib_status status = engine->device_hooks->take_ahead(engine, desc->name, bytes, device_out, error);
    pthread_mutex_lock(&engine->mutex);
    const trib_status fate = trib_engine_check_open_locked(engine, error);
    return fate != TRIB_OK ? fate : find(engine, desc) != NULL ? TRIB_OK : status;
}

trib_status trib_tensor_find_or_add(trib_engine *engine, const trib_tensor_desc *desc, trib_tensor **tensor_out,
                                    uintptr_t *handle_out, trib_error *error)
{
    struct trib_device_tensor *device = NULL;
    trib_codec_config codec;
    trib_status status = trib_codec_choose(engine, desc, &codec, error);
    status = status == TRIB_OK ? check_quorum(engine, desc, &codec, error) : status;
    pthread_mutex_lock(&engine->mutex);
    const bool is_taken_ahead = status == TRIB_OK && (desc->flags & TRIB_TENSOR_DEVICE) != 0 &&
                                desc->layout == TRIB_WHOLE && desc->group == NULL;
    if (is_taken_ahead && find(engine, desc) == NULL) {
        status = take_ahead(engine, desc, &device, error);
    }
    trib_tensor *tensor = find(engine, desc);
    if (status == TRIB_OK && tensor != NULL) {
        status = check_same(tensor, desc, &codec, error);
        if (status == TRIB_OK) {
            tensor->priority = desc->priority; /* default of the operations that this worker submits from now on */
        }
    } else if (status == TRIB_OK) {
        status = add(engine, desc, &codec, &tensor, error);
        if (status == TRIB_OK) {
            tensor->device = device;
            device = NULL;
            trib_reactor_post(engine->reactors[0].reactor, &tensor->declare_post);
        }
    }
    /* Other workers may have it, and use it. A mismatch comes before a use: TensorFlow looks for a shape that way. */
    if (status != TRIB_OK && status != TRIB_MISMATCH && desc->name_length > 0) {
        *trib_rank_group_gap(engine, desc->group) = true;
    }
    if (status == TRIB_OK && handle_out != NULL) {
        *handle_out = tensor->handle;
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

void trib_tensor_placed(trib_tensor *tensor, uint32_t id, uint32_t round_base, trib_place_owner *owners_owned,
                        trib_partitioning *cut_owned)
{
    trib_assert(!atomic_load(&tensor->placed) && id < TRIB_TENSORS_MAX && round_base <= TRIB_ROUND_BASE_MAX);
    tensor->id = id;
    tensor->round_base = round_base;
    tensor->cut = cut_owned;
    tensor->chunk_bytes =
        trib_tensor_chunk_bytes(tensor->engine->roster, cut_owned->bytes, trib_tensor_chunk_least(tensor));
    tensor->partition_bytes = cut_owned->partition_bytes;
    tensor->partition_count = cut_owned->partition_count;
    tensor->owners = owners_owned;
    tensor->plan = tensor->engine->env.choose_plan(tensor);
    char text[TRIB_ERROR_TEXT_SIZE];
    const bool has_codec = trib_codec_place_tensor(tensor, text, sizeof text);
    if (!(tensor->is_sharded ? tensor->engine->device_hooks->place(tensor) : trib_tensor_make_tasks(tensor))) {
        /* The other workers would wait for pushes that this worker will never send. */
        snprintf(text, sizeof text, "out of memory for the partitions of tensor \"%s\"", tensor->name);
        tensor->round_base = 0; /* its rounds are not counted from there */
        trib_job_fail(tensor->engine, TRIB_NO_MEMORY, text);
        return;
    }
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        tensor->cores_used += trib_tensor_is_used(tensor, i);
    }
    /* An operation that finds the tensor placed has its number. Those before get theirs when they reach the cores
     * (worker.c). */
    pthread_mutex_lock(&tensor->engine->mutex);
    tensor->rounds += round_base;
    atomic_store(&tensor->placed, true);
    pthread_mutex_unlock(&tensor->engine->mutex);
    if (!has_codec) {
        trib_tensor_bad(tensor, TRIB_UNSUPPORTED, text);
    }
    release_waiting(tensor);
}

void trib_tensor_bad(trib_tensor *tensor, trib_status status, const char *text)
{
    if (atomic_load(&tensor->bad)) {
        return;
    }
    tensor->bad_status = status;
    snprintf(tensor->bad_text, sizeof tensor->bad_text, "%s", text);
    atomic_store(&tensor->bad, true);
    if (!atomic_load(&tensor->placed)) {
        release_waiting(tensor);
        return;
    }
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        tensor->cores[i].bad_post.run = trib_worker_tensor_bad;
        trib_reactor_post(tensor->engine->reactors[i].reactor, &tensor->cores[i].bad_post);
    }
}

void trib_tensor_free_parts(trib_tensor *tensor)
{
    trib_carry_free_spare(tensor);
    for (uint32_t core = 0; core < tensor->engine->core_count; core++) {
        for (uint32_t i = 0; tensor->cores[core].tasks != NULL && i < tensor->cores[core].task_count; i++) {
            trib_task_codec_close(&tensor->cores[core].tasks[i]);
        }
        free(tensor->cores[core].tasks);
        tensor->cores[core].tasks = NULL;
    }
    if (tensor->on_device) {
        tensor->engine->device_hooks->free(tensor);
    }
    if (tensor->copies != NULL) {
        tensor->engine->env.memory_free(tensor->engine->env.memory, tensor->copies);
        tensor->copies = NULL;
    }
    free(tensor->task_index);
    free(tensor->received_bits);
    free(tensor->owners);
    free(tensor->owners_next);
    trib_partitioning_unref(tensor->cut);
    tensor->cut = NULL;
    tensor->task_index = NULL;
    tensor->received_bits = NULL;
    tensor->owners = tensor->owners_next = NULL;
    tensor->device = NULL;
}

trib_tensor *trib_tensor_at(trib_engine *engine, uint32_t tag)
{
    pthread_mutex_lock(&engine->mutex);
    trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
    pthread_mutex_unlock(&engine->mutex);
    return tensor;
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
        trib_tensor_free_parts(tensor);
        trib_handle_give_place(tensor->place);
        free(tensor->splits);
        free(tensor->cores);
        free(tensor);
    }
    free(engine->tensors);
    engine->tensors = NULL;
    engine->free_tensors = NULL;
    engine->tensor_count = 0;
}
