/*
 * test_config.c - settings from the environment, and the error texts of wrong ones. Launchers: test_config_launchers.c.
 *
 * Each case starts from an empty environment, so that the launcher that runs the tests does not take part.
 */
#include <locale.h>
#include <sys/stat.h>

#include "engine/codec/codec.h"
#include "tests/unit/api/config_cases.h"

#define SECOND INT64_C(1000000000)

static void nothing_changes_nothing(void **state)
{
    (void)state;
    trib_config defaults, config = READ();
    trib_config_init(&defaults, sizeof defaults);
    assert_memory_equal(&config, &defaults, sizeof config);
    config = READ("TRIB_RANK", "", "TRIB_WORKERS", "", "TRIB_LOG", "", "RANK", "3", "DMLC_ROLE", "");
    assert_int_equal(config.rank, 0);
    assert_int_equal(config.worker_count, 1);
}

static void own_variables(void **state)
{
    (void)state;
    trib_config config =
        READ("TRIB_RANK", "2", "TRIB_WORKERS", "4", "TRIB_SERVERS", "3", "TRIB_REACTORS", "5", "TRIB_ROLE",
             "worker+server", "TRIB_COORDINATOR", "host:7", "TRIB_LISTEN", "10.0.0.1", "TRIB_JOB", "j",
             "TRIB_TRANSPORT", "tcp", "TRIB_TOKEN", "t, and more", "TRIB_PARTITION_BYTES", "2M", "TRIB_CHUNK_BYTES",
             "64KiB", "TRIB_PUSH_CREDIT", "131072", "TRIB_PULL_CREDIT", "1G", "TRIB_JOIN_TIMEOUT", "5m",
             "TRIB_OP_TIMEOUT", "0.5", "TRIB_PEER_TIMEOUT", "200ms", "TRIB_CLOSE_TIMEOUT", "3s", "TRIB_BANDWIDTH",
             "10gbit", "TRIB_SUM_ORDER", "ARRIVAL", "TRIB_COLOCATE", "off", "TRIB_LOCAL_SUM", "on", "TRIB_SHARES",
             "follow", "TRIB_LOG", "debug", "TRIB_BUSY_POLL", "yes", "TRIB_PIN", "false", "TRIB_EXTERNAL_COORDINATOR",
             "1", "TRIB_BUSY_POLL_TIME", "50us", "TRIB_GPU_DIRECT", "off", "TRIB_CHECKSUM", "on");
    assert_int_equal(config.rank, 2);
    assert_int_equal(config.worker_count, 4);
    assert_int_equal(config.server_count, 3);
    assert_int_equal(config.reactors, 5);
    assert_int_equal(config.roles, TRIB_ROLE_WORKER | TRIB_ROLE_SERVER);
    assert_string_equal(config.coordinator, "host:7");
    assert_string_equal(config.listen, "10.0.0.1");
    assert_string_equal(config.job, "j");
    assert_string_equal(config.transport, "tcp");
    assert_string_equal(config.token, "t, and more");
    assert_int_equal(config.partition_bytes, 2 << 20);
    assert_int_equal(config.chunk_bytes, 64 << 10);
    assert_int_equal(config.push_credit_bytes, 131072);
    assert_int_equal(config.pull_credit_bytes, 1 << 30);
    assert_int_equal(config.join_timeout_ns, 300 * SECOND);
    assert_int_equal(config.op_timeout_ns, SECOND / 2);
    assert_int_equal(config.peer_timeout_ns, SECOND / 5);
    assert_int_equal(config.close_timeout_ns, 3 * SECOND);
    assert_int_equal(config.bandwidth_bits, UINT64_C(10000000000));
    assert_int_equal(config.sum_order, TRIB_ORDER_ARRIVAL);
    assert_int_equal(config.colocate, TRIB_COLOCATE_OFF);
    assert_int_equal(config.local_sum, TRIB_LOCAL_SUM_ON);
    assert_int_equal(config.shares, TRIB_SHARES_FOLLOW);
    assert_int_equal(config.gpu_direct, TRIB_GPU_DIRECT_OFF);
    assert_int_equal(config.checksum, TRIB_CHECKSUM_ON);
    assert_int_equal(config.log_level, TRIB_LOG_DEBUG);
    assert_true(config.busy_poll);
    assert_int_equal(config.busy_poll_ns, 50000);
    assert_false(config.pin);
    assert_true(config.external_coordinator);
    assert_int_equal(READ("TRIB_ROLE", "coordinator").roles, TRIB_ROLE_COORDINATOR);
    assert_int_equal(READ("TRIB_BANDWIDTH", "1000000").bandwidth_bits, 1000000);
    assert_int_equal(READ("TRIB_BANDWIDTH", "2g").bandwidth_bits, INT64_C(2000000000)); /* as "2gbit" */
    assert_int_equal(READ("TRIB_TRACE_BYTES", "2G").trace_bytes, UINT64_C(2) << 30);
}

/* The token is the first line of the value or the file, without its line end. TRIB_TOKEN takes precedence over the
 * file. */
static void token_from_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tributary-token-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "first line\r\nsecond", 18), 18);
    assert_string_equal(READ("TRIB_TOKEN_FILE", path).token, "first line");
    assert_string_equal(READ("TRIB_TOKEN_FILE", path, "TRIB_TOKEN", "direct").token, "direct");
    static const char *const texts[] = {"first line", "first line\n", "first line\r\nsecond"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_string_equal(READ("TRIB_TOKEN", texts[i]).token, "first line");
    }
    REFUSED("TRIB_TOKEN", "first line is the token", "TRIB_TOKEN", "\nsecond");
    /* A token longer than the buffer is rejected, because half of it would be another token. */
    char longer[600];
    memset(longer, 'x', sizeof longer);
    assert_int_equal(pwrite(fd, longer, sizeof longer, 0), sizeof longer);
    REFUSED("TRIB_TOKEN_FILE", "1 to 511 bytes", "TRIB_TOKEN_FILE", path);
    assert_int_equal(ftruncate(fd, 511), 0);
    assert_int_equal(strlen(READ("TRIB_TOKEN_FILE", path).token), 511);
    assert_int_equal(ftruncate(fd, 0), 0);
    REFUSED("TRIB_TOKEN_FILE", "first line is the token", "TRIB_TOKEN_FILE", path);
    assert_int_equal(pwrite(fd, "\n", 1, 0), 1);
    REFUSED("TRIB_TOKEN_FILE", "first line is the token", "TRIB_TOKEN_FILE", path);
    assert_int_equal(pwrite(fd, "a token", 7, 0), 7);
    assert_int_equal(fchmod(fd, 0644), 0);
    assert_string_equal(READ("TRIB_TOKEN_FILE", path).token, "a token");
    assert_int_equal(fchmod(fd, 0606), 0);
    REFUSED("TRIB_TOKEN_FILE", "chmod 600", "TRIB_TOKEN_FILE", path);
    close(fd);
    unlink(path);
    REFUSED("TRIB_TOKEN_FILE", "No such file", "TRIB_TOKEN_FILE", path);
    REFUSED("TRIB_TOKEN_FILE", "/tmp", "TRIB_TOKEN_FILE", "/tmp");
}

/* Fields that the caller has set stay where the environment has no variable for them. */
static void fields_stay(void **state)
{
    (void)state;
    set_all((const char *const[]){"TRIB_WORKERS", "6", NULL});
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = 3;
    config.chunk_bytes = 8192;
    config.coordinator = "there:1";
    config.token = "a token of the tests";
    config.roles = TRIB_ROLE_SERVER;
    config.busy_poll = true;
    assert_int_equal(trib_config_from_env(&config, NULL), TRIB_OK);
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 6);
    assert_int_equal(config.chunk_bytes, 8192);
    assert_string_equal(config.coordinator, "there:1");
    assert_string_equal(config.token, "a token of the tests");
    assert_int_equal(config.roles, TRIB_ROLE_SERVER);
    assert_true(config.busy_poll);
}

static void wrong_values(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"TRIB_RANK", "two", "-1 to 4095"},
        {"TRIB_RANK", "-2", "-1 to 4095"},
        {"TRIB_RANK", "1.5", "-1 to 4095"},
        {"TRIB_RANK", "99999999999999999999", "-1 to 4095"},
        {"TRIB_WORKERS", "0", "1 to 4096"},
        {"TRIB_SERVERS", "-1", "0 to 4095"},
        {"TRIB_REACTORS", "17", "0 to 16"},
        {"TRIB_ROLE", "boss", "worker, server, coordinator"},
        {"TRIB_ROLE", "worker+", "joined by +"},
        {"TRIB_ROLE", "+worker", "joined by +"},
        {"TRIB_ROLE", "worker,server", "joined by +"},
        {"TRIB_PARTITION_BYTES", "much", "256K"},
        {"TRIB_PARTITION_BYTES", "1Q", "256K"},
        {"TRIB_CHUNK_BYTES", "-1", "256K"},
        {"TRIB_CHUNK_BYTES", "nan", "256K"},
        {"TRIB_CHUNK_BYTES", "0", "256K"},
        {"TRIB_CHUNK_BYTES", "0.5", "256K"},
        {"TRIB_PUSH_CREDIT", "2G", "256K"},
        {"TRIB_PULL_CREDIT", "1e999", "256K"},
        {"TRIB_JOIN_TIMEOUT", "0", "above 0"},
        {"TRIB_OP_TIMEOUT", "-3", "above 0"},
        {"TRIB_PEER_TIMEOUT", "5h", "above 0"},
        {"TRIB_PEER_TIMEOUT", "nan", "above 0"},
        {"TRIB_PEER_TIMEOUT", "1e-12", "above 0"},
        {"TRIB_CLOSE_TIMEOUT", "inf", "above 0"},
        {"TRIB_CLOSE_TIMEOUT", "soon", "above 0"},
        {"TRIB_BANDWIDTH", "fast", "10gbit"},
        {"TRIB_BANDWIDTH", "-1gbit", "10gbit"},
        {"TRIB_BANDWIDTH", "1e16", "10gbit"},
        {"TRIB_BANDWIDTH", "nan", "10gbit"},
        {"TRIB_BANDWIDTH", "10", "bits per second, 1mbit to 1000000gbit"},
        {"TRIB_BANDWIDTH", "10GB", "bits per second"},
        {"TRIB_CHUNK_BYTES", "2M", "bytes, 4K to 1M"},
        {"TRIB_TRACE_BYTES", "65G", "bytes, 1 to 64G"},
        {"TRIB_SUM_ORDER", "random", "rank arrival"},
        {"TRIB_COLOCATE", "maybe", "auto off on"},
        {"TRIB_LOG", "loud", "none error warn info debug trace"},
        {"TRIB_BUSY_POLL", "2", "yes"},
        {"TRIB_BUSY_POLL_TIME", "0", "above 0"},
        {"TRIB_PIN", "maybe", "yes"},
        {"TRIB_EXTERNAL_COORDINATOR", "x", "yes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        REFUSED(wrong[i][0], wrong[i][2], wrong[i][0], wrong[i][1]);
        REFUSED(wrong[i][0], wrong[i][1], wrong[i][0], wrong[i][1]);
    }
}

/* The error cuts a value that is far too long. It cuts neither the name nor the allowed range. */
static void long_values(void **state)
{
    (void)state;
    char value[5000];
    memset(value, 'z', sizeof value);
    value[sizeof value - 1] = '\0';
    static const char *const names[] = {"TRIB_RANK", "TRIB_ROLE", "TRIB_LOG", "TRIB_CHUNK_BYTES", "TRIB_OP_TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        REFUSED(names[i], "must be", names[i], value);
    }
    /* A host that does not fit is not cut to another one. */
    REFUSED("MASTER_ADDR", "bytes", "RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", value, "MASTER_PORT", "5");
    REFUSED("DMLC_PS_ROOT_URI", "bytes", "DMLC_ROLE", "worker", "DMLC_PS_ROOT_URI", value, "DMLC_PS_ROOT_PORT", "5");
    REFUSED("SLURM_STEP_NODELIST", "bytes", "SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_NNODES", "2",
            "SLURM_STEP_NODELIST", value);
}

/* Members exchange this text. */
static void codecs_keep_their_point(void)
{
    trib_codec_config codec;
    trib_error error = {.text = ""};
    char text[TRIB_CODEC_TEXT_SIZE];
    if (trib_codec_parse("topk,ratio=0.25,momentum=nesterov,mu=0.5", &codec, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    assert_non_null(strstr(trib_codec_format(&codec, text), ",ratio=0.25,"));
    assert_non_null(strstr(text, ",mu=0.5"));
}

/* The program has chosen its user's locale, as toolkits do: there 0,5 is a half, and the capital of i has a dot. */
static void locales_change_nothing(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"de_DE", "ISO-8859-1"}, {"tr_TR", "ISO-8859-9"}}; /* small: quickly made */
    char folder[] = "/tmp/tributary-locales-XXXXXX";
    assert_non_null(mkdtemp(folder));
    size_t tried = 0;
    for (size_t i = 0; i < 2; i++) {
        char command[200], name[32];
        snprintf(name, sizeof name, "%s.%s", names[i][0], names[i][1]);
        snprintf(command, sizeof command, "localedef -i %s -f %s %s/%s >%s/log 2>&1", names[i][0], names[i][1], folder,
                 name, folder);
        assert_int_equal(setenv("LOCPATH", folder, 1), 0);
        if (system(command) < 0 || setlocale(LC_ALL, name) == NULL) {
            continue;
        }
        tried++;
        const trib_config config =
            READ("TRIB_JOIN_TIMEOUT", "0.5", "TRIB_BANDWIDTH", "2.5GBIT", "TRIB_PARTITION_BYTES", "0.5MiB", "TRIB_LOG",
                 "INFO", "TRIB_SUM_ORDER", "ARRIVAL", "DMLC_ROLE", "WORKER");
        assert_int_equal(config.join_timeout_ns, SECOND / 2);
        assert_int_equal(config.bandwidth_bits, UINT64_C(2500000000));
        assert_int_equal(config.partition_bytes, 512 << 10);
        assert_int_equal(config.log_level, TRIB_LOG_INFO);
        assert_int_equal(config.sum_order, TRIB_ORDER_ARRIVAL);
        REFUSED("TRIB_JOIN_TIMEOUT", "above 0", "TRIB_JOIN_TIMEOUT", "0,5");
        codecs_keep_their_point();
        setlocale(LC_ALL, "C");
    }
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (tried < 2) {
        print_message("# localedef cannot make the locales de_DE and tr_TR here\n");
        skip();
    }
}

static void not_initialised(void **state)
{
    (void)state;
    clearenv();
    trib_config config;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_config_from_env(NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "config is NULL"));
    trib_config_init(&config, sizeof config - 8); /* as a program does that was built against another header */
    assert_int_equal(trib_config_from_env(&config, &error), TRIB_INVALID);
    char expected[128];
    snprintf(expected, sizeof expected, "trib_config.struct_size is %zu, this library knows %zu: call trib_config_init",
             sizeof config - 8, sizeof config);
    assert_non_null(strstr(error.text, expected));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_nothing),
        cmocka_unit_test(own_variables),
        cmocka_unit_test(token_from_file),
        cmocka_unit_test(fields_stay),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(long_values),
        cmocka_unit_test(locales_change_nothing),
        cmocka_unit_test(not_initialised),
    };
    /* The cases empty the environment, in which cmocka would look up how to report them. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
