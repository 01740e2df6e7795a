/* test_config_names.c - variables of the environment that look like settings but are none: a warning names each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/config/settings.h"

typedef struct heard {
    uint32_t lines;
    char last[512];
} heard;

static void hear(trib_log_level level, const char *line, void *user)
{
    heard *self = user;
    assert_int_equal(level, TRIB_LOG_WARN);
    self->lines++;
    snprintf(self->last, sizeof self->last, "%s", line);
}

static uint32_t warnings(const char *name, const char *value, const char *meant)
{
    clearenv();
    assert_int_equal(setenv(name, value, 1) | setenv("TRIBE", "1", 1), 0);
    heard told = {.lines = 0};
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.log_cb = hear;
    config.log_user = &told;
    trib_error error = {.status = TRIB_OK};
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    if (told.lines > 0 && (strstr(told.last, name) == NULL || strstr(told.last, meant) == NULL)) {
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", told.last, name, meant);
    }
    return told.lines;
}

static void test_unknown_names_are_told(void **state)
{
    (void)state;
    assert_int_equal(warnings("TRIB_WORKER", "2", "is TRIB_WORKERS meant?"), 1);
    assert_int_equal(warnings("TRIB_CHUNK_SIZE", "64K", "is TRIB_CHUNK_BYTES meant?"), 1);
    assert_int_equal(warnings("TRIB_PEER_TIMOUT", "5", "is TRIB_PEER_TIMEOUT meant?"), 1);
    assert_int_equal(warnings("TRIB_RNAK", "0", "is TRIB_RANK meant?"), 1);
    assert_int_equal(warnings("TRIB_CHUNK", "64K", "is TRIB_CHUNK_BYTES meant?"), 1);
    assert_int_equal(warnings("TRIB_", "0", "is no setting"), 1);
    assert_int_equal(warnings("TRIB_THE_WEATHER_OF_TOMORROW_AND_OF_ALL_DAYS", "0", "and is ignored"), 1);
    assert_int_equal(warnings("TRIB_WORKER", "", ""), 0); /* as if it were not there */
    static const char *const settings[][2] = {{"TRIB_RANK", "0"},
                                              {"TRIB_WORKERS", "1"},
                                              {"TRIB_SERVERS", "0"},
                                              {"TRIB_ROLE", "worker"},
                                              {"TRIB_COORDINATOR", "a:1"},
                                              {"TRIB_LISTEN", "a"},
                                              {"TRIB_INTERFACE", "eth*"},
                                              {"TRIB_JOB", "a"},
                                              {"TRIB_TOKEN", "a"},
                                              {"TRIB_TRANSPORT", "tcp"},
                                              {"TRIB_DEVICE", "none"},
                                              {"TRIB_REACTORS", "1"},
                                              {"TRIB_COLOCATE", "on"},
                                              {"TRIB_SUM_ORDER", "rank"},
                                              {"TRIB_CHUNK_BYTES", "64K"},
                                              {"TRIB_PUSH_CREDIT", "1M"},
                                              {"TRIB_PULL_CREDIT", "1M"},
                                              {"TRIB_BANDWIDTH", "1gbit"},
                                              {"TRIB_JOIN_TIMEOUT", "1"},
                                              {"TRIB_OP_TIMEOUT", "1"},
                                              {"TRIB_PEER_TIMEOUT", "1"},
                                              {"TRIB_CLOSE_TIMEOUT", "1"},
                                              {"TRIB_BUSY_POLL", "no"},
                                              {"TRIB_PIN", "no"},
                                              {"TRIB_TRACE", "a"},
                                              {"TRIB_TRACE_BYTES", "1M"},
                                              {"TRIB_LOG", "warn"},
                                              {"TRIB_LOCAL_RANK", "0"},
                                              {"TRIB_LOCAL_COUNT", "1"},
                                              {"TRIB_DEVICE_RANK", "0"},
                                              {"TRIB_DEVICE_COUNT", "1"},
                                              {"TRIB_BUSY_POLL_TIME", "1"},
                                              {"TRIB_TOKEN_FILE", ""},
                                              {"TRIB_MODELS", "a"},
                                              {"TRIB_PARTITION_BYTES", "1M"},
                                              {"TRIB_BUILD", "a"},
                                              {"TRIB_LOCAL_SUM", "auto"},
                                              {"TRIB_CODEC", "int8"},
                                              {"TRIB_CODEC_MIN_BYTES", "1M"},
                                              {"TRIB_CODEC_LIBRARY", "a"},
                                              {"TRIB_SHARES", "follow"},
                                              {"TRIB_SURVIVE", "servers"},
                                              {"TRIB_QUORUM", "1"},
                                              {"TRIB_QUORUM_TIMEOUT", "1s"},
                                              {"TRIB_STORE", "etcd://a:2379/b"},
                                              {"TRIB_GPU_DIRECT", "auto"},
                                              {"TRIB_CHECKSUM", "auto"},
                                              {"TRIB_TEST_DATA", "a"},
                                              {"TRIB_EXTERNAL_COORDINATOR", "no"}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        assert_int_equal(warnings(settings[i][0], settings[i][1], ""), 0);
    }
    for (size_t i = 0; i < trib_settings_count; i++) {
        bool is_tried = trib_settings[i].variable == NULL;
        for (size_t j = 0; !is_tried && j < sizeof settings / sizeof settings[0]; j++) {
            is_tried = strcmp(trib_settings[i].variable, settings[j][0]) == 0;
        }
        if (!is_tried) {
            fail_msg("%s is missing above", trib_settings[i].variable);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unknown_names_are_told)};
    /* The cases empty the environment, and cmocka looks into it again for each line that it prints. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests_name("names of settings", tests, NULL, NULL);
}
