/* contract_watch.c - see contract_watch.h. */
#include "tests/contract/contract_watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const bed *watched;
static timer_t watchdog;

static void say_peer(const peer *one, unsigned index, uint32_t number)
{
    fprintf(stderr, "# side %u, peer %u:%s%s%s%s sent %u ok, %u failed, of %u; received %u of %u asked for\n", index,
            number, one->connected ? " connected" : "", one->paused ? " paused" : "",
            one->close_called ? " close called" : "", one->closed ? " closed" : "", one->sent_ok, one->sent_failed,
            one->sent_begun, one->received, one->asked);
    if (one->connect_status != TRIB_OK || one->closed) {
        fprintf(stderr, "#   connecting: %s; the end: %s, %s\n", trib_status_name(one->connect_status),
                trib_status_name(one->closed_status), one->reason);
    }
}

/* Runs on a thread of the C library. The test has failed by now, so fields that other threads may change are read
 * without a lock. */
static void say_what_hangs(union sigval value)
{
    (void)value;
    fprintf(stderr, "# hangs for %d s\n", WATCHDOG_S);
    for (unsigned i = 0; i < 2; i++) {
        const side *one = &watched->sides[i];
        for (uint32_t p = 0; p < one->peer_count; p++) {
            say_peer(one->peers[p], i, p);
        }
        if (watched->maker->explain != NULL && one->transport != NULL) {
            watched->maker->explain(one->transport);
        }
    }
    abort();
}

void trib_bed_watch(const bed *self)
{
    watched = self;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = say_what_hangs};
    const struct itimerspec once = {.it_value.tv_sec = WATCHDOG_S};
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &watchdog), 0);
    assert_int_equal(timer_settime(watchdog, 0, &once, NULL), 0);
}

void trib_bed_watch_end(void)
{
    assert_int_equal(timer_delete(watchdog), 0);
}
