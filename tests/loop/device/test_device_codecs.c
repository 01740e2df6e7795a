/* test_device_codecs.c - tensors on devices in each codec: one device a machine, several that sum first, and those of a
 * group; what failed on a device; and what one machine alone does with a codec. */
#include <stdatomic.h>

#include "engine/codec/codec.h"
#include "tests/loop/codec_oracle.h"
#include "tests/loop/device/device_wrap.h"

enum { FEW = 64 };

static void in_pieces(trib_config *config, int member)
{
    on_devices(config, member);
    party_small_pieces(config, member);
}

static void in_pieces_served(trib_config *config, int member)
{
    in_pieces(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

static void every_codec(int workers, int servers, int on_one)
{
    party self;
    open_job(&self.jobs, workers, servers, on_one, servers > 0 ? in_pieces_served : in_pieces);
    party_all_workers(&self);
    for (size_t i = 0; codec_oracle_texts[i] != NULL; i++) {
        codec_oracle_run(&self, codec_oracle_texts[i], TRIB_TENSOR_DEVICE, (uint32_t)on_one);
    }
    close_job(&self.jobs);
}

static void one_device_a_machine(void **state)
{
    (void)state;
    every_codec(3, 0, 1);
    every_codec(2, 1, 1);
}

static void devices_of_a_machine_sum_first(void **state)
{
    (void)state;
    every_codec(4, 0, 2);
}

/* Each of them encodes its own, though two share a machine. */
static void devices_of_a_group(void **state)
{
    (void)state;
    static const int32_t ranks[] = {3, 0, 2};
    party self;
    open_job(&self.jobs, 4, 0, 2, in_pieces);
    party_make_group(&self, "three of four", ranks, 3);
    for (size_t i = 0; codec_oracle_texts[i] != NULL; i++) {
        codec_oracle_run(&self, codec_oracle_texts[i], TRIB_TENSOR_DEVICE, 1);
    }
    close_job(&self.jobs);
}

static trib_device_ops counting;
static atomic_uint decodes, full_lines;

static void count_and_submit(trib_device *device, trib_device_job *one)
{
    atomic_fetch_add(&decodes, one->kind == TRIB_DEVICE_DECODE);
    trib_device_host_ops.submit(device, one);
}

static void count_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    atomic_fetch_add(&full_lines, strstr(line, "no memory left to encode and decode in") != NULL);
}

static void counted(trib_config *config, int member)
{
    in_pieces(config, member);
    config->log_level = TRIB_LOG_WARN;
    config->log_cb = count_line;
}

/* Sums that come back encoded are decoded by the device. One whose memory is full leaves that and encoding to
 * processors, and says so once; the results are the same. */
static void a_full_device_uses_processors(void **state)
{
    (void)state;
    party self;
    counting = trib_device_host_ops;
    counting.submit = count_and_submit;
    watched = &counting;
    atomic_store(&decodes, 0);
    atomic_store(&full_lines, 0);
    open_job(&self.jobs, 2, 0, 1, counted);
    watched = NULL;
    party_all_workers(&self);
    codec_oracle_run(&self, "fp16", TRIB_TENSOR_DEVICE, 1);
    assert_int_equal(atomic_load(&decodes), 0);
    codec_oracle_run(&self, "bf16,two_way", TRIB_TENSOR_DEVICE, 1);
    assert_true(atomic_load(&decodes) > 0);
    trib_host_world_fault(world, 0, 0, TRIB_HOST_FAULT_FULL);
    assert_int_equal(atomic_load(&full_lines), 0);
    codec_oracle_run(&self, "int8,two_way", TRIB_TENSOR_DEVICE, 1);
    codec_oracle_run(&self, "fp8_e4m3,two_way", TRIB_TENSOR_DEVICE, 1);
    assert_int_equal(atomic_load(&full_lines), 1);
    close_job(&self.jobs);
}

/* Its devices sum among themselves, so that nothing is encoded and nothing lost. */
static void one_machine_sums_exactly(void **state)
{
    (void)state;
    party self;
    static float data[2][FEW];
    trib_op *ops[2];
    open_job(&self.jobs, 2, 0, 2, in_pieces);
    party_all_workers(&self);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t e = 0; e < FEW; e++) {
            data[i][e] = codec_oracle_value(i, 1, e);
        }
        const trib_tensor_desc desc = {
            .name = "t", .dtype = TRIB_FLOAT32, .count = FEW, .codec = "onebit", .flags = TRIB_TENSOR_DEVICE};
        ops[i] = party_submit(
            &self, i, trib_all_reduce,
            (trib_op_params){.tensor = party_declare(&self, i, desc), .input = data[i], .output = data[i]});
    }
    for (uint32_t i = 0; i < 2; i++) {
        party_succeeds(ops[i]);
    }
    for (uint32_t e = 0; e < FEW; e++) {
        const float sum = codec_oracle_value(0, 1, e) + codec_oracle_value(1, 1, e);
        assert_memory_equal(&data[0][e], &sum, sizeof sum);
        assert_memory_equal(&data[1][e], &sum, sizeof sum);
    }
    close_job(&self.jobs);
}

/* The feedback of one worker, as the engine must keep it. */
typedef struct kept {
    trib_codec_config config;
    float residual[FEW], scratch[FEW], decoded[FEW];
} kept;

static void encode(kept *self, uint32_t rank, uint32_t round, const float *elements, bool is_summed)
{
    unsigned char encoded[4 * FEW + 64];
    const trib_codec_memory memory = {.residual = self->residual, .scratch = self->scratch};
    const trib_codec_place place = {.round = round, .partition_count = FEW, .rank = rank};
    const uint32_t bytes = trib_codec_encode(&self->config, &memory, &place, TRIB_FLOAT32, elements, FEW, encoded);
    if (!is_summed) {
        trib_codec_take_back(&self->config, &memory, TRIB_FLOAT32, encoded, bytes, FEW);
    }
    assert_int_equal(
        self->config.codec->decode(&self->config.params, TRIB_FLOAT32, encoded, bytes, self->decoded, FEW, NULL),
        TRIB_OK);
}

/* The workers disagree about the step of the first round, which is refused. Its gradients come with the next one. The
 * bytes on the device are other ones by then. */
static void a_refused_contribution_is_not_lost(void **state)
{
    (void)state;
    party self;
    static float data[2][FEW], expected[FEW];
    kept workers[2];
    trib_op *ops[2];
    open_job(&self.jobs, 2, 0, 1, in_pieces);
    party_all_workers(&self);
    for (uint32_t i = 0; i < 2; i++) {
        workers[i] = (kept){.config = {.codec = NULL}};
        assert_int_equal(trib_codec_parse("onebit,ef=vanilla", &workers[i].config, NULL), TRIB_OK);
    }
    for (uint32_t round = 1; round <= 2; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            const trib_tensor_desc desc = {.name = "t",
                                           .dtype = TRIB_FLOAT32,
                                           .count = FEW,
                                           .codec = "onebit,ef=vanilla",
                                           .flags = TRIB_TENSOR_DEVICE};
            for (uint32_t e = 0; e < FEW; e++) {
                data[i][e] = codec_oracle_value(i, round, e);
            }
            encode(&workers[i], i, round, data[i], round == 2);
            trib_op_params params = {.tensor = party_declare(&self, i, desc),
                                     .input = data[i],
                                     .output = data[i],
                                     .step = round == 1 ? i : 5};
            ops[i] = party_submit(&self, i, trib_all_reduce, params);
        }
        for (uint32_t i = 0; i < 2; i++) {
            if (round == 1) {
                party_fails_with(ops[i], TRIB_MISMATCH, "at step 0", "at step 1");
            } else {
                party_succeeds(ops[i]);
            }
        }
    }
    for (uint32_t e = 0; e < FEW; e++) {
        expected[e] = workers[0].decoded[e] + workers[1].decoded[e];
    }
    assert_memory_equal(data[0], expected, sizeof expected);
    assert_memory_equal(data[1], expected, sizeof expected);
    close_job(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_a_machine),     cmocka_unit_test(devices_of_a_machine_sum_first),
        cmocka_unit_test(devices_of_a_group),       cmocka_unit_test(a_full_device_uses_processors),
        cmocka_unit_test(one_machine_sums_exactly), cmocka_unit_test(a_refused_contribution_is_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
