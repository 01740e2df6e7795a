/* task_codec.c - see task_codec.h. */
#include "engine/worker/task_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/kernel_ops.h"

/* ---- Choice ---- */

/* Says why a tensor as declared can have no codec, or TRIB_OK. */
static trib_status check_tensor(const trib_codec_config *config, const trib_tensor_desc *desc, trib_error *error)
{
    if (desc->layout != TRIB_WHOLE || desc->group != NULL || (desc->flags & TRIB_TENSOR_DEVICE) != 0) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "codecs are for whole tensors of all workers in host memory: give it the codec \"none\"");
    }
    return config->codec->check(&config->params, desc->dtype, error);
}

trib_status trib_codec_choose(const trib_engine *engine, const trib_tensor_desc *desc, trib_codec_config *config,
                              trib_error *error)
{
    trib_error why;
    trib_error_clear(&why);
    const bool is_named = desc->codec != NULL;
    const char *text = is_named ? desc->codec : engine->config.codec;
    *config = (trib_codec_config){.codec = NULL};
    if (text == NULL || (!is_named && desc->count * trib_dtype_size(desc->dtype) < engine->config.codec_min_bytes)) {
        return TRIB_OK;
    }
    trib_status status = trib_codec_parse(text, config, &why);
    if (status == TRIB_OK && config->codec != NULL) {
        status = check_tensor(config, desc, &why);
    }
    if (status == TRIB_OK) {
        return TRIB_OK;
    }
    *config = (trib_codec_config){.codec = NULL};
    return is_named
               ? trib_error_set(error, status, "tensor \"%s\": codec \"%.100s\": %.300s", desc->name, text, why.text)
               : TRIB_OK;
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

static uint64_t chunk_room(const trib_tensor *tensor)
{
    const trib_codec_config *config = &tensor->codec;
    const uint32_t count = tensor->chunk_bytes / (uint32_t)trib_dtype_size(tensor->dtype);
    return TRIB_ENCODING_BYTES + config->codec->bound(&config->params, tensor->dtype, count);
}

bool trib_codec_place_tensor(trib_tensor *tensor, char *text, size_t size)
{
    const trib_roster *roster = tensor->engine->roster;
    if (tensor->codec.codec == NULL) {
        return true;
    }
    const char *why = NULL;
    const uint64_t room = chunk_room(tensor);
    if (roster->local_size > 0) {
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
    return !tensor->names_codec;
}

/* ---- Memory ---- */

static size_t rounded(size_t size)
{
    return (size + 63) / 64 * 64;
}

bool trib_task_codec_open(trib_task *task)
{
    const trib_tensor *tensor = task->tensor;
    const trib_codec_config *config = &tensor->codec;
    if (config->codec == NULL || task->size == 0 || tensor->on_device) {
        return true;
    }
    const uint32_t element = (uint32_t)trib_dtype_size(tensor->dtype), n = task->chunk_count;
    const size_t sum_bytes = trib_acc_size(tensor->dtype, TRIB_SUM), count = task->size / element;
    const size_t room = rounded(chunk_room(tensor)), residual = rounded(sum_bytes * count);
    const size_t parts[] = {rounded(sizeof(trib_task_codec)),
                            rounded(n * sizeof(uint32_t)),
                            rounded(n * sizeof(uint32_t)),
                            rounded(config->codec->state_bytes),
                            config->feedback != TRIB_FEEDBACK_NONE ? residual : 0,
                            config->momentum != TRIB_MOMENTUM_NONE ? residual : 0,
                            trib_codec_is_wrapped(config) ? rounded(tensor->chunk_bytes) : 0,
                            n * room,
                            config->two_way ? n * room : 0};
    enum { SELF, SIZES, ANSWER_SIZES, STATE, RESIDUAL, MOMENTUM, SCRATCH, ENCODED, ANSWERS, PARTS };
    unsigned char *at[PARTS], *memory = NULL;
    size_t total = 0;
    for (size_t i = 0; i < PARTS; i++) {
        total += parts[i];
    }
    memory = calloc(1, total);
    if (memory == NULL) {
        return false;
    }
    trib_task_codec *self = (trib_task_codec *)(void *)memory;
    for (size_t i = 0; i < PARTS; i++) {
        at[i] = parts[i] > 0 ? memory : NULL;
        memory += parts[i];
    }
    *self = (trib_task_codec){
        .memory = {.state = at[STATE], .residual = at[RESIDUAL], .momentum = at[MOMENTUM], .scratch = at[SCRATCH]},
        .encoded = {.data = at[ENCODED], .bytes = (uint32_t)(n * room), .chunk_bytes = (uint32_t)room},
        .answers = {.data = at[ANSWERS], .bytes = (uint32_t)(n * room), .chunk_bytes = (uint32_t)room},
        .sizes = (uint32_t *)(void *)at[SIZES],
        .answer_sizes = (uint32_t *)(void *)at[ANSWER_SIZES],
        .element = element};
    task->codec = self;
    return true;
}

void trib_task_codec_close(trib_task *task)
{
    free(task->codec);
    task->codec = NULL;
}

/* ---- Rounds ---- */

static trib_encoding encoding_of(const trib_task *task)
{
    const trib_codec_config *config = &task->tensor->codec;
    return (trib_encoding){.codec = config->codec,
                           .params = config->params,
                           .two_way = config->two_way,
                           .partition_count = task->size / task->codec->element};
}

static uint32_t chunk_elements(const trib_task *task, uint32_t chunk)
{
    return trib_view_chunk_size(&task->io.source, chunk) / task->codec->element;
}

/* The codec's memory from a chunk on. */
static trib_codec_memory chunk_memory(const trib_task *task, uint32_t chunk)
{
    trib_codec_memory memory = task->codec->memory;
    const size_t first = (size_t)chunk * (task->tensor->chunk_bytes / task->codec->element);
    const size_t skipped = first * trib_acc_size(task->tensor->dtype, TRIB_SUM);
    memory.residual = memory.residual == NULL ? NULL : (unsigned char *)memory.residual + skipped;
    memory.momentum = memory.momentum == NULL ? NULL : (unsigned char *)memory.momentum + skipped;
    return memory;
}

static void encode_chunk(const trib_task *task, const trib_encoding *encoding, uint32_t chunk)
{
    const trib_tensor *tensor = task->tensor;
    const uint32_t element = task->codec->element;
    const uint64_t first = task->offset / element;
    const trib_codec_place place = {.tensor_key = tensor->key,
                                    .round = task->op_core->op->round,
                                    .first_element = first + (uint64_t)chunk * (tensor->chunk_bytes / element),
                                    .partition_first = first,
                                    .partition_count = encoding->partition_count,
                                    .rank = tensor->engine->member_id};
    const trib_codec_memory memory = chunk_memory(task, chunk);
    unsigned char *at = trib_view_chunk(&task->codec->encoded, chunk);
    trib_encoding_put(encoding, at);
    const uint32_t bytes =
        trib_codec_encode(&tensor->codec, &memory, &place, tensor->dtype, trib_view_chunk(&task->io.source, chunk),
                          chunk_elements(task, chunk), at + TRIB_ENCODING_BYTES);
    task->codec->sizes[chunk] = TRIB_ENCODING_BYTES + bytes;
    task->codec->answer_sizes[chunk] = 0;
    trib_assert(task->codec->sizes[chunk] <= task->codec->encoded.chunk_bytes);
}

void trib_task_encode(trib_core *core, trib_task *task)
{
    trib_task_codec *self = task->codec;
    const trib_op *op = task->op_core->op;
    task->io.encoded = task->io.source;
    task->io.received = task->io.destination;
    if (self == NULL) {
        return;
    }
    trib_assert(!self->is_open);
    self->is_used = op->collective == TRIB_COLLECTIVE_ALL_REDUCE && (op->reduce == TRIB_SUM || op->reduce == TRIB_AVG);
    if (!self->is_used) {
        return;
    }
    const trib_encoding encoding = encoding_of(task);
    for (uint32_t chunk = 0; chunk < task->chunk_count; chunk++) {
        encode_chunk(task, &encoding, chunk);
    }
    trib_charge(core->reactor, TRIB_COST_COPY, task->size);
    self->is_open = true;
    task->io.encoded = self->encoded;
}

uint8_t trib_task_push_codec(const trib_task *task, uint32_t chunk, uint32_t *bytes)
{
    if (task->codec == NULL || !task->codec->is_used) {
        return 0;
    }
    *bytes = task->codec->sizes[chunk];
    return task->tensor->codec.codec->id;
}

bool trib_task_awaits_encoded(const trib_task *task, uint32_t chunk, uint32_t *room)
{
    if (task->codec == NULL || !task->codec->is_used || task->codec->answers.data == NULL) {
        return false;
    }
    const trib_encoding encoding = encoding_of(task);
    *room = task->codec->answers.chunk_bytes;
    return trib_encoding_answers(&encoding, task->tensor->dtype, chunk_elements(task, chunk));
}

void trib_task_note_answer(trib_task *task, uint32_t chunk, uint32_t bytes)
{
    uint32_t room;
    if (trib_task_awaits_encoded(task, chunk, &room)) {
        task->codec->answer_sizes[chunk] = bytes;
    }
}

unsigned char *trib_task_sum_place(const trib_task *task, uint32_t chunk)
{
    uint32_t room;
    return trib_view_chunk(trib_task_awaits_encoded(task, chunk, &room) ? &task->codec->answers : &task->io.received,
                           chunk);
}

trib_status trib_task_decode(trib_core *core, trib_task *task, trib_error *error)
{
    const trib_task_codec *self = task->codec;
    const trib_tensor *tensor = task->tensor;
    for (uint32_t chunk = 0; self != NULL && self->is_used && chunk < task->chunk_count; chunk++) {
        if (self->answer_sizes[chunk] == 0) {
            continue;
        }
        trib_error why;
        trib_error_clear(&why);
        const trib_status status = tensor->codec.codec->decode(
            &tensor->codec.params, tensor->dtype, trib_view_chunk(&self->answers, chunk), self->answer_sizes[chunk],
            trib_view_chunk(&task->io.destination, chunk), chunk_elements(task, chunk), &why);
        trib_charge(core->reactor, TRIB_COST_COPY, trib_view_chunk_size(&task->io.source, chunk));
        if (status != TRIB_OK) {
            return trib_error_set(error, status, "the sum of chunk %u of partition %u from %s: %.300s", chunk,
                                  task->partition, trib_roster_name(core->engine->roster, task->owner.member),
                                  why.text);
        }
    }
    return TRIB_OK;
}

/* A round that was withdrawn before all of it was sent, or that its owner refused, is in no sum. */
void trib_task_codec_settled(trib_task *task)
{
    trib_task_codec *self = task->codec;
    if (self == NULL || !self->is_open) {
        return;
    }
    self->is_open = false;
    const bool is_lost = task->gave_up && (task->refused || task->chunks_sent < task->chunk_count);
    const trib_codec_config *config = &task->tensor->codec;
    for (uint32_t chunk = 0; is_lost && config->feedback != TRIB_FEEDBACK_NONE && chunk < task->chunk_count; chunk++) {
        const trib_codec_memory memory = chunk_memory(task, chunk);
        trib_codec_take_back(config, &memory, task->tensor->dtype,
                             trib_view_chunk(&self->encoded, chunk) + TRIB_ENCODING_BYTES,
                             self->sizes[chunk] - TRIB_ENCODING_BYTES, chunk_elements(task, chunk));
    }
}
