/*
 * server_sum.h - the aggregators of one core, and the ranks that their contributors stand for.
 *
 * One array (core->sums) holds all of them. The contributors of an aggregator are workers, machines, or the same local
 * rank of every machine. The rest of the server reaches aggregators only through this header.
 */
#ifndef TRIB_ENGINE_SERVER_SUM_H
#define TRIB_ENGINE_SERVER_SUM_H

#include "engine/cluster/rank_set.h"
#include "engine/core/core.h"

/* The kind of an aggregator's contributors, and its index in core->sums. Shards take one entry for each local rank,
 * from TRIB_SUM_SHARD on. */
typedef enum trib_sum_level {
    TRIB_SUM_RANK,  /* workers: all of the job, or on a relay (relay.h) those of its machine */
    TRIB_SUM_HOST,  /* machines, which contribute partial sums; the partition's relay speaks for its machine */
    TRIB_SUM_PAIR,  /* two workers for each key: the first gives to the second */
    TRIB_SUM_SHARD, /* machines, each by the same local rank: the shards of device tensors */
    TRIB_SUM_GROUP, /* the workers of a group; such aggregators are in core->group_sums instead */
} trib_sum_level;

typedef struct trib_server_sum {
    trib_core *core;
    trib_aggregator *aggregator; /* NULL: this core has no aggregator of the kind, or no frame for it has come yet */
    trib_sum_level level;
    /* contributor i of count stands for rank_step ranks, from rank_first + i * rank_step on */
    uint32_t rank_first, rank_step, count;
    /* which of a contributor's ranks speaks for it; TRIB_SUM_HOST uses the partition's relay instead */
    uint32_t place;
    const trib_rank_set *ranks;   /* TRIB_SUM_GROUP: its contributors in order */
    struct trib_server_sum *next; /* TRIB_SUM_GROUP: in core->group_sum_list */
    bool is_over;                 /* TRIB_SUM_GROUP: the group has ended, and something of it may still be sent */
} trib_server_sum;

/* A sum that waits or is being sent. The entry is also the context of the send. */
struct trib_sum_entry {
    trib_send_request request;
    trib_contribution what;
    trib_server_sum *sum;
    trib_sum_buffer *buffer;
    uint32_t rank;
    bool is_kept; /* the partition's keeper has the whole sum (keeper.h) */
    trib_sum_entry *next;
};

/* The two ranks of a pair in one number, as PUSH and WITHDRAW name it where others name an owner (relay.h). */
static inline uint32_t trib_pair_code(uint32_t sender, uint32_t receiver)
{
    return sender | receiver << 16;
}

static inline uint32_t trib_pair_sender(uint32_t code)
{
    return code & 0xffff;
}

static inline uint32_t trib_pair_receiver(uint32_t code)
{
    return code >> 16;
}

_Static_assert(TRIB_MEMBERS_MAX <= 1u << 16, "two ranks fit into 32 bits");

/* Called when the roster is here. The aggregators of shards are made later, when their first frame comes. */
TRIB_CHECKED trib_status trib_server_sums_open(trib_core *core);
void trib_server_sums_close(trib_core *core);
/* Refuses the rounds that lack the contribution of a worker that has left and from which nothing can come any more. */
void trib_server_sum_refuse_gone(trib_server_sum *sum);
/* Refuses the rounds that miss a member that has left. Tells the waiting members of other old rounds which one is
 * missing. */
void trib_server_sums_scan(trib_core *core);
/* True while another member needs a round that this member, or its machine, has finished. */
bool trib_server_sums_owe(const trib_core *core);

/* The aggregator that a worker's frame addresses. TRIB_PROTOCOL if the worker may not speak to it. */
TRIB_CHECKED trib_status trib_server_find_sum(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                                              trib_error *error);
/* The aggregator after this one, of all that the core has; NULL: the first one. Returns NULL after the last. The walk
 * ends there for an aggregator that is not open. */
trib_server_sum *trib_server_sums_next(const trib_core *core, const trib_server_sum *sum);
/* The contributor that stands for the rank that sent a checked frame. */
uint32_t trib_server_sum_contributor(const trib_server_sum *sum, uint32_t rank, const trib_frame *frame);
/* The rank that sends and receives for a contributor. */
uint32_t trib_server_sum_rank(const trib_server_sum *sum, uint32_t contributor, const trib_contribution *what);
/* Passes a relay's report of its machine's missing worker on to the other machines that wait. */
void trib_server_sum_take_stall(trib_server_sum *sum, const trib_contribution *what, const trib_frame *report,
                                const void *payload);

/* True if this is the relay's aggregator for the workers of its own machine. */
static inline bool trib_server_sum_is_near(const trib_server_sum *sum)
{
    return sum->level == TRIB_SUM_RANK && sum->core->relay != NULL;
}

/* Makes the aggregator, whose place among the core's has been filled in. Fails with TRIB_NO_MEMORY only. */
TRIB_CHECKED trib_status trib_server_open_sum(trib_server_sum *sum);

/* ---- server_group.c ---- */
TRIB_CHECKED trib_status trib_server_find_group(const trib_link *link, const trib_frame *frame,
                                                trib_server_sum **sum_out, trib_error *error);
/* The group has ended, after its tensors. Its aggregator stays as long as frames about the group are still sent or
 * received. */
void trib_server_end_group(trib_core *core, uint32_t group);
/* Frees the aggregators of ended groups that nothing needs any more. */
void trib_server_free_ended_groups(trib_core *core);

/* ---- server_frame.c ---- */
/* The contribution that a checked PUSH, a WITHDRAW or a STALL is about. */
trib_contribution trib_server_contribution(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame);
TRIB_CHECKED trib_status trib_server_check_push(const trib_link *link, const trib_frame *frame, trib_error *error);
/* The fields of a PUSH or a WITHDRAW that say which operation it is about: collective, type, reduction, root. */
TRIB_CHECKED trib_status trib_server_check_operation(const trib_link *link, const trib_frame *frame, trib_error *error);

/* ---- server_departed.c ---- */
#define TRIB_STALL_NOTICE_NS (500 * INT64_C(1000000))
/* The `chunk` of a STALL whose missing rank has left and has no link any more, so that it never contributes. With 0
 * it may have contributed meanwhile: news of its departure can overtake the notice. */
#define TRIB_STALL_FOR_GOOD 1u
uint32_t trib_server_stall_chunk(const trib_core *core, uint32_t missing_rank);
/* True if the rank has left and all its frames have arrived. `text` becomes the refusal for those that wait for its
 * contribution. */
bool trib_server_is_gone(const trib_core *core, uint32_t rank, uint32_t round, char *text, size_t size);

/* ---- server_joined.c ---- */
/* True if the contributor has no more data; it hears of no round until all have joined. */
bool trib_server_has_joined(const trib_server_sum *sum, uint32_t contributor, const trib_contribution *what);
/* Lets workers that have joined contribute neutral elements to the round of a frame, or to all rounds (NULL). To a
 * round of a late frame, for whose sum nobody waits any more, all do whose contributions have not come. */
void trib_server_sum_fill(trib_server_sum *sum, const trib_contribution *what);
void trib_server_sums_fill(const trib_core *core);
/* Core 0: takes JOINED from the coordinator. */
TRIB_CHECKED trib_status trib_server_take_joined(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                 trib_error *error);
/* Frees what is known of workers that have joined. */
void trib_server_joined_free(trib_engine *engine);

/* ---- server_forget.c ---- */
/* Core 0: takes FORGET, after all workers have released the tensor. The cores drop their state of its partitions, and
 * late frames about its rounds. Then `done` is called on core 0. */
TRIB_CHECKED trib_status trib_server_forget(trib_engine *engine, const trib_frame *frame,
                                            void (*done)(trib_engine *engine, uint32_t group));
/* The same for a group, whose tensors have ended before. Its ranks leave the engine's table before `done`. */
TRIB_CHECKED trib_status trib_server_forget_group(trib_engine *engine, const trib_rank_set *ranks,
                                                  void (*done)(trib_engine *engine, uint32_t group));
/* The reactors have ended. */
void trib_server_forgets_free(trib_engine *engine);
/* Returns the last round of tensors with that id that have ended; 0: there was none. */
static inline uint32_t trib_server_rounds_over(const trib_core *core, uint32_t tensor)
{
    return tensor < core->sums_over_capacity ? core->sums_over[tensor] : 0;
}

/* ---- server_codec.c ---- */
/* Takes memory in which an encoded chunk lands, for the link's claim. TRIB_AGAIN: there is none now. */
TRIB_CHECKED trib_status trib_server_codec_land(trib_link *link, const trib_frame *frame, trib_recv_target *target);
/* Decodes an encoded contribution that has arrived into memory of the aggregator, or adds it to a sum that waits for
 * it. Completes `what`; *arrived is for the aggregator. */
TRIB_CHECKED trib_status trib_server_codec_decode(const trib_server_sum *sum, const trib_link *link,
                                                  const trib_frame *frame, const void *payload, trib_contribution *what,
                                                  trib_arrived *arrived, trib_error *error);
/* Gives landed memory back; NULL is fine. */
void trib_server_codec_give(trib_core *core, void *landed);
/* An upcall of the summation. */
void trib_server_codec_encode(void *user, const trib_contribution *what, trib_sum_buffer *buffer);
void trib_server_codec_close(trib_core *core);

/* ---- server_plan.c ---- */
TRIB_CHECKED trib_status trib_server_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                            trib_error *error);
void trib_server_trace_chunk(const trib_server_sum *sum, trib_trace_kind kind, const trib_contribution *what,
                             uint32_t peer, uint32_t value);
/* Sends a complete sum to the rank, and gives the reference back afterwards. */
void trib_server_hand_out(trib_server_sum *sum, uint32_t rank, const trib_contribution *what, trib_sum_buffer *buffer);
/* Lets the sum wait for its receiver's link. */
void trib_server_send_sum(trib_sum_entry *entry);
/* Sends a notice about a round. `extra` holds the frame's type, aux, root, chunk and collective. */
void trib_server_notice(const trib_core *core, const trib_frame *extra, uint32_t rank, const trib_contribution *what,
                        const char *text);
/* The same for STALL, with the ranks that may be missing (base/rank_bits.h); NULL: none but that in aux. */
void trib_server_notice_stall(const trib_core *core, const trib_frame *extra, uint32_t rank,
                              const trib_contribution *what, const unsigned char *list);
/* Checks that a STALL is of a rank of the job, and its list complete. */
TRIB_CHECKED trib_status trib_server_check_stall(const trib_core *core, const trib_frame *frame, trib_error *error);
void trib_server_free_entries(trib_core *core);

#endif
