/* trace_chunks.c - see trace_chunks.h. */
#include "tools/trace/trace_chunks.h"
#include "tools/trace/compare.h"

#include <stdlib.h>

bool trace_chunk_is_near(const trace_event *event)
{
    return event->record.kind >= TRIB_TRACE_NEAR_ARRIVE && event->record.kind <= TRIB_TRACE_PARTIAL_SUM;
}

static int compare_chunk(const trace_event *event, uint32_t process, bool near, const trib_trace_record *key)
{
    const trib_trace_record *mine = &event->record;
    int order = compare_u64(event->process, process);
    order = order != 0 ? order : compare_u64(mine->tensor, key->tensor);
    order = order != 0 ? order : compare_u64(mine->partition, key->partition);
    order = order != 0 ? order : compare_u64(mine->round, key->round);
    order = order != 0 ? order : compare_u64(mine->extra, key->extra);
    return order != 0 ? order : compare_u64(trace_chunk_is_near(event), near);
}

bool trace_chunk_is_same(const trace_event *a, const trace_event *b)
{
    return compare_chunk(a, b->process, trace_chunk_is_near(b), &b->record) == 0;
}

static int by_chunk(const void *a, const void *b)
{
    const trace_event *left = *(const trace_event *const *)a, *right = *(const trace_event *const *)b;
    int order = compare_chunk(left, right->process, trace_chunk_is_near(right), &right->record);
    order = order != 0 ? order : (left->at_ns > right->at_ns) - (left->at_ns < right->at_ns);
    return order != 0 ? order : compare_u64(left->order, right->order);
}

bool trace_chunks_make(const trace_run *run, trace_chunks *chunks)
{
    *chunks = (trace_chunks){.events = calloc(run->event_count + 1, sizeof(const trace_event *))};
    for (uint64_t i = 0; chunks->events != NULL && i < run->event_count; i++) {
        const uint8_t kind = run->events[i].record.kind;
        if (kind == TRIB_TRACE_SUM_ARRIVE || kind == TRIB_TRACE_SUM_COMPLETE || kind == TRIB_TRACE_SUM_SENT ||
            kind == TRIB_TRACE_NEAR_ARRIVE || kind == TRIB_TRACE_NEAR_COMPLETE || kind == TRIB_TRACE_NEAR_SENT ||
            kind == TRIB_TRACE_PARTIAL_SUM) {
            chunks->events[chunks->count++] = &run->events[i];
        }
    }
    if (chunks->events != NULL) {
        qsort(chunks->events, chunks->count, sizeof(const trace_event *), by_chunk);
    }
    return chunks->events != NULL;
}

void trace_chunks_free(trace_chunks *chunks)
{
    free(chunks->events);
    *chunks = (trace_chunks){.count = 0};
}

uint64_t trace_chunks_find_near(const trace_chunks *chunks, uint32_t process, const trib_trace_record *record)
{
    uint64_t low = 0, high = chunks->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (compare_chunk(chunks->events[middle], process, true, record) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool found = low < chunks->count && compare_chunk(chunks->events[low], process, true, record) == 0;
    return found ? low : UINT64_MAX;
}
