/* election_internal.h - declarations that the files of an election share: election.c (voters and life) and
 * election_candidate.c. All functions are called on core 0. */
#ifndef TRIB_ENGINE_ELECTION_INTERNAL_H
#define TRIB_ENGINE_ELECTION_INTERNAL_H

#include "engine/membership/ballot.h"
#include "engine/membership/election.h"
#include "engine/membership/probe.h"

typedef struct trib_roster_copy trib_roster_copy;

/* The coordinator that this member has lost, which may live (election_former.c). */
typedef struct trib_former_coordinator {
    trib_link *link;          /* NULL: it is not being asked */
    int64_t asked_ns;         /* when the attempt began, or the question was sent */
    int64_t refused_since_ns; /* 0: the last attempt was not refused */
    bool is_over;             /* it is dead, or does not count on this member */
    bool has_answered;        /* it counts on this member, whose candidate has to let it go first */
    uint32_t ballot;          /* of its decision */
    trib_vote decided;        /* its decision, as far as it has arrived */
} trib_former_coordinator;

struct trib_election {
    trib_core *core;
    const trib_roster *roster; /* roster of the last epoch */
    bool is_open;              /* this member has lost the coordinator, too; until then votes only wait */
    trib_cause cause;
    uint32_t candidate;
    int64_t began_ns, turn_began_ns; /* when the election, and the candidate's turn, began */
    trib_link *link;                 /* link to the candidate; NULL: none, or this process is the candidate */
    bool asks_to_leave;              /* over that link */
    const char *outvoted_by;         /* who has decided what this member cannot share, for a text; NULL: nobody */
    bool has_failed, is_refused;     /* the last attempt to reach the candidate failed; its address refuses */
    int64_t refused_since_ns;        /* 0: the last attempt was not refused */
    trib_vote decided;               /* the candidate's decision, as far as it has arrived */
    trib_former_coordinator former;
    trib_roster_copy *roster_copy; /* what members that lack the roster get; NULL: none yet */
    trib_probes probes;            /* by member: which of them answer (election_silence.c) */
    int64_t heard_since_ns;        /* since when some member gives signs of life; 0: none does */
    trib_timer timer;
    trib_vote votes[]; /* by member: votes for this process */
};

/* ---- election.c ---- */
/* The election, which waits for votes at first; NULL: the job does not go on, or there is no memory. */
trib_election *trib_election_get(trib_engine *engine);
/* Returns the time in which every living member votes for the candidate. Members may notice the loss of the coordinator
 * only after it had time to close its links, and may first try candidates that are lost, too. */
int64_t trib_election_time(const trib_election *self);
trib_formation *trib_election_formation(const trib_election *self);
/* This member's id in the last epoch. */
uint32_t trib_election_place(const trib_election *self);
/* The coordinator of the epoch, a member or a process of its own, has ballot 0. */
uint32_t trib_election_ballot(const trib_election *self, uint32_t candidate);
/* True if the member has a vote: it has not left in good order. */
bool trib_election_counts(const trib_election *self, uint32_t member);
/* The job ends here, as its coordinator is lost. Ends the election. */
void trib_election_fail(trib_election *self, const char *why);
/* The same for a member that the others are without. The text says so where they have decided otherwise. */
void trib_election_fail_alone(trib_election *self, const char *why);
/* Sends the rounds of the vote, in frames with that head. */
void trib_election_put_rounds(trib_link *link, const trib_frame *head, const trib_vote *vote);
TRIB_CHECKED trib_status trib_election_get_rounds(trib_vote *vote, const trib_frame *frame, const void *payload,
                                                  trib_error *error);
/* Makes this member's vote. Its rounds belong to the formation. */
trib_vote trib_election_own_vote(const trib_election *self);
/* False if this member has taken another decision before. */
bool trib_election_can_share(const trib_election *self, const trib_vote *decided);
/* Takes over the candidate's decision: its rounds have succeeded here, too, and no others. */
void trib_election_settle(trib_election *self, const trib_vote *decided, uint32_t ballot);
/* Sends this member's vote. */
void trib_election_vote(const trib_election *self, trib_link *link, uint32_t ballot);
/* Leaves the candidate. This member may be one itself: its voters have to vote again. */
void trib_election_release(trib_election *self);
/* The job goes on in this process, with that coordinator. Ends the election. */
void trib_election_go_on(trib_election *self, const trib_address *coordinator);

/* ---- election_roster.c ---- */
/* Returns the id in this roster of that member of the epoch before, or TRIB_NO_MEMBER. */
uint32_t trib_election_find_former(const trib_election *self, uint32_t epoch, uint32_t former);
/* Passes the roster on to that member of the epoch before. Returns false if it has no place in it. */
bool trib_election_pass_on(trib_election *self, trib_link *link, uint32_t epoch, uint32_t former);
/* Passes the roster on to that member if it is new in it, and may lack it. Returns true if it has done so. */
bool trib_election_let_in(trib_election *self, trib_link *link, uint32_t member);
/* Frees the roster's form. Frames that carry it keep it until they are gone. */
void trib_election_free_copy(trib_election *self);
/* A process that lacks a roster takes the first one that it is in from another member, and takes part in its election.
 * It does not while it hears the coordinator. */
TRIB_CHECKED trib_status trib_election_enter(trib_engine *engine, const trib_frame *frame, const void *payload,
                                             trib_error *error);
/* Takes a roster that the coordinator has sent and that did not reach this member before. The election is one among the
 * members of that roster from now on. */
TRIB_CHECKED trib_status trib_election_take_roster(trib_election *self, const trib_frame *frame, const void *payload,
                                                   trib_error *error);

/* ---- election_former.c ---- */
/* A turn: sees to it that the lost coordinator is asked, unless that is in vain. */
void trib_election_ask_former(trib_election *self);
void trib_election_leave_former(trib_election *self);
/* The candidate has let this member go. Comes back to the coordinator if that has answered. */
void trib_election_let_go(trib_election *self);

/* ---- election_silence.c ---- */
/* A turn: asks members whether they live. was_stopped: this process was, so that answers may lie unread. */
void trib_election_ask_members(trib_election *self, bool was_stopped);
/* True if the member's process has ended, or has not answered for the peer timeout while others have. */
bool trib_election_is_silent(const trib_election *self, uint32_t member);
void trib_election_end_asking(trib_election *self);

/* ---- election_candidate.c ---- */
/* Members that have voted for this process have to vote again. */
void trib_election_drop_votes(trib_election *self);
/* A turn of the candidate: counts the votes when they are there, or their time has passed. */
void trib_election_stand(trib_election *self);
#endif
