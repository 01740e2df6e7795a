/* reactor_bed.h - a reactor on libev for a test, which may take a minute at most. */
#ifndef TRIB_TESTS_UNIT_REACTOR_BED_H
#define TRIB_TESTS_UNIT_REACTOR_BED_H

#include <ev.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/reactor/reactor_ev.h"

static trib_logger logger = {.level = TRIB_LOG_WARN};

/* For pollers that ask no thread to wake the loop. */
static inline void ignore_wake_up(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    (void)poller;
}

static int setup(void **state)
{
    alarm(60);
    return trib_reactor_ev_create(0, &logger, NULL, (trib_reactor **)state) == TRIB_OK ? 0 : -1;
}

static int teardown(void **state)
{
    trib_reactor_ev_destroy(*state);
    alarm(0);
    return 0;
}

#endif
