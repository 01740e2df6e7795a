/* contract_watch.c - see contract_watch.h. */
#include "tests/contract/contract_watch.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define FRAMES_MAX 32

static const bed *watched;

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

/* Whoever hangs has lost: what another thread may change meanwhile is read all the same. */
static void say_what_hangs(int number)
{
    fprintf(stderr, "# hangs for %u s\n", WATCHDOG_S);
    for (unsigned i = 0; i < 2; i++) {
        const side *one = &watched->sides[i];
        for (uint32_t p = 0; p < one->peer_count; p++) {
            say_peer(one->peers[p], i, p);
        }
        if (watched->maker->explain != NULL && one->transport != NULL) {
            watched->maker->explain(one->transport);
        }
    }
    void *frames[FRAMES_MAX];
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

void trib_bed_watch(const bed *self)
{
    watched = self;
    signal(SIGALRM, say_what_hangs);
    alarm(WATCHDOG_S);
}

void trib_bed_watch_end(void)
{
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}
