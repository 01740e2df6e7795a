/* own_codecs.h - codecs that tests bring. */
#ifndef TRIB_TESTS_LOOP_OWN_CODECS_H
#define TRIB_TESTS_LOOP_OWN_CODECS_H

#include <stdatomic.h>

#include "api/tributary.h"

/* The fault that "upper" and "counted" commit. */
enum { WELL, ENCODE_FAILS, TOO_MANY_BYTES, DECODE_FAILS };
typedef struct own_codec_fault {
    atomic_int kind;
    atomic_uint rank; /* whose encode fails; UINT32_MAX: that of sums */
} own_codec_fault;

/*
 * "stride,k=3"   of each three elements one, another one in each round; version 7
 * "upper"        the upper half of each float32
 * "counted"      as upper; the state counts a partition's chunks of all rounds, and the first element of a chunk
 * decodes
 *                to their number before it
 */
enum { STRIDE, UPPER, COUNTED, OWN_CODECS };
extern const trib_codec_desc own_codecs[OWN_CODECS];

void own_codecs_fail(int kind, uint32_t rank);
/* How many chunks "upper" has added to sums without decoding them. */
unsigned long long own_codecs_added(void);

#endif
