/*
 * worker_loss.h - a job that goes on after the loss of workers and servers (TRIB_SURVIVE=workers), in which members die
 * at given times. Every worker checks each sum, and all or none that are left have each operation succeed.
 */
#ifndef TRIB_TESTS_SIM_WORKER_LOSS_H
#define TRIB_TESTS_SIM_WORKER_LOSS_H

#include "tests/sim/sim_bed.h"
#include "tests/sim/sim_devices.h"

enum { WORKERS_MAX = 5, JOINERS_MAX = 2, ALL_MAX = WORKERS_MAX + JOINERS_MAX, SERVERS_MAX = 3 };
enum { TENSORS = 4, ROUNDS = 5, COUNT_MAX = 20000, EPOCHS_MAX = 32, DEATHS_MAX = 3 };
enum { STAGGER_NS = 2000000 }; /* the longest time for which posts come late */

enum { BUG_NONE, BUG_COMMITS_TOO_LATE, BUG_COMMITS_TOO_SOON, BUG_COMMIT_IGNORED, BUG_COUNT };
extern int worker_loss_planted; /* the bug in this process */
/* The run that is under way, where a process that waits for this one wants to know it; else NULL. */
extern volatile uint64_t *worker_loss_seed;

typedef struct stream {
    struct worker *worker;
    uint32_t tensor, round, epoch; /* the round that is under way, in that epoch */
    int32_t *input, *output;
} stream;

typedef struct worker {
    struct bed *bed;
    uint32_t index, epoch, rank, count, servers; /* servers: of the job in that epoch */
    uint32_t through;                            /* streams that have had all their rounds in this epoch */
    bool changing, is_there;
    bool is_out;       /* its job has ended */
    trib_group *group; /* of all workers of its epoch; NULL: none */
    stream streams[TENSORS];
} worker;

typedef struct setting {
    uint32_t workers, servers, reactors, deaths;
    bool in_place, mixes, colocated, server_dies;
    uint32_t first_dies; /* so many of the deaths hit the first members, the coordinator's process before others */
    uint32_t joins;      /* so many of the last workers join at a boundary */
    bool asleep;         /* those are not started yet */
    uint32_t late;       /* so many of the last servers start later, by worker_loss_start_late */
    uint32_t boundaries; /* workers ask for the next epoch where they are through with one whose number is not larger */
    bool has_store;      /* the job is kept in a store (TRIB_STORE) */
    bool apart;          /* the last server is none, but the coordinator in a process of its own; nobody joins */
    bool on_devices;     /* tensors are in the memory of devices, whose jobs and streams take time */
    bool shares;         /* two workers share a machine */
    bool has_groups;     /* in each epoch all workers are a group, so that no server can be spared */
    bool late_groups;    /* that group is created after the first sum, so that a server can be spared before */
    uint32_t stagger_one_in; /* one in so many turns leaves posts to the next one; 0: none */
    int64_t sent_late_ns;    /* messages are reported as sent so much later at most */
    uint32_t silent;         /* the number of the worker that never advances, from 1 on; 0: none */
} setting;

typedef struct bed {
    sim_job *job;
    const setting *what;
    uint64_t seed;
    uint32_t wrong, deaths_left;
    sim_devices devices;
    worker workers[ALL_MAX];
    bool began[EPOCHS_MAX][ALL_MAX];                           /* the worker has been in that epoch */
    trib_status results[EPOCHS_MAX][TENSORS][ROUNDS][ALL_MAX]; /* TRIB_PENDING: none */
    char text[TRIB_ERROR_TEXT_SIZE];                           /* of an operation that failed otherwise */
} bed;

bed *worker_loss_open(const setting *what, uint64_t seed);
void worker_loss_close(bed *self);
/* A late server's process starts. */
void worker_loss_start_late(const bed *self, uint32_t member);
/* A worker that has joined goes to work. */
void worker_loss_begin(bed *self, uint32_t index);
/* Returns the virtual time that the exchange took. */
int64_t worker_loss_run(const setting *what, const int64_t *die_ns, uint64_t seed);
/* An operation has succeeded on all that are left and go on, or on none. */
void worker_loss_check_alike(const bed *self);
/* All workers but those in the set are through with an epoch of their own. */
bool worker_loss_are_over(const bed *self, uint32_t set);
void worker_loss_fail(const bed *self, const char *what);
/* Makes `times` runs, in each of which members die at random times. */
void worker_loss_sweep(const setting *what, uint32_t times);

#endif
