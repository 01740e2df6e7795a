/* test_keeper.c - when the sums of a partition that has a keeper go out, and whether they say that it has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/server/keeper.h"

enum { WORKERS = 3, SERVER = WORKERS, PARTITION = 4, KEEPER = 1, OTHER = 2, TENSOR = 7 };

typedef struct bed {
    trib_engine *engine;
    trib_roster *roster;
    trib_core *core;
    trib_server_sum sum;
    trib_link link; /* from the keeper */
    trib_sum_entry entry;
} bed;

static uint32_t sent; /* entries that went out after they had waited */

__typeof__(trib_server_send_sum) __wrap_trib_server_send_sum;
void __wrap_trib_server_send_sum(trib_sum_entry *entry)
{
    (void)entry;
    sent++;
}

static void bed_open(bed *self)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    self->core = calloc(1, sizeof *self->core);
    self->roster = trib_roster_create(WORKERS + 1);
    if (self->engine == NULL || self->core == NULL || self->roster == NULL) {
        fail_msg("out of memory");
        return; /* not reached; for analysers that do not know fail_msg */
    }
    self->roster->worker_count = WORKERS;
    self->roster->server_count = 1;
    self->roster->survives = true;
    atomic_store(&self->engine->roster, self->roster);
    self->engine->member_id = SERVER;
    self->core->engine = self->core->host.engine = self->engine;
    self->core->host.stats = &self->core->stats;
    self->sum = (trib_server_sum){.core = self->core, .level = TRIB_SUM_RANK};
    self->link = (trib_link){.core = self->core, .peer = KEEPER};
    sent = 0;
}

static void bed_close(bed *self)
{
    trib_keepers_close(self->core);
    free(self->core);
    free(self->roster);
    free(self->engine);
}

static trib_frame frame_of(trib_frame_type type, uint32_t round)
{
    return (trib_frame){.type = type,
                        .tensor = TENSOR,
                        .partition = PARTITION,
                        .round = round,
                        .collective = TRIB_COLLECTIVE_ALL_REDUCE,
                        .aux = TRIB_PUSH_KEEPS};
}

static void keeper_pushes(bed *self, uint32_t round)
{
    const trib_frame frame = frame_of(TRIB_FRAME_PUSH, round);
    trib_keeper_pushes(&self->sum, &self->link, &frame);
}

static void keeper_has(const bed *self, uint32_t round)
{
    trib_error error;
    const trib_frame frame = frame_of(TRIB_FRAME_KEPT, round);
    assert_int_equal(trib_keeper_has(&self->link, &frame, &error), TRIB_OK);
}

/* True if that rank's sum of the round has to wait. */
static bool waits(bed *self, uint32_t rank, uint32_t round)
{
    self->entry = (trib_sum_entry){
        .what = {.tensor = TENSOR, .partition = PARTITION, .round = round}, .sum = &self->sum, .rank = rank};
    return trib_keeper_awaits(self->core, &self->entry);
}

/* The keeper's own sum does not wait. The others' do, until the keeper has that round's. */
static void sums_wait_for_the_keeper(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    assert_false(waits(&self, OTHER, 1));
    keeper_pushes(&self, 1);
    assert_false(waits(&self, KEEPER, 1));
    assert_true(waits(&self, OTHER, 1));
    assert_int_equal(sent, 0);
    keeper_has(&self, 1);
    assert_int_equal(sent, 1);
    assert_true(self.entry.is_kept);
    assert_false(waits(&self, OTHER, 1));
    bed_close(&self);
}

/* The keeper's word about an earlier round, on another connection, is overtaken by its next contribution. */
static void another_round_does_not_count(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    keeper_pushes(&self, 1);
    keeper_pushes(&self, 2);
    assert_false(waits(&self, OTHER, 1));
    assert_true(waits(&self, OTHER, 2));
    keeper_has(&self, 1);
    assert_int_equal(sent, 0);
    keeper_pushes(&self, 2);
    assert_int_equal(sent, 0);
    keeper_has(&self, 2);
    assert_int_equal(sent, 1);
    assert_true(self.entry.is_kept);
    bed_close(&self);
}

/* A sum that goes out sooner, because the keeper takes too long or has come to the next round, does not say that the
 * keeper has it. */
static void no_wait_is_for_ever(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    keeper_pushes(&self, 1);
    assert_true(waits(&self, OTHER, 1));
    trib_keepers_check(self.core);
    assert_int_equal(sent, 0);
    trib_keepers_check(self.core);
    assert_int_equal(sent, 1);
    assert_false(self.entry.is_kept);
    keeper_pushes(&self, 2);
    assert_true(waits(&self, OTHER, 2));
    keeper_pushes(&self, 3);
    assert_int_equal(sent, 2);
    assert_false(self.entry.is_kept);
    assert_true(waits(&self, OTHER, 3));
    trib_keepers_release(self.core);
    assert_int_equal(sent, 3);
    assert_false(self.entry.is_kept);
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_wait_for_the_keeper),
        cmocka_unit_test(another_round_does_not_count),
        cmocka_unit_test(no_wait_is_for_ever),
    };
    return cmocka_run_group_tests_name("keepers", tests, NULL, NULL);
}
