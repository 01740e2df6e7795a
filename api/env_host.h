/* env_host.h - the environment of production: libev reactors, the machine's memory, the best kernels, real transports. */
#ifndef TRIB_API_ENV_HOST_H
#define TRIB_API_ENV_HOST_H

#include "engine/engine.h"

/* Fills *env for that configuration (checked already). TRIB_UNSUPPORTED for an unknown transport. */
TRIB_CHECKED trib_status trib_env_host_init(trib_env *env, const trib_config *config, trib_error *error);
void trib_env_host_fini(trib_env *env);

/* How many reactors this process should have by default, and the core for one (-1: not pinned). */
uint32_t trib_env_host_reactors(const trib_config *config);

#endif
