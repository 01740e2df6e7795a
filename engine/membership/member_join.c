/*
 * member_join.c - a member's way into the job: reaches the coordinator, sends JOIN, and takes the roster.
 *
 * Processes start in any order, so the member retries the control link until the roster has arrived.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_reconnect.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/election.h"
#include "engine/membership/formation.h"
#include "engine/membership/job_settings.h"
#include "engine/membership/member_internal.h"
#include "engine/membership/server_drain.h"
#include "engine/membership/tenure.h"
#include "engine/tracer/tracer.h"
#include "engine/wire/address_list.h"
#include "engine/worker/worker.h"

#define VERDICT_NS (2 * INT64_C(1000000000))

const char *trib_member_awaited(const trib_engine *engine, char *text, size_t size)
{
    const trib_member *self = engine->member;
    char missing[200] = "";
    if (engine->coordinator != NULL) {
        trib_coordinator_list_missing(engine->coordinator, missing, sizeof missing);
    }
    if (engine->roster != NULL || (engine->coordinator != NULL && missing[0] == '\0')) {
        snprintf(text, size, "everybody is there, and connections are being made");
    } else if (engine->coordinator != NULL) {
        snprintf(text, size, "missing %s", missing);
    } else if (self->waits && self->link != NULL && trib_link_is_up(self->link)) {
        snprintf(text, size,
                 "the job at %s is under way: this %s joins when all workers have called trib_membership_advance",
                 engine->coordinator_address, engine->config.roles & TRIB_ROLE_WORKER ? "worker" : "server");
    } else if (self->link != NULL && trib_link_is_up(self->link)) {
        snprintf(text, size, "the coordinator at %s is reached, and waits for others", engine->coordinator_address);
    } else {
        snprintf(text, size, "the coordinator at %s is not reached: %.150s", engine->coordinator_address,
                 self->last_problem);
    }
    return text;
}

void trib_member_note_awaited(trib_engine *engine)
{
    char text[TRIB_AWAITED_SIZE];
    (void)trib_member_awaited(engine, text, sizeof text);
    pthread_mutex_lock(&engine->mutex);
    memcpy(engine->awaited, text, sizeof text);
    pthread_mutex_unlock(&engine->mutex);
}

void trib_member_note_waits(trib_member *member, bool waits)
{
    const trib_engine *engine = member->core->engine;
    if (!waits || member->joined || member->waits || atomic_load(&engine->changing)) {
        return;
    }
    member->waits = true;
    trib_member_note_awaited(member->core->engine);
    char text[TRIB_AWAITED_SIZE];
    trib_log(member->core->reactor->logger, TRIB_LOG_INFO, "%s", trib_member_awaited(engine, text, sizeof text));
}

/* The roster may be that of the last epoch. */
static void begin_watch(trib_member *member)
{
    const trib_roster *roster = member->core->engine->roster;
    trib_assert(roster != NULL && roster->peer_timeout_ns > 0);
    member->watch.fired = trib_member_watch_coordinator;
    member->watch.user = member;
    trib_timer_arm(member->core->reactor, &member->watch,
                   trib_now(member->core->reactor) + roster->peer_timeout_ns / 4);
}

void trib_member_link_ready(trib_link *link)
{
    trib_member *member = link->user;
    trib_engine *engine = member->core->engine;
    if (member->leaving) {
        trib_link_close(link, true, TRIB_CLOSED, "the engine was closed"); /* a place that it takes now would be lost */
        return;
    }
    member->away_since_ns = 0;
    member->given_up.status = TRIB_OK;
    unsigned char payload[4096];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_member_info info;
    trib_member_describe(engine, &info);
    trib_put_u32(&writer, (uint32_t)engine->config.worker_count);
    trib_put_u32(&writer, (uint32_t)engine->config.server_count);
    trib_member_info_put(&writer, &info);
    const trib_job_settings settings = trib_job_settings_of(&engine->config);
    trib_job_settings_put(&writer, &settings);
    trib_assert(!writer.overflow);
    /* A server asks for the number that it is configured with, or has had in the last epoch. */
    const bool is_worker = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    const uint32_t number =
        engine->roster == NULL ? (uint32_t)engine->config.rank : engine->formation.place - engine->roster->worker_count;
    trib_frame frame = {.type = TRIB_FRAME_JOIN,
                        .root = is_worker ? engine->member_id : number,
                        .tensor = engine->roster != NULL ? engine->roster->epoch : 0};
    trib_link_send_copy(link, frame, payload, writer.size);
    trib_member_send_advance(member);
    trib_member_note_awaited(engine);
    if (atomic_load(&engine->changing)) {
        begin_watch(member); /* the coordinator asks for life signs between epochs, too */
    }
}

void trib_member_resolve_coordinator(trib_member *member)
{
    const trib_env *env = &member->core->engine->env;
    trib_address found;
    if (member->core->engine->formation.moved) {
        return; /* the name leads to a coordinator that is lost */
    }
    if (trib_tenure_find(member->core->engine, &found)) {
        trib_member_redirect(member->core->engine, &found, false);
        if (member->link != NULL) {
            trib_redial_set_addresses(member->link, &found);
        }
        return;
    }
    if (env->resolve != NULL && env->resolve(env->resolver, &found) && found.text[0] != '\0') {
        member->coordinator = found;
        if (member->link != NULL) {
            trib_redial_set_addresses(member->link, &found);
        }
    }
}

void trib_member_try_to_connect(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_member *member = timer->user;
    trib_engine *engine = member->core->engine;
    if (member->link != NULL || member->leaving) {
        return;
    }
    if (member->has_tried) {
        trib_member_resolve_coordinator(member);
    }
    member->has_tried = true;
    if (trib_address_list_leaves_port(member->coordinator.text)) { /* the store has not said yet where it is */
        snprintf(member->last_problem, sizeof member->last_problem, "the store (TRIB_STORE=%.160s) does not say where",
                 engine->store != NULL ? engine->store : "");
        trib_timer_arm(member->core->reactor, &member->retry, trib_now(member->core->reactor) + TRIB_MEMBER_RETRY_NS);
        return;
    }
    errno = 0;
    trib_status status = trib_link_connect(&member->core->host, &member->coordinator, TRIB_PURPOSE_CONTROL,
                                           TRIB_NO_MEMBER, 0, &trib_member_upcalls, member, &member->link);
    if (status != TRIB_OK) {
        char why[TRIB_REASON_MAX];
        snprintf(member->last_problem, sizeof member->last_problem, "%s", trib_log_status_reason(status, errno, why));
        trib_timer_arm(member->core->reactor, &member->retry, trib_now(member->core->reactor) + TRIB_MEMBER_RETRY_NS);
        trib_member_note_awaited(engine);
    } else if (engine->roster != NULL && atomic_load(&engine->changing)) {
        begin_watch(member);
    }
}

#define HINT_SIZE (TRIB_COORDINATOR_SOURCE_SIZE + 64)

/* Returns the advice for an address at which nobody listens. */
static const char *hint_at_address(const trib_engine *engine, char text[HINT_SIZE])
{
    text[0] = '\0';
    if (engine->coordinator == NULL) {
        snprintf(text, HINT_SIZE, "; %s must say where rank 0 runs, on all members", engine->coordinator_source);
    }
    return text;
}

void trib_member_fail_to_join(trib_member *member, trib_status status, const char *why)
{
    trib_engine *engine = member->core->engine;
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "could not join at %.100s: %.250s", engine->coordinator_address, why);
    const trib_cause cause =
        trib_cause_about(status, TRIB_CAUSE_NOTE, TRIB_SUBJECT_COORDINATOR, 0, engine->member_id, text);
    trib_job_end(engine, &cause);
}

void trib_member_join_deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_member *member = timer->user;
    trib_engine *engine = member->core->engine;
    const int64_t join_timeout_ns = engine->config.join_timeout_ns;
    const bool reached = member->link != NULL && trib_link_is_up(member->link);
    const bool waits = atomic_load(&engine->changing) || trib_member_is_joiner(engine);
    if (reached && waits) { /* the others' programs may take as long as they like, unless the host is gone */
        trib_link_send_copy(member->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
        trib_timer_arm(reactor, timer, trib_now(reactor) + join_timeout_ns);
        return;
    }
    if (trib_join_notice_is_due(join_timeout_ns, &member->noticed)) {
        if (!reached) {
            trib_log(reactor->logger, TRIB_LOG_WARN,
                     "the coordinator at %s is not reached yet (%.200s); it is tried until %.0f s "
                     "have passed",
                     engine->coordinator_address, member->last_problem, (double)join_timeout_ns / 1e9);
        }
        trib_timer_arm(reactor, timer, trib_now(reactor) + join_timeout_ns - TRIB_JOIN_NOTICE_NS);
        return;
    }
    if (reached && !member->join_extended) {
        /* The coordinator's own deadline is about to pass, and its verdict will name the missing members. */
        member->join_extended = true;
        trib_timer_arm(reactor, timer, trib_now(reactor) + VERDICT_NS);
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE], why[TRIB_REASON_MAX], hint[HINT_SIZE];
    if (!reached && member->given_up.status != TRIB_OK) {
        char ended[TRIB_ERROR_TEXT_SIZE];
        trib_job_render(engine, &member->given_up, ended);
        snprintf(text, sizeof text,
                 "reached no coordinator at %.60s in the %.1f s since the one that this process waited for has ended: "
                 "%.240s",
                 engine->coordinator_address, (double)join_timeout_ns / 1e9, ended);
    } else if (!reached) {
        int64_t shortage_ns = 0;
        const int shortage = engine->coordinator != NULL ? trib_reactor_find_shortage(reactor, &shortage_ns) : 0;
        snprintf(text, sizeof text, "could not reach the coordinator at %s (transport %s) within %.1f s: %.200s%s",
                 engine->coordinator_address, engine->config.transport, (double)engine->config.join_timeout_ns / 1e9,
                 shortage != 0 ? trib_log_reason(shortage, why) : member->last_problem, hint_at_address(engine, hint));
    } else {
        snprintf(text, sizeof text, "reached the coordinator at %s, but the job did not come together within %.1f s",
                 engine->coordinator_address, (double)engine->config.join_timeout_ns / 1e9);
    }
    const trib_cause cause =
        trib_cause_about(TRIB_JOIN_FAILED, TRIB_CAUSE_NOTE, TRIB_SUBJECT_COORDINATOR, 0, engine->member_id, text);
    trib_job_end(engine, &cause);
}

/* All members have joined, but NCCL may wait for ever for a rank that it cannot reach. */
static void group_deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    const trib_member *member = timer->user;
    trib_engine *engine = member->core->engine;
    if (atomic_load(&engine->phase) == TRIB_PHASE_JOINING) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text,
                 "all members are there, but the GPUs of this machine did not form a group within %.1f s more "
                 "(NCCL_DEBUG=INFO says what NCCL waits for)",
                 (double)engine->config.join_timeout_ns / 1e9);
        const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, engine->member_id, text);
        trib_job_end(engine, &cause);
    }
}

/* The member's place in another epoch. The caller holds the mutex. */
static void take_place(trib_engine *engine, const trib_roster *roster, uint32_t member)
{
    const bool is_worker = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    const int32_t rank = is_worker ? (int32_t)roster->members[member].rank : engine->config.rank;
    trib_engine_set_counts(engine, rank, (int32_t)roster->worker_count, (int32_t)roster->server_count);
    trib_tensors_renumber(engine);
}

/* Of a list of addresses all but the one that led to the coordinator are other machines'. One that hangs would keep
 * this member away for longer than it is waited for between two epochs. */
static void stay_with_address(trib_member *member)
{
    const trib_link *link = member->link;
    trib_address at;
    /* The coordinator's own process listens at all of them in the next epoch, too. */
    if (link != NULL && member->core->engine->coordinator == NULL &&
        trib_address_list_count(link->redial.to.text) > 1) {
        trib_address_list_copy(link->redial.to.text, link->redial.address, at.text, sizeof at.text);
        trib_member_redirect(member->core->engine, &at, false);
        trib_redial_set_addresses(member->link, &at);
    }
}

/* Forgets the election that led to this epoch, and makes room for the next one. Returns false if memory runs out. */
static bool begin_epoch(trib_engine *engine, const trib_roster *roster)
{
    trib_formation *formation = &engine->formation;
    trib_election_stop(engine);
    formation->is_known = formation->is_settled = formation->at_boundary = false;
    formation->settled_ballot = formation->lost_last = 0;
    formation->committed_count = 0;
    return trib_formation_reserve(formation, roster->member_count);
}

/* Declares the groups and tensors that were there before the roster. */
static void declare_all(const trib_member *member)
{
    trib_engine *engine = member->core->engine;
    const bool is_worker = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    pthread_mutex_lock(&engine->mutex);
    uint32_t count = engine->tensor_count;
    pthread_mutex_unlock(&engine->mutex);
    trib_member_ask_groups(engine);
    for (uint32_t tag = 0; tag < count && is_worker; tag++) {
        pthread_mutex_lock(&engine->mutex);
        trib_tensor *tensor = engine->tensors[tag];
        const bool is_unused = tensor->state == TRIB_TENSOR_UNUSED;
        pthread_mutex_unlock(&engine->mutex);
        if (is_unused) {
            continue; /* released in an epoch before; who uses its memory next declares it */
        }
        trib_member_declare(member->core->reactor, &tensor->declare_post);
        if (tensor->state == TRIB_TENSOR_ENDED) { /* a state that core 0 alone sets and ends */
            trib_member_tensor_ended(tensor);
        }
    }
}

trib_status trib_member_take_roster(trib_member *member, const trib_frame *frame, const void *payload,
                                    trib_error *error)
{
    trib_engine *engine = member->core->engine;
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_roster *roster = NULL;
    trib_status status = member->joined ? trib_error_set(error, TRIB_PROTOCOL, "a second roster")
                                        : trib_roster_get(&reader, &roster, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_assert(roster != NULL);
    bool worker = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    bool belongs = (engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) != 0;
    const bool is_place = worker ? frame->root < roster->worker_count : frame->root < roster->member_count;
    const bool changes = atomic_load(&engine->changing) || trib_member_is_joiner(engine);
    if ((belongs && !is_place) || (worker && !changes && frame->root != (uint32_t)engine->config.rank)) {
        free(roster);
        return trib_error_set(error, TRIB_PROTOCOL, "the roster does not contain this member");
    }
    if (trib_departed_open(&engine->departed, roster->member_count) != TRIB_OK ||
        trib_losses_open(&engine->losses, roster->member_count) != TRIB_OK || !begin_epoch(engine, roster)) {
        free(roster);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the roster");
    }
    trib_assert(!member->joined && roster->before == NULL && trib_core_is_here(member->core));
    member->joined = true;
    engine->member_id = engine->formation.place = frame->root;
    roster->before = engine->roster;
    pthread_mutex_lock(&engine->mutex); /* other threads see this member's place and the roster change at once */
    if (changes) {
        take_place(engine, roster, frame->root);
    }
    trib_engine_take_roster_locked(engine, roster);
    pthread_mutex_unlock(&engine->mutex);
    /* The declarations below carry the epoch. The other cores get it by their posts. */
    member->core->host.epoch = roster->epoch;
    trib_timer_stop(member->core->reactor, &member->join_deadline);
    if (engine->device != NULL && engine->config.local_size > 1 && !roster->shrinks) {
        member->join_deadline.fired = group_deadline_passed;
        trib_timer_arm(member->core->reactor, &member->join_deadline,
                       trib_now(member->core->reactor) + engine->config.join_timeout_ns);
    }
    if (roster->ticket != 0) {
        atomic_fetch_add(&engine->cores_joining, 1); /* for the store, which has yet to say that the epoch begins */
    }
    trib_engine_publish(engine);
    trib_tensors_choose_sharded(engine);
    if (member->link != NULL) { /* else it came from another member (election.h) */
        trib_link_send_copy(member->link, (trib_frame){.type = TRIB_FRAME_ROSTER_TAKEN}, NULL, 0);
    }
    if (roster->shrinks) {
        stay_with_address(member);
    }
    trib_member_note_awaited(engine);
    trib_tracer_joined(engine);
    begin_watch(member);
    declare_all(member);
    trib_server_drain_again(engine);
    return TRIB_OK;
}

bool trib_member_is_away_too_long(trib_member *member, const trib_link *link)
{
    const trib_engine *engine = member->core->engine;
    const int64_t now_ns = trib_now(member->core->reactor);
    const bool refuses = link->redial.is_refused && trib_address_list_count(link->redial.to.text) == 1;
    member->away_since_ns = member->away_since_ns == 0 ? now_ns : member->away_since_ns;
    const bool has_ended = trib_election_refuses(&member->refused_since_ns, refuses, now_ns, TRIB_ELECTION_REFUSED_NS);
    return engine->roster != NULL && atomic_load(&engine->changing) &&
           (has_ended || now_ns - member->away_since_ns >= engine->roster->peer_timeout_ns);
}

void trib_member_search_anew(trib_member *member)
{
    trib_reactor *reactor = member->core->reactor;
    member->noticed = member->join_extended = false;
    trib_timer_arm(reactor, &member->join_deadline,
                   trib_now(reactor) + trib_join_first_ns(member->core->engine->config.join_timeout_ns));
}

bool trib_member_looks_elsewhere(trib_member *member, const trib_cause *cause)
{
    const trib_engine *engine = member->core->engine;
    const bool looks = engine->roster == NULL && trib_member_is_joiner(engine) && member->link != NULL &&
                       cause->status == TRIB_PEER_LOST;
    if (looks) {
        char why[TRIB_ERROR_TEXT_SIZE];
        trib_job_render(engine, cause, why);
        trib_log(member->core->reactor->logger, TRIB_LOG_WARN,
                 "the coordinator that this process waited for does not go on (%.200s): another one is looked for at "
                 "%.100s until %.0f s have passed",
                 why, engine->coordinator_address, (double)engine->config.join_timeout_ns / 1e9);
        member->given_up = *cause;
        trib_link_close(member->link, false, TRIB_CLOSED, why);
        trib_member_search_anew(member);
    }
    return looks;
}
