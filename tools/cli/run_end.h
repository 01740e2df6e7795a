/* run_end.h - the end of one process of `tributary run`: its report, and whether the others may go on without it. */
#ifndef TRIB_TOOLS_CLI_RUN_END_H
#define TRIB_TOOLS_CLI_RUN_END_H

#include <stdbool.h>

/* Returns the value of TRIB_SURVIVE with which the job may survive that loss, or NULL: the job fails. The count is that
 * of the workers that are left. */
const char *run_end_survivable(bool is_server, int alive_workers);
/* Prints how a process ended, by waitpid's status; and that the others may go on, if `survives` is not NULL. */
void run_end_print(const char *name, int status, const char *survives);

#endif
