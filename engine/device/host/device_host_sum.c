/* device_host_sum.c - the arithmetic of collectives in plain memory. */
#include "engine/device/host/device_host.h"

#include <stdlib.h>
#include <string.h>

static size_t shard_size(const trib_device_job *job, size_t member)
{
    const size_t begin = member * job->shard;
    return begin >= job->bytes ? 0 : job->bytes - begin < job->shard ? job->bytes - begin : job->shard;
}

/* Reduces the members' bytes [begin, begin + size) in rank order into target. */
static bool reduce_into(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count, unsigned char *target,
                        size_t begin, size_t size)
{
    const trib_device_job *first = jobs[0];
    const size_t elements = size / trib_dtype_size(first->dtype);
    const trib_reduce reduce = first->reduce;
    void *acc = malloc(elements * 8 + 1);
    if (acc == NULL) {
        return false;
    }
    const void *left = (const unsigned char *)first->source + begin;
    trib_form form = TRIB_FORM_WIRE;
    for (size_t i = 1; i < count; i++) {
        trib_kernel_combine(kernels, first->dtype, reduce, acc, left, form,
                            (const unsigned char *)jobs[i]->source + begin, TRIB_FORM_WIRE, elements);
        left = acc;
        form = TRIB_FORM_ACC;
    }
    trib_kernel_finish(kernels, first->dtype, reduce, acc, left, form, elements, (uint32_t)count);
    memcpy(target, acc, size);
    free(acc);
    return true;
}

bool trib_host_collective(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count)
{
    bool ok = true;
    const trib_device_job *root = jobs[0]->kind == TRIB_DEVICE_BROADCAST ? jobs[jobs[0]->root] : NULL;
    for (size_t i = 0; i < count && root != NULL; i++) {
        if (jobs[i]->target != root->source && root->bytes > 0) {
            memcpy(jobs[i]->target, root->source, root->bytes);
        }
    }
    for (size_t i = 0; i < count && ok; i++) {
        const size_t begin = i * jobs[i]->shard, size = shard_size(jobs[i], i);
        if (size == 0) {
            continue;
        }
        if (jobs[i]->kind == TRIB_DEVICE_REDUCE_SCATTER) {
            ok = reduce_into(kernels, jobs, count, jobs[i]->target, begin, size);
        } else if (jobs[i]->kind == TRIB_DEVICE_ALL_GATHER) {
            for (size_t j = 0; j < count; j++) {
                if (j != i) {
                    memcpy((unsigned char *)jobs[j]->target + begin, (unsigned char *)jobs[i]->target + begin, size);
                }
            }
        }
    }
    if (jobs[0]->kind == TRIB_DEVICE_ALL_REDUCE && jobs[0]->bytes > 0) {
        ok = reduce_into(kernels, jobs, count, jobs[0]->target, 0, jobs[0]->bytes);
        for (size_t i = 1; i < count && ok; i++) {
            memcpy(jobs[i]->target, jobs[0]->target, jobs[0]->bytes);
        }
    }
    return ok;
}
