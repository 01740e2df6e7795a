/* torture_buffers.c - the buffers of a tortured job's operations: fills them, now or from a stream, and checks that
 * nothing writes to them after they were given back. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/torture_internal.h"

#define POISON 0xc3
#define SPARE 16

size_t torture_buffers_size(const attempt *what)
{
    const torture_tensor tensor = torture_tensor_of(what->run->plan, what->tensor, what->round);
    return torture_total(&tensor, what->run->plan->job.workers) * trib_dtype_size(tensor.dtype);
}

static void fill(attempt *what)
{
    const torture_plan *plan = what->run->plan;
    const torture_tensor tensor = torture_tensor_of(plan, what->tensor, what->round);
    const uint32_t rank = what->driver->rank;
    torture_fill(&tensor, what->tensor, what->round, rank, torture_given(&tensor, plan->job.workers, rank),
                 torture_input(what));
}

/* A late read of the input adds nonsense, and a late write to the output is detected. */
void torture_buffers_give_back(attempt *what)
{
    memset(what->input, 0x5a, torture_buffers_size(what));
    memset(what->output, POISON, torture_buffers_size(what));
    what->poisoned = torture_buffers_size(what);
}

static void check_output(const attempt *what)
{
    for (size_t i = 0; i < what->poisoned; i++) {
        if (what->output[i] != POISON) {
            torture_broken(what->run, "rank %u, tensor %u, round %u: byte %zu was written after its callback had run",
                           what->driver->rank, what->tensor, what->round, i);
            return;
        }
    }
}

void torture_buffers_check(run *self)
{
    const torture_plan *plan = self->plan;
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        for (uint32_t i = 0; i < plan->tensor_count + plan->crowd; i++) {
            for (uint32_t slot = 0; slot < SLOTS; slot++) {
                check_output(torture_attempt(&self->drivers[rank], i, slot));
            }
        }
    }
}

static void stream_fills(attempt *what)
{
    if (what->busy) {
        fill(what);
    }
    trib_host_stream_open(what->stream);
}

static void ready_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    stream_fills((attempt *)((char *)event - offsetof(attempt, ready)));
}

void torture_stream_end(attempt *what)
{
    if (what->stream != NULL) {
        trib_sim_clear(what->run->job->sim, &what->ready);
        trib_host_stream_open(what->stream);
        trib_host_stream_free(what->stream);
        what->stream = NULL;
    }
}

/* Returns true if a stream fills the input later. The engine must not read it before. */
static bool stream_begin(driver *self, attempt *what)
{
    const torture_plan *plan = self->run->plan;
    torture_stream_end(what);
    if (!torture_tensor_of(plan, what->tensor, what->round).on_device || trib_sim_draw_one_in(&self->stream, 2)) {
        return false;
    }
    trib_sim *sim = self->run->job->sim;
    what->stream = trib_host_stream_create(false);
    what->ready.fired = ready_fired;
    trib_sim_set(sim, &what->ready, trib_sim_now(sim) + (int64_t)trib_sim_draw_below(&self->stream, 3 * MS));
    return true;
}

void torture_buffers_begin(attempt *what)
{
    check_output(what);
    what->poisoned = 0;
    if (!stream_begin(what->driver, what)) {
        fill(what);
    }
}

void torture_buffers_open(attempt *what)
{
    const torture_plan *plan = what->run->plan;
    const size_t first = torture_buffers_size(what);
    what->round = plan->lives; /* another group may have other slices */
    const size_t other = torture_buffers_size(what), size = first > other ? first : other;
    what->round = 0;
    what->output = malloc(size + SPARE); /* the odd worker's tensor has one element more */
    const bool in_place = plan->in_place && torture_tensor_of(plan, what->tensor, 0).exchange != TORTURE_PAIRS;
    what->input = in_place ? what->output : malloc(size + SPARE);
}

void torture_buffers_close(attempt *what)
{
    if (what->input != what->output) {
        free(what->input);
    }
    free(what->output);
}
