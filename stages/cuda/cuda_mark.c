/*
 * cuda_mark.c - jobs that wait until callers' streams have reached their markers. A program that is ahead of its GPU,
 * as one that trains is, hands in hundreds of tensors of which none is ready.
 *
 * A query of an event takes the driver some 1.5 us. So if a marker has not been reached, the markers behind it on
 * that stream are not queried. A marker is behind another if its recording began after the other's was over; with
 * threads that share a stream the order of the jobs may differ from that of the markers. A stream's handle may come
 * again after the stream is gone; even then an older marker is reached first, as its work was handed in first. The
 * per-thread default streams all have one handle, so their markers are queried one by one.
 */
#include "stages/cuda/cuda_internal.h"

#define LATE_MAX 16u /* streams remembered in a turn; markers of further streams are queried one by one */

typedef struct cuda_late {
    uint32_t count;
    struct {
        cudaStream_t stream;
        uint64_t ended; /* the smallest of the markers that have not been reached */
    } streams[LATE_MAX];
} cuda_late;

static uint32_t find_stream(const cuda_late *late, cudaStream_t stream)
{
    uint32_t at = 0;
    while (at < late->count && late->streams[at].stream != stream) {
        at++;
    }
    return at;
}

static bool is_known_late(const cuda_late *late, const cuda_stream_marker *marker)
{
    const uint32_t at = find_stream(late, marker->stream);
    return at < late->count && marker->began >= late->streams[at].ended;
}

static void note_late_stream(cuda_late *late, const cuda_stream_marker *marker)
{
    const uint32_t at = find_stream(late, marker->stream);
    trib_assert(marker->began < marker->ended); /* recording counts itself */
    if (at == LATE_MAX || marker->stream == cudaStreamPerThread) {
        return;
    }
    if (at == late->count || marker->ended < late->streams[at].ended) {
        late->streams[at].stream = marker->stream;
        late->streams[at].ended = marker->ended;
    }
    late->count += at == late->count;
    trib_assert(late->count <= LATE_MAX);
}

void cuda_marker_release(trib_device *device, cuda_stream_marker *marker)
{
    pthread_mutex_lock(&device->mutex);
    marker->next = device->free_markers;
    device->free_markers = marker;
    pthread_mutex_unlock(&device->mutex);
}

void cuda_marker_await(trib_device *device, trib_device_job *job)
{
    trib_assert(job->kind == TRIB_DEVICE_WAIT && job->marker != NULL);
    trib_assert((device->waits == NULL) == (device->waits_tail == NULL));
    job->next = NULL;
    *(device->waits_tail == NULL ? &device->waits : &device->waits_tail->next) = job;
    device->waits_tail = job;
}

static void end_wait(trib_device *device, trib_device_job *job, CUresult code)
{
    cuda_marker_release(device, job->marker);
    if (code == CUDA_ERROR_NOT_READY) {
        cuda_job_give_back(device, job, TRIB_CLOSED, "the device was stopped");
    } else {
        cuda_job_give_back(device, job, code == CUDA_SUCCESS ? TRIB_OK : TRIB_SYSTEM, "%s",
                           code == CUDA_SUCCESS ? "" : cudaGetErrorString((cudaError_t)code));
    }
}

void cuda_marker_poll(trib_device *device)
{
    cuda_late late = {.count = 0};
    trib_device_job *job = device->waits;
    device->waits = device->waits_tail = NULL;
    for (trib_device_job *next = NULL; job != NULL; job = next) {
        const cuda_stream_marker *marker = job->marker;
        next = job->next;
        if (!device->stopped && is_known_late(&late, marker)) {
            cuda_marker_await(device, job);
            continue;
        }
        const CUresult code = device->driver.query_event(marker->event);
        if (code == CUDA_ERROR_NOT_READY && !device->stopped) {
            note_late_stream(&late, marker);
            cuda_marker_await(device, job);
        } else {
            end_wait(device, job, code);
        }
    }
}
