/* test_shares.c - shares that follow what links carry, in virtual time; balance.h has what is learned of what. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

/* One server's link carries half of what the others' do, and nobody said so. */
static void slow_one(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const uint32_t *slow = job->config.user;
    (void)config;
    if (member == *slow) {
        link->egress_bits /= 2;
        link->ingress_bits /= 2;
    }
}

static int64_t one_round(sim_job *job, exchange *exchanges, uint32_t workers, uint32_t count)
{
    const int64_t from_ns = trib_sim_now(job->sim);
    for (uint32_t rank = 0; rank < workers; rank++) {
        for (uint32_t i = 0; i < count; i++) {
            exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
        exchanges[rank].done = 0;
        sim_bed_submit(job, rank, "tensor", count, &exchanges[rank], 0);
    }
    assert_true(sim_job_run(job, from_ns + 60 * SECOND, sim_bed_all_done, exchanges));
    const uint32_t base = workers * (workers - 1) / 2;
    for (uint32_t rank = 0; rank < workers; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < count; i += 997) {
            assert_int_equal(exchanges[rank].buffer[i], base + workers * i);
        }
    }
    return trib_sim_now(job->sim) - from_ns;
}

/* Shares follow what links carry: of four servers one is slow, or of four workers that sum one is. The least times are 1.0435
 * and 2 times what a link of the others takes for the tensor; equal shares take 2 and 3. */
static void shares_follow_a_slow_link(void **state)
{
    (void)state;
    enum { WORKERS = 4, COUNT = 4 << 20, ROUNDS = 40 };
    const struct {
        uint32_t servers, slow;
        double least;
    } cases[] = {{4, 5, 1.0435}, {0, 1, 2.0}};
    for (size_t which = 0; which < 2; which++) {
        sim_job_config config = sim_job_config_default(WORKERS, cases[which].servers);
        config.link.egress_bits = config.link.ingress_bits = UINT64_C(1000000000);
        config.net.window_bytes = config.net.unsent_bytes = 128 << 10;
        config.tweak = slow_one;
        config.engine.shares = TRIB_SHARES_FOLLOW;
        uint32_t slow = cases[which].slow;
        config.user = &slow;
        sim_job *job = sim_bed_open(&config);
        exchange exchanges[WORKERS] = {{0}};
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        }
        int64_t first_ns = 0, last_ns = 0;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            last_ns = one_round(job, exchanges, WORKERS, COUNT);
            first_ns = round == 0 ? last_ns : first_ns;
        }
        const double link_ns = COUNT * sizeof(int32_t) * 8.0;
        print_message("# slow member %u: %.3f, then %.3f of the least time\n", slow,
                      (double)first_ns / link_ns / cases[which].least, (double)last_ns / link_ns / cases[which].least);
        assert_true((double)last_ns < 0.8 * (double)first_ns);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            free(exchanges[rank].buffer);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_a_slow_link),
    };
    return cmocka_run_group_tests_name("shares", tests, NULL, NULL);
}
