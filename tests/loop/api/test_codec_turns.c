/* test_codec_turns.c - a reactor that encodes or decodes a large tensor goes back to its loop after a few chunks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <ev.h>

#include "api/tributary.h"

enum { COUNT = 1 << 18, CHUNK = 4096, CHUNKS = COUNT * 4 / CHUNK };

/* Chunks in one turn of the loop. */
typedef struct turns {
    unsigned turn, chunks, most, all;
} turns;

typedef struct counts {
    struct ev_loop *loop;
    const float *sums;
    turns encoded, decoded; /* decoded: of sums */
} counts;

static void note(const counts *self, turns *what)
{
    what->chunks = ev_iteration(self->loop) == what->turn ? what->chunks + 1 : 1;
    what->turn = ev_iteration(self->loop);
    what->most = what->chunks > what->most ? what->chunks : what->most;
    what->all++;
}

static uint64_t bound_all(const trib_codec_chunk *chunk)
{
    return (uint64_t)chunk->count * sizeof(float);
}

static int64_t encode_and_count(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded,
                                size_t room)
{
    counts *self = chunk->user;
    (void)state;
    note(self, &self->encoded);
    memcpy(encoded, source, room);
    return (int64_t)room;
}

static int decode_all(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    counts *self = chunk->user;
    if ((const float *)destination >= self->sums && (const float *)destination < self->sums + COUNT) {
        note(self, &self->decoded);
    }
    memcpy(destination, encoded, size);
    return size == (size_t)chunk->count * sizeof(float) ? 0 : 1;
}

static void sum_large_tensor(const char *codec, counts *counted)
{
    counts self = {.loop = ev_loop_new(EVFLAG_AUTO)};
    const trib_codec_desc copy = {.struct_size = sizeof copy,
                                  .name = "copy",
                                  .user = &self,
                                  .bound = bound_all,
                                  .encode = encode_and_count,
                                  .decode = decode_all};
    float *values = malloc(COUNT * sizeof *values), *sums = calloc(COUNT, sizeof *sums);
    assert_true(self.loop != NULL && values != NULL && sums != NULL);
    self.sums = sums;
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = self.loop;
    config.chunk_bytes = CHUNK;
    config.partition_bytes = COUNT * sizeof(float);
    config.codecs = &copy;
    config.codec_count = 1;
    trib_engine *engine = NULL;
    trib_tensor_desc desc;
    trib_op_params params;
    trib_op *op = NULL;
    trib_error error = {.text = ""};
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = "large";
    desc.count = COUNT;
    desc.codec = codec;
    params.input = values;
    params.output = sums;
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK ||
        trib_tensor_declare(engine, &desc, &params.tensor, &error) != TRIB_OK ||
        trib_push_pull(engine, &params, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    while (trib_op_status(op) == TRIB_PENDING) {
        ev_run(self.loop, EVRUN_ONCE);
    }
    assert_int_equal(trib_op_status(op), TRIB_OK);
    assert_memory_equal(sums, values, COUNT * sizeof *values);
    trib_op_release(op);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(self.loop);
    free(values);
    free(sums);
    *counted = self;
}

static void few_chunks_are_encoded_in_a_turn(void **state)
{
    counts self;
    (void)state;
    sum_large_tensor("copy", &self);
    assert_int_equal(self.encoded.all, CHUNKS);
    assert_true(self.encoded.most < CHUNKS / 4);
}

/* A worker decodes a partition's sums when it has them all. */
static void few_chunks_are_decoded_in_a_turn(void **state)
{
    counts self;
    (void)state;
    sum_large_tensor("copy,two_way", &self);
    assert_int_equal(self.encoded.all, 2 * CHUNKS);
    assert_int_equal(self.decoded.all, CHUNKS);
    assert_true(self.decoded.most < CHUNKS / 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_chunks_are_encoded_in_a_turn),
        cmocka_unit_test(few_chunks_are_decoded_in_a_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
