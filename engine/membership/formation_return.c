/*
 * formation_return.c - which members of the last epoch may come back, and a member that has taken the coordinator for
 * lost (formation.h).
 */
#include <stdio.h>

#include "engine/membership/formation.h"

bool trib_formation_may_return(const trib_coordinator *self, uint32_t epoch, uint32_t member)
{
    const trib_formation *formation = &self->core->engine->formation;
    bool may = false;
    if (!trib_formation_gathers(self) || epoch != formation->epoch || member == TRIB_NO_MEMBER) {
        return false;
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        may = may || (trib_formation_former_id(self, i) == member && formation->expected[i] && !self->slots[i].joined);
    }
    return may;
}

bool trib_formation_member_returns(trib_coordinator *self, uint32_t epoch, uint32_t member)
{
    const bool runs = self->running && !self->over && self->roster->shrinks && epoch == self->roster->epoch;
    if (!runs || member >= trib_coordinator_slots(self) || self->slots[member].left || self->slots[member].lost) {
        return false;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%s had taken the coordinator for lost, and is back",
             trib_roster_name(self->roster, member));
    const trib_cause cause = trib_cause_note(TRIB_PEER_LOST, TRIB_NO_MEMBER, text);
    trib_formation_end_epoch(self, &cause);
    return true;
}

bool trib_formation_awaits(const trib_coordinator *self, uint32_t epoch, uint32_t member)
{
    const trib_formation *formation = &self->core->engine->formation;
    if (epoch == 0 || member == TRIB_NO_MEMBER) {
        return false;
    }
    bool awaits = self->running && !trib_epoch_is_before(epoch, self->roster->epoch);
    for (uint32_t i = 0; epoch == formation->epoch && i < trib_coordinator_slots(self); i++) {
        awaits = awaits || (self->running ? self->slots[i].info.former == member
                                          : trib_formation_former_id(self, i) == member && formation->expected[i]);
    }
    return awaits;
}
