/*
 * test_boundaries.c - programs that call trib_membership_advance again and again, without anything in between. A worker
 * or a server that starts meanwhile joins nevertheless, however short the epochs are.
 */
#include <stdio.h>
#include <string.h>

#include "engine/membership/member_internal.h"
#include "engine/tracer/tracer.h"
#include "tests/sim/boundary_program.h"

enum { MEMBERS = WORKERS + 1 };

/* The last member is far away, as its connections take longer than the others' epochs. */
static void joins_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const bool is_last = member == MEMBERS - 1;
    config->worker_count = WORKERS;
    config->server_count = 0;
    config->rank = is_last ? -1 : config->rank;
    link->latency_ns = is_last ? *(const int64_t *)job->config.user : link->latency_ns;
}

static bool is_over(sim_job *job, void *argument)
{
    const program *first = argument;
    return job->members[MEMBERS - 1].ready_told || first->boundaries == BOUNDARIES || first->status != TRIB_OK;
}

/* Returns the number of boundaries that the last member has waited for. */
static uint32_t run(bool is_server, int64_t latency_ns, int64_t starts_ns)
{
    sim_job_config config = sim_job_config_default(WORKERS + (is_server ? 0 : 1), is_server ? 1 : 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.tweak = joins_later;
    config.user = &latency_ns;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, true);
    (void)sim_job_run(job, SECOND, NULL, NULL);
    program programs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_true(job->members[i].ready_told && job->members[i].ready.status == TRIB_OK);
        programs[i] = (program){.job = job, .index = i};
        advance(&programs[i]);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + starts_ns, NULL, NULL);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, false);
    const uint32_t before = programs[0].boundaries;
    assert_true(sim_job_run(job, 200 * SECOND, is_over, &programs[0]));
    assert_int_equal(programs[0].status, TRIB_OK);
    const bool joined = job->members[MEMBERS - 1].ready_told;
    const uint32_t waited = programs[0].boundaries - before;
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
    return joined ? waited : BOUNDARIES;
}

static void sweep(bool is_server, int64_t latency_ns)
{
    uint32_t most = 0, starved = 0;
    for (int64_t i = 0; i < 20; i++) {
        const uint32_t waited = run(is_server, latency_ns, i * 137000);
        most = waited > most ? waited : most;
        starved += waited == BOUNDARIES;
    }
    printf("%s, %lld us: %u boundaries at most, %u starved\n", is_server ? "server" : "worker",
           (long long)latency_ns / 1000, most, starved);
    assert_int_equal(starved, 0);
}

static void worker_joins(void **state)
{
    (void)state;
    sweep(false, 50000);
    sweep(false, 5000000);
}

static void server_joins(void **state)
{
    (void)state;
    sweep(true, 50000);
    sweep(true, 5000000);
}

/* Where the last member is the coordinator, in a process of its own. */
static void coordinates_apart(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->server_count = 0;
    config->coordinator = "n3:4000";
    config->external_coordinator = member != WORKERS;
    config->roles = member == WORKERS ? TRIB_ROLE_COORDINATOR : config->roles;
}

static bool workers_are_ready(sim_job *job, void *unused)
{
    bool are_ready = true;
    (void)unused;
    for (uint32_t i = 0; i < WORKERS; i++) {
        are_ready = are_ready && job->members[i].ready_told && job->members[i].ready.status == TRIB_OK;
    }
    return are_ready;
}

/* A worker dies, or leaves in good order, while the membership changes, when nobody has a connection to it. Its address
 * refuses, so the others do not wait for the peer timeout. A coordinator that is no member is less sure. */
static void the_dead_are_not_awaited(uint32_t dead, bool is_apart, bool leaves)
{
    for (int64_t i = 0; i < 20; i++) {
        sim_job_config config = sim_job_config_default(WORKERS, is_apart ? 1 : 0);
        config.engine.survive = TRIB_SURVIVE_WORKERS;
        config.engine.peer_timeout_ns = 30 * SECOND;
        config.tweak = is_apart ? coordinates_apart : NULL;
        trib_error error = {.status = TRIB_OK};
        sim_job *job = sim_job_open(&config, &error);
        assert_non_null(job);
        assert_true(sim_job_run(job, SECOND, workers_are_ready, NULL));
        program programs[WORKERS];
        for (uint32_t k = 0; k < WORKERS; k++) {
            programs[k] = (program){.job = job, .index = k};
            advance(&programs[k]);
        }
        (void)sim_job_run(job, trib_sim_now(job->sim) + 40000000 + i * 1000000, NULL, NULL);
        leaves ? sim_job_leave(job, dead) : sim_job_kill(job, dead);
        const survivor others = {
            .programs = programs, .dead = dead, .before = programs[(dead + 1) % WORKERS].boundaries};
        const int64_t died_ns = trib_sim_now(job->sim);
        assert_true(sim_job_run(job, died_ns + (is_apart ? 3 : 1) * SECOND, have_gone_on, (void *)(uintptr_t)&others));
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

static void a_dead_worker_is_not_awaited(void **state)
{
    (void)state;
    the_dead_are_not_awaited(2, false, false);
}

static void a_dead_coordinator_is_not_awaited(void **state)
{
    (void)state;
    the_dead_are_not_awaited(0, false, false);
}

static void a_coordinator_apart_awaits_no_dead(void **state)
{
    (void)state;
    the_dead_are_not_awaited(2, true, false);
}

static void is_far_apart(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    coordinates_apart(job, member, config, link);
    link->latency_ns = 100000000;
}

static bool all_have_passed(sim_job *job, void *argument)
{
    const program *programs = argument;
    bool have_passed = true;
    (void)job;
    for (uint32_t i = 0; i < WORKERS; i++) {
        have_passed = have_passed && programs[i].boundaries == programs[i].most;
    }
    return have_passed;
}

/* Ends the coordinator's connections, for which it calls the members. */
static void break_control_links(const sim_job *job)
{
    uint32_t broken = 0;
    for (trib_link *link = job->members[WORKERS].engine->cores[0].host.links; link != NULL; link = link->next) {
        if (link->conn != NULL && link->state == TRIB_LINK_READY) {
            link->conn->transport->ops->conn_close(link->conn, false);
            broken++;
        }
    }
    assert_int_equal(broken, WORKERS);
}

/* A firewall refuses connections from the coordinator to members, which take a while to come back: none is dead. */
static void a_refusing_firewall_is_no_death(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = 30 * SECOND;
    config.tweak = is_far_apart;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_node_reject(job->members[WORKERS].node, true);
    assert_true(sim_job_run(job, 10 * SECOND, workers_are_ready, NULL));
    break_control_links(job);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, NULL, NULL);
    program programs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        programs[i] = (program){.job = job, .index = i, .most = 3};
        advance(&programs[i]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, all_have_passed, programs));
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(job->members[i].engine->roster->worker_count, WORKERS);
        assert_false(job->members[i].engine->formation.moved); /* nobody has been elected in the coordinator's place */
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void one_that_leaves_is_not_awaited(void **state)
{
    (void)state;
    the_dead_are_not_awaited(2, false, true);
}

static bool others_have_passed(sim_job *job, void *argument)
{
    const program *programs = argument;
    (void)job;
    return programs[0].boundaries > 0 && programs[1].boundaries > 0;
}

/* Two workers wait for the boundary, and the third one, whose program is through, leaves instead. */
static void one_that_leaves_does_not_hold_it_up(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    sim_job *job = sim_bed_open(&config);
    program programs[WORKERS];
    for (uint32_t i = 0; i < WORKERS - 1; i++) {
        programs[i] = (program){.job = job, .index = i, .most = 1};
        advance(&programs[i]);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_int_equal(programs[0].boundaries, 0);
    sim_job_leave(job, WORKERS - 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, others_have_passed, programs));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- Between two epochs ---- */

static void break_link_of(const sim_job *job, uint32_t place)
{
    bool is_broken = false;
    for (trib_link *link = job->members[0].engine->cores[0].host.links; link != NULL; link = link->next) {
        if (link->conn != NULL && link->state == TRIB_LINK_READY && link->purpose == TRIB_PURPOSE_CONTROL &&
            !link->outgoing && link->peer == place) {
            link->conn->transport->ops->conn_close(link->conn, false);
            is_broken = true;
        }
    }
    assert_true(is_broken);
}

/* A worker has died, and the last one's program does not go on yet. Meanwhile the connection of one that waits for it
 * breaks, which does not mean that it has died. */
static void a_connection_that_breaks_is_no_death(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 10; i++) {
        sim_job_config config = sim_job_config_default(WORKERS + 1, 0);
        config.engine.survive = TRIB_SURVIVE_WORKERS;
        sim_job *job = sim_bed_open(&config);
        program programs[WORKERS];
        sim_job_kill(job, WORKERS);
        for (uint32_t k = 0; k < WORKERS; k++) {
            programs[k] = (program){.job = job, .index = k, .most = 1};
        }
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        advance(&programs[0]);
        advance(&programs[1]);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND + i * 20000000, NULL, NULL);
        break_link_of(job, 1);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        advance(&programs[2]);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, all_have_passed, programs));
        assert_int_equal(job->members[0].engine->roster->worker_count, WORKERS);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

/* ---- The job ends while the cores close ---- */

static bool core_0_is_left(sim_job *job, void *argument)
{
    const trib_engine *engine = job->members[*(const uint32_t *)argument].engine;
    return atomic_load(&engine->changing) && atomic_load(&engine->cores_open) == 1;
}

/* A program closes its engine when all cores but the first have closed, to be opened again. None of them listens any
 * more in the end, nor lacks in the trace. */
static void cores_do_not_outlive_the_job(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.reactors = 2;
    sim_job *job = sim_bed_open(&config);
    program programs[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        programs[i] = (program){.job = job, .index = i};
        advance(&programs[i]);
    }
    uint32_t leaver = 1;
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, core_0_is_left, &leaver));
    const trib_engine *engine = job->members[leaver].engine;
    assert_true(engine->cores[1].listeners.count > 0);
    sim_job_leave(job, leaver);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_int_equal(atomic_load(&engine->cores_open), 0);
    assert_int_equal(engine->cores[0].listeners.count, 0);
    assert_int_equal(engine->cores[1].listeners.count, 0);
    assert_int_equal(atomic_load(&engine->tracer->cores_left), 0);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- A coordinator without a majority ---- */

static void has_addresses(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    joins_later(job, member, config, link);
    config->coordinator = "n0:4000,n1:4000,n2:4000";
}

/* The process that joins knows one address only. */
static void has_one_address(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    has_addresses(job, member, config, link);
    config->coordinator = member == MEMBERS - 1 ? "n0:4000" : config->coordinator;
}

static bool has_joined(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[MEMBERS - 1].ready_told;
}

/* The one address leads to another machine from now on. */
static void move_address(const sim_job *job)
{
    trib_member *member = job->members[MEMBERS - 1].engine->member;
    snprintf(member->coordinator.text, sizeof member->coordinator.text, "n1:4000");
}

/* Rank 0 is cut off from the other workers, and a process that waits to join is first on its side. It goes to the
 * others' coordinator when rank 0 has ended, and has all of the join timeout to find it. Where nobody goes on it hears
 * why at the end of that. */
static void leave_minority(bool is_server, bool has_one, bool others_go_on)
{
    const int64_t latency_ns = 50000;
    sim_job_config config = sim_job_config_default(MEMBERS - is_server, is_server);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = 2 * SECOND;
    config.engine.join_timeout_ns = 13 * SECOND / 2;
    config.tweak = has_one ? has_one_address : has_addresses;
    config.user = (void *)(uintptr_t)&latency_ns;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, true);
    assert_true(sim_job_run(job, SECOND, workers_are_ready, NULL));
    program programs[WORKERS];
    for (uint32_t k = 0; k < WORKERS; k++) {
        programs[k] = (program){.job = job, .index = k, .most = 2000};
    }
    trib_sim_node_regroup(job->members[0].node, 1);
    trib_sim_node_regroup(job->members[MEMBERS - 1].node, 1);
    trib_sim_process_freeze(job->members[MEMBERS - 1].process, false);
    advance(&programs[0]);
    const int64_t cut_ns = trib_sim_now(job->sim);
    /* Rank 0 gathers for its next epoch, the joiner comes, and nobody else does. That is over after 6 s. */
    (void)sim_job_run(job, cut_ns + 8 * SECOND, NULL, NULL);
    assert_true(job->members[0].ended_told);
    if (job->members[MEMBERS - 1].ready_told) {
        fail_msg("%s", job->members[MEMBERS - 1].ready.text);
    }
    assert_int_equal(programs[0].boundaries, 0);
    if (has_one && others_go_on) {
        move_address(job);
    }
    trib_sim_node_regroup(job->members[MEMBERS - 1].node, others_go_on ? 0 : 1);
    advance(&programs[1]);
    advance(&programs[2]);
    assert_true(sim_job_run(job, cut_ns + 60 * SECOND, has_joined, NULL));
    const trib_error *told = &job->members[MEMBERS - 1].ready;
    if (told->status != (others_go_on ? TRIB_OK : TRIB_JOIN_FAILED)) {
        fail_msg("%s", told->text);
    }
    assert_true(others_go_on || strstr(told->text, "no majority") != NULL);
    trib_sim_node_regroup(job->members[0].node, 0);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void a_joiner_leaves_a_minority(void **state)
{
    (void)state;
    leave_minority(false, false, true);
    leave_minority(true, false, true);
}

static void a_joiner_with_one_address_leaves_a_minority(void **state)
{
    (void)state;
    leave_minority(false, true, true);
    leave_minority(true, true, true);
}

static void a_joiner_hears_why_nobody_goes_on(void **state)
{
    (void)state;
    leave_minority(false, true, false);
    leave_minority(true, true, false);
}

/* A worker that waits to join dies when the epoch ends, and a place is held for it. */
static void a_dead_joiner_is_not_awaited(void **state)
{
    (void)state;
    const int64_t latency_ns = 50000;
    for (int64_t i = 0; i < 40; i++) {
        sim_job_config config = sim_job_config_default(MEMBERS, 0);
        config.engine.survive = TRIB_SURVIVE_WORKERS;
        config.engine.peer_timeout_ns = 30 * SECOND;
        config.tweak = joins_later;
        config.user = (void *)(uintptr_t)&latency_ns;
        trib_error error = {.status = TRIB_OK};
        sim_job *job = sim_job_open(&config, &error);
        assert_non_null(job);
        (void)sim_job_run(job, SECOND, NULL, NULL);
        program programs[WORKERS];
        for (uint32_t k = 0; k < WORKERS; k++) {
            programs[k] = (program){.job = job, .index = k};
            advance(&programs[k]);
        }
        const int64_t asked_ns = trib_sim_now(job->sim);
        (void)sim_job_run(job, asked_ns + i * 50000, NULL, NULL);
        sim_job_kill(job, WORKERS);
        const survivor others = {.programs = programs, .dead = WORKERS, .before = programs[0].boundaries};
        assert_true(sim_job_run(job, asked_ns + 5 * SECOND, have_gone_on, (void *)(uintptr_t)&others));
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(worker_joins),
                                       cmocka_unit_test(server_joins),
                                       cmocka_unit_test(a_dead_worker_is_not_awaited),
                                       cmocka_unit_test(a_dead_coordinator_is_not_awaited),
                                       cmocka_unit_test(a_dead_joiner_is_not_awaited),
                                       cmocka_unit_test(a_coordinator_apart_awaits_no_dead),
                                       cmocka_unit_test(a_refusing_firewall_is_no_death),
                                       cmocka_unit_test(one_that_leaves_is_not_awaited),
                                       cmocka_unit_test(one_that_leaves_does_not_hold_it_up),
                                       cmocka_unit_test(a_connection_that_breaks_is_no_death),
                                       cmocka_unit_test(cores_do_not_outlive_the_job),
                                       cmocka_unit_test(a_joiner_leaves_a_minority),
                                       cmocka_unit_test(a_joiner_with_one_address_leaves_a_minority),
                                       cmocka_unit_test(a_joiner_hears_why_nobody_goes_on)};
    return cmocka_run_group_tests_name("boundaries", tests, NULL, NULL);
}
