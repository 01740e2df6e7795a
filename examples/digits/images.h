/* images.h - the UCI handwritten digits: 1,797 images of 8x8 pixels, in an order that is shuffled the same way
 * everywhere. */
#ifndef DIGITS_IMAGES_H
#define DIGITS_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    IMAGE_COUNT = 1797,
    IMAGE_TRAIN_COUNT = 1500, /* the first ones after shuffling; the other 297 are held out */
    IMAGE_PIXELS = 64,
    IMAGE_CLASSES = 10
};

struct image {
    float pixels[IMAGE_PIXELS]; /* 0..1 */
    int32_t digit;              /* 0..9 */
};

/* Reads IMAGE_COUNT images from `path`; NULL: from the program's own copy. Returns false after a message on standard
 * error. */
bool images_load(struct image *images, const char *path);

/* A small generator (splitmix64). It gives the same numbers on every machine, unlike rand(). */
uint64_t random_next(uint64_t *state);

/* Shuffles indices 0..count-1 (Fisher-Yates). */
void random_shuffle(uint64_t *state, uint32_t *indices, uint32_t count);

#endif
