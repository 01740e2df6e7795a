/* seal.h - a second implementation of the frame header's checksum. It pins the format, and lets tests make headers with
 * exactly one error. */
#ifndef TRIB_TESTS_SUPPORT_SEAL_H
#define TRIB_TESTS_SUPPORT_SEAL_H

#include <stddef.h>
#include <stdint.h>

#define SEALED_SIZE 92u /* the checksum comes behind */

static inline uint64_t seal_word(const unsigned char *bytes, size_t count)
{
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++) {
        word |= (uint64_t)bytes[i] << 8 * i;
    }
    return word;
}

static inline void header_seal(unsigned char header[SEALED_SIZE + 4])
{
    uint64_t sums[2] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};
    for (size_t i = 0; i < SEALED_SIZE; i += 8) {
        uint64_t *sum = &sums[i / 8 % 2];
        *sum ^= seal_word(header + i, SEALED_SIZE - i < 8 ? SEALED_SIZE - i : 8);
        *sum *= 0xff51afd7ed558ccdu;
        *sum ^= *sum >> 32;
    }
    uint64_t both = sums[0] ^ (sums[1] << 32 | sums[1] >> 32);
    both *= 0xff51afd7ed558ccdu;
    both ^= both >> 32;
    for (size_t i = 0; i < 4; i++) {
        header[SEALED_SIZE + i] = (unsigned char)(both >> 8 * i);
    }
}

#endif
