/* member.h - a member's side of the membership: joining, declaring, heartbeats. It belongs to core 0. */
#ifndef TRIB_ENGINE_MEMBER_H
#define TRIB_ENGINE_MEMBER_H

#include "engine/worker/op.h"

typedef struct trib_member trib_member;

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
/* True if the member has told so, or if there is no membership (member is NULL). */
bool trib_member_is_leaving(const trib_member *member);
/* Declares the tensor of that post, or leaves it to the arrival of the roster. */
void trib_member_declare(trib_reactor *reactor, trib_post *post);
/* Tells the coordinator that the tensor has ended here, or leaves it to the arrival of the roster. */
void trib_member_tensor_ended(trib_tensor *tensor);
/* Sends the tensor's DECLARE. */
void trib_member_send_declare(const trib_engine *engine, trib_tensor *tensor);
/* Sends a frame to the coordinator. No-op if the coordinator cannot be reached or has not sent the roster. */
void trib_member_send(const trib_member *member, const trib_frame *frame, const void *payload, size_t size);
/* Returns the link to the coordinator. NULL: the coordinator cannot be reached now, or has not sent the roster. */
trib_link *trib_member_link(const trib_member *member);
/* Asks the coordinator for its time, and trib_tracer_clock_answer gets the answer. Returns false if the coordinator
 * cannot be asked now. */
bool trib_member_ask_time(const trib_engine *engine);

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
/* Asks for all groups that were made before the roster came. */
void trib_member_ask_groups(trib_engine *engine);
/* Sends the tensor's DECLARE now, or when its group is made. */
void trib_member_declare_in_group(const trib_engine *engine, trib_tensor *tensor);
TRIB_CHECKED trib_status trib_member_take_group_ranks(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                      trib_error *error);
TRIB_CHECKED trib_status trib_member_take_group_made(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_group_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                    trib_error *error);

#endif
