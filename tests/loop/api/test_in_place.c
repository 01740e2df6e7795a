/*
 * test_in_place.c - the processes of a machine sum tensors in their engines' memory, where each reads the others'
 * payloads in place, and tensors elsewhere, which the kernel copies.
 *
 * Sums are exact, whatever memory each member uses. Members are killed, leave or give up in the middle of a sum, and no
 * sum is wrong. Each member is a process: this program, with its number and the name of a shared table as its
 * arguments. The table counts payloads that were read in place and leased, so that no case passes because it copied.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/api/in_place_wrap.h"
#include "tests/loop/job.h"
#include "tests/support/sanitized.h"

#define KERNEL_BYTES 65536u /* reads that look for memory stay below this, far below any tensor's size */
#define STEPS_MAX 2000      /* enough steps until a member is killed */

static bool are_copied; /* the kernel forbids processes to read each other here */

static in_place_table *table_of(in_place_table with, int *fd_out)
{
    const int fd = memfd_create("what a job shares", 0);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(in_place_table)), 0);
    in_place_table *self = mmap(NULL, sizeof *self, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(self, MAP_FAILED);
    *self = with;
    job_free_address(self->address, sizeof self->address);
    *fd_out = fd;
    return self;
}

/* Runs a job and stores its members' wait statuses in how. The caller unmaps the table with the counts. */
static in_place_table *run(in_place_table with, int how[IN_PLACE_MEMBERS_MAX])
{
    int fd = -1;
    in_place_table *self = table_of(with, &fd);
    const int members = with.workers + with.servers;
    char words[2][16];
    snprintf(words[1], sizeof words[1], "%d", fd);
    for (int i = 0; i < members; i++) {
        snprintf(words[0], sizeof words[0], "%d", i);
        const pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "test_in_place", words[0], words[1], (char *)NULL);
            _exit(127);
        }
        assert_true(child > 0);
        self->pids[i] = child;
    }
    close(fd);
    for (int i = 0; i < members; i++) {
        while (waitpid(self->pids[i], &how[i], 0) < 0 && errno == EINTR) {}
    }
    return self;
}

static void check_exit(const in_place_table *self, int member, int how, int wanted_status)
{
    if (!WIFEXITED(how) || WEXITSTATUS(how) != wanted_status) {
        fail_msg("scene %d, %d workers, %d servers, member %d: %s %d", (int)self->scene, self->workers, self->servers,
                 member, WIFEXITED(how) ? "exit status" : "signal", WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how));
    }
}

/* Checks that payloads were read in place and leased, and that the kernel copied only memory outside the engines. */
static void check_way(const in_place_table *self)
{
    const unsigned long by_kernel = atomic_load(&self->by_kernel);
    if (atomic_load(&self->refused) > 0) {
        if (!are_copied) {
            print_message("# processes may not read each other here: all has been copied\n");
        }
        are_copied = true;
        return;
    }
    assert_true(atomic_load(&self->leases) > 0);
    if (self->is_mixed ? by_kernel <= KERNEL_BYTES : by_kernel >= KERNEL_BYTES) {
        fail_msg("scene %d, %d workers, %d servers: %lu bytes read by the kernel", (int)self->scene, self->workers,
                 self->servers, by_kernel);
    }
}

static void run_to_its_end(in_place_table with)
{
    int how[IN_PLACE_MEMBERS_MAX];
    in_place_table *self = run(with, how);
    for (int i = 0; i < with.workers + with.servers; i++) {
        check_exit(self, i, how[i], 0);
    }
    check_way(self);
    assert_true(atomic_load(&self->pushed) > 16 * KERNEL_BYTES);
    if (with.scene == GIVES_UP) {
        assert_true(atomic_load(&self->sums) > 0 && atomic_load(&self->failures) > 0);
    } else {
        const int tensors_each = with.is_huge ? IN_PLACE_TENSORS : IN_PLACE_TENSORS - 1;
        assert_int_equal(atomic_load(&self->sums), with.workers * with.steps * tensors_each);
    }
    assert_true(with.scene != LATE || atomic_load(&self->recalled) > 0 || atomic_load(&self->refused) > 0);
    munmap(self, sizeof *self);
}

static void test_sums_are_exact(void **unused)
{
    static const in_place_table jobs[] = {
        {.workers = 2, .servers = 1, .steps = 2, .is_huge = true, .chunk_bytes = 262144, .reactors = 2},
        {.workers = 3, .servers = 1, .steps = 4, .is_mixed = true, .chunk_bytes = 65536, .reactors = 1},
        {.workers = 4, .servers = 2, .steps = 3, .is_mixed = true, .chunk_bytes = 32768, .reactors = 1},
        {.workers = 2, .servers = 0, .steps = 4, .chunk_bytes = 65536, .reactors = 2},
        {.workers = 4, .servers = 0, .steps = 3, .is_mixed = true, .chunk_bytes = 262144, .reactors = 1},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i += TSAN_STRIDE) {
        in_place_table with = jobs[i];
        with.seed = i;
        snprintf(with.transport, sizeof with.transport, "%s", i % 2 == 0 ? "auto" : "shm");
        run_to_its_end(with);
    }
}

static void test_late_ones_recall_leases(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        const in_place_table with = {.scene = LATE,
                                     .workers = 2 + i,
                                     .servers = 1 - i,
                                     .steps = 1,
                                     .chunk_bytes = 65536,
                                     .reactors = 1,
                                     .transport = "auto"};
        run_to_its_end(with);
    }
}

static void test_who_gives_up_takes_its_memory_back(void **unused)
{
    (void)unused;
    for (int i = 0; i < 3; i += (int)TSAN_STRIDE) {
        const in_place_table with = {.scene = GIVES_UP,
                                     .workers = 2 + i,
                                     .servers = i % 2,
                                     .steps = 8,
                                     .is_mixed = i == 2,
                                     .chunk_bytes = 65536,
                                     .reactors = 1,
                                     .seed = (uint64_t)i,
                                     .transport = "shm"};
        run_to_its_end(with);
    }
}

/* The victim dies while its payloads are leased. The others hear of the loss, and every sum that they report as
 * complete is right. */
static void test_who_is_killed_ends_the_job(void **unused)
{
    static const uint32_t counts[] = {1, 2, 8};
    (void)unused;
    if (are_copied) {
        skip(); /* no member leases anything */
    }
    for (int i = 0; i < 6; i += (int)TSAN_STRIDE) {
        int how[IN_PLACE_MEMBERS_MAX];
        const in_place_table with = {.scene = KILLED,
                                     .workers = 3,
                                     .servers = i % 2,
                                     .victim = i % 3,
                                     .lease_count = counts[i / 2],
                                     .steps = STEPS_MAX,
                                     .chunk_bytes = 65536,
                                     .reactors = 1,
                                     .seed = (uint64_t)i,
                                     .transport = "auto"};
        in_place_table *self = run(with, how);
        if (atomic_load(&self->kills) != 1) {
            for (int member = 0; member < with.workers + with.servers; member++) {
                print_message("# member %d: status %#x\n", member, (unsigned)how[member]);
            }
            fail_msg("%d servers, victim %d, lease %u: %u were killed", with.servers, with.victim, with.lease_count,
                     atomic_load(&self->kills));
        }
        for (int member = 0; member < with.workers + with.servers; member++) {
            if (member != with.victim) {
                check_exit(self, member, how[member], IN_PLACE_ENDED);
            }
        }
        assert_true(WIFSIGNALED(how[with.victim]) && WTERMSIG(how[with.victim]) == SIGKILL);
        check_way(self);
        munmap(self, sizeof *self);
    }
}

static void test_who_closes_takes_its_memory_back(void **unused)
{
    (void)unused;
    for (int i = 0; i < 4; i += (int)TSAN_STRIDE) {
        int how[IN_PLACE_MEMBERS_MAX];
        const in_place_table with = {.scene = CLOSED,
                                     .workers = 3,
                                     .servers = i % 2,
                                     .victim = i < 2 ? 1 : 0,
                                     .steps = 6,
                                     .chunk_bytes = 65536,
                                     .reactors = 1,
                                     .seed = (uint64_t)i,
                                     .transport = "auto"};
        in_place_table *self = run(with, how);
        for (int worker = 0; worker < with.workers; worker++) {
            check_exit(self, worker, how[worker], worker == with.victim ? 0 : IN_PLACE_ENDED);
        }
        if (with.servers == 1) {
            assert_true(WIFEXITED(how[3]) && (WEXITSTATUS(how[3]) == 0 || WEXITSTATUS(how[3]) == IN_PLACE_ENDED));
        }
        assert_true(atomic_load(&self->failures) > 0);
        check_way(self);
        munmap(self, sizeof *self);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        return in_place_member(atoi(argv[1]), atoi(argv[2]));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_exact),
        cmocka_unit_test(test_late_ones_recall_leases),
        cmocka_unit_test(test_who_gives_up_takes_its_memory_back),
        cmocka_unit_test(test_who_is_killed_ends_the_job),
        cmocka_unit_test(test_who_closes_takes_its_memory_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
