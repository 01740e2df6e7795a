/* test_reconnect.c - connections that break while the way to the peer is slow are made again (link_reconnect.h), in
 * virtual time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

#define TIMEOUT_NS (4 * SECOND)
#define RATE UINT64_C(100000000)

enum { WORKERS = 2, COUNT = 100000 };

static sim_job *open_job(uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.seed = seed;
    config.engine.peer_timeout_ns = TIMEOUT_NS;
    config.engine.op_timeout_ns = 100 * SECOND;
    config.link.egress_bits = config.link.ingress_bits = RATE;
    return sim_bed_open(&config);
}

/* Messages are reported as sent up to 20 ms after the peer has them, as over RDMA: the peer's answers come first. */
static sim_job *open_late_job(uint64_t seed)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.seed = seed;
    config.net.sent_late_ns = SECOND / 50;
    return sim_bed_open(&config);
}

/* Ends the connections for data from workers to the server. Returns their number. */
static uint32_t break_links(const sim_job *job)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const trib_engine *engine = job->members[rank].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            for (trib_link *link = engine->cores[k].host.links; link != NULL; link = link->next) {
                if (link->conn != NULL && link->outgoing && link->state == TRIB_LINK_READY &&
                    link->purpose == TRIB_PURPOSE_DATA && link->peer == WORKERS) {
                    link->conn->transport->ops->conn_close(link->conn, false);
                    count++;
                }
            }
        }
    }
    return count;
}

/* Connections break so long after the beginning; below 0: they do not. */
static void sum_in_spite(sim_job *job, uint32_t count, int64_t break_ns)
{
    char name[16];
    snprintf(name, sizeof name, "sum %u", count);
    exchange exchanges[WORKERS] = {{.done = 0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].buffer = calloc(count, sizeof(int32_t));
        for (uint32_t i = 0; i < count; i++) {
            exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
        sim_bed_submit(job, rank, name, count, &exchanges[rank], 0);
    }
    if (break_ns >= 0) {
        (void)sim_job_run(job, trib_sim_now(job->sim) + break_ns, NULL, NULL);
        assert_int_equal(break_links(job), WORKERS);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(exchanges[rank].buffer[i], WORKERS * (WORKERS - 1) / 2 + WORKERS * i);
        }
        free(exchanges[rank].buffer);
    }
}

static void sum(sim_job *job, uint32_t count)
{
    sum_in_spite(job, count, -1);
}

/* Answers of the server take so long from now on. */
static void move_away(const sim_job *job, int64_t round_trip_ns)
{
    const trib_sim_link far = {.egress_bits = RATE, .ingress_bits = RATE, .latency_ns = round_trip_ns / 2};
    trib_sim_node_relink(job->members[WORKERS].node, &far);
}

static uint64_t count_made_again(const sim_job *job)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            count += trib_counter_get(&engine->cores[k].host.stats->reconnections);
        }
    }
    return count;
}

static bool are_made_again(sim_job *job, void *argument)
{
    const uint32_t *broken = argument;
    return count_made_again(job) >= (uint64_t)2 * *broken; /* both sides count */
}

/* The server calls in the meantime. A late frame of that call must not break the new connection. */
static void check(int64_t round_trip_ns, int64_t within_ns)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        sim_job *job = open_job(seed);
        sum(job, COUNT);
        move_away(job, round_trip_ns);
        sum(job, COUNT);
        uint32_t broken = break_links(job);
        assert_int_equal(broken, WORKERS);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + within_ns, are_made_again, &broken));
        sum(job, COUNT);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 4 * TIMEOUT_NS, NULL, NULL);
        sum(job, COUNT);
        assert_int_equal(count_made_again(job), 2 * broken);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

/* The answer to an attempt comes after a short one has ended. */
static void late_answers_are_awaited(void **state)
{
    (void)state;
    check(TIMEOUT_NS * 15 / 100, TIMEOUT_NS);
}

/* No attempt within the peer timeout is long enough, but the coordinator hears all members. */
static void a_link_has_time_while_its_peer_lives(void **state)
{
    (void)state;
    check(TIMEOUT_NS * 22 / 100, 3 * TIMEOUT_NS);
}

/* The server's links carry so little that a sum takes longer than the peer timeout, and a payload longer than the
 * quarter of it after which a silent connection breaks. Bytes move all the time, so none breaks. One that is forgotten
 * does. */
static void narrow_links_do_not_break(void **state)
{
    (void)state;
    const trib_sim_link narrow = {.egress_bits = RATE / 400, .ingress_bits = RATE / 400, .latency_ns = 1000000};
    sim_job *job = open_job(1);
    sum(job, COUNT);
    trib_sim_node_relink(job->members[WORKERS].node, &narrow);
    for (uint32_t i = 0; i < 3; i++) {
        sum(job, COUNT / 10);
    }
    assert_int_equal(count_made_again(job), 0);
    assert_true(trib_sim_net_forget(job->net, 0));
    sum(job, COUNT / 10);
    assert_true(count_made_again(job) > 0);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void try_ready(trib_link *link)
{
    trib_link_close(link, false, TRIB_CLOSED, "nobody should be there");
}

static trib_status try_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    (void)link, (void)frame, (void)target;
    return trib_error_set(error, TRIB_PROTOCOL, "nobody should be there");
}

static trib_status try_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                trib_error *error)
{
    (void)payload, (void)in_place;
    return try_header(link, frame, NULL, error);
}

typedef struct attempt {
    bool has_ended, is_refused;
} attempt;

static void try_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status, (void)reason;
    attempt *self = link->user;
    *self = (attempt){.has_ended = true, .is_refused = link->redial.is_refused};
}

static bool attempt_has_ended(sim_job *job, void *argument)
{
    const attempt *self = argument;
    (void)job;
    return self->has_ended;
}

/* Returns true if the first worker takes it that nobody listens at these addresses. */
static bool is_refused_at(sim_job *job, const char *list)
{
    static const trib_link_upcalls upcalls = {
        .ready = try_ready, .header = try_header, .received = try_received, .closed = try_closed};
    trib_address to;
    snprintf(to.text, sizeof to.text, "%s", list);
    attempt self = {.has_ended = false};
    trib_link *link = NULL;
    assert_int_equal(trib_link_connect(&job->members[0].engine->cores[0].host, &to, TRIB_PURPOSE_CONTROL,
                                       TRIB_NO_MEMBER, 0, &upcalls, &self, &link),
                     TRIB_OK);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + TIMEOUT_NS / 2, attempt_has_ended, &self));
    return self.is_refused;
}

/* Returns the number of control connections, each of which is patient, as no other one is. */
static uint32_t count_patient(const sim_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->member_count; i++) {
        for (const trib_link *link = job->members[i].engine->cores[0].host.links; link != NULL; link = link->next) {
            if (link->conn != NULL) {
                assert_int_equal(link->conn->patient, link->purpose == TRIB_PURPOSE_CONTROL);
                count += link->conn->patient;
            }
        }
    }
    return count;
}

/* Nobody else tells that a silent coordinator lives, or a silent member, and a connection that is made again is like
 * the first one. */
static void control_connections_are_patient(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    sum(job, COUNT);
    const uint32_t count = count_patient(job);
    assert_true(count >= 2 * WORKERS); /* of rank 1 and of the server, both ends */
    for (trib_link *link = job->members[1].engine->cores[0].host.links; link != NULL; link = link->next) {
        if (link->purpose == TRIB_PURPOSE_CONTROL) {
            link->conn->transport->ops->conn_close(link->conn, false);
        }
    }
    sum(job, COUNT);
    (void)sim_job_run(job, trib_sim_now(job->sim) + TIMEOUT_NS, NULL, NULL);
    assert_int_equal(count_made_again(job), 2);
    assert_int_equal(count_patient(job), count);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* A process may be there as long as one of its addresses does not refuse. */
static void all_addresses_have_to_refuse(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    assert_true(is_refused_at(job, "n1:9001"));
    assert_true(is_refused_at(job, "n1:9001,n1:9002"));
    trib_sim_node_regroup(job->members[WORKERS].node, 1);
    assert_false(is_refused_at(job, "n2:9001,n1:9001"));
    trib_sim_node_regroup(job->members[WORKERS].node, 0);
    sum(job, COUNT);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static bool server_has_ended(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[WORKERS].ended_told;
}

/* A gateway forgets all connections right before the workers leave: what these say last goes over other ones. */
static void last_words_arrive(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    sum(job, COUNT);
    for (uint64_t i = 0; i < 64; i++) {
        trib_sim_net_forget(job->net, i);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        sim_job_leave(job, rank);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, server_has_ended, NULL));
    assert_int_equal(job->members[WORKERS].ended.status, TRIB_OK);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* Frames that were under way when the connections broke are sent again, each once. */
static void nothing_under_way_is_lost(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    sum(job, COUNT);
    for (int64_t i = 0; i < 100; i++) {
        sum_in_spite(job, COUNT, i * (SECOND / 2000));
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static bool have_ended(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[0].ended_told && job->members[WORKERS].ended_told;
}

/* A worker says that it has frames that the server has not sent. No connection goes on so: the worker is lost. */
static void counts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    sim_job *job = open_job(1);
    sum(job, COUNT);
    (void)break_links(job);
    const trib_engine *engine = job->members[0].engine;
    for (uint32_t k = 0; k < engine->core_count; k++) {
        for (trib_link *link = engine->cores[k].host.links; link != NULL; link = link->next) {
            const bool is_broken = link->purpose == TRIB_PURPOSE_DATA && link->outgoing && link->peer == WORKERS;
            link->session.received += is_broken ? 1000 : 0;
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, have_ended, NULL));
    assert_int_equal(job->members[WORKERS].ended.status, TRIB_PEER_LOST);
    assert_non_null(strstr(job->members[WORKERS].ended.text, "lost the connection to rank 0"));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* The peer has proved who it is, and takes the link over, before the frames to which it answers are reported. */
static void answers_come_before_reports(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        sim_job *job = open_late_job(seed);
        sum(job, COUNT);
        sum_in_spite(job, COUNT, 0);
        sum(job, COUNT);
        assert_true(count_made_again(job) >= (uint64_t)2 * WORKERS);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
    }
}

/* A link of the server whose next connection has frames of its own that are not reported yet; else NULL. */
static trib_link *find_waiting(const sim_job *job)
{
    for (trib_link *link = job->members[WORKERS].engine->cores[0].host.links; link != NULL; link = link->next) {
        const trib_link *successor = link->redial.successor;
        if (successor != NULL && link->conn == NULL && successor->in_flight > 0 && !link->redial.timer.armed) {
            return link;
        }
    }
    return NULL;
}

static bool one_waits(sim_job *job, void *unused)
{
    (void)unused;
    return find_waiting(job) != NULL;
}

/* Such a connection ends, and nobody tells the other side. The server does not wait until that finds out. */
static void a_connection_that_waits_may_end(void **state)
{
    (void)state;
    sim_job *job = open_late_job(1);
    sum(job, COUNT);
    assert_int_equal(break_links(job), WORKERS);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, one_waits, NULL));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_sim_process_freeze(job->members[rank].process, true);
    }
    const trib_link *link = find_waiting(job);
    trib_link_close(link->redial.successor, false, TRIB_PEER_LOST, "it has ended");
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    assert_null(link->redial.successor);
    assert_non_null(link->redial.call);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_sim_process_freeze(job->members[rank].process, false);
    }
    sum(job, COUNT);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_answers_are_awaited),          cmocka_unit_test(a_link_has_time_while_its_peer_lives),
        cmocka_unit_test(control_connections_are_patient),   cmocka_unit_test(narrow_links_do_not_break),
        cmocka_unit_test(all_addresses_have_to_refuse),      cmocka_unit_test(last_words_arrive),
        cmocka_unit_test(counts_that_cannot_be_are_refused), cmocka_unit_test(nothing_under_way_is_lost),
        cmocka_unit_test(answers_come_before_reports),       cmocka_unit_test(a_connection_that_waits_may_end),
    };
    return cmocka_run_group_tests_name("reconnect", tests, NULL, NULL);
}
