/*
 * sim_world.c - the world's clock, its queue of events and its random numbers; see reactor_sim.h. The queue is a
 * heap of four children a node, ordered by (time, order of making). Such a heap has half the depth of a binary one,
 * and the four children lie in one cache line.
 */
#include "engine/sim/sim_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"

#define ARITY 4u
#define CAPACITY_FIRST 1024u

typedef struct place {
    int64_t at_ns; /* copies of the event's, so that comparing stays in this array */
    uint64_t order;
    trib_sim_event *event;
} place;

struct trib_sim {
    uint64_t seed;
    int64_t now_ns;
    int64_t spent_ns; /* by the running turn */
    bool in_turn;
    place *heap;
    uint32_t count, capacity;
    uint64_t orders, steps;
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
        free(sim->heap);
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

static bool goes_before(const place *a, const place *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void put(trib_sim *sim, uint32_t index, place what)
{
    sim->heap[index] = what;
    what.event->place = index + 1;
}

static void sift_up(trib_sim *sim, uint32_t index, place what)
{
    while (index > 0 && goes_before(&what, &sim->heap[(index - 1) / ARITY])) {
        put(sim, index, sim->heap[(index - 1) / ARITY]);
        index = (index - 1) / ARITY;
    }
    put(sim, index, what);
}

static void sift_down(trib_sim *sim, uint32_t index, place what)
{
    for (;;) {
        uint32_t first = ARITY * index + 1;
        uint32_t best = first;
        for (uint32_t i = first + 1; i < first + ARITY && i < sim->count; i++) {
            best = goes_before(&sim->heap[i], &sim->heap[best]) ? i : best;
        }
        if (first >= sim->count || !goes_before(&sim->heap[best], &what)) {
            break;
        }
        put(sim, index, sim->heap[best]);
        index = best;
    }
    put(sim, index, what);
}

static void make_room(trib_sim *sim)
{
    if (sim->count < sim->capacity) {
        return;
    }
    uint32_t capacity = sim->capacity == 0 ? CAPACITY_FIRST : sim->capacity * 2;
    place *heap = realloc(sim->heap, capacity * sizeof *heap);
    if (heap == NULL) {
        fprintf(stderr, "tributary: out of memory for the events of a simulation (%u are set)\n", sim->count);
        abort();
    }
    sim->heap = heap;
    sim->capacity = capacity;
}

void trib_sim_set(trib_sim *sim, trib_sim_event *event, int64_t at_ns)
{
    trib_assert(event->fired != NULL);
    trib_sim_clear(sim, event);
    make_room(sim);
    event->at_ns = at_ns < trib_sim_now(sim) ? trib_sim_now(sim) : at_ns;
    event->order = sim->orders++;
    sim->count++;
    sift_up(sim, sim->count - 1, (place){.at_ns = event->at_ns, .order = event->order, .event = event});
}

void trib_sim_clear(trib_sim *sim, trib_sim_event *event)
{
    if (event->place == 0) {
        return;
    }
    uint32_t index = event->place - 1;
    trib_assert(index < sim->count && sim->heap[index].event == event);
    event->place = 0;
    sim->count--;
    if (index == sim->count) {
        return;
    }
    place last = sim->heap[sim->count];
    if (index > 0 && goes_before(&last, &sim->heap[(index - 1) / ARITY])) {
        sift_up(sim, index, last);
    } else {
        sift_down(sim, index, last);
    }
}

int64_t trib_sim_next(const trib_sim *sim)
{
    return sim->count == 0 ? INT64_MAX : sim->heap[0].at_ns;
}

bool trib_sim_step(trib_sim *sim)
{
    trib_assert(!sim->in_turn);
    if (sim->count == 0) {
        return false;
    }
    trib_sim_event *event = sim->heap[0].event;
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
    for (uint32_t i = 0; i < sim->count; i++) {
        place *at = &sim->heap[i];
        int64_t at_ns = moved_to(at->event, argument);
        at->at_ns = at->event->at_ns = at_ns < trib_sim_now(sim) ? trib_sim_now(sim) : at_ns;
    }
    for (uint32_t i = sim->count; i-- > 0;) {
        sift_down(sim, i, sim->heap[i]);
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
    return trib_sim_draw(stream) % below; /* the bias is far below anything these numbers decide */
}

bool trib_sim_draw_one_in(trib_sim_stream *stream, uint64_t of)
{
    return trib_sim_draw_below(stream, of) == 0;
}
