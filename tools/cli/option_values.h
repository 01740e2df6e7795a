/* option_values.h - the values of options: words, and numbers with units. Each function returns false for a value that
 * is not accepted, and writes what is accepted into wants (may be NULL): "must be ...". */
#ifndef TRIB_TOOLS_CLI_OPTION_VALUES_H
#define TRIB_TOOLS_CLI_OPTION_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#define OPTION_WANTS_MAX 96

/* The index of the word in a list that NULL ends, whatever its case. */
bool option_parse_choice(const char *text, const char *const *words, int *index, char *wants);
bool option_parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *value, char *wants);
bool option_parse_number(const char *text, double low, double high, double *value, char *wants);
/* "64K", "1M": times 1024. */
bool option_parse_size(const char *text, uint32_t low, uint32_t high, uint32_t *bytes, char *wants);
/* "10gbit", "800mbit": bits per second. */
bool option_parse_rate(const char *text, uint64_t *bits, char *wants);
/* "15us", "1.5ms", "2s", "100ns". */
bool option_parse_time(const char *text, int64_t *ns, char *wants);
/* Any whole number of 64 bits. */
bool option_parse_seed(const char *text, uint64_t *seed, char *wants);

#endif
