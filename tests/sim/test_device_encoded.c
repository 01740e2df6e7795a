/*
 * test_device_encoded.c - tensors with codecs in a job that goes on without a worker: on devices the results are those
 * of the host, bit by bit. What devices and processors have kept of rounds before is forgotten with the epoch.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_devices.h"

enum { WORKERS = 3, COUNT = 5000, OPS = 8, CUT = 3 }; /* operation CUT is under way when the epoch ends */

typedef struct way {
    const char *codec;
    trib_survive survive;
    bool in_place;
} way;

typedef struct bed {
    sim_job *job;
    sim_devices devices;
    const way *how;
    bool on_devices;
    float *data[WORKERS][OPS], *sums[WORKERS][OPS];
    exchange done[WORKERS][OPS];
    uint32_t advanced;
} bed;

static float value(uint32_t rank, uint32_t op, uint32_t i)
{
    return (float)((rank * 131071u + op * 8191u + i * 2654435761u) % 2003u) / 7.0f - 143.0f;
}

static void hand_in(bed *self, uint32_t op, uint32_t workers)
{
    for (uint32_t rank = 0; rank < workers; rank++) {
        trib_engine *engine = self->job->members[rank].engine;
        trib_error error = {.status = TRIB_OK};
        trib_tensor_desc desc;
        trib_op_params params;
        trib_tensor_desc_init(&desc, sizeof desc);
        trib_op_params_init(&params, sizeof params);
        desc.name = "encoded";
        desc.dtype = TRIB_FLOAT32;
        desc.count = COUNT;
        desc.codec = self->how->codec;
        desc.flags = self->on_devices ? TRIB_TENSOR_DEVICE : 0;
        assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
        float *data = calloc(COUNT, sizeof *data);
        for (uint32_t i = 0; i < COUNT; i++) {
            data[i] = value(rank, op, i);
        }
        self->data[rank][op] = data;
        self->sums[rank][op] = self->how->in_place ? data : calloc(COUNT, sizeof *data);
        params.input = sim_devices_address(&self->devices, data);
        params.output = sim_devices_address(&self->devices, self->sums[rank][op]);
        params.done_cb = sim_bed_on_done;
        params.user = &self->done[rank][op];
        assert_int_equal(trib_push_pull(engine, &params, NULL, &error), TRIB_OK);
    }
}

static bool are_done(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool done = true;
    for (uint32_t i = 0; i < WORKERS * OPS; i++) {
        const bool counts = self->data[i / OPS][i % OPS] != NULL && !job->members[i / OPS].killed;
        done = done && (!counts || self->done[i / OPS][i % OPS].done == 1);
    }
    return done;
}

static void await_all(bed *self)
{
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, are_done, self));
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    assert_int_equal(now->status, TRIB_OK);
    ++*(uint32_t *)user;
}

static bool have_advanced(sim_job *job, void *argument)
{
    (void)job;
    return ((const bed *)argument)->advanced == WORKERS - 1;
}

static void run(bed *self, const way *how, bool on_devices)
{
    *self = (bed){.how = how, .on_devices = on_devices};
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = how->survive;
    config.engine.sum_order = TRIB_ORDER_RANK;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 8192;
    config.engine.peer_timeout_ns = 4 * SECOND;
    if (on_devices) {
        sim_devices_open(&self->devices, &config, 1);
    }
    self->job = sim_bed_open(&config);
    sim_devices_attach(&self->devices, self->job);
    for (uint32_t op = 0; op < CUT; op++) {
        hand_in(self, op, WORKERS);
        await_all(self);
    }
    hand_in(self, CUT, WORKERS - 1);
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND / 20, NULL, NULL);
    sim_job_kill(self->job, WORKERS - 1);
    await_all(self);
    const bool goes_on = how->survive == TRIB_SURVIVE_CONTINUE;
    for (uint32_t rank = 0; rank < WORKERS - 1; rank++) {
        assert_int_equal(self->done[rank][CUT].status, goes_on ? TRIB_OK : TRIB_EPOCH_CHANGED);
        trib_engine *engine = self->job->members[rank].engine;
        assert_true(goes_on || trib_membership_advance(engine, on_advanced, &self->advanced, NULL) == TRIB_OK);
    }
    assert_true(goes_on || sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, have_advanced, self));
    for (uint32_t op = CUT + 1; op < OPS; op++) {
        hand_in(self, op, WORKERS - 1);
        await_all(self);
    }
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    if (on_devices) {
        sim_devices_close(&self->devices);
    }
}

static void free_data(bed *self)
{
    for (uint32_t i = 0; i < WORKERS * OPS; i++) {
        free(self->how->in_place ? NULL : self->sums[i / OPS][i % OPS]);
        free(self->data[i / OPS][i % OPS]);
    }
}

static void results_are_the_hosts(void **state)
{
    (void)state;
    static const char *const codecs[] = {"onebit,ef=vanilla", "topk,ratio=0.05,ef=vanilla,two_way", "fp8_e4m3,two_way"};
    for (uint32_t kind = 0; kind < 12; kind++) {
        const way how = {.codec = codecs[kind / 4],
                         .survive = (kind & 1) != 0 ? TRIB_SURVIVE_CONTINUE : TRIB_SURVIVE_WORKERS,
                         .in_place = (kind & 2) != 0};
        bed host, device;
        memset(sim_devices_jobs, 0, sizeof sim_devices_jobs);
        run(&host, &how, false);
        run(&device, &how, true);
        for (uint32_t op = 0; op < OPS; op++) {
            const bool has_result = op != CUT || how.survive == TRIB_SURVIVE_CONTINUE;
            for (uint32_t rank = 0; rank < WORKERS - 1; rank++) {
                assert_int_equal(host.done[rank][op].status, device.done[rank][op].status);
                if (has_result && memcmp(host.sums[rank][op], device.sums[rank][op], COUNT * sizeof(float)) != 0) {
                    fail_msg("kind %u, operation %u, rank %u: not the host's bits", kind, op, rank);
                }
            }
        }
        assert_true(sim_devices_jobs[TRIB_DEVICE_ENCODE] > 0 || how.survive == TRIB_SURVIVE_CONTINUE);
        free_data(&host);
        free_data(&device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_are_the_hosts)};
    return cmocka_run_group_tests_name("encoded on devices, in two epochs", tests, NULL, NULL);
}
