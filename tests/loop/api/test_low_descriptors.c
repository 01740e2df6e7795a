/* test_low_descriptors.c - a process without standard input, output and error has an engine: no descriptor of the
 * engine's takes their numbers, whatever the transport and the mode. Each case is a process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/descriptor.h"
#include "tests/loop/job.h"

enum { WORKERS = 2, COUNT = 300000, STEPS = 5, GUARD_S = 60, FAILED = 9 };

static char address[32];

static bool are_free(void)
{
    for (int fd = 0; fd < TRIB_DESCRIPTOR_FIRST; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) {
            return false;
        }
    }
    return true;
}

/* Returns once no descriptor is low; the guard's alarm ends a wait for one that stays. The kernel gives each new socket
 * of an engine's thread the lowest number, which it has until it is moved. */
static bool become_free(void)
{
    while (!are_free()) {
        sched_yield();
    }
    return true;
}

/* Returns the number of the step that failed, 0 for none. */
static int work(trib_mode mode, const char *transport, const char *trace)
{
    trib_engine *engines[WORKERS];
    trib_op *ops[WORKERS];
    float *data = calloc((size_t)WORKERS * COUNT, sizeof *data);
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.mode = mode;
        config.rank = rank;
        config.worker_count = WORKERS;
        config.coordinator = address;
        config.transport = transport;
        config.trace = trace;
        config.pin = false;
        if (trib_engine_create(&config, &engines[rank], NULL) != TRIB_OK) {
            return 1;
        }
        if (!become_free()) {
            return 2;
        }
    }
    for (int step = 0; step < STEPS; step++) {
        for (int rank = 0; rank < WORKERS; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = job_declare(engines[rank], "t", TRIB_FLOAT32, COUNT);
            params.input = data + (size_t)rank * COUNT;
            params.output = data + (size_t)rank * COUNT;
            if (trib_push_pull(engines[rank], &params, &ops[rank], NULL) != TRIB_OK) {
                return 3;
            }
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            if (job_wait(ops[rank], NULL) != TRIB_OK || !become_free()) {
                return 4;
            }
        }
    }
    free(trib_describe_machine());
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_engine_close(engines[rank], NULL, NULL);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        if (trib_engine_destroy(engines[rank]) != TRIB_OK || !become_free()) {
            return 5;
        }
    }
    free(data);
    return 0;
}

typedef struct low_case {
    trib_mode mode;
    const char *transport;
} low_case;

static void none_is_below_3(void **state)
{
    const low_case *self = *state;
    char folder[] = "/tmp/low-descriptors.XXXXXX", trace[64], command[80];
    assert_non_null(mkdtemp(folder));
    snprintf(trace, sizeof trace, "%s/%%r.trib", folder);
    job_free_address(address, sizeof address);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(GUARD_S);
        for (int fd = 0; fd < TRIB_DESCRIPTOR_FIRST; fd++) {
            close(fd);
        }
        _exit(work(self->mode, self->transport, trace));
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

/* The helper by itself: a low descriptor moves up, and is closed in programs that are executed. Any other descriptor
 * stays. */
static void low_ones_move(void **state)
{
    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(1);
        const int low = eventfd(0, 0), kept = trib_descriptor_keep(low);
        const bool moved = low == 1 && kept >= TRIB_DESCRIPTOR_FIRST && fcntl(1, F_GETFD) < 0 &&
                           (fcntl(kept, F_GETFD) & FD_CLOEXEC) != 0;
        trib_descriptor_guard_begin();
        const int above = eventfd(0, 0);
        trib_descriptor_guard_end();
        const bool guarded = above >= TRIB_DESCRIPTOR_FIRST && fcntl(1, F_GETFD) < 0;
        /* A number that another thread gives back is held, too. */
        const int other = eventfd(0, 0);
        trib_descriptor_guard_begin();
        const int moved_meanwhile = trib_descriptor_keep(other), after = eventfd(0, 0);
        trib_descriptor_guard_end();
        const bool taken_over = other == 1 && moved_meanwhile >= TRIB_DESCRIPTOR_FIRST &&
                                after >= TRIB_DESCRIPTOR_FIRST && fcntl(1, F_GETFD) < 0;
        const bool stays = trib_descriptor_keep(above) == above && trib_descriptor_keep(-1) == -1;
        _exit(moved && guarded && taken_over && stays ? 0 : FAILED);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

int main(void)
{
    static low_case cases[] = {{TRIB_MODE_THREADS, "tcp"}, {TRIB_MODE_THREADS, "shm"}, {TRIB_MODE_QUEUE, "auto"}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(low_ones_move),
        cmocka_unit_test_prestate(none_is_below_3, &cases[0]),
        cmocka_unit_test_prestate(none_is_below_3, &cases[1]),
        cmocka_unit_test_prestate(none_is_below_3, &cases[2]),
    };
    return cmocka_run_group_tests_name("low_descriptors", tests, NULL, NULL);
}
