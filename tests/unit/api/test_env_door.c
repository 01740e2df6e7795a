/* test_env_door.c - the page of a machine's local ranks: made, found by other processes, and what is not taken for one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/env/env_door.h"
#include "engine/local_group/group_internal.h"
#include "engine/reactor/reactor_ev.h"
#include "tests/support/descriptors.h"

static unsigned char id[TRIB_DEVICE_ID_SIZE];

static trib_door_page *make(char name[TRIB_DOOR_NAME_SIZE], int *fd_out)
{
    trib_door_page *page = trib_env_door_make(name, fd_out);
    assert_non_null(page);
    assert_int_equal(atomic_load(&page->state), 0);
    memset(id, 7, sizeof id);
    memcpy(page->id, id, sizeof id);
    return page;
}

/* ---- The page ---- */

static void another_process_finds_it(void **state)
{
    (void)state;
    char name[TRIB_DOOR_NAME_SIZE];
    int fd = -1, status = -1;
    const uint32_t before = descriptors_open();
    trib_door_page *page = make(name, &fd);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)munmap(page, sizeof *page);
        (void)close(fd);
        trib_door_page *found = trib_env_door_find(name, id);
        if (found != NULL) {
            atomic_fetch_add(&found->here, 5);
            trib_env_door_drop(found, -1);
        }
        _exit(found == NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&page->here), 5);
    trib_env_door_drop(page, fd);
    assert_int_equal(descriptors_open(), before);
    assert_null(trib_env_door_find(name, id)); /* its maker has gone */
}

/* A file of that size, which is no page; name leads to it. */
static int offer(char name[TRIB_DOOR_NAME_SIZE], off_t size, int seals)
{
    const int fd = memfd_create("not a door", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    const ssize_t written = pwrite(fd, id, sizeof id, 0);
    assert_int_equal(written, sizeof id);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    snprintf(name, TRIB_DOOR_NAME_SIZE, "/proc/%d/fd/%d", (int)getpid(), fd);
    return fd;
}

static void what_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "", "/dev/zero", "/proc/self/fd/0", "/proc/1/fd/999999", "/proc/0/fd/0", "/proc/1", "/proc/1/fd/0/"};
    char name[TRIB_DOOR_NAME_SIZE];
    int fd = -1;
    const uint32_t before = descriptors_open();
    trib_door_page *page = make(name, &fd);
    unsigned char other[TRIB_DEVICE_ID_SIZE] = {7};
    assert_null(trib_env_door_find(name, other));
    char with_more[2 * TRIB_DOOR_NAME_SIZE];
    snprintf(with_more, sizeof with_more, "%s/../%d", name, fd);
    assert_null(trib_env_door_find(with_more, id));
    trib_env_door_drop(page, fd);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_null(trib_env_door_find(names[i], id));
    }
    const off_t size = (off_t)sizeof(trib_door_page);
    for (off_t i = 0; i < 4; i++) { /* it could shrink; it is too small, too large; nothing is wrong */
        fd = offer(name, size + (i == 1 ? -1 : i == 2 ? 1 : 0), i == 0 ? F_SEAL_GROW : F_SEAL_SHRINK);
        trib_door_page *found = trib_env_door_find(name, id);
        assert_int_equal(found != NULL, i == 3);
        if (found != NULL) {
            trib_env_door_drop(found, -1);
        }
        close(fd);
    }
    assert_int_equal(descriptors_open(), before);
}

static void without_descriptors_there_is_none(void **state)
{
    (void)state;
    char name[TRIB_DOOR_NAME_SIZE];
    int fd = -1, unused = -7;
    trib_door_page *page = make(name, &fd);
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    char another[TRIB_DOOR_NAME_SIZE] = "";
    trib_door_page *made = trib_env_door_make(another, &unused), *found = trib_env_door_find(name, id);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_null(made);
    assert_null(found);
    assert_string_equal(another, "");
    assert_int_equal(unused, -7);
    trib_env_door_drop(page, fd);
}

/* The kernel would end the process that makes a larger file. */
static void where_no_file_may_be_so_large_there_is_none(void **state)
{
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit low = {.rlim_cur = sizeof(trib_door_page) - 1, .rlim_max = limit.rlim_max};
    char name[TRIB_DOOR_NAME_SIZE] = "";
    int fd = -7;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    trib_door_page *page = trib_env_door_make(name, &fd);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_null(page);
    assert_int_equal(fd, -7);
}

/* ---- Who makes it, who finds it ---- */

typedef struct side {
    trib_engine engine;
    trib_core core;
    trib_group group;
} side;

static side *make_side(trib_reactor *reactor, trib_device_order order, bool leads)
{
    side *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->engine.env.door_make = trib_env_door_make;
    self->engine.env.door_find = trib_env_door_find;
    self->engine.env.door_drop = trib_env_door_drop;
    self->engine.config.local_size = self->engine.config.worker_count = 2;
    self->engine.config.device_order = order;
    self->core.engine = &self->engine;
    self->core.reactor = reactor;
    self->group = (trib_group){.core = &self->core, .local_size = 2, .local_rank = leads ? 0 : 1};
    if (leads) {
        const trib_leader_upcalls upcalls = {.user = NULL};
        self->group.leader = trib_leader_create(2, 1, &upcalls);
        assert_non_null(self->group.leader);
    }
    memcpy(self->group.id, id, sizeof id);
    trib_door_open(&self->group);
    return self;
}

static void free_side(side *self)
{
    trib_door_end(&self->group);
    trib_door_close(&self->group, &self->engine.env);
    trib_leader_free(self->group.leader);
    free(self);
}

/* Both have the page while they are in the job; who has found it closes nothing of its own for it. */
static void both_sides_have_it(void **state)
{
    (void)state;
    trib_logger logger = {.level = TRIB_LOG_NONE};
    trib_reactor *reactor = NULL;
    memset(id, 9, sizeof id);
    assert_int_equal(trib_reactor_ev_create(0, &logger, NULL, &reactor), TRIB_OK);
    const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC); /* 0, if that was free */
    const uint32_t before = descriptors_open();
    side *leader = make_side(reactor, TRIB_DEVICE_ORDER_AGREED, true);
    side *member = make_side(reactor, TRIB_DEVICE_ORDER_AGREED, false);
    assert_null(member->group.door.page);
    trib_door_take_id(&leader->group);
    memcpy(member->group.door.name, leader->group.door.name, sizeof member->group.door.name);
    trib_door_take_id(&member->group);
    const trib_door_page *page = leader->group.door.page;
    assert_non_null(member->group.door.page);
    assert_int_equal(atomic_load(&page->here), 2);
    free_side(member);
    assert_int_equal(atomic_load(&page->here), 1);
    assert_int_equal(descriptors_open(), before + 1); /* the maker's */
    free_side(leader);
    assert_int_equal(descriptors_open(), before);
    trib_reactor_ev_destroy(reactor);
    close(lowest);
}

/* Whose order is the program's has nothing to do with one that is offered: the job ends for that, with a text. */
static void who_promises_an_order_has_none(void **state)
{
    (void)state;
    trib_logger logger = {.level = TRIB_LOG_NONE};
    trib_reactor *reactor = NULL;
    assert_int_equal(trib_reactor_ev_create(0, &logger, NULL, &reactor), TRIB_OK);
    char name[TRIB_DOOR_NAME_SIZE];
    int fd = -1;
    trib_door_page *page = make(name, &fd);
    side *member = make_side(reactor, TRIB_DEVICE_ORDER_PROGRAM, false);
    memcpy(member->group.door.name, name, sizeof name);
    trib_door_take_id(&member->group);
    assert_null(member->group.door.page);
    assert_int_equal(atomic_load(&page->here), 0);
    assert_null(reactor->pollers);
    free_side(member);
    trib_env_door_drop(page, fd);
    trib_reactor_ev_destroy(reactor);
}

/* Another process lets it through without a word: a loop with somebody at the door does not sleep, but looks and gives up. */
static void who_waits_does_not_sleep(void **state)
{
    (void)state;
    trib_logger logger = {.level = TRIB_LOG_NONE};
    trib_reactor *reactor = NULL;
    assert_int_equal(trib_reactor_ev_create(0, &logger, NULL, &reactor), TRIB_OK);
    side *leader = make_side(reactor, TRIB_DEVICE_ORDER_AGREED, true);
    reactor->owner = &leader->core;
    leader->engine.group = &leader->group;
    trib_door_take_id(&leader->group);
    assert_true(trib_reactor_rest(reactor));
    trib_device_task waiting = {.slice = 0};
    leader->group.door.waiting = &waiting;
    assert_false(trib_reactor_poll(reactor));
    assert_false(trib_reactor_rest(reactor));
    assert_true(leader->group.door.tired);
    leader->group.door.waiting = NULL;
    assert_true(trib_reactor_rest(reactor));
    free_side(leader);
    trib_reactor_ev_destroy(reactor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_no_file_may_be_so_large_there_is_none),
        cmocka_unit_test(another_process_finds_it),
        cmocka_unit_test(what_is_none_is_refused),
        cmocka_unit_test(without_descriptors_there_is_none),
        cmocka_unit_test(both_sides_have_it),
        cmocka_unit_test(who_promises_an_order_has_none),
        cmocka_unit_test(who_waits_does_not_sleep),
    };
    return cmocka_run_group_tests_name("the page of the door", tests, NULL, NULL);
}
