/* group_door.c - see group_door.h. */
#include <string.h>

#include "engine/device_host.h"
#include "engine/group_internal.h"

#define PATIENCE_NS (5 * INT64_C(1000000)) /* who is that late finds out nothing more by a message */
#define GENERATION_MASK 0xffffffu

/* ---- The state ---- */

static uint64_t state_of(uint32_t generation, uint32_t broken, uint32_t count, bool steady)
{
    return (uint64_t)(generation & GENERATION_MASK) << 40 | (uint64_t)broken << 16 | count << 8 | (steady ? 1 : 0);
}

static uint32_t generation_of(uint64_t state)
{
    return (uint32_t)(state >> 40);
}

static uint32_t broken_of(uint64_t state)
{
    return (uint32_t)(state >> 16) & GENERATION_MASK;
}

static uint32_t count_of(uint64_t state)
{
    return (uint32_t)(state >> 8) & 0xff;
}

static bool is_steady(uint64_t state)
{
    return (state & 1) != 0;
}

/* The next generation gathers; nobody of this one passes. */
static uint64_t broken(uint64_t state)
{
    const uint32_t broken = broken_of(state);
    return state_of(generation_of(state) + 1, broken == GENERATION_MASK ? broken : broken + 1, 0, is_steady(state));
}

/* Was that generation, which is over, let through? If so it is the last one that was: none can be without the rank that asks. */
static bool has_passed(uint64_t state, uint32_t generation)
{
    const uint32_t later = (generation_of(state) - generation) & GENERATION_MASK;
    return broken_of(state) != GENERATION_MASK && later == broken_of(state) + 1;
}

/* In plain memory of one process nobody looks all the time: they are told. */
static void ring(const trib_group *group)
{
    trib_host_world *world = group->core->engine->env.device_world;
    if (world != NULL) {
        trib_host_world_ring(world, group->machine);
    }
}

/* Sends those away who wait, if any do. */
static void break_up(const trib_group *group)
{
    trib_door_page *page = group->door.page;
    uint64_t state = atomic_load(&page->state);
    while (count_of(state) > 0) {
        if (atomic_compare_exchange_weak(&page->state, &state, broken(state))) {
            ring(group);
            return;
        }
    }
}

/* ---- Passing ---- */

static void pass(trib_group *group, trib_device_task *device, bool steady)
{
    trib_announcement what = trib_group_announcement_of(device);
    trib_error error;
    what.steady = steady;
    if (group->leader != NULL) {
        trib_leader_passed(group->leader, &what);
    }
    if (trib_group_take_order(group, &what, &error) != TRIB_OK) { /* others write to the page as well */
        trib_group_end_job(group, TRIB_PROTOCOL, error.text);
    }
}

/* This rank has something for the leader: until that is over nobody is to wait for it at the door. */
static void go_elsewhere(trib_group *group)
{
    trib_door *door = &group->door;
    if (door->page == NULL) {
        return;
    }
    if (!door->elsewhere) {
        door->elsewhere = true;
        atomic_fetch_add(&door->page->elsewhere, 1);
    }
    break_up(group);
}

static void tell_leader(trib_group *group, trib_device_task *device)
{
    go_elsewhere(group);
    trib_group_tell(group, device);
}

/* Whoever waits there passes, if that has been decided; else tells the leader as all others. */
static void settle(trib_group *group, bool tells)
{
    trib_door *door = &group->door;
    trib_device_task *device = door->waiting;
    uint64_t state = atomic_load(&door->page->state);
    while (generation_of(state) == door->generation) {
        if (atomic_compare_exchange_weak(&door->page->state, &state, broken(state))) {
            state = broken(state);
            ring(group);
        }
    }
    door->waiting = NULL;
    trib_timer_stop(group->core->reactor, &door->patience);
    if (has_passed(state, door->generation)) {
        pass(group, device, is_steady(state));
    } else if (tells) {
        tell_leader(group, device);
    }
}

void trib_door_settle(trib_group *group)
{
    if (group->door.waiting != NULL) {
        settle(group, true);
    }
}

void trib_door_end(trib_group *group)
{
    trib_door *door = &group->door;
    trib_host_world *world = group->core->engine->env.device_world;
    if (door->waiting != NULL) {
        settle(group, false);
    }
    if (door->is_here) {
        door->is_here = false;
        atomic_fetch_sub(&door->page->here, 1);
        break_up(group);
    }
    if (world != NULL) {
        trib_host_world_door_left(world, group->machine, group->lane);
    }
}

/* ---- Coming ---- */

/* All are there, and nobody has anything for the leader. */
static bool is_open(const trib_group *group)
{
    const trib_door_page *page = group->door.page;
    return atomic_load(&page->here) == group->lanes && atomic_load(&page->elsewhere) == 0;
}

static bool may_come(const trib_group *group, const trib_device_task *device)
{
    const trib_op *op = device->task->node->op;
    return group->door.page != NULL && group->announced == device && device->next == NULL &&
           group->begun == group->carried_out && group->links_left == 0 && op->exchange == TRIB_EXCHANGE_DEVICE_ALONE &&
           op->tensor->device->slice_count == 1 && is_open(group);
}

/* Who comes last: do all want the same? */
static bool agree(const trib_group *group, bool *steady_out)
{
    const trib_door_page *page = group->door.page;
    *steady_out = true;
    for (uint32_t i = 0; i < group->lanes; i++) {
        if (atomic_load(&page->ranks[i].tensor_round) != atomic_load(&page->ranks[0].tensor_round) ||
            atomic_load(&page->ranks[i].variant) != atomic_load(&page->ranks[0].variant)) {
            return false;
        }
        *steady_out = *steady_out && atomic_load(&page->ranks[i].steady);
    }
    return true;
}

/* Comes in; *state_out is what it is then. False: all others are there, and want something else. */
static bool come_in(const trib_group *group, uint64_t *state_out)
{
    trib_door_page *page = group->door.page;
    uint64_t state = atomic_load(&page->state), next = 0;
    do {
        bool steady = is_steady(state);
        const uint32_t generation = generation_of(state);
        const bool is_last = count_of(state) + 1 == group->lanes;
        if (is_last && !agree(group, &steady)) {
            return false;
        }
        next = is_last ? state_of(generation + 1, 0, 0, steady)
                       : state_of(generation, broken_of(state), count_of(state) + 1, steady);
    } while (!atomic_compare_exchange_weak(&page->state, &state, next));
    *state_out = next;
    return true;
}

void trib_door_come_back(trib_group *group)
{
    trib_door *door = &group->door;
    if (door->elsewhere && group->announced == NULL) {
        door->elsewhere = false;
        atomic_fetch_sub(&door->page->elsewhere, 1);
    }
}

void trib_door_announce(trib_group *group, trib_device_task *device)
{
    trib_door *door = &group->door;
    const trib_announcement what = trib_group_announcement_of(device);
    uint64_t state = 0;
    trib_door_settle(group); /* what waits there was announced before */
    if (!may_come(group, device)) {
        tell_leader(group, device);
        return;
    }
    trib_door_page *page = door->page;
    atomic_store(&page->ranks[group->lane].tensor_round, (uint64_t)what.tensor << 32 | what.round);
    atomic_store(&page->ranks[group->lane].variant, what.variant);
    atomic_store(&page->ranks[group->lane].steady, what.steady);
    if (!come_in(group, &state)) {
        tell_leader(group, device);
    } else if (count_of(state) == 0) {
        ring(group);
        pass(group, device, is_steady(state));
    } else {
        door->waiting = device;
        door->tired = false;
        door->generation = generation_of(state);
        trib_timer_arm(group->core->reactor, &door->patience, trib_now(group->core->reactor) + PATIENCE_NS);
        if (!is_open(group)) { /* any more; who has closed it may not have seen this rank there */
            settle(group, true);
        }
    }
}

/* ---- Looking ---- */

static trib_group *group_of(const trib_reactor *reactor)
{
    const trib_core *core = reactor->owner;
    return core->engine->group;
}

static bool look(trib_group *group)
{
    trib_door *door = &group->door;
    if (door->waiting == NULL || (!door->tired && generation_of(atomic_load(&door->page->state)) == door->generation)) {
        return false;
    }
    door->tired = false;
    settle(group, true);
    return true;
}

static bool poll_door(trib_reactor *reactor, trib_poller *poller)
{
    (void)poller;
    return look(group_of(reactor));
}

/* Another process would not wake it. */
static bool rest_door(trib_reactor *reactor, trib_poller *poller)
{
    (void)poller;
    trib_group *group = group_of(reactor);
    group->door.tired = group->door.waiting != NULL && group->core->engine->env.device_world == NULL;
    return !group->door.tired;
}

static void woken_door(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    (void)poller;
}

static void lose_patience(trib_reactor *reactor, trib_timer *timer)
{
    (void)timer;
    trib_door_settle(group_of(reactor));
}

static void rung(trib_reactor *reactor)
{
    trib_group *group = group_of(reactor);
    if (group != NULL) {
        (void)look(group);
    }
}

/* ---- Life ---- */

/* Nobody outside the machine takes part, and no order is promised. */
static bool has_door(const trib_group *group)
{
    return trib_device_alone(group->core->engine) && !trib_device_in_order(group->core->engine);
}

void trib_door_open(trib_group *group)
{
    trib_door *door = &group->door;
    const trib_env *env = &group->core->engine->env;
    door->fd = -1;
    door->patience.fired = lose_patience;
    door->poller = (trib_poller){.poll = poll_door, .rest = rest_door, .woken = woken_door};
    if (!has_door(group)) {
        return;
    }
    if (env->device_world != NULL) {
        door->page = trib_host_world_door(env->device_world, group->machine, group->lane, group->core->reactor, rung);
    } else if (env->door_make != NULL && group->leader != NULL) {
        door->page = env->door_make(door->name, &door->fd);
    }
}

void trib_door_take_id(trib_group *group)
{
    trib_door *door = &group->door;
    const trib_env *env = &group->core->engine->env;
    if (env->device_world == NULL && group->leader != NULL && door->page != NULL) {
        memcpy(door->page->id, group->id, sizeof door->page->id);
    } else if (env->device_world == NULL && env->door_find != NULL && door->name[0] != '\0' && has_door(group)) {
        door->page = env->door_find(door->name, group->id);
    }
    if (door->page != NULL) {
        door->is_here = true;
        atomic_fetch_add(&door->page->here, 1);
        trib_reactor_poller_add(group->core->reactor, &door->poller);
    }
}

void trib_door_close(trib_group *group, const trib_env *env)
{
    const trib_door *door = &group->door;
    if (door->page != NULL && env->device_world == NULL) {
        env->door_drop(door->page, door->fd);
    }
}
