/* rdma_raw_peer.c - see rdma_raw_peer.h. */
#include "tests/contract/rdma_raw_peer.h"

#if TRIB_HAVE_RDMA

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/contract/contract_bed.h"
#include "transports/rdma/rdma_internal.h"
#include "transports/tcp/tcp_internal.h"

#define RESOLVE_MS 2000
#define OWED_MS 60000u

/* A connection of the stranger's; calls on it wait. */
typedef struct raw_peer {
    struct rdma_cm_id *id;
    struct ibv_mr *mr;
    unsigned char buffer[2 * TRIB_RDMA_BUFFER];
} raw_peer;

/* 0 or an errno. */
static int raw_peer_connect(raw_peer *self, const trib_address *to, const void *greeting, size_t greeting_size)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    assert_int_equal(trib_tcp_address_parse(to, &address, &size), TRIB_OK);
    assert_int_equal(rdma_create_id(NULL, &self->id, NULL, RDMA_PS_TCP), 0);
    assert_int_equal(rdma_resolve_addr(self->id, NULL, (struct sockaddr *)&address, RESOLVE_MS), 0);
    assert_int_equal(rdma_resolve_route(self->id, RESOLVE_MS), 0);
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1}};
    assert_int_equal(rdma_create_qp(self->id, NULL, &attributes), 0);
    self->mr = rdma_reg_msgs(self->id, self->buffer, sizeof self->buffer);
    assert_non_null(self->mr);
    for (unsigned i = 0; i < 32; i++) { /* the received bytes are thrown away */
        assert_int_equal(rdma_post_recv(self->id, NULL, self->buffer + TRIB_RDMA_BUFFER, TRIB_RDMA_BUFFER, self->mr),
                         0);
    }
    struct rdma_conn_param parameters = {
        .private_data = greeting, .private_data_len = (uint8_t)greeting_size, .retry_count = 6, .rnr_retry_count = 6};
    return rdma_connect(self->id, &parameters) == 0 ? 0 : errno;
}

static void raw_peer_end(raw_peer *self)
{
    rdma_dereg_mr(self->mr);
    rdma_destroy_ep(self->id); /* destroys the queues, too; a connected peer gets a disconnect */
}

/* The device's report on the send. It gives up after seven tries, so it must report one or the other. */
static enum ibv_wc_status await_sent(const raw_peer *self)
{
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    for (unsigned ms = 0; ms < OWED_MS; ms++) {
        if (ibv_poll_cq(self->id->send_cq, 1, &wc) == 1) {
            return wc.status;
        }
        usleep(1000);
    }
    fail_msg("%s: %u s for a request", TRIB_RDMA_OWES, OWED_MS / 1000);
    return IBV_WC_GENERAL_ERR;
}

/* ---- Greetings ---- */

static void turns_away_other_greetings(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    verbs_greeting wrong[] = {greeting, greeting, greeting, greeting, greeting};
    wrong[0].magic ^= 1;
    wrong[1].version = htole16(TRIB_RDMA_VERSION + 1);
    wrong[2].credits = 0;
    wrong[3].credits = htole16(TRIB_RDMA_CREDITS + 1);
    wrong[4].requests = htole16(TRIB_RDMA_REQUESTS + 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        raw_peer *other = calloc(1, sizeof *other);
        assert_int_equal(raw_peer_connect(other, &self->address, &wrong[i], sizeof wrong[i]), ECONNREFUSED);
        raw_peer_end(other);
        free(other);
    }
    raw_peer *other = calloc(1, sizeof *other);
    assert_int_equal(raw_peer_connect(other, &self->address, NULL, 0), ECONNREFUSED);
    raw_peer_end(other);
    free(other);
    /* The accepting side reported no connection. */
    assert_false(trib_bed_on_side(self, 1, trib_bed_has_peers, &(uint32_t){1}));
}

/* ---- Messages ---- */

typedef struct nonsense {
    verbs_prefix prefix;
    size_t size;
} nonsense;

/* Fills in the header as the bed's peers do. The header is always valid, so only the prefix can be at fault. */
static void bed_header(raw_peer *self, uint32_t sequence, uint32_t size)
{
    unsigned char *header = self->buffer + TRIB_RDMA_HEADER_AT;
    memset(header, 0, TRIB_HEADER_SIZE);
    memcpy(header, &sequence, 4);
    memcpy(header + 4, &size, 4);
    header[63] = (unsigned char)sequence;
}

static void ends_on_nonsense(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    const nonsense all[] = {
        {{.kind = 0}, sizeof(verbs_prefix)},
        {{.kind = 77}, sizeof(verbs_prefix)},
        {{.kind = KIND_CREDIT}, sizeof(verbs_prefix) - 1},
        {{.kind = KIND_CREDIT, .credits = 1}, sizeof(verbs_prefix)}, /* more than all */
        {{.kind = KIND_GRANT}, sizeof(verbs_prefix)},                /* no message waits for a place */
        {{.kind = KIND_GRANT, .flags = TRIB_RDMA_UNWANTED}, sizeof(verbs_prefix)},
        {{.kind = KIND_MESSAGE}, sizeof(verbs_prefix)}, /* without a header */
        {{.kind = KIND_MESSAGE, .size = 1}, TRIB_RDMA_PAYLOAD_AT},
        {{.kind = KIND_MESSAGE, .size = UINT32_MAX}, TRIB_RDMA_PAYLOAD_AT - 1},
        {{.kind = KIND_MESSAGE, .sequence = 1}, TRIB_RDMA_PAYLOAD_AT},
        {{.kind = KIND_REQUEST, .size = 0}, TRIB_RDMA_PAYLOAD_AT},
        {{.kind = KIND_REQUEST, .size = 44}, TRIB_RDMA_PAYLOAD_AT}, /* of a size that is sent at once */
        {{.kind = KIND_REQUEST, .size = TRIB_RDMA_SMALL}, TRIB_RDMA_PAYLOAD_AT},
        {{.kind = KIND_REQUEST, .size = TRIB_PAYLOAD_MAX + 1}, TRIB_RDMA_PAYLOAD_AT},
        {{.kind = KIND_REQUEST, .size = 4096}, TRIB_RDMA_PAYLOAD_AT + 1},
        {{.kind = KIND_FIN}, sizeof(verbs_prefix) + 1},
    };
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        raw_peer *other = calloc(1, sizeof *other);
        assert_int_equal(raw_peer_connect(other, &self->address, &greeting, sizeof greeting), 0);
        verbs_prefix prefix = all[i].prefix;
        prefix.credits = htole16(prefix.credits);
        prefix.sequence = htole32(prefix.sequence);
        prefix.size = htole32(prefix.size);
        memcpy(other->buffer, &prefix, sizeof prefix);
        bed_header(other, 0, all[i].prefix.size);
        assert_int_equal(rdma_post_send(other->id, NULL, other->buffer, all[i].size, other->mr, 0), 0);
        count++;
        trib_bed_until(self, 1, trib_bed_all_closed, &count);
        assert_int_equal(trib_bed_theirs(self, i)->closed_status, TRIB_PROTOCOL);
        assert_int_equal(trib_bed_theirs(self, i)->received, 0);
        raw_peer_end(other);
        free(other);
    }
}

static bool stays_paused(side *where, void *argument)
{
    (void)argument;
    where->accepted_habits = (habits){.again_every = 1, .stays_paused = true};
    return true;
}

/* The receiver has no room and grants nothing. The peer sends one request more than may wait. */
static void ends_on_too_many_requests(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    trib_bed_on_side(self, 1, stays_paused, NULL);
    raw_peer *other = calloc(1, sizeof *other);
    assert_int_equal(raw_peer_connect(other, &self->address, &greeting, sizeof greeting), 0);
    for (uint32_t i = 0; i <= TRIB_RDMA_REQUESTS; i++) {
        const uint32_t size = 4096;
        const verbs_prefix prefix = {.kind = KIND_REQUEST, .sequence = htole32(i), .size = htole32(size)};
        memcpy(other->buffer, &prefix, sizeof prefix);
        bed_header(other, i, size);
        assert_int_equal(rdma_post_send(other->id, NULL, other->buffer, TRIB_RDMA_PAYLOAD_AT, other->mr, 0), 0);
        const enum ibv_wc_status status = await_sent(other);
        /* After the last one the connection may have ended before its device has acknowledged that. */
        assert_true(status == IBV_WC_SUCCESS || (i == TRIB_RDMA_REQUESTS && status == IBV_WC_RETRY_EXC_ERR));
        if (i + 1 == TRIB_RDMA_REQUESTS) {
            trib_bed_until(self, 1, trib_bed_has_peers, &(uint32_t){1});
            assert_false(trib_bed_on_side(self, 1, trib_bed_all_closed, &(uint32_t){1}));
        }
    }
    trib_bed_until(self, 1, trib_bed_all_closed, &(uint32_t){1});
    assert_int_equal(trib_bed_theirs(self, 0)->closed_status, TRIB_PROTOCOL);
    assert_int_equal(trib_bed_theirs(self, 0)->asked, 0);
    raw_peer_end(other);
    free(other);
}

/* The device stops a write with a key that the peer was never given. The transport stops one whose key happens to be
 * good. */
static void ends_on_writes_without_a_grant(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    const world_of_rdma *world = self->shared;
    uint32_t local_key = 0, good_key = 0;
    assert_true(trib_rdma_device_find(&world->domain->devices[0], self->block, 512, &local_key, &good_key));
    for (uint32_t i = 0; i < 2; i++) {
        bool is_good = i == 0;
        raw_peer *other = calloc(1, sizeof *other);
        assert_int_equal(raw_peer_connect(other, &self->address, &greeting, sizeof greeting), 0);
        /* A write that fails breaks the queue pair, and the last word of connecting must not be lost in that. */
        trib_bed_until(self, 1, trib_bed_has_peers, &(uint32_t){i + 1});
        memcpy(other->buffer, self->block, 512);
        struct ibv_sge piece = {.addr = (uintptr_t)other->buffer, .length = 512, .lkey = other->mr->lkey};
        struct ibv_send_wr *bad = NULL;
        struct ibv_send_wr request = {
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .sg_list = &piece,
            .num_sge = 1,
            .wr.rdma = {.remote_addr = (uintptr_t)self->block, .rkey = is_good ? good_key : ~good_key}};
        assert_int_equal(ibv_post_send(other->id->qp, &request, &bad), 0);
        const enum ibv_wc_status status = await_sent(other);
        /* The connection that ends for a good key may end before its device has acknowledged the write. */
        assert_true(status == (is_good ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR) ||
                    (is_good && status == IBV_WC_RETRY_EXC_ERR));
        if (!is_good) { /* the peer's queue pair is broken, and a disconnect tells our side */
            assert_int_equal(rdma_disconnect(other->id), 0);
        }
        trib_bed_until(self, 1, trib_bed_all_closed, &(uint32_t){i + 1});
        assert_int_equal(trib_bed_theirs(self, i)->closed_status, is_good ? TRIB_PROTOCOL : TRIB_PEER_LOST);
        raw_peer_end(other);
        free(other);
    }
}

/* The peer's device has forgotten the queue pair and sends no disconnect. No send of ours is acknowledged, and our
 * device gives up in about the time of its retries. */
static void notices_that_nobody_answers(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    raw_peer *other = calloc(1, sizeof *other);
    assert_int_equal(raw_peer_connect(other, &self->address, &greeting, sizeof greeting), 0);
    trib_bed_until(self, 1, trib_bed_has_peers, &(uint32_t){1});
    rdma_destroy_qp(other->id);
    trib_bed_on_side(self, 1, trib_bed_send_one, NULL);
    trib_bed_until(self, 1, trib_bed_all_closed, &(uint32_t){1});
    assert_int_equal(trib_bed_theirs(self, 0)->closed_status, TRIB_PEER_LOST);
    assert_string_equal(trib_bed_theirs(self, 0)->reason, "connection lost: transport retry counter exceeded");
    raw_peer_end(other);
    free(other);
}

static bool one_closed(side *where, void *argument)
{
    (void)argument;
    return where->closed_count == 1;
}

/* One of two connections has ended before, though its peer has not answered: `closed` is not reported again. */
static void is_told_once_when_the_device_goes(void **state)
{
    bed *self = *state;
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    raw_peer *other = calloc(1, sizeof *other);
    assert_int_equal(raw_peer_connect(other, &self->address, &greeting, sizeof greeting), 0);
    trib_bed_until(self, 1, trib_bed_has_peers, &(uint32_t){1});
    peer *mine = trib_bed_start(self, &(habits){0}, &(habits){0});
    trib_bed_until(self, 1, trib_bed_has_peers, &(uint32_t){2});
    while (!mine->connected) {
        trib_bed_turn(self, false);
    }
    memcpy(other->buffer, &(verbs_prefix){.kind = 77}, sizeof(verbs_prefix));
    assert_int_equal(rdma_post_send(other->id, NULL, other->buffer, sizeof(verbs_prefix), other->mr, 0), 0);
    trib_bed_until(self, 1, one_closed, NULL);
    assert_int_equal(trib_bed_theirs(self, 0)->closed_status, TRIB_PROTOCOL);
    /* The removal waits until this process has let go of the device. */
    char command[80];
    snprintf(command, sizeof command, "rdma link delete %s &", getenv("RDMA_DEV"));
    assert_int_equal(system(command), 0);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
    raw_peer_end(other);
    free(other);
}

void trib_rdma_say_owed(const trib_transport *transport)
{
    const verbs_transport *self = (const verbs_transport *)(const void *)transport;
    for (const verbs_conn *conn = transport->ops == &trib_rdma_ops ? self->conns : NULL; conn != NULL;
         conn = conn->next) {
        fprintf(stderr, "# connection in state %d%s%s: %u begun, %u settled\n", conn->state,
                conn->broken ? ", broken" : "", conn->disconnected ? ", disconnected" : "", conn->out_tail,
                conn->out_head);
        struct ibv_wc wc;
        if (!conn->broken && trib_rdma_is_writing(conn) && ibv_poll_cq(conn->cq, 1, &wc) == 0) {
            fprintf(stderr, "# %s for a payload\n", TRIB_RDMA_OWES);
        }
    }
}

int trib_rdma_raw_peer_sees_the_device_go(const trib_contract_maker *maker)
{
    const struct CMUnitTest tests[] = {{.name = "is_told_once_when_the_device_goes",
                                        .test_func = is_told_once_when_the_device_goes,
                                        .setup_func = trib_bed_setup,
                                        .teardown_func = trib_bed_teardown,
                                        .initial_state = (void *)(uintptr_t)maker}};
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

int trib_rdma_raw_peer_run(const trib_contract_maker *maker)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_away_other_greetings),  cmocka_unit_test(ends_on_nonsense),
        cmocka_unit_test(ends_on_too_many_requests),   cmocka_unit_test(ends_on_writes_without_a_grant),
        cmocka_unit_test(notices_that_nobody_answers),
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i].setup_func = trib_bed_setup;
        tests[i].teardown_func = trib_bed_teardown;
        tests[i].initial_state = (void *)(uintptr_t)maker;
    }
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

#endif
