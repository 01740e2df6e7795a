/*
 * test_unknown_tensor.c - a hand-written worker pushes to tensors that nobody has declared, that belong to a group
 * without it, or that are different. The server ends the connection, and its error names the worker and the tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "tests/loop/host.h"
#include "tests/loop/raw_peer.h"

typedef struct bed {
    host host;
    unsigned char *payload;
} bed;

static void bed_open(bed *self)
{
    self->payload = malloc(TRIB_PAYLOAD_MAX);
    assert_non_null(self->payload);
    host_open(&self->host, 2, "");
}

static void bed_close(bed *self)
{
    host_close(&self->host);
    free(self->payload);
}

/* The engine's own thread logs the line when the connection is over. */
static void await_line(bed *self, const char *words)
{
    for (int i = 0; i < 2000 && !host_has_said(&self->host, words); i++) {
        usleep(10000);
    }
    if (strstr(self->host.log, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, self->host.log);
    }
}

static void declare(const bed *self, bool in_group)
{
    const int32_t ranks[] = {0};
    trib_error error = {.text = ""};
    trib_tensor_desc desc;
    trib_group_desc group;
    trib_tensor *tensor = NULL;
    trib_group_desc_init(&group, sizeof group);
    group.name = "alone";
    group.ranks = ranks;
    group.rank_count = 1;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "weights";
    desc.dtype = TRIB_FLOAT32;
    desc.count = 4;
    if (in_group) {
        assert_int_equal(trib_group_create(self->host.engine, &group, &desc.group, &error), TRIB_OK);
    }
    assert_int_equal(trib_tensor_declare(self->host.engine, &desc, &tensor, &error), TRIB_OK);
}

/* Rank 0 declares a tensor of four floats, alone or in a group without rank 1, which then pushes what does not fit it.
 * The server's error names the rank and the tensor. */
static void push_is_rejected(trib_frame push, bool declares, bool in_group, const char *words)
{
    const unsigned char payload[64] = {0};
    bed self;
    raw_peer peer, accepted, data;
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    trib_member_info info;
    trib_error error = {.text = ""};
    bed_open(&self);
    raw_peer_connect(&peer, self.host.address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(&peer, 1, 2, 0);
    assert_true(raw_peer_receive(&peer, &frame, self.payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    info = raw_peer_first_member(self.payload);
    raw_peer_accept(&peer, &accepted, HOST_TOKEN);
    raw_peer_connect(&data, info.addresses[0].text, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    assert_int_equal(trib_engine_wait_ready(self.host.engine, -1, &error), TRIB_OK);
    if (declares) {
        declare(&self, in_group);
        push.tensor += raw_peer_serve(&peer, "weights", self.payload);
    }
    push.type = TRIB_FRAME_PUSH;
    push.epoch = 1;
    push.round = 1;
    raw_peer_send(&data, push, payload, push.size);
    raw_peer_expect_end(&data);
    await_line(&self, words);
    raw_peer *const all[] = {&data, &accepted, &peer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        raw_peer_close(all[i]);
    }
    bed_close(&self);
}

static void pushes_that_no_tensor_has(void **state)
{
    (void)state;
    const trib_frame right = {.chunk_count = 1, .size = 16, .dtype = TRIB_FLOAT32};
    trib_frame push = right;
    push.tensor = 7;
    push_is_rejected(push, false, false, "PUSH from rank 1 (by hand) for tensor 7, which nobody has declared");
    push_is_rejected(push, true, false, "which nobody has declared");
    push = right;
    push_is_rejected(push, true, true,
                     "PUSH from rank 1 (by hand) for tensor \"weights\": it belongs to another group");
    push.size = 8;
    push_is_rejected(push, true, false,
                     "for tensor \"weights\": chunk 0 of 1 with 8 bytes, of a partition of 16 bytes in 1 chunks");
    push = right;
    push.chunk_count = 2;
    push_is_rejected(push, true, false, "for tensor \"weights\": chunk 0 of 2 with 16 bytes");
    push = right;
    push.dtype = TRIB_INT32;
    push_is_rejected(push, true, false, "for tensor \"weights\": another type or layout than declared");
    push = right;
    push.partition = 1;
    push_is_rejected(push, true, false, "for tensor \"weights\": partition 1 of 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_that_no_tensor_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
