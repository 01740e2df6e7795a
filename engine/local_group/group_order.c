/*
 * group_order.c - where the local ranks promise to hand in their operations in one order (device_order.c), whether they do.
 *
 * Each rank tells the leader what it has issued and at which place, when it is under way already: nothing waits for that. The
 * leader compares place by place. Collectives of different ranks that do not match have been launched by then; they may hang,
 * or add what does not belong together. So the job ends, with a text that says which.
 */
#include "engine/local_group/group_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

#define PLACES_LEAST 256u
#define AHEAD_MAX (1u << 22) /* of the slowest rank; what a rank has in flight is much less */

/* ---- The leader's books: pure state ---- */

typedef struct sequence_place {
    trib_issued what;
    uint64_t seen; /* bit: local rank; 0: nobody has told of it */
    uint32_t first;
} sequence_place;

struct trib_sequence {
    uint32_t ranks;
    uint32_t base;     /* all have told what is before */
    uint32_t capacity; /* a power of two */
    sequence_place *places;
};

trib_sequence *trib_sequence_create(uint32_t ranks)
{
    trib_assert(ranks >= 1 && ranks <= TRIB_LOCAL_SIZE_MAX);
    trib_sequence *self = calloc(1, sizeof *self);
    sequence_place *places = calloc(PLACES_LEAST, sizeof *places);
    if (self == NULL || places == NULL) {
        free(self);
        free(places);
        return NULL;
    }
    *self = (trib_sequence){.ranks = ranks, .capacity = PLACES_LEAST, .places = places};
    return self;
}

void trib_sequence_free(trib_sequence *self)
{
    if (self != NULL) {
        free(self->places);
        free(self);
    }
}

static sequence_place *place_at(const trib_sequence *self, uint32_t place)
{
    return &self->places[place & (self->capacity - 1)];
}

static bool grow(trib_sequence *self, uint32_t ahead)
{
    uint32_t capacity = self->capacity;
    while (capacity <= ahead) {
        capacity *= 2;
    }
    sequence_place *places = calloc(capacity, sizeof *places);
    if (places == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < self->capacity; i++) {
        places[(self->base + i) & (capacity - 1)] = *place_at(self, self->base + i);
    }
    free(self->places);
    self->places = places;
    self->capacity = capacity;
    return true;
}

trib_status trib_sequence_add(trib_sequence *self, uint32_t rank, uint32_t place, const trib_issued *what,
                              trib_issued *other_out, uint32_t *other_rank_out)
{
    const uint64_t everyone = self->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << self->ranks) - 1;
    const uint32_t ahead = place - self->base;
    trib_assert(rank < self->ranks);
    if (ahead >= AHEAD_MAX) {
        return TRIB_PROTOCOL;
    }
    if (ahead >= self->capacity && !grow(self, ahead)) {
        return TRIB_NO_MEMORY;
    }
    sequence_place *at = place_at(self, place);
    if (at->seen >> rank & 1) {
        return TRIB_PROTOCOL;
    }
    if (at->seen == 0) {
        at->what = *what;
        at->first = rank;
    } else if (at->what.tensor != what->tensor || at->what.round != what->round || at->what.variant != what->variant) {
        *other_out = at->what;
        *other_rank_out = at->first;
        return TRIB_MISMATCH;
    }
    at->seen |= UINT64_C(1) << rank;
    for (at = place_at(self, self->base); at->seen == everyone; at = place_at(self, self->base)) {
        at->seen = 0;
        self->base++;
    }
    return TRIB_OK;
}

/* ---- The leader ---- */

/* What the leader calls a tensor of that key. */
static void name_of(trib_engine *engine, uint64_t key, char *name, size_t size)
{
    snprintf(name, size, "a tensor that local rank 0 has not declared");
    pthread_mutex_lock(&engine->mutex);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        if (engine->tensors[i]->key == key) {
            snprintf(name, size, "tensor \"%.40s\"", engine->tensors[i]->name);
            break;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
}

static void end_for_disorder(trib_group *group, uint32_t place, uint32_t local_rank, const trib_issued *what,
                             uint32_t other_local_rank, const trib_issued *other)
{
    char text[TRIB_ERROR_TEXT_SIZE], name[64], other_name[64];
    trib_engine *engine = group->core->engine;
    name_of(engine, what->tensor, name, sizeof name);
    name_of(engine, other->tensor, other_name, sizeof other_name);
    if (what->tensor == other->tensor && what->round == other->round) {
        snprintf(text, sizeof text,
                 "%s: the machine's local ranks disagree about round %u: not the same reduction, a broadcast from "
                 "another root, or TRIB_TENSOR_FIXED or kept_launches not alike (trib_config.device_order "
                 "is \"program\")",
                 name, what->round);
    } else {
        snprintf(text, sizeof text,
                 "trib_config.device_order is \"program\" (TRIB_DEVICE_ORDER), and the local ranks hand in their "
                 "operations in "
                 "different orders: operation %u is %s, round %u, on %.50s, but %s, round %u, on %.50s; \"agreed\" "
                 "lets them",
                 place, other_name, other->round, trib_group_name_of(group, other_local_rank), name, what->round,
                 trib_group_name_of(group, local_rank));
    }
    trib_group_end_job(group, TRIB_MISMATCH, text);
}

trib_status trib_group_leader_takes_issued(trib_group *group, uint32_t local_rank, uint32_t place,
                                           const trib_issued *what)
{
    if (group->sequence == NULL) {
        trib_group_end_for_modes(group, local_rank);
        return TRIB_OK;
    }
    trib_issued other;
    uint32_t other_local_rank = 0;
    const trib_status status = trib_sequence_add(group->sequence, local_rank, place, what, &other, &other_local_rank);
    if (status == TRIB_MISMATCH) {
        end_for_disorder(group, place, local_rank, what, other_local_rank, &other);
        return TRIB_OK;
    }
    return status;
}

void trib_group_end_for_modes(trib_group *group, uint32_t local_rank)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(
        text, sizeof text,
        "trib_config.device_order (TRIB_DEVICE_ORDER) must be the same on all ranks of a machine: it is \"%s\" on %s "
        "and \"%s\" on %s",
        group->sequence != NULL ? "program" : "agreed", trib_group_name_of(group, 0),
        group->sequence != NULL ? "agreed" : "program", trib_group_name_of(group, local_rank));
    trib_group_end_job(group, TRIB_MISMATCH, text);
}

/* ---- Every rank ---- */

static trib_op *pop_issued(trib_engine *engine)
{
    trib_device_op *device = engine->issued_head;
    engine->issued_head = device->next;
    engine->issued_tail = engine->issued_head == NULL ? NULL : engine->issued_tail;
    return device->op;
}

static void notify(trib_group *group, const trib_op *op)
{
    const trib_issued what = {.tensor = op->tensor->key, .round = op->round, .variant = trib_group_variant_of(op)};
    const uint32_t place = op->device->whole.place;
    if (group->leader != NULL) {
        if (trib_group_leader_takes_issued(group, 0, place, &what) != TRIB_OK) {
            trib_group_end_job(group, TRIB_NO_MEMORY, "out of memory for the order of collectives");
        }
        return;
    }
    const trib_frame frame = {.type = TRIB_FRAME_GROUP_READY,
                              .tensor = (uint32_t)(what.tensor >> 32),
                              .partition = (uint32_t)what.tensor,
                              .round = what.round,
                              .chunk = TRIB_ANNOUNCE_ISSUED,
                              .size = place,
                              .aux = what.variant};
    trib_link_send_copy(group->links[0], frame, NULL, 0);
}

void trib_group_notify_issued(trib_group *group)
{
    trib_engine *engine = group->core->engine;
    const bool is_late = group->leader == NULL && group->links[0] == NULL; /* local rank 0 has left */
    if (!is_late && group->leader == NULL && group->links[0]->state != TRIB_LINK_READY) {
        return;
    }
    while (engine->issued_head != NULL) {
        trib_op *op = pop_issued(engine);
        if (!is_late) {
            notify(group, op);
        }
        trib_op_unref(op);
        group->begun++;
        trib_group_check_departed(group->core);
    }
}

void trib_group_drop_issued(trib_engine *engine)
{
    while (engine->issued_head != NULL) {
        trib_op_unref(pop_issued(engine));
    }
}

void trib_group_issued(trib_core *core, trib_op *op)
{
    trib_engine *engine = core->engine;
    if (core->ended || trib_engine_local_size(engine) == 1) {
        return;
    }
    if (!trib_device_in_order(engine)) {
        trib_door_passed_in_call(engine->group, op);
        return;
    }
    atomic_fetch_add(&op->references, 1);
    op->device->next = NULL;
    *(engine->issued_tail == NULL ? &engine->issued_head : &engine->issued_tail->next) = op->device;
    engine->issued_tail = op->device;
    if (engine->group != NULL) { /* else trib_group_open does */
        trib_group_notify_issued(engine->group);
    }
}

void trib_group_issued_back(trib_core *core, trib_op *op)
{
    trib_group *group = core->engine->group;
    const trib_device_job *job = &op->device->whole;
    if (group == NULL) {
        return;
    }
    group->back++;
    group->carried_out += job->status == TRIB_OK;
    if (!trib_device_in_order(core->engine)) {
        trib_door_issued_back(group, op);
    }
    if (job->status != TRIB_OK && job->status != TRIB_CLOSED) {
        trib_group_end_for_failure(group, op->tensor, job);
    }
}
