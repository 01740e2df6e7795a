/* test_completion.c - the threads that tell frameworks of results: starts that are slow or fail, and a forked child. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "native/completion.h"
#include "tests/support/sanitized.h"

enum { ENTRIES = 10 };

/* An entry that tells that it runs, and may wait. */
struct entry {
    struct completion completion;
    sem_t runs, may_end;
};

static struct {
    void *(*run)(void *);
    sem_t is_there, may_run; /* of a slow start */
    bool is_slow, fails;
    atomic_int count;
    struct entry *posted; /* while a thread is being started */
} starts;

static void run(struct completion *completion)
{
    struct entry *entry = (struct entry *)completion;
    sem_post(&entry->runs);
    while (sem_wait(&entry->may_end) != 0) {}
}

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
        assert_int_equal(errno, EINTR);
    }
}

static void post(struct entry *entry)
{
    static const trib_result result;
    entry->completion.run = run;
    completion_post(&entry->completion, &result);
}

static void prepare(struct entry *entry, unsigned may_end)
{
    memset(entry, 0, sizeof *entry);
    assert_int_equal(sem_init(&entry->runs, 0, 0), 0);
    assert_int_equal(sem_init(&entry->may_end, 0, may_end), 0);
}

static void *run_later(void *argument)
{
    sem_post(&starts.is_there);
    wait_for(&starts.may_run);
    return starts.run(argument);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument)
{
    atomic_fetch_add(&starts.count, 1);
    if (starts.posted != NULL) {
        post(starts.posted);
        starts.posted = NULL;
    }
    if (starts.fails) {
        return EAGAIN;
    }
    starts.run = body;
    return __real_pthread_create(thread, attributes, starts.is_slow ? run_later : body, argument);
}

/* Each thread that starts from now on waits for may_run. */
static void hold_threads(void)
{
    assert_int_equal(sem_init(&starts.is_there, 0, 0), 0);
    assert_int_equal(sem_init(&starts.may_run, 0, 0), 0);
    starts.is_slow = true;
}

/* Where no thread can be had, an operation is refused. */
static void test_no_thread_is_told(void **state)
{
    (void)state;
    trib_error error = {.status = TRIB_OK};
    starts.fails = true;
    assert_int_equal(completion_begin(&error), TRIB_SYSTEM);
    assert_non_null(strstr(error.text, "ulimit"));
    starts.fails = false;
}

/* A thread that has not run yet is no reason to start one more with each entry. */
static void test_burst_starts_one_thread(void **state)
{
    (void)state;
    static struct entry entries[ENTRIES];
    trib_error error;
    hold_threads();
    sem_post(&starts.may_run);
    atomic_store(&starts.count, 0);
    assert_int_equal(completion_begin(&error), TRIB_OK);
    for (int i = 0; i < ENTRIES; i++) {
        prepare(&entries[i], 1);
        post(&entries[i]);
    }
    for (int i = 0; i < ENTRIES; i++) {
        wait_for(&entries[i].runs);
    }
    assert_int_equal(atomic_load(&starts.count), 2);
    starts.is_slow = false;
    sem_post(&starts.may_run);
}

/* Each entry ends after the next one has run. */
static void test_entries_wait_for_each_other(void **state)
{
    (void)state;
    static struct entry entries[ENTRIES];
    for (int i = 0; i < ENTRIES; i++) {
        prepare(&entries[i], 0);
        post(&entries[i]);
        wait_for(&entries[i].runs);
    }
    for (int i = ENTRIES - 1; i >= 0; i--) {
        sem_post(&entries[i].may_end);
    }
}

/* In a child: a thread that could not be started is, with the next operation. Entries may be posted meanwhile. */
static void retry(void)
{
    static struct entry first, second, third;
    trib_error error;
    prepare(&first, 0);
    prepare(&second, 0);
    prepare(&third, 0);
    assert_int_equal(completion_begin(&error), TRIB_OK);
    starts.fails = true;
    starts.posted = &second;
    post(&first);
    wait_for(&first.runs);
    starts.fails = false;
    starts.posted = &third;
    assert_int_equal(completion_begin(&error), TRIB_OK);
    wait_for(&second.runs);
    assert_int_equal(completion_begin(&error), TRIB_OK);
    wait_for(&third.runs);
}

/* A thread that starts may hold locks of ASan's, which would stay held in a child. A thread is started when each other
 * one runs an entry, hence has started: no thread starts any more when that one is held. */
static void keep_threads_busy(void)
{
    static struct entry entries[ENTRIES + 1]; /* the previous test has left as many threads */
    hold_threads();
    atomic_store(&starts.count, 0);
    for (int i = 0; atomic_load(&starts.count) == 0; i++) {
        assert_true(i <= ENTRIES);
        prepare(&entries[i], 0);
        post(&entries[i]);
        wait_for(&entries[i].runs);
    }
    wait_for(&starts.is_there);
}

static void test_child_has_threads_of_its_own(void **state)
{
    (void)state;
#ifdef UNDER_TSAN
    skip(); /* its runtime starts no threads in a child */
#endif
    keep_threads_busy();
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(100); /* ends it if it hangs */
        starts.is_slow = false;
        retry();
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_thread_is_told),
        cmocka_unit_test(test_burst_starts_one_thread),
        cmocka_unit_test(test_entries_wait_for_each_other),
        cmocka_unit_test(test_child_has_threads_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
