/* env_host.h - the environment of production: libev reactors, the machine's memory, the best kernels, real
 * transports. */
#ifndef TRIB_API_ENV_ENV_HOST_H
#define TRIB_API_ENV_ENV_HOST_H

#include <stdio.h>

#include "engine/job/job.h"

/* Fills *env for a checked configuration, and sets the configuration's values that depend on the machine: the number of
 * reactors, if it is 0, and whether spinning is wise. env->fini undoes it. TRIB_UNSUPPORTED for an unknown transport,
 * TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);

/* Lets the engine look the coordinator up again, by its name. Without memory for that it does not. */
void trib_env_host_resolve(trib_env *env, const char *coordinator);
/* The topology and where an engine would be placed, as one JSON object. */
void trib_env_host_describe(FILE *out);

#endif
