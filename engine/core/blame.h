/* blame.h - the words in which a lost member is reported. The member that was lost first is named first, in every
 * process. The text tells its reader which process to look at, where, since when and why. */
#ifndef TRIB_ENGINE_BLAME_H
#define TRIB_ENGINE_BLAME_H

#include "engine/link/link.h"
#include "engine/base/log.h"
#include "engine/cluster/roster.h"

/* Text for a link's end. `direction` is "to" or "from", `name` the peer's, and `reason` comes from the `closed`
 * upcall. */
void trib_blame_end(const trib_link *link, const char *direction, const char *name, const char *reason,
                    char text[TRIB_ERROR_TEXT_SIZE]);
/* Name of a worker that has connected to this process, which may not have the roster yet. The text is used for a
 * worker without a name there. */
const char *trib_blame_caller(const trib_roster *roster, uint32_t rank, char text[TRIB_MEMBER_NAME_MAX]);
/* Text that says why a silent member is taken for lost. */
const char *trib_blame_silence(int64_t silence_ns, char reason[TRIB_REASON_MAX]);
/* Text that says why a control connection ended and since when nothing has come over it. Pings make that exact to a
 * second. */
const char *trib_blame_control(const trib_link *link, const char *why, char reason[TRIB_REASON_MAX]);
/* Text for a lost coordinator, which is named by the member that runs it, if there is one. */
void trib_blame_coordinator(const trib_engine *engine, const char *reason, char text[TRIB_ERROR_TEXT_SIZE]);
/* True if this process prints advice on what to look at: the coordinator's process does, and every process does if
 * that one is lost. */
bool trib_blame_advises(const trib_engine *engine, const char *text);
/* Text of a member's end for the other members: its own failure is given its name. */
void trib_blame_member(const char *name, trib_status status, const char *reported, char text[TRIB_ERROR_TEXT_SIZE]);
/* Maps the status with which a link ended to this process's status: TRIB_PEER_LOST, unless the peer announced a
 * job-wide end or this process ran out of memory. */
trib_status trib_blame_status(trib_status end_status);
/* Rewrites a peer's report: if it names this process, the text says "this process". */
void trib_blame_self(const trib_engine *engine, const char *reported, char text[TRIB_ERROR_TEXT_SIZE]);

#endif
