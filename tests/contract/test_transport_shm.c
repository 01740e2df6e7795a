/*
 * test_transport_shm.c - the contract suite over shared memory: reading payloads out of the peer's memory, and, as where
 * the kernel forbids that, with copies through the ring.
 */
#include "tests/contract/transport_contract.h"
#include "transports/auto.h"
#include "transports/shm.h"
#include "transports/tcp.h"

#define SILENCE_NS (20 * INT64_C(1000000000))

static trib_status open_reading(void *shared, unsigned side, trib_reactor *reactor,
                                const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    return trib_shm_ops.open(reactor,
                             &(trib_transport_config){.silence_timeout_ns = SILENCE_NS, .peers = CONTRACT_PEERS},
                             upcalls, transport_out);
}

static trib_status open_copying(void *shared, unsigned side, trib_reactor *reactor,
                                const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    return trib_shm_ops.open(
        reactor,
        &(trib_transport_config){.silence_timeout_ns = SILENCE_NS, .peers = CONTRACT_PEERS, .copies_only = true},
        upcalls, transport_out);
}

static trib_status open_auto(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                             trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    return trib_auto_ops.open(reactor,
                              &(trib_transport_config){.silence_timeout_ns = SILENCE_NS, .peers = CONTRACT_PEERS},
                              upcalls, transport_out);
}

/* One of the two knows TCP only. */
static trib_status open_tcp_or_auto(void *shared, unsigned side, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)shared;
    return (side == 0 ? trib_tcp_ops : trib_auto_ops)
        .open(reactor, &(trib_transport_config){.silence_timeout_ns = SILENCE_NS, .peers = CONTRACT_PEERS}, upcalls,
              transport_out);
}

static trib_status open_auto_or_tcp(void *shared, unsigned side, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return open_tcp_or_auto(shared, 1 - side, reactor, upcalls, transport_out);
}

/* Only one of the two may read the other. */
static trib_status open_mixed(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                              trib_transport **transport_out)
{
    return (side == 0 ? open_reading : open_copying)(shared, side, reactor, upcalls, transport_out);
}

int main(void)
{
    trib_contract_maker makers[] = {
        {.name = "shm", .listen_at = "127.0.0.1:0", .open = open_reading},
        {.name = "shm between threads", .listen_at = "[::1]:0", .open = open_reading, .threaded = true},
        {.name = "shm with copies", .listen_at = "127.0.0.1:0", .open = open_copying},
        {.name = "shm with copies between threads", .listen_at = "127.0.0.1:0", .open = open_copying, .threaded = true},
        {.name = "auto", .listen_at = "127.0.0.1:0", .open = open_auto, .threaded = true},
        {.name = "tcp to auto", .listen_at = "127.0.0.1:0", .open = open_tcp_or_auto, .threaded = true},
        {.name = "auto to tcp", .listen_at = "127.0.0.1:0", .open = open_auto_or_tcp, .threaded = true},
        {.name = "shm one way with copies", .listen_at = "127.0.0.1:0", .open = open_mixed, .threaded = true},
    };
    int failed = 0;
    for (unsigned i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        failed += trib_contract_run(&makers[i]);
    }
    return failed;
}
