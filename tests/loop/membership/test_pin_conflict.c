/* test_pin_conflict.c - two jobs have pinned reactors to the same core at the same moment, and one of them moves to
 * another core. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for unshare */
#endif
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"
#include "tests/support/descriptors.h"

/* Enters a network namespace of its own, where no other program's engine announces cores. */
static bool be_alone(void)
{
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return false;
    }
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_up = ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
    close(fd);
    return is_up;
}

/* Returns the core that this process announces for its reactor; -1: none. */
static int own_core(void)
{
    char line[256], own[32];
    snprintf(own, sizeof own, "/%x.", (unsigned)getpid());
    int core = -1;
    FILE *file = fopen("/proc/net/unix", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *name = strstr(line, "@tributary-cores/"), *process = name != NULL ? strstr(name, own) : NULL;
        const char *list = process != NULL ? strchr(process + 1, '/') : NULL;
        core = list != NULL ? (int)strtol(list + 1, NULL, 10) : core;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return core;
}

static int socket_named(const char *text)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const size_t length = strlen(text);
    memcpy(name.sun_path + 1, text, length);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, size), 0);
    return fd;
}

/* Announces the core as another job's engine would, with the lowest number. */
static int say_of_another(int core)
{
    char text[64];
    snprintf(text, sizeof text, "tributary-cores/00000000/1.1/%d", core);
    return socket_named(text);
}

static trib_engine *open_member(uint32_t roles, const char *coordinator)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = roles;
    config.worker_count = 1;
    config.coordinator = coordinator;
    config.external_coordinator = true;
    config.reactors = 1;
    config.pin = roles == TRIB_ROLE_WORKER;
    config.log_level = TRIB_LOG_NONE;
    config.close_timeout_ns = INT64_C(600000000000); /* no engine needs it to end, nor does one that only coordinates */
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return engine;
}

/* The only process of its job waits for its coordinator, when another job turns out to have its core, too. */
static void second_job_takes_other_cores(void **state)
{
    (void)state;
    if (!be_alone()) {
        print_message("# no network namespace of its own\n");
        skip();
    }
    char coordinator[32];
    job_free_address(coordinator, sizeof coordinator);
    trib_engine *worker = open_member(TRIB_ROLE_WORKER, coordinator);
    const int core = own_core();
    if (core < 0) {
        print_message("# too few cores, or only a part of the machine's\n");
        assert_int_equal(trib_engine_destroy(worker), TRIB_OK);
        skip();
    }
    const int other = say_of_another(core);
    trib_engine *keeps = open_member(TRIB_ROLE_COORDINATOR, coordinator);
    assert_int_equal(trib_engine_wait_ready(worker, -1, NULL), TRIB_OK);
    /* Until the engine has read the other announcement. The kernel's list is of no single moment, and may have none of
     * this process's. */
    for (int now = core; now == core || now < 0;) {
        now = own_core();
    }
    assert_int_equal(trib_engine_destroy(worker), TRIB_OK);
    assert_int_equal(trib_engine_destroy(keeps), TRIB_OK);
    close(other);
}

/* With so many sockets an engine may be destroyed before it has read all their names. */
static void engine_may_be_destroyed_before_it_has_settled(void **state)
{
    (void)state;
    enum { SOCKETS = 800, TIMES = 10 };
    static int fds[SOCKETS];
    for (int i = 0; i < SOCKETS; i++) {
        char text[100];
        snprintf(text, sizeof text, "tributary-test/%080d", i);
        fds[i] = socket_named(text);
    }
    const uint32_t before = descriptors_open();
    for (int i = 0; i < TIMES; i++) {
        char coordinator[32];
        job_free_address(coordinator, sizeof coordinator);
        trib_engine *worker = open_member(TRIB_ROLE_WORKER, coordinator);
        trib_engine *keeps = open_member(TRIB_ROLE_COORDINATOR, coordinator);
        assert_int_equal(trib_engine_wait_ready(worker, -1, NULL), TRIB_OK);
        assert_int_equal(trib_engine_destroy(worker), TRIB_OK);
        assert_int_equal(trib_engine_destroy(keeps), TRIB_OK);
    }
    assert_int_equal(descriptors_open(), before);
    for (int i = 0; i < SOCKETS; i++) {
        close(fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_job_takes_other_cores),
        cmocka_unit_test(engine_may_be_destroyed_before_it_has_settled),
    };
    return cmocka_run_group_tests_name("settling", tests, NULL, NULL);
}
