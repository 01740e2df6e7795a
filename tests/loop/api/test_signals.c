/* test_signals.c - signals on the engine's threads: they block every signal of the host, except those that a fault of
 * their own raises. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { REACTORS = 2, WORKERS = 2, SERVERS = 1 };

static const int of_the_host[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGUSR1, SIGUSR2,   SIGPIPE,
                                  SIGALRM, SIGTERM, SIGCHLD, SIGPROF, SIGVTALRM, SIGWINCH};
static const int of_a_fault[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

static void set_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = REACTORS;
}

/* Reads a file about a thread of this process, cut to size. */
static void read_about(const char *thread, const char *name, char *text, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, name);
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    if (file != NULL) { /* otherwise the thread has ended, so it is not an engine's */
        text[fread(text, 1, size - 1, file)] = '\0';
        fclose(file);
    }
}

static void check_mask(const char *thread)
{
    static const char before[] = "\nSigBlk:";
    char status[4096];
    read_about(thread, "status", status, sizeof status);
    const char *at = strstr(status, before);
    assert_non_null(at);
    const unsigned long long blocked = strtoull(at + strlen(before), NULL, 16);
    for (size_t i = 0; i < sizeof of_the_host / sizeof of_the_host[0]; i++) {
        if ((blocked >> (of_the_host[i] - 1) & 1) == 0) {
            fail_msg("%s may land on an engine's thread", strsignal(of_the_host[i]));
        }
    }
    for (size_t i = 0; i < sizeof of_a_fault / sizeof of_a_fault[0]; i++) {
        if ((blocked >> (of_a_fault[i] - 1) & 1) != 0) {
            fail_msg("%s is blocked on an engine's thread", strsignal(of_a_fault[i]));
        }
    }
}

static void only_a_fault_of_its_own(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, SERVERS, set_reactors);
    DIR *threads = opendir("/proc/self/task");
    assert_non_null(threads);
    int seen = 0;
    for (const struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
        char name[32];
        read_about(entry->d_name, "comm", name, sizeof name);
        if (strncmp(name, "trib-", 5) == 0) {
            check_mask(entry->d_name);
            seen++;
        }
    }
    closedir(threads);
    assert_int_equal(seen, (WORKERS + SERVERS) * REACTORS);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_a_fault_of_its_own)};
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
