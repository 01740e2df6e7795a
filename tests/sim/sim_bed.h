/* sim_bed.h - shared parts of the tests of whole jobs in virtual time: a job that has formed, and int32 sums in it. */
#ifndef TRIB_TESTS_SIM_BED_H
#define TRIB_TESTS_SIM_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/core/core.h"
#include "tools/study/step.h"

#define SECOND INT64_C(1000000000)

typedef struct exchange {
    int32_t *buffer;
    trib_reduce reduce;
    uint32_t done;
    trib_status status;
    int64_t at_ns;
    int64_t timeout_ns; /* on a device: of the operation; 0: none */
} exchange;

static inline void sim_bed_on_done(const trib_result *result, void *user)
{
    exchange *self = user;
    self->done++;
    self->status = result->status;
}

static inline sim_job *sim_bed_open(const sim_job_config *config)
{
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(config, &error);
    if (job == NULL) {
        fail_msg("%s", error.text);
        return NULL; /* not reached; for analysers that do not know fail_msg */
    }
    if (!sim_job_run(job, 30 * SECOND, sim_job_all_ready, NULL)) {
        fail_msg("did not join: %s", job->members[0].ready.text);
    }
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (job->members[i].ready.status != TRIB_OK) {
            fail_msg("member %u: %s", i, job->members[i].ready.text);
        }
    }
    return job;
}

static inline trib_tensor *sim_bed_declare(sim_job *job, uint32_t rank, const char *name, uint32_t count)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = count;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_tensor_declare(job->members[rank].engine, &desc, &tensor, &error), TRIB_OK);
    return tensor;
}

/* op_out may be NULL. */
static inline void sim_bed_begin(sim_job *job, uint32_t rank, const char *name, uint32_t count, exchange *what,
                                 int32_t priority, trib_op **op_out)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = sim_bed_declare(job, rank, name, count);
    params.reduce = what->reduce;
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    params.priority = priority;
    params.has_priority = true;
    assert_int_equal(trib_push_pull(job->members[rank].engine, &params, op_out, &error), TRIB_OK);
}

static inline void sim_bed_submit(sim_job *job, uint32_t rank, const char *name, uint32_t count, exchange *what,
                                  int32_t priority)
{
    sim_bed_begin(job, rank, name, count, what, priority, NULL);
}

/* Tells every reactor that its network is slow, as TCP would find out, or that it no longer is. */
static inline void sim_bed_find_slow(const sim_job *job, bool is_slow)
{
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            engine->cores[k].host.transport->is_slow = is_slow;
        }
    }
}

/* Submits an operation on a tensor of count int32 on the rank's device. A root below 0 makes it a sum. Returns the
 * error if the engine rejects it. */
static inline trib_status sim_bed_hand_in_on_device(sim_job *job, uint32_t rank, uint32_t count, int32_t root,
                                                    exchange *what)
{
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "on the device";
    desc.dtype = TRIB_INT32;
    desc.count = count;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    params.timeout_ns = what->timeout_ns > 0 ? what->timeout_ns : -1;
    params.root = root < 0 ? 0 : root;
    trib_engine *engine = job->members[rank].engine;
    const trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, &error);
    return status != TRIB_OK ? status : (root < 0 ? trib_push_pull : trib_broadcast)(engine, &params, NULL, &error);
}

static inline bool sim_bed_all_done(sim_job *job, void *argument)
{
    const exchange *exchanges = argument;
    for (uint32_t i = 0; i < job->config.workers; i++) {
        if (exchanges[i].done == 0) {
            return false;
        }
    }
    return true;
}

#endif
