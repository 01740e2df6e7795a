/* sim_world.c - the world's clock, its queue of events and its chance; see reactor_sim.h. */
#include "engine/sim/sim_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/heap.h"

struct trib_sim {
    uint64_t seed;
    int64_t now_ns;
    int64_t spent_ns; /* by the running turn */
    bool in_turn;
    trib_min_heap queue;    /* events, by (time, order of making) */
    uint64_t orders, steps; /* number of events that were set, and that ran */
};

trib_sim *trib_sim_create(uint64_t seed)
{
    trib_sim *sim = calloc(1, sizeof *sim);
    if (sim != NULL) {
        sim->seed = seed;
    }
    return sim;
}

void trib_sim_free(trib_sim *sim)
{
    if (sim != NULL) {
        trib_min_heap_close(&sim->queue);
        free(sim);
    }
}

int64_t trib_sim_now(const trib_sim *sim)
{
    return sim->now_ns + sim->spent_ns;
}

uint64_t trib_sim_steps(const trib_sim *sim)
{
    return sim->steps;
}

/* ---- The queue ---- */

static trib_min_heap_key event_key(const trib_sim_event *event)
{
    return (trib_min_heap_key){.major = (uint64_t)event->at_ns, .minor = event->order}; /* no time is negative */
}

static trib_sim_event *event_of_node(trib_min_heap_node *node)
{
    return trib_container_of(node, trib_sim_event, node);
}

static void *allocate_slots(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

void trib_sim_set(trib_sim *sim, trib_sim_event *event, int64_t at_ns)
{
    trib_assert(event->fired != NULL);
    trib_sim_clear(sim, event);
    if (!trib_min_heap_reserve(&sim->queue, sim->queue.count + 1, allocate_slots, NULL)) {
        fprintf(stderr, "tributary: out of memory for the events of a simulation (%u are set)\n", sim->queue.count);
        abort();
    }
    event->at_ns = at_ns < trib_sim_now(sim) ? trib_sim_now(sim) : at_ns;
    event->order = sim->orders++;
    trib_min_heap_insert(&sim->queue, &event->node, event_key(event));
}

void trib_sim_clear(trib_sim *sim, trib_sim_event *event)
{
    if (trib_sim_event_is_set(event)) {
        trib_min_heap_remove(&sim->queue, &event->node);
    }
}

int64_t trib_sim_next(const trib_sim *sim)
{
    return sim->queue.count == 0 ? INT64_MAX : event_of_node(trib_min_heap_first(&sim->queue))->at_ns;
}

bool trib_sim_step(trib_sim *sim)
{
    trib_assert(!sim->in_turn);
    if (sim->queue.count == 0) {
        return false;
    }
    trib_sim_event *event = event_of_node(trib_min_heap_first(&sim->queue));
    trib_assert(event->at_ns >= sim->now_ns);
    sim->now_ns = event->at_ns;
    sim->steps++;
    trib_sim_clear(sim, event);
    event->fired(sim, event);
    return true;
}

void trib_sim_world_move(trib_sim *sim, int64_t (*moved_to)(const trib_sim_event *event, void *argument),
                         void *argument)
{
    for (uint32_t i = 0; i < sim->queue.count; i++) {
        trib_sim_event *event = event_of_node(sim->queue.slots[i].node);
        int64_t at_ns = moved_to(event, argument);
        event->at_ns = at_ns < trib_sim_now(sim) ? trib_sim_now(sim) : at_ns;
        sim->queue.slots[i].key = event_key(event);
    }
    for (uint32_t i = sim->queue.count; i-- > 0;) {
        trib_min_heap_sift_down(&sim->queue, i, sim->queue.slots[i]);
    }
}

/* ---- Turns ---- */

void trib_sim_world_enter(trib_sim *sim)
{
    trib_assert(!sim->in_turn);
    sim->in_turn = true;
    sim->spent_ns = 0;
}

void trib_sim_world_spend(trib_sim *sim, int64_t ns)
{
    trib_assert(sim->in_turn && ns >= 0);
    sim->spent_ns += ns;
}

int64_t trib_sim_world_leave(trib_sim *sim)
{
    int64_t at_ns = trib_sim_now(sim);
    sim->in_turn = false;
    sim->spent_ns = 0;
    return at_ns;
}

/* ---- Chance ---- */

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

trib_sim_stream trib_sim_stream_make(const trib_sim *sim, uint64_t label)
{
    return (trib_sim_stream){.state = mix(sim->seed ^ mix(label + 1))};
}

uint64_t trib_sim_draw(trib_sim_stream *stream)
{
    stream->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(stream->state);
}

uint64_t trib_sim_draw_below(trib_sim_stream *stream, uint64_t below)
{
    trib_assert(below > 0);
    return trib_sim_draw(stream) % below; /* the bias towards small numbers is negligible here */
}

bool trib_sim_draw_one_in(trib_sim_stream *stream, uint64_t of)
{
    return trib_sim_draw_below(stream, of) == 0;
}
