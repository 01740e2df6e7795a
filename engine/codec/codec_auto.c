/* codec_auto.c - see codec_auto.h. */
#include "engine/codec/codec_auto.h"

#include "engine/base/assert.h"
#include "engine/base/log.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "auto"
#define CLEARLY 0.95 /* part of the time that must be left: a smaller gain is no reason to lose bits */

bool trib_codec_is_auto(const char *text)
{
    const size_t length = strlen(PREFIX);
    return strncmp(text, PREFIX, length) == 0 && (text[length] == '\0' || text[length] == ':');
}

/* Returns the length of the list's first codec with its parameters. */
static size_t first_length(const char *list)
{
    size_t length = strcspn(list, ",");
    while (list[length] == ',') {
        const char *word = list + length + 1;
        const size_t size = strcspn(word, ",");
        const bool is_parameter = memchr(word, '=', size) != NULL || (size == 7 && memcmp(word, "two_way", size) == 0);
        if (!is_parameter) {
            break;
        }
        length += 1 + size;
    }
    return length;
}

static trib_status read_choice(const trib_codec_set *user, const char *at, size_t length, trib_codec_choices *choices,
                               trib_error *error)
{
    char text[TRIB_CODEC_TEXT_SIZE];
    trib_error why;
    if (choices->count == TRIB_CODEC_CHOICES_MAX || length >= sizeof text) {
        return trib_error_set(error, TRIB_INVALID, "auto may choose from at most %u codecs, of %u characters each",
                              TRIB_CODEC_CHOICES_MAX, TRIB_CODEC_TEXT_SIZE - 1);
    }
    memcpy(text, at, length);
    text[length] = '\0';
    trib_codec_config *config = &choices->items[choices->count];
    const trib_status status = trib_codec_is_auto(text) ? trib_error_set(&why, TRIB_INVALID, "it cannot choose auto")
                                                        : trib_codec_parse_with(user, text, config, &why);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "choice %u of auto: %.300s", choices->count + 1, why.text);
    }
    if (config->codec == NULL) {
        return trib_error_set(error, TRIB_INVALID, "choice %u of auto is %s: none is always possible, and not listed",
                              choices->count + 1, length == 0 ? "empty" : "none");
    }
    choices->count++;
    return TRIB_OK;
}

trib_status trib_codec_auto_parse(const trib_codec_set *user, const char *text, trib_codec_choices *choices,
                                  trib_error *error)
{
    const char *at = text[strlen(PREFIX)] == ':' ? text + strlen(PREFIX) + 1 : TRIB_CODEC_AUTO_DEFAULT;
    *choices = (trib_codec_choices){.count = 0};
    for (;;) {
        const size_t length = first_length(at);
        const trib_status status = read_choice(user, at, length, choices, error);
        if (status != TRIB_OK || at[length] == '\0') {
            return status;
        }
        at += length + 1;
    }
}

trib_status trib_codec_auto_format(const trib_codec_choices *choices, char text[TRIB_CODEC_TEXT_SIZE],
                                   trib_error *error)
{
    int used = snprintf(text, TRIB_CODEC_TEXT_SIZE, "%s", PREFIX);
    for (uint32_t i = 0; i < choices->count && used < (int)TRIB_CODEC_TEXT_SIZE; i++) {
        char one[TRIB_CODEC_TEXT_SIZE];
        used += snprintf(text + used, TRIB_CODEC_TEXT_SIZE - (size_t)used, "%c%s", i == 0 ? ':' : ',',
                         trib_codec_format(&choices->items[i], one));
    }
    return used < (int)TRIB_CODEC_TEXT_SIZE
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "auto's list of codecs has more than %u characters",
                                TRIB_CODEC_TEXT_SIZE - 1);
}

double trib_codec_step_ns(const trib_codec_step *step, const trib_codec_config *config, const trib_codec_speed *speed)
{
    /* A member that sums does so for its share of the bytes, once for each worker. */
    trib_assert(step->summing > 0 && step->reactors > 0 && step->workers > 0);
    trib_assert((config == NULL) == (speed == NULL));
    const double share = 1.0 / step->summing, gathered = step->workers * share;
    double carried = 1, worker_ns = 0, summing_ns = step->sum_ns * gathered;
    if (config != NULL) {
        const double back = config->two_way ? speed->ratio : 1;
        carried = step->workers_sum ? (speed->ratio + back) / 2 : speed->ratio > back ? speed->ratio : back;
        worker_ns = speed->encode_ns + (config->two_way ? speed->decode_ns : 0);
        summing_ns += speed->decode_ns * gathered + (config->two_way ? speed->encode_ns * share : 0);
    }
    const double busiest_ns = step->workers_sum        ? worker_ns + summing_ns
                              : worker_ns > summing_ns ? worker_ns
                                                       : summing_ns;
    return step->link_ns * carried + busiest_ns / step->reactors;
}

uint32_t trib_codec_auto_choose(const trib_codec_step *step, const trib_codec_choices *choices,
                                const trib_codec_speed speeds[TRIB_CODEC_CHOICES_MAX])
{
    trib_assert(choices->count <= TRIB_CODEC_CHOICES_MAX);
    uint32_t chosen = 0;
    double best_ns = trib_codec_step_ns(step, NULL, NULL);
    for (uint32_t i = 0; i < choices->count; i++) {
        const double ns = trib_codec_step_ns(step, &choices->items[i], &speeds[i]);
        if (ns < best_ns * CLEARLY) {
            best_ns = ns;
            chosen = i + 1;
        }
    }
    return chosen;
}
