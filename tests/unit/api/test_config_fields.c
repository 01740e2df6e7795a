/* test_config_fields.c - trib_engine_create checks each field of a configuration: an error names a wrong field, and 0
 * is the default. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/config/config.h"
#include "engine/reactor/reactor.h"
#include "api/tributary.h"

/* ---- What trib_engine_create refuses ---- */

typedef void (*change)(trib_config *config);

#define CHANGE(name, statement)                                                                                        \
    static void name(trib_config *config)                                                                              \
    {                                                                                                                  \
        statement;                                                                                                     \
    }

CHANGE(smaller_struct, config->struct_size -= 8)
CHANGE(larger_struct, config->struct_size += 8)
CHANGE(unknown_flag, config->flags = 4)
CHANGE(set_reserved, config->reserved[0] = 1)
CHANGE(odd_store, config->store = "redis://127.0.0.1:1/x")
CHANGE(store_without_port, config->store = "etcd://host/x")
CHANGE(unknown_mode, config->mode = (trib_mode)3)
CHANGE(unknown_role, config->roles = 8)
CHANGE(unknown_colocate, config->colocate = (trib_colocate)3)
CHANGE(unknown_order, config->sum_order = (trib_sum_order)2)
CHANGE(unknown_local_sum, config->local_sum = (trib_local_sum)3)
CHANGE(unknown_shares, config->shares = (trib_shares)2)
CHANGE(short_token, config->token = "seven b")
CHANGE(unknown_checksum, config->checksum = (trib_checksum)3)
CHANGE(unknown_gpu_direct, config->gpu_direct = (trib_gpu_direct)2)
CHANGE(unknown_level, config->log_level = (trib_log_level)6)
CHANGE(negative_level, config->log_level = (trib_log_level)-1)
CHANGE(negative_rank, config->rank = -2)
CHANGE(rank_too_high, config->rank = 1)
CHANGE(no_workers, config->worker_count = 0)
CHANGE(negative_servers, config->server_count = -1)
CHANGE(too_many_members, config->worker_count = 4000; config->server_count = 97)
CHANGE(overflowing_members, config->worker_count = INT32_MAX; config->server_count = INT32_MAX)
CHANGE(no_coordinator, config->worker_count = 2)
CHANGE(no_coordinator_for_server, config->roles = TRIB_ROLE_SERVER)
CHANGE(external_without_address, config->external_coordinator = true)
CHANGE(open_port, config->worker_count = 2; config->coordinator = "127.0.0.1:0")
CHANGE(open_port_for_server, config->roles = TRIB_ROLE_SERVER; config->coordinator = "[::1]:0")
CHANGE(open_port_elsewhere, config->external_coordinator = true; config->coordinator = "127.0.0.1:00,127.0.0.2:0")
CHANGE(nobody_sums, config->colocate = TRIB_COLOCATE_OFF)
CHANGE(small_chunk, config->chunk_bytes = 2048)
CHANGE(large_chunk, config->chunk_bytes = 2 << 20)
CHANGE(odd_chunk, config->chunk_bytes = 12288)
CHANGE(small_partition, config->partition_bytes = 4096)
CHANGE(odd_partition, config->partition_bytes = (1 << 20) + 4096)
CHANGE(many_chunks, config->chunk_bytes = 4096; config->partition_bytes = (1 << 28) + 4096)
CHANGE(many_reactors, config->reactors = 17)
CHANGE(odd_machines, config->local_size = 3; config->worker_count = 4; config->coordinator = "127.0.0.1:4242")
CHANGE(huge_machine, config->local_size = 65; config->worker_count = 65; config->coordinator = "127.0.0.1:4242")
CHANGE(other_local_rank, config->local_rank = 1)
CHANGE(low_device, config->device_index = -2)
CHANGE(unknown_device, config->device = "abacus")
CHANGE(negative_join, config->join_timeout_ns = -1)
CHANGE(negative_peer, config->peer_timeout_ns = -1)
CHANGE(negative_close, config->close_timeout_ns = -1)
CHANGE(loop_elsewhere, config->loop = (struct ev_loop *)config)
CHANGE(no_loop, config->mode = TRIB_MODE_ATTACHED)
CHANGE(attached_reactors, config->mode = TRIB_MODE_ATTACHED; config->loop = (struct ev_loop *)config;
       config->reactors = 2)
CHANGE(no_port, config->coordinator = "localhost")
CHANGE(empty_port, config->coordinator = "localhost:")
CHANGE(word_port, config->coordinator = "localhost:http")
CHANGE(high_port, config->coordinator = "127.0.0.1:70000")
CHANGE(no_host, config->coordinator = ":4242")
CHANGE(open_bracket, config->coordinator = "[::1:4242")
CHANGE(not_local, config->coordinator = "192.0.2.1:4242")
CHANGE(port_of_one_of_two, config->token = "a token of the tests";
       config->coordinator = "127.0.0.1:4242,127.0.0.2:70000")
CHANGE(far_listen, config->token = "a token of the tests"; config->listen = "192.0.2.1")
CHANGE(any_listen, config->token = "a token of the tests"; config->listen = "0.0.0.0")
CHANGE(any_listen6, config->token = "a token of the tests"; config->listen = "127.0.0.1,0::0")
CHANGE(any_mapped, config->token = "a token of the tests"; config->listen = "::ffff:0.0.0.0")
CHANGE(any_coordinator, config->token = "a token of the tests"; config->coordinator = "0.0.0.0:4242")
CHANGE(any_coordinator6, config->token = "a token of the tests"; config->coordinator = "[::]:4242";
       config->listen = "127.0.0.1"; config->roles = TRIB_ROLE_SERVER)
CHANGE(any_elsewhere, config->token = "a token of the tests"; config->coordinator = "127.0.0.1:4242,0.0.0.0:4242";
       config->listen = "::1"; config->external_coordinator = true)
CHANGE(bad_listen, config->token = "a token of the tests"; config->listen = "nonsense")
CHANGE(unknown_letter, config->trace = "/tmp/%r.%d.trib")
CHANGE(lone_percent, config->trace = "/tmp/%%%r.100%")
CHANGE(long_poll, config->busy_poll_ns = INT64_C(1000000001))
CHANGE(large_trace, config->trace_bytes = UINT64_MAX)
CHANGE(unknown_transport, config->transport = "pigeon")

/* The text for a field that has a variable names it, whether the variable or the program has set the field. */
static void variables_are_named(void **state)
{
    (void)state;
    clearenv();
    static const struct {
        change change;
        const char *name;
    } wrong[] = {
        {rank_too_high, "TRIB_RANK"},
        {rank_too_high, "TRIB_WORKERS"},
        {too_many_members, "TRIB_WORKERS"},
        {too_many_members, "TRIB_SERVERS"},
        {nobody_sums, "TRIB_COLOCATE"},
        {small_chunk, "TRIB_CHUNK_BYTES"},
        {odd_partition, "TRIB_PARTITION_BYTES"},
        {many_chunks, "TRIB_PARTITION_BYTES"},
        {many_reactors, "TRIB_REACTORS"},
        {attached_reactors, "TRIB_REACTORS"},
        {odd_machines, "TRIB_LOCAL_COUNT"},
        {other_local_rank, "TRIB_LOCAL_RANK"},
        {long_poll, "TRIB_BUSY_POLL_TIME"},
        {large_trace, "TRIB_TRACE_BYTES"},
        {lone_percent, "TRIB_TRACE"},
        {unknown_device, "TRIB_DEVICE"},
        {unknown_transport, "TRIB_TRANSPORT"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        wrong[i].change(&config);
        trib_engine *engine = NULL;
        trib_error error = {.status = TRIB_OK};
        assert_int_not_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
        if (strstr(error.text, wrong[i].name) == NULL) {
            fail_msg("\"%s\" does not name %s", error.text, wrong[i].name);
        }
    }
}

static void wrong_fields(void **state)
{
    (void)state;
    clearenv();
    static const struct {
        change change;
        trib_status status;
        const char *name, *says;
    } wrong[] = {
        {smaller_struct, TRIB_INVALID, "struct_size", "trib_config_init"},
        {larger_struct, TRIB_INVALID, "struct_size", "trib_config_init"},
        {unknown_flag, TRIB_INVALID, "flags", "0x4"},
        {set_reserved, TRIB_INVALID, "reserved[0]", "not 0"},
        {unknown_mode, TRIB_INVALID, "mode 3", "0..2"},
        {unknown_role, TRIB_INVALID, "roles", "0x8"},
        {unknown_colocate, TRIB_INVALID, "colocate 3", "0..2"},
        {unknown_order, TRIB_INVALID, "sum_order 2", "0..1"},
        {unknown_local_sum, TRIB_INVALID, "local_sum 3", "0..2"},
        {unknown_shares, TRIB_INVALID, "shares 2", "0..1"},
        {short_token, TRIB_INVALID, "token of 7 bytes", "openssl rand -hex 32"},
        {unknown_checksum, TRIB_INVALID, "checksum 3", "0..2"},
        {unknown_gpu_direct, TRIB_INVALID, "gpu_direct 2", "0..1"},
        {unknown_level, TRIB_INVALID, "log_level 6", "0..5"},
        {negative_level, TRIB_INVALID, "log_level -1", "0..5"},
        {negative_rank, TRIB_INVALID, "rank -2", "0..0"},
        {rank_too_high, TRIB_INVALID, "rank 1", "0..0"},
        {no_workers, TRIB_INVALID, "worker_count 0", "at least 1"},
        {negative_servers, TRIB_INVALID, "server_count -1", "at least 1"},
        {too_many_members, TRIB_INVALID, "worker_count 4000", "4096"},
        {overflowing_members, TRIB_INVALID, "worker_count 2147483647", "4096"},
        {no_coordinator, TRIB_INVALID, "coordinator", "TRIB_COORDINATOR"},
        {no_coordinator_for_server, TRIB_INVALID, "coordinator", "TRIB_COORDINATOR"},
        {external_without_address, TRIB_INVALID, "coordinator", "TRIB_COORDINATOR"},
        {open_port, TRIB_INVALID, "127.0.0.1:0", "choose a port"},
        {open_port_for_server, TRIB_INVALID, "[::1]:0", "choose a port"},
        {open_port_elsewhere, TRIB_INVALID, "127.0.0.1:00", "choose a port"},
        {nobody_sums, TRIB_INVALID, "colocate", "no member is left to sum"},
        {small_chunk, TRIB_INVALID, "chunk_bytes 2048", "4096..1048576"},
        {large_chunk, TRIB_INVALID, "chunk_bytes 2097152", "4096..1048576"},
        {odd_chunk, TRIB_INVALID, "chunk_bytes 12288", "power of two"},
        {small_partition, TRIB_INVALID, "partition_bytes 4096", "multiple of chunk_bytes"},
        {odd_partition, TRIB_INVALID, "partition_bytes 1052672", "multiple of chunk_bytes"},
        {many_chunks, TRIB_INVALID, "partition_bytes 268439552", "65536 chunks"},
        {many_reactors, TRIB_INVALID, "reactors 17", "0..16 (TRIB_REACTORS)"},
        {large_trace, TRIB_INVALID, "trace_bytes", "1..68719476736 (TRIB_TRACE_BYTES)"},
        {long_poll, TRIB_INVALID, "busy_poll_ns 1000000001", "0..1000000000 (TRIB_BUSY_POLL_TIME)"},
        {odd_machines, TRIB_INVALID, "local_size 3", "divide worker_count, 4"},
        {huge_machine, TRIB_INVALID, "local_size 65", "1..64"},
        {other_local_rank, TRIB_INVALID, "local_rank 1", "consecutive"},
        {unknown_letter, TRIB_INVALID, "trace \"/tmp/%r.%d.trib\": %d", "%r (the member)"},
        {lone_percent, TRIB_INVALID, "100%\": % is none of", "%% (a percent sign"},
        {low_device, TRIB_INVALID, "device_index -2", "-1 or above"},
        {unknown_device, TRIB_INVALID, "abacus", "cuda"},
        {negative_join, TRIB_INVALID, "join_timeout_ns -1", "above 0 (TRIB_JOIN_TIMEOUT)"},
        {negative_peer, TRIB_INVALID, "peer_timeout_ns -1", "above 0 (TRIB_PEER_TIMEOUT)"},
        {negative_close, TRIB_INVALID, "close_timeout_ns -1", "above 0 (TRIB_CLOSE_TIMEOUT)"},
        {loop_elsewhere, TRIB_INVALID, "loop", "TRIB_MODE_ATTACHED"},
        {no_loop, TRIB_INVALID, "loop", "TRIB_MODE_ATTACHED"},
        {attached_reactors, TRIB_INVALID, "reactors 2", "has one"},
        {no_port, TRIB_INVALID, "localhost", "host:port"},
        {empty_port, TRIB_INVALID, "localhost:", "host:port"},
        {word_port, TRIB_INVALID, "localhost:http", "address"},
        {high_port, TRIB_INVALID, "127.0.0.1:70000", "65535"},
        {no_host, TRIB_INVALID, ":4242", "host:port"},
        {open_bracket, TRIB_INVALID, "[::1:4242", "host:port"},
        {not_local, TRIB_INVALID, "192.0.2.1:4242", "TRIB_TOKEN"},
        {no_port, TRIB_INVALID, "localhost", "TRIB_COORDINATOR"},
        {port_of_one_of_two, TRIB_INVALID, "127.0.0.2:70000", "TRIB_COORDINATOR"},
        {any_listen, TRIB_INVALID, "listen \"0.0.0.0\"", "TRIB_LISTEN"},
        {any_listen6, TRIB_INVALID, "listen \"127.0.0.1,0::0\"", "TRIB_LISTEN"},
        {any_mapped, TRIB_INVALID, "listen \"::ffff:0.0.0.0\"", "TRIB_LISTEN"},
        {any_coordinator, TRIB_INVALID, "coordinator 0.0.0.0:4242", "TRIB_LISTEN says where"},
        {any_coordinator6, TRIB_INVALID, "coordinator [::]:4242", "TRIB_COORDINATOR"},
        {any_elsewhere, TRIB_INVALID, "127.0.0.1:4242,0.0.0.0:4242", "TRIB_COORDINATOR"},
        {bad_listen, TRIB_INVALID, "nonsense", "address"},
        {far_listen, TRIB_SYSTEM, "listen \"192.0.2.1\"", "TRIB_LISTEN"},
        {unknown_transport, TRIB_UNSUPPORTED, "pigeon", "tcp"},
        {odd_store, TRIB_INVALID, "redis://127.0.0.1:1/x", "etcd://host:port/prefix"},
        {store_without_port, TRIB_INVALID, "etcd://host/x", "TRIB_STORE"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.log_level = TRIB_LOG_NONE;
        wrong[i].change(&config);
        trib_engine *engine = NULL;
        trib_error error = {.status = TRIB_OK};
        trib_status status = trib_engine_create(&config, &engine, &error);
        if (status != wrong[i].status || strstr(error.text, wrong[i].name) == NULL ||
            strstr(error.text, wrong[i].says) == NULL) {
            fail_msg("case %zu: %s \"%s\" does not say \"%s\" and \"%s\"", i, trib_status_name(status), error.text,
                     wrong[i].name, wrong[i].says);
        }
        assert_int_equal(error.status, status);
        assert_null(engine);
        assert_int_equal(trib_engine_create(&config, &engine, NULL), status);
    }
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(NULL, &engine, NULL), TRIB_INVALID);
}

/* 0 and NULL stand for the default of every field that has one. */
static void zero_is_the_default(void **state)
{
    (void)state;
    clearenv();
    trib_config config = {.struct_size = sizeof config, .worker_count = 1, .token = ""}, checked, defaults;
    trib_config_init(&defaults, sizeof defaults);
    assert_int_equal(trib_config_check(&config, &checked, NULL), TRIB_OK);
    assert_string_equal(checked.job, "default");
    assert_string_equal(checked.transport, "auto");
    assert_null(checked.token);
    assert_null(checked.coordinator);
    assert_int_equal(checked.roles, TRIB_ROLE_WORKER);
    assert_int_equal(checked.partition_bytes, defaults.partition_bytes);
    assert_int_equal(checked.chunk_bytes, defaults.chunk_bytes);
    assert_int_equal(checked.push_credit_bytes, defaults.push_credit_bytes);
    assert_int_equal(checked.pull_credit_bytes, defaults.pull_credit_bytes);
    assert_int_equal(checked.ops_max, defaults.ops_max);
    assert_int_equal(checked.join_timeout_ns, defaults.join_timeout_ns);
    assert_int_equal(checked.op_timeout_ns, defaults.op_timeout_ns);
    assert_int_equal(checked.peer_timeout_ns, defaults.peer_timeout_ns);
    assert_int_equal(checked.close_timeout_ns, defaults.close_timeout_ns);
    /* A job of one process needs no address: it picks a port and can be used at once. */
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    assert_int_equal(trib_engine_wait_ready(engine, -1, &error), TRIB_OK);
    trib_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(trib_engine_get_info(engine, &info), TRIB_OK);
    assert_true(info.reactors >= 1 && info.summing_count == 1 && info.chunk_bytes == defaults.chunk_bytes);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

/* The longest timeouts are cut, so that a time can be added to them. */
static void endless_timeouts(void **state)
{
    (void)state;
    clearenv();
    trib_config config, checked;
    trib_config_init(&config, sizeof config);
    config.join_timeout_ns = config.op_timeout_ns = config.peer_timeout_ns = config.close_timeout_ns = INT64_MAX;
    assert_int_equal(trib_config_check(&config, &checked, NULL), TRIB_OK);
    assert_int_equal(checked.join_timeout_ns, TRIB_TIMEOUT_MAX_NS);
    assert_int_equal(checked.op_timeout_ns, TRIB_TIMEOUT_MAX_NS);
    assert_int_equal(checked.peer_timeout_ns, TRIB_TIMEOUT_MAX_NS);
    assert_int_equal(checked.close_timeout_ns, TRIB_TIMEOUT_MAX_NS);
    assert_true(INT64_MAX - TRIB_TIMEOUT_MAX_NS > TRIB_TIMEOUT_MAX_NS);
}

/* A launcher that counts servers too gives each a rank, which may be no number of a server. */
static void rank_of_a_server(void **state)
{
    (void)state;
    trib_config config = {.struct_size = sizeof config, .rank = 1, .worker_count = 1, .server_count = 2}, checked;
    config.roles = TRIB_ROLE_SERVER;
    config.coordinator = "127.0.0.1:1";
    for (int rank = -2; rank < 4; rank++) {
        config.rank = rank;
        assert_int_equal(trib_config_check(&config, &checked, NULL), TRIB_OK);
        assert_int_equal(checked.rank, rank < 0 || rank >= config.server_count ? -1 : rank);
    }
}

/* In a job of one process the system may choose the port. Zeros may be part of other ports, and of addresses. */
static void port_0(void **state)
{
    (void)state;
    trib_config config, checked;
    trib_config_init(&config, sizeof config);
    config.coordinator = "127.0.0.1:0";
    assert_int_equal(trib_config_check(&config, &checked, NULL), TRIB_OK);
    static const char *const ports[] = {"127.0.0.1:10", "127.0.0.1:01,127.0.0.2:100", "[::]:7", "[fd00:0:0::1]:70"};
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++) {
        config.worker_count = 2;
        config.coordinator = ports[i];
        assert_int_equal(trib_config_check(&config, &checked, NULL), TRIB_OK);
    }
}

/* A wildcard coordinator is accepted if TRIB_LISTEN says how it is reached, or if no other process has to be told of
 * it. */
static void listening_everywhere(void **state)
{
    (void)state;
    clearenv();
    char taken[32]; /* the port may be in use by another process, which does not matter here */
    snprintf(taken, sizeof taken, "0.0.0.0:%d", 20000 + (int)getpid() % 10000);
    for (int i = 0; i < 2; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.token = "a token of the tests";
        config.log_level = TRIB_LOG_NONE;
        config.coordinator = i == 0 ? "0.0.0.0:0" : taken;
        config.listen = i == 0 ? "127.0.0.1" : NULL;
        config.roles = i == 0 ? TRIB_ROLE_WORKER : TRIB_ROLE_COORDINATOR;
        trib_engine *engine = NULL;
        trib_error error = {.status = TRIB_OK};
        if (trib_engine_create(&config, &engine, &error) == TRIB_INVALID ||
            (i == 0 && trib_engine_wait_ready(engine, -1, &error) != TRIB_OK)) {
            fail_msg("case %d: %s", i, error.text);
        }
        assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_fields),         cmocka_unit_test(zero_is_the_default),
        cmocka_unit_test(rank_of_a_server),     cmocka_unit_test(port_0),
        cmocka_unit_test(endless_timeouts),     cmocka_unit_test(variables_are_named),
        cmocka_unit_test(listening_everywhere),
    };
    /* The cases empty the environment, in which cmocka would look up how to report them. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
