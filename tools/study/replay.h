/*
 * replay.h - a recorded job's steps again, in virtual time: what was handed in and when is the trace's, links, machines
 * and settings are whatever one asks for.
 *
 * Each worker keeps the times of its own trace; workers that were not there take those that were, in turn. Who shared a
 * machine does so again.
 */
#ifndef TRIB_TOOLS_STUDY_REPLAY_H
#define TRIB_TOOLS_STUDY_REPLAY_H

#include <stdio.h>

#include "tools/study/step.h"
#include "tools/study/trace_stats.h"

#define STUDY_GOODPUT 0.956 /* of a link's rate, TCP over Ethernet with an MTU of 1500: what a trace sees is payload */

typedef struct study_replay {
    study_model **models;           /* of the workers whose traces are there */
    uint32_t model_count, left_out; /* left out: workers whose steps are not those of the first one */
    study_step_config step;         /* as it was recorded; its links at the rate that the trace shows */
    int64_t step_ns, compute_ns;    /* recorded, of rank 0 or the first worker there is */
    uint32_t steps, tensors;
    uint64_t bytes;        /* of a step */
    double payload_bits;   /* of the busiest link */
    bool rate_told;        /* somebody configured the rate: it is not estimated */
    bool rate_known;       /* it is not the default: there are traces of all who sum */
    double busy;           /* share of what the busiest link can carry that it carried while something was exchanged */
    bool equal_priorities; /* all operations had the same one */
    uint32_t worker_reactors, server_reactors;
    uint32_t *machine_of;    /* by member, as recorded */
    uint32_t per_machine;    /* workers of each machine; 0: not all machines have as many */
    uint32_t local_size;     /* of them, that summed first */
    bool one_host;           /* all were on one machine, servers too */
    bool servers_are_guests; /* on machines of workers */
    char uneven[240];        /* that links were not alike, in words; "": they were, as far as is known */
} study_replay;

/* TRIB_INVALID, with why, if the traces have no steps, or none that could be replayed in sensible time. */
TRIB_CHECKED trib_status study_replay_make(const trace_run *run, const trace_stats *stats, study_replay *replay,
                                           trib_error *error);
void study_replay_free(study_replay *replay);
/* replay_links.c: fills replay->uneven. */
void study_replay_note_links(const trace_run *run, const trace_stats *stats, char *text, size_t size);
/* The recorded steps had no barrier: forward, that long (from the optimizer to the first gradient), went on by layers
 * while sums were still missing. A trace does not show how much of it was hidden. */
void study_replay_set_forward(study_replay *replay, int64_t forward_ns);
/* Runs steps under these settings: replay->step, or a changed copy of it. With other counts, or per_machine workers on
 * each machine (0: as recorded), members are placed anew in the recorded manner. parts, if not NULL, is filled from
 * traces of the simulated members (trace_stats_free); they are written to a folder of their own, which is removed
 * again. */
TRIB_CHECKED trib_status study_replay_run(const study_replay *replay, const study_step_config *step,
                                          study_step_result *result, trace_stats *parts, trib_error *error);
/* The recorded steps of one worker as a model that `tributary sim` and `tributary step` read. */
void study_replay_export(const study_replay *replay, const char *name, FILE *out);

#endif
