/* damage_mutants_wrap.h - the bugs of test_mutants.c that show where messages are damaged on their way. Included there,
 * behind the variable that tells which bug is planted. */
#ifndef TRIB_TESTS_SIM_DAMAGE_MUTANTS_WRAP_H
#define TRIB_TESTS_SIM_DAMAGE_MUTANTS_WRAP_H

#include "engine/link/link_checksum.h"

__typeof__(trib_link_checksum_compare) __real_trib_link_checksum_compare, __wrap_trib_link_checksum_compare;
trib_status __wrap_trib_link_checksum_compare(trib_link *link, const trib_frame *frame, const void *payload,
                                              trib_error *error)
{
    return strikes(BUG_CHECKSUM_IGNORED, 1) ? TRIB_OK : __real_trib_link_checksum_compare(link, frame, payload, error);
}

__typeof__(trib_link_damaged) __real_trib_link_damaged, __wrap_trib_link_damaged;
bool __wrap_trib_link_damaged(trib_link *link)
{
    return !strikes(BUG_DAMAGE_ENDS, 1) && __real_trib_link_damaged(link);
}

__typeof__(trib_frame_check_epoch) __real_trib_frame_check_epoch, __wrap_trib_frame_check_epoch;
trib_status __wrap_trib_frame_check_epoch(const trib_frame *frame, uint32_t epoch, trib_error *error)
{
    return strikes(BUG_ANY_EPOCH, 1) ? TRIB_OK : __real_trib_frame_check_epoch(frame, epoch, error);
}

#endif
