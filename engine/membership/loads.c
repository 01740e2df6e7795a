/* loads.c - see loads.h. */
#include "engine/membership/loads.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/cluster/balance.h"
#include "engine/membership/member.h"

#define HEAD_BYTES 12u
#define ENTRY_BYTES 14u
/* Less is reported with what comes next: small rounds add up, and on a slow link a chunk takes longer than from one
 * look to the next. */
#define REPORT_BYTES_MIN (256u << 10)

/* Core 0's: what has been reported, and what it has seen since. */
struct trib_loads_told {
    int64_t at_ns;      /* of the last look */
    int64_t elapsed_ns; /* not reported yet, pauses left out */
    uint64_t new_bytes; /* not reported yet, at the last look */
    bool is_on_its_way; /* payload is with the transport */
    trib_out *spare;    /* until the first report */
    unsigned char payload[HEAD_BYTES + TRIB_BALANCE_MEMBERS_MAX * ENTRY_BYTES];
    struct {
        uint64_t bytes, busy_ns; /* at the last report */
    } peers[];
};

/* What all cores have counted of a peer. */
typedef struct carried {
    uint64_t bytes, busy_ns; /* the time is the mean of the links to it */
    bool is_busy;
} carried;

trib_status trib_loads_open(trib_core *core)
{
    const uint32_t count = core->engine->roster->member_count;
    trib_assert(core->host.loads == NULL && count <= TRIB_BALANCE_MEMBERS_MAX);
    core->host.loads = trib_core_zalloc(core, count * sizeof *core->host.loads);
    if (core->host.loads != NULL && core->reactor->index == 0) {
        core->loads_told = trib_core_zalloc(core, sizeof *core->loads_told + count * sizeof core->loads_told->peers[0]);
        if (core->loads_told != NULL) {
            core->loads_told->at_ns = trib_now(core->reactor);
            core->loads_told->spare = trib_core_zalloc(core, sizeof(trib_out)); /* or NULL */
        }
    }
    const bool is_whole = core->host.loads != NULL && (core->reactor->index != 0 || core->loads_told != NULL);
    if (is_whole) {
        atomic_store(&core->loads_open, true);
    }
    return is_whole ? TRIB_OK : TRIB_NO_MEMORY;
}

void trib_loads_close(trib_core *core)
{
    free(core->host.loads);
    if (core->loads_told != NULL) {
        free(core->loads_told->spare);
    }
    free(core->loads_told);
    core->host.loads = NULL;
    core->loads_told = NULL;
}

static carried add_up(const trib_engine *engine, uint32_t peer)
{
    carried sum = {.bytes = 0};
    uint32_t links = 0;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (atomic_load(&engine->cores[i].loads_open)) {
            const trib_link_load *load = &engine->cores[i].host.loads[peer];
            sum.bytes += trib_counter_get(&load->bytes);
            sum.busy_ns += trib_counter_get(&load->busy_ns);
            sum.is_busy = sum.is_busy || atomic_load(&load->busy_links) > 0;
            links += atomic_load(&load->links);
        }
    }
    sum.busy_ns /= links > 0 ? links : 1;
    return sum;
}

/* While nothing moves and nothing is under way the job does something else: that says nothing of the network. */
static void look(const trib_core *core)
{
    struct trib_loads_told *told = core->loads_told;
    const int64_t now_ns = trib_now(core->reactor);
    uint64_t new_bytes = 0;
    bool is_busy = false;
    for (uint32_t i = 0; i < core->engine->roster->member_count; i++) {
        const carried now = add_up(core->engine, i);
        new_bytes += now.bytes - told->peers[i].bytes;
        is_busy = is_busy || now.is_busy;
    }
    if (is_busy || new_bytes > told->new_bytes) {
        told->elapsed_ns += now_ns - told->at_ns;
    }
    told->new_bytes = new_bytes;
    told->at_ns = now_ns;
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
        const uint64_t before = core->loads_told->peers[i].bytes, before_ns = core->loads_told->peers[i].busy_ns;
        core->loads_told->peers[i].bytes = now.bytes;
        core->loads_told->peers[i].busy_ns = now.busy_ns;
        if (now.bytes > before) {
            trib_put_u16(writer, (uint16_t)i);
            trib_put_u32(writer, now.busy_ns > before_ns ? us_of(now.busy_ns - before_ns) : 0);
            trib_put_u64(writer, now.bytes - before);
            count++;
        }
    }
    return count;
}

/* Messages come from a pool that has grown to what the core needs; a report is one more. */
static void add_spare(trib_core *core)
{
    trib_out *out = core->loads_told->spare;
    core->loads_told->spare = NULL;
    if (out != NULL) {
        out->next = core->host.free_outs;
        core->host.free_outs = out;
    }
}

static void report_sent(trib_out *out, trib_status status)
{
    (void)status;
    struct trib_loads_told *told = out->context;
    told->is_on_its_way = false;
}

void trib_loads_report(trib_core *core)
{
    struct trib_loads_told *told = core->loads_told;
    if (told == NULL || core->ended) { /* who only keeps the membership has none */
        return;
    }
    look(core);
    trib_link *link = trib_member_link(core->engine->member);
    if (told->is_on_its_way || link == NULL || told->new_bytes < REPORT_BYTES_MIN || told->elapsed_ns < 1000) {
        return;
    }
    trib_writer head = {.data = told->payload, .capacity = HEAD_BYTES};
    trib_writer entries = {.data = told->payload + HEAD_BYTES, .capacity = sizeof told->payload - HEAD_BYTES};
    const uint32_t count = put_new(core, &entries);
    trib_put_u32(&head, us_of((uint64_t)told->elapsed_ns));
    trib_put_u32(&head, atomic_load(&core->engine->moves_unsettled));
    trib_put_u32(&head, count);
    trib_assert(!head.overflow && !entries.overflow);
    told->elapsed_ns = 0;
    told->new_bytes = 0;
    add_spare(core);
    const trib_frame frame = {.type = TRIB_FRAME_LOADS, .payload_size = (uint32_t)(head.size + entries.size)};
    told->is_on_its_way = trib_link_send(link, &frame, told->payload, report_sent, told) == TRIB_OK;
}
