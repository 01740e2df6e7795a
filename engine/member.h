/* member.h - a member's side of the membership: joining, declaring, heartbeats. Lives on core 0. */
#ifndef TRIB_ENGINE_MEMBER_H
#define TRIB_ENGINE_MEMBER_H

#include "engine/op.h"

typedef struct trib_member trib_member;

/* Starts to join. */
TRIB_CHECKED trib_status trib_member_open(trib_core *core, trib_error *error);
void trib_member_close(trib_member *member);
/* Core 0, at the job's end: tells the coordinator, in good order or why not. */
void trib_member_leave(trib_member *member, trib_status status, const char *text);
/* trib_post of a tensor: declares it, now or when the job has come together. */
void trib_member_declare(trib_reactor *reactor, trib_post *post);
/* Asks the coordinator for its time; false: it cannot be asked (now). trib_tracer_clock_answer follows. */
bool trib_member_ask_time(const trib_member *member);

#endif
