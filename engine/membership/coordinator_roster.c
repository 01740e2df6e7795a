/* coordinator_roster.c - the roster that begins an epoch: who sums, and what holds for the whole job. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/cluster/machines.h"
#include "engine/membership/formation.h"
#include "engine/membership/rebalance.h"
#include "engine/membership/tenure.h"

#define STAND_BY_MAX 16u

/* True if workers sum beside the dedicated servers. On one machine that gains nothing. Across machines it helps if
 * there are fewer servers than workers (OSDI'20), or if the servers' links carry less. The shares, which are computed
 * from the links, settle that. */
static bool workers_should_sum(const trib_coordinator *self, const trib_roster *roster)
{
    trib_colocate colocate = self->core->engine->config.colocate;
    if (self->server_count == 0) {
        return true;
    }
    if (colocate != TRIB_COLOCATE_AUTO) {
        return colocate == TRIB_COLOCATE_ON;
    }
    if (roster->local_size > 0 || self->worker_count == 1) {
        const uint32_t each = roster->local_size > 0 ? roster->local_size : 1;
        return self->server_count < self->worker_count / each && !trib_roster_is_one_host(roster);
    }
    return !trib_roster_is_one_host(roster);
}

static uint32_t local_size_of(const trib_coordinator *self, const trib_roster *roster)
{
    const trib_local_sum wanted = self->core->engine->config.local_sum;
    char why[TRIB_MACHINES_WHY_SIZE];
    const uint32_t local_size = trib_machines_local_size(roster, wanted, why);
    trib_logger *logger = self->core->reactor->logger;
    if (local_size > 0) {
        trib_log(logger, TRIB_LOG_INFO, "the %u workers of each machine sum first", local_size);
    } else {
        trib_log(logger, wanted == TRIB_LOCAL_SUM_ON ? TRIB_LOG_WARN : TRIB_LOG_DEBUG,
                 "the workers of a machine do not sum first: %s", why);
    }
    return local_size;
}

/* Decides whether shares follow the measured rates of links, and which workers without a share stand by. Where some
 * workers have a share all others stand by: what belongs to a worker alone, or to two or a group of such workers, would
 * else be with a worker that leaves when it is done with its own. Where no worker has a share, they stand by for one
 * if shares follow, unless that makes too many connections. */
static void stand_by(const trib_coordinator *self, trib_roster *roster, trib_place_member *members)
{
    bool is_needed = false;
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        is_needed = is_needed || roster->members[i].sums;
    }
    const bool is_wanted = self->core->engine->config.shares == TRIB_SHARES_FOLLOW && !roster->survives;
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        trib_member_info *info = &roster->members[i];
        const bool may = is_needed || (is_wanted && roster->worker_count <= STAND_BY_MAX);
        info->stands_by = members[i].can_sum && !info->sums && may;
        info->sums = info->sums || info->stands_by;
    }
    roster->follows = is_wanted && trib_rebalance_is_possible(roster);
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        trib_member_info *info = &roster->members[i];
        if (info->stands_by && !roster->follows && !is_needed) {
            info->stands_by = info->sums = false;
        }
        members[i].can_sum = info->sums;
    }
}

/* Counts all ranks, those of lost workers, too, if ranks stay as they were. */
static uint32_t count_ranks(const trib_roster *roster, const trib_formation *formation)
{
    const uint32_t before = roster->continues ? formation->ranks_used : 0;
    const uint32_t now = roster->members[roster->worker_count - 1].rank + 1;
    return before > now ? before : now;
}

static trib_status make_roster(trib_coordinator *self)
{
    const trib_config *config = &self->core->engine->config;
    uint32_t count = trib_coordinator_slots(self);
    trib_roster *roster = trib_roster_create(count);
    trib_place_member *members = calloc(count, sizeof *members);
    if (roster == NULL || members == NULL) {
        free(roster);
        free(members);
        return TRIB_NO_MEMORY;
    }
    roster->epoch = trib_formation_next_epoch(self);
    roster->worker_count = self->worker_count;
    roster->server_count = self->server_count;
    roster->partition_bytes = config->partition_bytes;
    roster->chunk_bytes = config->chunk_bytes;
    roster->sum_order = config->sum_order;
    roster->peer_timeout_ns = config->peer_timeout_ns;
    for (uint32_t i = 0; i < count; i++) {
        roster->members[i] = self->slots[i].info;
    }
    roster->local_size = local_size_of(self, roster);
    roster->survives = config->survive != TRIB_SURVIVE_NOTHING && self->server_count > 0 && roster->local_size == 0;
    roster->shrinks = config->survive >= TRIB_SURVIVE_WORKERS;
    roster->continues = config->survive == TRIB_SURVIVE_CONTINUE;
    roster->ranks_used = count_ranks(roster, &self->core->engine->formation);
    roster->electors_before = self->core->engine->formation.electors;
    roster->newcomers = self->core->engine->formation.joined_last;
    roster->new_servers = self->core->engine->formation.servers_joined_last;
    if (trib_tenure_is_used(self->core->engine)) {
        trib_reactor *reactor = self->core->reactor;
        uint64_t random = 0;
        reactor->ops->random(reactor, &random, sizeof random);
        roster->ticket = trib_ticket_make(roster->epoch, random);
    }
    roster->lost = self->core->engine->formation.lost;
    memcpy(roster->lost_text, self->core->engine->formation.lost_text, sizeof roster->lost_text);
    const bool colocated = workers_should_sum(self, roster);
    for (uint32_t i = 0; i < count; i++) {
        const bool worker = i < self->worker_count;
        members[i] = (trib_place_member){
            .is_worker = worker,
            .can_sum = worker ? colocated : true,
            .bandwidth = roster->members[i].bandwidth,
            .reactors = roster->members[i].reactors,
        };
    }
    trib_status status = roster->local_size == 0 ? trib_place_weights(members, count, &roster->t_opt_factor)
                                                 : trib_machines_weights(members, count, self->worker_count,
                                                                         roster->local_size, &roster->t_opt_factor);
    for (uint32_t i = 0; i < count; i++) {
        roster->members[i].sums = members[i].can_sum && members[i].weight > 0;
    }
    trib_assert(self->roster == NULL && self->dealer == NULL);
    self->roster = roster;
    trib_formation_keep_roster(self);
    stand_by(self, roster, members);
    if (status == TRIB_OK) {
        status = trib_dealer_create(members, count, &self->dealer);
    }
    if (status == TRIB_OK && roster->follows) {
        status = trib_rebalance_open(self, members);
    }
    free(members);
    return status;
}

/* The encoded roster, which all sends share. A copy for each member would take memory that grows with the square of
 * their number. */
typedef struct roster_payload {
    uint32_t references;
    unsigned char bytes[];
} roster_payload;

static void roster_unref(roster_payload *payload)
{
    trib_assert(payload->references > 0);
    if (--payload->references == 0) {
        free(payload);
    }
}

static void roster_sent(trib_send_record *out, trib_status status)
{
    (void)status;
    roster_unref(out->context);
}

static void send_roster(trib_link *link, uint32_t member, roster_payload *payload, size_t size)
{
    const trib_frame frame = {.type = TRIB_FRAME_ROSTER, .root = member, .payload_size = (uint32_t)size};
    payload->references++;
    trib_status status = trib_link_send(link, &frame, payload->bytes, roster_sent, payload);
    if (status != TRIB_OK) {
        payload->references--; /* never the last reference, because the caller holds one */
        trib_link_close(link, false, status, "could not send the roster");
    }
}

void trib_coordinator_start_running(trib_coordinator *self)
{
    trib_assert(!self->running && !self->over && self->joined == trib_coordinator_slots(self));
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_formation_probe_end(self);
    size_t capacity = TRIB_PAYLOAD_MAX;
    roster_payload *payload = malloc(sizeof *payload + capacity);
    if (payload == NULL || make_roster(self) != TRIB_OK) {
        free(payload);
        const trib_cause cause =
            trib_cause_note(TRIB_NO_MEMORY, TRIB_NO_MEMBER, "the coordinator could not make the roster");
        trib_coordinator_end_job(self, &cause);
        return;
    }
    self->core->host.epoch = self->roster->epoch;
    self->core->engine->formation.is_known = false;
    payload->references = 1;
    trib_writer writer = {.data = payload->bytes, .capacity = capacity};
    trib_roster_put(&writer, self->roster);
    if (writer.overflow) {
        const trib_cause cause = trib_cause_note(TRIB_UNSUPPORTED, TRIB_NO_MEMBER, "too many members for one roster");
        trib_coordinator_end_job(self, &cause);
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && !writer.overflow; i++) {
        send_roster(self->slots[i].link, i, payload, writer.size);
    }
    roster_unref(payload);
    trib_coordinator_run(self);
}
