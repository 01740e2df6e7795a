/*
 * test_transport_rdma.c - the contract suite on RDMA, with memory that is registered, in a process that forks, and with
 * memory that is not.
 *
 * Where this machine has no RDMA device there is nothing to test: tests/rdma runs this program in a guest that has one,
 * with its addresses in the environment (RDMA_IP, RDMA_IP6).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "numa/arena.h"
#include "tests/contract/transport_contract.h"
#include "transports/rdma.h"

#if TRIB_HAVE_RDMA

#define ALLOCS_PER_FORK 64u

/* The sides share a domain, as the reactors of an engine do. */
typedef struct world {
    trib_arena *arena;
    void *domain;
    atomic_uint allocs;
} world;

static void *make_world(void)
{
    world *self = calloc(1, sizeof *self);
    assert_non_null(self);
    assert_int_equal(trib_arena_create(-1, &self->arena), TRIB_OK);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_rdma_ops.share(self->arena, &self->domain, &error), TRIB_OK);
    return self;
}

static void free_world(void *shared)
{
    world *self = shared;
    trib_rdma_ops.unshare(self->domain);
    trib_arena_destroy(self->arena);
    free(self);
}

/* A child gets its own copy of the memory, and so might the parent, as soon as it writes: then the device would go on
 * with pages that nobody looks at. */
static void fork_over(void *memory, size_t size)
{
    pid_t child = fork();
    assert_true(child >= 0);
    memset(memory, 0xa5, size);
    if (child == 0) {
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void *world_alloc(void *shared, size_t size)
{
    world *self = shared;
    void *memory = trib_arena_alloc(self->arena, size, 0);
    if (atomic_fetch_add(&self->allocs, 1) % ALLOCS_PER_FORK == 0) {
        fork_over(memory, size);
    }
    return memory;
}

static void world_release(void *shared, void *memory)
{
    trib_arena_free(((world *)shared)->arena, memory);
}

static trib_status open_rdma(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                             trib_transport **transport_out)
{
    (void)side;
    const world *self = shared;
    const trib_transport_config config = {.silence_timeout_ns = 20 * INT64_C(1000000000),
                                          .shared = self != NULL ? self->domain : NULL};
    return trib_rdma_ops.open(reactor, &config, upcalls, transport_out);
}

int main(void)
{
    const char *ip = getenv("RDMA_IP");
    const char *ip6 = getenv("RDMA_IP6");
    if (ip == NULL || ip6 == NULL) {
        printf("no RDMA device here: tests/rdma runs this where one is\n");
        return 77;
    }
    char listen_at[80];
    snprintf(listen_at, sizeof listen_at, "[%s]:0", ip6);
    trib_contract_maker maker = {.name = "rdma over IPv6", .listen_at = listen_at, .open = open_rdma};
    int failed = trib_contract_run(&maker);
    snprintf(listen_at, sizeof listen_at, "%s:0", ip);
    maker = (trib_contract_maker){.name = "rdma between threads, registered memory",
                                  .listen_at = listen_at,
                                  .threaded = true,
                                  .setup = make_world,
                                  .teardown = free_world,
                                  .alloc = world_alloc,
                                  .release = world_release,
                                  .open = open_rdma};
    return failed + trib_contract_run(&maker);
}

#else

int main(void)
{
    printf("built without libibverbs and librdmacm\n");
    return 77;
}

#endif
