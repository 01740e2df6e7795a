/* run_end.c - see run_end.h. */
#include "tools/cli/run_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>

const char *run_end_survivable(bool is_server, int alive_workers)
{
    static const char *const policies[] = {"servers", "workers", "continue"};
    const char *survive = getenv("TRIB_SURVIVE");
    for (size_t i = 0; survive != NULL && alive_workers > 0 && i < sizeof policies / sizeof policies[0]; i++) {
        if (strcasecmp(survive, policies[i]) == 0) {
            return i > 0 || is_server ? policies[i] : NULL;
        }
    }
    return NULL;
}

void run_end_print(const char *name, int status, const char *survives)
{
    char more[64] = "";
    if (survives != NULL) {
        snprintf(more, sizeof more, ": the others may go on (TRIB_SURVIVE=%s)", survives);
    }
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "tributary run: %s was ended by signal %d (%s)%s\n", name, WTERMSIG(status),
                strsignal(WTERMSIG(status)), more);
    } else {
        fprintf(stderr, "tributary run: %s ended with status %d%s\n", name, WEXITSTATUS(status), more);
    }
}
