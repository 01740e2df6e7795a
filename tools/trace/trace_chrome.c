/*
 * trace_chrome.c - a job's traces in Chrome's Trace Event format: see trace_out.h.
 *
 * A process of the file is a process of the job. Activities of which few overlap become slices on lanes (threads of
 * the file): partitions being sent, sums, links without credit. Activities of which hundreds overlap become pairs of
 * asynchronous events: operations, partitions waiting for their turn, partitions waiting for their sums. Arrows lead
 * from the sending of a partition to the sum of its first chunk, and from a machine's sum to the sum of all machines.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/trace/trace_chunks.h"
#include "tools/trace/trace_out.h"
#include "tools/trace/compare.h"

#define LANES_MAX 200u
#define GROUP_TIDS 1000u /* the lanes of a group are numbered from group * GROUP_TIDS */

enum { GROUP_EVENTS, GROUP_SEND, GROUP_NEAR, GROUP_SUM, GROUP_CREDIT, GROUP_STAGE }; /* GROUP_STAGE + stage */

typedef struct slice {
    int64_t begin_ns, end_ns;
    uint32_t process, group;
    uint64_t index; /* an index: SEND, STAGE: of a span; NEAR, SUM: of a chunk event; CREDIT: of an event */
    uint32_t lane;
} slice;

typedef struct writer {
    const trace_run *run;
    FILE *out;
    bool any;
    uint64_t id;
    slice *slices;
    uint64_t slice_count;
    uint32_t *send_lanes; /* by span */
    trace_chunks chunks;
    uint32_t *sum_lanes; /* by the sum's first event among the chunks */
    const trace_span **by_key;
} writer;

/* ---- Pieces ---- */

static void put_text(writer *self, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', self->out);
        }
        fputc(*text, self->out);
    }
}

static double to_us(int64_t ns)
{
    return (double)ns / 1e3;
}

/* Writes an event up to the end of its name; the caller adds more fields and '}'. */
static void begin_event(writer *self, char phase, uint32_t process, uint32_t thread, int64_t at_ns)
{
    fprintf(self->out, "%s\n{\"ph\":\"%c\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f", self->any ? "," : "", phase, process + 1,
            thread, to_us(at_ns));
    self->any = true;
}

static void put_name(writer *self, const char *name)
{
    fprintf(self->out, ",\"name\":\"");
    put_text(self, name);
    fputc('"', self->out);
}

static void put_meta(writer *self, const char *what, uint32_t process, uint32_t thread, const char *name)
{
    begin_event(self, 'M', process, thread, 0);
    put_name(self, what);
    fprintf(self->out, ",\"args\":{\"name\":\"");
    put_text(self, name);
    fprintf(self->out, "\"}}");
}

/* Writes a pair of asynchronous events; the category separates activities that overlap. */
static void put_async(writer *self, const char *category, uint32_t process, uint32_t tensor, const char *args,
                      int64_t begin_ns, int64_t end_ns)
{
    char buffer[48];
    const uint64_t id = ++self->id;
    const char *name = trace_tensor_name(self->run, tensor, buffer, sizeof buffer);
    for (unsigned last = 0; last < 2; last++) {
        begin_event(self, last ? 'e' : 'b', process, 0, last && end_ns > begin_ns ? end_ns : begin_ns);
        put_name(self, name);
        fprintf(self->out, ",\"cat\":\"%s\",\"id\":\"0x%llx\"%s}", category, (unsigned long long)id, last ? "" : args);
    }
}

/* ---- Asynchronous events ---- */

/* Writes the operations. Those that are not complete are chained by their tensor, because several rounds may be in
 * flight. */
static bool put_operations(writer *self)
{
    const trace_run *run = self->run;
    const size_t tensors = run->tensor_count;
    uint64_t *open = calloc(tensors * run->process_count + 1, sizeof *open); /* index + 1 */
    uint64_t *next = calloc(run->event_count + 1, sizeof *next);
    const bool fine = open != NULL && next != NULL;
    for (uint64_t i = 0; fine && i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const trib_trace_record *record = &event->record;
        if (record->tensor >= tensors) {
            continue;
        }
        uint64_t *at = &open[event->process * tensors + record->tensor];
        if (record->kind == TRIB_TRACE_SUBMIT) {
            next[i] = *at;
            *at = i + 1;
        } else if (record->kind == TRIB_TRACE_COMPLETE) {
            while (*at > 0 && run->events[*at - 1].record.round != record->round) {
                at = &next[*at - 1];
            }
            if (*at > 0) {
                const trace_event *from = &run->events[*at - 1];
                char args[120];
                snprintf(args, sizeof args, ",\"args\":{\"round\":%u,\"priority\":%d,\"status\":%d}", record->round,
                         (int32_t)from->record.value, (int32_t)record->value);
                put_async(self, "operation", event->process, record->tensor, args, from->at_ns, event->at_ns);
                *at = next[*at - 1];
            }
        }
    }
    free(open);
    free(next);
    return fine;
}

static void put_waits(writer *self)
{
    const trace_run *run = self->run;
    for (uint64_t i = 0; i < run->span_count; i++) {
        const trace_span *span = &run->spans[i];
        char args[120], owner[48];
        trace_member_label(run, span->owner, owner, sizeof owner);
        snprintf(args, sizeof args, ",\"args\":{\"partition\":%u,\"round\":%u,\"bytes\":%u,\"peer\":\"%s\"}",
                 span->partition, span->round, span->bytes, owner);
        if (span->start_ns != TRACE_NEVER) {
            put_async(self, "waits for turn and credit", span->process, span->tensor, args, span->enter_ns,
                      span->start_ns);
        }
        if (span->pushed_ns != TRACE_NEVER && span->done_ns != TRACE_NEVER) {
            put_async(self, "PULL", span->process, span->tensor, args, span->pushed_ns, span->done_ns);
        }
    }
}

static void put_instants(writer *self)
{
    const trace_run *run = self->run;
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const uint8_t kind = event->record.kind;
        if (kind == TRIB_TRACE_STALL || kind == TRIB_TRACE_FAILED || kind == TRIB_TRACE_SUM_REFUSED ||
            kind == TRIB_TRACE_JOINED || kind == TRIB_TRACE_ENDED || kind == TRIB_TRACE_LINK_CLOSED) {
            char peer[48] = "nobody";
            if (event->record.peer != TRIB_TRACE_NO_PEER) {
                trace_member_label(run, event->record.peer, peer, sizeof peer);
            }
            begin_event(self, 'i', event->process, 0, event->at_ns);
            put_name(self, trace_kind_name(kind));
            fprintf(self->out, ",\"s\":\"t\",\"args\":{\"core\":%u,\"peer\":\"%s\",\"value\":%u}}", event->core, peer,
                    event->record.value);
        }
    }
}

/* ---- Slices ---- */

static void add_slice(writer *self, uint32_t process, uint32_t group, uint64_t index, int64_t begin_ns, int64_t end_ns)
{
    self->slices[self->slice_count++] = (slice){.begin_ns = begin_ns,
                                                .end_ns = end_ns > begin_ns ? end_ns : begin_ns,
                                                .process = process,
                                                .group = group,
                                                .index = index};
}

/* Writes that a complete sum is sent to record->peer. */
static void put_sum_sent(writer *self, const trace_event *sent, const trace_event *since, const char *category)
{
    char args[100], peer[48];
    trace_member_label(self->run, sent->record.peer, peer, sizeof peer);
    snprintf(args, sizeof args, ",\"args\":{\"peer\":\"%s\",\"chunk\":%u,\"bytes\":%u}", peer, sent->record.extra,
             sent->record.value);
    put_async(self, category, sent->process, sent->record.tensor, args, since->at_ns, sent->at_ns);
}

/* Adds the sums, each from its first contribution until it is complete, and the sending of the sums. A relay sends
 * its machine's partial sum to the server, and the whole sum comes back before it is handed on. */
static void add_sums(writer *self)
{
    const trace_chunks *chunks = &self->chunks;
    for (uint64_t i = 0, end; i < chunks->count; i = end) {
        const trace_event *first = chunks->events[i], *complete = NULL, *back = NULL;
        for (end = i; end < chunks->count && trace_chunk_is_same(first, chunks->events[end]); end++) {
            const trace_event *one = chunks->events[end];
            const uint8_t kind = one->record.kind;
            complete = kind == TRIB_TRACE_SUM_COMPLETE || kind == TRIB_TRACE_NEAR_COMPLETE ? one : complete;
            back = kind == TRIB_TRACE_PARTIAL_SUM ? one : back;
            if (kind == TRIB_TRACE_NEAR_SENT && back != NULL) {
                put_sum_sent(self, one, back, "SUM handed on");
            } else if (kind == TRIB_TRACE_PARTIAL_SUM && complete != NULL) {
                put_sum_sent(self, one, complete, "part summed by all machines");
            } else if (kind == TRIB_TRACE_SUM_SENT && complete != NULL) {
                put_sum_sent(self, one, complete, "SUM on its way");
            }
        }
        const uint8_t kind = first->record.kind;
        if (complete != NULL && (kind == TRIB_TRACE_SUM_ARRIVE || kind == TRIB_TRACE_NEAR_ARRIVE)) {
            add_slice(self, first->process, trace_chunk_is_near(first) ? GROUP_NEAR : GROUP_SUM, i, first->at_ns,
                      complete->at_ns);
        }
    }
}

static void add_spans(writer *self)
{
    const trace_run *run = self->run;
    for (uint64_t i = 0; i < run->span_count; i++) {
        const trace_span *span = &run->spans[i];
        if (span->start_ns != TRACE_NEVER) {
            const int64_t end_ns = span->pushed_ns != TRACE_NEVER ? span->pushed_ns : span->done_ns;
            add_slice(self, span->process, GROUP_SEND, i, span->start_ns, end_ns);
        }
        for (uint32_t k = 0; k < span->stay_count; k++) {
            const uint8_t stage = span->stays[k].stage;
            const char *name = stage < run->stage_count ? run->stages[stage] : "PUSH";
            if (strcmp(name, "PUSH") != 0 && strcmp(name, "PULL") != 0) {
                const int64_t end_ns = k + 1 < span->stay_count ? span->stays[k + 1].enter_ns : span->done_ns;
                add_slice(self, span->process, GROUP_STAGE + stage, i, span->stays[k].enter_ns, end_ns);
            }
        }
    }
}

static bool is_same_link(const trace_event *a, const trace_event *b)
{
    return a->process == b->process && a->core == b->core && a->record.peer == b->record.peer &&
           a->record.extra == b->record.extra;
}

static void add_credits(writer *self)
{
    const trace_run *run = self->run;
    const trace_event *waits[1024]; /* waits that have not ended */
    uint32_t count = 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        if (event->record.kind == TRIB_TRACE_LINK_WAIT && count < 1024) {
            waits[count++] = event;
        } else if (event->record.kind == TRIB_TRACE_LINK_FREE || event->record.kind == TRIB_TRACE_LINK_CLOSED) {
            uint32_t at = 0;
            while (at < count && !is_same_link(waits[at], event)) {
                at++;
            }
            if (at < count) {
                add_slice(self, event->process, GROUP_CREDIT, (uint64_t)(waits[at] - run->events), waits[at]->at_ns,
                          event->at_ns);
                waits[at] = waits[--count];
            }
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const slice *left = a, *right = b;
    int order = compare_u64(left->process, right->process);
    order = order != 0 ? order : compare_u64(left->group, right->group);
    order = order != 0 ? order : (left->begin_ns > right->begin_ns) - (left->begin_ns < right->begin_ns);
    return order != 0 ? order : compare_u64(left->index, right->index);
}

static void name_lane(writer *self, const slice *of)
{
    char name[80];
    const uint32_t stage = of->group - GROUP_STAGE;
    const char *what = of->group == GROUP_SEND     ? "PUSH sends"
                       : of->group == GROUP_NEAR   ? "SUM of its machine"
                       : of->group == GROUP_SUM    ? "SUM"
                       : of->group == GROUP_CREDIT ? "a link out of credit"
                                                   : self->run->stages[stage];
    snprintf(name, sizeof name, "%.60s %u", what, of->lane + 1);
    put_meta(self, "thread_name", of->process, of->group * GROUP_TIDS + of->lane, name);
}

/* Gives each slice the first lane that is free at its beginning; a slice without a lane becomes a pair of
 * asynchronous events. */
static void assign_lanes(writer *self)
{
    int64_t ends[LANES_MAX];
    uint32_t lanes = 0;
    qsort(self->slices, self->slice_count, sizeof *self->slices, by_place);
    for (uint64_t i = 0; i < self->slice_count; i++) {
        slice *mine = &self->slices[i];
        if (i == 0 || mine->process != mine[-1].process || mine->group != mine[-1].group) {
            lanes = 0;
        }
        while (mine->lane < lanes && ends[mine->lane] > mine->begin_ns) {
            mine->lane++;
        }
        if (mine->lane == LANES_MAX) {
            mine->lane = UINT32_MAX;
            continue;
        }
        if (mine->lane == lanes) {
            lanes++;
            name_lane(self, mine);
        }
        ends[mine->lane] = mine->end_ns;
        if (mine->group == GROUP_SEND) {
            self->send_lanes[mine->index] = mine->lane;
        } else if (mine->group == GROUP_NEAR || mine->group == GROUP_SUM) {
            self->sum_lanes[mine->index] = mine->lane;
        }
    }
}

/* ---- Arrows ---- */

typedef struct arrow_end {
    uint32_t process, thread;
    int64_t at_ns;
} arrow_end;

static void put_arrow(writer *self, const char *name, arrow_end from, arrow_end to)
{
    const uint64_t id = ++self->id;
    begin_event(self, 's', from.process, from.thread, from.at_ns);
    fprintf(self->out, ",\"name\":\"%s\",\"cat\":\"%s\",\"id\":%llu}", name, name, (unsigned long long)id);
    begin_event(self, 'f', to.process, to.thread, to.at_ns);
    fprintf(self->out, ",\"name\":\"%s\",\"cat\":\"%s\",\"id\":%llu,\"bp\":\"e\"}", name, name, (unsigned long long)id);
}

/* Begins an arrow at the sum of the machine whose partial sum arrives. Returns false if the arrival is not a
 * partial sum. */
static bool partial_begin(const writer *self, const trace_event *arrival, arrow_end *from)
{
    const trace_process *relay = trace_run_member(self->run, arrival->record.peer);
    const uint64_t first =
        relay == NULL || arrival->record.kind != TRIB_TRACE_SUM_ARRIVE
            ? UINT64_MAX
            : trace_chunks_find_near(&self->chunks, (uint32_t)(relay - self->run->processes), &arrival->record);
    if (first == UINT64_MAX || self->sum_lanes[first] == UINT32_MAX) {
        return false;
    }
    const trace_event *begin = self->chunks.events[first];
    *from = (arrow_end){begin->process, GROUP_NEAR * GROUP_TIDS + self->sum_lanes[first], begin->at_ns};
    return true;
}

/* Begins an arrow where the partition's first chunk was sent. */
static bool push_begin(const writer *self, const trace_event *arrival, arrow_end *from)
{
    const trace_span *span = trace_span_find(self->run, self->by_key, &arrival->record);
    const uint32_t lane = span != NULL ? self->send_lanes[span - self->run->spans] : UINT32_MAX;
    if (span == NULL || span->start_ns == TRACE_NEVER || lane == UINT32_MAX) {
        return false;
    }
    *from = (arrow_end){span->process, GROUP_SEND * GROUP_TIDS + lane, span->start_ns};
    return true;
}

/* Writes the arrows that end where a partition's first chunk arrives in the sum. */
static void put_arrows(writer *self, const slice *sum)
{
    const trace_chunks *chunks = &self->chunks;
    for (uint64_t i = sum->index;
         i < chunks->count && trace_chunk_is_same(chunks->events[sum->index], chunks->events[i]); i++) {
        const trace_event *arrival = chunks->events[i];
        const uint8_t kind = arrival->record.kind;
        const arrow_end to = {sum->process, sum->group * GROUP_TIDS + sum->lane, arrival->at_ns};
        arrow_end from;
        if ((kind != TRIB_TRACE_SUM_ARRIVE && kind != TRIB_TRACE_NEAR_ARRIVE) || arrival->record.extra != 0) {
            continue;
        }
        const bool is_part = partial_begin(self, arrival, &from);
        if ((is_part || push_begin(self, arrival, &from)) && from.at_ns <= to.at_ns) {
            put_arrow(self, is_part ? "part" : "push", from, to);
        }
    }
}

static void put_slice(writer *self, const slice *mine)
{
    const trace_run *run = self->run;
    char buffer[48], peer[48];
    const trace_span *span = mine->group == GROUP_SEND || mine->group >= GROUP_STAGE ? &run->spans[mine->index] : NULL;
    begin_event(self, 'X', mine->process, mine->group * GROUP_TIDS + mine->lane, mine->begin_ns);
    fprintf(self->out, ",\"dur\":%.3f", to_us(mine->end_ns - mine->begin_ns));
    if (span != NULL) {
        put_name(self, trace_tensor_name(self->run, span->tensor, buffer, sizeof buffer));
        trace_member_label(run, span->owner, peer, sizeof peer);
        fprintf(self->out, ",\"cat\":\"stage\",\"args\":{\"partition\":%u,\"round\":%u,\"bytes\":%u,\"peer\":\"%s\"}}",
                span->partition, span->round, span->bytes, peer);
    } else if (mine->group == GROUP_SUM || mine->group == GROUP_NEAR) {
        const trib_trace_record *record = &self->chunks.events[mine->index]->record;
        put_name(self, trace_tensor_name(self->run, record->tensor, buffer, sizeof buffer));
        trace_member_label(run, record->peer, peer, sizeof peer);
        fprintf(self->out, ",\"cat\":\"sum\",\"args\":{\"partition\":%u,\"round\":%u,\"chunk\":%u,\"first\":\"%s\"}}",
                record->partition, record->round, record->extra, peer);
        put_arrows(self, mine);
    } else {
        trace_member_label(run, run->events[mine->index].record.peer, peer, sizeof peer);
        put_name(self, peer);
        fprintf(self->out, ",\"cat\":\"credit\",\"args\":{\"core\":%u}}", run->events[mine->index].core);
    }
}

/* Writes a slice that found no lane. */
static void put_loose(writer *self, const slice *mine)
{
    const bool sum = mine->group == GROUP_SUM || mine->group == GROUP_NEAR, credit = mine->group == GROUP_CREDIT;
    const uint32_t tensor = sum      ? self->chunks.events[mine->index]->record.tensor
                            : credit ? UINT32_MAX
                                     : self->run->spans[mine->index].tensor;
    const char *category = sum                          ? (mine->group == GROUP_NEAR ? "SUM of its machine" : "SUM")
                           : credit                     ? "a link out of credit"
                           : mine->group >= GROUP_STAGE ? self->run->stages[mine->group - GROUP_STAGE]
                                                        : "PUSH sends";
    put_async(self, category, mine->process, tensor, "", mine->begin_ns, mine->end_ns);
}

/* ---- The whole ---- */

static bool open_writer(writer *self)
{
    const trace_run *run = self->run;
    uint64_t slices = run->event_count + run->span_count;
    for (uint64_t i = 0; i < run->span_count; i++) {
        slices += run->spans[i].stay_count;
    }
    self->slices = calloc(slices + 1, sizeof *self->slices);
    const bool fine = trace_chunks_make(run, &self->chunks);
    self->sum_lanes = malloc((self->chunks.count + 1) * sizeof *self->sum_lanes);
    self->send_lanes = malloc((run->span_count + 1) * sizeof *self->send_lanes);
    self->by_key = trace_spans_by_key(run);
    if (!fine || self->slices == NULL || self->sum_lanes == NULL || self->send_lanes == NULL || self->by_key == NULL) {
        return false;
    }
    memset(self->sum_lanes, 0xff, (self->chunks.count + 1) * sizeof *self->sum_lanes);
    memset(self->send_lanes, 0xff, (run->span_count + 1) * sizeof *self->send_lanes);
    return true;
}

static void put_processes(writer *self)
{
    for (uint32_t i = 0; i < self->run->process_count; i++) {
        const trace_process *process = &self->run->processes[i];
        char name[160];
        snprintf(name, sizeof name, "%s (%.100s)", process->label, process->file->place);
        put_meta(self, "process_name", i, 0, name);
        put_meta(self, "thread_name", i, 0, "events");
        begin_event(self, 'M', i, 0, 0);
        fprintf(self->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%u}}", i);
    }
}

bool trace_write_chrome(const trace_run *run, FILE *out)
{
    writer self = {.run = run, .out = out};
    bool fine = open_writer(&self);
    if (fine) {
        fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"producer\":\"tributary trace %s\",\"job\":\"",
                trib_version());
        put_text(&self, run->processes[0].file->job);
        fprintf(out, "\"},\"traceEvents\":[");
        put_processes(&self);
        fine = put_operations(&self);
        put_waits(&self);
        put_instants(&self);
        add_sums(&self);
        add_spans(&self);
        add_credits(&self);
        assign_lanes(&self);
        for (uint64_t i = 0; i < self.slice_count; i++) {
            (self.slices[i].lane != UINT32_MAX ? put_slice : put_loose)(&self, &self.slices[i]);
        }
        fprintf(out, "\n]}\n");
    }
    free(self.slices);
    trace_chunks_free(&self.chunks);
    free(self.sum_lanes);
    free(self.send_lanes);
    free(self.by_key);
    return fine;
}
