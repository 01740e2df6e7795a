/* run_environment.h - the environment, cores and signals of a job that `tributary run` starts. */
#ifndef TRIB_TOOLS_CLI_RUN_ENVIRONMENT_H
#define TRIB_TOOLS_CLI_RUN_ENVIRONMENT_H

#include <stdbool.h>

/* Sets the environment of this process, which its children inherit; host is an IPv4 address. Returns false after
 * an error message. */
bool run_prepare_environment(const char *host, int workers, int servers);

/* Binds this process to its part of the available cores, or to one core if there are more parts than cores. */
bool run_bind(int parts, int part);

/* Blocks the signals that run handles, and returns a descriptor from which they are read, or -1. An ignored SIGHUP
 * (nohup) or SIGPIPE stays ignored: a blocked one would be delivered all the same. */
int run_open_signals(void);

#endif
