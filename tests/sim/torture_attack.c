/*
 * torture_attack.c - what a network, a peer or a stranger does to a job beyond faults; see torture.h.
 *
 * - Flips and forgeries happen between machines and change no sum. The engine may end the job for a forgery, and for a
 *   flip before all have joined; a later flip costs a connection, which is made again.
 * - A member that falls silent for longer than the peer timeout is noticed by every other one.
 * - Strangers connect to members all the time, with garbage, another version, or a wrong proof. The job may not suffer,
 *   and none of them may be let in.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/core/core.h"
#include "tests/sim/torture_internal.h"
#include "tests/support/seal.h"

#define STREAMS 64u           /* whose frames are kept for later */
#define KEPT_BYTES_MAX 65536u /* of one payload */
#define STRANGERS 24u
#define ANSWER_MAX 512u

/* A data frame that has gone over a stream. */
typedef struct kept_frame {
    unsigned char header[TRIB_HEADER_SIZE];
    unsigned char *payload;
    uint32_t payload_size;
} kept_frame;

typedef struct kept_stream {
    const void *stream;
    kept_frame last, old;
} kept_stream;

typedef enum manner { SILENT, GARBAGE, OTHER_VERSION, HELLO_ONLY, WRONG_PROOF, MANNERS } manner;

typedef struct stranger {
    run *run;
    trib_conn *conn;
    manner manner;
    trib_handshake handshake;
    trib_frame frame; /* that is arriving */
    unsigned char answer[ANSWER_MAX];
} stranger;

typedef struct torture_attacker {
    run *run;
    trib_sim_stream draws;
    kept_stream streams[STREAMS];
    trib_sim_machine *machine;
    trib_sim_process *process;
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_sim_event next; /* the next stranger comes */
    uint32_t came;
    stranger strangers[STRANGERS];
} torture_attacker;

/* ---- What is drawn ---- */

/* Nothing else may end such a job, or explain what the attack does to it. */
static void make_plain(torture_plan *plan)
{
    plan->may_end = true;
    plan->fault_count = plan->cancels = plan->hurried = 0;
    plan->leaves = false;
    plan->early_leaver = plan->absent = plan->odd_rank = TORTURE_NOBODY;
    plan->haste_ns = 0;
}

void torture_draw_attack(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 71};
    const uint64_t kind = trib_sim_draw_below(&stream, 10), rate = trib_sim_draw_below(&stream, 6);
    const uint32_t members = plan->job.workers + plan->job.servers;
    const uint64_t member = trib_sim_draw_below(&stream, members), at_ms = trib_sim_draw_below(&stream, 400);
    const bool is_cut = trib_sim_draw_one_in(&stream, 3);
    if (plan->narrow != TORTURE_NOBODY || members < 2 || plan->local_size > 1) {
        return;
    }
    switch (kind) {
    case 0:
        make_plain(plan);
        plan->attack = TORTURE_FLIPS;
        plan->flip_one_in = UINT64_C(20) << rate;
        plan->may_end = is_cut;
        break;
    case 1:
    case 2:
        make_plain(plan);
        plan->attack = TORTURE_FORGERY;
        plan->attack_one_in = 4u << rate;
        break;
    case 3:
        make_plain(plan);
        plan->attack = TORTURE_SILENCE;
        plan->fault_count = 1;
        plan->faults[0] = (torture_fault){.kind = is_cut ? TORTURE_PARTITION : TORTURE_FREEZE,
                                          .member = (uint32_t)member,
                                          .at_ns = (int64_t)at_ms * MS,
                                          .for_ns = 3 * plan->job.engine.peer_timeout_ns};
        break;
    case 4:
        plan->attack = TORTURE_STRANGERS;
        break;
    default:
        break;
    }
}

/* ---- Forgeries ---- */

static kept_stream *kept_of(torture_attacker *self, const void *stream)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (self->streams[i].stream == stream || self->streams[i].stream == NULL) {
            self->streams[i].stream = stream;
            return &self->streams[i];
        }
    }
    return NULL;
}

static void keep(kept_frame *kept, const trib_send *send)
{
    free(kept->payload);
    memcpy(kept->header, send->header, TRIB_HEADER_SIZE);
    kept->payload_size = send->payload_size;
    kept->payload = malloc(send->payload_size + 1);
    trib_assert(kept->payload != NULL);
    if (send->payload_size > 0) {
        memcpy(kept->payload, send->payload, send->payload_size);
    }
}

static void forge_copy(const kept_frame *kept, trib_sim_forged *out)
{
    memcpy(out->header, kept->header, TRIB_HEADER_SIZE);
    out->payload_size = kept->payload_size;
    out->payload = malloc(kept->payload_size + 1);
    trib_assert(out->payload != NULL);
    memcpy(out->payload, kept->payload, kept->payload_size);
}

/* The frame that is about to go, of another epoch and with other bytes. */
static void forge_epoch(torture_attacker *self, trib_frame frame, trib_sim_forged *out)
{
    frame.epoch += trib_sim_draw_one_in(&self->draws, 2) ? 1 : UINT32_MAX;
    frame.crc = 0;
    trib_frame_encode(&frame, out->header);
    out->payload_size = frame.payload_size;
    out->payload = malloc(frame.payload_size + 1);
    trib_assert(out->payload != NULL);
    memset(out->payload, 0x41, frame.payload_size);
}

static bool forge(void *user, const void *stream, const trib_send *send, trib_sim_forged *out)
{
    torture_attacker *self = user;
    run *whole = self->run;
    trib_frame frame;
    if (trib_frame_decode(send->header, &frame, NULL) != TRIB_OK || send->payload_size > KEPT_BYTES_MAX ||
        (frame.type != TRIB_FRAME_PUSH && frame.type != TRIB_FRAME_SUM)) {
        return false;
    }
    kept_stream *kept = kept_of(self, stream);
    if (kept == NULL) {
        return false;
    }
    const bool forges = kept->last.payload != NULL && trib_sim_draw_one_in(&self->draws, whole->plan->attack_one_in);
    const uint64_t which = trib_sim_draw_below(&self->draws, 3);
    if (forges && which == 0) {
        forge_copy(&kept->last, out);
        whole->verdict.checks[TORTURE_CHECK_REPEAT]++;
    } else if (forges && which == 1) {
        forge_copy(&kept->old, out);
        whole->verdict.checks[TORTURE_CHECK_REPLAY]++;
    } else if (forges) {
        forge_epoch(self, frame, out);
        whole->verdict.checks[TORTURE_CHECK_EPOCH]++;
    }
    if (kept->old.payload == NULL || trib_sim_draw_one_in(&self->draws, 16)) {
        keep(&kept->old, send);
    }
    keep(&kept->last, send);
    return forges;
}

/* ---- Strangers ---- */

static void stranger_says(stranger *self, trib_frame frame, const void *payload, size_t size)
{
    trib_send *send = calloc(1, sizeof *send + size);
    trib_assert(send != NULL);
    frame.payload_size = (uint32_t)size;
    trib_frame_encode(&frame, send->header);
    if (size > 0) {
        memcpy(send + 1, payload, size);
    }
    send->payload = size > 0 ? send + 1 : NULL;
    send->payload_size = (uint32_t)size;
    if (self->manner == OTHER_VERSION) {
        send->header[4] ^= 1;
        header_seal(send->header);
    }
    send->header[0] ^= self->manner == GARBAGE ? 0xff : 0;
    self->conn->transport->ops->send(self->conn, send);
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    (void)listener;
    (void)conn;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    stranger *self = conn->user;
    unsigned char hello[TRIB_HELLO_SIZE];
    if (status != TRIB_OK || self->manner == SILENT) {
        return;
    }
    self->handshake.purpose = TRIB_PURPOSE_CONTROL;
    trib_auth_put_hello(&self->handshake, hello);
    stranger_says(self, (trib_frame){.type = TRIB_FRAME_HELLO}, hello, sizeof hello);
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    stranger *self = conn->user;
    trib_error error;
    if (trib_frame_decode(header, &self->frame, &error) != TRIB_OK || self->frame.payload_size > ANSWER_MAX) {
        return TRIB_PROTOCOL;
    }
    target->buffer = self->answer;
    target->payload_size = self->frame.payload_size;
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)header;
    (void)payload_size;
    stranger *self = conn->user;
    unsigned char key[TRIB_KEY_SIZE], proof[TRIB_PROOF_SIZE];
    if (self->frame.type == TRIB_FRAME_CHALLENGE && self->manner == WRONG_PROOF) {
        memcpy(self->handshake.acceptor_nonce, payload, TRIB_NONCE_SIZE);
        trib_assert(trib_auth_key("a secret that this job does not have", "default", key) == TRIB_OK);
        trib_auth_prove(key, &self->handshake, true, proof);
        stranger_says(self, (trib_frame){.type = TRIB_FRAME_PROOF}, proof, sizeof proof);
    } else if (self->frame.type == TRIB_FRAME_WELCOME) {
        torture_broken(self->run, "a stranger without the token was let in");
    }
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)conn;
    (void)status;
    free(send);
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    stranger *self = conn->user;
    self->conn = NULL;
    self->run->verdict.checks[TORTURE_CHECK_STRANGER]++;
}

static const trib_transport_upcalls upcalls = {on_accepted, on_connected, on_header, on_received, on_sent, on_closed};

/* To the coordinator, or to any reactor of any member. */
static void choose_target(torture_attacker *self, trib_address *to)
{
    const sim_job *job = self->run->job;
    const sim_member *member = &job->members[trib_sim_draw_below(&self->draws, job->member_count)];
    const trib_engine *engine = member->engine;
    const uint64_t reactor = trib_sim_draw_below(&self->draws, engine->core_count);
    const bool is_coordinator = trib_sim_draw_one_in(&self->draws, 3);
    snprintf(to->text, sizeof to->text, "%s",
             is_coordinator ? engine->coordinator_address : engine->cores[reactor].host.address.text);
    to->text[strcspn(to->text, "+,")] = '\0';
}

static void stranger_comes(trib_sim *sim, trib_sim_event *event)
{
    torture_attacker *self = (torture_attacker *)((char *)event - offsetof(torture_attacker, next));
    stranger *mine = &self->strangers[self->came % STRANGERS];
    trib_address to;
    choose_target(self, &to);
    if (mine->conn != NULL) {
        mine->conn->transport->ops->conn_close(mine->conn, false);
    } else {
        *mine = (stranger){.run = self->run, .manner = (manner)trib_sim_draw_below(&self->draws, MANNERS)};
        mine->handshake.member = (uint32_t)trib_sim_draw_below(&self->draws, self->run->job->member_count);
        if (self->transport->ops->connect(self->transport, &to, mine, &mine->conn) != TRIB_OK) {
            mine->conn = NULL;
        }
    }
    self->came++;
    const int64_t pause_ns =
        MS / 10 + (int64_t)trib_sim_draw_below(&self->draws, (uint64_t)(20 * MS) << self->came % 4);
    trib_sim_set(sim, event, trib_sim_now(sim) + pause_ns);
}

static bool open_strangers(torture_attacker *self)
{
    static const trib_transport_config config = {.send_buffer_bytes = 0};
    const sim_job *job = self->run->job;
    self->logger.level = TRIB_LOG_NONE;
    self->machine = trib_sim_machine_create(job->sim, 1);
    self->process = self->machine != NULL ? trib_sim_process_create(self->machine, &job->config.costs, 99) : NULL;
    trib_sim_node *node = trib_sim_node_create(job->net, "stranger", &job->config.link);
    if (self->process == NULL || node == NULL) {
        return false;
    }
    trib_sim_node_host(node, self->process);
    self->reactor = trib_sim_reactor_create(self->process, 0, &self->logger);
    if (self->reactor == NULL ||
        trib_sim_transport_ops.open(self->reactor, &config, &upcalls, &self->transport) != TRIB_OK) {
        return false;
    }
    self->next.fired = stranger_comes;
    trib_sim_set(job->sim, &self->next, trib_sim_now(job->sim) + 1);
    return true;
}

/* ---- The whole ---- */

bool torture_attack_open(run *self)
{
    if (self->plan->attack != TORTURE_FORGERY && self->plan->attack != TORTURE_STRANGERS) {
        return true;
    }
    torture_attacker *attacker = calloc(1, sizeof *attacker);
    if (attacker == NULL) {
        return false;
    }
    self->attacker = attacker;
    attacker->run = self;
    attacker->draws = trib_sim_stream_make(self->job->sim, UINT64_C(0xa77ac));
    if (self->plan->attack == TORTURE_STRANGERS) {
        return open_strangers(attacker);
    }
    trib_sim_net_forge(self->job->net, forge, attacker);
    return true;
}

void torture_attack_flip(run *self)
{
    const torture_plan *plan = self->plan;
    if (plan->attack != TORTURE_FLIPS || self->flips || (!plan->may_end && !sim_job_all_ready(self->job, NULL))) {
        return;
    }
    self->flips = true;
    trib_sim_weather weather = plan->weather;
    weather.flip_one_in = plan->flip_one_in;
    trib_sim_net_weather(self->job->net, &weather);
}

void torture_attack_check_silence(run *self, const torture_fault *fault, bool formed)
{
    if (self->plan->attack != TORTURE_SILENCE || !formed) {
        return;
    }
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const sim_member *member = &self->job->members[i];
        if (i == fault->member || member->closing) {
            continue;
        }
        self->verdict.checks[TORTURE_CHECK_SILENCE]++;
        if (!member->ended_told) {
            torture_broken(self, "member %u was silent for %.1f s, and member %u has not heard of it", fault->member,
                           (double)fault->for_ns / 1e9, i);
        }
    }
}

static void count_damage(run *self)
{
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        for (uint32_t core = 0; core < engine->core_count; core++) {
            self->verdict.checks[TORTURE_CHECK_FLIP] += trib_counter_get(&engine->cores[core].stats.payloads_damaged);
        }
    }
}

void torture_attack_close(run *self)
{
    torture_attacker *attacker = self->attacker;
    count_damage(self);
    if (attacker == NULL) {
        return;
    }
    trib_sim_net_forge(self->job->net, NULL, NULL);
    if (attacker->transport != NULL) {
        trib_sim_clear(self->job->sim, &attacker->next);
        for (uint32_t i = 0; i < STRANGERS; i++) {
            if (attacker->strangers[i].conn != NULL) {
                attacker->transport->ops->conn_close(attacker->strangers[i].conn, false);
            }
        }
        sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, NULL, NULL);
        attacker->transport->ops->close(attacker->transport);
        trib_sim_reactor_free(attacker->reactor);
        trib_sim_process_free(attacker->process);
        trib_sim_machine_free(attacker->machine);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        free(attacker->streams[i].last.payload);
        free(attacker->streams[i].old.payload);
    }
    free(attacker);
}
