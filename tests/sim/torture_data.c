/* torture_data.c - what workers contribute, and what must come of it; computed here without any of the engine's code. */
#include <string.h>

#include "tests/sim/torture.h"
#include "tests/support/values.h"

int torture_value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    uint32_t mixed = (tensor * 2654435761u) ^ (round * 40503u) ^ (rank * 69621u) ^ (i * 2246822519u);
    mixed ^= mixed >> 15;
    return (int)(mixed % 21u) - 10;
}

/* Contributions to unsigned types are not negative. */
static int value_for(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    const int value = torture_value(tensor, round, rank, i);
    return what->dtype == TRIB_UINT8 ? value + 10 : value;
}

void torture_fill(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, void *buffer)
{
    for (uint32_t i = 0; i < what->count; i++) {
        values_store(what->dtype, buffer, i, value_for(what, tensor, round, rank, i));
    }
}

static double expected(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers, uint32_t i)
{
    if (what->root >= 0) {
        return value_for(what, tensor, round, (uint32_t)what->root, i);
    }
    int result = value_for(what, tensor, round, 0, i);
    for (uint32_t rank = 1; rank < workers; rank++) {
        const int value = value_for(what, tensor, round, rank, i);
        switch (what->reduce) {
        case TRIB_MIN:
            result = value < result ? value : result;
            break;
        case TRIB_MAX:
            result = value > result ? value : result;
            break;
        default:
            result += value;
            break;
        }
    }
    return result;
}

uint32_t torture_check(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers,
                       const void *buffer)
{
    const size_t size = trib_dtype_size(what->dtype);
    for (uint32_t i = 0; i < what->count; i++) {
        uint64_t wanted = 0;
        values_store(what->dtype, &wanted, 0, expected(what, tensor, round, workers, i));
        if (memcmp(&wanted, (const unsigned char *)buffer + i * size, size) != 0) {
            return i;
        }
    }
    return UINT32_MAX;
}
