/*
 * model.h - the gradients that a training step submits and their times: the size lists of tools/models/, read from
 * CSV.
 *
 * A step is forward, backward, optimizer. Backward makes the gradients ready one after the other, in the order of the
 * list; forward needs the parameters in the reverse order. The lists do not say how forward divides over the layers:
 * each gradient gets the share that its gap has in backward.
 */
#ifndef TRIB_TOOLS_STUDY_MODEL_H
#define TRIB_TOOLS_STUDY_MODEL_H

#include "api/tributary.h"

typedef struct study_tensor {
    char name[120];
    uint64_t bytes;
    int64_t ready_ns;   /* time after the beginning of backward */
    int64_t forward_ns; /* time of the layer that needs it */
    int32_t priority;   /* used if the model has priorities of its own */
    trib_dtype dtype;   /* partial sums of machines have a wider type where this one is narrow */
    trib_op_kind kind;  /* all_reduce, unless a recorded step is replayed; then these, in the memory of the model: */
    uint32_t root, slice_count, rank_count;
    const uint64_t *slices; /* elements of each; NULL: it is whole */
    const uint64_t *ranks;  /* of the group that shares it; NULL: all workers */
} study_tensor;

typedef struct study_model {
    char name[64];
    int64_t forward_ns, backward_ns, optimizer_ns;
    uint32_t count;
    uint64_t bytes; /* bytes of all tensors */
    bool own_priorities;
    bool is_mixed, has_groups; /* some operations are no all-reduces; some tensors are of groups */
    study_tensor tensors[];
} study_model;

/* Loads a model by its path or by its name ("vgg16"), which is searched in TRIB_MODELS, beside the program, in
 * share/tributary/models and in tools/models. Returns NULL with *error. The model is freed with free(). */
study_model *study_model_load(const char *name_or_path, trib_error *error);
/* Multiplies all times by the factor, for another device. */
void study_model_scale(study_model *model, double factor);
/* Returns a copy whose backward pass begins later, for a worker that computes behind the others. NULL: no memory. */
study_model *study_model_late(const study_model *model, int64_t late_ns);

#endif
