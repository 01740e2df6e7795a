/* run_environment.c - the environment of the processes that `tributary run` starts: a fresh token and job name,
 * the coordinator's address and the counts; their cores and signals. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/cli/run_environment.h"

/* Searches a free port outside the range from which the kernel assigns ports by itself: a port of that range might
 * be in use by the time that rank 0 listens. The search begins at a random port, because other jobs may search at
 * the same time. */
static uint16_t find_port(const char *host, uint32_t drawn)
{
    enum { FIRST = 10000, COUNT = 22000 };
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        errno = EINVAL;
        return 0;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint16_t port = (uint16_t)(FIRST + (drawn % COUNT + i) % COUNT);
        address.sin_port = htons(port);
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return 0;
        }
        const bool is_free = bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (is_free) {
            return port;
        }
    }
    return 0;
}

bool run_prepare_environment(const char *host, int workers, int servers)
{
    unsigned char secret[24];
    char token[2 * sizeof secret + 1], text[64];
    uint32_t drawn = 0;
    if (getrandom(secret, sizeof secret, 0) != sizeof secret || getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
        fprintf(stderr, "tributary run: no random bytes for a token: %s\n", strerror(errno));
        return false;
    }
    const uint16_t port = find_port(host, drawn);
    if (port == 0) {
        fprintf(stderr, "tributary run: no free port on %s: %s\n", host, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof secret; i++) {
        snprintf(token + 2 * i, 3, "%02x", secret[i]);
    }
    snprintf(text, sizeof text, "%s:%d", host, port);
    setenv("TRIB_COORDINATOR", text, 1);
    setenv("TRIB_LISTEN", host, 1);
    setenv("TRIB_TOKEN", token, 1);
    snprintf(text, sizeof text, "run-%d", (int)getpid());
    setenv("TRIB_JOB", text, 1);
    snprintf(text, sizeof text, "%d", workers);
    setenv("TRIB_WORKERS", text, 1);
    setenv("TRIB_LOCAL_COUNT", text, 1);
    snprintf(text, sizeof text, "%d", servers);
    setenv("TRIB_SERVERS", text, 1);
    unsetenv("TRIB_ROLE");
    unsetenv("TRIB_EXTERNAL_COORDINATOR"); /* rank 0 is the coordinator */
    return true;
}

/* Threads of a process that are spread over the machine's cores pay more for each wake-up. */
bool run_bind(int parts, int part)
{
    cpu_set_t all, mine;
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        return false;
    }
    const int cores = CPU_COUNT(&all), each = cores / parts;
    const int first = each > 0 ? part * each : part % cores, end = first + (each > 0 ? each : 1);
    CPU_ZERO(&mine);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE && seen < end; cpu++) {
        if (CPU_ISSET(cpu, &all) && seen++ >= first) {
            CPU_SET(cpu, &mine);
        }
    }
    return sched_setaffinity(0, sizeof mine, &mine) == 0;
}

int run_open_signals(void)
{
    static const int taken[] = {SIGHUP, SIGPIPE, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        struct sigaction now = {.sa_handler = SIG_DFL};
        (void)sigaction(taken[i], NULL, &now);
        if (i > 1 || now.sa_handler != SIG_IGN) {
            sigaddset(&set, taken[i]);
        }
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}
