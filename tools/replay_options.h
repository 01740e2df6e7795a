/* replay_options.h - what `tributary replay` and `tributary tune` have in common: traces, and settings that replace
 * recorded ones. */
#ifndef TRIB_TOOLS_REPLAY_OPTIONS_H
#define TRIB_TOOLS_REPLAY_OPTIONS_H

#include "tools/study/replay.h"

typedef struct replay_options {
    const char *name; /* of the command */
    uint32_t workers, partition, chunk, credit, reactors, cores, iterations, window;
    int64_t servers; /* -1: as recorded, as 0 elsewhere */
    int colocate;    /* -1: as recorded */
    uint64_t rate_bits, recorded_rate_bits;
    int64_t latency_ns;
    int64_t forward_ns; /* of the recording; below 0: there was a barrier, or steps overlap visibly */
    double codec, compute;
    int one_machine;      /* -1: as recorded */
    int local_sum;        /* a trib_local_sum; -1: as recorded, or what the engine chooses on other machines */
    uint32_t per_machine; /* workers of each; 0: as recorded */
    uint64_t local_rate_bits;
    bool no_priorities, by_order, cross_barrier, json, quiet, live;
    const char *export;
    char changes[400]; /* what was asked for, in words; "": nothing */
} replay_options;

/* Below 0: go on, the files are argv[optind]...; else the exit status. */
int replay_options_parse(replay_options *self, int argc, char **argv);
/* Loads the files. Says what is wrong; false: nothing was loaded. */
bool replay_options_load(const replay_options *self, char *const *paths, uint32_t count, study_replay *replay);
/* Of what was recorded, what is true of the recording's world and not of the settings: rate, latency, cores. */
void replay_options_world(const replay_options *self, study_step_config *step);
/* And what was asked for on top of it. False: that cannot be, and why was said. */
bool replay_options_apply(const replay_options *self, const study_replay *replay, study_step_config *step);
/* The line that says at which rate links are taken to run, and why. */
void replay_print_rate(const replay_options *self, const study_replay *replay, FILE *out);
/* A line, if the recorded step and its replay are too far apart to trust what is predicted from them. */
void replay_print_distance(double recorded_ns, double replayed_ns, FILE *out);

#endif
