/* trace_run.c - puts the files of a job together: see trace_run.h. */
#include "tools/trace/trace_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cluster/roster.h"

void trace_run_warn(trace_run *run, const char *format, ...)
{
    if (run->warning_count < TRACE_WARNINGS_MAX) {
        va_list list;
        va_start(list, format);
        vsnprintf(run->warnings[run->warning_count++], sizeof run->warnings[0], format, list);
        va_end(list);
    }
}

/* ---- Names ---- */

void trace_member_label(const trace_run *run, uint32_t member, char *text, size_t size)
{
    if (member < run->worker_count) {
        snprintf(text, size, "rank %u", member);
    } else if (member < run->worker_count + run->server_count) {
        snprintf(text, size, "server %u", member - run->worker_count);
    } else {
        snprintf(text, size, member == TRIB_NO_MEMBER ? "coordinator" : "member %u", member);
    }
}

const char *trace_tensor_name(const trace_run *run, uint32_t id, char *buffer, size_t size)
{
    if (id < run->tensor_count && run->tensors[id] != NULL) {
        return run->tensors[id]->name;
    }
    snprintf(buffer, size, id == UINT32_MAX ? "a tensor without a place" : "tensor %u", id);
    return buffer;
}

const trace_process *trace_run_member(const trace_run *run, uint32_t member)
{
    if (member < run->process_count && run->processes[member].member == member) {
        return &run->processes[member]; /* no member before it is missing */
    }
    for (uint32_t i = 0; i < run->process_count; i++) {
        if (run->processes[i].member == member) {
            return &run->processes[i];
        }
    }
    return NULL;
}

uint32_t trace_run_machine(const trace_run *run, uint32_t member)
{
    return member < run->member_count ? run->members[member].machine : member;
}

/* ---- One job? ---- */

static int by_member(const void *a, const void *b)
{
    const trace_process *left = a, *right = b;
    return (left->member > right->member) - (left->member < right->member);
}

static trib_status check_pair(const trace_file *first, const trace_file *other, trib_error *error)
{
    if (strcmp(first->job, other->job) != 0 || first->worker_count != other->worker_count ||
        first->server_count != other->server_count) {
        return trib_error_set(error, TRIB_INVALID,
                              "%s is of job \"%s\" (%u workers, %u servers), %s of job \"%s\" (%u workers, %u servers)",
                              first->path, first->job, first->worker_count, first->server_count, other->path,
                              other->job, other->worker_count, other->server_count);
    }
    for (uint32_t i = 0; i < first->member_count && i < other->member_count; i++) {
        if (strcmp(first->members[i].name, other->members[i].name) != 0) {
            return trib_error_set(error, TRIB_INVALID, "%s and %s are of two runs: with one %s was there, with one %s",
                                  first->path, other->path, first->members[i].name, other->members[i].name);
        }
    }
    return TRIB_OK;
}

static trib_status check_job(trace_run *run, trib_error *error)
{
    qsort(run->processes, run->process_count, sizeof run->processes[0], by_member);
    const trace_file *first = run->processes[0].file;
    run->worker_count = first->worker_count;
    run->server_count = first->server_count;
    run->local_size = first->local_size;
    for (uint32_t i = 0; i < run->process_count; i++) { /* a process that never joined knows no members */
        if (run->processes[i].file->member_count > run->member_count) {
            run->members = run->processes[i].file->members;
            run->member_count = run->processes[i].file->member_count;
            run->local_size = run->processes[i].file->local_size;
        }
    }
    run->one_host = run->member_count > 1;
    for (uint32_t i = 0; i < run->member_count; i++) {
        run->one_host = run->one_host && run->members[i].machine == 0;
    }
    for (uint32_t i = 0; i < run->process_count; i++) {
        trace_process *process = &run->processes[i];
        trib_status status = check_pair(first, process->file, error);
        if (status != TRIB_OK) {
            return status;
        }
        trace_member_label(run, process->member, process->label, sizeof process->label);
        process->is_worker = process->member < run->worker_count;
        if (i > 0 && process->member == run->processes[i - 1].member) {
            return trib_error_set(error, TRIB_INVALID, "%s and %s are both of %s", run->processes[i - 1].file->path,
                                  process->file->path, process->label);
        }
    }
    for (uint32_t i = 0; i < run->worker_count + run->server_count; i++) {
        char label[48];
        trace_member_label(run, i, label, sizeof label);
        if (trace_run_member(run, i) == NULL && run->warning_count < TRACE_WARNINGS_MAX / 2) {
            trace_run_warn(run, "there is no trace of %s", label);
        }
    }
    return TRIB_OK;
}

/* ---- Tensors and stages ---- */

static bool collect_tensors(trace_run *run)
{
    for (uint32_t i = 0; i < run->process_count; i++) {
        const trace_file *file = run->processes[i].file;
        for (uint32_t k = 0; k < file->tensor_count; k++) {
            const uint32_t id = file->tensors[k].id;
            run->tensor_count = id != UINT32_MAX && id >= run->tensor_count ? id + 1 : run->tensor_count;
        }
    }
    run->tensors = calloc(run->tensor_count + 1, sizeof *run->tensors);
    for (uint32_t i = 0; run->tensors != NULL && i < run->process_count; i++) {
        const trace_file *file = run->processes[i].file;
        for (uint32_t k = 0; k < file->tensor_count; k++) {
            const trace_tensor *tensor = &file->tensors[k];
            if (tensor->id != UINT32_MAX && run->tensors[tensor->id] == NULL) {
                run->tensors[tensor->id] = tensor;
            }
        }
    }
    return run->tensors != NULL;
}

static uint8_t stage_of(trace_run *run, const char *name)
{
    for (uint32_t i = 0; i < run->stage_count; i++) {
        if (strcmp(run->stages[i], name) == 0) {
            return (uint8_t)i;
        }
    }
    if (run->stage_count == TRACE_STAGES_MAX) {
        return TRIB_TRACE_NO_STAGE;
    }
    run->stages[run->stage_count] = name;
    return (uint8_t)run->stage_count++;
}

/* ---- Events ---- */

static bool is_of_server(const trib_trace_record *record)
{
    return record->kind >= TRIB_TRACE_SUM_ARRIVE && record->kind <= TRIB_TRACE_PARTIAL_SUM;
}

static void add_events(trace_run *run, uint16_t index)
{
    trace_process *process = &run->processes[index];
    const trace_file *file = process->file;
    for (uint32_t i = 0; i < file->cores_recorded; i++) {
        process->lost += file->cores[i].lost;
        for (uint64_t k = 0; k < file->cores[i].count; k++) {
            trace_event *event = &run->events[run->event_count];
            event->record = file->cores[i].records[k];
            event->process = index;
            event->core = (uint16_t)file->cores[i].core;
            event->order = (uint32_t)run->event_count++;
            trib_trace_record *record = &event->record;
            int64_t error_ns = 0;
            event->at_ns = trace_clock_map(&process->clock, record->at_ns, &error_ns);
            process->clock_error_ns = error_ns > process->clock_error_ns ? error_ns : process->clock_error_ns;
            if (!is_of_server(record) && record->kind < TRIB_TRACE_LINK_READY) {
                record->tensor =
                    record->tensor < file->tensor_count ? file->tensors[record->tensor].id : (uint32_t)UINT32_MAX;
            }
            if (record->stage != TRIB_TRACE_NO_STAGE) {
                record->stage = stage_of(run, file->stages[record->stage]);
            }
        }
    }
    process->records = file->record_count;
    if (process->lost > 0) {
        trace_run_warn(run, "%s: %llu records were overwritten: its ring was too small (TRIB_TRACE_BYTES)",
                       process->label, (unsigned long long)process->lost);
    }
}

static int by_time(const void *a, const void *b)
{
    const trace_event *left = a, *right = b;
    if (left->at_ns != right->at_ns) {
        return left->at_ns > right->at_ns ? 1 : -1;
    }
    return (left->order > right->order) - (left->order < right->order);
}

static trib_status make_events(trace_run *run, trib_error *error)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < run->process_count; i++) {
        count += run->processes[i].file->record_count;
    }
    if (count > UINT32_MAX) {
        return trib_error_set(error, TRIB_INVALID, "%llu records are too many at once: give fewer files",
                              (unsigned long long)count);
    }
    run->events = calloc(count + 1, sizeof *run->events);
    if (run->events == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %llu records", (unsigned long long)count);
    }
    for (uint32_t i = 0; i < run->process_count; i++) {
        trace_process *process = &run->processes[i];
        if (!trace_clock_make(&process->clock, process->file->samples, process->file->sample_count)) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a clock");
        }
        if (process->clock.broken) {
            trace_run_warn(run, "%s: its clock jumped or drifted too much: do not trust its times", process->label);
        }
        add_events(run, (uint16_t)i);
        if (process->file->reference) {
            process->clock_error_ns = 0;
        } else if (process->clock.count == 0 && run->process_count > 1) {
            process->clock_error_ns = INT64_MAX;
            trace_run_warn(run, "%s: the offset of its clock from the coordinator's is unknown", process->label);
        }
    }
    qsort(run->events, run->event_count, sizeof *run->events, by_time);
    const int64_t began_ns = run->event_count > 0 ? run->events[0].at_ns : 0;
    for (uint64_t i = 0; i < run->event_count; i++) {
        run->events[i].at_ns -= began_ns;
    }
    run->duration_ns = run->event_count > 0 ? run->events[run->event_count - 1].at_ns : 0;
    return TRIB_OK;
}

/* ---- The whole ---- */

trib_status trace_run_load(char *const *paths, uint32_t count, trace_run **run_out, trib_error *error)
{
    trace_run *run = calloc(1, sizeof *run);
    if (run != NULL) {
        run->processes = calloc(count, sizeof *run->processes);
    }
    if (run == NULL || run->processes == NULL) {
        free(run);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    trib_status status =
        count > 0 && count <= TRIB_MEMBERS_MAX + 1
            ? TRIB_OK
            : trib_error_set(error, TRIB_INVALID, "a job has 1 to %u files, not %u", TRIB_MEMBERS_MAX + 1, count);
    for (uint32_t i = 0; status == TRIB_OK && i < count; i++) {
        trace_process *process = &run->processes[i];
        status = trace_file_load(paths[i], &process->file, error);
        if (status == TRIB_OK) {
            process->member = process->file->member;
            run->process_count++;
        }
    }
    if (status == TRIB_OK) {
        status = check_job(run, error);
    }
    if (status == TRIB_OK && !collect_tensors(run)) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the tensors");
    }
    if (status == TRIB_OK) {
        status = make_events(run, error);
    }
    if (status == TRIB_OK && !trace_spans_make(run)) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the partitions");
    }
    if (status != TRIB_OK) {
        trace_run_free(run);
        return status;
    }
    *run_out = run;
    return TRIB_OK;
}

void trace_run_free(trace_run *run)
{
    for (uint32_t i = 0; run != NULL && i < run->process_count; i++) {
        free(run->processes[i].clock.knots);
        trace_file_free(run->processes[i].file);
    }
    if (run != NULL) {
        free(run->processes);
        free(run->tensors);
        free(run->events);
        free(run->spans);
        free(run);
    }
}
