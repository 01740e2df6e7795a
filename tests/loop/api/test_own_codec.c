/*
 * test_own_codec.c - codecs that a program brings: sums of three workers against plain loops, codecs that fail or make
 * too many bytes, and members that lack a codec or have another version of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/own_codecs.h"
#include "tests/loop/party.h"

enum { WORKERS = 3, COUNT = 20000, ROUNDS = 4 };

static void with_codecs(trib_config *config, int member)
{
    party_small_pieces(config, member);
    config->codecs = own_codecs;
    config->codec_count = OWN_CODECS;
}

static void dedicated_with_codecs(trib_config *config, int member)
{
    with_codecs(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

/* ---- Sums ---- */

static float inputs[WORKERS][COUNT], outputs[WORKERS][COUNT], sums[COUNT], residuals[WORKERS][COUNT];

/* Multiples of 1/1024, so that sums of a few are exact; zeros in round 0. */
static float value(uint32_t rank, uint32_t round, uint32_t i)
{
    if (round == 0) {
        return 0;
    }
    const uint32_t mixed = (i * 2654435761u) ^ rank * 40503u ^ round * 9176u;
    return (float)((int)(mixed >> 7 & 0xfff) - 2048) / 1024.0f;
}

static float upper_of(float number)
{
    unsigned char bytes[4];
    memcpy(bytes, &number, sizeof bytes);
    bytes[0] = bytes[1] = 0;
    memcpy(&number, bytes, sizeof number);
    return number;
}

static void submit_round(const party *self, const char *codec, uint32_t round, trib_op *ops[])
{
    for (uint32_t i = 0; i < self->count; i++) {
        for (uint32_t e = 0; e < COUNT; e++) {
            inputs[i][e] = value(i, round, e);
        }
        const trib_tensor_desc desc = {.name = codec, .dtype = TRIB_FLOAT32, .count = COUNT, .codec = codec};
        ops[i] = party_submit(
            self, i, trib_all_reduce,
            (trib_op_params){.tensor = party_declare(self, i, desc), .input = inputs[i], .output = outputs[i]});
    }
}

static void compare(const char *codec, uint32_t round)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        for (uint32_t e = 0; e < COUNT; e++) {
            if (memcmp(&outputs[i][e], &sums[e], sizeof(float)) != 0) {
                fail_msg("%s: rank %u, round %u, element %u: %g instead of %g", codec, i, round, e,
                         (double)outputs[i][e], (double)sums[e]);
            }
        }
    }
}

/* One worker's element as it is decoded, with or without a residual. */
static float sent(const char *codec, bool feeds_back, uint32_t rank, uint32_t round, uint32_t e)
{
    const float wanted = value(rank, round, e) + (feeds_back ? residuals[rank][e] : 0);
    const bool is_stride = strncmp(codec, "stride", 6) == 0;
    const float result = is_stride ? ((e + round) % 3 == 0 ? wanted : 0) : upper_of(wanted);
    residuals[rank][e] = wanted - result;
    return result;
}

static void sum_round(const char *codec, uint32_t round)
{
    const bool feeds_back = strstr(codec, "ef=") != NULL;
    for (uint32_t e = 0; e < COUNT; e++) {
        const float pair = sent(codec, feeds_back, 0, round, e) + sent(codec, feeds_back, 1, round, e);
        sums[e] = pair + sent(codec, feeds_back, 2, round, e);
        sums[e] = strstr(codec, "two_way") != NULL ? upper_of(sums[e]) : sums[e];
    }
}

static void sum_in(const party *self, const char *codec)
{
    memset(residuals, 0, sizeof residuals);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        trib_op *ops[WORKERS];
        submit_round(self, codec, round, ops);
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        sum_round(codec, round);
        compare(codec, round);
    }
}

static void sums_are_exact(int servers, job_tweak tweak)
{
    enum { CHUNKS = (COUNT * sizeof(float) + CHUNK - 1) / CHUNK };
    party self;
    job_open(&self.jobs, WORKERS, servers, tweak);
    party_all_workers(&self);
    sum_in(&self, "stride,k=3");
    sum_in(&self, "stride,k=3,ef=vanilla");
    const unsigned long long before = own_codecs_added();
    sum_in(&self, "upper");
    sum_in(&self, "upper,ef=vanilla,two_way");
    /* Of ranks 0 and 1 the later one finds the other's chunk there. */
    assert_true(own_codecs_added() - before >= 2ull * ROUNDS * CHUNKS);
    job_close(&self.jobs);
}

static void colocated_servers_sum_in_it(void **state)
{
    (void)state;
    sums_are_exact(0, with_codecs);
}

static void dedicated_servers_sum_in_it(void **state)
{
    (void)state;
    sums_are_exact(2, dedicated_with_codecs);
}

/* Each partition's chunks come in order, from 0 on. */
static void its_state_is_kept_by_partition(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, WORKERS, 0, with_codecs);
    party_all_workers(&self);
    for (uint32_t round = 0; round < 3; round++) {
        trib_op *ops[WORKERS];
        submit_round(&self, "counted", round, ops);
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        const uint32_t step = CHUNK / sizeof(float);
        const float chunks = outputs[0][step] / WORKERS; /* the count before a partition's second chunk, or first */
        assert_true(outputs[0][0] == (float)WORKERS * (chunks - 1) || outputs[0][0] == (float)WORKERS * chunks);
        assert_true(round > 0 || outputs[0][0] == 0);
        assert_true(round == 0 || outputs[0][0] >= (float)(WORKERS * round));
    }
    job_close(&self.jobs);
}

/* Tensors of one name draw apart, and workers alike, whatever part of the name each says that its program knows. */
static void draws_are_of_whole_names(void **state)
{
    (void)state;
    static float drawn[2][COUNT];
    party self;
    job_open(&self.jobs, WORKERS, 0, party_small_pieces);
    party_all_workers(&self);
    for (uint32_t k = 0; k < 2; k++) {
        trib_op *ops[WORKERS];
        for (uint32_t i = 0; i < WORKERS; i++) {
            for (uint32_t e = 0; e < COUNT; e++) {
                inputs[i][e] = 1;
            }
            const trib_tensor_desc desc = {.name = k == 0 ? "g#1" : "g#2",
                                           .name_length = i,
                                           .dtype = TRIB_FLOAT32,
                                           .count = COUNT,
                                           .codec = "randomk,k=0.1"};
            ops[i] = party_submit(
                &self, i, trib_all_reduce,
                (trib_op_params){.tensor = party_declare(&self, i, desc), .input = inputs[i], .output = outputs[i]});
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            party_succeeds(ops[i]);
        }
        memcpy(drawn[k], outputs[0], sizeof drawn[k]);
        float most = 0;
        for (uint32_t e = 0; e < COUNT; e++) {
            assert_true(most == 0 || drawn[k][e] == 0 || drawn[k][e] == most);
            most = drawn[k][e] > most ? drawn[k][e] : most;
        }
        assert_true(most > 0);
    }
    assert_true(memcmp(drawn[0], drawn[1], sizeof drawn[0]) != 0);
    job_close(&self.jobs);
}

/* ---- Failures ---- */

/* The second of three rounds fails on rank 1. With feedback all its elements are in later sums, those of the other
 * workers too: the sums of all rounds are those of all elements, and a few rounds of zeros bring what was left over. */
static void fail_second(int kind, const char *words)
{
    static const char codec[] = "upper,ef=vanilla";
    static float total[COUNT];
    party self;
    job_open(&self.jobs, WORKERS, 0, with_codecs);
    party_all_workers(&self);
    memset(total, 0, sizeof total);
    for (uint32_t round = 1; round <= 8; round++) {
        trib_op *ops[WORKERS];
        own_codecs_fail(round == 2 ? kind : WELL, 1);
        submit_round(&self, codec, round <= 3 ? round : 0, ops);
        for (uint32_t i = 0; i < WORKERS; i++) {
            if (round == 2) {
                party_fails_with(ops[i], i == 1 ? TRIB_INVALID : TRIB_CANCELLED, words, i == 1 ? codec : "rank 1");
            } else {
                party_succeeds(ops[i]);
            }
        }
        for (uint32_t e = 0; e < COUNT; e++) {
            total[e] += round == 2 ? 0 : outputs[0][e];
        }
    }
    for (uint32_t e = 0; e < COUNT; e++) {
        float wanted = 0;
        for (uint32_t i = 0; i < WORKERS; i++) {
            wanted += value(i, 1, e) + value(i, 2, e) + value(i, 3, e);
        }
        if (total[e] < wanted || total[e] > wanted) {
            fail_msg("element %u: %g instead of %g", e, (double)total[e], (double)wanted);
        }
    }
    job_close(&self.jobs);
}

static void encode_that_fails_fails_the_operation(void **state)
{
    (void)state;
    fail_second(ENCODE_FAILS, "codec upper failed on a chunk of");
}

static void too_many_bytes_fail_the_operation(void **state)
{
    (void)state;
    fail_second(TOO_MANY_BYTES, "and its bound says");
}

/* Sums that cannot be encoded come back as they are. */
static void sums_that_cannot_be_encoded(void **state)
{
    (void)state;
    party self;
    trib_op *ops[WORKERS];
    job_open(&self.jobs, WORKERS, 0, with_codecs);
    party_all_workers(&self);
    own_codecs_fail(ENCODE_FAILS, UINT32_MAX);
    submit_round(&self, "upper,two_way", 1, ops);
    for (uint32_t i = 0; i < WORKERS; i++) {
        party_succeeds(ops[i]);
    }
    own_codecs_fail(WELL, 0);
    sum_round("upper", 1);
    compare("upper", 1);
    job_close(&self.jobs);
}

static void bytes_that_decode_refuses_end_the_job(void **state)
{
    (void)state;
    party self;
    trib_op *ops[WORKERS];
    trib_error error = {.text = ""};
    job_open(&self.jobs, WORKERS, 0, with_codecs);
    party_all_workers(&self);
    submit_round(&self, "upper", 1, ops);
    for (uint32_t i = 0; i < WORKERS; i++) {
        party_succeeds(ops[i]);
    }
    own_codecs_fail(DECODE_FAILS, 0);
    self.count = 1;
    submit_round(&self, "upper", 2, ops);
    assert_int_equal(job_wait(ops[0], &error), TRIB_PEER_LOST);
    if (strstr(error.text, "upper has bytes that its decode refuses") == NULL) {
        fail_msg("unexpected: %s", error.text);
    }
    own_codecs_fail(WELL, 0);
    job_close(&self.jobs);
}

/* ---- Members that differ ---- */

static void one_server_lacks_it(trib_config *config, int member)
{
    dedicated_with_codecs(config, member);
    config->codec_count = member == WORKERS + 1 ? 1 : config->codec_count;
}

static void a_server_that_lacks_it_is_named(void **state)
{
    (void)state;
    party self;
    trib_op *ops[WORKERS];
    job_open(&self.jobs, WORKERS, 2, one_server_lacks_it);
    party_all_workers(&self);
    submit_round(&self, "upper", 1, ops);
    for (uint32_t i = 0; i < WORKERS; i++) {
        party_fails_with(ops[i], TRIB_UNSUPPORTED, "codec \"upper\" is unknown to server 1", "TRIB_CODEC_LIBRARY");
    }
    sum_in(&self, "stride,k=3"); /* which all have */
    job_close(&self.jobs);
}

static void another_version(trib_config *config, int member)
{
    static trib_codec_desc other;
    dedicated_with_codecs(config, member);
    other = own_codecs[STRIDE];
    other.version = 8;
    if (member == 1) {
        config->codecs = &other;
        config->codec_count = 1;
    }
}

static void members_with_other_versions_are_told(void **state)
{
    (void)state;
    party self;
    trib_op *ops[WORKERS] = {NULL};
    job_open(&self.jobs, WORKERS, 1, another_version);
    party_all_workers(&self);
    submit_round(&self, "stride,k=3", 1, ops);
    for (uint32_t i = 0; i < WORKERS; i++) {
        party_fails_with(ops[i], TRIB_MISMATCH, "with codec \"stride,version=8,k=3\"", "\"stride,version=7,k=3\"");
    }
    job_close(&self.jobs);
}

static void declaring_fails(trib_engine *engine, const char *codec, const char *words)
{
    trib_tensor_desc desc;
    trib_tensor *tensor = NULL;
    trib_error error = {.text = ""};
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "refused";
    desc.count = 100;
    desc.codec = codec;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), TRIB_INVALID);
    if (strstr(error.text, words) == NULL || strstr(error.text, "refused") == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
}

static void texts_that_it_cannot_have_are_refused(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, with_codecs);
    declaring_fails(jobs.engines[0], "stride", "needs k above 1");
    declaring_fails(jobs.engines[0], "stride,k=3,version=6", "this process has version 7 of it, not 6");
    declaring_fails(jobs.engines[0], "stride,k=3,scaling=true", "codec stride has no parameter 'scaling'");
    declaring_fails(jobs.engines[0], "counted,two_way", "no parameter 'two_way'");
    declaring_fails(jobs.engines[0], "striding", "dithering, uniform, stride, upper, counted, auto, none");
    job_close(&jobs);
}

static void creating_fails(trib_codec_desc desc, const char *words)
{
    trib_config config;
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    const trib_codec_desc both[] = {own_codecs[STRIDE], desc};
    trib_config_init(&config, sizeof config);
    config.codecs = both;
    config.codec_count = 2;
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_INVALID);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
}

static void descriptions_that_cannot_be_are_refused(void **state)
{
    (void)state;
    trib_codec_desc desc = own_codecs[UPPER];
    creating_fails(own_codecs[STRIDE], "'stride' of the program: that name is taken");
    desc.name = "onebit";
    creating_fails(desc, "that name is taken");
    desc.name = "a=b";
    creating_fails(desc, "letters, digits");
    desc.name = "much_longer_than_a_name_of_codecs";
    creating_fails(desc, "letters, digits");
    desc = own_codecs[UPPER];
    desc.decode = NULL;
    creating_fails(desc, "it lacks bound, encode or decode");
    desc = own_codecs[UPPER];
    desc.state_bytes = TRIB_CODEC_STATE_MAX + 1;
    creating_fails(desc, "state_bytes");
    desc = own_codecs[UPPER];
    desc.struct_size = 8;
    creating_fails(desc, "trib_codec_desc_init");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_servers_sum_in_it),
        cmocka_unit_test(dedicated_servers_sum_in_it),
        cmocka_unit_test(its_state_is_kept_by_partition),
        cmocka_unit_test(draws_are_of_whole_names),
        cmocka_unit_test(encode_that_fails_fails_the_operation),
        cmocka_unit_test(too_many_bytes_fail_the_operation),
        cmocka_unit_test(sums_that_cannot_be_encoded),
        cmocka_unit_test(bytes_that_decode_refuses_end_the_job),
        cmocka_unit_test(a_server_that_lacks_it_is_named),
        cmocka_unit_test(members_with_other_versions_are_told),
        cmocka_unit_test(texts_that_it_cannot_have_are_refused),
        cmocka_unit_test(descriptions_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
