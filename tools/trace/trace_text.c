/* trace_text.c - summary of a job's traces, for people and as JSON: see trace_out.h. */
#include <math.h>

#include "tools/cli/plural.h"
#include "tools/trace/trace_out.h"

static double to_ms(double ns)
{
    return ns / 1e6;
}

static double median_step(const trace_stats *stats, const trace_steps **steps_out)
{
    *steps_out = NULL;
    for (uint32_t i = 0; i < stats->steps_count; i++) {
        if (stats->steps[i].count > 0) {
            *steps_out = &stats->steps[i];
            return (double)stats->steps[i].step_ns;
        }
    }
    return 0;
}

/* Returns the rate on which the efficiency is based, and whether it was configured (bandwidth_bits) or is that of
 * the busiest link. 0: there is no link. */
static double link_rate(const trace_run *run, const trace_stats *stats, bool *told)
{
    const uint64_t bits = run->processes[0].file->bandwidth;
    *told = bits > 0;
    return bits > 0 ? (double)bits : run->one_host ? 0 : stats->fastest_bits;
}

/* Returns the least time for a step's bytes over these links; 0: unknown, or not only all-reduces. */
static double t_opt(const trace_run *run, const trace_stats *stats, const trace_steps *steps)
{
    bool told = false;
    const double rate = link_rate(run, stats, &told), factor = run->processes[0].file->t_opt_factor;
    return steps != NULL && rate > 0 && !steps->is_mixed ? factor * (double)steps->bytes * 8e9 / rate : 0;
}

static int64_t worst_clock(const trace_run *run)
{
    int64_t worst_ns = 0;
    for (uint32_t i = 0; i < run->process_count; i++) {
        worst_ns = run->processes[i].clock_error_ns > worst_ns ? run->processes[i].clock_error_ns : worst_ns;
    }
    return worst_ns;
}

/* ---- Text ---- */

static void print_machines(const trace_run *run, FILE *out)
{
    uint32_t machines = 0;
    for (uint32_t i = 0; i < run->member_count; i++) {
        machines += run->members[i].machine == i;
    }
    if (run->one_host) {
        fprintf(out, "all members are on one machine\n");
    } else if (machines < run->member_count) {
        fprintf(out, "%u machines; ", machines);
        fprintf(out, run->local_size > 0 ? "the %u workers of each sum first\n" : "every worker pushes its own\n",
                run->local_size);
    }
}

/* Writes "rank 2" and the number of other members that share its machine's link. */
static void label_link(const trace_run *run, uint32_t member, char *text, size_t size)
{
    uint32_t others = 0;
    for (uint32_t i = member + 1; i < run->member_count && !run->one_host; i++) {
        others += run->members[i].machine == member;
    }
    trace_member_label(run, member, text, size);
    if (others > 0) {
        snprintf(text + strlen(text), size - strlen(text), " + %u", others);
    }
}

static bool has_link(const trace_run *run, uint32_t member)
{
    return run->one_host || trace_run_machine(run, member) == member;
}

static void print_clocks(const trace_run *run, FILE *out)
{
    const int64_t clock_ns = worst_clock(run);
    if (clock_ns == INT64_MAX) {
        fprintf(out, "; the offsets of the processes' clocks are unknown\n");
        return;
    }
    fprintf(out, "; the processes' clocks are aligned to within %.1f us", (double)clock_ns / 1e3);
    if (run->early_arrivals > 0) {
        fprintf(out, ", though %llu of %llu partitions seem to arrive before they were sent",
                (unsigned long long)run->early_arrivals, (unsigned long long)run->arrivals);
    }
    fprintf(out, "\n");
}

static void print_head(const trace_run *run, const trace_stats *stats, FILE *out)
{
    const trace_file *first = run->processes[0].file;
    uint64_t lost = 0;
    for (uint32_t i = 0; i < run->process_count; i++) {
        lost += run->processes[i].lost;
    }
    fprintf(out,
            "job \"%s\": %u worker%s + %u server%s over %s; partitions of %u KiB, chunks of %u KiB, credit %u KiB\n",
            first->job, run->worker_count, plural(run->worker_count), run->server_count, plural(run->server_count),
            first->transport, first->partition_bytes / 1024, first->chunk_bytes / 1024, first->push_credit / 1024);
    print_machines(run, out);
    fprintf(out, "%u file%s, %.3f s, %llu records", run->process_count, plural(run->process_count),
            (double)run->duration_ns / 1e9, (unsigned long long)run->event_count);
    if (lost > 0) {
        fprintf(out, " (%llu before them were overwritten)", (unsigned long long)lost);
    }
    print_clocks(run, out);
    for (uint32_t i = 0; i < run->warning_count; i++) {
        fprintf(out, "note: %s\n", run->warnings[i]);
    }
    fprintf(out, "%llu operations (%llu failed), %.1f MB summed\n", (unsigned long long)stats->operations,
            (unsigned long long)stats->failed, (double)stats->bytes_summed / 1e6);
}

static void print_steps(const trace_run *run, const trace_stats *stats, FILE *out)
{
    const trace_steps *steps = NULL;
    const double step_ns = median_step(stats, &steps);
    if (steps == NULL) {
        fprintf(out, "\nno steps: no tensors are submitted repeatedly\n");
        return;
    }
    bool told = false;
    const double rate = link_rate(run, stats, &told), least_ns = t_opt(run, stats, steps);
    fprintf(out, "\n%u step%s of %s, each of %u operation%s and %.1f MB; medians\n", steps->count, plural(steps->count),
            run->processes[steps->process].label, steps->op_count, plural(steps->op_count), (double)steps->bytes / 1e6);
    fprintf(out, "  step              %10.3f ms\n", to_ms(step_ns));
    fprintf(out, "  computing         %10.3f ms  %s\n", to_ms((double)(steps->step_ns - steps->alone_ns)),
            steps->overlapped ? "(steps overlap: a layer waits for its own sums)" : "until the last submission");
    fprintf(out, "  exchange          %10.3f ms  from the first submission until the last sum is back\n",
            to_ms((double)steps->exchange_ns));
    fprintf(out, "  ... of it alone   %10.3f ms  after the last submission: no computing hides it\n",
            to_ms((double)steps->alone_ns));
    if (least_ns > 0) {
        fprintf(out, "  t_opt             %10.3f ms  at %.3g Gbit/s (%s); efficiency %.1f %%\n", to_ms(least_ns),
                rate / 1e9, told ? "as configured" : "the busiest link's payload",
                100 * least_ns / (double)steps->exchange_ns);
    }
}

static void print_spread(const char *name, const trace_spread *spread, double whole_ns, const char *text, FILE *out)
{
    const double mean_ns = spread->count > 0 ? spread->total_ns / (double)spread->count : 0;
    fprintf(out, "  %-16s %9llu %10.3f %10.3f %10.3f %10.3f %6.1f %%%s%s\n", name, (unsigned long long)spread->count,
            to_ms(mean_ns), to_ms(spread->p50_ns), to_ms(spread->p99_ns), to_ms(spread->max_ns),
            whole_ns > 0 ? 100 * spread->total_ns / whole_ns : 0.0, text[0] != '\0' ? "  " : "", text);
}

static void print_phases(const trace_run *run, const trace_stats *stats, FILE *out)
{
    fprintf(out, "\n%-18s %9s %10s %10s %10s %10s %8s\n", "a partition's time", "count", "mean ms", "p50 ms", "p99 ms",
            "max ms", "share");
    for (unsigned i = 0; i < TRACE_PHASE_COUNT; i++) {
        const char *text = trace_phase_text((trace_phase)i, run->local_size > 0);
        if (text[0] != '\0') {
            print_spread(trace_phase_name((trace_phase)i), &stats->phases[i], stats->whole.total_ns, text, out);
        }
    }
    print_spread("all", &stats->whole, stats->whole.total_ns, "", out);
    fprintf(out, "by stage\n");
    for (uint32_t i = 0; i < run->stage_count; i++) {
        print_spread(run->stages[i], &stats->stages[i], stats->whole.total_ns, "", out);
    }
}

static void print_members(const trace_run *run, const trace_stats *stats, FILE *out)
{
    char label[48];
    fprintf(out, "\n%-14s %11s %11s %10s %10s %7s %7s   (rate: held over %.0f ms; %%: of what the busiest can carry)\n",
            run->one_host ? "processes" : "links", "out MB", "in MB", "out Gb/s", "in Gb/s", "out %", "in %",
            to_ms(stats->window_ns));
    for (uint32_t i = 0; i < run->worker_count + run->server_count; i++) {
        const trace_link_use *use = &stats->links[i];
        if (!has_link(run, i)) {
            continue;
        }
        label_link(run, i, label, sizeof label);
        fprintf(out, "  %-12s %11.1f %11.1f %10.3f %10.3f %7.1f %7.1f\n", label, (double)use->out_bytes / 1e6,
                (double)use->in_bytes / 1e6, use->out_bits / 1e9, use->in_bits / 1e9, 100 * use->out_used,
                100 * use->in_used);
    }
    double most_ns = 0;
    for (uint32_t i = 0; i < run->worker_count; i++) {
        most_ns = stats->stragglers[i].waited_ns > most_ns ? stats->stragglers[i].waited_ns : most_ns;
    }
    if (most_ns > 0) {
        fprintf(out, "\nwaited for     its contribution was the last to         the others waited, in all\n");
    }
    for (uint32_t i = 0; i < run->worker_count && most_ns > 0; i++) {
        trace_member_label(run, i, label, sizeof label);
        fprintf(out, "  %-12s %21llu partitions %33.3f ms\n", label, (unsigned long long)stats->stragglers[i].count,
                to_ms(stats->stragglers[i].waited_ns));
    }
}

void trace_print_text(const trace_run *run, const trace_stats *stats, FILE *out)
{
    print_head(run, stats, out);
    print_steps(run, stats, out);
    print_phases(run, stats, out);
    print_members(run, stats, out);
    fprintf(out, "\nlimit: %s\n", stats->limit);
    for (uint32_t i = 0; i < run->process_count; i++) {
        for (uint32_t k = 0; k < run->processes[i].file->choice_count; k++) {
            fprintf(out, "\nchoice: %s\n", run->processes[i].file->choices[k]);
        }
    }
}

/* ---- JSON ---- */

static json_t *spread_json(const trace_spread *spread)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "count", (json_int_t)spread->count, "total_ms",
                     to_ms(spread->total_ns), "p50_ms", to_ms(spread->p50_ns), "p99_ms", to_ms(spread->p99_ns),
                     "max_ms", to_ms(spread->max_ns));
}

static json_t *processes_json(const trace_run *run)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < run->process_count; i++) {
        const trace_process *process = &run->processes[i];
        const int64_t end_ns = process->file->written_ns;
        const int64_t offset_ns = trace_clock_map(&process->clock, end_ns, NULL) - end_ns;
        const bool known = process->clock_error_ns != INT64_MAX;
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o}", "member", process->label, "place",
                            process->file->place, "file", process->file->path, "records", (json_int_t)process->records,
                            "overwritten", (json_int_t)process->lost, "clock_offset_us",
                            known ? json_real((double)offset_ns / 1e3) : json_null(), "clock_error_us",
                            known ? json_real((double)process->clock_error_ns / 1e3) : json_null()));
    }
    return list;
}

static json_t *members_json(const trace_run *run, const trace_stats *stats)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < run->worker_count + run->server_count; i++) {
        const trace_link_use *use = &stats->links[i];
        char label[48];
        trace_member_label(run, i, label, sizeof label);
        json_t *one = json_pack("{s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f}", "member", label, "machine",
                                (int)trace_run_machine(run, i), "out_bytes", (json_int_t)use->out_bytes, "in_bytes",
                                (json_int_t)use->in_bytes, "out_bits", use->out_bits, "in_bits", use->in_bits,
                                "out_used", use->out_used, "in_used", use->in_used);
        if (i < run->worker_count) {
            json_object_set_new(one, "last_of_partitions", json_integer((json_int_t)stats->stragglers[i].count));
            json_object_set_new(one, "others_waited_ms", json_real(to_ms(stats->stragglers[i].waited_ns)));
        }
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *steps_json(const trace_run *run, const trace_stats *stats)
{
    const trace_steps *steps = NULL;
    (void)median_step(stats, &steps);
    if (steps == NULL) {
        return json_null();
    }
    const double least_ns = t_opt(run, stats, steps);
    return json_pack("{s:s, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:b, s:f, s:f}", "member",
                     run->processes[steps->process].label, "count", (int)steps->count, "operations",
                     (int)steps->op_count, "bytes", (json_int_t)steps->bytes, "step_ms", to_ms((double)steps->step_ns),
                     "exchange_ms", to_ms((double)steps->exchange_ns), "alone_ms", to_ms((double)steps->alone_ns),
                     "gap_ms", to_ms((double)steps->gap_ns), "overlapped", steps->overlapped, "t_opt_ms",
                     to_ms(least_ns), "efficiency",
                     steps->exchange_ns > 0 ? least_ns / (double)steps->exchange_ns : 0.0);
}

json_t *trace_make_json(const trace_run *run, const trace_stats *stats)
{
    json_t *phases = json_object(), *stages = json_object(), *notes = json_array();
    for (unsigned i = 0; i < TRACE_PHASE_COUNT; i++) {
        json_object_set_new(phases, trace_phase_name((trace_phase)i), spread_json(&stats->phases[i]));
    }
    for (uint32_t i = 0; i < run->stage_count; i++) {
        json_object_set_new(stages, run->stages[i], spread_json(&stats->stages[i]));
    }
    for (uint32_t i = 0; i < run->warning_count; i++) {
        json_array_append_new(notes, json_string(run->warnings[i]));
    }
    json_t *choices = json_array();
    for (uint32_t i = 0; i < run->process_count; i++) {
        for (uint32_t k = 0; k < run->processes[i].file->choice_count; k++) {
            json_array_append_new(choices, json_string(run->processes[i].file->choices[k]));
        }
    }
    const trace_file *first = run->processes[0].file;
    return json_pack("{s:s, s:i, s:b, s:i, s:i, s:s, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, "
                     "s:o, s:o, s:o, s:s, "
                     "s:s}",
                     "job", first->job, "local_sum", (int)run->local_size, "one_host", run->one_host, "workers",
                     (int)run->worker_count, "servers", (int)run->server_count, "transport", first->transport,
                     "partition_bytes", (int)first->partition_bytes, "chunk_bytes", (int)first->chunk_bytes, "seconds",
                     (double)run->duration_ns / 1e9, "records", (json_int_t)run->event_count, "operations",
                     (json_int_t)stats->operations, "failed", (json_int_t)stats->failed, "bytes_summed",
                     (json_int_t)stats->bytes_summed, "arrivals", (json_int_t)run->arrivals, "early_arrivals",
                     (json_int_t)run->early_arrivals, "processes", processes_json(run), "steps", steps_json(run, stats),
                     "phases", phases, "stages", stages, "members", members_json(run, stats), "notes", notes, "choices",
                     choices, "limit", stats->limit_name, "limit_text", stats->limit);
}
