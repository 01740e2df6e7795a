/*
 * options.h - the options of a subcommand as a table, from which parsing, errors and --help come.
 *
 * A row is written with one of the macros below, in braces: {OPTION_COUNT("--cores", &cores, 1, 1024, "of each
 * member")}. The variable that a row points to holds the default before, and the value that was given afterwards.
 */
#ifndef TRIB_TOOLS_CLI_OPTIONS_H
#define TRIB_TOOLS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/cli/option_values.h"

typedef enum option_kind {
    OPTION_KIND_SET,
    OPTION_KIND_CLEAR,
    OPTION_KIND_TEXT,
    OPTION_KIND_COUNT,
    OPTION_KIND_NUMBER,
    OPTION_KIND_SIZE,
    OPTION_KIND_RATE,
    OPTION_KIND_TIME,
    OPTION_KIND_SEED,
    OPTION_KIND_CHOICE
} option_kind;

typedef struct option_row {
    const char *name; /* "--rate", or a letter: "-n" */
    option_kind kind;
    union {
        bool *flag;
        const char **text;
        uint32_t *count;
        double *number;
        uint64_t *bits;
        int64_t *ns;
        int *index;
    } target;
    const char *value; /* placeholder of the value in the help */
    double low, high;
    const char *const *choices; /* NULL ends them */
    const char *help;           /* --help adds the range */
    const char *variable;       /* environment variable that gets the value, too; NULL: none */
    bool is_change;             /* the option is written into the table's changes */
} option_row;

#define OPTION_SET(name_, flag_, help_)                                                                                \
    .name = (name_), .kind = OPTION_KIND_SET, .target.flag = (flag_), .help = (help_)
#define OPTION_CLEAR(name_, flag_, help_)                                                                              \
    .name = (name_), .kind = OPTION_KIND_CLEAR, .target.flag = (flag_), .help = (help_)
#define OPTION_TEXT(name_, text_, value_, help_)                                                                       \
    .name = (name_), .kind = OPTION_KIND_TEXT, .target.text = (text_), .value = (value_), .help = (help_)
#define OPTION_COUNT(name_, count_, low_, high_, help_)                                                                \
    .name = (name_), .kind = OPTION_KIND_COUNT, .target.count = (count_), .value = "N", .low = (low_),                 \
    .high = (high_), .help = (help_)
#define OPTION_NUMBER(name_, number_, value_, low_, high_, help_)                                                      \
    .name = (name_), .kind = OPTION_KIND_NUMBER, .target.number = (number_), .value = (value_), .low = (low_),         \
    .high = (high_), .help = (help_)
#define OPTION_SIZE(name_, bytes_, value_, low_, high_, help_)                                                         \
    .name = (name_), .kind = OPTION_KIND_SIZE, .target.count = (bytes_), .value = (value_), .low = (low_),             \
    .high = (high_), .help = (help_)
#define OPTION_RATE(name_, bits_, value_, help_)                                                                       \
    .name = (name_), .kind = OPTION_KIND_RATE, .target.bits = (bits_), .value = (value_), .help = (help_)
#define OPTION_TIME(name_, ns_, value_, help_)                                                                         \
    .name = (name_), .kind = OPTION_KIND_TIME, .target.ns = (ns_), .value = (value_), .help = (help_)
#define OPTION_SEED(name_, seed_, help_)                                                                               \
    .name = (name_), .kind = OPTION_KIND_SEED, .target.bits = (seed_), .value = "N", .help = (help_)
/* The index of the word; choices_ is an array that NULL ends. */
#define OPTION_CHOICE(name_, index_, choices_, value_, help_)                                                          \
    .name = (name_), .kind = OPTION_KIND_CHOICE, .target.index = (index_), .choices = (choices_), .value = (value_),   \
    .help = (help_)

typedef struct option_table {
    const char *command; /* "run" */
    const char *usage;   /* text after the command in the line of its usage */
    const option_row *rows;
    size_t count;
    const char *notes;    /* below the options in the help; may be NULL */
    bool takes_operands;  /* argv[optind]... */
    bool ends_at_operand; /* arguments after the first operand are no options of this command */
    char *changes;        /* the rows that are changes, as they were given: "-n 4, --credit 1M"; may be NULL */
    size_t changes_size;
} option_table;

/* "auto", "off", "on": the values of trib_colocate and of trib_local_sum. */
extern const char *const option_when_words[];

/* Below 0: the command goes on; else the exit status: 0 after --help, 2 after an error, which was printed. */
int options_parse(const option_table *self, int argc, char **argv);
/* Prints that a value is not accepted; wants is "must be ...". Returns the exit status for it, 2. */
int options_reject(const option_table *self, const char *name, const char *value, const char *wants);

#endif
