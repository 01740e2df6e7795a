/* test_bootstrap.c - jobs that form by a unique id, or by the program's own exchange, without an address; and the
 * members and settings that a formed job reports. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define WORKERS 3
#define SOON_NS INT64_C(2000000000)

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

static trib_unique_id make_id(void)
{
    trib_unique_id id;
    trib_error error = {.status = TRIB_OK};
    if (trib_unique_id_create_at("127.0.0.1:0", &id, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return id;
}

static void configure(trib_config *config, int rank, int workers)
{
    trib_config_init(config, sizeof *config);
    config->rank = rank;
    config->worker_count = workers;
    config->reactors = 1;
    config->pin = false;
    config->join_timeout_ns = INT64_C(20000000000);
    config->log_level = TRIB_LOG_NONE;
}

static trib_engine *create(const trib_config *config)
{
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(config, &engine, &error) != TRIB_OK) {
        fail_msg("rank %d: %s", config->rank, error.text);
    }
    return engine;
}

static void refuses(const trib_config *config, trib_status status, const char *words)
{
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(config, &engine, &error), status);
    assert_null(engine);
    assert_says(error.text, words);
}

/* Each engine of the list contributes its rank + 1. */
static void assert_sums(trib_engine *const *engines, int count)
{
    float data[WORKERS], total = (float)(count * (count + 1)) / 2;
    trib_op *ops[WORKERS];
    for (int i = 0; i < count; i++) {
        data[i] = (float)(i + 1);
        trib_tensor *tensor = job_declare(engines[i], "weights", TRIB_FLOAT32, 1);
        ops[i] = job_push_pull(engines[i], tensor, &data[i], &data[i], TRIB_SUM);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        assert_true(data[i] == total);
    }
}

static void destroy(trib_engine *const *engines, int count)
{
    for (int i = 0; i < count; i++) {
        trib_engine_close(engines[i], NULL, NULL);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(trib_engine_destroy(engines[i]), TRIB_OK);
    }
}

static void open_by_id(const trib_unique_id *id, trib_engine **engines, int count)
{
    for (int i = 0; i < count; i++) {
        trib_config config;
        configure(&config, i, count);
        config.unique_id = id;
        engines[i] = create(&config);
    }
}

/* ---- Unique ids ---- */

/* The port of the second stays reserved while the first job runs, and the other way round. */
static void ids_of_one_process_make_jobs_of_their_own(void **state)
{
    (void)state;
    trib_engine *first[WORKERS], *second[2];
    const trib_unique_id ids[2] = {make_id(), make_id()};
    assert_memory_not_equal(&ids[0], &ids[1], sizeof ids[0]);
    open_by_id(&ids[1], second, 2);
    open_by_id(&ids[0], first, WORKERS);
    assert_sums(first, WORKERS);
    assert_sums(second, 2);
    destroy(first, WORKERS);
    destroy(second, 2);
}

static void an_id_serves_one_engine(void **state)
{
    (void)state;
    trib_engine *engine = NULL;
    trib_config config;
    const trib_unique_id id = make_id();
    configure(&config, 0, 1);
    config.unique_id = &id;
    config.chunk_bytes = 5000; /* this is refused after the port was taken, which then waits for another engine */
    refuses(&config, TRIB_INVALID, "chunk_bytes");
    config.chunk_bytes = 0;
    engine = create(&config);
    refuses(&config, TRIB_STATE, "make a new id for each job");
    destroy(&engine, 1);
    refuses(&config, TRIB_STATE, "make a new id for each job");
}

static void bytes_that_are_no_id_are_refused(void **state)
{
    (void)state;
    trib_config config;
    const trib_unique_id id = make_id();
    configure(&config, 1, 2);
    for (size_t i = 0; i < sizeof id; i += 17) {
        trib_unique_id damaged = id;
        damaged.bytes[i] = (char)(damaged.bytes[i] ^ 4);
        config.unique_id = &damaged;
        refuses(&config, TRIB_INVALID, "not what trib_unique_id_create has made");
    }
}

static void an_address_that_is_not_here_is_refused(void **state)
{
    (void)state;
    static const trib_unique_id nothing;
    trib_unique_id id = make_id();
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_unique_id_create_at("192.0.2.1:0", &id, &error), TRIB_SYSTEM);
    assert_says(error.text, "cannot reserve a port at 192.0.2.1:0");
    assert_memory_equal(&id, &nothing, sizeof id);
    assert_int_equal(trib_unique_id_create_at("0.0.0.0:0", &id, &error), TRIB_INVALID);
    assert_says(error.text, "leads to nobody");
    assert_int_equal(trib_unique_id_create_at("127.0.0.1", &id, &error), TRIB_INVALID);
    assert_int_equal(trib_unique_id_create_at(NULL, &id, &error), TRIB_INVALID);
    assert_int_equal(trib_unique_id_create(NULL, &error), TRIB_INVALID);
    assert_int_equal(trib_unique_id_create_at("nothing*:0", &id, &error), TRIB_INVALID);
    assert_says(error.text, "no interface matches");
    assert_int_equal(trib_unique_id_create(&id, &error), TRIB_OK);
    trib_unique_id_release(&id);
}

/* Rank 1 has the id of another job. That id's port is reserved, and no process listens there. */
static void ids_that_differ_do_not_join(void **state)
{
    (void)state;
    trib_engine *engines[2];
    const trib_unique_id ids[2] = {make_id(), make_id()};
    const char *const says[2] = {"rank 1", "trib_config.unique_id must say where rank 0 runs"};
    for (int i = 0; i < 2; i++) {
        trib_config config;
        configure(&config, i, 2);
        config.unique_id = &ids[i];
        config.join_timeout_ns = SOON_NS;
        engines[i] = create(&config);
    }
    for (int i = 0; i < 2; i++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_equal(trib_engine_wait_ready(engines[i], -1, &error), TRIB_JOIN_FAILED);
        assert_says(error.text, says[i]);
    }
    destroy(engines, 2);
}

/* ---- The program's exchange ---- */

typedef struct exchange {
    pthread_barrier_t met;
    char *bytes; /* of all, by rank */
    int failing; /* the rank whose callback fails; -1: none */
    int swaps;   /* the callback puts bytes at wrong places */
} exchange;

typedef struct worker {
    exchange *shared;
    trib_config config;
    trib_engine *engine;
    trib_error error;
    pthread_t thread, called_on;
    int calls;
} worker;

static int all_gather(const void *mine, void *all, size_t bytes, void *user)
{
    worker *self = user;
    const size_t count = (size_t)self->config.worker_count;
    self->called_on = pthread_self();
    self->calls++;
    if (self->config.rank == 0) {
        self->shared->bytes = calloc(WORKERS, bytes);
    }
    pthread_barrier_wait(&self->shared->met);
    const size_t place = (size_t)(self->config.rank + self->shared->swaps) % WORKERS;
    memcpy(self->shared->bytes + place * bytes, mine, bytes);
    pthread_barrier_wait(&self->shared->met);
    memcpy(all, self->shared->bytes, (count < WORKERS ? count : WORKERS) * bytes);
    pthread_barrier_wait(&self->shared->met);
    if (self->config.rank == 0) {
        free(self->shared->bytes);
    }
    return self->config.rank == self->shared->failing ? 7 : 0;
}

static void *run_worker(void *user)
{
    worker *self = user;
    (void)!trib_engine_create(&self->config, &self->engine, &self->error);
    return NULL;
}

typedef void (*tweak)(trib_config *config);

static void run_exchange(worker workers[WORKERS], exchange *shared, tweak change)
{
    pthread_barrier_init(&shared->met, NULL, WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.shared = shared};
        configure(&workers[i].config, i, WORKERS);
        workers[i].config.coordinator = i == 0 ? "127.0.0.1:0" : NULL;
        workers[i].config.oob_cb = all_gather;
        workers[i].config.oob_user = &workers[i];
        if (change != NULL) {
            change(&workers[i].config);
        }
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].calls, 1);
        assert_true(pthread_equal(workers[i].thread, workers[i].called_on));
    }
    pthread_barrier_destroy(&shared->met);
}

static void an_exchange_brings_the_address(void **state)
{
    (void)state;
    exchange shared = {.failing = -1};
    worker workers[WORKERS];
    trib_engine *engines[WORKERS];
    run_exchange(workers, &shared, NULL);
    for (int i = 0; i < WORKERS; i++) {
        if (workers[i].engine == NULL) {
            fail_msg("rank %d: %s", i, workers[i].error.text);
        }
        engines[i] = workers[i].engine;
    }
    assert_sums(engines, WORKERS);
    destroy(engines, WORKERS);
}

static void assert_all_fail(worker workers[WORKERS], const char *words)
{
    for (int i = 0; i < WORKERS; i++) {
        assert_null(workers[i].engine);
        assert_true(workers[i].error.status < 0);
        assert_says(workers[i].error.text, words);
    }
}

static void a_callback_that_fails_is_named(void **state)
{
    (void)state;
    exchange shared = {.failing = 0};
    worker workers[WORKERS];
    run_exchange(workers, &shared, NULL);
    assert_null(workers[0].engine);
    assert_int_equal(workers[0].error.status, TRIB_JOIN_FAILED);
    assert_says(workers[0].error.text, "oob_cb returned 7 on rank 0");
    for (int i = 1; i < WORKERS; i++) { /* the others have an address at which no process will listen */
        assert_int_equal(trib_engine_destroy(workers[i].engine), TRIB_OK);
    }
}

static void bytes_at_a_wrong_place_are_refused(void **state)
{
    (void)state;
    exchange shared = {.failing = -1, .swaps = 1};
    worker workers[WORKERS];
    run_exchange(workers, &shared, NULL);
    assert_all_fail(workers, "it must put each worker's bytes at the place of its rank");
}

static void wrong_chunks(trib_config *config)
{
    config->chunk_bytes = config->rank == 1 ? 5000 : 0;
}

/* One worker alone has a wrong setting: all fail at once, and no worker waits for it. */
static void who_cannot_take_part_ends_all(void **state)
{
    (void)state;
    exchange shared = {.failing = -1};
    worker workers[WORKERS];
    run_exchange(workers, &shared, wrong_chunks);
    assert_all_fail(workers, "chunk_bytes 5000");
    assert_int_equal(workers[1].error.status, TRIB_INVALID);
    assert_int_equal(workers[2].error.status, TRIB_JOIN_FAILED);
    assert_says(workers[2].error.text, "rank 1 cannot take part");
}

static void other_count(trib_config *config)
{
    config->worker_count += config->rank == 2;
}

static void counts_that_differ_are_named(void **state)
{
    (void)state;
    exchange shared = {.failing = -1};
    worker workers[WORKERS];
    run_exchange(workers, &shared, other_count);
    assert_all_fail(workers, "worker_count: rank ");
}

static void foreign_address(trib_config *config)
{
    config->coordinator = "192.0.2.1:0";
}

static void a_port_that_rank_0_does_not_get_ends_all(void **state)
{
    (void)state;
    exchange shared = {.failing = -1};
    worker workers[WORKERS];
    run_exchange(workers, &shared, foreign_address);
    assert_all_fail(workers, "cannot reserve a port at 192.0.2.1:0");
}

static void servers_do_not_exchange(void **state)
{
    (void)state;
    exchange shared = {.failing = -1};
    worker alone = {.shared = &shared};
    trib_config config;
    configure(&config, 3, 3);
    config.oob_cb = all_gather;
    config.oob_user = &alone;
    refuses(&config, TRIB_INVALID, "rank 3");
    assert_int_equal(alone.calls, 0);
}

/* ---- What a job tells ---- */

static const char *find_setting(const trib_setting_value *settings, size_t count, const char *field)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(settings[i].field, field) == 0) {
            return settings[i].value;
        }
    }
    fail_msg("there is no setting %s", field);
    return NULL;
}

static void rank_0_decides(trib_config *config, int member)
{
    config->chunk_bytes = member == 0 ? 65536 : 4096;
    config->peer_timeout_ns = member == 0 ? INT64_C(12500000000) : 0;
    config->reactors = 1 + (uint32_t)(member == 1);
    config->bandwidth_bits = UINT64_C(10000000000);
}

static void a_job_lists_its_members_and_settings(void **state)
{
    (void)state;
    job jobs;
    trib_job_member members[3];
    trib_setting_value settings[64];
    size_t count = 0;
    job_open(&jobs, 2, 1, rank_0_decides);
    trib_engine *engine = jobs.engines[1];
    assert_int_equal(trib_engine_get_members(engine, members, 2, &count), TRIB_OK);
    assert_int_equal(count, 3);
    assert_int_equal(trib_engine_get_members(engine, members, 3, &count), TRIB_OK);
    const int32_t ranks[] = {0, 1, -1}, servers[] = {-1, -1, 0};
    char host[65] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(members[i].rank, ranks[i]);
        assert_int_equal(members[i].server, servers[i]);
        assert_memory_equal(members[i].address, "127.0.0.1:", 10);
        assert_memory_equal(members[i].host, host, strlen(host) < 22 ? strlen(host) : 22);
    }
    assert_true((members[0].roles & TRIB_ROLE_COORDINATOR) && (members[0].roles & TRIB_ROLE_WORKER));
    assert_false(members[1].roles & TRIB_ROLE_COORDINATOR);
    assert_int_equal(members[2].roles, TRIB_ROLE_SERVER);
    assert_int_equal(members[1].reactors, 2);
    assert_int_equal(trib_engine_get_settings(engine, NULL, 0, &count), TRIB_OK);
    assert_in_range(count, 30, 64);
    assert_int_equal(trib_engine_get_settings(engine, settings, 64, &count), TRIB_OK);
    assert_string_equal(find_setting(settings, count, "chunk_bytes"), "64K");
    assert_string_equal(find_setting(settings, count, "peer_timeout_ns"), "12500ms");
    assert_string_equal(find_setting(settings, count, "reactors"), "2");
    assert_string_equal(find_setting(settings, count, "rank"), "1");
    assert_string_equal(find_setting(settings, count, "roles"), "worker");
    assert_string_equal(find_setting(settings, count, "sum_order"), "rank");
    assert_string_equal(find_setting(settings, count, "bandwidth_bits"), "10gbit");
    assert_string_equal(find_setting(settings, count, "survive"), "nothing");
    assert_string_equal(find_setting(settings, count, "token"), "");
    assert_int_equal(trib_engine_get_settings(engine, NULL, 1, &count), TRIB_INVALID);
    assert_int_equal(trib_engine_get_members(engine, NULL, 1, &count), TRIB_INVALID);
    assert_int_equal(trib_engine_get_members(engine, members, 3, NULL), TRIB_INVALID);
    job_close(&jobs);
}

static void nobody_is_a_member_before_the_job_is_there(void **state)
{
    (void)state;
    trib_job_member member;
    trib_config config;
    size_t count = 5;
    const trib_unique_id id = make_id();
    configure(&config, 0, 2);
    config.unique_id = &id;
    trib_engine *engine = create(&config);
    assert_int_equal(trib_engine_get_members(engine, &member, 1, &count), TRIB_STATE);
    assert_int_equal(count, 0);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    assert_int_equal(trib_engine_get_members(NULL, &member, 1, &count), TRIB_INVALID);
}

static void features_and_version_are_told(void **state)
{
    (void)state;
    char text[32];
    const uint32_t number = trib_version_number();
    snprintf(text, sizeof text, "%u.%u.%u", number / 10000, number / 100 % 100, number % 100);
    assert_string_equal(text, trib_version());
    assert_true(trib_has_feature("tcp"));
    assert_true(trib_has_feature("unique_id"));
    assert_false(trib_has_feature("unique"));
    assert_false(trib_has_feature(""));
    assert_false(trib_has_feature(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_one_process_make_jobs_of_their_own),
        cmocka_unit_test(an_id_serves_one_engine),
        cmocka_unit_test(bytes_that_are_no_id_are_refused),
        cmocka_unit_test(an_address_that_is_not_here_is_refused),
        cmocka_unit_test(ids_that_differ_do_not_join),
        cmocka_unit_test(an_exchange_brings_the_address),
        cmocka_unit_test(a_callback_that_fails_is_named),
        cmocka_unit_test(bytes_at_a_wrong_place_are_refused),
        cmocka_unit_test(who_cannot_take_part_ends_all),
        cmocka_unit_test(counts_that_differ_are_named),
        cmocka_unit_test(a_port_that_rank_0_does_not_get_ends_all),
        cmocka_unit_test(servers_do_not_exchange),
        cmocka_unit_test(a_job_lists_its_members_and_settings),
        cmocka_unit_test(nobody_is_a_member_before_the_job_is_there),
        cmocka_unit_test(features_and_version_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
