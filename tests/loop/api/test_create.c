/* test_create.c - creating an engine fails with an error and leaves nothing behind if the system refuses a thread; and
 * ids that no engine is created with. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { REACTORS = 3 };

static int threads_left = REACTORS; /* how many threads the system still gives */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user);
/* The function is visible because the sanitizers' libraries refer to it. */
__attribute__((visibility("default"))) int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                                 void *(*run)(void *), void *user);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user)
{
    if (threads_left-- > 0) {
        return __real_pthread_create(thread, attributes, run, user);
    }
    const struct timespec time = {.tv_nsec = 50000000}; /* the threads that exist could begin to work in this time */
    nanosleep(&time, NULL);
    return EAGAIN;
}

static void without_threads(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = 2;
    config.coordinator = address;
    config.reactors = REACTORS;
    config.pin = false;
    config.log_level = TRIB_LOG_NONE;
    for (int there = 0; there <= REACTORS; there++) {
        threads_left = there;
        trib_engine *engine = NULL;
        trib_error error = {.status = TRIB_OK};
        if (there == REACTORS) { /* this many threads are enough, and the address is free again */
            assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
            assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
        } else {
            const char text[] = {'r', 'e', 'a', 'c', 't', 'o', 'r', ' ', (char)('0' + there), '\0'};
            assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_SYSTEM);
            assert_non_null(strstr(error.text, text));
            assert_non_null(strstr(error.text, strerror(EAGAIN)));
            assert_null(engine);
        }
    }
}

/* The engine finds this out at once, not when the job is over. */
static void without_the_trace_s_folder(void **state)
{
    (void)state;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.trace = "/nonexistent/folder/job";
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    threads_left = REACTORS * 2;
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_SYSTEM);
    assert_non_null(strstr(error.text, "folder /nonexistent/folder:"));
    assert_null(engine);
}

/* Returns the descriptor that the next call gets. */
static int next_descriptor(void)
{
    const int fd = dup(STDOUT_FILENO);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

static void unused_ids_are_given_up(void **state)
{
    (void)state;
    static const char *const interfaces[] = {"lo:0", "l*:0"};
    const int free_before = next_descriptor();
    trib_unique_id_release(NULL);
    for (int i = 0; i < 2; i++) {
        trib_unique_id id = {.bytes = "no id"};
        trib_engine *engine = NULL;
        trib_error error;
        trib_config config;
        trib_config_init(&config, sizeof config);
        trib_unique_id_release(&id);
        if (trib_unique_id_create_at(interfaces[i], &id, &error) != TRIB_OK) {
            fail_msg("%s: %s", interfaces[i], error.text);
        }
        assert_int_not_equal(next_descriptor(), free_before);
        trib_unique_id_release(&id);
        trib_unique_id_release(&id);
        assert_int_equal(next_descriptor(), free_before);
        config.unique_id = &id;
        assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_STATE);
        assert_non_null(strstr(error.text, "or it was released"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_threads),
        cmocka_unit_test(without_the_trace_s_folder),
        cmocka_unit_test(unused_ids_are_given_up),
    };
    return cmocka_run_group_tests_name("create", tests, NULL, NULL);
}
