/* cuda_thread.c - the device thread: issues jobs, and notices when they end. See cuda_internal.h. */
#include "stages/cuda/cuda_internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define POLL_NS (20 * INT64_C(1000))
#define POLL_MAX_NS (200 * INT64_C(1000))
#define POLL_SLACK_NS 1000ul

static const char stopped_text[] = "the device was stopped";

int64_t cuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void cuda_job_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *format, ...)
{
    trib_assert(job->slot == NULL); /* a job that is given back has no slot any more */
    trib_poll_window_note_work(&device->poll_window, cuda_now_ns(), false);
    job->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->text, sizeof job->text, format, arguments);
    va_end(arguments);
    device->params.complete(job);
}

/* ---- Slots and queues ---- */

/* NULL: out of memory; the job has been given back. */
static cuda_slot *take_slot(trib_device *device, trib_device_job *job)
{
    cuda_slot *slot = device->free_slots;
    trib_assert(job->slot == NULL);
    if (slot != NULL) {
        trib_assert(slot->job == NULL);
        device->free_slots = slot->next;
    } else {
        slot = calloc(1, sizeof *slot);
        if (slot == NULL || cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming) != cudaSuccess) {
            free(slot);
            cuda_nccl_give_up(device, job, "no memory for a CUDA event");
            cuda_job_give_back(device, job, TRIB_NO_MEMORY, "no memory for a CUDA event");
            return NULL;
        }
    }
    slot->job = job;
    slot->issued = false;
    slot->code = cudaSuccess;
    slot->result = ncclSuccess;
    job->slot = slot;
    return slot;
}

void cuda_slot_end(trib_device *device, cuda_slot *slot, trib_status status, const char *text)
{
    trib_device_job *job = slot->job;
    trib_assert(job != NULL && job->slot == slot);
    job->slot = NULL;
    trib_assert(device->free_slots != slot);
    slot->job = NULL;
    slot->next = device->free_slots;
    device->free_slots = slot;
    cuda_job_give_back(device, job, status, "%s", text);
}

/* ---- Issuing ---- */

static cudaError_t count_for_end(trib_device *device, const trib_device_job *job, cuda_stream_id which)
{
    if (job->end == NULL) {
        return cudaSuccess;
    }
    const uint32_t count = atomic_fetch_add(&job->end->jobs_launched, 1) + 1;
    trib_assert(count <= job->end_jobs);
    return count < job->end_jobs ? cudaSuccess
                                 : (cudaError_t)cuda_end_launched(device, job->end, device->streams[which]);
}

/* Records the event behind the slot's work. Where that fails the job keeps its memory until its stream is idle, and
 * fails then with slot->code. */
static void record_end_event(trib_device *device, cuda_slot *slot, cuda_stream_id which)
{
    const CUresult code = device->driver.record_event(slot->event, device->streams[which]);
    slot->has_no_event = code != CUDA_SUCCESS;
    slot->code = slot->has_no_event ? (cudaError_t)code : slot->code;
}

void cuda_slot_issued(trib_device *device, cuda_slot *slot, cuda_stream_id which)
{
    trib_assert(!slot->issued);
    slot->code = count_for_end(device, slot->job, which);
    record_end_event(device, slot, which);
    slot->issued = true;
    if (which == CUDA_COLLECTIVE) {
        device->collectives++;
        trib_assert(device->collectives <= CUDA_LAUNCHED_MAX);
    }
    cuda_queue_push(&device->issued[which], slot);
}

trib_status cuda_stream_order_after(trib_device *device, const trib_device_job *job, cuda_stream_id which,
                                    const char **why_out)
{
    trib_assert(which < CUDA_STREAM_COUNT && job->after != job);
    const cuda_slot *before = job->after == NULL ? NULL : job->after->slot;
    CUresult code = CUDA_SUCCESS;
    if (before == NULL) { /* the earlier job has ended */
        *why_out = job->after == NULL ? "" : job->after->text;
        return job->after == NULL ? TRIB_OK : job->after->status;
    }
    if (before->issued && before->code != cudaSuccess) {
        code = (CUresult)before->code;
    } else if (before->issued) {
        code = device->driver.wait_event(device->streams[which], before->event, CU_EVENT_WAIT_DEFAULT);
    }
    *why_out = code == CUDA_SUCCESS ? "" : cudaGetErrorString((cudaError_t)code);
    return code != CUDA_SUCCESS ? TRIB_SYSTEM : before->issued ? TRIB_OK : TRIB_BUSY;
}

/* Ends a job that needed the communicator after that was given up. */
static void end_given_up_slot(trib_device *device, cuda_slot *slot)
{
    const bool stopped = atomic_load(&device->stop_asked);
    cuda_slot_end(device, slot, stopped ? TRIB_CLOSED : TRIB_SYSTEM, stopped ? stopped_text : device->comm_text);
}

/* Blocks until the GPU sees what network devices have written. Later work of the stream comes after it. */
static cudaError_t flush_direct_writes(const trib_device *device)
{
    return device->flushes
               ? cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice, device->seen_by)
               : cudaSuccess;
}

/* Issues a copy, or the flush that takes its place. False: its `after` has not been issued. */
static bool issue_copy(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    trib_assert(!slot->issued && job->slot == slot);
    const bool to_host = job->kind == TRIB_DEVICE_TO_HOST || job->kind == TRIB_DEVICE_ENCODE;
    const cuda_stream_id which = to_host ? CUDA_TO_HOST : CUDA_TO_DEVICE;
    const char *why = "";
    const trib_status order = cuda_stream_order_after(device, job, which, &why);
    if (order == TRIB_BUSY) {
        return false;
    }
    if (order != TRIB_OK) {
        cuda_slot_end(device, slot, order, why);
        return true;
    }
    /* A copy to or from memory that is not registered blocks in the driver, also for the collective before it: the
     * rescue thread may have to abort that. */
    const bool enters = device->comm_state == CUDA_COMM_READY;
    if (device->comm_state == CUDA_COMM_FAILED || (enters && !cuda_comm_enter(device))) {
        end_given_up_slot(device, slot);
        return true;
    }
    cudaError_t code = job->kind == TRIB_DEVICE_SEE ? flush_direct_writes(device) : cudaSuccess;
    if (job->kind == TRIB_DEVICE_ENCODE) {
        code = cuda_encode(device, slot->job, device->streams[which]);
    } else if (job->kind == TRIB_DEVICE_DECODE) {
        code = cuda_decode(device, slot->job, device->streams[which]);
    } else if (job->kind != TRIB_DEVICE_SEE && job->bytes > 0) {
        code = cudaMemcpyAsync(job->target, job->source, job->bytes,
                               to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, device->streams[which]);
    }
    if (enters) {
        cuda_comm_exit(device);
    }
    if (code != cudaSuccess) {
        cuda_slot_end(device, slot, TRIB_SYSTEM, cudaGetErrorString(code));
    } else {
        cuda_slot_issued(device, slot, which);
    }
    return true;
}

static void begin_job(trib_device *device, trib_device_job *job)
{
    job->slot = NULL;
    if (device->stopped && job->kind != TRIB_DEVICE_WAIT) {
        cuda_job_give_back(device, job, TRIB_CLOSED, "%s", stopped_text);
        return;
    }
    cuda_slot *slot = NULL;
    switch (job->kind) {
    case TRIB_DEVICE_WAIT:
        cuda_marker_await(device, job);
        return;
    case TRIB_DEVICE_MAKE_ID:
        cuda_nccl_make_id(device, job);
        return;
    case TRIB_DEVICE_JOIN:
        cuda_nccl_join(device, job);
        return;
    default:
        slot = take_slot(device, job);
        if (slot == NULL) {
            return;
        }
    }
    const bool is_copy = job->kind == TRIB_DEVICE_TO_HOST || job->kind == TRIB_DEVICE_ENCODE ||
                         job->kind == TRIB_DEVICE_TO_DEVICE || job->kind == TRIB_DEVICE_DECODE ||
                         job->kind == TRIB_DEVICE_SEE;
    if (!is_copy) {
        cuda_queue_push(&device->ready, slot);
    } else if (device->deferred.head != NULL || !issue_copy(device, slot)) {
        cuda_queue_push(&device->deferred, slot);
    }
}

static void issue_deferred(trib_device *device)
{
    cuda_queue again = device->deferred;
    device->deferred = (cuda_queue){.head = NULL};
    for (cuda_slot *slot = cuda_queue_pop(&again); slot != NULL; slot = cuda_queue_pop(&again)) {
        if (!issue_copy(device, slot)) {
            cuda_queue_push(&device->deferred, slot);
        }
    }
}

/* ---- Ends of jobs ---- */

static cudaError_t query_slot(const trib_device *device, const cuda_slot *slot, cuda_stream_id which)
{
    return (cudaError_t)(slot->has_no_event ? device->driver.query_stream(device->streams[which])
                                            : device->driver.query_event(slot->event));
}

static void poll_stream(trib_device *device, cuda_stream_id which)
{
    for (;;) {
        cuda_slot *slot = device->issued[which].head;
        cudaError_t code = slot == NULL ? cudaErrorNotReady : query_slot(device, slot, which);
        if (code == cudaErrorNotReady) {
            return;
        }
        code = code == cudaSuccess ? slot->code : code;
        (void)cuda_queue_pop(&device->issued[which]);
        if (which == CUDA_COLLECTIVE) {
            trib_assert(device->collectives > 0);
            device->collectives--;
        }
        /* Kernels that are aborted end early, and CUDA reports no error for them. The flag is set before the abort, so
         * every such job is found here, and with it the copies behind it. */
        const bool needs_comm = which == CUDA_COLLECTIVE || slot->job->after != NULL;
        if (code == cudaSuccess && needs_comm && device->comm != NULL && atomic_load(&device->comm->given_up)) {
            end_given_up_slot(device, slot);
        } else {
            cuda_slot_end(device, slot, code == cudaSuccess ? TRIB_OK : TRIB_SYSTEM,
                          code == cudaSuccess ? "" : cudaGetErrorString(code));
        }
    }
}

/* ---- Stopping ---- */

static void give_back_queue(trib_device *device, cuda_queue *queue, trib_status status, const char *text)
{
    for (cuda_slot *slot = cuda_queue_pop(queue); slot != NULL; slot = cuda_queue_pop(queue)) {
        cuda_slot_end(device, slot, status, text);
    }
}

static bool has_issued(const trib_device *device)
{
    return device->issued[CUDA_TO_HOST].head != NULL || device->issued[CUDA_TO_DEVICE].head != NULL ||
           device->issued[CUDA_COLLECTIVE].head != NULL;
}

/* Before a stop is handled: jobs that have ended by now count as carried out, and are no reason to abort. */
static void poll_all_streams(trib_device *device)
{
    for (int which = 0; which < CUDA_STREAM_COUNT; which++) {
        poll_stream(device, (cuda_stream_id)which);
    }
}

/* Jobs that have not been issued come back now, the others when they end; collectives end because they are aborted. */
static void handle_stop(trib_device *device, bool orderly)
{
    trib_assert(!device->stopped);
    device->stopped = true;
    device->stop_deadline_ns = cuda_now_ns() + TRIB_CUDA_STOP_NS;
    const bool busy = device->collectives > 0 || device->comm_state == CUDA_COMM_JOINING;
    give_back_queue(device, &device->deferred, TRIB_CLOSED, stopped_text);
    give_back_queue(device, &device->ready, TRIB_CLOSED, stopped_text);
    if (busy || !orderly) {
        cuda_comm_abort(device);
        device->comm_state = CUDA_COMM_FAILED;
    }
    if (device->join != NULL) {
        trib_device_job *job = device->join;
        device->join = NULL;
        cuda_job_give_back(device, job, TRIB_CLOSED, "%s", stopped_text);
    }
}

static void give_up_hung_jobs(trib_device *device)
{
    if (device->stopped && has_issued(device) && cuda_now_ns() > device->stop_deadline_ns) {
        device->hung = true;
        for (int which = 0; which < CUDA_STREAM_COUNT; which++) {
            give_back_queue(device, &device->issued[which], TRIB_SYSTEM, "the GPU did not end it in time");
        }
    }
}

/* ---- The loop ---- */

static void take_turn(trib_device *device, trib_device_job *jobs)
{
    if (!device->stopped) { /* before jobs that may need the memory */
        cuda_codec_sweep(device);
    }
    while (jobs != NULL) {
        trib_device_job *next = jobs->next;
        begin_job(device, jobs);
        jobs = next;
    }
    cuda_marker_poll(device);
    for (int which = 0; which < CUDA_STREAM_COUNT; which++) {
        poll_stream(device, (cuda_stream_id)which);
    }
    if (!device->stopped) {
        cuda_nccl_progress(device);
        issue_deferred(device);
    }
    give_up_hung_jobs(device);
}

static void pause_thread(trib_device *device, bool busy)
{
    const int64_t now_ns = cuda_now_ns(), still_ns = now_ns - device->poll_window.worked_ns;
    if (busy ? still_ns < device->poll_window.least_ns : trib_poll_window_is_open(&device->poll_window, now_ns)) {
        pthread_mutex_unlock(&device->mutex);
        sched_yield();
        pthread_mutex_lock(&device->mutex);
        return;
    }
    device->asleep = true;
    if (!busy) {
        pthread_cond_wait(&device->changed, &device->mutex);
    } else {
        /* A wait that has been long may last a fiftieth longer, so that it does not keep a core busy. */
        int64_t pause_ns = still_ns / 50;
        pause_ns = pause_ns < POLL_NS ? POLL_NS : pause_ns > POLL_MAX_NS ? POLL_MAX_NS : pause_ns;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += pause_ns;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&device->changed, &device->mutex, &until);
    }
    device->asleep = false;
}

bool cuda_thread_wake(trib_device *device, uint32_t reactors, bool hurries)
{
    pthread_mutex_lock(&device->mutex);
    const bool takes = !device->calls && !device->stopping && (!hurries || device->to_wake != 0);
    if (takes) {
        device->to_wake |= reactors;
        cuda_thread_signal_if_asleep(device);
    }
    pthread_mutex_unlock(&device->mutex);
    return takes;
}

/* Requests of other threads, taken for one turn. */
typedef struct cuda_taken {
    trib_device_job *jobs;
    uint32_t to_wake;
    bool stops, orderly;
} cuda_taken;

/* With the mutex held. */
static cuda_taken take_handed_in(trib_device *device)
{
    const cuda_taken taken = {.jobs = device->new_head,
                              .to_wake = device->to_wake,
                              .stops = device->stopping && !device->stopped,
                              .orderly = device->orderly};
    device->new_head = device->new_tail = NULL;
    device->to_wake = 0;
    device->calls = device->calls_come || taken.stops || device->deferred.head != NULL || cuda_nccl_is_busy(device);
    device->calls_come = false;
    if (device->kicked || taken.jobs != NULL) {
        trib_poll_window_note_work(&device->poll_window, cuda_now_ns(), true);
    }
    device->kicked = false;
    return taken;
}

/* With the mutex held. */
static bool has_more_to_do(const trib_device *device)
{
    return device->new_head != NULL || device->to_wake != 0 || device->quits ||
           (!device->stopped && (device->stopping || atomic_load(&device->has_dropped)));
}

void *cuda_thread_main(void *argument)
{
    trib_device *device = argument;
    prctl(PR_SET_NAME, "trib-cuda");
    prctl(PR_SET_TIMERSLACK, POLL_SLACK_NS);
    if (device->params.thread_began != NULL) {
        device->params.thread_began(device->params.memory);
    }
    (void)cuda_thread_use(device->index); /* cannot fail: device_open has used it */
    pthread_mutex_lock(&device->mutex);
    while (!device->quits) {
        const cuda_taken taken = take_handed_in(device);
        pthread_mutex_unlock(&device->mutex);
        if (taken.to_wake != 0) {
            device->params.wake(device->params.engine, taken.to_wake);
        }
        if (taken.stops) {
            poll_all_streams(device);
            handle_stop(device, taken.orderly);
        }
        take_turn(device, taken.jobs);
        const bool busy = has_issued(device) || device->waits != NULL || device->deferred.head != NULL ||
                          (!device->stopped && cuda_nccl_is_busy(device));
        pthread_mutex_lock(&device->mutex);
        if (!has_more_to_do(device)) {
            device->calls = false;
            pause_thread(device, busy);
        }
    }
    pthread_mutex_unlock(&device->mutex);
    cuda_comm_end(device);
    return NULL;
}
