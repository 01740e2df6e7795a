/* loads.c - see loads.h. */
#include "engine/loads.h"

#include <stdlib.h>

#include "engine/assert.h"
#include "engine/balance.h"
#include "engine/member.h"

#define HEAD_BYTES 12u
#define ENTRY_BYTES 14u
#define REPORT_BYTES_MIN (256u << 10) /* less waits for the next time */

/* Core 0's: what has been reported. */
struct trib_loads_told {
    int64_t at_ns;
    bool is_on_its_way; /* payload is with the transport */
    trib_out *spare;    /* until the first report */
    unsigned char payload[HEAD_BYTES + TRIB_BALANCE_MEMBERS_MAX * ENTRY_BYTES];
    struct {
        uint64_t bytes, busy_ns;
    } peers[];
};

static trib_load *load_of(const trib_link *link)
{
    trib_load *loads = link->core->loads;
    const bool counts = loads != NULL && link->conn != NULL && trib_link_carries_data(link) &&
                        link->peer < link->core->engine->roster->member_count;
    return counts ? &loads[link->peer] : NULL;
}

trib_status trib_loads_open(trib_core *core)
{
    const uint32_t count = core->engine->roster->member_count;
    trib_assert(core->loads == NULL && count <= TRIB_BALANCE_MEMBERS_MAX);
    core->loads = trib_core_zalloc(core, count * sizeof *core->loads);
    if (core->loads != NULL && core->reactor->index == 0) {
        core->loads_told = trib_core_zalloc(core, sizeof *core->loads_told + count * sizeof core->loads_told->peers[0]);
        if (core->loads_told != NULL) {
            core->loads_told->at_ns = trib_now(core->reactor);
            core->loads_told->spare = trib_core_zalloc(core, sizeof(trib_out)); /* or NULL */
        }
    }
    const bool is_whole = core->loads != NULL && (core->reactor->index != 0 || core->loads_told != NULL);
    if (is_whole) {
        atomic_store(&core->loads_open, true);
    }
    return is_whole ? TRIB_OK : TRIB_NO_MEMORY;
}

void trib_loads_close(trib_core *core)
{
    free(core->loads);
    if (core->loads_told != NULL) {
        free(core->loads_told->spare);
    }
    free(core->loads_told);
    core->loads = NULL;
    core->loads_told = NULL;
}

void trib_load_handed(trib_link *link)
{
    trib_load *load = link->in_flight == 0 ? load_of(link) : NULL;
    if (load != NULL) {
        link->busy_since_ns = trib_now(link->core->reactor);
        if (!link->is_counted) {
            link->is_counted = true;
            atomic_fetch_add(&load->links, 1);
        }
    }
}

void trib_load_back(trib_link *link, uint32_t bytes)
{
    trib_load *load = link->is_counted ? load_of(link) : NULL;
    if (load != NULL) {
        const int64_t now_ns = trib_now(link->core->reactor);
        trib_counter_add(&load->bytes, bytes);
        trib_counter_add(&load->busy_ns, (uint64_t)(now_ns - link->busy_since_ns));
        link->busy_since_ns = now_ns;
    }
}

/* What all cores have counted of a peer; the time is the mean of the links to it. */
static void add_up(const trib_engine *engine, uint32_t peer, uint64_t *bytes, uint64_t *busy_ns)
{
    uint32_t links = 0;
    *bytes = *busy_ns = 0;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (atomic_load(&engine->cores[i].loads_open)) {
            const trib_load *load = &engine->cores[i].loads[peer];
            *bytes += trib_counter_get(&load->bytes);
            *busy_ns += trib_counter_get(&load->busy_ns);
            links += atomic_load(&load->links);
        }
    }
    *busy_ns /= links > 0 ? links : 1;
}

static void put_new(const trib_core *core, trib_writer *writer, uint32_t *count, uint64_t *new_bytes)
{
    for (uint32_t i = 0; i < core->engine->roster->member_count; i++) {
        uint64_t bytes, busy_ns;
        add_up(core->engine, i, &bytes, &busy_ns);
        const uint64_t before = core->loads_told->peers[i].bytes, before_ns = core->loads_told->peers[i].busy_ns;
        const uint64_t more = bytes - before;
        core->loads_told->peers[i].bytes = bytes;
        core->loads_told->peers[i].busy_ns = busy_ns;
        if (more > 0) {
            trib_put_u16(writer, (uint16_t)i);
            trib_put_u32(writer, (uint32_t)((busy_ns > before_ns ? busy_ns - before_ns : 0) / 1000));
            trib_put_u64(writer, more);
            *new_bytes += more;
            (*count)++;
        }
    }
}

/* Messages come from a pool that has grown to what the core needs; a report is one more. */
static void add_spare(trib_core *core)
{
    trib_out *out = core->loads_told->spare;
    core->loads_told->spare = NULL;
    if (out != NULL) {
        out->next = core->free_outs;
        core->free_outs = out;
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
    if (told == NULL || told->is_on_its_way || core->ended) { /* who only keeps the membership has none */
        return;
    }
    trib_link *link = trib_member_link(core->engine->member);
    if (link == NULL) {
        return;
    }
    const int64_t now_ns = trib_now(core->reactor), elapsed_us = (now_ns - told->at_ns) / 1000;
    trib_writer head = {.data = told->payload, .capacity = HEAD_BYTES};
    trib_writer entries = {.data = told->payload + HEAD_BYTES, .capacity = sizeof told->payload - HEAD_BYTES};
    uint32_t count = 0;
    uint64_t new_bytes = 0;
    put_new(core, &entries, &count, &new_bytes);
    told->at_ns = now_ns;
    if (new_bytes < REPORT_BYTES_MIN || elapsed_us <= 0) {
        return;
    }
    trib_put_u32(&head, elapsed_us > UINT32_MAX ? UINT32_MAX : (uint32_t)elapsed_us);
    trib_put_u32(&head, atomic_load(&core->engine->moves_unsettled));
    trib_put_u32(&head, count);
    trib_assert(!head.overflow && !entries.overflow);
    add_spare(core);
    const trib_frame frame = {.type = TRIB_FRAME_LOADS, .payload_size = (uint32_t)(head.size + entries.size)};
    told->is_on_its_way = trib_link_send(link, &frame, told->payload, report_sent, told) == TRIB_OK;
}
