/* test_summation_many.c - tens of thousands of rounds are withdrawn while the contributors are far apart. The time
 * of one contribution does not grow with the number of rounds: if it did, each test would take several minutes. */
#include "tests/unit/aggregate/summation_bed.h"

#ifdef TRIB_SLOW_CHECKS
enum { MANY = 500 }; /* slow checks count all rounds again and again */
#else
enum { MANY = 100000 };
#endif
enum { CONTRIBUTORS = 5, KEYS = 2 };

static uint32_t refusals[CONTRIBUTORS], reports, last_reported[KEYS];

static void count_refusal(void *user, uint32_t receiver, const trib_contribution *what, trib_status status,
                          const char *text)
{
    (void)user;
    (void)what;
    (void)text;
    assert_int_equal(status, TRIB_CANCELLED);
    refusals[receiver]++;
}

static void no_partial(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    (void)what;
    (void)sum;
    fail();
}

/* The receiver of the partial sums hears of a key's rounds one after the other. */
static void count_report(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    (void)user;
    (void)status;
    (void)text;
    assert_int_equal(what->round, last_reported[what->partition] + 1);
    last_reported[what->partition] = what->round;
    reports++;
}

static void open_many(bool gives_partials)
{
    trib_summation_config config = bed_config(CONTRIBUTORS, TRIB_ORDER_RANK);
    config.refused = count_refusal;
    config.partial_ready = gives_partials ? no_partial : NULL;
    config.round_refused = gives_partials ? count_report : NULL;
    memset(refusals, 0, sizeof refusals);
    memset(last_reported, 0, sizeof last_reported);
    reports = 0;
    open_configured(&config);
}

static trib_contribution part_of(uint32_t round, uint32_t rank, uint32_t partition)
{
    trib_contribution what = make(round, rank, TRIB_FLOAT32, TRIB_SUM);
    what.partition = partition;
    return what;
}

static void withdraw(uint32_t round, uint32_t partition)
{
    const trib_contribution what = part_of(round, 0, partition);
    assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_CANCELLED, "given up"), TRIB_OK);
}

static void contribute(uint32_t round, uint32_t rank)
{
    static const unsigned char bytes[CHUNK_BYTES] = {0};
    for (uint32_t partition = 0; partition < KEYS; partition++) {
        const trib_contribution what = part_of(round, rank, partition);
        must_give(&what, bytes);
    }
}

/* Rank 0 withdraws from all rounds. Each other rank follows once that many rounds are between it and the one before
 * it. */
static void give_up_and_follow(bool gives_partials)
{
    const uint32_t gap = MANY / CONTRIBUTORS;
    open_many(gives_partials);
    for (uint32_t round = 1; round <= MANY; round++) {
        for (uint32_t partition = 0; partition < KEYS; partition++) {
            withdraw(round, partition);
        }
    }
    assert_int_equal(reports, gives_partials ? MANY * KEYS : 0);
    for (uint32_t step = 1; step <= MANY + gap * (CONTRIBUTORS - 2); step++) {
        for (uint32_t rank = 1; rank < CONTRIBUTORS; rank++) {
            const uint32_t behind = gap * (rank - 1);
            if (step > behind && step - behind <= MANY) {
                contribute(step - behind, rank);
            }
        }
    }
    assert_int_equal(refusals[0], 0); /* it has withdrawn itself */
    for (uint32_t rank = 1; rank < CONTRIBUTORS; rank++) {
        assert_int_equal(refusals[rank], MANY * KEYS);
    }
    close_bed();
}

static void test_many_rounds_given_up(void **state)
{
    (void)state;
    give_up_and_follow(false);
}

static void test_many_rounds_of_partials_given_up(void **state)
{
    (void)state;
    give_up_and_follow(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_rounds_given_up),
        cmocka_unit_test(test_many_rounds_of_partials_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
