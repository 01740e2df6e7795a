/* gpus.c - see gpus.h. */
#include "engine/cluster/gpus.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/assert.h"

#define KNOWN (UINT64_C(1) << 56)

uint64_t trib_gpu_number(const char *pci)
{
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    int end = 0;
    const bool is_read = sscanf(pci, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4;
    return is_read && pci[end] == '\0' ? KNOWN | (uint64_t)domain << 24 | bus << 16 | device << 8 | function : 0;
}

void trib_gpu_text(uint64_t number, char text[TRIB_GPU_TEXT_SIZE])
{
    trib_assert(number != 0);
    (void)snprintf(text, TRIB_GPU_TEXT_SIZE, "%04" PRIx32 ":%02x:%02x.%x", (uint32_t)(number >> 24),
                   (unsigned)(number >> 16 & 0xff), (unsigned)(number >> 8 & 0xff), (unsigned)(number & 0xf));
}

bool trib_gpu_is_shared(const trib_roster *roster, uint32_t first, uint32_t count, uint32_t pair_out[2])
{
    const uint32_t end = roster->member_count - first < count ? roster->member_count : first + count;
    for (uint32_t i = first; i < end; i++) {
        const trib_member_info *one = &roster->members[i];
        for (uint32_t other = i + 1; other < end && one->gpu != 0 && one->kernel != 0; other++) {
            /* Other machines have the same addresses. */
            if (one->gpu == roster->members[other].gpu && one->kernel == roster->members[other].kernel) {
                pair_out[0] = i;
                pair_out[1] = other;
                return true;
            }
        }
    }
    return false;
}
