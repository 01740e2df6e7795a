/* test_damage.c - messages that are damaged on their way cost a connection, and no operation, in virtual time. */
#include <stdlib.h>
#include <string.h>

#include "engine/link/link_checksum.h"
#include "tests/sim/sim_bed.h"

#define RATE UINT64_C(100000000)

enum { WORKERS = 2, COUNT = 100000, SUMS = 20 };

static sim_job *open_job(uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.seed = seed;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.engine.op_timeout_ns = 100 * SECOND;
    config.engine.checksum = TRIB_CHECKSUM_ON;
    config.link.egress_bits = config.link.ingress_bits = RATE;
    return sim_bed_open(&config);
}

static uint64_t count(const sim_job *job, bool damages)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            const trib_core_stats *stats = &engine->cores[k].stats;
            sum += trib_counter_get(damages ? &stats->payloads_damaged : &stats->reconnections);
        }
    }
    return sum;
}

static void begin(sim_job *job, exchange exchanges[WORKERS])
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
        for (uint32_t i = 0; i < COUNT; i++) {
            exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
        sim_bed_submit(job, rank, "sum", COUNT, &exchanges[rank], 0);
    }
}

static void free_buffers(const exchange exchanges[WORKERS])
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(exchanges[rank].buffer);
    }
}

/* One bit flips in one of 20 messages: of headers, payloads and handshakes. */
static void flips_cost_no_operation(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        sim_job *job = open_job(seed);
        trib_sim_net_weather(job->net, &(trib_sim_weather){.flip_one_in = 20});
        for (uint32_t k = 0; k < SUMS; k++) {
            exchange exchanges[WORKERS];
            begin(job, exchanges);
            assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, sim_bed_all_done, exchanges));
            for (uint32_t rank = 0; rank < WORKERS; rank++) {
                assert_int_equal(exchanges[rank].status, TRIB_OK);
                for (uint32_t i = 0; i < COUNT; i++) {
                    assert_int_equal(exchanges[rank].buffer[i], WORKERS * (WORKERS - 1) / 2 + WORKERS * i);
                }
            }
            free_buffers(exchanges);
        }
        trib_sim_net_weather(job->net, &(trib_sim_weather){.flip_one_in = 0});
        assert_true(count(job, true) > SUMS);
        assert_true(count(job, false) > SUMS);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

/* Little goes over a link of a job that stands idle, and what was damaged has no other frames behind it to repeat. */
static void flips_cost_no_idle_job(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        sim_job *job = open_job(seed);
        assert_true(sim_job_run(job, 10 * SECOND, sim_job_all_ready, NULL));
        trib_sim_net_weather(job->net, &(trib_sim_weather){.flip_one_in = 4});
        sim_job_run(job, trib_sim_now(job->sim) + 90 * SECOND, NULL, NULL);
        for (uint32_t i = 0; i < job->member_count; i++) {
            assert_false(job->members[i].ended_told);
        }
        trib_sim_net_weather(job->net, &(trib_sim_weather){.flip_one_in = 0});
        assert_true(count(job, true) > TRIB_DAMAGES_MAX);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

static bool damages_pushes; /* of rank 1, each time */

__typeof__(trib_link_checksum_compare) __real_trib_link_checksum_compare, __wrap_trib_link_checksum_compare;
trib_status __wrap_trib_link_checksum_compare(trib_link *link, const trib_frame *frame, const void *payload,
                                              trib_error *error)
{
    trib_frame other = *frame;
    other.crc ^= damages_pushes && frame->type == TRIB_FRAME_PUSH && frame->sender == 1 ? 1 : 0;
    return __real_trib_link_checksum_compare(link, &other, payload, error);
}

/* As if a program wrote to a buffer that is on its way: the same frame is damaged each time. The job ends soon. */
static void what_is_always_damaged_ends_the_link(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    exchange exchanges[WORKERS];
    damages_pushes = true;
    begin(job, exchanges);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 4 * SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[0].status, TRIB_PEER_LOST);
    assert_int_equal(exchanges[1].status, TRIB_PEER_LOST);
    /* each connection of the link counts its own */
    assert_in_range(count(job, true), TRIB_DAMAGES_MAX, TRIB_CONNECTIONS_MAX * TRIB_DAMAGES_MAX);
    const char *text = job->members[0].ended.text;
    if (strstr(text, "rank 1") == NULL || strstr(text, "was damaged on its way") == NULL) {
        fail_msg("the error names neither the peer nor the damage: %s", text);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    free_buffers(exchanges);
    sim_job_free(job);
    damages_pushes = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flips_cost_no_operation),
        cmocka_unit_test(flips_cost_no_idle_job),
        cmocka_unit_test(what_is_always_damaged_ends_the_link),
    };
    return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}
