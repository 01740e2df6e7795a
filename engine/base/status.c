/* status.c - names and texts of statuses, types and reductions. Every layer prints them. */
#include "api/tributary.h"

const char *trib_status_name(trib_status status)
{
    switch (status) {
#define TRIB_STATUS_NAME(name, number, text)                                                                           \
    case name:                                                                                                         \
        return #name;
        TRIB_STATUS_LIST(TRIB_STATUS_NAME)
#undef TRIB_STATUS_NAME
    }
    return "TRIB_UNKNOWN";
}

const char *trib_status_text(trib_status status)
{
    switch (status) {
#define TRIB_STATUS_TEXT(name, number, text)                                                                           \
    case name:                                                                                                         \
        return text;
        TRIB_STATUS_LIST(TRIB_STATUS_TEXT)
#undef TRIB_STATUS_TEXT
    }
    return "unknown status";
}

static const struct {
    const char *name;
    size_t size;
} dtypes[TRIB_DTYPE_COUNT] = {
    [TRIB_FLOAT32] = {"float32", 4},   [TRIB_FLOAT64] = {"float64", 8}, [TRIB_FLOAT16] = {"float16", 2},
    [TRIB_BFLOAT16] = {"bfloat16", 2}, [TRIB_INT8] = {"int8", 1},       [TRIB_UINT8] = {"uint8", 1},
    [TRIB_INT32] = {"int32", 4},       [TRIB_INT64] = {"int64", 8},
};

size_t trib_dtype_size(trib_dtype dtype)
{
    return (unsigned)dtype < TRIB_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *trib_dtype_name(trib_dtype dtype)
{
    return (unsigned)dtype < TRIB_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

const char *trib_reduce_name(trib_reduce reduce)
{
    static const char *const names[TRIB_REDUCE_COUNT] = {"sum", "avg", "min", "max"};
    return (unsigned)reduce < TRIB_REDUCE_COUNT ? names[reduce] : "?";
}
