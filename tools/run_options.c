/* run_options.c - see run_options.h. */
#include "tools/run_options.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "tools/option.h"
#include "tools/study/parse.h"

#define REACTORS_MAX 16 /* as TRIB_REACTORS */

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
        "SIGINT, SIGTERM, SIGHUP, SIGQUIT, and SIGPIPE where nobody reads the output any more, go to the workers, "
        "which\n"
        "have the same time to end; a second one (not SIGPIPE) ends all.\n"
        "The exit status is that of the first worker that failed; if none did, that of a server that crashed, or\n"
        "failed while all workers were at work; else 0. Servers that only saw all workers go without closing their\n"
        "engines are a warning.\n",
        RUN_GRACE_S, RUN_SERVERS_S, RUN_KILL_S, RUN_GRACE_S);
}

static bool parse_count(const char *text, uint32_t low, int *value, char *wants)
{
    uint32_t number = 0;
    const bool fine = study_parse_count(text, low, RUN_COUNT_MAX, &number, wants);
    *value = (int)number;
    return fine;
}

/* The workers would refuse another one, each by itself, and a program that is none of ours nothing. */
static bool parse_level(const char *text, char *wants)
{
    static const char *const levels[] = {"none", "error", "warn", "info", "debug", "trace"};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (strcasecmp(text, levels[i]) == 0) {
            return true;
        }
    }
    snprintf(wants, STUDY_WANTS_MAX, "must be none, error, warn, info, debug or trace");
    return false;
}

/* 0.0.0.0 is where one may listen, and what the processes would tell each other to connect to. */
static bool parse_host(const char *text, char *wants)
{
    struct in_addr numeric;
    snprintf(wants, STUDY_WANTS_MAX, "must be an IPv4 address of this machine, such as 127.0.0.1");
    return inet_pton(AF_INET, text, &numeric) == 1 && numeric.s_addr != htonl(INADDR_ANY);
}

int run_options_parse(run_options *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"colocate", required_argument, NULL, 'c'}, {"reactors", required_argument, NULL, 'r'},
        {"log", required_argument, NULL, 'l'},      {"tag-output", no_argument, NULL, 't'},
        {"bind", no_argument, NULL, 'b'},           {"help", no_argument, NULL, 'h'},
        {"host", required_argument, NULL, 'a'},     {NULL, 0, NULL, 0},
    };
    uint32_t reactors = 0;
    int when = 0;
    *self = (run_options){.workers = 1, .host = "127.0.0.1"};
    for (int option; (option = getopt_long(argc, argv, "+n:s:h", options, NULL)) != -1;) {
        bool fine = true;
        char wants[STUDY_WANTS_MAX] = "";
        switch (option) {
        case 'n':
            fine = parse_count(optarg, 1, &self->workers, wants);
            break;
        case 's':
            fine = parse_count(optarg, 0, &self->servers, wants);
            break;
        case 'c':
            fine = study_parse_when(optarg, &when, wants);
            setenv("TRIB_COLOCATE", optarg, 1);
            break;
        case 'r':
            fine = study_parse_count(optarg, 0, REACTORS_MAX, &reactors, wants);
            setenv("TRIB_REACTORS", optarg, 1);
            break;
        case 'a':
            self->host = optarg;
            fine = parse_host(optarg, wants);
            break;
        case 'l':
            fine = parse_level(optarg, wants);
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
            return option_refused("run", options, option, optarg, wants);
        }
    }
    if (optind >= argc || argv[optind][0] == '\0') {
        fprintf(stderr, "tributary run: which program? Put it after --\n");
        return 2;
    }
    self->program = optind;
    return -1;
}
