/* test_job_settings.c - job-wide settings of a member that differ from the coordinator's are named once each, with both
 * values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/membership/job_settings.h"

static void differences_are_named_once(void **state)
{
    (void)state;
    trib_config ours, theirs;
    char text[TRIB_ERROR_TEXT_SIZE];
    uint32_t told = 0;
    trib_config_init(&ours, sizeof ours);
    theirs = ours;
    trib_job_settings one = trib_job_settings_of(&ours), other = trib_job_settings_of(&theirs);
    trib_job_settings_compare(&other, &one, &told, text, sizeof text);
    assert_string_equal(text, "");
    theirs.chunk_bytes = 65536;
    theirs.peer_timeout_ns = 7;
    other = trib_job_settings_of(&theirs);
    trib_job_settings_compare(&other, &one, &told, text, sizeof text);
    assert_string_equal(text, "chunk_bytes (TRIB_CHUNK_BYTES) is 65536 there and 262144 in the job, "
                              "peer_timeout_ns (TRIB_PEER_TIMEOUT) is 7 there and 10000000000 in the job");
    theirs.sum_order = TRIB_ORDER_ARRIVAL;
    other = trib_job_settings_of(&theirs);
    trib_job_settings_compare(&other, &one, &told, text, sizeof text);
    assert_string_equal(text, "sum_order (TRIB_SUM_ORDER) is 1 there and 0 in the job");
    trib_job_settings_compare(&other, &one, &told, text, sizeof text);
    assert_string_equal(text, "");
}

/* Every setting is compared, and travels. */
static void all_travel(void **state)
{
    (void)state;
    unsigned char bytes[8 * TRIB_JOB_SETTINGS];
    for (uint32_t i = 0; i < TRIB_JOB_SETTINGS; i++) {
        trib_job_settings sent = {{0}}, got;
        const trib_job_settings none = {{0}};
        sent.values[i] = UINT64_C(0x123456789abc) + i;
        trib_writer writer = {.data = bytes, .capacity = sizeof bytes};
        trib_job_settings_put(&writer, &sent);
        assert_false(writer.overflow);
        trib_reader reader = {.data = bytes, .left = writer.size};
        trib_job_settings_get(&reader, &got);
        assert_int_equal(reader.left, 0);
        assert_memory_equal(&got, &sent, sizeof got);
        char text[TRIB_ERROR_TEXT_SIZE];
        uint32_t told = 0;
        trib_job_settings_compare(&got, &none, &told, text, sizeof text);
        assert_int_equal(told, 1u << i);
        assert_non_null(strstr(text, "TRIB_"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_are_named_once),
        cmocka_unit_test(all_travel),
    };
    return cmocka_run_group_tests_name("job-wide settings", tests, NULL, NULL);
}
