/*
 * server_sum.h - the aggregators of one core: what each sums, and which member speaks for each of its contributors.
 *
 * One array (core->sums) holds all of them, whatever their contributors are: workers, machines, or a machine's local
 * ranks. The rest of the server meets aggregators here only.
 */
#ifndef TRIB_ENGINE_SERVER_SUM_H
#define TRIB_ENGINE_SERVER_SUM_H

#include "engine/core/core.h"

/* Of whom the contributors are. Also where in the array: one of each, but of shards one for each local rank. */
typedef enum trib_sum_level {
    TRIB_SUM_RANK,  /* workers: all of the job, or with a relay (relay.h) those of its machine */
    TRIB_SUM_HOST,  /* machines, which bring partial sums; a partition's relay on it speaks for a machine */
    TRIB_SUM_SHARD, /* machines, of each the same local rank: the shards of device tensors */
} trib_sum_level;

typedef struct trib_server_sum {
    trib_core *core;
    trib_aggregator *aggregator; /* NULL: this core has none of that kind, or nothing has come for it yet */
    trib_sum_level level;
    uint32_t rank_first, rank_step,
        count;      /* contributor i of count stands for the ranks from rank_first + i * rank_step */
    uint32_t place; /* the one of these that speaks for it; of HOST that is each partition's relay */
} trib_server_sum;

/* With the roster, all but the shards' aggregators: those are made when their first frame comes. */
TRIB_CHECKED trib_status trib_server_sums_open(trib_core *core);
void trib_server_sums_close(trib_core *core);
/* Looks at what waits: rounds that miss a member that has left are refused; of the others those that wait are told
 * for which. */
void trib_server_sums_scan(trib_core *core);
/* Does another member still need something of a round that this member, or its machine, is through with? */
bool trib_server_sums_owe(const trib_core *core);

/* The one that a frame of a worker is for, if the worker may speak to it. */
TRIB_CHECKED trib_status trib_server_find_sum(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                                              trib_error *error);
/* The rank that speaks for a contributor. */
uint32_t trib_server_sum_rank(const trib_server_sum *sum, uint32_t contributor, const trib_contribution *what);
/* A relay says for which worker of its machine everybody waits. */
void trib_server_sum_take_stall(trib_server_sum *sum, const trib_contribution *what, const trib_frame *report);

/* Does it sum for the workers of this machine first? */
static inline bool trib_server_sum_is_near(const trib_server_sum *sum)
{
    return sum->level == TRIB_SUM_RANK && sum->core->relay != NULL;
}

/* ---- server_frame.c ---- */
/* Of a PUSH that has been checked, or a WITHDRAW or STALL. */
trib_contribution trib_server_contribution(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame);
TRIB_CHECKED trib_status trib_server_check_push(const trib_link *link, const trib_frame *frame, trib_error *error);

/* ---- server_departed.c ---- */
#define TRIB_STALL_NOTICE_NS (500 * INT64_C(1000000))
/* The chunk of a STALL whose missing rank has left, and its link has ended, so that it will not come any more. Else
 * it may have come meanwhile: a notice can be overtaken by the news that the rank has done its part and gone. */
#define TRIB_STALL_FOR_GOOD 1u
uint32_t trib_server_stall_chunk(const trib_core *core, uint32_t missing_rank);
/* Has that rank left, and all that it has sent before come? In text what those are told that wait for its
 * contribution. */
bool trib_server_is_gone(const trib_core *core, uint32_t rank, uint32_t round, char *text, size_t size);

/* ---- server_plan.c ---- */
TRIB_CHECKED trib_status trib_server_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                            trib_error *error);
void trib_server_trace_chunk(const trib_server_sum *sum, trib_trace_kind kind, const trib_contribution *what,
                             uint32_t peer, uint32_t value);
/* A sum is complete: it goes to that rank, and its reference is given back when it has. */
void trib_server_hand_out(trib_server_sum *sum, uint32_t rank, const trib_contribution *what, trib_sum_buffer *buffer);
/* extra: the frame's type, aux, root, chunk and collective. */
void trib_server_notice(const trib_core *core, const trib_frame *extra, uint32_t rank, const trib_contribution *what,
                        const char *text);
void trib_server_free_entries(trib_core *core);

#endif
