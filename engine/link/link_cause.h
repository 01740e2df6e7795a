/* link_cause.h - causes that travel over links, and the cause that the end of a link gives to the job: which member is
 * lost, why, and which member says so. */
#ifndef TRIB_ENGINE_LINK_CAUSE_H
#define TRIB_ENGINE_LINK_CAUSE_H

#include "engine/link/link.h"

/* Sends the frame with the cause as its payload, and the cause's status in aux. Failures are handled as in
 * trib_link_send_copy. */
void trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause);

/* Makes the cause of a link's end. For `closed` of a link between members. */
void trib_link_end_cause(const trib_link *link, trib_cause *cause_out);
/* Makes the cause of a control connection's end, for its `closed`. The member (or the coordinator) is lost, unless its
 * BYE named another cause. The cause includes the time of silence, which pings keep exact to a second. */
void trib_link_control_cause(const trib_link *link, trib_cause_subject subject_kind, uint32_t subject,
                             trib_cause *cause_out);

/* Adds the connection's address to the end of a link whose peer broke the protocol: it may be another process than its
 * member id says. */
void trib_link_name_breaker(trib_link *link, const trib_conn *conn);

#endif
