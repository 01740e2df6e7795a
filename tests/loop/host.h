/* host.h - rank 0 of a job, which coordinates, for strangers to come to; and what it has said. */
#ifndef TRIB_TESTS_LOOP_HOST_H
#define TRIB_TESTS_LOOP_HOST_H

#include <pthread.h>

#include "api/tributary.h"

#define HOST_TOKEN "a secret of the tests"

typedef struct host {
    trib_engine *engine;
    char address[32]; /* of the coordinator; the first, where there are two */
    pthread_mutex_t mutex;
    char log[65536];
} host;

/* more: the host of a second address of the coordinator's, or "": then strangers meet no sessions. */
void host_open(host *self, int workers, const char *more);
bool host_has_said(host *self, const char *words);
/* The log stays. */
void host_close(host *self);

#endif
