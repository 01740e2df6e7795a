/* plans.h - the plans: which stages a partition goes through, by kind of collective. */
#ifndef TRIB_STAGES_PLANS_H
#define TRIB_STAGES_PLANS_H

#include "engine/worker/pipeline.h"

extern const trib_stage trib_stage_push;
extern const trib_stage trib_stage_pull;
extern const trib_stage trib_stage_input;
extern const trib_stage trib_stage_nccl_reduce;
extern const trib_stage trib_stage_copy_d2h;
extern const trib_stage trib_stage_copy_h2d;
extern const trib_stage trib_stage_nccl_broadcast;

/* Indexed by trib_collective. */
extern const trib_plan trib_plans[];

#endif
