/*
 * cuda_mark.c - waiting until streams of callers have come to their marks. A program that is ahead of its GPU, as one that trains is,
 * hands in hundreds of tensors of which none is ready.
 *
 * To ask for an event takes some 1.5 us of the driver's, beside the program's own calls. So only the oldest mark of a stream is asked
 * for: those behind it cannot have been reached. Nor can that go wrong where two streams have one handle, the later made when the earlier
 * was gone: whatever a mark waits for was handed in before it. The streams that threads have for themselves are all called the same, and
 * are asked for one by one.
 */
#include "stages/cuda/cuda_internal.h"

#define LATE_MAX                                                                                                       \
    16u /* streams that are remembered while all are gone through; marks of others are asked for one by one, too */

typedef struct cuda_late {
    uint32_t count;
    cudaStream_t streams[LATE_MAX];
} cuda_late;

static bool is_late(const cuda_late *late, cudaStream_t stream)
{
    uint32_t at = 0;
    while (at < late->count && late->streams[at] != stream) {
        at++;
    }
    return at < late->count;
}

static void note_late(cuda_late *late, cudaStream_t stream)
{
    if (late->count < LATE_MAX && stream != cudaStreamPerThread) {
        late->streams[late->count++] = stream;
    }
}

void cuda_mark_give(trib_device *device, cuda_mark *mark)
{
    pthread_mutex_lock(&device->mutex);
    mark->next = device->marks;
    device->marks = mark;
    pthread_mutex_unlock(&device->mutex);
}

void cuda_mark_await(trib_device *device, trib_device_job *job)
{
    job->next = NULL;
    *(device->waits_tail == NULL ? &device->waits : &device->waits_tail->next) = job;
    device->waits_tail = job;
}

static void end_wait(trib_device *device, trib_device_job *job, CUresult code)
{
    cuda_mark_give(device, job->mark);
    if (code == CUDA_ERROR_NOT_READY) {
        cuda_give_back(device, job, TRIB_CLOSED, "the device was stopped");
    } else {
        cuda_give_back(device, job, code == CUDA_SUCCESS ? TRIB_OK : TRIB_SYSTEM, "%s",
                       code == CUDA_SUCCESS ? "" : cudaGetErrorString((cudaError_t)code));
    }
}

void cuda_mark_poll(trib_device *device)
{
    cuda_late late = {.count = 0};
    trib_device_job *job = device->waits;
    device->waits = device->waits_tail = NULL;
    for (trib_device_job *next = NULL; job != NULL; job = next) {
        const cuda_mark *mark = job->mark;
        next = job->next;
        if (!device->stopped && is_late(&late, mark->stream)) {
            cuda_mark_await(device, job);
            continue;
        }
        const CUresult code = device->driver.query_event(mark->event);
        if (code == CUDA_ERROR_NOT_READY && !device->stopped) {
            note_late(&late, mark->stream);
            cuda_mark_await(device, job);
        } else {
            end_wait(device, job, code);
        }
    }
}
