/*
 * fake_cuda.h - a fake of CUDA's runtime and driver, and of NCCL, under the real module: whole jobs run in one
 * process without a GPU.
 *
 * The fake models GPUs whose streams run in order, each on a thread of its own, but no faster than its hardware
 * queue allows. It models events, copies and fills; collectives that end when all members of the communicator have
 * come; and calls that wait until the whole GPU is idle, under the context's lock. Device memory is host memory.
 *
 * Only a GPU can show what the driver and NCCL do beyond that. The sharing of queues, and calls that wait for the whole
 * GPU, follow observation and documents (docs/decisions/0006-queues.md), not derivation. There are no default streams
 * and no GPUDirect, and copies from unregistered memory are like any other.
 */
#ifndef TRIB_TESTS_FAKE_CUDA_H
#define TRIB_TESTS_FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#define FAKE_GPUS 4
#define FAKE_TOUCHED_MAX ((size_t)1 << 20) /* larger blocks only serve to test a group, and are not touched */

/* ---- Functions for tests ---- */

/* Called before the first engine. Each GPU has `queues` queues (1 to 32). */
void fake_open(unsigned queues, unsigned seed);
/* Called after the last engine: waits until all streams have come to their end, and frees the fake's memory. Returns
 * false if one does not end. */
bool fake_close(void);

/* Calls of the module that may fail. */
typedef enum fake_call {
    FAKE_EVENT_MAKE,
    FAKE_EVENT_RECORD,
    FAKE_ORDER, /* a stream waits for an event */
    FAKE_COPY,
    FAKE_STREAM_MAKE,
    FAKE_COLLECTIVE, /* a collective of NCCL */
    FAKE_CALLS
} fake_call;
/* Makes the n-th such call from now on fail, counted from 1; 0: no call fails. */
void fake_fail(fake_call call, unsigned n);
bool fake_has_failed(void);

typedef struct fake_counts {
    unsigned events, streams, device_memory, pinned, communicators, contexts; /* that live */
    unsigned aborted;                                                         /* communicators */
    unsigned faults; /* forbidden calls; each has been printed */
} fake_counts;
fake_counts fake_count(void);
/* Prints the state of every stream, for a test that has stopped. */
void fake_show(void);

/* Keeps the next member of that rank that joins a communicator away until it is let in. */
void fake_nccl_keep_out(int rank);
void fake_nccl_let_in(void);

/* Calls of the program itself; they do not fail. */
cudaStream_t fake_stream_make(int gpu);
void fake_stream_drop(cudaStream_t where);
void fake_stream_copy(cudaStream_t stream, void *target, const void *source, size_t bytes);
void fake_stream_work(cudaStream_t stream, unsigned micros);    /* a kernel that takes that long */
void fake_stream_hold(cudaStream_t stream, const uint32_t *go); /* until *go is set, or a communicator is aborted */
bool fake_stream_is_idle(cudaStream_t where);
/* The calling thread has chosen that device, or none (below 0); any other choice is a fault. */
void fake_expect_chosen(int gpu);
/* The program uses a kernel for the first time, frees memory or the like: the call waits for all work of the GPU. */
void fake_wait_for_gpu(int gpu);

/* ---- Declarations that the fake's files share ---- */

typedef struct fake_stream fake_stream;
typedef struct fake_work fake_work;

typedef enum fake_moment {
    FAKE_LAUNCHED, /* on a stream */
    FAKE_FIRST     /* on its stream and queue; returns true if it is over */
} fake_moment;

/* Called with the mutex held. */
typedef bool (*fake_tell)(fake_work *work, fake_moment moment);

typedef enum fake_kind {
    FAKE_NOTHING, /* the work that an event marks */
    FAKE_WAIT_EVENT,
    FAKE_BYTES, /* a copy or a fill */
    FAKE_DELAY,
    FAKE_HOLD,
    FAKE_KERNEL /* defined in another file; it counts its calls */
} fake_kind;

typedef struct fake_kernel {
    int what;
    void *owner;
    const void *source;
    void *target;
    size_t count;
    int type, reduce, root;
    uint64_t number;
} fake_kernel;

struct fake_work {
    fake_kind kind;
    const fake_stream *before; /* WAIT_EVENT: until that many of this stream's works are over */
    uint64_t before_count;
    const uint32_t *go; /* HOLD */
    void *target;       /* BYTES; source NULL: zeros */
    const void *source;
    size_t bytes;
    unsigned micros;
    uint64_t *place; /* NOTHING: receives the number of works on the stream, this one included */
    fake_tell tell;
    fake_kernel kernel;
    fake_work *next, *next_in_queue;
};

extern pthread_mutex_t fake_mutex;
extern pthread_cond_t fake_moved;

/* Puts a copy of the work on the stream, after taking the context's lock. */
cudaError_t fake_launch(cudaStream_t where, const fake_work *work);
fake_stream *fake_stream_of(cudaStream_t stream); /* NULL: no stream; the fault has been reported */
/* Called with the mutex held. */
void fake_fault(const char *text);
fake_counts *fake_counted(void);
bool fake_fails(fake_call call); /* takes the mutex */

/* fake_cuda.c */
cudaError_t fake_event_record(cudaEvent_t event, cudaStream_t stream);
cudaError_t fake_event_query(cudaEvent_t event);
cudaError_t fake_event_wait(cudaStream_t stream, cudaEvent_t event);
void fake_memory_close(void); /* called when no stream is busy: frees memory that was not freed */
/* fake_driver.c */
int fake_gpu(void); /* the thread's present device */
void fake_choose(int gpu);
/* fake_nccl.c */
void *fake_nccl_symbol(const char *name);
bool fake_nccl_close(void); /* frees what lives no more */

struct fake_stream {
    int gpu;
    unsigned flags;
    unsigned long long id;
    unsigned seed;
    fake_work *head, *tail;
    uint64_t launched, ended;
    struct fake_queue *queue; /* NULL: idle */
    bool used, dropped, gone;
    pthread_cond_t came;
    fake_stream *next;
};

#endif
