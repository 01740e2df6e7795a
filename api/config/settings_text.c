/* settings_text.c - fields of a configuration as the texts of their variables; the other way is in settings_value.c. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/config/settings.h"
#include "engine/base/assert.h"

typedef struct unit {
    const char *name;
    uint64_t size;
} unit;

/* Writes the value in the largest unit of which it is a multiple; the smallest unit has size 1. */
static void format_units(char *text, size_t size, uint64_t value, const unit *units)
{
    while (units->size > 1 && (value == 0 || value % units->size != 0)) {
        units++;
    }
    snprintf(text, size, "%" PRIu64 "%s", value / units->size, units->name);
}

static void format_bytes(char *text, size_t size, uint64_t bytes)
{
    static const unit units[] = {{"G", UINT64_C(1) << 30}, {"M", UINT64_C(1) << 20}, {"K", UINT64_C(1) << 10}, {"", 1}};
    format_units(text, size, bytes, units);
}

static void format_rate(char *text, size_t size, uint64_t bits)
{
    static const unit units[] = {{"gbit", 1000000000}, {"mbit", 1000000}, {"kbit", 1000}, {"bit", 1}};
    format_units(text, size, bits, units);
}

/* A variable cannot say less than a microsecond, but a program can. */
static void format_time(char *text, size_t size, int64_t ns)
{
    static const unit units[] = {{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"ns", 1}};
    if (ns < 0) {
        snprintf(text, size, "none");
    } else {
        format_units(text, size, (uint64_t)ns, units);
    }
}

static void format_roles(char *text, size_t size, uint32_t roles)
{
    static const char *const words[] = {"worker", "server", "coordinator"};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (((roles >> i) & 1u) != 0 && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "+" : "", words[i]);
        }
    }
}

static void format_text(const trib_setting *setting, const void *field, char *text, size_t size)
{
    const char *value = NULL;
    memcpy(&value, field, sizeof value);
    const bool is_secret = setting->offset == offsetof(trib_config, token);
    snprintf(text, size, "%s", value == NULL ? "" : is_secret ? "set" : value);
}

static uint64_t get_word(const void *field, size_t size)
{
    uint8_t byte = 0;
    uint32_t word = 0;
    uint64_t value = 0;
    switch (size) {
    case sizeof byte:
        memcpy(&byte, field, sizeof byte);
        return byte;
    case sizeof word:
        memcpy(&word, field, sizeof word);
        return word;
    default:
        memcpy(&value, field, sizeof value);
        return value;
    }
}

void trib_setting_format(const trib_setting *setting, const trib_config *config, char *text, size_t size)
{
    trib_assert(setting->field != NULL);
    const void *field = (const char *)config + setting->offset;
    const uint64_t value = setting->kind == TRIB_SETTING_TEXT ? 0 : get_word(field, setting->size);
    switch (setting->kind) {
    case TRIB_SETTING_TEXT:
        format_text(setting, field, text, size);
        break;
    case TRIB_SETTING_BOOL:
        snprintf(text, size, "%s", value != 0 ? "yes" : "no");
        break;
    case TRIB_SETTING_CHOICE:
        snprintf(text, size, "%s", setting->words[value]);
        break;
    case TRIB_SETTING_ROLES:
        format_roles(text, size, (uint32_t)value);
        break;
    case TRIB_SETTING_INT:
        snprintf(text, size, "%" PRId32, (int32_t)value);
        break;
    case TRIB_SETTING_UINT:
        snprintf(text, size, "%" PRIu64, value);
        break;
    case TRIB_SETTING_BYTES:
        format_bytes(text, size, value);
        break;
    case TRIB_SETTING_TIME:
        format_time(text, size, (int64_t)value);
        break;
    case TRIB_SETTING_RATE:
        format_rate(text, size, value);
        break;
    }
}

const char *trib_setting_number(const trib_setting *setting, const trib_config *config, int64_t *number_out)
{
    static const char *const units[] = {[TRIB_SETTING_INT] = "",
                                        [TRIB_SETTING_UINT] = "",
                                        [TRIB_SETTING_BYTES] = "bytes",
                                        [TRIB_SETTING_TIME] = "ns",
                                        [TRIB_SETTING_RATE] = "bit/s"};
    const char *name = units[setting->kind];
    if (name != NULL) {
        const uint64_t value = get_word((const char *)config + setting->offset, setting->size);
        *number_out = setting->kind == TRIB_SETTING_INT ? (int32_t)value : (int64_t)value;
    }
    return name;
}
