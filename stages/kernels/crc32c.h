/*
 * crc32c.h - the CRC32C of payloads (polynomial 1EDC6F41, reflected, as in iSCSI): a table for every processor, and the
 * instructions of x86-64 and ARMv8.
 *
 * Every implementation returns the same value. tests/unit/stages/test_crc32c.c checks each against the definition.
 */
#ifndef TRIB_STAGES_CRC32C_H
#define TRIB_STAGES_CRC32C_H

#include "engine/base/kernel_ops.h"

extern const trib_crc32c trib_crc32c_table;
#if defined(__x86_64__)
extern const trib_crc32c trib_crc32c_sse42;
#elif defined(__aarch64__)
extern const trib_crc32c trib_crc32c_arm;
#endif

/* Returns the fastest implementation that this processor runs; never NULL. */
const trib_crc32c *trib_crc32c_best(void);

/* Returns the implementations that this processor runs, slowest first; NULL from their count on. */
const trib_crc32c *trib_crc32c_at(size_t index);

#endif
