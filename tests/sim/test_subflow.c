/* test_subflow.c - members with several links, in virtual time: bytes take the link that has room (link_subflow.h). */
#include <stdio.h>
#include <stdlib.h>

#include "engine/link/link_subflow.h"
#include "tests/sim/sim_bed.h"

#define LINK_BITS UINT64_C(1000000000)

enum { WORKERS = 4, COUNT = 8 << 20 };

static sim_job_config two_links(uint32_t servers, uint32_t reactors, uint64_t second_bits)
{
    sim_job_config config = sim_job_config_default(WORKERS, servers);
    config.link.egress_bits = config.link.ingress_bits = LINK_BITS;
    config.further[0] = config.link;
    config.further[0].egress_bits = config.further[0].ingress_bits = second_bits;
    config.net.window_bytes = 128 << 10;
    config.net.unsent_bytes = 64 << 10;
    config.engine.reactors = reactors;
    return config;
}

/* Returns how long a late round takes, as a multiple of the tensor's time over one first link. */
static double settled(const sim_job_config *config)
{
    enum { ROUNDS = 3 };
    sim_job *job = sim_bed_open(config);
    exchange exchanges[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
    }
    int64_t from_ns = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        from_ns = trib_sim_now(job->sim);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            for (uint32_t i = 0; i < COUNT; i++) {
                exchanges[rank].buffer[i] = (int32_t)(i + rank);
            }
            exchanges[rank].done = 0;
            sim_bed_submit(job, rank, "tensor", COUNT, &exchanges[rank], 0);
        }
        assert_true(sim_job_run(job, from_ns + 60 * SECOND, sim_bed_all_done, exchanges));
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(exchanges[rank].status, TRIB_OK);
            for (uint32_t i = 0; i < COUNT; i += 997) {
                assert_int_equal(exchanges[rank].buffer[i], WORKERS * (WORKERS - 1) / 2 + WORKERS * i);
            }
        }
    }
    const double took_ns = (double)(trib_sim_now(job->sim) - from_ns);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(exchanges[rank].buffer);
    }
    return took_ns / (COUNT * sizeof(int32_t) * 8.0 / (double)LINK_BITS / config->net.goodput * 1e9);
}

/* Every second link is as fast as the first, or carries half or a quarter of it, and no configuration says so. If bytes
 * were divided equally, the slow link would take half of them: 1, 1.5 or 2.5 times the least time. */
static void subflow_with_room_takes_the_bytes(void **state)
{
    (void)state;
    for (uint32_t servers = 0; servers <= 4; servers += 4) {
        for (uint32_t reactors = 1; reactors <= 2; reactors++) {
            for (uint32_t part = 1; part <= 4; part *= 2) {
                const sim_job_config config = two_links(servers, reactors, LINK_BITS / part);
                const double least = (servers == 0 ? 1.5 : 1.0) / (1.0 + 1.0 / part), took = settled(&config);
                print_message("# %u servers, %u reactors, second link 1/%u: %.3f of the least time\n", servers,
                              reactors, part, took / least);
                assert_true(took < 1.4 * least);
            }
        }
    }
}

/* Three further links carry a half, a quarter and an eighth. An address list holds four. */
static void four_links(void **state)
{
    (void)state;
    sim_job_config config = two_links(4, 1, LINK_BITS / 2);
    for (uint32_t i = 1; i < TRIB_SIM_NETWORKS_MAX - 1; i++) {
        config.further[i] = config.further[i - 1];
        config.further[i].egress_bits = config.further[i].ingress_bits = config.further[i - 1].egress_bits / 2;
    }
    const double least = 1.0 / 1.875, took = settled(&config);
    print_message("# four links: %.3f of the least time\n", took / least);
    assert_true(took < 1.5 * least);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(subflow_with_room_takes_the_bytes),
        cmocka_unit_test(four_links),
    };
    return cmocka_run_group_tests_name("subflows", tests, NULL, NULL);
}
