/* run_hosts.h - `tributary run` over several hosts, or with workers that come and go: the Python package has its
 * launcher. */
#ifndef TRIB_TOOLS_CLI_RUN_HOSTS_H
#define TRIB_TOOLS_CLI_RUN_HOSTS_H

#include <stdbool.h>

#include "tools/cli/run_options.h"

/* True if options name hosts, or the job is elastic. */
bool run_needs_hosts(const run_options *options);
/* Executes the launcher in place of this process. Returns only with an exit status, after an error message. */
int run_over_hosts(const run_options *options, char **program);

#endif
