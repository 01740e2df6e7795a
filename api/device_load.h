/* device_load.h - which implementation of the device interface a configuration asks for. */
#ifndef TRIB_API_DEVICE_LOAD_H
#define TRIB_API_DEVICE_LOAD_H

#include "engine/device.h"

/* By name: "none" (*ops_out is NULL), "host", or "cuda", whose module is loaded. TRIB_UNSUPPORTED with what is missing;
 * TRIB_INVALID for another name. */
TRIB_CHECKED trib_status trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);

#endif
