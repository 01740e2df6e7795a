/*
 * cuda_internal.h - what the files of the CUDA module share. The module is the device interface (engine/device/device.h) on a GPU;
 * it is loaded at run time, and needs no symbol of the library.
 *
 * One thread for each device makes all calls that may take time: it issues jobs to three streams (to the host, to the
 * device, collectives) and asks their events whether they have ended. It looks all the time for a while after something has
 * moved, 20 to 200 us apart while something has been under way for longer, and sleeps without limit while nothing is.
 * So no reactor ever waits for the driver or for NCCL, and nothing in here but the queue of new jobs, the pool of marks and
 * the gates' words is seen by two threads.
 *
 * What is issued a caller's thread launches by itself (cuda_issue.c), if nothing that was issued before is left to be launched; else
 * the device's thread does. One thread at a time: it holds the claim.
 */
#ifndef TRIB_STAGES_CUDA_INTERNAL_H
#define TRIB_STAGES_CUDA_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "engine/device/device.h"
#include "engine/reactor/poll_window.h"
#include "engine/base/thread_signals.h"

#define TRIB_CUDA_STOP_NS (5 * INT64_C(1000000000))
#define CUDA_LAUNCHED_MAX 256u /* CUDA's queue takes 1024, and there is an event and a gate beside each */

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

/* cuda_keep.c */
#define CUDA_KEPT_ATTRIBUTES 4
struct cuda_kept;
typedef struct cuda_keep {
    cudaStream_t stream; /* that captures */
    CUresult (*get_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
    CUresult (*get_attribute)(CUgraphNode, CUkernelNodeAttrID, CUkernelNodeAttrValue *);
    CUresult (*get_pointer)(void *, CUpointer_attribute, CUdeviceptr);
    CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **); /* NULL: nothing is kept */
} cuda_keep;

typedef enum cuda_stream_id { CUDA_TO_HOST, CUDA_TO_DEVICE, CUDA_COLLECTIVE, CUDA_STREAMS } cuda_stream_id;

/* A job that the device has; job->slot points to it. */
typedef struct cuda_slot {
    trib_device_job *job;
    cudaEvent_t event; /* made once, used again */
    bool issued;       /* the event has been recorded, or could not be */
    bool is_unmarked;  /* it could not: the end is known when its stream has nothing to do */
    bool is_gates;     /* not from the pool: it is a gate's, for what callers' threads launch */
    /* How that went. */
    cudaError_t code;
    ncclResult_t result;
    struct cuda_slot *next;
} cuda_slot;

typedef struct cuda_queue {
    cuda_slot *head, *tail;
} cuda_queue;

static inline void cuda_queue_push(cuda_queue *queue, cuda_slot *slot)
{
    slot->next = NULL;
    *(queue->tail == NULL ? &queue->head : &queue->tail->next) = slot;
    queue->tail = slot;
}

/* NULL: it is empty. */
static inline cuda_slot *cuda_queue_pop(cuda_queue *queue)
{
    cuda_slot *slot = queue->head;
    if (slot != NULL) {
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
    CUDA_COMM_ABANDONED /* of phase: the device does not wait for the join any more */
} cuda_comm_state;

/* The communicator; see cuda_comm.c. */
typedef struct cuda_comm {
    cuda_nccl api;
    int index, rank, size;
    ncclUniqueId id;
    ncclComm_t nccl;     /* NULL: not made */
    ncclResult_t result; /* of joining; both are the device's when phase is READY */
    int64_t began_ns;    /* joining */
    atomic_int phase;    /* JOINING, then READY or ABANDONED */
    atomic_uint inside;  /* threads in a call: the device's, and a caller's that launches */
    atomic_bool shut;    /* it is about to be given up: nobody enters any more */
    sem_t stop;          /* what the rescuer waits for: stop has been asked for, or the device lets go */
    atomic_bool given_up;
    atomic_bool late; /* who takes leave has had its time */
    atomic_bool over; /* what ends it has returned, or could not begin */
    atomic_int holders;
    pthread_mutex_t kept_mutex; /* guards the list */
    struct cuda_kept *kept;     /* all there are: cuda_keep.c */
    struct cuda_comm *next;     /* cuda_exit.c's */
} cuda_comm;

typedef struct cuda_mark {
    cudaEvent_t event;
    cudaStream_t stream; /* of the caller's, where it was recorded last */
    /* Recordings that had begun before this one did, and when it was over: one that begins as number `ended` or later comes behind it,
     * if on the same stream. */
    uint64_t began, ended;
    struct cuda_mark *next;
} cuda_mark;

/* What a gate has for what is issued, and for who waits. */
typedef struct cuda_gate_end {
    cuda_slot slot;
    uint32_t launched; /* the value that is written by a stream, or was by the host; with the mutex held */
    bool is_held;      /* streams wait, and did before that; with the mutex held */
    struct cuda_gate_end *next;
} cuda_gate_end;

/* As many operations as there may be by default (ops_max): CUDA may wait for streams when it gives memory, also for those that wait. */
#define CUDA_GATES_A_PAGE (64u << 10)

typedef struct cuda_gate_page {
    struct cuda_gate_page *next;
    uint32_t *words; /* host memory that the device sees at the same address */
    uint32_t used;
} cuda_gate_page;

/* The driver's functions that every operation calls, cuda_driver.c; their errors have the numbers of the runtime's. */
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
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    CUresult (*get_id)(CUstream, unsigned long long *); /* of a stream; NULL: the driver knows none */
} cuda_driver;

struct trib_device {
    trib_device_params params;
    int index;
    cuda_driver driver;
    CUdevice ordinal;  /* the driver's name for it */
    CUcontext primary; /* the context that CUDA's runtime uses, and so do programs, mostly */
    /* GPUDirect; NULL: network devices cannot be told of its memory. */
    CUresult (*get_handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
    enum cudaFlushGPUDirectRDMAWritesScope seen_by; /* who must see what they write */
    bool flushes;                                   /* that takes a call */
    uint32_t queues, copy_queues;                   /* of CUDA's, for streams */
    bool loads_late;                                /* CUDA does, at their first use, kernels */
    uint32_t own_copies, own_all;                   /* its streams that copy, and in all; 0: they are not counted */
    pthread_t thread;

    pthread_mutex_t mutex; /* guards what follows, up to the next comment */
    pthread_cond_t changed;
    trib_device_job *new_head, *new_tail;
    bool stopping, orderly, quits;
    bool asleep, kicked; /* the thread waits for a signal; it is to look about for a while */
    uint32_t to_wake;    /* reactors, by the thread before it does anything else */
    bool calls_come;     /* among the new jobs are some that take calls which may last */
    bool calls;          /* the thread makes such calls in this turn */
    cuda_mark *marks;    /* free ones */
    cuda_gate_page *gates;
    cuda_comm *comm;     /* written with the mutex held, by the thread; NULL: none */
    cuda_queue launched; /* by callers' threads, oldest first, until the thread takes note of them */
    cuda_gate_end *ends; /* all there are */
    bool claimed;        /* a thread makes calls of NCCL's: no other may */
    bool can_launch;     /* the group has been joined, and nothing has failed */
    uint32_t places;     /* issued so far */
    uint32_t unlaunched; /* of those */
    bool refused;        /* a stream was, since something was launched */

    atomic_bool stop_asked;
    atomic_bool hung; /* something did not come back: what it may still use is not freed; written by the thread */
    atomic_uint collectives; /* launched, and not seen to have ended */
    _Atomic uint64_t marked; /* recordings of marks that have begun */

    /* the thread's own */
    cudaStream_t streams[CUDA_STREAMS];
    cuda_queue issued[CUDA_STREAMS];     /* oldest first: they end in this order */
    cuda_queue ready;                    /* collectives that have not been issued, oldest first */
    cuda_queue deferred;                 /* jobs whose `after` has not been issued */
    trib_device_job *waits, *waits_tail; /* for streams of callers, oldest first */
    cuda_slot *free_slots;
    bool stopped;   /* stopping has been noticed */
    bool abort_due; /* giving up the communicator waits for a caller's thread to come out of it */
    int64_t stop_deadline_ns;
    int64_t polled_ns;            /* when it was asked last whether a collective has ended */
    trib_poll_window poll_window; /* work is a job that came or ended */

    cuda_keep keep; /* whoever launches */

    /* cuda_nccl.c */
    cuda_nccl nccl;
    bool nccl_loaded;
    cuda_comm_state comm_state;
    char comm_text[TRIB_DEVICE_TEXT_SIZE]; /* why it failed */
    trib_device_job *join;                 /* while JOINING */
    int64_t checked_ns;                    /* when NCCL was asked for errors */
};

int64_t cuda_now_ns(void);
/* A function of the driver's, to `where`. */
cudaError_t cuda_find_driver(const char *name, void *where);
cudaError_t cuda_driver_open(cuda_driver *driver);
/* A thread of somebody else's makes calls for the device: its present device is given back. While any thread of the process
 * captures a stream, CUDA refuses to others what might be unsafe in a graph, asking an event or taking memory, and invalidates the
 * capture. None of our calls is part of a capture, so all of them are made in the mode in which none is refused. */
typedef struct cuda_visit {
    bool is_pushed;           /* the device's context, on the thread's */
    CUstreamCaptureMode mode; /* before */
} cuda_visit;

/* Before the first visit, and after the last. */
cudaError_t cuda_visit_open(trib_device *device);
void cuda_visit_close(trib_device *device);
cuda_visit cuda_visit_begin(const trib_device *device);
void cuda_visit_end(const trib_device *device, cuda_visit visit);
/* A thread of our own, for as long as it lives. False: the device cannot be used. */
bool cuda_thread_use(int index);
/* Caller's thread: TRIB_OK, unless the stream is being captured into a graph. */
trib_status cuda_check_capture(const trib_device *device, cudaStream_t stream, trib_error *error);
void cuda_set_error(trib_error *error, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Gives a job back. The text is cut to what fits. */
void cuda_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- cuda_thread.c ---- */
void *cuda_thread_main(void *argument); /* the device */
/* Caller's thread: trib_device_ops.wake. */
bool cuda_wake(trib_device *device, uint32_t reactors, bool hurries);
void cuda_slot_end(trib_device *device, cuda_slot *slot, trib_status status, const char *text);
/* Puts the caller's stream's work before what is put on that stream next, and lets the job's mark go. */
cudaError_t cuda_order_mark(trib_device *device, trib_device_job *job, cuda_stream_id stream_id);
/* The slot's work is on that stream: its end will be noticed, and its gate opens behind it. */
void cuda_issued(trib_device *device, cuda_slot *slot, cuda_stream_id stream_id);
/* Records its event behind what it has launched. It may use its memory until then: what failed is in slot->code, and told at its end. */
void cuda_mark_end(trib_device *device, cuda_slot *slot, cuda_stream_id stream_id);
/* Makes the stream wait for the job that this one names. TRIB_BUSY: that has not been issued itself. Else why this one must not begin: that
 * has failed, or it cannot be waited for. */
trib_status cuda_order_after(trib_device *device, const trib_device_job *job, cuda_stream_id stream_id,
                             const char **why_out);

/* ---- cuda_nccl.c ---- */
void cuda_nccl_make_id(trib_device *device, trib_device_job *job);
void cuda_nccl_join(trib_device *device, trib_device_job *job);
/* Looks how far joining has come, and gives NCCL what is ready. */
void cuda_nccl_progress(trib_device *device);
/* True if something there needs to be looked at again soon. */
bool cuda_nccl_is_busy(const trib_device *device);

/* Puts the slot's job on its stream, by whoever has entered and holds the claim. False: code and result say why not. */
bool cuda_nccl_launch(trib_device *device, cuda_slot *slot);
/* The thread: the job is not launched. If it is a collective the group ends: the others have launched theirs, or will, and the next one
 * here would meet that. */
void cuda_nccl_give_up(trib_device *device, const trib_device_job *job, const char *text);
/* The thread: ends such a one. */
void cuda_nccl_end_failed(trib_device *device, cuda_slot *slot);

ncclResult_t cuda_nccl_all_reduce(const trib_device *device, const trib_device_job *job, cudaStream_t stream);

/* ---- cuda_keep.c ---- */
cudaError_t cuda_keep_open(trib_device *device);
void cuda_keep_close(trib_device *device);
/* By whoever has entered and holds the claim: would that be launched without NCCL? */
bool cuda_keep_has(const trib_device *device, const trib_device_job *job);
/* As cuda_nccl_launch. False: it is not kept, NCCL is to launch it. */
bool cuda_keep_launch(trib_device *device, cuda_slot *slot);
/* Nobody is inside, and nobody will launch any more. */
void cuda_keep_drop_all(cuda_comm *comm);
/* Caller's thread: trib_device_ops.may_keep. */
bool cuda_keep_may(trib_device *device, const void *buffer);

/* ---- cuda_issue.c ---- */
void cuda_issue(trib_device *device, trib_device_job *job, bool here);
/* The thread: takes note of what callers' threads have launched, which it took from the device's list. */
void cuda_issue_notice(trib_device *device, cuda_queue launched);
/* True: until unclaimed no other thread makes calls of NCCL's that launch or ask. False: one does, or the process ends. Never
 * waits. */
bool cuda_claim(trib_device *device);
void cuda_unclaim(trib_device *device);
void cuda_unclaim_locked(trib_device *device); /* with the mutex held */
/* With the mutex held: the thread looks about. */
void cuda_signal_if_asleep(trib_device *device);

/* ---- cuda_mark.c: the thread, where nothing else is said ---- */
void cuda_mark_give(trib_device *device, cuda_mark *mark); /* any thread */
/* The job comes back when its mark has been reached, or the device is stopped. */
void cuda_mark_await(trib_device *device, trib_device_job *job);
void cuda_mark_poll(trib_device *device);

/* ---- cuda_gate.c: any thread; NULL, false: no memory ---- */
bool cuda_gates_open(trib_device *device);
uint32_t *cuda_gate_word(trib_device *device);
cuda_gate_end *cuda_gate_end_make(trib_device *device);
void cuda_gates_free(trib_device *device);

/* ---- cuda_wait.c ---- */
void cuda_wait_open(trib_device *device);
void cuda_wait_close(trib_device *device); /* also if it was not opened */
/* Caller's thread: the program works with that stream. */
void cuda_wait_note(trib_device *device, cudaStream_t stream);
/* Caller's thread: trib_device_ops.stream_wait. */
trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_gate *gate, trib_error *error);
/* The device's thread: what the gate opens behind has been put on the stream. */
CUresult cuda_wait_launched(trib_device *device, const trib_device_gate *gate, cudaStream_t stream);
/* Any thread: what opens the gate is on a stream, or the host has opened it. */
void cuda_wait_end(trib_device *device, const trib_device_gate *gate);

/* ---- cuda_comm.c ---- */
/* Begins to join the group of that name. False: no memory, or no threads. */
bool cuda_comm_join(trib_device *device, const void *id);
/* True when it is over, with its result. */
bool cuda_comm_joined(const trib_device *device, ncclResult_t *result);
/* Around calls of NCCL's on a communicator that is READY, and what may wait for its kernels. False: do not, it is being
 * given up. */
bool cuda_comm_enter(trib_device *device);
void cuda_comm_exit(trib_device *device);
/* Any thread, with the mutex held: stop has been asked for. If the thread is inside a call, and stays there, it is let
 * out. */
void cuda_comm_stop(trib_device *device);
/* Gives it up: its kernels end. Does not wait. */
void cuda_comm_abort(trib_device *device);
/* Frees it when nobody holds on to it any more. */
void cuda_comm_let_go(cuda_comm *comm);
/* The process ends: gives it up, whoever is inside. Does not wait. */
void cuda_comm_give_up(cuda_comm *comm);
/* Takes leave of the other ranks, or waits for the end of what abort began; before anything that NCCL may use is freed. What
 * has not come back 7 s later (5 s, and 2 s for who takes leave to give up instead) is hung. */
void cuda_comm_end(trib_device *device);

/* ---- cuda_exit.c: any thread ---- */
typedef enum cuda_exit_moment {
    CUDA_EXIT_LOADED,
    CUDA_EXIT_JOINING, /* for a while */
    CUDA_EXIT_JOINED,
    CUDA_EXIT_MOMENTS
} cuda_exit_moment;
/* From now on exit() waits for the threads that hold, before it takes down what has been set up by this moment. */
void cuda_exit_watch(cuda_exit_moment moment);
/* The thread, or one that it starts, goes into NCCL, and releases when that is out. False: it must not, the process ends. The
 * second: it goes there to end a communicator, for which there is time until the process has ended. */
bool cuda_exit_hold(void);
bool cuda_exit_hold_to_end(void);
void cuda_exit_release(void);
/* A communicator that is given up where a process ends with it. */
void cuda_exit_enlist(cuda_comm *comm);
void cuda_exit_delist(cuda_comm *comm);

#endif
