/* run_options.h - the command line of `tributary run`, and what its help says of times. */
#ifndef TRIB_TOOLS_RUN_OPTIONS_H
#define TRIB_TOOLS_RUN_OPTIONS_H

#include <stdbool.h>

#define RUN_COUNT_MAX 256 /* of workers, and of servers */
#define RUN_GRACE_S 10    /* the others' time after a failure, to say what they know */
#define RUN_SERVERS_S 1   /* the servers' after the last worker */
#define RUN_KILL_S 3      /* between SIGTERM and SIGKILL */

typedef struct run_options {
    int workers, servers;
    bool tag_all, bind;
    const char *host; /* an IPv4 address */
    int program;      /* its index in argv */
} run_options;

/* Settings go into the environment. Below 0: go on; else the exit status. */
int run_options_parse(run_options *self, int argc, char **argv);

#endif
