/*
 * group_door_call.c - the call that hands an operation in goes to the door itself (group_door.h).
 *
 * Core 0 need not hear of it before, and no thread has to tell another: where all ranks call within a few microseconds, each passes
 * in its call and launches there, as where the program promises one order (device_order.c). A call looks for the others for
 * WAIT_NS at most; then it goes away again, and core 0 comes in its place. Where calls wait in vain again and again, or launching
 * takes the caller longer than a call should, most do not go there.
 *
 * It is one thread's turn to be there for a rank. Core 0 offers it while it has nothing under way; what it has to announce while
 * a call is there is held until that is back, and so comes behind what the call has issued. A call that has passed keeps the turn
 * until its collective has been issued: what is ordered later is behind it on the device.
 *
 * Only what is steady comes so, and finds its input there: a collective that waits for a stream would hold up what others are
 * ready for.
 */
#include "engine/base/assert.h"
#include "engine/local_group/group_internal.h"

#define WAIT_NS (8 * INT64_C(1000))
#define LOOKS_MAX 1000u               /* where time stands still, as it does in a simulation */
#define TAKES_NS (18 * INT64_C(1000)) /* at the door and for the launch; the rest of a call takes some 5 more */
#define VAIN_MAX 3u                   /* then one of 8 calls goes there */

/* ---- Whose turn it is: core 0 ---- */

void trib_door_offer(trib_group *group)
{
    trib_door *door = &group->door;
    if (door->page != NULL && atomic_load(&door->turn) == TRIB_DOOR_KEPT && !group->ended && group->announced == NULL &&
        door->held == NULL && group->begun == group->carried_out && group->links_left == 0) {
        atomic_store(&door->turn, TRIB_DOOR_FREE);
    }
}

bool trib_door_take_back(trib_group *group)
{
    atomic_int *turn = &group->door.turn;
    for (int now = atomic_load(turn);;) {
        if (now == TRIB_DOOR_KEPT || now == TRIB_DOOR_WANTED) {
            return now == TRIB_DOOR_KEPT;
        }
        if (atomic_compare_exchange_weak(turn, &now, now == TRIB_DOOR_FREE ? TRIB_DOOR_KEPT : TRIB_DOOR_WANTED)) {
            return now == TRIB_DOOR_FREE;
        }
    }
}

void trib_door_hold(trib_group *group, trib_device_task *device)
{
    device->next = group->door.held;
    group->door.held = device;
}

trib_device_task *trib_door_take_held(trib_group *group)
{
    trib_device_task *held = group->door.held;
    group->door.held = NULL;
    return held;
}

static void turn_is_back(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    const trib_core *core = reactor->owner;
    trib_group *group = core->engine->group;
    for (trib_device_task *held = trib_door_take_held(group), *next; held != NULL; held = next) {
        next = held->next;
        trib_group_take_announced(group, held);
    }
    trib_door_offer(group);
}

void trib_door_turn_open(trib_group *group)
{
    group->door.turn_post.run = turn_is_back;
}

/* The thread that calls may lose its core behind the launch: the end may be here before the call. */
static void note_begun(trib_group *group, trib_op *op)
{
    group->begun += op->device->has_begun ? 0 : 1;
    op->device->has_begun = true;
}

void trib_door_passed_in_call(trib_group *group, trib_op *op)
{
    const bool books = !op->device->is_over && group->leader != NULL;
    const trib_announcement what = {.tensor = op->tensor->id,
                                    .round = op->round,
                                    .kind = TRIB_ANNOUNCE_REDUCE,
                                    .bytes = books ? (uint32_t)op->tensor->bytes : 0};
    if (group->leader != NULL) {
        trib_leader_passed(group->leader, &what);
    }
    op->device->is_booked = books;
    note_begun(group, op);
    trib_door_offer(group); /* it may be over */
    trib_group_check_departed(group->core);
}

void trib_door_issued_back(trib_group *group, trib_op *op)
{
    note_begun(group, op);
    if (op->device->is_booked) {
        trib_leader_reduced(group->leader, (uint32_t)op->tensor->bytes);
        trib_reactor_defer(group->core->reactor, &group->pump_post);
    }
    trib_door_offer(group);
}

/* ---- A call ---- */

bool trib_group_take_turn(const trib_op *op)
{
    const trib_engine *engine = op->engine;
    trib_group *group = engine->group;
    if (group == NULL || !op->device->steady || !op->spread || op->tensor->device->slice_count != 1 ||
        atomic_load_explicit(&op->tensor->round_awaited, memory_order_acquire) != op->round ||
        !trib_device_may_wait_here(engine)) {
        return false;
    }
    int now = TRIB_DOOR_FREE;
    return atomic_compare_exchange_strong(&group->door.turn, &now, TRIB_DOOR_TAKEN);
}

static void give_turn(trib_group *group, bool has_passed)
{
    int now = TRIB_DOOR_TAKEN;
    if (!atomic_compare_exchange_strong(&group->door.turn, &now, has_passed ? TRIB_DOOR_KEPT : TRIB_DOOR_FREE)) {
        trib_assert(now == TRIB_DOOR_WANTED);
        atomic_store(&group->door.turn, TRIB_DOOR_KEPT);
        trib_reactor_post(group->core->reactor, &group->door.turn_post);
    }
}

static bool is_open(const trib_group *group)
{
    return trib_door_page_is_open(group->door.page, group->local_size);
}

/* True: this generation is over. */
static bool look_for_others(const trib_group *group, uint32_t generation)
{
    trib_reactor *reactor = group->core->reactor;
    const int64_t until_ns = trib_now(reactor) + WAIT_NS;
    for (uint32_t looks = 0; looks < LOOKS_MAX; looks++) {
        if (trib_door_generation(atomic_load(&group->door.page->state)) != generation) {
            return true;
        }
        if (!is_open(group) || trib_now(reactor) > until_ns) {
            return false;
        }
    }
    return false;
}

/* Has it passed? If so whether it is steady on all. */
static bool come(trib_group *group, const trib_door_wish *wish, bool *steady_out)
{
    trib_door_page *page = group->door.page;
    uint64_t state = 0;
    if (!is_open(group) || !trib_door_page_come(page, group->local_size, group->local_rank, wish, &state)) {
        return false;
    }
    bool has_passed = trib_door_count(state) == 0;
    if (has_passed) {
        trib_door_ring(group);
    } else {
        const uint32_t generation = trib_door_generation(state);
        const bool is_over = look_for_others(group, generation);
        state = is_over ? atomic_load(&page->state) : trib_door_page_go(page, generation);
        has_passed = trib_door_has_passed(state, generation);
    }
    *steady_out = trib_door_is_steady(state);
    return has_passed;
}

/* Is it worth while that the next calls go there? */
static void note_call(trib_door *door, bool was_good)
{
    door->calls_vain = was_good ? 0 : door->calls_vain < VAIN_MAX ? door->calls_vain + 1 : VAIN_MAX;
    door->calls_let = (1u << door->calls_vain) - 1;
}

/* With the turn. */
static bool pass(trib_group *group, trib_op *op)
{
    trib_device_task *device = &op->tensor->device->tasks[0];
    trib_device_job *job = &op->device->whole;
    bool steady = false;
    trib_device_order_fill(op, NULL);
    job->keep = &device->kept; /* as where it is ordered */
    job->shard = op->tensor->partition_bytes;
    job->label = trib_device_label(op, device->slice);
    const trib_door_wish wish = {.tensor = op->tensor->id,
                                 .round = op->round,
                                 .variant = trib_group_variant_of(op),
                                 .steady = trib_group_may_keep(device, op, job)};
    if (!wish.steady || !come(group, &wish, &steady)) {
        return false;
    }
    trib_group_note_kept(device, job, steady);
    op->device->is_issued = true;
    atomic_fetch_add(&op->cores_left, 1); /* the collective may touch its buffers, too */
    /* What NCCL does, planning or capturing, takes longer than a call may, and the caller may have a group of NCCL's open. */
    trib_device_order_issue(op, steady && device->kept != NULL);
    return true;
}

bool trib_group_pass_in_call(trib_op *op)
{
    trib_group *group = op->engine->group;
    trib_reactor *reactor = group->core->reactor;
    trib_door *door = &group->door;
    bool has_passed = false;
    if (door->calls_let > 0) {
        door->calls_let--;
    } else {
        const int64_t began_ns = trib_now(reactor);
        has_passed = pass(group, op);
        note_call(door, has_passed && trib_now(reactor) - began_ns < TAKES_NS);
    }
    give_turn(group, has_passed);
    return has_passed;
}
