/* codec_none.c - the codec that changes nothing and copies nothing: the views are passed on. */
#include "engine/base/assert.h"
#include "stages/codec/codec.h"

static uint32_t bound_none(uint32_t bytes)
{
    return bytes;
}

static void encode_none(trib_task_io *io)
{
    io->encoded = io->source;
    io->received = io->destination;
}

static void decode_none(trib_task_io *io)
{
    trib_assert(io->received.data == io->destination.data);
}

const trib_codec trib_codec_none = {"none", bound_none, encode_none, decode_none};
