/* device_host.h - what the files of the device in plain memory share. */
#ifndef TRIB_ENGINE_DEVICE_HOST_H
#define TRIB_ENGINE_DEVICE_HOST_H

#include <pthread.h>

#include "engine/device/device.h"
#include "engine/sim/reactor_sim.h"

#define TRIB_HOST_MACHINES_MAX 64

/* A job that takes its time, in virtual time. */
typedef struct trib_host_late {
    trib_sim_event end;
    trib_device *device;
    trib_device_job *job;
    unsigned char *result; /* of a collective: what its target gets then; else NULL */
    size_t size;
    struct trib_host_late *next;
} trib_host_late;

/* Jobs of one member that wait for the others', oldest first. */
typedef struct trib_host_queue {
    trib_device_job *head, *tail;
    trib_host_late *late; /* its part of the collective that all have come to before */
    trib_host_fault fault;
    bool dead; /* comes to nothing any more */
} trib_host_queue;

/* Who is to look at a machine's door. */
typedef struct trib_host_bell {
    trib_post post;
    trib_reactor *reactor; /* NULL: nobody */
    void (*rung)(trib_reactor *reactor);
    bool rings; /* the post is under way */
    trib_host_world *world;
} trib_host_bell;

struct trib_host_world {
    pthread_mutex_t mutex;
    trib_host_pace pace;
    uint32_t disorders;
    uint64_t kept;
    bool stuck[TRIB_HOST_MACHINES_MAX]; /* different jobs that were issued have met */
    trib_host_queue members[TRIB_HOST_MACHINES_MAX][TRIB_LOCAL_SIZE_MAX];
    struct trib_door_page *doors[TRIB_HOST_MACHINES_MAX];
    trib_host_bell bells[TRIB_HOST_MACHINES_MAX][TRIB_LOCAL_SIZE_MAX];
};

struct trib_device {
    trib_device_params params;
    pthread_mutex_t mutex;
    trib_device_job *waiting; /* for a stream, for another job, or hung */
    atomic_bool stopped;
    trib_device_job *issued, **issued_end;  /* that have not begun, oldest first */
    uint32_t places;                        /* issued so far */
    bool joined;                            /* what is issued may begin */
    bool beginning;                         /* somebody is about it: one at a time, so that they keep their order */
    trib_host_late *late;                   /* newest first; in virtual time, which has one thread */
    int64_t end_ns[TRIB_DEVICE_KIND_COUNT]; /* of the last copies, by kind: they end in their order */
    struct gate_word {
        struct gate_word *next;
        uint32_t word;
    } * gates;
};

struct trib_host_stream {
    atomic_bool open;
    _Atomic(trib_device *) device; /* where jobs wait for it; set before they look at open */
};

/* The machine's door (group_door.h), NULL when out of memory: rung runs on the reactor whenever somebody has rung, until it leaves. */
struct trib_door_page *trib_host_world_door(trib_host_world *world, uint32_t machine, uint32_t rank,
                                            trib_reactor *reactor, void (*rung)(trib_reactor *reactor));
void trib_host_world_ring(trib_host_world *world, uint32_t machine);
void trib_host_world_door_left(trib_host_world *world, uint32_t machine, uint32_t rank);

/* Carries out a collective; jobs by rank, all alike. False: out of memory. */
bool trib_host_collective(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count);

/* ---- device_host.c ---- */
void trib_host_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *text);
/* Carries out what all members of the device's machine have come to. */
void trib_host_come_together(const trib_device *device);

/* ---- device_host_world.c ---- */
trib_host_fault trib_host_fault_of(const trib_device *device);

/* ---- device_host_pace.c ---- */
/* Ends a job that concerns its member alone, when it has taken its time. */
void trib_host_end(trib_device *device, trib_device_job *job);
/* A collective that waits for another job does so in the queue, where later ones do not overtake it: jobs before it may still
 * be late. Otherwise they are not. */
bool trib_host_in_line(const trib_device *device, const trib_device_job *job);
/* The queue's member has not come to its first job yet. */
bool trib_host_is_busy(const trib_host_world *world, const trib_host_queue *queue);
/* A collective; those whose parts take time are in the world's queues, as late, and end by themselves. False: out of memory. */
bool trib_host_carry_out(trib_host_world *world, trib_device_job *const *jobs, size_t count);
/* Takes what is late; by next. Of a collective that is given up in the midst the others' parts never end. */
trib_device_job *trib_host_take_late(trib_device *device);

#endif
