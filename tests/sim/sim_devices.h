/*
 * sim_devices.h - devices in plain memory for a job in virtual time. Their jobs take time, and so does the stream of
 * the program: an operation that names it waits for it.
 */
#ifndef TRIB_TESTS_SIM_DEVICES_H
#define TRIB_TESTS_SIM_DEVICES_H

#include "tests/sim/sim_bed.h"

typedef struct sim_devices {
    trib_host_world *world; /* NULL: there are none */
    trib_host_stream *stream;
    trib_host_pace pace;
    uint64_t state;
    uint32_t local_size;
    void (*tweak)(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link);
} sim_devices;

/* By kind: the jobs that attached devices have had. */
extern uint32_t sim_devices_jobs[TRIB_DEVICE_KIND_COUNT];

/* Gives each worker of the job a device, and sets the pace. `local_size` workers share a machine. The job's own tweak
 * goes on working. One job at a time has devices. */
void sim_devices_open(sim_devices *self, sim_job_config *config, uint32_t local_size);
/* The job is open. Its devices' memory is at addresses of its own from now on, where the host has none: an engine that
 * reads it by itself crashes. */
void sim_devices_attach(const sim_devices *self, const sim_job *job);
/* The address on the device, of memory of the host that stands for the device's. */
void *sim_devices_address(const sim_devices *self, void *memory);
void sim_devices_close(sim_devices *self);

#endif
