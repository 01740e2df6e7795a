/* device_load.h - which implementation of the device interface a configuration asks for. */
#ifndef TRIB_API_ENV_DEVICE_LOAD_H
#define TRIB_API_ENV_DEVICE_LOAD_H

#include "engine/device/device.h"

/* By name: "none" (*ops_out is NULL), "cuda", whose module is loaded, or a double's name. TRIB_UNSUPPORTED with what is
 * missing; TRIB_INVALID for another name. */
TRIB_CHECKED trib_status trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);

/* A device that stands in for a GPU, by name; NULL: there is none of that name. The library has none; the library of
 * doubles, linked before it, has "host": plain memory. */
const trib_device_ops *trib_device_find_double(const char *name);

#endif
