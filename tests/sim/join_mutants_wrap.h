/* join_mutants_wrap.h - the bugs of test_mutants.c that show where workers join. Included there, behind the variable
 * that tells which bug is planted. */
#ifndef TRIB_TESTS_SIM_JOIN_MUTANTS_WRAP_H
#define TRIB_TESTS_SIM_JOIN_MUTANTS_WRAP_H

#include "engine/worker/op_join.h"

__typeof__(trib_op_join_take_over) __real_trib_op_join_take_over, __wrap_trib_op_join_take_over;
trib_status __wrap_trib_op_join_take_over(trib_engine *engine, const trib_frame *frame, const void *payload,
                                          trib_error *error)
{
    trib_frame empty = *frame;
    empty.payload_size = strikes(BUG_ROUNDS_NOT_RAISED, 1) ? 0 : frame->payload_size;
    return __real_trib_op_join_take_over(engine, &empty, payload, error);
}

#endif
