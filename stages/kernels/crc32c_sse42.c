/* crc32c_sse42.c - the CRC32C by x86-64's instructions: crc32 (SSE4.2) and pclmulqdq. */
#include "stages/kernels/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>

static inline uint32_t crc_byte(uint32_t sum, unsigned char byte)
{
    return _mm_crc32_u8(sum, byte);
}

static inline uint32_t crc_word(uint32_t sum, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(sum, word);
}

static inline uint64_t crc_product(uint32_t left, uint32_t right)
{
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)left), _mm_cvtsi32_si128((int)right), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

#include "stages/kernels/crc32c_template.h"

const trib_crc32c trib_crc32c_sse42 = {.name = "sse4.2", .compute = crc32c_by_lanes, .is_fast = true};

#else

typedef int crc32c_sse42_nothing_here; /* ISO C wants a declaration in every file */

#endif
