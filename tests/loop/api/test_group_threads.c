/* test_group_threads.c - many threads of each worker make groups, declare tensors in them and gather, all at once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { WORKERS = 3, THREADS = 4, TURNS = 12, LENGTH = 40 };

typedef struct part {
    trib_engine *engine;
    int rank, thread;
    char why[TRIB_ERROR_TEXT_SIZE]; /* "" if all went well */
} part;

static bool is_right(const int32_t *got, const int32_t *ranks, uint32_t members, int turn)
{
    for (uint32_t k = 0; k < members; k++) {
        for (int i = 0; i < LENGTH; i++) {
            if (*got++ != ranks[k] * 1000 + turn + i) {
                return false;
            }
        }
    }
    return true;
}

static trib_status gather(part *self, trib_group *group, const int32_t *ranks, uint32_t members, int turn,
                          trib_error *error)
{
    int32_t mine[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        mine[i] = self->rank * 1000 + turn + i;
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "same name in every group";
    desc.dtype = TRIB_INT32;
    desc.layout = TRIB_SLICES;
    desc.count = LENGTH;
    desc.group = group;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = mine;
    params.flags = TRIB_OP_ALLOCATE_OUTPUT;
    trib_status status = trib_tensor_declare(self->engine, &desc, &params.tensor, error);
    trib_op *op = NULL;
    status = status == TRIB_OK ? trib_all_gather(self->engine, &params, &op, error) : status;
    status = status == TRIB_OK ? trib_op_wait(op, -1, error) : status;
    void *output = NULL;
    status = status == TRIB_OK ? trib_op_output(op, &output, NULL, error) : status;
    if (status == TRIB_OK && !is_right(output, ranks, members, turn)) {
        status = TRIB_SYSTEM;
        snprintf(error->text, sizeof error->text, "a wrong result");
    }
    trib_op_release(op);
    return status;
}

/* The thread of that number makes the same groups on each worker, each turn with another pair or with all. */
static void *run_part(void *user)
{
    part *self = user;
    for (int turn = 0; turn < TURNS && self->why[0] == '\0'; turn++) {
        const int32_t left_out = (turn + self->thread) % (WORKERS + 1);
        int32_t ranks[WORKERS];
        uint32_t members = 0;
        for (int32_t rank = 0; rank < WORKERS; rank++) {
            ranks[members] = (rank + turn) % WORKERS;
            members += ranks[members] != left_out;
        }
        if (self->rank == left_out) {
            continue;
        }
        char name[40];
        snprintf(name, sizeof name, "group %d.%d", self->thread, turn);
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.ranks = ranks;
        desc.rank_count = members;
        trib_group *group = NULL;
        trib_error error = {.text = ""};
        if (trib_group_create(self->engine, &desc, &group, &error) != TRIB_OK ||
            gather(self, group, ranks, members, turn, &error) != TRIB_OK) {
            snprintf(self->why, sizeof self->why, "%s", error.text);
        }
    }
    return NULL;
}

static void several_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
}

static void test_many_threads(void **state)
{
    (void)state;
    static part parts[WORKERS][THREADS];
    pthread_t threads[WORKERS][THREADS];
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < THREADS; i++) {
            parts[rank][i] = (part){.engine = jobs.engines[rank], .rank = rank, .thread = i};
            assert_int_equal(pthread_create(&threads[rank][i], NULL, run_part, &parts[rank][i]), 0);
        }
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[rank][i], NULL), 0);
        }
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < THREADS; i++) {
            if (parts[rank][i].why[0] != '\0') {
                fail_msg("rank %d, thread %d: %s", rank, i, parts[rank][i].why);
            }
        }
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
