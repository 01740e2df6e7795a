/*
 * commits.h - the coordinator's side of operations that succeed on all workers or on none (worker/op_commit.h): it
 * counts the workers that are through with a round, and tells all workers when every one is.
 */
#ifndef TRIB_ENGINE_COMMITS_H
#define TRIB_ENGINE_COMMITS_H

#include "engine/membership/coordinator_internal.h"

TRIB_CHECKED trib_status trib_commits_take_settled(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                   const void *payload, trib_error *error);
/* A worker has left or is lost, and is not waited for. */
void trib_commits_worker_left(trib_coordinator *self);
/* The group has ended with all its tensors. */
void trib_commits_group_ended(trib_coordinator *self, const trib_rank_set *ranks);
void trib_commits_close(trib_coordinator *self);

#endif
