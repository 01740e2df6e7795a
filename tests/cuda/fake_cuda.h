/*
 * fake_cuda.h - a fake of CUDA's runtime and driver, and of NCCL, under the real module: whole jobs in one process
 * without a GPU.
 *
 * What it models: GPUs whose streams go on in order, each on a thread of its own, but no faster than the hardware
 * queue that it has been given; events; copies, fills; waits for words in host memory, and writing them; collectives
 * that end when all members of the communicator have come to them; kernels that are loaded late, under the context's
 * lock and when the GPU is idle. Device memory is host memory.
 *
 * What only a GPU can show: what the driver and NCCL do beyond what is written here. That queues are shared in the
 * way modelled, and that a kernel's loading waits, are what was seen and what documents say
 * (docs/decisions/0006-queues.md), not what was derived. There are no default streams, no MPS, no GPUDirect, and
 * copies from memory that is not registered are as any other.
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
#define FAKE_TOUCHED_MAX ((size_t)1 << 20) /* what is larger is what a group is tried with: nobody looks at it */

/* ---- What a test asks for ---- */

/* Before the first engine: `queues` on each GPU (1 to 32), which the module is told of as a program would; kernels
 * loaded late or not. */
void fake_open(unsigned queues, bool loads_late, unsigned seed);
/* After the last: waits until all streams have come to their end, and frees what is the fake's. False: one does not. */
bool fake_close(void);

/* Calls of the module's that may fail. */
typedef enum fake_call {
    FAKE_EVENT_MAKE,
    FAKE_EVENT_RECORD,
    FAKE_ORDER, /* a stream waits for an event */
    FAKE_COPY,
    FAKE_HOST_MEMORY,
    FAKE_STREAM_MAKE,
    FAKE_WRITE_WORD,
    FAKE_COLLECTIVE, /* NCCL's */
    FAKE_CALLS
} fake_call;
/* The n-th such call from now on fails, n from 1; 0: none does. */
void fake_fail(fake_call call, unsigned n);
bool fake_has_failed(void);

typedef struct fake_counts {
    unsigned events, streams, host_memory, device_memory, pinned, communicators, contexts; /* that live */
    unsigned waits_ahead; /* streams were made to wait for a word whose writing was not launched yet */
    unsigned aborted;     /* communicators */
    unsigned faults;      /* what must not be: it has been told */
} fake_counts;
fake_counts fake_count(void);
/* What every stream is at, for who finds that nothing goes on. */
void fake_show(void);

/* The next member of that rank to join a communicator stays away until it is let in. */
void fake_nccl_keep_out(int rank);
void fake_nccl_let_in(void);

/* The program's own calls: they do not fail. */
cudaStream_t fake_stream_make(int gpu);
void fake_stream_drop(cudaStream_t where);
void fake_stream_copy(cudaStream_t stream, void *target, const void *source, size_t bytes);
void fake_stream_work(cudaStream_t stream, unsigned micros);    /* a kernel that takes so long */
void fake_stream_hold(cudaStream_t stream, const uint32_t *go); /* until *go, or a communicator is given up */
bool fake_stream_is_idle(cudaStream_t where);
/* The calling thread has chosen that device and no other, or none (below 0); anything else is a fault. */
void fake_expect_chosen(int gpu);
/* The program uses a kernel for the first time. */
void fake_load_kernel(int gpu);

/* ---- Among the fake's files ---- */

typedef struct fake_stream fake_stream;
typedef struct fake_work fake_work;

typedef enum fake_moment {
    FAKE_LAUNCHED, /* on a stream */
    FAKE_FIRST     /* on its stream and queue: true if it is over */
} fake_moment;

/* With the mutex held. */
typedef bool (*fake_tell)(fake_work *work, fake_moment moment);

typedef enum fake_kind {
    FAKE_NOTHING, /* what an event records */
    FAKE_WAIT_EVENT,
    FAKE_WAIT_WORD,
    FAKE_WRITE,
    FAKE_BYTES, /* a copy or a fill */
    FAKE_DELAY,
    FAKE_HOLD,
    FAKE_KERNEL /* somebody else's: tell */
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
    const fake_stream *before; /* WAIT_EVENT: until so many of its works are over */
    uint64_t before_count;
    uint32_t *word; /* WAIT_WORD, WRITE, HOLD */
    uint32_t value;
    void *target; /* BYTES; source NULL: zeros */
    const void *source;
    size_t bytes;
    unsigned micros;
    uint64_t *place; /* NOTHING: becomes how many are on the stream with it */
    fake_tell tell;
    fake_kernel kernel;
    fake_work *next, *next_in_queue;
};

extern pthread_mutex_t fake_mutex;
extern pthread_cond_t fake_moved;

/* Puts a copy of the work on the stream, behind the context's lock. */
cudaError_t fake_launch(cudaStream_t where, const fake_work *work);
fake_stream *fake_stream_of(cudaStream_t stream); /* NULL: it is none; the fault has been told */
/* With the mutex held. */
void fake_fault(const char *text);
fake_counts *fake_counted(void);
bool fake_is_written(const fake_work *wait); /* the word that it waits for, or that has been launched */
bool fake_fails(fake_call call);             /* takes the mutex */

/* fake_cuda.c */
cudaError_t fake_event_record(cudaEvent_t event, cudaStream_t stream);
cudaError_t fake_event_query(cudaEvent_t event);
cudaError_t fake_event_wait(cudaStream_t stream, cudaEvent_t event);
void fake_memory_close(void); /* no stream is busy: frees what nobody has */
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
