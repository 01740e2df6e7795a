/* test_rate_estimator.c - shares follow what links carry: the tests show what is learned from which reports, and
 * that even shares stay even. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cluster/rate_estimator.h"

#define MEMBERS 8u
#define WORKERS 4u
#define WINDOW_NS INT64_C(250000000)

/* Fills in four workers and four servers, with the shares that equal links give. */
static void fill(trib_place_member *members)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i] = (trib_place_member){.is_worker = i < WORKERS, .can_sum = true, .reactors = 1};
        members[i].weight = i < WORKERS ? 0 : 0.25;
    }
}

static double stats_of(const trib_place_member *member)
{
    return member->is_worker ? 1 + 2 * member->weight : 4 * member->weight;
}

/* Every member reports twice. Links have these rates: the slowest ones are busy all the time to all their peers, the
 * others only to such peers. */
static void tell(trib_rate_estimator *estimator, const trib_place_member *members, const double *rates)
{
    double longest = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        longest = stats_of(&members[i]) / rates[i] > longest ? stats_of(&members[i]) / rates[i] : longest;
    }
    for (uint32_t report = 0; report < 2; report++) {
        for (uint32_t i = 0; i < MEMBERS; i++) {
            if (!trib_rate_estimator_begin(estimator, i, WINDOW_NS)) {
                continue;
            }
            for (uint32_t k = 0; k < MEMBERS; k++) {
                const bool full = stats_of(&members[i]) / rates[i] > 0.97 * longest ||
                                  stats_of(&members[k]) / rates[k] > 0.97 * longest;
                const bool talks = (i < WORKERS) != (k < WORKERS) || (i < WORKERS && i != k);
                const double weight = i < WORKERS ? members[k].weight : members[i].weight;
                if (talks && weight > 0) {
                    trib_rate_estimator_add(estimator, i, k, (uint64_t)(weight * 1e7),
                                            full ? WINDOW_NS : WINDOW_NS / 5);
                }
            }
        }
    }
}

/* Judges until nothing changes ten times in a row; returns how often shares were changed. */
static uint32_t settle(trib_rate_estimator *estimator, trib_place_member *members, const double *rates)
{
    uint32_t changes = 0;
    for (uint32_t quiet = 0; quiet < 10 && changes < 50;) {
        do {
            tell(estimator, members, rates);
        } while (!trib_rate_estimator_is_full(estimator));
        if (trib_rate_estimator_decide(estimator, members, 0)) {
            changes++;
            quiet = 0;
            trib_rate_estimator_restart(estimator);
        } else {
            quiet++;
        }
    }
    return changes;
}

static double time_of(const trib_place_member *members, const double *rates)
{
    double longest = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        longest = stats_of(&members[i]) / rates[i] > longest ? stats_of(&members[i]) / rates[i] : longest;
    }
    return longest;
}

static void even_links_stay_even(void **state)
{
    (void)state;
    const double rates[MEMBERS] = {1, 1, 1, 1, 1, 1, 1, 1};
    trib_place_member members[MEMBERS];
    trib_rate_estimator *estimator = NULL;
    fill(members);
    assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
    assert_int_equal(settle(estimator, members, rates), 0);
    trib_rate_estimator_destroy(estimator);
}

/* Three workers that sum and one dedicated server, with the weights of equal links, so as much goes from each to each.
 * Links are full. Two workers have two links each way, and a report has the mean over them: each is busy for half as
 * long as the one link to the server, which carries as many bytes as the two. The figures are of a measured job. */
static void a_way_of_one_link_is_not_slow(void **state)
{
    (void)state;
    enum { COUNT = 4, SERVER = 3 };
    const struct {
        int64_t to_server, from_server, between; /* thousandths of the time */
        bool is_slow;
    } cases[] = {{830, 690, 410, false}, {1000, 1000, 180, true}};
    for (size_t which = 0; which < sizeof cases / sizeof cases[0]; which++) {
        trib_place_member members[COUNT];
        trib_rate_estimator *estimator = NULL;
        for (uint32_t i = 0; i < COUNT; i++) {
            members[i] = (trib_place_member){.is_worker = i != SERVER, .can_sum = true, .reactors = 1, .weight = 0.2};
        }
        members[SERVER].weight = 0.4;
        assert_int_equal(trib_rate_estimator_create(members, COUNT, &estimator), TRIB_OK);
        uint32_t changes = 0;
        for (uint32_t judgement = 0; judgement < 12 && changes == 0; judgement++) {
            for (uint32_t i = 0; i < 2 * COUNT; i++) {
                assert_true(trib_rate_estimator_begin(estimator, i % COUNT, WINDOW_NS));
                for (uint32_t k = 0; k < COUNT; k++) {
                    const int64_t busy = i % COUNT == SERVER ? cases[which].from_server
                                         : k == SERVER       ? cases[which].to_server
                                                             : cases[which].between;
                    if (k != i % COUNT) {
                        trib_rate_estimator_add(estimator, i % COUNT, k, 4000000, busy * WINDOW_NS / 1000);
                    }
                }
            }
            assert_true(trib_rate_estimator_is_full(estimator));
            changes += trib_rate_estimator_decide(estimator, members, 0);
        }
        assert_int_equal(changes > 0, cases[which].is_slow);
        assert_true(!cases[which].is_slow || members[SERVER].weight < 0.3);
        trib_rate_estimator_destroy(estimator);
    }
}

static void slow_links_are_found(void **state)
{
    (void)state;
    const struct {
        double rates[MEMBERS], least;
    } cases[] = {
        {{1, 1, 1, 1, 0.5, 1, 1, 1}, 1.0435},   {{1, 1, 1, 1, 1, 1, 0.25, 1}, 1.0667},
        {{1, 1, 1, 1, 0.5, 0.5, 1, 1}, 1.0909}, {{1, 0.5, 1, 1, 1, 1, 1, 1}, 2.0},
        {{1, 1, 1, 1, 0.7, 1, 1, 1}, 1.0256},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trib_place_member members[MEMBERS];
        trib_rate_estimator *estimator = NULL;
        fill(members);
        assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
        const uint32_t changes = settle(estimator, members, cases[i].rates);
        print_message("# case %zu: %u changes, then %.3f of the least time\n", i, changes,
                      time_of(members, cases[i].rates) / cases[i].least);
        assert_true(changes <= 12);
        assert_true(time_of(members, cases[i].rates) < 1.10 * cases[i].least);
        /* All links are equal again. */
        const double even[MEMBERS] = {1, 1, 1, 1, 1, 1, 1, 1};
        assert_true(settle(estimator, members, even) <= 12);
        assert_true(time_of(members, even) < 1.10);
        trib_rate_estimator_destroy(estimator);
    }
}

/* The configured rates are the starting point. */
static void configured_rates_stay(void **state)
{
    (void)state;
    const double rates[MEMBERS] = {1, 1, 1, 1, 0.5, 1, 1, 1};
    trib_place_member members[MEMBERS];
    trib_rate_estimator *estimator = NULL;
    double factor = 0;
    fill(members);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i].bandwidth = (uint64_t)(rates[i] * 1e9);
    }
    assert_int_equal(trib_place_weights(members, MEMBERS, &factor), TRIB_OK);
    assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
    assert_int_equal(settle(estimator, members, rates), 0);
    trib_rate_estimator_destroy(estimator);
}

/* A network that is seldom busy, or carries very little, gives no reason to change. The judgement waits for missing
 * reports. */
static void little_says_nothing(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS];
    trib_rate_estimator *estimator = NULL;
    fill(members);
    assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
    for (uint32_t turn = 0; turn < 20; turn++) {
        const bool is_small = turn < 10;
        for (uint32_t report = 0; report < 2; report++) {
            for (uint32_t i = 0; i < WORKERS; i++) {
                assert_false(trib_rate_estimator_is_full(estimator));
                assert_true(trib_rate_estimator_begin(estimator, i, WINDOW_NS));
                trib_rate_estimator_add(estimator, i, 4, is_small ? 1000 : 10000000,
                                        is_small ? WINDOW_NS : WINDOW_NS / 10);
                trib_rate_estimator_add(estimator, i, 5, is_small ? 1000 : 10000000, 0);
            }
        }
        assert_true(trib_rate_estimator_is_full(estimator));
        assert_false(trib_rate_estimator_decide(estimator, members, 0));
    }
    trib_rate_estimator_restart(estimator);
    assert_false(trib_rate_estimator_begin(estimator, 0, WINDOW_NS)); /* covers time before and after the change */
    assert_true(trib_rate_estimator_begin(estimator, 0, WINDOW_NS));
    trib_rate_estimator_destroy(estimator);
}

/* Judges until shares change, at most 20 times. Every member reports twice, and a way is busy for as much of the
 * time as the busier of its two ends. The end that stands out may be another one each time. */
static uint32_t looks(const double *busy, bool moves_on)
{
    trib_place_member members[MEMBERS];
    trib_rate_estimator *estimator = NULL;
    fill(members);
    assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
    uint32_t count = 0;
    for (bool dealt = false; count < 20 && !dealt; count++) {
        for (uint32_t report = 0; report < 2; report++) {
            for (uint32_t i = 0; i < MEMBERS; i++) {
                assert_true(trib_rate_estimator_begin(estimator, i, WINDOW_NS));
                for (uint32_t k = i < WORKERS ? WORKERS : 0; k < (i < WORKERS ? MEMBERS : WORKERS); k++) {
                    const uint32_t by = moves_on ? count : 0;
                    const double a = busy[(i + by) % MEMBERS], b = busy[(k + by) % MEMBERS];
                    trib_rate_estimator_add(estimator, i, k, 2500000, (int64_t)((a > b ? a : b) * (double)WINDOW_NS));
                }
            }
        }
        assert_true(trib_rate_estimator_is_full(estimator));
        dealt = trib_rate_estimator_decide(estimator, members, 0);
    }
    trib_rate_estimator_destroy(estimator);
    return count;
}

/* Processes without CPU time, and servers to which all send at once, have these patterns on equal links. The cases
 * beside them are to be found: four judgements in a row after the first two. */
static void busy_member_is_not_taken_for_slow(void **state)
{
    (void)state;
    const double one[MEMBERS] = {0.3, 0.2, 0.2, 0.3, 0.2, 1, 0.3, 0.2};
    const double three[MEMBERS] = {0.2, 0.9, 0.2, 0.2, 0.3, 1, 1, 0.2};
    const double others_too[MEMBERS] = {0.5, 0.4, 0.6, 0.6, 0.5, 1, 0.4, 0.5};
    assert_int_equal(looks(one, false), 6);
    assert_int_equal(looks(one, true), 20);
    assert_int_equal(looks(three, false), 20);
    assert_int_equal(looks(others_too, false), 20);
}

/* Every member reports one of the five parts of a round. In the first two parts all workers push to all servers; the
 * bytes for server 4 take all five if it is slow. */
static void tell_part(trib_rate_estimator *estimator, uint32_t part, bool is_slow)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_true(trib_rate_estimator_begin(estimator, i, WINDOW_NS));
        for (uint32_t k = i < WORKERS ? WORKERS : 0; k < (i < WORKERS ? MEMBERS : WORKERS); k++) {
            const bool by_slow = is_slow && (i == 4 || k == 4);
            const uint64_t bytes = by_slow ? 800000 : part < 2 ? 2000000 : 0;
            const double busy = i >= WORKERS ? 0.15 : by_slow || part < 2 ? 1 : 0.3;
            trib_rate_estimator_add(estimator, i, k, bytes, (int64_t)(busy * (double)WINDOW_NS));
        }
    }
}

/* Returns the number of reports of each member until shares change, at most 200, if a worker's tensors have that
 * many bytes. */
static uint32_t reports_in_rounds(uint64_t round_bytes, bool is_slow)
{
    trib_place_member members[MEMBERS];
    trib_rate_estimator *estimator = NULL;
    fill(members);
    assert_int_equal(trib_rate_estimator_create(members, MEMBERS, &estimator), TRIB_OK);
    uint32_t count = 0;
    for (bool dealt = false; count < 200 && !dealt; count++) {
        tell_part(estimator, count % 5, is_slow);
        dealt = trib_rate_estimator_is_full(estimator) && trib_rate_estimator_decide(estimator, members, round_bytes);
    }
    trib_rate_estimator_destroy(estimator);
    return count;
}

/* Rounds that take longer than one judgement's reports, as seen with four reactors and 16 MiB on links of 200
 * Mbit/s: in some reports all links are busy, in others only the slow one. Judgements of whole rounds agree: after
 * two of two reports each come four of five, or of 32 if only part of the declared tensors is in use. Where no link
 * is slow nothing is found. */
static void long_rounds_are_looked_at_whole(void **state)
{
    (void)state;
    const uint64_t bytes = 16000000;
    assert_int_equal(reports_in_rounds(0, true), 200);
    assert_int_equal(reports_in_rounds(bytes, true), 2 * 2 + 4 * 5);
    assert_int_equal(reports_in_rounds(100 * bytes, true), 2 * 2 + 4 * 32);
    assert_int_equal(reports_in_rounds(bytes, false), 200);
    assert_int_equal(reports_in_rounds(100 * bytes, false), 200);
}

/* Two workers and the only server with a share are full, and three servers have no share: nothing is learned, and
 * nothing lost. The same holds for a member that reports impossible values. */
static void member_without_a_share_teaches_nothing(void **state)
{
    (void)state;
    trib_place_member members[6] = {{.weight = 0}};
    for (uint32_t i = 0; i < 6; i++) {
        members[i] = (trib_place_member){.is_worker = i < 2, .can_sum = i >= 2, .reactors = 1, .weight = i == 2};
    }
    trib_rate_estimator *estimator = NULL;
    assert_int_equal(trib_rate_estimator_create(members, 6, &estimator), TRIB_OK);
    for (uint32_t turn = 0; turn < 8; turn++) {
        for (uint32_t i = 0; i < 3; i++) {
            if (trib_rate_estimator_begin(estimator, i, WINDOW_NS)) {
                const uint64_t bytes = turn < 4 ? UINT64_C(10000000) : UINT64_MAX;
                trib_rate_estimator_add(estimator, i, i < 2 ? 2 : 0, bytes, WINDOW_NS * 9 / 10);
            }
        }
        trib_place_member found[6];
        memcpy(found, members, sizeof found);
        (void)trib_rate_estimator_decide(estimator, found, 0);
        for (uint32_t i = 0; i < 6; i++) {
            assert_true(found[i].weight >= 0 && found[i].weight <= 1);
        }
    }
    trib_rate_estimator_destroy(estimator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_without_a_share_teaches_nothing),
        cmocka_unit_test(even_links_stay_even),
        cmocka_unit_test(a_way_of_one_link_is_not_slow),
        cmocka_unit_test(slow_links_are_found),
        cmocka_unit_test(configured_rates_stay),
        cmocka_unit_test(little_says_nothing),
        cmocka_unit_test(busy_member_is_not_taken_for_slow),
        cmocka_unit_test(long_rounds_are_looked_at_whole),
    };
    return cmocka_run_group_tests_name("balance", tests, NULL, NULL);
}
