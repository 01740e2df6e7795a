/* tributary.c - the `tributary` command: finds the subcommand and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "api/tributary.h"
#include "tools/cli/commands.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} commands[] = {
    {"run", run_command, "start workers and servers on this machine: run -n 4 -s 2 -- program arguments"},
    {"server", server_command, "sum for a job until it ends"},
    {"coordinator", coordinator_command, "keep the membership of a job until it ends"},
    {"bench", bench_command, "measure push_pull and broadcast"},
    {"step", step_command, "training steps of a real model's sizes in a real job"},
    {"sim", sim_command, "train on a cluster that is not there, in virtual time"},
    {"trace", trace_command, "sum up and convert what a job's processes have recorded"},
    {"replay", replay_command, "run a recorded step again, under other settings"},
    {"tune", tune_command, "search the settings under which a recorded step is fastest"},
    {"info", info_command, "show this machine as the engine sees it"},
};

/* A command whose output could not be written has failed. The cause is known only for the last write; after an
 * earlier failure errno may have changed. */
static int check_output(int status)
{
    if (fflush(stdout) != 0) {
        fprintf(stderr, "tributary: cannot write standard output: %s\n", strerror(errno));
    } else if (ferror(stdout) != 0) {
        fprintf(stderr, "tributary: part of the output could not be written to standard output\n");
    } else {
        return status;
    }
    return status == 0 ? 1 : status;
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: tributary COMMAND [options]     (tributary COMMAND --help)\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].text);
    }
    fprintf(out, "\n  --version    %s\n", trib_version());
}

/* A parent may have ignored or blocked signals that a command needs: without SIGCHLD the end of a child is not seen,
 * without SIGTERM nothing ends it. Four are ignored on purpose, and stay so: SIGHUP under nohup, SIGINT and SIGQUIT in
 * a script's background, SIGXFSZ where a limit on files shall be an error. */
static void reset_signals(void)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        const bool is_meant = number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGXFSZ;
        if (!is_meant && sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
            signal(number, SIG_DFL);
        }
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int argc, char **argv)
{
    reset_signals();
    (void)prctl(PR_SET_NAME, "tributary"); /* `run` starts its servers as /proc/self/exe, and ps would call them exe */
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return check_output(0);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tributary %s\n", trib_version());
        return check_output(0);
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            char name[32]; /* getopt begins its messages with it */
            snprintf(name, sizeof name, "tributary %s", commands[i].name);
            argv[1] = name;
            return check_output(commands[i].run(argc - 1, argv + 1));
        }
    }
    fprintf(stderr, "tributary: there is no command \"%s\"\n\n", argv[1]);
    print_usage(stderr);
    return 2;
}
