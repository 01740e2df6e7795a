/*
 * formation.h - the coordinator's side of a membership that changes (TRIB_SURVIVE=workers, job/formation.h).
 *
 * Running: a member is lost, or all workers have asked for it (ADVANCE): the epoch ends. Which operations have
 * succeeded is settled by then (commits.h). Gathering: the members that are left join again under their former ids. A
 * member that is lost meanwhile, or does not come back, is not waited for. When all members that are there want to go
 * on, they get new ids, in the order of the former ones, and the roster.
 */
#ifndef TRIB_ENGINE_FORMATION_STEPS_H
#define TRIB_ENGINE_FORMATION_STEPS_H

#include "engine/membership/coordinator_internal.h"

/* True if the job goes on after this cause: a member other than this process was lost. */
bool trib_formation_survives(const trib_coordinator *self, const trib_cause *cause);
/* Ends the epoch for that cause. The cause's subject, if it is a member, counts as lost. */
void trib_formation_end_epoch(trib_coordinator *self, const trib_cause *cause);
/* Notes that the worker has asked for the next epoch (ADVANCE). */
void trib_formation_take_advance(trib_coordinator *self, uint32_t member);
/* Ends the epoch if all workers have asked for that, and nobody is about to join. */
void trib_formation_check_boundary(trib_coordinator *self);
/* The member has left, or is lost, between two epochs. */
void trib_formation_member_gone(trib_coordinator *self, uint32_t member, const char *why);
/* The member has ended for that cause. Returns true if the job goes on without it. */
bool trib_formation_goes_on_without(trib_coordinator *self, uint32_t member, const trib_cause *cause);
/* A member reports the loss of another one. A member that cannot reach this process, or hears nobody, is lost itself.
 * Returns true if the member cannot go on, which has ended the epoch. */
bool trib_formation_judge(trib_coordinator *self, uint32_t reporter, const trib_frame *frame, trib_cause *cause);

/* Makes places for the expected members when the coordinator opens. Returns false for the first epoch. */
bool trib_formation_begin(trib_coordinator *self);
/* Notes that the member has taken the roster. */
void trib_formation_take_losses_taken(trib_coordinator *self, uint32_t member);
/* All members have taken the roster, and the store, if any, has the epoch: tells them so. */
void trib_formation_begun(trib_coordinator *self);
/* Makes room for the state of that many members. Returns false if memory runs out. */
TRIB_CHECKED bool trib_formation_reserve(trib_formation *formation, uint32_t members);
/* True if this is the gathering of a second or later epoch. */
bool trib_formation_gathers(const trib_coordinator *self);
/* True if the member of that former id may come back. */
bool trib_formation_expects(const trib_coordinator *self, uint32_t member);
/* True if the member of that epoch may be one of the next one, or is one already, or if the epoch is a later one. */
bool trib_formation_awaits(const trib_coordinator *self, uint32_t epoch, uint32_t member);
/* True if that member of that epoch is awaited. */
bool trib_formation_may_return(const trib_coordinator *self, uint32_t epoch, uint32_t member);
/* A member has taken the coordinator for lost, and finds out that it lives. The running epoch ends, and nobody is lost.
 * Returns false if it is no member of that epoch. */
bool trib_formation_member_returns(trib_coordinator *self, uint32_t epoch, uint32_t member);
/* Gathering: deals out the new places if all that are left are there and want to go on. */
void trib_formation_check(trib_coordinator *self);
/* Returns true if the boundary that all have asked for waits for a process that may want to join. It is checked again
 * then. */
bool trib_formation_holds_boundary(trib_coordinator *self);
/* Returns true if the process that says JOIN has to wait. Until the epoch's links close a worker or server without a
 * place waits on its link; at other times a process that comes too early has to try again. */
bool trib_formation_puts_off(trib_coordinator *self, trib_link *link, bool is_server, bool lacks_place);
/* All workers have left. Those that wait to join would look for another coordinator until their join deadlines. */
void trib_formation_dismiss_waiting(const trib_coordinator *self);
/* True if members and those that wait to join are as many as a job may have. */
bool trib_formation_is_full(const trib_coordinator *self);
/* Between epochs: returns a place for a new worker or server, or NULL if there is none now. */
trib_coordinator_slot *trib_formation_find_place(const trib_coordinator *self, bool is_server);
/* Tells a member that joins that it waits for the others' programs. */
void trib_formation_tell_waits(trib_link *link);
/* Takes a frame of a member that waits on its link (trib_formation_puts_off). */
TRIB_CHECKED trib_status trib_formation_take_parked(trib_link *link, const trib_frame *frame, trib_error *error);
/* When the expected member of that place, which is not there, counts as lost. INT64_MAX: it is there, or nobody expects
 * it. */
int64_t trib_formation_absent_until(const trib_coordinator *self, uint32_t place);
/* Sets the timer for the next member that is away for too long. */
void trib_formation_await_absent(trib_coordinator *self);
/* Declares the members lost that have not come back in time. */
void trib_formation_deadline_passed(trib_coordinator *self);
/* The member of that place has not come back, and is lost; `why` follows the text. The caller calls
 * trib_formation_check. */
void trib_formation_lose_absent(trib_coordinator *self, uint32_t place, const char *why);
/* The id in the last epoch of the member that has that place, or TRIB_NO_MEMBER. */
uint32_t trib_formation_former_id(const trib_coordinator *self, uint32_t place);
/* Where the process is no member, keeps the coordinator's new roster as the engine's: links look for addresses there,
 * and so does the next epoch's coordinator. */
void trib_formation_keep_roster(trib_coordinator *self);
/* Begins to look for members that are dead (formation_probe.c), and ends that. */
void trib_formation_probe_begin(trib_coordinator *self);
void trib_formation_probe_end(trib_coordinator *self);
/* The number of the roster that is being made. */
uint32_t trib_formation_next_epoch(const trib_coordinator *self);
void trib_formation_close(trib_formation *formation);

#endif
