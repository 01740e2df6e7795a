/*
 * device_wrap.h - jobs on devices in plain memory: engines of one process stand for the local ranks of a few machines.
 * One source file of a program may include it.
 */
#ifndef TRIB_TESTS_LOOP_DEVICE_WRAP_H
#define TRIB_TESTS_LOOP_DEVICE_WRAP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/config/config.h"
#include "api/env/env_host.h"
#include "engine/device/device.h"
#include "tests/loop/job.h"

/* The machines' devices of the test that runs now, and how many are on one. */
static trib_host_world *world;
static int local_size;
static const trib_device_ops *watched; /* replaces the host devices' functions; NULL: no replacement */

trib_status __real_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);
trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);

trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error)
{
    trib_status status = __real_trib_env_host_init(env, config, error);
    env->device_world = world;
    env->device = watched != NULL && env->device != NULL ? watched : env->device;
    return status;
}

static inline void on_devices(trib_config *config, int member)
{
    config->device = "host";
    config->local_size = local_size;
    config->local_rank = config->rank < 0 ? 0 : member % local_size;
    config->reactors = 2;
}

static inline void open_job(job *jobs, int workers, int servers, int on_one, job_tweak tweak)
{
    world = trib_host_world_create();
    local_size = on_one;
    job_open(jobs, workers, servers, tweak);
}

static inline void close_job(job *jobs)
{
    job_close(jobs);
    trib_host_world_free(world);
}

/* Returns NULL if the call failed with `refusal`, which a job that has ended may return. */
static inline trib_tensor *declare_on_device(trib_engine *engine, const char *name, uint64_t count, int32_t priority,
                                             trib_status refusal)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = count;
    desc.priority = priority;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    const trib_status status = trib_tensor_declare(engine, &desc, &tensor, &error);
    if (status != TRIB_OK && status != refusal) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

/* Returns NULL if the call failed with `refusal`. */
static inline trib_op *push_pull_or(trib_engine *engine, trib_op_params *params, trib_status refusal)
{
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    const trib_status status = params->tensor != NULL ? trib_push_pull(engine, params, &op, &error) : refusal;
    if (status != TRIB_OK && status != refusal) {
        fail_msg("%s", error.text);
    }
    return op;
}

/* Sizes that leave slices uneven, shares empty, tensors empty. */
enum { TENSORS = 12 };
static const uint64_t counts[TENSORS] = {1, 2, 3, 5, 0, 4096, 4097, 16385, 50000, 99991, 131072, 262147};

static inline int32_t value(int round, int tensor, int rank, uint64_t i)
{
    return (int32_t)(i * 3) + rank * 1000 + tensor * 17 + round;
}

#endif
