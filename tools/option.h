/* option.h - what a command says of an option whose value it does not take. */
#ifndef TRIB_TOOLS_OPTION_H
#define TRIB_TOOLS_OPTION_H

#include <getopt.h>
#include <stdio.h>

/* wants: "must be ...". The exit status for it. */
static inline int option_refused(const char *command, const struct option *options, int option, const char *value,
                                 const char *wants)
{
    fprintf(stderr, "tributary %s: ", command);
    while (options->name != NULL && options->val != option) {
        options++;
    }
    if (options->name != NULL) {
        fprintf(stderr, "--%s", options->name);
    } else {
        fprintf(stderr, "-%c", option);
    }
    if (value != NULL) {
        fprintf(stderr, " %s", value);
    }
    fprintf(stderr, ": %s (tributary %s --help)\n", wants, command);
    return 2;
}

/* A word that belongs to no option. */
static inline int option_unexpected(const char *command, const char *word)
{
    fprintf(stderr, "tributary %s: unexpected \"%s\" (tributary %s --help)\n", command, word, command);
    return 2;
}

#endif
