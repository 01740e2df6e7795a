/*
 * tcp_backlog.c - the controller of send buffers: how much data of a connection may lie in the kernel and in the
 * network.
 *
 * Aim: priorities and weights decide the order only of data that the kernel does not have yet. A kernel lets send
 * buffers grow to megabytes. Urgent chunks then wait behind them, the chunks of one sum arrive far apart, they are all
 * that is left to do at the end of a step, and between processes of one machine the data leaves the cache before it is
 * read.
 *
 * Input: a sample of TCP_INFO now and then gives the time from the system call to the acknowledgement (delay_us) and
 * the rate (bytes_per_us). Means over all connections of the instance are kept, because these share the way out.
 *
 * Output
 * - The size of the send buffer. Small for a connection whose caller has more to send (awaits_sent), and for all while
 *   delay_us is long; otherwise large, so that a message fits in one system call. Equal sizes keep the shares of the
 *   connections equal, so the contributions to a sum arrive together. `small` halves and doubles in adapt_buffers.
 * - Pacing. Behind a slow network packets are spaced out, because a burst makes others wait for milliseconds; on a
 *   fast one the kernel's timers, and a pace that it learned under load, would only hold data up.
 * - Connections to a far peer are left to the kernel: they need more in flight than a socket may be given.
 *
 * Invariant: a buffer holds at least two packets. A receiver acknowledges the second at once, and a single one up to
 * 40 ms late, which would make any network look slow for good (the packets of a loopback device are 64 KiB).
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/tcp/tcp_internal.h"
#include "engine/base/descriptor.h"

#define WMEM_MAX_USUAL 212992u
#define BBR "bbr"

/* The controller's constants, grouped by the decision that uses them. */
static const struct backlog_tuning {
    uint32_t far_us;
    double long_us;
    uint32_t sample_bytes, sample_slow_bytes;
    double in_flight_min;
    uint32_t data_bytes, carried_bytes;
    uint32_t large_bytes, small_bytes, crowded_bytes, least_bytes, urgent_bytes;
    double crowded_long_us, crowded_short_us;
    double slow_us, slow_bytes_per_us;
    uint32_t slow_times;
    int64_t slow_for_ns;
    double fast_us, fast_bytes_per_us;
    uint32_t fast_times;
    int64_t fast_for_ns, fast_for_ns_max;
    double weight;
} tuning = {
    /* Limits of the connections whose buffers are controlled: a connection with a longer round trip is left to the
     * kernel. */
    .far_us = 2000,

    /* Samples. */
    .sample_bytes = 1u << 20,       /* written between two samples of a connection */
    .sample_slow_bytes = 32u << 10, /* sample_bytes on a slow network, where busy_ns needs to be fresh */
    .in_flight_min = 16384.0,       /* bytes in flight below which a sample says nothing about the path */
    .data_bytes = 4096,             /* smaller writes may be control frames only */
    .carried_bytes = 32u << 10,     /* data after which a connection counts as carrying; well before its first sample */
    .weight = 8.0,                  /* weight of the running mean against a new sample */

    /* Sizes of send buffers, as the kernel counts them. */
    .large_bytes = 512u << 10, /* send buffer of a connection that waits for an answer now and then */
    /* send buffer of a connection with more to send: two of the largest packets with their bookkeeping */
    .small_bytes = 128u << 10,
    .crowded_bytes = 64u << 10, /* small_bytes if the process's reactors crowd one link */
    .least_bytes = 32u << 10,   /* small_bytes behind a slow link */
    .urgent_bytes = 32u << 10,

    /* When a wait, from the system call to the acknowledgement, is too long. */
    .long_us = 1000.0,
    /* Several reactors fill one link, and each adds the buffers of its connections: with small ones 0.9 ms at 10
     * Gbit/s with four reactors and four peers. Half of that carries as much. At 25 Gbit/s neither bound is met. */
    .crowded_long_us = 600.0,
    .crowded_short_us = 250.0, /* below it the small size grows back */

    /* When the network counts as slow. The rate is that of all reactors: 3.6 Gbit/s. At 10 Gbit/s pacing would
     * double the time of 1 MiB, at 1 Gbit/s it saves some. A machine that is late once makes any link look slow, so
     * it takes several samples in a row, and some time. */
    .slow_us = 2000.0,
    .slow_bytes_per_us = 450.0,
    .slow_times = 6,
    .slow_for_ns = 100 * INT64_C(1000000),

    /* When it counts as fast again. While little is sent, or short bursts, any link looks fast, and until it has
     * been found slow again too much data is under way. So this takes ten times as long, and twice as long after
     * each relapse. */
    .fast_us = 1000.0,
    .fast_bytes_per_us = 562.5, /* 5/4 of the bound for slow */
    .fast_times = 64,
    .fast_for_ns = 1000 * INT64_C(1000000),
    .fast_for_ns_max = 64000 * INT64_C(1000000),
};

/* Returns the largest send buffer that the kernel gives, in its own count: it doubles the size that a program asks for,
 * and counts the bookkeeping of packets against it. */
static uint32_t find_size_max(void)
{
    unsigned long bytes = WMEM_MAX_USUAL;
    FILE *file = trib_descriptor_open_text("/proc/sys/net/core/wmem_max");
    if (file != NULL) {
        char line[32];
        const char *text = fgets(line, sizeof line, file);
        const unsigned long found = text != NULL ? strtoul(line, NULL, 10) : 0;
        bytes = found > 0 ? found : bytes;
        fclose(file);
    }
    return bytes > tuning.large_bytes / 2 ? tuning.large_bytes : (uint32_t)bytes * 2;
}

void trib_tcp_backlog_open(tcp_backlog *backlog, uint32_t reactors)
{
    *backlog = (tcp_backlog){.reactors = reactors > 0 ? reactors : 1};
    backlog->large = find_size_max();
    backlog->small = backlog->large < tuning.small_bytes ? backlog->large : tuning.small_bytes;
}

static bool query_kernel(const tcp_conn *conn, struct tcp_info *info)
{
    socklen_t size = sizeof *info;
    *info = (struct tcp_info){.tcpi_rtt = 0};
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    return getsockopt(conn->io.fd, IPPROTO_TCP, TCP_INFO, info, &size) == 0;
}

static void resize_send_buffer(tcp_conn *conn, uint32_t size)
{
    if (size != conn->backlog_size) {
        const int half = (int)(size / 2);
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        (void)setsockopt(conn->io.fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
        conn->backlog_size = size;
    }
}

/* BBR suits long paths. Between near hosts its estimate of the shortest round trip (a few microseconds) comes from a
 * moment without queues, and its estimate of the rate from a moment with little to send; a chunk can then wait for
 * tens of milliseconds. A socket that began with BBR keeps its pacing timers even under another algorithm. So every
 * socket begins with another one, and connections to far peers get BBR back. If the kernel refuses the change, its
 * choice stays. */
void trib_tcp_backlog_prepare(tcp_transport *transport, int fd)
{
    static const char *const choices[] = {"cubic", "reno"};
    char name[16] = "";
    socklen_t size = sizeof name - 1;
    trib_counter_add(&transport->stats.system_calls, 1);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0 || strcmp(name, BBR) != 0) {
        return;
    }
    bool replaced = false;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && !replaced; i++) {
        trib_counter_add(&transport->stats.system_calls, 1);
        replaced = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, choices[i], (socklen_t)strlen(choices[i])) == 0;
    }
    transport->backlog.replaced_bbr = transport->backlog.replaced_bbr || replaced;
}

/* True if both ends have the same address. */
static bool is_same_host(const tcp_conn *conn)
{
    struct sockaddr_storage here, there;
    socklen_t here_size = sizeof here, there_size = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    trib_counter_add(&conn->transport->stats.system_calls, 2);
    if (getsockname(conn->io.fd, (struct sockaddr *)&here, &here_size) != 0 ||
        getpeername(conn->io.fd, (struct sockaddr *)&there, &there_size) != 0 || here.ss_family != there.ss_family) {
        return false;
    }
    if (here.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&here, *b = (const struct sockaddr_in6 *)&there;
        return memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
    }
    const struct sockaddr_in *a = (const struct sockaddr_in *)&here, *b = (const struct sockaddr_in *)&there;
    return a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* The kernel spaces packets out evenly if the socket has a maximum pacing rate; this one is so high that it never
 * limits. Once begun, the kernel goes on pacing even without a maximum, and on fast links its timers cost more than
 * the pacing gains, so it is switched off with a rate of 0. Connections within a host and urgent ones (which carry
 * little) are not paced. */
static void set_pacing(tcp_conn *conn, bool paced)
{
    if (conn->is_paced == paced || conn->base.path == TRIB_PATH_MACHINE || (paced && conn->is_urgent)) {
        return;
    }
    conn->is_paced = paced;
    const unsigned long bytes_per_s = paced ? 1ul << (8 * sizeof(unsigned long) - 2) : 0;
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    (void)setsockopt(conn->io.fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof bytes_per_s);
}

void trib_tcp_backlog_begin(tcp_conn *conn)
{
    struct tcp_info info;
    conn->base.path = is_same_host(conn) ? TRIB_PATH_MACHINE : TRIB_PATH_NETWORK;
    if (!query_kernel(conn, &info)) {
        return;
    }
    if (info.tcpi_rtt >= tuning.far_us) {
        if (conn->transport->backlog.replaced_bbr) {
            trib_counter_add(&conn->transport->stats.system_calls, 1);
            (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_CONGESTION, BBR, sizeof BBR - 1);
        }
        return;
    }
    conn->backlog_left = tuning.sample_bytes / 8; /* a first sample soon */
    conn->backlog_least = info.tcpi_snd_mss > tuning.least_bytes / 2 ? tuning.small_bytes : tuning.least_bytes;
    resize_send_buffer(conn, conn->transport->backlog.large);
}

void trib_tcp_backlog_fit(tcp_conn *conn)
{
    const tcp_backlog *backlog = &conn->transport->backlog;
    if (conn->base.urgent && !conn->is_urgent) {
        /* Queues of this host that know priorities let urgent packets pass. 6 is the highest priority without a
         * privilege. */
        const int priority = 6;
        conn->is_urgent = true;
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        (void)setsockopt(conn->io.fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
    }
    if (conn->backlog_size != 0) {
        set_pacing(conn, backlog->paces);
        const bool more = conn->base.awaits_sent != NULL && *conn->base.awaits_sent;
        const uint32_t size = conn->base.urgent                            ? tuning.urgent_bytes
                              : more || backlog->delay_us > tuning.long_us ? backlog->small
                                                                           : backlog->large;
        const uint32_t least = conn->backlog_least < backlog->large ? conn->backlog_least : backlog->large;
        resize_send_buffer(conn, size > least ? size : least);
    }
}

/* Where several reactors share the way out: halves the small size while data waits too long in the buffers, and doubles
 * it again when the wait is short. A single reactor's buffers stay, also while urgent data waits behind them: where
 * connections have different shares (dedicated servers beside workers that sum), one with a large share cannot fill
 * its own from a smaller buffer, and the whole step takes longer by more than the urgent data gains. */
static void adapt_buffers(tcp_backlog *backlog)
{
    if (backlog->reactors == 1) {
        return;
    }
    const bool is_crowded = backlog->delay_us > tuning.crowded_long_us;
    const uint32_t least = backlog->paces ? tuning.least_bytes : is_crowded ? tuning.crowded_bytes : tuning.small_bytes;
    if (backlog->small > least) {
        backlog->small /= 2;
        backlog->delay_us /= 2;
    } else if (backlog->delay_us < tuning.crowded_short_us && backlog->small < tuning.small_bytes &&
               backlog->small < backlog->large) {
        backlog->small *= 2;
    }
}

/* A receiver with nothing to send acknowledges the last packet before a pause up to 40 ms late, and the kernel
 * counts that as a round trip. One such sample distorts the mean for a while; the deviation then exceeds the mean. */
bool trib_tcp_rtt_is_reliable(uint32_t rtt_us, uint32_t deviation_us)
{
    return rtt_us > 0 && deviation_us < rtt_us;
}

/* The kernel derives its pace from the mean round trip, so an acknowledgement that is late in a pause makes it slow
 * afterwards. TCP_QUICKACK sends the acknowledgement now. */
void trib_tcp_backlog_read_all(const tcp_conn *conn)
{
    if (conn->transport->backlog.paces && conn->base.path == TRIB_PATH_NETWORK) {
        const int on = 1;
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    }
}

/* True if the network has looked different from the current verdict for that many samples in a row and for that
 * long. */
static bool has_changed(tcp_backlog *backlog, int64_t now_ns, bool looks_different, uint32_t times, int64_t for_ns)
{
    backlog->other_since_ns = backlog->other_times == 0 ? now_ns : backlog->other_since_ns;
    backlog->other_times = looks_different ? backlog->other_times + 1 : 0;
    return backlog->other_times >= times && now_ns - backlog->other_since_ns >= for_ns;
}

static void mark_slow(tcp_backlog *backlog)
{
    const int64_t longer_ns = backlog->fast_for_ns > 0 ? backlog->fast_for_ns * 2 : tuning.fast_for_ns;
    backlog->fast_for_ns = longer_ns < tuning.fast_for_ns_max ? longer_ns : tuning.fast_for_ns_max;
    backlog->paces = true;
    backlog->other_times = 0;
}

static void mark_fast(tcp_backlog *backlog)
{
    backlog->paces = false;
    backlog->bytes_per_us = 0; /* the mean belongs to the slow time that is over */
    backlog->other_times = 0;
}

void trib_tcp_backlog_learn(tcp_backlog *backlog, int64_t now_ns, double delay_us, double bytes_per_us)
{
    backlog->delay_us += (delay_us - backlog->delay_us) / tuning.weight;
    if (delay_us > tuning.slow_us || backlog->paces) {
        const double known = backlog->bytes_per_us;
        backlog->bytes_per_us = known > 0 ? known + (bytes_per_us - known) / tuning.weight : bytes_per_us;
    }
    /* An upper bound of the rate: some connections have less to send. Connections that were not sampled yet count
     * too, because the first of many to be sampled carries only a small part of a fast link. */
    const double all = backlog->bytes_per_us * backlog->carrying * backlog->reactors;
    if (!backlog->paces) {
        const bool seems_slow = backlog->delay_us > tuning.slow_us && all < tuning.slow_bytes_per_us;
        if (has_changed(backlog, now_ns, seems_slow, tuning.slow_times, tuning.slow_for_ns)) {
            mark_slow(backlog);
        }
    } else {
        const bool seems_fast = backlog->delay_us < tuning.fast_us && all > tuning.fast_bytes_per_us;
        if (has_changed(backlog, now_ns, seems_fast, tuning.fast_times, backlog->fast_for_ns)) {
            mark_fast(backlog);
        }
    }
    adapt_buffers(backlog);
}

static void log_pacing(const tcp_conn *conn, double delay_us)
{
    const tcp_backlog *backlog = &conn->transport->backlog;
    const trib_reactor *reactor = conn->transport->base.reactor;
    if (!backlog->paces) {
        trib_log(reactor->logger, TRIB_LOG_INFO,
                 "reactor %u: the network is fast again (data is acknowledged after %.1f ms): packets are no longer "
                 "spaced out",
                 reactor->index, delay_us / 1e3);
        return;
    }
    const double carried = backlog->bytes_per_us * backlog->carrying * backlog->reactors;
    trib_log(
        reactor->logger, TRIB_LOG_INFO,
        "reactor %u: the network is slow (it carries at most %.1f Gbit/s, and data is acknowledged after %.1f ms): "
        "packets are spaced out",
        reactor->index, carried * 8 / 1e3, delay_us / 1e3);
}

void trib_tcp_backlog_end(tcp_conn *conn)
{
    conn->transport->backlog.carrying -= conn->carried >= tuning.carried_bytes;
    conn->carried = 0;
}

static void count_carrying(tcp_conn *conn, size_t written)
{
    if (conn->carried < tuning.carried_bytes && written >= tuning.data_bytes) {
        conn->carried += written < tuning.carried_bytes ? (uint32_t)written : tuning.carried_bytes;
        conn->transport->backlog.carrying += conn->carried >= tuning.carried_bytes;
    }
}

void trib_tcp_backlog_add(tcp_conn *conn, size_t written)
{
    count_carrying(conn, written);
    if (conn->backlog_size == 0 || written < conn->backlog_left) {
        conn->backlog_left -= conn->backlog_size == 0 ? 0 : (uint32_t)written;
        return;
    }
    const tcp_backlog *known = &conn->transport->backlog;
    conn->backlog_left = known->paces                       ? tuning.sample_slow_bytes
                         : known->delay_us > tuning.long_us ? tuning.sample_bytes / 4
                                                            : tuning.sample_bytes;
    struct tcp_info info;
    if (query_kernel(conn, &info)) {
        conn->base.busy_ns = known->paces ? info.tcpi_busy_time * 1000 : 0;
        /* Little's law: what is in flight is what the path carries in one round trip. */
        const double in_flight = (double)info.tcpi_unacked * info.tcpi_snd_mss;
        if (in_flight >= tuning.in_flight_min && trib_tcp_rtt_is_reliable(info.tcpi_rtt, info.tcpi_rttvar)) {
            tcp_backlog *backlog = &conn->transport->backlog;
            const double rate = in_flight / info.tcpi_rtt;
            const double delay_us = (in_flight + info.tcpi_notsent_bytes) / rate;
            const bool paced = backlog->paces;
            trib_tcp_backlog_learn(backlog, trib_now(conn->transport->base.reactor), delay_us, rate);
            conn->transport->base.is_slow = backlog->paces;
            if (backlog->paces != paced) {
                log_pacing(conn, delay_us);
            }
        }
    }
}
