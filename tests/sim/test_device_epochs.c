/*
 * test_device_epochs.c - devices and streams that keep nobody's time at the end of an epoch: streams that come much
 * later or never, and a device that does not give back what it has.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_devices.h"

enum { WORKERS = 5, COUNT = 9000, OPS = 3 };

typedef struct bed {
    sim_job *job;
    sim_devices devices;
    trib_host_stream *streams[WORKERS]; /* closed ones */
    int32_t *data[WORKERS][OPS], *sums[WORKERS][OPS];
    trib_op *ops[WORKERS][OPS];
    exchange done[WORKERS][OPS];
    uint32_t advanced; /* by worker */
    bool in_place;
} bed;

static uint32_t alive(const bed *self, uint32_t rank)
{
    return !self->job->members[rank].killed;
}

static void open_bed(bed *self, trib_survive survive, bool in_place)
{
    *self = (bed){.in_place = in_place};
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = survive;
    config.engine.reactors = 2;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 8192;
    config.engine.peer_timeout_ns = 4 * SECOND;
    sim_devices_open(&self->devices, &config, 1);
    self->job = sim_bed_open(&config);
    sim_devices_attach(&self->devices, self->job);
    for (uint32_t i = 0; i < WORKERS * OPS; i++) {
        int32_t *data = calloc(COUNT, sizeof(int32_t));
        self->data[i / OPS][i % OPS] = data;
        self->sums[i / OPS][i % OPS] = in_place ? data : calloc(COUNT, sizeof(int32_t));
        self->streams[i / OPS] = i % OPS == 0 ? trib_host_stream_create(false) : self->streams[i / OPS];
    }
}

static void close_bed(bed *self)
{
    for (uint32_t i = 0; i < WORKERS * OPS; i++) {
        trib_op_release(self->ops[i / OPS][i % OPS]);
    }
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    for (uint32_t i = 0; i < WORKERS * OPS; i++) {
        free(self->in_place ? NULL : self->sums[i / OPS][i % OPS]);
        free(self->data[i / OPS][i % OPS]);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        trib_host_stream_free(self->streams[i]);
    }
    sim_devices_close(&self->devices);
}

/* All workers sum the same tensor, in their next operation. */
static void hand_in(bed *self, uint32_t op, bool is_late)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        if (!alive(self, rank)) {
            continue;
        }
        trib_engine *engine = self->job->members[rank].engine;
        trib_error error = {.status = TRIB_OK};
        trib_tensor_desc desc;
        trib_op_params params;
        trib_tensor_desc_init(&desc, sizeof desc);
        trib_op_params_init(&params, sizeof params);
        desc.name = "on the device";
        desc.dtype = TRIB_INT32;
        desc.count = COUNT;
        desc.flags = TRIB_TENSOR_DEVICE;
        assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            self->data[rank][op][i] = (int32_t)(i + 10 * op + (100 << rank));
        }
        params.input = sim_devices_address(&self->devices, self->data[rank][op]);
        params.output = sim_devices_address(&self->devices, self->sums[rank][op]);
        params.stream = is_late ? self->streams[rank] : NULL;
        params.done_cb = sim_bed_on_done;
        params.user = &self->done[rank][op];
        if (trib_push_pull(engine, &params, &self->ops[rank][op], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    }
}

static void check(const bed *self, uint32_t op, uint32_t contributors)
{
    int32_t ranks = 0, count = 0;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        ranks += (contributors >> rank & 1) != 0 ? 100 << rank : 0;
        count += (contributors >> rank & 1) != 0;
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; (contributors >> rank & 1) != 0 && i < COUNT; i++) {
            assert_int_equal(self->sums[rank][op][i], ranks + count * (int32_t)(i + 10 * op));
        }
        assert_true((contributors >> rank & 1) == 0 || self->done[rank][op].done == 1);
    }
}

typedef struct awaited {
    const bed *of;
    uint32_t op, ranks;
    trib_status status;
} awaited;

static bool is_done(sim_job *job, void *argument)
{
    const awaited *what = argument;
    (void)job;
    bool done = true;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const exchange *at = &what->of->done[rank][what->op];
        done = done && ((what->ranks >> rank & 1) == 0 || (at->done > 0 && at->status == what->status));
    }
    return done;
}

static void await(bed *self, uint32_t op, uint32_t ranks, trib_status status)
{
    awaited what = {.of = self, .op = op, .ranks = ranks, .status = status};
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, is_done, &what));
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    assert_int_equal(now->status, TRIB_OK);
    ++*(uint32_t *)user;
}

static bool have_advanced(sim_job *job, void *argument)
{
    const bed *self = argument;
    (void)job;
    return self->advanced == 0;
}

static void advance(bed *self, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        if ((ranks >> rank & 1) != 0) {
            self->advanced--; /* counts up to 0 */
            assert_int_equal(
                trib_membership_advance(self->job->members[rank].engine, on_advanced, &self->advanced, NULL), TRIB_OK);
        }
    }
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, have_advanced, self));
}

static void open_streams(bed *self)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        if (alive(self, rank)) {
            trib_host_stream_open(self->streams[rank]);
        }
    }
}

/* The streams come in the next epoch, or never. The operations that waited for them have failed meanwhile. */
static void late_streams_delay_no_epoch(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        bed self;
        open_bed(&self, TRIB_SURVIVE_WORKERS, (kind & 1) != 0);
        hand_in(&self, 0, true);
        (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + SECOND / 100, NULL, NULL);
        sim_job_kill(self.job, 4);
        await(&self, 0, 0xf, TRIB_EPOCH_CHANGED);
        advance(&self, 0xf);
        hand_in(&self, 1, false);
        await(&self, 1, 0xf, TRIB_OK);
        check(&self, 1, 0xf);
        if ((kind & 2) != 0) {
            open_streams(&self);
            hand_in(&self, 2, true);
            await(&self, 2, 0xf, TRIB_OK);
            check(&self, 2, 0xf);
        }
        close_bed(&self);
    }
}

/* Two epochs end before the streams come. Then the operations go on, in the order in which they were submitted. */
static void operations_go_on_when_their_streams_come(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        bed self;
        open_bed(&self, TRIB_SURVIVE_CONTINUE, (kind & 1) != 0);
        hand_in(&self, 0, true);
        hand_in(&self, 1, false);
        for (uint32_t dies = 4; dies >= 3; dies--) {
            (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + SECOND / 100, NULL, NULL);
            sim_job_kill(self.job, dies);
            (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + 2 * SECOND, NULL, NULL);
            assert_int_equal(self.job->members[0].engine->roster->worker_count, dies);
            assert_int_equal(self.done[0][0].done + self.done[0][1].done, 0);
        }
        if ((kind & 2) != 0) {
            open_streams(&self);
            hand_in(&self, 2, true);
            for (uint32_t op = 0; op < OPS; op++) {
                await(&self, op, 7, TRIB_OK);
                check(&self, op, 7);
            }
        }
        close_bed(&self);
    }
}

static bool has_ended(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[1].ended_told;
}

/* A worker whose device keeps what it has been given leaves the job, with a reason, and the others go on. */
static void device_that_hangs_costs_its_worker(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        bed self;
        const bool continues = (kind & 2) != 0;
        open_bed(&self, continues ? TRIB_SURVIVE_CONTINUE : TRIB_SURVIVE_WORKERS, (kind & 1) != 0);
        trib_host_world_fault(self.devices.world, 1, 0, TRIB_HOST_FAULT_HANG);
        hand_in(&self, 0, false);
        (void)sim_job_run(self.job, trib_sim_now(self.job->sim) + SECOND / 100, NULL, NULL);
        sim_job_kill(self.job, 4);
        const int64_t began_ns = trib_sim_now(self.job->sim);
        assert_true(sim_job_run(self.job, began_ns + 20 * SECOND, has_ended, NULL));
        assert_true(trib_sim_now(self.job->sim) - began_ns < 7 * SECOND); /* 2 s, and the peer timeout */
        if (strstr(self.job->members[1].ended.text, "device did not give its buffers back") == NULL) {
            fail_msg("%s", self.job->members[1].ended.text);
        }
        if (continues) {
            await(&self, 0, 0xd, TRIB_OK);
            check(&self, 0, 0xd);
        } else {
            await(&self, 0, 0xd, TRIB_EPOCH_CHANGED);
            advance(&self, 0xd);
        }
        close_bed(&self);
    }
}

static bool all_are_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    (void)job;
    bool over = true;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        over = over && self->done[rank][0].done > 0;
    }
    return over;
}

/* A copy of the input that fails ends the operation on all, and nothing else. The next epoch has nothing of it. */
static void device_that_fails_costs_its_operation(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        bed self;
        open_bed(&self, TRIB_SURVIVE_CONTINUE, kind == 1);
        trib_host_world_fault(self.devices.world, 1, 0, TRIB_HOST_FAULT_FAIL);
        hand_in(&self, 0, false);
        assert_true(sim_job_run(self.job, 30 * SECOND, all_are_over, &self));
        assert_int_equal(self.done[1][0].status, TRIB_SYSTEM);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            assert_true(self.done[rank][0].status != TRIB_OK && self.done[rank][0].done == 1);
        }
        trib_host_world_fault(self.devices.world, 1, 0, TRIB_HOST_FAULT_NONE);
        hand_in(&self, 1, false);
        sim_job_kill(self.job, 4);
        await(&self, 1, 0xf, TRIB_OK);
        check(&self, 1, 0xf);
        close_bed(&self);
    }
}

/* ---- Whose setting counts ---- */

enum { FOUR = 4 };

static void disagree(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const bool goes_on = *(const bool *)job->config.user;
    config->survive = goes_on == (member == 0) ? TRIB_SURVIVE_WORKERS : TRIB_SURVIVE_NOTHING;
}

static trib_status begin(sim_job *job, uint32_t rank, bool sums, exchange *what)
{
    trib_op_params params;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = sums ? "for all" : "for one";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.flags = TRIB_TENSOR_DEVICE;
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    trib_engine *engine = job->members[rank].engine;
    const trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, NULL);
    return status != TRIB_OK ? status : (sums ? trib_push_pull : trib_reduce_to)(engine, &params, NULL, NULL);
}

static bool are_over(sim_job *job, void *argument)
{
    const exchange *what = argument;
    (void)job;
    return what[0].done > 0 && what[1].done > 0 && what[2].done > 0 && what[3].done > 0;
}

/* Operations are submitted before the roster says what the coordinator's process has. Ranks of a machine sum on their
 * devices first, or none does; both give the sum. What devices cannot do fails when the roster has come. */
static void setting_is_the_coordinators(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        bool goes_on = kind == 0;
        sim_devices devices;
        exchange sums[FOUR], ones[FOUR], again[FOUR]; /* the last ones when the job has formed */
        sim_job_config config = sim_job_config_default(FOUR, 0);
        trib_error error;
        config.per_machine = 2;
        config.tweak = disagree;
        config.user = &goes_on;
        sim_devices_open(&devices, &config, 2);
        sim_job *job = sim_job_open(&config, &error);
        assert_non_null(job);
        for (uint32_t rank = 0; rank < FOUR; rank++) {
            sums[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
            ones[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
            again[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
            for (uint32_t i = 0; i < COUNT; i++) {
                sums[rank].buffer[i] = (int32_t)(i + rank);
            }
            assert_int_equal(begin(job, rank, true, &sums[rank]), TRIB_OK);
            assert_int_equal(begin(job, rank, false, &ones[rank]), TRIB_OK);
        }
        assert_true(sim_job_run(job, 30 * SECOND, are_over, sums));
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, are_over, ones));
        for (uint32_t rank = 0; rank < FOUR; rank++) {
            assert_int_equal(sums[rank].status, TRIB_OK);
            for (uint32_t i = 0; i < COUNT; i++) {
                assert_int_equal(sums[rank].buffer[i], (int32_t)(FOUR * i + 6));
            }
            assert_int_equal(ones[rank].status, goes_on ? TRIB_OK : TRIB_UNSUPPORTED);
            assert_int_equal(begin(job, rank, false, &again[rank]), goes_on ? TRIB_OK : TRIB_UNSUPPORTED);
        }
        assert_true(!goes_on || sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, are_over, again));
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        sim_devices_close(&devices);
        for (uint32_t rank = 0; rank < FOUR; rank++) {
            free(sums[rank].buffer);
            free(ones[rank].buffer);
            free(again[rank].buffer);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_streams_delay_no_epoch),
        cmocka_unit_test(operations_go_on_when_their_streams_come),
        cmocka_unit_test(device_that_hangs_costs_its_worker),
        cmocka_unit_test(device_that_fails_costs_its_operation),
        cmocka_unit_test(setting_is_the_coordinators),
    };
    return cmocka_run_group_tests_name("devices and epochs", tests, NULL, NULL);
}
