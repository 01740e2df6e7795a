/* cause.h - renders a cause as text for people: the subject, the reason, the duration, and the member that
 * reported it. */
#ifndef TRIB_ENGINE_CAUSE_H
#define TRIB_ENGINE_CAUSE_H

#include "engine/cluster/roster.h"
#include "engine/wire/cause_wire.h"

/* The process that reads the text, and the names that members have there. */
typedef struct trib_cause_reader {
    const trib_roster *roster; /* NULL until the roster arrives; members have no names until then */
    uint32_t member;           /* called "this process" in the text; TRIB_NO_MEMBER for a text that others read too */
    uint32_t worker_count;
    const char *coordinator_address;
} trib_cause_reader;

void trib_cause_render(const trib_cause *cause, const trib_cause_reader *reader, char text[TRIB_ERROR_TEXT_SIZE]);

/* Returns true if the cause is about the coordinator, as such or as a member. */
bool trib_cause_is_about_coordinator(const trib_cause *cause, const trib_roster *roster);

#endif
