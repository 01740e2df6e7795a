/*
 * formation.h - a process's state of the membership between two epochs, in a job that goes on after the loss of a
 * worker (TRIB_SURVIVE=workers): whether the membership changes, the program's request to advance, and in the
 * coordinator's process the members that are expected.
 *
 * An epoch ends on all members alike (ENDED with TRIB_ENDED_CHANGES). Each closes all connections, and is opened again
 * on the same reactors (engine/reopen.h). It joins anew under its former id, and waits there for its program. When all
 * that are left have called trib_membership_advance, the coordinator deals out ranks and sends the next roster.
 */
#ifndef TRIB_ENGINE_FORMATION_H
#define TRIB_ENGINE_FORMATION_H

#include "api/tributary.h"
#include "engine/base/limits.h"
#include "engine/reactor/reactor.h"
#include "engine/wire/wire.h"

typedef struct trib_formation {
    /* The coordinator's process, core 0. */
    uint32_t epoch;                      /* of the last roster; 0: none yet */
    struct trib_roster *kept;            /* that roster, in a process that is no member; else the engine has it */
    uint32_t worker_count, server_count; /* workers and servers of that epoch */
    bool *expected;                      /* by former member id: it has not been lost (membership/formation.h) */
    uint32_t electors_before, newcomers; /* as in the roster of that epoch */
    uint32_t joined_last;                /* workers that join the epoch that is being formed */
    uint32_t joiners;                    /* workers and servers that asked to join while the epoch was running */
    uint32_t first_joiner;               /* the place of the first one that joins, behind the former workers */
    uint32_t new_servers;                /* servers new in that epoch, as its roster says */
    uint32_t servers_joined_last;        /* servers that join the epoch that is being formed */
    uint32_t first_new_server;           /* the place of the first server that joins, behind the former ones */
    uint32_t lost;                       /* members lost since then */
    char lost_text[TRIB_ERROR_TEXT_SIZE];
    uint32_t electors;   /* members of that epoch that had not left in good order when it ended */
    uint32_t ranks_used; /* ranks given so far, as the roster of that epoch says */
    bool admits;         /* workers may join the next epoch */
    uint32_t ballot;     /* ballot of this coordinator, if it was elected for the next epoch; else 0 */
    /* Every member, core 0: state that an election asks for (membership/election.h). */
    atomic_bool coordinates;  /* this process keeps the membership; any thread reads it */
    bool is_known;            /* all members have the last roster */
    bool is_settled;          /* it is decided which operations of the last epoch have succeeded */
    bool at_boundary;         /* the epoch has ended because all workers have asked for it */
    struct trib_op *carried;  /* operations that go on in the next epoch (worker/op_carry.h) */
    struct trib_op *spent;    /* operations that have failed here, and are not over on all workers */
    uint32_t settled_ballot;  /* ballot of the coordinator that decided it; 0: the coordinator of that epoch */
    uint64_t confirmed;       /* the ticket of the last epoch that is known to have begun (membership/tenure.h) */
    uint32_t over;            /* an epoch before it: a record of that one, or of an earlier one, is old; 0: none */
    bool moved;               /* the coordinator is not the one that the settings name */
    uint32_t lost_last;       /* id, plus one, of the member whose loss has ended the last epoch; 0: none */
    bool *gone;               /* by id: members that the last epoch has let go in good order */
    uint32_t place;           /* this member's id in the last roster */
    uint32_t *committed;      /* by a tensor's id: the last round that succeeded in that epoch */
    uint32_t committed_count; /* number of tensors in `committed` */
    atomic_bool continues;    /* operations go on in the next epoch: this change asks nothing of the program */
    /* Guarded by the engine's mutex. */
    bool parks; /* operations that are submitted wait in this list until the cores are open again */
    struct trib_op *parked, **parked_last;
    bool passed_boundary;          /* a loss cut short the epoch behind a boundary before this process had joined it */
    bool reopens;                  /* all cores have closed, and are being opened again */
    bool advances, advance_posted; /* the program has called trib_membership_advance, and waits */
    trib_membership_cb advanced_cb, changed_cb;
    void *advanced_user, *changed_user;
    trib_status told;                     /* status for advanced_cb */
    bool advanced_queued, changed_queued; /* these posts wait for their turn */
    trib_post advanced_post, changed_post, advance_post, reopen_post;
    atomic_uint cores_kept; /* cores that have closed, and are to be opened again */
    atomic_uint cores_left; /* cores that are yet to be opened again */
} trib_formation;

/* Notes an epoch that is over, and whose roster is not kept; 0: has no effect. */
static inline void trib_formation_note_over(trib_formation *formation, uint32_t epoch)
{
    if (epoch != 0 && (formation->over == 0 || trib_epoch_is_before(formation->over, epoch))) {
        formation->over = epoch;
    }
}

#endif
