/* device_host.h - what the files of the device in plain memory share. */
#ifndef TRIB_ENGINE_DEVICE_HOST_H
#define TRIB_ENGINE_DEVICE_HOST_H

#include "engine/device.h"

/* Carries out a collective; jobs by rank, all alike. False: out of memory. */
bool trib_host_collective(const trib_kernels *kernels, trib_device_job *const *jobs, size_t count);

#endif
