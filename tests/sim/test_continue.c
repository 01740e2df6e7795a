/*
 * test_continue.c - members die in a job whose operations go on with those that are left (TRIB_SURVIVE=continue). Each
 * job is run many times, and members die at other moments each time.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/worker/op_carry.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/go_on.h"
#include "tests/support/sanitized.h"

/* ---- Who dies ---- */

static void worker_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 24; kind++) {
        const go_on_setting what = {.workers = 2 + kind / 4 % 4,
                                    .servers = kind / 16,
                                    .deaths = 1,
                                    .colocated = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind / 4 % 2};
        go_on_sweep(&what, 12);
    }
}

static void worker_beside_servers_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const go_on_setting what = {.workers = 3,
                                    .servers = 1 + kind / 2,
                                    .deaths = 1,
                                    .gives_up = (kind & 1) == 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 25);
    }
}

static void two_workers_die(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const go_on_setting what = {.workers = 5,
                                    .deaths = 2,
                                    .colocated = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 25);
    }
}

/* Rank 0 dies, alone or with others, at work or between epochs. The others elect another coordinator. */
static void coordinator_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const uint32_t deaths = 1 + kind % 2;
        const go_on_setting what = {.workers = deaths == 1 ? 3 : 5,
                                    .servers = kind / 4,
                                    .deaths = deaths,
                                    .first_dies = 1 + (kind % 4 == 3),
                                    .colocated = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 20);
    }
}

/* A worker joins at the program's boundary, also where others die before, or on the way there. */
static void worker_joins(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const go_on_setting what = {.workers = 4 + kind % 2,
                                    .deaths = kind / 4,
                                    .joins = true,
                                    .colocated = true,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, kind == 4 ? 250 : 20); /* few deaths hit workers of which only some are there */
    }
}

/* ---- Bugs that are planted, each in a process of its own, which must fail ---- */

__typeof__(trib_tensors_renumber) __real_trib_tensors_renumber, __wrap_trib_tensors_renumber;
void __wrap_trib_tensors_renumber(trib_engine *engine)
{
    if (go_on_planted != BUG_OLD_CONTRIBUTORS) { /* else results tell the number of the epoch before */
        __real_trib_tensors_renumber(engine);
    }
}

__typeof__(trib_carry_keep) __real_trib_carry_keep, __wrap_trib_carry_keep;
void __wrap_trib_carry_keep(trib_core *core, trib_op_core *op_core)
{
    if (go_on_planted != BUG_INPUT_LOST) { /* else a sum that landed in the input is pushed again */
        __real_trib_carry_keep(core, op_core);
    }
}

__typeof__(trib_commit_take) __real_trib_commit_take, __wrap_trib_commit_take;
trib_status __wrap_trib_commit_take(trib_core *core, const trib_frame *frame, const void *payload, trib_error *error)
{
    static uint32_t calls;
    const bool strikes = go_on_planted == BUG_DONE_TWICE && ++calls % 20 == 0; /* the worker does it once more */
    return strikes ? TRIB_OK : __real_trib_commit_take(core, frame, payload, error);
}

__typeof__(trib_carry_take) __real_trib_carry_take, __wrap_trib_carry_take;
bool __wrap_trib_carry_take(trib_core *core, trib_op *op)
{
    const bool forgets =
        go_on_planted == BUG_SPENT_FORGOTTEN && !op->is_held; /* later rounds meet others than theirs */
    return !forgets && __real_trib_carry_take(core, op);
}

__typeof__(trib_carry_submit) __real_trib_carry_submit, __wrap_trib_carry_submit;
void __wrap_trib_carry_submit(trib_engine *engine)
{
    for (trib_op *op = engine->formation.carried; op != NULL && go_on_planted == BUG_OTHER_ORDER; op = op->next) {
        op->number = engine->config.rank == 1 ? UINT64_MAX - op->number : op->number;
    }
    __real_trib_carry_submit(engine);
}

__typeof__(trib_roster_find_rank) __real_trib_roster_find_rank, __wrap_trib_roster_find_rank;
uint32_t __wrap_trib_roster_find_rank(const trib_roster *roster, uint32_t rank)
{
    const bool moves = go_on_planted == BUG_ROOT_MOVES && rank < roster->worker_count; /* it is taken for a place */
    return moves ? rank : __real_trib_roster_find_rank(roster, rank);
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("# planted bugs are looked for without sanitizers\n");
    skip();
#endif
    go_on_seed = mmap(NULL, sizeof *go_on_seed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(go_on_seed != MAP_FAILED);
    for (int bug = BUG_NONE; bug < BUG_COUNT; bug++) {
        *go_on_seed = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            go_on_planted = bug;
            const go_on_setting what = {.workers = 5,
                                        .deaths = 2,
                                        .first_dies = 1,
                                        .colocated = true,
                                        .in_place = true,
                                        .gives_up = bug == BUG_SPENT_FORGOTTEN,
                                        .reactors = 2};
            go_on_sweep(&what, bug == BUG_NONE ? 50 : 400);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (passed != (bug == BUG_NONE)) {
            fail_msg("planted bug %d %s", bug, passed ? "is not found" : "is found where there is none");
        }
        if (!passed) {
            printf("planted bug %d is found by run %llu\n", bug, (unsigned long long)*go_on_seed);
        }
    }
    munmap((void *)(uintptr_t)go_on_seed, sizeof *go_on_seed);
    go_on_seed = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_dies),     cmocka_unit_test(worker_beside_servers_dies),
        cmocka_unit_test(two_workers_die), cmocka_unit_test(coordinator_dies),
        cmocka_unit_test(worker_joins),    cmocka_unit_test(planted_bugs_are_found),
    };
    return cmocka_run_group_tests_name("operations go on", tests, NULL, NULL);
}
