/* member.h - a member's side of the membership: joining, declaring, heartbeats. Lives on core 0. */
#ifndef TRIB_ENGINE_MEMBER_H
#define TRIB_ENGINE_MEMBER_H

#include "engine/worker/op.h"

typedef struct trib_member trib_member;

/* Starts to join. */
TRIB_CHECKED trib_status trib_member_open(trib_core *core, trib_error *error);
void trib_member_close(trib_member *member);
/* Core 0: what joining waits for, as far as this process knows: missing members, or why the coordinator is not reached. */
const char *trib_member_awaited(const trib_engine *engine, char *text, size_t size);
/* Core 0: that may have changed; engine->awaited says it to other threads. */
void trib_member_note_awaited(trib_engine *engine);
/* Core 0, when the job has ended for that cause: tells the coordinator, in good order or why not. */
void trib_member_leave(trib_member *member, const trib_cause *cause);
bool trib_member_is_leaving(const trib_member *member); /* it has; or there is no membership (member is NULL) */
/* trib_post of a tensor: declares it, now or when the job has come together. */
void trib_member_declare(trib_reactor *reactor, trib_post *post);
/* Says something to the coordinator, if it can be reached and has sent the roster. */
void trib_member_send(const trib_member *member, const trib_frame *frame, const void *payload, size_t size);
/* To the coordinator; NULL: it cannot be reached (now), or has not sent the roster. */
trib_link *trib_member_link(const trib_member *member);
/* Asks the coordinator for its time; false: it cannot be asked (now). trib_tracer_clock_answer follows. */
bool trib_member_ask_time(const trib_engine *engine);

/* ---- member_tensors.c: frames of the coordinator, after the roster ---- */
TRIB_CHECKED trib_status trib_member_take_declared(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                   trib_error *error);
TRIB_CHECKED trib_status trib_member_take_move(trib_engine *engine, const trib_frame *frame, const void *payload,
                                               trib_error *error);
TRIB_CHECKED trib_status trib_member_take_decided(trib_engine *engine, const trib_frame *frame, trib_error *error);
TRIB_CHECKED trib_status trib_member_take_tensor_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                                     trib_error *error);

#endif
