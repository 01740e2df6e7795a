/* test_codec_turns.c - a reactor that encodes a large tensor goes back to its loop after a few chunks. */
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

/* Chunks encoded in one turn of the loop. */
typedef struct turns {
    struct ev_loop *loop;
    unsigned turn, chunks, most, all;
} turns;

static uint64_t bound_all(const trib_codec_chunk *chunk)
{
    return (uint64_t)chunk->count * sizeof(float);
}

static int64_t encode_and_count(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded,
                                size_t room)
{
    turns *self = chunk->user;
    (void)state;
    self->chunks = ev_iteration(self->loop) == self->turn ? self->chunks + 1 : 1;
    self->turn = ev_iteration(self->loop);
    self->most = self->chunks > self->most ? self->chunks : self->most;
    self->all++;
    memcpy(encoded, source, room);
    return (int64_t)room;
}

static int decode_all(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    memcpy(destination, encoded, size);
    return size == (size_t)chunk->count * sizeof(float) ? 0 : 1;
}

static void few_chunks_are_encoded_in_a_turn(void **state)
{
    (void)state;
    turns self = {.loop = ev_loop_new(EVFLAG_AUTO)};
    const trib_codec_desc copy = {.struct_size = sizeof copy,
                                  .name = "copy",
                                  .user = &self,
                                  .bound = bound_all,
                                  .encode = encode_and_count,
                                  .decode = decode_all};
    float *values = malloc(COUNT * sizeof *values), *sums = calloc(COUNT, sizeof *sums);
    assert_true(self.loop != NULL && values != NULL && sums != NULL);
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = self.loop;
    config.chunk_bytes = CHUNK;
    config.partition_bytes = 4 * CHUNK;
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
    desc.codec = "copy";
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
    assert_int_equal(self.all, CHUNKS);
    assert_true(self.most < CHUNKS / 4);
    trib_op_release(op);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(self.loop);
    free(values);
    free(sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_chunks_are_encoded_in_a_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
