/* crc32c_arm.c - the CRC32C by ARMv8's instructions: crc32c and pmull. */
#include "stages/kernels/crc32c.h"

#if defined(__aarch64__)
#include <arm_acle.h>
#include <arm_neon.h>

static inline uint32_t crc_byte(uint32_t sum, unsigned char byte)
{
    return __crc32cb(sum, byte);
}

static inline uint32_t crc_word(uint32_t sum, uint64_t word)
{
    return __crc32cd(sum, word);
}

static inline uint64_t crc_product(uint32_t left, uint32_t right)
{
    return (uint64_t)vmull_p64((poly64_t)left, (poly64_t)right);
}

#include "stages/kernels/crc32c_template.h"

const trib_crc32c trib_crc32c_arm = {.name = "armv8", .compute = crc32c_by_lanes, .is_fast = true};

#else

typedef int crc32c_arm_nothing_here; /* ISO C wants a declaration in every file */

#endif
