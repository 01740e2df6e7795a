/*
 * model.h - what a training step hands in, and when: the size lists of tools/models/, read from CSV.
 *
 * A step is forward, backward, optimizer. Backward makes the gradients ready one after the other, in the order of the
 * list; forward needs the parameters in the reverse order. How the forward pass divides over the layers is not in the
 * lists: each gradient gets the share that its gap has in backward.
 */
#ifndef TRIB_TOOLS_STUDY_MODEL_H
#define TRIB_TOOLS_STUDY_MODEL_H

#include "api/tributary.h"

typedef struct study_tensor {
    char name[120];
    uint64_t bytes;
    int64_t ready_ns;   /* after backward began */
    int64_t forward_ns; /* of the layer that needs it */
    int32_t priority;   /* if the model has priorities of its own */
    trib_dtype dtype;   /* machines that sum first hand on wider parts of narrow types */
} study_tensor;

typedef struct study_model {
    char name[64];
    int64_t forward_ns, backward_ns, optimizer_ns;
    uint32_t count;
    uint64_t bytes; /* of all of them */
    bool own_priorities;
    study_tensor tensors[];
} study_model;

/* A name ("vgg16": looked for in TRIB_MODELS, beside the program, in share/tributary/models and in tools/models) or a
 * path. NULL with *error. Freed with free(). */
study_model *study_model_load(const char *name_or_path, trib_error *error);
/* All times multiplied by that: another device. */
void study_model_scale(study_model *model, double factor);

#endif
