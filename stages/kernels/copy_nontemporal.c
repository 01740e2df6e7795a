/*
 * copy_nontemporal.c - a copy whose stores bypass the caches. The destination is not read before it is overwritten,
 * which saves a third of the memory traffic.
 */
#include "stages/kernels/sum_common.h"

#if defined(__x86_64__)
#include <emmintrin.h>

#define LINE 64u
_Static_assert(LINE == 4 * sizeof(__m128i), "a turn of the loop writes a whole line");

void *trib_copy_nontemporal(void *restrict dst, const void *restrict src, size_t size)
{
    unsigned char *to = dst;
    const unsigned char *from = src;
    const size_t before = -(uintptr_t)to & (LINE - 1), head = before < size ? before : size;
    memcpy(to, from, head);
    size_t at = head;
    for (; size - at >= LINE; at += LINE) {
        const __m128i *lanes = (const __m128i *)(const void *)(from + at);
        __m128i *place = (__m128i *)(void *)(to + at);
        const __m128i a = _mm_loadu_si128(lanes), b = _mm_loadu_si128(lanes + 1), c = _mm_loadu_si128(lanes + 2),
                      d = _mm_loadu_si128(lanes + 3);
        _mm_stream_si128(place, a);
        _mm_stream_si128(place + 1, b);
        _mm_stream_si128(place + 2, c);
        _mm_stream_si128(place + 3, d);
    }
    _mm_sfence(); /* completes the stores before any later message about them */
    memcpy(to + at, from + at, size - at);
    return dst;
}
#endif
