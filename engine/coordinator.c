/*
 * coordinator.c - the membership's state machine: gathering -> running -> over.
 *
 * Gathering ends when all workers and servers have joined, or with an error to everybody when the join deadline
 * passes. Running ends when all workers have left (servers are told that the job is over) or when somebody is lost
 * (everybody is told who).
 */
#include "engine/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "engine/assert.h"
#include "engine/op.h"

typedef struct slot {
    trib_link *link;
    trib_member_info info;
    bool joined, left;
} slot;

/* A tensor as the first worker declared it. */
typedef struct ledger_entry {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    uint64_t count;
    uint32_t id, first_rank;
    bool bad;
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    trib_place_owner *owners;
    uint32_t partition_count, partition_bytes;
    uint32_t *tags; /* by rank; UINT32_MAX: not declared there */
    UT_hash_handle hh;
} ledger_entry;

struct trib_coordinator {
    trib_core *core;
    trib_listener *listener;
    uint32_t worker_count, server_count;
    uint32_t joined, workers_left;
    slot *slots;
    bool running, over;
    trib_timer join_deadline, heartbeat;
    trib_roster *roster; /* a copy of its own */
    trib_dealer *dealer;
    ledger_entry *ledger;
    uint32_t ledger_count;
};

static const trib_link_upcalls coordinator_upcalls;

static void tell_end(trib_link *link, trib_status status, const char *text)
{
    unsigned char payload[TRIB_ERROR_TEXT_SIZE + 2];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_text(&writer, text);
    trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_ENDED, .aux = (uint32_t)status}, payload, writer.size);
}

static uint32_t slot_count(const trib_coordinator *self)
{
    return self->worker_count + self->server_count;
}

static void end_job(trib_coordinator *self, trib_status status, const char *text)
{
    if (self->over) {
        return;
    }
    self->over = true;
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    for (uint32_t i = 0; i < slot_count(self); i++) {
        if (self->slots[i].link != NULL && !self->slots[i].left) {
            tell_end(self->slots[i].link, status, text);
        }
    }
    if ((self->core->engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) == 0) {
        trib_engine_end(self->core->engine, status, text); /* a coordinator of its own has no member to tell it */
    }
}

/* ---- Gathering ---- */

static void list_missing(const trib_coordinator *self, char *text, size_t size)
{
    size_t used = 0;
    uint32_t servers = 0, shown = 0, missing = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < slot_count(self); i++) {
        if (self->slots[i].joined) {
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

static void join_deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_coordinator *self = timer->user;
    char missing[200], text[TRIB_ERROR_TEXT_SIZE];
    list_missing(self, missing, sizeof missing);
    snprintf(text, sizeof text, "the job did not come together within %.1f s: missing %s",
             (double)self->core->engine->config.join_timeout_ns / 1e9, missing);
    end_job(self, TRIB_JOIN_FAILED, text);
}

static void heartbeat(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    int64_t now_ns = trib_now(reactor), timeout_ns = self->roster->peer_timeout_ns;
    for (uint32_t i = 0; i < slot_count(self) && !self->over; i++) {
        slot *at = &self->slots[i];
        if (at->link == NULL || at->left) {
            continue;
        }
        if (now_ns - at->link->last_heard_ns > timeout_ns) {
            char text[TRIB_ERROR_TEXT_SIZE];
            snprintf(text, sizeof text, "lost %s: no sign of life for %.1f s", trib_roster_name(self->roster, i),
                     (double)(now_ns - at->link->last_heard_ns) / 1e9);
            end_job(self, TRIB_PEER_LOST, text);
            return;
        }
        trib_link_send_copy(at->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
    }
    int64_t period_ns = timeout_ns / 4 < INT64_C(1000000000) ? timeout_ns / 4 : INT64_C(1000000000);
    trib_timer_arm(reactor, timer, now_ns + period_ns);
}

/* With servers of their own on the same machine nothing is gained by summing in workers too; across machines, as long
 * as there are fewer servers than workers, it is (OSDI'20). */
static bool workers_should_sum(const trib_coordinator *self)
{
    trib_colocate colocate = self->core->engine->config.colocate;
    if (self->server_count == 0) {
        return true;
    }
    if (colocate != TRIB_COLOCATE_AUTO) {
        return colocate == TRIB_COLOCATE_ON;
    }
    bool local = true;
    for (uint32_t i = 0; i < slot_count(self); i++) {
        const char *address = self->slots[i].info.addresses[0].text;
        local = local && (strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0);
    }
    return !local && self->server_count < self->worker_count;
}

static trib_status make_roster(trib_coordinator *self)
{
    const trib_config *config = &self->core->engine->config;
    uint32_t count = slot_count(self);
    trib_roster *roster = trib_roster_create(count);
    trib_place_member *members = calloc(count, sizeof *members);
    if (roster == NULL || members == NULL) {
        free(roster);
        free(members);
        return TRIB_NO_MEMORY;
    }
    roster->epoch = 1;
    roster->worker_count = self->worker_count;
    roster->server_count = self->server_count;
    roster->partition_bytes = config->partition_bytes;
    roster->chunk_bytes = config->chunk_bytes;
    roster->sum_order = config->sum_order;
    roster->peer_timeout_ns = config->peer_timeout_ns;
    bool colocated = workers_should_sum(self);
    for (uint32_t i = 0; i < count; i++) {
        bool worker = i < self->worker_count;
        roster->members[i] = self->slots[i].info;
        members[i] = (trib_place_member){
            .is_worker = worker,
            .can_sum = worker ? colocated : true,
            .bandwidth = roster->members[i].bandwidth,
            .reactors = roster->members[i].reactors,
        };
    }
    trib_status status = trib_place_shares(members, count, &roster->t_opt_factor);
    for (uint32_t i = 0; i < count; i++) {
        roster->members[i].sums = members[i].can_sum && members[i].share > 0;
    }
    if (status == TRIB_OK) {
        status = trib_dealer_create(members, count, &self->dealer);
    }
    free(members);
    self->roster = roster;
    return status;
}

static void start_running(trib_coordinator *self)
{
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    size_t capacity = TRIB_PAYLOAD_MAX;
    unsigned char *payload = malloc(capacity);
    if (payload == NULL || make_roster(self) != TRIB_OK) {
        free(payload);
        end_job(self, TRIB_NO_MEMORY, "the coordinator could not make the roster");
        return;
    }
    trib_writer writer = {.data = payload, .capacity = capacity};
    trib_roster_put(&writer, self->roster);
    if (writer.overflow) {
        end_job(self, TRIB_UNSUPPORTED, "too many members for one roster");
    }
    for (uint32_t i = 0; i < slot_count(self) && !writer.overflow; i++) {
        trib_link_send_copy(self->slots[i].link, (trib_frame){.type = TRIB_FRAME_ROSTER, .root = i}, payload,
                            writer.size);
    }
    free(payload);
    self->running = true;
    trib_log(self->core->reactor->logger, TRIB_LOG_INFO, "job has come together: %u workers, %u servers",
             self->worker_count, self->server_count);
    self->heartbeat.fired = heartbeat;
    self->heartbeat.user = self;
    heartbeat(self->core->reactor, &self->heartbeat);
}

static slot *find_slot(trib_coordinator *self, const trib_member_info *info, uint32_t claimed)
{
    if (info->roles & TRIB_ROLE_WORKER) {
        return claimed < self->worker_count ? &self->slots[claimed] : NULL;
    }
    for (uint32_t i = self->worker_count; i < slot_count(self); i++) {
        if (!self->slots[i].joined) {
            return &self->slots[i];
        }
    }
    return NULL;
}

static void refuse_join(trib_link *link, const char *text)
{
    trib_log(link->core->reactor->logger, TRIB_LOG_WARN, "refused a member: %s", text);
    tell_end(link, TRIB_JOIN_FAILED, text);
    trib_link_close(link, true, TRIB_JOIN_FAILED, text);
}

static trib_status take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    uint32_t workers = trib_get_u32(&reader), servers = trib_get_u32(&reader);
    trib_member_info info;
    trib_status status = trib_member_info_get(&reader, &info, error);
    if (status != TRIB_OK) {
        return status;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    slot *at = find_slot(self, &info, frame->root);
    if (self->running || self->over) {
        snprintf(text, sizeof text, "%s came when the job had already begun", info.name);
    } else if ((info.roles & TRIB_ROLE_WORKER) && (workers != self->worker_count || servers != self->server_count)) {
        snprintf(text, sizeof text,
                 "%s expects %u workers and %u servers, the coordinator %u and %u: start all with the same counts",
                 info.name, workers, servers, self->worker_count, self->server_count);
    } else if (at == NULL) {
        snprintf(text, sizeof text, "no place for %s: the job has %u workers and %u servers", info.name,
                 self->worker_count, self->server_count);
    } else if (at->joined) {
        snprintf(text, sizeof text, "%s is a second one: %s has joined already", info.name, at->info.name);
    } else {
        at->link = link;
        at->joined = true;
        at->info = info;
        uint32_t index = (uint32_t)(at - self->slots);
        if (index >= self->worker_count) {
            char name[TRIB_MEMBER_NAME_MAX];
            snprintf(name, sizeof name, "server %u %.40s", index - self->worker_count, info.name);
            memcpy(at->info.name, name, sizeof name);
        }
        link->peer = index;
        trib_log(self->core->reactor->logger, TRIB_LOG_DEBUG, "joined: %s", at->info.name);
        if (++self->joined == slot_count(self)) {
            start_running(self);
        }
        return TRIB_OK;
    }
    refuse_join(link, text);
    return TRIB_OK;
}

/* ---- Tensors ---- */

static void send_bad(trib_coordinator *self, const ledger_entry *entry, uint32_t rank)
{
    unsigned char payload[TRIB_ERROR_TEXT_SIZE + 2];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_text(&writer, entry->bad_text);
    if (self->slots[rank].link != NULL && entry->tags[rank] != UINT32_MAX) {
        trib_frame frame = {.type = TRIB_FRAME_TENSOR_BAD, .tensor = entry->tags[rank]};
        trib_link_send_copy(self->slots[rank].link, frame, payload, writer.size);
    }
}

static ledger_entry *new_entry(trib_coordinator *self, const char *name, trib_dtype dtype, uint64_t count,
                               uint32_t rank)
{
    ledger_entry *entry = calloc(1, sizeof *entry);
    uint32_t *tags = malloc(self->worker_count * sizeof *tags);
    uint64_t bytes = count * trib_dtype_size(dtype);
    uint32_t partition_bytes =
        trib_tensor_partition_bytes(bytes, self->roster->partition_bytes, self->roster->chunk_bytes);
    uint32_t partitions = trib_tensor_partition_count(bytes, partition_bytes);
    trib_place_owner *owners = malloc(partitions * sizeof *owners);
    if (entry == NULL || tags == NULL || owners == NULL) {
        free(entry);
        free(tags);
        free(owners);
        return NULL;
    }
    for (uint32_t i = 0; i < partitions; i++) {
        uint64_t left = bytes - (uint64_t)i * partition_bytes;
        owners[i] = trib_dealer_next(self->dealer, left < partition_bytes ? left : partition_bytes);
    }
    memset(tags, 0xff, self->worker_count * sizeof *tags);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->dtype = dtype;
    entry->count = count;
    entry->id = self->ledger_count++;
    entry->first_rank = rank;
    entry->owners = owners;
    entry->partition_count = partitions;
    entry->partition_bytes = partition_bytes;
    entry->tags = tags;
    HASH_ADD_STR(self->ledger, name, entry);
    return entry;
}

static trib_status send_declared(trib_coordinator *self, const ledger_entry *entry, uint32_t rank)
{
    size_t size = 8 + (size_t)entry->partition_count * 4;
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_put_u32(&writer, entry->partition_bytes);
    trib_put_u32(&writer, entry->partition_count);
    for (uint32_t i = 0; i < entry->partition_count; i++) {
        trib_put_u16(&writer, entry->owners[i].member);
        trib_put_u16(&writer, entry->owners[i].reactor);
    }
    trib_assert(!writer.overflow);
    trib_frame frame = {.type = TRIB_FRAME_DECLARED, .tensor = entry->tags[rank], .aux = entry->id};
    trib_link_send_copy(self->slots[rank].link, frame, payload, size);
    free(payload);
    return TRIB_OK;
}

static void disagree(trib_coordinator *self, ledger_entry *entry, trib_dtype dtype, uint64_t count, uint32_t rank)
{
    entry->bad = true;
    snprintf(entry->bad_text, sizeof entry->bad_text, "%s declared it as %s[%llu], %s as %s[%llu]",
             trib_roster_name(self->roster, entry->first_rank), trib_dtype_name(entry->dtype),
             (unsigned long long)entry->count, trib_roster_name(self->roster, rank), trib_dtype_name(dtype),
             (unsigned long long)count);
    trib_log(self->core->reactor->logger, TRIB_LOG_ERROR, "tensor \"%s\": %s", entry->name, entry->bad_text);
    for (uint32_t i = 0; i < self->worker_count; i++) {
        if (i != rank) {
            send_bad(self, entry, i);
        }
    }
}

static trib_status take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame, const void *payload,
                                trib_error *error)
{
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, name, sizeof name);
    trib_dtype dtype = (trib_dtype)trib_get_u8(&reader);
    uint64_t count = trib_get_u64(&reader);
    if (reader.failed || trib_dtype_size(dtype) == 0 || rank >= self->worker_count || count > UINT64_MAX / 64) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed DECLARE");
    }
    ledger_entry *entry = NULL;
    HASH_FIND_STR(self->ledger, name, entry);
    if (entry == NULL) {
        entry = new_entry(self, name, dtype, count, rank);
    }
    if (entry == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for tensor \"%s\"", name);
    }
    if (entry->tags[rank] != UINT32_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "tensor \"%s\" declared twice", name);
    }
    entry->tags[rank] = frame->tensor;
    if (!entry->bad && (entry->dtype != dtype || entry->count != count)) {
        disagree(self, entry, dtype, count, rank);
    }
    if (entry->bad) {
        send_bad(self, entry, rank);
        return TRIB_OK;
    }
    return send_declared(self, entry, rank);
}

/* ---- Links ---- */

static void member_left(trib_coordinator *self, uint32_t member)
{
    slot *at = &self->slots[member];
    if (at->left) {
        return;
    }
    at->left = true;
    if (member < self->worker_count) {
        self->workers_left++;
    }
    for (uint32_t i = 0; i < slot_count(self); i++) {
        if (self->slots[i].link != NULL && !self->slots[i].left) {
            trib_link_send_copy(self->slots[i].link, (trib_frame){.type = TRIB_FRAME_LEFT, .aux = member}, NULL, 0);
        }
    }
    if (self->workers_left == self->worker_count) {
        end_job(self, TRIB_OK, "all workers have left");
    }
}

static trib_status coordinator_header(trib_link *link, const trib_frame *frame, trib_landing *landing,
                                      trib_error *error)
{
    if (frame->payload_size == 0) {
        return TRIB_OK;
    }
    landing->buffer = trib_core_zalloc(link->core, frame->payload_size);
    link->landed = landing->buffer;
    return landing->buffer != NULL ? TRIB_OK : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a message");
}

static trib_status take_lost(trib_coordinator *self, uint32_t member, const trib_frame *frame, const void *payload)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, text, sizeof text);
    self->slots[member].left = true;
    end_job(self, (trib_status)(int32_t)frame->aux, text);
    return TRIB_OK;
}

static trib_status take_frame(trib_coordinator *self, trib_link *link, const trib_frame *frame, const void *payload,
                              trib_error *error)
{
    uint32_t member = link->peer;
    bool known = member < slot_count(self) && self->slots[member].link == link;
    if (frame->type == TRIB_FRAME_JOIN && !known) {
        return take_join(self, link, frame, payload, error);
    }
    if (!known || frame->type == TRIB_FRAME_JOIN) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame", trib_frame_name(frame->type));
    }
    switch (frame->type) {
    case TRIB_FRAME_DECLARE:
        return self->running ? take_declare(self, member, frame, payload, error)
                             : trib_error_set(error, TRIB_PROTOCOL, "DECLARE before the roster");
    case TRIB_FRAME_PONG:
        return TRIB_OK;
    case TRIB_FRAME_LEAVE:
        member_left(self, member);
        return TRIB_OK;
    case TRIB_FRAME_LOST:
        return take_lost(self, member, frame, payload);
    default:
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a member", trib_frame_name(frame->type));
    }
}

static trib_status coordinator_received(trib_link *link, const trib_frame *frame, const void *payload, bool lent,
                                        trib_error *error)
{
    (void)lent;
    void *buffer = link->landed;
    link->landed = NULL;
    trib_coordinator *self = link->core->engine->coordinator;
    trib_status status = self == NULL ? TRIB_CLOSED : take_frame(self, link, frame, payload, error);
    free(buffer);
    return status;
}

static void coordinator_link_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status;
    free(link->landed);
    trib_coordinator *self = link->core->engine->coordinator;
    if (self == NULL || link->peer >= slot_count(self) || self->slots[link->peer].link != link) {
        return;
    }
    slot *at = &self->slots[link->peer];
    at->link = NULL;
    if (self->over || at->left) {
        return;
    }
    if (!self->running) {
        /* It may come back until the deadline. */
        at->joined = false;
        self->joined--;
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "lost %s: %.250s", trib_roster_name(self->roster, link->peer), reason);
    end_job(self, TRIB_PEER_LOST, text);
}

static void coordinator_ready(trib_link *link)
{
    (void)link;
}

static const trib_link_upcalls coordinator_upcalls = {
    .ready = coordinator_ready,
    .header = coordinator_header,
    .received = coordinator_received,
    .closed = coordinator_link_closed,
};

void trib_coordinator_adopt(trib_link *link)
{
    link->upcalls = &coordinator_upcalls;
    link->peer = TRIB_NO_MEMBER;
}

/* ---- Life ---- */

trib_status trib_coordinator_open(trib_core *core, trib_address *bound_out, trib_error *error)
{
    trib_engine *engine = core->engine;
    trib_coordinator *self = trib_core_zalloc(core, sizeof *self);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    engine->coordinator = self;
    self->core = core;
    self->worker_count = (uint32_t)engine->config.worker_count;
    self->server_count = (uint32_t)engine->config.server_count;
    self->slots = trib_core_zalloc(core, slot_count(self) * sizeof *self->slots);
    if (self->slots == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u members", slot_count(self));
    }
    trib_address at;
    snprintf(at.text, sizeof at.text, "%s", engine->coordinator_address);
    trib_status status = core->transport->ops->listen(core->transport, &at, core, &self->listener, bound_out, error);
    if (status != TRIB_OK) {
        return status;
    }
    self->join_deadline.fired = join_deadline_passed;
    self->join_deadline.user = self;
    trib_timer_arm(core->reactor, &self->join_deadline, trib_now(core->reactor) + engine->config.join_timeout_ns);
    return TRIB_OK;
}

bool trib_coordinator_is_alone(const trib_coordinator *self)
{
    bool worker = (self->core->engine->config.roles & TRIB_ROLE_WORKER) != 0;
    return self->over || !self->running || self->workers_left + (worker ? 1 : 0) >= self->worker_count;
}

void trib_coordinator_end(trib_coordinator *self, trib_status status, const char *text)
{
    if (self->listener != NULL) {
        self->core->transport->ops->listener_close(self->listener);
        self->listener = NULL;
    }
    bool orderly = status == TRIB_OK || status == TRIB_CLOSED;
    if (orderly && self->running && trib_coordinator_is_alone(self)) {
        end_job(self, TRIB_OK, "all workers have left");
    } else {
        end_job(self, orderly ? TRIB_PEER_LEFT : status,
                orderly ? "the process that keeps the membership left the job" : text);
    }
}

void trib_coordinator_close(trib_coordinator *self)
{
    if (self == NULL) {
        return;
    }
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    if (self->listener != NULL) {
        self->core->transport->ops->listener_close(self->listener);
    }
    ledger_entry *entry, *next;
    HASH_ITER(hh, self->ledger, entry, next)
    {
        HASH_DEL(self->ledger, entry);
        free(entry->owners);
        free(entry->tags);
        free(entry);
    }
    trib_dealer_destroy(self->dealer);
    free(self->roster);
    free(self->slots);
    free(self);
}
