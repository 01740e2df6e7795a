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
    codec_oracle_run_all(&self, TRIB_TENSOR_DEVICE, (uint32_t)on_one);
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

static trib_device_ops counting;
static atomic_uint decodes, residuals, forgotten, full_lines;

static void count_and_submit(trib_device *device, trib_device_job *one)
{
    void **kept = one->kind == TRIB_DEVICE_ENCODE ? one->encoding->kept : NULL;
    atomic_fetch_add(&decodes, one->kind == TRIB_DEVICE_DECODE);
    atomic_fetch_add(&residuals, kept != NULL && *kept == NULL);
    trib_device_host_ops.submit(device, one);
}

static void count_and_forget(trib_device *device, void *kept)
{
    atomic_fetch_add(&forgotten, 1);
    trib_device_host_ops.forget(device, kept);
}

static void count_jobs(void)
{
    counting = trib_device_host_ops;
    counting.submit = count_and_submit;
    counting.forget = count_and_forget;
    atomic_store(&decodes, 0);
    atomic_store(&residuals, 0);
    atomic_store(&forgotten, 0);
    watched = &counting;
}

/* Each of them encodes its own, though two share a machine. What devices have kept is forgotten with the tensors. */
static void devices_of_a_group(void **state)
{
    (void)state;
    static const int32_t ranks[] = {3, 0, 2};
    party self;
    count_jobs();
    open_job(&self.jobs, 4, 0, 2, in_pieces);
    watched = NULL;
    party_make_group(&self, "three of four", ranks, 3);
    codec_oracle_run_all(&self, TRIB_TENSOR_DEVICE, 1);
    close_job(&self.jobs);
    assert_true(atomic_load(&residuals) > 0);
    assert_int_equal(atomic_load(&forgotten), atomic_load(&residuals));
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
    count_jobs();
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

/* The bytes of a contribution. */
typedef struct sent {
    unsigned char encoded[4 * FEW + 64];
    uint32_t bytes;
} sent;

static const char feedback[] = "onebit,ef=vanilla";

static void begin(kept *self)
{
    *self = (kept){.config = {.codec = NULL}};
    assert_int_equal(trib_codec_parse(feedback, &self->config, NULL), TRIB_OK);
}

static sent encode(kept *self, uint32_t rank, uint32_t round, const float *elements)
{
    sent one;
    const trib_codec_memory memory = {.residual = self->residual, .scratch = self->scratch};
    const trib_codec_place place = {.round = round, .partition_count = FEW, .rank = rank};
    one.bytes = trib_codec_encode(&self->config, &memory, &place, TRIB_FLOAT32, elements, FEW, one.encoded);
    assert_int_equal(self->config.codec->decode(&self->config.params, TRIB_FLOAT32, one.encoded, one.bytes,
                                                self->decoded, FEW, NULL),
                     TRIB_OK);
    return one;
}

static void take_back(kept *self, const sent *one)
{
    const trib_codec_memory memory = {.residual = self->residual, .scratch = self->scratch};
    trib_codec_take_back(&self->config, &memory, TRIB_FLOAT32, one->encoded, one->bytes, FEW);
}

static trib_op *sum(const party *self, uint32_t i, float *data, uint64_t step)
{
    const trib_tensor_desc desc = {
        .name = "t", .dtype = TRIB_FLOAT32, .count = FEW, .codec = feedback, .flags = TRIB_TENSOR_DEVICE};
    const trib_op_params params = {.tensor = party_declare(self, i, desc), .input = data, .output = data, .step = step};
    return party_submit(self, i, trib_all_reduce, params);
}

static void fill(float *data, uint32_t rank, uint32_t round)
{
    for (uint32_t e = 0; e < FEW; e++) {
        data[e] = codec_oracle_value(rank, round, e);
    }
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
    begin(&workers[0]);
    begin(&workers[1]);
    for (uint32_t round = 1; round <= 2; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            fill(data[i], i, round);
            const sent one = encode(&workers[i], i, round, data[i]);
            if (round == 1) {
                take_back(&workers[i], &one);
            }
            ops[i] = sum(&self, i, data[i], round == 1 ? i : 5);
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

/* The next job that encodes does not begin before it is let go. */
static atomic_bool holds;
static _Atomic(trib_device_job *) held;
static trib_device *held_by;

static void hold_and_submit(trib_device *device, trib_device_job *one)
{
    if (one->kind == TRIB_DEVICE_ENCODE && atomic_exchange(&holds, false)) {
        held_by = device;
        atomic_store(&held, one);
        return;
    }
    trib_device_host_ops.submit(device, one);
}

/* One reactor, and chunks that travel in the order of the frames before them (link_priority.h). */
static void in_one_order(trib_config *config, int member)
{
    on_devices(config, member);
    config->reactors = 1;
    config->colocate = TRIB_COLOCATE_OFF;
}

static void await_sum(trib_engine *engine)
{
    trib_waiting entry = {.stage = ""};
    for (size_t count = 0; count == 0 || strcmp(entry.stage, "PULL") != 0;) {
        assert_int_equal(trib_engine_waiting(engine, &entry, 1, &count), TRIB_OK);
    }
}

static void cancel(trib_op *op)
{
    trib_op_cancel(op);
    assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
}

/* Both workers have what the server has sent before. */
static void exchange_another(const party *self)
{
    enum { MANY = 16384 };
    static float data[2][MANY];
    trib_op *ops[2];
    for (uint32_t i = 0; i < 2; i++) {
        trib_tensor *tensor = job_declare(party_engine_of(self, i), "another", TRIB_FLOAT32, MANY);
        ops[i] = job_push_pull(party_engine_of(self, i), tensor, data[i], data[i], TRIB_SUM);
    }
    party_succeeds(ops[0]);
    party_succeeds(ops[1]);
}

/* Worker 1 has nothing but zeros to give, so that the sum is what worker 0 has sent. */
static void sums_to(const party *self, trib_op *first, const float *data, const kept *model)
{
    float nothing[FEW] = {0};
    party_succeeds(sum(self, 1, nothing, 5));
    party_succeeds(first);
    assert_memory_equal(data, model->decoded, sizeof model->decoded);
    assert_memory_equal(nothing, model->decoded, sizeof model->decoded);
}

/* Worker 0 gives a round up after all of it was sent. Its owner refuses it while the device encodes the next round. */
static void a_refusal_during_a_job_is_not_lost(void **state)
{
    (void)state;
    party self;
    static float data[FEW], nothing[FEW];
    kept model;
    counting = trib_device_host_ops;
    counting.submit = hold_and_submit;
    watched = &counting;
    atomic_store(&holds, false);
    open_job(&self.jobs, 2, 1, 1, in_one_order);
    watched = NULL;
    party_all_workers(&self);
    begin(&model);
    fill(data, 0, 1);
    const sent refused = encode(&model, 0, 1, data);
    trib_op *op = sum(&self, 0, data, 0);
    await_sum(party_engine_of(&self, 0));
    cancel(op);
    atomic_store(&held, NULL);
    atomic_store(&holds, true);
    fill(data, 0, 2);
    (void)encode(&model, 0, 2, data);
    op = sum(&self, 0, data, 5);
    while (atomic_load(&held) == NULL) {}
    party_fails_with(sum(&self, 1, nothing, 1), TRIB_MISMATCH, "at step 0", "at step 1");
    exchange_another(&self);
    trib_device_host_ops.submit(held_by, atomic_load(&held));
    sums_to(&self, op, data, &model);
    take_back(&model, &refused);
    fill(data, 0, 3);
    (void)encode(&model, 0, 3, data);
    sums_to(&self, sum(&self, 0, data, 5), data, &model);
    close_job(&self.jobs);
}

/* Worker 0's device is full at the first round, so processors keep the residual from then on. A later round that is
 * cancelled before its turn has not come to the host: what lies there is of the round before. */
static void a_cancelled_round_leaves_the_residual_as_it_is(void **state)
{
    (void)state;
    party self;
    static float data[FEW], late[FEW], nothing[FEW];
    kept model;
    count_jobs();
    open_job(&self.jobs, 2, 0, 1, in_pieces);
    watched = NULL;
    party_all_workers(&self);
    begin(&model);
    trib_host_world_fault(world, 0, 0, TRIB_HOST_FAULT_FULL);
    fill(data, 0, 1);
    (void)encode(&model, 0, 1, data);
    sums_to(&self, sum(&self, 0, data, 5), data, &model);
    assert_int_equal(atomic_load(&residuals), 2); /* wanted */
    trib_host_world_fault(world, 0, 0, TRIB_HOST_FAULT_NONE);
    fill(data, 0, 2);
    (void)encode(&model, 0, 2, data);
    trib_op *op = sum(&self, 0, data, 5);
    await_sum(party_engine_of(&self, 0));
    fill(late, 0, 3);
    cancel(sum(&self, 0, late, 5));
    sums_to(&self, op, data, &model);
    assert_int_not_equal(job_wait(sum(&self, 1, nothing, 5), NULL), TRIB_OK);
    fill(data, 0, 4);
    (void)encode(&model, 0, 4, data);
    sums_to(&self, sum(&self, 0, data, 5), data, &model);
    close_job(&self.jobs);
    assert_int_equal(atomic_load(&residuals), 2);
    assert_int_equal(atomic_load(&forgotten), 1);
}

static void take_back_and_submit(trib_device *device, trib_device_job *one)
{
    one->took_back = one->kind == TRIB_DEVICE_ENCODE && one->encoding->returned != NULL;
    trib_device_host_ops.submit(device, one);
}

/* A job fails when it has taken back what was refused, so the next one must not take it back again. The host's device
 * fails before that, and so the residual never gets it here. */
static void nothing_is_taken_back_twice(void **state)
{
    (void)state;
    party self;
    static float data[FEW], nothing[FEW];
    kept model;
    counting = trib_device_host_ops;
    counting.submit = take_back_and_submit;
    watched = &counting;
    open_job(&self.jobs, 2, 0, 1, in_pieces);
    watched = NULL;
    party_all_workers(&self);
    begin(&model);
    fill(data, 0, 1);
    (void)encode(&model, 0, 1, data);
    trib_op *op = sum(&self, 0, data, 0);
    party_fails_with(sum(&self, 1, nothing, 1), TRIB_MISMATCH, "at step 0", "at step 1");
    party_fails_with(op, TRIB_MISMATCH, "at step 0", "at step 1");
    trib_host_world_fault(world, 0, 0, TRIB_HOST_FAULT_FAIL);
    party_fails_with(sum(&self, 0, data, 5), TRIB_SYSTEM, "COPYD2H", "the device failed");
    trib_host_world_fault(world, 0, 0, TRIB_HOST_FAULT_NONE);
    assert_int_not_equal(job_wait(sum(&self, 1, nothing, 5), NULL), TRIB_OK);
    fill(data, 0, 3);
    (void)encode(&model, 0, 3, data);
    sums_to(&self, sum(&self, 0, data, 5), data, &model);
    close_job(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_a_machine),
        cmocka_unit_test(devices_of_a_machine_sum_first),
        cmocka_unit_test(devices_of_a_group),
        cmocka_unit_test(a_full_device_uses_processors),
        cmocka_unit_test(one_machine_sums_exactly),
        cmocka_unit_test(a_refused_contribution_is_not_lost),
        cmocka_unit_test(a_refusal_during_a_job_is_not_lost),
        cmocka_unit_test(a_cancelled_round_leaves_the_residual_as_it_is),
        cmocka_unit_test(nothing_is_taken_back_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
