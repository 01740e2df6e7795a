/* test_transport_shm.c - the contract suite over shared memory, in three ways: payloads are presented in the peer's
 * offered memory, are read out of its process, or are copied through the ring where the kernel forbids that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/wire/auth.h"
#include "numa/arena.h"
#include "tests/contract/transport_contract.h"
#include "transports/auto/auto.h"
#include "transports/shm/shm.h"
#include "transports/shm/shm_ring.h"
#include "transports/tcp/tcp.h"

#define SILENCE_NS (20 * INT64_C(1000000000))

/* ---- Memory that is offered ---- */

typedef struct offer {
    trib_arena *arena;
    void *shared;
    const trib_transport_ops *ops; /* by which */
} offer;

static void *offer_by(const trib_transport_ops *ops)
{
    offer *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->ops = ops;
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.is_shared = true;
    assert_int_equal(trib_arena_create_with(&params, &self->arena), TRIB_OK);
    assert_int_equal(ops->context_open(self->arena, &self->shared, NULL), TRIB_OK);
    return self;
}

static void *offer_by_shm(void)
{
    return offer_by(&trib_shm_ops);
}

static void *offer_by_auto(void)
{
    return offer_by(&trib_auto_ops);
}

static void withdraw(void *shared)
{
    offer *self = shared;
    self->ops->context_close(self->shared);
    trib_arena_destroy(self->arena);
    free(self);
}

static void *alloc_offered(void *shared, size_t size)
{
    return trib_arena_alloc(((offer *)shared)->arena, size, 0);
}

static void free_offered(void *shared, void *memory)
{
    trib_arena_free(((offer *)shared)->arena, memory);
}

/* ---- What is presented in place ---- */

static bool is_large(unsigned side, uint32_t size)
{
    (void)side;
    return size > SHM_INLINE_MAX;
}

static bool is_never(unsigned side, uint32_t size)
{
    (void)side;
    (void)size;
    return false;
}

static bool is_large_to_first(unsigned side, uint32_t size)
{
    return side == 0 && size > SHM_INLINE_MAX;
}

/* ---- Instances ---- */

static trib_transport_config config_of(const void *shared)
{
    return (trib_transport_config){.silence_timeout_ns = SILENCE_NS,
                                   .peers = CONTRACT_PEERS,
                                   .context = shared != NULL ? ((const offer *)shared)->shared : NULL};
}

static trib_status open_reading(void *shared, unsigned side, trib_reactor *reactor,
                                const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)side;
    const trib_transport_config config = config_of(shared);
    return trib_shm_ops.open(reactor, &config, upcalls, transport_out);
}

static trib_status open_copying(void *shared, unsigned side, trib_reactor *reactor,
                                const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)side;
    trib_transport_config config = config_of(shared);
    config.copies_only = true;
    return trib_shm_ops.open(reactor, &config, upcalls, transport_out);
}

static trib_status open_auto(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                             trib_transport **transport_out)
{
    (void)side;
    const trib_transport_config config = config_of(shared);
    return trib_auto_ops.open(reactor, &config, upcalls, transport_out);
}

/* One of the two sides offers TCP only. */
static trib_status open_tcp_or_auto(void *shared, unsigned side, trib_reactor *reactor,
                                    const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    const trib_transport_config config = config_of(shared);
    return (side == 0 ? trib_tcp_ops : trib_auto_ops).open(reactor, &config, upcalls, transport_out);
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

/* Only one of the two sides offers its memory. */
static trib_status open_second_offers(void *shared, unsigned side, trib_reactor *reactor,
                                      const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return open_reading(side == 0 ? NULL : shared, side, reactor, upcalls, transport_out);
}

#define HERE .listen_at = "127.0.0.1:0"
#define OFFERED .teardown = withdraw, .alloc = alloc_offered, .release = free_offered

int main(void)
{
    trib_contract_maker makers[] = {
        {.name = "shm", HERE, .open = open_reading, .is_in_place = is_never},
        {.name = "shm between threads", .listen_at = "[::1]:0", .open = open_reading, .threaded = true},
        {.name = "shm with copies", HERE, .open = open_copying, .is_in_place = is_never},
        {.name = "shm with copies between threads", HERE, .open = open_copying, .threaded = true},
        {.name = "auto", HERE, .open = open_auto, .threaded = true, .is_in_place = is_never},
        {.name = "tcp to auto", HERE, .open = open_tcp_or_auto, .threaded = true},
        {.name = "auto to tcp", HERE, .open = open_auto_or_tcp, .threaded = true},
        {.name = "shm one way with copies", HERE, .open = open_mixed, .threaded = true},
        {.name = "shm in place", HERE, OFFERED, .setup = offer_by_shm, .open = open_reading, .is_in_place = is_large},
        {.name = "shm in place between threads",
         HERE,
         OFFERED,
         .setup = offer_by_shm,
         .open = open_reading,
         .threaded = true,
         .is_in_place = is_large},
        {.name = "shm in place one way",
         HERE,
         OFFERED,
         .setup = offer_by_shm,
         .open = open_mixed,
         .threaded = true,
         .is_in_place = is_large_to_first},
        {.name = "shm in place where one offers",
         HERE,
         OFFERED,
         .setup = offer_by_shm,
         .open = open_second_offers,
         .is_in_place = is_large_to_first},
        {.name = "shm offered, with copies",
         HERE,
         OFFERED,
         .setup = offer_by_shm,
         .open = open_copying,
         .is_in_place = is_never},
        {.name = "auto in place",
         HERE,
         OFFERED,
         .setup = offer_by_auto,
         .open = open_auto,
         .threaded = true,
         .is_in_place = is_large},
    };
    int failed = 0;
    for (unsigned i = 0; i < sizeof makers / sizeof makers[0]; i++) {
        failed += trib_contract_run(&makers[i]);
    }
    return failed;
}
