/*
 * core_life.c - opens and closes the state of one reactor, sorts accepted links, and brings the job's beginning and end
 * to the core.
 *
 * At the end of the job a core sets `ended`, fails its operations, and closes its links. The core reports closed
 * when the last link has gone and all operations have settled. Nothing new starts on a core that has ended.
 */
#include "engine/core/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/core/wireup.h"
#include "engine/job/callback.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/election.h"
#include "engine/local_group/group.h"
#include "engine/link/link_handshake.h"
#include "engine/membership/load_report.h"
#include "engine/cluster/machines.h"
#include "engine/membership/member.h"
#include "engine/server/keeper.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/op_commit.h"
#include "engine/link/link_trace.h"

#define TICK_NS (250 * INT64_C(1000000))
#define CLOSING_TICK_NS (2 * INT64_C(1000000))
#define LEAVE_MOST_NS (100 * INT64_C(1000000)) /* a bound is needed: work on a device may never end */

/* ---- Accepted links ---- */

static void incoming_ready(trib_link *link)
{
    trib_core *core = link->core;
    const bool is_control = link->purpose == TRIB_PURPOSE_CONTROL && core->reactor->index == 0;
    if (is_control && core->engine->coordinator != NULL) {
        trib_coordinator_adopt(link);
    } else if (is_control && (atomic_load(&core->engine->shrinks) || trib_election_lacks_roster(core->engine))) {
        trib_election_adopt(link);
    } else if (link->purpose == TRIB_PURPOSE_GROUP && core->engine->device != NULL && core->reactor->index == 0 &&
               core->engine->config.local_size > 1 && !atomic_load(&core->engine->shrinks)) {
        trib_group_adopt(link);
    } else if (link->purpose == TRIB_PURPOSE_CALL) {
        trib_link_close(link, true, TRIB_OK, "the peer was called back");
    } else if (link->purpose == TRIB_PURPOSE_PRIORITY || link->purpose == TRIB_PURPOSE_SUBFLOW) {
        trib_link_attach_to_main(link);
    } else if (link->purpose == TRIB_PURPOSE_DATA && core->engine->config.roles != TRIB_ROLE_COORDINATOR) {
        trib_server_adopt(link);
    } else {
        trib_link_close(link, false, TRIB_PROTOCOL, "this member is not what the peer takes it for");
    }
}

static trib_status incoming_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                   trib_error *error)
{
    (void)link;
    (void)frame;
    (void)target;
    return trib_error_set(error, TRIB_PROTOCOL, "a frame before its time");
}

static trib_status incoming_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                     trib_error *error)
{
    (void)payload;
    (void)in_place;
    return incoming_header(link, frame, NULL, error);
}

static void incoming_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)link;
    (void)status;
    (void)reason; /* link_handshake.c has already logged the reason */
}

static const trib_link_upcalls incoming_upcalls = {
    .ready = incoming_ready,
    .header = incoming_header,
    .received = incoming_received,
    .closed = incoming_closed,
};

/* A process's link to its own server carries both directions; the frame type tells them apart. */
static trib_status self_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    return incoming_header(link, frame, target, error);
}

static trib_status self_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                 trib_error *error)
{
    bool for_server = frame->type == TRIB_FRAME_PUSH || frame->type == TRIB_FRAME_WITHDRAW ||
                      frame->type == TRIB_FRAME_REPORT || frame->type == TRIB_FRAME_KEPT ||
                      trib_relay_is_report(link->core, frame);
    return for_server ? trib_server_received(link, frame, payload, in_place, error)
                      : trib_worker_received(link, frame, payload, in_place, error);
}

static void self_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_core *core = link->core;
    core->worker_links[link->peer] = NULL;
    trib_worker_upcalls.closed(link, status, reason);
}

static const trib_link_upcalls self_upcalls = {
    .ready = incoming_ready,
    .header = self_header,
    .received = self_received,
    .closed = self_closed,
};

/* ---- The job has come together ---- */

static trib_status connect_to(trib_core *core, uint32_t member, uint32_t reactor, trib_error *error)
{
    trib_engine *engine = core->engine;
    const trib_roster *roster = engine->roster;
    trib_link *link = NULL;
    if (member == engine->member_id && reactor == core->reactor->index) {
        trib_status status = trib_link_self(&core->host, member, &self_upcalls, &link);
        if (status == TRIB_OK) {
            core->owner_links[member * TRIB_REACTORS_MAX + reactor] = link;
            core->worker_links[member] = link;
        }
        return status;
    }
    core->links_missing++;
    const trib_address *at = &roster->members[member].addresses[reactor];
    errno = 0;
    trib_status status =
        trib_link_connect(&core->host, at, TRIB_PURPOSE_DATA, member, reactor, &trib_worker_upcalls, NULL, &link);
    if (status != TRIB_OK) {
        char why[TRIB_REASON_MAX];
        trib_error_set(error, status, "could not connect to %s at %.100s: %s", trib_roster_name(roster, member),
                       at->text, trib_log_status_reason(status, errno, why));
    }
    return status;
}

static trib_status connect_all(trib_core *core, trib_error *error)
{
    trib_engine *engine = core->engine;
    const trib_roster *roster = engine->roster;
    core->owner_links = trib_core_zalloc(core, (size_t)roster->member_count * TRIB_REACTORS_MAX * sizeof(trib_link *));
    if (core->owner_links == NULL) {
        return TRIB_NO_MEMORY;
    }
    const bool goes_on = roster->survives || roster->shrinks;
    core->left_owners = goes_on ? trib_core_zalloc(core, roster->member_count * sizeof(bool)) : NULL;
    if (goes_on && core->left_owners == NULL) {
        return TRIB_NO_MEMORY;
    }
    for (uint32_t member = 0; member < roster->member_count; member++) {
        const trib_member_info *info = &roster->members[member];
        for (uint32_t reactor = 0; reactor < info->reactors; reactor++) {
            if (!trib_wireup_connects_to(core, member, reactor)) {
                continue;
            }
            trib_status status = connect_to(core, member, reactor, error);
            if (status != TRIB_OK) {
                return status;
            }
        }
    }
    return TRIB_OK;
}

/* Posted to every core when the job has formed. */
static void take_roster(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    const trib_roster *roster = engine->roster;
    trib_error error = {.status = TRIB_OK};
    trib_status status = TRIB_OK;
    if (core->ended) {
        return;
    }
    core->host.epoch = roster->epoch;
    if (roster->follows) {
        status = trib_load_report_open(core);
    }
    const uint32_t me = engine->member_id;
    if (me < roster->member_count && engine->env.reactor_settle != NULL && roster->before == NULL) {
        const trib_machine_place place = trib_machines_place(roster, me);
        engine->env.reactor_settle(engine, reactor, &place);
    }
    const bool relays = roster->local_size > 0 && me < roster->worker_count;
    if (status == TRIB_OK && me < roster->member_count && (roster->members[me].sums || relays)) {
        status = trib_server_open(core, &error);
    }
    if (status == TRIB_OK && (engine->config.roles & TRIB_ROLE_WORKER)) {
        status = connect_all(core, &error);
    }
    if (status == TRIB_OK && core->reactor->index == 0 && (engine->config.roles & TRIB_ROLE_WORKER)) {
        status = trib_group_open(core, &error);
    }
    if (status != TRIB_OK) {
        trib_job_fail(engine, status,
                      error.status != TRIB_OK ? error.text : "out of memory for the connections of the job");
    } else if (core->links_missing == 0) {
        trib_worker_joined(core);
    }
}

/* ---- The job is over ---- */

static void close_links(trib_core *core, bool flush, bool data_only)
{
    /* A member says why in the coordinator's words, if it has them, so that all hear the same. */
    trib_engine *engine = core->engine;
    const bool is_judged = !trib_status_is_orderly(core->ended_status) && atomic_load(&engine->job_over) &&
                           !trib_status_is_orderly(engine->verdict.status);
    const trib_cause *cause = is_judged ? &engine->verdict : &engine->cause;
    trib_link *next;
    for (trib_link *link = core->host.links; link != NULL; link = next) {
        next = link->next;
        /* A connection that is being made may be another one for a link that has yet to hand over its last frames. */
        if (!data_only || (link->purpose == TRIB_PURPOSE_DATA && trib_link_is_up(link))) {
            trib_link_close_for(link, flush, cause);
        }
    }
}

/* True if a worker may still connect, or if the coordinator has yet to announce that this member leaves: a worker that
 * finds nobody here then knows why. */
static bool is_still_called(const trib_core *core)
{
    const trib_engine *engine = core->engine;
    const bool is_announced = engine->member == NULL || atomic_load(&engine->leave_settled);
    return !is_announced ||
           (!atomic_load(&engine->job_over) && (trib_wireup_awaits(core) || trib_group_awaits_ranks(core)));
}

/* True if no other member needs a core that leaves in good order: sums that others wait for have been sent. */
static bool is_dispensable(const trib_core *core)
{
    const bool has_told = core->reactor->index != 0 || trib_member_is_leaving(core->engine->member);
    return has_told && !is_still_called(core) && trib_server_is_idle(core);
}

/* Sums that others wait for are sent before the links close, and rank 0 waits for the others to leave. Both waits
 * end at the deadline; the core's tick repeats the check. */
static bool may_close_links(const trib_core *core)
{
    const trib_engine *engine = core->engine;
    if (!trib_status_is_orderly(core->ended_status)) {
        /* Others hear of a loss from the coordinator, whose verdict may differ from this member's report. */
        return engine->member == NULL || atomic_load(&engine->job_over) || atomic_load(&engine->leave_settled);
    }
    bool coordinates = core->reactor->index == 0 && engine->coordinator != NULL;
    /* Core 0 tells the others which members leave, so it closes last. */
    const bool informs = core->reactor->index == 0 && atomic_load(&engine->cores_open) > 1;
    return is_dispensable(core) && !informs && (!coordinates || trib_coordinator_is_alone(engine->coordinator));
}

/* A member that leaves in good order reports how many device collectives it has carried out. Leaving waits until
 * the device's jobs are back, so that the count includes collectives that have just ended. Other members' devices
 * may still be busy with them. */
static void leave(trib_core *core, bool at_once)
{
    if (at_once || trib_group_is_through(core)) {
        trib_member_leave(core->engine->member, &core->engine->cause);
    }
}

static void finish_ending(trib_core *core)
{
    trib_engine *engine = core->engine;
    core->closing = core->host.is_closed = true;
    trib_link_report_refused(&core->host, true);
    if (core->reactor->index == 0) {
        if (engine->coordinator != NULL) {
            trib_coordinator_end(engine->coordinator, &engine->cause);
        }
    }
    /* Both an orderly end and a loss flush their last messages before the links close. */
    close_links(core, true, false);
}

/* At the end of the job the listener closes after the last link: last messages whose path failed arrive over a new
 * connection. Between epochs it stays. */
static void stop_listening(trib_core *core)
{
    trib_listeners_close(&core->listeners);
    trib_listeners_close(&core->meeting);
}

static bool transport_is_idle(const trib_core *core)
{
    return core->host.transport->ops->is_idle(core->host.transport);
}

/* Core 0 gives back operations that other cores were done with, so it is the last. */
static bool may_be_closed(const trib_core *core, bool goes_on)
{
    const trib_engine *engine = core->engine;
    /* Between two epochs these are waits for callers' streams, which may last. */
    const bool has_jobs = !goes_on && atomic_load(&engine->device_jobs) > 0;
    const bool is_through = !has_jobs && atomic_load(&engine->cores_open) == 1 && atomic_load(&engine->ops_held) == 0 &&
                            atomic_load(&engine->settled_ops) == NULL;
    return core->host.links == NULL && core->op_cores == NULL && (core->reactor->index != 0 || is_through) &&
           transport_is_idle(core);
}

/* The job is over: the device gives up all jobs. */
static void stop_device(const trib_core *core)
{
    trib_engine *engine = core->engine;
    if (core->reactor->index == 0 && engine->device != NULL && !engine->device_stopped) {
        engine->device_stopped = true;
        engine->env.device->stop(engine->device, trib_status_is_orderly(core->ended_status));
    }
}

/* The core has closed, and is to be opened again, unless the job ends before that. */
static void await_reopening(trib_reactor *reactor, trib_timer *timer)
{
    if (atomic_load(&((trib_core *)reactor->owner)->engine->changing)) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + CLOSING_TICK_NS);
    } else {
        stop_listening(reactor->owner);
    }
}

static void tick(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    int64_t now_ns = trib_now(reactor);
    if (!core->ended) {
        trib_server_tick(core);
        trib_commit_check(core);
        trib_worker_check_stall(core);
        trib_wireup_check(core);
        trib_load_report_send(core);
        trib_link_report_refused(&core->host, false);
        trib_timer_arm(reactor, timer, now_ns + TICK_NS);
        return;
    }
    if (!core->closing && trib_status_is_orderly(core->ended_status) && now_ns >= core->next_scan_ns) {
        core->next_scan_ns = now_ns + TICK_NS;
        trib_server_sums_scan(core); /* other members' rounds may lack the contribution of a member that left */
        trib_server_resume(core);
    }
    trib_keepers_release(core);
    bool overdue = now_ns >= core->close_deadline_ns;
    if (reactor->index == 0) {
        leave(core, overdue || now_ns >= core->leave_by_ns);
    }
    if (!core->closing && (overdue || may_close_links(core))) {
        finish_ending(core);
    } else if (!core->closing && trib_status_is_orderly(core->ended_status) && is_dispensable(core)) {
        /* While such a link is up, owners wait for contributions that will not come, and rank 0 would wait for those
         * owners. */
        close_links(core, true, true);
    } else if (core->closing && overdue && core->host.links != NULL) {
        close_links(core, false, false);
    } else if (core->closing && !trib_link_host_is_leaving(&core->host)) {
        trib_link_handshake_stop(&core->host);
    }
    const bool goes_on = atomic_load(&core->engine->changing);
    if (!goes_on) { /* the job may have ended while the membership changed */
        stop_device(core);
    }
    if (core->closing && core->host.links == NULL && !goes_on) {
        stop_listening(core);
    }
    if (core->closing && may_be_closed(core, goes_on) &&
        (goes_on || reactor->index != 0 || !trib_carry_abandon(core))) {
        if (goes_on) {
            timer->fired = await_reopening;
            trib_timer_arm(reactor, timer, now_ns + CLOSING_TICK_NS);
        }
        trib_engine_core_closed(core->engine, goes_on);
        return;
    }
    trib_timer_arm(reactor, timer, now_ns + CLOSING_TICK_NS);
}

/* Posted to every core when the job has ended. */
static void take_end(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    trib_assert(!core->ended && !core->closing && trib_core_is_here(core));
    trib_wireup_stop(core);
    pthread_mutex_lock(&engine->mutex);
    core->ended_status = engine->fate.status;
    snprintf(core->ended_text, sizeof core->ended_text, "%s", engine->fate.text);
    pthread_mutex_unlock(&engine->mutex);
    core->close_deadline_ns =
        trib_now(reactor) +
        (trib_status_is_orderly(core->ended_status) ? engine->config.close_timeout_ns : INT64_C(1000000000));
    trib_worker_fail_all(core, core->ended_status == TRIB_OK ? TRIB_CLOSED : core->ended_status, core->ended_text);
    core->ended = true;
    /* A member that leaves in good order still accepts workers that have yet to connect. */
    core->host.is_closed = !trib_status_is_orderly(core->ended_status);
    trib_trace_link(&core->host, TRIB_TRACE_ENDED, NULL, (uint32_t)core->ended_status);
    if (reactor->index == 0) {
        trib_commit_fail_all(core, core->ended_status == TRIB_OK ? TRIB_CLOSED : core->ended_status, core->ended_text);
        trib_group_end(core, core->ended_status == TRIB_OK ? TRIB_CLOSED : core->ended_status, core->ended_text);
        if (!atomic_load(&engine->changing)) {
            stop_device(core);
        }
        core->leave_by_ns = trib_now(reactor) + LEAVE_MOST_NS;
        leave(core, !trib_status_is_orderly(core->ended_status));
    }
    trib_timer_arm(reactor, &core->tick, trib_now(reactor));
}

/* ---- Life ---- */

/* Sets the fields that each epoch has anew. */
static void prepare(trib_core *core, trib_engine *engine, trib_reactor *reactor)
{
    trib_core_init(core, engine, reactor, &incoming_upcalls);
    core->roster_post.run = take_roster;
    core->ended_post.run = take_end;
}

static trib_status begin_epoch(trib_core *core, trib_error *error)
{
    trib_session_open_host(&core->host);
    core->tick.fired = tick;
    trib_timer_arm(core->reactor, &core->tick, trib_now(core->reactor) + TICK_NS);
    return trib_worker_open(core, error);
}

trib_status trib_core_open(trib_core *core, trib_engine *engine, trib_reactor *reactor, trib_error *error)
{
    prepare(core, engine, reactor);
    const trib_status status = trib_core_listen(core, error);
    return status == TRIB_OK ? begin_epoch(core, error) : status;
}

static void end_epoch(trib_core *core)
{
    trib_timer_stop(core->reactor, &core->tick);
    trib_wireup_close(core);
    trib_server_close(core);
    trib_worker_close(core);
}

void trib_core_close(trib_core *core)
{
    if (core->reactor == NULL) {
        return;
    }
    end_epoch(core);
    stop_listening(core);
    if (core->host.transport != NULL) {
        core->host.transport->ops->close(core->host.transport);
    }
    trib_link_host_close(&core->host);
    trib_load_report_close(core);
}

trib_status trib_core_reopen(trib_core *core, trib_error *error)
{
    trib_engine *engine = core->engine;
    trib_reactor *reactor = core->reactor;
    const trib_listeners listeners = core->listeners, meeting = core->meeting;
    const trib_address meeting_at = core->meeting_at, address = core->host.address;
    trib_transport *transport = core->host.transport;
    const uint32_t incarnation = trib_epoch_incarnation(core->host.epoch);
    trib_assert(core->closing && core->host.is_closed && core->host.links == NULL && transport != NULL);
    trib_assert(reactor->index == 0 || meeting.count == 0);
    end_epoch(core);
    trib_link_host_close(&core->host);
    trib_load_report_close(core);
    memset(core, 0, offsetof(trib_core, report_post));
    const size_t after = offsetof(trib_core, reopen_post) + sizeof core->reopen_post;
    memset((unsigned char *)core + after, 0, offsetof(trib_core, stats) - after);
    core->traced_sum = NULL;
    prepare(core, engine, reactor);
    core->listeners = listeners;
    core->meeting = meeting;
    core->meeting_at = meeting_at;
    core->host.transport = transport;
    core->host.address = address;
    if (reactor->index == 0) { /* it joins no other start of the job */
        core->host.epoch = trib_epoch_make(incarnation, 0);
    }
    return begin_epoch(core, error);
}
