/* store_load.h - the store that a configuration names (TRIB_STORE, engine/job/store.h). */
#ifndef TRIB_API_ENV_STORE_LOAD_H
#define TRIB_API_ENV_STORE_LOAD_H

#include "engine/job/job.h"

/* Fills in where rank 0 listens, and in the configuration too, if the coordinator is to be found in the store. With a
 * token that is the address that leads to the store, unless it is configured. Its port is 0: it is not known yet. */
TRIB_CHECKED trib_status trib_store_seek(trib_config *config, trib_address *coordinator, trib_address *listen,
                                         trib_error *error);

/* Opens the store of the configuration, if it names one; nothing is asked yet. TRIB_UNSUPPORTED: the library was built
 * without libcurl. */
TRIB_CHECKED trib_status trib_store_load(const trib_config *config, trib_env *env, trib_error *error);
void trib_store_free(trib_env *env);

#endif
