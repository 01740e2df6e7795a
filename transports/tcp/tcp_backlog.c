/*
 * tcp_backlog.c - how much of a connection's data may lie in the kernel and in the network's queues.
 *
 * A kernel lets send buffers grow to megabytes. What lies there is beyond the reach of priorities and shares: urgent chunks
 * wait behind it, the chunks of one sum arrive far apart, at the end of a step it is all that is left to do; and between
 * processes of one machine it leaves the cache before it is read. So a connection whose caller has more to send than its
 * credit allows gets a small send buffer, and so do all as long as what they have under way takes long to be acknowledged.
 * Who sends a little and then waits for the answer gets a larger one, which takes it in one system call.
 *
 * Two packets at least fit in: a receiver acknowledges the second at once, and a single one up to 40 ms late. Where packets are
 * as large as those of a loopback device a smaller buffer would carry one in that time, and make the network look slow for good.
 *
 * The connections of a transport share the way out as their buffers are large. With buffers of one size, what is sent in
 * shares arrives in shares, and the contributions to a sum come together.
 *
 * Where the way out is slow, what leaves in heaps makes others wait for milliseconds: packets are spaced out there. Where it
 * is fast the kernel's timers, and a pace that it has learned while much was under way, hold up what could go at once.
 *
 * Connections to a far peer are left to the kernel: what is under way there is more than a socket may be given.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/tcp/tcp_internal.h"

#define FAR_US 2000u              /* round trips that take longer */
#define LONG_US 1000.0            /* from the system call to the acknowledgement */
#define URGENT_LONG_US 3000.0     /* ... where something urgent may be waiting for it */
#define SAMPLE_BYTES (1u << 20)   /* a connection is asked once in so much */
#define SAMPLE_SLOW (32u << 10)   /* ... where it is to be known for how long it was busy */
#define IN_FLIGHT_MIN 16384.0     /* less says nothing */
#define DATA_BYTES 4096u          /* written at a time; less may be control frames */
#define CARRIED_BYTES (32u << 10) /* long before it is asked first */
#define BUFFER_SMALL (128u << 10) /* two of the largest packets of the kernel's own, with what it keeps about them */
#define BUFFER_LARGE (512u << 10)
#define BUFFER_LEAST (32u << 10)
#define BUFFER_URGENT BUFFER_LEAST
/* Where several reactors fill one link each adds its connections' buffers, and what they take is so many times as long: at 10
 * Gbit/s, with four reactors and four peers, 0.9 ms with small ones. Half of that is as good, and neither is there at 25 Gbit/s. */
#define CROWDED_LONG_US 600.0
#define CROWDED_SHORT_US 250.0
#define BUFFER_CROWDED (BUFFER_SMALL / 2)
/* What a slow link takes so long for, and carries for all reactors: at 10 Gbit/s 1 MiB would take twice the time with pacing, at 1
 * Gbit/s it takes less. A machine that is late for once makes any link look slow: it has to look so so many times in a row, and
 * for so long. */
#define SLOW_US 2000.0
#define SLOW_BYTES_PER_US 450.0
#define SLOW_TIMES 6u
#define SLOW_FOR_NS (100 * INT64_C(1000000))
/* A link that was narrow for a while, or that others used, is free again. But as long as little is to be sent, or what is sent
 * passes as a burst, any link looks fast, and until it has shown again that it is slow too much is under way. So this takes ten
 * times as long to be believed, and twice as long after each time that it was. */
#define FAST_US LONG_US
#define FAST_BYTES_PER_US (SLOW_BYTES_PER_US * 5 / 4)
#define FAST_TIMES 64u
#define FAST_FOR_NS (10 * SLOW_FOR_NS)
#define FAST_FOR_NS_MAX (64 * FAST_FOR_NS)
#define WEIGHT 8.0 /* of what was known against what is learned */
#define WMEM_MAX_USUAL 212992u
#define BBR "bbr"

/* The kernel counts what a packet takes in memory against the size, and takes twice the size that it is told. */
static uint32_t most_allowed(void)
{
    unsigned long bytes = WMEM_MAX_USUAL;
    FILE *file = fopen("/proc/sys/net/core/wmem_max", "re");
    if (file != NULL) {
        char line[32];
        const char *text = fgets(line, sizeof line, file);
        const unsigned long found = text != NULL ? strtoul(line, NULL, 10) : 0;
        bytes = found > 0 ? found : bytes;
        fclose(file);
    }
    return bytes > BUFFER_LARGE / 2 ? BUFFER_LARGE : (uint32_t)bytes * 2;
}

void trib_tcp_backlog_open(tcp_backlog *backlog, uint32_t reactors)
{
    *backlog = (tcp_backlog){.reactors = reactors > 0 ? reactors : 1};
    backlog->large = most_allowed();
    backlog->small = backlog->large < BUFFER_SMALL ? backlog->large : BUFFER_SMALL;
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

/*
 * BBR is made for long paths. Between near hosts its idea of the shortest round trip is a few microseconds, from a moment when
 * no queue was there, and its idea of the rate is from a moment when little was to be sent; then it lets a chunk wait for
 * tens of milliseconds. A socket that has begun with BBR keeps its pacing timers whatever it is told later, so it begins
 * without, and far ones get it. What the kernel does not let us choose stays as it is.
 */
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

/* Both ends have one address. */
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

/* Packets leave evenly, as the congestion window lets them, rather than in heaps that others queue behind: a highest rate asks
 * for that, and this one is out of reach. A kernel that has begun with it goes on, with no highest rate, too, and where links are
 * fast its timers cost more than what else is given back gains. With one of 0 it goes without pauses. Within a host there is
 * nobody to be kind to, and what is urgent is small. */
static void ask_for_pacing(tcp_conn *conn, bool paced)
{
    if (conn->is_paced == paced || conn->is_same_host || (paced && conn->is_urgent)) {
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
    if (!query_kernel(conn, &info)) {
        return;
    }
    if (info.tcpi_rtt >= FAR_US) {
        if (conn->transport->backlog.replaced_bbr) {
            trib_counter_add(&conn->transport->stats.system_calls, 1);
            (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_CONGESTION, BBR, sizeof BBR - 1);
        }
        return;
    }
    conn->is_same_host = is_same_host(conn);
    conn->backlog_left = SAMPLE_BYTES / 8; /* something is to be known soon */
    conn->backlog_least = info.tcpi_snd_mss > BUFFER_LEAST / 2 ? BUFFER_SMALL : BUFFER_LEAST;
    resize_send_buffer(conn, conn->transport->backlog.large);
}

void trib_tcp_backlog_fit(tcp_conn *conn)
{
    const tcp_backlog *backlog = &conn->transport->backlog;
    if (conn->base.urgent && !conn->is_urgent) {
        /* Queues of this host that know of priorities let it pass. 6 is the highest that needs no privilege. */
        const int priority = 6;
        conn->is_urgent = conn->transport->backlog.has_urgent = true;
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        (void)setsockopt(conn->io.fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
    }
    if (conn->backlog_size != 0) {
        ask_for_pacing(conn, backlog->paces);
        const bool more = conn->base.awaits_sent != NULL && *conn->base.awaits_sent;
        const uint32_t size = conn->base.urgent                     ? BUFFER_URGENT
                              : more || backlog->delay_us > LONG_US ? backlog->small
                                                                    : backlog->large;
        const uint32_t least = conn->backlog_least < backlog->large ? conn->backlog_least : backlog->large;
        resize_send_buffer(conn, size > least ? size : least);
    }
}

/* Where links are slow, or many connections share one, what is small elsewhere takes long. */
static void adapt_buffers(tcp_backlog *backlog)
{
    const bool urgent_waits = backlog->has_urgent && backlog->delay_us > URGENT_LONG_US;
    const bool has_others = backlog->reactors > 1;
    const bool is_crowded = has_others && backlog->delay_us > CROWDED_LONG_US;
    const bool is_slow = has_others && backlog->paces;
    if (backlog->small > (urgent_waits || is_slow ? BUFFER_LEAST : is_crowded ? BUFFER_CROWDED : BUFFER_SMALL)) {
        backlog->small /= 2;
        backlog->delay_us /= 2;
    } else if (backlog->delay_us < (has_others ? CROWDED_SHORT_US : LONG_US) && backlog->small < BUFFER_SMALL &&
               backlog->small < backlog->large) {
        backlog->small *= 2;
    }
}

/*
 * A receiver that has nothing to say acknowledges the last packet before a pause up to 40 ms late, and the kernel takes that for
 * a round trip. It is one of many in the mean, and goes out of it within some more, but the deviation tells.
 */
bool trib_tcp_backlog_believes(uint32_t rtt_us, uint32_t deviation_us)
{
    return rtt_us > 0 && deviation_us < rtt_us;
}

/* The kernel paces by the mean, so what was late in a pause makes it slow after it. Asked for, the acknowledgement goes out now. */
void trib_tcp_backlog_read_all(const tcp_conn *conn)
{
    if (conn->transport->backlog.paces && !conn->is_same_host) {
        const int on = 1;
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        (void)setsockopt(conn->io.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    }
}

/* The network has looked other than it is taken for so many times in a row, and for so long. */
static bool is_other(tcp_backlog *backlog, int64_t now_ns, bool seems_other, uint32_t times, int64_t for_ns)
{
    backlog->other_since_ns = backlog->other_times == 0 ? now_ns : backlog->other_since_ns;
    backlog->other_times = seems_other ? backlog->other_times + 1 : 0;
    return backlog->other_times >= times && now_ns - backlog->other_since_ns >= for_ns;
}

static void take_for_slow(tcp_backlog *backlog)
{
    const int64_t longer_ns = backlog->fast_for_ns > 0 ? backlog->fast_for_ns * 2 : FAST_FOR_NS;
    backlog->fast_for_ns = longer_ns < FAST_FOR_NS_MAX ? longer_ns : FAST_FOR_NS_MAX;
    backlog->paces = true;
    backlog->other_times = 0;
}

static void take_for_fast(tcp_backlog *backlog)
{
    backlog->paces = false;
    backlog->bytes_per_us = 0; /* of a time in which it was fast: the next slow one begins anew */
    backlog->other_times = 0;
}

void trib_tcp_backlog_learn(tcp_backlog *backlog, int64_t now_ns, double delay_us, double bytes_per_us)
{
    backlog->delay_us += (delay_us - backlog->delay_us) / WEIGHT;
    if (delay_us > SLOW_US || backlog->paces) {
        const double known = backlog->bytes_per_us;
        backlog->bytes_per_us = known > 0 ? known + (bytes_per_us - known) / WEIGHT : bytes_per_us;
    }
    /* As if all connections carried as much: more than they do where some have little to send. Those that have not been asked
     * yet, too: the first to be asked of many carries but a small part of a fast link. */
    const double all = backlog->bytes_per_us * backlog->carrying * backlog->reactors;
    if (!backlog->paces) {
        const bool seems_slow = backlog->delay_us > SLOW_US && all < SLOW_BYTES_PER_US;
        if (is_other(backlog, now_ns, seems_slow, SLOW_TIMES, SLOW_FOR_NS)) {
            take_for_slow(backlog);
        }
    } else {
        const bool seems_fast = backlog->delay_us < FAST_US && all > FAST_BYTES_PER_US;
        if (is_other(backlog, now_ns, seems_fast, FAST_TIMES, backlog->fast_for_ns)) {
            take_for_fast(backlog);
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
                 "reactor %u: the network is not slow any more (data is acknowledged after %.1f ms)", reactor->index,
                 delay_us / 1e3);
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
    conn->transport->backlog.carrying -= conn->carried >= CARRIED_BYTES;
    conn->carried = 0;
}

static void count_carrying(tcp_conn *conn, size_t written)
{
    if (conn->carried < CARRIED_BYTES && written >= DATA_BYTES) {
        conn->carried += written < CARRIED_BYTES ? (uint32_t)written : CARRIED_BYTES;
        conn->transport->backlog.carrying += conn->carried >= CARRIED_BYTES;
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
    conn->backlog_left = known->paces ? SAMPLE_SLOW : known->delay_us > LONG_US ? SAMPLE_BYTES / 4 : SAMPLE_BYTES;
    struct tcp_info info;
    if (query_kernel(conn, &info)) {
        conn->base.busy_ns = known->paces ? info.tcpi_busy_time * 1000 : 0;
        /* By Little's law the path carries in a round trip what is in flight. */
        const double in_flight = (double)info.tcpi_unacked * info.tcpi_snd_mss;
        if (in_flight >= IN_FLIGHT_MIN && trib_tcp_backlog_believes(info.tcpi_rtt, info.tcpi_rttvar)) {
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
