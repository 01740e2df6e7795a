/*
 * test_device_waits.c - operations in place on devices whose streams come late. The engine keeps their inputs, or may
 * have to: before the roster it does not know whether the job goes on without workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/handle.h"
#include "engine/worker/device_hooks.h"
#include "tests/sim/sim_devices.h"

enum { WORKERS = 3, TENSORS = 6, COUNT = 256 };

typedef struct bed {
    sim_job *job;
    sim_devices devices;
    trib_host_stream *streams[WORKERS]; /* closed ones */
    int32_t *data[WORKERS][TENSORS];
    trib_op *ops[WORKERS][TENSORS];
    exchange done[WORKERS][TENSORS];
    uint32_t count; /* elements of each tensor */
} bed;

/* Without `survive` the job has not formed yet when this returns. */
static void open_bed(bed *self, trib_survive survive, uint32_t count)
{
    *self = (bed){.count = count};
    trib_error error = {.status = TRIB_OK};
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = survive;
    config.engine.reactors = 2;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 8192;
    config.engine.peer_timeout_ns = 4 * SECOND;
    sim_devices_open(&self->devices, &config, 1);
    self->job = survive == TRIB_SURVIVE_NOTHING ? sim_job_open(&config, &error) : sim_bed_open(&config);
    assert_non_null(self->job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        self->streams[rank] = trib_host_stream_create(false);
        for (uint32_t i = 0; i < TENSORS; i++) {
            self->data[rank][i] = calloc(count, sizeof(int32_t));
        }
    }
}

static void close_bed(bed *self)
{
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        trib_op_release(self->ops[i / TENSORS][i % TENSORS]);
    }
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        free(self->data[i / TENSORS][i % TENSORS]);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_host_stream_free(self->streams[rank]);
    }
    sim_devices_close(&self->devices);
}

static trib_tensor *declare(const bed *self, uint32_t rank, uint32_t which)
{
    char name[16];
    snprintf(name, sizeof name, "tensor %u", which);
    trib_tensor *tensor = NULL;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = self->count;
    desc.flags = TRIB_TENSOR_DEVICE;
    assert_int_equal(trib_tensor_declare(self->job->members[rank].engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static void hand_in(bed *self, uint32_t rank, uint32_t which, trib_host_stream *stream, int64_t timeout_ns)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t i = 0; i < self->count; i++) {
        self->data[rank][which][i] = (int32_t)(i + which + (100 << rank));
    }
    trib_op_release(self->ops[rank][which]);
    self->done[rank][which] = (exchange){.done = 0};
    params.tensor = declare(self, rank, which);
    params.input = params.output = self->data[rank][which];
    params.stream = stream;
    params.timeout_ns = timeout_ns;
    params.done_cb = sim_bed_on_done;
    params.user = &self->done[rank][which];
    if (trib_push_pull(self->job->members[rank].engine, &params, &self->ops[rank][which], &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static void hand_in_all(bed *self, bool is_late, int64_t timeout_ns)
{
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        hand_in(self, i / TENSORS, i % TENSORS, is_late ? self->streams[i / TENSORS] : NULL, timeout_ns);
    }
}

static void check(const bed *self, uint32_t rank, uint32_t which, uint32_t workers)
{
    assert_int_equal(self->done[rank][which].status, TRIB_OK);
    for (uint32_t i = 0; i < self->count; i++) {
        const int32_t sum = (int32_t)(workers * (i + which)) + (100 << workers) - 100;
        assert_int_equal(self->data[rank][which][i], sum);
    }
}

static bool are_over(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool over = true;
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        const uint32_t rank = i / TENSORS, which = i % TENSORS;
        over =
            over && (job->members[rank].killed || self->ops[rank][which] == NULL || self->done[rank][which].done > 0);
    }
    return over;
}

static void await_all(bed *self)
{
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, are_over, self));
}

static void run_for(bed *self, int64_t duration_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + duration_ns, NULL, NULL);
}

/* Tensors of one chunk, some of which have no task on core 0. */
static void assert_some_without_first_core(const bed *self)
{
    uint32_t without = 0;
    for (uint32_t which = 0; which < TENSORS; which++) {
        const trib_tensor *tensor = trib_handle_find((uintptr_t)declare(self, 0, which), TRIB_HANDLE_TENSOR);
        without += tensor->cores[0].task_count == 0;
    }
    assert_in_range(without, 1, TENSORS - 1);
}

/* The streams come when the rounds have begun, at times that fall between any two steps of the cores. */
static void streams_come_late(void **state)
{
    (void)state;
    const trib_survive jobs[] = {TRIB_SURVIVE_NOTHING, TRIB_SURVIVE_WORKERS, TRIB_SURVIVE_CONTINUE};
    for (uint32_t kind = 0; kind < 3 * 8; kind++) {
        bed self;
        open_bed(&self, jobs[kind % 3], COUNT);
        hand_in_all(&self, true, -1);
        run_for(&self, kind / 3 == 0 ? SECOND : kind / 3 * 30000);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            trib_host_stream_open(self.streams[rank]);
        }
        await_all(&self);
        assert_some_without_first_core(&self);
        for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
            check(&self, i / TENSORS, i % TENSORS, WORKERS);
        }
        close_bed(&self);
    }
}

/* A core without a task of its own waits for the stream, too, and says so. */
static void deadline_names_the_stream(void **state)
{
    (void)state;
    bed self;
    open_bed(&self, TRIB_SURVIVE_CONTINUE, COUNT);
    hand_in_all(&self, true, SECOND);
    await_all(&self);
    assert_some_without_first_core(&self);
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        trib_result result;
        assert_int_equal(self.done[i / TENSORS][i % TENSORS].status, TRIB_TIMEOUT);
        assert_int_equal(trib_op_get_result(self.ops[i / TENSORS][i % TENSORS], &result, NULL), TRIB_OK);
        assert_non_null(strstr(result.text, "waiting for the caller's stream"));
    }
    hand_in_all(&self, false, -1);
    await_all(&self);
    for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
        check(&self, i / TENSORS, i % TENSORS, WORKERS);
    }
    close_bed(&self);
}

/* An operation is cancelled and its stream comes before a core has seen either. */
static void stream_comes_with_a_cancellation(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        bed self;
        open_bed(&self, TRIB_SURVIVE_CONTINUE, (kind & 2) != 0 ? 40 * COUNT : COUNT);
        hand_in_all(&self, true, -1);
        run_for(&self, SECOND / 10);
        if ((kind & 1) != 0) {
            trib_host_stream_open(self.streams[0]);
        }
        for (uint32_t which = 0; which < TENSORS; which++) {
            trib_op_cancel(self.ops[0][which]);
        }
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            trib_host_stream_open(self.streams[rank]);
        }
        await_all(&self);
        for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
            assert_int_equal(self.done[i / TENSORS][i % TENSORS].status, TRIB_CANCELLED);
        }
        hand_in_all(&self, true, -1);
        await_all(&self);
        for (uint32_t i = 0; i < WORKERS * TENSORS; i++) {
            check(&self, i / TENSORS, i % TENSORS, WORKERS);
        }
        close_bed(&self);
    }
}

/* ---- A copy that fails at the end of an epoch ---- */

static trib_device_job *held; /* the first one of the second worker */

static void hold_first(trib_device *device, trib_device_job *job)
{
    if (job->kind == TRIB_DEVICE_TO_HOST && held == NULL) {
        held = job;
    } else {
        trib_device_host_ops.submit(device, job);
    }
}

static void *(*alloc)(void *memory, size_t size);
static void *known; /* the last block that devices know */

static void *alloc_known(void *memory, size_t size)
{
    return known = alloc(memory, size);
}

static bool has_epoch_ended(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[1].engine->cores[0].ended;
}

static void copy_that_fails_with_the_epoch_is_made_again(void **state)
{
    (void)state;
    bed self;
    static trib_device_ops ops;
    ops = trib_device_host_ops;
    ops.submit = hold_first;
    held = NULL;
    open_bed(&self, TRIB_SURVIVE_CONTINUE, COUNT);
    trib_engine *engine = self.job->members[1].engine;
    engine->env.device = &ops;
    alloc = engine->env.memory_alloc_blocking;
    engine->env.memory_alloc_blocking = alloc_known;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        hand_in(&self, rank, 0, NULL, -1);
    }
    run_for(&self, SECOND / 100);
    assert_non_null(held);
    assert_ptr_equal(held->target, known);
    sim_job_kill(self.job, 2);
    assert_true(sim_job_run(self.job, trib_sim_now(self.job->sim) + 30 * SECOND, has_epoch_ended, NULL));
    trib_host_world_fault(self.devices.world, 1, 0, TRIB_HOST_FAULT_FAIL);
    trib_device_host_ops.submit(engine->device, held);
    trib_host_world_fault(self.devices.world, 1, 0, TRIB_HOST_FAULT_NONE);
    await_all(&self);
    check(&self, 0, 0, 2);
    check(&self, 1, 0, 2);
    close_bed(&self);
}

/* ---- The roster comes in the middle of a call ---- */

static const trib_device_hooks *device_hooks;
static bed *slow;

/* The call lasts until the job has formed, and the tensor is placed. */
static trib_status prepare_late(trib_op *op, trib_error *error)
{
    slow->job->members[0].engine->device_hooks = device_hooks;
    hand_in(slow, 0, 0, NULL, -1);
    await_all(slow);
    check(slow, 0, 0, WORKERS);
    trib_op_release(slow->ops[0][0]); /* the call stores another one */
    slow->ops[0][0] = NULL;
    slow->done[0][0] = (exchange){.done = 0};
    for (uint32_t i = 0; i < slow->count; i++) {
        slow->data[0][0][i] = (int32_t)(i + 100);
    }
    return device_hooks->prepare(op, error);
}

static void roster_comes_in_the_middle_of_a_call(void **state)
{
    (void)state;
    bed self;
    open_bed(&self, TRIB_SURVIVE_NOTHING, COUNT);
    slow = &self;
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        hand_in(&self, rank, 0, NULL, -1);
    }
    trib_engine *engine = self.job->members[0].engine;
    trib_device_hooks hooks = *engine->device_hooks;
    hooks.prepare = prepare_late;
    device_hooks = engine->device_hooks;
    engine->device_hooks = &hooks;
    hand_in(&self, 0, 0, NULL, -1);
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        hand_in(&self, rank, 0, NULL, -1);
    }
    await_all(&self);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        check(&self, rank, 0, WORKERS);
    }
    close_bed(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_come_late),
        cmocka_unit_test(deadline_names_the_stream),
        cmocka_unit_test(stream_comes_with_a_cancellation),
        cmocka_unit_test(copy_that_fails_with_the_epoch_is_made_again),
        cmocka_unit_test(roster_comes_in_the_middle_of_a_call),
    };
    return cmocka_run_group_tests_name("late streams of operations in place on devices", tests, NULL, NULL);
}
