/* reactor_hand.h - a reactor that a test turns by hand, under a clock that the test moves. So the order in which
 * reactors run, and how long one stands still, are the same in every run. */
#ifndef TRIB_TESTS_REACTOR_HAND_H
#define TRIB_TESTS_REACTOR_HAND_H

#include "engine/reactor/reactor.h"

#define HAND_TIMERS_MAX 256u
#define HAND_IOS_MAX 32u

typedef struct reactor_hand {
    trib_reactor base;       /* first */
    const int64_t *clock_ns; /* several may have the same */
    trib_timer *timers[HAND_TIMERS_MAX];
    uint32_t timer_count;
    trib_io *ios[HAND_IOS_MAX];
    uint32_t io_count;
} reactor_hand;

void reactor_hand_init(reactor_hand *self, uint32_t index, trib_logger *logger, const int64_t *clock_ns);
/* Handles all input, due timers and deferred posts until nothing is left. Never waits. */
void reactor_hand_turn(reactor_hand *self);

#endif
