/* run_output.h - what the processes of `tributary run` write, line by line with their name in front. */
#ifndef TRIB_TOOLS_RUN_OUTPUT_H
#define TRIB_TOOLS_RUN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct run_output {
    int fd; /* -1: passed through, or closed */
    char line[4096];
    size_t used;
} run_output;

/* errno says why there is no pipe for process number `index` of so many: told, with how many descriptors all would take. */
void run_output_refused(int processes, int index);
/* What has come goes on to `to`. At the end of the output its file is closed. */
void run_output_relay(run_output *self, const char *name, FILE *to);
void run_output_close(run_output *self);

#endif
