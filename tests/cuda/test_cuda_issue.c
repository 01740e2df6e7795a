/*
 * test_cuda_issue.c - who launches what is issued (stages/cuda/cuda_issue.c): stand-ins for all that it calls. No GPU is needed, only
 * CUDA's headers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

/* ---- What it calls ---- */

static int inside, launched;
static bool may_enter, is_kept;
static ncclResult_t outcome;
static cudaError_t kept_error; /* CUDA's, until somebody takes it */

bool cuda_comm_enter(trib_device *device)
{
    (void)device;
    inside += may_enter ? 1 : 0;
    return may_enter;
}

void cuda_comm_exit(trib_device *device)
{
    (void)device;
    inside--;
}

bool cuda_keep_has(const trib_device *device, const trib_device_job *job)
{
    (void)device;
    (void)job;
    assert_int_equal(inside, 1); /* else what is kept may go meanwhile */
    return is_kept;
}

bool cuda_nccl_launch(trib_device *device, cuda_slot *slot)
{
    assert_true(device->claimed);
    assert_int_equal(inside, device->params.size > 1 ? 1 : 0);
    slot->code = cudaSuccess;
    slot->result = outcome;
    kept_error = outcome == ncclSuccess ? cudaSuccess : cudaErrorLaunchFailure;
    launched++;
    return outcome == ncclSuccess;
}

void cuda_nccl_end_failed(trib_device *device, cuda_slot *slot)
{
    (void)device;
    (void)slot;
    fail();
}

cuda_visit cuda_visit_begin(const trib_device *device)
{
    (void)device;
    return (cuda_visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
}

void cuda_visit_end(const trib_device *device, cuda_visit visit)
{
    (void)device;
    (void)visit;
}

static bool cannot_mark;

void cuda_mark_end(trib_device *device, cuda_slot *slot, cuda_stream_id stream_id)
{
    (void)device;
    assert_int_equal(stream_id, CUDA_COLLECTIVE);
    slot->is_unmarked = cannot_mark;
    slot->code = cannot_mark ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = kept_error;
    kept_error = cudaSuccess;
    return code;
}

bool cuda_exit_hold(void)
{
    return true;
}

void cuda_exit_release(void)
{
}

void cuda_signal_if_asleep(trib_device *device)
{
    (void)device;
}

/* ---- Who launches ---- */

/* Issues one; true: its caller has launched it. */
static bool is_launched_here(bool in_order, int size, bool enters, bool kept)
{
    static trib_device device;
    static cuda_gate_end end;
    trib_device_gate gate = {.end = &end};
    trib_device_job job = {.kind = TRIB_DEVICE_ALL_REDUCE, .gate = &gate};
    memset(&device, 0, sizeof device);
    memset(&end, 0, sizeof end);
    device.params.in_order = in_order;
    device.params.size = size;
    device.can_launch = true;
    pthread_mutex_init(&device.mutex, NULL);
    may_enter = enters;
    is_kept = kept;
    launched = 0;
    cuda_issue(&device, &job, true);
    pthread_mutex_destroy(&device.mutex);
    assert_int_equal(inside, 0);
    assert_false(device.claimed);
    const bool here = launched == 1;
    assert_ptr_equal(device.launched.head, here ? &end.slot : NULL);
    assert_ptr_equal(device.new_head, here ? NULL : &job);
    assert_int_equal(device.unlaunched, here ? 0 : 1);
    assert_true(gate.by_end == here); /* else streams wait for a word, which the thread has written behind the launch */
    return here;
}

static void in_program_order_callers_launch(void **state)
{
    (void)state;
    assert_true(is_launched_here(true, 2, true, true));
    assert_true(is_launched_here(true, 2, true, false));
    assert_true(is_launched_here(true, 1, false, false));
    assert_false(is_launched_here(true, 2, false, false)); /* all is being given up */
}

/* Who has promised nothing may have a group of NCCL's open, which would keep a launch of NCCL's for its end. */
static void else_they_launch_what_is_kept(void **state)
{
    (void)state;
    assert_true(is_launched_here(false, 2, true, true));
    assert_false(is_launched_here(false, 2, true, false));
    assert_false(is_launched_here(false, 2, false, true));
}

/* What NCCL does wrong in a caller's thread is told where the job comes back: the caller does not find it among its own errors. */
static void what_fails_is_not_the_callers(void **state)
{
    (void)state;
    outcome = ncclUnhandledCudaError;
    assert_true(is_launched_here(true, 2, true, false));
    outcome = ncclSuccess;
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/* It is on the stream, and has its buffers until it ends. */
static void what_cannot_be_marked_has_been_launched(void **state)
{
    (void)state;
    trib_device device = {.params = {.size = 2}, .collectives = 1};
    trib_device_job job = {.kind = TRIB_DEVICE_ALL_REDUCE};
    cuda_slot slot = {.job = &job};
    cannot_mark = true;
    assert_true(is_launched_here(true, 2, true, false));
    cuda_mark_end(&device, &slot, CUDA_COLLECTIVE);
    cuda_issue_notice(&device, (cuda_queue){.head = &slot, .tail = &slot});
    cannot_mark = false;
    assert_ptr_equal(device.issued[CUDA_COLLECTIVE].head, &slot);
    assert_int_equal(device.collectives, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_program_order_callers_launch), cmocka_unit_test(else_they_launch_what_is_kept),
        cmocka_unit_test(what_fails_is_not_the_callers), cmocka_unit_test(what_cannot_be_marked_has_been_launched)};
    return cmocka_run_group_tests_name("what is issued", tests, NULL, NULL);
}
