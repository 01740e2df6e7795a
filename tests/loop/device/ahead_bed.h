/*
 * ahead_bed.h - sums on devices in plain memory that count their jobs and wake-ups, and can hold or fail a copy that is
 * started early. One source file of a program may include it.
 */
#ifndef TRIB_TESTS_LOOP_AHEAD_BED_H
#define TRIB_TESTS_LOOP_AHEAD_BED_H

#include <pthread.h>
#include <unistd.h>

#include "engine/reactor/reactor.h"
#include "tests/loop/device/device_wrap.h"

enum { RANKS_MAX = 4, AHEAD_BYTES = 1 << 20 };

/* ---- Jobs of the devices ---- */

static trib_device_ops ops;
static pthread_t caller;

static struct {
    pthread_mutex_t mutex;
    int ahead, waits;                /* jobs that the calling thread submitted */
    uint64_t ahead_bytes, all_bytes; /* bytes copied to the host */
    bool fails, holds;               /* applies to the next copy that is started early */
    bool lets_go_late;               /* the held copy goes on when the next bytes are about to go to its device */
    trib_device_job *held;
    trib_device *held_by;
} seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Lets the held copy of a device go on; NULL: of any device. */
static inline void let_go(const trib_device *of)
{
    pthread_mutex_lock(&seen.mutex);
    trib_device_job *one = of == NULL || seen.held_by == of ? seen.held : NULL;
    trib_device *device = seen.held_by;
    seen.held = one != NULL ? NULL : seen.held;
    pthread_mutex_unlock(&seen.mutex);
    if (one != NULL) {
        trib_device_host_ops.submit(device, one);
    }
}

static inline bool is_held(void)
{
    pthread_mutex_lock(&seen.mutex);
    const bool is = seen.held != NULL;
    pthread_mutex_unlock(&seen.mutex);
    return is;
}

static inline void watch(trib_device *device, trib_device_job *one)
{
    const bool is_callers = pthread_equal(pthread_self(), caller) != 0;
    bool fails = false, holds = false;
    pthread_mutex_lock(&seen.mutex);
    const bool lets_go = one->kind == TRIB_DEVICE_TO_DEVICE && seen.lets_go_late && seen.held_by == device;
    seen.all_bytes += one->kind == TRIB_DEVICE_TO_HOST ? one->bytes : 0;
    seen.waits += is_callers && one->kind == TRIB_DEVICE_WAIT;
    if (is_callers && one->kind == TRIB_DEVICE_TO_HOST) {
        seen.ahead++;
        seen.ahead_bytes += one->bytes;
        fails = seen.fails;
        holds = seen.holds;
        seen.fails = seen.holds = false;
    }
    if (holds) {
        seen.held = one;
        seen.held_by = device;
    }
    pthread_mutex_unlock(&seen.mutex);
    if (lets_go) {
        let_go(device);
    }
    if (fails) {
        one->status = TRIB_SYSTEM;
        snprintf(one->text, sizeof one->text, "a fault of the test's");
        trib_reactor_post(one->reactor, &one->post);
    } else if (!holds) {
        trib_device_host_ops.submit(device, one);
    }
}

/* The held job is returned too, as all jobs are when the device stops. */
static inline void stop(trib_device *device, bool orderly)
{
    trib_device_host_ops.stop(device, orderly);
    let_go(device);
}

/* ---- Wake-ups ---- */

static struct {
    pthread_mutex_t mutex;
    int calls;
    uint32_t reactors;
    bool hurries;
    bool refuses;
} wakes = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static inline bool wake(trib_device *device, uint32_t reactors, bool hurries)
{
    pthread_mutex_lock(&wakes.mutex);
    wakes.calls++;
    wakes.reactors = reactors;
    wakes.hurries = hurries;
    const bool takes = !wakes.refuses;
    pthread_mutex_unlock(&wakes.mutex);
    return takes && trib_device_host_ops.wake(device, reactors, hurries);
}

static inline void forget(void)
{
    pthread_mutex_lock(&seen.mutex);
    seen.ahead = seen.waits = 0;
    seen.ahead_bytes = seen.all_bytes = 0;
    pthread_mutex_unlock(&seen.mutex);
}

static inline void expect(int ahead, uint64_t ahead_bytes, uint64_t all_bytes)
{
    pthread_mutex_lock(&seen.mutex);
    assert_int_equal(seen.ahead, ahead);
    assert_int_equal(seen.ahead_bytes, ahead_bytes);
    assert_int_equal(seen.all_bytes, all_bytes);
    pthread_mutex_unlock(&seen.mutex);
}

/* ---- Sums ---- */

typedef struct bed {
    job jobs;
    int ranks;
    uint64_t count;
    trib_tensor *tensors[RANKS_MAX];
    int32_t *data[RANKS_MAX];
    trib_op *ops[RANKS_MAX];
} bed;

static inline void bed_open_with(bed *self, int ranks, int servers, int on_one, uint64_t count, job_tweak tweak)
{
    caller = pthread_self();
    ops = trib_device_host_ops;
    ops.submit = watch;
    ops.stop = stop;
    ops.wake = wake;
    watched = &ops;
    pthread_mutex_lock(&seen.mutex); /* a failed case may have left something */
    seen.fails = seen.holds = seen.lets_go_late = false;
    seen.held = NULL;
    pthread_mutex_unlock(&seen.mutex);
    *self = (bed){.ranks = ranks, .count = count};
    open_job(&self->jobs, ranks, servers, on_one, tweak);
    for (int rank = 0; rank < ranks; rank++) {
        self->tensors[rank] = declare_on_device(self->jobs.engines[rank], "a tensor", count, 0, TRIB_OK);
        self->data[rank] = malloc(count * sizeof(int32_t) + 1);
    }
}

static inline void bed_open(bed *self, int ranks, int servers, int on_one, uint64_t count)
{
    bed_open_with(self, ranks, servers, on_one, count, on_devices);
}

static inline void bed_close(bed *self)
{
    close_job(&self->jobs);
    for (int rank = 0; rank < self->ranks; rank++) {
        free(self->data[rank]);
    }
    watched = NULL;
}

static inline void hand_in(bed *self, int round, int rank, void *stream)
{
    for (uint64_t i = 0; i < self->count; i++) {
        self->data[rank][i] = value(round, 0, rank, i);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[rank];
    params.input = params.output = self->data[rank];
    params.stream = stream;
    self->ops[rank] = push_pull_or(self->jobs.engines[rank], &params, TRIB_OK);
}

static inline void check(bed *self, int round)
{
    const int n = self->ranks;
    for (int rank = 0; rank < n; rank++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(self->ops[rank], &error) != TRIB_OK) {
            fail_msg("round %d, rank %d: %s", round, rank, error.text);
        }
        for (uint64_t i = 0; i < self->count; i++) {
            assert_int_equal(self->data[rank][i], value(round, 0, 0, i) * n + 1000 * n * (n - 1) / 2);
        }
    }
}

static inline void sum_all(bed *self, int round)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        hand_in(self, round, rank, NULL);
    }
    check(self, round);
}

#endif
