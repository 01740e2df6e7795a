/* cause.h - renders a cause as text where a person reads it: the subject, the reason, for how long, and the origin. */
#ifndef TRIB_ENGINE_CAUSE_H
#define TRIB_ENGINE_CAUSE_H

#include "engine/cluster/roster.h"
#include "engine/wire/cause_wire.h"

/* The process that reads the text, and the names that members have there. */
typedef struct trib_cause_reader {
    const trib_roster *roster; /* NULL: it has not come yet, and members have no names */
    uint32_t member;           /* is called "this process"; TRIB_NO_MEMBER: nobody, for a text that others read, too */
    uint32_t worker_count;
    const char *coordinator_address;
} trib_cause_reader;

void trib_cause_render(const trib_cause *cause, const trib_cause_reader *reader, char text[TRIB_ERROR_TEXT_SIZE]);

/* True if the cause is about the process that keeps the membership, whether as such or as a member. */
bool trib_cause_is_about_coordinator(const trib_cause *cause, const trib_roster *roster);

#endif
