/*
 * trace_span.c - reconstructs the life of every partition: one pass over the events, with the open spans and a table
 * of the sums in progress by their keys.
 */
#include <stdlib.h>

#include "tools/trace/trace_run.h"
#include "tools/trace/compare.h"

/* A chunk's sum while its contributions arrive. */
typedef struct sum_state {
    uint64_t key[3];
    uint32_t last_peer;
} sum_state;

/* Open addressing; a slot holds an index + 1 into an array of entries. */
typedef struct table {
    uint32_t *slots;
    uint64_t capacity; /* a power of two */
} table;

typedef struct walk {
    trace_run *run;
    table spans, sums;
    sum_state *states;
    uint64_t state_count, state_capacity;
    int64_t *went_ns; /* by process * members + owner: when a partition was last sent on that link */
    uint32_t member_count;
    uint8_t pull;
    uint64_t way_back; /* a bit for each stage that no partition begins with */
} walk;

static uint64_t mix_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t hash = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b + UINT64_C(0x632be59bd9b4e019));
    hash = (hash ^ (hash >> 29)) * UINT64_C(0xbf58476d1ce4e5b9) + c;
    hash = (hash ^ (hash >> 32)) * UINT64_C(0x94d049bb133111eb);
    return hash ^ (hash >> 31);
}

static bool table_open(table *self, uint64_t entries)
{
    self->capacity = 64;
    while (self->capacity < entries * 2) {
        self->capacity *= 2;
    }
    self->slots = calloc(self->capacity, sizeof *self->slots);
    return self->slots != NULL;
}

/* ---- Spans by (process, tensor, partition, round) ---- */

static uint64_t span_slot(const walk *self, uint32_t process, const trib_trace_record *record)
{
    const trace_span *spans = self->run->spans;
    uint64_t slot = mix_hash(process, (uint64_t)record->tensor << 32 | record->partition, record->round);
    for (;; slot++) {
        slot &= self->spans.capacity - 1;
        const uint32_t index = self->spans.slots[slot];
        const trace_span *span = index > 0 ? &spans[index - 1] : NULL;
        if (span == NULL || (span->process == process && span->tensor == record->tensor &&
                             span->partition == record->partition && span->round == record->round)) {
            return slot;
        }
    }
}

static trace_span *span_find(const walk *self, uint32_t process, const trib_trace_record *record)
{
    const uint32_t index = self->spans.slots[span_slot(self, process, record)];
    return index > 0 ? &self->run->spans[index - 1] : NULL;
}

static trace_span *span_open(walk *self, const trace_event *event)
{
    const trib_trace_record *record = &event->record;
    const uint64_t slot = span_slot(self, event->process, record);
    if (self->spans.slots[slot] > 0) {
        return &self->run->spans[self->spans.slots[slot] - 1];
    }
    trace_span *span = &self->run->spans[self->run->span_count++];
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there are as many as records that open one */
    *span = (trace_span){
        .process = event->process,
        .owner = record->peer == TRIB_TRACE_NO_PEER ? TRACE_NOBODY : record->peer,
        .tensor = record->tensor,
        .partition = record->partition,
        .round = record->round,
        .bytes = record->value,
        .enter_ns = event->at_ns,
        .start_ns = TRACE_NEVER,
        .emitted_ns = TRACE_NEVER,
        .pushed_ns = TRACE_NEVER,
        .landed_ns = TRACE_NEVER,
        .done_ns = TRACE_NEVER,
        .arrive_first_ns = TRACE_NEVER,
        .arrive_last_ns = TRACE_NEVER,
        .complete_first_ns = TRACE_NEVER,
        .complete_last_ns = TRACE_NEVER,
        .last_peer = TRACE_NOBODY,
        .relay = TRACE_NOBODY,
        .near_last_peer = TRACE_NOBODY,
        .near_first_ns = TRACE_NEVER,
        .near_last_ns = TRACE_NEVER,
        .partial_ns = TRACE_NEVER,
        .back_first_ns = TRACE_NEVER,
        .back_ns = TRACE_NEVER,
    };
    self->spans.slots[slot] = (uint32_t)self->run->span_count;
    return span;
}

/* ---- On workers ---- */

static int64_t *went_on_link(const walk *self, const trace_span *span)
{
    return span->owner < self->member_count ? &self->went_ns[span->process * self->member_count + span->owner] : NULL;
}

static void let_out(const walk *self, trace_span *span, int64_t at_ns, bool first)
{
    int64_t *went_ns = went_on_link(self, span);
    if (went_ns != NULL) {
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): walk_open has set them all */
        if (first && *went_ns > span->enter_ns) {
            span->queue_turn_ns = (*went_ns < at_ns ? *went_ns : at_ns) - span->enter_ns;
        }
        *went_ns = at_ns;
    }
}

static void take_enter(walk *self, const trace_event *event)
{
    trace_span *span = span_find(self, event->process, &event->record);
    const uint8_t stage = event->record.stage;
    if (span == NULL) {
        if (stage < TRACE_STAGES_MAX && (self->way_back >> stage & 1) != 0) {
            return; /* the record of its beginning was overwritten */
        }
        span = span_open(self, event);
    }
    if (span->stay_count < TRACE_PLAN_MAX) {
        span->stays[span->stay_count++] = (trace_stay){.stage = stage, .enter_ns = event->at_ns};
    }
    if (stage == self->pull) {
        span->pushed_ns = event->at_ns;
    }
}

static void take_task(walk *self, const trace_event *event)
{
    if (event->record.kind == TRIB_TRACE_ENTER) {
        take_enter(self, event);
        return;
    }
    trace_span *span = span_find(self, event->process, &event->record);
    if (span == NULL) {
        return;
    }
    switch (event->record.kind) {
    case TRIB_TRACE_START:
        let_out(self, span, event->at_ns, true);
        span->start_ns = event->at_ns;
        break;
    case TRIB_TRACE_EMITTED:
        let_out(self, span, event->at_ns, false);
        span->emitted_ns = event->at_ns;
        break;
    case TRIB_TRACE_LANDED:
        span->landed_ns = event->at_ns;
        break;
    case TRIB_TRACE_DONE:
        span->done_ns = event->at_ns;
        span->landed_ns =
            span->landed_ns == TRACE_NEVER ? event->at_ns : span->landed_ns; /* a partition of one chunk */
        break;
    case TRIB_TRACE_FAILED:
        span->failed = true;
        span->done_ns = event->at_ns;
        break;
    default:
        break;
    }
}

/* ---- On servers ---- */

/* near: the process is a relay, and the sum is that of its machine. */
static sum_state *sum_find(walk *self, uint32_t process, bool near, const trib_trace_record *record)
{
    const uint64_t key[3] = {(uint64_t)process << 33 | (uint64_t)near << 32 | record->extra,
                             (uint64_t)record->tensor << 32 | record->partition, record->round};
    for (uint64_t slot = mix_hash(key[0], key[1], key[2]);; slot++) {
        slot &= self->sums.capacity - 1;
        const uint32_t index = self->sums.slots[slot];
        if (index > 0 && memcmp(self->states[index - 1].key, key, sizeof key) == 0) {
            return &self->states[index - 1];
        }
        if (index == 0) {
            sum_state *state = &self->states[self->state_count++];
            *state = (sum_state){.key = {key[0], key[1], key[2]}, .last_peer = TRACE_NOBODY};
            self->sums.slots[slot] = (uint32_t)self->state_count;
            return state;
        }
    }
}

static void first_and_last(int64_t *first_ns, int64_t *last_ns, int64_t at_ns)
{
    *first_ns = *first_ns == TRACE_NEVER ? at_ns : *first_ns;
    *last_ns = at_ns;
}

/* Returns the worker's span. NULL: it is missing, because the clocks are slightly wrong or its beginning was
 * overwritten. */
static trace_span *span_of_member(const walk *self, uint32_t member, const trib_trace_record *record)
{
    const trace_process *worker = trace_run_member(self->run, member);
    return worker != NULL ? span_find(self, (uint32_t)(worker - self->run->processes), record) : NULL;
}

/* A contribution from a relay belongs to the spans of all workers whose contributions it has summed. */
static void take_arrive(walk *self, const trace_event *event)
{
    const trace_run *run = self->run;
    const trib_trace_record *record = &event->record;
    sum_find(self, event->process, false, record)->last_peer = record->peer;
    trace_span *span = span_of_member(self, record->peer, record);
    if (span != NULL) {
        first_and_last(&span->arrive_first_ns, &span->arrive_last_ns, event->at_ns);
    }
    const uint32_t local = run->local_size, machine = local > 0 ? record->peer / local * local : 0;
    for (uint32_t i = machine; i < machine + local; i++) {
        span = i != record->peer ? span_of_member(self, i, record) : NULL;
        if (span != NULL && span->relay != TRACE_NOBODY && run->processes[span->relay].member == record->peer) {
            first_and_last(&span->arrive_first_ns, &span->arrive_last_ns, event->at_ns);
        }
    }
}

/* Returns the member whose contribution arrived last: a worker, or the last worker of the machine whose partial
 * sum arrived last. */
static uint32_t last_of(walk *self, const trace_event *event)
{
    const trib_trace_record *record = &event->record;
    const uint32_t last = sum_find(self, event->process, false, record)->last_peer;
    const trace_process *relay = self->run->local_size > 0 ? trace_run_member(self->run, last) : NULL;
    const uint32_t nearest = relay == NULL
                                 ? TRACE_NOBODY
                                 : sum_find(self, (uint32_t)(relay - self->run->processes), true, record)->last_peer;
    return nearest != TRACE_NOBODY ? nearest : last;
}

static void take_complete(walk *self, const trace_event *event)
{
    trace_run *run = self->run;
    const uint32_t last = last_of(self, event);
    for (uint32_t i = 0; i < run->process_count && run->processes[i].is_worker; i++) {
        trace_span *span = span_find(self, i, &event->record);
        if (span != NULL) {
            first_and_last(&span->complete_first_ns, &span->complete_last_ns, event->at_ns);
            span->last_peer = last;
        }
    }
}

/* ---- On relays ---- */

static void take_near_arrive(walk *self, const trace_event *event)
{
    sum_find(self, event->process, true, &event->record)->last_peer = event->record.peer;
    trace_span *span = span_of_member(self, event->record.peer, &event->record);
    if (span != NULL) {
        span->relay = event->process;
        first_and_last(&span->near_first_ns, &span->near_last_ns, event->at_ns);
    }
}

/* Applies the event, a complete partial sum or the return of its sum, to every worker of the machine. */
static void take_partial(walk *self, const trace_event *event)
{
    const trace_run *run = self->run;
    const uint32_t local = run->local_size, relay = run->processes[event->process].member;
    const uint32_t machine = local > 0 ? relay / local * local : 0;
    const bool is_back = event->record.kind == TRIB_TRACE_PARTIAL_SUM;
    for (uint32_t i = machine; i < machine + local; i++) {
        trace_span *span = span_of_member(self, i, &event->record);
        if (span != NULL && span->relay == event->process && is_back) {
            first_and_last(&span->back_first_ns, &span->back_ns, event->at_ns);
        } else if (span != NULL && span->relay == event->process) {
            span->partial_ns = event->at_ns;
            span->near_last_peer = sum_find(self, event->process, true, &event->record)->last_peer;
        }
    }
}

static void take_chunk(walk *self, const trace_event *event, bool near)
{
    switch (event->record.kind) {
    case TRIB_TRACE_NEAR_ARRIVE:
        (near ? take_near_arrive(self, event) : (void)0);
        break;
    case TRIB_TRACE_NEAR_COMPLETE:
    case TRIB_TRACE_PARTIAL_SUM:
        (near ? take_partial(self, event) : (void)0);
        break;
    case TRIB_TRACE_SUM_ARRIVE:
        (near ? (void)0 : take_arrive(self, event));
        break;
    case TRIB_TRACE_SUM_COMPLETE:
        (near ? (void)0 : take_complete(self, event));
        break;
    default:
        break;
    }
}

/* No partition begins with that stage. */
static bool is_way_back(const char *stage)
{
    static const char *const names[] = {"PULL", "DECOMPRESS", "COPYH2D", "NCCL_BROADCAST"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(stage, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool walk_open(walk *self)
{
    trace_run *run = self->run;
    uint64_t enters = 0, arrivals = 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        enters += run->events[i].record.kind == TRIB_TRACE_ENTER;
        const uint8_t kind = run->events[i].record.kind;
        arrivals += kind == TRIB_TRACE_SUM_ARRIVE || kind == TRIB_TRACE_NEAR_ARRIVE || kind == TRIB_TRACE_NEAR_COMPLETE;
        arrivals += kind == TRIB_TRACE_SUM_COMPLETE
                        ? 2
                        : 0; /* a complete sum also accounts for the last machine's partial sum */
    }
    self->pull = TRIB_TRACE_NO_STAGE - 1;
    for (uint32_t i = 0; i < run->stage_count; i++) {
        self->way_back |= is_way_back(run->stages[i]) ? UINT64_C(1) << i : 0;
        self->pull = strcmp(run->stages[i], "PULL") == 0 ? (uint8_t)i : self->pull;
    }
    self->member_count = run->worker_count + run->server_count;
    run->spans = calloc(enters + 1, sizeof *run->spans);
    self->states = calloc(arrivals + 1, sizeof *self->states);
    self->went_ns = malloc(((size_t)run->process_count * self->member_count + 1) * sizeof *self->went_ns);
    if (run->spans == NULL || self->states == NULL || self->went_ns == NULL || !table_open(&self->spans, enters + 1) ||
        !table_open(&self->sums, arrivals + 1)) {
        return false;
    }
    for (size_t i = 0; i < (size_t)run->process_count * self->member_count; i++) {
        self->went_ns[i] = TRACE_NEVER;
    }
    return true;
}

/* Checks that no contribution arrives before it was sent; a difference above the clocks' errors is a fault. */
static void check_causality(trace_run *run)
{
    int64_t worst_ns = 0;
    for (uint64_t i = 0; i < run->span_count; i++) {
        const trace_span *span = &run->spans[i];
        const trace_process *owner = trace_run_member(run, span->owner);
        const bool near = span->near_first_ns != TRACE_NEVER;
        const int64_t arrive_ns = near ? span->near_first_ns : span->arrive_first_ns;
        const trace_process *there = near ? &run->processes[span->relay] : owner;
        if (span->start_ns == TRACE_NEVER || arrive_ns == TRACE_NEVER || there == NULL) {
            continue;
        }
        run->arrivals++;
        const int64_t early_ns = span->start_ns - arrive_ns;
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): where there are spans there are processes */
        const int64_t mine_ns = run->processes[span->process].clock_error_ns, its_ns = there->clock_error_ns;
        if (mine_ns < INT64_MAX / 2 && its_ns < INT64_MAX / 2 && early_ns > mine_ns + its_ns) {
            run->early_arrivals++;
            worst_ns = early_ns > worst_ns ? early_ns : worst_ns;
        }
    }
    if (run->early_arrivals > 0) {
        trace_run_warn(
            run, "%llu of %llu partitions arrived before they were sent, by up to %.3f ms: the clocks are wrong",
            (unsigned long long)run->early_arrivals, (unsigned long long)run->arrivals, (double)worst_ns / 1e6);
    }
}

bool trace_spans_make(trace_run *run)
{
    walk self = {.run = run};
    const bool fine = walk_open(&self);
    /* The workers' records come first: then the records of a server find their spans, even if the clocks differ. */
    for (uint64_t i = 0; fine && i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        if (event->record.kind >= TRIB_TRACE_ENTER && event->record.kind <= TRIB_TRACE_STALL) {
            take_task(&self, event);
        }
    }
    for (unsigned far = 0; fine && far < 2;
         far++) { /* the relays' own sums first: they tell which worker belongs to which relay */
        for (uint64_t i = 0; i < run->event_count; i++) {
            take_chunk(&self, &run->events[i], far == 0);
        }
    }
    if (fine) {
        check_causality(run);
    }
    free(self.spans.slots);
    free(self.sums.slots);
    free(self.states);
    free(self.went_ns);
    return fine;
}

/* ---- Looking them up ---- */

static int compare_key(const trace_span *span, uint32_t process, const trib_trace_record *key)
{
    int order = compare_u64(span->process, process);
    order = order != 0 ? order : compare_u64(span->tensor, key->tensor);
    order = order != 0 ? order : compare_u64(span->partition, key->partition);
    return order != 0 ? order : compare_u64(span->round, key->round);
}

static int by_key_order(const void *a, const void *b)
{
    const trace_span *left = *(const trace_span *const *)a, *right = *(const trace_span *const *)b;
    const trib_trace_record key = {.tensor = right->tensor, .partition = right->partition, .round = right->round};
    return compare_key(left, right->process, &key);
}

const trace_span **trace_spans_by_key(const trace_run *run)
{
    const trace_span **by_key = calloc(run->span_count + 1, sizeof(const trace_span *));
    for (uint64_t i = 0; by_key != NULL && i < run->span_count; i++) {
        by_key[i] = &run->spans[i];
    }
    if (by_key != NULL) {
        qsort(by_key, run->span_count, sizeof(const trace_span *), by_key_order);
    }
    return by_key;
}

const trace_span *trace_span_find(const trace_run *run, const trace_span *const *by_key,
                                  const trib_trace_record *record)
{
    const trace_process *worker = trace_run_member(run, record->peer);
    uint64_t low = 0, high = worker != NULL ? run->span_count : 0;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = compare_key(by_key[middle], (uint32_t)(worker - run->processes), record);
        if (order == 0) {
            return by_key[middle];
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return NULL;
}
