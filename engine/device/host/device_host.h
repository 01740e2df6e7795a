/* device_host.h - declarations that the files of the device in plain memory share. */
#ifndef TRIB_ENGINE_DEVICE_HOST_H
#define TRIB_ENGINE_DEVICE_HOST_H

#include <pthread.h>

#include "engine/cluster/roster.h"
#include "engine/device/device.h"
#include "engine/sim/reactor_sim.h"

#define TRIB_HOST_MACHINES_MAX 64

/* A job that takes time, in virtual time. */
typedef struct trib_host_delayed {
    trib_sim_event end;
    trib_device *device;
    trib_device_job *job;
    unsigned char *result; /* for a collective: the target's bytes at the end; otherwise NULL */
    size_t size;
    struct trib_host_delayed *next;
} trib_host_delayed;

/* Collectives of one member that wait for the other members, oldest first. */
typedef struct trib_host_queue {
    trib_device_job *head, *tail;
    trib_host_delayed *late; /* its unfinished part of the last collective that was carried out */
    trib_host_fault fault;
    bool dead; /* the member takes part in no collective any more */
} trib_host_queue;

struct trib_host_world {
    pthread_mutex_t mutex;
    trib_host_pace pace;
    uint32_t disorders;
    trib_host_queue members[TRIB_HOST_MACHINES_MAX][TRIB_LOCAL_SIZE_MAX];
};

struct trib_device {
    trib_device_params params;
    pthread_mutex_t mutex;
    trib_device_job *waiting; /* jobs that wait for a stream or another job, or hang */
    atomic_bool stopped;
    trib_host_delayed *late;                /* newest first; in virtual time, which has one thread */
    int64_t end_ns[TRIB_DEVICE_KIND_COUNT]; /* end of the last job of each kind; jobs of a kind end in order */
};

struct trib_host_stream {
    atomic_bool open;
    _Atomic(trib_device *) device; /* the device whose jobs wait for it; set before they read open */
};

/* Carries out a collective of equal jobs, one per rank. Returns false when out of memory. */
bool trib_host_collective(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count);

/* ---- device_host.c ---- */
void trib_host_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *text);
/* Carries out the collectives to which all members of the device's machine have come. */
void trib_host_run_ready_collectives(const trib_device *device);

/* ---- device_host_world.c ---- */
trib_host_fault trib_host_fault_of(const trib_device *device);

/* ---- device_host_pace.c ---- */
/* Ends a job that is no collective, after its time. */
void trib_host_end(trib_device *device, trib_device_job *job);
/* True if a collective with an `after` waits in the queue, where later ones cannot overtake it. Virtual time needs
 * this, because jobs before it may be late there. */
bool trib_host_has_ordered_collective(const trib_device *device, const trib_device_job *job);
/* True if the queue's member has not come to its first job yet. */
bool trib_host_is_busy(const trib_host_world *world, const trib_host_queue *queue);
/* Carries out a collective. Parts that take time are put into the world's queues as late, and end later. Returns
 * false when out of memory. */
bool trib_host_carry_out(trib_host_world *world, trib_device_job *const *jobs, size_t count);
/* Takes the late jobs, linked by next. If one is a part of a collective, the other members' parts never end. */
trib_device_job *trib_host_take_delayed(trib_device *device);

#endif
