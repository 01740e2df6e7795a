/* run_options.h - the command line of `tributary run`, and the times that its help mentions. */
#ifndef TRIB_TOOLS_CLI_RUN_OPTIONS_H
#define TRIB_TOOLS_CLI_RUN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define RUN_COUNT_MAX 256 /* most workers, and most servers */
#define RUN_GRACE_S 10    /* time of the other processes after a failure, to report what they know */
#define RUN_SERVERS_S 1   /* time of the servers after the last worker */
#define RUN_KILL_S 3      /* seconds between SIGTERM and SIGKILL */

typedef struct run_options {
    uint32_t workers, servers;
    bool tag_all, bind;
    const char *host; /* an IPv4 address */
    int program;      /* the index of the program in argv */
    /* Any of the next four: the job is run by the launcher for several hosts (run_hosts.h). NULL: not given. */
    const char *hosts, *hostfile, *discover, *elastic;
    const char *rsh; /* NULL: ssh */
    uint32_t host_failures;
} run_options;

/* Puts settings into the environment. Returns the exit status, or a number below 0 when the command is to go on. */
int run_options_parse(run_options *self, int argc, char **argv);

#endif
