/* takeover.c - see takeover.h. */
#include "engine/server/takeover.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/aggregate/summation.h"
#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/link/link_session.h"

typedef struct worker_report {
    trib_frame frame; /* frame.round: the last round that the worker has begun */
    bool is_there, is_open;
    bool waits_for_nothing; /* the worker needs no RESUME */
    bool is_gone;           /* the worker has left, so it has nothing of any round */
    uint32_t copy_round, copy_step;
    uint8_t copy_reduce;
    trib_status gave_up_as; /* the reason why it gave up a round last */
    uint32_t final;         /* RESUME: the round whose sum this worker sends from its copy; 0: none */
    uint32_t giver;         /* RESUME: the worker that sends the sum of this worker's own round */
} worker_report;

typedef struct trib_takeover {
    trib_core *core;
    uint32_t tensor, partition, chunk_bytes, size, chunk_count, count;
    uint32_t losses;               /* losses of which the workers that have reported know */
    int64_t checked_ns, waited_ns; /* the last check, and how long reports have been missing */
    uint64_t key;                  /* tensor and partition */
    UT_hash_handle hh;             /* in core->takeovers */
    worker_report reports[];
} trib_takeover;

/* ---- What a worker has of a round ---- */

/* The worker has not begun the round, or has its input. */
static bool is_before(const worker_report *report, uint32_t round)
{
    return !report->is_gone && (report->frame.round < round || (report->frame.round == round && report->is_open));
}

static bool is_open_in(const worker_report *report, uint32_t round)
{
    return report->frame.round == round && report->is_open;
}

/* A worker that has the round's sum, or TRIB_NO_MEMBER. */
static uint32_t find_giver(const trib_takeover *self, uint32_t round)
{
    for (uint32_t i = 0; i < self->count; i++) {
        if (self->reports[i].copy_round == round) {
            return i;
        }
    }
    return TRIB_NO_MEMBER;
}

/* Returns the report of a worker that is in the round, or NULL. */
static const trib_frame *find_operation(const trib_takeover *self, uint32_t round)
{
    for (uint32_t i = 0; i < self->count; i++) {
        if (is_open_in(&self->reports[i], round)) {
            return &self->reports[i].frame;
        }
    }
    return NULL;
}

/* ---- Rounds ---- */

static trib_summation *summation_of(const trib_takeover *self)
{
    return trib_sum_aggregator_summation(self->core->sums[TRIB_SUM_RANK].aggregator);
}

static trib_contribution contribution_of(const trib_takeover *self, uint32_t round, uint32_t worker)
{
    return (trib_contribution){.tensor = self->tensor,
                               .partition = self->partition,
                               .round = round,
                               .chunk_count = self->chunk_count,
                               .contributor = worker,
                               .round_base = trib_server_rounds_over(self->core, self->tensor)};
}

/* The worker is through with a broadcast that goes on: it counts as having asked for every chunk. It drops frames of
 * the round, which is over there. */
static trib_status count_as_present(const trib_takeover *self, const trib_contribution *what)
{
    trib_error error;
    trib_status status = TRIB_OK;
    trib_contribution chunk = *what;
    trib_assert(chunk.contributor < self->count && chunk.chunk == 0);
    for (; chunk.chunk < self->chunk_count && status == TRIB_OK; chunk.chunk++) {
        const uint32_t left = self->size - chunk.chunk * self->chunk_bytes;
        chunk.size = left < self->chunk_bytes ? left : self->chunk_bytes;
        status = trib_summation_arrived(summation_of(self), &chunk, &(trib_arrived){0}, &error);
    }
    return status;
}

/* Calls off the round on behalf of all workers that are through with it. A worker that sends the sum of an earlier
 * round withdraws by itself afterwards. */
static trib_status call_off(const trib_takeover *self, uint32_t round)
{
    trib_status status = TRIB_OK;
    for (uint32_t i = 0; i < self->count && status == TRIB_OK; i++) {
        const worker_report *report = &self->reports[i];
        if (is_before(report, round) || (report->final > 0 && report->final < round)) {
            continue;
        }
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "%s %s before the server that summed round %u was lost",
                 trib_roster_name(self->core->engine->roster, i),
                 report->is_gone ? "left the job" : "was through with the round, or gave it up,", round);
        const trib_contribution what = contribution_of(self, round, i);
        status = trib_summation_withdraw(summation_of(self), &what,
                                         report->is_gone ? TRIB_PEER_LEFT : report->gave_up_as, text);
    }
    return status;
}

/* The round becomes a broadcast of its sum by a worker that has it. */
static trib_status have_given(trib_takeover *self, uint32_t round, uint32_t giver)
{
    worker_report *from = &self->reports[giver];
    trib_status status = TRIB_OK;
    trib_assert(from->copy_round == round && from->final < round);
    from->final = round;
    for (uint32_t i = 0; i < self->count && status == TRIB_OK; i++) {
        if (is_open_in(&self->reports[i], round)) {
            self->reports[i].giver = giver;
        } else if (!is_before(&self->reports[i], round) && i != giver) {
            trib_contribution what = contribution_of(self, round, i);
            what.collective = TRIB_COLLECTIVE_BROADCAST;
            what.dtype = (trib_dtype)from->frame.dtype;
            what.reduce = (trib_reduce)from->copy_reduce;
            what.root = giver;
            what.step = from->copy_step;
            status = count_as_present(self, &what);
        }
    }
    return status;
}

/* All that bring a payload push it again. In a broadcast some receivers may be through. */
static trib_status have_pushed_again(const trib_takeover *self, uint32_t round, const trib_frame *operation)
{
    trib_status status = TRIB_OK;
    for (uint32_t i = 0; i < self->count && status == TRIB_OK; i++) {
        if (!is_before(&self->reports[i], round)) {
            trib_contribution what = contribution_of(self, round, i);
            trib_assert(operation != NULL && operation->collective == TRIB_COLLECTIVE_BROADCAST);
            what.collective = TRIB_COLLECTIVE_BROADCAST;
            what.dtype = (trib_dtype)operation->dtype;
            what.reduce = (trib_reduce)operation->reduce;
            what.root = operation->root;
            what.step = operation->step;
            status = count_as_present(self, &what);
        }
    }
    return status;
}

static bool may_be_pushed_again(const trib_takeover *self, uint32_t round, const trib_frame *operation)
{
    bool all = true;
    for (uint32_t i = 0; i < self->count; i++) {
        all = all && is_before(&self->reports[i], round);
    }
    return all || (operation != NULL && operation->collective == TRIB_COLLECTIVE_BROADCAST &&
                   is_before(&self->reports[operation->root], round));
}

static trib_status decide_round(trib_takeover *self, uint32_t round)
{
    const trib_frame *operation = find_operation(self, round);
    const uint32_t giver = find_giver(self, round);
    if (giver != TRIB_NO_MEMBER && (operation == NULL || operation->collective != TRIB_COLLECTIVE_REDUCE)) {
        return have_given(self, round, giver);
    }
    return may_be_pushed_again(self, round, operation) ? have_pushed_again(self, round, operation)
                                                       : call_off(self, round);
}

/* ---- All reports are there ---- */

/* The last round that is over everywhere, and the last that a worker has begun. */
static void find_rounds(const trib_takeover *self, uint32_t *over_out, uint32_t *last_out)
{
    uint32_t over = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const worker_report *report = &self->reports[i];
        const uint32_t through = report->frame.round - (report->is_open ? 1 : 0);
        over = !report->is_gone && through < over ? through : over;
        last = report->frame.round > last ? report->frame.round : last;
    }
    *over_out = over;
    *last_out = last;
}

static void tell_worker(const trib_takeover *self, uint32_t worker)
{
    const worker_report *report = &self->reports[worker];
    trib_assert(report->is_there && (report->giver == TRIB_NO_MEMBER || report->giver < self->count));
    trib_link *link = self->core->worker_links[worker];
    if (link != NULL && !report->waits_for_nothing) {
        const trib_frame frame = {.type = TRIB_FRAME_RESUME,
                                  .tensor = self->tensor,
                                  .partition = self->partition,
                                  .round = report->final,
                                  .aux = report->giver};
        trib_link_send_copy(link, frame, NULL, 0);
    }
}

static void drop_takeover(trib_takeover *self)
{
    trib_assert(HASH_COUNT(self->core->takeovers) > 0);
    HASH_DEL(self->core->takeovers, self);
    free(self);
}

static void decide_rounds(trib_takeover *self)
{
    uint32_t over, last;
    find_rounds(self, &over, &last);
    trib_assert(over == UINT32_MAX || over <= last);
    const trib_contribution key = contribution_of(self, over, 0);
    trib_status status = trib_summation_take_over(summation_of(self), &key);
    for (uint32_t round = over + 1; round <= last && status == TRIB_OK; round++) {
        status = decide_round(self, round);
    }
    if (status != TRIB_OK) {
        trib_job_fail(self->core->engine, status, "could not take over a partition of a lost server");
    }
    for (uint32_t i = 0; i < self->count && status == TRIB_OK; i++) {
        tell_worker(self, i);
    }
    drop_takeover(self);
}

static bool has_all(trib_takeover *self)
{
    bool all = true;
    for (uint32_t i = 0; i < self->count; i++) {
        worker_report *report = &self->reports[i];
        char text[TRIB_ERROR_TEXT_SIZE];
        if (!report->is_there && trib_server_is_gone(self->core, i, 0, text, sizeof text)) {
            report->is_there = report->is_gone = true;
        }
        all = all && report->is_there;
    }
    return all;
}

/* ---- Reports ---- */

static trib_takeover *find_takeover(const trib_core *core, const trib_frame *frame)
{
    const uint64_t key = (uint64_t)frame->tensor << 32 | frame->partition;
    trib_takeover *self = NULL;
    HASH_FIND(hh, core->takeovers, &key, sizeof key, self);
    return self;
}

static bool is_wanted(const trib_core *core, uint32_t worker, const trib_frame *frame)
{
    const trib_takeover *self = find_takeover(core, frame);
    return self != NULL && !self->reports[worker].is_there;
}

/* Returns NULL if memory runs out. */
static trib_takeover *find_or_add(trib_core *core, const trib_frame *frame)
{
    trib_takeover *self = find_takeover(core, frame);
    if (self != NULL) {
        return self;
    }
    const uint32_t count = core->engine->roster->worker_count;
    trib_assert(core->engine->roster->survives && core->sums != NULL);
    self = trib_core_zalloc(core, sizeof *self + count * sizeof self->reports[0]);
    if (self != NULL) {
        self->core = core;
        self->tensor = frame->tensor;
        self->partition = frame->partition;
        self->count = count;
        self->checked_ns = trib_now(core->reactor);
        self->key = (uint64_t)frame->tensor << 32 | frame->partition;
        HASH_ADD(hh, core->takeovers, key, sizeof self->key, self);
        if (self->hh.tbl == NULL) { /* out of memory */
            free(self);
            self = NULL;
        }
    }
    return self;
}

static trib_status read_report(const trib_frame *frame, const void *payload, worker_report *report_out,
                               uint32_t *chunk_bytes_out, uint32_t *losses_out, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    report_out->frame = *frame;
    const uint32_t flags = trib_get_u32(&reader);
    *losses_out = trib_get_u32(&reader);
    report_out->is_there = true;
    report_out->is_open = (flags & TRIB_REPORT_OPEN) != 0;
    report_out->waits_for_nothing = (flags & TRIB_REPORT_WAITS_FOR_NOTHING) != 0;
    *chunk_bytes_out = trib_get_u32(&reader);
    report_out->copy_round = trib_get_u32(&reader);
    report_out->copy_step = trib_get_u32(&reader);
    report_out->copy_reduce = (uint8_t)trib_get_u32(&reader);
    report_out->gave_up_as = trib_frame_withdraw_reason((trib_status)(int32_t)trib_get_u32(&reader));
    report_out->giver = TRIB_NO_MEMBER;
    return trib_get_end(&reader, "REPORT", error);
}

static bool is_sane(const trib_core *core, const trib_frame *frame, const worker_report *report, uint32_t chunk_bytes)
{
    const trib_roster *roster = core->engine->roster;
    const bool is_plain = frame->collective == TRIB_COLLECTIVE_BROADCAST || trib_collective_is_sum(frame->collective);
    const uint64_t chunks = chunk_bytes == 0 ? 0 : ((uint64_t)frame->size + chunk_bytes - 1) / chunk_bytes;
    return roster->survives && core->sums != NULL && frame->group == 0 && is_plain &&
           frame->root < roster->worker_count && trib_dtype_size((trib_dtype)frame->dtype) > 0 &&
           frame->reduce < TRIB_REDUCE_COUNT && report->copy_reduce < TRIB_REDUCE_COUNT &&
           chunk_bytes <= roster->chunk_bytes && frame->chunk_count == (chunks == 0 ? 1 : chunks) &&
           frame->chunk_count <= TRIB_SUM_CHUNKS_MAX && report->copy_round <= frame->round &&
           frame->round < UINT32_MAX && (!report->is_open || frame->round > 0);
}

trib_status trib_takeover_report(trib_link *link, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_core *core = link->core;
    worker_report report = {.is_there = false};
    uint32_t chunk_bytes = 0, losses = 0;
    const trib_status status = read_report(frame, payload, &report, &chunk_bytes, &losses, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!is_sane(core, frame, &report, chunk_bytes)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed REPORT");
    }
    if (report.waits_for_nothing && !is_wanted(core, link->peer, frame)) {
        return TRIB_OK; /* the question was asked twice */
    }
    trib_takeover *self = find_or_add(core, frame);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a partition of a lost server");
    }
    const bool is_first = self->chunk_bytes == 0;
    trib_assert(link->peer < self->count);
    if (self->reports[link->peer].is_there ||
        (!is_first && !report.waits_for_nothing && (self->size != frame->size || self->chunk_bytes != chunk_bytes))) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "REPORT of partition %u of tensor %u came twice, or contradicts others", frame->partition,
                              frame->tensor);
    }
    if (!report.waits_for_nothing) {
        self->chunk_bytes = chunk_bytes;
        self->size = frame->size;
        self->chunk_count = frame->chunk_count;
    }
    self->losses = losses > self->losses ? losses : self->losses;
    self->reports[link->peer] = report;
    if (has_all(self)) {
        decide_rounds(self);
    }
    return TRIB_OK;
}

static void ask_for_reports(const trib_takeover *self)
{
    const trib_frame frame = {
        .type = TRIB_FRAME_ASK_REPORT, .tensor = self->tensor, .partition = self->partition, .aux = self->losses};
    for (uint32_t i = 0; i < self->count; i++) {
        if (!self->reports[i].is_there && self->core->worker_links[i] != NULL) {
            trib_link_send_copy(self->core->worker_links[i], frame, NULL, 0);
        }
    }
}

static const char *missing_name(const trib_takeover *self)
{
    uint32_t missing = 0;
    while (missing + 1 < self->count && self->reports[missing].is_there) {
        missing++;
    }
    trib_assert(!self->reports[missing].is_there);
    return trib_roster_name(self->core->engine->roster, missing);
}

/* True if reports are missing for too long. Of a time in which this process stood still only a part counts. */
static bool is_overdue(trib_takeover *self)
{
    const int64_t timeout_ns = self->core->engine->roster->peer_timeout_ns, now_ns = trib_now(self->core->reactor);
    const int64_t passed_ns = now_ns - self->checked_ns;
    self->checked_ns = now_ns;
    self->waited_ns += passed_ns < timeout_ns / 4 ? passed_ns : timeout_ns / 4;
    return self->waited_ns > 2 * timeout_ns;
}

void trib_takeovers_check(trib_core *core)
{
    trib_takeover *self, *next;
    HASH_ITER(hh, core->takeovers, self, next)
    {
        if (has_all(self)) {
            decide_rounds(self);
            continue;
        }
        ask_for_reports(self);
        if (atomic_load(&core->engine->job_over)) {
            continue; /* the coordinator is lost, too: the epoch ends, or the job */
        }
        if (is_overdue(self)) {
            char text[TRIB_ERROR_TEXT_SIZE];
            snprintf(text, sizeof text,
                     "%s has not said what it has of partition %u of tensor %u since its server was lost: it has "
                     "released the tensor, or hangs",
                     missing_name(self), self->partition, self->tensor);
            trib_job_fail(core->engine, TRIB_PEER_LOST, text);
            return;
        }
    }
}

void trib_takeovers_forget(trib_core *core, uint32_t tensor)
{
    trib_takeover *self, *next;
    HASH_ITER(hh, core->takeovers, self, next)
    {
        if (self->tensor == tensor) {
            drop_takeover(self);
        }
    }
}

void trib_takeovers_close(trib_core *core)
{
    trib_takeover *self, *next;
    HASH_ITER(hh, core->takeovers, self, next)
    {
        drop_takeover(self);
    }
}
