/* test_roster.c - members and rosters are decoded as they were encoded, and everything else is rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/worker/op.h"
#include "engine/cluster/roster.h"
#include "tests/unit/wire/wire_bytes.h"

static trib_roster *sample_roster(void)
{
    trib_roster *roster = trib_roster_create(4);
    assert_non_null(roster);
    roster->epoch = 7;
    roster->worker_count = 3;
    roster->server_count = 1;
    roster->partition_bytes = 1u << 20;
    roster->chunk_bytes = 1u << 18;
    roster->sum_order = TRIB_ORDER_ARRIVAL;
    roster->peer_timeout_ns = INT64_C(10000000000);
    roster->t_opt_factor = 1.25;
    roster->shrinks = roster->continues = true;
    roster->ranks_used = 6;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        trib_member_info *info = &roster->members[i];
        info->roles = i < 3 ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
        info->sums = i != 1;
        info->rank = i == 2 ? 4 : i;
        info->stands_by = i == 2;
        info->placed = i < 2;
        info->subflows = i > 1;
        info->reactors = i == 3 ? TRIB_REACTORS_MAX : i + 1;
        info->bandwidth = UINT64_C(25000000000) * i;
        info->kernel = UINT64_MAX / 3 * i;
        info->gpu = UINT64_MAX / 5 * i;
        info->start = UINT32_MAX - i;
        (void)snprintf(info->name, sizeof info->name, "rank %u (host:%u)", i, 1000 + i);
        for (uint32_t r = 0; r < info->reactors; r++) {
            (void)snprintf(info->addresses[r].text, sizeof info->addresses[r].text, "10.0.%u.%u:4242", i, r);
        }
    }
    return roster;
}

static size_t encode_roster(const trib_roster *roster, unsigned char bytes[ENCODED_MAX])
{
    trib_writer writer = {.data = bytes, .capacity = ENCODED_MAX};
    trib_roster_put(&writer, roster);
    assert_false(writer.overflow);
    return writer.size;
}

static void assert_same_member(const trib_member_info *got, const trib_member_info *want)
{
    assert_int_equal(got->roles, want->roles);
    assert_int_equal(got->sums, want->sums);
    assert_int_equal(got->stands_by, want->stands_by);
    assert_int_equal(got->placed, want->placed);
    assert_int_equal(got->subflows, want->subflows);
    assert_int_equal(got->reactors, want->reactors);
    assert_true(got->bandwidth == want->bandwidth);
    assert_true(got->kernel == want->kernel);
    assert_true(got->gpu == want->gpu);
    assert_int_equal(got->start, want->start);
    assert_int_equal(got->rank, want->rank);
    assert_string_equal(got->name, want->name);
    for (uint32_t r = 0; r < want->reactors; r++) {
        assert_string_equal(got->addresses[r].text, want->addresses[r].text);
    }
}

static void test_roster_round_trips(void **state)
{
    (void)state;
    trib_roster *want = sample_roster(), *got = NULL;
    unsigned char bytes[ENCODED_MAX];
    trib_reader reader = {.data = bytes, .left = encode_roster(want, bytes)};
    trib_error error = {.text = ""};
    assert_int_equal(trib_roster_get(&reader, &got, &error), TRIB_OK);
    assert_int_equal(reader.left, 0);
    assert_int_equal(got->epoch, want->epoch);
    assert_int_equal(got->worker_count, 3);
    assert_true(got->shrinks && got->continues);
    assert_int_equal(got->ranks_used, 6);
    assert_int_equal(trib_roster_find_rank(got, 4), 2);
    assert_int_equal(trib_roster_find_rank(got, 2), TRIB_NO_MEMBER);
    assert_int_equal(got->server_count, 1);
    assert_int_equal(got->member_count, 4);
    assert_int_equal(got->partition_bytes, want->partition_bytes);
    assert_int_equal(got->chunk_bytes, want->chunk_bytes);
    assert_int_equal(got->sum_order, want->sum_order);
    assert_true(got->peer_timeout_ns == want->peer_timeout_ns);
    assert_true(got->t_opt_factor > 1.25 - 1e-8 && got->t_opt_factor < 1.25 + 1e-8);
    for (uint32_t i = 0; i < want->member_count; i++) {
        assert_same_member(&got->members[i], &want->members[i]);
        assert_string_equal(trib_roster_name(got, i), want->members[i].name);
    }
    free(got);
    free(want);
}

static void test_every_truncated_roster_is_refused(void **state)
{
    (void)state;
    guarded memory = guarded_create();
    trib_roster *roster = sample_roster();
    unsigned char bytes[ENCODED_MAX];
    const size_t size = encode_roster(roster, bytes);
    for (size_t cut = 0; cut <= size; cut++) {
        trib_reader reader = guarded_reader(&memory, bytes, cut);
        trib_roster *got = NULL;
        trib_error error = {.text = ""};
        trib_status status = trib_roster_get(&reader, &got, &error);
        assert_int_equal(status, cut < size ? TRIB_PROTOCOL : TRIB_OK);
        assert_int_equal(got != NULL, cut == size);
        assert_int_equal(error.text[0] != '\0', cut < size);
        free(got);
    }
    free(roster);
    guarded_destroy(&memory);
}

static void test_bytes_after_the_roster_are_refused(void **state)
{
    (void)state;
    trib_roster *roster = sample_roster(), *got = NULL;
    unsigned char bytes[ENCODED_MAX] = {0};
    trib_reader reader = {.data = bytes, .left = encode_roster(roster, bytes) + 3};
    trib_error error = {.text = ""};
    assert_int_equal(trib_roster_get(&reader, &got, &error), TRIB_PROTOCOL);
    assert_null(got);
    assert_string_equal(error.text, "ROSTER with 3 bytes too many");
    free(roster);
}

/* Workers that sum first on their machines must be equally many on each, with reactors that find each other. */
static void test_machines_in_rosters(void **state)
{
    (void)state;
    static const struct {
        uint32_t workers, local_size, chunk_bytes, odd_reactors;
        trib_status expected;
    } cases[] = {{4, 2, 1u << 18, 0, TRIB_OK},       {4, 0, 1u << 20, 1, TRIB_OK},
                 {4, 4, 1u << 18, 0, TRIB_PROTOCOL}, {4, 3, 1u << 18, 0, TRIB_PROTOCOL},
                 {4, 1, 1u << 18, 0, TRIB_PROTOCOL}, {4, 2, 1u << 19, 0, TRIB_PROTOCOL},
                 {4, 2, 1u << 18, 1, TRIB_PROTOCOL}, {3, 2, 1u << 18, 0, TRIB_PROTOCOL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trib_roster *roster = sample_roster(), *got = NULL;
        roster->worker_count = cases[i].workers;
        roster->server_count = 4 - cases[i].workers;
        roster->local_size = cases[i].local_size;
        roster->chunk_bytes = cases[i].chunk_bytes;
        for (uint32_t member = 0; member < 4; member++) {
            roster->members[member].reactors = cases[i].odd_reactors > 0 && member == 3 ? 2 : 1;
            roster->members[member].rank = member;
        }
        unsigned char bytes[ENCODED_MAX];
        trib_reader reader = {.data = bytes, .left = encode_roster(roster, bytes)};
        trib_error error = {.text = ""};
        assert_int_equal(trib_roster_get(&reader, &got, &error), cases[i].expected);
        assert_true(got == NULL || got->local_size == cases[i].local_size);
        free(got);
        free(roster);
    }
}

/* A partition with more chunks than a server sums is rejected. */
static void test_too_many_chunks(void **state)
{
    (void)state;
    for (uint32_t chunks = 65536; chunks <= 65537; chunks++) {
        trib_roster *roster = sample_roster(), *got = NULL;
        roster->chunk_bytes = 4096;
        roster->partition_bytes = chunks * 4096;
        unsigned char bytes[ENCODED_MAX];
        trib_reader reader = {.data = bytes, .left = encode_roster(roster, bytes)};
        trib_error error = {.text = ""};
        assert_int_equal(trib_roster_get(&reader, &got, &error), chunks == 65536 ? TRIB_OK : TRIB_PROTOCOL);
        free(got);
        free(roster);
    }
}

/* For links that differ by a thousand million times and more, the factor stays a number that can be encoded. */
static void test_the_factor_saturates(void **state)
{
    (void)state;
    trib_roster *roster = sample_roster(), *got = NULL;
    roster->t_opt_factor = 1e300;
    unsigned char bytes[ENCODED_MAX];
    trib_reader reader = {.data = bytes, .left = encode_roster(roster, bytes)};
    trib_error error = {.text = ""};
    assert_int_equal(trib_roster_get(&reader, &got, &error), TRIB_OK);
    assert_true(got->t_opt_factor == TRIB_T_OPT_FACTOR_MAX);
    free(got);
    free(roster);
}

static void test_names_of_unknown_members(void **state)
{
    (void)state;
    trib_roster *roster = sample_roster();
    assert_string_equal(trib_roster_name(roster, 4), "an unknown member");
    assert_string_equal(trib_roster_name(roster, TRIB_NO_MEMBER), "an unknown member");
    assert_string_equal(trib_roster_name(NULL, 0), "an unknown member");
    free(roster);
}

/* One word of the roster's head at a time is set to a value that no coordinator announces. */
static void test_insane_rosters_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
    } changes[] = {
        {4, 0},
        {4, 5},
        {4, 2},
        {8, 0},
        {8, 2},
        {12, 0},
        {12, 3},
        {12, TRIB_MEMBERS_MAX + 1},
        {12, UINT32_MAX},
        {16, 0},
        {16, 1u << 17},
        {16, (1u << 20) + 4096},
        {20, 0},
        {20, 2048},
        {20, 3u << 16},
        {20, 1u << 21},
        {24, 2},
        {24, UINT32_MAX},
        {32, 0x80000000u},
        {40, 0x10000000u},
    };
    trib_roster *roster = sample_roster();
    unsigned char bytes[ENCODED_MAX];
    const size_t size = encode_roster(roster, bytes);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint32_t before = load_u32(bytes + changes[i].at);
        store_u32(bytes + changes[i].at, changes[i].value);
        trib_reader reader = {.data = bytes, .left = size};
        trib_roster *got = NULL;
        trib_error error = {.text = ""};
        if (trib_roster_get(&reader, &got, &error) != TRIB_PROTOCOL || got != NULL) {
            fail_msg("word at %zu = %u was taken", changes[i].at, changes[i].value);
        }
        store_u32(bytes + changes[i].at, before);
    }
    free(roster);
}

static void test_member_infos(void **state)
{
    (void)state;
    guarded memory = guarded_create();
    trib_roster *roster = sample_roster();
    unsigned char bytes[ENCODED_MAX];
    trib_writer writer = {.data = bytes, .capacity = sizeof bytes};
    trib_member_info_put(&writer, &roster->members[2]);
    trib_error error = {.text = ""};
    for (size_t cut = 0; cut <= writer.size; cut++) {
        trib_reader reader = guarded_reader(&memory, bytes, cut);
        trib_member_info got = {.roles = 99};
        trib_status status = trib_member_info_get(&reader, &got, &error);
        assert_int_equal(status, cut < writer.size ? TRIB_PROTOCOL : TRIB_OK);
        if (cut < writer.size) {
            assert_int_equal(got.roles, 99);
        } else {
            assert_same_member(&got, &roster->members[2]);
        }
    }
    const uint32_t reactors[] = {0, TRIB_REACTORS_MAX + 1, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        store_u32(bytes + 5, reactors[i]);
        trib_reader reader = guarded_reader(&memory, bytes, writer.size);
        trib_member_info got;
        assert_int_equal(trib_member_info_get(&reader, &got, &error), TRIB_PROTOCOL);
    }
    store_u32(bytes + 5, 1);
    for (unsigned flags = 3; flags < 256; flags++) { /* one of three roles, then two bits */
        bytes[4] = (unsigned char)flags;
        trib_reader reader = guarded_reader(&memory, bytes, writer.size);
        trib_member_info got;
        const bool is_known = flags < 16 && flags % 4 != 3;
        assert_int_equal(trib_member_info_get(&reader, &got, &error), is_known ? TRIB_OK : TRIB_PROTOCOL);
    }
    free(roster);
    guarded_destroy(&memory);
}

/* Members with these addresses; NULL ends the list. */
static bool is_one_host(const char *const *addresses)
{
    uint32_t count = 0;
    while (addresses[count] != NULL) {
        count++;
    }
    trib_roster *roster = trib_roster_create(count);
    assert_non_null(roster);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(roster->members[i].addresses[0].text, TRIB_ADDRESS_MAX, "%s", addresses[i]);
    }
    const bool one = trib_roster_is_one_host(roster);
    free(roster);
    return one;
}

static void test_one_host(void **state)
{
    (void)state;
    assert_true(is_one_host((const char *[]){"127.0.0.1:1", "127.0.0.2:1", "[::1]:7", NULL}));
    assert_true(is_one_host((const char *[]){"10.0.0.1:1", "10.0.0.1:2", NULL}));
    assert_true(is_one_host((const char *[]){"[fe80::1]:1", "[fe80::1]:2", NULL}));
    assert_true(is_one_host((const char *[]){"10.0.0.2:1,10.1.0.2:2", "10.1.0.2:3+rdma,10.0.0.2:4", NULL}));
    assert_false(is_one_host((const char *[]){"10.0.0.2:1,10.1.0.2:2", "10.1.0.2:3,10.0.0.1:4", NULL}));
    assert_true(is_one_host((const char *[]){"10.0.0.2:1,10.1.0.2:2,", "10.1.0.2:3+rdma,10.0.0.2:4,", NULL}));
    assert_false(is_one_host((const char *[]){"10.0.0.2:1,10.1.0.2:2,", "10.1.0.1:3,10.0.0.1:4,", NULL}));
    assert_false(is_one_host((const char *[]){"10.0.0.1:1", "10.0.0.2:1", NULL}));
    assert_false(is_one_host((const char *[]){"10.0.0.1:1", "10.0.0.10:1", NULL}));
    assert_false(is_one_host((const char *[]){"127.0.0.1:1", "10.0.0.1:1", NULL}));
    assert_false(is_one_host((const char *[]){"10.0.0.1:1", "127.0.0.1:1", NULL}));
    assert_true(is_one_host((const char *[]){"m1/a:1", "m1/b:1", NULL}));
    assert_false(is_one_host((const char *[]){"m1/a:1", "m10/a:1", NULL}));
    assert_false(is_one_host((const char *[]){"n1:1", "n2:1", NULL}));
    assert_true(is_one_host((const char *[]){"n1:1", "n1:2", NULL}));
}

/* However many members sum, a tensor's partitions must fit a DECLARED frame, and a partition's chunks its sum. */
static void test_limits_of_cutting(void **state)
{
    (void)state;
    enum { MANY = 2000 };
    trib_roster *roster = trib_roster_create(MANY);
    assert_non_null(roster);
    roster->worker_count = MANY;
    roster->chunk_bytes = 256u << 10;
    roster->partition_bytes = 1u << 20;
    for (uint32_t i = 0; i < MANY; i++) {
        roster->members[i].sums = true;
        roster->members[i].reactors = 1;
        snprintf(roster->members[i].addresses[0].text, TRIB_ADDRESS_MAX, "10.0.%u.%u:1", i / 250, i % 250 + 1);
    }
    for (uint64_t bytes = 1; bytes <= UINT64_C(1) << 36; bytes = bytes * 3 + 1) {
        const uint32_t usual = trib_tensor_partition_bytes(roster, bytes, 0, 0);
        const uint32_t slow = trib_tensor_partition_bytes_slow(roster, bytes, 0);
        assert_true(slow <= usual);
        assert_true((bytes - 1) / slow < 65536); /* the number of partitions, without one */
    }
    roster->partition_bytes = 4096u * 65536u * 15u;
    assert_int_equal(trib_tensor_chunk_bytes(roster, 1u << 20, 0), 64u << 10);
    free(roster);
}

/* 1 MiB, 4 workers, 4 members that sum: 32 partitions of 32 KiB between hosts, whole chunks within one. */
static void test_partitions(void **state)
{
    (void)state;
    trib_roster *roster = trib_roster_create(4);
    assert_non_null(roster);
    roster->worker_count = 4;
    roster->chunk_bytes = 256u << 10;
    roster->partition_bytes = 1u << 20;
    for (uint32_t i = 0; i < 4; i++) {
        roster->members[i].sums = true;
        snprintf(roster->members[i].addresses[0].text, TRIB_ADDRESS_MAX, "10.0.0.%u:1", i + 1);
    }
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 20, 0, 0), 32u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 30, 0, 0), 1u << 20);
    /* 128 partitions for each core if they have at least 64 KiB, otherwise 32 of at least 16 KiB. */
    for (uint32_t reactors = 1; reactors <= 4; reactors *= 2) {
        for (uint32_t i = 0; i < 4; i++) {
            roster->members[i].reactors = reactors;
        }
        assert_int_equal(trib_tensor_chunk_bytes(roster, 128u << 20, 0), (256u << 10) / reactors);
        assert_int_equal(trib_tensor_chunk_bytes(roster, 4u << 20, 0), reactors == 1 ? 32u << 10 : 16u << 10);
        assert_int_equal(trib_tensor_chunk_bytes(roster, UINT64_C(1) << 30, 0), 256u << 10);
    }
    /* 64 partitions for each member, with many workers too, because those send as many chunks. */
    roster->worker_count = 64;
    assert_int_equal(trib_tensor_partition_bytes(roster, 16u << 20, 0, 0), 64u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 20, 0, 0), 64u << 10);
    roster->worker_count = 4;
    /* Slow links can take that many messages. Of a small tensor every member gets 16 parts, or two. */
    assert_int_equal(trib_tensor_partition_bytes(roster, 4u << 20, 0, 0), 64u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 4u << 20, 0), 32u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 64u << 20, 0), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, (1u << 20) + 4, 0), 32u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 1u << 20, 0), 16u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, (64u << 10) + 4, 0), 16u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 64u << 10, 0), 8u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 64, 0), 8u << 10);
    /* Codecs that make little of a chunk get chunks of which they make 8 KiB, and no smaller partitions. */
    const uint32_t onebit = trib_codec_chunk_least(roster, "onebit,ef=vanilla", NULL, TRIB_FLOAT32, false);
    assert_int_equal(onebit, 256u << 10);
    assert_int_equal(trib_tensor_chunk_bytes(roster, 4u << 20, onebit), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 4u << 20, 0, onebit), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 4u << 20, onebit), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 30, 0, onebit), 1u << 20);
    assert_int_equal(trib_codec_chunk_least(roster, "int8", NULL, TRIB_FLOAT32, false), 0);
    assert_int_equal(trib_codec_chunk_least(roster, "topk,ratio=0.05", NULL, TRIB_FLOAT32, false), 128u << 10);
    assert_int_equal(trib_codec_chunk_least(roster, "mine", "onebit", TRIB_FLOAT32, false), onebit);
    assert_int_equal(trib_codec_chunk_least(roster, "mine", NULL, TRIB_FLOAT32, false), 0);
    assert_int_equal(trib_codec_chunk_least(roster, "topk,k=100", NULL, TRIB_FLOAT32, false), 0);
    assert_int_equal(trib_codec_chunk_least(roster, "none", NULL, TRIB_FLOAT32, false), 0);
    assert_int_equal(trib_codec_chunk_least(roster, "auto", NULL, TRIB_FLOAT32, false), 0);
    roster->survives = true; /* sums have no codec then */
    assert_int_equal(trib_codec_chunk_least(roster, "onebit", NULL, TRIB_FLOAT32, false), 0);
    roster->survives = false;
    roster->local_size = 2; /* nor have those of machines that sum first */
    assert_int_equal(trib_codec_chunk_least(roster, "onebit", NULL, TRIB_FLOAT32, false), 0);
    assert_int_equal(trib_codec_chunk_least(roster, "onebit", NULL, TRIB_FLOAT32, true), onebit);
    roster->local_size = 0;
    /* More than 65,536 partitions of the largest size: larger partitions, of whole chunks. */
    assert_int_equal(trib_tensor_partition_bytes(roster, (UINT64_C(1) << 36) + 4, 0, 0), (1u << 20) + (256u << 10));
    /* Where a link has several networks each partition takes one of them. There are none where a transport is better
     * than TCP, or where machines sum first. */
    trib_member_info *one = &roster->members[2];
    one->reactors = 1;
    snprintf(one->addresses[0].text, TRIB_ADDRESS_MAX, "10.0.0.3:1,10.1.0.3:1,10.2.0.3:1,");
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 256u << 10);
    one->subflows = true;
    assert_int_equal(trib_roster_networks(roster, 2, 0), 3);
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 128u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 20, 0, 0), 32u << 10);
    roster->chunk_bytes = 64u << 10;
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 64u << 10);
    roster->chunk_bytes = 256u << 10;
    roster->local_size = 2;
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 256u << 10);
    roster->local_size = 0;
    snprintf(one->addresses[0].text, TRIB_ADDRESS_MAX, "10.0.0.3:1+rdma,10.1.0.3:1+rdma");
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 256u << 10);
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(roster->members[i].addresses[0].text, TRIB_ADDRESS_MAX, "127.0.0.1:%u", i + 1);
    }
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 20, 0, 0), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 1u << 20);
    assert_int_equal(trib_tensor_partition_bytes_slow(roster, 1u << 20, 0), 256u << 10);
    assert_int_equal(trib_tensor_chunk_bytes(roster, 1u << 20, 0), 256u << 10);
    /* There are none within one host either, whose members do not use its networks. */
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(roster->members[i].addresses[0].text, TRIB_ADDRESS_MAX, "10.0.0.1:%u,10.1.0.1:%u", i + 1, i + 1);
        roster->members[i].subflows = true;
    }
    assert_int_equal(trib_tensor_partition_bytes(roster, 1u << 20, 0, 0), 256u << 10);
    assert_int_equal(trib_tensor_partition_bytes(roster, 64u << 20, 0, 0), 1u << 20);
    free(roster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roster_round_trips),
        cmocka_unit_test(test_every_truncated_roster_is_refused),
        cmocka_unit_test(test_bytes_after_the_roster_are_refused),
        cmocka_unit_test(test_too_many_chunks),
        cmocka_unit_test(test_the_factor_saturates),
        cmocka_unit_test(test_machines_in_rosters),
        cmocka_unit_test(test_names_of_unknown_members),
        cmocka_unit_test(test_insane_rosters_are_refused),
        cmocka_unit_test(test_member_infos),
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_limits_of_cutting),
        cmocka_unit_test(test_partitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
