/*
 * test_recording_full.c - a disk without room for a whole trace. No file is left then, and the error says why. The same
 * holds if there is room again for later writes, for example when another process removed its own file.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/trace/trace_stats.h"

#define ROUNDS 200 /* more than the C library's buffer */

static uint32_t until_full; /* that write fails and later ones succeed; 0: all succeed */
static struct rlimit room;

__typeof__(fwrite) __real_fwrite, __wrap_fwrite;
size_t __wrap_fwrite(const void *data, size_t size, size_t count, FILE *file)
{
    const bool full = until_full > 0 && --until_full == 0;
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = room.rlim_max};
    if (full) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    }
    const size_t put = __real_fwrite(data, size, count, file);
    if (full) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &room), 0);
    }
    return put;
}

static void exchange(trib_engine *engine)
{
    float numbers[100] = {0};
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "numbers";
    desc.count = 100;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = numbers;
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        trib_op *op = NULL;
        assert_int_equal(trib_push_pull(engine, &params, &op, &error), TRIB_OK);
        assert_int_equal(trib_op_wait(op, -1, &error), TRIB_OK);
        trib_op_release(op);
    }
}

static void check(const char *path, trib_status status, const trib_error *error)
{
    trib_error unreadable = {.status = TRIB_OK};
    trace_file *file = NULL;
    if (status != TRIB_OK) {
        assert_int_equal(status, TRIB_SYSTEM);
        assert_non_null(strstr(error->text, strerror(EFBIG)));
        assert_int_equal(access(path, F_OK), -1);
    } else if (trace_file_load(path, &file, &unreadable) != TRIB_OK) {
        fail_msg("%s", unreadable.text);
    } else {
        trace_file_free(file);
        assert_int_equal(unlink(path), 0);
    }
}

static void a_whole_file_or_none(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/trib-full-%d%%%%", (int)getpid());
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    assert_int_equal(trib_trace_start(engine, 0, &error), TRIB_OK);
    exchange(engine);
    trib_trace_stop(engine);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &room), 0);
    signal(SIGXFSZ, SIG_IGN);
    char made[64];
    snprintf(made, sizeof made, "/tmp/trib-full-%d%%", (int)getpid());
    uint32_t failed = 0;
    bool reached = true;
    for (uint32_t i = 1; reached; i++) {
        until_full = i;
        const trib_status status = trib_trace_write(engine, path, &error);
        reached = until_full == 0;
        until_full = 0;
        check(made, status, &error);
        failed += status != TRIB_OK;
    }
    assert_true(failed > 0);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_whole_file_or_none)};
    return cmocka_run_group_tests_name("recorded, and no room", tests, NULL, NULL);
}
