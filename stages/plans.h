/* plans.h - the plans: which stages a partition goes through. */
#ifndef TRIB_STAGES_PLANS_H
#define TRIB_STAGES_PLANS_H

#include "engine/worker/pipeline.h"

extern const trib_stage trib_stage_input;
extern const trib_stage trib_stage_nccl_reduce;
extern const trib_stage trib_stage_nccl_all_reduce; /* NCCL_REDUCE that completes the partition */
extern const trib_stage trib_stage_copy_d2h;
extern const trib_stage trib_stage_compress;
extern const trib_stage trib_stage_push;
extern const trib_stage trib_stage_pull;
extern const trib_stage trib_stage_decompress;
extern const trib_stage trib_stage_copy_h2d;
extern const trib_stage trib_stage_copy_h2d_last; /* COPYH2D that completes the partition */
extern const trib_stage trib_stage_nccl_broadcast;

/* For a tensor that is being placed. */
const trib_plan *trib_plan_choose(const trib_tensor *tensor);

#endif
