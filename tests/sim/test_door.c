/*
 * test_door.c - many seeds of door_bed.h, and whether they find bugs that are planted in the door: as in test_mutants.c, by the
 * linker, each in a child process.
 *
 *   test_door                  all
 *   test_door FIRST LAST       those seeds
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/host/device_host.h"
#include "engine/local_group/group_internal.h"
#include "tests/sim/door_bed.h"

#define SEEDS 1500u
#define CPU_SECONDS 30u /* for one bug; it may make the engine turn for ever */

typedef enum bug {
    BUG_NONE,
    BUG_COMES_WITH_MORE,
    BUG_TELLS_THOUGH_PASSED,
    BUG_ROUNDS_NOT_COMPARED,
    BUG_NEVER_COMES_BACK,
    BUG_WAITS_FOR_NOBODY,
    BUG_PAGE_LIES, /* not a bug here: the job ends for it, and no process */
    BUG_COUNT
} bug;

static const char *const names[BUG_COUNT] = {
    [BUG_NONE] = "none (all must pass)",
    [BUG_COMES_WITH_MORE] = "a rank comes to the door though it has announced something else to the leader",
    [BUG_TELLS_THOUGH_PASSED] = "who has passed tells the leader",
    [BUG_ROUNDS_NOT_COMPARED] = "who comes last does not compare rounds",
    [BUG_NEVER_COMES_BACK] = "a rank stays counted as elsewhere",
    [BUG_WAITS_FOR_NOBODY] = "who comes does not look whether somebody is elsewhere",
    [BUG_PAGE_LIES] = "another rank writes to the page that one has passed in a way that cannot be",
};

static bug planted;
static uint32_t passed; /* collectives that came by the door */
static uint32_t called; /* ranks' parts of these that were issued where they were handed in */
static const door_plan *playing;

/* ---- What the engine meets ---- */

__typeof__(trib_host_world_door) __real_trib_host_world_door, __wrap_trib_host_world_door;
trib_door_page *__wrap_trib_host_world_door(trib_host_world *world, uint32_t machine, uint32_t rank,
                                            trib_reactor *reactor, void (*rung)(trib_reactor *reactor))
{
    return playing->is_shut ? NULL : __real_trib_host_world_door(world, machine, rank, reactor, rung);
}

/* What is large has several slices, though it has not the 256 MiB that this takes. */
__typeof__(trib_device_partition_bytes) __real_trib_device_partition_bytes, __wrap_trib_device_partition_bytes;
uint32_t __wrap_trib_device_partition_bytes(uint64_t bytes, uint32_t partition_bytes, uint32_t chunk_bytes,
                                            uint32_t local_size, uint32_t machines, uint32_t summers)
{
    return bytes == DOOR_LARGE * sizeof(int32_t)
               ? partition_bytes
               : __real_trib_device_partition_bytes(bytes, partition_bytes, chunk_bytes, local_size, machines, summers);
}

/* ---- Bugs, and what is counted ---- */

static bool leader_passes;

__typeof__(trib_leader_passed) __real_trib_leader_passed, __wrap_trib_leader_passed;
void __wrap_trib_leader_passed(trib_leader *leader, const trib_announcement *what)
{
    passed++;
    leader_passes = planted == BUG_TELLS_THOUGH_PASSED || planted == BUG_PAGE_LIES;
    __real_trib_leader_passed(leader, what);
}

__typeof__(trib_group_take_order) __real_trib_group_take_order, __wrap_trib_group_take_order;
trib_status __wrap_trib_group_take_order(trib_group *group, const trib_announcement *what, trib_error *error)
{
    if (leader_passes) {
        leader_passes = false;
        if (planted == BUG_PAGE_LIES) {
            return trib_error_set(error, TRIB_PROTOCOL, "that cannot be");
        }
        trib_group_notify_ready(group, &group->tensors[what->tensor]->device->tasks[0]);
        return TRIB_OK;
    }
    return __real_trib_group_take_order(group, what, error);
}

__typeof__(trib_group_pass_in_call) __real_trib_group_pass_in_call, __wrap_trib_group_pass_in_call;
bool __wrap_trib_group_pass_in_call(trib_op *op)
{
    const bool has_passed = __real_trib_group_pass_in_call(op);
    called += has_passed;
    return has_passed;
}

static bool hides_round;

__typeof__(trib_group_announcement_of) __real_trib_group_announcement_of, __wrap_trib_group_announcement_of;
trib_announcement __wrap_trib_group_announcement_of(const trib_device_task *device)
{
    trib_announcement what = __real_trib_group_announcement_of(device);
    what.round = hides_round ? 0 : what.round;
    hides_round = false;
    return what;
}

__typeof__(trib_door_announce) __real_trib_door_announce, __wrap_trib_door_announce;

/* As if nobody were elsewhere; and with_more, as if nothing but this were announced here. */
static void announce_blindly(trib_group *group, trib_device_task *device, bool with_more)
{
    trib_door_page *page = group->door.page;
    trib_door_settle(group);
    trib_device_task *more = with_more ? device->next : NULL;
    if (more != NULL) {
        device->next = more->previous = NULL;
    }
    const uint32_t elsewhere = atomic_exchange(&page->elsewhere, 0);
    __real_trib_door_announce(group, device);
    atomic_fetch_add(&page->elsewhere, elsewhere);
    if (more != NULL && group->announced == NULL) {
        group->announced = more;
    } else if (more != NULL) {
        group->announced->next = more;
        more->previous = group->announced;
    }
}

void __wrap_trib_door_announce(trib_group *group, trib_device_task *device)
{
    if (group->door.page != NULL && (planted == BUG_WAITS_FOR_NOBODY || planted == BUG_COMES_WITH_MORE)) {
        announce_blindly(group, device, planted == BUG_COMES_WITH_MORE);
        return;
    }
    hides_round = planted == BUG_ROUNDS_NOT_COMPARED;
    __real_trib_door_announce(group, device);
}

__typeof__(trib_door_come_back) __real_trib_door_come_back, __wrap_trib_door_come_back;
void __wrap_trib_door_come_back(trib_group *group)
{
    if (planted != BUG_NEVER_COMES_BACK) {
        __real_trib_door_come_back(group);
    }
}

/* ---- Running ---- */

typedef struct finding {
    uint64_t running, found; /* seeds; found 0: nothing */
    bool died;               /* the engine did not say what is wrong */
    char why[256];
    uint32_t passed, called, broken, succeeded, failed;
} finding;

static void note(finding *shared, const char *why)
{
    shared->found = shared->running;
    snprintf(shared->why, sizeof shared->why, "%s", why);
}

static uint32_t play(const door_plan *plan, finding *shared)
{
    playing = plan;
    passed = called = 0;
    leader_passes = hides_round = false;
    const door_verdict verdict = door_run(plan);
    const uint32_t broken = verdict.generations - passed;
    shared->passed += passed;
    shared->called += called;
    shared->broken += broken;
    shared->succeeded += verdict.succeeded;
    shared->failed += verdict.failed;
    if (!verdict.held) {
        note(shared, verdict.why);
    } else if (plan->is_shut && verdict.generations > 0) {
        note(shared, "there is a door");
    }
    return broken;
}

/* Where all hand in the same at nearly the same time, that comes by the door. */
static void play_calm(const door_plan *plan, finding *shared)
{
    const uint32_t before = shared->passed, broken = play(plan, shared);
    char why[128];
    snprintf(why, sizeof why, "of %u lone sums %u came by the door, which was broken up %u times", plan->step_count,
             shared->passed - before, broken);
    if (shared->found == 0 && shared->passed - before != plan->step_count) {
        note(shared, why);
    }
}

/* One is late: the others wait for it with the leader in the end, and it goes there at once; then they meet at the door again. */
static void play_late(finding *shared)
{
    door_plan plan = {.ranks = 3, .step_count = 6, .gone = 0};
    for (uint32_t i = 0; i < plan.step_count; i++) {
        plan.steps[i] = (door_step){.kind = DOOR_LONE, .count = 1, .late_ns = {0, 0, i == 2 ? 10000000 : 0}};
    }
    const uint32_t before = shared->passed, broken = play(&plan, shared);
    if (shared->found == 0 && (broken != 1 || shared->passed - before != plan.step_count - 1)) {
        note(shared,
             "one was late once, and not all others came by the door, or more than once somebody waited in vain");
    }
}

static void hunt(bug which, finding *shared, uint64_t first, uint64_t last)
{
    planted = which;
    for (uint64_t seed = first; seed <= last && shared->found == 0; seed++) {
        door_plan plan;
        shared->running = seed;
        door_draw(seed, &plan);
        if (plan.is_calm) {
            play_calm(&plan, shared);
        } else {
            (void)play(&plan, shared);
        }
    }
    if (shared->found == 0) {
        shared->running = UINT64_MAX; /* it has no seed */
        play_late(shared);
    }
}

static void hunt_apart(bug which, finding *shared, uint64_t first, uint64_t last)
{
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = CPU_SECONDS, .rlim_max = CPU_SECONDS};
        if (which != BUG_NONE && (setrlimit(RLIMIT_CPU, &limit) != 0 || freopen("/dev/null", "w", stderr) == NULL)) {
            _exit(2);
        }
        hunt(which, shared, first, last);
        if (which == BUG_NONE) {
            exit(0); /* a sanitizer looks for what was not freed */
        }
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    shared->died = !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (shared->found == 0 && shared->died) {
        note(shared, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended by a sanitizer");
    }
}

int main(int argc, char **argv)
{
    const uint64_t first = argc > 2 ? strtoull(argv[1], NULL, 10) : 1;
    const uint64_t last = argc > 2 ? strtoull(argv[2], NULL, 10) : SEEDS;
    finding *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    int missed = 0;
    for (unsigned which = 0; which < (argc > 2 ? 1 : BUG_COUNT); which++) {
        hunt_apart((bug)which, shared, first, last);
        bool good = (shared->found != 0) == (which != BUG_NONE);
        if (which == BUG_NONE) {
            printf(
                "# %u came by the door, %u ranks in their calls; it was broken up %u times; %u operations succeeded, "
                "%u failed as they may\n",
                shared->passed, shared->called, shared->broken, shared->succeeded, shared->failed);
            good = good && shared->passed > 3 * (last - first) && shared->broken > last - first &&
                   shared->called > (last - first) / 2;
        }
        good = good && (which != BUG_PAGE_LIES || !shared->died);
        missed += !good;
        if (shared->found != 0) {
            printf("# found by seed %lld: %s\n", (long long)shared->found, shared->why);
        }
        printf("%s %u - planted: %s\n", good ? "ok" : "not ok", which + 1, names[which]);
    }
    return missed == 0 ? 0 : 1;
}
