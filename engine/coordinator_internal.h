/*
 * coordinator_internal.h - what the parts of the coordinator share: coordinator.c (links and life), coordinator_gather.c
 * (until everybody is there), ledger.c (tensors). Everything is called on core 0.
 */
#ifndef TRIB_ENGINE_COORDINATOR_INTERNAL_H
#define TRIB_ENGINE_COORDINATOR_INTERNAL_H

#include "engine/coordinator.h"

/* A place in the job: the ranks, then the servers of their own. Its index is its member's id. */
typedef struct trib_coordinator_slot {
    trib_link *link;
    trib_member_info info;
    bool joined, left;
} trib_coordinator_slot;

struct trib_coordinator {
    trib_core *core;
    trib_listener *listener;
    uint32_t worker_count, server_count;
    uint32_t joined, workers_left;
    trib_coordinator_slot *slots;
    bool running, over;
    trib_timer join_deadline, heartbeat;
    trib_roster *roster; /* a copy of its own */
    trib_dealer *dealer;
    struct trib_ledger_entry *ledger;
    uint32_t ledger_count;
};

static inline uint32_t trib_coordinator_slots(const trib_coordinator *self)
{
    return self->worker_count + self->server_count;
}

/* ---- coordinator.c ---- */
void trib_coordinator_tell_end(trib_link *link, trib_status status, const char *text);
/* Tells everybody who has not left; only the first call counts. */
void trib_coordinator_end_job(trib_coordinator *self, trib_status status, const char *text);
/* The roster has been sent: begins to watch over the members. */
void trib_coordinator_run(trib_coordinator *self);

/* ---- coordinator_gather.c ---- */
/* The join_deadline timer. */
void trib_coordinator_join_deadline_passed(trib_reactor *reactor, trib_timer *timer);
TRIB_CHECKED trib_status trib_coordinator_take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                                    const void *payload, trib_error *error);

/* ---- ledger.c ---- */
TRIB_CHECKED trib_status trib_ledger_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                  const void *payload, trib_error *error);
void trib_ledger_clear(trib_coordinator *self);

#endif
