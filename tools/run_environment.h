/* run_environment.h - the environment and the cores of a job that `tributary run` starts. */
#ifndef TRIB_TOOLS_RUN_ENVIRONMENT_H
#define TRIB_TOOLS_RUN_ENVIRONMENT_H

#include <stdbool.h>

/* Sets this process's own, for those that it starts; an IPv4 host. false: said why on stderr. */
bool run_prepare_environment(const char *host, int workers, int servers);

/* Keeps this process to its part of the cores that it may use, or to one of them if there are more parts than cores. */
bool run_bind(int parts, int part);

#endif
