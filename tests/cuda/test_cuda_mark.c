/* test_cuda_mark.c - which markers of callers' streams are queried (stages/cuda/cuda_mark.c), with stand-ins for
 * CUDA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

/* ---- Stand-ins: events are numbers, and streams reach them one after the other ---- */

enum { JOBS = 120 };

static trib_device gpu;
static cuda_stream_marker markers[JOBS];
static trib_device_job jobs[JOBS];
static bool reached[JOBS];
static CUresult broken; /* the result of a query of an event that has not been reached */
static int asked, back[JOBS + 2], back_count;

static CUresult query_event(CUevent event)
{
    asked++;
    return reached[(uintptr_t)event - 1] ? CUDA_SUCCESS : broken;
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "broken";
}

void cuda_job_give_back(trib_device *device, trib_device_job *job, trib_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->text, sizeof job->text, format, arguments);
    va_end(arguments);
    assert_ptr_equal(device, &gpu);
    job->status = status;
    back[back_count++] = (int)(job - jobs);
}

/* ---- Cases ---- */

static int setup(void **state)
{
    (void)state;
    gpu = (trib_device){.driver = {.query_event = query_event}};
    pthread_mutex_init(&gpu.mutex, NULL);
    memset(reached, 0, sizeof reached);
    broken = CUDA_ERROR_NOT_READY;
    asked = back_count = 0;
    return 0;
}

/* Awaits jobs of streams in turns: job i is of stream i % streams, and the streams' handles are first, first + 1 and
 * so on. */
static void await_all(int count, uintptr_t first, int streams)
{
    for (int i = 0; i < count; i++) {
        const uintptr_t stream = first + (uintptr_t)(i % streams);
        markers[i] = (cuda_stream_marker){.event = (cudaEvent_t)(uintptr_t)(i + 1),
                                          .stream = (cudaStream_t)stream,
                                          .began = (uint64_t)i,
                                          .ended = (uint64_t)i + 1};
        jobs[i] = (trib_device_job){.kind = TRIB_DEVICE_WAIT, .marker = &markers[i], .status = TRIB_PENDING};
        cuda_marker_await(&gpu, &jobs[i]);
    }
}

static int count_free_markers(void)
{
    int count = 0;
    for (const cuda_stream_marker *marker = gpu.free_markers; marker != NULL; marker = marker->next) {
        count++;
    }
    return count;
}

static void each_stream_is_asked_for_once(void **state)
{
    (void)state;
    await_all(JOBS, 16, 3);
    cuda_marker_poll(&gpu);
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 6);
    assert_int_equal(back_count, 0);
    for (int i = 0; i < 7; i++) { /* stream 0 has come to three markers, the others to two */
        reached[i] = true;
    }
    asked = 0;
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 7 + 3);
    assert_int_equal(back_count, 7);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(back[i], i);
        assert_int_equal(jobs[i].status, TRIB_OK);
    }
    assert_int_equal(count_free_markers(), 7);
    memset(reached, 1, sizeof reached);
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, JOBS);
    assert_null(gpu.waits);
    asked = 0;
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 0);
    await_all(2, 16, 1); /* the stream goes on */
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, JOBS + 2);
}

/* A stream that stands still does not hold up another one. */
static void streams_are_waited_for_apart(void **state)
{
    (void)state;
    await_all(6, 16, 2);
    reached[1] = reached[3] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 2);
    assert_int_equal(back[0], 1);
    assert_int_equal(back[1], 3);
    reached[0] = reached[5] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 4);
    assert_int_equal(back[2], 0);
    assert_int_equal(back[3], 5);
}

/* The streams have one handle, and nothing in common. */
static void streams_of_threads_are_asked_for_one_by_one(void **state)
{
    (void)state;
    await_all(10, (uintptr_t)cudaStreamPerThread, 1);
    reached[4] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 10);
    assert_int_equal(back_count, 1);
    assert_int_equal(back[0], 4);
}

/* Job i has the marker that was recorded as number count - 1 - i, by threads that share a stream. */
static void await_backwards(int count, bool at_once)
{
    await_all(count, 16, 1);
    for (int i = 0; i < count; i++) {
        markers[i].began = (uint64_t)(count - 1 - i);
        markers[i].ended = at_once ? (uint64_t)count : markers[i].began + 1;
    }
}

/* A thread that marked a stream first may submit last, and what the others wait for may need its job. */
static void marks_may_come_in_another_order(void **state)
{
    (void)state;
    await_backwards(3, false);
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 3);
    assert_int_equal(back_count, 0);
    reached[2] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 1);
    assert_int_equal(back[0], 2);
    asked = 0;
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 2);
}

/* Of markers that were recorded at once it is unknown which comes first. */
static void simultaneous_marks_are_all_polled(void **state)
{
    (void)state;
    await_backwards(3, true);
    reached[1] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(asked, 3);
    assert_int_equal(back_count, 1);
    assert_int_equal(back[0], 1);
}

static void there_may_be_any_number_of_streams(void **state)
{
    (void)state;
    await_all(JOBS, 16, 40);
    reached[39] = reached[79] = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 2);
    memset(reached, 1, sizeof reached);
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, JOBS);
}

static void all_come_back_from_a_device_that_is_stopped(void **state)
{
    (void)state;
    await_all(10, 16, 2);
    reached[8] = true;
    gpu.stopped = true;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(jobs[i].status, i == 8 ? TRIB_OK : TRIB_CLOSED);
    }
    assert_int_equal(count_free_markers(), 10);
}

static void broken_device_fails_all_jobs(void **state)
{
    (void)state;
    await_all(3, 16, 1);
    broken = CUDA_ERROR_ILLEGAL_ADDRESS;
    cuda_marker_poll(&gpu);
    assert_int_equal(back_count, 3);
    assert_int_equal(jobs[0].status, TRIB_SYSTEM);
    assert_string_equal(jobs[0].text, "broken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_stream_is_asked_for_once, setup),
        cmocka_unit_test_setup(streams_are_waited_for_apart, setup),
        cmocka_unit_test_setup(streams_of_threads_are_asked_for_one_by_one, setup),
        cmocka_unit_test_setup(marks_may_come_in_another_order, setup),
        cmocka_unit_test_setup(simultaneous_marks_are_all_polled, setup),
        cmocka_unit_test_setup(there_may_be_any_number_of_streams, setup),
        cmocka_unit_test_setup(all_come_back_from_a_device_that_is_stopped, setup),
        cmocka_unit_test_setup(broken_device_fails_all_jobs, setup),
    };
    return cmocka_run_group_tests_name("markers of callers' streams", tests, NULL, NULL);
}
