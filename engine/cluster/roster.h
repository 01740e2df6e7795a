/* roster.h - the members of a job in one epoch, as the coordinator announced them. Once published, it changes only in
 * who holds it, and in the older roster that it leads to. */
#ifndef TRIB_ENGINE_ROSTER_H
#define TRIB_ENGINE_ROSTER_H

#include <stdatomic.h>

#include "engine/base/limits.h"
#include "engine/cluster/placement.h"
#include "engine/wire/wire.h"

#define TRIB_MEMBER_NAME_MAX 64
/* Slower links are announced as this slow; the factor travels in billionths, in 64 bits. */
#define TRIB_T_OPT_FACTOR_MAX 1e9

/* Ids: workers have 0..n-1, in the order of their ranks; dedicated servers follow. */
typedef struct trib_member_info {
    uint32_t roles;
    bool sums; /* a server, or a worker with a weight, or: */
    /* a worker that has no weight, sums its own, and may get a weight if links are not as measured at the start */
    bool stands_by;
    bool placed;   /* its launcher told it which of the machine's processes it is */
    bool subflows; /* a link to it may have a connection by each of its addresses (link_subflow.h) */
    uint32_t reactors;
    uint64_t bandwidth;
    uint64_t kernel;                 /* id of the kernel it runs on, the same in containers; 0: unknown */
    uint64_t gpu;                    /* place of its GPU on that machine (trib_gpu_number); 0: none, or unknown */
    uint32_t start;                  /* a random number that tells this start of the process from others */
    uint32_t former;                 /* in a roster: its id in the epoch before; TRIB_NO_MEMBER: it had none */
    uint32_t rank;                   /* of a worker, as its program knows it; in JOIN TRIB_NO_MEMBER: it has none yet */
    char name[TRIB_MEMBER_NAME_MAX]; /* "rank 3 (host:pid)", "server 1 (host:pid)" */
    trib_address addresses[TRIB_REACTORS_MAX];
} trib_member_info;

typedef struct trib_roster {
    uint32_t epoch;
    uint32_t worker_count, server_count, member_count;
    uint32_t partition_bytes, chunk_bytes;
    uint32_t local_size; /* workers of each machine, which sum first (relay.h); 0: every worker pushes its own */
    trib_sum_order sum_order;
    int64_t peer_timeout_ns;
    double t_opt_factor;
    bool follows;   /* weights follow the measured rates of links (rebalance.h) */
    bool survives;  /* the loss of a server in a process of its own costs no operation (engine/server/takeover.h) */
    bool shrinks;   /* the job goes on after the loss of a worker (engine/membership/formation.h) */
    bool continues; /* operations go on, too, and ranks stay as they were (engine/worker/op_carry.h) */
    uint32_t ranks_used; /* ranks below this one have been given to workers, of which some may be lost */
    uint32_t lost;       /* members that were lost since the epoch before */
    char lost_text[TRIB_ERROR_TEXT_SIZE]; /* name of the member that was lost last, and the cause */
    /* A member needs only a majority of this roster once it knows that all members have it. Before that, a majority of
     * the members of the epoch before is needed, too (engine/membership/election.h). */
    uint32_t electors_before; /* members of the epoch before that had not left in good order; 0: it is the first */
    uint32_t newcomers;       /* number of workers, the last ones, that were not members in the epoch before */
    uint32_t new_servers;     /* number of servers, the last ones, that were not members in the epoch before */
    uint64_t ticket; /* number that stands for this epoch in the store (engine/membership/tenure.h); 0: no store */
    /* An older roster, which other threads may still read; not sent. The newest one has that of the epoch before. */
    const struct trib_roster *before;
    atomic_uint held; /* readers for which it stays when its epoch is over: operations, and the trace's writer */
    trib_member_info members[];
} trib_roster;

/* NULL if out of memory. Freed with free(). */
trib_roster *trib_roster_create(uint32_t member_count);

/* Keeps the roster after its epoch, until it is let go. NULL: has no effect. */
const trib_roster *trib_roster_hold(const trib_roster *roster);
void trib_roster_let_go(const trib_roster *roster);
/* Frees those before `roster` and the one before it that are not held. begun: the ticket of the last epoch that is
 * known to have begun; of later ones the store decides which have. Returns the last epoch that was freed; 0: none. */
uint32_t trib_roster_free_past(const trib_roster *roster, uint64_t begun);

/* Writes a member's description of itself for JOIN. The id is a rank; for a server the number that it asks for, or
 * TRIB_NO_MEMBER. */
void trib_member_info_put(trib_writer *writer, const trib_member_info *info);
TRIB_CHECKED trib_status trib_member_info_get(trib_reader *reader, trib_member_info *info_out, trib_error *error);

void trib_roster_put(trib_writer *writer, const trib_roster *roster);
/* Returns the epoch of a roster that was put there; 0: it has none. */
uint32_t trib_roster_peek_epoch(const void *form, size_t size);
/* Reads all that is left and checks everything; *roster_out is written on success only. */
TRIB_CHECKED trib_status trib_roster_get(trib_reader *reader, trib_roster **roster_out, trib_error *error);

/* True if counts and sizes allow that local_size workers of each machine sum first. 0: always. */
bool trib_roster_can_sum_first(const trib_roster *roster, uint32_t local_size);

/* True if all members are on one machine (address_list.h), at any of its addresses, loopback included. */
bool trib_roster_is_one_host(const trib_roster *roster);

/* The number of connections of a link to that reactor from another machine (link_subflow.h). With an offer beside
 * TCP in the address it is 1: the path near the device. */
uint32_t trib_roster_networks(const trib_roster *roster, uint32_t member, uint32_t reactor);
/* True if some member has links of more than one connection. */
bool trib_roster_has_networks(const trib_roster *roster);

/* The number of members with a weight at the beginning. */
uint32_t trib_roster_summing(const trib_roster *roster);
/* The number of reactors of these members. */
uint32_t trib_roster_summing_cores(const trib_roster *roster);

/* The id of the worker of that rank, or TRIB_NO_MEMBER. */
uint32_t trib_roster_find_rank(const trib_roster *roster, uint32_t rank);

/* "rank 3 (host:pid)"; "an unknown member" if there is no such member, or no roster yet. */
const char *trib_roster_name(const trib_roster *roster, uint32_t member);

#endif
