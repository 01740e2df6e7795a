/* parse.c - see parse.h. Every range is asked for as "is in it", so that what is no number at all (nan) is refused. */
#include "tools/study/parse.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    double factor;
} unit;

static bool parse(const char *text, const unit *units, double *value)
{
    char *rest = NULL;
    *value = strtod(text, &rest);
    if (rest == text) {
        return false;
    }
    for (; units->name != NULL; units++) {
        if (strcasecmp(rest, units->name) == 0) {
            *value *= units->factor;
            return true;
        }
    }
    return false;
}

bool study_parse_when(const char *text, int *when)
{
    static const char *const words[] = {"auto", "off", "on"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, words[i]) == 0) {
            *when = i;
            return true;
        }
    }
    return false;
}

bool study_parse_number(const char *text, double low, double high, double *value)
{
    static const unit none[] = {{"", 1}, {NULL, 0}};
    return parse(text, none, value) && *value >= low && *value <= high;
}

bool study_parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *value)
{
    double number = 0;
    if (!study_parse_number(text, low, high, &number)) {
        return false;
    }
    *value = (uint32_t)number;
    return *value == number;
}

bool study_parse_size(const char *text, uint32_t low, uint32_t high, uint32_t *bytes)
{
    static const unit units[] = {{"", 1}, {"k", 1024}, {"m", 1 << 20}, {"g", 1 << 30}, {NULL, 0}};
    double number = 0;
    if (!parse(text, units, &number) || !(number >= low && number <= high)) {
        return false;
    }
    *bytes = (uint32_t)number;
    return true;
}

bool study_parse_rate(const char *text, uint64_t *bits)
{
    static const unit units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"", 1}, {NULL, 0}};
    double number = 0;
    if (!parse(text, units, &number) || !(number >= 1000 && number <= 1e14)) {
        return false;
    }
    *bits = (uint64_t)number;
    return true;
}

bool study_parse_time(const char *text, int64_t *ns)
{
    static const unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
    double number = 0;
    if (!parse(text, units, &number) || !(number >= 0 && number <= 1e15)) {
        return false;
    }
    *ns = (int64_t)number;
    return true;
}
