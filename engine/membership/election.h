/*
 * election.h - the loss of the coordinator in a job that goes on after losses (TRIB_SURVIVE=workers).
 *
 * The candidate is the worker of the lowest rank; each member votes for it on a connection to its first reactor. A vote
 * says which operations have succeeded on the voter, and whether others still can. With the votes of a majority of the
 * last epoch's members, dedicated servers among them, the candidate decides which operations have succeeded for all:
 * those that have on some voter. It tells the voters (ELECTED), and coordinates the next epoch (formation.h). A
 * member that does not reach the candidate turns to the next one. There is no second coordinator:
 *
 * - A member votes for a higher rank than before only, and takes nothing from those that it has given up: it has closed
 *   its connections to them.
 * - An epoch is formed by a majority of the members of the one before. Its number is one that no other coordinator
 *   gives.
 * - A member that has taken a roster does not vote about an earlier epoch. Until it knows that all have that roster, an
 *   election in that epoch needs a majority of the epoch before, too.
 *
 * Meanwhile each member asks the coordinator that it has lost, which may live: it may have ended the epoch while the
 * member was cut off, or have stood still. If it waits for the member it answers with what it has decided, and the
 * member comes back to it unless it has taken another decision. That changes no majority: the epoch is formed by those
 * that come.
 *
 * Votes of members that stand still are not waited for: they have not answered for the peer timeout. Members ask each
 * other as soon as the coordinator has been silent for a part of it.
 *
 * A coordinator that dies while it sends a roster leaves members with it and members without. Those without get it from
 * the candidate, or the candidate from its first voter, and the election is one in that epoch.
 *
 * A process that joins has a vote in the epoch of the first roster that it is in, but not before it has that roster. If
 * the coordinator dies meanwhile, others that have it pass it on. They send it to the start of the process that the
 * coordinator let in, and to no later one at its address. Else one member could vote as that process, which has gone on
 * with the coordinator, and again as its successor, which knows nothing of that.
 *
 * All functions are called on core 0.
 */
#ifndef TRIB_ENGINE_ELECTION_H
#define TRIB_ENGINE_ELECTION_H

#include "engine/core/core.h"

/* A process listens at its address in all epochs. One whose address refuses for so long, in two attempts or more, has
 * ended. */
#define TRIB_ELECTION_REFUSED_NS (100 * INT64_C(1000000))
/* Notes the end of an attempt to connect. *since_ns_io is when the first of the refused ones has ended; 0: the last one
 * was not refused. Returns true if the address has refused for that long. */
static inline bool trib_election_refuses(int64_t *since_ns_io, bool is_refused, int64_t now_ns, int64_t for_ns)
{
    *since_ns_io = !is_refused ? 0 : *since_ns_io != 0 ? *since_ns_io : now_ns;
    return is_refused && now_ns - *since_ns_io >= for_ns;
}

/* Members ask each other for life signs when they have not heard the coordinator for that part of the peer timeout. */
#define TRIB_ELECTION_DOUBT_SHARE 4

/* Members close their links and come again in that time, also on a busy machine. */
#define TRIB_ELECTION_REOPEN_NS (2 * INT64_C(1000000000))

typedef struct trib_election trib_election;

/* The coordinator is lost for that cause. Returns false if the job cannot go on without it. */
bool trib_election_begin(trib_engine *engine, const trib_cause *cause);
/* The coordinator has been silent for a part of the peer timeout. */
void trib_election_doubt(trib_engine *engine);
/* True if this process waits to join, so that it may be in a roster that has not reached it. */
bool trib_election_lacks_roster(const trib_engine *engine);
/* True if an election is open in this process. */
bool trib_election_is_open(const trib_engine *engine);
/* Takes over an accepted control link that has proved the token, in a process without a coordinator. */
void trib_election_adopt(trib_link *link);
/* Answers a VOTE in the coordinator's process: the voter is awaited, is no member any more, or has to ask again when
 * more is known. */
void trib_election_answer(trib_link *link, const trib_frame *vote);
/* The `header` upcall of links that take votes or ask for signs of life: payloads land in the link's memory. */
TRIB_CHECKED trib_status trib_election_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                              trib_error *error);
/* The epoch or the job is over, or the next epoch has begun. Connections stay, and are of no further use. */
void trib_election_stop(trib_engine *engine);

#endif
