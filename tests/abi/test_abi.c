/*
 * test_abi.c - freezes the layout of the public structs and the numbers of the public enums.
 *
 * Programs are compiled against one release's header and run with another's library. A row that fails means that
 * such programs break. Put a new field where reserved bytes were, give a new constant a new number, and add a row;
 * never change a row.
 *
 * The numbers hold for 64-bit machines with 8-byte alignment (LP64), where the library is built.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/tributary.h"

typedef struct row {
    const char *name;
    long long now, frozen;
} row;

#define SIZE(type, frozen)                                                                                             \
    {                                                                                                                  \
        "sizeof " #type, (long long)sizeof(type), frozen                                                               \
    }
#define FIELD(type, field, frozen)                                                                                     \
    {                                                                                                                  \
#type "." #field, (long long)offsetof(type, field), frozen                                                     \
    }
#define NUMBER(constant, frozen)                                                                                       \
    {                                                                                                                  \
#constant, (long long)(constant), frozen                                                                       \
    }

static const row layout[] = {
    SIZE(trib_error, 388),
    FIELD(trib_error, status, 0),
    FIELD(trib_error, text, 4),
    SIZE(trib_config, 376),
    FIELD(trib_config, struct_size, 0),
    FIELD(trib_config, flags, 4),
    FIELD(trib_config, mode, 8),
    FIELD(trib_config, roles, 12),
    FIELD(trib_config, rank, 16),
    FIELD(trib_config, worker_count, 20),
    FIELD(trib_config, server_count, 24),
    FIELD(trib_config, colocate, 28),
    FIELD(trib_config, external_coordinator, 32),
    FIELD(trib_config, coordinator, 40),
    FIELD(trib_config, listen, 48),
    FIELD(trib_config, job, 56),
    FIELD(trib_config, token, 64),
    FIELD(trib_config, transport, 72),
    FIELD(trib_config, reactors, 80),
    FIELD(trib_config, partition_bytes, 84),
    FIELD(trib_config, chunk_bytes, 88),
    FIELD(trib_config, push_credit_bytes, 92),
    FIELD(trib_config, pull_credit_bytes, 96),
    FIELD(trib_config, ops_max, 100),
    FIELD(trib_config, bandwidth_bits, 104),
    FIELD(trib_config, sum_order, 112),
    FIELD(trib_config, busy_poll, 116),
    FIELD(trib_config, pin, 117),
    FIELD(trib_config, join_timeout_ns, 120),
    FIELD(trib_config, op_timeout_ns, 128),
    FIELD(trib_config, peer_timeout_ns, 136),
    FIELD(trib_config, close_timeout_ns, 144),
    FIELD(trib_config, loop, 152),
    FIELD(trib_config, ready_cb, 160),
    FIELD(trib_config, ready_user, 168),
    FIELD(trib_config, ended_cb, 176),
    FIELD(trib_config, ended_user, 184),
    FIELD(trib_config, log_level, 192),
    FIELD(trib_config, log_cb, 200),
    FIELD(trib_config, log_user, 208),
    FIELD(trib_config, trace, 216),
    FIELD(trib_config, trace_bytes, 224),
    FIELD(trib_config, device, 232),
    FIELD(trib_config, device_index, 240),
    FIELD(trib_config, local_size, 244),
    FIELD(trib_config, local_rank, 248),
    FIELD(trib_config, local_sum, 252),
    FIELD(trib_config, busy_poll_ns, 256),
    FIELD(trib_config, shares, 264),
    FIELD(trib_config, gpu_direct, 268),
    FIELD(trib_config, coordinator_source, 272),
    FIELD(trib_config, checksum, 280),
    FIELD(trib_config, survive, 284),
    FIELD(trib_config, codec, 288),
    FIELD(trib_config, codec_min_bytes, 296),
    FIELD(trib_config, unique_id, 304),
    FIELD(trib_config, oob_cb, 312),
    FIELD(trib_config, oob_user, 320),
    FIELD(trib_config, codecs, 328),
    FIELD(trib_config, codec_count, 336),
    FIELD(trib_config, quorum, 340),
    FIELD(trib_config, codec_library, 344),
    FIELD(trib_config, store, 352),
    FIELD(trib_config, quorum_timeout_ns, 360),
    FIELD(trib_config, reserved, 368),
    SIZE(trib_boundary, 64),
    FIELD(trib_boundary, struct_size, 0),
    FIELD(trib_boundary, epoch, 4),
    FIELD(trib_boundary, number, 8),
    FIELD(trib_boundary, operations, 16),
    FIELD(trib_boundary, step, 24),
    FIELD(trib_boundary, worker_count, 28),
    FIELD(trib_boundary, reserved, 32),
    SIZE(trib_membership, 448),
    FIELD(trib_membership, struct_size, 0),
    FIELD(trib_membership, epoch, 4),
    FIELD(trib_membership, status, 8),
    FIELD(trib_membership, rank, 12),
    FIELD(trib_membership, worker_count, 16),
    FIELD(trib_membership, server_count, 20),
    FIELD(trib_membership, lost_count, 24),
    FIELD(trib_membership, text, 28),
    FIELD(trib_membership, reserved, 416),
    SIZE(trib_engine_info, 112),
    FIELD(trib_engine_info, struct_size, 0),
    FIELD(trib_engine_info, rank, 4),
    FIELD(trib_engine_info, worker_count, 8),
    FIELD(trib_engine_info, server_count, 12),
    FIELD(trib_engine_info, summing_count, 16),
    FIELD(trib_engine_info, reactors, 20),
    FIELD(trib_engine_info, epoch, 24),
    FIELD(trib_engine_info, partition_bytes, 28),
    FIELD(trib_engine_info, chunk_bytes, 32),
    FIELD(trib_engine_info, t_opt_factor, 40),
    FIELD(trib_engine_info, local_sum, 48),
    FIELD(trib_engine_info, local_rank, 56),
    FIELD(trib_engine_info, local_size, 60),
    FIELD(trib_engine_info, cross_rank, 64),
    FIELD(trib_engine_info, cross_size, 68),
    FIELD(trib_engine_info, reserved, 72),
    SIZE(trib_tensor_desc, 96),
    FIELD(trib_tensor_desc, struct_size, 0),
    FIELD(trib_tensor_desc, flags, 4),
    FIELD(trib_tensor_desc, name, 8),
    FIELD(trib_tensor_desc, dtype, 16),
    FIELD(trib_tensor_desc, priority, 20),
    FIELD(trib_tensor_desc, count, 24),
    FIELD(trib_tensor_desc, shape, 32),
    FIELD(trib_tensor_desc, dims, 40),
    FIELD(trib_tensor_desc, layout, 44),
    FIELD(trib_tensor_desc, splits, 48),
    FIELD(trib_tensor_desc, row, 56),
    FIELD(trib_tensor_desc, group, 64),
    FIELD(trib_tensor_desc, split_count, 72),
    FIELD(trib_tensor_desc, quorum, 76),
    FIELD(trib_tensor_desc, codec, 80),
    FIELD(trib_tensor_desc, name_length, 88),
    FIELD(trib_tensor_desc, name_begin, 92),
    SIZE(trib_codec_chunk, 80),
    FIELD(trib_codec_chunk, user, 0),
    FIELD(trib_codec_chunk, seed, 8),
    FIELD(trib_codec_chunk, ratio, 16),
    FIELD(trib_codec_chunk, k, 24),
    FIELD(trib_codec_chunk, count, 28),
    FIELD(trib_codec_chunk, dtype, 32),
    FIELD(trib_codec_chunk, rank, 36),
    FIELD(trib_codec_chunk, tensor_key, 40),
    FIELD(trib_codec_chunk, round, 48),
    FIELD(trib_codec_chunk, first_element, 56),
    FIELD(trib_codec_chunk, partition_first, 64),
    FIELD(trib_codec_chunk, partition_count, 72),
    SIZE(trib_codec_desc, 80),
    FIELD(trib_codec_desc, struct_size, 0),
    FIELD(trib_codec_desc, version, 4),
    FIELD(trib_codec_desc, name, 8),
    FIELD(trib_codec_desc, user, 16),
    FIELD(trib_codec_desc, state_bytes, 24),
    FIELD(trib_codec_desc, reserved_32, 28),
    FIELD(trib_codec_desc, check, 32),
    FIELD(trib_codec_desc, bound, 40),
    FIELD(trib_codec_desc, encode, 48),
    FIELD(trib_codec_desc, decode, 56),
    FIELD(trib_codec_desc, add_encoded, 64),
    FIELD(trib_codec_desc, reserved, 72),
    SIZE(trib_result, 40),
    FIELD(trib_result, status, 0),
    FIELD(trib_result, contributors, 4),
    FIELD(trib_result, bytes, 8),
    FIELD(trib_result, duration_ns, 16),
    FIELD(trib_result, tensor, 24),
    FIELD(trib_result, text, 32),
    SIZE(trib_op_params, 152),
    FIELD(trib_op_params, struct_size, 0),
    FIELD(trib_op_params, flags, 4),
    FIELD(trib_op_params, tensor, 8),
    FIELD(trib_op_params, input, 16),
    FIELD(trib_op_params, output, 24),
    FIELD(trib_op_params, reduce, 32),
    FIELD(trib_op_params, root, 36),
    FIELD(trib_op_params, priority, 40),
    FIELD(trib_op_params, has_priority, 44),
    FIELD(trib_op_params, timeout_ns, 48),
    FIELD(trib_op_params, done_cb, 56),
    FIELD(trib_op_params, user, 64),
    FIELD(trib_op_params, stream, 72),
    FIELD(trib_op_params, bytes, 80),
    FIELD(trib_op_params, step, 88),
    FIELD(trib_op_params, kind, 92),
    FIELD(trib_op_params, input_bytes, 96),
    FIELD(trib_op_params, output_bytes, 104),
    FIELD(trib_op_params, group, 112),
    FIELD(trib_op_params, dtype, 120),
    FIELD(trib_op_params, reserved_32, 124),
    FIELD(trib_op_params, prescale, 128),
    FIELD(trib_op_params, postscale, 136),
    FIELD(trib_op_params, reserved, 144),
    SIZE(trib_group_desc, 80),
    FIELD(trib_group_desc, struct_size, 0),
    FIELD(trib_group_desc, flags, 4),
    FIELD(trib_group_desc, name, 8),
    FIELD(trib_group_desc, ranks, 16),
    FIELD(trib_group_desc, rank_count, 24),
    FIELD(trib_group_desc, reserved_32, 28),
    FIELD(trib_group_desc, reserved, 32),
    SIZE(trib_waiting, 352),
    FIELD(trib_waiting, tensor, 0),
    FIELD(trib_waiting, partition, 256),
    FIELD(trib_waiting, round, 260),
    FIELD(trib_waiting, stage, 264),
    FIELD(trib_waiting, peer, 280),
    FIELD(trib_waiting, since_ns, 344),
    SIZE(trib_stats, 232),
    FIELD(trib_stats, struct_size, 0),
    FIELD(trib_stats, connections, 4),
    FIELD(trib_stats, ops_completed, 8),
    FIELD(trib_stats, ops_failed, 16),
    FIELD(trib_stats, ops_in_flight, 24),
    FIELD(trib_stats, bytes_pushed, 32),
    FIELD(trib_stats, bytes_pulled, 40),
    FIELD(trib_stats, bytes_summed, 48),
    FIELD(trib_stats, bytes_sum_sent, 56),
    FIELD(trib_stats, messages_sent, 64),
    FIELD(trib_stats, messages_received, 72),
    FIELD(trib_stats, system_calls, 80),
    FIELD(trib_stats, allocations, 88),
    FIELD(trib_stats, peers_refused, 96),
    FIELD(trib_stats, bytes_copied, 104),
    FIELD(trib_stats, bytes_relayed, 112),
    FIELD(trib_stats, bytes_direct, 120),
    FIELD(trib_stats, payloads_damaged, 128),
    FIELD(trib_stats, reserved, 136),
};

static const row numbers[] = {
    NUMBER(TRIB_FLOAT32, 0),
    NUMBER(TRIB_FLOAT64, 1),
    NUMBER(TRIB_FLOAT16, 2),
    NUMBER(TRIB_BFLOAT16, 3),
    NUMBER(TRIB_INT8, 4),
    NUMBER(TRIB_UINT8, 5),
    NUMBER(TRIB_INT32, 6),
    NUMBER(TRIB_INT64, 7),
    NUMBER(TRIB_BOOL, 8),
    NUMBER(TRIB_INT16, 9),
    NUMBER(TRIB_UINT16, 10),
    NUMBER(TRIB_UINT32, 11),
    NUMBER(TRIB_UINT64, 12),
    NUMBER(TRIB_FLOAT8_E4M3, 13),
    NUMBER(TRIB_FLOAT8_E5M2, 14),
    NUMBER(TRIB_DTYPE_COUNT, 15),
    NUMBER(TRIB_SUM, 0),
    NUMBER(TRIB_AVG, 1),
    NUMBER(TRIB_MIN, 2),
    NUMBER(TRIB_MAX, 3),
    NUMBER(TRIB_PRODUCT, 4),
    NUMBER(TRIB_BIT_AND, 5),
    NUMBER(TRIB_BIT_OR, 6),
    NUMBER(TRIB_BIT_XOR, 7),
    NUMBER(TRIB_REDUCE_COUNT, 8),
    NUMBER(TRIB_MODE_THREADS, 0),
    NUMBER(TRIB_MODE_QUEUE, 1),
    NUMBER(TRIB_MODE_ATTACHED, 2),
    NUMBER(TRIB_ROLE_WORKER, 1),
    NUMBER(TRIB_ROLE_SERVER, 2),
    NUMBER(TRIB_ROLE_COORDINATOR, 4),
    NUMBER(TRIB_COLOCATE_AUTO, 0),
    NUMBER(TRIB_COLOCATE_OFF, 1),
    NUMBER(TRIB_COLOCATE_ON, 2),
    NUMBER(TRIB_ORDER_RANK, 0),
    NUMBER(TRIB_ORDER_ARRIVAL, 1),
    NUMBER(TRIB_LOG_NONE, 0),
    NUMBER(TRIB_LOG_ERROR, 1),
    NUMBER(TRIB_LOG_WARN, 2),
    NUMBER(TRIB_LOG_INFO, 3),
    NUMBER(TRIB_LOG_DEBUG, 4),
    NUMBER(TRIB_LOG_TRACE, 5),
    NUMBER(TRIB_OK, 0),
    NUMBER(TRIB_PENDING, 1),
    NUMBER(TRIB_AGAIN, 2),
    NUMBER(TRIB_INVALID, -1),
    NUMBER(TRIB_STATE, -2),
    NUMBER(TRIB_BUSY, -3),
    NUMBER(TRIB_NO_MEMORY, -4),
    NUMBER(TRIB_TIMEOUT, -5),
    NUMBER(TRIB_CANCELLED, -6),
    NUMBER(TRIB_MISMATCH, -7),
    NUMBER(TRIB_WRONG_THREAD, -8),
    NUMBER(TRIB_UNSUPPORTED, -9),
    NUMBER(TRIB_PEER_LOST, -40),
    NUMBER(TRIB_PEER_LEFT, -41),
    NUMBER(TRIB_PROTOCOL, -42),
    NUMBER(TRIB_UNAUTHORIZED, -43),
    NUMBER(TRIB_JOIN_FAILED, -44),
    NUMBER(TRIB_EPOCH_CHANGED, -45),
    NUMBER(TRIB_CLOSED, -60),
    NUMBER(TRIB_SYSTEM, -61),
};

/* Every row is compared, so that one run shows everything that moved. */
static void compare(const row *rows, size_t count)
{
    size_t moved = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].now != rows[i].frozen) {
            print_error("%s is %lld, frozen at %lld\n", rows[i].name, rows[i].now, rows[i].frozen);
            moved++;
        }
    }
    assert_int_equal(moved, 0);
}

static void test_layout(void **state)
{
    (void)state;
    if (sizeof(void *) != 8 || _Alignof(uint64_t) != 8) {
        print_message("# the frozen offsets are those of 64 bits\n");
        skip();
    }
    compare(layout, sizeof layout / sizeof layout[0]);
}

static void test_numbers(void **state)
{
    (void)state;
    compare(numbers, sizeof numbers / sizeof numbers[0]);
}

/* The library notes the size that a caller passes, and reserved bytes start as zero. */
static void test_init_notes_the_size(void **state)
{
    (void)state;
    static const uint64_t zero[16];
    trib_config config;
    trib_tensor_desc desc;
    trib_op_params params;
    memset(&config, 0xff, sizeof config);
    memset(&desc, 0xff, sizeof desc);
    memset(&params, 0xff, sizeof params);
    trib_config_init(&config, sizeof config);
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    assert_int_equal(config.struct_size, sizeof config);
    assert_int_equal(desc.struct_size, sizeof desc);
    assert_int_equal(params.struct_size, sizeof params);
    assert_memory_equal(config.reserved, zero, sizeof config.reserved);
    assert_memory_equal(params.reserved, zero, sizeof params.reserved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_init_notes_the_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
