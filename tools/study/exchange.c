/* exchange.c - see exchange.h. */
#include "tools/study/exchange.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/log.h"

/* Of a group, this worker's place in it. */
static uint32_t place_of(const study_tensor *tensor, uint32_t rank)
{
    uint32_t place = 0;
    while (tensor->ranks != NULL && tensor->ranks[place] != rank) {
        place++;
    }
    return tensor->ranks != NULL ? place : rank;
}

static uint32_t members_of(const study_tensor *tensor, uint32_t workers)
{
    return tensor->ranks != NULL ? tensor->rank_count : workers;
}

/* The length of a slice, or of that of one worker for another one. More workers than were recorded take turns with the
 * lengths. */
static uint64_t slice_of(const study_tensor *tensor, uint32_t giver, uint32_t taker)
{
    uint32_t recorded = tensor->slice_count;
    if (tensor->kind != TRIB_OP_ALL_TO_ALL) {
        return tensor->slices[giver % recorded];
    }
    for (recorded = 1; recorded * recorded < tensor->slice_count; recorded++) {}
    return tensor->slices[giver % recorded * recorded + taker % recorded];
}

/* The output of a codec is bytes; the cost of computing them is charged by bytes in any case. */
static uint64_t describe_whole(const study_tensor *tensor, double ratio, trib_tensor_desc *desc)
{
    const double bytes = (double)tensor->bytes * ratio;
    const size_t width = trib_dtype_size(tensor->dtype);
    const bool whole = ratio == 1 && width > 0 && tensor->bytes % width == 0;
    desc->dtype = whole ? tensor->dtype : TRIB_UINT8;
    desc->count = whole ? tensor->bytes / width : bytes < 1 ? 1 : (uint64_t)bytes;
    return desc->count * trib_dtype_size(desc->dtype);
}

uint64_t study_exchange_describe(const study_tensor *tensor, const study_exchange_of *of, trib_tensor_desc *desc,
                                 uint64_t *splits)
{
    if (tensor->slices == NULL) {
        return describe_whole(tensor, tensor->kind == TRIB_OP_PUSH_PULL ? of->codec_ratio : 1, desc);
    }
    const uint32_t members = members_of(tensor, of->workers), place = place_of(tensor, of->rank);
    const bool is_pairs = tensor->kind == TRIB_OP_ALL_TO_ALL;
    uint64_t all = 0;
    desc->dtype = tensor->dtype;
    desc->layout = is_pairs ? TRIB_PAIRS : TRIB_SLICES;
    desc->splits = is_pairs ? splits : NULL;
    desc->split_count = is_pairs ? members : 0;
    desc->count = is_pairs ? 0 : slice_of(tensor, place, 0);
    for (uint32_t i = 0; i < members; i++) {
        splits[i] = is_pairs ? slice_of(tensor, place, i) : 0;
        for (uint32_t k = 0; k < (is_pairs ? members : 1); k++) {
            all += slice_of(tensor, i, k);
        }
    }
    return all * trib_dtype_size(tensor->dtype);
}

int32_t study_exchange_root(const study_tensor *tensor, uint32_t workers)
{
    return (int32_t)(tensor->root % members_of(tensor, workers));
}

trib_status study_exchange_group(trib_engine *engine, const study_tensor *tensor, trib_group **group_out,
                                 trib_error *error)
{
    char name[32];
    uint64_t hash = UINT64_C(1469598103934665603);
    int32_t *ranks = calloc((size_t)tensor->rank_count + 1, sizeof *ranks);
    for (uint32_t i = 0; ranks != NULL && i < tensor->rank_count; i++) {
        ranks[i] = (int32_t)tensor->ranks[i];
        hash = (hash ^ tensor->ranks[i]) * UINT64_C(1099511628211);
    }
    snprintf(name, sizeof name, "group %016llx", (unsigned long long)hash);
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.ranks = ranks;
    desc.rank_count = tensor->rank_count;
    const trib_status status = ranks == NULL ? trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a group")
                                             : trib_group_create(engine, &desc, group_out, error);
    free(ranks);
    return status;
}
