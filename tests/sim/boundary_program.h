/* boundary_program.h - programs of a simulated job that call trib_membership_advance again and again. */
#ifndef TRIB_TESTS_BOUNDARY_PROGRAM_H
#define TRIB_TESTS_BOUNDARY_PROGRAM_H

#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, BOUNDARIES = 60 };

typedef struct program {
    sim_job *job;
    uint32_t index, boundaries, most; /* most: 0 stands for BOUNDARIES */
    trib_status status;
} program;

static inline void advance(program *self);

static inline void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    program *self = user;
    self->status = now->status;
    if (now->status == TRIB_OK && ++self->boundaries < (self->most > 0 ? self->most : BOUNDARIES)) {
        advance(self);
    }
}

static inline void advance(program *self)
{
    trib_error error = {.status = TRIB_OK};
    if (trib_membership_advance(self->job->members[self->index].engine, on_advanced, self, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

typedef struct survivor {
    program *programs;
    uint32_t dead, before;
} survivor;

/* The others have passed another boundary since the death. */
static inline bool have_gone_on(sim_job *job, void *argument)
{
    const survivor *self = argument;
    bool all = true;
    (void)job;
    for (uint32_t i = 0; i < WORKERS; i++) {
        all = all && (i == self->dead || self->programs[i].boundaries > self->before + 1);
    }
    return all;
}

#endif
