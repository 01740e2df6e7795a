/* ballot.h - the arithmetic of an election (election.h): votes, what they decide, and majorities. Pure functions. */
#ifndef TRIB_ENGINE_BALLOT_H
#define TRIB_ENGINE_BALLOT_H

#include "engine/link/link.h"

/* A member's vote, or a decision. */
typedef struct trib_vote {
    trib_link *link; /* link on which the vote came */
    bool has_voted;
    bool asks_to_leave;      /* the coordinator has answered the voter */
    bool is_settled;         /* no other operation can succeed on that member */
    uint32_t settled_ballot; /* ballot of the member that has decided so */
    bool at_boundary;        /* the decision says that the epoch ended because all workers asked for it */
    bool knows_roster;       /* it knows that all members have the last roster */
    uint32_t *rounds;        /* by a tensor's id: the last round that has succeeded; 0: none */
    uint32_t count;          /* number of tensors in `rounds` */
} trib_vote;

/* Returns false if memory runs out. */
bool trib_vote_note_round(trib_vote *vote, uint32_t tensor, uint32_t round);
void trib_vote_clear(trib_vote *vote);

#define TRIB_VOTE_AT_BOUNDARY 2u /* a bit in the chunk of a VOTE, which is 1 if the vote is settled otherwise */

typedef struct trib_tally {
    trib_vote decided;
    bool *elects; /* by member: its vote counts, because it can share the decision */
    bool knows_roster;
} trib_tally;

/* True if the voter can have what is decided: it has no more, and no less if it cannot have more. One that has taken
 * the end of the epoch for a boundary, or for none, has ended operations that others go on with, or the other way
 * round. */
bool trib_ballot_fits(const trib_vote *vote, const trib_vote *decided);

/* Decides which rounds have succeeded for all: those that have succeeded on some voter. Where a decision was made
 * before, the latest one holds, and votes that contradict it do not count. Returns false if memory runs out. */
TRIB_CHECKED bool trib_ballot_tally(const trib_vote *votes, uint32_t members, trib_tally *tally_out);
void trib_ballot_free(trib_tally *tally);

typedef struct trib_majority {
    uint32_t votes, electors;
    uint32_t former, before; /* votes of members of the epoch before, and the electors of that epoch */
    bool knows_roster;       /* all members have the roster of the last epoch, so that only that one counts */
} trib_majority;

/* with_coordinator: the coordinator of the last epoch is among the voters, which decides if they are exactly half. */
bool trib_ballot_is_majority(const trib_majority *majority, bool with_coordinator);

/* True if the member of that id was new in its epoch: the last ones below end, which is behind the workers or the
 * servers, are. */
static inline bool trib_ballot_is_newcomer(uint32_t end, uint32_t newcomers, uint32_t member)
{
    return member < end && member + newcomers >= end;
}

#endif
