/*
 * link_call.h - the acceptor of a link whose connection broke calls the connector: it connects to the connector's own
 * address, so that the two sides soon agree that the connection broke, although only one of them may have seen it. A
 * call proves the token as any connection does, and carries nothing else.
 */
#ifndef TRIB_ENGINE_LINK_LINK_CALL_H
#define TRIB_ENGINE_LINK_LINK_CALL_H

#include "engine/link/link.h"

/* Calls the connector of the link, or ends a call that takes too long. */
void trib_call_connector(trib_link *link);
/* Ends the link's call, if there is one. */
void trib_call_stop(trib_link *link);

#endif
