/* link_cause.h - causes that travel over links, and what the end of a link tells the job: who is lost, why, and who says so. */
#ifndef TRIB_ENGINE_LINK_CAUSE_H
#define TRIB_ENGINE_LINK_CAUSE_H

#include "engine/link/link.h"

/* Sends the frame with the cause as its payload, and the status of the cause in aux. Otherwise as trib_link_send_copy. */
void trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause);

/* In `closed` of a link between members: the cause of its end. */
void trib_link_end_cause(const trib_link *link, trib_cause *cause_out);
/* In `closed` of a control connection: its member is lost, or the coordinator, unless its BYE told another cause. The cause says when
 * something came from it last: pings tell that to the second. */
void trib_link_control_cause(const trib_link *link, trib_cause_subject subject_kind, uint32_t subject,
                             trib_cause *cause_out);

#endif
