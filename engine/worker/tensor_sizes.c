/* tensor_sizes.c - how long the partitions and chunks of a tensor are. All members compute the same sizes. */
#include "engine/codec/codec.h"
#include "engine/worker/op.h"

#define PARTITIONS_EACH 64u      /* partitions for each owner of a large tensor, to balance the load */
#define PARTITIONS_EACH_NEAR 16u /* partitions for each owner within one host */
#define PARTITION_MIN (32u << 10)
#define PARTITION_FEW (64u << 10) /* smaller partitions are for jobs of few workers */
#define CHUNKS_EACH 128u          /* chunks for each core that sums */
#define CHUNKS_EACH_SMALL 32u     /* chunks below CHUNK_SMALL for each core, where the cost of a message weighs more */
#define CHUNK_SMALL (64u << 10)
#define CHUNK_MIN (16u << 10)
#define ENCODED_SMALL (2u << 10) /* codecs that make less of CHUNK_MIN get larger chunks, because of the headers */
#define ENCODED_MIN (8u << 10)   /* bytes of their encoded chunks: less than 3 % of headers on the way and back */
#define PARTITION_ONE_WAY (128u << 10) /* largest partition where members have several networks */

/*
 * A worker sends to all cores that sum at the same time. The first sums can return when each core has received one
 * chunk. A tensor therefore takes longer than its bytes by that time, one part in CHUNKS_EACH if it is large enough.
 */
static uint32_t fair_chunk(uint64_t bytes, const trib_roster *roster, uint32_t least)
{
    const uint64_t cores = trib_roster_summing_cores(roster);
    uint32_t chunk = roster->chunk_bytes;
    while (chunk > CHUNK_MIN && chunk > least && roster->partition_bytes / (chunk / 2) <= TRIB_SUM_CHUNKS_MAX &&
           chunk * cores * (chunk > CHUNK_SMALL ? CHUNKS_EACH : CHUNKS_EACH_SMALL) > bytes) {
        chunk /= 2;
    }
    return chunk;
}

uint32_t trib_tensor_chunk_bytes(const trib_roster *roster, uint64_t bytes, uint32_t least)
{
    return trib_roster_is_one_host(roster) ? roster->chunk_bytes : fair_chunk(bytes, roster, least);
}

/*
 * Programs' codecs and auto have no least size, because a coordinator need not know what they make. k elements of each
 * partition have none either: the size of partitions decides how many that are.
 */
uint32_t trib_codec_chunk_least(const trib_roster *roster, const char *codec, const char *modelled, trib_dtype dtype,
                                bool is_sharded)
{
    trib_codec_config config;
    if (roster->survives || (roster->local_size > 0 && !is_sharded)) {
        return 0; /* such sums have no codec (trib_codec_place_tensor) */
    }
    trib_status status = trib_codec_parse(codec, &config, NULL);
    if (status != TRIB_OK && modelled != NULL) {
        status = trib_codec_parse(modelled, &config, NULL);
    }
    if (status != TRIB_OK || config.codec == NULL || config.codec->check(&config.params, dtype, NULL) != TRIB_OK) {
        return 0;
    }
    const bool is_sparse = config.codec->id == TRIB_CODEC_TOPK || config.codec->id == TRIB_CODEC_RANDOMK;
    uint32_t chunk = CHUNK_MIN;
    const uint32_t element = (uint32_t)trib_dtype_size(dtype);
    if ((is_sparse && config.params.k != 0) ||
        config.codec->bound(&config.params, dtype, chunk / element) >= ENCODED_SMALL) {
        return 0;
    }
    while (chunk < roster->chunk_bytes && config.codec->bound(&config.params, dtype, chunk / element) < ENCODED_MIN) {
        chunk *= 2;
    }
    return chunk < roster->chunk_bytes ? chunk : roster->chunk_bytes;
}

uint32_t trib_tensor_chunk_least(const trib_tensor *tensor)
{
    const trib_engine *engine = tensor->engine;
    return trib_codec_chunk_least(engine->roster, tensor->codec_text, engine->env.modelled_codec, tensor->dtype,
                                  tensor->is_sharded);
}

/*
 * Partitions are smaller than configured if there would be too few for all owners. With one partition all workers
 * push to one server over one link, and the sum of a large partition returns late.
 *
 * Every worker sends and receives each partition, so the number of small partitions is limited, more tightly with
 * more workers.
 *
 * Within one host there are no links to share and the cost of a message weighs more, so partitions are not smaller
 * than a chunk.
 *
 * Members with several networks use partitions no larger than a chunk. A whole partition goes over one network, and
 * the others wait for the last one on a slow network.
 *
 * Sizes are powers of two, so a partition larger than a chunk consists of whole chunks.
 */
static uint32_t fair_partition(uint64_t bytes, const trib_roster *roster, uint32_t summing, uint32_t least)
{
    const bool is_one_host = trib_roster_is_one_host(roster);
    const uint64_t wanted = (uint64_t)(is_one_host ? PARTITIONS_EACH_NEAR : PARTITIONS_EACH) * summing;
    const uint64_t pushed = bytes * roster->worker_count;
    const uint32_t one_way = roster->chunk_bytes < PARTITION_ONE_WAY ? roster->chunk_bytes : PARTITION_ONE_WAY;
    const uint32_t most = !is_one_host && trib_roster_has_networks(roster) ? one_way : roster->partition_bytes;
    const uint32_t chunk = fair_chunk(bytes, roster, least), few = chunk > PARTITION_FEW ? chunk : PARTITION_FEW;
    uint64_t fair = is_one_host ? roster->chunk_bytes : least > PARTITION_MIN ? least : PARTITION_MIN;
    while (fair < most &&
           (fair * wanted < bytes || ((is_one_host || fair < few) && fair * TRIB_TENSOR_MESSAGES_MAX < pushed))) {
        fair *= 2;
    }
    return fair < most ? (uint32_t)fair : most;
}

uint32_t trib_tensor_partition_bytes(const trib_roster *roster, uint64_t bytes, uint32_t local_size, uint32_t least)
{
    const uint64_t chunk = roster->chunk_bytes;
    const uint32_t asked = roster->partition_bytes, summing = trib_roster_summing(roster);
    const bool is_alone = local_size >= roster->worker_count; /* a job of one machine has no owners */
    const uint32_t wanted = local_size == 0
                                ? fair_partition(bytes, roster, summing, least)
                                : trib_shard_bytes(bytes, asked, roster->chunk_bytes, local_size,
                                                   roster->worker_count / local_size, is_alone ? 0 : summing);
    if (bytes <= (uint64_t)TRIB_PARTITIONS_MAX * wanted) {
        return wanted;
    }
    /* A DECLARED frame holds TRIB_PARTITIONS_MAX partitions, so larger ones of whole chunks are used. */
    return (uint32_t)(((bytes + TRIB_PARTITIONS_MAX - 1) / TRIB_PARTITIONS_MAX + chunk - 1) / chunk * chunk);
}

/*
 * On a slow link a message takes so long that its processing cost does not count. Partitions may then be small
 * enough for a small tensor to have some for every owner.
 */
uint32_t trib_tensor_partition_bytes_slow(const trib_roster *roster, uint64_t bytes, uint32_t least)
{
    const uint32_t usual = trib_tensor_partition_bytes(roster, bytes, 0, least), summing = trib_roster_summing(roster);
    if (trib_roster_is_one_host(roster)) {
        return usual;
    }
    static const struct {
        uint32_t bytes, each;
    } steps[] = {{PARTITION_MIN, PARTITIONS_EACH}, {PARTITION_MIN / 2, 16}, {PARTITION_MIN / 4, 2}};
    uint32_t fair = usual;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint64_t most =
            (uint64_t)steps[i].each * summing < TRIB_PARTITIONS_MAX ? steps[i].each * summing : TRIB_PARTITIONS_MAX;
        while (fair > steps[i].bytes && fair > least && fair / 2 * most >= bytes) {
            fair /= 2;
        }
    }
    return fair;
}
