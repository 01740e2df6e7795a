/* tenure.c - see tenure.h. One request is under way at a time; the next request follows from the state below. */
#include "engine/membership/tenure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/membership/formation.h"
#include "engine/membership/member.h"
#include "engine/wire/address_list.h"

#define AGAIN_NS (250 * INT64_C(1000000)) /* pause after a request that has failed */
#define MORE_NS (5 * INT64_C(1000000000)) /* life of a sign, beyond the time that an election may take */
#define FADES_TIMES 3                     /* peer timeouts: an election takes less */

struct trib_tenure {
    trib_core *core;
    trib_store_request request;
    trib_timer timer;
    bool is_busy;
    bool seeks;             /* a member wants to know where the coordinator is */
    trib_address found;     /* the address that was found; "": none yet */
    bool keeps, is_checked; /* this process coordinates; it knows that nobody else does */
    trib_address at;        /* address at which this process coordinates */
    bool claims, has_read, has_swapped;
    uint64_t ticket, asked, revision; /* ticket: claimed now, or last; asked: of the last swap */
    uint64_t *tried;                  /* tickets that may be in the record, or come there late */
    uint32_t tried_count;
    uint32_t begun;          /* the last epoch that the record has named; 0: none yet */
    uint64_t first_revision; /* revision of the record when the name was free */
    /* when the sign is due; when the claim or check began; failing since; 0: it is not */
    int64_t due_ns, began_ns, failing_ns;
    bool is_lost_told, is_wait_told;
};

static void go_on(trib_tenure *self);

static trib_tenure *get(trib_engine *engine);

static int64_t fades_ns(const trib_tenure *self)
{
    return FADES_TIMES * self->core->engine->config.peer_timeout_ns + MORE_NS;
}

/* No epoch of the job has begun. */
static bool is_first(const trib_tenure *self)
{
    const trib_formation *formation = &self->core->engine->formation;
    return formation->confirmed == 0 && !formation->moved;
}

static void end_job(trib_tenure *self, const char *what)
{
    trib_engine *engine = self->core->engine;
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "the store (TRIB_STORE=%.120s) %s", engine->store, what);
    const trib_cause cause = trib_cause_note(is_first(self) ? TRIB_JOIN_FAILED : TRIB_PEER_LOST, TRIB_NO_MEMBER, text);
    self->claims = self->keeps = false;
    if (engine->coordinator != NULL) {
        trib_coordinator_end_job(engine->coordinator, &cause);
    } else {
        trib_job_end(engine, &cause);
    }
}

/* ---- The record ---- */

static void write_record(const trib_tenure *self, char *record, size_t size)
{
    const trib_roster *roster = self->core->engine->coordinator->roster;
    snprintf(record, size, "epoch %" PRIu32 " ticket %016" PRIx64 " at %.120s", trib_epoch_number(roster->epoch),
             self->ticket, self->at.text);
}

/* Returns false for a text that is no record. */
static bool read_record(const char *record, uint32_t *epoch_out, uint64_t *ticket_out)
{
    uint32_t number = 0;
    char at[2];
    const bool is_one = sscanf(record, "epoch %" SCNu32 " ticket %16" SCNx64 " at %1s", &number, ticket_out, at) == 3;
    *epoch_out = trib_epoch_make((uint32_t)(*ticket_out >> TRIB_TICKET_RANDOM_BITS), trib_epoch_number(number));
    return is_one;
}

/* The epoch has begun. No swap that was asked for before it can be carried out any more. */
static void note_begun(trib_tenure *self, uint32_t epoch, uint64_t ticket)
{
    trib_formation *formation = &self->core->engine->formation;
    if (formation->confirmed != ticket) {
        trib_formation_note_over(formation, self->begun);
    }
    formation->confirmed = ticket;
    self->begun = epoch;
    self->tried_count = 0;
}

static bool note_tried(trib_tenure *self)
{
    uint64_t *tried = realloc(self->tried, (self->tried_count + 1) * sizeof *tried);
    if (tried != NULL) {
        self->tried = tried;
        self->tried[self->tried_count++] = self->ticket;
    }
    return tried != NULL;
}

static bool has_tried(const trib_tenure *self, uint64_t ticket)
{
    uint32_t i = 0;
    while (i < self->tried_count && self->tried[i] != ticket) {
        i++;
    }
    return i < self->tried_count;
}

typedef enum verdict { MINE, FREE, ANOTHERS, OLD, NOTHING, NO_RECORD } verdict;

/* FREE: the epoch of this roster may follow the epoch in the record. Notes that the latter has begun. */
static verdict judge(trib_tenure *self)
{
    const uint64_t confirmed = self->core->engine->formation.confirmed;
    const uint32_t latest = self->core->engine->formation.over;
    uint32_t recorded = 0;
    uint64_t ticket = 0;
    if (self->request.revision != 0 && (!read_record(self->request.record, &recorded, &ticket) || ticket == 0)) {
        return NO_RECORD;
    }
    if (ticket != 0 && ticket == self->ticket) {
        return MINE;
    }
    bool is_past = false;
    for (const trib_roster *at = self->core->engine->roster; at != NULL && ticket != 0; at = at->before) {
        if (at->ticket == ticket && !is_past) {
            note_begun(self, recorded, ticket);
            return FREE;
        }
        if (at->ticket == ticket) {
            return OLD;
        }
        is_past = is_past || at->ticket == confirmed;
    }
    if (ticket != 0 && ticket == confirmed) {
        return FREE;
    }
    /* A coordinator in a process of its own has no roster of a member's. */
    if (ticket != 0 && has_tried(self, ticket)) {
        note_begun(self, recorded, ticket);
        return FREE;
    }
    if (ticket != 0 && latest != 0 && trib_epoch_incarnation(recorded) == trib_epoch_incarnation(latest) &&
        !trib_epoch_is_before(latest, recorded)) {
        return OLD;
    }
    if (is_first(self) && self->request.revision == self->first_revision) {
        return FREE;
    }
    return self->request.revision == 0 ? NOTHING : ANOTHERS;
}

/* Returns true if this process may coordinate, as far as the record says. Else the job ends, or has ended. */
static bool may_go_on(trib_tenure *self, verdict is)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    switch (is) {
    case MINE:
    case FREE:
        return true;
    case ANOTHERS:
        snprintf(text, sizeof text,
                 is_first(self)
                     ? "says that another job of this name has begun (%.150s): choose another name (TRIB_JOB)"
                     : "says that other members have gone on without this one (%.150s): start it anew, as "
                       "one that joins (TRIB_RANK=-1)",
                 self->request.record);
        break;
    case OLD:
        snprintf(
            text, sizeof text,
            "names an epoch that is over (%.100s): its data were lost, or an old state was restored, so nobody can "
            "tell who goes on: start the job again",
            self->request.record);
        break;
    case NOTHING:
        snprintf(
            text, sizeof text,
            "has no record of this job any more: its data were lost, so nobody can tell who goes on: start the job "
            "again");
        break;
    default:
        snprintf(text, sizeof text,
                 "holds \"%.60s\" for this job, which is no record of one: choose another prefix, or remove it",
                 self->request.record);
        break;
    }
    end_job(self, text);
    return false;
}

/* ---- Requests ---- */

static bool is_over(const trib_tenure *self)
{
    const trib_engine *engine = self->core->engine;
    return atomic_load(&engine->phase) == TRIB_PHASE_ENDED && !atomic_load(&engine->changing);
}

static void rest(trib_tenure *self, int64_t at_ns)
{
    trib_timer_arm(self->core->reactor, &self->timer, at_ns);
}

/* Takes a failure: the store does not answer, and an epoch may wait for it. */
static void take_failure(trib_tenure *self)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    trib_engine *engine = self->core->engine;
    const bool waits = self->claims || (self->keeps && !self->is_checked && is_first(self));
    if (self->failing_ns == 0 || (waits && !self->is_wait_told)) {
        self->failing_ns = now_ns;
        self->is_wait_told = waits;
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN, "the store (TRIB_STORE=%s) does not answer, %s: %s",
                 engine->store, waits ? "and the job waits for it" : "and is asked again", self->request.why);
    }
    self->has_read = false;
    if (waits && now_ns - self->began_ns >= engine->config.join_timeout_ns) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text,
                 "has not said within %.1f s (TRIB_JOIN_TIMEOUT) that the job may go on here: %.180s",
                 (double)engine->config.join_timeout_ns / 1e9, self->request.why);
        end_job(self, text);
        return;
    }
    rest(self, now_ns + AGAIN_NS);
}

/* Checks that nobody coordinates a job of that name, unless its coordinator has just died. */
static void check_name(trib_tenure *self)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    const trib_engine *engine = self->core->engine;
    self->is_checked = self->request.sign[0] == '\0';
    if (self->is_checked) {
        self->first_revision = self->request.revision;
        return;
    }
    if (now_ns - self->began_ns >= engine->config.join_timeout_ns) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text,
                 "says that a job of the name \"%.60s\" is under way, whose coordinator is at %.100s: choose another "
                 "name (TRIB_JOB), or join it (TRIB_RANK=-1)",
                 engine->job, self->request.sign);
        end_job(self, text);
        return;
    }
    if (!self->is_lost_told) {
        self->is_lost_told = true;
        trib_log(
            self->core->reactor->logger, TRIB_LOG_WARN,
            "the store (TRIB_STORE=%s) knows a job of the name \"%s\" at %s: this one waits until nothing has been "
            "heard of that for %.0f s",
            engine->store, engine->job, self->request.sign, (double)fades_ns(self) / 1e9);
    }
    rest(self, now_ns + AGAIN_NS);
}

static void take_claim(trib_tenure *self)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    if (self->request.kind == TRIB_STORE_SWAP) { /* the answer is read, too */
        self->has_swapped = self->request.is_swapped && self->asked == self->ticket;
        self->has_read = false;
        return;
    }
    const verdict is = judge(self);
    if (!may_go_on(self, is)) {
        return;
    }
    if (is == MINE) {
        self->claims = false;
        self->is_checked = true;
        self->is_lost_told = false;
        note_begun(self, self->core->engine->coordinator->roster->epoch, self->ticket);
        self->due_ns = now_ns; /* the sign that was there may be another one's */
        trib_formation_begun(self->core->engine->coordinator);
    } else if (self->has_swapped) {
        end_job(self, "has not kept what it said it had taken: nobody can tell who goes on: start the job again");
    } else if (now_ns - self->began_ns >= self->core->engine->config.join_timeout_ns) {
        end_job(self, "contradicts itself: it refuses what its record allows");
    } else {
        self->revision = self->request.revision;
        self->has_read = true;
    }
}

static void take_kept(trib_tenure *self)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    const verdict is = judge(self);
    self->due_ns = now_ns + fades_ns(self) / 4;
    if ((is == NOTHING || is == NO_RECORD || is == OLD) && !self->is_lost_told) {
        self->is_lost_told = true; /* the job goes on; the next epoch does not begin */
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "the store (TRIB_STORE=%s) has lost the record of this job: it ends when a member is lost or joins",
                 self->core->engine->store);
    } else if (is == ANOTHERS) {
        (void)may_go_on(self, is);
    }
}

static void take_answer(trib_reactor *reactor, trib_post *post)
{
    trib_tenure *self = trib_container_of(post, trib_tenure, request.done);
    trib_store_request *request = &self->request;
    (void)reactor;
    self->is_busy = false;
    if (is_over(self)) {
        return;
    }
    if (!request->is_answered) {
        take_failure(self);
        return;
    }
    if (self->failing_ns != 0) {
        self->failing_ns = 0;
        self->is_wait_told = false;
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN, "the store answers again");
    }
    if (request->kind == TRIB_STORE_GET) {
        snprintf(self->found.text, sizeof self->found.text, "%s", request->sign);
        self->seeks = false;
    }
    const bool may_know = self->core->engine->coordinator != NULL && self->keeps;
    if (may_know && !self->is_checked && is_first(self)) {
        check_name(self);
    } else if (may_know && self->claims && request->kind != TRIB_STORE_KEEP) {
        take_claim(self);
    } else if (may_know && request->kind == TRIB_STORE_KEEP) {
        take_kept(self);
    } else if (may_know && !self->is_checked) {
        self->is_checked = may_go_on(self, judge(self));
    }
    go_on(self);
}

static void ask(trib_tenure *self, trib_store_kind kind)
{
    trib_store_request *request = &self->request;
    request->done.run = take_answer;
    request->reactor = self->core->reactor;
    request->kind = kind;
    request->is_answered = request->is_swapped = false;
    request->fades_ns = fades_ns(self);
    request->revision = self->revision;
    request->why[0] = '\0';
    snprintf(request->sign, sizeof request->sign, "%s", self->at.text);
    if (kind == TRIB_STORE_SWAP) {
        write_record(self, request->record, sizeof request->record);
        self->asked = self->ticket;
        if (!has_tried(self, self->ticket) && !note_tried(self)) {
            end_job(self, "cannot be asked: out of memory");
            return;
        }
    }
    self->is_busy = true;
    const trib_env *env = &self->core->engine->env;
    env->store_ops->begin(env->store, request);
}

static void go_on(trib_tenure *self)
{
    const trib_engine *engine = self->core->engine;
    if (self->is_busy || is_over(self) || self->timer.armed) {
        return;
    }
    const bool may_coordinate = self->keeps && engine->coordinator != NULL;
    const bool checks = may_coordinate && !self->is_checked && (is_first(self) || !self->claims);
    if (may_coordinate && self->claims && !checks) {
        ask(self, self->has_read ? TRIB_STORE_SWAP : TRIB_STORE_GET);
    } else if (checks || (self->seeks && !may_coordinate)) {
        ask(self, TRIB_STORE_GET);
    } else if (may_coordinate && trib_now(self->core->reactor) >= self->due_ns) {
        ask(self, TRIB_STORE_KEEP);
    } else if (may_coordinate) {
        rest(self, self->due_ns);
    }
}

static void time_has_come(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    go_on(timer->user);
}

/* ---- What is wanted ---- */

/* NULL: there is no memory, or no store. */
static trib_tenure *get(trib_engine *engine)
{
    if (engine->tenure == NULL && trib_tenure_is_used(engine)) {
        trib_tenure *self = trib_core_zalloc(&engine->cores[0], sizeof *self);
        if (self != NULL) {
            self->core = &engine->cores[0];
            self->timer.fired = time_has_come;
            self->timer.user = self;
            engine->tenure = self;
        }
    }
    return engine->tenure;
}

void trib_tenure_begin(trib_coordinator *coordinator, const trib_address *at)
{
    trib_tenure *self = get(coordinator->core->engine);
    if (self == NULL) {
        return; /* without memory the job ends when an epoch is claimed */
    }
    self->at = *at;
    trib_address_list_strip_offers(self->at.text);
    self->is_checked = self->is_checked && self->keeps;
    self->keeps = true;
    self->began_ns = self->due_ns = trib_now(self->core->reactor);
    trib_timer_stop(self->core->reactor, &self->timer);
    rest(self, self->began_ns);
}

void trib_tenure_claim(trib_coordinator *coordinator)
{
    trib_tenure *self = get(coordinator->core->engine);
    trib_assert(coordinator->running && coordinator->roster->ticket != 0);
    if (self == NULL) {
        const trib_cause cause = trib_cause_note(TRIB_NO_MEMORY, TRIB_NO_MEMBER, "out of memory for the store");
        trib_coordinator_end_job(coordinator, &cause);
        return;
    }
    self->claims = true;
    self->has_read = self->has_swapped = false;
    self->ticket = coordinator->roster->ticket;
    if (!is_first(self) || self->is_checked) {
        self->began_ns = trib_now(self->core->reactor);
    }
    trib_timer_stop(self->core->reactor, &self->timer);
    go_on(self);
}

void trib_tenure_forgo(trib_engine *engine)
{
    if (engine->tenure != NULL) {
        engine->tenure->claims = false;
    }
}

bool trib_tenure_find(trib_engine *engine, trib_address *found_out)
{
    trib_tenure *self = engine->coordinator == NULL ? get(engine) : NULL;
    if (self == NULL) {
        return false;
    }
    const bool has_found = self->found.text[0] != '\0';
    *found_out = self->found;
    self->found.text[0] = '\0';
    self->seeks = true;
    go_on(self);
    return has_found;
}

void trib_tenure_close(trib_engine *engine)
{
    if (engine->env.store_ops != NULL) {
        /* Else others may go on, and nobody must take the name before they have said so. */
        const bool is_free = trib_status_is_orderly(engine->cause.status) || engine->formation.confirmed == 0;
        engine->env.store_ops->stop(engine->env.store, is_free);
    }
    if (engine->tenure != NULL) {
        trib_timer_stop(engine->tenure->core->reactor, &engine->tenure->timer);
        free(engine->tenure->tried);
        free(engine->tenure);
        engine->tenure = NULL;
    }
}
