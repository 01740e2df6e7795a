/*
 * server_loss.h - the loss of a server in a process of its own, in a job that survives it (TRIB_SURVIVE=servers).
 *
 * A member that loses its way to a server asks the coordinator, which may have noticed by itself. The coordinator alone
 * decides, deals the server's partitions to others, and tells all members (SERVER_LOST). Each worker then closes what
 * it still has to that server before it says what it has of those partitions (engine/worker/worker_orphan.h). So a
 * server that was taken for lost wrongly changes no sum.
 *
 * Where the loss costs something, the job ends as without that setting: if nobody else sums, or if a tensor on that
 * server is not a whole tensor in host memory that all workers share.
 */
#ifndef TRIB_ENGINE_SERVER_LOSS_H
#define TRIB_ENGINE_SERVER_LOSS_H

#include "engine/membership/coordinator_internal.h"

/* Any core: its link to that member is lost. Asks the coordinator. */
void trib_loss_suspected(trib_engine *engine, uint32_t member);
/* Any core: it has not reached that member for the peer timeout, and still tries. The coordinator is told. */
void trib_loss_doubted(trib_engine *engine, uint32_t member);
/* Core 0: the coordinator says that a server is lost. */
TRIB_CHECKED trib_status trib_server_loss_take(trib_engine *engine, const trib_frame *frame, const void *payload,
                                               trib_error *error);
/* The coordinator: goes on without a server, if the cause is its loss and that costs nothing. Also returns true if the
 * server is known to be lost. */
TRIB_CHECKED bool trib_server_loss_decide(trib_coordinator *self, const trib_cause *cause);
/* As trib_server_loss_decide, for a server that has asked to leave. It stays until no worker needs it
 * (server_drain.h). */
TRIB_CHECKED bool trib_server_loss_let_go(trib_coordinator *self, uint32_t member);

#endif
