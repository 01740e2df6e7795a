/* option_values.c - see option_values.h. Every check has the form "the value is in the range", so that nan is
 * rejected. */
#include "tools/cli/option_values.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    double factor;
} unit;

static bool parse_with_unit(const char *text, const unit *units, double *value)
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

/* Always false, which the caller returns. */
static bool reject_value(char *wants, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool reject_value(char *wants, const char *format, ...)
{
    if (wants != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(wants, OPTION_WANTS_MAX, format, arguments);
        va_end(arguments);
    }
    return false;
}

bool option_parse_choice(const char *text, const char *const *words, int *index, char *wants)
{
    char list[OPTION_WANTS_MAX] = "";
    size_t used = 0;
    for (int i = 0; words[i] != NULL; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *index = i;
            return true;
        }
        const char *before = i == 0 ? "" : words[i + 1] != NULL ? ", " : " or ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", before, words[i]);
    }
    return reject_value(wants, "must be %s", list);
}

bool option_parse_number(const char *text, double low, double high, double *value, char *wants)
{
    static const unit none[] = {{"", 1}, {NULL, 0}};
    return (parse_with_unit(text, none, value) && *value >= low && *value <= high) ||
           reject_value(wants, "must be a number from %.10g to %.10g", low, high);
}

bool option_parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *value, char *wants)
{
    double number = 0;
    if (!option_parse_number(text, low, high, &number, wants)) {
        return false;
    }
    *value = (uint32_t)number;
    return *value == number || reject_value(wants, "must be a whole number from %u to %u", low, high);
}

static const unit sizes[] = {{"", 1}, {"k", 1024}, {"m", 1 << 20}, {"g", 1 << 30}, {NULL, 0}};

/* In the largest unit of which the size is a multiple. */
static void print_size(uint32_t bytes, char *text, size_t size)
{
    int last = 3;
    while (bytes % (uint32_t)sizes[last].factor != 0) {
        last--;
    }
    snprintf(text, size, "%u%c", bytes / (uint32_t)sizes[last].factor, " KMG"[last]);
}

bool option_parse_size(const char *text, uint32_t low, uint32_t high, uint32_t *bytes, char *wants)
{
    double number = 0;
    if (!parse_with_unit(text, sizes, &number) || !(number >= low && number <= high)) {
        char least[16], most[16];
        print_size(low, least, sizeof least);
        print_size(high, most, sizeof most);
        return reject_value(wants, "must be a size in bytes from %s to %s", least, most);
    }
    *bytes = (uint32_t)number;
    return true;
}

bool option_parse_rate(const char *text, uint64_t *bits, char *wants)
{
    static const unit units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"", 1}, {NULL, 0}};
    double number = 0;
    if (!parse_with_unit(text, units, &number) || !(number >= 1000 && number <= 1e14)) {
        return reject_value(wants, "must be a rate from 1kbit to 100000gbit, such as 10gbit");
    }
    *bits = (uint64_t)number;
    return true;
}

bool option_parse_time(const char *text, int64_t *ns, char *wants)
{
    static const unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
    double number = 0;
    if (!parse_with_unit(text, units, &number) || !(number >= 0 && number <= 1e15)) {
        return reject_value(wants, "must be a time from 0s to 1000000s, with its unit: 100ns, 15us, 1.5ms, 2s");
    }
    *ns = (int64_t)number;
    return true;
}

bool option_parse_seed(const char *text, uint64_t *seed, char *wants)
{
    errno = 0;
    const uint64_t number = strtoull(text, NULL, 10);
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0' || errno != 0) {
        return reject_value(wants, "must be a whole number from 0 to %llu", (unsigned long long)UINT64_MAX);
    }
    *seed = number;
    return true;
}
