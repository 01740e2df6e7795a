/*
 * group_door_page.h - the page at the door (group_door.h): memory that the local ranks of a machine share, and what they do to it.
 * Any thread that has its rank's turn at the door may.
 */
#ifndef TRIB_ENGINE_GROUP_DOOR_PAGE_H
#define TRIB_ENGINE_GROUP_DOOR_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/device/device.h"

typedef struct trib_door_page {
    unsigned char id[TRIB_DEVICE_ID_SIZE]; /* the group's: whose page it is */
    /* From high to low: the generation that gathers (20 bits), how many before it were broken up since one was let through (20,
     * all ones: that many or more), how often somebody has gone away again (15, so that who compares wishes notices), how
     * many have come (8), and whether the one let through is steady on all (1). */
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) atomic_uint here;      /* ranks that have the page and have not left: nobody comes unless all do */
    _Alignas(64) atomic_uint elsewhere; /* ranks that have something announced to the leader: nobody comes meanwhile */
    struct {
        _Alignas(64) _Atomic uint64_t tensor_round, variant;
        atomic_bool steady;
    } ranks[TRIB_LOCAL_SIZE_MAX]; /* what who comes wants; written before it is counted */
} trib_door_page;

/* What a rank wants; all must want the same to be let through. */
typedef struct trib_door_wish {
    uint32_t tensor, round, variant;
    bool steady; /* this may be different */
} trib_door_wish;

uint32_t trib_door_generation(uint64_t state);
/* How many have come in its generation. */
uint32_t trib_door_count(uint64_t state);
/* Was the last one that was let through steady on all? */
bool trib_door_is_steady(uint64_t state);
/* Was that generation let through? If so it is the last one that was: none can be without the rank that asks. False also while it
 * gathers. */
bool trib_door_has_passed(uint64_t state, uint32_t generation);

/* All are there, and nobody has anything for the leader. */
bool trib_door_page_is_open(const trib_door_page *page, uint32_t local_size);
/* Comes in; *state_out is what it is then: with nobody counted all have been let through. False: all others are there, and want
 * something else. */
bool trib_door_page_come(trib_door_page *page, uint32_t local_size, uint32_t local_rank, const trib_door_wish *wish,
                         uint64_t *state_out);
/* Who came in that generation goes away again, if it still gathers; the others stay. What it is then. */
uint64_t trib_door_page_go(trib_door_page *page, uint32_t generation);
/* Sends those of that generation away, if it still gathers. What it is then. */
uint64_t trib_door_page_close(trib_door_page *page, uint32_t generation);
/* Sends those away who wait; false: nobody does. */
bool trib_door_page_break_up(trib_door_page *page);

#endif
