/* codec_text.c - a codec and its parameters as one line of text, read and written. */
#include "engine/base/neutral_locale.h"
#include "engine/codec/codec_auto.h"
#include "engine/codec/codec_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WORD_SIZE 64u

typedef struct codec_parser {
    const trib_codec_set *user;
    trib_codec_config config;
    trib_error *error;
    const char *text;
    uint32_t version;
    uint32_t named; /* bits of parameters, as in the table below */
} codec_parser;

static trib_status unknown_codec(const codec_parser *parser, const char *name)
{
    char known[TRIB_CODEC_TEXT_SIZE] = "";
    for (size_t i = 0; trib_codec_at(i) != NULL; i++) {
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s, ", trib_codec_at(i)->name);
    }
    for (uint32_t i = 0; parser->user != NULL && i < parser->user->count; i++) {
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s, ", parser->user->items[i].name);
    }
    return trib_error_set(parser->error, TRIB_INVALID, "there is no codec '%s': known are %sauto, none", name, known);
}

static trib_status bad_value(const codec_parser *parser, const char *name, const char *value, const char *wanted)
{
    return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': %s=%s is not %s", parser->text, name, value,
                          wanted);
}

/* Returns the index of the value in a list that ends with NULL, pairs of names for one meaning; -1 without. */
static int choice(const char *value, const char *const names[])
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], value) == 0) {
            return i / 2;
        }
    }
    return -1;
}

static bool read_number(const char *value, double *number)
{
    char *end = NULL;
    locale_t callers = trib_neutral_locale_enter();
    *number = strtod(value, &end);
    trib_neutral_locale_leave(callers);
    return end != value && *end == '\0' && isfinite(*number);
}

static trib_status set_codec(codec_parser *parser, const char *value)
{
    const trib_user_codec *user = trib_codec_set_find(parser->user, value);
    parser->config.codec = user != NULL ? &user->codec : trib_codec_find(value);
    parser->config.params.user = user;
    if (parser->config.codec == NULL && strcmp(value, "none") != 0) {
        return unknown_codec(parser, value);
    }
    return TRIB_OK;
}

static trib_status set_k(codec_parser *parser, const char *value)
{
    double number;
    if (!read_number(value, &number) || number <= 0 || number > UINT32_MAX) {
        return bad_value(parser, "k", value, "a number above 0");
    }
    parser->config.params.ratio = number < 1 ? number : 0;
    parser->config.params.k = number < 1 ? 0 : (uint32_t)number;
    return TRIB_OK;
}

static trib_status set_ratio(codec_parser *parser, const char *value)
{
    double number;
    if (!read_number(value, &number) || number <= 0 || number > 1) {
        return bad_value(parser, "ratio", value, "above 0 and at most 1");
    }
    parser->config.params.ratio = number;
    parser->config.params.k = 0;
    return TRIB_OK;
}

static trib_status set_seed(codec_parser *parser, const char *value)
{
    char *end = NULL;
    parser->config.params.seed = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0') {
        return bad_value(parser, "seed", value, "a number from 0 on");
    }
    return TRIB_OK;
}

static trib_status set_choice(codec_parser *parser, const char *name, const char *value, const char *const names[],
                              const char *wanted, uint8_t *set)
{
    const int chosen = choice(value, names);
    if (chosen < 0) {
        return bad_value(parser, name, value, wanted);
    }
    *set = (uint8_t)chosen;
    return TRIB_OK;
}

static trib_status set_scaling(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"false", "0", "true", "1", "False", "False", "True", "True", NULL};
    uint8_t chosen = 0;
    const trib_status status = set_choice(parser, "scaling", value, names, "true or false", &chosen);
    parser->config.params.scaling = chosen % 2;
    return status;
}

static trib_status set_partition(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"linear", "0", "natural", "1", NULL};
    return set_choice(parser, "partition", value, names, "linear or natural", &parser->config.params.partition);
}

static trib_status set_normalize(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"max", "0", "l2", "1", NULL};
    return set_choice(parser, "normalize", value, names, "max or l2", &parser->config.params.normalize);
}

static trib_status set_select(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"exact", "exact", "sampled", "sampled", NULL};
    return set_choice(parser, "select", value, names, "exact or sampled", &parser->config.params.select);
}

static trib_status set_feedback(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"none", "none", "vanilla", "vanilla", NULL};
    uint8_t chosen = 0;
    const trib_status status = set_choice(parser, "ef", value, names, "vanilla or none", &chosen);
    parser->config.feedback = (trib_codec_feedback)chosen;
    return status;
}

static trib_status set_momentum(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"none", "none", "heavy_ball", "heavy_ball", "nesterov", "nesterov", NULL};
    uint8_t chosen = 0;
    const trib_status status = set_choice(parser, "momentum", value, names, "nesterov, heavy_ball or none", &chosen);
    parser->config.momentum = (trib_codec_momentum)chosen;
    return status;
}

static trib_status set_two_way(codec_parser *parser, const char *value)
{
    static const char *const names[] = {"false", "0", "true", "1", NULL};
    uint8_t chosen = 0;
    const trib_status status = set_choice(parser, "two_way", value, names, "true or false", &chosen);
    parser->config.two_way = chosen != 0;
    return status;
}

static trib_status set_mu(codec_parser *parser, const char *value)
{
    double number;
    if (!read_number(value, &number) || number < 0 || number >= 1) {
        return bad_value(parser, "mu", value, "from 0 on and below 1");
    }
    parser->config.mu = (float)number;
    return TRIB_OK;
}

static trib_status set_warmup(codec_parser *parser, const char *value)
{
    char *end = NULL;
    const unsigned long rounds = strtoul(value, &end, 10);
    parser->config.warmup = (uint32_t)rounds;
    if (*value < '0' || *value > '9' || *end != '\0' || rounds > UINT32_MAX) {
        return bad_value(parser, "warmup", value, "a number of rounds");
    }
    return TRIB_OK;
}

static trib_status set_version(codec_parser *parser, const char *value)
{
    char *end = NULL;
    const unsigned long version = strtoul(value, &end, 10);
    parser->version = (uint32_t)version;
    if (*value < '0' || *value > '9' || *end != '\0' || version > UINT32_MAX) {
        return bad_value(parser, "version", value, "a number from 0 on");
    }
    return TRIB_OK;
}

enum {
    CODEC,
    K,
    RATIO,
    SEED,
    SCALING,
    PARTITION,
    NORMALIZE,
    FEEDBACK,
    MOMENTUM,
    MU,
    WARMUP,
    TWO_WAY,
    SELECT,
    VERSION,
    PARAMETERS
};
#define BIT(parameter) (1u << (parameter))
#define WRAPPERS (BIT(CODEC) | BIT(FEEDBACK) | BIT(MOMENTUM) | BIT(MU) | BIT(WARMUP))

static const struct {
    const char *name;
    trib_status (*set)(codec_parser *parser, const char *value);
} parameters[PARAMETERS] = {
    [CODEC] = {"compressor", set_codec},
    [K] = {"k", set_k},
    [RATIO] = {"ratio", set_ratio},
    [SEED] = {"seed", set_seed},
    [SCALING] = {"scaling", set_scaling},
    [PARTITION] = {"partition", set_partition},
    [NORMALIZE] = {"normalize", set_normalize},
    [FEEDBACK] = {"ef", set_feedback},
    [MOMENTUM] = {"momentum", set_momentum},
    [MU] = {"mu", set_mu},
    [WARMUP] = {"warmup", set_warmup},
    [TWO_WAY] = {"two_way", set_two_way},
    [SELECT] = {"select", set_select},
    [VERSION] = {"version", set_version},
};

bool trib_codec_may_answer(const trib_codec *codec)
{
    return codec->state_bytes == 0;
}

/* Returns the bits of the parameters that a codec has alone. */
static uint32_t own_parameters(const trib_codec *codec)
{
    switch (codec != NULL ? codec->id : 0) {
    case 0:
        return BIT(CODEC);
    case TRIB_CODEC_INT8:
    case TRIB_CODEC_UNIFORM:
        return WRAPPERS | BIT(SEED);
    case TRIB_CODEC_ONEBIT:
        return WRAPPERS | BIT(SCALING);
    case TRIB_CODEC_TOPK:
        return WRAPPERS | BIT(K) | BIT(RATIO) | BIT(SEED) | BIT(SELECT);
    case TRIB_CODEC_RANDOMK:
        return WRAPPERS | BIT(K) | BIT(RATIO) | BIT(SEED);
    case TRIB_CODEC_DITHERING:
        return WRAPPERS | BIT(K) | BIT(SEED) | BIT(PARTITION) | BIT(NORMALIZE);
    case TRIB_CODEC_BROUGHT:
        return WRAPPERS | BIT(K) | BIT(RATIO) | BIT(SEED) | BIT(VERSION);
    default:
        return WRAPPERS;
    }
}

/* Returns the bits of the parameters that may stand beside a codec. */
static uint32_t accepted_by(const trib_codec *codec)
{
    return own_parameters(codec) | (codec != NULL && trib_codec_may_answer(codec) ? BIT(TWO_WAY) : 0);
}

static trib_status refuse_parameter(const codec_parser *parser, const char *name)
{
    char known[TRIB_CODEC_TEXT_SIZE] = "none";
    const uint32_t accepted = accepted_by(parser->config.codec);
    for (size_t i = 1, used = 0; i < PARAMETERS; i++) {
        if (accepted & BIT(i)) {
            used +=
                (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", parameters[i].name);
        }
    }
    return trib_error_set(parser->error, TRIB_INVALID, "codec %s has no parameter '%s': it has %s",
                          parser->config.codec != NULL ? parser->config.codec->name : "none", name, known);
}

/* Reads one word, "name=value" or the codec's name alone. */
static trib_status read_word(codec_parser *parser, char *word)
{
    char *equals = strchr(word, '=');
    if (equals == NULL && strcmp(word, parameters[TWO_WAY].name) == 0 && (parser->named & BIT(TWO_WAY)) == 0) {
        parser->named |= BIT(TWO_WAY);
        parser->config.two_way = true;
        return TRIB_OK;
    }
    if (equals == NULL) {
        if (parser->named & BIT(CODEC)) {
            return refuse_parameter(parser, word);
        }
        parser->named |= BIT(CODEC);
        parser->config.params.scaling |= strcmp(word, "onebit") == 0 && !(parser->named & BIT(SCALING));
        return set_codec(parser, word);
    }
    *equals = '\0';
    for (size_t i = 0; i < PARAMETERS; i++) {
        if (strcmp(word, parameters[i].name) == 0) {
            if (parser->named & BIT(i)) {
                return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': %s is there twice", parser->text, word);
            }
            parser->named |= BIT(i);
            return parameters[i].set(parser, equals + 1);
        }
    }
    return refuse_parameter(parser, word);
}

static trib_status check_whole(codec_parser *parser)
{
    const trib_codec *codec = parser->config.codec;
    const uint32_t refused = parser->named & ~accepted_by(codec);
    if (!(parser->named & BIT(CODEC))) {
        return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': no codec is named: begin with its name",
                              parser->text);
    }
    if (refused != 0) {
        return refuse_parameter(parser, parameters[__builtin_ctz(refused)].name);
    }
    if ((parser->named & BIT(K)) && (parser->named & BIT(RATIO))) {
        return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': k and ratio exclude each other", parser->text);
    }
    if ((parser->config.momentum != TRIB_MOMENTUM_NONE) != ((parser->named & BIT(MU)) != 0)) {
        return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': momentum and mu belong together", parser->text);
    }
    const trib_user_codec *user = parser->config.params.user;
    if (user != NULL && (parser->named & BIT(VERSION)) && parser->version != user->desc.version) {
        return trib_error_set(parser->error, TRIB_INVALID, "codec '%s': this process has version %u of it, not %u",
                              user->name, user->desc.version, parser->version);
    }
    return codec != NULL ? codec->check(&parser->config.params, TRIB_FLOAT32, parser->error) : TRIB_OK;
}

trib_status trib_codec_parse(const char *text, trib_codec_config *config, trib_error *error)
{
    return trib_codec_parse_with(NULL, text, config, error);
}

/* NOLINTNEXTLINE(misc-no-recursion): a choice of auto is no auto */
static trib_status parse_auto(const trib_codec_set *user, const char *text, trib_codec_config *config,
                              trib_error *error)
{
    trib_codec_choices choices;
    trib_codec_config found = {.codec = NULL};
    trib_status status = trib_codec_auto_parse(user, text, &choices, error);
    if (status == TRIB_OK) {
        status = trib_codec_auto_format(&choices, found.choices, error);
    }
    if (status == TRIB_OK) {
        *config = found;
    }
    return status;
}

/* NOLINTNEXTLINE(misc-no-recursion): see parse_auto */
trib_status trib_codec_parse_with(const trib_codec_set *user, const char *text, trib_codec_config *config,
                                  trib_error *error)
{
    codec_parser parser = {.user = user, .error = error, .text = text};
    trib_status status = TRIB_OK;
    if (trib_codec_is_auto(text)) {
        return parse_auto(user, text, config, error);
    }
    for (const char *at = text; *text != '\0' && status == TRIB_OK; at++) {
        char word[WORD_SIZE];
        const size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof word) {
            return trib_error_set(error, TRIB_INVALID, "codec '%.100s': a part between commas is %s", text,
                                  length == 0 ? "empty" : "too long");
        }
        memcpy(word, at, length);
        word[length] = '\0';
        status = read_word(&parser, word);
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    if (status == TRIB_OK && *text != '\0') {
        status = check_whole(&parser);
    }
    if (status == TRIB_OK) {
        *config = parser.config;
    }
    return status;
}

const char *trib_codec_format(const trib_codec_config *config, char text[TRIB_CODEC_TEXT_SIZE])
{
    const trib_codec_params *params = &config->params;
    const uint32_t accepted = accepted_by(config->codec);
    if (config->choices[0] != '\0') {
        memcpy(text, config->choices, TRIB_CODEC_TEXT_SIZE);
        return text;
    }
    locale_t callers = trib_neutral_locale_enter();
    size_t used =
        (size_t)snprintf(text, TRIB_CODEC_TEXT_SIZE, "%s", config->codec != NULL ? config->codec->name : "none");
#define ADD(...) used += (size_t)snprintf(text + used, TRIB_CODEC_TEXT_SIZE - used, __VA_ARGS__)
    if (params->user != NULL && ((const trib_user_codec *)params->user)->desc.version != 0) {
        ADD(",version=%u", ((const trib_user_codec *)params->user)->desc.version);
    }
    if (params->k != 0) {
        ADD(",k=%u", params->k);
    }
    if (params->ratio != 0) {
        ADD(",ratio=%.17g", params->ratio);
    }
    if ((accepted & BIT(SCALING)) && !params->scaling) {
        ADD(",scaling=false");
    }
    if (params->select) {
        ADD(",select=sampled");
    }
    if (params->partition) {
        ADD(",partition=natural");
    }
    if (params->normalize) {
        ADD(",normalize=l2");
    }
    if (params->seed != 0) {
        ADD(",seed=%llu", (unsigned long long)params->seed);
    }
    if (config->feedback != TRIB_FEEDBACK_NONE) {
        ADD(",ef=vanilla");
    }
    if (config->momentum != TRIB_MOMENTUM_NONE) {
        ADD(",momentum=%s,mu=%.9g", config->momentum == TRIB_MOMENTUM_NESTEROV ? "nesterov" : "heavy_ball",
            (double)config->mu);
    }
    if (config->warmup != 0) {
        ADD(",warmup=%u", config->warmup);
    }
    if (config->two_way) {
        ADD(",two_way");
    }
#undef ADD
    trib_neutral_locale_leave(callers);
    trib_assert(used < TRIB_CODEC_TEXT_SIZE);
    return text;
}
