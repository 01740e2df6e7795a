/* test_unreadable.c - processes of one machine lose the right to read each other's memory while they sum: sums go on,
 * exact, through the rings, and the log says so. The right is lost at one read after another, so with payloads under
 * way in both directions and in every state. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { WORKERS = 3, TENSORS = 6, STEPS = 4, LOSSES = 60 };

static const uint64_t counts[TENSORS] = {1, 3000, 5000, 70000, 300001, 20000}; /* small ones between large ones */

static atomic_long reads_left; /* below 0: the kernel refuses */
static atomic_int refusals, warnings;

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    if (atomic_fetch_sub(&reads_left, 1) <= 0) {
        atomic_fetch_add(&refusals, 1);
        errno = EPERM;
        return -1;
    }
    return __real_process_vm_readv(pid, local, local_count, remote, remote_count, flags);
}

static void see_warning(trib_log_level level, const char *line, void *user)
{
    (void)user;
    atomic_fetch_add(&warnings, level == TRIB_LOG_WARN && strstr(line, "can be read no more") != NULL);
}

static void by_memory(trib_config *config, int member)
{
    (void)member;
    config->transport = "shm";
    config->reactors = 2;
    config->chunk_bytes = 64 << 10;
    config->log_level = TRIB_LOG_WARN;
    config->log_cb = see_warning;
}

static float value(int rank, int tensor, int step, uint64_t i)
{
    return (float)((i * 7 + (uint64_t)rank * 13 + (uint64_t)tensor * 31 + (uint64_t)step * 101) % 1000);
}

static void check(const float *sums, int tensor, int step)
{
    for (uint64_t i = 0; i < counts[tensor]; i++) {
        float wanted = 0;
        for (int rank = 0; rank < WORKERS; rank++) {
            wanted += value(rank, tensor, step, i);
        }
        if (sums[i] != wanted) {
            fail_msg("step %d, tensor %d, element %llu: %f instead of %f", step, tensor, (unsigned long long)i,
                     (double)sums[i], (double)wanted);
        }
    }
}

static void sum_steps(const job *jobs)
{
    static float *inputs[WORKERS][TENSORS], *outputs[WORKERS][TENSORS];
    trib_op *ops[WORKERS][TENSORS];
    for (int step = 0; step < STEPS; step++) {
        for (int n = 0; n < WORKERS * TENSORS; n++) {
            const int rank = n % WORKERS, tensor = n / WORKERS;
            static const char names[TENSORS][2] = {"a", "b", "c", "d", "e", "f"};
            if (inputs[rank][tensor] == NULL) {
                inputs[rank][tensor] = malloc(counts[tensor] * sizeof(float));
                outputs[rank][tensor] = malloc(counts[tensor] * sizeof(float));
            }
            assert_non_null(inputs[rank][tensor]);
            assert_non_null(outputs[rank][tensor]);
            for (uint64_t i = 0; i < counts[tensor]; i++) {
                inputs[rank][tensor][i] = value(rank, tensor, step, i);
            }
            ops[rank][tensor] = job_push_pull(
                jobs->engines[rank], job_declare(jobs->engines[rank], names[tensor], TRIB_FLOAT32, counts[tensor]),
                inputs[rank][tensor], outputs[rank][tensor], TRIB_SUM);
        }
        for (int n = 0; n < WORKERS * TENSORS; n++) {
            trib_error error = {.text = ""};
            if (job_wait(ops[n % WORKERS][n / WORKERS], &error) != TRIB_OK) {
                fail_msg("step %d: %s", step, error.text);
            }
            check(outputs[n % WORKERS][n / WORKERS], n / WORKERS, step);
        }
    }
}

static void sums_go_on(void **state)
{
    (void)state;
    int cases = 0;
    for (int loss = 0; loss < LOSSES; loss += loss < 20 ? 1 : 9) {
        job jobs;
        atomic_store(&reads_left, 1000000);
        job_open(&jobs, WORKERS, 1, by_memory);
        atomic_store(&refusals, 0);
        atomic_store(&warnings, 0);
        atomic_store(&reads_left, loss);
        sum_steps(&jobs);
        cases += atomic_load(&refusals) > 0 && atomic_load(&warnings) > 0;
        job_close(&jobs);
        if (atomic_load(&refusals) == 0) {
            break;
        }
    }
    if (cases == 0) {
        print_message("# the kernel forbids processes to read each other here\n");
        skip();
    }
    assert_true(cases > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_go_on)};
    return cmocka_run_group_tests_name("unreadable", tests, NULL, NULL);
}
