/* test_silence.c - a member that stands still or hears nothing is noticed within the documented time, whatever kind of
 * member it is and whatever the job is doing, and the error names that member. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

#define TIMEOUT_NS (4 * SECOND)
#define BOUND_NS (TIMEOUT_NS + TIMEOUT_NS / 8) /* docs/membership.md */
#define FACTOR UINT64_C(0x9e3779b97f4a7c15)

enum { WORKERS = 3, SERVERS = 2, MEMBERS = WORKERS + SERVERS, COUNT = 100000 };

/* The phase of the job in which the member stops. */
typedef enum phase { PHASE_CONNECTING, PHASE_WORKING, PHASE_IDLE, PHASE_LEAVING, PHASES } phase;

typedef struct bed {
    sim_job *job;
    exchange exchanges[WORKERS];
    uint32_t victim;
    int64_t told_ns[MEMBERS]; /* when each member was told of the end; 0: not yet */
} bed;

static bool all_are_told(sim_job *job, void *argument)
{
    bed *self = argument;
    bool all = true;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (job->members[i].ended_told && self->told_ns[i] == 0) {
            self->told_ns[i] = trib_sim_now(job->sim);
        }
        all = all && (self->told_ns[i] != 0 || i == self->victim || job->members[i].closing);
    }
    return all;
}

static bool has_roster(sim_job *job, void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (atomic_load(&job->members[i].engine->roster) == NULL) {
            return false;
        }
    }
    return true;
}

static void open_bed(bed *self, uint64_t seed, phase when)
{
    sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
    config.seed = seed;
    config.engine.peer_timeout_ns = TIMEOUT_NS;
    config.engine.reactors = (int32_t)(1 + seed % 2);
    config.engine.op_timeout_ns = 100 * SECOND;
    config.engine.close_timeout_ns = 30 * SECOND;
    config.link.egress_bits = config.link.ingress_bits = UINT64_C(100000000);
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    assert_non_null(self->job);
    assert_true(sim_job_run(self->job, 30 * SECOND, when == PHASE_CONNECTING ? has_roster : sim_job_all_ready, NULL));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        self->exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        if (when == PHASE_WORKING) {
            sim_bed_submit(self->job, rank, "sum", COUNT, &self->exchanges[rank], 0);
        }
    }
    if (when == PHASE_LEAVING) {
        sim_job_leave(self->job, self->victim == 1 ? 2 : 1);
    }
    trib_sim_stream stream = {.state = seed * FACTOR};
    const uint64_t within_ns = when == PHASE_IDLE || when == PHASE_LEAVING ? 3 * SECOND : 30 * (SECOND / 1000);
    const int64_t until_ns = trib_sim_now(self->job->sim) + (int64_t)trib_sim_draw_below(&stream, within_ns);
    (void)sim_job_run(self->job, until_ns, NULL, NULL);
}

static void close_bed(bed *self)
{
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(self->exchanges[rank].buffer);
    }
}

static bool names(const bed *self, const char *text, uint32_t member)
{
    char place[16];
    snprintf(place, sizeof place, ":%u)", 1000 + member);
    const char *at = strstr(text, place);
    for (uint32_t i = 0; i < self->job->member_count && at != NULL; i++) {
        snprintf(place, sizeof place, ":%u)", 1000 + i);
        const char *other = strstr(text, place);
        if (other != NULL && other < at) {
            return false;
        }
    }
    return at != NULL;
}

/* All members but the silent one must be told in time, and of that one. */
static void check(bed *self, phase when, uint64_t seed, int64_t from_ns)
{
    (void)sim_job_run(self->job, from_ns + 4 * BOUND_NS, all_are_told, self);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const sim_member *member = &self->job->members[i];
        if (i == self->victim || member->closing) {
            continue;
        }
        if (self->told_ns[i] == 0 || self->told_ns[i] - from_ns > BOUND_NS) {
            fail_msg("phase %d, seed %llu: member %u hears after %.3f s that member %u is silent", when,
                     (unsigned long long)seed, i, (double)(self->told_ns[i] - from_ns) / 1e9, self->victim);
        }
        if (member->ended.status != TRIB_PEER_LOST || !names(self, member->ended.text, self->victim)) {
            fail_msg("phase %d, seed %llu: member %u hears of member %u: %s", when, (unsigned long long)seed, i,
                     self->victim, member->ended.text);
        }
    }
}

static void a_stopped_member_is_noticed_in_time(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < MEMBERS; victim++) {
        for (phase when = PHASE_CONNECTING; when < PHASES; when++) {
            for (uint64_t seed = 1; seed <= 20; seed++) {
                bed self = {.victim = victim};
                open_bed(&self, seed, when);
                trib_sim_process_freeze(self.job->members[victim].process, true);
                check(&self, when, seed, trib_sim_now(self.job->sim));
                close_bed(&self);
            }
        }
    }
}

/* No frame reaches the member, but its own frames are received, so it takes healthy members for lost. */
static void a_deaf_member_is_named(void **state)
{
    (void)state;
    for (uint32_t victim = 1; victim < MEMBERS; victim++) {
        for (phase when = PHASE_WORKING; when <= PHASE_IDLE; when++) {
            for (uint64_t seed = 1; seed <= 10; seed++) {
                bed self = {.victim = victim};
                open_bed(&self, seed, when);
                const trib_sim_link deaf = {.egress_bits = UINT64_C(100000000), .ingress_bits = 1, .latency_ns = 15000};
                trib_sim_node_relink(self.job->members[victim].node, &deaf);
                check(&self, when, seed, trib_sim_now(self.job->sim));
                trib_sim_node_kill(self.job->members[victim].node);
                close_bed(&self);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_member_is_noticed_in_time),
        cmocka_unit_test(a_deaf_member_is_named),
    };
    return cmocka_run_group_tests_name("silence", tests, NULL, NULL);
}
