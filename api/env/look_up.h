/* look_up.h - looks the coordinator's name up again while an engine runs, on a thread of its own, because a resolver
 * may block for long. */
#ifndef TRIB_API_ENV_LOOK_UP_H
#define TRIB_API_ENV_LOOK_UP_H

#include "transports/transport.h"

typedef struct trib_look_up trib_look_up;

/* text: as trib_address_resolve takes it. NULL: out of memory. */
trib_look_up *trib_look_up_open(const char *text);
/* Returns true and the addresses if a look-up has found some since the last call. Starts another one unless one is
 * under way. For trib_env's look_up. */
bool trib_look_up_ask(void *look_up, trib_address *found_out);
/* A look-up that is under way ends later, without effect. NULL is allowed. */
void trib_look_up_close(trib_look_up *self);

#endif
