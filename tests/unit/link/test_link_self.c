/* test_link_self.c - chunks that a worker pushes to the server of its own process stay in place until they are
 * summed. They are copied when their task fails, and nothing reads them after that. The link and the summation are
 * real, the reactors are simulated. */
#include "tests/unit/aggregate/summation_bed.h"

#include "engine/core/core.h"

enum { CHUNKS = 3 };

static uint32_t copies, sent_chunks;
static trib_kernels counting;
static trib_engine engine;
static trib_core core;
static trib_reactor turns;
static trib_link *link_to_self;
static unsigned char chunks[CHUNKS][CHUNK_BYTES]; /* the link of rank 0 to its own server */

static int64_t no_time(trib_reactor *reactor)
{
    (void)reactor;
    return 0;
}

static const trib_reactor_ops turn_ops = {.name = "by hand", .now_ns = no_time};

static void *counted_copy(void *restrict dst, const void *restrict src, size_t size)
{
    copies++;
    return memcpy(dst, src, size);
}

static trib_contribution contribution(uint32_t rank, uint32_t chunk)
{
    trib_contribution what = make(1, rank, TRIB_FLOAT16, TRIB_SUM);
    what.chunk = chunk;
    what.chunk_count = CHUNKS;
    return what;
}

static trib_status receive(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                           trib_error *error)
{
    assert_true(in_place);
    const trib_contribution what = contribution(0, frame->chunk);
    const trib_lender lender = trib_conn_lender(&link->core->host.leases.conn);
    return trib_summation_arrived(the.summation, &what, &(trib_arrived){.payload = payload, .lender = &lender}, error);
}

static const trib_link_upcalls upcalls = {.received = receive};

static int setup(void **state)
{
    (void)state;
    trib_summation_config config = bed_config(2, TRIB_ORDER_RANK);
    counting = *trib_kernels_best();
    counting.copy = counted_copy;
    config.kernels = &counting;
    open_configured(&config);
    core = (trib_core){.joined = false};
    turns = (trib_reactor){.ops = &turn_ops};
    trib_core_init(&core, &engine, &turns, &upcalls);
    core.host.epoch = 1;
    assert_int_equal(trib_link_self(&core.host, 0, &upcalls, &link_to_self), TRIB_OK);
    copies = sent_chunks = 0;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        fill(chunks[i], TRIB_FLOAT16, 0);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_bed();
    trib_self_leases_close(&core.host.leases);
    while (core.host.free_outs != NULL) {
        trib_send_record *out = core.host.free_outs;
        core.host.free_outs = out->next;
        free(out);
    }
    free(link_to_self);
    return 0;
}

static void sent(trib_send_record *out, trib_status status)
{
    (void)out;
    assert_int_equal(status, TRIB_OK);
    sent_chunks++;
}

static void turn(void)
{
    link_to_self->self_post.run(&turns, &link_to_self->self_post);
}

/* Rank 0 pushes a chunk, which its link hands over in its next turn. */
static void push(uint32_t chunk, trib_self_lease **held)
{
    const trib_frame frame = {
        .type = TRIB_FRAME_PUSH, .payload_size = CHUNK_BYTES, .round = 1, .chunk = chunk, .chunk_count = CHUNKS};
    assert_int_equal(trib_link_send_held(link_to_self, &frame, chunks[chunk], sent, NULL, held), TRIB_OK);
}

/* Rank 1 contributes to the chunk from elsewhere: both get the sum with rank 0's bytes. */
static void complete(uint32_t chunk)
{
    unsigned char bytes[CHUNK_BYTES];
    const trib_contribution what = contribution(1, chunk);
    trib_error error;
    void *buffer = NULL;
    fill(bytes, TRIB_FLOAT16, 1);
    assert_int_equal(trib_summation_recv_target(the.summation, &what, &buffer, &error), TRIB_OK);
    memcpy(buffer, bytes, CHUNK_BYTES);
    assert_int_equal(
        trib_summation_arrived(the.summation, &what, &(trib_arrived){.buffer = buffer, .payload = buffer}, &error),
        TRIB_OK);
    assert_int_equal(the.event_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(the.events[i].status, TRIB_OK);
        check_sum(&the.events[i], TRIB_FLOAT16, TRIB_SUM, 2);
    }
    the.event_count = 0;
}

static void write_over(uint32_t chunk)
{
    memset(chunks[chunk], 0x5a, CHUNK_BYTES);
}

static void stays_until_it_is_summed(void **state)
{
    (void)state;
    trib_self_lease *held = NULL;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        push(i, &held);
    }
    turn();
    assert_int_equal(core.host.leases.count, CHUNKS);
    assert_int_equal(sent_chunks, CHUNKS); /* the task goes on in the meantime */
    for (uint32_t i = CHUNKS; i-- > 0;) {
        complete(i);
        assert_int_equal(core.host.leases.count, i);
    }
    assert_int_equal(copies, 0);
}

/* There are two tasks, and one of them is withdrawn. */
static void is_copied_when_its_task_fails(void **state)
{
    (void)state;
    trib_self_lease *held = NULL, *others = NULL;
    push(0, &held);
    push(1, &others);
    push(2, &held);
    turn();
    trib_self_leases_recall(&held);
    assert_null(held);
    assert_non_null(others);
    assert_int_equal(core.host.leases.count, 1);
    assert_int_equal(copies, 2);
    write_over(0);
    write_over(2);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        complete(i);
    }
    assert_null(others);
    assert_int_equal(copies, 2);
}

static void is_copied_without_a_list(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        push(i, NULL);
    }
    turn();
    for (uint32_t i = 0; i < CHUNKS; i++) {
        write_over(i);
        complete(i);
    }
    assert_int_equal(copies, CHUNKS);
}

/* The server has no other work. A second chunk that arrives while the first one is leased is copied, too. */
static void is_copied_if_it_is_alone(void **state)
{
    (void)state;
    trib_self_lease *held = NULL;
    push(0, &held);
    turn();
    assert_null(held);
    assert_int_equal(copies, 1);
    complete(0);
    push(1, &held);
    push(2, NULL);
    turn();
    assert_int_equal(core.host.leases.count, 1);
    assert_int_equal(copies, 2);
    complete(1);
    complete(2);
}

/* The chunk's partner was there before. */
static void is_summed_at_once(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_self_lease *held = NULL;
    fill(bytes, TRIB_FLOAT16, 1);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        const trib_contribution what = contribution(1, i);
        trib_error error;
        assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){.payload = bytes}, &error),
                         TRIB_OK);
        push(i, &held);
        turn();
        assert_null(held);
        check_sum(&the.events[1], TRIB_FLOAT16, TRIB_SUM, 2);
        the.event_count = 0;
    }
    assert_int_equal(copies, CHUNKS); /* of rank 1's chunks */
}

static void ends_when_the_round_is_refused(void **state)
{
    (void)state;
    trib_self_lease *held = NULL;
    push(0, &held);
    push(1, &held);
    turn();
    const trib_contribution what = contribution(1, 0);
    assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_CANCELLED, "not any more"), TRIB_OK);
    assert_null(held);
    assert_int_equal(copies, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stays_until_it_is_summed, setup, teardown),
        cmocka_unit_test_setup_teardown(is_copied_when_its_task_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(is_copied_without_a_list, setup, teardown),
        cmocka_unit_test_setup_teardown(is_copied_if_it_is_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(is_summed_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_when_the_round_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("chunks of one's own", tests, NULL, NULL);
}
