/*
 * test_transport_rdma.c - the contract suite on RDMA, with memory that is registered, in a process that forks, and with
 * memory that is not.
 *
 * Where this machine has no RDMA device there is nothing to test: tests/rdma runs this program in a guest that has one,
 * with its addresses and its network interface in the environment (RDMA_IP, RDMA_IP6, RDMA_LINK). An argument: only the
 * tests of which it is the name, * and ? being wild; or "device_removed", which leaves no device.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include <dlfcn.h>
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
#include "tests/contract/contract_bed.h"
#include "tests/contract/rdma_auto.h"
#include "tests/contract/rdma_raw_peer.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#define ALLOCS_PER_FORK 64u

static void *make_world(void)
{
    world_of_rdma *self = calloc(1, sizeof *self);
    assert_non_null(self);
    assert_int_equal(trib_arena_create(-1, &self->arena), TRIB_OK);
    trib_error error = {.status = TRIB_OK};
    void *domain = NULL;
    assert_int_equal(trib_rdma_ops.context_open(self->arena, &domain, &error), TRIB_OK);
    self->domain = domain;
    return self;
}

static void free_world(void *shared)
{
    world_of_rdma *self = shared;
    trib_rdma_ops.context_close(self->domain);
    trib_arena_destroy(self->arena);
    free(self);
}

/* A child of a fork gets a copy of the memory, and a write of the parent might move the parent to a copy, too. The
 * device would then go on with pages that no process uses. */
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
    world_of_rdma *self = shared;
    void *memory = trib_arena_alloc(self->arena, size, 0);
    if (atomic_fetch_add(&self->allocs, 1) % ALLOCS_PER_FORK == 0) {
        fork_over(memory, size);
    }
    return memory;
}

static void world_release(void *shared, void *memory)
{
    trib_arena_free(((world_of_rdma *)shared)->arena, memory);
}

static trib_status open_rdma(void *shared, unsigned index, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                             trib_transport **transport_out)
{
    (void)index;
    const world_of_rdma *self = shared;
    const trib_transport_config config = {.silence_timeout_ns = 20 * INT64_C(1000000000),
                                          .peers = CONTRACT_PEERS,
                                          .context = self != NULL ? self->domain : NULL};
    return trib_rdma_ops.open(reactor, &config, upcalls, transport_out);
}

/* Where both ends are registered nothing is copied but headers and small payloads; where they are not, everything is,
 * once on each side. */
static void counts_what_it_copies(void **state)
{
    bed *self = *state;
    const uint32_t count = 20;
    const uint32_t size = 100000;
    peer *mine = trib_bed_start(self, &(habits){.to_send = count, .size_fixed = size}, &(habits){0});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){count});
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
    assert_true(trib_bed_theirs(self, 0)->ahead_max > 1); /* several are on their way at once */
    for (unsigned i = 0; i < 2; i++) {
        trib_transport_stats stats;
        self->sides[i].transport->ops->stats(self->sides[i].transport, &stats);
        assert_int_equal(stats.bytes_copied, self->maker->alloc != NULL ? 0 : (uint64_t)count * size);
    }
}

/* Only the receiver's memory is registered. The sender copies through a few pieces of its own, and requests as many
 * places as it may while granted payloads wait for a piece. */
static void waits_for_memory_to_copy_through(void **state)
{
    bed *self = *state;
    const uint32_t count = 40;
    unsigned char *registered = self->block;
    self->block = malloc(TRIB_PAYLOAD_MAX + OFFSETS);
    assert_non_null(self->block);
    memcpy(self->block, registered, TRIB_PAYLOAD_MAX + OFFSETS);
    peer *mine = trib_bed_start(self, &(habits){.to_send = count, .size_fixed = 256 * 1024}, &(habits){0});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){count});
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->sent_ok, count);
    assert_int_equal(trib_bed_theirs(self, 0)->ahead_max, TRIB_AHEAD_MAX);
    free(self->block);
    self->block = registered;
}

static trib_status open_with_short_timeout(void *shared, unsigned index, trib_reactor *reactor,
                                           const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)index;
    const trib_transport_config config = {.silence_timeout_ns = INT64_C(1000000000),
                                          .context = ((world_of_rdma *)shared)->domain};
    return trib_rdma_ops.open(reactor, &config, upcalls, transport_out);
}

static void set_link(const char *how)
{
    char command[80];
    snprintf(command, sizeof command, "ip link set %s %s", getenv("RDMA_LINK"), how);
    assert_int_equal(system(command), 0);
}

/* The device reports a lost network at the first send. */
static void notices_a_lost_network(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){.to_send = 1}, &(habits){0});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){1});
    while (mine->sent_ok == 0) {
        trib_bed_turn(self, false);
    }
    set_link("down");
    trib_bed_send_one(&self->sides[0], NULL);
    trib_bed_until(self, 0, trib_bed_all_closed, &(uint32_t){1});
    set_link("up");
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
    assert_memory_equal(mine->reason, "connection lost: ", 17);
    trib_bed_on_side(self, 1, trib_bed_close_all, NULL);
    trib_bed_wait_closed(self, 1);
}

/* The program's own rdma_destroy_id comes before the library's. It can make the kernel keep an id that is being
 * destroyed. */
static atomic_bool kernel_keeps;
static atomic_uint kept;

int rdma_destroy_id(struct rdma_cm_id *id)
{
    int (*destroy)(struct rdma_cm_id *) = NULL;
    *(void **)(void *)&destroy = dlsym(RTLD_NEXT, "rdma_destroy_id");
    if (atomic_load(&kernel_keeps)) {
        atomic_fetch_add(&kept, 1);
        while (atomic_load(&kernel_keeps)) {
            usleep(1000);
        }
    }
    return destroy(id);
}

/* The first id that is destroyed never comes back. Connections are made and end as usual, and so does the transport. */
static void outlives_a_kernel_that_keeps_ids(void **state)
{
    bed *self = *state;
    atomic_store(&kernel_keeps, true);
    for (uint32_t count = 1; count <= 3; count++) {
        peer *mine = trib_bed_start(self, &(habits){.to_send = 1}, &(habits){0});
        trib_bed_until(self, 1, trib_bed_has_peers, &count);
        trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){1});
        trib_bed_close_peer(mine, true);
        trib_bed_wait_closed(self, count);
    }
}

static int close_with_ids_kept(void **state)
{
    int failed = trib_bed_teardown(state);
    atomic_store(&kernel_keeps, false);
    return failed != 0 || atomic_load(&kept) == 0;
}

/* The program's own ibv_create_cq makes a device that reports the end of sends late: only after the device has reported
 * something that was received later. */
#define LATE_QUEUES 8u
#define LATE_HELD 512

typedef struct late_queue {
    struct ibv_cq *cq;
    struct ibv_wc held[LATE_HELD];
    int first, end;
    bool has_come; /* a receive, which is behind the completions that are held */
} late_queue;

static atomic_bool tells_late;
static int (*poll_device)(struct ibv_cq *cq, int count, struct ibv_wc *completions);
static late_queue late_queues[LATE_QUEUES];
static atomic_uint late_count;

static int poll_late(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
    late_queue *self = late_queues;
    while (self < late_queues + LATE_QUEUES && self->cq != cq) {
        self++;
    }
    const int found = poll_device(cq, count, completions);
    if (self == late_queues + LATE_QUEUES) {
        return found;
    }
    int told = 0;
    for (int i = 0; i < found; i++) {
        const bool is_send = completions[i].status == IBV_WC_SUCCESS && (completions[i].opcode & IBV_WC_RECV) == 0;
        self->has_come = !is_send;
        if (is_send && self->end < LATE_HELD) {
            self->held[self->end++] = completions[i];
        } else {
            completions[told++] = completions[i];
        }
    }
    while (found == 0 && self->has_come && told < count && self->first < self->end) {
        completions[told++] = self->held[self->first++];
    }
    if (self->first == self->end) {
        self->first = self->end = 0;
    }
    return told;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector)
{
    struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) = NULL;
    *(void **)(void *)&create = dlsym(RTLD_NEXT, "ibv_create_cq");
    struct ibv_cq *cq = create(context, cqe, cq_context, channel, comp_vector);
    if (cq != NULL && atomic_load(&tells_late)) {
        const unsigned index = atomic_fetch_add(&late_count, 1);
        assert_true(index < LATE_QUEUES);
        poll_device = context->ops.poll_cq != poll_late ? context->ops.poll_cq : poll_device;
        late_queues[index].cq = cq;
        context->ops.poll_cq = poll_late;
    }
    return cq;
}

/* The peer has received everything, and its end arrives before the device's report on the last send. */
static void reports_what_is_told_late(void **state)
{
    bed *self = *state;
    const uint32_t count = WINDOW;
    atomic_store(&tells_late, true);
    peer *mine = trib_bed_start(self, &(habits){0}, &(habits){.to_send = count, .size_fixed = 100000});
    trib_bed_until(self, 0, trib_bed_has_received, &(uint32_t){count});
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(trib_bed_theirs(self, 0)->sent_ok, count);
    assert_int_equal(atomic_load(&late_count), 2);
    atomic_store(&tells_late, false);
}

static int run_with(const trib_contract_maker *maker, const char *name, void (*function)(void **state),
                    int (*teardown)(void **state))
{
    const struct CMUnitTest tests[] = {{.name = name,
                                        .test_func = function,
                                        .setup_func = trib_bed_setup,
                                        .teardown_func = teardown,
                                        .initial_state = (void *)(uintptr_t)maker}};
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

static int run_one(const trib_contract_maker *maker, const char *name, void (*function)(void **state))
{
    return run_with(maker, name, function, trib_bed_teardown);
}

int main(int count, char **arguments)
{
    const char *ip = getenv("RDMA_IP");
    const char *ip6 = getenv("RDMA_IP6");
    if (ip == NULL || ip6 == NULL || getenv("RDMA_LINK") == NULL) {
        printf("no RDMA device here: tests/rdma runs this where one is\n");
        return 77;
    }
    char listen_at[80];
    snprintf(listen_at, sizeof listen_at, "%s:0", ip);
    const trib_contract_maker registered = {.name = "rdma between threads, registered memory",
                                            .listen_at = listen_at,
                                            .threaded = true,
                                            .connecting_max = RDMA_CONNECTING_MAX,
                                            .setup = make_world,
                                            .teardown = free_world,
                                            .alloc = world_alloc,
                                            .release = world_release,
                                            .open = open_rdma,
                                            .explain = trib_rdma_say_owed};
    if (count > 1 && strcmp(arguments[1], "device_removed") == 0) { /* nothing else can be run after it */
        return trib_rdma_raw_peer_sees_the_device_go(&registered);
    }
    if (count > 1) {
        cmocka_set_test_filter(arguments[1]);
    }
    snprintf(listen_at, sizeof listen_at, "[%s]:0", ip6);
    trib_contract_maker maker = {.name = "rdma over IPv6",
                                 .listen_at = listen_at,
                                 .connecting_max = RDMA_CONNECTING_MAX,
                                 .open = open_rdma,
                                 .explain = trib_rdma_say_owed};
    int failed = trib_contract_run(&maker) + run_one(&maker, "counts_what_it_copies", counts_what_it_copies);
    snprintf(listen_at, sizeof listen_at, "%s:0", ip);
    maker = registered;
    failed += trib_contract_run(&maker) + run_one(&maker, "counts_what_it_copies", counts_what_it_copies) +
              run_one(&maker, "waits_for_memory_to_copy_through", waits_for_memory_to_copy_through) +
              run_one(&maker, "reports_what_is_told_late", reports_what_is_told_late);
    maker.name = "rdma and strangers";
    maker.open = open_with_short_timeout;
    failed += trib_rdma_raw_peer_run(&maker);
    failed += trib_rdma_auto_run(ip);
    failed +=
        run_with(&maker, "outlives_a_kernel_that_keeps_ids", outlives_a_kernel_that_keeps_ids, close_with_ids_kept);
    return failed + run_one(&maker, "notices_a_lost_network", notices_a_lost_network); /* last: addresses go with it */
}

#else

int main(void)
{
    printf("built without libibverbs and librdmacm\n");
    return 77;
}

#endif
