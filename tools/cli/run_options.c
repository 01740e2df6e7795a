/* run_options.c - see run_options.h. */
#include "tools/cli/run_options.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <stdio.h>

#include "tools/cli/options.h"
#include "tools/cli/run_hosts.h"
#include "tools/cli/run_python.h"

#define REACTORS_MAX 16 /* the same limit as that of TRIB_REACTORS */
static const char notes_format[] =
    "After a failure the other workers have %d s to end by themselves, and servers %d s after the last worker; then\n"
    "they get SIGTERM, and %d s later SIGKILL (servers of workers that all ended with 0: %d s later).\n"
    "While a worker is left, the end of a server is no failure with TRIB_SURVIVE=servers, and that of any process is\n"
    "none with TRIB_SURVIVE=workers or continue.\n"
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT, and SIGPIPE when nobody reads the output any more, go to the workers, which\n"
    "have the same time to end; a second signal (but SIGPIPE) ends all processes.\n"
    "The exit status is that of the first worker that failed; if none did, that of a server that crashed, or that\n"
    "failed while all workers were at work; else 0. Servers whose workers all went without closing their engines\n"
    "are a warning.\n";

/* The processes would tell each other to connect to 0.0.0.0, where a process can only listen. */
static bool is_host(const char *text)
{
    struct in_addr numeric;
    return inet_pton(AF_INET, text, &numeric) == 1 && numeric.s_addr != htonl(INADDR_ANY);
}

/* Checks what the table cannot say. Returns -1 to go on, or the exit status. */
static int check_options(const run_options *self, const option_table *table, int argc, char **argv)
{
    if (self->host != NULL && !is_host(self->host)) {
        return options_reject(table, "--host", self->host,
                              "must be an IPv4 address of this machine, such as 127.0.0.1");
    }
    if (self->bind && run_needs_hosts(self)) {
        return options_reject(table, "--bind", NULL, "works on this machine alone, without hosts and --elastic");
    }
    if (optind >= argc || argv[optind][0] == '\0') {
        fprintf(stderr, "tributary run: which program? Put it after --\n");
        return 2;
    }
    return -1;
}

int run_options_parse(run_options *self, int argc, char **argv)
{
    static const char *const levels[] = {"none", "error", "warn", "info", "debug", "trace", NULL};
    uint32_t reactors = 0;
    static const char *const packages[] = {"none", "horovod", "byteps", NULL};
    int colocate = 0, level = 0, package = 0;
    *self = (run_options){.host_failures = 5};
    const option_row rows[] = {
        {OPTION_COUNT("-n", &self->workers, 1, RUN_COUNT_MAX,
                      "workers: processes with TRIB_RANK 0 to N-1; default 1, or all the hosts' slots")},
        {OPTION_COUNT("-s", &self->servers, 0, RUN_COUNT_MAX,
                      "servers with processes of their own; default 0: the workers sum")},
        {OPTION_CHOICE("--colocate", &colocate, option_when_words, "WHEN", "whether workers sum a share too"),
         .variable = "TRIB_COLOCATE"},
        {OPTION_COUNT("--reactors", &reactors, 0, REACTORS_MAX, "event loops in each process"),
         .variable = "TRIB_REACTORS"},
        {OPTION_TEXT("--host", &self->host, "ADDRESS",
                     "where the processes listen; default 127.0.0.1; RDMA needs an RDMA device's address")},
        {OPTION_SET("--bind", &self->bind,
                    "each process keeps to its part of the cores, or to one of them if there are too few")},
        {OPTION_CHOICE("--log", &level, levels, "LEVEL", "what the engines write to standard error"),
         .variable = "TRIB_LOG"},
        {OPTION_CHOICE("--as", &package, packages, "PACKAGE",
                       "a Python script's imports of it get tributary's package, so that no line has to change")},
        {OPTION_SET("--tag-output", &self->tag_all, "a prefix for the output of rank 0, too")},
        {OPTION_TEXT("-H", &self->hosts, "HOST:SLOTS,...", "where the workers run, and how many on each host")},
        {OPTION_TEXT("--hostfile", &self->hostfile, "FILE",
                     "the same, one host a line: HOST:SLOTS or HOST slots=SLOTS")},
        {OPTION_TEXT("--rsh", &self->rsh, "COMMAND", "what runs `sh` on a host, as COMMAND HOST sh; default ssh")},
        {OPTION_TEXT("--elastic", &self->elastic, "MIN:MAX",
                     "lost workers are started again, and the others go on as long as MIN are left; for programs with "
                     "tributary.elastic (Python)")},
        {OPTION_TEXT("--discover", &self->discover, "SCRIPT",
                     "with --elastic: a program that prints the hosts that there are now, as in a host file")},
        {OPTION_COUNT("--host-failures", &self->host_failures, 0, 4096,
                      "with --elastic: a host is not used while so many workers have failed on it within the last "
                      "minute, before their first commit; default 5; 0: no matter how many")},
    };
    char notes[1280];
    snprintf(notes, sizeof notes, notes_format, RUN_GRACE_S, RUN_SERVERS_S, RUN_KILL_S, RUN_GRACE_S);
    const option_table table = {
        .command = "run",
        .usage = "-n WORKERS [-s SERVERS] [options] -- PROGRAM [ARGUMENTS]",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
        .notes = notes,
        .takes_operands = true,
        .ends_at_operand = true,
    };
    int status = options_parse(&table, argc, argv);
    status = status >= 0 ? status : check_options(self, &table, argc, argv);
    if (status >= 0) {
        return status;
    }
    self->program = optind;
    return package == 0 || run_stand_in_for(packages[package]) ? -1 : 1;
}
