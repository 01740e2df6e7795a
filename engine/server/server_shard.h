/*
 * server_shard.h - the sums of device tensors, beside those of tensors in host memory; and what both need of server.c.
 *
 * One share of each machine's sum comes from each of its local ranks, so the contributors to a share are the machines, and
 * each local rank has a summation (a shard's) of its own.
 */
#ifndef TRIB_ENGINE_SERVER_SHARD_H
#define TRIB_ENGINE_SERVER_SHARD_H

#include "engine/core/core.h"

typedef struct trib_server_shard {
    trib_core *core;
    uint32_t local_rank;
    trib_summation *summation; /* NULL: nothing has come for it yet */
} trib_server_shard;

/* Which summation a frame is for; a device tensor's is made when its first frame comes. */
TRIB_CHECKED trib_status trib_server_find_summation(trib_link *link, const trib_frame *frame, trib_summation **out,
                                                    trib_error *error);
/* As trib_summation_owes, of this member's machine. */
bool trib_server_shards_owe(const trib_core *core);
void trib_server_shards_tick(trib_core *core);
void trib_server_shards_close(trib_core *core);

/* ---- server_frame.c ---- */
/* Of a PUSH that has been checked, or a WITHDRAW whose summation has been found. */
trib_contribution trib_server_contribution(const trib_link *link, const trib_frame *frame);
TRIB_CHECKED trib_status trib_server_check_push(const trib_link *link, const trib_frame *frame, trib_error *error);

/* ---- server_departed.c ---- */
/* The chunk of a STALL that names that rank. */
uint32_t trib_server_stall_chunk(const trib_core *core, uint32_t missing_rank);
/* Has that rank left, and all that it has sent before come? And what those are told who wait for its contribution. */
bool trib_server_is_gone(const trib_core *core, uint32_t rank, uint32_t round, char *text, size_t size);

/* ---- server.c ---- */
#define TRIB_STALL_NOTICE_NS (500 * INT64_C(1000000))
#define TRIB_STALL_NOTICES_MAX 256u
/* A STALL's chunk: that rank has left and its link has ended, so it will not come any more. Else it may have come meanwhile:
 * a notice can be overtaken by the news that who it names has done its part and gone. */
#define TRIB_STALL_FOR_GOOD 1u

/* Buffers for a summation whose user is the core. */
void *trib_server_buffer_alloc(void *user, size_t size);
void trib_server_buffer_free(void *user, void *buffer, size_t size);
void trib_server_hand_out(trib_core *core, trib_summation *summation, uint32_t receiver, const trib_contribution *what,
                          trib_sum_buffer *sum);
/* extra: the frame's type, aux, root, chunk and collective. */
void trib_server_notice(trib_core *core, const trib_frame *extra, uint32_t receiver, const trib_contribution *what,
                        const char *text);
/* Looks at what waits: rounds that miss somebody who has left are refused; of the others those who wait are told for whom. */
void trib_server_scan_stalls(trib_core *core);
/* The same for one summation, with what it asks and tells. */
void trib_server_scan_summation(const trib_core *core, trib_summation *summation,
                                bool (*gone)(void *user, const trib_contribution *what, char *text, size_t size),
                                void (*notify)(void *user, uint32_t receiver, const trib_contribution *what,
                                               uint32_t missing_rank, uint32_t missing_count));

#endif
