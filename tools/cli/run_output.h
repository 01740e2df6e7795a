/* run_output.h - passes on the output of the processes of `tributary run`, line by line with their names in front. */
#ifndef TRIB_TOOLS_CLI_RUN_OUTPUT_H
#define TRIB_TOOLS_CLI_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct run_output {
    int fd;     /* -1: the output is not piped, or it has ended */
    char *line; /* the line that is not finished yet; grows with it, up to a bound */
    size_t used, capacity;
    int64_t began_ms; /* time when the first byte of that line came */
} run_output;

/* Prints why (errno) there is no pipe for process number `index`, and how many descriptors all processes would
 * need. */
void run_output_refused(int processes, int index);
/* Passes on to `to` the lines that have arrived, every byte of them. At the end of the output its descriptor is
 * closed. */
void run_output_relay(run_output *self, const char *name, int64_t now_ms, FILE *to);
void run_output_close(run_output *self);

#endif
