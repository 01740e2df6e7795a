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
    [TRIB_FLOAT32] = {"float32", 4},
    [TRIB_FLOAT64] = {"float64", 8},
    [TRIB_FLOAT16] = {"float16", 2},
    [TRIB_BFLOAT16] = {"bfloat16", 2},
    [TRIB_INT8] = {"int8", 1},
    [TRIB_UINT8] = {"uint8", 1},
    [TRIB_INT32] = {"int32", 4},
    [TRIB_INT64] = {"int64", 8},
    [TRIB_BOOL] = {"bool", 1},
    [TRIB_INT16] = {"int16", 2},
    [TRIB_UINT16] = {"uint16", 2},
    [TRIB_UINT32] = {"uint32", 4},
    [TRIB_UINT64] = {"uint64", 8},
    [TRIB_FLOAT8_E4M3] = {"float8_e4m3", 1},
    [TRIB_FLOAT8_E5M2] = {"float8_e5m2", 1},
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
    static const char *const names[TRIB_REDUCE_COUNT] = {"sum",     "avg",     "min",    "max",
                                                         "product", "bit_and", "bit_or", "bit_xor"};
    return (unsigned)reduce < TRIB_REDUCE_COUNT ? names[reduce] : "?";
}

bool trib_dtype_is_float(trib_dtype dtype)
{
    return dtype == TRIB_FLOAT32 || dtype == TRIB_FLOAT64 || dtype == TRIB_FLOAT16 || dtype == TRIB_BFLOAT16 ||
           dtype == TRIB_FLOAT8_E4M3 || dtype == TRIB_FLOAT8_E5M2;
}

bool trib_reduce_suits(trib_dtype dtype, trib_reduce reduce)
{
    if ((unsigned)dtype >= TRIB_DTYPE_COUNT || (unsigned)reduce >= TRIB_REDUCE_COUNT) {
        return false;
    }
    const bool is_bitwise = reduce == TRIB_BIT_AND || reduce == TRIB_BIT_OR || reduce == TRIB_BIT_XOR;
    return is_bitwise ? !trib_dtype_is_float(dtype) : reduce != TRIB_AVG || dtype != TRIB_BOOL;
}
