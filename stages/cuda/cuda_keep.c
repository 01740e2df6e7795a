/*
 * cuda_keep.c - launches that are kept: where the buffers of a sum stay the same, NCCL's kernel is planned once and launched
 * again and again.
 *
 * Most of a launch is NCCL's planning. What it plans is captured into a CUDA graph, as NCCL supports. The graph itself is
 * not launched: its end is noticed up to 27 us late, where that of a plain launch takes 5 (H200, CUDA 13.0, NCCL 2.28). It keeps
 * the parameters of its only kernel, and that is what is launched, on the stream of all collectives.
 *
 * NCCL asks that all ranks capture a collective or none, and that all launch what they captured together: all members of the
 * group are told the same in job->keeps. In a capture NCCL may register buffers with other ranks for good, so that a buffer
 * that is freed would still be read; it does not with memory of cudaMalloc, which has no handle to share. Other memory is kept
 * only where the program has promised that it stays.
 *
 * NCCL does not let a communicator go while graphs of it live, neither when it is destroyed nor when it is given up. Whoever
 * ends it drops them before, if nobody is inside; else who comes out last does.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

#define NODES_MAX 8u /* NCCL puts waiting for an event before its kernel, and recording one behind it */

struct cuda_kept {
    cudaGraph_t graph;   /* the kernel's parameters are its own */
    CUfunction function; /* NULL: it takes more than a kernel, NCCL launches it every time */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUlaunchAttribute attributes[CUDA_KEPT_ATTRIBUTES];
    unsigned attribute_count;
    /* what for */
    const void *source;
    void *target;
    trib_reduce reduce;
    struct cuda_kept *next;
};

/* ---- Making ---- */

/* The graph's only kernel. NULL: there is something else to be done. */
static cudaGraphNode_t only_kernel(cudaGraph_t graph)
{
    cudaGraphNode_t nodes[NODES_MAX], kernel = NULL;
    size_t count = 0;
    if (cudaGraphGetNodes(graph, NULL, &count) != cudaSuccess || count > NODES_MAX ||
        cudaGraphGetNodes(graph, nodes, &count) != cudaSuccess) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type = cudaGraphNodeTypeCount;
        const bool known = cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess;
        const bool is_kernel = known && type == cudaGraphNodeTypeKernel;
        /* All collectives are on one stream: the events that order NCCL's launches among themselves are not needed. */
        const bool orders = type == cudaGraphNodeTypeWaitEvent || type == cudaGraphNodeTypeEventRecord ||
                            type == cudaGraphNodeTypeEmpty;
        if (!known || (is_kernel ? kernel != NULL : !orders)) {
            return NULL;
        }
        kernel = is_kernel ? nodes[i] : kernel;
    }
    return kernel;
}

static bool is_set(CUlaunchAttributeID id, const CUlaunchAttributeValue *value)
{
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        return value->clusterDim.x > 0;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return value->clusterSchedulingPolicyPreference != CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        return value->cooperative != 0;
    default:
        return true;
    }
}

static void take_attributes(const trib_device *device, struct cuda_kept *kept, CUgraphNode node)
{
    static const CUlaunchAttributeID wanted[CUDA_KEPT_ATTRIBUTES] = {
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN};
    for (unsigned i = 0; i < CUDA_KEPT_ATTRIBUTES; i++) {
        CUlaunchAttribute *at = &kept->attributes[kept->attribute_count];
        at->id = wanted[i];
        if (device->keep.get_attribute(node, wanted[i], &at->value) == CUDA_SUCCESS && is_set(wanted[i], &at->value)) {
            kept->attribute_count++;
        }
    }
}

/* False: slot->result or slot->code says why. */
static bool capture(trib_device *device, cuda_slot *slot, cudaGraph_t *graph_out)
{
    cudaStream_t stream = device->keep.stream;
    slot->code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (slot->code != cudaSuccess) {
        return false;
    }
    slot->result = cuda_nccl_all_reduce(device, slot->job, stream);
    slot->code = cudaStreamEndCapture(stream, graph_out);
    return slot->result == ncclSuccess && slot->code == cudaSuccess;
}

static void end(struct cuda_kept *kept)
{
    if (kept->graph != NULL) {
        (void)cudaGraphDestroy(kept->graph);
    }
    free(kept);
}

/* NULL: the slot says why. The others capture this collective, too: to let NCCL launch it here would be to do something else
 * than they. So it has failed. */
static struct cuda_kept *make(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    struct cuda_kept *kept = calloc(1, sizeof *kept);
    if (kept == NULL) {
        slot->code = cudaErrorMemoryAllocation;
        return NULL;
    }
    if (!capture(device, slot, &kept->graph)) {
        end(kept);
        return NULL;
    }
    cudaGraphNode_t node = only_kernel(kept->graph);
    const bool known = node != NULL && device->keep.get_params(node, &kept->kernel) == CUDA_SUCCESS;
    kept->function = known ? kept->kernel.func : NULL;
    if (kept->function != NULL) {
        take_attributes(device, kept, node);
    } else {
        (void)cudaGraphDestroy(kept->graph); /* NCCL is slower while graphs of it live */
        kept->graph = NULL;
    }
    kept->source = job->source;
    kept->target = job->target;
    kept->reduce = job->reduce;
    cuda_comm *comm = device->comm;
    pthread_mutex_lock(&comm->kept_mutex);
    kept->next = comm->kept;
    comm->kept = kept;
    pthread_mutex_unlock(&comm->kept_mutex);
    return kept;
}

/* ---- Dropping ---- */

/* Its last kernel has ended: the operation before is over. */
static void drop(trib_device *device, void **at)
{
    struct cuda_kept *kept = *at;
    cuda_comm *comm = device->comm;
    *at = NULL;
    pthread_mutex_lock(&comm->kept_mutex);
    for (struct cuda_kept **link = &comm->kept; *link != NULL; link = &(*link)->next) {
        if (*link == kept) {
            *link = kept->next;
            break;
        }
    }
    pthread_mutex_unlock(&comm->kept_mutex);
    end(kept);
}

void cuda_keep_drop_all(cuda_comm *comm)
{
    pthread_mutex_lock(&comm->kept_mutex);
    struct cuda_kept *kept = comm->kept;
    comm->kept = NULL;
    pthread_mutex_unlock(&comm->kept_mutex);
    while (kept != NULL) {
        struct cuda_kept *next = kept->next;
        end(kept);
        kept = next;
    }
}

/* ---- Launching ---- */

static CUresult launch(const trib_device *device, struct cuda_kept *kept)
{
    const CUlaunchConfig config = {.gridDimX = kept->kernel.gridDimX,
                                   .gridDimY = kept->kernel.gridDimY,
                                   .gridDimZ = kept->kernel.gridDimZ,
                                   .blockDimX = kept->kernel.blockDimX,
                                   .blockDimY = kept->kernel.blockDimY,
                                   .blockDimZ = kept->kernel.blockDimZ,
                                   .sharedMemBytes = kept->kernel.sharedMemBytes,
                                   .hStream = device->streams[CUDA_COLLECTIVE],
                                   .attrs = kept->attributes,
                                   .numAttrs = kept->attribute_count};
    return device->keep.launch(&config, kept->function, kept->kernel.kernelParams, kept->kernel.extra);
}

static bool fits(const struct cuda_kept *kept, const trib_device_job *job)
{
    return kept->source == job->source && kept->target == job->target && kept->reduce == job->reduce;
}

bool cuda_keep_has(const trib_device *device, const trib_device_job *job)
{
    const struct cuda_kept *kept = job->keep != NULL ? *job->keep : NULL;
    return job->keeps && device->keep.launch != NULL && kept != NULL && kept->function != NULL && fits(kept, job);
}

bool cuda_keep_launch(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    struct cuda_kept *kept = job->keep != NULL ? *job->keep : NULL;
    if (kept != NULL && (!job->keeps || !fits(kept, job))) {
        drop(device, job->keep);
        kept = NULL;
    }
    if (!job->keeps || device->keep.launch == NULL) {
        return false;
    }
    if (kept == NULL) {
        kept = make(device, slot);
        if (kept == NULL) {
            return true;
        }
        *job->keep = kept;
    }
    if (kept->function == NULL) {
        return false;
    }
    slot->code = launch(device, kept) == CUDA_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
    return true;
}

bool cuda_keep_may(trib_device *device, const void *buffer)
{
    int is_plain = 0;
    const cuda_visit visit = cuda_visit_begin(device);
    const bool known = device->keep.launch != NULL &&
                       device->keep.get_pointer(&is_plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                (CUdeviceptr)(uintptr_t)buffer) == CUDA_SUCCESS;
    cuda_visit_end(device, visit);
    return known && is_plain != 0;
}

/* ---- Life ---- */

cudaError_t cuda_keep_open(trib_device *device)
{
    cuda_keep *keep = &device->keep;
    if (device->params.size == 1) {
        return cudaSuccess;
    }
    /* All members of a machine have one driver: either it has these functions for all of them, or NCCL launches everything. */
    if (cuda_find_driver("cuGraphKernelNodeGetParams", &keep->get_params) != cudaSuccess ||
        cuda_find_driver("cuGraphKernelNodeGetAttribute", &keep->get_attribute) != cudaSuccess ||
        cuda_find_driver("cuPointerGetAttribute", &keep->get_pointer) != cudaSuccess ||
        cuda_find_driver("cuLaunchKernelEx", &keep->launch) != cudaSuccess) {
        (void)cudaGetLastError();
        keep->launch = NULL;
        return cudaSuccess;
    }
    return cudaStreamCreateWithFlags(&keep->stream, cudaStreamNonBlocking);
}

void cuda_keep_close(trib_device *device)
{
    if (device->keep.stream != NULL) {
        (void)cudaStreamDestroy(device->keep.stream);
    }
}
