/*
 * bench_zerocopy.c - measures what MSG_ZEROCOPY gains and costs: the same bytes are sent with it and without, in
 * alternating blocks. A buffer counts as free when the kernel says so, because an engine would have to wait for
 * that. At most IN_FLIGHT bytes wait for it.
 *
 *     bench_zerocopy                       both ends here, over loopback
 *     bench_zerocopy serve PORT            the end that reads, for `tcp` elsewhere; runs until it is ended
 *     bench_zerocopy tcp ADDRESS PORT      IPv4
 *     bench_zerocopy udp ADDRESS PORT      datagrams that are dropped: shows the sender's work where nothing copies.
 *                                          In a namespace: ip neigh add ADDRESS lladdr 02:00:00:00:00:02 dev eth0;
 *                                          tc qdisc add dev eth0 root blackhole
 *
 * It prints medians of wall time, of processor time on each side (a sender pays for the work of loopback and veth
 * behind it), and of how many bytes the kernel reports as copied after all.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (64u << 20)
#define IN_FLIGHT (1u << 20)
#define ROUNDS 9
#define SEGMENT 1400 /* of datagrams, which the kernel cuts from larger messages */
#define DATAGRAM (40u * SEGMENT)

typedef struct sample {
    double wall_ms, send_ms, read_ms, copied;
} sample;

typedef struct sender {
    int fd;
    bool is_stream;
    uint32_t asked, told; /* messages sent without copying, and notices of them from the kernel */
    uint32_t copied;      /* of those, copied by the kernel after all */
    unsigned char *memory;
} sender;

static void need(bool holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double cpu_ms(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}

/* ---- Reading ---- */

static bool read_all(int fd, void *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t got = recv(fd, bytes, size, 0);
        if (got <= 0) {
            return false;
        }
        bytes = (char *)bytes + got;
        size -= (size_t)got;
    }
    return true;
}

/* Reads blocks and answers each with the time that it took to read. */
static void serve(int listener)
{
    unsigned char *memory = calloc(1, BLOCK);
    need(memory != NULL, "calloc");
    for (;;) {
        const int fd = accept(listener, NULL, NULL);
        need(fd >= 0, "accept");
        double began_ms = cpu_ms();
        while (read_all(fd, memory, BLOCK)) {
            const double took_ms = cpu_ms() - began_ms;
            need(send(fd, &took_ms, sizeof took_ms, MSG_NOSIGNAL) == sizeof took_ms, "send");
            began_ms = cpu_ms();
        }
        close(fd);
    }
}

/* ---- Sending ---- */

static void take_notices(sender *self, uint32_t until_left)
{
    while (self->asked - self->told > until_left) {
        char control[128];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(self->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            need(errno == EAGAIN, "recvmsg");
            struct pollfd what = {.fd = self->fd};
            (void)poll(&what, 1, -1); /* POLLERR is always reported */
            continue;
        }
        const struct cmsghdr *at = CMSG_FIRSTHDR(&message);
        struct sock_extended_err notice;
        need(at != NULL && at->cmsg_len >= CMSG_LEN(sizeof notice), "notice");
        memcpy(&notice, CMSG_DATA(at), sizeof notice);
        if (notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY) {
            const uint32_t count = notice.ee_data - notice.ee_info + 1;
            self->told += count;
            self->copied += (notice.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0 ? count : 0;
        }
    }
}

static void send_message(sender *self, const unsigned char *bytes, size_t size, bool zerocopy, uint32_t limit)
{
    while (size > 0) {
        if (zerocopy) {
            take_notices(self, limit - 1);
        }
        const ssize_t sent = send(self->fd, bytes, size, MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0));
        if (sent < 0 && errno == ENOBUFS && zerocopy && self->asked != self->told) {
            take_notices(self, self->asked - self->told - 1); /* no room for more notices */
            continue;
        }
        need(sent > 0, "send");
        self->asked += zerocopy;
        bytes += sent;
        size -= (size_t)sent;
    }
}

static sample block(sender *self, uint32_t chunk, bool zerocopy)
{
    sample took = {.copied = 0};
    const uint32_t limit = IN_FLIGHT / chunk < 1 ? 1 : IN_FLIGHT / chunk, asked = self->asked, copied = self->copied;
    const double began_ms = now_ms(), cpu_began_ms = cpu_ms();
    for (size_t at = 0; at < BLOCK; at += chunk) {
        send_message(self, self->memory + at, BLOCK - at < chunk ? BLOCK - at : chunk, zerocopy, limit);
    }
    take_notices(self, 0);
    if (self->is_stream) {
        need(read_all(self->fd, &took.read_ms, sizeof took.read_ms), "answer");
    }
    took.wall_ms = now_ms() - began_ms;
    took.send_ms = cpu_ms() - cpu_began_ms;
    took.copied = self->asked != asked ? 100.0 * (self->copied - copied) / (self->asked - asked) : 100;
    return took;
}

static int ascending(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static double median(const sample *samples, size_t offset)
{
    double values[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(&values[i], (const char *)&samples[i] + offset, sizeof values[i]);
    }
    qsort(values, ROUNDS, sizeof values[0], ascending);
    return values[ROUNDS / 2];
}

static void compare(sender *self, uint32_t chunk)
{
    sample samples[2][ROUNDS];
    (void)block(self, chunk, false);
    (void)block(self, chunk, true);
    for (int i = 0; i < ROUNDS; i++) {
        for (int turn = 0; turn < 2; turn++) {
            const int way = (i + turn) % 2;
            samples[way][i] = block(self, chunk, way == 1);
        }
    }
    printf("%9u", chunk);
    for (int way = 0; way < 2; way++) {
        printf(" %10.1f %8.1f %8.1f", median(samples[way], offsetof(sample, wall_ms)),
               median(samples[way], offsetof(sample, send_ms)), median(samples[way], offsetof(sample, read_ms)));
    }
    printf(" %9.0f\n", median(samples[1], offsetof(sample, copied)));
    fflush(stdout);
}

static void bench(struct sockaddr_in to, bool is_stream)
{
    sender self = {.fd = socket(AF_INET, is_stream ? SOCK_STREAM : SOCK_DGRAM, 0), .is_stream = is_stream};
    const int on = 1, segment = SEGMENT;
    need(connect(self.fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    need(setsockopt(self.fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0, "SO_ZEROCOPY");
    need(is_stream ? setsockopt(self.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0
                   : setsockopt(self.fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0,
         "setsockopt");
    self.memory = aligned_alloc(4096, BLOCK);
    need(self.memory != NULL, "aligned_alloc");
    memset(self.memory, 1, BLOCK);
    printf("%9s %28s %28s %9s\n", "", "copying: ms for 64 MiB,", "MSG_ZEROCOPY: the same", "copied");
    printf("%9s %10s %8s %8s %10s %8s %8s %9s\n", "a message", "wall", "sender", "reader", "wall", "sender", "reader",
           "%");
    static const uint32_t chunks[] = {16u << 10, 64u << 10, 256u << 10, 1u << 20};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0] && is_stream; i++) {
        compare(&self, chunks[i]);
    }
    if (!is_stream) {
        compare(&self, DATAGRAM);
    }
    close(self.fd);
    free(self.memory);
}

static int listen_on(struct sockaddr_in *at)
{
    socklen_t size = sizeof *at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    need(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0, "socket");
    need(bind(fd, (struct sockaddr *)at, size) == 0 && listen(fd, 4) == 0, "listen");
    need(getsockname(fd, (struct sockaddr *)at, &size) == 0, "getsockname");
    return fd;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (argc == 1) {
        const int listener = listen_on(&at);
        const pid_t reader = fork();
        need(reader >= 0, "fork");
        if (reader == 0) {
            serve(listener);
        }
        bench(at, true);
        kill(reader, SIGTERM);
        (void)waitpid(reader, NULL, 0);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        at.sin_addr.s_addr = htonl(INADDR_ANY);
        at.sin_port = htons((uint16_t)strtoul(argv[2], NULL, 10));
        serve(listen_on(&at));
    }
    if (argc != 4 || (strcmp(argv[1], "tcp") != 0 && strcmp(argv[1], "udp") != 0) ||
        inet_pton(AF_INET, argv[2], &at.sin_addr) != 1) {
        fprintf(stderr, "usage: bench_zerocopy [serve PORT | tcp ADDRESS PORT | udp ADDRESS PORT]\n");
        return 2;
    }
    at.sin_port = htons((uint16_t)strtoul(argv[3], NULL, 10));
    bench(at, strcmp(argv[1], "tcp") == 0);
    return 0;
}
