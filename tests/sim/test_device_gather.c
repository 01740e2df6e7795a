/*
 * test_device_gather.c - gathers on devices, in place, in a job whose operations go on (TRIB_SURVIVE=continue). A
 * worker's slice lies where it belongs among all, which is another place when a worker before it is lost.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_devices.h"

enum { WORKERS = 4, COUNT_MAX = 40000, LOST = 1, TIMES = 60 };

typedef struct bed {
    sim_job *job;
    sim_devices devices;
    trib_host_stream *late;
    int32_t *data[WORKERS];
    trib_op *ops[WORKERS];
    exchange done[WORKERS];
} bed;

static uint32_t count_of(uint32_t rank)
{
    return 5000 + 700 * rank;
}

static int32_t value(uint32_t rank, uint32_t i)
{
    return (int32_t)(rank * 1000003 + i);
}

/* Elements before the rank's slice; without the lost worker's. */
static uint32_t before(uint32_t rank, bool all)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rank; i++) {
        count += all || i != LOST ? count_of(i) : 0;
    }
    return count;
}

static void begin(bed *self, uint32_t rank, trib_host_stream *stream)
{
    trib_engine *engine = self->job->members[rank].engine;
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_op_params params;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = "slices";
    desc.dtype = TRIB_INT32;
    desc.layout = TRIB_SLICES;
    desc.count = count_of(rank);
    desc.flags = TRIB_TENSOR_DEVICE;
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
    int32_t *data = self->data[rank] = calloc(COUNT_MAX, sizeof *data);
    for (uint32_t i = 0; i < count_of(rank); i++) {
        data[before(rank, true) + i] = value(rank, i);
    }
    params.input = sim_devices_address(&self->devices, data + before(rank, true));
    params.output = sim_devices_address(&self->devices, data);
    params.output_bytes = COUNT_MAX * sizeof *data;
    params.stream = stream;
    params.done_cb = sim_bed_on_done;
    params.user = &self->done[rank];
    if (trib_all_gather(engine, &params, &self->ops[rank], &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static bool are_done(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool done = true;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        done = done && (job->members[rank].killed || self->done[rank].done > 0);
    }
    return done;
}

/* Returns whether the lost worker has contributed. */
static bool check(const bed *self, uint32_t rank)
{
    int32_t ranks[WORKERS];
    size_t count = 0;
    assert_int_equal(self->done[rank].status, TRIB_OK);
    assert_int_equal(trib_op_contributors(self->ops[rank], ranks, WORKERS, &count, NULL), TRIB_OK);
    const bool all = count == WORKERS;
    assert_true(all || count == WORKERS - 1);
    for (uint32_t from = 0; from < WORKERS; from++) {
        for (uint32_t i = 0; (all || from != LOST) && i < count_of(from); i++) {
            assert_int_equal(self->data[rank][before(from, all) + i], value(from, i));
        }
    }
    return all;
}

/* at_ns: when the worker is lost; streams: 0: none, 1: those that take a while, 2: those that come after the loss. */
static uint32_t run(int64_t at_ns, uint32_t streams, uint64_t seed)
{
    bed self = {.job = NULL};
    uint32_t all = 0;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.seed = seed;
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    config.engine.reactors = 1 + seed % 2;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 8192;
    config.engine.peer_timeout_ns = 4 * SECOND;
    sim_devices_open(&self.devices, &config, 1);
    self.job = sim_bed_open(&config);
    sim_devices_attach(&self.devices, self.job);
    self.late = trib_host_stream_create(false);
    for (uint32_t rank = 0; rank < WORKERS; rank++) { /* one of them comes late */
        begin(&self, rank, streams == 2 && rank == 0 ? self.late : streams == 1 ? self.devices.stream : NULL);
    }
    (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + at_ns, NULL, NULL);
    sim_job_kill(self.job, LOST);
    if (streams == 2) {
        (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + SECOND, NULL, NULL);
        assert_int_equal(self.done[0].done, 0);
        trib_host_stream_open(self.late);
    }
    assert_true(sim_job_run(self.job, trib_sim_now(self.job->sim) + 30 * SECOND, are_done, &self));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        all += rank != LOST && check(&self, rank);
        trib_op_release(self.ops[rank]);
    }
    assert_true(all == 0 || all == WORKERS - 1);
    assert_true(sim_job_close(self.job, 60 * SECOND));
    sim_job_free(self.job);
    trib_host_stream_free(self.late);
    sim_devices_close(&self.devices);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(self.data[rank]);
    }
    return all;
}

static void gathers_go_on(void **state)
{
    (void)state;
    for (uint32_t streams = 0; streams < 3; streams++) {
        uint32_t with = 0;
        for (uint32_t i = 0; i < TIMES; i++) {
            with += run((int64_t)i * 20000, streams, i + 1) > 0;
        }
        assert_true(with < TIMES && (streams == 2) == (with == 0)); /* some are cut short, and some are not */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathers_go_on)};
    return cmocka_run_group_tests_name("gathers on devices go on", tests, NULL, NULL);
}
