/* parse.h - words, and numbers with units, as people write them on a command line. Each answers false if that is not
 * one that is taken, and says in wants (may be NULL) which are: "must be ...". */
#ifndef TRIB_TOOLS_STUDY_PARSE_H
#define TRIB_TOOLS_STUDY_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#define STUDY_WANTS_MAX 96

/* "auto", "off", "on": a trib_colocate or trib_local_sum. */
bool study_parse_when(const char *text, int *when, char *wants);
bool study_parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *value, char *wants);
bool study_parse_number(const char *text, double low, double high, double *value, char *wants);
/* "64K", "1M": times 1024. */
bool study_parse_size(const char *text, uint32_t low, uint32_t high, uint32_t *bytes, char *wants);
/* "10gbit", "800mbit" a second. */
bool study_parse_rate(const char *text, uint64_t *bits, char *wants);
/* "15us", "1.5ms", "2s", "100ns". */
bool study_parse_time(const char *text, int64_t *ns, char *wants);
/* Any number that fits. */
bool study_parse_seed(const char *text, uint64_t *seed, char *wants);

#endif
