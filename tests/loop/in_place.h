/*
 * in_place.h - one member of a job of several processes on this machine. The processes sum tensors that lie in engine
 * memory or elsewhere, and share a table of counts.
 */
#ifndef TRIB_TESTS_LOOP_IN_PLACE_H
#define TRIB_TESTS_LOOP_IN_PLACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    IN_PLACE_MEMBERS_MAX = 6,
    IN_PLACE_TENSORS = 11, /* the last one, of 40 MiB, only if is_huge */
    IN_PLACE_ENDED = 3,    /* exit status: the job ended early */
};

typedef enum in_place_scene {
    SUMS,     /* the given number of steps, in random order */
    LATE,     /* rank 0 submits; the others submit after one of its payloads has been recalled */
    GIVES_UP, /* every member cancels some of its own operations */
    KILLED,   /* the member that sums kills the victim at its lease_count-th lease of the victim's payload */
    CLOSED,   /* the victim closes its engine with every operation in flight */
} in_place_scene;

/* The table that a job's processes share. */
typedef struct in_place_table {
    int workers, servers, victim, steps;
    in_place_scene scene;
    uint32_t lease_count, reactors, chunk_bytes;
    bool is_mixed; /* some memory is not the engines' */
    bool is_huge;
    uint64_t seed;
    char address[32], transport[8];
    pid_t pids[IN_PLACE_MEMBERS_MAX];
    atomic_uint leases, of_victim, recalled, kills;
    atomic_uint refused;            /* reads of another process that the kernel forbade */
    atomic_ulong by_kernel, pushed; /* in bytes */
    atomic_ulong sums, failures;    /* in operations */
} in_place_table;

/* Returns the table in a member, and NULL elsewhere. */
in_place_table *in_place_shared(void);
/* Runs a member and returns its exit status. Errors go to standard error. fd is the shared table's. */
int in_place_member(int number, int fd);

#endif
