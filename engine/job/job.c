/*
 * job.c - the job's fate: from joining to its end, carried between the cores and the callers.
 */
#include "engine/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/log.h"
#include "engine/job/callback.h"
#include "engine/job/completions.h"

void *trib_job_zalloc(trib_engine *engine, trib_counter *allocations, size_t size)
{
    trib_counter_add(allocations, 1);
    const trib_env *env = &engine->env;
    return env->may_alloc == NULL || env->may_alloc(env->memory, size) ? calloc(1, size) : NULL;
}

void trib_engine_wake(trib_engine *engine, uint32_t reactors)
{
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if ((reactors & 1u << i) != 0) {
            trib_reactor_wake(engine->reactors[i].reactor);
        }
    }
}

void trib_engine_notify(trib_engine *engine)
{
    /* Taking the lock orders this after a waiter's last check. A broadcast inside the lock would wake threads only
     * to block on it. */
    pthread_mutex_lock(&engine->mutex);
    pthread_mutex_unlock(&engine->mutex);
    pthread_cond_broadcast(&engine->changed);
}

void trib_job_tell(trib_engine *engine, trib_post *post, bool is_wanted)
{
    if (engine->config.mode != TRIB_MODE_QUEUE) {
        trib_reactor_post(engine->reactors[0].reactor, post);
    } else if (is_wanted) {
        trib_completions_add(engine, post);
        trib_completions_signal(engine);
    }
}

static void nothing_follows(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    (void)post;
}

static void notify_ready(trib_reactor *reactor, trib_post *post)
{
    trib_engine *engine = trib_container_of(post, trib_engine, ready_post);
    trib_error fate = {.status = TRIB_OK};
    pthread_mutex_lock(&engine->mutex);
    if (!engine->joined) { /* after joining, a later end belongs to ended_cb */
        fate = engine->fate;
    }
    pthread_mutex_unlock(&engine->mutex);
    if (engine->config.ready_cb != NULL) {
        trib_callback callback TRIB_CALLBACK_SCOPE = {
            .engine = engine, .reactor = reactor, .post = post, .after = nothing_follows, .kind = TRIB_CALLBACK_READY};
        trib_callback_begin(&callback);
        engine->config.ready_cb(engine, &fate, engine->config.ready_user);
    }
}

/* Tells the program of the membership. status: TRIB_OK, or the reason why there is no other membership. */
static void notify_membership(trib_reactor *reactor, trib_post *post, trib_engine *engine, trib_membership_cb cb,
                              void *user, trib_status status)
{
    trib_membership membership = {.struct_size = sizeof membership};
    pthread_mutex_lock(&engine->mutex);
    trib_job_membership(engine, &membership);
    pthread_mutex_unlock(&engine->mutex);
    membership.status = status;
    trib_callback callback TRIB_CALLBACK_SCOPE = {
        .engine = engine, .reactor = reactor, .post = post, .after = nothing_follows, .kind = TRIB_CALLBACK_MEMBERSHIP};
    trib_callback_begin(&callback);
    cb(engine, &membership, user);
}

static void notify_advanced(trib_reactor *reactor, trib_post *post)
{
    trib_engine *engine = trib_container_of(post, trib_engine, formation.advanced_post);
    pthread_mutex_lock(&engine->mutex);
    trib_assert(engine->config.mode != TRIB_MODE_QUEUE || engine->formation.advanced_queued);
    engine->formation.advanced_queued = false;
    const trib_membership_cb cb = engine->formation.advanced_cb;
    void *user = engine->formation.advanced_user;
    const trib_status status = engine->formation.told;
    pthread_mutex_unlock(&engine->mutex);
    if (cb != NULL) {
        notify_membership(reactor, post, engine, cb, user, status);
    }
}

static void notify_changed(trib_reactor *reactor, trib_post *post)
{
    trib_engine *engine = trib_container_of(post, trib_engine, formation.changed_post);
    pthread_mutex_lock(&engine->mutex);
    trib_assert(engine->formation.changed_queued);
    engine->formation.changed_queued = false;
    const bool is_over = atomic_load(&engine->continues) && !atomic_load(&engine->changing) &&
                         atomic_load(&engine->phase) == TRIB_PHASE_READY;
    const trib_membership_cb cb = engine->formation.changed_cb;
    void *user = engine->formation.changed_user;
    pthread_mutex_unlock(&engine->mutex);
    if (cb != NULL) {
        notify_membership(reactor, post, engine, cb, user, is_over ? TRIB_OK : TRIB_EPOCH_CHANGED);
    }
}

void trib_engine_set_counts(trib_engine *engine, int32_t rank, int32_t workers, int32_t servers)
{
    engine->rank = engine->config.rank = rank;
    engine->worker_count = engine->config.worker_count = workers;
    engine->server_count = engine->config.server_count = servers;
}

void trib_job_membership(const trib_engine *engine, trib_membership *membership)
{
    const trib_roster *roster = engine->roster;
    const bool is_worker = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    membership->rank = is_worker ? engine->config.rank : -1;
    membership->worker_count = engine->config.worker_count;
    membership->server_count = engine->config.server_count;
    if (roster != NULL) {
        membership->epoch = trib_epoch_number(roster->epoch);
        membership->lost_count = roster->lost;
    }
    membership->status = TRIB_OK;
    const char *text = roster != NULL ? roster->lost_text : "";
    if (atomic_load(&engine->changing) || atomic_load(&engine->phase) == TRIB_PHASE_ENDED) {
        membership->status = engine->fate.status;
        text = engine->fate.text;
    }
    snprintf(membership->text, sizeof membership->text, "%s", text);
}

/* The caller holds the mutex: ends the wait of trib_membership_advance, because the membership is there or will not
 * come. */
static void end_advance(trib_engine *engine, trib_status status)
{
    trib_formation *formation = &engine->formation;
    if (formation->advances) {
        formation->advances = false;
        formation->told = status;
        formation->advanced_post.run = notify_advanced;
        formation->advanced_queued = formation->advanced_cb != NULL;
        if (formation->advanced_queued) {
            trib_job_tell(engine, &formation->advanced_post, true);
        }
    }
}

static void notify_ended(trib_reactor *reactor, trib_post *post)
{
    trib_engine *engine = trib_container_of(post, trib_engine, ended_post);
    pthread_mutex_lock(&engine->mutex);
    trib_error fate = engine->fate;
    pthread_mutex_unlock(&engine->mutex);
    if (engine->config.ended_cb != NULL) {
        trib_callback callback TRIB_CALLBACK_SCOPE = {
            .engine = engine, .reactor = reactor, .post = post, .after = nothing_follows, .kind = TRIB_CALLBACK_ENDED};
        trib_callback_begin(&callback);
        engine->config.ended_cb(engine, &fate, engine->config.ended_user);
    }
}

/* The caller holds the mutex: this engine's program hears of the change, unless the last one is yet to be told. */
static void tell_of_change(trib_engine *engine)
{
    if (engine->formation.changed_cb != NULL && !engine->formation.changed_queued) {
        engine->formation.changed_queued = true;
        engine->formation.changed_post.run = notify_changed;
        trib_job_tell(engine, &engine->formation.changed_post, true);
    }
}

/* The caller holds the mutex: the program has asked for a boundary, and a loss has begun this epoch instead. */
static void ask_again(trib_engine *engine)
{
    trib_formation *formation = &engine->formation;
    if (formation->advances && !formation->advance_posted) {
        formation->advance_posted = true;
        formation->advance_post.run = engine->hooks->advance;
        trib_reactor_post(engine->reactors[0].reactor, &formation->advance_post);
    }
}

void trib_engine_take_roster_locked(trib_engine *engine, const trib_roster *roster)
{
    /* The program may have closed the engine while the roster was under way. */
    trib_assert(engine->roster == NULL || atomic_load(&engine->changing) ||
                atomic_load(&engine->phase) == TRIB_PHASE_ENDED);
    trib_assert(roster != NULL && roster->worker_count <= roster->member_count);
    trib_assert(roster->member_count <= TRIB_MEMBERS_MAX);
    atomic_store(&engine->roster, roster);
    atomic_store(&engine->ranks_used, roster->ranks_used);
    atomic_store(&engine->shrinks, roster->shrinks);
    atomic_store(&engine->continues, roster->continues);
    /* Other threads read the roster with the mutex held, or have it from an operation. Each reactor has closed its core
     * since the last but one was the newest. */
    trib_formation_note_over(&engine->formation, trib_roster_free_past(roster, engine->formation.confirmed));
}

void trib_engine_publish(trib_engine *engine)
{
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_reactor_post(engine->reactors[i].reactor, engine->reactors[i].roster_post);
    }
}

void trib_engine_core_joined(trib_engine *engine)
{
    const unsigned joining = atomic_fetch_sub(&engine->cores_joining, 1);
    trib_assert(joining > 0 && joining <= engine->core_count + 1); /* the store counts as one (tenure.h) */
    if (joining != 1) {
        return;
    }
    pthread_mutex_lock(&engine->mutex);
    if (atomic_load(&engine->phase) == TRIB_PHASE_JOINING) {
        atomic_store(&engine->phase, TRIB_PHASE_READY);
        atomic_store(&engine->changing, false);
        const bool goes_on = atomic_exchange(&engine->formation.continues, false);
        if (goes_on && !engine->formation.passed_boundary) {
            ask_again(engine);
        } else {
            end_advance(engine, TRIB_OK);
        }
        engine->formation.passed_boundary = false;
        if (goes_on) {
            tell_of_change(engine);
        }
        if (!engine->joined) {
            engine->joined = true;
            engine->ready_post.run = notify_ready;
            trib_job_tell(engine, &engine->ready_post, engine->config.ready_cb != NULL);
        }
    }
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
}

static trib_cause_reader reader_of(const trib_engine *engine, uint32_t member)
{
    return (trib_cause_reader){.roster = engine->roster,
                               .member = member,
                               .worker_count = (uint32_t)atomic_load(&engine->worker_count),
                               .coordinator_address = engine->coordinator_address};
}

void trib_job_render(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE])
{
    const trib_cause_reader reader = reader_of(engine, engine->member_id);
    trib_cause_render(cause, &reader, text);
}

void trib_job_render_for_others(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE])
{
    const trib_cause_reader reader = reader_of(engine, TRIB_NO_MEMBER);
    trib_cause_render(cause, &reader, text);
}

/* The coordinator logs the advice. If the coordinator is lost, every other process logs it. */
static bool advises(const trib_engine *engine, const trib_cause *cause)
{
    return cause->status == TRIB_PEER_LOST &&
           (engine->coordinator != NULL || trib_cause_is_about_coordinator(cause, engine->roster));
}

/* A member may have been lost because its own program kept it silent. The caller holds the mutex. */
static void add_callback(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE])
{
    char callback[TRIB_CALLBACK_TEXT_SIZE];
    if (cause->status == TRIB_PEER_LOST && trib_callbacks_blame_locked(engine, callback)) {
        const size_t most = TRIB_ERROR_TEXT_SIZE - sizeof callback - 64, length = strlen(text);
        const size_t at = length < most ? length : most; /* a long text is cut: this is what the reader can change */
        snprintf(text + at, TRIB_ERROR_TEXT_SIZE - at, "; this process itself was held up by %s", callback);
    }
}

void trib_job_render_loss(trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE])
{
    pthread_mutex_lock(&engine->mutex);
    trib_job_render(engine, cause, text);
    add_callback(engine, cause, text);
    pthread_mutex_unlock(&engine->mutex);
}

void trib_job_end(trib_engine *engine, const trib_cause *cause)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    pthread_mutex_lock(&engine->mutex); /* the program's thread ends the job, too, when it closes the engine */
    trib_job_render(engine, cause, text);
    trib_phase phase = atomic_load(&engine->phase);
    const bool was_changing = atomic_exchange(&engine->changing, false);
    atomic_store(&engine->formation.continues, false);
    if (phase == TRIB_PHASE_ENDED && !was_changing) {
        pthread_mutex_unlock(&engine->mutex);
        return;
    }
    add_callback(engine, cause, text);
    engine->cause = *cause;
    engine->fate.status = cause->status;
    memcpy(engine->fate.text, text, sizeof text);
    atomic_store(&engine->phase, TRIB_PHASE_ENDED);
    trib_logger logger = engine->logger;
    for (uint32_t i = 0; i < engine->core_count && phase != TRIB_PHASE_ENDED; i++) {
        trib_reactor_post(engine->reactors[i].reactor, engine->reactors[i].ended_post);
    }
    end_advance(engine, trib_status_is_orderly(cause->status) ? TRIB_CLOSED : cause->status);
    if (phase == TRIB_PHASE_JOINING && !engine->joined) {
        engine->ready_post.run = notify_ready;
        trib_job_tell(engine, &engine->ready_post, engine->config.ready_cb != NULL);
    }
    if (!engine->close_asked) {
        engine->ended_post.run = notify_ended;
        trib_job_tell(engine, &engine->ended_post, engine->config.ended_cb != NULL);
    }
    const bool has_advice = advises(engine, cause);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
    /* Logging happens without the mutex: log_cb may wait for a lock of the host's, held by a thread that submits.
     * A copy of the logger is used because another thread may now destroy the engine. */
    trib_log(&logger, trib_status_is_orderly(cause->status) ? TRIB_LOG_INFO : TRIB_LOG_ERROR, "the job is over: %s",
             text);
    if (has_advice) {
        trib_log(&logger, TRIB_LOG_WARN,
                 "what to look at: the last lines that the lost process has written, then its machine's kernel log "
                 "(journalctl -k: out of memory?) and network; start the job again, unless its launcher does");
    }
}

void trib_job_change(trib_engine *engine, const trib_cause *cause)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render(engine, cause, text);
    pthread_mutex_lock(&engine->mutex);
    if (atomic_load(&engine->phase) == TRIB_PHASE_ENDED) {
        pthread_mutex_unlock(&engine->mutex);
        return;
    }
    /* The roster behind a boundary has come, and others may be at work there, while this process still connects. */
    trib_formation *formation = &engine->formation;
    const bool was_changing = atomic_load(&engine->changing) && !atomic_load(&formation->continues);
    formation->passed_boundary = formation->passed_boundary || (was_changing && !formation->at_boundary);
    atomic_store(&engine->changing, true);
    engine->cause = *cause;
    engine->fate.status = TRIB_EPOCH_CHANGED;
    const bool continues = atomic_load(&engine->continues) && !engine->formation.at_boundary;
    atomic_store(&engine->formation.continues, continues);
    if (continues && !engine->formation.parks) {
        engine->formation.parks = true;
        engine->formation.parked_last = &engine->formation.parked;
    }
    snprintf(engine->fate.text, sizeof engine->fate.text, "the membership changes (%.280s): %s", text,
             continues ? "operations wait for the workers that are left" : "call trib_membership_advance");
    atomic_store(&engine->phase, TRIB_PHASE_ENDED);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_reactor_post(engine->reactors[i].reactor, engine->reactors[i].ended_post);
    }
    tell_of_change(engine);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
    trib_log(&engine->logger, cause->status == TRIB_EPOCH_CHANGED ? TRIB_LOG_INFO : TRIB_LOG_WARN,
             "the epoch is over, and the job goes on: %s", text);
}

void trib_job_reopened(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    trib_assert(engine->formation.reopens && atomic_load(&engine->phase) == TRIB_PHASE_ENDED);
    engine->formation.reopens = false;
    const bool goes_on = atomic_load(&engine->changing);
    atomic_store(&engine->phase, goes_on ? TRIB_PHASE_JOINING : TRIB_PHASE_ENDED);
    for (uint32_t i = 0; i < engine->core_count && !goes_on; i++) { /* the job has ended meanwhile */
        trib_reactor_post(engine->reactors[i].reactor, engine->reactors[i].ended_post);
    }
    pthread_mutex_unlock(&engine->mutex);
}

bool trib_job_survives(const trib_engine *engine, const trib_cause *cause)
{
    const trib_roster *roster = engine->roster;
    return roster != NULL && roster->survives && cause->status == TRIB_PEER_LOST &&
           cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject >= roster->worker_count &&
           cause->subject < roster->member_count && cause->subject != engine->member_id &&
           atomic_load(&engine->phase) == TRIB_PHASE_READY;
}

void trib_job_member_lost(trib_engine *engine, const trib_cause *cause)
{
    if (trib_job_survives(engine, cause)) {
        engine->hooks->member_suspected(engine, cause->subject);
    } else if (atomic_load(&engine->shrinks)) {
        /* The coordinator decides what that means for all, or the one that is elected in its place. A member that has
         * trouble tells the coordinator itself. */
        const trib_roster *roster = engine->roster;
        if (cause->status == TRIB_PEER_LOST && cause->subject_kind == TRIB_SUBJECT_MEMBER && roster != NULL &&
            cause->subject < roster->member_count && cause->subject != engine->member_id) {
            engine->hooks->member_suspected(engine, cause->subject);
        }
    } else {
        trib_assert(!trib_status_is_orderly(cause->status));
        trib_job_end(engine, cause);
    }
}

void trib_job_fail(trib_engine *engine, trib_status status, const char *detail)
{
    trib_assert(!trib_status_is_orderly(status));
    const trib_cause cause = trib_cause_trouble(status, engine->member_id, detail);
    trib_job_end(engine, &cause);
}

trib_status trib_engine_check_open_locked(const trib_engine *engine, trib_error *error)
{
    const bool is_open = atomic_load(&engine->phase) != TRIB_PHASE_ENDED && !atomic_load(&engine->changing);
    if (is_open || (atomic_load(&engine->changing) && atomic_load(&engine->formation.continues))) {
        return TRIB_OK;
    }
    const trib_error *fate = &engine->fate;
    return trib_error_set(error, fate->status == TRIB_OK ? TRIB_CLOSED : fate->status, "%s", fate->text);
}

trib_status trib_engine_check_open(trib_engine *engine, trib_error *error)
{
    if (atomic_load(&engine->phase) != TRIB_PHASE_ENDED && !atomic_load(&engine->changing)) {
        return TRIB_OK;
    }
    pthread_mutex_lock(&engine->mutex);
    const trib_status status = trib_engine_check_open_locked(engine, error);
    pthread_mutex_unlock(&engine->mutex);
    return status;
}
