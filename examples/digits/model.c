/*
 * model.c - the perceptron. Plain float32 loops run in a fixed order. So two processes with the same weights and the
 * same share get the same bits, and one worker and many differ only in the order in which shares are added.
 */
#include "model.h"

#include <math.h>
#include <string.h>

static const float momentum = 0.9F;

static const struct {
    const char *name;
    size_t offset;
    size_t count;
    int32_t layer;
} parts[PART_COUNT] = {
    [PART_WEIGHTS1] = {"layer1/weights", offsetof(struct parameters, weights1), (size_t)IMAGE_PIXELS *MODEL_HIDDEN, 1},
    [PART_BIAS1] = {"layer1/bias", offsetof(struct parameters, bias1), MODEL_HIDDEN, 1},
    [PART_WEIGHTS2] = {"layer2/weights", offsetof(struct parameters, weights2), (size_t)MODEL_HIDDEN *IMAGE_CLASSES, 2},
    [PART_BIAS2] = {"layer2/bias", offsetof(struct parameters, bias2), IMAGE_CLASSES, 2},
};

_Static_assert(sizeof(struct parameters) % sizeof(float) == 0 &&
                   sizeof(struct parameters) / sizeof(float) ==
                       IMAGE_PIXELS * MODEL_HIDDEN + MODEL_HIDDEN + MODEL_HIDDEN * IMAGE_CLASSES + IMAGE_CLASSES,
               "parameters are compared and hashed as bytes, so there must be no padding");

size_t model_part_count(enum model_part part)
{
    return parts[part].count;
}

const char *model_part_name(enum model_part part)
{
    return parts[part].name;
}

int32_t model_part_layer(enum model_part part)
{
    return parts[part].layer;
}

float *model_part_data(struct parameters *parameters, enum model_part part)
{
    return (float *)(void *)((char *)parameters + parts[part].offset);
}

const float *model_part_data_const(const struct parameters *parameters, enum model_part part)
{
    return (const float *)(const void *)((const char *)parameters + parts[part].offset);
}

static void fill_random(float *values, size_t count, float bound, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        const float unit = (float)(random_next(state) >> 40) / 16777216.0F;
        values[i] = (2.0F * unit - 1.0F) * bound;
    }
}

void model_init(struct model *model, uint64_t seed)
{
    memset(model, 0, sizeof *model);
    uint64_t state = seed;
    /* He's bound for layers behind a ReLU: the signal neither vanishes nor grows. */
    fill_random(model->parameters.weights1, parts[PART_WEIGHTS1].count, sqrtf(6.0F / IMAGE_PIXELS), &state);
    fill_random(model->parameters.weights2, parts[PART_WEIGHTS2].count, sqrtf(6.0F / MODEL_HIDDEN), &state);
}

static void forward(const struct parameters *p, const struct image *image, float *hidden, float *logits)
{
    memcpy(hidden, p->bias1, sizeof p->bias1);
    for (int i = 0; i < IMAGE_PIXELS; i++) {
        for (int j = 0; j < MODEL_HIDDEN; j++) {
            hidden[j] += image->pixels[i] * p->weights1[i * MODEL_HIDDEN + j];
        }
    }
    for (int j = 0; j < MODEL_HIDDEN; j++) {
        hidden[j] = hidden[j] > 0.0F ? hidden[j] : 0.0F;
    }
    memcpy(logits, p->bias2, sizeof p->bias2);
    for (int j = 0; j < MODEL_HIDDEN; j++) {
        for (int k = 0; k < IMAGE_CLASSES; k++) {
            logits[k] += hidden[j] * p->weights2[j * IMAGE_CLASSES + k];
        }
    }
}

/* Turns logits into d(loss)/d(logits) in place, for one image, and returns its loss. */
static float softmax_error(float *logits, int32_t digit)
{
    float largest = logits[0];
    for (int k = 1; k < IMAGE_CLASSES; k++) {
        largest = logits[k] > largest ? logits[k] : largest;
    }
    const float logit = logits[digit] - largest;
    float sum = 0.0F;
    for (int k = 0; k < IMAGE_CLASSES; k++) {
        logits[k] = expf(logits[k] - largest);
        sum += logits[k];
    }
    for (int k = 0; k < IMAGE_CLASSES; k++) {
        logits[k] /= sum;
    }
    logits[digit] -= 1.0F;
    return logf(sum) - logit;
}

float model_forward_and_layer2(struct model *model, const struct image *images, const uint32_t *indices, uint32_t count)
{
    struct parameters *g = &model->gradients;
    memset(g->weights2, 0, sizeof g->weights2);
    memset(g->bias2, 0, sizeof g->bias2);
    float loss = 0.0F;
    for (uint32_t n = 0; n < count; n++) {
        const struct image *image = &images[indices[n]];
        float *hidden = model->hidden[n];
        float *errors = model->errors[n];
        forward(&model->parameters, image, hidden, errors);
        loss += softmax_error(errors, image->digit);
        for (int k = 0; k < IMAGE_CLASSES; k++) {
            errors[k] /= MODEL_BATCH;
            g->bias2[k] += errors[k];
        }
        for (int j = 0; j < MODEL_HIDDEN; j++) {
            for (int k = 0; k < IMAGE_CLASSES; k++) {
                g->weights2[j * IMAGE_CLASSES + k] += hidden[j] * errors[k];
            }
        }
    }
    return loss / MODEL_BATCH;
}

void model_layer1(struct model *model, const struct image *images, const uint32_t *indices, uint32_t count)
{
    struct parameters *g = &model->gradients;
    memset(g->weights1, 0, sizeof g->weights1);
    memset(g->bias1, 0, sizeof g->bias1);
    for (uint32_t n = 0; n < count; n++) {
        float errors1[MODEL_HIDDEN];
        for (int j = 0; j < MODEL_HIDDEN; j++) {
            float error = 0.0F;
            for (int k = 0; k < IMAGE_CLASSES; k++) {
                error += model->parameters.weights2[j * IMAGE_CLASSES + k] * model->errors[n][k];
            }
            errors1[j] = model->hidden[n][j] > 0.0F ? error : 0.0F;
            g->bias1[j] += errors1[j];
        }
        const float *pixels = images[indices[n]].pixels;
        for (int i = 0; i < IMAGE_PIXELS; i++) {
            for (int j = 0; j < MODEL_HIDDEN; j++) {
                g->weights1[i * MODEL_HIDDEN + j] += pixels[i] * errors1[j];
            }
        }
    }
}

void model_step(struct model *model, float rate)
{
    for (int part = 0; part < PART_COUNT; part++) {
        float *weights = model_part_data(&model->parameters, (enum model_part)part);
        float *velocity = model_part_data(&model->velocity, (enum model_part)part);
        const float *gradients = model_part_data_const(&model->gradients, (enum model_part)part);
        for (size_t i = 0; i < parts[part].count; i++) {
            velocity[i] = momentum * velocity[i] - rate * gradients[i];
            weights[i] += velocity[i];
        }
    }
}

int32_t model_read(const struct model *model, const struct image *image)
{
    float hidden[MODEL_HIDDEN];
    float logits[IMAGE_CLASSES];
    forward(&model->parameters, image, hidden, logits);
    int32_t digit = 0;
    for (int32_t k = 1; k < IMAGE_CLASSES; k++) {
        digit = logits[k] > logits[digit] ? k : digit;
    }
    return digit;
}

uint64_t model_hash(const struct model *model)
{
    const unsigned char *bytes = (const unsigned char *)&model->parameters;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof model->parameters; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

double model_difference(const struct model *model, const struct model *reference)
{
    double worst = 0.0;
    for (int part = 0; part < PART_COUNT; part++) {
        const float *ours = model_part_data_const(&model->parameters, (enum model_part)part);
        const float *theirs = model_part_data_const(&reference->parameters, (enum model_part)part);
        double largest = 0.0;
        double difference = 0.0;
        for (size_t i = 0; i < parts[part].count; i++) {
            /* fmax ignores a NaN, and a model with one must not look like a match. */
            if (!isfinite(ours[i]) || !isfinite(theirs[i])) {
                return INFINITY;
            }
            largest = fmax(largest, fabs((double)theirs[i]));
            difference = fmax(difference, fabs((double)ours[i] - (double)theirs[i]));
        }
        worst = fmax(worst, largest > 0.0 ? difference / largest : difference);
    }
    return worst;
}
