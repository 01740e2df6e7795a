/* plural.h - the end of a word after a number, in what the tools print for people. */
#ifndef TRIB_TOOLS_PLURAL_H
#define TRIB_TOOLS_PLURAL_H

#include <stdint.h>

static inline const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
