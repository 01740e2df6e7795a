/* options.c - see options.h. getopt_long does the splitting. */
#include "tools/cli/options.h"

#include <assert.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 40
#define LONG_BASE 256 /* the number that getopt returns for row 0, if its name is long */
#define HELP_COLUMN 27
#define HELP_END 110

const char *const option_when_words[] = {"auto", "off", "on", NULL};

static bool has_value(const option_row *row)
{
    return row->kind != OPTION_KIND_SET && row->kind != OPTION_KIND_CLEAR;
}

static bool parse_value(const option_row *row, const char *text, char *wants)
{
    const uint32_t low = (uint32_t)row->low, high = (uint32_t)row->high;
    switch (row->kind) {
    case OPTION_KIND_SET:
    case OPTION_KIND_CLEAR:
        *row->target.flag = row->kind == OPTION_KIND_SET;
        return true;
    case OPTION_KIND_TEXT:
        *row->target.text = text;
        return true;
    case OPTION_KIND_COUNT:
        return option_parse_count(text, low, high, row->target.count, wants);
    case OPTION_KIND_NUMBER:
        return option_parse_number(text, row->low, row->high, row->target.number, wants);
    case OPTION_KIND_SIZE:
        return option_parse_size(text, low, high, row->target.count, wants);
    case OPTION_KIND_RATE:
        return option_parse_rate(text, row->target.bits, wants);
    case OPTION_KIND_TIME:
        return option_parse_time(text, row->target.ns, wants);
    case OPTION_KIND_SEED:
        return option_parse_seed(text, row->target.bits, wants);
    case OPTION_KIND_CHOICE:
        return option_parse_choice(text, row->choices, row->target.index, wants);
    }
    return false;
}

/* ---- Help ---- */

/* Wraps the text between words; every line but the first begins in the column of the help texts. */
static void print_wrapped(const char *text, FILE *out)
{
    int column = HELP_COLUMN;
    for (size_t length = 0; *text != '\0'; text += length + strspn(text + length, " ")) {
        length = strcspn(text, " ");
        if (column > HELP_COLUMN && column + (int)length >= HELP_END) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", (int)length, text);
    }
    fprintf(out, "\n");
}

static void print_row(const option_row *row, FILE *out)
{
    char left[64], help[512], wants[OPTION_WANTS_MAX] = "";
    snprintf(left, sizeof left, "%s%s%s", row->name, has_value(row) ? " " : "", has_value(row) ? row->value : "");
    if (has_value(row) && row->kind != OPTION_KIND_TEXT) {
        (void)parse_value(row, "?", wants); /* writes which values are accepted */
        if (row->choices == NULL) {
            wants[strcspn(wants, ",")] = '\0'; /* examples follow the comma */
        }
    }
    snprintf(help, sizeof help, "%s%s%s", row->help, wants[0] != '\0' ? "; " : "",
             wants[0] != '\0' ? wants + strlen("must be ") : "");
    fprintf(out, "  %-*s ", HELP_COLUMN - 3, left);
    if (strlen(left) > HELP_COLUMN - 3) {
        fprintf(out, "\n%*s", HELP_COLUMN, "");
    }
    print_wrapped(help, out);
}

static void print_help(const option_table *self, FILE *out)
{
    fprintf(out, "usage: tributary %s %s\n", self->command, self->usage);
    for (size_t i = 0; i < self->count; i++) {
        print_row(&self->rows[i], out);
    }
    fprintf(out, "%s", self->notes != NULL ? self->notes : "");
}

/* ---- Parsing ---- */

int options_reject(const option_table *self, const char *name, const char *value, const char *wants)
{
    fprintf(stderr, "tributary %s: %s%s%s: %s (tributary %s --help)\n", self->command, name, value != NULL ? " " : "",
            value != NULL ? value : "", wants, self->command);
    return 2;
}

/* Fills in the descriptions of the rows that getopt_long takes. */
static void describe_rows(const option_table *self, char *letters, struct option *names)
{
    if (self->ends_at_operand) {
        *letters++ = '+';
    }
    *letters++ = 'h';
    *names++ = (struct option){"help", no_argument, NULL, 'h'};
    for (size_t i = 0; i < self->count; i++) {
        const option_row *row = &self->rows[i];
        if (row->name[1] != '-') {
            *letters++ = row->name[1];
            if (has_value(row)) {
                *letters++ = ':';
            }
        } else {
            *names++ = (struct option){row->name + 2, has_value(row) ? required_argument : no_argument, NULL,
                                       LONG_BASE + (int)i};
        }
    }
    *letters = '\0';
    *names = (struct option){NULL, 0, NULL, 0};
}

static const option_row *find_row(const option_table *self, int option)
{
    for (size_t i = 0; i < self->count; i++) {
        const option_row *row = &self->rows[i];
        if (option == (row->name[1] != '-' ? row->name[1] : LONG_BASE + (int)i)) {
            return row;
        }
    }
    return NULL;
}

static void note_change(const option_table *self, const option_row *row, const char *text)
{
    const size_t used = strlen(self->changes);
    snprintf(self->changes + used, self->changes_size - used, "%s%s%s%s", used > 0 ? ", " : "", row->name,
             text != NULL ? " " : "", text != NULL ? text : "");
}

int options_parse(const option_table *self, int argc, char **argv)
{
    char letters[2 * ROWS_MAX + 4];
    struct option names[ROWS_MAX + 2];
    assert(self->count <= ROWS_MAX);
    describe_rows(self, letters, names);
    for (int option; (option = getopt_long(argc, argv, letters, names, NULL)) != -1;) {
        if (option == 'h') {
            print_help(self, stdout);
            return 0;
        }
        const option_row *row = find_row(self, option);
        if (row == NULL) {
            fprintf(stderr, "tributary %s --help lists the options\n",
                    self->command); /* getopt printed which option it is */
            return 2;
        }
        char wants[OPTION_WANTS_MAX] = "";
        if (!parse_value(row, optarg, wants)) {
            return options_reject(self, row->name, optarg, wants);
        }
        if (row->variable != NULL) {
            setenv(row->variable, row->choices != NULL ? row->choices[*row->target.index] : optarg, 1);
        }
        if (row->is_change && self->changes != NULL) {
            note_change(self, row, optarg);
        }
    }
    if (optind < argc && !self->takes_operands) {
        fprintf(stderr, "tributary %s: unexpected \"%s\" (tributary %s --help)\n", self->command, argv[optind],
                self->command);
        return 2;
    }
    return -1;
}
