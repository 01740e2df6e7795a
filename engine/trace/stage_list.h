/* stage_list.h - every stage of a worker's pipeline: its number in traces, and its name. Plans (stages/plans.c) order
 * them. */
#ifndef TRIB_ENGINE_TRACE_STAGE_LIST_H
#define TRIB_ENGINE_TRACE_STAGE_LIST_H

/* X(id, name) */
#define TRIB_STAGE_LIST(X)                                                                                             \
    X(INPUT, "INPUT")                                                                                                  \
    X(NCCL_REDUCE, "NCCL_REDUCE")                                                                                      \
    X(COPY_D2H, "COPYD2H")                                                                                             \
    X(PUSH, "PUSH")                                                                                                    \
    X(PULL, "PULL")                                                                                                    \
    X(COPY_H2D, "COPYH2D")                                                                                             \
    X(NCCL_BROADCAST, "NCCL_BROADCAST")                                                                                \
    X(COMPRESS, "COMPRESS")                                                                                            \
    X(DECOMPRESS, "DECOMPRESS")

typedef enum trib_stage_id {
#define TRIB_STAGE_ENUM(id, name) TRIB_STAGE_##id,
    TRIB_STAGE_LIST(TRIB_STAGE_ENUM)
#undef TRIB_STAGE_ENUM
        TRIB_STAGE_COUNT
} trib_stage_id;

static inline const char *trib_stage_name(trib_stage_id id)
{
    static const char *const names[TRIB_STAGE_COUNT] = {
#define TRIB_STAGE_NAME(id, name) name,
        TRIB_STAGE_LIST(TRIB_STAGE_NAME)
#undef TRIB_STAGE_NAME
    };
    return (unsigned)id < TRIB_STAGE_COUNT ? names[id] : "?";
}

#endif
