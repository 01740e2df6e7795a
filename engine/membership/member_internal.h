/* member_internal.h - declarations that the files of the member share: member.c (control link and life), member_join.c
 * (joining). All functions are called on core 0. */
#ifndef TRIB_ENGINE_MEMBER_INTERNAL_H
#define TRIB_ENGINE_MEMBER_INTERNAL_H

#include "engine/membership/member.h"

#define TRIB_MEMBER_RETRY_NS (100 * INT64_C(1000000)) /* pause between attempts to reach the coordinator */

struct trib_member {
    trib_core *core;
    trib_link *link;          /* NULL: not connected */
    trib_address coordinator; /* addresses of the coordinator, as found last */
    bool has_tried;
    trib_timer retry, join_deadline, watch;
    bool joined;
    bool has_begun;   /* the roster was sent to this member: if it does not arrive, only a member that joins goes on */
    bool knows_begun; /* all members have the roster, and the store has its epoch if there is one */
    bool waits;       /* the job is under way, and this member joins it at a boundary */
    bool leaving;
    bool stalled_locally; /* this process was stopped before the last check of the coordinator */
    bool join_extended;   /* the join deadline has passed, and the coordinator got a short extension */
    char last_problem[TRIB_ERROR_TEXT_SIZE]; /* why the last attempt to reach the coordinator failed */
    int64_t away_since_ns; /* between epochs: since when the coordinator is out of reach; 0: it is in reach */
    /* between epochs: since when the coordinator's address refuses, as of the last attempt; 0: it does not */
    int64_t refused_since_ns;
    bool noticed;        /* the unreachable coordinator was logged before the join deadline */
    trib_cause given_up; /* why the last coordinator that was reached has ended; TRIB_OK: it has not */
};

/* True for a member that joins a job which is under way. */
static inline bool trib_member_is_joiner(const trib_engine *engine)
{
    return ((engine->config.roles & TRIB_ROLE_WORKER) != 0 && engine->config.rank < 0) || engine->member->waits;
}

/* ---- member.c ---- */
/* If this member is ready for the next epoch, tells the coordinator so. */
void trib_member_send_advance(const trib_member *member);
/* The coordinator is lost: the members elect another one, or the job ends. */
void trib_member_lose_coordinator(trib_member *member, const trib_cause *cause);
/* The upcalls of the control link. */
extern const trib_link_upcalls trib_member_upcalls;
/* How long the coordinator has not been heard, or has been out of reach. */
int64_t trib_member_coordinator_silence(const trib_member *member);
/* Runs when the watch timer fires, from the arrival of the roster on. */
void trib_member_watch_coordinator(trib_reactor *reactor, trib_timer *timer);

/* ---- member_join.c ---- */
/* Runs when the retry timer fires. */
void trib_member_try_to_connect(trib_reactor *reactor, trib_timer *timer);
/* Runs when the join_deadline timer fires. */
void trib_member_join_deadline_passed(trib_reactor *reactor, trib_timer *timer);
/* Ends the engine: the link to the coordinator has ended before the member joined, and another try would not help. */
void trib_member_fail_to_join(trib_member *member, trib_status status, const char *why);
/* Looks the coordinator's name up again, because it is out of reach and may have other addresses by now. */
void trib_member_resolve_coordinator(trib_member *member);
/* A PING says whether this member waits for a boundary of a job that is under way. */
void trib_member_note_waits(trib_member *member, bool waits);
/* Between two epochs the coordinator closes its links itself, and is back soon. Returns true if it is not. */
bool trib_member_is_away_too_long(trib_member *member, const trib_link *link);
/* A member that waits to join has all of the join timeout again to find a coordinator. */
void trib_member_search_anew(trib_member *member);
/* The coordinator at which this process waited to join has ended for that cause. If the others may go on without it,
 * true is returned, and theirs is looked for until the join timeout has passed since then: at other addresses, or at
 * the same one, which is free now. */
bool trib_member_looks_elsewhere(trib_member *member, const trib_cause *cause);
/* The control link is up: sends JOIN. */
void trib_member_link_ready(trib_link *link);
TRIB_CHECKED trib_status trib_member_take_roster(trib_member *member, const trib_frame *frame, const void *payload,
                                                 trib_error *error);

#endif
