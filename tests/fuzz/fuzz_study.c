/*
 * fuzz_study.c - user input of the studies: the options' numbers, rates and times, and the lists of gradients
 * (tools/models/). Each is accepted within its limits, or rejected.
 *
 * The first line of the input is an option's value, the rest is a list.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/study/model.h"
#include "tools/cli/option_values.h"

#define VALUE_BYTES_MAX 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void try_value(const char *text)
{
    char wants[OPTION_WANTS_MAX];
    double number = 0;
    uint32_t count = 0;
    uint64_t bits = 0;
    int64_t ns = 0;
    require(!option_parse_number(text, -5, 5, &number, wants) || (number >= -5 && number <= 5));
    require(!option_parse_count(text, 2, 4096, &count, wants) || (count >= 2 && count <= 4096));
    require(!option_parse_size(text, 4, UINT32_C(1) << 30, &count, wants) ||
            (count >= 4 && count <= UINT32_C(1) << 30));
    require(!option_parse_rate(text, &bits, wants) || (bits >= 1000 && bits <= UINT64_C(100000000000000)));
    require(!option_parse_time(text, &ns, wants) || (ns >= 0 && ns <= INT64_C(1000000000000000)));
}

static void try_model(const uint8_t *data, size_t size)
{
    int fd = memfd_create("model", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    trib_error error = {.text = ""};
    study_model *model = study_model_load(path, &error);
    (void)close(fd);
    if (model == NULL) {
        require(error.status != TRIB_OK && memchr(error.text, '\0', sizeof error.text) != NULL &&
                error.text[0] != '\0');
        return;
    }
    uint64_t bytes = 0;
    require(model->count > 0 && model->forward_ns >= 0 && model->backward_ns >= 0 && model->optimizer_ns >= 0);
    for (uint32_t i = 0; i < model->count; i++) {
        const study_tensor *tensor = &model->tensors[i];
        require(memchr(tensor->name, '\0', sizeof tensor->name) != NULL);
        require(tensor->bytes > 0 && tensor->ready_ns >= 0 && tensor->forward_ns >= 0);
        bytes += tensor->bytes;
    }
    require(bytes == model->bytes);
    free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t length = end == NULL ? size : (size_t)(end - data);
    if (length < VALUE_BYTES_MAX) {
        char text[VALUE_BYTES_MAX];
        memcpy(text, data, length);
        text[length] = '\0';
        try_value(text);
    }
    if (end != NULL) {
        try_model(end + 1, size - length - 1);
    }
    return 0;
}
