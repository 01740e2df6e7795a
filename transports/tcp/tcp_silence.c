/*
 * tcp_silence.c - ends a connection whose peer acknowledges nothing for too long, and sends nothing.
 *
 * The kernel's own limit (TCP_USER_TIMEOUT) counts from the first retransmission until everything that was lost has
 * arrived. Behind a link that has become slow, or that fails a second time before it has recovered, this time never
 * restarts: what is acknowledged meanwhile does not count, and two unanswered retries end the connection. So the
 * kernel's limit is set far away, and this file measures what matters: the time during which none of the data under
 * way was acknowledged.
 *
 * A packet behind a lost one counts, too, if the peer says that it has it. Data from the peer counts as life: its
 * acknowledgements may wait in the queue of a narrow link. If nothing of this side arrives there, the peer's own data
 * is not acknowledged either, and soon it sends nothing new.
 *
 * Behind a narrow link a round trip may take seconds, and another handshake takes three of them. So the limit grows
 * with the round trip, up to the double. A link may become narrow at once, before any round trip tells: a connection
 * whose end would cost the job a member is patient.
 *
 * A peer whose receive window is closed answers the kernel's probes, which is not silence.
 *
 * Invariant: the timer runs exactly while something that was written may be unacknowledged. An idle connection costs
 * nothing.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "transports/tcp/tcp_internal.h"

#define NS_PER_MS INT64_C(1000000)
#define CHECKS 8                /* checks within the time that ends a connection */
#define KERNEL_LIMIT_MS 900000u /* about as long as TCP retries without a limit */
#define RETRY_MS_MAX 1000u      /* the smallest value that the kernel allows */
#define LATE_ROUND_TRIPS 2      /* until a packet that was lost, and sent again, is acknowledged */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* since Linux 6.15; older headers lack it, older kernels refuse it */
#endif

static void limit_kernel(const tcp_conn *conn, unsigned limit_ms)
{
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

/* The results are ignored: without these options a loss is noticed later, not wrongly. */
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
    /* TCP doubles the time between retries: after 3 s of an outage, with a limit of 6 s, the next retry could come
     * too late. */
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
        /* The peer has no room and has answered the last probe; the next probe may go unanswered. */
        silence->since_ns = now_ns;
        silence->was_checked = true;
        silence->acked = seen->acked;
        silence->received = seen->received;
        silence->delivered = seen->delivered;
        return seen->unsent > 0 ? 0 : -1;
    }
    const bool is_alive =
        seen->acked != silence->acked || seen->delivered != silence->delivered || seen->received != silence->received;
    const int64_t acked_ns = now_ns - seen->last_ack_ms * NS_PER_MS;
    if (silence->was_checked && is_alive) {
        silence->since_ns = now_ns;
    } else if ((!silence->was_checked || seen->unacked == 0) && acked_ns > silence->since_ns) {
        silence->since_ns = acked_ns;
    }
    silence->was_checked = true;
    silence->acked = seen->acked;
    silence->received = seen->received;
    silence->delivered = seen->delivered;
    return now_ns - silence->since_ns;
}

int64_t trib_tcp_silence_limit(int64_t silence_ns, bool patient, uint32_t rtt_us)
{
    const int64_t late_ns = LATE_ROUND_TRIPS * INT64_C(1000) * rtt_us;
    return (patient ? 2 : 1) * silence_ns + (late_ns < silence_ns ? late_ns : silence_ns);
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
    /* If this process stood still it did not send either, so that time does not count. */
    if (trib_timer_stalled_locally(reactor, timer, silence_ns / CHECKS)) {
        conn->silence.since_ns += now_ns - timer->due_ns;
    }
    const tcp_seen seen = {.unacked = info.tcpi_unacked,
                           .probes = info.tcpi_probes,
                           .unsent = info.tcpi_notsent_bytes,
                           .acked = info.tcpi_bytes_acked,
                           .received = info.tcpi_bytes_received,
                           .delivered = info.tcpi_delivered,
                           .last_ack_ms = info.tcpi_last_ack_recv};
    const int64_t silent_ns = trib_tcp_silence_learn(&conn->silence, now_ns, &seen);
    if (silent_ns >= trib_tcp_silence_limit(silence_ns, conn->base.patient, info.tcpi_rtt)) {
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
