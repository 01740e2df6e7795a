/*
 * server_drain.h - a server in a process of its own leaves a job that goes on without it (TRIB_SURVIVE=servers).
 *
 * The server asks the coordinator (DRAIN), which deals its partitions to others and tells all members as for a loss
 * (server_loss.h). The server answers meanwhile: a worker that has not reached all members yet still makes its
 * connection, and no operation sees the server's end. A worker says when none of its cores has to do with the server
 * any more (LOSSES_TAKEN). When all have said so, the coordinator ends the job for that server, in good order. The next
 * server has its turn then. None has before all members have the roster.
 *
 * Where the loss of the server would cost something, the epoch ends if the membership may change
 * (TRIB_SURVIVE=workers). Else the coordinator answers DRAIN, and the server leaves as it would without that setting.
 * Between two epochs nothing is asked: the server asks when the next one begins.
 */
#ifndef TRIB_ENGINE_SERVER_DRAIN_H
#define TRIB_ENGINE_SERVER_DRAIN_H

#include "engine/membership/coordinator_internal.h"

/* Any thread: this server asks to go. Fails with TRIB_STATE where it cannot ask. */
TRIB_CHECKED trib_status trib_server_drain(trib_engine *engine, trib_error *error);
/* A new epoch begins: a server that had asked to go when the last one ended asks again. */
void trib_server_drain_again(trib_engine *engine);
/* Core 0: takes the coordinator's answer that the job cannot go on without this server. */
TRIB_CHECKED trib_status trib_server_drain_refused(trib_engine *engine, trib_error *error);
/* Any core: all cores of this worker may have taken one more loss. */
void trib_server_losses_taken(trib_engine *engine);

/* The coordinator: takes a DRAIN, or a LOSSES_TAKEN. */
TRIB_CHECKED trib_status trib_drain_take(trib_coordinator *self, uint32_t member, trib_error *error);
TRIB_CHECKED trib_status trib_drain_take_losses_taken(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                      trib_error *error);
/* The coordinator: true if the epoch may end because this server wants to leave while workers are at work. */
bool trib_drain_may_end_epoch(const trib_coordinator *self, uint32_t member);
/* Ends the epoch because the server leaves. The server has been told that it may go. */
void trib_drain_end_epoch(trib_coordinator *self, uint32_t member);
/* The coordinator: lets go the server that no worker needs any more, and takes the next one that asks. */
void trib_drain_check(trib_coordinator *self);
/* Tells a server that has left that its end is in good order. */
void trib_drain_end(trib_coordinator_slot *server);

#endif
