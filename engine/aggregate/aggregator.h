/*
 * aggregator.h - the interface of an aggregator: contributions go in, sums and refusals come out.
 *
 * An aggregator knows contributors by number, and nothing of connections or the wire. It belongs to one reactor. It
 * delivers sums and refusals through upcalls, which its implementation gets when it is opened. An upcall may call the
 * aggregator again, but not destroy it.
 */
#ifndef TRIB_ENGINE_AGGREGATOR_H
#define TRIB_ENGINE_AGGREGATOR_H

#include "api/tributary.h"
#include "engine/base/lease.h"
#include "engine/base/limits.h"
#include "engine/base/rank_bits.h"

/* A contributor may have given up this many rounds of a key, each contributed in full, before it begins a further
 * one. */
#define TRIB_SUM_KEPT_ROUNDS_MAX 2u

/* The operation of a round. All contributors must agree on it, or the round is refused to all. */
typedef enum trib_collective {
    TRIB_COLLECTIVE_ALL_REDUCE = 0,
    TRIB_COLLECTIVE_BROADCAST = 1,
    /* all-reduce of a device tensor, with one contributor per machine; the summation never sees it */
    TRIB_COLLECTIVE_DEVICE_ALL_REDUCE = 2,
    /* all-reduce or broadcast of a device tensor within one machine; never on the wire */
    TRIB_COLLECTIVE_DEVICE_ALONE = 3,
    TRIB_COLLECTIVE_DEVICE_BROADCAST = 4, /* broadcast of a device tensor; the summation never sees it */
    TRIB_COLLECTIVE_REDUCE = 5,           /* all contribute, and the root alone gets the sum */
    /* one rank gives to another one; to the summation it is a broadcast with two contributors */
    TRIB_COLLECTIVE_PAIR = 6,
} trib_collective;

/* True if every contributor brings a payload. Otherwise only the root does. */
static inline bool trib_collective_is_sum(uint32_t collective)
{
    return collective == TRIB_COLLECTIVE_ALL_REDUCE || collective == TRIB_COLLECTIVE_REDUCE;
}

/* The `root` field in frames about device tensors. It packs the number of local ranks that share the tensor, and the
 * machine of the broadcast's root. */
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

/* True for the shards of a device tensor: each local rank contributes its own shard for its machine. */
static inline bool trib_collective_is_sharded(uint32_t collective)
{
    return collective == TRIB_COLLECTIVE_DEVICE_ALL_REDUCE || collective == TRIB_COLLECTIVE_DEVICE_BROADCAST;
}

typedef struct trib_contribution {
    uint32_t tensor;
    uint32_t partition;
    uint32_t round;
    uint32_t chunk;
    uint32_t chunk_count; /* chunks of the partition */
    uint32_t size;        /* bytes of this chunk in the tensor, even when no payload travels (broadcast, not root) */
    uint32_t contributor; /* its number in the aggregator, from 0 */
    int32_t priority;
    trib_collective collective;
    trib_dtype dtype;
    trib_reduce reduce;
    uint32_t root;       /* the rank that gives in a broadcast, or that gets the sum in a reduce */
    uint64_t scale;      /* of the sum, packed (base/scale.h); all contributors must say the same. 0: none */
    uint32_t prescale;   /* of integers before the sum, likewise */
    uint32_t step;       /* the caller's training step; all contributors must say the same */
    uint32_t round_base; /* rounds up to this one are of tensors that ended; contributions to them are dropped */
    /* how often all had joined (trib_join) when it was sent; after each, a contributor may pass over rounds */
    uint32_t joins;
    bool is_eager; /* broadcast: all know the root, so its payload goes to each as it asks, not when all have come */
    bool is_late;  /* all have joined since then, so its sender has given the round up */
    bool is_ahead; /* an earlier frame of its link is not taken in yet, so this one may not jump (may_jump) */
    /* the owner that a relay sends the partial sum to, as trib_relay_owner() writes it, or the ranks of a pair; not
     * interpreted here */
    uint32_t owner;
    /* How the chunk was encoded, NULL: not at all. All contributors must say the same; otherwise not interpreted
     * here. */
    const struct trib_encoding *encoding;
    uint32_t partition_elements; /* with an encoding */
    /* Of a sum that is handed out: marks, by contributor, the contributions that are missing in it; valid during the
     * upcall. NULL: none is missing. */
    const unsigned char *late;
} trib_contribution;

/* A sum that is being sent to its receivers, which share it by reference count. */
typedef struct trib_sum_buffer {
    void *data;
    uint32_t size;
    uint32_t references;
    uint8_t codec; /* codec that encoded the data; 0: the data are elements */
    void *slot;    /* for the aggregator alone */
} trib_sum_buffer;

/* The payload of a contribution, as it arrived. */
typedef struct trib_arrived {
    void *buffer; /* the buffer from recv_target; NULL if that was not called */
    /* the payload's place: the buffer, or memory lent for the time of the call; NULL if no payload travels */
    const void *payload;
    /* lends a payload outside the buffer; NULL: such a payload is valid during the call only */
    const trib_lender *lender;
} trib_arrived;

/* Returns true, with the reason in `text`, if the contributor will never contribute. `user` belongs to the
 * aggregator's upcalls. */
typedef bool trib_is_gone(void *user, const trib_contribution *what, char *text, size_t size);
/* The contributors that a round lacks. */
typedef struct trib_missing {
    uint32_t lowest, count;
    unsigned char bits[TRIB_RANK_BITS_BYTES];
} trib_missing;
/* Reports a receiver that waits for a round. */
typedef void trib_stalled(void *user, uint32_t receiver, const trib_contribution *what, const trib_missing *missing);
typedef void trib_waits(void *user, uint32_t receiver, const trib_contribution *what);

/* For `owes`: this process is a worker, and sums what its machine contributes through another rank of the machine. */
#define TRIB_SUM_FOR_OTHERS (UINT32_MAX - 1)

typedef struct trib_aggregator trib_aggregator;

typedef struct trib_aggregator_ops {
    const char *name;
    /*
     * The server asks where the payload of a contribution shall land, which *buffer_out answers. TRIB_AGAIN: there is
     * no memory now, so the caller asks again later. TRIB_PROTOCOL with *error: the contributor broke the protocol, and
     * the caller disconnects it. Exactly one call of arrived or abandon follows with the buffer, which the caller may
     * fill until then.
     */
    trib_status (*recv_target)(trib_aggregator *self, const trib_contribution *what, void **buffer_out,
                               trib_error *error);
    /*
     * Answers where the sum lies that waits for this contribution, as accumulators, or NULL: none does. The caller may
     * add the contribution there, and then calls arrived at once, with that place as payload and without a buffer.
     * Errors as of recv_target, but for TRIB_AGAIN.
     */
    trib_status (*sum_at)(trib_aggregator *self, const trib_contribution *what, void **sum_out, trib_error *error);
    /* TRIB_NO_MEMORY is possible only without a buffer. Nothing has changed then, and the caller may try again. */
    trib_status (*arrived)(trib_aggregator *self, const trib_contribution *what, const trib_arrived *arrived,
                           trib_error *error);
    /* called instead of arrived when the connection ended before that */
    void (*abandon)(trib_aggregator *self, void *buffer);
    /* Gives back one reference of a sum that was handed out, after it was sent or its receiver is gone. */
    void (*sent)(trib_aggregator *self, trib_sum_buffer *sum);
    /* The contributor withdraws from the round, which is refused to all contributors, present or late. */
    trib_status (*withdraw)(trib_aggregator *self, const trib_contribution *what, trib_status why, const char *text);
    /* Reports the receivers that wait for rounds older than `older_than_ns`, with at most `limit` calls. The next
     * scan continues where this one ended. */
    void (*scan)(trib_aggregator *self, int64_t older_than_ns, uint32_t limit, trib_stalled *stalled);
    /* Refuses every round that lacks a contribution of a contributor that is gone. */
    void (*refuse_gone)(trib_aggregator *self, trib_is_gone *is_gone);
    /* Contributors for which is_absent returns true bring neutral elements, in order, to the round of `what` and newer
     * ones of its key, or to all rounds (NULL), so far as others have contributed; rounds that cannot have that are
     * refused with TRIB_UNSUPPORTED and the text of is_absent. Elements for which there is no memory are brought by a
     * later call. */
    void (*fill)(trib_aggregator *self, const trib_contribution *what, trib_is_gone *is_absent);
    /* Calls notify for each receiver that waits for the round and has not been refused. */
    void (*each_waiting)(trib_aggregator *self, const trib_contribution *what, trib_waits *notify, void *user);
    /* True if this contributor has finished a round that another one, which is not gone, has not. For others
     * (TRIB_SUM_FOR_OTHERS): if a round has begun, and one of its contributors is not gone. */
    bool (*owes)(const trib_aggregator *self, uint32_t contributor, trib_is_gone *is_gone);
    /* The key's tensor has ended with what->round. Rounds that lack contributions will never get them, so they are
     * given up without a word; the key goes when nothing of it is being sent. */
    void (*forget)(trib_aggregator *self, const trib_contribution *what);
    bool (*is_idle)(const trib_aggregator *self); /* nothing is being aggregated or sent */
    void (*destroy)(trib_aggregator *self);       /* unsent sums are dropped: no call of `sent` may follow for them */
} trib_aggregator_ops;

/* The implementation embeds this as its base. */
struct trib_aggregator {
    const trib_aggregator_ops *ops;
};

#endif
