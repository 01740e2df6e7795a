/* settings_value.c - values of settings: read from texts, put into a trib_config, and checked against their limits. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/config/settings.h"
#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "engine/base/neutral_locale.h"
#include "engine/reactor/reactor.h"

#define TEXT_BYTES_MAX (INT64_C(1) << 30) /* largest value of a size without a limit of its own */

/* ---- Texts ---- */

static double parse_decimal(const char *text, char **end)
{
    locale_t callers = trib_neutral_locale_enter();
    const double value = strtod(text, end);
    trib_neutral_locale_leave(callers);
    return value;
}

static bool is_same_word(const char *a, const char *b)
{
    locale_t callers = trib_neutral_locale_enter();
    const bool same = strcasecmp(a, b) == 0;
    trib_neutral_locale_leave(callers);
    return same;
}

const char *trib_setting_get(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

trib_status trib_setting_refuse(const char *variable, const char *text, const char *wanted, trib_error *error)
{
    return trib_error_set(error, TRIB_INVALID, "%s=\"%.80s\": must be %s", variable, text, wanted);
}

bool trib_setting_parse_number(const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < low || number > high) {
        return false;
    }
    *value = number;
    return true;
}

trib_status trib_setting_read_number(const char *variable, int64_t low, int64_t high, int64_t *value, trib_error *error)
{
    const char *text = trib_setting_get(variable);
    if (text != NULL && trib_setting_parse_number(text, low, high, value)) {
        return TRIB_OK;
    }
    char wanted[80];
    snprintf(wanted, sizeof wanted, "a number, %lld to %lld", (long long)low, (long long)high);
    return trib_setting_refuse(variable, text != NULL ? text : "", wanted, error);
}

bool trib_setting_parse_word(const char *text, const char *const *words, int *index)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (is_same_word(text, words[i])) {
            *index = i;
            return true;
        }
    }
    return false;
}

const char *trib_setting_words_text(const char *const *words, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "one of");
    for (size_t i = 0; words[i] != NULL && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, " %s", words[i]);
    }
    return text;
}

static const char *const bool_words[] = {"0", "1", "no", "yes", "off", "on", "false", "true", NULL};
static const char *const role_words[] = {"worker", "server", "coordinator"};

/* "262144", "256K", "10g": a number with an optional power of step. *rest_out is what follows. */
static bool parse_scaled(const char *text, double step, double *value, const char **rest_out)
{
    static const char units[] = "kmgtKMGT";
    char *end = NULL;
    errno = 0;
    *value = parse_decimal(text, &end);
    if (errno != 0 || end == text || !(*value >= 0)) {
        return false;
    }
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    for (long power = unit != NULL ? (unit - units) % 4 : -1; power >= 0; power--) {
        *value *= step;
    }
    *rest_out = end + (unit != NULL);
    return true;
}

static int64_t most_bytes(const trib_setting *setting)
{
    return setting->high > 0 ? setting->high : TEXT_BYTES_MAX;
}

static bool parse_bytes(const trib_setting *setting, const char *text, int64_t *value)
{
    double number = 0;
    const char *rest = NULL;
    if (!parse_scaled(text, 1024, &number, &rest) || !(number >= (double)setting->low) ||
        number > (double)most_bytes(setting) ||
        !(*rest == '\0' || is_same_word(rest, "b") || is_same_word(rest, "ib"))) {
        return false;
    }
    *value = (int64_t)number;
    return true;
}

static bool parse_rate(const trib_setting *setting, const char *text, int64_t *value)
{
    double bits = 0;
    const char *rest = NULL;
    /* The unit is bits: "Gbit" is accepted, and "GB", which would be bytes, is not. */
    if (!parse_scaled(text, 1000, &bits, &rest) || !(*rest == '\0' || is_same_word(rest, "bit")) ||
        !(bits == 0 || bits >= (double)setting->low) || bits > (double)setting->high) {
        return false;
    }
    *value = (int64_t)bits;
    return true;
}

static bool parse_time(const char *text, int64_t *value)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"m", 60e9}};
    char *end = NULL;
    const double number = parse_decimal(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; i++) {
        const double ns = number * units[i].ns;
        if (strcmp(end, units[i].name) == 0 && ns >= 1 && ns <= 1e18) {
            *value = (int64_t)ns;
            return true;
        }
    }
    return false;
}

/* "worker+server" */
static bool parse_roles(const char *text, int64_t *value)
{
    int64_t roles = 0;
    for (const char *at = text; at != NULL;) {
        const char *plus = strchrnul(at, '+');
        int64_t role = 0;
        for (size_t i = 0; i < sizeof role_words / sizeof role_words[0]; i++) {
            const size_t length = strlen(role_words[i]);
            role |= (size_t)(plus - at) == length && strncmp(at, role_words[i], length) == 0 ? INT64_C(1) << i : 0;
        }
        if (role == 0) {
            return false;
        }
        roles |= role;
        at = *plus == '+' ? plus + 1 : NULL;
    }
    *value = roles;
    return true;
}

static bool parse_bool(const char *text, int64_t *value)
{
    int index = 0;
    const bool parsed = trib_setting_parse_word(text, bool_words, &index);
    *value = index % 2;
    return parsed;
}

static bool parse_choice(const char *text, const char *const *words, int64_t *value)
{
    int index = 0;
    const bool parsed = trib_setting_parse_word(text, words, &index);
    *value = index;
    return parsed;
}

static bool parse_value(const trib_setting *setting, const char *text, int64_t *value)
{
    switch (setting->kind) {
    case TRIB_SETTING_BOOL:
        return parse_bool(text, value);
    case TRIB_SETTING_CHOICE:
        return parse_choice(text, setting->words, value);
    case TRIB_SETTING_ROLES:
        return parse_roles(text, value);
    case TRIB_SETTING_INT:
        return trib_setting_parse_number(text, setting->low, setting->high, value);
    case TRIB_SETTING_UINT:
        return trib_setting_parse_number(text, setting->low, setting->high > 0 ? setting->high : UINT32_MAX, value);
    case TRIB_SETTING_BYTES:
        return parse_bytes(setting, text, value);
    case TRIB_SETTING_TIME:
        return parse_time(text, value);
    case TRIB_SETTING_RATE:
        return parse_rate(setting, text, value);
    case TRIB_SETTING_TEXT:
        break;
    }
    trib_unreachable();
}

/* Writes the value in the largest unit of which it is a multiple. */
static size_t format_scaled(char *text, size_t size, const char *before, int64_t bytes)
{
    size_t unit = 0;
    for (; bytes > 0 && bytes % 1024 == 0 && unit < 3; unit++) {
        bytes /= 1024;
    }
    return (size_t)snprintf(text, size, "%s%lld%.1s", before, (long long)bytes, &"\0KMG"[unit]);
}

static const char *wanted_text(const trib_setting *setting, char *text, size_t size)
{
    size_t used = 0;
    switch (setting->kind) {
    case TRIB_SETTING_BOOL:
        return trib_setting_words_text(bool_words, text, size);
    case TRIB_SETTING_CHOICE:
        return trib_setting_words_text(setting->words, text, size);
    case TRIB_SETTING_ROLES:
        return "worker, server, coordinator, or several joined by +";
    case TRIB_SETTING_BYTES:
        used = format_scaled(text, size, "bytes, ", setting->low);
        (void)format_scaled(text + used, size - used, " to ", most_bytes(setting));
        return strncat(text, ", such as 262144, 256K or 1M", size - strlen(text) - 1);
    case TRIB_SETTING_TIME:
        return "a time above 0, such as 30, 0.5, 200ms or 5m";
    case TRIB_SETTING_RATE:
        snprintf(text, size, "bits per second, %lldmbit to %lldgbit, such as 10gbit", (long long)setting->low / 1000000,
                 (long long)setting->high / 1000000000);
        return text;
    case TRIB_SETTING_INT:
    case TRIB_SETTING_UINT:
        snprintf(text, size, "a number, %lld to %lld", (long long)setting->low, (long long)setting->high);
        return text;
    case TRIB_SETTING_TEXT:
        break;
    }
    trib_unreachable();
}

/* ---- Fields ---- */

static void *field_of(trib_config *config, const trib_setting *setting)
{
    return (char *)config + setting->offset;
}

static trib_status set_field(trib_config *config, const trib_setting *setting, const char *text, trib_error *error)
{
    void *field = field_of(config, setting);
    if (setting->kind == TRIB_SETTING_TEXT) {
        memcpy(field, &text, sizeof text);
        return TRIB_OK;
    }
    int64_t value = 0;
    if (!parse_value(setting, text, &value)) {
        char wanted[120];
        return trib_setting_refuse(setting->variable, text, wanted_text(setting, wanted, sizeof wanted), error);
    }
    const uint32_t word = (uint32_t)value;
    const bool truth = value != 0;
    memcpy(field,
           setting->size == sizeof truth  ? (const void *)&truth
           : setting->size == sizeof word ? (const void *)&word
                                          : (const void *)&value,
           setting->size);
    return TRIB_OK;
}

void trib_settings_init(trib_config *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        if (setting->initial != NULL) {
            const trib_status status = set_field(config, setting, setting->initial, NULL);
            trib_assert(status == TRIB_OK);
        }
    }
}

/* True if 0 stands for the field's default. False and the first of several choices are values like others. */
static bool zero_is_default(const trib_setting *setting)
{
    return setting->field != NULL && setting->kind != TRIB_SETTING_BOOL && setting->kind != TRIB_SETTING_CHOICE &&
           setting->kind != TRIB_SETTING_INT;
}

void trib_settings_apply_defaults(trib_config *config)
{
    static const char zeros[sizeof(uint64_t)];
    trib_config defaults;
    trib_settings_init(&defaults);
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        void *field = field_of(config, setting);
        if (zero_is_default(setting) && memcmp(field, zeros, setting->size) == 0) {
            memcpy(field, field_of(&defaults, setting), setting->size);
        } else if (setting->kind == TRIB_SETTING_TIME) {
            int64_t ns = 0;
            memcpy(&ns, field, sizeof ns);
            ns = trib_timeout_clamp(ns);
            memcpy(field, &ns, sizeof ns);
        }
    }
}

static int64_t get_number(const trib_config *config, const trib_setting *setting)
{
    const void *field = (const char *)config + setting->offset;
    if (setting->size == sizeof(uint32_t)) {
        uint32_t word = 0;
        memcpy(&word, field, sizeof word);
        return setting->kind == TRIB_SETTING_CHOICE ? (int32_t)word : (int64_t)word;
    }
    int64_t value = 0;
    memcpy(&value, field, sizeof value);
    return setting->kind == TRIB_SETTING_BYTES && value < 0 ? INT64_MAX : value;
}

static int64_t highest_value(const trib_setting *setting)
{
    if (setting->kind == TRIB_SETTING_CHOICE) {
        int64_t count = 0;
        while (setting->words[count] != NULL) {
            count++;
        }
        return count - 1;
    }
    return setting->high > 0 ? setting->high : INT64_MAX;
}

static trib_status check_field(const trib_config *config, const trib_setting *setting, trib_error *error)
{
    const long long value = get_number(config, setting), low = setting->low, high = highest_value(setting);
    if (value >= low && value <= high) {
        return TRIB_OK;
    }
    char range[64];
    if (high == INT64_MAX) {
        snprintf(range, sizeof range, "above %lld", low - 1);
    } else {
        snprintf(range, sizeof range, "%lld..%lld", low, high);
    }
    const bool is_named = setting->variable != NULL;
    return trib_error_set(error, TRIB_INVALID, "%s %lld: %smust be %s%s%s%s", setting->field, value,
                          setting->kind == TRIB_SETTING_CHOICE ? "unknown, " : "", range, is_named ? " (" : "",
                          is_named ? setting->variable : "", is_named ? ")" : "");
}

trib_status trib_settings_check(const trib_config *config, trib_error *error)
{
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        const bool is_ranged = setting->kind == TRIB_SETTING_CHOICE || setting->kind == TRIB_SETTING_UINT ||
                               setting->kind == TRIB_SETTING_BYTES || setting->kind == TRIB_SETTING_TIME ||
                               (setting->kind == TRIB_SETTING_RATE && get_number(config, setting) != 0);
        const trib_status status = is_ranged ? check_field(config, setting, error) : TRIB_OK;
        if (status != TRIB_OK) {
            return status;
        }
    }
    return TRIB_OK;
}

trib_status trib_settings_read(trib_config *config, trib_error *error)
{
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        const bool is_read = setting->variable != NULL && !setting->is_read_apart;
        const char *text = is_read ? trib_setting_get(setting->variable) : NULL;
        const trib_status status = text != NULL ? set_field(config, setting, text, error) : TRIB_OK;
        if (status != TRIB_OK) {
            return status;
        }
    }
    return TRIB_OK;
}
