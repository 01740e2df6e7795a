/* shard_size.c - the size of a device tensor's shards. A shard is one local rank's part of a slice. */
#include "engine/worker/op.h"

/* Small shards overlap better: a shard is summed while the next is sent. But each slice of several GPUs costs two
 * collectives, and each shard two copies. */
#define PARTITIONS_EACH 8u
#define PARTITIONS_EACH_MIN 2u
#define PARTITION_MIN (128u << 10)
#define ALONE_SLICE_BYTES_MAX (UINT64_C(256) << 20)

static uint32_t partitions_each(uint32_t local_size, uint32_t machines, uint32_t summers)
{
    const uint64_t most = TRIB_TENSOR_MESSAGES_MAX / ((uint64_t)machines * (summers == 0 ? 1 : summers));
    const uint32_t wanted = local_size > 1 || most < PARTITIONS_EACH_MIN ? PARTITIONS_EACH_MIN : (uint32_t)most;
    return wanted < PARTITIONS_EACH ? wanted : PARTITIONS_EACH;
}

uint32_t trib_shard_bytes(uint64_t bytes, uint32_t partition_bytes, uint32_t chunk_bytes, uint32_t local_size,
                          uint32_t machines, uint32_t summers)
{
    /* The size of a slice must fit in 32 bits. */
    const uint64_t limit = (UINT64_C(1) << 31) / local_size;
    uint64_t most = summers == 0 ? ALONE_SLICE_BYTES_MAX / local_size : partition_bytes;
    most = most < limit ? most : limit;
    most = most / chunk_bytes * chunk_bytes;
    const uint32_t each = partitions_each(local_size, machines, summers);
    const uint64_t parts = (uint64_t)local_size * (summers == 0 ? 1 : summers * each);
    const uint64_t least = (bytes + parts - 1) / parts;
    uint64_t fine = chunk_bytes < PARTITION_MIN || summers == 0 ? chunk_bytes : PARTITION_MIN;
    while (fine < chunk_bytes && fine < least) {
        fine *= 2; /* below the chunk size: a power of two, because chunk sizes are */
    }
    const uint64_t part = (least + fine - 1) / fine * fine;
    const uint64_t wanted = part < most ? part : most;
    return wanted < fine ? (uint32_t)fine : (uint32_t)wanted;
}
