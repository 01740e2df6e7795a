/*
 * cuda_mark.c - waiting until streams of callers have come to their marks. A program that is ahead of its GPU, as one that trains is,
 * hands in hundreds of tensors of which none is ready.
 *
 * To ask for an event takes some 1.5 us of the driver's, beside the program's own calls. So where a stream has not come to a mark those
 * behind that are not asked for: they cannot have been reached. Behind it are those whose recording began when that one's was over; of
 * threads that share a stream the one whose mark is first need not be the one whose job is. Nor can that go wrong where two streams have
 * one handle, the later made when the earlier was gone: whatever a mark waits for was handed in before it. The streams that threads have
 * for themselves are all called the same, and are asked for one by one.
 */
#include "stages/cuda/cuda_internal.h"

#define LATE_MAX                                                                                                       \
    16u /* streams that are remembered while all are gone through; marks of others are asked for one by one, too */

typedef struct cuda_late {
    uint32_t count;
    struct {
        cudaStream_t stream;
        uint64_t ended; /* the first recording to be over of those that have not been reached */
    } streams[LATE_MAX];
} cuda_late;

static uint32_t find(const cuda_late *late, cudaStream_t stream)
{
    uint32_t at = 0;
    while (at < late->count && late->streams[at].stream != stream) {
        at++;
    }
    return at;
}

static bool is_late(const cuda_late *late, const cuda_mark *mark)
{
    const uint32_t at = find(late, mark->stream);
    return at < late->count && mark->began >= late->streams[at].ended;
}

static void note_late(cuda_late *late, const cuda_mark *mark)
{
    const uint32_t at = find(late, mark->stream);
    if (at == LATE_MAX || mark->stream == cudaStreamPerThread) {
        return;
    }
    if (at == late->count || mark->ended < late->streams[at].ended) {
        late->streams[at].stream = mark->stream;
        late->streams[at].ended = mark->ended;
    }
    late->count += at == late->count;
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
        if (!device->stopped && is_late(&late, mark)) {
            cuda_mark_await(device, job);
            continue;
        }
        const CUresult code = device->driver.query_event(mark->event);
        if (code == CUDA_ERROR_NOT_READY && !device->stopped) {
            note_late(&late, mark);
            cuda_mark_await(device, job);
        } else {
            end_wait(device, job, code);
        }
    }
}
