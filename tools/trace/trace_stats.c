/* trace_stats.c - see trace_stats.h. */
#include "tools/trace/trace_stats.h"

#include <stdio.h>
#include <stdlib.h>

#define BINS_MAX 200000u
#define BIN_NS INT64_C(1000000)
#define NEAR 0.7 /* share of a full window */
#define FULL_SHARE 0.2
#define NEAR_FASTEST 0.95 /* share of the fastest link's rate */
#define NEAR_BUSIEST 0.9  /* share of the busiest link's bytes */
#define LONG 4u           /* windows: half an exchange */

const char *trace_phase_name(trace_phase phase)
{
    static const char *const names[] = {"turn", "credit", "push", "near", "part", "peers", "pull", "hand"};
    return (unsigned)phase < TRACE_PHASE_COUNT ? names[phase] : "?";
}

const char *trace_phase_text(trace_phase phase, bool sums_first)
{
    static const char *const texts[][2] = {
        {"other partitions go first on its link", "other partitions go first on its link"},
        {"it is first, and the credit is used up", "it is first, and the credit is used up"},
        {"on its way to the server", "on its way to its machine's relay"},
        {"", "contributions of other workers of its machine are missing"},
        {"", "the machine's part waits at the relay or is on its way to the server"},
        {"other workers' contributions are missing", "other machines' parts are missing"},
        {"the sum waits at the server or is on its way back",
         "the sum waits at the server or is on its way to the relay"},
        {"", "handed on within the machine"},
    };
    return (unsigned)phase < TRACE_PHASE_COUNT ? texts[phase][sums_first] : "?";
}

static int64_t not_before(int64_t at_ns, int64_t than_ns)
{
    return at_ns > than_ns ? at_ns : than_ns;
}

bool trace_span_phases(const trace_span *span, int64_t phases[TRACE_PHASE_COUNT])
{
    if (span->failed || span->start_ns == TRACE_NEVER || span->done_ns == TRACE_NEVER) {
        return false;
    }
    phases[TRACE_PHASE_TURN] = span->queue_turn_ns;
    phases[TRACE_PHASE_CREDIT] = span->start_ns - span->enter_ns - span->queue_turn_ns;
    /* The ends of the phases from PUSH on. Times of the server and of the relay are on other clocks, so each is
     * limited to the range between the previous phase and the end. An unknown time is taken to be that of the
     * previous phase. */
    int64_t near_ns = span->relay != TRACE_NOBODY ? span->near_last_ns : span->arrive_last_ns;
    if (near_ns == TRACE_NEVER) { /* no trace of the server */
        near_ns = span->pushed_ns;
    }
    const int64_t back_ns = span->relay != TRACE_NOBODY ? span->back_ns : span->done_ns;
    const int64_t ends_ns[] = {near_ns,
                               span->partial_ns,
                               span->arrive_last_ns,
                               span->complete_last_ns,
                               back_ns != TRACE_NEVER ? back_ns : span->done_ns,
                               span->done_ns};
    int64_t at_ns = span->start_ns;
    for (unsigned i = TRACE_PHASE_PUSH; i < TRACE_PHASE_COUNT; i++) {
        int64_t end_ns = ends_ns[i - TRACE_PHASE_PUSH];
        end_ns = not_before(end_ns < span->done_ns ? end_ns : span->done_ns, at_ns);
        phases[i] = end_ns - at_ns;
        at_ns = end_ns;
    }
    return true;
}

/* ---- Spreads ---- */

static int by_value(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static trace_spread spread_of(double *values, uint64_t count)
{
    trace_spread spread = {.count = count};
    if (count == 0) {
        return spread;
    }
    qsort(values, count, sizeof *values, by_value);
    for (uint64_t i = 0; i < count; i++) {
        spread.total_ns += values[i];
    }
    spread.p50_ns = values[count / 2];
    spread.p99_ns = values[count - 1 - count / 100];
    spread.max_ns = values[count - 1];
    return spread;
}

static void spread_phases(const trace_run *run, trace_stats *stats, double *values)
{
    for (unsigned phase = 0; phase <= TRACE_PHASE_COUNT; phase++) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < run->span_count; i++) {
            int64_t phases[TRACE_PHASE_COUNT];
            if (trace_span_phases(&run->spans[i], phases)) {
                values[count++] = phase < TRACE_PHASE_COUNT ? (double)phases[phase]
                                                            : (double)(run->spans[i].done_ns - run->spans[i].enter_ns);
            }
        }
        *(phase < TRACE_PHASE_COUNT ? &stats->phases[phase] : &stats->whole) = spread_of(values, count);
    }
}

static void spread_stages(const trace_run *run, trace_stats *stats, double *values)
{
    for (uint32_t stage = 0; stage < run->stage_count; stage++) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < run->span_count; i++) {
            const trace_span *span = &run->spans[i];
            for (uint32_t k = 0; k < span->stay_count; k++) {
                const int64_t left_ns = k + 1 < span->stay_count ? span->stays[k + 1].enter_ns : span->done_ns;
                if (span->stays[k].stage == stage && left_ns != TRACE_NEVER && count < run->span_count) {
                    values[count++] = (double)(left_ns - span->stays[k].enter_ns);
                }
            }
        }
        stats->stages[stage] = spread_of(values, count);
    }
}

static void count_stragglers(const trace_run *run, trace_stats *stats)
{
    for (uint64_t i = 0; i < run->span_count; i++) {
        const trace_span *span = &run->spans[i];
        const uint32_t me = run->processes[span->process].member, near = span->near_last_peer;
        int64_t phases[TRACE_PHASE_COUNT];
        if (span->last_peer >= run->worker_count || !trace_span_phases(span, phases)) {
            continue;
        }
        if (span->last_peer == me) {
            stats->stragglers[me].count++;
        } else {
            stats->stragglers[span->last_peer].waited_ns += (double)phases[TRACE_PHASE_PEERS];
        }
        if (near < run->worker_count && near != me) {
            stats->stragglers[near].waited_ns += (double)phases[TRACE_PHASE_NEAR];
        }
    }
}

static void count_events(const trace_run *run, trace_stats *stats)
{
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trib_trace_record *record = &run->events[i].record;
        stats->operations += record->kind == TRIB_TRACE_COMPLETE;
        stats->failed += record->kind == TRIB_TRACE_COMPLETE && record->value != 0;
        stats->stalls += record->kind == TRIB_TRACE_STALL;
        stats->refused += record->kind == TRIB_TRACE_SUM_REFUSED;
        stats->bytes_summed += record->kind == TRIB_TRACE_SUM_ARRIVE ? record->value : 0;
    }
}

/* ---- Links ---- */

typedef struct rate_bins {
    double *bytes, *windows;
    uint32_t count, window; /* in bins */
    int64_t width_ns;
    double *fullest;    /* by member, out and in: the rate over its fullest stretch */
    uint32_t *heads[2]; /* by member, out and in: index + 1 of its first transfer */
    struct transfer *transfers;
} rate_bins;

typedef struct transfer {
    uint32_t bin, bytes, next[2];
} transfer;

/* Tells who sent the event's bytes to whom, and how many. Returns false if nothing was sent between machines. If
 * all members share one machine there is no link, and the transfers between members are shown instead. */
static bool transfer_of(const trace_run *run, const trace_event *event, uint32_t *from, uint32_t *to)
{
    const trib_trace_record *record = &event->record;
    const uint32_t here = run->processes[event->process].member;
    if (record->kind == TRIB_TRACE_SUM_ARRIVE) {
        *from = record->peer;
        *to = here;
    } else if (record->kind == TRIB_TRACE_SUM_SENT) {
        *from = here;
        *to = record->peer;
    } else {
        return false;
    }
    const uint32_t members = run->worker_count + run->server_count;
    if (!run->one_host) {
        *from = trace_run_machine(run, *from);
        *to = trace_run_machine(run, *to);
    }
    return *from != *to && *from < members && *to < members && record->value > 0;
}

/* Returns the fullness of a window such that a given share of all bytes was carried in windows that are at least
 * as full. */
static double full_window(double *windows, uint64_t count)
{
    qsort(windows, count, sizeof *windows, by_value);
    double all = 0, above = 0;
    for (uint64_t i = 0; i < count; i++) {
        all += windows[i];
    }
    uint64_t at = count;
    while (at > 0 && above < FULL_SHARE * all) {
        above += windows[--at];
    }
    return count > 0 ? windows[at] : 0;
}

/*
 * Returns the sustained rate: the median of the windows that are nearly as full as a full one. The fullest window
 * alone would include bytes that the kernel's buffers absorb at the beginning of an exchange, or release at once to a
 * process that had not run for a while.
 */
static double held_rate(const rate_bins *self)
{
    double inside = 0;
    uint64_t used = 0, low = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        inside += self->bytes[i] - (i >= self->window ? self->bytes[i - self->window] : 0);
        if (inside > 0) {
            self->windows[used++] = inside;
        }
    }
    const double full = full_window(self->windows, used);
    while (low < used && self->windows[low] < NEAR * full) {
        low++;
    }
    const uint64_t middle = low + (used - low) / 2;
    return used > 0 ? self->windows[middle] * 8e9 / ((double)self->width_ns * self->window) : 0;
}

/* Returns the most bytes within that many consecutive windows. */
static double find_fullest(const rate_bins *self, uint32_t windows)
{
    const uint32_t width = windows * self->window;
    double inside = 0, most = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        inside += self->bytes[i] - (i >= width ? self->bytes[i - width] : 0);
        most = inside > most ? inside : most;
    }
    return most;
}

/* Buffers of the kernel distort a long stretch and a short one by the same number of bytes. Their difference is
 * free of that; it is a little too low, because the long stretch includes more pauses of the sender, while the
 * rate with the distortion is too high. */
static double fullest_rate(const rate_bins *self)
{
    const double window_ns = (double)self->width_ns * self->window, whole = find_fullest(self, LONG);
    const double with = whole / LONG, without = (whole - find_fullest(self, 1)) / (LONG - 1);
    return (with + without) / 2 * 8e9 / window_ns;
}

static void collect_transfers(const trace_run *run, rate_bins *self)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        uint32_t ends[2] = {0, 0};
        if (transfer_of(run, &run->events[i], &ends[0], &ends[1])) {
            transfer *one = &self->transfers[count++];
            one->bin = (uint32_t)(run->events[i].at_ns / self->width_ns);
            one->bytes = run->events[i].record.value;
            for (unsigned way = 0; way < 2; way++) {
                one->next[way] = self->heads[way][ends[way]];
                self->heads[way][ends[way]] = count;
            }
        }
    }
}

static void use_link(trace_stats *stats, uint32_t member, unsigned way, const rate_bins *self)
{
    memset(self->bytes, 0, self->count * sizeof *self->bytes);
    uint64_t all = 0;
    for (uint32_t at = self->heads[way][member]; at > 0; at = self->transfers[at - 1].next[way]) {
        self->bytes[self->transfers[at - 1].bin] += self->transfers[at - 1].bytes;
        all += self->transfers[at - 1].bytes;
    }
    trace_link_use *use = &stats->links[member];
    const double bits = held_rate(self);
    *(way == 0 ? &use->out_bytes : &use->in_bytes) = all;
    *(way == 0 ? &use->out_bits : &use->in_bits) = bits;
    self->fullest[2 * member + way] = fullest_rate(self);
}

/*
 * Returns the rate of links that are always full: the median of the fullest stretches of the busiest links. The
 * sustained rate is a few percent too low, because it counts every pause of a sender as the link's.
 */
static double full_links(const trace_stats *stats, uint32_t members, const double *fullest, double *values)
{
    uint64_t most = 0, count = 0;
    for (uint32_t i = 0; i < 2 * members; i++) {
        const trace_link_use *use = &stats->links[i / 2];
        const uint64_t bytes = i % 2 == 0 ? use->out_bytes : use->in_bytes;
        most = bytes > most ? bytes : most;
    }
    for (uint32_t i = 0; i < 2 * members && most > 0; i++) {
        const trace_link_use *use = &stats->links[i / 2];
        if ((double)(i % 2 == 0 ? use->out_bytes : use->in_bytes) >= NEAR_BUSIEST * (double)most) {
            values[count++] = fullest[i];
        }
    }
    return count > 0 ? spread_of(values, count).p50_ns : 0;
}

/* Returns the mean rate of the links that are nearly as fast as the fastest one: each rate is only as exact as the
 * chunks in its window. */
static double fastest_links(const trace_stats *stats, uint32_t members)
{
    double most = 0, sum = 0;
    uint32_t near = 0;
    for (uint32_t i = 0; i < 2 * members; i++) {
        const double bits = i < members ? stats->links[i].out_bits : stats->links[i - members].in_bits;
        most = bits > most ? bits : most;
    }
    for (uint32_t i = 0; i < 2 * members; i++) {
        const double bits = i < members ? stats->links[i].out_bits : stats->links[i - members].in_bits;
        if (bits > 0 && bits >= NEAR_FASTEST * most) {
            sum += bits;
            near++;
        }
    }
    return near > 0 ? sum / near : 0;
}

/* Returns the time during which at least one worker has an incomplete operation. */
static double exchange_time(const trace_run *run)
{
    double sum_ns = 0;
    int64_t since_ns = 0;
    uint64_t open = 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        if (event->record.kind == TRIB_TRACE_SUBMIT) {
            since_ns = open++ == 0 ? event->at_ns : since_ns;
        } else if (event->record.kind == TRIB_TRACE_COMPLETE && open > 0 && --open == 0) {
            sum_ns += (double)(event->at_ns - since_ns);
        }
    }
    return sum_ns;
}

/* Rates are taken over an eighth of an exchange. */
static int64_t window_for(const trace_stats *stats)
{
    int64_t exchange_ns = 0;
    for (uint32_t i = 0; i < stats->steps_count; i++) {
        exchange_ns = not_before(stats->steps[i].exchange_ns, exchange_ns);
    }
    const int64_t partial_ns = exchange_ns / 8;
    return partial_ns < 5 * BIN_NS ? 5 * BIN_NS : partial_ns > 500 * BIN_NS ? 500 * BIN_NS : partial_ns;
}

static bool use_links(const trace_run *run, trace_stats *stats)
{
    const uint32_t members = run->worker_count + run->server_count;
    rate_bins bins = {.width_ns = BIN_NS};
    while (run->duration_ns / bins.width_ns >= BINS_MAX) {
        bins.width_ns *= 2;
    }
    bins.count = (uint32_t)(run->duration_ns / bins.width_ns) + 1;
    bins.window = (uint32_t)((window_for(stats) + bins.width_ns - 1) / bins.width_ns);
    bins.bytes = calloc(bins.count, sizeof *bins.bytes);
    bins.windows = calloc(bins.count, sizeof *bins.windows);
    bins.heads[0] = calloc(members, sizeof(uint32_t));
    bins.heads[1] = calloc(members, sizeof(uint32_t));
    bins.transfers = calloc(run->event_count + 1, sizeof *bins.transfers);
    bins.fullest = calloc(4 * (size_t)members, sizeof *bins.fullest); /* and a copy of them to sort */
    const bool fine = bins.bytes != NULL && bins.fullest != NULL && bins.windows != NULL && bins.heads[0] != NULL &&
                      bins.heads[1] != NULL && bins.transfers != NULL;
    if (fine) {
        collect_transfers(run, &bins);
        for (uint32_t i = 0; i < members; i++) {
            use_link(stats, i, 0, &bins);
            use_link(stats, i, 1, &bins);
        }
        const double full_bits = full_links(stats, members, bins.fullest, &bins.fullest[2 * (size_t)members]);
        stats->fastest_bits = fastest_links(stats, members);
        stats->fastest_bits = full_bits > stats->fastest_bits ? full_bits : stats->fastest_bits;
    }
    stats->window_ns = (double)bins.window * (double)bins.width_ns;
    stats->exchange_ns = exchange_time(run);
    const double full = stats->fastest_bits * stats->exchange_ns / 8e9;
    for (uint32_t i = 0; full > 0 && i < members; i++) {
        stats->links[i].out_used = (double)stats->links[i].out_bytes / full;
        stats->links[i].in_used = (double)stats->links[i].in_bytes / full;
    }
    free(bins.bytes);
    free(bins.windows);
    free(bins.heads[0]);
    free(bins.heads[1]);
    free(bins.transfers);
    free(bins.fullest);
    return fine;
}

/* ---- What limits ---- */

/* Names the medium between members: the network, or on one machine its memory or, over loopback, its processors. */
static const char *name_way(const trace_run *run, const char **name_out)
{
    const bool loopback = strcmp(run->processes[0].file->transport, "tcp") == 0;
    *name_out = !run->one_host ? "network" : loopback ? TRACE_LIMIT_LOOPBACK : TRACE_LIMIT_MEMORY;
    return !run->one_host ? "the network" : loopback ? "the processors, which move all over loopback" : "shared memory";
}

static void name_limit(const trace_run *run, trace_stats *stats)
{
    /* The turn is left out: a partition that waits for its turn waits for the phases of those before it. */
    unsigned longest = TRACE_PHASE_CREDIT;
    for (unsigned i = longest + 1; i < TRACE_PHASE_COUNT; i++) {
        longest = stats->phases[i].total_ns > stats->phases[longest].total_ns ? i : longest;
    }
    uint32_t busiest = 0;
    bool out = true;
    double used = 0;
    for (uint32_t i = 0; i < run->worker_count + run->server_count; i++) {
        const trace_link_use *use = &stats->links[i];
        if (use->out_used > used || use->in_used > used) {
            out = use->out_used >= use->in_used;
            used = out ? use->out_used : use->in_used;
            busiest = i;
        }
    }
    char label[48];
    trace_member_label(run, busiest, label, sizeof label);
    const double whole = stats->whole.total_ns - stats->phases[TRACE_PHASE_TURN].total_ns;
    const double share = whole > 0 ? 100 * stats->phases[longest].total_ns / whole : 0;
    if (stats->whole.count == 0) {
        stats->limit_name = "none";
        snprintf(stats->limit, sizeof stats->limit, "no partition can be followed from its beginning to its end");
    } else if (used > 0.7) {
        const char *words = name_way(run, &stats->limit_name);
        snprintf(stats->limit, sizeof stats->limit,
                 "%s: the way %s %s carried %.0f %% of what it can while there was something to exchange", words,
                 out ? "out of" : "into", label, 100 * used);
    } else {
        stats->limit_name = trace_phase_name((trace_phase)longest);
        snprintf(stats->limit, sizeof stats->limit,
                 "%s (%.0f %% of the partitions' time, turns not counted); no %s is more than %.0f %% busy",
                 trace_phase_text((trace_phase)longest, run->local_size > 0), share,
                 run->one_host ? "way between processes" : "link", 100 * used);
    }
}

bool trace_stats_make(const trace_run *run, trace_stats *stats)
{
    *stats = (trace_stats){.limit_name = "none"};
    const size_t members = run->worker_count + run->server_count;
    double *values = calloc(run->span_count + 1, sizeof *values);
    stats->links = calloc(members, sizeof *stats->links);
    stats->stragglers = calloc(run->worker_count, sizeof *stats->stragglers);
    stats->steps = calloc((size_t)run->process_count + 1, sizeof *stats->steps);
    bool fine = values != NULL && stats->links != NULL && stats->stragglers != NULL && stats->steps != NULL;
    if (fine) {
        spread_phases(run, stats, values);
        spread_stages(run, stats, values);
        count_stragglers(run, stats);
        count_events(run, stats);
    }
    for (uint32_t i = 0; fine && i < run->process_count; i++) {
        if (run->processes[i].is_worker) {
            fine = trace_steps_make(run, i, &stats->steps[stats->steps_count++]);
        }
    }
    fine = fine && use_links(run, stats);
    if (fine) {
        name_limit(run, stats);
    }
    free(values);
    if (!fine) {
        trace_stats_free(stats);
    }
    return fine;
}

void trace_stats_free(trace_stats *stats)
{
    for (uint32_t i = 0; stats->steps != NULL && i < stats->steps_count; i++) {
        trace_steps_free(&stats->steps[i]);
    }
    free(stats->links);
    free(stats->stragglers);
    free(stats->steps);
    *stats = (trace_stats){.limit_name = "none"};
}
