/* test_link.c - links accept and reject headers rightly: several headers before the first payload, as over RDMA, and
 * peers that send frames out of turn. */
#include "engine/server/server_tensor.h"
#include "tests/unit/link/link_bed.h"

/* The coordinator has told this server of no tensor. */
__typeof__(trib_server_check_tensor) __wrap_trib_server_check_tensor;
trib_status __wrap_trib_server_check_tensor(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    (void)link;
    (void)frame;
    (void)error;
    return TRIB_OK;
}

/* ---- A worker ---- */

static void open_worker(bed *self)
{
    bed_open(self, 0);
    bed_link(self, 1, &trib_worker_upcalls);
    bed_link(self, 2, &trib_worker_upcalls);
    trib_tensor *tensor = &self->tensor;
    self->op = calloc(1, sizeof *self->op);
    assert_non_null(self->op);
    *self->op = (trib_op){.engine = self->engine, .tensor = tensor, .output = self->output, .round = 1};
    self->op_core = (trib_op_core){.op = self->op, .core = &self->core, .tasks_left = 1};
    self->owner = (trib_place_owner){.member = 1};
    snprintf(tensor->name, sizeof tensor->name, "w");
    tensor->engine = self->engine;
    tensor->plan = trib_plan_choose(tensor);
    tensor->chunk_bytes = CHUNK_BYTES;
    tensor->partition_count = 1;
    tensor->owners = &self->owner;
    tensor->task_index = &self->task_index;
    tensor->cores = &self->tensor_core;
    self->tensor_core = (trib_tensor_core){
        .tasks = &self->task, .task_count = 1, .round_next = 2, .active = &self->op_core, .tensor = tensor};
    atomic_store(&tensor->placed, true);
    /* Both chunks are out, one of them not yet reported sent: so the task does not settle. */
    self->task = (trib_task){.tensor = tensor,
                             .op_core = &self->op_core,
                             .owner = self->owner,
                             .link = self->links[1],
                             .size = CHUNKS * CHUNK_BYTES,
                             .chunk_count = CHUNKS,
                             .chunks_sent = CHUNKS,
                             .io.received = {self->output, CHUNKS * CHUNK_BYTES, CHUNK_BYTES},
                             .state = TRIB_TASK_WAITING,
                             .stage = 1, /* PUSH */
                             .holds = 1,
                             .held[TRIB_HOLD_SEND] = 1,
                             .received = &self->received};
    self->core.op_cores = &self->op_core;
    self->core.tensors = calloc(1, sizeof(trib_tensor *));
    self->core.rounds_over = calloc(1, sizeof *self->core.rounds_over);
    assert_non_null(self->core.tensors);
    assert_non_null(self->core.rounds_over);
    self->core.tensors[0] = tensor;
    self->core.tensors_capacity = 1;
}

static void close_worker(bed *self)
{
    bed_close(self);
    free(self->core.tensors);
    free(self->core.rounds_over);
}

static void sums_are_received_where_they_belong(void **state)
{
    (void)state;
    bed self;
    open_worker(&self);
    trib_recv_target first, second;
    assert_int_equal(ask(&self, 1, sum_frame(1), &first), TRIB_OK);
    assert_int_equal(ask(&self, 1, sum_frame(0), &second), TRIB_OK);
    assert_int_equal(self.task.held[TRIB_HOLD_RECEIVE], 2);
    deliver_value(&self, 1, &first, 11);
    deliver_value(&self, 1, &second, 10);
    assert_int_equal(self.task.held[TRIB_HOLD_RECEIVE], 0);
    assert_int_equal(self.task.chunks_received, CHUNKS);
    assert_int_equal(self.output[0], 10);
    assert_int_equal(self.output[CHUNK_BYTES], 11);
    close_worker(&self);
}

/* Only a partition's owner may send its sum, reject it, or report who is missing. */
static void other_members_do_not_sum(void **state)
{
    (void)state;
    const trib_frame_type types[] = {TRIB_FRAME_SUM, TRIB_FRAME_REFUSED, TRIB_FRAME_STALL};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bed self;
        open_worker(&self);
        trib_recv_target target;
        trib_frame frame = sum_frame(0);
        frame.type = types[i];
        frame.payload_size = types[i] == TRIB_FRAME_SUM ? CHUNK_BYTES : 0;
        frame.aux = types[i] == TRIB_FRAME_REFUSED ? (uint32_t)TRIB_TIMEOUT : 3;
        if (types[i] == TRIB_FRAME_SUM) {
            assert_int_equal(ask(&self, 2, frame, &target), TRIB_PROTOCOL);
        } else {
            assert_int_equal(ask(&self, 2, frame, &target), TRIB_OK);
            deliver_value(&self, 2, &target, 0);
            assert_int_equal(self.links[2]->state, TRIB_LINK_CLOSING);
        }
        assert_said(&self, 2, "for partition 0 of tensor \"w\", which is not pushed to it");
        assert_int_equal(self.task.held[TRIB_HOLD_RECEIVE], 0);
        assert_true(trib_task_is_open(&self.task));
        close_worker(&self);
    }
}

/* A payload that is landing may make the header right. So the header is offered again, and rejected in its turn. */
static void a_sum_comes_once(void **state)
{
    (void)state;
    bed self;
    open_worker(&self);
    trib_recv_target target, again;
    assert_int_equal(ask(&self, 1, sum_frame(0), &target), TRIB_OK);
    assert_int_equal(ask(&self, 1, sum_frame(0), &again), TRIB_AGAIN);
    assert_int_equal(self.task.held[TRIB_HOLD_RECEIVE], 1);
    deliver_value(&self, 1, &target, 1);
    assert_int_equal(self.resumed, 1);
    assert_int_equal(ask(&self, 1, sum_frame(0), &again), TRIB_PROTOCOL);
    assert_said(&self, 1, "sum of tensor \"w\" chunk 0 came twice");
    close_worker(&self);
}

static void a_sum_is_asked_for(void **state)
{
    (void)state;
    bed self;
    open_worker(&self);
    trib_recv_target target;
    self.task.chunks_sent = 1;
    assert_int_equal(ask(&self, 1, sum_frame(1), &target), TRIB_PROTOCOL);
    assert_said(&self, 1, "chunk 1, which was not asked for");
    close_worker(&self);
}

static void unreceived_payload_is_returned(void **state)
{
    (void)state;
    bed self;
    open_worker(&self);
    trib_recv_target target;
    trib_frame refusal = {.type = TRIB_FRAME_REFUSED, .round = 1, .payload_size = 20, .aux = (uint32_t)TRIB_TIMEOUT};
    assert_int_equal(ask(&self, 1, sum_frame(0), &target), TRIB_OK);
    assert_int_equal(ask(&self, 1, refusal, &target), TRIB_OK);
    assert_int_equal(ask(&self, 1, sum_frame(1), &target), TRIB_OK);
    assert_int_equal(self.task.held[TRIB_HOLD_RECEIVE], 2);
    close_worker(&self); /* checks that no hold is left */
}

/* Texts that land at the same time, on several links or on one, do not mix. They contain nothing that a terminal
 * would obey. */
static void texts_do_not_mix(void **state)
{
    (void)state;
    bed self;
    open_worker(&self);
    trib_recv_target mine, more, theirs;
    trib_frame refusal = {.type = TRIB_FRAME_REFUSED, .round = 1, .aux = (uint32_t)TRIB_MISMATCH};
    const trib_cause cause = trib_cause_note(TRIB_MISMATCH, TRIB_NO_MEMBER, "rank 3\033[2Jok");
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    refusal.payload_size = (uint32_t)trib_cause_encode(&cause, payload);
    assert_int_equal(ask(&self, 1, refusal, &mine), TRIB_OK);
    assert_int_equal(ask(&self, 1, refusal, &more), TRIB_OK);
    assert_int_equal(ask(&self, 2, refusal, &theirs), TRIB_OK);
    memcpy(mine.buffer, payload, refusal.payload_size);
    memset(more.buffer, 'y', refusal.payload_size);
    memset(theirs.buffer, 'x', refusal.payload_size);
    deliver_text(&self, 1, &mine);
    assert_string_equal(self.op->text, "tensor \"w\": rank 3?[2Jok");
    close_worker(&self);
}

/* A peer that ends because the coordinator's process has left says so, and the operation ends with that text. A peer
 * that ends for any other reason is lost to this worker. */
static void a_farewell_has_a_status(void **state)
{
    (void)state;
    const trib_status said[] = {TRIB_PEER_LEFT, TRIB_SYSTEM}, has_received[] = {TRIB_PEER_LEFT, TRIB_PEER_LOST};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        bed self;
        open_worker(&self);
        trib_recv_target target;
        const trib_cause cause = trib_cause_note(said[i], TRIB_NO_MEMBER, "gone");
        unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
        const uint32_t size = (uint32_t)trib_cause_encode(&cause, payload);
        const trib_frame bye = {.type = TRIB_FRAME_BYE, .payload_size = size, .aux = (uint32_t)said[i]};
        assert_int_equal(ask(&self, 1, bye, &target), TRIB_OK);
        memcpy(target.buffer, payload, size);
        deliver_text(&self, 1, &target);
        self.core.ended = self.core.host.is_closed = true; /* the engine need not be told */
        self.links[1] = NULL;
        trib_link_transport_upcalls.closed(&self.conns[1], TRIB_OK, "closed by the peer");
        assert_int_equal(atomic_load(&self.op->claim), has_received[i]);
        assert_non_null(strstr(self.op->text, ": gone, as "));
        assert_int_equal(self.task.state, TRIB_TASK_FAILING);
        close_worker(&self);
    }
}

/* ---- A server ---- */

static void *page_alloc(void *user, size_t size)
{
    (void)user;
    return aligned_alloc(CHUNK_BYTES, (size + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES);
}

static void page_free(void *user, void *buffer, size_t size)
{
    (void)user;
    (void)size;
    free(buffer);
}

static void partial_is_out(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)what;
    trib_summation_sent(bed_summation(user), sum);
}

static void sum_is_out(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)receiver;
    (void)what;
    bed *self = user;
    self->handed_out++;
    trib_summation_sent(bed_summation(self), sum);
}

static void nobody_is_refused(void *user, uint32_t receiver, const trib_contribution *what, trib_status status,
                              const char *text)
{
    (void)user;
    (void)receiver;
    (void)what;
    (void)status;
    fail_msg("refused: %s", text);
}

static trib_summation_config summation_config(bed *self)
{
    return (trib_summation_config){.reactor = &self->reactor,
                                   .kernels = self->engine->env.kernels,
                                   .contributor_count = 2,
                                   .chunk_bytes = CHUNK_BYTES,
                                   .buffer_alloc = page_alloc,
                                   .buffer_free = page_free,
                                   .sum_ready = sum_is_out,
                                   .refused = nobody_is_refused,
                                   .user = self};
}

static trib_frame push_frame(uint32_t round, uint32_t chunk)
{
    trib_frame frame = sum_frame(chunk);
    frame.type = TRIB_FRAME_PUSH;
    frame.round = round;
    frame.dtype = TRIB_FLOAT32;
    return frame;
}

/* A worker that has withdrawn from a round still sends the last chunk of it, and behind that the first of the next
 * round. */
static void the_next_round_waits_for_the_last(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    bed_link(&self, 1, &trib_server_upcalls);
    const trib_summation_config config = summation_config(&self);
    bed_open_sum(&self, &config);
    trib_recv_target first, last, next;
    assert_int_equal(ask(&self, 1, push_frame(1, 0), &first), TRIB_OK);
    assert_int_equal(ask(&self, 1, push_frame(1, 1), &last), TRIB_OK);
    assert_int_equal(ask(&self, 1, push_frame(2, 0), &next), TRIB_AGAIN);
    deliver_value(&self, 1, &first, 0);
    assert_int_equal(self.resumed, 1);
    assert_int_equal(ask(&self, 1, push_frame(2, 0), &next), TRIB_AGAIN);
    deliver_value(&self, 1, &last, 0);
    assert_int_equal(self.resumed, 2);
    assert_int_equal(ask(&self, 1, push_frame(2, 0), &next), TRIB_OK);
    deliver_value(&self, 1, &next, 0);
    assert_int_equal(self.resumed, 2);
    /* The peer had not finished round 2 and sends nothing more of it. Its withdrawal is final. */
    assert_int_equal(ask(&self, 1, push_frame(3, 0), &next), TRIB_PROTOCOL);
    assert_said(&self, 1, "rank 1 contributes to round 3 before it is through with round 2");
    bed_close(&self);
}

/* ---- A relay ---- */

/* The machine of members 0 and 1 has summed both chunks, and given its partial sums to member 2. */
static void open_relay(bed *self)
{
    bed_open(self, 2);
    bed_link(self, 2, &trib_worker_upcalls);
    bed_link(self, 3, &trib_worker_upcalls);
    assert_int_equal(trib_relay_open(&self->core), TRIB_OK);
    trib_summation_config config = summation_config(self);
    config.partial_ready = partial_is_out;
    config.rank_limit = MEMBERS;
    trib_summation *summation = bed_open_sum(self, &config);
    for (uint32_t i = 0; i < CHUNKS * 2; i++) {
        const trib_contribution what = {.round = 1,
                                        .chunk = i / 2,
                                        .chunk_count = CHUNKS,
                                        .size = CHUNK_BYTES,
                                        .contributor = i % 2,
                                        .dtype = TRIB_FLOAT32,
                                        .owner = trib_relay_owner(2, 0)};
        const float zeros[CHUNK_BYTES / sizeof(float)] = {0};
        trib_error error = {.text = ""};
        assert_int_equal(trib_summation_arrived(summation, &what, &(trib_arrived){.payload = zeros}, &error), TRIB_OK);
    }
}

static trib_frame partial_frame(uint32_t chunk)
{
    trib_frame frame = sum_frame(chunk);
    frame.collective = TRIB_COLLECTIVE_PARTIAL;
    return frame;
}

static void partials_asked_about_ahead(void **state)
{
    (void)state;
    bed self;
    open_relay(&self);
    trib_recv_target targets[CHUNKS];
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(ask(&self, 2, partial_frame(i), &targets[i]), TRIB_OK);
    }
    for (uint32_t i = 0; i < CHUNKS; i++) {
        deliver_value(&self, 2, &targets[i], 0);
    }
    assert_int_equal(self.handed_out, 2 * CHUNKS);
    assert_true(trib_summation_is_idle(bed_summation(&self)));
    bed_close(&self);
}

/* Frames of other types come between the sums of partial sums, and one sum never comes. */
static void partials_are_given_back(void **state)
{
    (void)state;
    bed self;
    open_relay(&self);
    trib_recv_target first, stall, second;
    trib_frame notice = partial_frame(0);
    notice.type = TRIB_FRAME_STALL;
    notice.payload_size = 0;
    notice.aux = 3;
    assert_int_equal(ask(&self, 2, partial_frame(0), &first), TRIB_OK);
    assert_int_equal(ask(&self, 2, notice, &stall), TRIB_OK);
    assert_int_equal(ask(&self, 2, partial_frame(1), &second), TRIB_OK);
    deliver_value(&self, 2, &first, 0);
    deliver_value(&self, 2, &stall, 0);
    assert_int_equal(self.handed_out, 2);
    const trib_contribution what = {.round = 1, .chunk = 1};
    const trib_sum_buffer *sum = trib_summation_awaited(bed_summation(&self), &what);
    assert_non_null(sum);
    assert_int_equal(sum->references, 2); /* the summation's, and that of the landing payload */
    self.core.ended = self.core.host.is_closed = true;
    trib_link_transport_upcalls.closed(&self.conns[2], TRIB_PEER_LOST, "over");
    self.links[2] = NULL;
    assert_int_equal(sum->references, 1);
    bed_close(&self);
}

static void a_partial_comes_once(void **state)
{
    (void)state;
    bed self;
    open_relay(&self);
    trib_recv_target target, again;
    assert_int_equal(ask(&self, 2, partial_frame(0), &target), TRIB_OK);
    /* The late sum may not overwrite a payload that is being received. */
    assert_int_equal(ask(&self, 2, partial_frame(0), &again), TRIB_AGAIN);
    deliver_value(&self, 2, &target, 0);
    assert_int_equal(self.handed_out, 2);
    /* No contributor waits for the sum, so it is dropped. */
    assert_int_equal(ask(&self, 2, partial_frame(0), &again), TRIB_OK);
    assert_ptr_equal(again.buffer, self.core.discard);
    deliver_value(&self, 2, &again, 1);
    assert_int_equal(self.handed_out, 2);
    bed_close(&self);
}

static void strangers_do_not_refuse_partials(void **state)
{
    (void)state;
    bed self;
    open_relay(&self);
    const trib_frame_type types[] = {TRIB_FRAME_REFUSED, TRIB_FRAME_STALL};
    const trib_cause cause = trib_cause_note(TRIB_TIMEOUT, TRIB_NO_MEMBER, "why");
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const size_t size = trib_cause_encode(&cause, payload);
    for (size_t i = 0; i < 2; i++) {
        trib_frame frame = partial_frame(0);
        frame.type = types[i];
        frame.payload_size = types[i] == TRIB_FRAME_REFUSED ? (uint32_t)size : 0;
        frame.aux = types[i] == TRIB_FRAME_REFUSED ? (uint32_t)TRIB_TIMEOUT : 3;
        trib_error error = {.text = ""};
        assert_int_equal(trib_relay_received(self.links[3], &frame, payload, false, &error), TRIB_PROTOCOL);
        assert_non_null(strstr(error.text, "which is not pushed to it"));
        frame.round = 2; /* the round has not begun, or is over and forgotten */
        assert_int_equal(trib_relay_received(self.links[3], &frame, payload, false, &error), TRIB_OK);
    }
    trib_frame notice = partial_frame(0);
    trib_error error = {.text = ""};
    notice.type = TRIB_FRAME_STALL;
    notice.aux = 3;
    notice.payload_size = TRIB_RANK_BITS_BYTES; /* of many more workers than there are */
    assert_int_equal(trib_relay_received(self.links[2], &notice, payload, false, &error), TRIB_PROTOCOL);
    assert_non_null(strstr(error.text, "STALL of rank 3 with a list of 512 bytes"));
    bed_close(&self);
}

/* ---- The handshake ---- */

static bool no_memory(void *memory, size_t size)
{
    (void)memory;
    (void)size;
    return false;
}

/* A connection without memory for its welcome belongs to no link: the link's first connection lives on. */
static void no_memory_for_a_welcome(void **state)
{
    (void)state;
    bed self;
    trib_recv_target target;
    bed_open(&self, 0);
    trib_link *main = bed_link(&self, 1, &trib_server_upcalls);
    trib_link *second = bed_link(&self, 2, &trib_link_second_upcalls);
    assert_int_equal(trib_auth_key(NULL, "default", self.engine->key), TRIB_OK);
    second->state = TRIB_LINK_AWAIT_PROOF;
    second->handshake = (trib_handshake){.purpose = TRIB_PURPOSE_PRIORITY, .member = 1};
    self.engine->env.may_alloc = no_memory;
    assert_int_equal(ask(&self, 2, (trib_frame){.type = TRIB_FRAME_PROOF, .payload_size = TRIB_PROOF_SIZE}, &target),
                     TRIB_OK);
    trib_auth_prove(self.engine->key, &second->handshake, true, target.buffer);
    deliver_text(&self, 2, &target);
    assert_int_equal(second->state, TRIB_LINK_CLOSING);
    assert_null(main->priority_link);
    self.core.ended = self.core.host.is_closed = true; /* nothing is logged */
    trib_link_transport_upcalls.closed(&self.conns[2], TRIB_OK, "over");
    self.links[2] = NULL;
    assert_int_equal(main->state, TRIB_LINK_READY);
    bed_close(&self);
}

/* A BYE that the link has no room for, or a second one, is rejected before its payload is read. */
static void farewells_that_cannot_be_are_rejected(void **state)
{
    (void)state;
    bed self;
    trib_recv_target target;
    bed_open(&self, 0);
    trib_link *link = bed_link(&self, 1, &trib_worker_upcalls);
    bed_link(&self, 2, &trib_worker_upcalls);
    trib_frame bye = {.type = TRIB_FRAME_BYE, .aux = (uint32_t)TRIB_NO_MEMORY};
    assert_int_equal(ask(&self, 1, bye, &target), TRIB_OK);
    deliver_text(&self, 1, &target);
    assert_true(link->has_farewell);
    assert_int_equal(ask(&self, 1, bye, &target), TRIB_PROTOCOL);
    bye.payload_size = sizeof link->farewell + 1;
    assert_int_equal(ask(&self, 2, bye, &target), TRIB_PROTOCOL);
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_received_where_they_belong),
        cmocka_unit_test(other_members_do_not_sum),
        cmocka_unit_test(a_sum_comes_once),
        cmocka_unit_test(a_sum_is_asked_for),
        cmocka_unit_test(unreceived_payload_is_returned),
        cmocka_unit_test(texts_do_not_mix),
        cmocka_unit_test(a_farewell_has_a_status),
        cmocka_unit_test(the_next_round_waits_for_the_last),
        cmocka_unit_test(partials_asked_about_ahead),
        cmocka_unit_test(partials_are_given_back),
        cmocka_unit_test(a_partial_comes_once),
        cmocka_unit_test(strangers_do_not_refuse_partials),
        cmocka_unit_test(no_memory_for_a_welcome),
        cmocka_unit_test(farewells_that_cannot_be_are_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
