/* test_link_bytes.c - a link to the own process counts the bytes under way rightly, however many there are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/core/core.h"

enum { FRAMES = 4097, SIZE = 1 << 20 };

static uint64_t received_bytes;
static uint32_t sent_frames;

static int64_t fake_now(trib_reactor *reactor)
{
    (void)reactor;
    return 0;
}

static trib_status take(trib_link *link, const trib_frame *frame, const void *payload, bool in_place, trib_error *error)
{
    (void)link;
    (void)payload;
    (void)in_place;
    (void)error;
    received_bytes += frame->payload_size;
    return TRIB_OK;
}

static void sent(trib_send_record *out, trib_status status)
{
    (void)out;
    assert_int_equal(status, TRIB_OK);
    sent_frames++;
}

/* Credits have no upper limit, so a transport may have more than 4 GiB. */
static void test_more_than_32_bits_under_way(void **state)
{
    (void)state;
    static const trib_reactor_ops ops = {.name = "fake", .now_ns = fake_now};
    static const trib_link_upcalls upcalls = {.received = take};
    static trib_engine engine;
    static trib_core core;
    trib_reactor reactor = {.ops = &ops};
    trib_core_init(&core, &engine, &reactor, &upcalls);
    core.host.epoch = 1;
    trib_link *link = NULL;
    assert_int_equal(trib_link_self(&core.host, 0, &upcalls, &link), TRIB_OK);
    unsigned char *payload = calloc(1, SIZE);
    assert_non_null(payload);
    const trib_frame frame = {.type = TRIB_FRAME_SUM, .payload_size = SIZE, .round = 1, .chunk_count = 1};
    for (uint32_t i = 0; i < FRAMES; i++) {
        assert_int_equal(trib_link_send(link, &frame, payload, sent, NULL), TRIB_OK);
        assert_true(link->in_flight == (i + UINT64_C(1)) * (TRIB_HEADER_SIZE + SIZE));
    }
    link->self_post.run(&reactor, &link->self_post);
    assert_true(received_bytes == FRAMES * (uint64_t)SIZE);
    assert_int_equal(sent_frames, FRAMES);
    assert_true(link->in_flight == 0);
    while (core.host.free_outs != NULL) {
        trib_send_record *out = core.host.free_outs;
        core.host.free_outs = out->next;
        free(out);
    }
    free(link);
    free(payload);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_than_32_bits_under_way),
    };
    return cmocka_run_group_tests_name("links", tests, NULL, NULL);
}
