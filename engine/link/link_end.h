/*
 * link_end.h - the end of a link, by this side or because of its connections. For the files of the link;
 * trib_link_close and trib_link_close_for are declared in link.h.
 *
 * A link that ends in good order is LEAVING until the peer has all its frames. A connection that ends by itself is made
 * again (link_reconnect.h) or ends the link.
 */
#ifndef TRIB_ENGINE_LINK_LINK_END_H
#define TRIB_ENGINE_LINK_LINK_END_H

#include "engine/link/link.h"

/* The post of a link that has no connection and ends. */
void trib_link_end_without_connection(trib_reactor *reactor, trib_post *post);
/* The transport's upcall. */
void trib_link_transport_closed(trib_conn *conn, trib_status status, const char *reason);

#endif
