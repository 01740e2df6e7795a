/* plans.h - the list of stages, and the choice of a tensor's plan. */
#ifndef TRIB_STAGES_PLANS_H
#define TRIB_STAGES_PLANS_H

#include "engine/worker/pipeline.h"

extern const trib_stage trib_stage_input;
extern const trib_stage trib_stage_nccl_reduce;
extern const trib_stage trib_stage_nccl_all_reduce; /* NCCL_REDUCE as the last stage */
extern const trib_stage trib_stage_copy_d2h;
extern const trib_stage trib_stage_copy_d2h_staged; /* COPYD2H of a staged tensor */
extern const trib_stage trib_stage_compress;
extern const trib_stage trib_stage_push;
extern const trib_stage trib_stage_pull;
extern const trib_stage trib_stage_decompress;
extern const trib_stage trib_stage_copy_h2d;
extern const trib_stage trib_stage_copy_h2d_last;   /* COPYH2D as the last stage */
extern const trib_stage trib_stage_copy_h2d_staged; /* COPYH2D of a staged tensor, the last stage */
extern const trib_stage trib_stage_nccl_broadcast;

/* Returns the plan of a tensor. Called at placement. */
const trib_plan *trib_plan_choose(const trib_tensor *tensor);

#endif
