/*
 * codec.h - the encoding of a partition on the wire. COMPRESS encodes the bytes before PUSH, DECOMPRESS decodes the
 * sum after PULL.
 *
 * A codec works on a task's views. The codec may write the encoded bytes to its own memory, or pass on the existing
 * view.
 */
#ifndef TRIB_STAGES_CODEC_H
#define TRIB_STAGES_CODEC_H

#include "engine/worker/task.h"

typedef struct trib_codec {
    const char *name;
    /* Returns the largest encoded size of `bytes` bytes. */
    uint32_t (*bound)(uint32_t bytes);
    /* Sets `encoded` from `source`, and `received` to memory for the encoded sum. */
    void (*encode)(trib_task_io *io);
    /* Decodes `received` into `destination`. */
    void (*decode)(trib_task_io *io);
} trib_codec;

/* The codec that changes nothing. */
extern const trib_codec trib_codec_none;

#endif
