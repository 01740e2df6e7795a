/*
 * model.h - a perceptron with one hidden layer (64 pixels, 128 ReLU units, softmax over 10 digits), trained by SGD
 * with momentum. It knows nothing of other workers: it turns a share of a batch into gradients, and summed gradients
 * into a step.
 */
#ifndef DIGITS_MODEL_H
#define DIGITS_MODEL_H

#include "images.h"

enum {
    MODEL_HIDDEN = 128,
    MODEL_BATCH = 60 /* images of a whole batch, over all workers */
};

/* The parts of the model that are tensors of their own, in the order in which the forward pass needs them. */
enum model_part { PART_WEIGHTS1, PART_BIAS1, PART_WEIGHTS2, PART_BIAS2, PART_COUNT };

/* All parameters, or values of the same shape: gradients, velocities. Weights are [input][output], so that the inner
 * loops run over neighbouring numbers. The struct holds floats alone, without padding, so the bytes can be compared. */
struct parameters {
    float weights1[IMAGE_PIXELS * MODEL_HIDDEN];
    float bias1[MODEL_HIDDEN];
    float weights2[MODEL_HIDDEN * IMAGE_CLASSES];
    float bias2[IMAGE_CLASSES];
};

struct model {
    struct parameters parameters;
    struct parameters gradients; /* of this process's share; after the exchange: of the whole batch */
    struct parameters velocity;
    /* The backward pass needs these of each image of the share. */
    float hidden[MODEL_BATCH][MODEL_HIDDEN];
    float errors[MODEL_BATCH][IMAGE_CLASSES];
};

size_t model_part_count(enum model_part part);
const char *model_part_name(enum model_part part);
int32_t model_part_layer(enum model_part part);
float *model_part_data(struct parameters *parameters, enum model_part part);
const float *model_part_data_const(const struct parameters *parameters, enum model_part part);

/* Sets random first weights and zero velocity. */
void model_init(struct model *model, uint64_t seed);

/* Runs the forward pass over count images (of a whole batch of MODEL_BATCH) and computes the gradients of layer 2.
 * Returns the share's part of the batch's mean loss. The gradients too are scaled by the whole batch, so that the
 * sum over the shares is the mean. */
float model_forward_and_layer2(struct model *model, const struct image *images, const uint32_t *indices,
                               uint32_t count);

/* Computes the gradients of layer 1, for the same images. */
void model_layer1(struct model *model, const struct image *images, const uint32_t *indices, uint32_t count);

/* Takes one step along the gradients. */
void model_step(struct model *model, float rate);

/* Returns the digit that the model sees. */
int32_t model_read(const struct model *model, const struct image *image);

/* Returns FNV-1a over the bytes of the parameters. */
uint64_t model_hash(const struct model *model);

/* Returns the largest difference between two models' parameters, in units of the largest parameter of the same part. */
double model_difference(const struct model *model, const struct model *reference);

#endif
