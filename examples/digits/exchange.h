/*
 * exchange.h - what this program needs of Tributary: sum the gradients of all workers, start from the same weights,
 * compare. One thread uses an exchange; Tributary's callbacks come from its own threads.
 */
#ifndef DIGITS_EXCHANGE_H
#define DIGITS_EXCHANGE_H

#include "model.h"

#include <pthread.h>
#include <tributary.h>

struct exchange {
    trib_engine *engine;
    trib_tensor *tensors[PART_COUNT];
    trib_tensor *hash;
    trib_tensor *loss;
    int32_t rank;
    int32_t worker_count;
    int32_t server_count;

    /* When the first operation since the last wait was submitted; 0: none since. */
    int64_t begin_ns;

    /* The fields below are written by callbacks, under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t all_done;
    uint32_t pending;
    int64_t last_done_ns;
    bool failed;
    char failure[512];
};

/* Joins the job that the environment describes and declares the tensors. Returns false after a message on standard
 * error, with nothing left to close. */
bool exchange_open(struct exchange *exchange);

/* Begins to replace a part of the parameters by its sum over all workers, or by rank 0's copy. Returns false if it
 * has not begun; exchange_wait reports the failure. The memory must stay until exchange_wait has returned. */
bool exchange_sum(struct exchange *exchange, struct parameters *parameters, enum model_part part);
bool exchange_copy(struct exchange *exchange, struct parameters *parameters, enum model_part part);

/* Waits until all operations that have begun have ended. An operation always ends, by its deadline if by nothing
 * else. Returns false after a message on standard error if anything failed. *duration_ns: from the first begin to
 * the last end. */
bool exchange_wait(struct exchange *exchange, int64_t *duration_ns);

/* Replaces *value by its sum over all workers. Returns false after a message. */
bool exchange_total(struct exchange *exchange, double *value);

/* Waits for a boundary at which all workers have done that step, and nothing of a later one: their states are the same,
 * and may be saved. Returns false after a message, on all. */
bool exchange_boundary(struct exchange *exchange, uint32_t step);

/* Tells whether all workers called with the same hash. Returns false after a message if that could not be found out. */
bool exchange_compare(struct exchange *exchange, uint64_t hash, bool *same);

/* Leaves the job. */
void exchange_close(struct exchange *exchange);

/* Returns the monotonic clock. */
int64_t clock_ns(void);

#endif
