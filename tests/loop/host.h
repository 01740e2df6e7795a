/* host.h - rank 0 of a job, which coordinates it, as the target of unauthenticated connections. Its log is kept for the
 * test. */
#ifndef TRIB_TESTS_LOOP_HOST_H
#define TRIB_TESTS_LOOP_HOST_H

#include <pthread.h>

#include "api/tributary.h"

#define HOST_TOKEN "a secret of the tests, long enough"

typedef struct host {
    trib_engine *engine;
    char address[32]; /* the coordinator's address, the first if there are two */
    pthread_mutex_t mutex;
    char log[65536];
} host;

/* more: the host part of a second coordinator address. With "" the connections have no sessions. */
void host_open(host *self, int workers, const char *more);
bool host_has_said(host *self, const char *words);
/* The log can still be read afterwards. */
void host_close(host *self);

#endif
