/*
 * codec.h - how the bytes of a partition travel: COMPRESS encodes them before PUSH, DECOMPRESS decodes the sum after PULL.
 *
 * A codec works on a task's views. It may put the encoded bytes into memory of its own, or hand on the view that is there.
 */
#ifndef TRIB_STAGES_CODEC_H
#define TRIB_STAGES_CODEC_H

#include "engine/worker/task.h"

typedef struct trib_codec {
    const char *name;
    /* What so many bytes are encoded in at most. */
    uint32_t (*bound)(uint32_t bytes);
    /* Fills in `encoded` from `source`, and `received`, where the encoded sum can land. */
    void (*encode)(trib_task_io *io);
    /* `destination` gets what `received` has. */
    void (*decode)(trib_task_io *io);
} trib_codec;

/* Bytes travel as they are. */
extern const trib_codec trib_codec_none;

#endif
