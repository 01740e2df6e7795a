/* test_orphan.c - a worker's partitions wait for another owner where a server's end is no reason to fail them on this
 * worker alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/worker/worker.h"
#include "engine/worker/worker_orphan.h"

enum { WORKERS = 2, SERVER = WORKERS, MEMBERS };

/* A partition of a job with two workers and a server that sums it, and the link to that server. */
typedef struct bed {
    trib_engine *engine;
    trib_roster *roster;
    trib_core core;
    trib_tensor tensor;
    trib_task task;
    trib_link link;
    bool left[MEMBERS];
} bed;

static void bed_open(bed *self, bool shrinks)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    self->roster = trib_roster_create(MEMBERS);
    if (self->engine == NULL || self->roster == NULL) {
        fail_msg("out of memory");
        return; /* not reached; for analysers that do not know fail_msg */
    }
    self->roster->worker_count = WORKERS;
    self->roster->server_count = MEMBERS - WORKERS;
    self->roster->survives = true;
    self->roster->shrinks = shrinks;
    atomic_store(&self->engine->roster, self->roster);
    atomic_store(&self->engine->shrinks, shrinks);
    self->core.engine = self->engine;
    self->core.left_owners = self->left;
    self->tensor.engine = self->engine;
    self->tensor.partition_count = 1;
    self->tensor.is_covered = true;
    self->link = (trib_link){.core = &self->core, .peer = SERVER, .state = TRIB_LINK_READY};
    self->task.tensor = &self->tensor;
    self->task.owner.member = SERVER;
    self->task.link = &self->link;
}

static void bed_close(bed *self)
{
    free(self->roster);
    free(self->engine);
}

static bool awaits(bed *self)
{
    return trib_orphan_awaits_owner(&self->core, &self->task);
}

/* One of its connections has ended, and the link ends with the last one. */
static void partitions_wait_while_a_link_ends(void **state)
{
    (void)state;
    for (uint32_t shrinks = 0; shrinks < 2; shrinks++) {
        bed self;
        bed_open(&self, shrinks != 0);
        assert_false(awaits(&self));
        self.link.state = TRIB_LINK_CLOSING;
        assert_true(awaits(&self)); /* it is lost */
        self.link.bye = true;       /* it has left, which ends the epoch where workers may be lost */
        assert_int_equal(awaits(&self), shrinks != 0);
        self.link.peer = self.task.owner.member = 1; /* a worker has left */
        assert_false(awaits(&self));
        bed_close(&self);
    }
}

static void partitions_wait_for_no_server_that_has_left(void **state)
{
    (void)state;
    bed self;
    bed_open(&self, false);
    self.task.link = NULL;
    assert_true(awaits(&self));
    self.left[SERVER] = true;
    assert_false(awaits(&self));
    self.left[SERVER] = false;
    self.core.ended = true;
    assert_false(awaits(&self));
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partitions_wait_while_a_link_ends),
        cmocka_unit_test(partitions_wait_for_no_server_that_has_left),
    };
    return cmocka_run_group_tests_name("orphan", tests, NULL, NULL);
}
