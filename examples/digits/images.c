/*
 * images.c - reads digits.csv: 64 pixels 0..16 and the digit on every line. Any other content is an error that names
 * the line, because a model trained on half-read data would only look slightly wrong.
 */
#include "images.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t random_next(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

void random_shuffle(uint64_t *state, uint32_t *indices, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t other = (uint32_t)(random_next(state) % i);
        const uint32_t kept = indices[i - 1];
        indices[i - 1] = indices[other];
        indices[other] = kept;
    }
}

/* Reads "p,p,...,p,digit" with an end of line behind it. */
static bool parse_line(const char *line, struct image *image)
{
    const char *at = line;
    for (int i = 0; i <= IMAGE_PIXELS; i++) {
        char *end = NULL;
        const long value = strtol(at, &end, 10);
        const long value_max = i < IMAGE_PIXELS ? 16 : IMAGE_CLASSES - 1;
        if (end == at || value < 0 || value > value_max) {
            return false;
        }
        if (i < IMAGE_PIXELS) {
            if (*end != ',') {
                return false;
            }
            image->pixels[i] = (float)value / 16.0F;
            at = end + 1;
        } else {
            image->digit = (int32_t)value;
            at = end;
        }
    }
    return strcmp(at, "\n") == 0 || strcmp(at, "\r\n") == 0 || *at == '\0';
}

static bool parse_file(FILE *file, const char *path, struct image *images)
{
    char line[512];
    unsigned count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (count == IMAGE_COUNT) {
            fprintf(stderr, "digits: %s has more than %d lines: not the file this program expects\n", path,
                    IMAGE_COUNT);
            return false;
        }
        if (!parse_line(line, &images[count])) {
            fprintf(stderr, "digits: %s:%u: expected %d pixels 0..16 and a digit 0..9, separated by commas\n", path,
                    count + 1, IMAGE_PIXELS);
            return false;
        }
        count++;
    }
    if (ferror(file) != 0) {
        fprintf(stderr, "digits: cannot read %s: %m\n", path);
        return false;
    }
    if (count != IMAGE_COUNT) {
        fprintf(stderr, "digits: %s has %u images instead of %d: is it cut off?\n", path, count, IMAGE_COUNT);
        return false;
    }
    return true;
}

/* Opens the copy in the source tree (the program is in build/<variant>/examples/) or the installed one (in bin/ or
 * in lib/tributary/examples/). `path` receives the name of the file that was opened. */
static FILE *open_default(char *path, size_t size)
{
    static const char *const candidates[] = {
        "../../../examples/digits/digits.csv",
        "../../../share/tributary/digits.csv",
        "../share/tributary/digits.csv",
    };
    char folder[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length > 0) {
        folder[length] = '\0';
        char *slash = strrchr(folder, '/');
        if (slash != NULL) {
            *slash = '\0';
            for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
                const int written = snprintf(path, size, "%s/%s", folder, candidates[i]);
                FILE *file = written > 0 && (size_t)written < size ? fopen(path, "r") : NULL;
                if (file != NULL) {
                    return file;
                }
            }
        }
    }
    fprintf(stderr,
            "digits: cannot find digits.csv near the program (looked for %s, %s and %s from its folder); "
            "name it with --data PATH\n",
            candidates[0], candidates[1], candidates[2]);
    return NULL;
}

bool images_load(struct image *images, const char *path)
{
    char found[PATH_MAX + 64];
    FILE *file = NULL;
    if (path == NULL) {
        file = open_default(found, sizeof found);
        path = found;
    } else {
        file = fopen(path, "r");
        if (file == NULL) {
            fprintf(stderr, "digits: cannot open %s: %m\n", path);
        }
    }
    if (file == NULL) {
        return false;
    }
    const bool parsed = parse_file(file, path, images);
    (void)fclose(file);
    return parsed;
}
