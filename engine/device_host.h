/* device_host.h - what the files of the device in plain memory share. */
#ifndef TRIB_ENGINE_DEVICE_HOST_H
#define TRIB_ENGINE_DEVICE_HOST_H

#include <pthread.h>

#include "engine/device.h"

#define TRIB_HOST_MACHINES_MAX 64

/* Jobs of one member that wait for the others', oldest first. */
typedef struct trib_host_queue {
    trib_device_job *head, *tail;
    trib_host_fault fault;
} trib_host_queue;

struct trib_host_world {
    pthread_mutex_t mutex;
    uint32_t disorders;
    uint64_t kept;
    bool stuck[TRIB_HOST_MACHINES_MAX]; /* different jobs that were issued have met */
    trib_host_queue members[TRIB_HOST_MACHINES_MAX][TRIB_LOCAL_SIZE_MAX];
};

struct trib_device {
    trib_device_params params;
    pthread_mutex_t mutex;
    trib_device_job *waiting; /* for a stream, for another job, or hung */
    atomic_bool stopped;
    trib_device_job *issued, **issued_end; /* that have not begun, oldest first */
    uint32_t places;                       /* issued so far */
    bool joined;                           /* what is issued may begin */
    bool beginning;                        /* somebody is about it: one at a time, so that they keep their order */
    struct gate_word {
        struct gate_word *next;
        uint32_t word;
    } * gates;
};

struct trib_host_stream {
    atomic_bool open;
    _Atomic(trib_device *) device; /* where jobs wait for it; set before they look at open */
};

/* Carries out a collective; jobs by rank, all alike. False: out of memory. */
bool trib_host_collective(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count);

#endif
