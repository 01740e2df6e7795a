/* task_codec.c - see task_codec.h. */
#include "engine/worker/task_codec.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/kernel_ops.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"

static size_t rounded(size_t size)
{
    return (size + 63) / 64 * 64;
}

bool trib_task_codec_open(trib_task *task)
{
    const trib_tensor *tensor = task->tensor;
    const trib_codec_config *config = &tensor->codec;
    if (config->codec == NULL || task->size == 0) {
        return true;
    }
    const uint32_t element = (uint32_t)trib_dtype_size(tensor->dtype), n = task->chunk_count;
    const size_t sum_bytes = trib_acc_size(tensor->dtype, TRIB_SUM), count = task->size / element;
    const size_t room = rounded(trib_codec_chunk_room(tensor)), residual = rounded(sum_bytes * count);
    const size_t parts[] = {rounded(sizeof(trib_task_codec)),
                            rounded(n * sizeof(uint32_t)),
                            rounded(n * sizeof(uint32_t)),
                            rounded(config->codec->state_bytes),
                            config->feedback != TRIB_FEEDBACK_NONE ? residual : 0,
                            config->momentum != TRIB_MOMENTUM_NONE ? residual : 0,
                            trib_codec_is_stateful(config) ? rounded(tensor->chunk_bytes) : 0,
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

/* ---- Rounds ---- */

static trib_encoding encoding_of(const trib_task *task)
{
    const trib_codec_config *config = &task->tensor->codec;
    return (trib_encoding){.codec = config->codec,
                           .params = config->params,
                           .two_way = config->two_way,
                           .partition_count = task->size / task->codec->element};
}

bool trib_codec_travels(const trib_op *op)
{
    const uint32_t warmup = op->tensor->codec.warmup;
    return op->collective == TRIB_COLLECTIVE_ALL_REDUCE && (op->reduce == TRIB_SUM || op->reduce == TRIB_AVG) &&
           (warmup == 0 || op->round - op->tensor->number_base > warmup);
}

uint32_t trib_task_chunk_elements(const trib_task *task, uint32_t chunk)
{
    const uint32_t whole = task->tensor->chunk_bytes, left = task->size - chunk * whole;
    return (left < whole ? left : whole) / task->codec->element;
}

trib_codec_memory trib_task_chunk_memory(const trib_task *task, uint32_t chunk)
{
    trib_codec_memory memory = task->codec->memory;
    const size_t first = (size_t)chunk * (task->tensor->chunk_bytes / task->codec->element);
    const size_t skipped = first * trib_acc_size(task->tensor->dtype, TRIB_SUM);
    memory.residual = memory.residual == NULL ? NULL : (unsigned char *)memory.residual + skipped;
    memory.momentum = memory.momentum == NULL ? NULL : (unsigned char *)memory.momentum + skipped;
    return memory;
}

trib_codec_place trib_task_first_place(const trib_task *task)
{
    const uint32_t element = task->codec->element;
    const uint64_t first = task->offset / element;
    return (trib_codec_place){.tensor_key = task->tensor->key,
                              .round = task->op_core->op->round,
                              .first_element = first,
                              .partition_first = first,
                              .partition_count = task->size / element,
                              .rank = task->tensor->engine->member_id};
}

void trib_task_note_encoded(trib_task *task, unsigned char *data, uint32_t room, uint32_t at)
{
    task->codec->there = (trib_view){.data = data, .bytes = room * task->chunk_count, .chunk_bytes = room};
    task->codec->there_at = at;
}

void trib_task_note_plain(trib_task *task)
{
    task->codec->there.data = NULL;
}

/* Copies what a device has encoded, so that sums may land where it lies. */
static uint32_t take_encoded(const trib_task_codec *self, uint32_t chunk, unsigned char *encoded)
{
    const unsigned char *from = trib_view_chunk(&self->there, chunk);
    uint32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    trib_assert(bytes > 0 && bytes <= self->there.chunk_bytes - self->there_at);
    memcpy(encoded, from + self->there_at, bytes);
    return bytes;
}

static trib_status encode_chunk(const trib_task *task, const trib_encoding *encoding, uint32_t chunk, trib_error *error)
{
    const trib_tensor *tensor = task->tensor;
    trib_task_codec *self = task->codec;
    const trib_codec_memory memory = trib_task_chunk_memory(task, chunk);
    unsigned char *at = trib_view_chunk(&self->encoded, chunk);
    const uint32_t count = trib_task_chunk_elements(task, chunk);
    trib_codec_place place = trib_task_first_place(task);
    place.first_element += (uint64_t)chunk * (tensor->chunk_bytes / self->element);
    trib_encoding_put(encoding, at);
    self->sizes[chunk] = 0;
    self->answer_sizes[chunk] = 0;
    const uint32_t bytes = self->there.data != NULL ? take_encoded(self, chunk, at + TRIB_ENCODING_BYTES)
                                                    : trib_codec_encode(&tensor->codec, &memory, &place, tensor->dtype,
                                                                        trib_view_chunk(&task->io.source, chunk), count,
                                                                        at + TRIB_ENCODING_BYTES);
    const trib_status status = trib_codec_check_encoded(&tensor->codec, tensor->dtype, count, bytes, error);
    if (status == TRIB_OK) {
        self->sizes[chunk] = TRIB_ENCODING_BYTES + bytes;
        trib_assert(self->sizes[chunk] <= self->encoded.chunk_bytes);
    }
    return status;
}

bool trib_task_will_encode(const trib_task *task)
{
    return task->codec != NULL && trib_codec_travels(task->op_core->op);
}

bool trib_task_encode_prepare(trib_task *task)
{
    trib_task_codec *self = task->codec;
    const trib_op *op = task->op_core->op;
    task->io.encoded = task->io.source;
    task->io.received = task->io.destination;
    if (self == NULL) {
        return false;
    }
    trib_assert(!self->is_open);
    self->is_used = trib_codec_travels(op);
    self->is_on_host = true;
    return self->is_used;
}

/* The last chunk is done, or one of them has failed. */
static void end_turns(trib_core *core, trib_task *task, trib_status status, const char *why)
{
    if (status != TRIB_OK) {
        trib_op_fail(task->op_core->op, status, "%s", why);
        trib_op_give_up(task->op_core->op);
    }
    trib_task_release(core, task, TRIB_HOLD_ENCODE);
    if (status == TRIB_OK) {
        trib_pipeline_resume(core, task);
    }
}

/* A reactor does other things between two chunks. */
static void encode_next(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_task_codec *self = trib_container_of(post, trib_task_codec, post);
    trib_task *task = self->task;
    trib_error error, why;
    if (!trib_task_is_open(task)) {
        trib_task_release(core, task, TRIB_HOLD_ENCODE); /* the task was given up */
        return;
    }
    const trib_encoding encoding = encoding_of(task);
    trib_assert(self->chunks_encoded < task->chunk_count && task->held[TRIB_HOLD_ENCODE] == 1);
    const uint32_t chunk = self->chunks_encoded++;
    const trib_status status = encode_chunk(task, &encoding, chunk, &why);
    trib_charge(core->reactor, TRIB_COST_ENCODE, trib_view_chunk_size(&task->io.source, chunk));
    if (status == TRIB_OK && self->chunks_encoded < task->chunk_count) {
        trib_reactor_defer(reactor, post);
        return;
    }
    (void)trib_error_set(&error, status, "chunk %u of partition %u: %.300s", chunk, task->partition,
                         status != TRIB_OK ? why.text : "");
    end_turns(core, task, status, error.text);
}

void trib_task_encode_begin(trib_core *core, trib_task *task)
{
    trib_task_codec *self = task->codec;
    trib_assert(self->is_used && !self->is_open);
    trib_assert(!self->post.queued && task->held[TRIB_HOLD_ENCODE] == 0);
    self->is_open = true;
    self->chunks_encoded = 0;
    self->task = task;
    self->post.run = encode_next;
    task->io.encoded = self->encoded;
    trib_task_hold(task, TRIB_HOLD_ENCODE);
    trib_reactor_defer(core->reactor, &self->post);
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
    return trib_encoding_answers(&encoding, task->tensor->dtype, trib_task_chunk_elements(task, chunk));
}

void trib_task_note_answer(trib_task *task, uint32_t chunk, uint32_t bytes)
{
    if (bytes > 0) {
        trib_assert(bytes <= task->codec->answers.chunk_bytes); /* check_sum has let it pass */
        task->codec->answer_sizes[chunk] = bytes;
    }
}

unsigned char *trib_task_sum_place(const trib_task *task, uint32_t chunk, bool is_encoded)
{
    return trib_view_chunk(is_encoded ? &task->codec->answers : &task->io.received, chunk);
}

/* Returns the first chunk from there on whose sum came encoded; chunk_count: none. */
static uint32_t find_answer(const trib_task *task, uint32_t chunk)
{
    while (chunk < task->chunk_count && task->codec->answer_sizes[chunk] == 0) {
        chunk++;
    }
    return chunk;
}

bool trib_task_hand_sums(trib_task *task, unsigned char *data, uint32_t room, uint32_t at)
{
    for (uint32_t chunk = 0; chunk < task->chunk_count; chunk++) {
        if (task->codec->answer_sizes[chunk] == 0) {
            return false;
        }
    }
    task->codec->handed = (trib_view){.data = data, .bytes = room * task->chunk_count, .chunk_bytes = room};
    task->codec->there_at = at;
    return true;
}

/* A device cannot refuse what a peer has sent, so it is looked at here. */
static trib_status hand_chunk(trib_core *core, const trib_task *task, uint32_t chunk, trib_error *error)
{
    const trib_task_codec *self = task->codec;
    const trib_tensor *tensor = task->tensor;
    const unsigned char *encoded = trib_view_chunk(&self->answers, chunk);
    unsigned char *to = trib_view_chunk(&self->handed, chunk);
    const uint32_t bytes = self->answer_sizes[chunk];
    const trib_status status = tensor->codec.codec->inspect(&tensor->codec.params, tensor->dtype, encoded, bytes,
                                                            trib_task_chunk_elements(task, chunk), error);
    if (status == TRIB_OK) {
        trib_assert(bytes <= self->handed.chunk_bytes - self->there_at);
        memcpy(to, &bytes, sizeof bytes);
        memcpy(to + self->there_at, encoded, bytes);
        trib_charge(core->reactor, TRIB_COST_COPY, bytes);
    }
    return status;
}

static trib_status decode_here(trib_core *core, const trib_task *task, uint32_t chunk, trib_error *error)
{
    const trib_task_codec *self = task->codec;
    const trib_tensor *tensor = task->tensor;
    trib_charge(core->reactor, TRIB_COST_DECODE, trib_view_chunk_size(&task->io.source, chunk));
    return tensor->codec.codec->decode(&tensor->codec.params, tensor->dtype, trib_view_chunk(&self->answers, chunk),
                                       self->answer_sizes[chunk], trib_view_chunk(&task->io.destination, chunk),
                                       trib_task_chunk_elements(task, chunk), error);
}

static trib_status decode_chunk(trib_core *core, const trib_task *task, uint32_t chunk, trib_error *error)
{
    trib_error why;
    trib_error_clear(&why);
    const trib_status status = (trib_task_has_handed_sums(task) ? hand_chunk : decode_here)(core, task, chunk, &why);
    return status == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, status, "the sum of chunk %u of partition %u from %s: %.300s", chunk,
                                task->partition, trib_roster_name(core->engine->roster, task->owner.member), why.text);
}

/* As encode_next: a reactor does other things between two chunks. */
static void decode_next(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_task_codec *self = trib_container_of(post, trib_task_codec, post);
    trib_task *task = self->task;
    trib_error error;
    if (!trib_task_is_open(task)) {
        trib_task_release(core, task, TRIB_HOLD_ENCODE); /* the task was given up */
        return;
    }
    const trib_status status = decode_chunk(core, task, self->chunk_to_decode, &error);
    self->chunk_to_decode = find_answer(task, self->chunk_to_decode + 1);
    if (status == TRIB_OK && self->chunk_to_decode < task->chunk_count) {
        trib_reactor_defer(reactor, post);
        return;
    }
    end_turns(core, task, status, error.text);
}

bool trib_task_decode_prepare(const trib_task *task)
{
    return task->codec != NULL && task->codec->is_used && find_answer(task, 0) < task->chunk_count;
}

void trib_task_decode_begin(trib_core *core, trib_task *task)
{
    trib_task_codec *self = task->codec;
    self->chunk_to_decode = find_answer(task, 0);
    self->post.run = decode_next;
    trib_task_hold(task, TRIB_HOLD_ENCODE);
    trib_reactor_defer(core->reactor, &self->post);
}
