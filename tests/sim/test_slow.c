/* test_slow.c - cores that share slow links share one credit, in virtual time (egress.h). */
#include <stdlib.h>

#include "engine/core.h"
#include "tests/sim/sim_bed.h"

#define LINK_BITS UINT64_C(200000000)

enum { WORKERS = 4, REACTORS = 4, COUNT = 1 << 20, CREDIT = 1 << 20, CHUNK = 64 << 10 };

static void find_slow(const sim_job *job)
{
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            engine->cores[k].transport->is_slow = true;
        }
    }
}

typedef struct watch {
    exchange exchanges[WORKERS];
    uint64_t most; /* that a worker's core had with the transport at once */
} watch;

static bool watch_all(sim_job *job, void *argument)
{
    watch *self = argument;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            const uint64_t now = engine->cores[k].egress[0].in_flight;
            self->most = now > self->most ? now : self->most;
        }
    }
    return sim_bed_all_done(job, self->exchanges);
}

/* The most that is handed over at a time. */
static uint64_t most_at_once(bool slow)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.link.egress_bits = config.link.ingress_bits = LINK_BITS;
    config.engine.reactors = REACTORS;
    config.net.window_bytes = 64 << 10;
    config.net.unsent_bytes = 16 << 10;
    sim_job *job = sim_bed_open(&config);
    if (slow) {
        find_slow(job);
    }
    watch self = {.most = 0};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        self.exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        for (uint32_t i = 0; i < COUNT; i++) {
            self.exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
        sim_bed_submit(job, rank, "tensor", COUNT, &self.exchanges[rank], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, watch_all, &self));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(self.exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(self.exchanges[rank].buffer[i], WORKERS * (WORKERS - 1) / 2 + WORKERS * i);
        }
        free(self.exchanges[rank].buffer);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    return self.most;
}

/* Each core has a quarter of the tensor, as much as its own credit would be. The last chunk may exceed what it has. */
static void cores_share_one_credit(void **state)
{
    (void)state;
    assert_true(most_at_once(false) > CREDIT / REACTORS + CHUNK);
    assert_in_range(most_at_once(true), 1, CREDIT / REACTORS + CHUNK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cores_share_one_credit)};
    return cmocka_run_group_tests_name("slow", tests, NULL, NULL);
}
