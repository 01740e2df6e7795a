/*
 * coordinator_join.c - the gathering of the members: accepting and rejecting members.
 *
 * A member that is lost before the job has begun may come back. A member that comes after the beginning is rejected.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/membership/formation.h"
#include "engine/membership/job_settings.h"
#include "engine/membership/member.h"
#include "engine/wire/address_list.h"

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
    if (core->meeting.count > 0) { /* since an epoch before */
        *bound_out = moved ? core->host.address : core->meeting_at;
        trib_address_list_strip_offers(bound_out->text);
        return TRIB_OK;
    }
    snprintf(at.text, sizeof at.text, "%s", moved ? engine->coordinator_list : engine->coordinator_address);
    /* the store knows where the coordinator is */
    const bool is_nowhere = moved && trib_address_list_leaves_port(at.text);
    trib_error why = {.status = TRIB_OK};
    trib_status status = is_nowhere ? TRIB_OK : trib_listeners_open(&core->meeting, &core->host, &at, bound_out, &why);
    if (moved && !is_nowhere) { /* members know the address of this process */
        trib_log(core->reactor->logger, TRIB_LOG_INFO,
                 status == TRIB_OK ? "workers that join find the coordinator at %s"
                                   : "workers that join cannot find the coordinator before the next epoch: %s",
                 status == TRIB_OK ? bound_out->text : why.text);
        status = TRIB_OK;
    }
    core->meeting_at = *bound_out;
    if (moved) {
        *bound_out = core->host.address;
    }
    if (status != TRIB_OK) {
        (void)trib_error_set(error, status, "%s", why.text);
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

/* A member whose program goes on without trib_membership_advance holds up all others, which show no sign of trouble. */
void trib_coordinator_check_stall(trib_coordinator *self)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    const char *first = NULL;
    uint32_t more = 0;
    if (self->gathers_since_ns == 0) {
        self->gathers_since_ns = now_ns;
        self->stall_ns = TRIB_STALL_WARNING_NS;
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        const bool holds_up = self->slots[i].joined && !self->slots[i].advances;
        more += holds_up && first != NULL;
        first = holds_up && first == NULL ? self->slots[i].info.name : first;
    }
    const int64_t age_ns = now_ns - self->gathers_since_ns;
    if (first != NULL && age_ns >= self->stall_ns) {
        char others[32] = "";
        if (more > 0) {
            snprintf(others, sizeof others, " and of %u more", more);
        }
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "stalled for %.0f s: the change of the membership lacks trib_membership_advance of %s%s",
                 (double)age_ns / 1e9, first, others);
        self->stall_ns = 2 * age_ns;
    }
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

/* Between two epochs a process without the last roster is not the one that had that rank there. It may have stood still
 * while the others went on without it. */
static bool is_impostor(const trib_coordinator *self, uint32_t claimed, uint32_t epoch)
{
    return trib_formation_gathers(self) && claimed != TRIB_NO_MEMBER && epoch != self->core->engine->formation.epoch;
}

/* epoch: the number of the member's last roster, or 0. A server without the last one is a stranger, and must not take
 * the place of one that may be cut off, and its vote. The same holds for a worker that was started again. */
static trib_coordinator_slot *find_slot(trib_coordinator *self, const trib_member_info *info, uint32_t claimed,
                                        uint32_t epoch)
{
    const bool gathers_again = trib_formation_gathers(self);
    const bool is_server = !(info->roles & TRIB_ROLE_WORKER);
    const bool is_stranger = is_server && gathers_again && epoch != self->core->engine->formation.epoch;
    if (is_stranger || (!is_server && claimed == TRIB_NO_MEMBER)) {
        return trib_formation_find_place(self, is_server);
    }
    /* A server that comes back has the id of its vote and its roster, and no other's. */
    const uint32_t at = is_server ? self->worker_count + claimed : claimed;
    if (!is_server && is_impostor(self, claimed, epoch)) {
        return NULL;
    }
    if (!is_server || gathers_again) {
        const uint32_t count = is_server ? self->server_count : self->worker_count;
        const bool has_place = claimed < count && (!gathers_again || trib_formation_expects(self, at));
        return has_place ? &self->slots[at] : NULL;
    }
    if (claimed < self->server_count && !self->slots[at].joined) {
        return &self->slots[at];
    }
    for (uint32_t i = self->worker_count; i < trib_coordinator_slots(self); i++) {
        if (!self->slots[i].joined) {
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
        workers <= before || workers % before != 0 || workers > TRIB_MEMBERS_MAX - self->server_count) {
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
    trib_engine *engine = self->core->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_engine_set_counts(engine, engine->config.rank, (int32_t)workers, engine->config.server_count);
    pthread_mutex_unlock(&engine->mutex);
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
    if (!trib_formation_gathers(self)) {
        at->info.rank = index;
    }
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
    const bool is_joiner = claimed == TRIB_NO_MEMBER && self->core->engine->config.survive >= TRIB_SURVIVE_WORKERS;
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
    } else if (at == NULL && is_worker && is_impostor(self, claimed, frame->tensor)) {
        snprintf(text, sizeof text,
                 "%s was not in the job's last epoch: a worker that is started again joins with TRIB_RANK=-1",
                 info.name);
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
