/* test_transport_sim.c - the contract suite on the simulated network: two nodes, one node, and in bad weather. */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "tests/contract/transport_contract.h"
#include "transports/sim/sim.h"

typedef struct world {
    trib_sim *sim;
    trib_sim_net *net;
    trib_sim_machine *machine;
    trib_sim_process *processes[2];
    trib_sim_node *nodes[2];
} world;

static world *make_world(bool one_node, const trib_sim_weather *weather, uint32_t ahead, int64_t sent_late_ns)
{
    world *self = calloc(1, sizeof *self);
    trib_sim_net_config config = trib_sim_net_config_default();
    config.ahead = ahead;
    config.sent_late_ns = sent_late_ns;
    trib_sim_costs costs = trib_sim_costs_default();
    trib_sim_link link = {.egress_bits = 1000000000, .ingress_bits = 1000000000, .latency_ns = 20000};
    self->sim = trib_sim_create(7);
    self->net = trib_sim_net_create(self->sim, &config);
    self->machine = trib_sim_machine_create(self->sim, 2);
    for (unsigned i = 0; i < 2; i++) {
        self->processes[i] = trib_sim_process_create(self->machine, &costs, i);
        self->nodes[i] =
            one_node && i == 1 ? self->nodes[0] : trib_sim_node_create(self->net, i == 0 ? "one" : "two", &link);
        trib_sim_node_host(self->nodes[i], self->processes[i]);
    }
    if (weather != NULL) {
        trib_sim_net_weather(self->net, weather);
    }
    return self;
}

static void *two_nodes(void)
{
    return make_world(false, NULL, 0, 0);
}

static void *one_node(void)
{
    return make_world(true, NULL, 0, 0);
}

static void *bad_weather(void)
{
    return make_world(false, &(trib_sim_weather){.shred_one_in = 3, .delay_one_in = 5, .delay_ns = 3000000}, 0, 0);
}

static void *asking_ahead(void)
{
    return make_world(false, &(trib_sim_weather){.shred_one_in = 3}, TRIB_AHEAD_MAX - 1, 0);
}

static void *reporting_late(void)
{
    return make_world(false, &(trib_sim_weather){.shred_one_in = 3}, 0, 5000000);
}

static void free_world(void *shared)
{
    world *self = shared;
    for (unsigned i = 0; i < 2; i++) {
        trib_sim_process_free(self->processes[i]);
    }
    trib_sim_net_free(self->net);
    trib_sim_machine_free(self->machine);
    trib_sim_free(self->sim);
    free(self);
}

static trib_status open_sim(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    trib_transport_config config = {.silence_timeout_ns = 0};
    return trib_sim_transport_ops.open(reactor, &config, upcalls, transport_out);
}

static trib_reactor *make_reactor(void *shared, unsigned side, trib_logger *logger)
{
    const world *self = shared;
    return trib_sim_reactor_create(self->processes[side], side, logger);
}

static void turn(void *shared)
{
    const world *self = shared;
    /* No event is left in the simulated world, so a test that still waits would wait for ever. */
    trib_assert(trib_sim_step(self->sim) || trib_sim_next(self->sim) == INT64_MAX);
}

int main(void)
{
    trib_contract_maker maker = {.name = "simulated network",
                                 .listen_at = "two:0",
                                 .setup = two_nodes,
                                 .teardown = free_world,
                                 .open = open_sim,
                                 .reactor_create = make_reactor,
                                 .on_thread = trib_sim_reactor_runs,
                                 .reactor_free = trib_sim_reactor_free,
                                 .turn = turn};
    int failed = trib_contract_run(&maker);
    maker.name = "simulated network, bad weather";
    maker.setup = bad_weather;
    failed += trib_contract_run(&maker);
    maker.name = "simulated network, asking ahead";
    maker.setup = asking_ahead;
    failed += trib_contract_run(&maker);
    maker.name = "simulated network, reporting late";
    maker.setup = reporting_late;
    failed += trib_contract_run(&maker);
    maker.name = "simulated network, one node";
    maker.listen_at = "one:0";
    maker.setup = one_node;
    return failed + trib_contract_run(&maker);
}
