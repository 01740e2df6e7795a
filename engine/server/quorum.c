/* quorum.c - see quorum.h. */
#include "engine/server/quorum.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/aggregate/summation.h"
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/hash.h"
#include "engine/server/server_tensor.h"

#define LOOK_AGAIN_MIN_NS INT64_C(1000000)

/* A round about which this core has answered, and whose set not all of its partitions have taken. */
struct trib_quorum {
    uint64_t key; /* tensor and round */
    bool is_decided;
    uint32_t partitions; /* partitions of the tensor on this core; known once the set is decided */
    UT_hash_handle hh;   /* in core->quorums */
    unsigned char set[]; /* a bit for each worker; valid once the set is decided */
};

/* A frame of or for the coordinator on its way through the cores. */
typedef struct trib_quorum_walk {
    struct trib_quorum_walk *previous, *next; /* neighbours in the engine's list */
    trib_engine *engine;
    trib_post post;
    trib_frame frame;
    /* core 0: a QUORUM_ASK that has been on all cores, kept for the QUORUM_SET, or until the tensor ends */
    bool is_kept;
    uint32_t partitions[TRIB_REACTORS_MAX]; /* QUORUM_SET: by reactor */
    unsigned char set[TRIB_QUORUM_SET_BYTES];
} walk;

static uint64_t key_of(uint32_t tensor, uint32_t round)
{
    return (uint64_t)tensor << 32 | round;
}

static size_t set_bytes(const trib_engine *engine)
{
    return (engine->roster->worker_count + 7) / 8;
}

static trib_summation *summation_of(const trib_core *core)
{
    return trib_sum_aggregator_summation(core->sums[TRIB_SUM_RANK].aggregator);
}

static struct trib_quorum *find(const trib_core *core, uint32_t tensor, uint32_t round)
{
    const uint64_t key = key_of(tensor, round);
    struct trib_quorum *self = NULL;
    if (core->quorums != NULL) {
        HASH_FIND(hh, core->quorums, &key, sizeof key, self);
    }
    return self;
}

static void drop(trib_core *core, struct trib_quorum *self)
{
    HASH_DEL(core->quorums, self);
    free(self);
}

/* ---- Contributions ---- */

bool trib_quorum_holds(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame)
{
    const struct trib_quorum *self = sum->level != TRIB_SUM_RANK ? NULL : find(sum->core, frame->tensor, frame->round);
    if (self == NULL) {
        return false;
    }
    const uint32_t worker = link->peer;
    const bool is_in = self->is_decided && (self->set[worker / 8] >> worker % 8 & 1) != 0;
    const trib_contribution what = trib_server_contribution(sum, link, frame);
    if (is_in || trib_summation_has_begun(summation_of(sum->core), &what)) {
        return false;
    }
    return !self->is_decided || trib_summation_begin_late(summation_of(sum->core), &what, self->set) != TRIB_OK;
}

/* Tells the aggregator of the set. The rest comes when further partitions have begun the round. */
static void apply_set(trib_core *core, struct trib_quorum *self)
{
    uint32_t begun = 0;
    const trib_status status =
        trib_summation_exclude(summation_of(core), (uint32_t)(self->key >> 32), (uint32_t)self->key, self->set, &begun);
    if (status != TRIB_OK) {
        trib_job_fail(core->engine, status, "QUORUM_SET without a worker that has begun the round");
    } else if (begun >= self->partitions) {
        drop(core, self);
    }
    trib_server_resume(core);
}

static void arm(trib_core *core, int64_t at_ns)
{
    if (at_ns < INT64_MAX && (core->quorum_at_ns == 0 || at_ns < core->quorum_at_ns)) {
        core->quorum_at_ns = at_ns;
        trib_timer_arm(core->reactor, &core->quorum_timer, at_ns);
    }
}

typedef struct quorum_look {
    trib_core *core;
    int64_t now_ns, next_ns;
} quorum_look;

/* A time that is as good as never does not wrap around. */
static int64_t due_ns(int64_t began_ns, int64_t timeout_ns)
{
    return timeout_ns > INT64_MAX - began_ns ? INT64_MAX : began_ns + timeout_ns;
}

static void pass_on(trib_reactor *reactor, trib_post *post);

static walk *add_walk(trib_engine *engine)
{
    walk *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->engine = engine;
        pthread_mutex_lock(&engine->mutex);
        DL_APPEND2(engine->quorum_walks, self, previous, next);
        pthread_mutex_unlock(&engine->mutex);
    }
    return self;
}

/* The round's decision is due: core 0 asks the coordinator for it. */
static void call(trib_core *core, const trib_contribution *what)
{
    walk *self = add_walk(core->engine);
    if (self == NULL) {
        return; /* the next look tries again */
    }
    self->frame = (trib_frame){.type = TRIB_FRAME_QUORUM_CALL, .tensor = what->tensor, .round = what->round};
    self->post.run = pass_on;
    trib_reactor_post(core->engine->cores[0].reactor, &self->post);
}

static void look_at_round(void *user, const trib_contribution *what, uint32_t begun, uint32_t older, int64_t began_ns)
{
    quorum_look *look = user;
    trib_core *core = look->core;
    int64_t timeout_ns = 0;
    const uint32_t quorum = trib_server_quorum(core, what->tensor, &timeout_ns);
    if (quorum == 0 || what->partition != 0 || begun == core->engine->roster->worker_count) {
        return;
    }
    int64_t at_ns = due_ns(began_ns, timeout_ns);
    if (at_ns <= look->now_ns) {
        const int64_t again_ns = timeout_ns / 8 < LOOK_AGAIN_MIN_NS ? LOOK_AGAIN_MIN_NS : timeout_ns / 8;
        at_ns = look->now_ns + again_ns;
        if (begun >= quorum && older < TRIB_QUORUM_BEHIND_MAX && find(core, what->tensor, what->round) == NULL) {
            call(core, what);
        }
    }
    look->next_ns = look->next_ns == 0 || at_ns < look->next_ns ? at_ns : look->next_ns;
}

static void timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)timer;
    trib_core *core = reactor->owner;
    quorum_look look = {.core = core, .now_ns = trib_now(reactor)};
    core->quorum_at_ns = 0;
    if (core->sums == NULL) {
        return;
    }
    trib_summation_each_open(summation_of(core), look_at_round, &look);
    if (look.next_ns != 0) {
        arm(core, look.next_ns);
    }
}

void trib_quorum_came(trib_server_sum *sum, const trib_frame *frame)
{
    trib_core *core = sum->core;
    int64_t timeout_ns = 0;
    if (sum->level != TRIB_SUM_RANK) {
        return;
    }
    if (frame->partition == 0 && frame->collective == TRIB_COLLECTIVE_ALL_REDUCE &&
        trib_server_quorum(core, frame->tensor, &timeout_ns) > 0) {
        core->quorum_timer.fired = timer_fired;
        arm(core, due_ns(trib_now_fast(core->reactor), timeout_ns));
    }
    struct trib_quorum *self = find(core, frame->tensor, frame->round);
    if (self != NULL && self->is_decided) {
        apply_set(core, self);
    }
}

bool trib_quorum_tell(const trib_server_sum *sum, uint32_t rank, const trib_contribution *what)
{
    const trib_engine *engine = sum->core->engine;
    trib_link *link = sum->core->worker_links[rank];
    if (what->late == NULL || what->partition != 0 || what->chunk != 0 || link == NULL) {
        return false;
    }
    unsigned char set[TRIB_QUORUM_SET_BYTES] = {0};
    for (uint32_t i = 0; i < engine->roster->worker_count; i++) {
        set[i / 8] |= (unsigned char)((what->late[i] == 0) << i % 8);
    }
    const trib_frame frame = {
        .type = TRIB_FRAME_QUORUM_SET, .tensor = what->tensor, .partition = what->partition, .round = what->round};
    trib_link_send_copy(link, frame, set, set_bytes(engine));
    return true;
}

void trib_quorums_check(trib_core *core)
{
    if (core->quorum_timer.fired != NULL) { /* some tensor has a quorum */
        trib_summation_fill_late(summation_of(core));
    }
}

/* ---- Frames of the coordinator ---- */

static struct trib_quorum *find_or_add(trib_core *core, const trib_frame *frame)
{
    struct trib_quorum *self = find(core, frame->tensor, frame->round);
    if (self == NULL && (self = trib_core_zalloc(core, sizeof *self + set_bytes(core->engine))) != NULL) {
        self->key = key_of(frame->tensor, frame->round);
        HASH_ADD(hh, core->quorums, key, sizeof self->key, self);
        if (self->hh.tbl == NULL) { /* out of memory */
            free(self);
            self = NULL;
        }
    }
    return self;
}

static void visit_core(trib_core *core, walk *self)
{
    /* A member that leaves in good order sums until nobody waits for it: that its core has ended is no matter. */
    const bool is_known = core->sums != NULL && trib_server_quorum(core, self->frame.tensor, NULL) > 0;
    const bool is_ask = self->frame.type == TRIB_FRAME_QUORUM_ASK;
    struct trib_quorum *quorum = !is_known ? NULL
                                 : is_ask  ? find_or_add(core, &self->frame)
                                           : find(core, self->frame.tensor, self->frame.round);
    if (is_ask && is_known && (quorum == NULL || quorum->is_decided)) {
        memset(self->set, 0xff, sizeof self->set); /* without a record this core can keep nobody out */
    } else if (is_ask && is_known) {
        trib_summation_note_begun(summation_of(core), self->frame.tensor, self->frame.round, self->set);
    } else if (quorum != NULL) {
        quorum->is_decided = true;
        quorum->partitions = self->partitions[core->reactor->index];
        memcpy(quorum->set, self->set, set_bytes(core->engine));
        apply_set(core, quorum);
    }
}

static void free_walk(walk *self)
{
    pthread_mutex_lock(&self->engine->mutex);
    DL_DELETE2(self->engine->quorum_walks, self, previous, next);
    pthread_mutex_unlock(&self->engine->mutex);
    free(self);
}

/* Core 0: the frame has been on all cores, or comes from one. */
static void end_walk(walk *self)
{
    trib_engine *engine = self->engine;
    const bool is_ask = self->frame.type == TRIB_FRAME_QUORUM_ASK;
    self->is_kept = is_ask && trib_server_knows_tensor(&engine->cores[0], self->frame.tensor);
    if (is_ask) {
        self->frame.type = TRIB_FRAME_QUORUM_BEGUN;
        engine->hooks->tell_coordinator(engine, &self->frame, self->set, set_bytes(engine));
    } else if (self->frame.type == TRIB_FRAME_QUORUM_CALL) {
        engine->hooks->tell_coordinator(engine, &self->frame, NULL, 0);
    }
    if (!self->is_kept) {
        free_walk(self);
    }
}

static void walk_on(trib_reactor *reactor, trib_post *post)
{
    walk *self = trib_container_of(post, walk, post);
    const trib_engine *engine = self->engine;
    const uint32_t next = reactor->index + 1;
    visit_core(reactor->owner, self);
    post->run = next < engine->core_count ? walk_on : pass_on;
    trib_reactor_post(engine->cores[next < engine->core_count ? next : 0].reactor, post);
}

static void pass_on(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    end_walk(trib_container_of(post, walk, post));
}

/* Core 0: returns the first walk that is kept about that tensor, or NULL. round 0: about any of its rounds. */
static walk *find_kept(trib_engine *engine, uint32_t tensor, uint32_t round)
{
    pthread_mutex_lock(&engine->mutex);
    walk *self = engine->quorum_walks;
    while (self != NULL &&
           (!self->is_kept || self->frame.tensor != tensor || (round != 0 && self->frame.round != round))) {
        self = self->next;
    }
    pthread_mutex_unlock(&engine->mutex);
    return self;
}

static trib_status read_set(const trib_engine *engine, const trib_frame *frame, const void *payload, walk *set_out,
                            trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    for (uint32_t i = 0; i < set_bytes(engine); i++) {
        set_out->set[i] = trib_get_u8(&reader);
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        set_out->partitions[i] = trib_get_u32(&reader);
    }
    const uint32_t count = trib_quorum_count(set_out->set, engine->roster->worker_count);
    if (reader.failed || reader.left > 0 || count < trib_server_quorum(&engine->cores[0], frame->tensor, NULL)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed QUORUM_SET, or one of %u workers, too few", count);
    }
    return TRIB_OK;
}

trib_status trib_quorum_take(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_assert(trib_core_is_here(&engine->cores[0]));
    walk what = {.frame = {.type = frame->type, .tensor = frame->tensor, .round = frame->round}};
    const bool is_set = frame->type == TRIB_FRAME_QUORUM_SET;
    const trib_status status = is_set ? read_set(engine, frame, payload, &what, error) : TRIB_OK;
    if (status != TRIB_OK) {
        return status;
    }
    walk *self = is_set ? find_kept(engine, frame->tensor, frame->round) : add_walk(engine);
    if (self == NULL && !is_set) { /* no core can keep anybody out */
        what.frame.type = TRIB_FRAME_QUORUM_BEGUN;
        memset(what.set, 0xff, sizeof what.set);
        engine->hooks->tell_coordinator(engine, &what.frame, what.set, set_bytes(engine));
    } else if (self != NULL) {
        self->frame = what.frame;
        self->is_kept = false;
        memcpy(self->partitions, what.partitions, sizeof what.partitions);
        memcpy(self->set, what.set, sizeof what.set);
        self->post.run = walk_on;
        trib_reactor_post(engine->cores[0].reactor, &self->post);
    }
    return TRIB_OK;
}

/* ---- The end ---- */

void trib_quorums_forget(trib_core *core, uint32_t tensor)
{
    struct trib_quorum *self, *next;
    HASH_ITER(hh, core->quorums, self, next)
    {
        if (self->key >> 32 == tensor) {
            drop(core, self);
        }
    }
    for (walk *kept = NULL; core->reactor->index == 0 && (kept = find_kept(core->engine, tensor, 0)) != NULL;) {
        free_walk(kept);
    }
}

void trib_quorums_close(trib_core *core)
{
    struct trib_quorum *self, *next;
    HASH_ITER(hh, core->quorums, self, next)
    {
        drop(core, self);
    }
    trib_timer_stop(core->reactor, &core->quorum_timer);
    core->quorum_timer.fired = NULL;
    core->quorum_at_ns = 0;
}

void trib_quorum_walks_free(trib_engine *engine)
{
    while (engine->quorum_walks != NULL) { /* the cores ended before these reached them all */
        walk *first = engine->quorum_walks;
        DL_DELETE2(engine->quorum_walks, first, previous, next);
        free(first);
    }
}
