/* info.c - `tributary info`: what trib_describe_machine says, as text or as it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/tributary.h"
#include "tools/commands.h"
#include "tools/json_out.h"

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

int info_command(int argc, char **argv)
{
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    const int rest = json ? 2 : 1;
    if (argc > rest) {
        bool help = strcmp(argv[rest], "--help") == 0 || strcmp(argv[rest], "-h") == 0;
        if (!help) {
            fprintf(stderr, "tributary info: unexpected \"%s\"\n", argv[rest]);
        }
        fprintf(help ? stdout : stderr, "usage: tributary info [--json]\n");
        return help ? 0 : 2;
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
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        print_value(key, value, 0);
    }
    json_decref(root);
    return 0;
}
