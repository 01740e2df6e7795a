/* link_bed.h - one core of a worker or a server with links in place. The test plays the transport and the peers. For
 * one test program. */
#ifndef TRIB_TESTS_LINK_BED_H
#define TRIB_TESTS_LINK_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utlist.h>

#include "engine/worker/op.h"
#include "engine/aggregate/summation.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/worker/worker.h"
#include "stages/kernels/kernels.h"
#include "stages/plans.h"
#include "transports/transport_defaults.h"

#define CHUNK_BYTES 4096u
#define CHUNKS 2u
#define MEMBERS 4u
#define EPOCH (7u << TRIB_EPOCH_NUMBER_BITS | 1u)

/* One core of member 0, and its connections to or from the others. */
typedef struct bed {
    trib_engine *engine;
    trib_roster *roster;
    trib_core core;
    trib_reactor reactor;
    trib_transport transport;
    trib_conn conns[MEMBERS];
    trib_link *links[MEMBERS];
    uint32_t resumed; /* connections that were told to resume */
    uint32_t handed_out;
    /* The worker's one tensor: one partition, which member 1 sums. */
    trib_tensor tensor;
    trib_tensor_core tensor_core;
    trib_place_owner owner;
    uint32_t task_index;
    trib_task task;
    uint64_t received;
    trib_op_core op_core;
    trib_op *op;
    unsigned char output[CHUNKS * CHUNK_BYTES];
} bed;

static int64_t fake_now(trib_reactor *reactor)
{
    (void)reactor;
    return 1;
}

static void fake_charge(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    (void)reactor;
    (void)cost;
    (void)bytes;
}

static void no_timer(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    (void)timer;
}

static void count_resume(trib_conn *conn)
{
    ((bed *)conn->transport->user)->resumed++;
}

static void no_close(trib_conn *conn, bool flush)
{
    (void)conn;
    (void)flush;
}

static const trib_reactor_ops fake_reactor = {
    .name = "fake", .now_ns = fake_now, .now_fast_ns = fake_now, .timer_stop = no_timer, .charge = fake_charge};
static const trib_transport_ops fake_transport = {
    .name = "fake", .recv_resume = count_resume, .lease = trib_transport_never_leases, .conn_close = no_close};

static void bed_open(bed *self, uint32_t local_size)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    self->roster = trib_roster_create(MEMBERS);
    assert_non_null(self->engine);
    assert_non_null(self->roster);
    self->roster->worker_count = MEMBERS;
    self->roster->local_size = local_size;
    self->roster->chunk_bytes = CHUNK_BYTES;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        self->roster->members[i] = (trib_member_info){.sums = true, .reactors = 1};
    }
    atomic_store(&self->engine->roster, self->roster);
    self->engine->core_count = 1;
    self->engine->env.kernels = trib_kernels_best();
    self->reactor.ops = &fake_reactor;
    self->engine->reactors[0].reactor = &self->reactor;
    self->transport = (trib_transport){.ops = &fake_transport, .user = self};
    trib_core *core = &self->core;
    trib_core_init(core, self->engine, &self->reactor, &trib_link_second_upcalls);
    core->host.epoch = EPOCH;
    core->discard = malloc(TRIB_PAYLOAD_MAX);
    core->stages = calloc(TRIB_STAGE_COUNT, sizeof *core->stages);
    core->owner_links = calloc((size_t)MEMBERS * TRIB_REACTORS_MAX, sizeof(trib_link *));
    core->worker_links = calloc(MEMBERS, sizeof(trib_link *));
    assert_true(core->discard != NULL && core->stages != NULL && core->owner_links != NULL &&
                core->worker_links != NULL);
}

static trib_link *bed_link(bed *self, uint32_t member, const trib_link_upcalls *upcalls)
{
    trib_link *link = calloc(1, sizeof *link);
    assert_non_null(link);
    link->host = &self->core.host;
    link->core = &self->core;
    link->upcalls = upcalls;
    link->state = TRIB_LINK_READY;
    link->peer = member;
    link->conn = &self->conns[member];
    self->conns[member] = (trib_conn){.transport = &self->transport, .user = link};
    DL_PREPEND2(self->core.host.links, link, previous, next);
    self->links[member] = link;
    self->core.owner_links[trib_relay_owner(member, 0)] = link;
    return link;
}

/* The core sums the workers' contributions in that way. */
static trib_summation *bed_open_sum(bed *self, const trib_summation_config *config)
{
    trib_summation *summation = NULL;
    self->core.sums = calloc(TRIB_SUM_SHARD, sizeof *self->core.sums);
    assert_non_null(self->core.sums);
    assert_int_equal(trib_summation_create(config, &summation), TRIB_OK);
    self->core.sum_count = TRIB_SUM_SHARD;
    self->core.sums[TRIB_SUM_RANK] = (trib_server_sum){.core = &self->core,
                                                       .aggregator = trib_sum_aggregator(summation),
                                                       .rank_step = 1,
                                                       .count = config->contributor_count};
    return summation;
}

static trib_summation *bed_summation(const bed *self)
{
    return trib_sum_aggregator_summation(self->core.sums[TRIB_SUM_RANK].aggregator);
}

/* Ends all connections. Afterwards nothing may be left of the received frames. */
static void bed_close(bed *self)
{
    self->core.ended = self->core.host.is_closed = true; /* the engine need not be told */
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (self->links[i] != NULL) {
            trib_link_transport_upcalls.closed(&self->conns[i], TRIB_PEER_LOST, "over");
        }
    }
    assert_null(self->core.host.links);
    assert_int_equal(self->task.held[TRIB_HOLD_RECEIVE], 0);
    trib_server_sums_close(&self->core);
    trib_link_host_close(&self->core.host);
    free(self->core.discard);
    free(self->core.stages);
    free(self->core.owner_links);
    free(self->core.worker_links);
    free(self->op);
    free(self->roster);
    free(self->engine);
}

/* ---- What peers say ---- */

static trib_frame sum_frame(uint32_t chunk)
{
    return (trib_frame){.type = TRIB_FRAME_SUM,
                        .payload_size = CHUNK_BYTES,
                        .round = 1,
                        .chunk = chunk,
                        .chunk_count = CHUNKS,
                        .size = CHUNK_BYTES};
}

static trib_status ask(bed *self, uint32_t member, trib_frame frame, trib_recv_target *target)
{
    unsigned char header[TRIB_HEADER_SIZE];
    frame.epoch = EPOCH;
    frame.sender = member;
    trib_frame_encode(&frame, header);
    return trib_link_transport_upcalls.header(&self->conns[member], header, target);
}

/* The payload of the first header has landed. */
static void deliver_value(bed *self, uint32_t member, const trib_recv_target *target, int value)
{
    const unsigned char header[TRIB_HEADER_SIZE] = {0};
    if (target->payload_size > 0) {
        memset(target->buffer, value, target->payload_size);
    }
    trib_link_transport_upcalls.received(&self->conns[member], header, target->buffer, target->payload_size);
}

static void deliver_text(bed *self, uint32_t member, const trib_recv_target *target)
{
    const unsigned char header[TRIB_HEADER_SIZE] = {0};
    trib_link_transport_upcalls.received(&self->conns[member], header, target->buffer, target->payload_size);
}

static void assert_said(const bed *self, uint32_t member, const char *words)
{
    const char *reason = self->links[member]->end.detail;
    if (strstr(reason, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, reason);
    }
}

#endif
