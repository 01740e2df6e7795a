/* resolver.h - looks the coordinator's name up again while an engine runs, on a thread of its own, because a resolver
 * may block for long. */
#ifndef TRIB_API_ENV_RESOLVER_H
#define TRIB_API_ENV_RESOLVER_H

#include "transports/transport.h"

typedef struct trib_resolver trib_resolver;

/* text: as trib_address_resolve takes it. NULL: out of memory. */
trib_resolver *trib_resolver_open(const char *text);
/* Returns true and the addresses if a look-up has found some since the last call. Starts another one unless one is
 * under way. For trib_env's look_up. */
bool trib_resolver_poll(void *resolve, trib_address *found_out);
/* A look-up that is under way ends later, without effect. NULL is allowed. */
void trib_resolver_close(trib_resolver *self);

#endif
