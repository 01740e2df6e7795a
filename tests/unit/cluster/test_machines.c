/* test_machines.c - which workers share a machine, whether those sum first, and how large their shares are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cluster/machines.h"
#include "engine/server/relay.h"

/* Makes a roster whose worker i has that address. */
static trib_roster *roster_of(const char *const *addresses, uint32_t workers, uint32_t servers)
{
    trib_roster *roster = trib_roster_create(workers + servers);
    assert_non_null(roster);
    roster->worker_count = workers;
    roster->server_count = servers;
    roster->partition_bytes = 1u << 20;
    roster->chunk_bytes = 256u << 10;
    for (uint32_t i = 0; i < workers + servers; i++) {
        trib_member_info *info = &roster->members[i];
        info->reactors = 2;
        snprintf(info->addresses[0].text, sizeof info->addresses[0].text, "%s",
                 i < workers ? addresses[i] : "10.0.9.9:1");
    }
    return roster;
}

static uint32_t local_size(trib_roster *roster, trib_local_sum wanted, const char *because)
{
    char why[TRIB_MACHINES_WHY_SIZE];
    const uint32_t found = trib_machines_local_size(roster, wanted, why);
    if (because != NULL && strstr(why, because) == NULL) {
        fail_msg("\"%s\" should say \"%s\"", why, because);
    }
    return found;
}

static void workers_know_their_neighbours(void **state)
{
    (void)state;
    /* a: ranks 0, 2, 5; b: 1, 4; c: 3; and two servers, which do not count */
    trib_roster *roster = roster_of((const char *const[]){"a:1", "b:1", "a:2", "c:1", "b:2", "a:3"}, 6, 2);
    static const int32_t expected[6][4] = {{0, 3, 0, 3}, {0, 2, 1, 3}, {1, 3, 0, 2},
                                           {0, 1, 2, 3}, {1, 2, 1, 2}, {2, 3, 0, 1}};
    for (uint32_t i = 0; i < 6; i++) {
        trib_machine_ranks ranks;
        assert_true(trib_machines_ranks(roster, i, &ranks));
        assert_int_equal(ranks.local_rank, expected[i][0]);
        assert_int_equal(ranks.local_size, expected[i][1]);
        assert_int_equal(ranks.cross_rank, expected[i][2]);
        assert_int_equal(ranks.cross_size, expected[i][3]);
    }
    free(roster);
}

static void members_of_a_machine_are_counted(void **state)
{
    (void)state;
    trib_roster *roster = roster_of((const char *const[]){"a:1", "b:1", "10.0.9.9:7", "b:2"}, 4, 2);
    static const uint32_t expected[6][3] = {{0, 1, 2}, {0, 2, 4}, {0, 3, 9}, {1, 2, 4}, {1, 3, 9}, {2, 3, 9}};
    roster->members[5].reactors = 5;
    roster->members[1].placed = roster->members[2].placed = roster->members[5].placed = true;
    for (uint32_t i = 0; i < 6; i++) {
        const trib_machine_place place = trib_machines_place(roster, i);
        assert_int_equal(place.index, expected[i][0]);
        assert_int_equal(place.count, expected[i][1]);
        assert_int_equal(place.reactors, expected[i][2]);
        /* without its own bit: 0 is alone, and 1 has only an unplaced neighbour */
        assert_int_equal(place.others_placed, i >= 2);
    }
    free(roster);
}

/* Members with addresses of their own, as containers have, share cores. */
static void sharing_of_cores_follows_the_kernel(void **state)
{
    (void)state;
    trib_roster *roster = roster_of((const char *const[]){"a:1", "b:1", "c:1", "d:1", "d:2"}, 5, 0);
    static const uint64_t kernels[5] = {7, 8, 7, 0, 0};
    static const uint32_t expected[5][2] = {{0, 2}, {0, 1}, {1, 2}, {0, 2}, {1, 2}};
    for (uint32_t i = 0; i < 5; i++) {
        roster->members[i].kernel = kernels[i];
    }
    for (uint32_t i = 0; i < 5; i++) {
        const trib_machine_place place = trib_machines_place(roster, i);
        assert_int_equal(place.index, expected[i][0]);
        assert_int_equal(place.count, expected[i][1]);
        assert_int_equal(trib_machines_first(roster, i), i == 4 ? 3 : i); /* links are a different matter */
    }
    free(roster);
}

static void machines_are_told_by_address(void **state)
{
    (void)state;
    static const struct {
        uint32_t workers, expected;
        const char *addresses[8], *because;
    } cases[] = {
        {4, 2, {"10.0.0.1:40000", "10.0.0.1:40001", "10.0.0.2:40000", "10.0.0.2:9"}, ""},
        {4, 2, {"10.0.0.1:1+rdma", "10.0.0.1:2", "10.0.0.2:3+rdma", "10.0.0.2:4"}, ""},
        {4,
         2,
         {"10.0.0.1:1+rdma,10.1.0.1:2", "10.1.0.1:3,10.0.0.1:4", "10.1.0.2:5,10.0.0.2:6+rdma", "10.0.0.2:7,10.1.0.2:8"},
         ""},
        {4,
         2,
         {"[fd00::7]:1,[fd01::7]:1", "[fd01::7]:2,[fd00::7]:2", "[fd00::8]:1,10.0.0.3:2", "10.0.0.3:2,[fd00::8]:1"},
         ""},
        {4,
         2,
         {"10.0.0.1:1+rdma,10.1.0.1:2,", "10.1.0.1:3,10.0.0.1:4,", "10.1.0.2:5,10.0.0.2:6,", "10.0.0.2:7,10.1.0.2:8,"},
         ""},
        {4, 2, {"10.0.0.1:1,", "10.0.0.1:2,", "10.0.0.2:3,", "10.0.0.2:4,"}, ""},
        {4, 2, {"[fd00::7]:1", "[fd00::7]:2", "[fd00::8]:1", "[fd00::8]:2"}, ""},
        {4, 2, {"m0/n0:1", "m0/n1:1", "m1/n2:1", "m1/n3:1"}, ""},
        {8, 4, {"a:1", "a:2", "a:3", "a:4", "b:1", "b:2", "b:3", "b:4"}, ""},
        {6, 2, {"a:1", "a:2", "b:1", "b:2", "c:1", "c:2"}, ""},
        {4, 0, {"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4"}, "on one machine"},
        {3, 0, {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.21:1"}, "of its own"},
        {1, 0, {"10.0.0.1:1"}, "on one machine"},
        {4, 0, {"a:1", "b:1", "a:2", "b:2"}, "consecutive"}, /* dealt in turn to the machines */
        {4, 0, {"a:1", "b:1", "b:2", "a:2"}, "consecutive"},
        {6, 0, {"a:1", "a:2", "b:1", "b:2", "a:3", "a:4"}, "consecutive"},
        {5, 0, {"a:1", "a:2", "b:1", "b:2", "c:1"}, "same number"},
        {4, 0, {"a:1", "a:2", "a:3", "b:1"}, "same number"},
        {4, 0, {"a:1", "b:1", "b:2", "b:3"}, "same number"},
        {6, 0, {"a:1", "a:2", "a:3", "b:1", "b:2", "b:3"}, "power of two"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trib_roster *roster = roster_of(cases[i].addresses, cases[i].workers, i % 3);
        assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_AUTO, cases[i].because), cases[i].expected);
        assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_OFF, "off"), 0);
        free(roster);
    }
}

static void local_sum_depends_on_order_size_and_counts(void **state)
{
    (void)state;
    static const char *const pairs[] = {"a:1", "a:2", "b:1", "b:2"}, *const triples[] = {"a:1", "a:2", "a:3",
                                                                                         "b:1", "b:2", "b:3"};
    trib_roster *roster = roster_of(triples, 6, 0);
    assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_ON, NULL), 3);
    roster->sum_order = TRIB_ORDER_ARRIVAL; /* the bits of sums differ anyway */
    assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_AUTO, NULL), 3);
    free(roster);
    roster = roster_of(pairs, 4, 1);
    roster->members[4].reactors = 7; /* of a server */
    assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_AUTO, NULL), 2);
    roster->members[2].reactors = 1;
    assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_ON, "ranks 0 and 2 have 2 and 1 reactors"), 0);
    roster->members[2].reactors = 2;
    roster->chunk_bytes = 512u << 10;
    assert_int_equal(local_size(roster, TRIB_LOCAL_SUM_ON, "chunk_bytes"), 0);
    free(roster);
}

/* The shares of two machines and a server are those of two workers and a server, and each machine's share is divided
 * among its workers. */
static void shares_are_those_of_machines(void **state)
{
    (void)state;
    trib_place_member whole[4] = {{.is_worker = true, .can_sum = true, .reactors = 1},
                                  {.is_worker = true, .can_sum = true, .reactors = 1},
                                  {.is_worker = true, .can_sum = true, .bandwidth = 4, .reactors = 1},
                                  {.can_sum = true, .reactors = 1}};
    trib_place_member parts[13] = {{.can_sum = false}};
    for (uint32_t i = 0; i < 12; i++) {
        parts[i] = whole[i / 4];
        parts[i].bandwidth = i == 9 ? 4 : 0; /* one of a machine's workers knows its link */
    }
    parts[12] = whole[3];
    double factor = 0, factor_of_machines = 0;
    assert_int_equal(trib_place_weights(whole, 4, &factor), TRIB_OK);
    assert_int_equal(trib_machines_weights(parts, 13, 12, 4, &factor_of_machines), TRIB_OK);
    assert_true(factor == factor_of_machines);
    for (uint32_t i = 0; i < 12; i++) {
        assert_true(fabs(parts[i].weight - whole[i / 4].weight / 4) < 1e-12);
    }
    assert_true(parts[12].weight == whole[3].weight);
}

/* A partition has one relay on each machine: its owner if that is there. The work is divided evenly. */
static void relays(void **state)
{
    (void)state;
    static const char *const addresses[] = {"a:1", "a:2", "b:1", "b:2", "c:1", "c:2"};
    trib_roster *roster = roster_of(addresses, 6, 1);
    roster->local_size = 2;
    for (uint32_t owner = 0; owner < 7; owner++) {
        uint32_t relayed[6] = {0};
        for (uint32_t partition = 0; partition < 10; partition++) {
            for (uint32_t rank = 0; rank < 6; rank++) {
                const uint32_t relay = trib_relay_rank(roster, rank, owner, partition);
                assert_int_equal(relay / 2, rank / 2);
                assert_true(owner >= 6 || owner / 2 != rank / 2 || relay == owner);
                relayed[relay]++;
            }
        }
        for (uint32_t rank = 0; rank < 6; rank++) {
            assert_int_equal(relayed[rank], owner == 6 ? 10 : rank % 2 == owner % 2 ? 20 : 0);
        }
    }
    free(roster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_know_their_neighbours),
        cmocka_unit_test(members_of_a_machine_are_counted),
        cmocka_unit_test(sharing_of_cores_follows_the_kernel),
        cmocka_unit_test(machines_are_told_by_address),
        cmocka_unit_test(local_sum_depends_on_order_size_and_counts),
        cmocka_unit_test(shares_are_those_of_machines),
        cmocka_unit_test(relays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
