/* model.c - see model.h. */
#include "tools/study/model.h"

#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS_MAX 65536u
#define LINE_MAX_BYTES 1024
#define TIME_MAX_US 1e12 /* eleven days */

static void report_fault(trib_error *error, const char *path, unsigned line, const char *what)
{
    if (error != NULL) {
        error->status = TRIB_INVALID;
        snprintf(error->text, sizeof error->text, "%s, line %u: %s", path, line, what);
    }
}

/* ---- Where it is ---- */

static bool is_there(char *path, size_t size, const char *folder, const char *name)
{
    return snprintf(path, size, "%s/%s.csv", folder, name) < (int)size && access(path, R_OK) == 0;
}

static FILE *open_model(const char *name, char *path, size_t size, trib_error *error)
{
    char own[3072] = "", folder[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = '\0';
    const char *beside = dirname(own);
    const char *given = getenv("TRIB_MODELS");
    snprintf(path, size, "%s", name);
    bool found = strchr(name, '/') != NULL || strstr(name, ".csv") != NULL;
    found = found || (given != NULL && is_there(path, size, given, name));
    static const char *const places[] = {"models", "../share/tributary/models", "../../tools/models"};
    for (size_t i = 0; !found && i < sizeof places / sizeof places[0]; i++) {
        snprintf(folder, sizeof folder, "%s/%s", beside, places[i]);
        found = is_there(path, size, folder, name);
    }
    found = found || is_there(path, size, "tools/models", name);
    FILE *file = found ? fopen(path, "r") : NULL;
    if (file == NULL && error != NULL) {
        error->status = TRIB_INVALID;
        snprintf(error->text, sizeof error->text,
                 "there is no model \"%.160s\"%s%s; resnet50, vgg16, bert-large and gpt2-large come with the tools, in "
                 "share/tributary/models beside their bin; another folder: TRIB_MODELS",
                 name, found ? ": " : "", found ? strerror(errno) : "");
    }
    return file;
}

/* ---- What is in it ---- */

/* Reads the time at the beginning of the text; false: there is none, or it is too long. */
static bool parse_us(const char *text, const char **rest_out, int64_t *ns_out)
{
    char *rest = NULL;
    const double us = strtod(text, &rest);
    if (rest == text || !(us >= 0 && us <= TIME_MAX_US)) {
        return false;
    }
    *rest_out = rest;
    *ns_out = (int64_t)(us * 1e3);
    return true;
}

/* "# bert-large: one H200, batch 64, ...; forward 32670 us, backward 70152 us, optimizer 5287 us; ..." */
static bool parse_title(study_model *model, const char *line)
{
    const char *colon = strchr(line, ':');
    const char *forward = strstr(line, "forward "), *backward = strstr(line, "backward ");
    const char *optimizer = strstr(line, "optimizer ");
    if (line[0] != '#' || colon == NULL || forward == NULL || backward == NULL || optimizer == NULL) {
        return false;
    }
    const char *name = line + 1 + strspn(line + 1, " ");
    snprintf(model->name, sizeof model->name, "%.*s", (int)(colon - name), name);
    return parse_us(forward + 8, &forward, &model->forward_ns) &&
           parse_us(backward + 9, &backward, &model->backward_ns) &&
           parse_us(optimizer + 10, &optimizer, &model->optimizer_ns);
}

static bool parse_tensor(study_tensor *tensor, char *line)
{
    char *elements = strrchr(line, ',');
    if (elements == NULL) {
        return false;
    }
    const char *ready = elements + 1, *after = NULL;
    char *rest = NULL;
    *elements = '\0';
    elements = strrchr(line, ',');
    if (elements == NULL || elements == line) {
        return false;
    }
    *elements++ = '\0';
    const unsigned long long count = strtoull(elements, &rest, 10);
    snprintf(tensor->name, sizeof tensor->name, "%s", line);
    tensor->bytes = count * 4;
    tensor->dtype = TRIB_FLOAT32;
    return parse_us(ready, &after, &tensor->ready_ns) && *after == '\0' && isdigit((unsigned char)*elements) &&
           *rest == '\0' && count > 0 && count < (UINT64_C(1) << 40);
}

static void share_forward(study_model *model)
{
    int64_t before_ns = 0;
    const double factor = model->backward_ns > 0 ? (double)model->forward_ns / (double)model->backward_ns : 0;
    for (uint32_t i = 0; i < model->count; i++) {
        study_tensor *tensor = &model->tensors[i];
        const int64_t gap_ns = tensor->ready_ns > before_ns ? tensor->ready_ns - before_ns : 0;
        before_ns += gap_ns;
        const double share_ns =
            (double)gap_ns * factor; /* in a list gradients may be ready after the end of backward */
        tensor->forward_ns = share_ns < (double)model->forward_ns ? (int64_t)share_ns : model->forward_ns;
        model->bytes += tensor->bytes;
    }
}

static study_model *read_model(FILE *file, const char *path, trib_error *error)
{
    char line[LINE_MAX_BYTES];
    unsigned number = 0;
    uint32_t capacity = 64;
    study_model *model = calloc(1, sizeof *model + capacity * sizeof model->tensors[0]);
    while (model != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (++number <= 2) {
            const bool fine = number == 1 ? parse_title(model, line) : strcmp(line, "tensor,elements,ready_us") == 0;
            if (!fine) {
                report_fault(error, path, number,
                             number == 1 ? "no title with the times of forward, backward and optimizer"
                                         : "the columns are not tensor,elements,ready_us");
                free(model);
                return NULL;
            }
            continue;
        }
        if (model->count == capacity) {
            capacity *= 2;
            study_model *larger = realloc(model, sizeof *model + capacity * sizeof model->tensors[0]);
            if (larger == NULL) {
                report_fault(error, path, number, "out of memory");
                free(model);
                return NULL;
            }
            model = larger;
        }
        if (model->count == TENSORS_MAX || !parse_tensor(&model->tensors[model->count++], line)) {
            report_fault(error, path, number,
                         "not a name, a number of elements and a time in microseconds, or one too many");
            free(model);
            return NULL;
        }
    }
    if (model == NULL || model->count == 0 || ferror(file)) {
        report_fault(error, path, number,
                     model == NULL  ? "out of memory"
                     : ferror(file) ? strerror(errno)
                                    : "no gradients in it");
        free(model);
        return NULL;
    }
    share_forward(model);
    return model;
}

study_model *study_model_load(const char *name_or_path, trib_error *error)
{
    char path[4400];
    FILE *file = open_model(name_or_path, path, sizeof path, error);
    if (file == NULL) {
        return NULL;
    }
    study_model *model = read_model(file, path, error);
    fclose(file);
    return model;
}

void study_model_scale(study_model *model, double factor)
{
    model->forward_ns = (int64_t)((double)model->forward_ns * factor);
    model->backward_ns = (int64_t)((double)model->backward_ns * factor);
    model->optimizer_ns = (int64_t)((double)model->optimizer_ns * factor);
    for (uint32_t i = 0; i < model->count; i++) {
        model->tensors[i].ready_ns = (int64_t)((double)model->tensors[i].ready_ns * factor);
        model->tensors[i].forward_ns = (int64_t)((double)model->tensors[i].forward_ns * factor);
    }
}

study_model *study_model_late(const study_model *model, int64_t late_ns)
{
    const size_t size = sizeof *model + model->count * sizeof model->tensors[0];
    study_model *late = malloc(size);
    if (late == NULL) {
        return NULL;
    }
    memcpy(late, model, size);
    late->backward_ns += late_ns;
    for (uint32_t i = 0; i < late->count; i++) {
        late->tensors[i].ready_ns += late_ns;
    }
    return late;
}
