/*
 * rdma_auto.c - see rdma_auto.h.
 *
 * Both sides are in one process, where auto would choose shared memory. They do not find each other that way, because
 * one listens on all addresses and the other looks for it under one of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "numa/arena.h"
#include "tests/contract/contract_bed.h"
#include "tests/contract/rdma_auto.h"
#include "transports/auto/auto.h"
#include "transports/rdma/rdma.h"
#include "transports/tcp/tcp.h"

#if TRIB_HAVE_RDMA

typedef struct world_of_auto {
    trib_arena *arena;
    void *shared;
} world_of_auto;

static void *make_world(void)
{
    world_of_auto *self = calloc(1, sizeof *self);
    assert_non_null(self);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_arena_create(-1, &self->arena), TRIB_OK);
    assert_int_equal(trib_auto_ops.context_open(self->arena, &self->shared, &error), TRIB_OK);
    assert_non_null(self->shared);
    return self;
}

static void free_world(void *shared)
{
    world_of_auto *self = shared;
    trib_auto_ops.context_close(self->shared);
    trib_arena_destroy(self->arena);
    free(self);
}

static void *world_alloc(void *shared, size_t size)
{
    return trib_arena_alloc(((world_of_auto *)shared)->arena, size, 0);
}

static void world_release(void *shared, void *memory)
{
    trib_arena_free(((world_of_auto *)shared)->arena, memory);
}

static trib_status open_auto(void *shared, unsigned index, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                             trib_transport **transport_out)
{
    (void)index;
    const trib_transport_config config = {.silence_timeout_ns = 20 * INT64_C(1000000000),
                                          .peers = CONTRACT_PEERS,
                                          .context = ((world_of_auto *)shared)->shared};
    return trib_auto_ops.open(reactor, &config, upcalls, transport_out);
}

/* One side has TCP alone. */
static trib_status open_one_tcp(void *shared, unsigned index, unsigned plain, trib_reactor *reactor,
                                const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    const trib_transport_config config = {.context = NULL};
    return index == plain ? trib_tcp_ops.open(reactor, &config, upcalls, transport_out)
                          : open_auto(shared, index, reactor, upcalls, transport_out);
}

static trib_status open_auto_to_tcp(void *shared, unsigned index, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return open_one_tcp(shared, index, 1, reactor, upcalls, transport_out);
}

static trib_status open_tcp_to_auto(void *shared, unsigned index, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return open_one_tcp(shared, index, 0, reactor, upcalls, transport_out);
}

static uint64_t copied(const bed *self)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < 2; i++) {
        trib_transport_stats stats;
        self->sides[i].transport->ops->stats(self->sides[i].transport, &stats);
        sum += stats.bytes_copied;
    }
    return sum;
}

static void exchange(bed *self)
{
    const uint32_t count = 20;
    peer *mine = trib_bed_start(self, &(habits){.to_send = count, .size_fixed = 100000}, &(habits){0});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){count});
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->connect_status, TRIB_OK);
}

static void moves_without_a_copy(void **state)
{
    bed *self = *state;
    assert_non_null(strstr(self->address.text, "+rdma"));
    exchange(self);
    assert_int_equal(copied(self), 0);
}

static void falls_back_to_tcp(void **state)
{
    bed *self = *state;
    assert_null(strchr(self->address.text, '+'));
    const size_t length = strlen(self->address.text);
    snprintf(self->address.text + length, sizeof self->address.text - length, "+rdma");
    exchange(self);
    assert_null(strstr(self->sides[0].peers[0]->reason, "RDMA"));
}

static void tcp_ignores_the_offer(void **state)
{
    bed *self = *state;
    assert_non_null(strstr(self->address.text, "+rdma"));
    exchange(self);
}

static int run_one(const trib_contract_maker *maker, const char *name, void (*function)(void **state))
{
    const struct CMUnitTest tests[] = {{.name = name,
                                        .test_func = function,
                                        .setup_func = trib_bed_setup,
                                        .teardown_func = trib_bed_teardown,
                                        .initial_state = (void *)(uintptr_t)maker}};
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

int trib_rdma_auto_run(const char *ip)
{
    trib_contract_maker maker = {.name = "auto, over RDMA",
                                 .listen_at = "0.0.0.0:0",
                                 .reach_at = ip,
                                 .connecting_max = RDMA_CONNECTING_MAX,
                                 .setup = make_world,
                                 .teardown = free_world,
                                 .alloc = world_alloc,
                                 .release = world_release,
                                 .open = open_auto};
    int failed = trib_contract_run(&maker) + run_one(&maker, "moves_without_a_copy", moves_without_a_copy);
    maker.name = "auto, where RDMA was promised";
    maker.open = open_auto_to_tcp;
    failed += run_one(&maker, "falls_back_to_tcp", falls_back_to_tcp);
    maker.name = "auto, met by TCP";
    maker.open = open_tcp_to_auto;
    return failed + run_one(&maker, "tcp_ignores_the_offer", tcp_ignores_the_offer);
}

#else

int trib_rdma_auto_run(const char *ip)
{
    (void)ip;
    return 0;
}

#endif
