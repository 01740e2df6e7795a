/* test_transport_fault.c - the contract suite through the fault-injecting wrapper, with the faults that lose nothing,
 * and one test for each fault that loses something. */
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/reactor/reactor_ev.h"
#include "tests/contract/transport_contract.h"
#include "transports/testing/fault.h"
#include "transports/testing/loopback.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

static trib_status open_tcp(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **inner_out)
{
    (void)context;
    return trib_tcp_ops.open(reactor, &(trib_transport_config){0}, upcalls, inner_out);
}

/* TCP that notes what it is told of the connection over which a message goes, and of one that is closed. */
static trib_transport_ops noting_ops;
static trib_conn noted, noted_at_close;

static void send_noting(trib_conn *conn, trib_send *send)
{
    noted = *conn;
    trib_tcp_ops.send(conn, send);
}

static void close_noting(trib_conn *conn, bool flush)
{
    noted_at_close = *conn;
    trib_tcp_ops.conn_close(conn, flush);
}

static trib_status open_noting(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                               trib_transport **inner_out)
{
    const trib_status status = open_tcp(context, reactor, upcalls, inner_out);
    noting_ops = trib_tcp_ops;
    noting_ops.send = send_noting;
    noting_ops.conn_close = close_noting;
    if (status == TRIB_OK) {
        (*inner_out)->ops = &noting_ops;
    }
    return status;
}

static trib_status open_shm(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **inner_out)
{
    (void)context;
    return trib_shm_ops.open(reactor, &(trib_transport_config){0}, upcalls, inner_out);
}

static trib_status open_loopback(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                 trib_transport **inner_out)
{
    return trib_loopback_open(context, reactor, upcalls, inner_out);
}

static const trib_fault_config lossless = {.seed = 7,
                                           .delay = 0.01,
                                           .delay_ns_max = 1000000,
                                           .stall = 0.001,
                                           .stall_ns = 2000000,
                                           .again = 0.1,
                                           .again_max = 3};

static trib_status open_over_tcp(void *shared, unsigned side, trib_reactor *reactor,
                                 const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    trib_fault_config config = lossless;
    config.seed += side;
    return trib_fault_open(&config, open_tcp, shared, reactor, upcalls, transport_out);
}

static trib_status open_over_shm(void *shared, unsigned side, trib_reactor *reactor,
                                 const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    trib_fault_config config = lossless;
    config.seed += side;
    return trib_fault_open(&config, open_shm, shared, reactor, upcalls, transport_out);
}

static trib_status open_over_loopback(void *shared, unsigned side, trib_reactor *reactor,
                                      const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    trib_fault_config config = lossless;
    config.seed += side;
    return trib_fault_open(&config, open_loopback, shared, reactor, upcalls, transport_out);
}

static void *make_hub(void)
{
    return trib_loopback_hub_create();
}

static void free_hub(void *hub)
{
    trib_loopback_hub_destroy(hub);
}

/* ---- Faults that lose something: one sender, one receiver, one message ---- */

#define PAYLOAD_SIZE 4096u

typedef struct world {
    struct ev_loop *loop;
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_conn *connecting, *accepted;
    bool is_marked; /* the connection is urgent, proved and patient */
    unsigned char payload[PAYLOAD_SIZE], target[PAYLOAD_SIZE];
    trib_send send;
    unsigned closed, received;
    unsigned header_bits, payload_bits; /* that arrived changed */
    trib_status sent_status, sender_status, receiver_status;
    char sender_reason[256], receiver_reason[256];
} world;

static unsigned changed_bits(const unsigned char *a, const unsigned char *b, size_t size)
{
    unsigned bits = 0;
    for (size_t i = 0; i < size; i++) {
        bits += (unsigned)__builtin_popcount((unsigned)(a[i] ^ b[i]));
    }
    return bits;
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    world *self = listener->user;
    conn->user = self;
    conn->urgent = conn->proved = conn->patient = self->is_marked;
    self->accepted = conn;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    world *self = conn->user;
    assert_int_equal(status, TRIB_OK);
    conn->urgent = conn->proved = conn->patient = self->is_marked;
    conn->transport->ops->send(conn, &self->send);
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    world *self = conn->user;
    self->header_bits = changed_bits(header, self->send.header, TRIB_HEADER_SIZE);
    target->buffer = self->target;
    target->payload_size = PAYLOAD_SIZE;
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)header;
    world *self = conn->user;
    self->received++;
    self->payload_bits = changed_bits(payload, self->payload, payload_size);
    conn->transport->ops->conn_close(conn, false);
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    world *self = conn->user;
    assert_ptr_equal(send, &self->send);
    self->sent_status = status;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    world *self = conn->user;
    self->closed++;
    bool sender = conn == self->connecting;
    *(sender ? &self->sender_status : &self->receiver_status) = status;
    snprintf(sender ? self->sender_reason : self->receiver_reason, sizeof self->sender_reason, "%s", reason);
}

static const trib_transport_upcalls world_upcalls = {
    .accepted = on_accepted,
    .connected = on_connected,
    .header = on_header,
    .received = on_received,
    .sent = on_sent,
    .closed = on_closed,
};

/* Sends one message through the faults and runs until both ends are closed. */
static trib_fault_counts live_over(world *self, const trib_fault_config *config, trib_fault_opener opener,
                                   bool is_marked)
{
    *self = (world){.is_marked = is_marked};
    self->logger.level = TRIB_LOG_WARN;
    memset(self->payload, 0x5a, sizeof self->payload);
    self->send.payload = self->payload;
    self->send.payload_size = PAYLOAD_SIZE;
    self->sent_status = TRIB_PENDING;
    self->loop = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    assert_int_equal(trib_reactor_ev_create(0, &self->logger, self->loop, &self->reactor), TRIB_OK);
    assert_int_equal(trib_fault_open(config, opener, NULL, self->reactor, &world_upcalls, &self->transport), TRIB_OK);
    const trib_transport_ops *ops = self->transport->ops;
    trib_listener *listener = NULL;
    trib_address at;
    assert_int_equal(ops->listen(self->transport, &(trib_address){.text = "127.0.0.1:0"}, self, &listener, &at, NULL),
                     TRIB_OK);
    assert_int_equal(ops->connect(self->transport, &at, self, &self->connecting), TRIB_OK);
    alarm(60);
    while (self->closed < 2) {
        ev_run(self->loop, EVRUN_ONCE);
    }
    alarm(0);
    trib_fault_counts counts;
    trib_fault_get_counts(self->transport, &counts);
    ops->listener_close(listener);
    ops->close(self->transport);
    trib_reactor_ev_destroy(self->reactor);
    ev_loop_destroy(self->loop);
    return counts;
}

static trib_fault_counts live(world *self, const trib_fault_config *config)
{
    return live_over(self, config, open_tcp, false);
}

static void passes_on_what_the_user_says(void **state)
{
    (void)state;
    world self;
    for (int marked = 0; marked < 2; marked++) {
        (void)live_over(&self, &(trib_fault_config){.seed = 1}, open_noting, marked != 0);
        assert_int_equal(self.received, 1);
        assert_int_equal(noted.urgent, marked);
        assert_int_equal(noted.proved, marked);
        assert_int_equal(noted.patient, marked);
        assert_int_equal(noted_at_close.urgent, marked);
        assert_int_equal(noted_at_close.proved, marked);
        assert_int_equal(noted_at_close.patient, marked);
    }
}

static void injects_nothing_unasked(void **state)
{
    (void)state;
    world self;
    trib_fault_counts counts = live(&self, &(trib_fault_config){.seed = 1});
    assert_int_equal(counts.resets + counts.truncations + counts.delays + counts.stalls + counts.header_flips, 0);
    assert_int_equal(self.received, 1);
    assert_int_equal(self.header_bits + self.payload_bits, 0);
    assert_int_equal(self.sent_status, TRIB_OK);
}

static void resets(void **state)
{
    (void)state;
    world self;
    assert_int_equal(live(&self, &(trib_fault_config){.seed = 1, .reset = 1.0}).resets, 1);
    assert_int_equal(self.received, 0);
    assert_int_equal(self.sent_status, TRIB_PEER_LOST);
    assert_int_equal(self.sender_status, TRIB_PEER_LOST);
    assert_string_equal(self.sender_reason, "injected reset");
    assert_int_equal(self.receiver_status, TRIB_PEER_LOST);
}

static void truncates(void **state)
{
    (void)state;
    world self;
    assert_int_equal(live(&self, &(trib_fault_config){.seed = 1, .truncate = 1.0}).truncations, 1);
    assert_int_equal(self.received, 0);
    assert_int_equal(self.sent_status, TRIB_PEER_LOST);
    assert_int_equal(self.receiver_status, TRIB_PEER_LOST);
    assert_string_equal(self.receiver_reason, "connection ended inside a message");
}

static void flips_bits(void **state)
{
    (void)state;
    world self;
    assert_int_equal(live(&self, &(trib_fault_config){.seed = 1, .header_flip = 1.0}).header_flips, 1);
    assert_int_equal(self.received, 1);
    assert_int_equal(self.header_bits, 1);
    assert_int_equal(self.payload_bits, 0);
    assert_int_equal(live(&self, &(trib_fault_config){.seed = 1, .payload_flip = 1.0}).payload_flips, 1);
    assert_int_equal(self.header_bits, 0);
    assert_int_equal(self.payload_bits, 1);
}

static void waits_and_storms(void **state)
{
    (void)state;
    world self;
    trib_fault_counts counts = live(&self, &(trib_fault_config){.seed = 3,
                                                                .delay = 1.0,
                                                                .delay_ns_max = 1000,
                                                                .stall = 1.0,
                                                                .stall_ns = 1000,
                                                                .again = 1.0,
                                                                .again_max = 9});
    assert_int_equal(counts.delays, 1);
    assert_int_equal(counts.stalls, 1);
    assert_true(counts.agains >= 1 && counts.agains <= 9);
    assert_int_equal(self.received, 1);
}

static void refuses_bad_settings(void **state)
{
    (void)state;
    trib_transport *transport = NULL;
    trib_fault_config bad[] = {{.reset = -0.1}, {.again = 1.1}, {.delay = __builtin_nan("")}, {.stall_ns = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(trib_fault_open(&bad[i], open_tcp, NULL, NULL, &world_upcalls, &transport), TRIB_INVALID);
    }
}

int main(void)
{
    trib_contract_maker maker = {.name = "faults over tcp", .listen_at = "127.0.0.1:0", .open = open_over_tcp};
    int failed = trib_contract_run(&maker);
    maker = (trib_contract_maker){.name = "faults over loopback",
                                  .listen_at = "loop:faulty",
                                  .setup = make_hub,
                                  .teardown = free_hub,
                                  .open = open_over_loopback};
    failed += trib_contract_run(&maker);
    maker = (trib_contract_maker){
        .name = "faults over shm", .listen_at = "127.0.0.1:0", .threaded = true, .open = open_over_shm};
    failed += trib_contract_run(&maker);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_on_what_the_user_says),
        cmocka_unit_test(injects_nothing_unasked),
        cmocka_unit_test(resets),
        cmocka_unit_test(truncates),
        cmocka_unit_test(flips_bits),
        cmocka_unit_test(waits_and_storms),
        cmocka_unit_test(refuses_bad_settings),
    };
    return failed + cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
