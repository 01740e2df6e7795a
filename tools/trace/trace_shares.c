/* trace_shares.c - reads from a trace file who shares a tensor, and the lengths of its slices. */
#include "engine/cluster/partitioning.h"
#include "tools/trace/trace_read.h"

void trace_shares_take(trace_file *file, const unsigned char *data, uint32_t entry_bytes, uint32_t count)
{
    file->shares_told = data != NULL;
    for (; data != NULL && file->share_count < count; file->share_count++) {
        file->shares[file->share_count] = trib_trace_load_u64(data + (size_t)file->share_count * entry_bytes);
    }
}

bool trace_shares_parse(const trace_file *file, trace_tensor *tensor, uint32_t place)
{
    uint32_t first = place - 1;
    if (tensor->layout < TRIB_WHOLE || tensor->layout > TRIB_PAIRS) {
        return false;
    }
    if (place == 0) {
        return tensor->layout == TRIB_WHOLE;
    }
    if (first >= file->share_count || file->shares[first] > file->worker_count) {
        return false;
    }
    tensor->rank_count = (uint32_t)file->shares[first++];
    const uint64_t members = tensor->rank_count > 0 ? tensor->rank_count : file->worker_count;
    const uint64_t slices = trib_partitioning_slice_count(tensor->layout, (uint32_t)members);
    tensor->slice_count = tensor->layout == TRIB_WHOLE ? 0 : (uint32_t)slices;
    if (slices > UINT32_MAX || (uint64_t)tensor->rank_count + tensor->slice_count > file->share_count - first) {
        return false;
    }
    tensor->ranks = file->shares + first;
    tensor->slices = tensor->ranks + tensor->rank_count;
    uint64_t elements = 0;
    const size_t width = trib_dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->slice_count; i++) {
        if (width == 0 || tensor->slices[i] > tensor->bytes / width - elements) {
            return false;
        }
        elements += tensor->slices[i];
    }
    for (uint32_t i = 0; i < tensor->rank_count; i++) {
        if (tensor->ranks[i] >= file->worker_count) {
            return false;
        }
    }
    return tensor->layout == TRIB_WHOLE || elements * width == tensor->bytes;
}
