/*
 * test_torture.c - runs many seeds (torture.h). Prints TAP: one line for all seeds and one for each seed that fails.
 *
 *   test_torture                      seeds 1 to 1000, with a sanitizer to 250, and those that failed once
 *   test_torture FIRST LAST           those seeds
 *   test_torture SEED                 one seed, with a description
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/torture.h"
#include "tests/support/sanitized.h"

#ifdef SANITIZED
#define LAST_DEFAULT 250
#else
#define LAST_DEFAULT 1000
#endif

/* Seeds that found what no other test is about: a worker of a machine leaves before another one has heard that they
 * disagree about a tensor on devices, which that one has announced, or not, or whose number it does not know yet; a
 * clock jumps by what is left of a grace period; the subflows of a link end before its first connection, to which their
 * credit falls. Each meets its moment only if nothing comes late. */
static const uint64_t once_failed[] = {113252, 121513, 1004976, 1153677, 2012072};

/* Describes the seed that runs now, for the handler of signals that end the program. */
static char current[2048];

static void on_fatal(int signal_number)
{
    ssize_t written = write(STDOUT_FILENO, current, strnlen(current, sizeof current));
    (void)written;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void draw(uint64_t seed, torture_plan *plan)
{
    torture_draw(seed, plan);
    for (size_t i = 0; i < sizeof once_failed / sizeof once_failed[0]; i++) {
        if (once_failed[i] == seed) {
            plan->job.stagger_one_in = 0;
            plan->job.net.sent_late_ns = 0;
        }
    }
}

static bool run_seed(uint64_t seed, bool talks, torture_verdict *sum)
{
    torture_plan plan;
    draw(seed, &plan);
    char text[1800];
    torture_describe(&plan, text, sizeof text);
    snprintf(current, sizeof current, "\nended in %s\n", text);
    if (talks) {
        printf("# %s\n", text);
    }
    torture_verdict verdict = torture_run(&plan);
    sum->steps += verdict.steps;
    sum->succeeded += verdict.succeeded;
    sum->failed += verdict.failed;
    sum->virtual_ns += verdict.virtual_ns;
    for (uint32_t i = 0; i < TORTURE_CHECKS; i++) {
        sum->checks[i] += verdict.checks[i];
    }
    if (!verdict.held) {
        printf("%s# %s\n# %s\n", talks ? "" : "\n", text, verdict.why);
    }
    return verdict.held;
}

/* Says how often each check had something to check. */
static void print_checks(const torture_verdict *sum)
{
    static const char *const names[TORTURE_CHECKS] = {
#define TORTURE_CHECK_NAME(name, text) [TORTURE_CHECK_##name] = (text),
        TORTURE_CHECK_LIST(TORTURE_CHECK_NAME)
#undef TORTURE_CHECK_NAME
    };
    for (uint32_t i = 0; i < TORTURE_CHECKS; i++) {
        printf("# %10llu %s%s\n", (unsigned long long)sum->checks[i], names[i],
               sum->checks[i] == 0 ? ": THESE SEEDS COULD NOT HAVE FOUND A BUG THERE" : "");
    }
}

int main(int argc, char **argv)
{
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const uint64_t last = argc > 2 ? strtoull(argv[2], NULL, 10) : argc > 1 ? first : LAST_DEFAULT;
    if (last < first) {
        fprintf(stderr, "test_torture: seeds %s to %s are none\n", argv[1], argv[2]);
        return 2;
    }
    signal(SIGABRT, on_fatal);
    signal(SIGSEGV, on_fatal);
    torture_verdict sum = {.held = true};
    uint64_t failures = 0;
    const uint64_t more = argc > 1 ? 0 : sizeof once_failed / sizeof once_failed[0];
    for (uint64_t i = 0; i <= last - first + more; i++) {
        const uint64_t seed = i <= last - first ? first + i : once_failed[i - (last - first) - 1];
        if (!run_seed(seed, first == last, &sum)) {
            failures++;
            printf("not ok %llu - seed %llu (run it again: %s %llu)\n", (unsigned long long)failures + 1,
                   (unsigned long long)seed, argv[0], (unsigned long long)seed);
        }
        fflush(stdout);
    }
    const uint64_t seeds = last - first + 1 + more;
    printf("# %llu seeds, %llu events, %u operations succeeded, %u failed as they may, %.1f s of virtual time\n",
           (unsigned long long)seeds, (unsigned long long)sum.steps, sum.succeeded, sum.failed,
           (double)sum.virtual_ns / 1e9);
    print_checks(&sum);
    printf("%s 1 - seeds %llu to %llu\n", failures == 0 ? "ok" : "not ok", (unsigned long long)first,
           (unsigned long long)last);
    return failures == 0 ? 0 : 1;
}
