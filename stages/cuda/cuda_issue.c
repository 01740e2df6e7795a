/*
 * cuda_issue.c - collectives that are launched by the threads that hand them in: where all ranks do so in one order, or have agreed
 * on that one in their calls.
 *
 * A caller's thread launches its own if nobody else is launching and nothing that was issued before is left to be launched; so
 * the order of the calls is the order on the stream, and nobody waits for another thread. What it cannot launch goes the way of
 * all jobs, and the device's thread launches it in its turn. That thread also notices the ends, as of everything.
 *
 * A launch takes microseconds. Where another rank is gone it may last until stop; then the rescuer lets the caller out
 * (cuda_comm.c), and its job comes back as all others.
 */
#include "stages/cuda/cuda_internal.h"

/* With the mutex held. */
static bool claim_locked(trib_device *device)
{
    if (device->claimed || !cuda_exit_hold()) {
        return false;
    }
    device->claimed = true;
    return true;
}

void cuda_unclaim_locked(trib_device *device)
{
    device->claimed = false;
    cuda_exit_release();
}

bool cuda_claim(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    const bool claimed = claim_locked(device);
    pthread_mutex_unlock(&device->mutex);
    return claimed;
}

void cuda_unclaim(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    cuda_unclaim_locked(device);
    pthread_mutex_unlock(&device->mutex);
}

/* With the mutex held. */
static void leave_to_thread(trib_device *device, trib_device_job *job)
{
    job->gate->by_end = false; /* streams wait for what comes behind the launch */
    device->unlaunched++;
    device->calls_come = true;
    *(device->new_tail == NULL ? &device->new_head : &device->new_tail->next) = job;
    device->new_tail = job;
    cuda_signal_if_asleep(device);
}

/* With the claim. True: it has entered, where there is something to enter. Callers that have promised no order do not know that
 * NCCL may be called here, which would keep the launch until a group of their own ends: they launch what takes no NCCL. */
static bool enter_to_launch(trib_device *device, const trib_device_job *job)
{
    if (device->params.size == 1) {
        return true;
    }
    if (!cuda_comm_enter(device)) {
        return false;
    }
    const bool may = device->params.in_order || cuda_keep_has(device, job);
    if (!may) {
        cuda_comm_exit(device);
    }
    return may;
}

/* With the claim. */
static void launch_here(trib_device *device, trib_device_job *job)
{
    const bool enters = device->params.size > 1;
    if (!enter_to_launch(device, job)) {
        pthread_mutex_lock(&device->mutex);
        cuda_unclaim_locked(device);
        leave_to_thread(device, job); /* which launches it, or gives it back where all is being given up */
        pthread_mutex_unlock(&device->mutex);
        return;
    }
    const cuda_visit visit = cuda_visit_begin(device);
    cuda_slot *slot = &((cuda_gate_end *)job->gate->end)->slot;
    slot->job = job;
    slot->issued = true;
    job->slot = slot;
    slot->is_unmarked = false;
    const bool launched = cuda_nccl_launch(device, slot);
    if (launched) {
        cuda_mark_end(device, slot, CUDA_COLLECTIVE);
    } else {
        (void)cudaGetLastError(); /* it is told where the job comes back, and is not the caller's */
    }
    atomic_fetch_add(&device->collectives, 1);
    if (enters) {
        cuda_comm_exit(device);
    }
    cuda_visit_end(device, visit);
    pthread_mutex_lock(&device->mutex);
    device->can_launch =
        device->can_launch && (launched || !enters); /* what came next would meet the others' part of this */
    cuda_unclaim_locked(device);
    cuda_queue_push(&device->launched, slot);
    cuda_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
}

void cuda_issue(trib_device *device, trib_device_job *job, bool here)
{
    job->next = NULL;
    job->slot = NULL;
    pthread_mutex_lock(&device->mutex);
    job->is_issued = true;
    job->place = device->places++;
    const bool now = here && device->can_launch && device->unlaunched == 0 &&
                     atomic_load(&device->collectives) < CUDA_LAUNCHED_MAX && !atomic_load(&device->stop_asked) &&
                     claim_locked(device);
    if (now) {
        job->gate->by_end = true;
    } else {
        leave_to_thread(device, job);
    }
    pthread_mutex_unlock(&device->mutex);
    if (now) {
        launch_here(device, job);
    }
}

void cuda_issue_notice(trib_device *device, cuda_queue launched)
{
    for (cuda_slot *slot = cuda_queue_pop(&launched); slot != NULL; slot = cuda_queue_pop(&launched)) {
        if (slot->is_unmarked || (slot->result == ncclSuccess && slot->code == cudaSuccess)) {
            cuda_queue_push(&device->issued[CUDA_COLLECTIVE], slot);
            continue;
        }
        atomic_fetch_sub(&device->collectives, 1);
        cuda_nccl_end_failed(device, slot);
    }
}
