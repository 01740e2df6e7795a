/* test_raw_codec.c - a hand-written worker that has the token sends encoded chunks that no codec can have made. The
 * server's error names the worker, and the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cluster/roster.h"
#include "engine/server/server_tensor.h"
#include "tests/loop/host.h"
#include "tests/loop/raw_peer.h"

enum { ELEMENTS = 16, DESCRIPTION = 32, BYTES = 4 + ELEMENTS }; /* of int8: the scale, and the elements */

/* The server compares a chunk with the declared tensor first. This test is about the checks behind that one, with a
 * tensor of any type. */
__typeof__(trib_server_check_tensor) __wrap_trib_server_check_tensor;
trib_status __wrap_trib_server_check_tensor(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    (void)link;
    (void)frame;
    (void)error;
    return TRIB_OK;
}

typedef struct forgery {
    trib_frame frame;
    uint32_t at; /* a byte that is wrong, plus one */
    uint32_t bytes;
    const char *words;
} forgery;

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

/* Joins as rank 1 of 2, and connects to rank 0's server. Returns the epoch. */
static uint32_t connect_data(const host *bed, raw_peer *peer, raw_peer *data)
{
    unsigned char *payload = malloc(TRIB_PAYLOAD_MAX);
    trib_frame frame = {.type = TRIB_FRAME_NONE};
    assert_non_null(payload);
    raw_peer_connect(peer, bed->address, HOST_TOKEN, TRIB_PURPOSE_CONTROL, 1);
    raw_peer_join(peer, 1, 2, 0);
    assert_true(raw_peer_receive(peer, &frame, payload));
    assert_int_equal(frame.type, TRIB_FRAME_ROSTER);
    const trib_member_info info = raw_peer_first_member(payload);
    raw_peer_connect(data, info.addresses[0].text, HOST_TOKEN, TRIB_PURPOSE_DATA, 1);
    free(payload);
    return frame.epoch;
}

static void send_forgery(const forgery *what)
{
    host bed;
    raw_peer peer, data;
    trib_error error = {.text = ""};
    host_open(&bed, 2, "");
    trib_frame push = what->frame;
    push.epoch = connect_data(&bed, &peer, &data);
    unsigned char *payload = calloc(1, what->bytes);
    assert_non_null(payload);
    if (what->bytes > DESCRIPTION) {
        payload[DESCRIPTION - 4] = ELEMENTS; /* of the partition */
    }
    if (what->at > 0) {
        payload[what->at - 1] = 0xff;
    }
    push.type = TRIB_FRAME_PUSH;
    push.round = push.chunk_count = 1;
    push.size = ELEMENTS * sizeof(float);
    push.dtype = push.dtype == 0 ? TRIB_FLOAT32 : push.dtype;
    raw_peer_send(&data, push, payload, what->bytes);
    raw_peer_expect_end(&data);
    assert_int_equal(trib_engine_wait_ready(bed.engine, -1, &error), TRIB_PEER_LOST);
    assert_says(error.text, "rank 1 (by hand)");
    assert_says(error.text, what->words);
    free(payload);
    raw_peer_close(&data);
    raw_peer_close(&peer);
    host_close(&bed);
}

static void encoded_chunks_that_cannot_be(void **state)
{
    (void)state;
    static const forgery cases[] = {
        {{.codec = 200}, 0, DESCRIPTION + BYTES, "codec 200 with a description that cannot be"},
        {{.codec = 5}, 0, DESCRIPTION, "which is too short"},
        {{.codec = 5}, 0, 3, "which is too short"},
        {{.codec = 5}, 0, DESCRIPTION + BYTES - 1, "chunk 0 of partition 0"},
        {{.codec = 5}, 0, DESCRIPTION + BYTES + 1, "chunk 0 of partition 0"},
        {{.codec = 5}, DESCRIPTION - 8, DESCRIPTION + BYTES, "a description that cannot be"}, /* flags */
        {{.codec = 5}, DESCRIPTION - 4, DESCRIPTION + BYTES, "a description that cannot be"}, /* identity */
        {{.codec = 255}, DESCRIPTION - 4, DESCRIPTION + BYTES, "codec 255 with a description that cannot be"},
        {{.codec = 7}, 0, DESCRIPTION + BYTES, "that cannot be"}, /* neither k nor a ratio */
        {{.codec = 5, .dtype = TRIB_INT32}, 0, DESCRIPTION + BYTES, "that cannot be"},
        {{.codec = 5, .collective = 1}, 0, DESCRIPTION + BYTES, "which cannot be"},
        {{.codec = 5}, 0, 300000, "which cannot be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        send_forgery(&cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoded_chunks_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
