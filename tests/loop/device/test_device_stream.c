/*
 * test_device_stream.c - a device lets no stream wait for work that it has not launched. trib_op_stream_wait itself
 * waits then, for a launch or for the operation's end, whichever comes first.
 */
#include <pthread.h>
#include <unistd.h>

#include "engine/base/handle.h"
#include "engine/worker/op.h"
#include "tests/loop/device/device_wrap.h"

enum { RANKS = 2, COUNT = 1000 };

/* ---- The devices ---- */

static trib_device_ops ops;
static trib_device_params told[RANKS]; /* parameters, by machine */
static trib_device *devices[RANKS];
static atomic_bool refuses, holds; /* holds: no answer */
static atomic_int asked;

static trib_status open_device(const trib_device_params *params, trib_device **out, trib_error *error)
{
    const trib_status status = trib_device_host_ops.open(params, out, error);
    told[params->machine] = *params;
    devices[params->machine] = *out;
    return status;
}

static trib_status stream_wait(trib_device *device, void *stream, const trib_device_end *end, trib_error *error)
{
    (void)device;
    (void)stream;
    (void)end;
    (void)error;
    const bool refused = atomic_load(&refuses);
    atomic_fetch_add(&asked, 1);
    while (atomic_load(&holds)) {
        usleep(1000);
    }
    return refused ? TRIB_BUSY : TRIB_OK;
}

static void launch(int rank)
{
    told[rank].launched(told[rank].engine);
}

/* ---- Sums that the second rank has not submitted ---- */

typedef struct bed {
    job jobs;
    trib_tensor *tensors[RANKS][2];
    int32_t data[RANKS][2][COUNT];
} bed;

static bool on_queue;         /* the engines run in TRIB_MODE_QUEUE */
static trib_survive survives; /* of the next job */

static void tweak(trib_config *config, int member)
{
    on_devices(config, member);
    config->mode = on_queue ? TRIB_MODE_QUEUE : TRIB_MODE_THREADS;
    config->survive = survives;
}

/* Prepares everything but the job. */
static void bed_prepare(bed *self, bool queue)
{
    on_queue = queue;
    ops = trib_device_host_ops;
    ops.open = open_device;
    ops.stream_wait = stream_wait;
    watched = &ops;
    atomic_store(&refuses, true);
    atomic_store(&asked, 0);
    memset(self, 0, sizeof *self);
}

static void bed_open(bed *self, bool queue)
{
    bed_prepare(self, queue);
    open_job(&self->jobs, RANKS, 0, 1, tweak);
    for (int rank = 0; rank < RANKS; rank++) {
        self->tensors[rank][0] = declare_on_device(self->jobs.engines[rank], "a tensor", COUNT, 0, TRIB_OK);
        self->tensors[rank][1] = declare_on_device(self->jobs.engines[rank], "another", COUNT, 0, TRIB_OK);
    }
}

static void bed_close(bed *self)
{
    close_job(&self->jobs);
    watched = NULL;
}

static trib_op *hand_in(bed *self, int rank, int which, int64_t timeout_ns, trib_done_cb done, void *user)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[rank][which];
    params.input = params.output = self->data[rank][which];
    params.timeout_ns = timeout_ns;
    params.done_cb = done;
    params.user = user;
    return push_pull_or(self->jobs.engines[rank], &params, TRIB_OK);
}

static void finish(trib_op *op)
{
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(op, &error), TRIB_OK);
}

/* ---- A call that waits ---- */

typedef struct call {
    pthread_t thread;
    trib_op *op;
    trib_status status;
    atomic_bool has_returned;
} call;

static void *call_main(void *argument)
{
    call *self = argument;
    trib_error error = {.status = TRIB_OK};
    self->status = trib_op_stream_wait(self->op, NULL, &error);
    atomic_store(&self->has_returned, true);
    return NULL;
}

static void call_begin(call *self, trib_op *op)
{
    *self = (call){.op = op};
    assert_int_equal(pthread_create(&self->thread, NULL, call_main, self), 0);
}

/* Returns false if the call has not returned within half a minute. */
static bool returns_soon(const call *self)
{
    int waited = 0;
    for (; !atomic_load(&self->has_returned) && waited < 30000; waited++) {
        usleep(1000);
    }
    return waited < 30000;
}

static void await_count(atomic_int *count, int least)
{
    for (int i = 0; atomic_load(count) < least; i++) {
        if (i == 30000) {
            fail_msg("no progress for half a minute");
        }
        usleep(1000);
    }
}

static void until_something_is_launched(void **state)
{
    (void)state;
    static bed self;
    call one;
    bed_open(&self, false);
    trib_op *op = hand_in(&self, 0, 0, -1, NULL, NULL);
    call_begin(&one, op);
    await_count(&asked, 1);
    for (int i = 1; i < 5; i++) {
        usleep(5000);
        assert_false(atomic_load(&one.has_returned));
        launch(0); /* the device refuses again after an unrelated launch */
        await_count(&asked, 1 + i);
    }
    assert_false(atomic_load(&one.has_returned));
    atomic_store(&refuses, false);
    launch(0);
    pthread_join(one.thread, NULL);
    assert_int_equal(one.status, TRIB_OK);
    assert_int_equal(trib_op_status(op), TRIB_PENDING);
    trib_op *other = hand_in(&self, 1, 0, -1, NULL, NULL);
    finish(op);
    finish(other);
    bed_close(&self);
}

/* The call also ends if the completion has not been dispatched, because the blocked thread is the only one that
 * dispatches. */
static void until_the_operation_is_over(void **state)
{
    (void)state;
    static bed self;
    for (int queue = 0; queue < 2; queue++) {
        bed_open(&self, queue == 1);
        trib_error error = {.status = TRIB_OK};
        call one;
        trib_op *op = hand_in(&self, 0, 0, -1, NULL, NULL);
        call_begin(&one, op);
        await_count(&asked, 1);
        usleep(20000);
        assert_false(atomic_load(&one.has_returned));
        trib_op_cancel(op);
        pthread_join(one.thread, NULL);
        assert_int_equal(one.status, TRIB_OK);
        assert_int_equal(job_wait(op, &error), TRIB_CANCELLED);
        trib_op *later = hand_in(&self, 0, 1, -1, NULL, NULL), *others = hand_in(&self, 1, 1, -1, NULL, NULL);
        assert_int_equal(trib_op_stream_wait(later, NULL, &error), TRIB_OK); /* the call succeeds */
        finish(later);
        finish(others);
        bed_close(&self);
    }
}

/* Another thread may give the handle back during the call. The operation's memory goes to no other one until then. */
static void although_it_is_given_back(void **state)
{
    (void)state;
    static bed self;
    call one;
    bed_open(&self, false);
    atomic_store(&holds, true);
    trib_op *op = hand_in(&self, 0, 0, -1, NULL, NULL);
    call_begin(&one, op);
    await_count(&asked, 1);
    trib_op_cancel(op);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(op, &error), TRIB_CANCELLED);
    trib_op *later = hand_in(&self, 0, 1, -1, NULL, NULL);
    atomic_store(&holds, false);
    assert_true(returns_soon(&one));
    pthread_join(one.thread, NULL);
    assert_int_equal(one.status, TRIB_OK);
    assert_int_equal(trib_op_status(later), TRIB_PENDING);
    trib_op *others = hand_in(&self, 1, 1, -1, NULL, NULL);
    finish(later);
    finish(others);
    bed_close(&self);
}

typedef struct held {
    call call;
    atomic_bool outlives; /* the call has not returned soon */
} held;

static void hold_until_the_call_returns(const trib_result *result, void *user)
{
    (void)result;
    held *self = user;
    atomic_store(&self->outlives, !returns_soon(&self->call));
}

/* The callback of a failed operation may wait for a thread that waits for the operation. */
static void until_its_callback_begins(void **state)
{
    (void)state;
    static bed self;
    static held one;
    trib_error error = {.status = TRIB_OK};
    bed_open(&self, false);
    trib_op *op = hand_in(&self, 0, 0, -1, hold_until_the_call_returns, &one);
    call_begin(&one.call, op);
    await_count(&asked, 1);
    usleep(20000); /* it sleeps by now */
    trib_op_cancel(op);
    assert_int_equal(job_wait(op, &error), TRIB_CANCELLED);
    pthread_join(one.call.thread, NULL);
    assert_int_equal(one.call.status, TRIB_OK);
    assert_false(atomic_load(&one.outlives));
    bed_close(&self);
}

/* The second rank's device keeps the sum that it is to take back. */
static trib_device_job *_Atomic late;

static void submit_late(trib_device *device, trib_device_job *given)
{
    if (device == devices[1] && given->kind == TRIB_DEVICE_TO_DEVICE) {
        assert_null(atomic_load(&late)); /* the tensor is one partition */
        atomic_store(&late, given);
    } else {
        trib_device_host_ops.submit(device, given);
    }
}

static bool is_through(const trib_op *op)
{
    return atomic_load(&op->cores_left) == 0 && atomic_load(&late) != NULL;
}

/* Where a loss may still make an operation fail on all, the call does not return before it is certain that none will,
 * though this worker is through with it. */
static void until_no_loss_undoes_it(void **state)
{
    (void)state;
    static bed self;
    call one;
    survives = TRIB_SURVIVE_WORKERS;
    bed_prepare(&self, false);
    ops.submit = submit_late;
    open_job(&self.jobs, RANKS, 0, 1, tweak);
    survives = TRIB_SURVIVE_NOTHING;
    for (int rank = 0; rank < RANKS; rank++) {
        self.tensors[rank][0] = declare_on_device(self.jobs.engines[rank], "a tensor", COUNT, 0, TRIB_OK);
    }
    trib_op *op = hand_in(&self, 0, 0, -1, NULL, NULL), *other = hand_in(&self, 1, 0, -1, NULL, NULL);
    const trib_op *inside = trib_handle_find((uintptr_t)op, TRIB_HANDLE_OP);
    for (int i = 0; !is_through(inside); i++) {
        assert_true(i < 30000);
        usleep(1000);
    }
    call_begin(&one, op);
    for (int i = 1; i < 4; i++) {
        await_count(&asked, i); /* each time the call finds that it is not over */
        launch(0);
    }
    assert_false(atomic_load(&one.has_returned));
    trib_device_host_ops.submit(devices[1], atomic_load(&late));
    pthread_join(one.thread, NULL);
    assert_int_equal(one.status, TRIB_OK);
    finish(op);
    finish(other);
    bed_close(&self);
}

typedef struct asks {
    trib_op *pending;
    trib_status status;
    trib_error error;
    atomic_bool done;
} asks;

static void ask_from_callback(const trib_result *result, void *user)
{
    (void)result;
    asks *self = user;
    self->status = trib_op_stream_wait(self->pending, NULL, &self->error);
    atomic_store(&self->done, true);
}

static void never_in_a_callback(void **state)
{
    (void)state;
    static bed self;
    bed_open(&self, false);
    asks about = {.pending = hand_in(&self, 0, 0, -1, NULL, NULL)};
    trib_op *quick = hand_in(&self, 0, 1, -1, ask_from_callback, &about),
            *others = hand_in(&self, 1, 1, -1, NULL, NULL);
    finish(quick);
    finish(others);
    assert_true(atomic_load(&about.done));
    assert_int_equal(about.status, TRIB_WRONG_THREAD);
    assert_non_null(strstr(about.error.text, "has not been launched"));
    assert_non_null(strstr(about.error.text, "callback"));
    others = hand_in(&self, 1, 0, -1, NULL, NULL);
    finish(about.pending);
    finish(others);
    bed_close(&self);
}

/* Nothing is launched before the job has formed. */
static void never_in_a_callback_while_joining(void **state)
{
    (void)state;
    static bed self;
    char address[32];
    job_free_address(address, sizeof address);
    bed_prepare(&self, false);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = TRIB_ROLE_WORKER;
    config.rank = 0;
    config.worker_count = RANKS; /* the other worker never joins */
    config.coordinator = address;
    config.token = "a secret of the tests, long enough";
    config.log_level = TRIB_LOG_NONE;
    world = trib_host_world_create();
    local_size = 1;
    tweak(&config, 0);
    trib_error error = {.status = TRIB_OK};
    self.jobs.worker_count = 1;
    if (trib_engine_create(&config, &self.jobs.engines[0], &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    for (int i = 0; i < 2; i++) {
        self.tensors[0][i] =
            declare_on_device(self.jobs.engines[0], i == 0 ? "a tensor" : "another", COUNT, 0, TRIB_OK);
    }
    asks about = {.pending = hand_in(&self, 0, 0, -1, NULL, NULL)};
    trib_op *quick = hand_in(&self, 0, 1, INT64_C(50000000), ask_from_callback, &about);
    assert_int_equal(job_wait(quick, &error), TRIB_TIMEOUT);
    assert_true(atomic_load(&about.done));
    assert_int_equal(about.status, TRIB_WRONG_THREAD);
    assert_non_null(strstr(about.error.text, "callback"));
    trib_op_cancel(about.pending);
    assert_int_equal(job_wait(about.pending, &error), TRIB_CANCELLED);
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(until_something_is_launched), cmocka_unit_test(until_the_operation_is_over),
        cmocka_unit_test(although_it_is_given_back),   cmocka_unit_test(until_its_callback_begins),
        cmocka_unit_test(never_in_a_callback),         cmocka_unit_test(never_in_a_callback_while_joining),
        cmocka_unit_test(until_no_loss_undoes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
