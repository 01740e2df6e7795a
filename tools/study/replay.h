/*
 * replay.h - the steps of a recorded job again, in virtual time: the submissions and their times are those of the
 * trace; links, machines and settings can be changed.
 *
 * Each worker keeps the times of its own trace; additional workers take the times of the recorded ones, in turn.
 * Workers that shared a machine do so again.
 */
#ifndef TRIB_TOOLS_STUDY_REPLAY_H
#define TRIB_TOOLS_STUDY_REPLAY_H

#include <stdio.h>

#include "tools/study/step.h"
#include "tools/trace/trace_stats.h"

/* Share of a link's rate that TCP over Ethernet with an MTU of 1500 leaves for payload, which a trace records. */
#define STUDY_GOODPUT 0.956

typedef struct study_replay {
    study_model **models;           /* one for each worker whose trace is there */
    uint32_t model_count, left_out; /* left_out: workers whose steps differ from those of the first one */
    study_step_config step;         /* as it was recorded; the links have the rate of the trace */
    int64_t step_ns, compute_ns;    /* as recorded, of rank 0 or of the first worker that has a trace */
    uint32_t steps, tensors;
    uint64_t bytes;        /* bytes of a step */
    double payload_bits;   /* payload rate of the busiest link */
    bool rate_told;        /* the rate was configured, not estimated */
    bool rate_known;       /* the rate is not the default: the traces of all servers are there */
    double busy;           /* share of the busiest link's capacity that was used during exchanges */
    bool equal_priorities; /* all operations had the same priority */
    bool has_groups;       /* some tensors are of groups; then models are those of the ranks, in order */
    uint32_t worker_reactors, server_reactors;
    uint32_t *machine_of;    /* by member, as recorded */
    uint32_t per_machine;    /* workers of each machine; 0: not all machines have as many */
    uint32_t local_size;     /* the workers of a machine that summed first */
    bool one_host;           /* all members were on one machine, servers too */
    bool servers_are_guests; /* the servers were on machines of workers */
    char uneven[240];        /* how the links differed, in words; "": not at all, as far as is known */
} study_replay;

/* Makes a replay from traces. Fails with TRIB_INVALID if the traces have no steps, or none that could be replayed
 * in a sensible time. */
TRIB_CHECKED trib_status study_replay_make(const trace_run *run, const trace_stats *stats, study_replay *replay,
                                           trib_error *error);
void study_replay_free(study_replay *replay);
/* replay_model.c: makes a model of a worker's steps, freed with free(); NULL: out of memory. */
study_model *study_replay_model(const trace_run *run, const trace_steps *steps);
/* Divides forward over the layers as in model.c: each layer gets the share that its gap has in backward. */
void study_replay_share_forward(study_model *model);
uint64_t study_replay_hash(const study_model *model);
TRIB_CHECKED trib_status study_replay_check_groups(const trace_run *run, study_replay *replay, trib_error *error);
/* replay_links.c: fills replay->uneven. */
void study_replay_note_links(const trace_run *run, const trace_stats *stats, char *text, size_t size);
/* Declares that the recorded steps had no barrier: forward (from the optimizer to the first gradient) took that
 * long, and went on by layers while sums were still missing. A trace does not show how much of it was hidden. */
void study_replay_set_forward(study_replay *replay, int64_t forward_ns);
/* Runs steps under these settings: replay->step, or a changed copy of it. With other counts, or with per_machine
 * workers on each machine (0: as recorded), the members are placed again as in the recording. parts, if not NULL,
 * is filled from traces of the simulated members (trace_stats_free), which are written to a temporary folder. */
TRIB_CHECKED trib_status study_replay_run(const study_replay *replay, const study_step_config *step,
                                          study_step_result *result, trace_stats *parts, trib_error *error);
/* Writes the recorded steps of one worker, which are all-reduces, as a model that `tributary sim` and `tributary step`
 * read. */
void study_replay_export(const study_replay *replay, const char *name, FILE *out);

#endif
