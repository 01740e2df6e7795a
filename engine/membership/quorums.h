/* quorums.h - the coordinator's side of a quorum (server/quorum.h): asks members which workers have begun a round, and
 * tells all the set of contributors. */
#ifndef TRIB_ENGINE_QUORUMS_H
#define TRIB_ENGINE_QUORUMS_H

#include "engine/membership/coordinator_internal.h"

/* Takes QUORUM_CALL or QUORUM_BEGUN. */
TRIB_CHECKED trib_status trib_quorums_take(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                           const void *payload, trib_error *error);
/* The link of a member that may be waited for has ended. */
void trib_quorums_member_gone(trib_coordinator *self);
/* The tensor's entry is about to be freed. */
void trib_quorums_entry_ended(trib_coordinator *self, const trib_registry_entry *entry);
void trib_quorums_clear(trib_coordinator *self);

#endif
