/* test_slow.c - the engine's behaviour on links that were found to be slow (egress.h, load_report.h, tensor.c), in
 * virtual time. */
#include <stdlib.h>
#include <string.h>

#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

#define LINK_BITS UINT64_C(200000000)

enum { WORKERS_MAX = 6, CREDIT = 1 << 20, CHUNK = 64 << 10 };

static sim_job *open_job(uint32_t workers, uint32_t servers, uint32_t reactors, bool is_slow)
{
    sim_job_config config = sim_job_config_default(workers, servers);
    config.link.egress_bits = config.link.ingress_bits = LINK_BITS;
    config.engine.reactors = reactors;
    config.engine.shares = TRIB_SHARES_FOLLOW;
    config.net.quantum_bytes = 16 << 10;
    config.net.window_bytes = 64 << 10;
    config.net.unsent_bytes = 64 << 10;
    sim_job *job = sim_bed_open(&config);
    if (is_slow) {
        sim_bed_find_slow(job, true);
    }
    return job;
}

typedef struct round_of {
    exchange exchanges[WORKERS_MAX]; /* sim_bed_all_done reads them */
    uint64_t most;                   /* most bytes that a worker's core had with the transport at once */
} round_of;

static bool watch_all(sim_job *job, void *argument)
{
    round_of *self = argument;
    for (uint32_t i = 0; i < job->config.workers; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            const uint64_t now = engine->cores[k].host.scheduler.networks[0].in_flight;
            self->most = now > self->most ? now : self->most;
        }
    }
    return sim_bed_all_done(job, self->exchanges);
}

/* Sums the tensor once. Returns how long that took, and the most bytes that were with the transport. */
static int64_t sum(sim_job *job, const char *name, uint32_t count, uint64_t *most_out)
{
    const uint32_t workers = job->config.workers;
    const int64_t from_ns = trib_sim_now(job->sim);
    round_of self = {.most = 0};
    for (uint32_t rank = 0; rank < workers; rank++) {
        self.exchanges[rank].buffer = calloc(count, sizeof(int32_t));
        for (uint32_t i = 0; i < count; i++) {
            self.exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
        sim_bed_submit(job, rank, name, count, &self.exchanges[rank], 0);
    }
    assert_true(sim_job_run(job, from_ns + 60 * SECOND, watch_all, &self));
    const int64_t took_ns = trib_sim_now(job->sim) - from_ns;
    for (uint32_t rank = 0; rank < workers; rank++) {
        assert_int_equal(self.exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(self.exchanges[rank].buffer[i], workers * (workers - 1) / 2 + workers * i);
        }
        free(self.exchanges[rank].buffer);
    }
    if (most_out != NULL) {
        *most_out = self.most;
    }
    return took_ns;
}

static void end(sim_job *job)
{
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

/* Returns the most bytes that are with the transport at once, for a tensor of 4 MiB. */
static uint64_t most_at_once(uint32_t reactors, bool is_slow)
{
    sim_job *job = open_job(4, 1, reactors, is_slow);
    uint64_t most = 0;
    sum(job, "tensor", 1 << 20, &most);
    end(job);
    return most;
}

/* Each core has a quarter of the tensor, as much as its own credit would be. The last chunk may exceed the credit. */
static void cores_share_one_credit(void **state)
{
    (void)state;
    assert_true(most_at_once(4, false) > CREDIT / 4 + CHUNK);
    assert_in_range(most_at_once(4, true), 1, CREDIT / 4 + CHUNK);
}

/* Eight chunks in flight are enough. */
static void little_is_on_its_way(void **state)
{
    (void)state;
    assert_true(most_at_once(1, false) >= CREDIT);
    assert_in_range(most_at_once(1, true), 1, 8 * (CHUNK + TRIB_HEADER_SIZE));
}

/* The amount in flight is restored when the links are no longer slow. */
static void recovered_link_gets_its_credit_back(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    sim_job *job = open_job(4, 1, 4, true);
    uint64_t most[3];
    sum(job, "tensor", COUNT, &most[0]);
    sim_bed_find_slow(job, false);
    sum(job, "tensor", COUNT, &most[1]);
    sim_bed_find_slow(job, true);
    sum(job, "tensor", COUNT, &most[2]);
    assert_in_range(most[0], 1, CREDIT / 4 + CHUNK);
    assert_true(most[1] > CREDIT / 4 + CHUNK);
    assert_in_range(most[2], 1, CREDIT / 4 + CHUNK);
    end(job);
}

static const trib_tensor *tensor_of(const sim_job *job, const char *name)
{
    const trib_engine *engine = job->members[1].engine;
    uint32_t i = 0;
    while (strcmp(engine->tensors[i]->name, name) != 0) {
        i++;
    }
    return engine->tensors[i];
}

/* Returns a time as a multiple of the least possible one. */
static double over_least(const sim_job *job, int64_t took_ns, uint32_t count)
{
    const double rate = (double)LINK_BITS * job->config.net.goodput / 8 / 1e9;
    return (double)took_ns * rate / ((double)count * sizeof(int32_t) * job->members[0].engine->roster->t_opt_factor);
}

/* With 5 workers and 3 servers: a tensor declared on slow links is cut as fine as is useful. A tensor declared earlier
 * finishes sooner, too. */
static void the_end_is_short(void **state)
{
    (void)state;
    enum { EARLY = (10 << 20) / 4, LATE = (2 << 20) / 4, LITTLE = 102400 / 4 };
    double early[2], late[2];
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        sim_job *job = open_job(5, 3, 1, is_slow != 0);
        early[is_slow] = over_least(job, sum(job, "early", EARLY, NULL), EARLY);
        late[is_slow] = over_least(job, sum(job, "late", LATE, NULL), LATE);
        sum(job, "little", LITTLE, NULL);
        assert_int_equal(tensor_of(job, "early")->partition_bytes, 64 << 10);
        assert_int_equal(tensor_of(job, "late")->partition_bytes, is_slow ? 16 << 10 : 64 << 10);
        assert_int_equal(tensor_of(job, "little")->partition_bytes, is_slow ? 8 << 10 : 32 << 10);
        end(job);
    }
    print_message("# 10 MiB: %.3f, slow: %.3f; 2 MiB: %.3f, slow: %.3f of the least time\n", early[0], early[1],
                  late[0], late[1]);
    assert_true(early[1] < early[0] && early[1] < 1.11);
    assert_true(late[1] < late[0] && late[1] < 1.3);
}

/* With 6 workers and 2 servers: two full links of eight would stand out if the others seemed idle. A worker's link to a
 * peer with a small share seems idle if credit is little and only credited bytes count. */
static void equal_links_stay_as_they_are(void **state)
{
    (void)state;
    enum { COUNT = (10 << 20) / 4, ROUNDS = 40 };
    sim_job *job = open_job(6, 2, 1, true);
    sum(job, "early", COUNT, NULL);
    sum(job, "tensor", COUNT, NULL);
    const trib_tensor *tensor = tensor_of(job, "tensor");
    assert_int_equal(tensor->partition_bytes, 32 << 10);
    const size_t size = tensor->partition_count * sizeof *tensor->owners;
    trib_place_owner *before = malloc(size);
    assert_non_null(before);
    memcpy(before, tensor->owners, size);
    for (uint32_t round = 1; round < ROUNDS; round++) {
        sum(job, "tensor", COUNT, NULL);
    }
    assert_memory_equal(tensor->owners, before, size);
    free(before);
    end(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_share_one_credit),
        cmocka_unit_test(little_is_on_its_way),
        cmocka_unit_test(recovered_link_gets_its_credit_back),
        cmocka_unit_test(the_end_is_short),
        cmocka_unit_test(equal_links_stay_as_they_are),
    };
    return cmocka_run_group_tests_name("slow", tests, NULL, NULL);
}
