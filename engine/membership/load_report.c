/* load_report.c - see load_report.h. */
#include "engine/membership/load_report.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/cluster/rate_estimator.h"
#include "engine/membership/member.h"

#define HEAD_BYTES 12u
#define ENTRY_BYTES 14u
/* Fewer bytes are reported later, together with the next ones. Small rounds add up, and on a slow link a chunk takes
 * longer than the time between two looks. */
#define REPORT_BYTES_MIN (256u << 10)

/* Owned by core 0: the counts that were reported, and the counts since. */
struct trib_load_report {
    int64_t at_ns;      /* time of the last look */
    int64_t elapsed_ns; /* time not reported yet, without pauses */
    uint64_t new_bytes; /* bytes not reported yet, at the last look */
    bool is_on_its_way; /* the link still keeps the payload */
    unsigned char payload[HEAD_BYTES + TRIB_RATE_MEMBERS_MAX * ENTRY_BYTES];
    struct {
        uint64_t bytes, busy_ns; /* counts at the last report */
    } peers[];
};

/* The counts of all cores for one peer. */
typedef struct carried {
    uint64_t bytes, busy_ns; /* the time is the mean over the links to the peer */
    bool is_busy;
} carried;

trib_status trib_load_report_open(trib_core *core)
{
    const uint32_t count = core->engine->roster->member_count;
    trib_assert(core->host.loads == NULL && count <= TRIB_RATE_MEMBERS_MAX);
    core->host.loads = trib_core_zalloc(core, count * sizeof *core->host.loads);
    if (core->host.loads != NULL && core->reactor->index == 0) {
        core->load_report =
            trib_core_zalloc(core, sizeof *core->load_report + count * sizeof core->load_report->peers[0]);
        if (core->load_report != NULL) {
            core->load_report->at_ns = trib_now(core->reactor);
        }
    }
    const bool is_whole = core->host.loads != NULL && (core->reactor->index != 0 || core->load_report != NULL);
    if (is_whole) {
        atomic_store(&core->loads_are_open, true);
    }
    return is_whole ? TRIB_OK : TRIB_NO_MEMORY;
}

void trib_load_report_close(trib_core *core)
{
    free(core->host.loads);
    free(core->load_report);
    core->host.loads = NULL;
    core->load_report = NULL;
}

static carried add_up(const trib_engine *engine, uint32_t peer)
{
    carried sum = {.bytes = 0};
    uint32_t links = 0;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (atomic_load(&engine->cores[i].loads_are_open)) {
            const trib_link_stats *load = &engine->cores[i].host.loads[peer];
            sum.bytes += trib_counter_get(&load->bytes);
            sum.busy_ns += trib_counter_get(&load->busy_ns);
            sum.is_busy = sum.is_busy || atomic_load(&load->busy_links) > 0;
            links += atomic_load(&load->links);
        }
    }
    sum.busy_ns /= links > 0 ? links : 1;
    return sum;
}

/* Counts the time since the last look only if bytes moved or are in flight. Otherwise the job was doing something else,
 * and the time says nothing about the network. */
static void note_progress(const trib_core *core)
{
    struct trib_load_report *report = core->load_report;
    const int64_t now_ns = trib_now(core->reactor);
    uint64_t new_bytes = 0;
    bool is_busy = false;
    for (uint32_t i = 0; i < core->engine->roster->member_count; i++) {
        const carried now = add_up(core->engine, i);
        new_bytes += now.bytes - report->peers[i].bytes;
        is_busy = is_busy || now.is_busy;
    }
    if (is_busy || new_bytes > report->new_bytes) {
        report->elapsed_ns += now_ns - report->at_ns;
    }
    report->new_bytes = new_bytes;
    report->at_ns = now_ns;
}

static uint32_t us_of(uint64_t ns)
{
    return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

static uint32_t put_new(const trib_core *core, trib_writer *writer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->engine->roster->member_count; i++) {
        const carried now = add_up(core->engine, i);
        const uint64_t before = core->load_report->peers[i].bytes, before_ns = core->load_report->peers[i].busy_ns;
        core->load_report->peers[i].bytes = now.bytes;
        core->load_report->peers[i].busy_ns = now.busy_ns;
        if (now.bytes > before) {
            trib_put_u16(writer, (uint16_t)i);
            trib_put_u32(writer, now.busy_ns > before_ns ? us_of(now.busy_ns - before_ns) : 0);
            trib_put_u64(writer, now.bytes - before);
            count++;
        }
    }
    return count;
}

static void report_sent(trib_send_record *out, trib_status status)
{
    (void)status;
    struct trib_load_report *report = out->context;
    trib_assert(report->is_on_its_way);
    report->is_on_its_way = false;
}

void trib_load_report_send(trib_core *core)
{
    struct trib_load_report *report = core->load_report;
    if (report == NULL || core->ended) { /* a dedicated coordinator has no report */
        return;
    }
    note_progress(core);
    trib_link *link = trib_member_link(core->engine->member);
    if (report->is_on_its_way || link == NULL || report->new_bytes < REPORT_BYTES_MIN || report->elapsed_ns < 1000) {
        return;
    }
    trib_writer head = {.data = report->payload, .capacity = HEAD_BYTES};
    trib_writer entries = {.data = report->payload + HEAD_BYTES, .capacity = sizeof report->payload - HEAD_BYTES};
    const uint32_t count = put_new(core, &entries);
    trib_put_u32(&head, us_of((uint64_t)report->elapsed_ns));
    trib_put_u32(&head, atomic_load(&core->engine->moves_unsettled));
    trib_put_u32(&head, count);
    trib_assert(!head.overflow && !entries.overflow);
    trib_assert(head.size == HEAD_BYTES && entries.size == (size_t)count * ENTRY_BYTES);
    report->elapsed_ns = 0;
    report->new_bytes = 0;
    const trib_frame frame = {.type = TRIB_FRAME_LOADS, .payload_size = (uint32_t)(head.size + entries.size)};
    report->is_on_its_way = trib_link_send(link, &frame, report->payload, report_sent, report) == TRIB_OK;
}
