/* blame.h - the words in which a loss is told: whoever was lost first is named first, wherever one hears of it. */
#ifndef TRIB_ENGINE_BLAME_H
#define TRIB_ENGINE_BLAME_H

#include "engine/link.h"

/* A link's end: `direction` is "to" or "from", name the peer's, reason that of the `closed` upcall. */
void trib_blame_end(const trib_link *link, const char *direction, const char *name, const char *reason,
                    char text[TRIB_ERROR_TEXT_SIZE]);
/* What others have told, where this process is the one that is meant: it is to see that. */
void trib_blame_self(const trib_engine *engine, const char *told, char text[TRIB_ERROR_TEXT_SIZE]);

#endif
