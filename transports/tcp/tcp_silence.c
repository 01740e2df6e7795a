/*
 * tcp_silence.c - when a connection whose peer acknowledges nothing is over.
 *
 * The kernel has a limit of its own (TCP_USER_TIMEOUT), but counts from the first packet that it had to send again until all
 * that was lost is made good. Behind a link that has become slow, whose queue takes longer than TCP waits between two tries,
 * that is never: what has been acknowledged meanwhile does not count, and two tries without an answer are enough. The same
 * goes for a link that fails for the second time before it has recovered. So the kernel's limit is far away, and what counts
 * is looked at here: for how long none of what is under way has been acknowledged.
 *
 * A peer that lets nothing in, because it has no room, answers the kernel's probes: that is no silence.
 *
 * Invariant: the timer runs as long as something that was written may be unacknowledged, and no longer. An idle connection costs nothing.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "transports/tcp/tcp_internal.h"

#define NS_PER_MS INT64_C(1000000)
#define CHECKS 8                /* within the time that ends a connection */
#define KERNEL_LIMIT_MS 900000u /* about as long as TCP tries where nobody has set a limit */
#define RETRY_MS_MAX 1000u      /* the least that the kernel allows */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* of Linux 6.15; older headers lack it, and older kernels refuse it */
#endif

static void limit_kernel(const tcp_conn *conn, unsigned limit_ms)
{
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

/* What fails to apply makes a loss be seen later, not wrong: results are not looked at. */
void trib_tcp_silence_open(tcp_conn *conn)
{
    const int64_t silence_ns = conn->transport->config.silence_timeout_ns;
    if (silence_ns <= 0) {
        return;
    }
    const int64_t ms = silence_ns / NS_PER_MS;
    if (conn->state == TCP_CONNECTING) {
        limit_kernel(conn, ms < 1 ? 1u : ms > INT32_MAX ? (unsigned)INT32_MAX : (unsigned)ms);
    } else {
        limit_kernel(conn, ms < KERNEL_LIMIT_MS ? KERNEL_LIMIT_MS : (unsigned)INT32_MAX);
    }
    /* TCP waits twice as long after each try: behind a link that was down for 3 s of a timeout of 6 s the next
     * try would be the one that comes too late. */
    const unsigned retry = RETRY_MS_MAX;
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &retry, sizeof retry);
}

void trib_tcp_silence_written(tcp_conn *conn)
{
    const int64_t silence_ns = conn->transport->config.silence_timeout_ns;
    if (silence_ns > 0 && !conn->silence_timer.armed) {
        trib_reactor *reactor = conn->transport->base.reactor;
        conn->silence = (tcp_silence){.since_ns = trib_now(reactor)};
        trib_timer_arm(reactor, &conn->silence_timer, conn->silence.since_ns + silence_ns / CHECKS);
    }
}

int64_t trib_tcp_silence_learn(tcp_silence *silence, int64_t now_ns, const tcp_seen *seen)
{
    if (seen->unacked == 0 && seen->probes == 0) {
        /* The peer has no room for what is left, and answered when it was asked last: the next probe may have no answer. */
        silence->since_ns = now_ns;
        silence->was_checked = true;
        silence->acked = seen->acked;
        return seen->unsent > 0 ? 0 : -1;
    }
    const int64_t acked_ns = now_ns - seen->last_ack_ms * NS_PER_MS;
    if (silence->was_checked && seen->acked != silence->acked) {
        silence->since_ns = now_ns;
    } else if ((!silence->was_checked || seen->unacked == 0) && acked_ns > silence->since_ns) {
        silence->since_ns = acked_ns;
    }
    silence->was_checked = true;
    silence->acked = seen->acked;
    return now_ns - silence->since_ns;
}

static void check_silence(trib_reactor *reactor, trib_timer *timer)
{
    tcp_conn *conn = timer->user;
    const int64_t silence_ns = conn->transport->config.silence_timeout_ns, now_ns = trib_now(reactor);
    struct tcp_info info = {.tcpi_unacked = 0};
    socklen_t size = sizeof info;
    if (conn->state != TCP_OPEN && conn->state != TCP_FLUSHING) {
        return;
    }
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    if (getsockopt(conn->io.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        return;
    }
    /* A machine that stood still has not sent either. */
    if (trib_timer_stalled_locally(reactor, timer, silence_ns / CHECKS)) {
        conn->silence.since_ns += now_ns - timer->due_ns;
    }
    const tcp_seen seen = {.unacked = info.tcpi_unacked,
                           .probes = info.tcpi_probes,
                           .unsent = info.tcpi_notsent_bytes,
                           .acked = info.tcpi_bytes_acked,
                           .last_ack_ms = info.tcpi_last_ack_recv};
    const int64_t silent_ns = trib_tcp_silence_learn(&conn->silence, now_ns, &seen);
    if (silent_ns >= silence_ns) {
        trib_tcp_conn_end_errno(conn, "connection lost", ETIMEDOUT);
    } else if (silent_ns >= 0) {
        trib_timer_arm(reactor, timer, now_ns + silence_ns / CHECKS);
    }
}

void trib_tcp_silence_init(tcp_conn *conn)
{
    conn->silence_timer.fired = check_silence;
    conn->silence_timer.user = conn;
}
