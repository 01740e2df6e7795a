/* member.h - a member's side of the membership: joining, declaring, heartbeats. It belongs to core 0. */
#ifndef TRIB_ENGINE_MEMBER_H
#define TRIB_ENGINE_MEMBER_H

#include "engine/worker/op.h"

typedef struct trib_member trib_member;

/* The coordinator asks each member for a sign of life once in this time. */
static inline int64_t trib_heartbeat_period_ns(int64_t peer_timeout_ns)
{
    /* Often enough that a cut of 0.8 of the timeout leaves time to be heard again. */
    return peer_timeout_ns / 16 < INT64_C(1000000000) ? peer_timeout_ns / 16 : INT64_C(1000000000);
}

/* When to look at a peer's silence again: at the moment from which it counts as lost, or at `at_latest_ns`, which comes
 * every quarter of the timeout. So a process that stood still itself notices that by the delay of its own timer, and
 * gives its peers an eighth of the timeout more. */
static inline int64_t trib_silence_next_ns(int64_t now_ns, int64_t at_latest_ns, int64_t heard_ns,
                                           int64_t peer_timeout_ns)
{
    const int64_t lost_ns = heard_ns + peer_timeout_ns, grace_ns = now_ns + peer_timeout_ns / 8;
    const int64_t look_ns = lost_ns > now_ns ? lost_ns : grace_ns;
    return look_ns < at_latest_ns ? look_ns : at_latest_ns;
}

/* Fills in the member's description of itself for JOIN (member_info.c). */
void trib_member_describe(const trib_engine *engine, trib_member_info *info);
/* Begins to join the job. */
TRIB_CHECKED trib_status trib_member_open(trib_core *core, trib_error *error);
void trib_member_close(trib_member *member);
/* Core 0: writes what joining waits for, as far as this process knows: missing members, or why the coordinator cannot
 * be reached. */
const char *trib_member_awaited(const trib_engine *engine, char *text, size_t size);
/* Core 0: updates engine->awaited, which shows that text to other threads. */
void trib_member_note_awaited(trib_engine *engine);
/* Core 0: tells the coordinator that this member's job has ended, in good order or for that cause. */
void trib_member_leave(trib_member *member, const trib_cause *cause);
/* True after trib_member_leave, or if there is no membership (member is NULL). */
bool trib_member_is_leaving(const trib_member *member);
/* Declares the tensor of that post, or leaves it to the arrival of the roster. */
void trib_member_declare(trib_reactor *reactor, trib_post *post);
/* Tells the coordinator that the tensor has ended here, or leaves it to the arrival of the roster. */
void trib_member_tensor_ended(trib_tensor *tensor);
/* Sends the tensor's DECLARE. */
void trib_member_send_declare(const trib_engine *engine, trib_tensor *tensor);
/* Sends a frame to the coordinator. No-op if the coordinator cannot be reached or has not sent the roster. */
void trib_member_send(const trib_member *member, const trib_frame *frame, const void *payload, size_t size);
/* As trib_member_send, for any layer. */
void trib_member_tell(trib_engine *engine, const trib_frame *frame, const void *payload, size_t size);
/* The coordinator is at that address now. Returns false if memory runs out. */
TRIB_CHECKED bool trib_member_note_coordinator(trib_engine *engine, const char *address);
/* The membership is kept at that address from now on. With `joins` the member goes there at once. */
void trib_member_redirect(trib_engine *engine, const trib_address *coordinator, bool joins);
/* Core 0, by its post: the program waits for the next epoch. */
void trib_member_advance(trib_reactor *reactor, trib_post *post);
/* Returns the link to the coordinator. NULL: the coordinator cannot be reached now, or has not sent the roster. Between
 * two epochs `member` is NULL for a moment. */
trib_link *trib_member_link(const trib_member *member);
/* Asks the coordinator for its time, and trib_tracer_clock_answer gets the answer. Returns false if the coordinator
 * cannot be asked now. */
bool trib_member_ask_time(trib_engine *engine);

/* ---- member_tensors.c: frames of the coordinator, after the roster ---- */
TRIB_CHECKED trib_status trib_member_take_declared(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                   trib_error *error);
TRIB_CHECKED trib_status trib_member_take_move(trib_engine *engine, const trib_frame *frame, const void *payload,
                                               trib_error *error);
TRIB_CHECKED trib_status trib_member_take_decided(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_released(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_forget(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_tensor_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                     trib_error *error);

/* ---- member_groups.c ---- */
/* Asks for the group of that post, or leaves it to the arrival of the roster. */
void trib_member_create_group(trib_reactor *reactor, trib_post *post);
void trib_member_group_ended(trib_reactor *reactor, trib_post *post);
/* Asks for all groups that were made before the roster came. */
void trib_member_ask_groups(trib_engine *engine);
/* Sends the tensor's DECLARE now, or when its group is made. */
void trib_member_declare_in_group(const trib_engine *engine, trib_tensor *tensor);
TRIB_CHECKED trib_status trib_member_take_group_ranks(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                      trib_error *error);
TRIB_CHECKED trib_status trib_member_take_group_made(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_group_forget(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_group_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                    trib_error *error);

#endif
