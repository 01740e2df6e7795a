/*
 * test_raw_peer.c - hand-written members have the token but break the protocol. The engine rejects each with a reason
 * that names its error, and no other member is held up.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "tests/loop/host.h"
#include "tests/loop/job.h"
#include "tests/loop/raw_peer.h"

typedef struct bed {
    host host;
    unsigned char *payload;
} bed;

/* more: the host part of a second coordinator address; "": none. */
static void bed_open_at(bed *self, int workers, const char *more)
{
    self->payload = malloc(TRIB_PAYLOAD_MAX);
    assert_non_null(self->payload);
    host_open(&self->host, workers, more);
}

static void bed_open(bed *self, int workers)
{
    bed_open_at(self, workers, "");
}

static void bed_close(bed *self)
{
    host_close(&self->host);
    free(self->payload);
}

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

/* The engine's own thread logs the line when the connection is over. */
static void await_line(bed *self, const char *words)
{
    for (int i = 0; i < 2000 && !host_has_said(&self->host, words); i++) {
        usleep(10000);
    }
    assert_says(self->host.log, words);
}

static void join(bed *self, raw_peer *peer, uint32_t rank, uint32_t workers, size_t extra)
{
    raw_peer_connect(peer, self->host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, rank);
    raw_peer_join(peer, rank, workers, extra);
}

static void expect_roster(bed *self, const raw_peer *peer)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    assert_true(raw_peer_receive(peer, &frame, self->payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    assert_int_equal(trib_epoch_number(frame.epoch), 1);
}

static void bytes_behind_a_join(void **state)
{
    (void)state;
    bed self;
    raw_peer wrong, right;
    bed_open(&self, 2);
    join(&self, &wrong, 1, 2, 3);
    raw_peer_expect_end(&wrong);
    join(&self, &right, 1, 2, 0);
    expect_roster(&self, &right);
    raw_peer_close(&wrong);
    raw_peer_close(&right);
    bed_close(&self);
    assert_says(self.host.log, ": JOIN with 3 bytes too many");
}

/* A peer that asks and goes gets nothing that is computed from the token, whatever it says. A peer whose proof is wrong
 * is told so. Both are counted. Only the second has a warning: members that end go in the middle of handshakes, too. */
static void another_token(void **state)
{
    (void)state;
    bed self;
    trib_stats stats = {.struct_size = sizeof stats};
    bed_open(&self, 2);
    assert_int_equal(raw_peer_fail(self.host.address, false), TRIB_OK);
    assert_int_equal(raw_peer_fail(self.host.address, true), TRIB_UNAUTHORIZED);
    /* The engine sees the end of a connection later than the peer. */
    for (int i = 0; i < 1000 && stats.peers_refused < 2; i++) {
        assert_int_equal(trib_engine_get_stats(self.host.engine, &stats), TRIB_OK);
        (void)poll(NULL, 0, 10);
    }
    bed_close(&self);
    assert_int_equal(stats.peers_refused, 2);
    assert_null(strstr(self.host.log, "connection closed by the peer"));
    assert_says(self.host.log, "the peer could not prove the token of job \"default\"");
}

/* A JOIN whose bytes are not those that were sent. The connection ends, and the log names both of its ends. */
static void a_damaged_payload(void **state)
{
    (void)state;
    bed self;
    raw_peer peer;
    trib_stats stats = {.struct_size = sizeof stats};
    bed_open(&self, 2);
    raw_peer_connect(&peer, self.host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_send(&peer, (trib_frame){.type = TRIB_FRAME_JOIN, .root = 1, .crc = 0xe3069282}, "123456789", 9);
    raw_peer_expect_end(&peer);
    raw_peer_close(&peer);
    assert_int_equal(trib_engine_get_stats(self.host.engine, &stats), TRIB_OK);
    bed_close(&self);
    assert_int_equal(stats.payloads_damaged, 1);
    assert_says(self.host.log, "a JOIN of 9 bytes was damaged on its way from 127.0.0.1:");
    assert_says(self.host.log, "(CRC32C e3069283, sent with e3069282)");
}

/* A member that leaves before the job has formed frees its place. */
static void leaving_early(void **state)
{
    (void)state;
    bed self;
    raw_peer early, second, third;
    bed_open(&self, 3);
    join(&self, &early, 1, 3, 0);
    raw_peer_send(&early, (trib_frame){.type = TRIB_FRAME_LEAVE}, NULL, 0);
    raw_peer_close(&early);
    join(&self, &second, 1, 3, 0);
    join(&self, &third, 2, 3, 0);
    expect_roster(&self, &second);
    expect_roster(&self, &third);
    raw_peer_close(&second);
    raw_peer_close(&third);
    bed_close(&self);
}

/* The rejected peer reads why, as the text of an ended job. */
static void expect_refusal(bed *self, const raw_peer *peer, const char *words)
{
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    trib_cause cause;
    assert_true(raw_peer_receive(peer, &frame, self->payload));
    assert_int_equal(frame.type, TRIB_FRAME_ENDED);
    assert_int_equal(trib_cause_decode(&frame, self->payload, &cause, NULL), TRIB_OK);
    assert_int_equal(cause.status, TRIB_JOIN_FAILED);
    assert_says(cause.detail, words);
}

/* A member without a place is rejected, and the others still form the job. */
static void members_too_many(void **state)
{
    (void)state;
    bed self;
    raw_peer unknown, miscounting, right, second, last, late;
    bed_open(&self, 3);
    join(&self, &unknown, 3, 3, 0);
    expect_refusal(&self, &unknown, "no place for rank 3 (by hand): the job has 3 workers and 0 servers");
    join(&self, &miscounting, 1, 4, 0);
    expect_refusal(&self, &miscounting, "expects 4 workers and 0 servers, the coordinator 3 and 0");
    join(&self, &right, 1, 3, 0);
    join(&self, &second, 0, 3, 0);
    expect_refusal(&self, &second, "is a second one");
    join(&self, &last, 2, 3, 0);
    expect_roster(&self, &right);
    expect_roster(&self, &last);
    join(&self, &late, 1, 3, 0);
    expect_refusal(&self, &late, "came when the job had already begun");
    raw_peer *const all[] = {&unknown, &miscounting, &second, &late, &right, &last};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        raw_peer_close(all[i]);
    }
    bed_close(&self);
}

/* A member of the job sends the frame, after another one if `first` is not NULL, and the job ends with those words. */
static void ends_the_job_after(const trib_frame *first, trib_frame frame, const void *payload, size_t size,
                               const char *words)
{
    bed self;
    raw_peer peer;
    bed_open(&self, 2);
    join(&self, &peer, 1, 2, 0);
    expect_roster(&self, &peer);
    if (first != NULL) {
        raw_peer_send(&peer, *first, payload, size);
    }
    raw_peer_send(&peer, frame, payload, size);
    raw_peer_expect_end(&peer);
    trib_error error = {.text = ""};
    assert_int_equal(trib_engine_wait_ready(self.host.engine, -1, &error), TRIB_PEER_LOST);
    assert_says(error.text, "lost rank 1 (by hand): ");
    assert_says(error.text, words);
    raw_peer_close(&peer);
    bed_close(&self);
}

static void ends_the_job(trib_frame frame, const void *payload, size_t size, const char *words)
{
    ends_the_job_after(NULL, frame, payload, size, words);
}

static void another_epoch(void **state)
{
    (void)state;
    ends_the_job((trib_frame){.type = TRIB_FRAME_PONG, .epoch = 2}, NULL, 0,
                 "PONG frame of epoch 2, this side is in epoch 1");
    ends_the_job((trib_frame){.type = TRIB_FRAME_DECLARE, .epoch = 0}, NULL, 0,
                 "DECLARE frame of epoch 0, this side is in epoch 1");
}

/* A whole tensor of all workers. */
static void put_declaration(trib_writer *writer, uint8_t dtype, uint64_t count)
{
    writer->size = 0;
    trib_put_text(writer, "weights");
    trib_put_u8(writer, dtype);
    trib_put_u64(writer, count);
    trib_put_u8(writer, TRIB_WHOLE);
    trib_put_u64(writer, 1);
    trib_put_u8(writer, 0);
    trib_put_text(writer, "none");
    trib_put_u32(writer, 0); /* no quorum */
    trib_put_u64(writer, 0);
    trib_put_u32(writer, 0);
}

static void bytes_behind_a_declaration(void **state)
{
    (void)state;
    unsigned char payload[64];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    put_declaration(&writer, TRIB_FLOAT32, 1);
    trib_put_u8(&writer, 0);
    ends_the_job((trib_frame){.type = TRIB_FRAME_DECLARE, .epoch = 1}, payload, writer.size,
                 "DECLARE with 1 bytes too many");
    ends_the_job((trib_frame){.type = TRIB_FRAME_DECLARE, .epoch = 1}, payload, writer.size - 2, "malformed DECLARE");
}

static void declarations_that_cannot_be(void **state)
{
    (void)state;
    unsigned char payload[64];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    put_declaration(&writer, 99, 1);
    ends_the_job((trib_frame){.type = TRIB_FRAME_DECLARE, .epoch = 1}, payload, writer.size,
                 "DECLARE of what cannot be: type 99");
    put_declaration(&writer, TRIB_FLOAT32, (UINT64_C(1) << 42) + 1);
    ends_the_job((trib_frame){.type = TRIB_FRAME_DECLARE, .epoch = 1}, payload, writer.size, "4398046511105 elements");
}

/* A number that means none, and one that the rank has given to another group. */
static void groups_without_a_number(void **state)
{
    (void)state;
    unsigned char payload[64];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_text(&writer, "some");
    trib_put_u32(&writer, 1);
    trib_put_u32(&writer, 1);
    const trib_frame create = {.type = TRIB_FRAME_GROUP_CREATE, .epoch = 1};
    const trib_frame no_tag = {.type = TRIB_FRAME_GROUP_CREATE, .epoch = 1, .tensor = UINT32_MAX};
    ends_the_job(no_tag, payload, writer.size, "malformed GROUP_CREATE");
    ends_the_job_after(&create, create, payload, writer.size, "GROUP_CREATE, or one with a number that is in use");
}

static void quorums_that_lie(void **state)
{
    (void)state;
    const unsigned char none[2] = {0};
    ends_the_job((trib_frame){.type = TRIB_FRAME_QUORUM_BEGUN, .epoch = 1, .round = 1}, none, sizeof none,
                 "malformed QUORUM_BEGUN");
    ends_the_job((trib_frame){.type = TRIB_FRAME_QUORUM_SET, .epoch = 1, .round = 1}, none, 1, "QUORUM_SET");
    ends_the_job((trib_frame){.type = TRIB_FRAME_QUORUM_ASK, .epoch = 1, .round = 1}, none, 0, "QUORUM_ASK");
}

static void a_loss_that_is_none(void **state)
{
    (void)state;
    const trib_cause cause = trib_cause_note(TRIB_PEER_LOST, 1, "no");
    unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX];
    const size_t size = trib_cause_encode(&cause, payload);
    const trib_frame lost = {.type = TRIB_FRAME_LOST, .epoch = 1, .aux = (uint32_t)TRIB_PEER_LOST};
    ends_the_job((trib_frame){.type = TRIB_FRAME_LOST, .epoch = 1}, payload, size,
                 "LOST frame with status 0, which is no error");
    ends_the_job(lost, payload, size - 1, "malformed LOST");
    ends_the_job(lost, payload, 0, "malformed LOST");
    payload[size] = 0;
    ends_the_job(lost, payload, size + 1, "LOST with 1 bytes too many");
}

/* Both sides log both versions, whichever is newer. */
static void another_version(void **state)
{
    (void)state;
    bed self;
    unsigned char answer[TRIB_HEADER_SIZE];
    trib_frame frame;
    trib_error error = {.text = ""};
    bed_open(&self, 2);
    assert_true(raw_peer_greet_foreign(self.host.address, TRIB_WIRE_VERSION - 1, answer));
    assert_int_equal(trib_frame_decode(answer, &frame, &error), TRIB_OK);
    assert_int_equal(frame.type, TRIB_FRAME_BYE);
    await_line(&self, "protocol version 19, this side speaks 20: install the same release");
    bed_close(&self);
}

static void a_coordinator_of_another_version(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    char address[32];
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = 2;
    config.rank = 1;
    config.reactors = 1;
    config.coordinator = address;
    config.join_timeout_ns = INT64_C(60000000000);
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    raw_peer_answer_foreign(listener, TRIB_WIRE_VERSION + 1);
    assert_int_equal(trib_engine_wait_ready(engine, -1, &error), TRIB_PROTOCOL);
    assert_says(error.text, "could not join at 127.0.0.1:");
    assert_says(error.text, "protocol version 21, this side speaks 20: install the same release");
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    close(listener);
}

/* Rank 1 asks for a second connection without a first one, then for a first, a second and a third. A rejected peer gets
 * no WELCOME. */
static void second_connections(void **state)
{
    (void)state;
    bed self;
    raw_peer peer, none, first, second, third;
    bed_open(&self, 2);
    join(&self, &peer, 1, 2, 0);
    expect_roster(&self, &peer);
    const trib_member_info info = raw_peer_first_member(self.payload);
    const char *at = info.addresses[0].text;
    assert_false(raw_peer_ask(&none, at, HOST_TOKEN, TRIB_PURPOSE_PRIORITY, 1));
    raw_peer_connect(&first, at, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    raw_peer_connect(&second, at, HOST_TOKEN, TRIB_PURPOSE_PRIORITY, 1);
    assert_false(raw_peer_ask(&third, at, HOST_TOKEN, TRIB_PURPOSE_PRIORITY, 1));
    raw_peer *const all[] = {&none, &third, &second, &first, &peer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        raw_peer_close(all[i]);
    }
    bed_close(&self);
}

/* A member may have up to three connections beside the first, each by another network. An error on one of them is the
 * member's error, even if it is the first message there. */
static void connections_by_other_networks(void **state)
{
    (void)state;
    enum { MOST = 3 };
    bed self;
    raw_peer peer, none, first, subflows[MOST], one_more;
    bed_open(&self, 2);
    join(&self, &peer, 1, 2, 0);
    expect_roster(&self, &peer);
    const trib_member_info info = raw_peer_first_member(self.payload);
    trib_error error = {.text = ""};

    const char *at = info.addresses[0].text;
    assert_false(raw_peer_ask(&none, at, HOST_TOKEN, TRIB_PURPOSE_SUBFLOW, 1));
    raw_peer_connect(&first, at, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    for (int i = 0; i < MOST; i++) {
        raw_peer_connect(&subflows[i], at, HOST_TOKEN, TRIB_PURPOSE_SUBFLOW, 1);
    }
    assert_false(raw_peer_ask(&one_more, at, HOST_TOKEN, TRIB_PURPOSE_SUBFLOW, 1));
    raw_peer_send(&subflows[1], (trib_frame){.type = TRIB_FRAME_PUSH, .epoch = 7, .round = 1, .chunk_count = 1}, NULL,
                  0);
    raw_peer_expect_end(&subflows[1]);
    assert_int_equal(trib_engine_wait_ready(self.host.engine, -1, &error), TRIB_PEER_LOST);
    assert_says(error.text, "lost the connection to rank 1 (by hand): PUSH frame of epoch 7, this side is in epoch 1");
    raw_peer *const all[] = {&none, &one_more, &subflows[0], &subflows[1], &subflows[2], &first, &peer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        raw_peer_close(all[i]);
    }
    bed_close(&self);
}

/* Data links check the epoch too: a server rejects a contribution to another epoch. */
static void a_contribution_to_another_epoch(void **state)
{
    (void)state;
    bed self;
    raw_peer peer, data;
    bed_open(&self, 2);
    join(&self, &peer, 1, 2, 0);
    expect_roster(&self, &peer);
    const trib_member_info info = raw_peer_first_member(self.payload);
    trib_error error = {.text = ""};

    raw_peer_connect(&data, info.addresses[0].text, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    raw_peer_send(&data, (trib_frame){.type = TRIB_FRAME_PUSH, .epoch = 7, .round = 1, .chunk_count = 1}, NULL, 0);
    raw_peer_expect_end(&data);
    assert_int_equal(trib_engine_wait_ready(self.host.engine, -1, &error), TRIB_PEER_LOST);
    assert_says(error.text, "lost the connection to rank 1 (by hand): PUSH frame of epoch 7, this side is in epoch 1");
    raw_peer_close(&data);
    raw_peer_close(&peer);
    bed_close(&self);
}

/* Rank 1 starts the sum of rank 2's partition and withholds its payload. The job ends with rank 1's name, before rank
 * 2's own sum comes. */
static void a_sum_of_another_member(void **state)
{
    (void)state;
    enum { TENSORS = 3, COUNT = 4 };
    bed self;
    raw_peer peers[2], data[2];
    trib_op *ops[TENSORS];
    float values[TENSORS][COUNT] = {{0}};
    trib_error error = {.text = ""};
    bed_open(&self, 3);
    for (uint32_t i = 0; i < 2; i++) {
        join(&self, &peers[i], i + 1, 3, 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        raw_peer_accept(&peers[i], &data[i], HOST_TOKEN);
    }
    assert_int_equal(trib_engine_wait_ready(self.host.engine, -1, &error), TRIB_OK);
    for (uint32_t i = 0; i < TENSORS; i++) { /* one for each member, because shares are equal */
        const char name[] = {(char)('a' + (char)i), '\0'};
        trib_tensor *tensor = job_declare(self.host.engine, name, TRIB_FLOAT32, COUNT);
        ops[i] = job_push_pull(self.host.engine, tensor, values[i], values[i], TRIB_SUM);
    }
    for (uint32_t i = 0; i < 2; i++) {
        (void)raw_peer_serve(&peers[i], "c", self.payload);
    }
    trib_frame push = {.type = TRIB_FRAME_NONE}, other = push;
    assert_true(raw_peer_receive(&data[1], &push, self.payload)); /* pushed to rank 2 */
    assert_true(raw_peer_receive(&data[0], &other, self.payload));
    assert_true(push.type == TRIB_FRAME_PUSH && other.type == TRIB_FRAME_PUSH && push.tensor != other.tensor);
    push.type = TRIB_FRAME_SUM;
    raw_peer_send_header(&data[0], push, push.size);
    raw_peer_expect_end(&data[0]);
    raw_peer_send(&data[1], push, self.payload, push.size);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const trib_status status = job_wait(ops[i], &error);
        assert_true(status == TRIB_PEER_LOST || status == TRIB_PROTOCOL);
        assert_says(error.text, "lost the connection to rank 1 (by hand): SUM for partition 0 of tensor");
        assert_says(error.text, "which is not pushed to it");
    }
    for (uint32_t i = 0; i < 2; i++) {
        raw_peer_close(&data[i]);
        raw_peer_close(&peers[i]);
    }
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_too_many),
        cmocka_unit_test(declarations_that_cannot_be),
        cmocka_unit_test(bytes_behind_a_join),
        cmocka_unit_test(leaving_early),
        cmocka_unit_test(another_epoch),
        cmocka_unit_test(bytes_behind_a_declaration),
        cmocka_unit_test(groups_without_a_number),
        cmocka_unit_test(quorums_that_lie),
        cmocka_unit_test(a_loss_that_is_none),
        cmocka_unit_test(another_token),
        cmocka_unit_test(a_damaged_payload),
        cmocka_unit_test(a_sum_of_another_member),
        cmocka_unit_test(a_contribution_to_another_epoch),
        cmocka_unit_test(another_version),
        cmocka_unit_test(a_coordinator_of_another_version),
        cmocka_unit_test(second_connections),
        cmocka_unit_test(connections_by_other_networks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
