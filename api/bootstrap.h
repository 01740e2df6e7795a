/* bootstrap.h - a configuration that has a unique id or an out-of-band exchange becomes one with an address and a
 * token. */
#ifndef TRIB_API_BOOTSTRAP_H
#define TRIB_API_BOOTSTRAP_H

#include "api/config/unique_id.h"

typedef struct trib_bootstrap {
    trib_config config; /* the resulting configuration; its texts point into the given one, and into content */
    trib_unique_id_content content;
    bool holds; /* this process keeps the membership: the reserved port is taken, and has to be settled */
} trib_bootstrap;

/* Calls oob_cb if there is one, and blocks as long as it does. Without id and exchange the configuration stays as it
 * is. To be ended by trib_bootstrap_end, also after an error. */
TRIB_CHECKED trib_status trib_bootstrap_begin(trib_bootstrap *self, const trib_config *given, trib_error *error);
/* created: the engine listens at the reserved port. */
void trib_bootstrap_end(trib_bootstrap *self, bool created);

#endif
