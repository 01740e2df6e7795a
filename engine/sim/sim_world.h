/* sim_world.h - functions of the world's clock for reactor_sim.c only: turns, and moving all events in time. */
#ifndef TRIB_ENGINE_SIM_SIM_WORLD_H
#define TRIB_ENGINE_SIM_SIM_WORLD_H

#include "engine/sim/reactor_sim.h"

/* Begins a turn: until it is left, time passes only as it is spent. Turns do not nest. */
void trib_sim_world_enter(trib_sim *sim);
void trib_sim_world_spend(trib_sim *sim, int64_t ns);
/* Ends the turn and returns the time that it has reached. The world's own clock is still where the turn began. */
int64_t trib_sim_world_leave(trib_sim *sim);

/* Moves every event that is set to the time that moved_to returns, or to now if that has passed. */
void trib_sim_world_move(trib_sim *sim, int64_t (*moved_to)(const trib_sim_event *event, void *argument),
                         void *argument);

#endif
