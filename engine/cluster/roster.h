/*
 * roster.h - the members of a job in one epoch, as the coordinator announced them. Immutable once published.
 */
#ifndef TRIB_ENGINE_ROSTER_H
#define TRIB_ENGINE_ROSTER_H

#include "engine/cluster/placement.h"
#include "engine/wire/wire.h"

#define TRIB_REACTORS_MAX 16u
#define TRIB_LOCAL_SIZE_MAX 64 /* ranks of one machine, each with a device */
#define TRIB_MEMBERS_MAX 4096u
#define TRIB_MEMBER_NAME_MAX 64
/* Slower links are announced as being this slow, because the factor travels in billionths in 64 bits. */
#define TRIB_T_OPT_FACTOR_MAX 1e9

/* Ids: a worker's id is its rank, 0..n-1; dedicated servers follow. */
typedef struct trib_member_info {
    uint32_t roles;
    bool sums;      /* a dedicated server, a worker with a share, or one that stands by */
    bool stands_by; /* a worker that gets a share if links turn out to be uneven */
    bool placed;    /* its launcher told it which of the machine's processes it is */
    bool subflows;  /* a link to it may have a connection by each of its addresses (link_subflow.h) */
    uint32_t reactors;
    uint64_t bandwidth;
    uint64_t kernel;                 /* equal in members run by one kernel, in containers too; 0: not known */
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
    bool follows; /* shares follow the measured rates of links (rebalance.h) */
    trib_member_info members[];
} trib_roster;

/* Returns NULL when out of memory. Freed with free(). */
trib_roster *trib_roster_create(uint32_t member_count);

/* Writes what a member says of itself in JOIN. A worker's id is its rank; a server's id is the number that it asks
 * for, or TRIB_NO_MEMBER. */
void trib_member_info_put(trib_writer *writer, const trib_member_info *info);
TRIB_CHECKED trib_status trib_member_info_get(trib_reader *reader, trib_member_info *info_out, trib_error *error);

void trib_roster_put(trib_writer *writer, const trib_roster *roster);
/* Reads all remaining bytes and checks everything. *roster_out is written on success only. */
TRIB_CHECKED trib_status trib_roster_get(trib_reader *reader, trib_roster **roster_out, trib_error *error);

/* Elements of a partial sum are at most this many times as wide as the tensor's. */
#define TRIB_PARTIAL_WIDTH_MAX 4u
/* True if counts and sizes allow that this many workers of each machine sum first. 0 is always allowed. */
bool trib_roster_can_sum_first(const trib_roster *roster, uint32_t local_size);

/* True if all members are on one machine (address_list.h) or reached over loopback, whichever address is used. */
bool trib_roster_is_one_host(const trib_roster *roster);

/* Returns the number of connections of a link to that reactor from another machine (link_subflow.h). A transport
 * other than TCP takes the network that is near to its device. */
uint32_t trib_roster_networks(const trib_roster *roster, uint32_t member, uint32_t reactor);
/* True if some member's links have more than one connection. */
bool trib_roster_has_networks(const trib_roster *roster);

/* Returns the number of members that have a share at the beginning. */
uint32_t trib_roster_summing(const trib_roster *roster);
/* Returns the number of cores of those members. */
uint32_t trib_roster_summing_cores(const trib_roster *roster);

/* Returns a name like "rank 3 (host:pid)", or "an unknown member" if there is no such member or no roster yet. */
const char *trib_roster_name(const trib_roster *roster, uint32_t member);

#endif
