/* create.h - an engine in an environment of the caller's choice: where trib_engine_create and the simulator meet. */
#ifndef TRIB_API_CREATE_H
#define TRIB_API_CREATE_H

#include "engine/job/job.h"

/* As trib_engine_create, in that environment, with a configuration that is complete: numeric addresses, a number of
 * reactors. Takes over the ownership of env's parts, on failure too. */
TRIB_CHECKED trib_status trib_engine_create_in(trib_env *env, const trib_config *config, trib_engine **engine_out,
                                               trib_error *error);

#endif
