/* codec_rules.c - see codec_rules.h. */
#include "engine/codec/codec_rules.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/log.h"

#define PART_SIZE (TRIB_CODEC_PATTERN_MAX + TRIB_CODEC_TEXT_SIZE)
#define ANY_SIZE UINT64_MAX

/* Reads "16M" or "4096". */
static bool read_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "kmg";
    char *end = NULL;
    const unsigned long long number = strtoull(text, &end, 10);
    const char *unit = *end == '\0' ? NULL : strchr(units, *end | 0x20);
    const unsigned shift = unit == NULL ? 0 : 10 * (unsigned)(unit - units + 1);
    *bytes = (uint64_t)number << shift;
    return *text >= '0' && *text <= '9' && number < UINT64_C(1) << 33 && (unit == NULL ? *end : end[1]) == '\0';
}

/* Splits "embed*@16M=topk" at the first '=', and its front at the last '@'. */
static trib_status read_rule(trib_codec_rule *rule, const trib_codec_set *user, char *part, trib_error *error)
{
    char *codec = strchr(part, '=');
    trib_assert(codec != NULL); /* read_part has found it */
    *codec++ = '\0';
    char *size = strrchr(part, '@');
    rule->bytes_least = ANY_SIZE;
    if (size != NULL) {
        *size++ = '\0';
        if (!read_size(size, &rule->bytes_least)) {
            return trib_error_set(error, TRIB_INVALID, "\"@%s\" is no size, such as @64K or @16M", size);
        }
    }
    const size_t length = strlen(part);
    if (length > TRIB_CODEC_PATTERN_MAX || (length == 0 && size == NULL)) {
        return trib_error_set(error, TRIB_INVALID, "the pattern of names before '=' is %s",
                              length == 0 ? "empty" : "too long");
    }
    memcpy(rule->pattern, length == 0 ? "*" : part, length == 0 ? 2 : length + 1);
    return trib_codec_parse_with(user, codec, &rule->config, error);
}

static trib_status read_part(trib_codec_rule *rule, const trib_codec_set *user, char *part, trib_error *error)
{
    trib_error why;
    *rule = (trib_codec_rule){.pattern = "*", .bytes_least = ANY_SIZE};
    const trib_status status = trib_codec_parse_with(user, part, &rule->config, &why);
    const size_t front = strcspn(part, "=");
    if (status == TRIB_OK || part[front] == '\0' || memchr(part, ',', front) != NULL) {
        return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "%s", why.text);
    }
    return read_rule(rule, user, part, error);
}

/* Copies the part without the blanks around it. Returns false if it is empty or too long. */
static bool copy_part(const char *at, size_t length, char part[PART_SIZE])
{
    while (length > 0 && *at == ' ') {
        at++;
        length--;
    }
    while (length > 0 && at[length - 1] == ' ') {
        length--;
    }
    if (length == 0 || length >= PART_SIZE) {
        return false;
    }
    memcpy(part, at, length);
    part[length] = '\0';
    return true;
}

trib_status trib_codec_rules_open(trib_codec_rules *rules, const trib_codec_set *user, const char *text,
                                  trib_error *error)
{
    uint32_t count = text != NULL && *text != '\0';
    *rules = (trib_codec_rules){.items = NULL};
    for (const char *at = text; count > 0 && (at = strchr(at, ';')) != NULL; at++) {
        count++;
    }
    if (count == 0) {
        return TRIB_OK;
    }
    if (count > TRIB_CODEC_RULES_MAX) {
        return trib_error_set(error, TRIB_INVALID, "it has %u parts, at most %u", count, TRIB_CODEC_RULES_MAX);
    }
    rules->items = calloc(count, sizeof *rules->items);
    if (rules->items == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the rules of TRIB_CODEC");
    }
    for (const char *at = text; rules->count < count; rules->count++) {
        char part[PART_SIZE], kept[PART_SIZE];
        const size_t length = strcspn(at, ";");
        trib_error why;
        if (!copy_part(at, length, part)) {
            return trib_error_set(error, TRIB_INVALID, "part %u between ';' is empty or too long", rules->count + 1);
        }
        memcpy(kept, part, sizeof kept);
        const trib_status status = read_part(&rules->items[rules->count], user, part, &why);
        if (status != TRIB_OK) {
            return count == 1
                       ? trib_error_set(error, status, "%s", why.text)
                       : trib_error_set(error, status, "part %u, \"%.80s\": %.280s", rules->count + 1, kept, why.text);
        }
        at += length + (at[length] == ';');
    }
    return TRIB_OK;
}

void trib_codec_rules_close(trib_codec_rules *rules)
{
    free(rules->items);
    *rules = (trib_codec_rules){.items = NULL};
}

const trib_codec_config *trib_codec_rules_find(const trib_codec_rules *rules, const char *name, uint64_t bytes,
                                               uint64_t least)
{
    for (uint32_t i = rules->count; i > 0; i--) {
        const trib_codec_rule *rule = &rules->items[i - 1];
        if (bytes >= (rule->bytes_least == ANY_SIZE ? least : rule->bytes_least) &&
            fnmatch(rule->pattern, name, 0) == 0) {
            return &rule->config;
        }
    }
    return NULL;
}
