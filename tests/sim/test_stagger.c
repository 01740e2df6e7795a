/*
 * test_stagger.c - posts that come late to a reactor's turn (trib_sim_process_stagger): they run in the next turn, in
 * the order in which they were posted, after what has arrived meanwhile and before what the reactor posts to itself.
 */
#include "tests/sim/sim_bed.h"

enum { POSTS = 8, TIMES = 100, HELD_NS = 5000 };

typedef struct bed {
    trib_sim *sim;
    trib_sim_machine *machine;
    trib_sim_process *process;
    trib_reactor *reactor;
    trib_logger logger;
    trib_sim_work work;
    trib_post posts[POSTS], own;
    uint32_t ran;                   /* of the posts */
    uint32_t own_after, work_after; /* so many of them had run before the reactor's own one, and before the work */
    int64_t at_ns[POSTS];
} bed;

static bed *at;

static void run_own(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    (void)post;
    at->own_after = at->ran;
}

static void run_post(trib_reactor *reactor, trib_post *post)
{
    assert_ptr_equal(post, &at->posts[at->ran]);
    at->at_ns[at->ran++] = trib_sim_now(at->sim);
    if (at->ran == 1) {
        trib_reactor_post(reactor, &at->own);
    }
}

static void run_work(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    (void)work;
    at->work_after = at->ran;
}

static void open_bed(bed *self, uint64_t seed)
{
    const trib_sim_costs costs = {0};
    *self = (bed){.sim = trib_sim_create(seed), .work.run = run_work, .own.run = run_own};
    self->machine = trib_sim_machine_create(self->sim, 1);
    self->process = trib_sim_process_create(self->machine, &costs, 0);
    self->reactor = trib_sim_reactor_create(self->process, 0, &self->logger);
    at = self;
    for (uint32_t i = 0; i < POSTS; i++) {
        self->posts[i].run = run_post;
        trib_reactor_post(self->reactor, &self->posts[i]);
    }
}

static void close_bed(bed *self)
{
    trib_sim_reactor_free(self->reactor);
    trib_sim_process_free(self->process);
    trib_sim_machine_free(self->machine);
    trib_sim_free(self->sim);
}

static void all_come_at_once(void **state)
{
    (void)state;
    bed self;
    open_bed(&self, 1);
    assert_true(trib_sim_step(self.sim));
    assert_int_equal(self.ran, POSTS);
    assert_int_equal(self.own_after, POSTS);
    assert_false(trib_sim_step(self.sim));
    close_bed(&self);
}

static void some_come_late(void **state)
{
    (void)state;
    uint32_t all_late = 0, some_late = 0, held = 0;
    for (uint64_t seed = 1; seed <= TIMES; seed++) {
        bed self;
        open_bed(&self, seed);
        trib_sim_process_stagger(self.process, 1, HELD_NS);
        assert_true(trib_sim_step(self.sim));
        const uint32_t in_time = self.ran;
        assert_in_range(in_time, 0, POSTS - 1);
        all_late += in_time == 0;
        some_late += in_time > 0;
        trib_sim_reactor_give(self.reactor, &self.work);
        assert_true(trib_sim_step(self.sim));
        assert_int_equal(self.ran, POSTS); /* none comes late twice */
        assert_int_equal(self.work_after, in_time);
        assert_in_range(self.at_ns[POSTS - 1], 0, HELD_NS);
        held += self.at_ns[POSTS - 1] > 0;
        assert_int_equal(self.own_after, POSTS);
        assert_false(trib_sim_step(self.sim));
        close_bed(&self);
    }
    assert_true(all_late > 0 && some_late > 0 && held > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_come_at_once), cmocka_unit_test(some_come_late)};
    return cmocka_run_group_tests_name("posts that come late", tests, NULL, NULL);
}
