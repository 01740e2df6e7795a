/* json_out.c - see json_out.h. */
#include "tools/cli/json_out.h"

#include <stdio.h>

bool json_out(const char *command, json_t *object, unsigned digits)
{
    if (object == NULL) {
        fprintf(stderr, "tributary %s: cannot write JSON: a name is not UTF-8, or there is no memory\n", command);
        return false;
    }
    (void)json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits));
    printf("\n");
    json_decref(object);
    return true;
}
