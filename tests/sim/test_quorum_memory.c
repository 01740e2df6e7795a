/* test_quorum_memory.c - decisions of a quorum (TRIB_QUORUM) for which the coordinator or a server has no memory: the
 * job goes on, and all of an operation's partitions have the same contributors. */
#include <stdlib.h>

#include "engine/membership/coordinator_internal.h"
#include "engine/membership/quorums.h"
#include "engine/server/quorum.h"
#include "engine/server/server_tensor.h"
#include "tests/sim/quorum_bed.h"
#include "tests/sim/sim_bed.h"

static bool is_deciding; /* the next allocation fails */

__typeof__(calloc) __real_calloc, __wrap_calloc;
void *__wrap_calloc(size_t count, size_t size)
{
    const bool fails = is_deciding;
    is_deciding = false;
    return fails ? NULL : __real_calloc(count, size);
}

/* The next one of these finds no memory. */
static enum { NOTHING, A_CALL, AN_ASK, A_RECORD, A_SET } lacking;
static uint32_t spared; /* so many find memory before that */

static void begin_deciding(bool is_one)
{
    is_deciding = is_one && spared == 0;
    spared -= is_one && spared > 0;
    lacking = is_deciding ? NOTHING : lacking;
}

__typeof__(trib_quorums_take) __real_trib_quorums_take, __wrap_trib_quorums_take;
trib_status __wrap_trib_quorums_take(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                     const void *payload, trib_error *error)
{
    begin_deciding(lacking == A_CALL && frame->type == TRIB_FRAME_QUORUM_CALL);
    const trib_status status = __real_trib_quorums_take(self, member, frame, payload, error);
    is_deciding = false;
    return status;
}

__typeof__(trib_quorum_take) __real_trib_quorum_take, __wrap_trib_quorum_take;
trib_status __wrap_trib_quorum_take(trib_engine *engine, const trib_frame *frame, const void *payload,
                                    trib_error *error)
{
    begin_deciding(lacking == (frame->type == TRIB_FRAME_QUORUM_ASK ? AN_ASK : A_SET));
    const trib_status status = __real_trib_quorum_take(engine, frame, payload, error);
    is_deciding = false;
    return status;
}

/* A server looks whether a tensor has a quorum before it makes a record of the decision. */
__typeof__(trib_server_quorum) __real_trib_server_quorum, __wrap_trib_server_quorum;
uint32_t __wrap_trib_server_quorum(const trib_core *core, uint32_t id, int64_t *timeout_ns_out)
{
    if (lacking == A_RECORD && timeout_ns_out == NULL) {
        begin_deciding(true);
    }
    return __real_trib_server_quorum(core, id, timeout_ns_out);
}

static bool are_two_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *all = argument;
    return all[0].done > 0 && all[1].done > 0;
}

static sim_job *begin_scarce(uint32_t servers, uint32_t count, int32_t *buffers, exchange all[3])
{
    sim_job_config config = sim_job_config_default(3, servers);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = 1000000;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.partition_bytes = config.engine.chunk_bytes = 16384;
    sim_job *job = sim_bed_open(&config);
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = &buffers[i * count]};
        for (uint32_t k = 0; k < count; k++) {
            buffers[i * count + k] = (int32_t)(i + 1);
        }
    }
    assert_non_null(sim_bed_declare(job, 2, "scarce", count));
    sim_bed_begin(job, 0, "scarce", count, &all[0], 0, NULL);
    sim_bed_begin(job, 1, "scarce", count, &all[1], 0, NULL);
    return job;
}

static void end_scarce(sim_job *job, uint32_t count, const int32_t *buffers, exchange all[3], int32_t sum)
{
    assert_int_equal(lacking, NOTHING);
    sim_bed_begin(job, 2, "scarce", count, &all[2], 0, NULL);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        for (uint32_t k = 0; k < count; k++) {
            assert_int_equal(buffers[i * count + k], sum);
        }
    }
    assert_true(quorum_has_no_records(job, NULL));
    assert_true(sim_job_close(job, 60 * SECOND));
    assert_null(job->members[3].engine->quorum_walks);
    sim_job_free(job);
}

/* The coordinator has no memory to ask who has begun the round, or the only server none to answer, or to hear the
 * decision. If that is not possible later it is decided anew, and the operation goes on. */
static void no_memory_for_a_while(void **state)
{
    (void)state;
    for (uint32_t i = A_CALL; i <= A_SET; i++) {
        exchange all[3];
        int32_t buffers[3];
        lacking = i;
        sim_job *job = begin_scarce(1, 1, buffers, all);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, are_two_done, all));
        end_scarce(job, 1, buffers, all, 3);
    }
}

/* One of two servers has no memory to keep late workers out, and the other one has. Both wait for all workers. */
static void no_memory_on_one_of_two(void **state)
{
    (void)state;
    enum { COUNT = 8192 };
    for (uint32_t i = 0; i < 4; i++) {
        exchange all[3];
        static int32_t buffers[3 * COUNT];
        lacking = i / 2 == 0 ? AN_ASK : A_RECORD;
        spared = i % 2;
        sim_job *job = begin_scarce(2, COUNT, buffers, all);
        assert_false(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_is_any_done, all));
        end_scarce(job, COUNT, buffers, all, 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_for_a_while),
        cmocka_unit_test(no_memory_on_one_of_two),
    };
    return cmocka_run_group_tests_name("quorums without memory", tests, NULL, NULL);
}
