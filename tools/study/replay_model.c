/* replay_model.c - makes models of the steps in traces. */
#include "tools/study/replay.h"

#include <stdlib.h>

/* Divides forward over the layers as in model.c: each layer gets the share that its gap has in backward. */
void study_replay_share_forward(study_model *model)
{
    int64_t before_ns = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        study_tensor *tensor = &model->tensors[i];
        const double share = model->backward_ns > 0
                                 ? (double)(tensor->ready_ns - before_ns) / (double)model->backward_ns
                                 : 1.0 / model->count;
        before_ns = tensor->ready_ns;
        tensor->forward_ns = (int64_t)(share * (double)model->forward_ns);
    }
}

/* Returns the tensor's type, or bytes if the type does not fit. */
static trib_dtype dtype_of(const trace_run *run, uint32_t id)
{
    const trace_tensor *tensor = id < run->tensor_count ? run->tensors[id] : NULL;
    const size_t width = tensor != NULL ? trib_dtype_size(tensor->dtype) : 0;
    return width > 0 && tensor->bytes % width == 0 ? tensor->dtype : TRIB_UINT8;
}

/* Takes over who shares the tensor, and its slices. Returns where there is room for the next tensor's. */
static uint64_t *fill_shares(study_model *model, study_tensor *tensor, const trace_tensor *recorded, uint64_t *room)
{
    tensor->slice_count = recorded->slice_count;
    tensor->rank_count = recorded->rank_count;
    tensor->ranks = recorded->rank_count > 0 ? room : NULL;
    tensor->slices = recorded->slice_count > 0 ? room + recorded->rank_count : NULL;
    const size_t count = (size_t)recorded->rank_count + recorded->slice_count; /* they follow each other */
    if (count > 0) {
        memcpy(room, recorded->ranks, count * sizeof *room);
    }
    model->has_groups = model->has_groups || tensor->ranks != NULL;
    return room + count;
}

static size_t share_count(const trace_run *run, const trace_steps *steps)
{
    size_t count = 0;
    for (uint32_t i = 0; i < steps->op_count; i++) {
        const trace_tensor *tensor = run->tensors[steps->ops[i].tensor];
        count += (size_t)tensor->rank_count + tensor->slice_count;
    }
    return count;
}

study_model *study_replay_model(const trace_run *run, const trace_steps *steps)
{
    const size_t size = sizeof(study_model) + steps->op_count * sizeof(study_tensor);
    study_model *model = calloc(1, size + share_count(run, steps) * sizeof(uint64_t));
    if (model == NULL) {
        return NULL;
    }
    uint64_t *room = (uint64_t *)(void *)((char *)model + size);
    model->is_mixed = steps->is_mixed;
    snprintf(model->name, sizeof model->name, "recorded");
    model->own_priorities = true;
    model->count = steps->op_count;
    model->bytes = steps->bytes;
    model->forward_ns = steps->gap_ns;
    model->backward_ns = steps->ops[steps->op_count - 1].ready_ns;
    for (uint32_t i = 0; i < steps->op_count; i++) {
        const trace_step_op *op = &steps->ops[i];
        char buffer[48];
        uint32_t same = 0; /* the same tensor again in one step counts as another tensor here */
        for (uint32_t k = 0; k < i; k++) {
            same += steps->ops[k].tensor == op->tensor;
        }
        snprintf(model->tensors[i].name, sizeof model->tensors[i].name, same > 0 ? "%.90s #%u" : "%.110s",
                 trace_tensor_name(run, op->tensor, buffer, sizeof buffer), same + 1);
        model->tensors[i].bytes = op->bytes > 0 ? op->bytes : 1;
        model->tensors[i].ready_ns = op->ready_ns;
        model->tensors[i].priority = op->priority;
        model->tensors[i].dtype = dtype_of(run, op->tensor);
        model->tensors[i].kind = op->kind;
        model->tensors[i].root = op->root;
        room = fill_shares(model, &model->tensors[i], run->tensors[op->tensor], room);
    }
    study_replay_share_forward(model);
    return model;
}

/* A sum that is equal for models with the same tensors, in any order. Those of groups are checked apart. */
uint64_t study_replay_hash(const study_model *model)
{
    uint64_t sum = 0; /* NOLINT(clang-analyzer-core.NullDereference): models that were counted are there */
    for (uint32_t i = 0; i < model->count; i++) {
        uint64_t hash = UINT64_C(1469598103934665603) ^ model->tensors[i].bytes ^ (uint64_t)model->tensors[i].kind;
        if (model->tensors[i].ranks != NULL) {
            continue;
        }
        for (const char *at = model->tensors[i].name; *at != '\0'; at++) {
            hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
        }
        sum += hash;
    }
    return sum;
}

/* How often the model has an operation on that tensor of a group. */
static uint32_t count_of(const study_model *model, const study_tensor *tensor)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        const study_tensor *other = &model->tensors[i];
        count += other->rank_count == tensor->rank_count && other->kind == tensor->kind &&
                 other->bytes == tensor->bytes && strcmp(other->name, tensor->name) == 0 &&
                 memcmp(other->ranks, tensor->ranks, tensor->rank_count * sizeof *tensor->ranks) == 0;
    }
    return count;
}

/* All members of a group must do the same in it, or the replay would wait for ever. */
trib_status study_replay_check_groups(const trace_run *run, study_replay *replay, trib_error *error)
{
    for (uint32_t i = 0; i < replay->model_count; i++) {
        replay->has_groups = replay->has_groups || replay->models[i]->has_groups;
    }
    if (replay->has_groups && replay->model_count < run->worker_count) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "the recorded steps have groups of workers: give the traces of all workers, whose steps "
                              "must have the same operations on what they share (%u of %u are there and do)",
                              replay->model_count, run->worker_count);
    }
    for (uint32_t i = 0; i < replay->model_count; i++) {
        for (uint32_t k = 0; k < replay->models[i]->count; k++) {
            const study_tensor *tensor = &replay->models[i]->tensors[k];
            for (uint32_t place = 0; place < tensor->rank_count; place++) {
                const study_model *other = replay->models[tensor->ranks[place]];
                if (count_of(other, tensor) != count_of(replay->models[i], tensor)) {
                    return trib_error_set(error, TRIB_UNSUPPORTED,
                                          "the steps of rank %u and rank %llu differ in what they do in a group, as "
                                          "on tensor \"%.110s\"",
                                          i, (unsigned long long)tensor->ranks[place], tensor->name);
                }
            }
        }
    }
    return TRIB_OK;
}
