/*
 * test_cuda_thread.c - the device's thread (stages/cuda/cuda_thread.c) wakes reactors for callers unless it is busy,
 * with stand-ins for everything that it calls. The test needs no GPU, only CUDA's headers.
 */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

/* ---- Stand-ins ---- */

static sem_t copying, go_on; /* the thread is in the call that copies, until it may go on */

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)dst;
    (void)src;
    (void)count;
    (void)kind;
    (void)stream;
    sem_post(&copying);
    sem_wait(&go_on);
    return cudaSuccess;
}

cudaError_t cuda_encode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    (void)device;
    (void)job;
    (void)stream;
    return cudaErrorNotSupported;
}

cudaError_t cuda_decode(trib_device *device, trib_device_job *job, cudaStream_t stream)
{
    return cuda_encode(device, job, stream);
}

void cuda_codec_sweep(trib_device *device)
{
    atomic_store(&device->has_dropped, false);
}

static atomic_bool no_memory;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = NULL;
    return atomic_load(&no_memory) ? cudaErrorMemoryAllocation : cudaSuccess;
}

static bool cannot_record;

static CUresult record_event(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    return cannot_record ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* A caller's stream does not come to its marker. In the thread's turn it is checked whether the thread would wake a
 * reactor. */
static atomic_bool is_late;
static atomic_int would_wake, would_not;
static trib_device *looked_at;

/* The launched work is not over. The counters say how often events and streams have been queried since. */
static atomic_bool goes_on;
static atomic_int asked_events, asked_streams;

static CUresult query_stream(CUstream stream)
{
    (void)stream;
    atomic_fetch_add(&asked_streams, 1);
    return atomic_load(&goes_on) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult query_event(CUevent event)
{
    (void)event;
    atomic_fetch_add(&asked_events, 1);
    if (atomic_load(&goes_on)) {
        return CUDA_ERROR_NOT_READY;
    }
    if (!atomic_load(&is_late)) {
        return CUDA_SUCCESS;
    }
    atomic_fetch_add(cuda_thread_wake(looked_at, 1, false) ? &would_wake : &would_not, 1);
    return CUDA_ERROR_NOT_READY;
}

static bool cannot_wait;

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return cannot_wait ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
                                               enum cudaFlushGPUDirectRDMAWritesScope scope)
{
    (void)target;
    (void)scope;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "";
}

bool cuda_thread_use(int index)
{
    (void)index;
    return true;
}

void cuda_thread_signal_if_asleep(trib_device *device)
{
    if (device->asleep) {
        pthread_cond_signal(&device->changed);
    }
}

static bool cannot_end;
static const trib_device_end *ended; /* the last one that was launched */

CUresult cuda_end_launched(trib_device *device, trib_device_end *end, cudaStream_t stream)
{
    (void)device;
    (void)stream;
    ended = end;
    return cannot_end ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

void cuda_nccl_give_up(trib_device *device, const trib_device_job *job, const char *text)
{
    (void)device;
    (void)job;
    (void)text;
}

void cuda_nccl_progress(trib_device *device)
{
    (void)device;
}

bool cuda_nccl_is_busy(const trib_device *device)
{
    (void)device;
    return false;
}

void cuda_nccl_make_id(trib_device *device, trib_device_job *job)
{
    (void)device;
    (void)job;
    fail();
}

void cuda_nccl_join(trib_device *device, trib_device_job *job)
{
    (void)device;
    (void)job;
    fail();
}

bool cuda_comm_enter(trib_device *device)
{
    (void)device;
    return true;
}

void cuda_comm_exit(trib_device *device)
{
    (void)device;
}

void cuda_comm_abort(trib_device *device)
{
    (void)device;
}

void cuda_comm_end(trib_device *device)
{
    (void)device;
}

/* ---- Reactors to wake ---- */

static atomic_uint woken;
static sem_t has_woken, job_back;
static int engine; /* whose reactors */

static void wake(void *of, uint32_t reactors)
{
    if (of == &engine) {
        atomic_fetch_or(&woken, reactors);
        sem_post(&has_woken);
    }
}

static void complete(trib_device_job *job)
{
    (void)job;
    sem_post(&job_back);
}

static int setup(void **state)
{
    static trib_device device;
    alarm(60);
    device = (trib_device){.params = {.size = 1, .wake = wake, .engine = &engine, .complete = complete},
                           .driver = {.record_event = record_event,
                                      .query_event = query_event,
                                      .query_stream = query_stream,
                                      .wait_event = wait_event}};
    ended = NULL;
    atomic_store(&woken, 0);
    sem_init(&has_woken, 0, 0);
    sem_init(&job_back, 0, 0);
    sem_init(&copying, 0, 0);
    sem_init(&go_on, 0, 0);
    pthread_mutex_init(&device.mutex, NULL);
    pthread_cond_init(&device.changed, NULL);
    *state = &device;
    return pthread_create(&device.thread, NULL, cuda_thread_main, &device);
}

static int teardown(void **state)
{
    trib_device *device = *state;
    pthread_mutex_lock(&device->mutex);
    device->quits = true;
    pthread_cond_signal(&device->changed);
    pthread_mutex_unlock(&device->mutex);
    pthread_join(device->thread, NULL);
    for (cuda_slot *slot = device->free_slots, *next; slot != NULL; slot = next) {
        next = slot->next;
        free(slot);
    }
    alarm(0);
    return 0;
}

static void wait_until_it_sleeps(trib_device *device)
{
    for (bool sleeps = false; !sleeps; usleep(100)) {
        pthread_mutex_lock(&device->mutex);
        sleeps = device->asleep;
        pthread_mutex_unlock(&device->mutex);
    }
}

/* Submits a job as the device's function does. */
static void hand_in(trib_device *device, trib_device_job *job)
{
    pthread_mutex_lock(&device->mutex);
    device->new_head = device->new_tail = job;
    device->calls_come = device->calls_come || job->kind != TRIB_DEVICE_WAIT;
    cuda_thread_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
}

static void sleeping_thread_wakes_reactors(void **state)
{
    trib_device *device = *state;
    wait_until_it_sleeps(device);
    assert_true(cuda_thread_wake(device, 0x5, false));
    sem_wait(&has_woken);
    assert_int_equal(atomic_exchange(&woken, 0), 0x5);
    wait_until_it_sleeps(device);
    assert_true(cuda_thread_wake(device, 0x8, false));
    sem_wait(&has_woken);
    assert_int_equal(atomic_exchange(&woken, 0), 0x8); /* no reactor is woken twice */
}

/* A job that is handed over at any moment is done, whatever the thread was doing. */
static void thread_does_every_job_handed_over(void **state)
{
    trib_device *device = *state;
    for (int i = 0; i < 2000; i++) {
        const uint32_t reactor = 1u << i % 32;
        atomic_fetch_and(&woken, ~reactor);
        assert_true(cuda_thread_wake(device, reactor, false));
        while ((atomic_load(&woken) & reactor) == 0) {
            sem_wait(&has_woken);
        }
    }
}

/* Calls of CUDA may take long, and a job handed over meanwhile would have to wait. */
static void calling_thread_leaves_wakeups_to_callers(void **state)
{
    trib_device *device = *state;
    trib_device_job job = {.kind = TRIB_DEVICE_TO_HOST, .bytes = 1};
    wait_until_it_sleeps(device);
    hand_in(device, &job);
    sem_wait(&copying);
    assert_false(cuda_thread_wake(device, 1, false));
    sem_post(&go_on);
    sem_wait(&job_back);
    wait_until_it_sleeps(device);
    assert_int_equal(atomic_load(&woken), 0);
    assert_true(cuda_thread_wake(device, 1, false));
    sem_wait(&has_woken);
}

/* ... but not because it once made such calls. */
static void polling_thread_wakes_reactors(void **state)
{
    trib_device *device = *state;
    cuda_stream_marker marker = {.began = 0, .ended = 1};
    trib_device_job copy = {.kind = TRIB_DEVICE_TO_HOST, .bytes = 1};
    trib_device_job wait = {.kind = TRIB_DEVICE_WAIT, .marker = &marker};
    hand_in(device, &copy);
    sem_wait(&copying);
    sem_post(&go_on);
    sem_wait(&job_back);
    looked_at = device;
    wait_until_it_sleeps(device);
    atomic_store(&is_late, true);
    hand_in(device, &wait);
    while (atomic_load(&would_wake) + atomic_load(&would_not) < 100) {
        usleep(100);
    }
    atomic_store(&is_late, false);
    sem_wait(&job_back);
    assert_int_equal(atomic_load(&would_not), 0);
}

/* An urgent wake-up does not wait for the thread to wake up, unless the thread is woken anyway. */
static void urgent_wakeup_joins_a_pending_one(void **state)
{
    trib_device *device = *state;
    wait_until_it_sleeps(device);
    assert_false(cuda_thread_wake(device, 1, true));
    pthread_mutex_lock(&device->mutex);
    device->to_wake = 2; /* handed over, and not taken yet */
    pthread_mutex_unlock(&device->mutex);
    assert_true(cuda_thread_wake(device, 1, true));
    sem_wait(&has_woken);
    assert_int_equal(atomic_load(&woken), 3);
}

static void stopping_thread_leaves_wakeups_to_callers(void **state)
{
    trib_device *device = *state;
    pthread_mutex_lock(&device->mutex);
    device->stopping = true;
    cuda_thread_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
    assert_false(cuda_thread_wake(device, 1, false));
}

static void copy(trib_device *device, trib_device_job *job)
{
    hand_in(device, job);
    sem_wait(&copying);
    sem_post(&go_on);
    sem_wait(&job_back);
    wait_until_it_sleeps(device);
}

/* Memory of the device that a codec has dropped is given back at once, though no job comes. */
static void thread_frees_what_was_dropped(void **state)
{
    trib_device *device = *state;
    for (int i = 0; i < 200; i++) {
        atomic_store(&device->has_dropped, true);
        pthread_mutex_lock(&device->mutex);
        cuda_thread_signal_if_asleep(device);
        pthread_mutex_unlock(&device->mutex);
        while (atomic_load(&device->has_dropped)) {}
    }
}

/* From the last of its jobs on streams may wait for the operation. */
static void an_operation_ends_with_its_last_job(void **state)
{
    trib_device *device = *state;
    for (int fails = 0; fails < 2; fails++) {
        trib_device_end end = {.jobs_launched = 0};
        trib_device_job first = {.kind = TRIB_DEVICE_TO_DEVICE, .bytes = 1, .end = &end, .end_jobs = 2};
        trib_device_job last = first;
        cannot_end = fails == 1;
        ended = NULL;
        copy(device, &first);
        assert_null(ended);
        copy(device, &last);
        assert_ptr_equal(ended, &end);
        assert_int_equal(first.status, TRIB_OK);
        assert_int_equal(last.status, fails == 1 ? TRIB_SYSTEM : TRIB_OK);
    }
    cannot_end = false;
}

/* A job whose work behind a copy fails does not end at once: it keeps its memory as long as the GPU copies. */
static void failed_job_keeps_memory_until_its_copy_ends(void **state)
{
    trib_device *device = *state;
    for (int unmarked = 0; unmarked < 2; unmarked++) {
        trib_device_end end = {.jobs_launched = 0};
        trib_device_job job = {.kind = TRIB_DEVICE_TO_DEVICE, .bytes = 1, .end = &end, .end_jobs = 1};
        trib_device_job next = {.kind = TRIB_DEVICE_TO_HOST, .bytes = 1, .after = &job};
        atomic_int *asked = unmarked ? &asked_streams : &asked_events;
        cannot_record = unmarked == 1;
        cannot_end = unmarked == 0;
        atomic_store(asked, 0);
        atomic_store(&goes_on, true);
        hand_in(device, &job);
        sem_wait(&copying);
        sem_post(&go_on);
        while (atomic_load(asked) < 10) {
            usleep(100);
        }
        assert_int_not_equal(sem_trywait(&job_back), 0);
        hand_in(device, &next);
        sem_wait(&job_back);
        assert_int_equal(next.status, TRIB_SYSTEM);
        assert_int_not_equal(sem_trywait(&job_back), 0);
        atomic_store(&goes_on, false);
        sem_wait(&job_back);
        assert_int_equal(job.status, TRIB_SYSTEM);
        cannot_record = cannot_end = false;
    }
}

/* A copy behind a failed job would read bytes that are not there. */
static void no_copy_follows_a_failed_job(void **state)
{
    trib_device *device = *state;
    trib_device_job before = {.kind = TRIB_DEVICE_REDUCE_SCATTER, .status = TRIB_NO_MEMORY, .text = "no memory"};
    trib_device_job job = {.kind = TRIB_DEVICE_TO_HOST, .bytes = 1, .after = &before};
    hand_in(device, &job);
    sem_wait(&job_back);
    assert_int_equal(job.status, TRIB_NO_MEMORY);
    assert_string_equal(job.text, "no memory");
    wait_until_it_sleeps(device);
    before.status = TRIB_OK;
    copy(device, &job);
    assert_int_equal(job.status, TRIB_OK);
}

static void no_copy_follows_a_failed_wait(void **state)
{
    trib_device *device = *state;
    cuda_slot slot = {.issued = true};
    const trib_device_job before = {.kind = TRIB_DEVICE_REDUCE_SCATTER, .slot = &slot};
    trib_device_job job = {.kind = TRIB_DEVICE_TO_HOST, .bytes = 1, .after = &before};
    cannot_wait = true;
    hand_in(device, &job);
    sem_wait(&job_back);
    cannot_wait = false;
    assert_int_equal(job.status, TRIB_SYSTEM);
}

static void thread_rejects_a_job_without_memory(void **state)
{
    trib_device *device = *state;
    trib_device_job job = {.kind = TRIB_DEVICE_ALL_REDUCE};
    atomic_store(&no_memory, true);
    hand_in(device, &job);
    sem_wait(&job_back);
    wait_until_it_sleeps(device);
    atomic_store(&no_memory, false);
    assert_int_equal(job.status, TRIB_NO_MEMORY);
    assert_null(job.slot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sleeping_thread_wakes_reactors, setup, teardown),
        cmocka_unit_test_setup_teardown(thread_does_every_job_handed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(calling_thread_leaves_wakeups_to_callers, setup, teardown),
        cmocka_unit_test_setup_teardown(polling_thread_wakes_reactors, setup, teardown),
        cmocka_unit_test_setup_teardown(thread_frees_what_was_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(an_operation_ends_with_its_last_job, setup, teardown),
        cmocka_unit_test_setup_teardown(failed_job_keeps_memory_until_its_copy_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(no_copy_follows_a_failed_job, setup, teardown),
        cmocka_unit_test_setup_teardown(no_copy_follows_a_failed_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(urgent_wakeup_joins_a_pending_one, setup, teardown),
        cmocka_unit_test_setup_teardown(thread_rejects_a_job_without_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(stopping_thread_leaves_wakeups_to_callers, setup, teardown),
    };
    return cmocka_run_group_tests_name("the device's thread", tests, NULL, NULL);
}
