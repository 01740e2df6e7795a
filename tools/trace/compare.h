/* compare.h - the order of numbers, for qsort and for comparisons by several fields. */
#ifndef TRIB_TOOLS_TRACE_COMPARE_H
#define TRIB_TOOLS_TRACE_COMPARE_H

#include <stdint.h>

static inline int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* For qsort, of int64_t. */
static inline int compare_i64_values(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

#endif
