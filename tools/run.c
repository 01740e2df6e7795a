/*
 * run.c - `tributary run`: workers and servers of one job as processes of this machine.
 *
 * Gives every process the same fresh token, job and coordinator address, forwards signals, prefixes the output of all
 * ranks but 0, and when one fails says which and how, lets the engine's own errors end the others, and then ends them
 * itself. Servers end with their job: where the last worker is gone they get a moment for it, and no more.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/tributary.h"
#include "tools/commands.h"
#include "tools/plural.h"
#include "tools/run_environment.h"
#include "tools/study/parse.h"

#define PROCESSES_MAX 512
#define GRACE_MS 10000  /* the others' time after a failure, to say what they know */
#define SERVERS_MS 1000 /* the servers' after the last worker */
#define KILL_MS 3000    /* between SIGTERM and SIGKILL */
#define EARLY_MS 5000   /* a worker that ended with 0 so long before others is told of */

typedef struct process {
    pid_t pid;        /* 0: gone */
    int64_t ended_ms; /* with status 0, and not told of yet; 0: none of that */
    int out;          /* its output, -1: passed through or closed */
    char name[24];
    char line[4096];
    size_t used;
} process;

typedef struct launch {
    int workers, servers, alive_workers, alive;
    bool tag_all, bind;
    process *processes; /* servers first, then workers by rank */
    const char *host;   /* an IPv4 address */
    int status;         /* of the first worker that failed, or run's own */
    int server_status;  /* of the first server that failed by itself */
    int64_t server_ms;  /* when it did */
    bool left_open;     /* a server saw no good end of the job */
    int64_t ending_ms;  /* when the stage began */
    int stage;          /* 0 running, 1 waiting, 2 SIGTERM sent, 3 SIGKILL sent */
} launch;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: tributary run -n WORKERS [-s SERVERS] [options] -- PROGRAM [ARGUMENTS]\n"
        "  -n N              workers, each a process with TRIB_RANK 0..N-1 (default 1)\n"
        "  -s K              servers with processes of their own (default 0: the workers sum)\n"
        "  --colocate WHEN   auto, on, off: do workers sum a share too\n"
        "  --reactors R      event loops in each process\n"
        "  --host ADDRESS    where they listen and meet (default 127.0.0.1; RDMA needs an RDMA device's)\n"
        "  --bind            each process keeps to its part of the cores, or to one of them if there are too few\n"
        "  --log LEVEL       none, error, warn, info, debug, trace\n"
        "  --tag-output      prefix rank 0's output too\n"
        "After a failure the others have %d s to end by themselves, and servers %d s after the last worker; then\n"
        "they get SIGTERM, and %d s later SIGKILL (servers of workers that all ended with 0: %d s later).\n"
        "The exit status is that of the first worker that failed; if none did, that of a server that crashed, or\n"
        "failed while all workers were at work; else 0. Servers that only saw all workers go without closing their\n"
        "engines are a warning.\n",
        GRACE_MS / 1000, SERVERS_MS / 1000, KILL_MS / 1000, GRACE_MS / 1000);
}

static bool parse_count(const char *text, uint32_t low, int *value)
{
    uint32_t number = 0;
    const bool fine = study_parse_count(text, low, PROCESSES_MAX / 2, &number);
    *value = (int)number;
    return fine;
}

/* -1: go on, with optind at the program. */
static int parse(launch *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"colocate", required_argument, NULL, 'c'}, {"reactors", required_argument, NULL, 'r'},
        {"log", required_argument, NULL, 'l'},      {"tag-output", no_argument, NULL, 't'},
        {"bind", no_argument, NULL, 'b'},           {"help", no_argument, NULL, 'h'},
        {"host", required_argument, NULL, 'a'},     {NULL, 0, NULL, 0},
    };
    self->workers = 1;
    self->host = "127.0.0.1";
    for (int option; (option = getopt_long(argc, argv, "+n:s:h", options, NULL)) != -1;) {
        bool fine = true;
        switch (option) {
        case 'n':
            fine = parse_count(optarg, 1, &self->workers);
            break;
        case 's':
            fine = parse_count(optarg, 0, &self->servers);
            break;
        case 'c':
            setenv("TRIB_COLOCATE", optarg, 1);
            break;
        case 'r':
            setenv("TRIB_REACTORS", optarg, 1);
            break;
        case 'a':
            self->host = optarg;
            break;
        case 'l':
            setenv("TRIB_LOG", optarg, 1);
            break;
        case 't':
            self->tag_all = true;
            break;
        case 'b':
            self->bind = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
        if (!fine) {
            fprintf(stderr, "tributary run: -%c %s: must be a number from %d to %d\n", option, optarg,
                    option == 'n' ? 1 : 0, PROCESSES_MAX / 2);
            return 2;
        }
    }
    if (optind >= argc) {
        fprintf(stderr, "tributary run: which program? Put it after --\n");
        return 2;
    }
    return -1;
}

/* Of the cores that this process may use. A process whose threads are on different cores pays more for each wake-up between
 * them. */
static bool bind_to_part(const launch *self, int index)
{
    cpu_set_t all, mine;
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        return false;
    }
    const int parts = self->workers + self->servers, cores = CPU_COUNT(&all), each = cores / parts;
    const int part = index < self->servers ? self->workers + index : index - self->servers;
    const int first = each > 0 ? part * each : part % cores, end = first + (each > 0 ? each : 1);
    CPU_ZERO(&mine);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE && seen < end; cpu++) {
        if (CPU_ISSET(cpu, &all) && seen++ >= first) {
            CPU_SET(cpu, &mine);
        }
    }
    return sched_setaffinity(0, sizeof mine, &mine) == 0;
}

static void become(int index, const launch *self, char **program, int out, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
    }
    if (self->bind && !bind_to_part(self, index)) {
        fprintf(stderr, "tributary run: --bind: %s\n", strerror(errno));
        _exit(127);
    }
    if (index < self->servers) {
        char *arguments[] = {(char[]){"tributary"}, (char[]){"server"}, NULL};
        execv("/proc/self/exe", arguments);
    } else {
        char rank[16];
        snprintf(rank, sizeof rank, "%d", index - self->servers);
        setenv("TRIB_RANK", rank, 1);
        setenv("TRIB_LOCAL_RANK", rank, 1);
        execvp(program[0], program);
    }
    fprintf(stderr, "tributary run: %s: %s\n", index < self->servers ? "server" : program[0], strerror(errno));
    _exit(127);
}

static bool start(launch *self, int index, char **program)
{
    process *one = &self->processes[index];
    bool server = index < self->servers;
    bool through = index == self->servers && !self->tag_all;
    int ends[2] = {-1, -1};
    snprintf(one->name, sizeof one->name, server ? "server %d" : "rank %d", server ? index : index - self->servers);
    one->out = -1;
    if (!through && pipe2(ends, O_CLOEXEC) != 0) {
        fprintf(stderr, "tributary run: pipe: %s\n", strerror(errno));
        return false;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        become(index, self, program, ends[1], parent);
    }
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    one->out = ends[0];
    if (pid < 0) {
        fprintf(stderr, "tributary run: fork: %s\n", strerror(errno));
        return false;
    }
    one->pid = pid;
    self->alive++;
    self->alive_workers += !server;
    return true;
}

static void print_line(const process *one, size_t length)
{
    printf("[%s] %.*s\n", one->name, (int)length, one->line);
    fflush(stdout);
}

/* Whole lines go out with the name in front; false at the end of the output. */
static bool relay(process *one)
{
    ssize_t got = read(one->out, one->line + one->used, sizeof one->line - one->used);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return true;
    }
    one->used += got > 0 ? (size_t)got : 0;
    char *newline;
    while ((newline = memchr(one->line, '\n', one->used)) != NULL) {
        size_t length = (size_t)(newline - one->line);
        print_line(one, length);
        one->used -= length + 1;
        memmove(one->line, newline + 1, one->used);
    }
    if (one->used == sizeof one->line || (got <= 0 && one->used > 0)) {
        print_line(one, one->used);
        one->used = 0;
    }
    return got > 0;
}

static void signal_all(const launch *self, int number)
{
    for (int i = 0; i < self->workers + self->servers; i++) {
        if (self->processes[i].pid > 0) {
            kill(self->processes[i].pid, number);
        }
    }
}

static void set_stage(launch *self, int stage)
{
    self->stage = stage;
    self->ending_ms = now_ms();
}

static void print_exit(const process *one, int status)
{
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "tributary run: %s was ended by signal %d (%s)\n", one->name, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    } else {
        fprintf(stderr, "tributary run: %s ended with status %d\n", one->name, WEXITSTATUS(status));
    }
}

/* A server whose workers go without a word ends with 1, and may be seen to do so before they are seen to be gone: the
 * kernel closes a process's connections first. */
static void note_worker(launch *self, process *one, int code)
{
    self->alive_workers--;
    if (code == 0) {
        one->ended_ms = now_ms();
        if (self->server_status == 1 && one->ended_ms - self->server_ms < SERVERS_MS) {
            self->server_status = 0;
            self->left_open = true;
        }
    } else if (self->status == 0 && (self->stage < 2 || self->server_status == 0)) {
        self->status = code;
    }
}

static void note_server(launch *self, const process *one, int status, int code)
{
    const bool ended_here = self->stage >= 2 && (code == 128 + SIGTERM || code == 128 + SIGKILL);
    if (ended_here || (code == 1 && self->alive_workers < self->workers)) {
        self->left_open = true;
    } else if (code != 0 && self->server_status == 0) {
        self->server_status = code;
        self->server_ms = now_ms();
        if (self->stage >= 2) {
            print_exit(one, status); /* it crashed on its way out */
        }
    }
}

static void note_exit(launch *self, int index, int status)
{
    process *one = &self->processes[index];
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const bool server = index < self->servers;
    one->pid = 0;
    self->alive--;
    if (code != 0 && self->stage < 2) {
        print_exit(one, status);
    }
    if (server) {
        note_server(self, one, status, code);
    } else {
        note_worker(self, one, code);
    }
    const bool last = !server && self->alive_workers == 0;
    if (self->stage < 2 && (last || (self->stage == 0 && code != 0))) {
        set_stage(self, 1); /* anew with the last worker: the servers' time begins */
    }
}

static void reap(launch *self)
{
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int i = 0; i < self->workers + self->servers; i++) {
            if (self->processes[i].pid == pid) {
                note_exit(self, i, status);
            }
        }
    }
}

static void press(launch *self)
{
    const int64_t waited = now_ms() - self->ending_ms;
    const int grace = self->alive_workers > 0 ? GRACE_MS : SERVERS_MS;
    /* A server that SIGTERM does not end at once is closing already, with a trace to write perhaps. */
    const int patience = self->alive_workers == 0 && self->status == 0 ? GRACE_MS : KILL_MS;
    if (self->stage == 1 && waited > grace) {
        fprintf(stderr, "tributary run: %d %s still there %d s after the %s: ending %s\n", self->alive,
                self->alive == 1 ? "process is" : "processes are", grace / 1000,
                self->alive_workers > 0 ? "failure" : "last worker", self->alive == 1 ? "it" : "them");
        set_stage(self, 2);
        signal_all(self, SIGTERM);
    } else if (self->stage == 2 && waited > patience) {
        set_stage(self, 3);
        signal_all(self, SIGKILL);
    }
}

/* All that have ended by now go into one line: others of them would be told of a moment later. */
static void tell_early(launch *self)
{
    process *first = NULL;
    int others = 0;
    bool due = false;
    for (int i = self->servers; i < self->servers + self->workers; i++) {
        const process *one = &self->processes[i];
        due = due || (one->ended_ms > 0 && now_ms() - one->ended_ms > EARLY_MS);
    }
    for (int i = self->servers; due && i < self->servers + self->workers; i++) {
        process *one = &self->processes[i];
        if (one->ended_ms > 0) {
            one->ended_ms = 0;
            others += first != NULL;
            first = first != NULL ? first : one;
        }
    }
    if (first != NULL) {
        char more[32] = "";
        if (others > 0) {
            snprintf(more, sizeof more, " and %d more", others);
        }
        fprintf(stderr, "tributary run: %s%s ended with status 0 while %d worker%s still run%s\n", first->name, more,
                self->alive_workers, plural(self->alive_workers), self->alive_workers == 1 ? "s" : "");
    }
}

/* Ctrl-C at a terminal goes to its foreground group, which is ours, by itself: a second one would tell who cleans up
 * to leave that. */
static void pass_on(const launch *self, const struct signalfd_siginfo *info)
{
    if (info->ssi_signo != SIGINT || info->ssi_code != SI_KERNEL) {
        signal_all(self, (int)info->ssi_signo);
        return;
    }
    for (int i = 0; i < self->workers + self->servers; i++) {
        const pid_t pid = self->processes[i].pid;
        if (pid > 0 && getpgid(pid) != getpgrp()) {
            kill(pid, SIGINT);
        }
    }
}

static void take_signal(launch *self, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo != SIGCHLD) {
            pass_on(self, &info);
            self->status = self->status == 0 ? 128 + (int)info.ssi_signo : self->status;
            set_stage(self, self->stage < 2 ? 2 : self->stage);
        }
    }
}

static void supervise(launch *self, int signals)
{
    int count = self->workers + self->servers;
    struct pollfd *fds = calloc((size_t)count + 1, sizeof *fds);
    bool open = true;
    while (fds != NULL && (self->alive > 0 || open)) {
        fds[0] = (struct pollfd){.fd = signals, .events = POLLIN};
        open = false;
        for (int i = 0; i < count; i++) {
            fds[i + 1] = (struct pollfd){.fd = self->processes[i].out, .events = POLLIN};
            open = open || self->processes[i].out >= 0;
        }
        poll(fds, (nfds_t)count + 1, 200);
        take_signal(self, signals);
        for (int i = 0; i < count; i++) {
            process *one = &self->processes[i];
            if (one->out >= 0 && fds[i + 1].revents != 0 && !relay(one)) {
                close(one->out);
                one->out = -1;
            }
        }
        reap(self);
        if (self->stage > 0 && self->alive > 0) {
            press(self);
        } else if (self->alive > 0) {
            tell_early(self);
        }
    }
    free(fds);
}

int run_command(int argc, char **argv)
{
    launch self = {.status = 0};
    int status = parse(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    int count = self.workers + self.servers;
    self.processes = calloc((size_t)count, sizeof *self.processes);
    if (self.processes == NULL || !run_prepare_environment(self.host, self.workers, self.servers)) {
        free(self.processes);
        return 1;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    for (int i = 0; i < count; i++) {
        self.processes[i].out = -1;
    }
    for (int i = 0; i < count; i++) {
        if (signals < 0 || !start(&self, i, argv + optind)) {
            self.status = 1;
            set_stage(&self, 2);
            signal_all(&self, SIGTERM);
            break;
        }
    }
    supervise(&self, signals);
    free(self.processes);
    if (self.left_open && self.status == 0 && self.server_status == 0) {
        fprintf(stderr,
                "tributary run: warning: every worker ended with status 0, but not the job: a server saw no end "
                "of it. Does the program join, and close its engine (trib_engine_destroy)?\n");
    }
    return self.status != 0 ? self.status : self.server_status;
}
