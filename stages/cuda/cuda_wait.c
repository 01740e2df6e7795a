/*
 * cuda_wait.c - callers' streams that wait for the end of an operation.
 *
 * A stream waits only for an event that has been recorded behind the last job of the operation. Before that the wait
 * is rejected, and the caller is told of later launches of its engine, among which is the one it waits for. A stream
 * that waited earlier could hold up the launch: the driver knows nothing of such a dependency, and calls that wait for
 * the whole GPU would wait for that stream, too (docs/decisions/0006-queues.md).
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

/* NULL: out of memory. */
static cuda_end_event *make_event(trib_device *device)
{
    cuda_end_event *event = calloc(1, sizeof *event);
    if (event == NULL || cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        free(event);
        return NULL;
    }
    event->next = device->end_events;
    device->end_events = event;
    return event;
}

void cuda_ends_free(trib_device *device)
{
    for (cuda_end_event *event = device->end_events, *next; event != NULL; event = next) {
        next = event->next;
        (void)cudaEventDestroy(event->event);
        free(event);
    }
}

/* False: the end has not been launched; the engine will be told of the next launch. */
static bool is_launched(trib_device *device, const trib_device_end *end)
{
    pthread_mutex_lock(&device->mutex);
    const bool launched = atomic_load(&end->is_launched);
    device->rejected = device->rejected || !launched;
    pthread_mutex_unlock(&device->mutex);
    trib_assert(!launched || end->event != NULL); /* the event is recorded before the launch shows */
    return launched;
}

static trib_status wait_for_event(const trib_device *device, cudaStream_t stream, const cuda_end_event *event,
                                  trib_error *error)
{
    const CUresult code = device->driver.wait_event(stream, event->event, CU_EVENT_WAIT_DEFAULT);
    if (code != CUDA_SUCCESS) {
        cuda_set_error(error, TRIB_SYSTEM, "the stream could not be made to wait: %s",
                       cudaGetErrorString((cudaError_t)code));
    }
    return code == CUDA_SUCCESS ? TRIB_OK : TRIB_SYSTEM;
}

trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_end *end, trib_error *error)
{
    const cuda_context_guard guard = cuda_context_enter(device);
    trib_status status = cuda_check_capture(device, stream, error);
    if (status == TRIB_OK) {
        status = is_launched(device, end) ? wait_for_event(device, stream, end->event, error) : TRIB_BUSY;
    }
    cuda_context_leave(device, guard);
    return status;
}

CUresult cuda_end_launched(trib_device *device, trib_device_end *end, cudaStream_t stream)
{
    if (end->event == NULL) {
        end->event = make_event(device);
    }
    const cuda_end_event *event = end->event;
    const CUresult code = event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : device->driver.record_event(event->event, stream);
    if (code != CUDA_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&device->mutex);
    trib_assert(!atomic_load(&end->is_launched));
    atomic_store(&end->is_launched, true);
    const bool tells = device->rejected;
    device->rejected = false;
    pthread_mutex_unlock(&device->mutex);
    if (tells) {
        device->params.launched(device->params.engine); /* takes a mutex that comes before this device's */
    }
    return CUDA_SUCCESS;
}
