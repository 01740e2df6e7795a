/* info.c - `tributary info`: prints what trib_describe_machine returns, as text or as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/tributary.h"
#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"

static void print_value(const char *name, const json_t *value, int depth)
{
    printf("%*s%-*s ", depth * 2, "", 24 - depth * 2, name);
    if (json_is_object(value)) {
        printf("\n");
        const char *key;
        json_t *inner;
        json_object_foreach((json_t *)(uintptr_t)value, key, inner)
        {
            print_value(key, inner, depth + 1);
        }
        return;
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            char *text = json_dumps(json_array_get(value, i), JSON_COMPACT | JSON_ENCODE_ANY);
            printf("%s%s", i > 0 ? ", " : "", text);
            free(text);
        }
        printf("\n");
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    printf("%s\n", text);
    free(text);
}

/* One line for each setting: its value, and where that is from. */
static void print_settings(const json_t *settings)
{
    printf("settings\n");
    const char *name;
    json_t *setting;
    json_object_foreach((json_t *)(uintptr_t)settings, name, setting)
    {
        const char *value = json_string_value(json_object_get(setting, "value"));
        const char *from = json_string_value(json_object_get(setting, "from"));
        const bool is_default = strcmp(from, "default") == 0;
        printf("  %-26s %s%s%s%s\n", name, *value != '\0' ? value : "-", is_default ? "" : "   (",
               is_default ? "" : from, is_default ? "" : ")");
    }
}

static void print_root(const json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "settings") == 0 && json_is_object(value)) {
            print_settings(value);
        } else {
            print_value(key, value, 0);
        }
    }
}

/* Says for people what the numbers mean. */
static void print_advice(const json_t *root)
{
    static const struct {
        const char *limit, *text;
    } rows[] = {
        {"locked_memory", "too little locked memory to register memory for RDMA: raise it with ulimit -l"},
        {"open_files", "too few open files for a server of a thousand connections: raise it with ulimit -n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *limit = json_object_get(json_object_get(root, "limits"), rows[i].limit);
        if (json_is_false(json_object_get(limit, "enough"))) {
            printf("%s\n", rows[i].text);
        }
    }
    if (json_is_false(json_object_get(json_object_get(root, "shared_memory"), "peers_read_in_place"))) {
        printf(
            "payloads between processes of this machine are copied twice: kernel.yama.ptrace_scope=0 would let a peer "
            "read them in place\n");
    }
    if (json_is_null(json_object_get(root, "transport"))) {
        printf("no transport: the settings of the environment are wrong, or name one that is not in this build\n");
    }
}

int info_command(int argc, char **argv)
{
    bool json = false;
    const option_row rows[] = {{OPTION_SET("--json", &json, "one JSON object")}};
    const option_table table = {.command = "info", .usage = "[options]", .rows = rows, .count = 1};
    const int status = options_parse(&table, argc, argv);
    if (status >= 0) {
        return status;
    }
    char *text = trib_describe_machine();
    json_error_t error;
    json_t *root = text == NULL ? NULL : json_loads(text, 0, &error);
    if (root == NULL) {
        fprintf(stderr, "tributary info: could not describe this machine\n");
        free(text);
        return 1;
    }
    free(text);
    if (json) {
        return json_out("info", root, 0) ? 0 : 1;
    }
    print_root(root);
    print_advice(root);
    json_decref(root);
    return 0;
}
