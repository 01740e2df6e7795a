/* test_transport_loopback.c - the contract suite on loopback: both ends on one loop, and on two threads. */
#include "tests/contract/transport_contract.h"
#include "transports/testing/loopback.h"

static void *make_hub(void)
{
    return trib_loopback_hub_create();
}

static void free_hub(void *hub)
{
    trib_loopback_hub_destroy(hub);
}

static trib_status open_loopback(void *hub, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                 trib_transport **transport_out)
{
    (void)side;
    return trib_loopback_open(hub, reactor, upcalls, transport_out);
}

int main(void)
{
    trib_contract_maker maker = {
        .name = "loopback", .listen_at = "loop:", .setup = make_hub, .teardown = free_hub, .open = open_loopback};
    int failed = trib_contract_run(&maker);
    maker.name = "loopback between threads";
    maker.threaded = true;
    return failed + trib_contract_run(&maker);
}
