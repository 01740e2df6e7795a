/* group_door.c - see group_door.h. */
#include <string.h>

#include "engine/device/host/device_host.h"
#include "engine/local_group/group_internal.h"

#define PATIENCE_NS (5 * INT64_C(1000000)) /* who is that late finds out nothing more by a message */

void trib_door_ring(const trib_group *group)
{
    trib_host_world *world = group->core->engine->env.device_world;
    if (world != NULL) {
        trib_host_world_ring(world, group->machine);
    }
}

/* Sends those away who wait, if any do. */
static void break_up(const trib_group *group)
{
    if (trib_door_page_break_up(group->door.page)) {
        trib_door_ring(group);
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
    trib_group_notify_ready(group, device);
}

/* Whoever waits there passes, if that has been decided; else tells the leader as all others. */
static void settle(trib_group *group, bool tells)
{
    trib_door *door = &group->door;
    trib_device_task *device = door->waiting;
    const uint64_t state = trib_door_page_close(door->page, door->generation);
    trib_door_ring(group);
    door->waiting = NULL;
    trib_timer_stop(group->core->reactor, &door->patience);
    if (trib_door_has_passed(state, door->generation)) {
        pass(group, device, trib_door_is_steady(state));
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
    (void)trib_door_take_back(group);
    if (door->is_here) {
        door->is_here = false;
        atomic_fetch_sub(&door->page->here, 1);
        break_up(group);
    }
    if (world != NULL) {
        trib_host_world_door_left(world, group->machine, group->local_rank);
    }
}

/* ---- Coming ---- */

static bool is_open(const trib_group *group)
{
    return trib_door_page_is_open(group->door.page, group->local_size);
}

static bool may_come(const trib_group *group, const trib_device_task *device)
{
    const trib_op *op = device->task->op_core->op;
    return group->door.page != NULL && group->announced == device && device->next == NULL &&
           group->begun == group->carried_out && group->links_left == 0 &&
           op->collective == TRIB_COLLECTIVE_DEVICE_ALONE && op->tensor->device->slice_count == 1 && is_open(group);
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
    const trib_door_wish wish = {
        .tensor = what.tensor, .round = what.round, .variant = what.variant, .steady = what.steady};
    if (!trib_door_page_come(door->page, group->local_size, group->local_rank, &wish, &state)) {
        tell_leader(group, device);
    } else if (trib_door_count(state) == 0) {
        trib_door_ring(group);
        pass(group, device, trib_door_is_steady(state));
    } else {
        door->waiting = device;
        door->tired = false;
        door->generation = trib_door_generation(state);
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
    if (door->waiting == NULL ||
        (!door->tired && trib_door_generation(atomic_load(&door->page->state)) == door->generation)) {
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
    trib_door_turn_open(group);
    door->poller = (trib_poller){.poll = poll_door, .rest = rest_door, .woken = woken_door};
    if (!has_door(group)) {
        return;
    }
    if (env->device_world != NULL) {
        door->page =
            trib_host_world_door(env->device_world, group->machine, group->local_rank, group->core->reactor, rung);
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
        trib_door_offer(group);
    }
}

void trib_door_close(trib_group *group, const trib_env *env)
{
    const trib_door *door = &group->door;
    if (door->page != NULL && env->device_world == NULL) {
        env->door_drop(door->page, door->fd);
    }
}
