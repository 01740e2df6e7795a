/* test_names.c - two hosts whose long names differ only at their ends are two hosts, in the names of members and of
 * traces. A trace is written where its name pointed when the engine was created. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/job/job.h"
#include "tests/loop/job.h"

static const char *const hosts[] = {"a-training-job-with-a-long-name-worker-0",
                                    "a-training-job-with-a-long-name-worker-1", "short"};
static int asked;

int __wrap_gethostname(char *name, size_t size);
int __wrap_gethostname(char *name, size_t size)
{
    snprintf(name, size, "%s", hosts[asked++ % 3]);
    return 0;
}

static char pattern[64];

static void trace_by_host(trib_config *config, int member)
{
    (void)member;
    config->trace = pattern;
}

static void long_names_stay_apart(void **state)
{
    (void)state;
    char folder[] = "/tmp/host-names.XXXXXX", path[128], command[80];
    job jobs;
    assert_non_null(mkdtemp(folder));
    snprintf(pattern, sizeof pattern, "%s/%%h.trib", folder);
    job_open(&jobs, 3, 0, trace_by_host);
    const char *places[3];
    for (int i = 0; i < 3; i++) {
        places[i] = jobs.engines[i]->env.place;
        assert_non_null(strstr(jobs.engines[0]->roster->members[i].name, places[i]));
    }
    assert_string_not_equal(places[0], places[1]);
    assert_memory_equal(places[0], hosts[0], 20); /* they still begin with the host's name */
    assert_memory_equal(places[2], "short:", 6);
    job_close(&jobs);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.trib", folder, hosts[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void traces_stay_in_their_folder(void **state)
{
    (void)state;
    char folder[] = "/tmp/names.XXXXXX", path[128], command[80], before[4096];
    job jobs;
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    snprintf(pattern, sizeof pattern, "%%r.trib");
    job_open(&jobs, 1, 0, trace_by_host);
    assert_int_equal(chdir(before), 0);
    job_close(&jobs);
    snprintf(path, sizeof path, "%s/rank0.trib", folder);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_names_stay_apart),
                                       cmocka_unit_test(traces_stay_in_their_folder)};
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
