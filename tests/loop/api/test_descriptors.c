/* test_descriptors.c - a process has few file descriptors left. In every mode an engine works or fails with a text that
 * names the shortage, and leaks no descriptor. Each case is a process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <ev.h>

#include "api/tributary.h"

enum { LIMIT = 100, LEFT_MAX = 32, REACTORS = 2, GUARD_S = 60 /* ends a case that hangs */ };

/* How a case ends. An engine that was rejected or could not join must report the lack of descriptors, because both ends
 * of its connections are in this process. It could not join and has not met the lack if its time was too short. */
typedef enum outcome { WORKED, REFUSED, JOINED_NOT, TOO_SHORT, WRONG, LEAKED, WRONG_START } outcome;

static bool says_so(const trib_error *error)
{
    return strstr(error->text, strerror(EMFILE)) != NULL;
}

/* Opens every descriptor that is left; returns their number. */
static int take_all(int *fds)
{
    int count = 0;
    while (count < LIMIT && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        count++;
    }
    return count;
}

static outcome use(trib_engine *engine, trib_mode mode, struct ev_loop *loop)
{
    trib_error error = {.status = TRIB_OK};
    if (mode == TRIB_MODE_ATTACHED) { /* the other modes test whether the engine joins */
        for (int i = 0; i < 20; i++) {
            ev_run(loop, EVRUN_NOWAIT);
        }
    } else if (trib_engine_wait_ready(engine, -1, &error) != TRIB_OK) {
        const outcome how = error.status != TRIB_JOIN_FAILED ? WRONG : says_so(&error) ? JOINED_NOT : TOO_SHORT;
        return trib_engine_destroy(engine) == TRIB_OK ? how : WRONG;
    }
    return trib_engine_destroy(engine) == TRIB_OK ? WORKED : WRONG;
}

static outcome try_with(trib_mode mode, int left, int64_t join_timeout_ns)
{
    int fds[LIMIT];
    const struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};
    struct ev_loop *loop = mode == TRIB_MODE_ATTACHED ? ev_loop_new(EVFLAG_AUTO) : NULL;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = mode;
    config.loop = loop;
    config.reactors = mode == TRIB_MODE_ATTACHED ? 1 : REACTORS;
    config.pin = false;
    config.join_timeout_ns = join_timeout_ns;
    config.log_level = TRIB_LOG_NONE;
    const int had = setrlimit(RLIMIT_NOFILE, &limit) == 0 ? take_all(fds) : 0;
    if (had < left) {
        return WRONG_START;
    }
    for (int i = 0; i < left; i++) {
        close(fds[had - 1 - i]);
    }
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    trib_status status = trib_engine_create(&config, &engine, &error);
    outcome how = status == TRIB_OK                          ? use(engine, mode, loop)
                  : status == TRIB_SYSTEM && says_so(&error) ? REFUSED
                                                             : WRONG;
    return take_all(fds) == left ? how : LEAKED;
}

/* Returns how a process of its own ends, or fails the test. An engine that lacks descriptors tries until its join
 * timeout, which is short at first: a busy machine gets more time. */
static outcome outcome_with(trib_mode mode, int left)
{
    outcome how = TOO_SHORT;
    int ended = 0;
    for (int64_t timeout_ns = INT64_C(300000000); how == TOO_SHORT && timeout_ns < INT64_C(50000000000);
         timeout_ns *= 10) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(GUARD_S);
            _exit((int)try_with(mode, left, timeout_ns));
        }
        assert_int_equal(waitpid(child, &ended, 0), child);
        how = WIFEXITED(ended) ? (outcome)WEXITSTATUS(ended) : LEAKED;
    }
    if (how > JOINED_NOT) {
        fail_msg("mode %d, %d descriptors left: signal %d, outcome %d", (int)mode, left,
                 WIFSIGNALED(ended) ? WTERMSIG(ended) : 0, WIFEXITED(ended) ? WEXITSTATUS(ended) : -1);
    }
    return how;
}

static void few_are_left(void **state)
{
    const trib_mode mode = (trib_mode)(uintptr_t)*state;
    outcome how = REFUSED;
    int said = 0;
    for (int left = 0; left <= LEFT_MAX; left++) {
        how = outcome_with(mode, left);
        said += how == JOINED_NOT;
        if (left == 0) {
            assert_int_equal(how, REFUSED);
        }
    }
    assert_int_equal(how, WORKED); /* LEFT_MAX descriptors are enough */
    assert_true(said > 0 || mode == TRIB_MODE_ATTACHED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(few_are_left, (void *)TRIB_MODE_THREADS),
        cmocka_unit_test_prestate(few_are_left, (void *)TRIB_MODE_QUEUE),
        cmocka_unit_test_prestate(few_are_left, (void *)TRIB_MODE_ATTACHED),
    };
    return cmocka_run_group_tests_name("descriptors", tests, NULL, NULL);
}
