/* test_server_sum.c - which aggregator a frame is for, and which ranks its contributors are: with workers each for
 * itself, with machines that sum first, and with the shards of device tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"
#include "stages/kernels/kernels.h"

#define WORKERS 6u
#define ME 4u
#define CHUNK_BYTES 4096u

typedef struct bed {
    trib_engine *engine;
    trib_roster *roster;
    trib_reactor reactor;
    trib_core core;
    trib_link link;
} bed;

static void bed_open(bed *self, uint32_t local_size)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    self->roster = trib_roster_create(WORKERS);
    if (self->engine == NULL || self->roster == NULL) {
        fail_msg("out of memory");
        return; /* not reached; for readers that do not know fail_msg */
    }
    self->roster->worker_count = WORKERS;
    self->roster->local_size = local_size;
    self->roster->chunk_bytes = CHUNK_BYTES;
    for (uint32_t i = 0; i < WORKERS; i++) {
        self->roster->members[i] = (trib_member_info){.sums = true, .reactors = 1};
    }
    atomic_store(&self->engine->roster, self->roster);
    self->engine->member_id = ME;
    self->engine->core_count = 1;
    self->engine->env.kernels = trib_kernels_best();
    self->core.engine = self->engine;
    self->core.reactor = &self->reactor;
    self->core.host.engine = self->engine;
    self->core.host.stats = &self->core.stats;
    self->link.core = &self->core;
    assert_int_equal(trib_server_sums_open(&self->core), TRIB_OK);
}

static void bed_close(bed *self)
{
    trib_server_sums_close(&self->core);
    assert_null(self->core.sums);
    free(self->roster);
    free(self->engine);
}

static trib_status find(bed *self, uint32_t peer, const trib_frame *frame, trib_server_sum **sum_out)
{
    trib_error error = {.text = ""};
    self->link.peer = peer;
    return trib_server_find_sum(&self->link, frame, sum_out, &error);
}

/* A frame of that peer goes to the aggregator of that level, and the aggregator's contributor stands for the peer
 * again. */
static void expect(bed *self, uint32_t peer, const trib_frame *frame, trib_sum_level level, uint32_t contributor)
{
    trib_server_sum *sum = NULL;
    assert_int_equal(find(self, peer, frame, &sum), TRIB_OK);
    assert_non_null(sum->aggregator);
    assert_int_equal(sum->level, level);
    const trib_contribution what = trib_server_contribution(sum, &self->link, frame);
    assert_int_equal(what.contributor, contributor);
    assert_in_range(what.contributor, 0, sum->count - 1);
    assert_int_equal(trib_server_sum_rank(sum, what.contributor, &what), peer);
}

static void workers_for_themselves(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    const trib_frame push = {.type = TRIB_FRAME_PUSH, .dtype = TRIB_FLOAT32},
                     partial = {.type = TRIB_FRAME_PUSH, .collective = TRIB_COLLECTIVE_PARTIAL};
    for (uint32_t peer = 0; peer < WORKERS; peer++) {
        expect(&self, peer, &push, TRIB_SUM_RANK, peer);
    }
    trib_server_sum *sum = NULL;
    assert_int_equal(find(&self, 0, &partial, &sum), TRIB_PROTOCOL); /* there are no machines */
    assert_false(trib_server_sums_owe(&self.core));
    bed_close(&self);
}

/* Ranks 0 to 2 are one machine, ranks 3 to 5 the other. This process is on the second one. */
static void machines_sum_first(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 3);
    const trib_frame push = {.type = TRIB_FRAME_PUSH, .dtype = TRIB_FLOAT32, .aux = trib_relay_owner(1, 0)},
                     partial = {.type = TRIB_FRAME_PUSH, .collective = TRIB_COLLECTIVE_PARTIAL};
    trib_server_sum *sum = NULL;
    for (uint32_t peer = 0; peer < WORKERS; peer++) {
        if (peer >= 3) {
            expect(&self, peer, &push, TRIB_SUM_RANK, peer - 3);
        } else {
            assert_int_equal(find(&self, peer, &push, &sum), TRIB_PROTOCOL);
        }
        if (peer % 3 == ME % 3) { /* the relays of the partitions that this member owns */
            expect(&self, peer, &partial, TRIB_SUM_HOST, peer / 3);
        } else {
            assert_int_equal(find(&self, peer, &partial, &sum), TRIB_PROTOCOL);
        }
    }
    bed_close(&self);
}

/* The first frame tells how many local ranks machines have; each local rank's shards have an aggregator of their
 * own. */
static void shards_of_devices(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    trib_frame push = {.type = TRIB_FRAME_PUSH, .collective = TRIB_COLLECTIVE_DEVICE_ALL_REDUCE};
    push.root = trib_device_root(2, 0);
    trib_server_sum *sums[WORKERS] = {NULL}, *sum = NULL;
    for (uint32_t peer = 0; peer < WORKERS; peer++) {
        expect(&self, peer, &push, TRIB_SUM_SHARD, peer / 2);
        assert_int_equal(find(&self, peer, &push, &sums[peer]), TRIB_OK);
        assert_ptr_equal(sums[peer], sums[peer % 2]);
        assert_int_equal(self.core.sum_count, TRIB_SUM_SHARD + 2);
    }
    assert_ptr_not_equal(sums[0]->aggregator, sums[1]->aggregator);
    const uint32_t wrong[] = {0, 1, 3, 4, 65};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        push.root = trib_device_root(wrong[i], 0);
        assert_int_equal(find(&self, 0, &push, &sum), TRIB_PROTOCOL);
    }
    bed_close(&self);
}

/* A withdrawal opens a round as a PUSH does, so its fields are checked alike, before its text is read. */
static void malformed_withdrawals_are_rejected(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    self.link.peer = 1;
    const trib_frame good = {.type = TRIB_FRAME_WITHDRAW, .round = 1, .chunk_count = 1, .dtype = TRIB_FLOAT32};
    trib_frame frames[4] = {good, good, good, good};
    frames[0].root = WORKERS;
    frames[1].dtype = TRIB_DTYPE_COUNT;
    frames[2].reduce = TRIB_REDUCE_COUNT;
    frames[3].collective = TRIB_COLLECTIVE_DEVICE_ALONE;
    trib_recv_target target = {.buffer = NULL};
    trib_error error = {.text = ""};
    assert_int_equal(trib_server_check_operation(&self.link, &good, &error), TRIB_OK);
    assert_int_equal(trib_server_header(&self.link, &good, &target, &error), TRIB_PROTOCOL);
    assert_non_null(strstr(error.text, "for tensor 0, which nobody has declared"));
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        assert_int_equal(trib_server_header(&self.link, &frames[i], &target, &error), TRIB_PROTOCOL);
        assert_non_null(strstr(error.text, "malformed WITHDRAW"));
    }
    bed_close(&self);
}

/* ---- A late withdrawal ---- */

static void ignore_wake(trib_reactor *reactor)
{
    (void)reactor;
}

static bool is_here(const trib_reactor *reactor)
{
    (void)reactor;
    return true;
}

static void note_served(trib_engine *engine, bool lacks_codec)
{
    (void)engine;
    assert_false(lacks_codec);
}

static void serve(bed *self, uint32_t id)
{
    const trib_reactor_ops ops = {.wake = ignore_wake};
    unsigned char payload[64];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_u32(&writer, CHUNK_BYTES);
    trib_put_text(&writer, "new");
    trib_put_text(&writer, "");
    trib_put_u32(&writer, 0);
    trib_put_u64(&writer, 0);
    trib_put_u64(&writer, 1);
    assert_false(writer.overflow);
    const trib_frame frame = {.type = TRIB_FRAME_SERVE,
                              .tensor = id,
                              .size = CHUNK_BYTES,
                              .dtype = TRIB_FLOAT32,
                              .payload_size = (uint32_t)writer.size};
    trib_error error = {.text = ""};
    self->engine->env.on_thread = is_here;
    self->engine->cores = &self->core;
    self->core.reactor->ops = &ops;
    self->core.reactor->owner = &self->core;
    assert_int_equal(trib_server_take_serve(self->engine, &frame, payload, note_served, &error), TRIB_OK);
    (void)trib_reactor_run_posts(self->core.reactor);
    assert_false(trib_reactor_has_posts(self->core.reactor));
    self->core.reactor->ops = NULL;
}

/* The withdrawal of a worker that has left is about a tensor that has ended. Before its text arrives, a new tensor gets
 * the number. What was late at its header stays so. */
static void a_withdrawal_whose_number_is_given_again(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, 0);
    self.link.peer = 1;
    assert_int_equal(trib_departed_open(&self.engine->departed, WORKERS), TRIB_OK);
    trib_departed_add(&self.engine->departed, 1, 0, 1);
    const trib_frame late = {.type = TRIB_FRAME_WITHDRAW, .round = 1, .chunk_count = 1, .dtype = TRIB_FLOAT32};
    trib_recv_target target = {.buffer = NULL};
    trib_error error = {.text = ""};
    assert_int_equal(trib_server_header(&self.link, &late, &target, &error), TRIB_OK);
    assert_null(self.link.recv_claim.owner);
    serve(&self, 0);
    assert_false(trib_server_is_late(&self.link, &late));
    assert_int_equal(trib_server_received(&self.link, &late, NULL, false, &error), TRIB_OK);
    trib_server_forget_tensors(&self.core);
    trib_departed_close(&self.engine->departed);
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_for_themselves),
        cmocka_unit_test(machines_sum_first),
        cmocka_unit_test(shards_of_devices),
        cmocka_unit_test(malformed_withdrawals_are_rejected),
        cmocka_unit_test(a_withdrawal_whose_number_is_given_again),
    };
    return cmocka_run_group_tests_name("server_sum", tests, NULL, NULL);
}
