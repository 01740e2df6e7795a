/*
 * coordinator_join.c - the gathering of the members: accepting and rejecting members, and the roster that begins the
 * job.
 *
 * A member that is lost before the job has begun may come back. A member that comes after the beginning is rejected.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/cluster/machines.h"
#include "engine/membership/formation.h"
#include "engine/membership/job_settings.h"
#include "engine/membership/member.h"
#include "engine/membership/rebalance.h"
#include "engine/wire/address_list.h"

#define STAND_BY_MAX 16u

void trib_coordinator_list_missing(const trib_coordinator *self, char *text, size_t size)
{
    size_t used = 0;
    uint32_t servers = 0, shown = 0, missing = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].joined || (trib_formation_gathers(self) && !trib_formation_expects(self, i))) {
            continue;
        }
        if (i >= self->worker_count) {
            servers++;
        } else if (++missing <= 8) {
            used += (size_t)snprintf(text + used, size - used, "%srank %u", shown++ == 0 ? "" : ", ", i);
        }
    }
    if (missing > 8) {
        used += (size_t)snprintf(text + used, size - used, " and %u more workers", missing - 8);
    }
    if (servers > 0) {
        snprintf(text + used, size - used, "%s%u of %u servers", shown == 0 ? "" : " and ", servers,
                 self->server_count);
    }
}

/* Names the first member that had joined and is missing now, as " (rank 1 ...)"; "" if there is none. */
static const char *find_gone(const trib_coordinator *self, char text[TRIB_REASON_MAX + 32])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && text[0] == '\0'; i++) {
        if (!self->slots[i].joined && self->slots[i].gone[0] != '\0') {
            snprintf(text, TRIB_REASON_MAX + 32, " (had joined and is gone: %s)", self->slots[i].gone);
        }
    }
    return text;
}

trib_status trib_coordinator_listen(trib_coordinator *self, trib_address *bound_out, trib_error *error)
{
    trib_core *core = self->core;
    const trib_engine *engine = core->engine;
    const bool moved = engine->formation.moved;
    trib_address at;
    snprintf(at.text, sizeof at.text, "%s", moved ? engine->coordinator_list : engine->coordinator_address);
    trib_status status = trib_listeners_open(&self->listeners, &core->host, &at, bound_out, error);
    if (moved) { /* members know the address of this process */
        trib_log(core->reactor->logger, TRIB_LOG_INFO,
                 status == TRIB_OK ? "workers that join find the coordinator at %s"
                                   : "workers that join cannot find the coordinator: %s has no address of this machine",
                 status == TRIB_OK ? bound_out->text : engine->coordinator_list);
        status = TRIB_OK;
        *bound_out = core->host.address;
    }
    if (status != TRIB_OK) {
        if (error != NULL) {
            const size_t used = strnlen(error->text, sizeof error->text - 1);
            const bool is_rank_0 = !(engine->config.roles & TRIB_ROLE_COORDINATOR);
            snprintf(error->text + used, sizeof error->text - used,
                     " (%s must be an address of this machine with a port that is free, the same on all "
                     "members%s)",
                     engine->coordinator_source,
                     is_rank_0 ? "; rank 0 keeps the membership there: where a tributary coordinator does, set "
                                 "TRIB_EXTERNAL_COORDINATOR=yes"
                               : "");
        }
        return status;
    }
    /* People pass the address on, and control links need only the plain address. So addresses of other transports are
     * removed. */
    trib_address_list_strip_offers(bound_out->text);
    return TRIB_OK;
}

void trib_coordinator_join_deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    if (trib_formation_gathers(self)) {
        trib_formation_deadline_passed(self);
        return;
    }
    const int64_t join_timeout_ns = self->core->engine->config.join_timeout_ns;
    char missing[200], text[TRIB_ERROR_TEXT_SIZE], gone[TRIB_REASON_MAX + 32];
    trib_coordinator_list_missing(self, missing, sizeof missing);
    if (trib_join_notice_is_due(join_timeout_ns, &self->noticed)) {
        trib_log(reactor->logger, TRIB_LOG_WARN, "still missing %s%s; the job waits until %.0f s have passed", missing,
                 find_gone(self, gone), (double)join_timeout_ns / 1e9);
        trib_timer_arm(reactor, timer, trib_now(reactor) + join_timeout_ns - TRIB_JOIN_NOTICE_NS);
        return;
    }
    const char *refused = self->core->host.refused.last_member, *here = self->core->engine->coordinator_address;
    const bool is_here_only = strncmp(here, "127.", 4) == 0 || strncmp(here, "[::1]:", 6) == 0;
    const bool is_odd = is_here_only && strncmp(here, "127.0.0.1:", 10) != 0 && here[0] != '[';
    int64_t shortage_ns = 0;
    const int shortage = trib_reactor_find_shortage(reactor, &shortage_ns);
    char why[TRIB_REASON_MAX];
    const char *more = shortage != 0        ? "; the coordinator can let nobody else connect: "
                       : refused[0] != '\0' ? "; refused was "
                                            : "";
    const int used = snprintf(text, sizeof text, "the job did not come together within %.1f s: missing %s%s%s%s",
                              (double)join_timeout_ns / 1e9, missing, find_gone(self, gone), more,
                              shortage != 0 ? trib_log_reason(shortage, why) : refused);
    if (is_here_only && used > 0 && (size_t)used < sizeof text) {
        /* Debian's installer maps the machine's own name to such an address. */
        snprintf(text + used, sizeof text - (size_t)used,
                 "; the coordinator listens on %s, where no other machine reaches it%s", here,
                 is_odd ? ": see its name in /etc/hosts" : "");
    }
    const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, TRIB_NO_MEMBER, text);
    trib_coordinator_end_job(self, &cause);
}

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

/* Decides whether shares follow what links carry. If they do, workers without a share stand by for one, unless that
 * makes too many connections. */
static void stand_by(const trib_coordinator *self, trib_roster *roster, trib_place_member *members)
{
    if (self->core->engine->config.shares != TRIB_SHARES_FOLLOW || roster->survives) {
        return;
    }
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        trib_member_info *info = &roster->members[i];
        info->stands_by = members[i].can_sum && !info->sums && roster->worker_count <= STAND_BY_MAX;
        info->sums = info->sums || info->stands_by;
    }
    roster->follows = trib_rebalance_is_possible(roster);
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        trib_member_info *info = &roster->members[i];
        if (info->stands_by && !roster->follows) {
            info->stands_by = info->sums = false;
        }
        members[i].can_sum = info->sums;
    }
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
    roster->shrinks = config->survive == TRIB_SURVIVE_WORKERS;
    roster->electors_before = self->core->engine->formation.electors;
    roster->newcomers = self->core->engine->formation.joined_last;
    roster->new_servers = self->core->engine->formation.servers_joined_last;
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

/* epoch: the number of the member's last roster, or 0. A server without the last one is a stranger, and must not take
 * the place of one that may be cut off, and its vote. */
static trib_coordinator_slot *find_slot(trib_coordinator *self, const trib_member_info *info, uint32_t claimed,
                                        uint32_t epoch)
{
    const bool gathers_again = trib_formation_gathers(self);
    const bool is_server = !(info->roles & TRIB_ROLE_WORKER);
    const bool is_stranger = is_server && gathers_again && epoch != self->core->engine->formation.epoch;
    if (is_stranger || (!is_server && claimed == TRIB_NO_MEMBER)) {
        return trib_formation_find_place(self, is_server);
    }
    if (info->roles & TRIB_ROLE_WORKER) {
        const bool has_place =
            claimed < self->worker_count && (!gathers_again || trib_formation_expects(self, claimed));
        return has_place ? &self->slots[claimed] : NULL;
    }
    if (claimed < self->server_count && !gathers_again && !self->slots[self->worker_count + claimed].joined) {
        return &self->slots[self->worker_count + claimed];
    }
    for (uint32_t i = self->worker_count; i < trib_coordinator_slots(self); i++) {
        if (!self->slots[i].joined && (!gathers_again || trib_formation_expects(self, i))) {
            return &self->slots[i];
        }
    }
    return NULL;
}

static void refuse_join(trib_link *link, const char *reason)
{
    trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), reason);
    const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, TRIB_NO_MEMBER, reason);
    trib_coordinator_notify_end(link, &cause);
    trib_link_close_for(link, true, &cause);
}

/* True if the member expects another job. A server that does not know the counts sends 0 servers. Its number of workers
 * is not compared, because a launcher that starts servers separately counts only its own workers. */
static bool expects_others(const trib_coordinator *self, const trib_member_info *info, uint32_t workers,
                           uint32_t servers)
{
    return (info->roles & TRIB_ROLE_WORKER) != 0 ? workers != self->worker_count || servers != self->server_count
                                                 : servers != 0 && servers != self->server_count;
}

/* Other members' values of job-wide settings are ignored, and the person who has set them must know that. */
static void log_settings(trib_coordinator *self, const char *name, const trib_job_settings *theirs)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    const trib_job_settings ours = trib_job_settings_of(&self->core->engine->config);
    trib_job_settings_compare(theirs, &ours, &self->settings_told, text, sizeof text);
    if (text[0] != '\0') {
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "settings of %s differ from those of the coordinator's process, which hold for the whole job: %s",
                 name, text);
    }
}

/* A launcher that starts the coordinator in a process of its own counts machines there, and its workers count
 * processes: BytePS. So a dedicated coordinator takes a multiple of its number from the first worker, and servers that
 * have joined before move up. */
static bool learn_worker_count(trib_coordinator *self, const trib_member_info *info, uint32_t workers)
{
    const uint32_t before = self->worker_count;
    if (self->core->engine->config.roles != TRIB_ROLE_COORDINATOR || !(info->roles & TRIB_ROLE_WORKER) ||
        workers <= before || workers % before != 0 || workers + self->server_count > TRIB_MEMBERS_MAX) {
        return true;
    }
    for (uint32_t i = 0; i < before; i++) {
        if (self->slots[i].joined) {
            return true;
        }
    }
    trib_coordinator_slot *slots = trib_core_zalloc(self->core, ((size_t)workers + self->server_count) * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    memcpy(slots + workers, self->slots + before, self->server_count * sizeof *slots);
    free(self->slots);
    self->slots = slots;
    self->worker_count = workers;
    self->core->engine->config.worker_count = (int32_t)workers;
    for (uint32_t i = workers; i < trib_coordinator_slots(self); i++) {
        if (slots[i].link != NULL) {
            slots[i].link->peer = i;
        }
    }
    return true;
}

static void take_slot(trib_coordinator *self, trib_coordinator_slot *at, trib_link *link, const trib_member_info *info)
{
    at->link = link;
    at->joined = true;
    at->info = *info;
    at->info.former = TRIB_NO_MEMBER;
    uint32_t index = (uint32_t)(at - self->slots);
    if (index >= self->worker_count) {
        char name[TRIB_MEMBER_NAME_MAX];
        snprintf(name, sizeof name, "server %u %.40s", index - self->worker_count, info->name);
        memcpy(at->info.name, name, sizeof name);
    }
    link->peer = index;
    trib_timer_stop(self->core->reactor, &link->deadline);
    /* The member learns the incarnation of the job from this frame's header. */
    if (trib_formation_gathers(self)) {
        trib_formation_tell_waits(link);
    } else {
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
    }
    trib_log(self->core->reactor->logger, TRIB_LOG_DEBUG, "joined: %s", at->info.name);
    self->joined++;
}

trib_status trib_coordinator_take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                       const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    uint32_t workers = trib_get_u32(&reader), servers = trib_get_u32(&reader);
    trib_member_info info;
    trib_status status = trib_member_info_get(&reader, &info, error);
    trib_job_settings settings;
    trib_job_settings_get(&reader, &settings);
    if (status == TRIB_OK) {
        status = trib_get_end(&reader, "JOIN", error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    const bool is_worker = (info.roles & TRIB_ROLE_WORKER) != 0;
    const uint32_t claimed = is_worker ? frame->root : TRIB_NO_MEMBER;
    if (link->handshake.member != claimed) {
        return trib_error_set(error, TRIB_PROTOCOL, "JOIN as %s of a process that proved to be member %d", info.name,
                              (int)link->handshake.member);
    }
    if (!self->running && !self->over && !trib_formation_gathers(self) && !learn_worker_count(self, &info, workers)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u workers", workers);
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_coordinator_slot *at = find_slot(self, &info, frame->root, frame->tensor);
    const char *kind = (info.roles & TRIB_ROLE_WORKER) != 0 ? "" : "server "; /* a joining server has no number yet */
    const bool is_joiner = claimed == TRIB_NO_MEMBER && self->core->engine->config.survive == TRIB_SURVIVE_WORKERS;
    const bool is_too_many = is_joiner && at == NULL && self->running && !self->over && trib_formation_is_full(self);
    if (!is_too_many && trib_formation_puts_off(self, link, !is_worker, is_joiner && at == NULL)) {
        return TRIB_OK;
    }
    if (is_too_many) {
        snprintf(text, sizeof text,
                 "no place for %s%s: %u members are in the job or wait to join it, and that is the most", kind,
                 info.name, TRIB_MEMBERS_MAX);
    } else if (self->running || self->over) {
        snprintf(text, sizeof text, "%s%s came when the job had already begun%s", kind, info.name,
                 is_worker || is_joiner ? ""
                                        : ": with TRIB_SURVIVE=workers on all members it would wait, and join when all "
                                          "workers have called trib_membership_advance");
    } else if (!trib_formation_gathers(self) && expects_others(self, &info, workers, servers)) {
        snprintf(text, sizeof text,
                 "%s%s expects %u workers and %u servers, the coordinator %u and %u: start all with the same counts",
                 kind, info.name, workers, servers, self->worker_count, self->server_count);
    } else if (at == NULL) {
        snprintf(text, sizeof text, "no place for %s%s: the job has %u workers and %u servers", kind, info.name,
                 self->worker_count, self->server_count);
    } else if (at->joined) {
        snprintf(text, sizeof text,
                 "%s is a second one: %s has joined already; give each process a rank of its own (TRIB_RANK)",
                 info.name, at->info.name);
    } else {
        take_slot(self, at, link, &info);
        log_settings(self, at->info.name, &settings);
        if (trib_formation_gathers(self)) {
            at->advances = false;
            trib_formation_check(self);
        } else if (self->joined == trib_coordinator_slots(self)) {
            trib_coordinator_start_running(self);
        }
        trib_member_note_awaited(self->core->engine);
        return TRIB_OK;
    }
    refuse_join(link, text);
    return TRIB_OK;
}
