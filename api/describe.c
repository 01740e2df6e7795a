/* describe.c - this machine and this build as JSON, for `tributary info` and bug reports. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "api/config/settings.h"
#include "api/env/env_host.h"
#include "build_config.h"
#include "stages/kernels/kernels.h"
#include "transports/rdma/rdma.h"
#include "transports/registry.h"
#include "engine/base/descriptor.h"

#define TEXT_MAX (64u << 10)
#define SETTING_MAX 256u /* longer values are cut */

typedef struct text {
    char *data;
    size_t used;
} text;

__attribute__((format(printf, 2, 3))) static void add_text(text *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out->data + out->used, TEXT_MAX - out->used, format, arguments);
    va_end(arguments);
    if (length > 0) {
        size_t left = TEXT_MAX - out->used;
        out->used += (size_t)length < left ? (size_t)length : left - 1;
    }
}

/* The transport that an engine of this environment would use. NULL: its settings are wrong, or it is not in this
 * build. */
static const char *chosen_transport(void)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    if (trib_config_from_env(&config, NULL) != TRIB_OK) {
        return NULL;
    }
    const trib_transport_ops *ops = trib_transport_by_name(config.transport);
    return ops != NULL ? ops->name : NULL;
}

static void add_build(text *out)
{
    add_text(out, "\"version\": \"%s\", \"variant\": \"%s\", \"kernels\": \"%s\", \"transports\": [", trib_version(),
             TRIB_BUILD_VARIANT, trib_kernels_best()->name);
    const char *const *names = trib_transport_names();
    for (size_t i = 0; names[i] != NULL; i++) {
        add_text(out, "%s\"%s\"", i > 0 ? ", " : "", names[i]);
    }
    const char *chosen = chosen_transport(), *quote = chosen != NULL ? "\"" : "";
    add_text(
        out,
        "], \"transport\": %s%s%s, \"found_when_built\": {\"ibverbs\": %s, \"rdmacm\": %s, \"cuda\": %s, \"nccl\": "
        "%s, \"libcurl\": %s}, ",
        quote, chosen != NULL ? chosen : "null", quote, TRIB_HAVE_IBVERBS ? "true" : "false",
        TRIB_HAVE_RDMACM ? "true" : "false", TRIB_HAVE_CUDA ? "true" : "false", TRIB_HAVE_NCCL ? "true" : "false",
        TRIB_HAVE_LIBCURL ? "true" : "false");
}

/* wanted: less may be too little for a large job. */
static void add_limit(text *out, const char *name, const char *unit, int resource, rlim_t wanted)
{
    struct rlimit limit = {0};
    getrlimit(resource, &limit);
    const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
    add_text(out, "\"%s\": {\"unit\": \"%s\", \"value\": ", name, unit);
    if (is_unlimited) {
        add_text(out, "null");
    } else {
        add_text(out, "%llu", (unsigned long long)limit.rlim_cur);
    }
    add_text(out, ", \"unlimited\": %s, \"wanted\": %llu, \"enough\": %s}", is_unlimited ? "true" : "false",
             (unsigned long long)wanted, is_unlimited || limit.rlim_cur >= wanted ? "true" : "false");
}

/* A member whose value the function prints as JSON. */
static void add_printed(text *out, const char *name, void (*print)(FILE *stream))
{
    char *value = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&value, &size);
    if (stream != NULL) {
        print(stream);
        fclose(stream);
        add_text(out, "\"%s\": %s, ", name, value);
        free(value);
    }
}

/* Tells whether a process may read a large payload out of the memory of another one of this machine.
 * kernel.yama.ptrace_scope above 0 forbids it. */
static void add_shared_memory(text *out)
{
    FILE *file = trib_descriptor_open_text("/proc/sys/kernel/yama/ptrace_scope");
    int scope = 0;
    const bool is_known = file != NULL && fscanf(file, "%d", &scope) == 1;
    if (file != NULL) {
        fclose(file);
    }
    add_text(out, "\"shared_memory\": {\"ptrace_scope\": %d, \"peers_read_in_place\": %s}, ", is_known ? scope : 0,
             is_known && scope > 0 ? "false" : "true");
}

static void add_machine(text *out)
{
    struct utsname names;
    uname(&names);
    add_text(out, "\"kernel\": \"%s\", \"cores_online\": %ld, ", names.release, sysconf(_SC_NPROCESSORS_ONLN));
    add_printed(out, "topology", trib_env_host_describe);
    add_printed(out, "rdma_devices", trib_rdma_describe);
    add_text(out, "\"memory_bytes\": %lld, ", (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    add_shared_memory(out);
    add_text(out, "\"limits\": {");
    add_limit(out, "locked_memory", "bytes", RLIMIT_MEMLOCK, 1u << 30);
    add_text(out, ", ");
    add_limit(out, "open_files", "files", RLIMIT_NOFILE, 4096);
    add_text(out, "}");
}

/* Environments may hold any byte; those outside ASCII become question marks. */
static void add_string(text *out, const char *string)
{
    add_text(out, "\"");
    for (; *string != '\0'; string++) {
        const unsigned char byte = (unsigned char)*string;
        if (byte == '"' || byte == '\\') {
            add_text(out, "\\%c", byte);
        } else if (byte < 0x20) {
            add_text(out, "\\u%04x", byte);
        } else {
            add_text(out, "%c", byte < 0x7f ? byte : '?');
        }
    }
    add_text(out, "\"");
}

/* Returns the source of a setting. A launcher's variables are the source if the setting's own variable is not set and
 * the value is no default. */
static const char *source_of(const trib_setting *setting, const char *value)
{
    if (trib_setting_get(setting->variable) != NULL) {
        return "environment";
    }
    trib_config config;
    trib_config_init(&config, sizeof config);
    char initial[SETTING_MAX];
    trib_setting_format(setting, &config, initial, sizeof initial);
    return strcmp(initial, value) == 0 ? "default" : "launcher";
}

static void add_setting(text *out, const trib_setting *setting, const trib_config *config)
{
    char value[SETTING_MAX];
    trib_setting_format(setting, config, value, sizeof value);
    add_string(out, setting->variable);
    add_text(out, ": {\"value\": ");
    add_string(out, value);
    int64_t number = 0;
    const char *unit = trib_setting_number(setting, config, &number);
    if (unit != NULL) {
        add_text(out, ", \"number\": %" PRId64, number);
    }
    if (unit != NULL && unit[0] != '\0') {
        add_text(out, ", \"unit\": \"%s\"", unit);
    }
    add_text(out, ", \"from\": \"%s\"}", source_of(setting, value));
}

/* The settings that an engine of this environment would be created with, or why it would not be. */
static void add_settings(text *out)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_error error = {0};
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        add_text(out, ", \"settings\": null, \"settings_error\": ");
        add_string(out, error.text);
        return;
    }
    add_text(out, ", \"settings\": {");
    const char *comma = "";
    for (size_t i = 0; i < trib_settings_count; i++) {
        if (trib_settings[i].field != NULL && trib_settings[i].variable != NULL) {
            add_text(out, "%s", comma);
            add_setting(out, &trib_settings[i], &config);
            comma = ", ";
        }
    }
    add_text(out, "}");
}

char *trib_describe_machine(void)
{
    text out = {.data = malloc(TEXT_MAX)};
    if (out.data == NULL) {
        return NULL;
    }
    add_text(&out, "{");
    add_build(&out);
    add_machine(&out);
    add_settings(&out);
    add_text(&out, "}");
    return out.data;
}
