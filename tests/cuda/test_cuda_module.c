/*
 * test_cuda_module.c - the whole CUDA module works in jobs of real engines over loopback, on a fake of CUDA and
 * NCCL. fake_cuda.h says what the fake models, and what only a GPU can show. The test needs no GPU, only CUDA's and
 * NCCL's headers. Its argument is the seed.
 */
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/module_job.h"
#include "tests/loop/job.h"
#include "tests/support/sanitized.h"

#define SECOND INT64_C(1000000000)

/* Runs a job in which nothing fails. */
static module_outcome run(const module_job *plan)
{
    const module_outcome outcome = module_job_run(plan, FAKE_EVENT_MAKE, 0);
    module_job_expect_nothing_left(&outcome, 0);
    assert_int_equal(outcome.rights, plan->rounds * plan->tensors * (unsigned)(plan->machines * plan->gpus));
    return outcome;
}

/* ---- Sums ---- */

static void ranks_sum_in_orders_of_their_own(void **state)
{
    static const int shapes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}};
    (void)state;
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const module_job plan = MODULE_JOB(.name = "sums", .machines = shapes[i][0], .gpus = shapes[i][1], .rounds = 3,
                                           .streams = 3, .tensors = JOB_TENSORS_MAX);
        (void)run(&plan);
    }
}

/* ---- Streams that wait ---- */

/* The program goes on however few queues there are, even if its next call waits for the whole GPU. */
static void streams_wait_with_few_queues_and_with_many(void **state)
{
    static const unsigned queues[] = {1, 5, 8, 32};
    (void)state;
    for (unsigned i = 0; i < sizeof queues / sizeof queues[0]; i += TSAN_STRIDE) {
        for (unsigned streams = 1; streams <= 7; streams += 3) {
            const module_job plan =
                MODULE_JOB(.name = "stream waits", .machines = 2, .gpus = queues[i] == 8 ? 2 : 1, .rounds = 4,
                           .streams = streams, .tensors = 8, .queues = queues[i], .only_stream_waits = true);
            (void)run(&plan);
        }
    }
}

/* ---- Ranks that leave ---- */

static void expect_errors(const module_job *plan, const module_outcome *outcome, unsigned least, unsigned untried)
{
    print_message("# %s: %u errors (%s), %.1f s\n", plan->name, outcome->errors, outcome->text,
                  (double)outcome->slowest_ns / 1e9);
    assert_true(outcome->errors >= least);
    assert_true(outcome->slowest_ns < 30 * SECOND);
    module_job_expect_nothing_left(outcome, untried);
}

/* The rank leaves in the middle of its work: the others have submitted operations that it never reaches. */
static void a_rank_leaves(void **state)
{
    static const int shapes[][2] = {{1, 2}, {2, 1}, {2, 2}};
    (void)state;
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int size = shapes[i][0] * shapes[i][1];
        const module_job plan = MODULE_JOB(.name = "a rank leaves", .machines = shapes[i][0], .gpus = shapes[i][1],
                                           .rounds = 4, .streams = 3, .tensors = 8, .leaves = size, .held = size);
        const module_outcome outcome = module_job_run(&plan, FAKE_EVENT_MAKE, 0);
        expect_errors(&plan, &outcome, (unsigned)size - 1, 0);
    }
}

/* ---- Lost ranks: the other machine's process is this program, started again ---- */

static pid_t other;

static void start_other(const char *address)
{
    char name[] = "test_cuda_module", seed[16], where[64];
    char *const arguments[] = {name, seed, where, NULL};
    snprintf(where, sizeof where, "%s", address);
    snprintf(seed, sizeof seed, "%u", module_seed);
    assert_int_equal(posix_spawn(&other, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
}

static void kill_other(void)
{
    (void)kill(other, SIGKILL);
}

static module_job of_two_processes(const char *address, int first)
{
    return MODULE_JOB(.name = "a machine is lost", .machines = 2, .gpus = 2, .first = first, .count = 2,
                      .address = address, .rounds = 4, .streams = 3, .tensors = 8, .held = 2, .may_fail = true);
}

/* The second machine is killed while a collective of the first waits for the member whose input is not ready. */
static void a_machine_is_lost(void **state)
{
    char address[64];
    int status = 0;
    (void)state;
    job_free_address(address, sizeof address);
    start_other(address);
    module_job plan = of_two_processes(address, 0);
    plan.half = kill_other;
    const module_outcome outcome = module_job_run(&plan, FAKE_EVENT_MAKE, 0);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_true(WIFSIGNALED(status));
    expect_errors(&plan, &outcome, 2, 0);
    assert_true(outcome.counts.aborted > 0);
}

/* Runs until it is killed. */
static int be_the_other(const char *address)
{
    const module_job plan = of_two_processes(address, 2);
    (void)module_job_run(&plan, FAKE_EVENT_MAKE, 0);
    return 0;
}

/* ---- Calls that fail ---- */

static module_outcome fail_with(const module_job *plan, fake_call call, unsigned n, unsigned untried)
{
    const module_outcome outcome = module_job_run(plan, call, n);
    print_message("# %s: call %u %s, %u errors (%s)\n", plan->name, n, outcome.failed ? "failed" : "did not come",
                  outcome.errors, outcome.text);
    assert_true(outcome.failed);
    assert_true(outcome.errors > 0);
    module_job_expect_nothing_left(&outcome, untried);
    return outcome;
}

static module_job job_of(const char *name, int machines, int gpus)
{
    return MODULE_JOB(.name = name, .machines = machines, .gpus = gpus, .rounds = 6, .streams = 2, .tensors = 6,
                      .may_fail = true, .op_ns = 20 * SECOND);
}

/* After the failure some operation fails; all the others end, and nothing is left. */
static void fail_in(fake_call call, const char *name, int machines, int gpus, unsigned n)
{
    const module_job plan = job_of(name, machines, gpus);
    (void)fail_with(&plan, call, n, 0);
}

static void fail_at(fake_call call, const char *name, int machines, unsigned n)
{
    fail_in(call, name, machines, 3 - machines, n);
}

/* The call fails while the group is being made: the others wait for its member in vain. */
static void fail_early(void)
{
    module_job plan = job_of("a stream cannot be made", 2, 1);
    plan.join_ns = SECOND;
    (void)fail_with(&plan, FAKE_STREAM_MAKE, 2, 0);
}

static void calls_of_jobs_between_machines_fail(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 9; n += 4) {
        fail_at(FAKE_EVENT_MAKE, "an event cannot be made", 2, n);
        fail_at(FAKE_EVENT_RECORD, "an event cannot be recorded", 2, n);
        fail_at(FAKE_COPY, "a copy fails", 2, n);
    }
    fail_early();
}

/* Otherwise a gather would give the machine's other ranks bytes that were never copied, or a copy would take what
 * was not summed yet. */
static void steps_after_a_failed_call_are_skipped(void **state)
{
    (void)state;
    for (unsigned n = 20; n < 80; n += 3 * TSAN_STRIDE) {
        fail_in(FAKE_COPY, "a copy fails", 2, 2, n);
        fail_in(FAKE_ORDER, "a stream cannot wait for an event", 2, 2, n);
    }
}

static void calls_of_jobs_in_a_machine_fail(void **state)
{
    (void)state;
    fail_at(FAKE_EVENT_MAKE, "an event cannot be made", 1, 3);
    fail_at(FAKE_EVENT_RECORD, "an event cannot be recorded", 1, 5);
    const module_job plan = job_of("a group cannot be tried", 1, 2);
    (void)fail_with(&plan, FAKE_COLLECTIVE, 7, 2);
}

/* The other ranks launch their collective, which must not meet the next one of the rank that failed. */
static void a_rank_fails_to_launch_a_collective(void **state)
{
    (void)state;
    for (unsigned n = 53; n <= 57; n += 2) {
        const module_job plan = job_of("a collective fails", 1, 2);
        assert_true(fail_with(&plan, FAKE_COLLECTIVE, n, 0).counts.aborted > 0);
    }
}

/* ---- Members that do not come ---- */

static atomic_uint failed_ranks;

static void let_in_when_both_have_failed(void)
{
    if (atomic_fetch_add(&failed_ranks, 1) == 1) {
        fake_nccl_let_in();
    }
}

static module_outcome run_without_one(module_job *plan)
{
    atomic_store(&failed_ranks, 0);
    plan->failed = let_in_when_both_have_failed;
    fake_nccl_keep_out(1);
    const module_outcome outcome = module_job_run(plan, FAKE_EVENT_MAKE, 0);
    expect_errors(plan, &outcome, 2, 2);
    return outcome;
}

static void a_member_comes_too_late(void **state)
{
    (void)state;
    module_job plan = MODULE_JOB(.name = "a member comes too late", .machines = 1, .gpus = 2, .rounds = 2, .streams = 2,
                                 .tensors = 4, .may_fail = true, .op_ns = SECOND, .no_stream_waits = true);
    (void)run_without_one(&plan);
}

/* All ranks are there, but NCCL waits for one. The waiting operations end with an error, within another join
 * timeout. */
static void a_group_does_not_form(void **state)
{
    (void)state;
    module_job plan = MODULE_JOB(.name = "a group does not form", .machines = 1, .gpus = 2, .rounds = 2, .streams = 2,
                                 .tensors = 4, .may_fail = true, .join_ns = 3 * SECOND);
    const module_outcome outcome = run_without_one(&plan);
    assert_non_null(strstr(outcome.text, "form a group"));
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_sum_in_orders_of_their_own),
        cmocka_unit_test(streams_wait_with_few_queues_and_with_many),
        cmocka_unit_test(a_rank_leaves),
        cmocka_unit_test(a_machine_is_lost),
        cmocka_unit_test(a_member_comes_too_late),
        cmocka_unit_test(a_group_does_not_form),
        cmocka_unit_test(calls_of_jobs_between_machines_fail),
        cmocka_unit_test(steps_after_a_failed_call_are_skipped),
        cmocka_unit_test(calls_of_jobs_in_a_machine_fail),
        cmocka_unit_test(a_rank_fails_to_launch_a_collective),
    };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    module_seed = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : (unsigned)(now.tv_nsec / 1000 % 1000000);
    if (count > 2) {
        return be_the_other(arguments[2]);
    }
    print_message("# seed %u; again: test_cuda_module %u\n", module_seed, module_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
