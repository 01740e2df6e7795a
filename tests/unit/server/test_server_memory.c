/* test_server_memory.c - a server that finds no memory for contributions ends the job after peer_timeout of asking, and
 * of nothing else: not once the contribution that waited has gone with its link, nor while sums go out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/core/core.h"

#define TICK_NS INT64_C(100000000)
#define LIMIT_NS (10 * TICK_NS)

static int64_t time_ns;
static trib_status ended;

static int64_t fake_now(trib_reactor *reactor)
{
    (void)reactor;
    return time_ns;
}

static const trib_reactor_ops fake_reactor = {.name = "fake", .now_ns = fake_now};

void __wrap_trib_job_end(trib_engine *engine, const trib_cause *cause);
void __wrap_trib_job_end(trib_engine *engine, const trib_cause *cause)
{
    (void)engine;
    assert_int_equal(cause->kind, TRIB_CAUSE_SHORTAGE);
    assert_non_null(strstr(cause->detail, "found no memory for contributions"));
    ended = cause->status;
}

typedef struct bed {
    trib_engine *engine;
    trib_reactor reactor;
    trib_core core;
} bed;

static void bed_open(bed *self)
{
    memset(self, 0, sizeof *self);
    self->engine = calloc(1, sizeof *self->engine);
    trib_roster *roster = trib_roster_create(1);
    assert_non_null(self->engine);
    if (roster == NULL) {
        fail_msg("out of memory");
        return; /* not reached; for analysers that do not know fail_msg */
    }
    roster->peer_timeout_ns = LIMIT_NS;
    atomic_store(&self->engine->roster, roster);
    self->reactor.ops = &fake_reactor;
    self->reactor.logger = &self->engine->logger;
    self->core.engine = self->engine;
    self->core.reactor = &self->reactor;
    time_ns = TICK_NS;
    ended = TRIB_OK;
}

static void bed_close(bed *self)
{
    free((void *)(uintptr_t)atomic_load(&self->engine->roster));
    free(self->engine);
}

/* Runs that many ticks. In each of them a link asks for memory in vain, or no link asks. */
static void tick(bed *self, int ticks, bool asks)
{
    for (int i = 0; i < ticks; i++) {
        time_ns += TICK_NS;
        if (asks) {
            trib_server_note_memory(&self->core, TRIB_AGAIN, 4096);
        }
        trib_server_check_memory(&self->core);
    }
}

static void asks_too_long(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    tick(&self, 10, true); /* no tick comes before the first request */
    assert_int_equal(ended, TRIB_OK);
    tick(&self, 1, true);
    assert_int_equal(ended, TRIB_NO_MEMORY);
    bed_close(&self);
}

/* The peer has gone: an idle job has all the memory that it wants. */
static void asks_no_more(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    tick(&self, 9, true);
    tick(&self, 100, false);
    assert_int_equal(ended, TRIB_OK);
    tick(&self, 10, true); /* another contribution: its time begins anew */
    assert_int_equal(ended, TRIB_OK);
    bed_close(&self);
}

static void finds_some(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    tick(&self, 9, true);
    trib_server_note_memory(&self.core, TRIB_OK, 4096);
    tick(&self, 10, true);
    assert_int_equal(ended, TRIB_OK);
    bed_close(&self);
}

static void sums_go_out(void **state)
{
    (void)state;
    bed self;
    bed_open(&self);
    self.core.entries_waiting = 1;
    tick(&self, 100, true);
    assert_int_equal(ended, TRIB_OK);
    self.core.entries_waiting = 0;
    tick(&self, 10, true);
    assert_int_equal(ended, TRIB_NO_MEMORY);
    bed_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asks_too_long),
        cmocka_unit_test(asks_no_more),
        cmocka_unit_test(finds_some),
        cmocka_unit_test(sums_go_out),
    };
    return cmocka_run_group_tests_name("server_memory", tests, NULL, NULL);
}
