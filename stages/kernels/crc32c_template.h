/*
 * crc32c_template.h - the CRC32C by a processor's instructions. The including file defines crc_byte and crc_word, which
 * add bytes to a sum, and crc_product, the low 64 bits of a product without carries.
 *
 * An instruction has a result after three cycles, but another one can begin in each. So a block is three lanes with
 * sums of their own. They are joined at the block's end: the first lane's sum moves by the length of two lanes, the
 * second lane's by that of one.
 *
 * A sum moves by n bits when it is multiplied by x^n modulo the polynomial. The product with x^(n - 33) has 63 bits,
 * and to add it to an empty sum multiplies by x^33 more and takes the remainder.
 */
#include <string.h>

#define LANES 3u
#define LONG_LANE 4096u
#define SHORT_LANE 256u
/* x^(8 * bytes - 33) modulo the polynomial, its bits reflected */
#define MOVE_256 0xb9e02b86u
#define MOVE_512 0xdd7e3b0cu
#define MOVE_4096 0x82f89c77u
#define MOVE_8192 0x54a86326u

static inline uint64_t load_word(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word); /* these processors are little-endian */
    return word;
}

/* Adds one block of three lanes. */
static inline uint32_t add_block(uint32_t sum, const unsigned char *at, size_t lane, uint32_t by_one, uint32_t by_two)
{
    uint32_t first = sum, second = 0, third = 0;
    for (size_t i = 0; i < lane; i += sizeof(uint64_t)) {
        first = crc_word(first, load_word(at + i));
        second = crc_word(second, load_word(at + lane + i));
        third = crc_word(third, load_word(at + 2 * lane + i));
    }
    return crc_word(0, crc_product(first, by_two) ^ crc_product(second, by_one)) ^ third;
}

static uint32_t crc32c_by_lanes(const void *data, size_t size)
{
    const unsigned char *at = data;
    uint32_t sum = UINT32_MAX;
    for (; size >= LANES * LONG_LANE; at += LANES * LONG_LANE, size -= LANES * LONG_LANE) {
        sum = add_block(sum, at, LONG_LANE, MOVE_4096, MOVE_8192);
    }
    for (; size >= LANES * SHORT_LANE; at += LANES * SHORT_LANE, size -= LANES * SHORT_LANE) {
        sum = add_block(sum, at, SHORT_LANE, MOVE_256, MOVE_512);
    }
    for (; size >= sizeof(uint64_t); at += sizeof(uint64_t), size -= sizeof(uint64_t)) {
        sum = crc_word(sum, load_word(at));
    }
    for (; size > 0; at++, size--) {
        sum = crc_byte(sum, *at);
    }
    return ~sum;
}
