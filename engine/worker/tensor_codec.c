/* tensor_codec.c - which codec a tensor gets: what it names, what the job's setting says, what is possible. */
#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/codec/codec_auto.h"
#include "engine/worker/task_codec.h"

/* Says why a tensor as declared can have no codec, or TRIB_OK. */
static trib_status check_tensor(const trib_engine *engine, const trib_codec_config *config,
                                const trib_tensor_desc *desc, trib_error *error)
{
    trib_codec_choices choices = {.items = {*config}, .count = 1};
    trib_status status = TRIB_OK;
    if (desc->layout != TRIB_WHOLE) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "codecs are for whole tensors: give it the codec \"none\"");
    }
    if (config->choices[0] != '\0') {
        status = trib_codec_auto_parse(&engine->codecs, config->choices, &choices, error);
    }
    for (uint32_t i = 0; i < choices.count && status == TRIB_OK; i++) {
        trib_assert(choices.items[i].codec != NULL);
        status = choices.items[i].codec->check(&choices.items[i].params, desc->dtype, error);
    }
    return status;
}

/* True if the tensor has a codec, or may get one. */
static bool is_some(const trib_codec_config *config)
{
    return config->codec != NULL || config->choices[0] != '\0';
}

/* The codec that the tensor names. */
static trib_status choose_named(const trib_engine *engine, const trib_tensor_desc *desc, trib_codec_config *config,
                                trib_error *error)
{
    trib_error why;
    trib_status status = trib_codec_parse_with(&engine->codecs, desc->codec, config, &why);
    if (status == TRIB_OK && is_some(config)) {
        status = check_tensor(engine, config, desc, &why);
    }
    return status == TRIB_OK ? TRIB_OK
                             : trib_error_set(error, status, "tensor \"%s\": codec \"%.100s\": %.300s", desc->name,
                                              desc->codec, why.text);
}

trib_status trib_codec_choose(const trib_engine *engine, const trib_tensor_desc *desc, trib_codec_config *config,
                              trib_error *error)
{
    *config = (trib_codec_config){.codec = NULL};
    if (desc->codec != NULL) {
        return choose_named(engine, desc, config, error);
    }
    const trib_codec_config *found = trib_codec_rules_find(
        &engine->codec_rules, desc->name, desc->count * trib_dtype_size(desc->dtype), engine->config.codec_min_bytes);
    if (found != NULL && is_some(found) && check_tensor(engine, found, desc, NULL) == TRIB_OK) {
        *config = *found;
    }
    return TRIB_OK;
}

trib_status trib_codec_check_same(const trib_tensor *tensor, const trib_tensor_desc *desc,
                                  const trib_codec_config *config, trib_error *error)
{
    char text[TRIB_CODEC_TEXT_SIZE];
    if (desc->codec == NULL || strcmp(trib_codec_format(config, text), tensor->codec_text) == 0) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_MISMATCH,
                          "tensor \"%s\" was declared before with the codec \"%s\", now with \"%s\": use another "
                          "name, or release the first one",
                          tensor->name, tensor->codec_text, text);
}

uint64_t trib_codec_chunk_room(const trib_tensor *tensor)
{
    const trib_codec_config *config = &tensor->codec;
    const uint32_t count = tensor->chunk_bytes / (uint32_t)trib_dtype_size(tensor->dtype);
    return TRIB_ENCODING_BYTES + config->codec->bound(&config->params, tensor->dtype, count);
}

trib_status trib_codec_take_choice(trib_tensor *tensor, uint32_t choice, trib_error *error)
{
    trib_codec_choices choices = {.count = 0};
    if (tensor->codec.choices[0] != '\0') {
        const trib_status status =
            trib_codec_auto_parse(&tensor->engine->codecs, tensor->codec.choices, &choices, error);
        trib_assert(status == TRIB_OK); /* the text was read before */
    }
    if (choice > choices.count) {
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" gets choice %u of %u codecs", tensor->name, choice,
                              choices.count);
    }
    if (choices.count > 0) {
        tensor->codec = choice == 0 ? (trib_codec_config){.codec = NULL} : choices.items[choice - 1];
    }
    return TRIB_OK;
}

void trib_codec_reset(trib_tensor *tensor)
{
    trib_error error;
    const trib_status status =
        trib_codec_parse_with(&tensor->engine->codecs, tensor->codec_text, &tensor->codec, &error);
    trib_assert(status == TRIB_OK); /* the text is the one form of a text that was read before */
}

bool trib_codec_place_tensor(trib_tensor *tensor, char *text, size_t size)
{
    const trib_roster *roster = tensor->engine->roster;
    if (tensor->codec.codec == NULL) {
        return true;
    }
    if (tensor->is_sharded && trib_engine_is_one_machine(tensor->engine)) {
        tensor->codec.codec = NULL; /* its devices sum among themselves, and nothing travels */
        return true;
    }
    const char *why = NULL;
    const uint64_t room = trib_codec_chunk_room(tensor);
    if (roster->local_size > 0 && !tensor->is_sharded) {
        why = "the workers of a machine sum first here, and such sums have no codec: set TRIB_LOCAL_SUM=off";
    } else if (roster->survives) {
        why = "this job survives the loss of servers, and such sums have no codec: set TRIB_SURVIVE=nothing";
    } else if (room > TRIB_PAYLOAD_MAX || room > roster->chunk_bytes + TRIB_ENCODING_MARGIN) {
        why = "its encoded chunks would be larger than the chunks themselves: keep fewer elements";
    }
    if (why == NULL) {
        return true;
    }
    char codec[TRIB_CODEC_TEXT_SIZE];
    snprintf(text, size, "codec \"%s\": %s", trib_codec_format(&tensor->codec, codec), why);
    tensor->codec.codec = NULL;
    return !tensor->names_codec || trib_codec_is_auto(tensor->codec_text); /* the choice may be none */
}
