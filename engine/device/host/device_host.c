/*
 * device_host.c - the device interface in plain memory, for machines without a GPU and for virtual time. The
 * submitting thread copies at once; a collective is carried out by the thread that brings the last member's job.
 *
 * Members of a group meet in a trib_host_world, in the order of their jobs, as in NCCL. Where two members' jobs
 * differ NCCL would hang; this device fails them and counts a disorder. In virtual time jobs may take time
 * (device_host_pace.c).
 *
 * A job's slot points to its device as long as the device has the job. Jobs are given back without a lock held,
 * because other jobs may wait for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "engine/base/assert.h"
#include "engine/device/host/device_host.h"

static const char stopped_text[] = "the device was stopped";

static void run_job(trib_device *device, trib_device_job *job);

/* Takes the jobs that wait for that job; NULL: all waiting jobs. */
static trib_device_job *take_waiting_jobs(trib_device *device, trib_device_job *after)
{
    trib_device_job *taken = NULL;
    for (trib_device_job **at = &device->waiting; *at != NULL;) {
        trib_device_job *job = *at;
        if (after == NULL || job->after == after) {
            *at = job->next;
            job->next = taken;
            taken = job;
        } else {
            at = &job->next;
        }
    }
    return taken;
}

/* NOLINTNEXTLINE(misc-no-recursion): jobs that wait for a job run when it ends; a chain is three jobs long at most */
void trib_host_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *text)
{
    trib_assert(job->slot == device); /* a job comes back once */
    job->status = status;
    snprintf(job->text, sizeof job->text, "%s", text);
    pthread_mutex_lock(&device->mutex);
    job->slot = NULL;
    trib_device_job *freed = take_waiting_jobs(device, job);
    pthread_mutex_unlock(&device->mutex);
    device->params.complete(job);
    while (freed != NULL) {
        trib_device_job *next = freed->next;
        run_job(device, freed);
        freed = next;
    }
}

/* ---- Collectives ---- */

static bool is_same_collective(const trib_device_job *a, const trib_device_job *b)
{
    return a->kind == b->kind && a->label == b->label && a->bytes == b->bytes && a->shard == b->shard &&
           a->dtype == b->dtype && a->reduce == b->reduce && a->root == b->root;
}

/* Carries out the collectives to which all members of the machine have come, and returns their jobs. The caller
 * holds the world's mutex. */
static trib_device_job *take_met_collectives(trib_host_world *world, int32_t machine, int32_t size)
{
    trib_host_queue *queues = world->members[machine];
    trib_device_job *met = NULL;
    for (;;) {
        trib_device_job *jobs[TRIB_LOCAL_SIZE_MAX] = {NULL};
        bool agree = true;
        trib_assert(size > 0);
        for (int32_t i = 0; i < size; i++) {
            jobs[i] = queues[i].head;
            if (jobs[i] == NULL || trib_host_is_busy(world, &queues[i])) {
                return met;
            }
            agree = agree && is_same_collective(jobs[0], jobs[i]);
        }
        for (int32_t i = 0; i < size; i++) {
            queues[i].head = jobs[i]->next;
            queues[i].tail = queues[i].head == NULL ? NULL : queues[i].tail;
        }
        world->disorders += !agree;
        const bool done = agree && trib_host_carry_out(world, jobs, (size_t)size);
        for (int32_t i = 0; i < size; i++) {
            if (queues[i].late != NULL) {
                continue;
            }
            jobs[i]->status = done ? TRIB_OK : agree ? TRIB_NO_MEMORY : TRIB_PROTOCOL;
            jobs[i]->next = met;
            met = jobs[i];
        }
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
void trib_host_run_ready_collectives(const trib_device *device)
{
    trib_host_world *world = device->params.world;
    pthread_mutex_lock(&world->mutex);
    trib_device_job *met = take_met_collectives(world, device->params.machine, device->params.size);
    pthread_mutex_unlock(&world->mutex);
    while (met != NULL) {
        trib_device_job *next = met->next;
        trib_host_give_back(met->slot, met, met->status,
                            met->status == TRIB_PROTOCOL ? "the local ranks came to a collective in different orders"
                                                         : trib_status_text(met->status));
        met = next;
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
static void submit_collective(trib_device *device, trib_device_job *job)
{
    const trib_device_params *params = &device->params;
    trib_host_world *world = params->world;
    if (params->size == 1) {
        trib_host_end(device, job);
        return;
    }
    pthread_mutex_lock(&world->mutex);
    if (atomic_load(&device->stopped)) { /* a stopped device's queue will not be emptied again */
        pthread_mutex_unlock(&world->mutex);
        trib_host_give_back(device, job, TRIB_CLOSED, stopped_text);
        return;
    }
    trib_host_queue *mine = &world->members[params->machine][params->rank];
    job->next = NULL;
    if (mine->tail != NULL) {
        mine->tail->next = job;
    } else {
        mine->head = job;
    }
    mine->tail = job;
    pthread_mutex_unlock(&world->mutex);
    trib_host_run_ready_collectives(device);
}

/* ---- Jobs ---- */

/* Keeps a job that is early, until its time or until the device stops. Returns false if the job is due, or the
 * device was stopped. */
static bool keep_until_due(trib_device *device, trib_device_job *job, bool (*is_early)(const trib_device_job *job))
{
    pthread_mutex_lock(&device->mutex);
    const bool kept = !atomic_load(&device->stopped) && is_early(job);
    if (kept) {
        job->next = device->waiting;
        device->waiting = job;
    }
    pthread_mutex_unlock(&device->mutex);
    return kept;
}

static bool is_closed(const trib_device_job *job)
{
    const trib_host_stream *stream = job->marker;
    return !atomic_load(&stream->open);
}

static bool waits_for_another(const trib_device_job *job)
{
    return job->after != NULL && job->after->slot != NULL;
}

static bool is_never_due(const trib_device_job *job)
{
    (void)job;
    return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
static void submit_wait(trib_device *device, trib_device_job *job)
{
    trib_host_stream *stream = job->marker;
    atomic_store(&stream->device, device);
    if (!keep_until_due(device, job, is_closed)) {
        trib_host_end(device, job);
    }
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
static void run_job(trib_device *device, trib_device_job *job)
{
    const trib_host_fault fault = job->kind == TRIB_DEVICE_JOIN || job->kind == TRIB_DEVICE_MAKE_ID
                                      ? TRIB_HOST_FAULT_NONE
                                      : trib_host_fault_of(device);
    if (atomic_load(&device->stopped)) {
        trib_host_give_back(device, job, TRIB_CLOSED, stopped_text);
    } else if (job->after != NULL && job->after->status != TRIB_OK) {
        trib_host_give_back(device, job, job->after->status, job->after->text);
    } else if (fault == TRIB_HOST_FAULT_FAIL) {
        trib_host_give_back(device, job, TRIB_SYSTEM, "the device failed, as it was told to");
    } else if (fault == TRIB_HOST_FAULT_HANG) {
        if (!keep_until_due(device, job, is_never_due)) {
            trib_host_give_back(device, job, TRIB_CLOSED, stopped_text);
        }
    } else if (job->kind == TRIB_DEVICE_WAIT) {
        submit_wait(device, job);
    } else if (job->kind == TRIB_DEVICE_REDUCE_SCATTER || job->kind == TRIB_DEVICE_ALL_GATHER ||
               job->kind == TRIB_DEVICE_ALL_REDUCE || job->kind == TRIB_DEVICE_BROADCAST) {
        submit_collective(device, job);
    } else {
        if (job->kind == TRIB_DEVICE_MAKE_ID) {
            memset(job->target, 0, TRIB_DEVICE_ID_SIZE);
        }
        const bool has_memory = job->encoding != NULL && job->encoding->kept != NULL && *job->encoding->kept != NULL;
        job->was_full = fault == TRIB_HOST_FAULT_FULL && !has_memory &&
                        (job->kind == TRIB_DEVICE_ENCODE || job->kind == TRIB_DEVICE_DECODE);
        trib_host_end(device, job);
    }
}

static void host_submit(trib_device *device, trib_device_job *job)
{
    job->slot = device;
    if (trib_host_has_ordered_collective(device, job) || !keep_until_due(device, job, waits_for_another)) {
        run_job(device, job);
    }
}

static void give_back_all(trib_device *device, trib_device_job *job)
{
    while (job != NULL) {
        trib_device_job *next = job->next;
        trib_host_give_back(device, job, TRIB_CLOSED, stopped_text);
        job = next;
    }
}

static void host_stop(trib_device *device, bool orderly)
{
    (void)orderly;
    pthread_mutex_lock(&device->mutex);
    device->stopped = true;
    trib_device_job *job = take_waiting_jobs(device, NULL);
    pthread_mutex_unlock(&device->mutex);
    trib_host_world *world = device->params.world;
    trib_device_job *met = NULL;
    if (world != NULL) {
        pthread_mutex_lock(&world->mutex);
        trib_host_queue *mine = &world->members[device->params.machine][device->params.rank];
        met = mine->head;
        mine->head = mine->tail = NULL;
        pthread_mutex_unlock(&world->mutex);
    }
    give_back_all(device, trib_host_take_delayed(device));
    give_back_all(device, job);
    give_back_all(device, met);
}

/* ---- Streams ---- */

void trib_host_stream_open(trib_host_stream *stream)
{
    atomic_store(&stream->open, true);
    trib_device *device = atomic_load(&stream->device);
    if (device == NULL) {
        return;
    }
    trib_device_job *reached = NULL;
    pthread_mutex_lock(&device->mutex);
    for (trib_device_job **at = &device->waiting; *at != NULL;) {
        trib_device_job *job = *at;
        if (job->kind == TRIB_DEVICE_WAIT && job->marker == stream) {
            *at = job->next;
            job->next = reached;
            reached = job;
        } else {
            at = &job->next;
        }
    }
    pthread_mutex_unlock(&device->mutex);
    while (reached != NULL) {
        trib_device_job *next = reached->next;
        trib_host_end(device, reached);
        reached = next;
    }
}

/* ---- Life ---- */

/* It stands in for a device that has all codecs of the library's but those with a state. */
static bool host_encodes(const trib_codec_config *config, trib_dtype dtype)
{
    (void)dtype;
    return config->codec->state_bytes == 0 && config->codec->id != TRIB_CODEC_BROUGHT;
}

static bool host_decodes(const trib_codec_config *config, trib_dtype dtype)
{
    (void)dtype;
    return config->codec->inspect != NULL;
}

static void host_forget(trib_device *device, void *kept)
{
    (void)device;
    free(kept);
}

static trib_status host_open(const trib_device_params *params, trib_device **out, trib_error *error)
{
    if (params->size > 1 && params->world == NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "device \"host\" has no collectives between processes: local_size must be 1");
    }
    if (params->machine >= TRIB_HOST_MACHINES_MAX || params->size > TRIB_LOCAL_SIZE_MAX) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "device \"host\": at most %d machines of %d",
                              TRIB_HOST_MACHINES_MAX, TRIB_LOCAL_SIZE_MAX);
    }
    trib_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    device->params = *params;
    pthread_mutex_init(&device->mutex, NULL);
    *out = device;
    return TRIB_OK;
}

static void host_close(trib_device *device)
{
    trib_assert(device->late == NULL && device->waiting == NULL);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

static trib_status host_marker_record(trib_device *device, void *stream, void **marker_out, trib_error *error)
{
    (void)device;
    (void)error;
    *marker_out = stream;
    return TRIB_OK;
}

/* Returns false, because this device has no thread that could wake reactors. */
static bool host_wake(trib_device *device, uint32_t reactors, bool hurries)
{
    if (!hurries) {
        device->params.wake(device->params.engine, reactors);
    }
    return !hurries;
}

static void host_marker_drop(trib_device *device, void *marker)
{
    (void)device;
    (void)marker;
}

static trib_status host_stream_wait(trib_device *device, void *stream, const trib_device_end *end, trib_error *error)
{
    (void)device;
    (void)stream;
    (void)end;
    return trib_error_set(error, TRIB_UNSUPPORTED, "device \"host\" has no streams that could wait");
}

/* Plain memory needs no registration. */
static trib_status host_pin(trib_device *device, void *base, size_t size)
{
    (void)device;
    (void)base;
    (void)size;
    return TRIB_OK;
}

static void host_unpin(trib_device *device, void *base, size_t size)
{
    (void)host_pin(device, base, size);
}

/* All memory of this device is host memory. */
static trib_status host_expose(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                               trib_error *error)
{
    (void)device;
    (void)base;
    (void)size;
    (void)error;
    *memory_out = (trib_device_memory){.fd = -1};
    return TRIB_OK;
}

/* The kernels have every pair that there is. */
static bool host_reduces(trib_dtype dtype, trib_reduce reduce)
{
    return trib_reduce_suits(dtype, reduce);
}

const trib_device_ops trib_device_host_ops = {
    .abi = TRIB_DEVICE_ABI,
    .name = "host memory",
    .reduces = host_reduces,
    .encodes = host_encodes,
    .decodes = host_decodes,
    .forget = host_forget,
    .open = host_open,
    .submit = host_submit,
    .marker_record = host_marker_record,
    .wake = host_wake,
    .marker_drop = host_marker_drop,
    .stream_wait = host_stream_wait,
    .pin = host_pin,
    .unpin = host_unpin,
    .expose = host_expose,
    .stop = host_stop,
    .close = host_close,
};
