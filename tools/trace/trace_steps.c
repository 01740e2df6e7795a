/*
 * trace_steps.c - finds the steps of training in the operations of a worker: see trace_stats.h.
 *
 * Of the tensors that are submitted most often, the one with the longest pause before it begins a step: forward and
 * the optimizer run in that pause. Steps with an unusual number of operations are left out.
 */
#include <stdlib.h>

#include "engine/aggregate/summation.h"
#include "tools/trace/trace_stats.h"
#include "tools/trace/compare.h"

#define NO_OP UINT32_MAX

typedef struct op {
    uint32_t tensor, round, root;
    int32_t priority;
    trib_op_kind kind;
    int64_t submit_ns, complete_ns;
    uint32_t before; /* the previous operation on the same tensor */
} op;

typedef struct finder {
    const trace_run *run;
    uint32_t process;
    op *ops;
    uint32_t op_count;
    uint32_t *last; /* by tensor */
    uint32_t *counts;
    uint32_t *begins; /* ops with which steps begin */
    uint32_t begin_count;
    int64_t *scratch;
} finder;

static int64_t median_of(int64_t *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare_i64_values);
    return count > 0 ? values[count / 2] : 0;
}

/* The program has named the tensor, not the engine. */
static bool is_of_program(const trace_run *run, const trib_trace_record *record)
{
    const trace_tensor *tensor = record->tensor < run->tensor_count ? run->tensors[record->tensor] : NULL;
    return tensor != NULL && strncmp(tensor->name, "__", 2) != 0;
}

/* Returns the operation that was submitted; TRIB_OP_KIND_COUNT: one that cannot be replayed. */
static trib_op_kind kind_of(const trace_run *run, const trace_file *file, const trib_trace_record *record)
{
    const uint32_t collective = record->extra & 0xff;
    if (collective == TRIB_COLLECTIVE_ALL_REDUCE) {
        return TRIB_OP_PUSH_PULL;
    }
    const bool is_sliced = run->tensors[record->tensor]->layout == TRIB_SLICES;
    if (!file->shares_told) {
        return TRIB_OP_KIND_COUNT;
    }
    switch (collective) {
    case TRIB_COLLECTIVE_BROADCAST:
        return is_sliced ? TRIB_OP_ALL_GATHER : TRIB_OP_BROADCAST;
    case TRIB_COLLECTIVE_REDUCE:
        return is_sliced ? TRIB_OP_REDUCE_SCATTER : TRIB_OP_REDUCE;
    case TRIB_COLLECTIVE_PAIR:
        return TRIB_OP_ALL_TO_ALL;
    default:
        return TRIB_OP_KIND_COUNT;
    }
}

static bool is_replayed(const trace_run *run, const trace_file *file, const trib_trace_record *record)
{
    return is_of_program(run, record) && kind_of(run, file, record) < TRIB_OP_KIND_COUNT;
}

static int by_submit(const void *a, const void *b)
{
    const op *left = a, *right = b;
    return (left->submit_ns > right->submit_ns) - (left->submit_ns < right->submit_ns);
}

static void collect_ops(finder *self)
{
    const trace_run *run = self->run;
    const trace_file *file = run->processes[self->process].file;
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const trib_trace_record *record = &event->record;
        if (event->process == self->process && record->kind == TRIB_TRACE_SUBMIT && is_replayed(run, file, record)) {
            self->ops[self->op_count++] = (op){.tensor = record->tensor,
                                               .round = record->round,
                                               .root = record->extra >> 16,
                                               .kind = kind_of(run, file, record),
                                               .priority = (int32_t)record->value,
                                               .submit_ns = event->at_ns,
                                               .complete_ns = TRACE_NEVER};
        }
    }
    qsort(self->ops, self->op_count, sizeof *self->ops, by_submit);
    for (uint32_t i = 0; i < self->op_count; i++) {
        self->ops[i].before = self->last[self->ops[i].tensor];
        self->last[self->ops[i].tensor] = i;
        self->counts[self->ops[i].tensor]++;
    }
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const trib_trace_record *record = &event->record;
        if (event->process != self->process || record->kind != TRIB_TRACE_COMPLETE ||
            record->tensor >= run->tensor_count) {
            continue;
        }
        uint32_t at = self->last[record->tensor];
        while (at != NO_OP && self->ops[at].round != record->round) {
            at = self->ops[at].before;
        }
        if (at != NO_OP) {
            self->ops[at].complete_ns = event->at_ns;
        }
    }
}

/* Returns the median time without any submission before the tensor's operations. */
static int64_t quiet_before(finder *self, uint32_t tensor)
{
    uint32_t count = 0;
    for (uint32_t at = self->last[tensor]; at != NO_OP; at = self->ops[at].before) {
        if (at > 0) {
            self->scratch[count++] = self->ops[at].submit_ns - self->ops[at - 1].submit_ns;
        }
    }
    return median_of(self->scratch, count);
}

static void find_begins(finder *self)
{
    uint32_t most = 0, anchor = NO_OP;
    for (uint32_t i = 0; i < self->run->tensor_count; i++) {
        most = self->counts[i] > most ? self->counts[i] : most;
    }
    int64_t longest_ns = -1;
    for (uint32_t i = 0; most > 1 && i < self->op_count; i++) {
        const uint32_t tensor = self->ops[i].tensor;
        if (self->ops[i].before == NO_OP && self->counts[tensor] + 1 >= most) {
            const int64_t quiet_ns = quiet_before(self, tensor);
            if (quiet_ns > longest_ns) {
                longest_ns = quiet_ns;
                anchor = tensor;
            }
        }
    }
    for (uint32_t i = 0; anchor != NO_OP && i < self->op_count; i++) {
        if (self->ops[i].tensor == anchor) {
            self->begins[self->begin_count++] = i;
        }
    }
}

/* Keeps the steps with the most common number of operations, and drops the first of them if others remain. The
 * pairs (begin, end) are written to begins, two entries for each step. */
static uint32_t choose_steps(finder *self, uint32_t *pairs)
{
    uint32_t best = 0, best_count = 0, steps = 0;
    for (uint32_t i = 0; i + 1 < self->begin_count; i++) {
        uint32_t same = 0;
        const uint32_t size = self->begins[i + 1] - self->begins[i];
        for (uint32_t k = 0; k + 1 < self->begin_count && k < 4096; k++) {
            same += self->begins[k + 1] - self->begins[k] == size;
        }
        if (same > best_count) {
            best_count = same;
            best = size;
        }
        if (i >= 4096) {
            break;
        }
    }
    for (uint32_t i = 0; i + 1 < self->begin_count; i++) {
        bool whole = self->begins[i + 1] - self->begins[i] == best;
        for (uint32_t k = self->begins[i]; whole && k < self->begins[i + 1]; k++) {
            whole = self->ops[k].complete_ns != TRACE_NEVER;
        }
        if (whole && (i > 0 || best_count < 3)) {
            pairs[2 * steps] = self->begins[i];
            pairs[2 * steps + 1] = self->begins[i + 1];
            steps++;
        }
    }
    return steps;
}

static int by_ready(const void *a, const void *b)
{
    const trace_step_op *left = a, *right = b;
    return (left->ready_ns > right->ready_ns) - (left->ready_ns < right->ready_ns);
}

/* Fills in the n-th operation of the steps, which submit the same tensors each time; otherwise the tensor is
 * searched for. */
static void fill_op(finder *self, trace_steps *steps, const uint32_t *pairs, uint32_t index)
{
    const op *sample = &self->ops[pairs[0] + index];
    uint32_t found = 0;
    for (uint32_t i = 0; i < steps->count; i++) {
        uint32_t at = pairs[2 * i] + index;
        if (self->ops[at].tensor != sample->tensor) {
            for (at = pairs[2 * i]; at < pairs[2 * i + 1] && self->ops[at].tensor != sample->tensor; at++) {}
        }
        if (at < pairs[2 * i + 1]) {
            self->scratch[found++] = self->ops[at].submit_ns - self->ops[pairs[2 * i]].submit_ns;
        }
    }
    steps->ops[index] = (trace_step_op){
        .tensor = sample->tensor,
        .priority = sample->priority,
        .kind = sample->kind,
        .root = sample->root,
        .bytes = self->run->tensors[sample->tensor]->bytes,
        .ready_ns = median_of(self->scratch, found),
    };
    steps->bytes += steps->ops[index].bytes;
    steps->is_mixed = steps->is_mixed || sample->kind != TRIB_OP_PUSH_PULL;
}

static int64_t last_back(const finder *self, uint32_t from, uint32_t to)
{
    int64_t last_ns = TRACE_NEVER;
    for (uint32_t i = from; i < to; i++) {
        last_ns = self->ops[i].complete_ns > last_ns ? self->ops[i].complete_ns : last_ns;
    }
    return last_ns;
}

/*
 * Estimates forward of overlapped steps. It goes from the last tensor to the first, each layer as soon as its sum is
 * back, and each layer takes the share of forward that its gap takes in backward. The length of forward is chosen so
 * that it ends when the next step begins.
 */
static int64_t forward_of(const finder *self, const trace_steps *steps, uint32_t from, uint32_t to)
{
    const int64_t end_ns = self->ops[to].submit_ns, span_ns = steps->ops[steps->op_count - 1].ready_ns;
    int64_t low_ns = 0, high_ns = end_ns - self->ops[to - 1].submit_ns;
    for (uint32_t round = 0; round < 40 && low_ns < high_ns; round++) {
        const int64_t whole_ns = low_ns + (high_ns - low_ns + 1) / 2;
        double at_ns = (double)self->ops[to - 1].submit_ns;
        for (uint32_t i = to; i-- > from;) {
            const int64_t before_ns = i > from ? self->ops[i - 1].submit_ns : self->ops[i].submit_ns;
            const double gap_ns = (double)(self->ops[i].submit_ns - before_ns);
            const double back_ns = (double)self->ops[i].complete_ns;
            at_ns = at_ns > back_ns ? at_ns : back_ns;
            at_ns += span_ns > 0 ? gap_ns / (double)span_ns * (double)whole_ns : (double)whole_ns / (double)(to - from);
        }
        if (at_ns <= (double)end_ns) {
            low_ns = whole_ns;
        } else {
            high_ns = whole_ns - 1;
        }
    }
    return low_ns;
}

static void measure_steps(finder *self, trace_steps *steps, const uint32_t *pairs)
{
    uint32_t overlaps = 0;
    int64_t *lengths = self->scratch, *exchanges = lengths + steps->count, *gaps = exchanges + steps->count;
    int64_t *alone = gaps + steps->count;
    for (uint32_t i = 0; i < steps->count; i++) {
        const uint32_t from = pairs[2 * i], to = pairs[2 * i + 1];
        const int64_t begin_ns = self->ops[from].submit_ns, end_ns = self->ops[to].submit_ns;
        const int64_t handed_ns = self->ops[to - 1].submit_ns, last_ns = last_back(self, from, to);
        steps->begin_ns[i] = begin_ns;
        steps->begin_ns[i + 1] = end_ns;
        lengths[i] = end_ns - begin_ns;
        exchanges[i] = last_ns - begin_ns;
        gaps[i] = end_ns - (last_ns > handed_ns ? last_ns : handed_ns);
        alone[i] = last_ns > handed_ns ? last_ns - handed_ns : 0;
        overlaps += gaps[i] < 0;
    }
    steps->overlapped = overlaps * 2 > steps->count;
    for (uint32_t i = 0; steps->overlapped && i < steps->count; i++) {
        gaps[i] = forward_of(self, steps, pairs[2 * i], pairs[2 * i + 1]);
    }
    steps->step_ns = median_of(lengths, steps->count);
    steps->exchange_ns = median_of(exchanges, steps->count);
    steps->gap_ns = median_of(gaps, steps->count);
    steps->alone_ns = median_of(alone, steps->count);
    steps->gap_ns = steps->gap_ns > 0 ? steps->gap_ns : 0;
}

static bool find_steps(finder *self, trace_steps *steps)
{
    uint32_t *pairs = calloc((size_t)self->op_count * 2 + 2, sizeof *pairs);
    if (pairs == NULL) {
        return false;
    }
    find_begins(self);
    steps->count = choose_steps(self, pairs);
    steps->op_count = steps->count > 0 ? pairs[1] - pairs[0] : 0;
    steps->ops = calloc((size_t)steps->op_count + 1, sizeof *steps->ops);
    steps->begin_ns = calloc((size_t)steps->count + 1, sizeof *steps->begin_ns);
    const bool fine = steps->ops != NULL && steps->begin_ns != NULL;
    for (uint32_t i = 0; fine && i < steps->op_count; i++) {
        fill_op(self, steps, pairs, i);
    }
    if (fine && steps->count > 0) {
        qsort(steps->ops, steps->op_count, sizeof *steps->ops, by_ready);
        measure_steps(self, steps, pairs);
    }
    free(pairs);
    return fine;
}

/* The operation moves something: of a barrier the tensor is empty. */
static bool has_bytes(const trace_run *run, const trib_trace_record *record)
{
    return record->tensor < run->tensor_count && run->tensors[record->tensor] != NULL &&
           run->tensors[record->tensor]->bytes > 0;
}

/* Counts operations that cannot be replayed in the steps, or in the whole trace if it has no steps: those on tensors
 * that the engine has named, and those of which the trace does not tell enough. */
static void count_others(const trace_run *run, trace_steps *steps)
{
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const bool is_inside =
            steps->count == 0 || (event->at_ns >= steps->begin_ns[0] && event->at_ns < steps->begin_ns[steps->count]);
        if (event->process == steps->process && event->record.kind == TRIB_TRACE_SUBMIT && is_inside &&
            has_bytes(run, &event->record) && !is_replayed(run, run->processes[steps->process].file, &event->record)) {
            steps->other = event->record.tensor;
            steps->other_count++;
        }
    }
}

bool trace_steps_make(const trace_run *run, uint32_t process, trace_steps *steps)
{
    *steps = (trace_steps){.process = process};
    uint64_t submits = 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        submits += run->events[i].process == process && run->events[i].record.kind == TRIB_TRACE_SUBMIT;
    }
    finder self = {.run = run, .process = process};
    self.ops = calloc(submits + 1, sizeof *self.ops);
    self.begins = calloc(submits + 1, sizeof *self.begins);
    self.scratch = calloc(submits * 4 + 4, sizeof *self.scratch);
    self.last = malloc(((size_t)run->tensor_count + 1) * sizeof *self.last);
    self.counts = calloc((size_t)run->tensor_count + 1, sizeof *self.counts);
    bool fine =
        self.ops != NULL && self.begins != NULL && self.scratch != NULL && self.last != NULL && self.counts != NULL;
    if (fine) {
        memset(self.last, 0xff, ((size_t)run->tensor_count + 1) * sizeof *self.last);
        collect_ops(&self);
        fine = find_steps(&self, steps);
    }
    if (fine) {
        count_others(run, steps);
    }
    free(self.ops);
    free(self.begins);
    free(self.scratch);
    free(self.last);
    free(self.counts);
    return fine;
}

void trace_steps_free(trace_steps *steps)
{
    free(steps->ops);
    free(steps->begin_ns);
    *steps = (trace_steps){.count = 0};
}
