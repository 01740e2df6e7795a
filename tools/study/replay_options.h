/* replay_options.h - the common parts of `tributary replay` and `tributary tune`: traces, and settings that
 * replace recorded ones. */
#ifndef TRIB_TOOLS_STUDY_REPLAY_OPTIONS_H
#define TRIB_TOOLS_STUDY_REPLAY_OPTIONS_H

#include "tools/study/replay.h"

#define REPLAY_AS_RECORDED UINT32_MAX

typedef struct replay_options {
    const char *name;                                                                /* name of the command */
    uint32_t workers, partition, chunk, credit, reactors, cores, iterations, window; /* 0: as recorded */
    uint32_t servers; /* a count, or REPLAY_AS_RECORDED */
    int colocate;     /* -1: as recorded */
    uint64_t rate_bits, recorded_rate_bits;
    int64_t latency_ns;
    int64_t forward_ns; /* forward of the recording; below 0: there was a barrier, or the overlap of steps is visible */
    const char *codec;  /* a ratio, or a codec; NULL: none */
    double compute;
    int one_machine;      /* -1: as recorded */
    int local_sum;        /* a trib_local_sum; -1: as recorded, or what the engine chooses on other machines */
    uint32_t per_machine; /* workers of each machine; 0: as recorded */
    uint64_t local_rate_bits;
    bool no_priorities, by_order, cross_barrier, json, quiet, live, codecs;
    const char *export;
    char changes[400]; /* the changed settings in words; "": none */
} replay_options;

/* Returns the exit status, or a number below 0: then the files are argv[optind]... */
int replay_options_parse(replay_options *self, int argc, char **argv);
/* Loads the files. Returns false after an error message. */
bool replay_options_load(const replay_options *self, char *const *paths, uint32_t count, study_replay *replay);
/* Applies the options that describe the recording's world: rate, latency, cores. */
void replay_options_world(const replay_options *self, study_step_config *step);
/* Applies the changed settings. Returns false after an error message if they are impossible. */
bool replay_options_apply(const replay_options *self, const study_replay *replay, study_step_config *step);
/* Prints the rate that the links are assumed to have, and why. */
void replay_print_rate(const replay_options *self, const study_replay *replay, FILE *out);
/* Prints a note if the recorded step and its replay are too far apart to trust predictions. */
void replay_print_distance(double recorded_ns, double replayed_ns, FILE *out);

#endif
