/*
 * aggregator.h - what a server does with contributions, behind one interface: contributions in, sums and refusals out.
 *
 * An aggregator knows contributors by number, and nothing of connections or the wire. It belongs to one reactor. Sums
 * and refusals leave it through upcalls that its implementation was opened with. From inside them it may be called
 * again, except for destroy.
 */
#ifndef TRIB_ENGINE_AGGREGATOR_H
#define TRIB_ENGINE_AGGREGATOR_H

#include "api/tributary.h"
#include "engine/base/lease.h"
#include "engine/base/limits.h"

/* Rounds of a key that one contributor may have given up, all of it being here, before it begins a further one. */
#define TRIB_SUM_KEPT_ROUNDS_MAX 2u

/* The operation that a round is. All contributors must agree on every member, or the round is refused to all. */
typedef enum trib_collective {
    TRIB_COLLECTIVE_ALL_REDUCE = 0,
    TRIB_COLLECTIVE_BROADCAST = 1,
    TRIB_COLLECTIVE_DEVICE_ALL_REDUCE =
        2, /* push_pull of a device tensor: one contributor a machine; not inside summation */
    TRIB_COLLECTIVE_DEVICE_ALONE = 3,     /* either, within one machine: never on the wire */
    TRIB_COLLECTIVE_DEVICE_BROADCAST = 4, /* broadcast of a device tensor; not inside summation */
} trib_collective;

/* The root in frames about device tensors: how many local ranks share the tensor, and the machine of the broadcast's
 * root. */
static inline uint32_t trib_device_root(uint32_t local_size, uint32_t machine)
{
    return local_size | machine << 8;
}

static inline uint32_t trib_device_root_local_size(uint32_t root)
{
    return root & 0xff;
}

static inline uint32_t trib_device_root_machine(uint32_t root)
{
    return root >> 8;
}

/* A share of a device tensor: each local rank contributes its own, for its machine. */
static inline bool trib_collective_is_sharded(uint32_t collective)
{
    return collective == TRIB_COLLECTIVE_DEVICE_ALL_REDUCE || collective == TRIB_COLLECTIVE_DEVICE_BROADCAST;
}

typedef struct trib_contribution {
    uint32_t tensor;
    uint32_t partition;
    uint32_t round;
    uint32_t chunk;
    uint32_t chunk_count; /* of the partition */
    uint32_t size;        /* bytes of this chunk of the tensor, also when no payload travels (broadcast, not root) */
    uint32_t contributor; /* its number among those of the aggregator */
    int32_t priority;
    trib_collective collective;
    trib_dtype dtype;
    trib_reduce reduce;
    uint32_t root;  /* broadcast: a rank */
    bool is_ahead;  /* asked about before its turn: what came before it is not in yet, so it does not jump (may_jump) */
    uint32_t owner; /* of a partial sum (below): who sums those, as relay.h writes it; not looked at */
} trib_contribution;

/* A sum on its way to its receivers; shared by reference count. */
typedef struct trib_sum_buffer {
    void *data;
    uint32_t size;
    uint32_t references;
    void *slot; /* the aggregator's own */
} trib_sum_buffer;

/* A contribution's payload, as it has come. */
typedef struct trib_arrived {
    void *buffer; /* where it was to land, by recv_target; NULL: that was not asked */
    const void
        *payload; /* where it is: the buffer, or memory that is lent for the time of the call; NULL: none travels */
    const trib_lender *lender; /* of a payload elsewhere; NULL: it is valid during the call only */
} trib_arrived;

/* Why a contributor will not come: true, and why in text. user is that of the aggregator's upcalls. */
typedef bool trib_is_gone(void *user, const trib_contribution *what, char *text, size_t size);
/* A receiver waits for a round that misses contributors: the lowest of them, and how many. */
typedef void trib_stalled(void *user, uint32_t receiver, const trib_contribution *what, uint32_t missing,
                          uint32_t missing_count);
typedef void trib_waits(void *user, uint32_t receiver, const trib_contribution *what);

typedef struct trib_aggregator trib_aggregator;

typedef struct trib_aggregator_ops {
    const char *name;
    /*
     * A contribution with a payload announces itself: *buffer_out is where it shall land. TRIB_AGAIN: no memory now
     * (ask again later); TRIB_PROTOCOL with *error: the contributor broke the protocol, disconnect it. Exactly one of
     * arrived and abandon follows, with that buffer, which is the caller's to fill until then.
     */
    trib_status (*recv_target)(trib_aggregator *self, const trib_contribution *what, void **buffer_out,
                               trib_error *error);
    /* TRIB_NO_MEMORY, only without a buffer: nothing has changed, and it may be tried again. */
    trib_status (*arrived)(trib_aggregator *self, const trib_contribution *what, const trib_arrived *arrived,
                           trib_error *error);
    void (*abandon)(trib_aggregator *self, void *buffer); /* the connection ended before the payload was there */
    /* One reference of a sum that was handed out is given back: it was sent, or its receiver is gone. */
    void (*sent)(trib_aggregator *self, trib_sum_buffer *sum);
    /* The contributor takes no part in the round, which is then refused to all who are in it or come later. */
    trib_status (*withdraw)(trib_aggregator *self, const trib_contribution *what, trib_status why, const char *text);
    /* Tells who waits for rounds older than that; at most limit calls, and the next scan goes on where this one
     * ended. */
    void (*scan)(trib_aggregator *self, int64_t older_than_ns, uint32_t limit, trib_stalled *stalled);
    void (*refuse_gone)(trib_aggregator *self, int64_t older_than_ns, trib_is_gone *is_gone);
    /* Of one round: the receivers that wait, and have not been refused. */
    void (*each_waiting)(trib_aggregator *self, const trib_contribution *what, trib_waits *notify, void *user);
    /* Is there a round that this contributor is through with and others, who have not gone, are not? */
    bool (*owes)(const trib_aggregator *self, uint32_t contributor, trib_is_gone *is_gone);
    bool (*is_idle)(const trib_aggregator *self); /* nothing is being aggregated or sent */
    void (*destroy)(trib_aggregator *self);       /* sums not yet sent are forgotten: their sent must not follow */
} trib_aggregator_ops;

/* Embedded in what implements it. */
struct trib_aggregator {
    const trib_aggregator_ops *ops;
};

#endif
