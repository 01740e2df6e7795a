/*
 * test_placement.c - shares agree with the closed formula of the OSDI'20 paper, and with the constraints where links
 * are unequal. The dealing of partitions keeps the bounds that its greedy rule guarantees.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cluster/placement.h"

#define MEMBERS_MAX 40
#define GBIT UINT64_C(1000000000)

static void assert_near(double got, double want, double tolerance)
{
    if (!(got >= want - tolerance && got <= want + tolerance)) {
        fail_msg("%.12f is not %.12f", got, want);
    }
}

/* Fills in n workers that sum too, then k servers, all with that bandwidth. */
static void fill(trib_place_member *members, uint32_t n, uint32_t k, uint64_t bandwidth)
{
    memset(members, 0, sizeof *members * (n + k));
    for (uint32_t i = 0; i < n + k; i++) {
        members[i] = (trib_place_member){.is_worker = i < n, .can_sum = true, .bandwidth = bandwidth, .reactors = 1};
    }
}

static double sum_of_weights(const trib_place_member *members, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(members[i].weight >= 0);
        sum += members[i].weight;
    }
    return sum;
}

static void test_equal_links_follow_the_formula(void **state)
{
    (void)state;
    const uint64_t bandwidths[] = {0, 25 * GBIT};
    trib_place_member members[MEMBERS_MAX];
    for (int b = 0; b < 2; b++) {
        for (uint32_t n = 2; n <= 16; n++) {
            for (uint32_t k = 0; k <= n; k++) {
                const double d = (double)n * n + (double)k * n - 2.0 * k;
                double t = 0;
                fill(members, n, k, bandwidths[b]);
                assert_int_equal(trib_place_weights(members, n + k, &t), TRIB_OK);
                assert_near(t, 2.0 * n * (n - 1) / d, 1e-9);
                for (uint32_t i = 0; i < n + k; i++) {
                    assert_near(members[i].weight, i < n ? (n - k) / d : 2.0 * (n - 1) / d, 1e-9);
                }
                assert_near(sum_of_weights(members, n + k), 1.0, 1e-9);
            }
        }
    }
}

/* More servers than workers: the workers need not help, and their own pushes are the bound. */
static void test_many_servers(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = 0;
    fill(members, 4, 9, 0);
    assert_int_equal(trib_place_weights(members, 13, &t), TRIB_OK);
    assert_near(t, 1.0, 1e-9);
    for (uint32_t i = 0; i < 13; i++) {
        assert_near(members[i].weight, i < 4 ? 0.0 : 1.0 / 9, 1e-9);
    }
}

/* Two workers: each sends the other what it does not sum itself, so one link time is enough whatever the shares. */
static void test_two_workers(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    for (uint32_t k = 0; k <= 4; k++) {
        double t = 0;
        fill(members, 2, k, 10 * GBIT);
        assert_int_equal(trib_place_weights(members, 2 + k, &t), TRIB_OK);
        assert_near(t, 1.0, 1e-9);
        assert_near(sum_of_weights(members, 2 + k), 1.0, 1e-9);
        assert_near(members[0].weight, members[1].weight, 1e-12);
        for (uint32_t i = 2; i < 2 + k; i++) {
            assert_true(2 * members[i].weight <= t + 1e-9);
        }
        if (k == 0) {
            assert_near(members[0].weight, 0.5, 1e-12);
        }
    }
}

static void test_one_worker(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = -1;
    fill(members, 1, 0, 0);
    assert_int_equal(trib_place_weights(members, 1, &t), TRIB_OK);
    assert_near(t, 0.0, 0.0);
    assert_near(members[0].weight, 1.0, 1e-12);
}

static void test_workers_that_do_not_sum(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = 0;
    fill(members, 4, 2, 0);
    for (int i = 0; i < 4; i++) {
        members[i].can_sum = false;
    }
    assert_int_equal(trib_place_weights(members, 6, &t), TRIB_OK);
    assert_near(t, 2.0, 1e-9); /* each of two servers takes half of four workers' bytes */
    for (int i = 0; i < 6; i++) {
        assert_near(members[i].weight, i < 4 ? 0.0 : 0.5, 1e-9);
    }
}

static void test_placement_without_summing_members(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = 0;
    fill(members, 3, 0, 0);
    for (int i = 0; i < 3; i++) {
        members[i].can_sum = false;
    }
    assert_int_equal(trib_place_weights(members, 3, &t), TRIB_INVALID);
    fill(members, 0, 3, 0);
    assert_int_equal(trib_place_weights(members, 3, &t), TRIB_INVALID);
    assert_int_equal(trib_place_weights(members, 0, &t), TRIB_INVALID);
}

/* ---- Unequal links ---- */

typedef struct link_case {
    uint32_t n, k;
    uint64_t gbits[6]; /* workers, then servers */
    double t;          /* computed by hand */
    double weights[6];
} link_case;

static const link_case link_cases[] = {
    /* 2.8 t - 3 = 1 */
    {3, 0, {10, 10, 8}, 10.0 / 7, {3.0 / 7, 3.0 / 7, 1.0 / 7}},
    /* The slow worker's own bytes take two link times; it sums nothing. */
    {3, 0, {10, 10, 5}, 2.0, {0.5, 0.5, 0.0}},
    /* 3 (t - 1) + t/6 = 1 */
    {3, 1, {10, 10, 10, 5}, 24.0 / 19, {5.0 / 19, 5.0 / 19, 5.0 / 19, 4.0 / 19}},
    /* 0 counts as the fastest worker's rate. */
    {3, 0, {0, 10, 8}, 10.0 / 7, {3.0 / 7, 3.0 / 7, 1.0 / 7}},
    /* Servers of thrice the rate carry everything: 2 * 3 t / 3 = 2 at t = 1. */
    {3, 2, {10, 10, 10, 30, 30}, 1.0, {0, 0, 0, 0.5, 0.5}},
    /* Two workers: the slower link's own bytes are the bound; the work is divided by link. */
    {2, 0, {10, 4}, 2.5, {5.0 / 7, 2.0 / 7}},
};

static void test_unequal_links_by_hand(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof link_cases / sizeof link_cases[0]; c++) {
        const link_case *want = &link_cases[c];
        trib_place_member members[MEMBERS_MAX];
        double t = 0;
        fill(members, want->n, want->k, 0);
        for (uint32_t i = 0; i < want->n + want->k; i++) {
            members[i].bandwidth = want->gbits[i] * GBIT;
        }
        assert_int_equal(trib_place_weights(members, want->n + want->k, &t), TRIB_OK);
        assert_near(t, want->t, 1e-9);
        for (uint32_t i = 0; i < want->n + want->k; i++) {
            assert_near(members[i].weight, want->weights[i], 1e-9);
        }
    }
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % below;
}

/* Returns what all members can take within t, and the least t that the workers' own bytes allow. Rates are relative
 * to the fastest worker. */
static double room(const double *rates, uint32_t n, uint32_t k, double t)
{
    double sum = 0;
    for (uint32_t i = 0; i < n + k; i++) {
        double spare = rates[i] * t - 1.0;
        sum += i >= n ? rates[i] * t / n : spare > 0 ? spare / (n - 2) : 0;
    }
    return sum;
}

/* For any links: no link carries more than t allows, and in any less time not all bytes find a place. */
static void test_unequal_links_are_feasible_and_least(void **state)
{
    (void)state;
    uint64_t seed = 2020;
    for (int round = 0; round < 500; round++) {
        const uint32_t n = 3 + draw(&seed, 14), k = draw(&seed, 17);
        trib_place_member members[MEMBERS_MAX];
        double rates[MEMBERS_MAX], fastest = 0, floor_t = 0, t = 0;
        fill(members, n, k, 0);
        for (uint32_t i = 0; i < n + k; i++) {
            members[i].bandwidth = (1 + draw(&seed, 100)) * GBIT;
            fastest = i < n && (double)members[i].bandwidth > fastest ? (double)members[i].bandwidth : fastest;
        }
        for (uint32_t i = 0; i < n + k; i++) {
            rates[i] = (double)members[i].bandwidth / fastest;
            floor_t = i < n && 1.0 / rates[i] > floor_t ? 1.0 / rates[i] : floor_t;
        }
        assert_int_equal(trib_place_weights(members, n + k, &t), TRIB_OK);
        assert_near(sum_of_weights(members, n + k), 1.0, 1e-9);
        for (uint32_t i = 0; i < n + k; i++) {
            double carried = i < n ? 1.0 + (n - 2) * members[i].weight : n * members[i].weight;
            assert_true(carried <= rates[i] * t + 1e-6);
        }
        assert_true(t >= floor_t - 1e-9);
        assert_true(t <= floor_t + 1e-9 || room(rates, n, k, t - 1e-6) < 1.0);
    }
}

/* ---- Dealing ---- */

static void test_equal_parts_are_dealt_evenly(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = 0;
    fill(members, 4, 0, 0);
    assert_int_equal(trib_place_weights(members, 4, &t), TRIB_OK);
    trib_dealer *dealer = NULL;
    assert_int_equal(trib_dealer_create(members, 4, &dealer), TRIB_OK);
    int owned[4] = {0};
    for (int i = 0; i < 4000; i++) {
        trib_place_owner owner = trib_dealer_next(dealer, 1u << 20);
        assert_true(owner.member < 4);
        assert_int_equal(owner.reactor, 0);
        owned[owner.member]++;
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(owned[i], 1000);
    }
    trib_dealer_destroy(dealer);
}

/* No member gets more of a tensor than its share, rounded up to whole partitions, even if it is behind from others.
 * Of all tensors together every member gets its share. */
static void test_a_tensor_is_dealt_evenly(void **state)
{
    (void)state;
    enum { N = 5, K = 3, PART = 32 << 10, TENSORS = 3000 };
    trib_place_member members[N + K];
    double t = 0, total = 0, dealt[N + K] = {0};
    fill(members, N, K, 0);
    assert_int_equal(trib_place_weights(members, N + K, &t), TRIB_OK);
    trib_dealer *dealer = NULL;
    assert_int_equal(trib_dealer_create(members, N + K, &dealer), TRIB_OK);
    uint64_t seed = 7;
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        const uint32_t parts = 1 + (uint32_t)draw(&seed, 40), last = tensor % 2 == 0 ? PART : PART / 8;
        double here[N + K] = {0};
        trib_dealer_begin(dealer, (uint64_t)(parts - 1) * PART + last, PART);
        for (uint32_t i = 0; i < parts; i++) {
            const uint32_t bytes = i + 1 < parts ? PART : last;
            const trib_place_owner owner = trib_dealer_next(dealer, bytes);
            here[owner.member] += bytes;
            dealt[owner.member] += bytes;
            total += bytes;
        }
        for (int m = 0; m < N + K; m++) {
            assert_true(here[m] < (members[m].weight * parts + 1) * PART);
        }
    }
    for (int m = 0; m < N + K; m++) {
        assert_near(dealt[m] / total, members[m].weight, 1e-3);
    }
    trib_dealer_destroy(dealer);
}

/* After every partition, whatever the sizes: no member is above its share by more than one partition, or below by
 * more than one for each other member. The reactors of a member are within one partition of each other. */
static void test_mixed_parts_are_dealt_by_share(void **state)
{
    (void)state;
    enum { N = 5, K = 2, LARGEST = 1 << 20 };
    trib_place_member members[N + K];
    double t = 0, total = 0, dealt[N + K] = {0}, reactors[N + K][4] = {{0}};
    fill(members, N, K, 0);
    for (uint32_t i = 0; i < N + K; i++) {
        members[i].reactors = 1 + i % 4;
        members[i].bandwidth = (10 + 5 * i) * GBIT;
    }
    assert_int_equal(trib_place_weights(members, N + K, &t), TRIB_OK);
    trib_dealer *dealer = NULL, *again = NULL;
    assert_int_equal(trib_dealer_create(members, N + K, &dealer), TRIB_OK);
    assert_int_equal(trib_dealer_create(members, N + K, &again), TRIB_OK);
    uint64_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        const uint64_t bytes = 1 + draw(&seed, LARGEST);
        trib_place_owner owner = trib_dealer_next(dealer, bytes), same = trib_dealer_next(again, bytes);
        assert_int_equal(owner.member, same.member);
        assert_int_equal(owner.reactor, same.reactor);
        assert_true(owner.member < N + K && owner.reactor < members[owner.member].reactors);
        assert_true(members[owner.member].weight > 0);
        total += (double)bytes;
        dealt[owner.member] += (double)bytes;
        reactors[owner.member][owner.reactor] += (double)bytes;
        for (int m = 0; m < N + K; m++) {
            double above = dealt[m] - members[m].weight * total;
            assert_true(above <= LARGEST + 1.0 && above >= -(N + K) * (double)LARGEST);
        }
    }
    for (int m = 0; m < N + K; m++) {
        assert_near(dealt[m] / total, members[m].weight, 1e-3);
        for (uint32_t r = 1; r < members[m].reactors; r++) {
            assert_near(reactors[m][r], reactors[m][0], LARGEST);
        }
    }
    trib_dealer_destroy(dealer);
    trib_dealer_destroy(again);
}

/* Where each member sums one partition of every tensor, all cores of a worker work on each tensor, because a
 * partition is on the core of its reactor's index. The reactors are as even as ever. */
static void test_a_tensor_is_on_many_cores(void **state)
{
    (void)state;
    enum { N = 4, TENSORS = 50, REACTORS = 4 };
    trib_place_member members[N];
    double t = 0;
    fill(members, N, 0, 0);
    for (int m = 0; m < N; m++) {
        members[m].reactors = REACTORS;
    }
    assert_int_equal(trib_place_weights(members, N, &t), TRIB_OK);
    trib_dealer *dealer = NULL;
    assert_int_equal(trib_dealer_create(members, N, &dealer), TRIB_OK);
    int owned[N][REACTORS] = {{0}};
    for (uint32_t tensor = 0; tensor < TENSORS * REACTORS; tensor++) {
        const uint32_t bytes = 1u << (10 + tensor / REACTORS % 8);
        uint32_t cores = 0;
        trib_dealer_begin(dealer, (uint64_t)N * bytes, bytes);
        for (int i = 0; i < N; i++) {
            const trib_place_owner owner = trib_dealer_next(dealer, bytes);
            cores |= 1u << owner.reactor;
            owned[owner.member][owner.reactor]++;
        }
        assert_int_equal(cores, (1u << REACTORS) - 1);
    }
    for (int m = 0; m < N; m++) {
        for (int r = 0; r < REACTORS; r++) {
            assert_int_equal(owned[m][r], TENSORS);
        }
    }
    trib_dealer_destroy(dealer);
}

/* Empty tensors count as 64 bytes: they spread instead of piling up on one owner, and do not disturb the others. */
static void test_empty_parts_spread(void **state)
{
    (void)state;
    trib_place_member members[MEMBERS_MAX];
    double t = 0;
    fill(members, 3, 1, 0);
    members[3].can_sum = false;
    assert_int_equal(trib_place_weights(members, 4, &t), TRIB_OK);
    trib_dealer *zero = NULL, *small = NULL;
    assert_int_equal(trib_dealer_create(members, 4, &zero), TRIB_OK);
    assert_int_equal(trib_dealer_create(members, 4, &small), TRIB_OK);
    int owned[4] = {0};
    for (int i = 0; i < 300; i++) {
        trib_place_owner owner = trib_dealer_next(zero, 0);
        assert_int_equal(owner.member, trib_dealer_next(small, 64).member);
        owned[owner.member]++;
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(owned[i], 100);
    }
    assert_int_equal(owned[3], 0);
    trib_dealer_destroy(zero);
    trib_dealer_destroy(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_links_follow_the_formula),
        cmocka_unit_test(test_many_servers),
        cmocka_unit_test(test_two_workers),
        cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_workers_that_do_not_sum),
        cmocka_unit_test(test_placement_without_summing_members),
        cmocka_unit_test(test_unequal_links_by_hand),
        cmocka_unit_test(test_unequal_links_are_feasible_and_least),
        cmocka_unit_test(test_equal_parts_are_dealt_evenly),
        cmocka_unit_test(test_a_tensor_is_dealt_evenly),
        cmocka_unit_test(test_mixed_parts_are_dealt_by_share),
        cmocka_unit_test(test_a_tensor_is_on_many_cores),
        cmocka_unit_test(test_empty_parts_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
