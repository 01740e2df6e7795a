/* losses.h - the servers that a job has lost, or let go, and goes on without, in the order in which the coordinator has
 * said so. Core 0 writes it, any thread reads it. */
#ifndef TRIB_ENGINE_LOSSES_H
#define TRIB_ENGINE_LOSSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/tributary.h"
#include "engine/reactor/reactor.h"

typedef struct trib_losses {
    atomic_uint capacity; /* members of the roster; 0 until it arrives */
    uint16_t *order;      /* the first `count` are valid */
    atomic_uint count;
    atomic_bool *suspected; /* by member: some core has lost its link to it, and the coordinator was asked */
    atomic_bool *doubted; /* by member: some core does not reach it, and still tries, which the coordinator was told */
    trib_post ask_post;
    atomic_bool ask_posted;
    /* for each loss, in that order: number of cores that have nothing to do with the server any more */
    atomic_uint *taken_by;
    trib_post taken_post;
    atomic_bool taken_posted;
    /* This process is a server and has asked to be let go, so workers that end their connections are not lost. */
    atomic_bool drains;
    trib_post drain_post;
    atomic_bool drain_posted;
} trib_losses;

/* Called once, when the roster arrives. Fails with TRIB_NO_MEMORY only. */
TRIB_CHECKED trib_status trib_losses_open(trib_losses *losses, uint32_t members);
void trib_losses_close(trib_losses *losses);
/* Core 0. The member must not have been lost before. */
void trib_losses_add(trib_losses *losses, uint32_t member);
/* True if the coordinator has said that the member is lost. */
bool trib_losses_has(const trib_losses *losses, uint32_t member);
/* True if the member is among the first `first` losses. */
bool trib_losses_has_among(const trib_losses *losses, uint32_t first, uint32_t member);
/* Any core: this core has nothing to do any more with the server of that loss. Each core calls it once for each loss,
 * in order. */
void trib_losses_take(trib_losses *losses, uint32_t number);
/* The number of losses, from the first on, that all cores have taken. */
uint32_t trib_losses_taken(const trib_losses *losses, uint32_t core_count);

#endif
