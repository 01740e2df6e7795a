/*
 * test_next_owner.c - who sums after the loss of a server.
 *
 * A partition's next owner is lost, too, while a worker gives it the sum that the first one had handed out to some
 * (worker_orphan.h). The one after it asks anew, and all have the sum. And no tensor of a group that is created after a
 * loss is the lost server's.
 */
#include <stdlib.h>

#include "engine/worker/worker_orphan.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, SERVERS = 3, COUNT = 30000, TIMES = 60 };

static uint32_t given_to; /* the owner that a worker has last been asked to give a sum to; 0: none */

__typeof__(trib_orphan_resume) __real_trib_orphan_resume, __wrap_trib_orphan_resume;
trib_status __wrap_trib_orphan_resume(trib_link *link, const trib_frame *frame, trib_error *error)
{
    given_to = frame->round > 0 && link->peer >= WORKERS ? link->peer : given_to;
    return __real_trib_orphan_resume(link, frame, error);
}

static bool is_given(sim_job *job, void *unused)
{
    (void)job;
    (void)unused;
    return given_to != 0;
}

static bool all_done(sim_job *job, void *argument)
{
    const exchange *ops = argument;
    bool done = true;
    (void)job;
    for (uint32_t i = 0; i < WORKERS; i++) {
        done = done && ops[i].done > 0;
    }
    return done;
}

static int32_t *input_of(uint32_t rank)
{
    int32_t *values = malloc(COUNT * sizeof *values);
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = (int32_t)(i * (rank + 1));
    }
    return values;
}

static void end_with_sums(sim_job *job, exchange *ops)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(ops[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(ops[rank].buffer[i], i * 6);
        }
        free(ops[rank].buffer);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* Returns true if a sum was being given to the second one that dies. Chunks go one by one, so the copy has not left
 * when it dies. */
static bool next_owner_dies(uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
    config.seed = seed;
    config.link.egress_bits = config.link.ingress_bits = UINT64_C(100000000);
    config.net.unsent_bytes = 4096;
    config.net.window_bytes = 16384;
    config.engine.survive = TRIB_SURVIVE_SERVERS;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.push_credit_bytes = 4096;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 32768;
    sim_job *job = sim_bed_open(&config);
    exchange ops[WORKERS] = {{.buffer = NULL}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        ops[rank].buffer = input_of(rank);
        sim_bed_begin(job, rank, "a", COUNT, &ops[rank], 0, NULL);
    }
    given_to = 0;
    const int64_t began_ns = trib_sim_now(job->sim);
    (void)sim_job_run(job, began_ns + (int64_t)(seed * (SECOND / 2000)), NULL, NULL);
    sim_job_kill(job, WORKERS);
    const bool counts = sim_job_run(job, began_ns + 5 * SECOND, is_given, NULL);
    if (counts) {
        sim_job_kill(job, given_to);
    }
    if (!sim_job_run(job, began_ns + 100 * SECOND, all_done, ops)) {
        fail_msg("seed %llu: an operation hangs", (unsigned long long)seed);
    }
    end_with_sums(job, ops);
    return counts;
}

static void the_next_owner_is_lost_too(void **state)
{
    (void)state;
    uint32_t counted = 0;
    for (uint64_t seed = 1; seed <= TIMES; seed++) {
        counted += next_owner_dies(seed);
    }
    print_message("a sum was being given in %u of %u runs\n", counted, TIMES);
    assert_true(counted >= TIMES / 6);
}

static bool have_heard(sim_job *job, void *unused)
{
    bool all = true;
    (void)unused;
    for (uint32_t i = 0; i < WORKERS; i++) {
        all = all && atomic_load(&job->members[i].engine->losses.count) > 0;
    }
    return all;
}

static void begin_in_group(sim_job *job, uint32_t rank, exchange *what)
{
    static const int32_t ranks[] = {0, 1, 2};
    trib_engine *engine = job->members[rank].engine;
    trib_error error = {.status = TRIB_OK};
    trib_group_desc group;
    trib_group_desc_init(&group, sizeof group);
    group.name = "all";
    group.ranks = ranks;
    group.rank_count = WORKERS;
    trib_tensor_desc tensor;
    trib_tensor_desc_init(&tensor, sizeof tensor);
    tensor.name = "of the group";
    tensor.dtype = TRIB_INT32;
    tensor.count = COUNT;
    assert_int_equal(trib_group_create(engine, &group, &tensor.group, &error), TRIB_OK);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    assert_int_equal(trib_tensor_declare(engine, &tensor, &params.tensor, &error), TRIB_OK);
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    assert_int_equal(trib_push_pull(engine, &params, NULL, &error), TRIB_OK);
}

static void create_after_loss(trib_survive survive, bool is_drained)
{
    sim_job_config config = sim_job_config_default(WORKERS, 2);
    config.engine.survive = survive;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 8192;
    sim_job *job = sim_bed_open(&config);
    exchange ops[WORKERS] = {{.buffer = NULL}};
    if (is_drained) {
        assert_true(sim_job_drain(job, WORKERS));
    } else {
        sim_job_kill(job, WORKERS);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, have_heard, NULL));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        ops[rank].buffer = input_of(rank);
        begin_in_group(job, rank, &ops[rank]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, all_done, ops));
    end_with_sums(job, ops);
}

static void a_group_is_created_after_a_loss(void **state)
{
    (void)state;
    for (int is_drained = 0; is_drained < 2; is_drained++) {
        create_after_loss(TRIB_SURVIVE_SERVERS, is_drained != 0);
        create_after_loss(TRIB_SURVIVE_WORKERS, is_drained != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_owner_is_lost_too),
        cmocka_unit_test(a_group_is_created_after_a_loss),
    };
    return cmocka_run_group_tests_name("next owner", tests, NULL, NULL);
}
