/* plural.h - the ending of a noun after a number, for output that people read. */
#ifndef TRIB_TOOLS_CLI_PLURAL_H
#define TRIB_TOOLS_CLI_PLURAL_H

#include <stdint.h>

static inline const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
