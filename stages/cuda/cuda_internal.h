/*
 * cuda_internal.h - declarations that the files of the CUDA module share. The module implements the device interface
 * (engine/device/device.h) on a GPU. It is loaded at run time and needs no symbol of the library.
 *
 * One thread per device (the device thread) makes all calls that may take long. It issues jobs to three streams
 * (copies to the host, copies to the device, collectives) and polls their events. It spins for a while after the last
 * progress, polls every 20 to 200 us while work is in flight for longer, and sleeps when there is none. So no reactor
 * ever waits for the driver or for NCCL. Threads share only the queue of new jobs, the pool of markers and the ends of
 * operations.
 */
#ifndef TRIB_STAGES_CUDA_INTERNAL_H
#define TRIB_STAGES_CUDA_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "engine/base/assert.h"
#include "engine/device/device.h"
#include "engine/reactor/poll_window.h"
#include "engine/base/thread_signals.h"

#define TRIB_CUDA_STOP_NS (5 * INT64_C(1000000000))
#define CUDA_LAUNCHED_MAX 256u /* CUDA queues 1024 works, and each collective may have two events beside it */

/* NCCL, found at run time. */
typedef struct cuda_nccl {
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*comm_init)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
    ncclResult_t (*comm_finalize)(ncclComm_t);
    ncclResult_t (*comm_destroy)(ncclComm_t);
    ncclResult_t (*comm_abort)(ncclComm_t);
    ncclResult_t (*comm_error)(ncclComm_t, ncclResult_t *);
    const char *(*error_text)(ncclResult_t);
    const char *(*last_error)(ncclComm_t);
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*broadcast)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*reduce_scatter)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*all_gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
} cuda_nccl;

typedef enum cuda_stream_id { CUDA_TO_HOST, CUDA_TO_DEVICE, CUDA_COLLECTIVE, CUDA_STREAM_COUNT } cuda_stream_id;

/* A job that the device has; job->slot points to it. */
typedef struct cuda_slot {
    trib_device_job *job;
    cudaEvent_t event; /* reused for later jobs */
    bool issued;       /* the work is on its stream */
    bool has_no_event; /* recording failed: the job has ended when its stream is idle */
    /* Results of issuing it. */
    cudaError_t code;
    ncclResult_t result;
    struct cuda_slot *next;
} cuda_slot;

typedef struct cuda_queue {
    cuda_slot *head, *tail;
} cuda_queue;

static inline void cuda_queue_push(cuda_queue *queue, cuda_slot *slot)
{
    trib_assert(slot->job != NULL);
    trib_assert((queue->head == NULL) == (queue->tail == NULL));
    slot->next = NULL;
    *(queue->tail == NULL ? &queue->head : &queue->tail->next) = slot;
    queue->tail = slot;
}

/* NULL: the queue is empty. */
static inline cuda_slot *cuda_queue_pop(cuda_queue *queue)
{
    cuda_slot *slot = queue->head;
    if (slot != NULL) {
        trib_assert(slot->job != NULL && (slot->next != NULL || queue->tail == slot));
        queue->head = slot->next;
        queue->tail = queue->head == NULL ? NULL : queue->tail;
    }
    return slot;
}

typedef enum cuda_comm_state {
    CUDA_COMM_NONE,
    CUDA_COMM_JOINING,
    CUDA_COMM_READY,
    CUDA_COMM_FAILED,
    CUDA_COMM_ABANDONED /* only in cuda_comm.phase: the device does not wait for the join any more */
} cuda_comm_state;

/* The communicator; see cuda_comm.c. */
typedef struct cuda_comm {
    cuda_nccl api;
    int index, rank, size;
    ncclUniqueId id;
    ncclComm_t nccl;     /* NULL: does not exist */
    ncclResult_t result; /* result of joining; this and nccl belong to the device thread once phase is READY */
    int64_t began_ns;    /* start of joining */
    atomic_int phase;    /* JOINING, then READY or ABANDONED */
    atomic_uint inside;  /* 1 while the device thread is in a call of NCCL's, else 0 */
    atomic_bool shut;    /* no call may start any more */
    sem_t stop;          /* wakes the rescue thread: after stop, or when the device thread is done with it */
    atomic_bool given_up;
    atomic_bool late;       /* an orderly end has run out of time */
    atomic_bool over;       /* the call that ends the communicator has returned, or could not be made */
    atomic_int holders;     /* references */
    struct cuda_comm *next; /* in the list of cuda_exit.c */
} cuda_comm;

/* A place on a caller's stream. */
typedef struct cuda_stream_marker {
    cudaEvent_t event;
    cudaStream_t stream; /* the caller's stream on which it was recorded last */
    /* The number of recordings that had begun when this one began, and when it was over. On the same stream a
     * recording with a `began` of this `ended` or more comes behind this one. */
    uint64_t began, ended;
    struct cuda_stream_marker *next;
} cuda_stream_marker;

/* A trib_device_end's event. */
typedef struct cuda_end_event {
    cudaEvent_t event;
    struct cuda_end_event *next;
} cuda_end_event;

/* Functions of the driver on the hot path (cuda_driver.c). Their error numbers are those of the runtime. */
typedef struct cuda_driver {
    CUresult (*get_device)(CUdevice *, int);
    CUresult (*retain_context)(CUcontext *, CUdevice);
    CUresult (*release_context)(CUdevice);
    CUresult (*get_context)(CUcontext *);
    CUresult (*push_context)(CUcontext);
    CUresult (*pop_context)(CUcontext *);
    CUresult (*exchange_mode)(CUstreamCaptureMode *);
    CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*get_flags)(CUstream, unsigned *);
    CUresult (*query_stream)(CUstream);
    CUresult (*record_event)(CUevent, CUstream);
    CUresult (*query_event)(CUevent);
    CUresult (*wait_event)(CUstream, CUevent, unsigned);
} cuda_driver;

/* Device memory for a stream's encoded bytes: its jobs follow each other, so they share it. NULL: none yet. */
typedef struct cuda_encoded {
    void *memory;
    size_t bytes;
} cuda_encoded;

/* Device memory of a partition whose codec has feedback or momentum. */
typedef struct cuda_kept {
    struct cuda_kept *next;
    float *memory; /* the result, which with feedback is the residual; the momentum; encoded bytes. NULL: closed */
    float *momentum;
    unsigned char *encoded;
    atomic_bool is_dropped;
} cuda_kept;

struct trib_device {
    trib_device_params params;
    int index;
    cuda_driver driver;
    CUdevice ordinal;  /* the device's handle in the driver */
    CUcontext primary; /* the context of CUDA's runtime */
    /* GPUDirect; NULL: network devices cannot use the device's memory. */
    CUresult (*get_handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
    enum cudaFlushGPUDirectRDMAWritesScope seen_by; /* the devices that must see what network devices write */
    bool flushes;                                   /* a call is needed to make the writes visible */
    pthread_t thread;

    pthread_mutex_t mutex; /* guards what follows, up to the next comment */
    pthread_cond_t changed;
    trib_device_job *new_head, *new_tail;
    bool stopping, orderly, quits;
    bool asleep;      /* the device thread waits for a signal */
    bool kicked;      /* the device thread is to spin for a while, because jobs will come */
    uint32_t to_wake; /* reactors that the device thread is to wake first */
    bool calls_come;  /* a new job needs calls that may take long */
    bool calls;       /* the device thread makes such calls in this turn */
    cuda_stream_marker *free_markers;
    cuda_comm *comm; /* written by the device thread with the mutex held; NULL: none */
    bool rejected;   /* a stream's wait was rejected since an operation's end was launched last */

    atomic_bool stop_asked;
    atomic_bool hung; /* some work never ended: memory that it may use is not freed. Written by the device thread */
    atomic_bool has_dropped;           /* some of `kept` */
    _Atomic uint64_t markers_recorded; /* recordings of markers that have begun */

    /* The device thread's own. */
    cudaStream_t streams[CUDA_STREAM_COUNT];
    cuda_queue issued[CUDA_STREAM_COUNT];    /* oldest first: jobs of a stream end in this order */
    uint32_t collectives;                    /* in issued[CUDA_COLLECTIVE] */
    cuda_queue ready;                        /* collectives that have not been issued, oldest first */
    cuda_queue deferred;                     /* copies whose `after` has not been issued */
    trib_device_job *waits, *waits_tail;     /* jobs that wait for callers' streams, oldest first */
    cuda_end_event *end_events;              /* events of all operations */
    cuda_encoded encoded[CUDA_STREAM_COUNT]; /* for the two streams of copies */
    cuda_kept *kept;                         /* of partitions whose codec has feedback or momentum */
    cuda_slot *free_slots;
    bool stopped; /* the stop has been handled */
    int64_t stop_deadline_ns;
    trib_poll_window poll_window; /* fed by jobs that come or end */

    /* cuda_nccl.c */
    cuda_nccl nccl;
    bool nccl_loaded;
    cuda_comm_state comm_state;
    char comm_text[TRIB_DEVICE_TEXT_SIZE]; /* why the communicator failed */
    trib_device_job *join;                 /* the JOIN job while the phase is JOINING */
    int64_t checked_ns;                    /* the last query of asynchronous errors */
};

int64_t cuda_now_ns(void);
/* Stores the driver's function of that name in *where. */
cudaError_t cuda_find_driver(const char *name, void *where);
cudaError_t cuda_driver_open(cuda_driver *driver);
/* Around calls to CUDA by a foreign thread: its current context and capture mode are restored. While a thread of the
 * process captures a stream in the default mode, CUDA refuses calls such as a query of an event to all threads, and
 * spoils the capture. The engine's calls are never part of a capture, so they are made in the relaxed mode, in which
 * none is refused. */
typedef struct cuda_context_guard {
    bool is_pushed;           /* the device's context was pushed */
    CUstreamCaptureMode mode; /* capture mode of the foreign thread */
} cuda_context_guard;

/* Before the first guard is entered, and after the last was left. */
cudaError_t cuda_context_open(trib_device *device);
void cuda_context_close(trib_device *device);
cuda_context_guard cuda_context_enter(const trib_device *device);
void cuda_context_leave(const trib_device *device, cuda_context_guard guard);
/* Binds a thread of the module's to the device, for its whole life. False: the device cannot be used. */
bool cuda_thread_use(int index);
/* Caller's thread. TRIB_UNSUPPORTED: the stream is being captured into a graph. */
trib_status cuda_check_capture(const trib_device *device, cudaStream_t stream, trib_error *error);
void cuda_set_error(trib_error *error, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Gives a job back. The text is cut to what fits. */
void cuda_job_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- cuda_thread.c ---- */
void *cuda_thread_main(void *argument); /* a trib_device */
/* Caller's thread: trib_device_ops.wake. */
bool cuda_thread_wake(trib_device *device, uint32_t reactors, bool hurries);
void cuda_slot_end(trib_device *device, cuda_slot *slot, trib_status status, const char *text);
/* The slot's work is on that stream: records its event behind it, and counts it for the end of its operation. */
void cuda_slot_issued(trib_device *device, cuda_slot *slot, cuda_stream_id which);
/* Makes the stream wait for job->after. TRIB_BUSY: that job has not been issued yet. Another error: this job must fail,
 * because that one has failed or cannot be waited for; *why_out says why. */
trib_status cuda_stream_order_after(trib_device *device, const trib_device_job *job, cuda_stream_id which,
                                    const char **why_out);

/* ---- cuda_nccl.c ---- */
/* trib_device_ops.reduces */
bool cuda_nccl_reduces(trib_dtype dtype, trib_reduce reduce);
void cuda_nccl_make_id(trib_device *device, trib_device_job *job);
void cuda_nccl_join(trib_device *device, trib_device_job *job);
/* Checks whether joining is over, launches ready collectives, and checks for NCCL's errors. */
void cuda_nccl_progress(trib_device *device);
/* True: cuda_nccl_progress must be called again soon. */
bool cuda_nccl_is_busy(const trib_device *device);

/* The job will not be launched. If it is a collective the communicator is given up, because the other ranks launch
 * theirs, and the next collective here would be matched with it. */
void cuda_nccl_give_up(trib_device *device, const trib_device_job *job, const char *text);

/* ---- cuda_device.c ---- */
/* With the mutex held: wakes the device thread. */
void cuda_thread_signal_if_asleep(trib_device *device);

/* ---- cuda_mark.c: the device thread, unless noted ---- */
void cuda_marker_release(trib_device *device, cuda_stream_marker *marker); /* any thread */
/* The job is given back when its stream has reached the marker, or at stop. */
void cuda_marker_await(trib_device *device, trib_device_job *job);
void cuda_marker_poll(trib_device *device);

/* ---- cuda_wait.c ---- */
/* Caller's thread: trib_device_ops.stream_wait. */
trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_end *end, trib_error *error);
/* The device thread: the operation's last job has been put on the stream. Records the event behind it, from which on
 * streams may wait for it. */
CUresult cuda_end_launched(trib_device *device, trib_device_end *end, cudaStream_t stream);
void cuda_ends_free(trib_device *device);

/* ---- cuda_codec.c ---- */
/* trib_device_ops.encodes, .decodes */
bool cuda_encodes(const trib_codec_config *config, trib_dtype dtype);
bool cuda_decodes(const trib_codec_config *config, trib_dtype dtype);
/* trib_device_ops.forget */
void cuda_codec_forget(trib_device *device, void *kept);
/* Loads the kernels, so that no launch has to load them while NCCL's kernels run. */
cudaError_t cuda_codec_load(void);
/* The device thread: frees what was forgotten, in the order of the stream. */
void cuda_codec_sweep(trib_device *device);
/* The device thread: put the job's kernel and its copy on that stream. If no device memory is left for the encoded
 * bytes they set job->was_full, and act as the comment on was_full says. */
cudaError_t cuda_encode(trib_device *device, trib_device_job *job, cudaStream_t stream);
cudaError_t cuda_decode(trib_device *device, trib_device_job *job, cudaStream_t stream);
/* Call this after the last work of the streams. */
void cuda_codec_free(trib_device *device);

/* ---- cuda_comm.c ---- */
/* Starts to join the group of that name. False: out of memory or threads. */
bool cuda_comm_join(trib_device *device, const void *id);
/* Returns true when joining is over; *result is NCCL's answer. */
bool cuda_comm_joined(const trib_device *device, ncclResult_t *result);
/* The device thread: enclose calls of NCCL on a READY communicator, and calls that may wait for its kernels. False: the
 * call must not be made, because the communicator is given up. */
bool cuda_comm_enter(trib_device *device);
void cuda_comm_exit(trib_device *device);
/* Any thread, with the mutex held, after stop: if the device thread stays in a call, the rescue thread aborts the
 * communicator. */
void cuda_comm_stop(trib_device *device);
/* The device thread, outside of calls: gives the communicator up, so that its kernels end. Does not wait. */
void cuda_comm_abort(trib_device *device);
/* Drops a reference; the last one frees it. */
void cuda_comm_let_go(cuda_comm *comm);
/* At the process's end: gives the communicator up, also during a call. Does not wait. */
void cuda_comm_give_up(cuda_comm *comm);
/* Ends the communicator in good order, or waits for the end of an abort, before memory that NCCL may use is freed.
 * After 7 s (5 s, and 2 s more for an orderly end to turn into an abort) the device counts as hung. */
void cuda_comm_end(trib_device *device);

/* ---- cuda_exit.c: any thread ---- */
typedef enum cuda_exit_moment {
    CUDA_EXIT_LOADED,
    CUDA_EXIT_JOINING, /* a join has taken long */
    CUDA_EXIT_JOINED,
    CUDA_EXIT_MOMENTS
} cuda_exit_moment;
/* Registers a handler: from now on exit() waits for the holding threads before it runs the handlers that were
 * registered until this moment. */
void cuda_exit_watch(cuda_exit_moment moment);
/* Enclose calls of NCCL by the device thread, and by threads that it starts. False: the process ends, and the call must
 * not be made. The second function is for ending a communicator, which may take longer. */
bool cuda_exit_hold(void);
bool cuda_exit_hold_to_end(void);
void cuda_exit_release(void);
/* Communicators that are given up if the process ends before them. */
void cuda_exit_enlist(cuda_comm *comm);
void cuda_exit_delist(cuda_comm *comm);

#endif
