/* blame.h - the words in which a loss is told: whoever was lost first is named first, wherever one hears of it. Who reads them
 * is to know whom to look at, where, since when and why. */
#ifndef TRIB_ENGINE_BLAME_H
#define TRIB_ENGINE_BLAME_H

#include "engine/link/link.h"
#include "engine/base/log.h"
#include "engine/cluster/roster.h"

/* A link's end: `direction` is "to" or "from", name the peer's, reason that of the `closed` upcall. */
void trib_blame_end(const trib_link *link, const char *direction, const char *name, const char *reason,
                    char text[TRIB_ERROR_TEXT_SIZE]);
/* A worker that has connected to this process, which may not have the roster yet. The text is for who has no name there. */
const char *trib_blame_caller(const trib_roster *roster, uint32_t rank, char text[TRIB_MEMBER_NAME_MAX]);
/* Why somebody is taken for lost who says nothing any more. */
const char *trib_blame_silence(int64_t silence_ns, char reason[TRIB_REASON_MAX]);
/* Why a control connection ended, and since when nothing has come over it: pings tell that to the second. */
const char *trib_blame_control(const trib_link *link, const char *why, char reason[TRIB_REASON_MAX]);
/* The coordinator is lost. It is named by the member that it is in, if it is in one. */
void trib_blame_coordinator(const trib_engine *engine, const char *reason, char text[TRIB_ERROR_TEXT_SIZE]);
/* Whether this process says what to look at: the one that keeps the membership does, and all where that one is lost. */
bool trib_blame_advises(const trib_engine *engine, const char *text);
/* What a member ends with, as the others are to read it: trouble of its own bears its name. */
void trib_blame_member(const char *name, trib_status status, const char *reported, char text[TRIB_ERROR_TEXT_SIZE]);
/* What that end is to this process: the peer is lost, unless it said that all end so, or memory was short here. */
trib_status trib_blame_status(trib_status end_status);
/* What others have told, where this process is the one that is meant: it is to see that. */
void trib_blame_self(const trib_engine *engine, const char *reported, char text[TRIB_ERROR_TEXT_SIZE]);

#endif
