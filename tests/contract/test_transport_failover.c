/*
 * test_transport_failover.c - the contract suite on sessions over several rails: over TCP and loopback, with nothing
 * wrong, and with rails that fail all the time, which nobody above may notice. Then what is said and what ends when
 * rails fail for good.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/wire/auth.h"
#include "tests/contract/contract_bed.h"
#include "transports/testing/fault.h"
#include "transports/testing/loopback.h"
#include "transports/failover/failover.h"
#include "transports/tcp/tcp.h"

#define SILENCE_NS (2 * INT64_C(1000000000))

/* As the bed's messages say it. */
static uint32_t payload_size(const unsigned char header[TRIB_HEADER_SIZE])
{
    uint32_t size = 0;
    memcpy(&size, header + 4, sizeof size);
    return size;
}

static const unsigned char key[TRIB_KEY_SIZE] = {7};
static const trib_transport_config config = {.silence_timeout_ns = SILENCE_NS,
                                             .peers = CONTRACT_PEERS,
                                             .payload_size = payload_size,
                                             .seal = trib_auth_seal,
                                             .seal_key = key};

static trib_status open_over_tcp(void *shared, unsigned index, trib_reactor *reactor,
                                 const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)shared;
    (void)index;
    return trib_failover_open(&trib_failover_tcp_ops, &trib_tcp_ops, reactor, &config, upcalls, transport_out);
}

/* ---- Rails that fail ---- */

static trib_status open_tcp(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **inner_out)
{
    return trib_tcp_ops.open(reactor, context, upcalls, inner_out);
}

/* One message in 250 breaks the rail that it goes by, half of them in the middle of the payload; headers are answered
 * AGAIN, and some messages come late. */
static trib_status open_faulty(trib_reactor *reactor, const trib_transport_config *inner_config,
                               const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    const trib_fault_config faults = {.seed = 11 + reactor->index,
                                      .reset = 0.002,
                                      .truncate = 0.002,
                                      .delay = 0.01,
                                      .delay_ns_max = 1000000,
                                      .again = 0.05,
                                      .again_max = 2};
    trib_transport_config mine = *inner_config;
    return trib_fault_open(&faults, open_tcp, &mine, reactor, upcalls, transport_out);
}

static void faulty_close(trib_transport *transport)
{
    transport->ops->close(transport);
}

static trib_status faulty_listen(trib_transport *transport, const trib_address *at, void *user,
                                 trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    return transport->ops->listen(transport, at, user, listener_out, bound_out, error);
}

static trib_status faulty_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    return transport->ops->connect(transport, to, user, conn_out);
}

static void faulty_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    transport->ops->stats(transport, stats_out);
}

static const trib_transport_ops faulty_ops = {.name = "faulty",
                                              .open = open_faulty,
                                              .close = faulty_close,
                                              .listen = faulty_listen,
                                              .connect = faulty_connect,
                                              .stats = faulty_stats};

static trib_status open_over_faults(void *shared, unsigned index, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)shared;
    (void)index;
    return trib_failover_open(&trib_failover_tcp_ops, &faulty_ops, reactor, &config, upcalls, transport_out);
}

int main(void)
{
    trib_contract_maker maker = {
        .name = "rails over tcp", .listen_at = "127.0.0.1:0,127.0.0.2:0", .open = open_over_tcp};
    int failed = trib_contract_run(&maker);
    maker.name = "rails over tcp between threads";
    maker.threaded = true;
    failed += trib_contract_run(&maker);
    maker.name = "rails that fail";
    maker.listen_at = "127.0.0.1:0,127.0.0.2:0,127.0.0.3:0,127.0.0.4:0"; /* not all in one round */
    maker.open = open_over_faults;
    failed += trib_contract_run(&maker);
    maker.name = "rails that fail, on one loop";
    maker.threaded = false;
    return failed + trib_contract_run(&maker);
}
