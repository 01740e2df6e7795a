/*
 * test_group_release.c - groups end: their names can be used again. Nothing of an ended group stays in a worker, a
 * server or the coordinator. Operations in flight keep a group, and the others miss a member that has released it as
 * one that does not submit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/membership/coordinator_internal.h"
#include "engine/server/server_sum.h"
#include "engine/worker/op.h"
#include "tests/loop/job.h"

enum { WORKERS = 3, CYCLES = 200, IDLE_CYCLES = 4000, COUNT = 3000 };

static float values[WORKERS][COUNT];

static void several_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
    config->chunk_bytes = 4096;
    config->partition_bytes = 8192;
}

static trib_status try_create(const job *jobs, int rank, const char *name, const int32_t *ranks, uint32_t count,
                              trib_group **group_out, trib_error *error)
{
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.ranks = ranks;
    desc.rank_count = count;
    return trib_group_create(jobs->engines[rank], &desc, group_out, error);
}

static trib_group *create(const job *jobs, int rank, const char *name, const int32_t *ranks, uint32_t count)
{
    trib_group *group = NULL;
    trib_error error = {.text = ""};
    if (try_create(jobs, rank, name, ranks, count, &group, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return group;
}

static trib_tensor *declare(const job *jobs, int rank, trib_group *group, trib_layout layout)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "values";
    desc.count = COUNT;
    desc.layout = layout;
    desc.group = group;
    trib_tensor *tensor = NULL;
    trib_error error = {.text = ""};
    if (trib_tensor_declare(jobs->engines[rank], &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

static trib_op *begin(const job *jobs, int rank, trib_tensor *tensor)
{
    return job_push_pull(jobs->engines[rank], tensor, values[rank], values[rank], TRIB_SUM);
}

static trib_op *meet(const job *jobs, int rank, trib_group *group)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.group = group;
    trib_op *op = NULL;
    assert_int_equal(trib_barrier(jobs->engines[rank], &params, &op, NULL), TRIB_OK);
    return op;
}

/* ---- What is alive ---- */

static uint32_t count_alive(const job *jobs)
{
    uint32_t alive = 0;
    for (int i = 0; i < jobs->worker_count + jobs->server_count; i++) {
        trib_engine *engine = jobs->engines[i];
        pthread_mutex_lock(&engine->mutex);
        alive += engine->groups_alive;
        pthread_mutex_unlock(&engine->mutex);
        for (uint32_t id = 0; id < TRIB_GROUPS_MAX; id++) {
            alive += trib_engine_rank_set(engine, id) != NULL;
        }
        for (uint32_t core = 0; core < engine->core_count; core++) {
            alive += engine->cores[core].group_sum_list != NULL;
        }
    }
    return alive + (jobs->engines[0]->coordinator->groups != NULL);
}

/* The end of a group reaches the members one after the other. */
static void expect_nothing(const job *jobs)
{
    for (int i = 0; i < 4000 && count_alive(jobs) > 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_int_equal(count_alive(jobs), 0);
}

/* ---- Tests ---- */

/* Everybody in the group sums and meets, and releases it. Some release the tensor themselves. */
static void live_once(const job *jobs, const char *name, const int32_t *ranks, uint32_t count, int turn)
{
    trib_group *groups[WORKERS];
    trib_tensor *tensors[WORKERS];
    trib_op *ops[WORKERS], *barriers[WORKERS];
    for (uint32_t i = 0; i < count; i++) {
        const int rank = ranks[i];
        groups[i] = create(jobs, rank, name, ranks, count);
        assert_int_equal(trib_group_rank(groups[i]), i);
        tensors[i] = declare(jobs, rank, groups[i], TRIB_WHOLE);
        for (uint32_t k = 0; k < COUNT; k++) {
            values[rank][k] = (float)(rank + turn);
        }
        ops[i] = begin(jobs, rank, tensors[i]);
        barriers[i] = meet(jobs, rank, groups[i]);
    }
    float sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += (float)(ranks[i] + turn);
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        assert_int_equal(job_wait(barriers[i], NULL), TRIB_OK);
        assert_true(values[ranks[i]][0] == sum && values[ranks[i]][COUNT - 1] == sum);
    }
    for (uint32_t i = 0; i < count; i++) {
        if ((turn + (int)i) % 2 == 0) {
            assert_int_equal(trib_tensor_release(tensors[i], NULL), TRIB_OK);
        }
        assert_int_equal(trib_group_release(groups[i], NULL), TRIB_OK);
        assert_int_equal(trib_tensor_release(tensors[i], NULL), TRIB_INVALID);
    }
}

static void nothing_stays(void **state)
{
    (void)state;
    static const int32_t two[] = {2, 0}, all[] = {0, 1, 2}, one[] = {1};
    for (int servers = 0; servers < 2; servers++) {
        job jobs;
        job_open(&jobs, WORKERS, servers, several_reactors);
        for (int turn = 0; turn < CYCLES; turn++) {
            live_once(&jobs, turn % 4 < 2 ? "one name" : "another", two, 2, turn);
            live_once(&jobs, "everybody", all, 3, turn);
            live_once(&jobs, "alone", one, 1, turn);
        }
        expect_nothing(&jobs);
        job_close(&jobs);
    }
}

/* The memory of a worker follows the groups that live at the same time, and it hears when these are too many. */
static void without_use(void **state)
{
    (void)state;
    static const int32_t ranks[] = {0, 1};
    job jobs;
    job_open(&jobs, WORKERS, 1, several_reactors);
    for (int turn = 0; turn < IDLE_CYCLES; turn++) {
        for (int rank = 0; rank < 2; rank++) {
            trib_group *group = NULL;
            trib_error error = {.text = ""};
            trib_status status = TRIB_BUSY;
            while (status == TRIB_BUSY) {
                status = try_create(&jobs, rank, "idle", ranks, 2, &group, &error);
                if (status == TRIB_BUSY) {
                    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
                }
            }
            if (status != TRIB_OK) {
                fail_msg("turn %d, rank %d: %s", turn, rank, error.text);
            }
            assert_int_equal(trib_group_release(group, NULL), TRIB_OK);
        }
    }
    expect_nothing(&jobs);
    uint32_t kept = 0;
    for (const trib_group *group = jobs.engines[0]->free_groups; group != NULL; group = group->next) {
        kept++;
    }
    assert_in_range(kept, 1, TRIB_GROUPS_MAX);
    job_close(&jobs);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const int32_t ranks[] = {0, 1}, turned[] = {1, 0};
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    trib_group *mine = create(&jobs, 0, "busy", ranks, 2), *other = create(&jobs, 1, "busy", ranks, 2), *again = NULL;
    trib_op *op = begin(&jobs, 0, declare(&jobs, 0, mine, TRIB_WHOLE)), *barrier = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_group_release(mine, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "group \"busy\": 1 operations on its tensor \"values\" are in flight"));
    trib_op *answer = begin(&jobs, 1, declare(&jobs, 1, other, TRIB_WHOLE));
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(job_wait(answer, NULL), TRIB_OK);
    assert_int_equal(try_create(&jobs, 0, "busy", turned, 2, &again, &error), TRIB_MISMATCH);
    assert_int_equal(trib_group_release(NULL, NULL), TRIB_OK);
    assert_int_equal(trib_group_release(mine, &error), TRIB_OK);
    assert_string_equal(error.text, "");
    assert_int_equal(trib_group_release(mine, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "was released before"));
    assert_int_equal(trib_group_rank(mine), -1);
    assert_int_equal(trib_group_size(mine), 0);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.group = mine;
    assert_int_equal(trib_barrier(jobs.engines[0], &params, &barrier, &error), TRIB_INVALID);
    params.group = other; /* of another engine */
    assert_int_equal(trib_barrier(jobs.engines[0], &params, &barrier, &error), TRIB_INVALID);
    /* the second group of that name, while rank 1 has the first one still */
    again = create(&jobs, 0, "busy", turned, 2);
    op = meet(&jobs, 0, again);
    assert_int_equal(trib_group_release(other, NULL), TRIB_OK);
    other = create(&jobs, 1, "busy", turned, 2);
    answer = meet(&jobs, 1, other);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(job_wait(answer, NULL), TRIB_OK);
    assert_int_equal(trib_group_release(again, NULL), TRIB_OK);
    assert_int_equal(trib_group_release(other, NULL), TRIB_OK);
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* Members that give other ranks, and release what they have got. */
static void of_members_that_disagree(void **state)
{
    (void)state;
    static const int32_t ranks[] = {0, 1}, turned[] = {1, 0};
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    for (int turn = 0; turn < 20; turn++) {
        trib_group *groups[] = {create(&jobs, 0, "bad", ranks, 2), create(&jobs, 1, "bad", turned, 2)};
        trib_op *ops[2];
        for (int i = 0; i < 2; i++) {
            ops[i] = begin(&jobs, i, declare(&jobs, i, groups[i], TRIB_WHOLE));
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(job_wait(ops[i], NULL), TRIB_MISMATCH);
            assert_int_equal(trib_group_release(groups[i], NULL), TRIB_OK);
        }
    }
    live_once(&jobs, "bad", ranks, 2, 1);
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* Three members of which no two agree: all of them hear it, also the one that comes when the others have released. */
static void of_members_that_disagree_in_turn(void **state)
{
    (void)state;
    static const int32_t two[] = {0, 1}, all[] = {0, 1, 2}, other[] = {1, 2}, back[] = {2, 0};
    static const struct {
        const int32_t *ranks[WORKERS];
        uint32_t counts[WORKERS];
        bool is_late; /* the last one comes when the others have released */
    } cases[] = {
        {{two, other, back}, {2, 2, 2}, false}, /* each waits for the next one */
        {{two, all, all}, {2, 3, 3}, true},
        {{two, all, back}, {2, 3, 2}, true},
        {{all, two, all}, {3, 2, 3}, true},
    };
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    for (size_t turn = 0; turn < 5 * sizeof cases / sizeof cases[0]; turn++) {
        const size_t c = turn % (sizeof cases / sizeof cases[0]);
        const int early = cases[c].is_late ? WORKERS - 1 : WORKERS;
        trib_group *groups[WORKERS];
        trib_op *ops[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            for (int k = 0; i == early && k < i; k++) {
                assert_int_equal(job_wait(ops[k], NULL), TRIB_MISMATCH);
                assert_int_equal(trib_group_release(groups[k], NULL), TRIB_OK);
            }
            groups[i] = create(&jobs, i, "bad", cases[c].ranks[i], cases[c].counts[i]);
            ops[i] = begin(&jobs, i, declare(&jobs, i, groups[i], TRIB_WHOLE));
        }
        for (int i = early < WORKERS ? early : 0; i < WORKERS; i++) {
            assert_int_equal(job_wait(ops[i], NULL), TRIB_MISMATCH);
            assert_int_equal(trib_group_release(groups[i], NULL), TRIB_OK);
        }
        live_once(&jobs, "bad", turn % 2 == 0 ? two : all, turn % 2 == 0 ? 2 : 3, (int)turn);
    }
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* A worker asks for the next group of the name, with other ranks, while others still have the last one. */
static void of_other_ranks_at_once(void **state)
{
    (void)state;
    static const int32_t pairs[][2] = {{0, 1}, {1, 2}, {2, 0}};
    job jobs;
    job_open(&jobs, WORKERS, 1, several_reactors);
    trib_group *held[WORKERS] = {create(&jobs, 0, "moves", pairs[0], 2), create(&jobs, 1, "moves", pairs[0], 2)};
    for (int turn = 0; turn < 100; turn++) {
        const int32_t leaves = pairs[turn % 3][0], stays = pairs[turn % 3][1], comes = pairs[(turn + 1) % 3][1];
        const int32_t *next = pairs[(turn + 1) % 3];
        trib_op *last[] = {meet(&jobs, leaves, held[leaves]), meet(&jobs, stays, held[stays])};
        assert_int_equal(job_wait(last[0], NULL), TRIB_OK);
        assert_int_equal(job_wait(last[1], NULL), TRIB_OK);
        held[comes] = create(&jobs, comes, "moves", next, 2);
        trib_op *first = begin(&jobs, comes, declare(&jobs, comes, held[comes], TRIB_WHOLE));
        assert_int_equal(trib_group_release(held[stays], NULL), TRIB_OK);
        held[stays] = create(&jobs, stays, "moves", next, 2);
        trib_op *second = begin(&jobs, stays, declare(&jobs, stays, held[stays], TRIB_WHOLE));
        trib_error error = {.text = ""};
        if (job_wait(first, &error) != TRIB_OK || job_wait(second, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(trib_group_release(held[leaves], NULL), TRIB_OK);
        held[leaves] = NULL;
    }
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(trib_group_release(held[i], NULL), TRIB_OK);
    }
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* One member gathers, and the other one releases the group without having declared the tensor. */
static void without_a_declaration(void **state)
{
    (void)state;
    static const int32_t ranks[] = {0, 1};
    static float all[2 * COUNT];
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    trib_group *mine = create(&jobs, 0, "left", ranks, 2), *other = create(&jobs, 1, "left", ranks, 2);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare(&jobs, 0, mine, TRIB_SLICES);
    params.input = values[0];
    params.output = all;
    params.output_bytes = sizeof all;
    trib_op *op = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_all_gather(jobs.engines[0], &params, &op, NULL), TRIB_OK);
    assert_int_equal(trib_group_release(other, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_PEER_LEFT);
    assert_non_null(strstr(error.text, "rank 1"));
    assert_non_null(strstr(error.text, "has released the group"));
    assert_int_equal(trib_group_release(mine, NULL), TRIB_OK);
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* Three workers use one name: two for a group of theirs, the third for one of its own. */
static void of_one_name_without_common_ranks(void **state)
{
    (void)state;
    static const int32_t pair[] = {2, 0}, alone[] = {1};
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    trib_group *first = create(&jobs, 2, "row", pair, 2);
    for (int turn = 0; turn < 10; turn++) {
        live_once(&jobs, "row", alone, 1, turn);
    }
    assert_int_equal(trib_group_release(first, NULL), TRIB_OK);
    first = create(&jobs, 0, "row", pair, 2);
    assert_int_equal(trib_group_release(first, NULL), TRIB_OK);
    expect_nothing(&jobs);
    job_close(&jobs);
}

/* Two workers together make more groups than a job can have, each fewer than a worker may. The last ones are refused,
 * the others work, and when some are released there is room again. */
static void too_many_of_two_workers(void **state)
{
    (void)state;
    enum { EACH = TRIB_GROUPS_MAX * 5 / 8 };
    static trib_group *groups[2][EACH];
    static const int32_t alone[][1] = {{0}, {1}};
    char name[16];
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    trib_error error = {.text = ""};
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < EACH; i++) {
            snprintf(name, sizeof name, "%d", i);
            groups[rank][i] = create(&jobs, rank, name, alone[rank], 1);
        }
        /* The coordinator has all groups of rank 0 before it hears of those of rank 1. */
        assert_int_equal(job_wait(meet(&jobs, rank, groups[rank][rank == 0 ? EACH - 1 : 0]), NULL), TRIB_OK);
    }
    assert_int_equal(job_wait(begin(&jobs, 1, declare(&jobs, 1, groups[1][EACH - 1], TRIB_WHOLE)), &error), TRIB_BUSY);
    assert_non_null(strstr(error.text, "as many as it can have"));
    for (int i = 0; i < EACH; i++) {
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(trib_group_release(groups[rank][i], NULL), TRIB_OK);
        }
    }
    expect_nothing(&jobs);
    live_once(&jobs, "again", alone[1], 1, 1);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stays),
        cmocka_unit_test(without_use),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(of_members_that_disagree),
        cmocka_unit_test(of_members_that_disagree_in_turn),
        cmocka_unit_test(of_other_ranks_at_once),
        cmocka_unit_test(without_a_declaration),
        cmocka_unit_test(of_one_name_without_common_ranks),
        cmocka_unit_test(too_many_of_two_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
