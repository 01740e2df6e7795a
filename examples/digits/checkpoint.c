/* checkpoint.c - see checkpoint.h. */
#include "checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t file_magic = UINT64_C(0x3153544947494454); /* "TDIGITS1" */

struct content {
    uint64_t magic;
    uint64_t steps;
    struct parameters parameters, velocity;
    uint64_t hash; /* of all before it */
};

/* FNV-1a. */
static uint64_t hash_of(const struct content *content)
{
    const unsigned char *bytes = (const unsigned char *)content;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < offsetof(struct content, hash); i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

static bool write_content(const char *path, const struct content *content)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return false;
    }
    const bool is_written =
        fwrite(content, sizeof *content, 1, file) == 1 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && is_written;
}

bool checkpoint_write(const char *path, uint32_t steps, const struct model *model)
{
    char fresh[4096];
    struct content *content = calloc(1, sizeof *content);
    if (content == NULL || snprintf(fresh, sizeof fresh, "%s.new", path) >= (int)sizeof fresh) {
        fprintf(stderr, "digits: %s: %s\n", path, content == NULL ? "out of memory" : "the name is too long");
        free(content);
        return false;
    }
    content->magic = file_magic;
    content->steps = steps;
    content->parameters = model->parameters;
    content->velocity = model->velocity;
    content->hash = hash_of(content);
    const bool is_done = write_content(fresh, content) && rename(fresh, path) == 0;
    if (!is_done) {
        fprintf(stderr, "digits: cannot save %s, which is as it was: %s\n", path, strerror(errno));
        (void)remove(fresh);
    }
    free(content);
    return is_done;
}

bool checkpoint_read(const char *path, uint32_t *steps, struct model *model)
{
    *steps = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        if (errno != ENOENT) {
            fprintf(stderr, "digits: cannot read %s: %s\n", path, strerror(errno));
        }
        return errno == ENOENT;
    }
    struct content *content = calloc(1, sizeof *content);
    const bool is_whole = content != NULL && fread(content, sizeof *content, 1, file) == 1 && fgetc(file) == EOF &&
                          content->magic == file_magic && content->hash == hash_of(content);
    (void)fclose(file);
    if (is_whole) {
        *steps = (uint32_t)content->steps;
        model->parameters = content->parameters;
        model->velocity = content->velocity;
    } else {
        fprintf(stderr, "digits: %s: %s\n", path,
                content == NULL ? "out of memory" : "no checkpoint of this program, or a damaged one");
    }
    free(content);
    return is_whole;
}
