/*
 * run.c - `tributary run`: starts the workers and servers of one job as processes of this machine.
 *
 * All processes get the same fresh token, job name and coordinator address. The output of every rank but 0 gets a
 * prefix. After the first failure, run prints which process failed and how, gives the engines time to end the others
 * with their own errors, and then ends the rest itself. A loss that TRIB_SURVIVE covers is no failure (run_end.h).
 * Servers end with their job: after the last worker they have a moment to do so. Processes that the workers started and
 * left behind are treated the same way (run_process_tree.h).
 *
 * A signal is sent to the workers first, because a worker that finishes its step still needs the servers. The servers
 * therefore form a process group of their own, which a terminal's Ctrl-C does not reach. A second signal goes to all
 * processes (except SIGPIPE, which every unread line raises).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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
#include "tools/cli/commands.h"
#include "tools/cli/plural.h"
#include "tools/cli/run_end.h"
#include "tools/cli/run_environment.h"
#include "tools/cli/run_hosts.h"
#include "tools/cli/run_process_tree.h"
#include "tools/cli/run_options.h"
#include "tools/cli/run_output.h"

#define GRACE_MS (RUN_GRACE_S * 1000)
#define SERVERS_MS (RUN_SERVERS_S * 1000)
#define KILL_MS (RUN_KILL_S * 1000)
#define NAMED_MAX 4   /* processes that one line names */
#define EARLY_MS 5000 /* a worker that ends with status 0 this long before the others is reported */
#define SAME_MS 500   /* a supervisor may signal both the process and its group */
#define SAY_MS 1000   /* delay before run prints for whom it waits; most processes end at once */

typedef struct process {
    pid_t pid;        /* 0: it has ended */
    int64_t ended_ms; /* when it ended with status 0, until that is reported; 0: otherwise */
    run_output out, err;
    char name[24];
} process;

typedef struct launch {
    int workers, servers, alive_workers, alive;
    bool tag_all, bind;
    process *processes; /* the servers, then the workers by rank */
    int status;         /* exit status of the first worker that failed, or of run itself */
    int server_status;  /* exit status of the first server that failed on its own */
    int64_t server_ms;  /* when the first signal came */
    bool left_open;     /* a server saw the job end without all engines being closed */
    int64_t ending_ms;  /* when the stage began */
    const char *since;  /* the event that began stage 1 */
    int stage;          /* 0 running, 1 waiting, 2 SIGTERM sent, 3 SIGKILL sent */
    bool after;         /* the processes have ended; the stage is that of their descendants */
    pid_t server_group; /* 0: there are no servers */
    int signal;         /* the first signal; 0: there was none */
    int64_t signal_ms;  /* when the first signal came */
    bool signal_said;   /* run has printed which processes it waits for */
} launch;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Prints why a program cannot be started, and for a Python script that is there what to do. */
static void tell_exec_failed(const char *program)
{
    const char *why = strerror(errno), *suffix = strrchr(program, '.');
    const bool is_script = suffix != NULL && strcmp(suffix, ".py") == 0 && access(program, F_OK) == 0;
    fprintf(stderr, "tributary run: %s: %s%s\n", program, why, is_script ? "; put python3 before the script" : "");
}

static void exec_process(int index, const launch *self, char **program, const int *to, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    if (index < self->servers) {
        setpgid(0, self->server_group);
    }
    if (to[0] >= 0) {
        dup2(to[0], STDOUT_FILENO);
        dup2(to[1], STDERR_FILENO);
    }
    const int worker = index - self->servers;
    if (self->bind && !run_bind(self->workers + self->servers, worker < 0 ? self->workers + index : worker)) {
        fprintf(stderr, "tributary run: --bind: %s\n", strerror(errno));
        _exit(127);
    }
    char rank[16]; /* servers get a rank too, so that their numbers agree here, in messages and in traces */
    snprintf(rank, sizeof rank, "%d", worker < 0 ? index : worker);
    setenv("TRIB_RANK", rank, 1);
    if (index < self->servers) {
        char *arguments[] = {(char[]){"tributary"}, (char[]){"server"}, NULL};
        execv("/proc/self/exe", arguments);
    } else {
        setenv("TRIB_LOCAL_RANK", rank, 1);
        execvp(program[0], program);
    }
    tell_exec_failed(index < self->servers ? "/proc/self/exe" : program[0]);
    _exit(127);
}

static bool start_process(launch *self, int index, char **program)
{
    process *one = &self->processes[index];
    bool server = index < self->servers;
    bool through = index == self->servers && !self->tag_all;
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    snprintf(one->name, sizeof one->name, server ? "server %d" : "rank %d", server ? index : index - self->servers);
    if (!through && (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)) {
        run_output_refused(self->workers + self->servers, index);
        return false;
    }
    one->out.fd = out[0];
    one->err.fd = err[0];
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        exec_process(index, self, program, (const int[]){out[1], err[1]}, parent);
    }
    if (out[1] >= 0) {
        close(out[1]);
        close(err[1]);
    }
    if (pid < 0) {
        fprintf(stderr, "tributary run: fork: %s\n", strerror(errno));
        return false;
    }
    one->pid = pid;
    if (server) {
        self->server_group = self->server_group != 0 ? self->server_group : pid;
        setpgid(pid, self->server_group); /* the child does the same; the order does not matter */
    }
    self->alive++;
    self->alive_workers += !server;
    return true;
}

/* Sends the signal to the workers, or to all processes, and to their descendants: a shell that ends does not end
 * its children. */
static void send_signal(const launch *self, int number, bool to_servers)
{
    if (process_tree_signal(number, to_servers ? 0 : self->server_group) > 0) {
        return;
    }
    for (int i = to_servers ? 0 : self->servers; i < self->workers + self->servers; i++) {
        if (self->processes[i].pid > 0) {
            kill(self->processes[i].pid, number);
        }
    }
}

static bool is_open(const launch *self)
{
    for (int i = 0; i < self->workers + self->servers; i++) {
        if (self->processes[i].out.fd >= 0 || self->processes[i].err.fd >= 0) {
            return true;
        }
    }
    return false;
}

static void set_stage(launch *self, int stage)
{
    self->stage = stage;
    self->ending_ms = now_ms();
}

/* A server whose workers disappear without a goodbye ends with status 1. The end of the server may be seen before
 * that of the worker, because the kernel closes a process's connections first. */
static void note_worker(launch *self, process *one, int code)
{
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
    if (ended_here || (code == 1 && (self->alive_workers < self->workers || self->stage >= 2))) {
        self->left_open = true;
    } else if (code != 0 && self->server_status == 0) {
        self->server_status = code;
        self->server_ms = now_ms();
        if (self->stage >= 2) {
            run_end_print(one->name, status, NULL); /* the process crashed while it was ending */
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
    self->alive_workers -= !server;
    const char *survives = code != 0 && self->stage == 0 ? run_end_survivable(server, self->alive_workers) : NULL;
    /* The signal was meant to end the workers, and servers end when they lose them. */
    const bool is_asked = self->signal != 0 && code == (server ? 1 : 128 + self->signal);
    if (code != 0 && self->stage < 2 && !is_asked) {
        run_end_print(one->name, status, survives);
    }
    if (survives != NULL) {
        return; /* the workers that are left decide how the job ends */
    }
    if (server) {
        note_server(self, one, status, code);
    } else {
        note_worker(self, one, code);
    }
    const bool last = !server && self->alive_workers == 0;
    if (self->stage < 2 && (last || (self->stage == 0 && code != 0))) {
        self->since = last ? "last worker" : "failure";
        set_stage(self, 1); /* starts again after the last worker: now the servers have their time */
    }
}

static void reap_processes(launch *self)
{
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (int i = 0; i < self->workers + self->servers; i++) {
            if (self->processes[i].pid == pid) {
                note_exit(self, i, status);
            }
        }
    }
}

/* "rank 1, server 0" */
static void name_alive(const launch *self, bool with_servers, char *text, size_t size)
{
    size_t used = 0;
    int named = 0;
    text[0] = '\0';
    for (int i = with_servers ? 0 : self->servers; i < self->workers + self->servers && used < size; i++) {
        if (self->processes[i].pid > 0 && named++ <= NAMED_MAX) {
            const char *name = named > NAMED_MAX ? "..." : self->processes[i].name;
            used += (size_t)snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ", name);
        }
    }
}

static void press_processes(launch *self)
{
    const int64_t waited = now_ms() - self->ending_ms;
    const int grace = self->alive_workers > 0 ? GRACE_MS : SERVERS_MS;
    /* A server that is still there after SIGTERM is closing; it may have a trace to write. */
    const int patience = self->alive_workers == 0 && self->status == 0 ? GRACE_MS : KILL_MS;
    char names[128];
    name_alive(self, true, names, sizeof names);
    if (self->stage == 1 && waited > grace) {
        fprintf(stderr, "tributary run: %d %s still there %d s after the %s: ending %s (%s)\n", self->alive,
                self->alive == 1 ? "process is" : "processes are", grace / 1000, self->since,
                self->alive == 1 ? "it" : "them", names);
        set_stage(self, 2);
        send_signal(self, SIGTERM, true);
    } else if (self->stage == 2 && waited > patience) {
        fprintf(stderr, "tributary run: SIGTERM did not end %s within %d s: SIGKILL\n", names, patience / 1000);
        set_stage(self, 3);
        send_signal(self, SIGKILL, true);
    } else if (self->stage == 1 && self->signal != 0 && !self->signal_said && self->alive_workers > 0 &&
               now_ms() - self->signal_ms > SAY_MS) {
        self->signal_said = true;
        name_alive(self, false, names, sizeof names);
        fprintf(stderr, "tributary run: waiting for %s, %d s at most; a second signal ends all\n", names,
                (int)((grace - waited + 999) / 1000));
    }
}

/* Ends the descendants that the processes left behind, which may hold their outputs open. Returns false when
 * nothing is left to wait for. */
static bool end_descendants(launch *self)
{
    char names[160];
    const size_t left = process_tree_describe(names, sizeof names);
    if (!self->after) {
        self->after = true;
        set_stage(self, self->stage >= 2 ? 2 : 1); /* SIGTERM was sent to the descendants too */
    }
    const int64_t waited = now_ms() - self->ending_ms;
    if (left == 0) {
        return is_open(self) && waited < SERVERS_MS;
    }
    if (self->stage == 1 && waited > SERVERS_MS) {
        fprintf(stderr, "tributary run: %zu process%s that the workers have started %s still there: ending %s (%s)\n",
                left, left == 1 ? "" : "es", left == 1 ? "is" : "are", left == 1 ? "it" : "them", names);
        set_stage(self, 2);
        process_tree_signal(SIGTERM, 0);
    } else if (self->stage >= 2 && waited > KILL_MS) {
        process_tree_signal(SIGKILL, 0);
        set_stage(self, self->stage + 1);
    }
    return self->stage <= 3;
}

/* Reports in one line all workers that have ended by now, so that the next ones are not reported a moment later. */
static void report_early_ends(launch *self)
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

/* Passes the first signal on to the workers. The terminal sends Ctrl-C and Ctrl-\ to its foreground process group,
 * which is this one, by itself; a second copy would tell a process to stop its cleanup. */
static void pass_signal_on(const launch *self, const struct signalfd_siginfo *info)
{
    const int number = (int)info->ssi_signo;
    if ((number != SIGINT && number != SIGQUIT) || info->ssi_code != SI_KERNEL) {
        send_signal(self, number, self->alive_workers == 0);
        return;
    }
    for (int i = self->servers; i < self->workers + self->servers; i++) {
        const pid_t pid = self->processes[i].pid;
        if (pid > 0 && getpgid(pid) != getpgrp()) {
            kill(pid, number);
        }
    }
}

static void take_end_signal(launch *self, const struct signalfd_siginfo *info)
{
    if (self->signal == 0) {
        self->signal = (int)info->ssi_signo;
        self->signal_ms = now_ms();
        self->status = self->status == 0 ? 128 + self->signal : self->status;
        if (self->stage == 0) {
            self->since = "signal";
            set_stage(self, 1);
        }
        pass_signal_on(self, info);
    } else if (info->ssi_signo != SIGPIPE && now_ms() - self->signal_ms >= SAME_MS && self->stage < 2) {
        set_stage(self, 2);
        send_signal(self, SIGTERM, true);
    }
}

/* Stops the servers together with the terminal's foreground process group. Ctrl-Z stops that group, and so does
 * reading from the terminal in the background. */
static void pause_all(const launch *self, const struct signalfd_siginfo *info)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, (int)info->ssi_signo);
    if (info->ssi_code != SI_KERNEL) {
        send_signal(self, (int)info->ssi_signo, false);
    }
    for (int i = 0; i < self->servers; i++) {
        if (self->processes[i].pid > 0) {
            kill(self->processes[i].pid, SIGSTOP);
        }
    }
    raise((int)info->ssi_signo);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* this process stops here until SIGCONT */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    send_signal(self, SIGCONT, true);
}

static void take_signal(launch *self, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGTSTP || info.ssi_signo == SIGTTIN || info.ssi_signo == SIGTTOU) {
            pause_all(self, &info);
        } else if (info.ssi_signo != SIGCHLD) {
            take_end_signal(self, &info);
        }
    }
}

static struct pollfd *list_descriptors(const launch *self, struct pollfd *fds, int signals)
{
    struct pollfd *next = fds;
    *next++ = (struct pollfd){.fd = signals, .events = POLLIN};
    for (int i = 0; i < self->workers + self->servers; i++) {
        *next++ = (struct pollfd){.fd = self->processes[i].out.fd, .events = POLLIN};
        *next++ = (struct pollfd){.fd = self->processes[i].err.fd, .events = POLLIN};
    }
    return next;
}

static void supervise_job(launch *self, int signals)
{
    struct pollfd fds[1 + 4 * RUN_COUNT_MAX];
    while (self->alive > 0 || end_descendants(self)) {
        poll(fds, (nfds_t)(list_descriptors(self, fds, signals) - fds), 200);
        take_signal(self, signals);
        const struct pollfd *fd = fds + 1;
        for (int i = 0; i < self->workers + self->servers; i++, fd += 2) {
            process *one = &self->processes[i];
            if (fd[0].revents != 0) {
                run_output_relay(&one->out, one->name, now_ms(), stdout);
            }
            if (fd[1].revents != 0) {
                run_output_relay(&one->err, one->name, now_ms(), stderr);
            }
        }
        reap_processes(self);
        if (self->stage > 0 && self->alive > 0) {
            press_processes(self);
        } else if (self->alive > 0) {
            report_early_ends(self);
        }
    }
}

int run_command(int argc, char **argv)
{
    run_options options;
    int status = run_options_parse(&options, argc, argv);
    if (status >= 0) {
        return status;
    }
    if (run_needs_hosts(&options)) {
        return run_over_hosts(&options, argv + options.program);
    }
    options.workers = options.workers > 0 ? options.workers : 1;
    options.host = options.host != NULL ? options.host : "127.0.0.1";
    launch self = {.workers = (int)options.workers,
                   .servers = (int)options.servers,
                   .tag_all = options.tag_all,
                   .bind = options.bind};
    int count = self.workers + self.servers;
    self.processes = calloc((size_t)count, sizeof *self.processes);
    const int signals = self.processes != NULL ? run_open_signals() : -1;
    if (signals < 0) {
        perror("tributary run");
    }
    if (signals < 0 || !run_prepare_environment(options.host, self.workers, self.servers)) {
        free(self.processes);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        self.processes[i].out.fd = self.processes[i].err.fd = -1;
    }
    process_tree_adopt();
    for (int i = 0; i < count; i++) {
        if (!start_process(&self, i, argv + options.program)) {
            self.status = 1;
            set_stage(&self, 2);
            send_signal(&self, SIGTERM, true);
            break;
        }
    }
    supervise_job(&self, signals);
    free(self.processes);
    if (self.left_open && self.status == 0 && self.server_status == 0) {
        fprintf(stderr,
                "tributary run: warning: every worker ended with status 0, but not the job: a server saw no end "
                "of it. Does the program join, and close its engine (trib_engine_destroy)?\n");
    }
    return self.status != 0 ? self.status : self.server_status;
}
