/* cuda_thread.c - the device's thread: issues jobs, and notices their ends. See cuda_internal.h. */
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
#define ASK_EVERY_NS (4 * INT64_C(1000))

static const char stopped_text[] = "the device was stopped";

int64_t cuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void cuda_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *format, ...)
{
    trib_poll_window_note_work(&device->poll_window, cuda_now_ns(), false);
    job->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->text, sizeof job->text, format, arguments);
    va_end(arguments);
    device->params.complete(job);
}

/* ---- Slots and queues ---- */

/* A job that has not begun. */
static void drop_mark(trib_device *device, trib_device_job *job)
{
    if (job->mark != NULL) {
        cuda_mark_give(device, job->mark);
        job->mark = NULL;
    }
}

/* A job that is never to begin: callers do not wait any more for its launch, to launch theirs behind it. */
static void turn_away(trib_device *device, trib_device_job *job, trib_status status, const char *text)
{
    drop_mark(device, job);
    if (job->is_issued) {
        pthread_mutex_lock(&device->mutex);
        device->unlaunched--;
        pthread_mutex_unlock(&device->mutex);
    }
    cuda_give_back(device, job, status, "%s", text);
}

/* NULL: no memory, and the job is back. */
static cuda_slot *slot_take(trib_device *device, trib_device_job *job)
{
    cuda_slot *slot = device->free_slots;
    if (slot != NULL) {
        device->free_slots = slot->next;
    } else {
        slot = calloc(1, sizeof *slot);
        if (slot == NULL || cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming) != cudaSuccess) {
            free(slot);
            cuda_nccl_give_up(device, job, "no memory for a CUDA event");
            turn_away(device, job, TRIB_NO_MEMORY, "no memory for a CUDA event");
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
    job->slot = NULL;
    slot->job = NULL;
    if (!slot->is_gates) {
        slot->next = device->free_slots;
        device->free_slots = slot;
    }
    drop_mark(device, job);
    cuda_give_back(device, job, status, "%s", text);
}

/* ---- Issuing ---- */

/* Jobs with a gate are all on one stream, for each operation: the last to be issued is the last to end. */
static cudaError_t open_gate_behind(trib_device *device, const trib_device_job *job, cuda_stream_id stream_id)
{
    if (job->gate == NULL || atomic_fetch_add(job->gate_count, 1) + 1 != job->gate_goal) {
        return cudaSuccess;
    }
    return (cudaError_t)cuda_wait_launched(device, job->gate, device->streams[stream_id]);
}

void cuda_mark_end(trib_device *device, cuda_slot *slot, cuda_stream_id stream_id)
{
    const CUresult code = device->driver.record_event(slot->event, device->streams[stream_id]);
    slot->is_unmarked = code != CUDA_SUCCESS;
    slot->code = slot->is_unmarked ? (cudaError_t)code : slot->code;
}

void cuda_issued(trib_device *device, cuda_slot *slot, cuda_stream_id stream_id)
{
    slot->code = open_gate_behind(device, slot->job, stream_id);
    cuda_mark_end(device, slot, stream_id);
    slot->issued = true;
    if (stream_id == CUDA_COLLECTIVE) {
        atomic_fetch_add(&device->collectives, 1);
    }
    cuda_queue_push(&device->issued[stream_id], slot);
}

trib_status cuda_order_after(trib_device *device, const trib_device_job *job, cuda_stream_id stream_id,
                             const char **why_out)
{
    const cuda_slot *before = job->after == NULL ? NULL : job->after->slot;
    CUresult code = CUDA_SUCCESS;
    if (before == NULL) { /* it has ended */
        *why_out = job->after == NULL ? "" : job->after->text;
        return job->after == NULL ? TRIB_OK : job->after->status;
    }
    if (before->issued && before->code != cudaSuccess) {
        code = (CUresult)before->code;
    } else if (before->issued) {
        code = device->driver.wait_event(device->streams[stream_id], before->event, CU_EVENT_WAIT_DEFAULT);
    }
    *why_out = code == CUDA_SUCCESS ? "" : cudaGetErrorString((cudaError_t)code);
    return code != CUDA_SUCCESS ? TRIB_SYSTEM : before->issued ? TRIB_OK : TRIB_BUSY;
}

cudaError_t cuda_order_mark(trib_device *device, trib_device_job *job, cuda_stream_id stream_id)
{
    cuda_mark *mark = job->mark;
    const CUresult code =
        mark == NULL ? CUDA_SUCCESS
                     : device->driver.wait_event(device->streams[stream_id], mark->event, CU_EVENT_WAIT_DEFAULT);
    drop_mark(device, job);
    return (cudaError_t)code;
}

/* What needs the communicator after it has been given up. */
static void end_given_up(trib_device *device, cuda_slot *slot)
{
    const bool stopped = atomic_load(&device->stop_asked);
    cuda_slot_end(device, slot, stopped ? TRIB_CLOSED : TRIB_SYSTEM, stopped ? stopped_text : device->comm_text);
}

/* The call lasts until the GPU sees what the network's device has written. What the stream does next comes after it. */
static cudaError_t see(const trib_device *device)
{
    return device->flushes
               ? cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice, device->seen_by)
               : cudaSuccess;
}

/* A copy, or what comes in its place; false: the job that it comes after has not been issued. */
static bool issue_copy(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    const bool to_host = job->kind == TRIB_DEVICE_TO_HOST;
    const cuda_stream_id stream_id = to_host ? CUDA_TO_HOST : CUDA_TO_DEVICE;
    const char *why = "";
    const trib_status order = cuda_order_after(device, job, stream_id, &why);
    if (order == TRIB_BUSY) {
        return false;
    }
    if (order != TRIB_OK) {
        cuda_slot_end(device, slot, order, why);
        return true;
    }
    /* To memory that is not registered the driver copies while we wait, also for the collective that comes before: its end
     * may need the rescue. */
    const bool enters = device->comm_state == CUDA_COMM_READY;
    if (device->comm_state == CUDA_COMM_FAILED || (enters && !cuda_comm_enter(device))) {
        end_given_up(device, slot);
        return true;
    }
    cudaError_t code = job->kind == TRIB_DEVICE_SEE ? see(device) : cudaSuccess;
    if (job->kind != TRIB_DEVICE_SEE && job->bytes > 0) {
        code = cudaMemcpyAsync(job->target, job->source, job->bytes,
                               to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, device->streams[stream_id]);
    }
    if (enters) {
        cuda_comm_exit(device);
    }
    if (code != cudaSuccess) {
        cuda_slot_end(device, slot, TRIB_SYSTEM, cudaGetErrorString(code));
    } else {
        cuda_issued(device, slot, stream_id);
    }
    return true;
}

static void begin(trib_device *device, trib_device_job *job)
{
    job->slot = NULL;
    if (device->stopped && job->kind != TRIB_DEVICE_WAIT) {
        turn_away(device, job, TRIB_CLOSED, stopped_text);
        return;
    }
    cuda_slot *slot = NULL;
    switch (job->kind) {
    case TRIB_DEVICE_WAIT:
        cuda_mark_await(device, job);
        return;
    case TRIB_DEVICE_MAKE_ID:
        cuda_nccl_make_id(device, job);
        return;
    case TRIB_DEVICE_JOIN:
        cuda_nccl_join(device, job);
        return;
    default:
        slot = slot_take(device, job);
        if (slot == NULL) {
            return;
        }
    }
    const bool is_copy =
        job->kind == TRIB_DEVICE_TO_HOST || job->kind == TRIB_DEVICE_TO_DEVICE || job->kind == TRIB_DEVICE_SEE;
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

/* ---- Noticing ---- */

/* A caller that has launched a collective may be in calls to CUDA now, such as that which waits for its stream; questions
 * without a pause would hold those up. */
static bool leaves_room(trib_device *device, const cuda_slot *slot)
{
    const int64_t now_ns = slot->is_gates ? cuda_now_ns() : 0;
    if (slot->is_gates && now_ns - device->polled_ns < ASK_EVERY_NS) {
        return true;
    }
    device->polled_ns = now_ns;
    return false;
}

static cudaError_t ask(const trib_device *device, const cuda_slot *slot, cuda_stream_id stream_id)
{
    return (cudaError_t)(slot->is_unmarked ? device->driver.query_stream(device->streams[stream_id])
                                           : device->driver.query_event(slot->event));
}

static void poll_stream(trib_device *device, cuda_stream_id stream_id)
{
    const cuda_slot *first = device->issued[stream_id].head;
    if (stream_id == CUDA_COLLECTIVE && first != NULL && leaves_room(device, first)) {
        return;
    }
    for (;;) {
        cuda_slot *slot = device->issued[stream_id].head;
        cudaError_t code = slot == NULL ? cudaErrorNotReady : ask(device, slot, stream_id);
        if (code == cudaErrorNotReady) {
            return;
        }
        code = code == cudaSuccess ? slot->code : code;
        (void)cuda_queue_pop(&device->issued[stream_id]);
        if (stream_id == CUDA_COLLECTIVE) {
            atomic_fetch_sub(&device->collectives, 1);
        }
        /* Kernels that are aborted leave early, and CUDA sees no failure in that. Giving up was said before it was done, so
         * whatever ended in such a way is found here; and with it what was copied behind it. */
        const bool needs_comm = stream_id == CUDA_COLLECTIVE || slot->job->after != NULL;
        if (code == cudaSuccess && needs_comm && device->comm != NULL && atomic_load(&device->comm->given_up)) {
            end_given_up(device, slot);
        } else {
            cuda_slot_end(device, slot, code == cudaSuccess ? TRIB_OK : TRIB_SYSTEM,
                          code == cudaSuccess ? "" : cudaGetErrorString(code));
        }
    }
}

/* ---- Stopping ---- */

static void give_all(trib_device *device, cuda_queue *queue, trib_status status, const char *text)
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

/* What has ended by now is no reason to abort anything, and who leaves counts it. */
static void look_once_more(trib_device *device, cuda_queue launched)
{
    cuda_issue_notice(device, launched);
    device->polled_ns = 0;
    for (int stream_id = 0; stream_id < CUDA_STREAMS; stream_id++) {
        poll_stream(device, (cuda_stream_id)stream_id);
    }
}

/* Everything that has not begun comes back now, what has begun when it ends: collectives because they are aborted. */
static void notice_stop(trib_device *device, bool orderly)
{
    device->stopped = true;
    device->stop_deadline_ns = cuda_now_ns() + TRIB_CUDA_STOP_NS;
    /* In this order: who comes out of a launch has counted it. */
    const bool inside = device->comm != NULL && atomic_load(&device->comm->inside) > 0;
    const bool busy = inside || atomic_load(&device->collectives) > 0 || device->comm_state == CUDA_COMM_JOINING;
    give_all(device, &device->deferred, TRIB_CLOSED, stopped_text);
    give_all(device, &device->ready, TRIB_CLOSED, stopped_text);
    if (busy || !orderly) {
        cuda_comm_abort(device);
        device->comm_state = CUDA_COMM_FAILED;
    }
    if (device->join != NULL) {
        trib_device_job *job = device->join;
        device->join = NULL;
        cuda_give_back(device, job, TRIB_CLOSED, "%s", stopped_text);
    }
}

static void give_up_what_hangs(trib_device *device)
{
    if (device->stopped && has_issued(device) && cuda_now_ns() > device->stop_deadline_ns) {
        device->hung = true;
        for (int stream_id = 0; stream_id < CUDA_STREAMS; stream_id++) {
            give_all(device, &device->issued[stream_id], TRIB_SYSTEM, "the GPU did not end it in time");
        }
    }
}

/* ---- The loop ---- */

static void turn(trib_device *device, cuda_queue launched, trib_device_job *jobs)
{
    cuda_issue_notice(device, launched); /* before the new ones: they come behind */
    if (device->abort_due) {
        cuda_comm_abort(device);
    }
    while (jobs != NULL) {
        trib_device_job *next = jobs->next;
        begin(device, jobs);
        jobs = next;
    }
    cuda_mark_poll(device);
    for (int stream_id = 0; stream_id < CUDA_STREAMS; stream_id++) {
        poll_stream(device, (cuda_stream_id)stream_id);
    }
    if (!device->stopped) {
        cuda_nccl_progress(device);
        issue_deferred(device);
    }
    give_up_what_hangs(device);
}

static void sleep_a_little(trib_device *device, bool busy)
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
        /* What has taken long may be noticed a fiftieth of that later: a core is not kept busy by a long wait. */
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

bool cuda_wake(trib_device *device, uint32_t reactors, bool hurries)
{
    pthread_mutex_lock(&device->mutex);
    const bool takes = !device->calls && !device->stopping && (!hurries || device->to_wake != 0);
    if (takes) {
        device->to_wake |= reactors;
        cuda_signal_if_asleep(device);
    }
    pthread_mutex_unlock(&device->mutex);
    return takes;
}

/* What others have left for one turn. */
typedef struct cuda_taken {
    trib_device_job *jobs;
    cuda_queue launched;
    uint32_t to_wake;
    bool stops, orderly;
} cuda_taken;

/* With the mutex held. */
static cuda_taken take(trib_device *device)
{
    const cuda_taken taken = {.jobs = device->new_head,
                              .launched = device->launched,
                              .to_wake = device->to_wake,
                              .stops = device->stopping && !device->stopped,
                              .orderly = device->orderly};
    device->new_head = device->new_tail = NULL;
    device->launched = (cuda_queue){.head = NULL};
    device->to_wake = 0;
    device->calls = device->calls_come || taken.launched.head != NULL || taken.stops || device->abort_due ||
                    device->deferred.head != NULL || cuda_nccl_is_busy(device);
    device->calls_come = false;
    if (device->kicked || taken.jobs != NULL || taken.launched.head != NULL) {
        trib_poll_window_note_work(&device->poll_window, cuda_now_ns(), true);
    }
    device->kicked = false;
    return taken;
}

/* With the mutex held. */
static bool is_left_something(const trib_device *device)
{
    return device->new_head != NULL || device->launched.head != NULL || device->to_wake != 0 || device->quits ||
           (device->stopping && !device->stopped);
}

void *cuda_thread_main(void *argument)
{
    trib_device *device = argument;
    prctl(PR_SET_NAME, "trib-cuda");
    prctl(PR_SET_TIMERSLACK, POLL_SLACK_NS);
    if (device->params.thread_began != NULL) {
        device->params.thread_began(device->params.memory);
    }
    (void)cuda_thread_use(device->index); /* opening has tried it */
    pthread_mutex_lock(&device->mutex);
    while (!device->quits) {
        cuda_taken taken = take(device);
        pthread_mutex_unlock(&device->mutex);
        if (taken.to_wake != 0) {
            device->params.wake(device->params.engine, taken.to_wake);
        }
        if (taken.stops) {
            look_once_more(device, taken.launched);
            taken.launched = (cuda_queue){.head = NULL};
            notice_stop(device, taken.orderly);
        }
        turn(device, taken.launched, taken.jobs);
        const bool busy = has_issued(device) || device->waits != NULL || device->deferred.head != NULL ||
                          device->abort_due || (!device->stopped && cuda_nccl_is_busy(device));
        pthread_mutex_lock(&device->mutex);
        if (!is_left_something(device)) {
            device->calls = false;
            sleep_a_little(device, busy);
        }
    }
    pthread_mutex_unlock(&device->mutex);
    cuda_comm_end(device);
    return NULL;
}
