/* test_cuda_device.c - the calls of callers' threads into a device (stages/cuda/cuda_device.c), with stand-ins for
 * everything that it calls. The test needs no GPU, only CUDA's headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

const trib_device_ops *trib_device_cuda(void);

/* ---- CUDA, as far as the cases need it: an error is kept until it is read ---- */

static cudaError_t kept;
static bool no_memory, no_devices;
static unsigned stream_flags;
static int records;

static cudaError_t keep(cudaError_t code)
{
    kept = code != cudaSuccess ? code : kept;
    return code;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = kept;
    kept = cudaSuccess;
    return code;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = NULL;
    return keep(no_memory ? cudaErrorMemoryAllocation : cudaSuccess);
}

static void (*meanwhile)(void); /* runs while an event is recorded, as another thread would */

static CUresult record_event(CUevent event, CUstream stream)
{
    void (*does)(void) = meanwhile;
    (void)event;
    (void)stream;
    records++;
    meanwhile = NULL;
    if (does != NULL) {
        does();
    }
    return CUDA_SUCCESS;
}

/* No work was put on this stream, whatever the default stream does. */
static CUresult query_stream(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult get_flags(CUstream stream, unsigned *flags)
{
    (void)stream;
    *flags = stream_flags;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return keep(no_devices ? cudaErrorNoDevice : cudaSuccess);
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "";
}

/* ---- Functions that these cases never reach ---- */

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned flags)
{
    (void)ptr;
    (void)size;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr)
{
    (void)ptr;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    (void)attributes;
    (void)ptr;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cuda_find_driver(const char *name, void *where)
{
    (void)name;
    (void)where;
    return cudaErrorNotSupported;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)value;
    (void)attribute;
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)stream;
    (void)flags;
    (void)priority;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *pci, int len, int device)
{
    (void)pci;
    (void)len;
    (void)device;
    return cudaSuccess;
}

cudaError_t cuda_context_open(trib_device *device)
{
    (void)device;
    return cudaSuccess;
}

void cuda_context_close(trib_device *device)
{
    (void)device;
}

cuda_context_guard cuda_context_enter(const trib_device *device)
{
    (void)device;
    return (cuda_context_guard){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
}

void cuda_context_leave(const trib_device *device, cuda_context_guard guard)
{
    (void)device;
    (void)guard;
}

trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_end *end, trib_error *error)
{
    (void)device;
    (void)stream;
    (void)end;
    (void)error;
    return TRIB_OK;
}

void cuda_marker_release(trib_device *device, cuda_stream_marker *marker)
{
    (void)device;
    free(marker);
}

void cuda_ends_free(trib_device *device)
{
    (void)device;
}

void cuda_comm_stop(trib_device *device)
{
    (void)device;
}

void *cuda_thread_main(void *argument)
{
    return argument;
}

bool cuda_nccl_reduces(trib_dtype dtype, trib_reduce reduce)
{
    (void)dtype;
    (void)reduce;
    return false;
}

bool cuda_thread_wake(trib_device *device, uint32_t reactors, bool hurries)
{
    (void)device;
    (void)reactors;
    (void)hurries;
    return false;
}

/* ---- Cases ---- */

static int setup(void **state)
{
    static trib_device device;
    device = (trib_device){.params = {.size = 1},
                           .driver = {.record_event = record_event,
                                      .query_stream = query_stream,
                                      .get_flags = get_flags,
                                      .is_capturing = is_capturing}};
    pthread_mutex_init(&device.mutex, NULL);
    pthread_cond_init(&device.changed, NULL);
    kept = cudaSuccess;
    no_memory = no_devices = false;
    stream_flags = cudaStreamNonBlocking;
    records = 0;
    meanwhile = NULL;
    *state = &device;
    return 0;
}

static trib_status mark(trib_device *device, uintptr_t stream, void **marker_out)
{
    trib_error error = {.status = TRIB_OK};
    return trib_device_cuda()->marker_record(device, (cudaStream_t)stream, marker_out, &error);
}

static void a_stream_that_does_nothing_has_come_to_the_call(void **state)
{
    void *made = &made;
    assert_int_equal(mark(*state, 16, &made), TRIB_OK);
    assert_null(made);
    assert_int_equal(records, 0);
}

/* A stream that is not independent of the default stream waits for the default stream's work, which it cannot see. */
static void a_stream_that_waits_for_the_default_one_has_not(void **state)
{
    const uintptr_t streams[] = {16, (uintptr_t)cudaStreamLegacy, (uintptr_t)cudaStreamPerThread, 0};
    stream_flags = cudaStreamDefault;
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        void *made = NULL;
        assert_int_equal(mark(*state, streams[i], &made), TRIB_OK);
        assert_non_null(made);
        assert_int_equal(records, i + 1);
        free(made);
    }
}

static trib_device *shared;
static void *between;

static void mark_it_too(void)
{
    assert_int_equal(mark(shared, 0, &between), TRIB_OK);
}

/* A marker is behind another one if its recording began when the other's was over. */
static void marks_know_which_is_behind_which(void **state)
{
    void *made[3];
    shared = *state;
    for (int i = 0; i < 3; i++) {
        meanwhile = i == 1 ? mark_it_too : NULL;
        assert_int_equal(mark(shared, 0, &made[i]), TRIB_OK);
    }
    const cuda_stream_marker *first = made[0], *second = made[1], *third = made[2], *inside = between;
    assert_true(second->began >= first->ended);
    assert_true(inside->began >= first->ended);
    assert_true(inside->began < second->ended);
    assert_true(second->began < inside->ended);
    assert_true(third->began >= second->ended);
    assert_true(third->began >= inside->ended);
    assert_true(first->began < third->ended);
    for (int i = 0; i < 3; i++) {
        free(made[i]);
    }
    free(between);
}

/* A program that asks CUDA for errors after its own calls would take the engine's error for one of its own. */
static void cuda_errors_are_not_left_to_the_caller(void **state)
{
    void *made = &made;
    trib_device *opened = NULL;
    trib_error error = {.status = TRIB_OK};
    const trib_device_params params = {.index = 0, .size = 1};
    no_memory = true;
    assert_int_equal(mark(*state, 0, &made), TRIB_NO_MEMORY);
    assert_null(made);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    no_devices = true;
    assert_int_equal(trib_device_cuda()->open(&params, &opened, &error), TRIB_UNSUPPORTED);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_stream_that_does_nothing_has_come_to_the_call, setup),
        cmocka_unit_test_setup(a_stream_that_waits_for_the_default_one_has_not, setup),
        cmocka_unit_test_setup(marks_know_which_is_behind_which, setup),
        cmocka_unit_test_setup(cuda_errors_are_not_left_to_the_caller, setup),
    };
    return cmocka_run_group_tests_name("a device, seen by callers", tests, NULL, NULL);
}
