/*
 * reactor_sim.h - virtual time: a world with one clock, machines with cores, processes on them, and reactors.
 *
 * A world runs on one thread and takes its events in the order of (time, the order in which they were made). All
 * chance comes from its seed, so the same seed and the same calls give the same run, bit for bit.
 *
 * A reactor works in turns, as an event loop does: arrived work runs first, then posts. A turn occupies a core of
 * its machine. The cost of its work is charged, so that its later effects happen later. A process has a clock of its
 * own (which may be off by any amount), a speed, and can be frozen.
 *
 * Everything here must be called on the world's one thread.
 */
#ifndef TRIB_ENGINE_SIM_REACTOR_SIM_H
#define TRIB_ENGINE_SIM_REACTOR_SIM_H

#include "engine/base/heap.h"
#include "engine/reactor/reactor.h"

typedef struct trib_sim trib_sim;
typedef struct trib_sim_machine trib_sim_machine;
typedef struct trib_sim_process trib_sim_process;

/* ---- The world ---- */

/* An event at a point in time. Its owner keeps the memory, zeroed before first use. */
typedef struct trib_sim_event {
    int64_t at_ns;
    uint64_t order;
    trib_min_heap_node node; /* in the world's queue */
    void (*fired)(trib_sim *sim, struct trib_sim_event *event);
} trib_sim_event;

/* True if the event is still to happen. */
static inline bool trib_sim_event_is_set(const trib_sim_event *event)
{
    return event->node.place != 0;
}

/* NULL when out of memory. */
trib_sim *trib_sim_create(uint64_t seed);
/* Machines, processes and reactors must be gone; remaining events are forgotten. */
void trib_sim_free(trib_sim *sim);

/* Returns nanoseconds since the world began; during a turn, the time that the turn's work has reached. */
int64_t trib_sim_now(const trib_sim *sim);
/* Sets the event to that time, or to now if that has passed; moves it if it is set. Ends the program when out of
 * memory: a world that has lost an event is no simulation any more. */
void trib_sim_set(trib_sim *sim, trib_sim_event *event, int64_t at_ns);
/* Takes the event out of the queue; no-op if it is not set. */
void trib_sim_clear(trib_sim *sim, trib_sim_event *event);
/* Runs the next event; returns false if there is none. */
bool trib_sim_step(trib_sim *sim);
/* Returns the time of the next event; INT64_MAX if there is none. */
int64_t trib_sim_next(const trib_sim *sim);
uint64_t trib_sim_steps(const trib_sim *sim); /* number of events run so far */

/* A stream of random numbers. A stream gives the same numbers whatever other streams are asked for (splitmix64,
 * Steele et al. 2014). */
typedef struct trib_sim_stream {
    uint64_t state;
} trib_sim_stream;

trib_sim_stream trib_sim_stream_make(const trib_sim *sim, uint64_t label);
uint64_t trib_sim_draw(trib_sim_stream *stream);
/* Returns 0..below-1; below > 0. */
uint64_t trib_sim_draw_below(trib_sim_stream *stream, uint64_t below);
/* True with probability 1 / of. */
bool trib_sim_draw_one_in(trib_sim_stream *stream, uint64_t of);

/* ---- Machines and processes ---- */

/* Returns NULL when out of memory. cores > 0. */
trib_sim_machine *trib_sim_machine_create(trib_sim *sim, uint32_t cores);
void trib_sim_machine_free(trib_sim_machine *machine);

/* The costs of work on a process: a fixed part per piece of work and one per byte. */
typedef struct trib_sim_costs {
    int64_t wake_ns; /* from an arrival until a sleeping loop runs */
    int64_t turn_ns; /* each turn of a loop */
    struct {
        double fixed_ns, byte_ns;
    } work[TRIB_COST_MESSAGE + 1]; /* by trib_cost */
} trib_sim_costs;

/* Costs of a machine of the kind that docs/simulation.md describes. */
trib_sim_costs trib_sim_costs_default(void);
/* The default costs on a machine whose network adapter moves the bytes (RDMA): a message costs only the work on its
 * header. */
trib_sim_costs trib_sim_costs_rdma(void);

/* `label` tells apart the random numbers of processes of one world. Returns NULL when out of memory. */
trib_sim_process *trib_sim_process_create(trib_sim_machine *machine, const trib_sim_costs *costs, uint64_t label);
/* The process's reactors must be gone. */
void trib_sim_process_free(trib_sim_process *process);
/* Pointer for the simulated network: its node of this process. */
void trib_sim_process_attach(trib_sim_process *process, void *node);
void *trib_sim_process_attached(const trib_sim_process *process);

/* Freezes or thaws a process. The reactors of a frozen process run nothing, as with SIGSTOP, or on a host that
 * swaps. */
void trib_sim_process_freeze(trib_sim_process *process, bool frozen);
/* Advances the process's clock at once; timers that have become due fire. jump_ns >= 0, because the clock is
 * monotonic. */
void trib_sim_process_jump(trib_sim_process *process, int64_t jump_ns);
/* All the process's work takes that many times as long from now on. */
void trib_sim_process_slow(trib_sim_process *process, double factor);
/* From now on one in so many turns that find posts runs only the older ones of these. The reactor is held up for a
 * drawn time, and runs the others in its next turn, after what has arrived meanwhile: as if they had come just too
 * late, or the system had taken the core away from the thread before it looked at them. 0: all run in the next turn. */
void trib_sim_process_stagger(trib_sim_process *process, uint32_t one_in, int64_t longest_ns);
/* The time that the process's clock shows. */
int64_t trib_sim_process_clock(const trib_sim_process *process);

/* ---- Reactors ---- */

/* Returns NULL when out of memory. */
trib_reactor *trib_sim_reactor_create(trib_sim_process *process, uint32_t index, trib_logger *logger);
/* Posts and work that are still queued on it are dropped. */
void trib_sim_reactor_free(trib_reactor *reactor);
/* True if the reactor's turn is running right now. */
bool trib_sim_reactor_runs(const trib_reactor *reactor);
trib_sim_process *trib_sim_reactor_process(const trib_reactor *reactor);

/* Work that the simulated kernel has for a reactor, run in its next turn in the order of arrival. Its owner keeps
 * the memory, zeroed before first use. Queuing it twice is a no-op. */
typedef struct trib_sim_work {
    struct trib_sim_work *next;
    void (*run)(trib_reactor *reactor, struct trib_sim_work *work);
    bool queued;
} trib_sim_work;

void trib_sim_reactor_give(trib_reactor *reactor, trib_sim_work *work);
/* Takes the work back; no-op if it is not queued. */
void trib_sim_reactor_take_back(trib_reactor *reactor, trib_sim_work *work);

#endif
