/* device_no_double.c - the library by itself has no device that stands in for a GPU. api/env/sim/device_double.c
 * does. */
#include "api/env/device_load.h"

const trib_device_ops *trib_device_find_double(const char *name)
{
    (void)name;
    return NULL;
}
