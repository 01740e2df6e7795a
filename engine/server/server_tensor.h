/*
 * server_tensor.h - the tensors that a server knows from the coordinator (SERVE), before any contribution arrives.
 *
 * Each core has a table of its own. The cores share a tensor's description, which the last core that forgets the tensor
 * frees.
 */
#ifndef TRIB_ENGINE_SERVER_TENSOR_H
#define TRIB_ENGINE_SERVER_TENSOR_H

#include "engine/core/core.h"

/* Core 0: takes the coordinator's description of a tensor. All cores learn it, then `done` is called on core 0, with
 * true if this member does not have the tensor's codec. */
TRIB_CHECKED trib_status trib_server_take_serve(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                void (*done)(trib_engine *engine, bool lacks_codec), trib_error *error);
/* TRIB_PROTOCOL if no tensor can have such a PUSH or WITHDRAW of that worker. The frame's form has been checked. */
TRIB_CHECKED trib_status trib_server_check_tensor(const trib_link *link, const trib_frame *frame, trib_error *error);
/* True for a frame about a tensor that has ended, which came late. */
bool trib_server_is_late(const trib_link *link, const trib_frame *frame);
/* True until the tensor has ended on that core. */
bool trib_server_knows_tensor(const trib_core *core, uint32_t id);
/* False for a tensor of slices. */
bool trib_server_is_whole(const trib_core *core, uint32_t id);
/* Returns the number of workers without which no sum of the tensor goes on, and the time after which it goes on without
 * the others (quorum.h); 0: all must contribute. timeout_ns_out may be NULL. */
uint32_t trib_server_quorum(const trib_core *core, uint32_t id, int64_t *timeout_ns_out);
void trib_server_forget_tensor(trib_core *core, uint32_t id);
void trib_server_forget_tensors(trib_core *core);

#endif
