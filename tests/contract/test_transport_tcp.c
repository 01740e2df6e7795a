/* test_transport_tcp.c - the contract suite on TCP. */
#include "tests/contract/transport_contract.h"
#include "transports/registry.h"

static trib_status open_tcp(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    const trib_transport_ops *ops = trib_transport_by_name("auto");
    return ops->open(reactor, &(trib_transport_config){.silence_timeout_ns = 20 * INT64_C(1000000000)}, upcalls,
                     transport_out);
}

int main(void)
{
    trib_contract_maker maker = {.name = "tcp over IPv4", .listen_at = "127.0.0.1:0", .open = open_tcp};
    int failed = trib_contract_run(&maker);
    maker.name = "tcp over IPv6";
    maker.listen_at = "[::1]:0";
    failed += trib_contract_run(&maker);
    maker.name = "tcp between threads";
    maker.threaded = true;
    return failed + trib_contract_run(&maker);
}
