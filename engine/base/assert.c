/* assert.c - the one place where a failed assertion ends the process. */
#include "engine/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void trib_assert_failed(const char *expression, const char *file, int line, const char *function)
{
    fprintf(stderr, "tributary: assertion failed: %s (%s:%d, %s)\n", expression, file, line, function);
    abort();
}
