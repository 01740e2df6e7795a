/*
 * wireup.h - which cores connect to each other once the roster has come, and what a member does that cannot accept
 * its callers.
 *
 * A caller that is not accepted gives up in the end, and would report that the called process does not answer. So
 * the called process ends the job first and says what it is short of. It does so only while callers are missing: any
 * other caller is a stranger and may stay outside. Accepted callers that have not authenticated hold what is short,
 * so they are closed first.
 *
 * A caller whose connection ends before it is made does not know why. The called process may have ended because of
 * another member's failure, and could tell that only to members that it knows. So the caller gives the coordinator a
 * moment to say it.
 *
 * Everything here belongs to one core.
 */
#ifndef TRIB_ENGINE_WIREUP_H
#define TRIB_ENGINE_WIREUP_H

#include "engine/core/core.h"

/* True if this member's core of that index connects to that reactor of that member. */
bool trib_wireup_connects_to(const trib_core *core, uint32_t member, uint32_t reactor);
/* True if some core of that worker connects to this one. Used on members that sum for others. */
bool trib_wireup_expects_worker(const trib_core *core, uint32_t worker);

/* Called with the roster: missing peers are awaited from here on. */
void trib_wireup_expect_peers(trib_core *core);
void trib_wireup_note_peer(trib_core *core, uint32_t worker);
/* Called every tick. */
void trib_wireup_check(trib_core *core);

/* Called when a connection that this core was making has ended. The job ends with these words unless a better reason
 * arrives before. */
void trib_wireup_defer_failure(trib_core *core, trib_status status, const char *text);
/* Called when the job is over. */
void trib_wireup_stop(trib_core *core);

#endif
