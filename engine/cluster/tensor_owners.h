/* tensor_owners.h - how DECLARED and MOVE encode the owners of a tensor's partitions. */
#ifndef TRIB_ENGINE_TENSOR_OWNERS_H
#define TRIB_ENGINE_TENSOR_OWNERS_H

#include "engine/wire/wire.h"
#include "engine/cluster/placement.h"

static inline size_t trib_owners_size(uint32_t partition_count)
{
    return 8 + (size_t)partition_count * 4;
}

static inline void trib_owners_put(trib_writer *writer, uint32_t partition_bytes, uint32_t partition_count,
                                   const trib_place_owner *owners)
{
    trib_put_u32(writer, partition_bytes);
    trib_put_u32(writer, partition_count);
    for (uint32_t i = 0; i < partition_count; i++) {
        trib_put_u16(writer, owners[i].member);
        trib_put_u16(writer, owners[i].reactor);
    }
}

#endif
