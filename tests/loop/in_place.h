/*
 * in_place.h - a member of a job of several processes of this machine, which sum tensors that lie in their engines' memory or
 * elsewhere: what the processes share, and what each does with it.
 */
#ifndef TRIB_TESTS_LOOP_IN_PLACE_H
#define TRIB_TESTS_LOOP_IN_PLACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    IN_PLACE_MEMBERS_MAX = 6,
    IN_PLACE_TENSORS = 11, /* the last, of 40 MiB, only where it is asked for */
    IN_PLACE_ENDED = 3,    /* exit status: the job ended before its time */
};

typedef enum in_place_scene {
    SUMS,     /* so many steps, in random order */
    LATE,     /* rank 0 hands in, the others when something that it has handed in has been recalled */
    GIVES_UP, /* everybody cancels some of its own */
    KILLED,   /* who sums kills the victim when it leases a payload of it for the lease_count-th time */
    CLOSED,   /* the victim closes its engine with all that it has handed in under way */
} in_place_scene;

/* What a job's processes share. */
typedef struct in_place_table {
    int workers, servers, victim, steps;
    in_place_scene scene;
    uint32_t lease_count, reactors, chunk_bytes;
    bool is_mixed; /* not all memory is the engines' */
    bool is_huge;
    uint64_t seed;
    char address[32], transport[8];
    pid_t pids[IN_PLACE_MEMBERS_MAX];
    atomic_uint leases, of_victim, recalled, kills;
    atomic_uint refused;            /* attempts to read another process that the kernel does not allow */
    atomic_ulong by_kernel, pushed; /* bytes */
    atomic_ulong sums, failures;    /* operations */
} in_place_table;

/* A member's; NULL elsewhere. */
in_place_table *in_place_shared(void);
/* Its life, and its exit status. Says on standard error what is wrong. fd: of the table. */
int in_place_member(int number, int fd);

#endif
