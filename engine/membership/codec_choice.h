/*
 * codec_choice.h - the coordinator's side of the codec "auto": it measures links, compares the costs of codecs and
 * sums, and chooses; DECLARED tells every worker the choice.
 *
 * Links are measured once, before the first such tensor is answered, while the job does nothing else yet: the
 * coordinator sends PROBE to members, one after the other, and times their answers. Where all members are told their
 * bandwidth nothing is sent. A choice holds for all tensors of that text and type, as long as the epoch lasts.
 * Everything here belongs to core 0.
 */
#ifndef TRIB_ENGINE_CODEC_CHOICE_H
#define TRIB_ENGINE_CODEC_CHOICE_H

#include "engine/membership/coordinator_internal.h"

/* Returns true if the tensor's choice is made, or there is none to make. Else links are being measured, and
 * trib_serves_check is called when that is over, or when the link of a member that is waited for has ended. */
bool trib_codec_choice_make(trib_coordinator *self, trib_registry_entry *entry);
TRIB_CHECKED trib_status trib_codec_choice_take_probed(trib_coordinator *self, uint32_t member, trib_error *error);
void trib_codec_choice_close(trib_coordinator *self);

#endif
