/*
 * test_race.c - many threads of each worker use one engine at once, without any lock of their own.
 *
 * A thread of each worker has the same number and draws the same turns from it: groups and tensors of all layouts that
 * come and go, also while operations are under way, batches, one-off operations, bytes, barriers and cancellations. In
 * the second test threads sum while another thread joins.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { WORKERS = 3, THREADS = 5, TURNS = 40, LAPS = 6, ROOM = 8192 };

typedef struct part {
    trib_engine *engine;
    int32_t rank, thread;
    char why[TRIB_ERROR_TEXT_SIZE + 64]; /* "" if all went well */
    int32_t first[ROOM], second[ROOM], third[ROOM];
} part;

typedef struct turn {
    uint64_t random;
    int32_t number;
    trib_group *group; /* NULL: all workers */
    int32_t ranks[WORKERS];
    uint32_t count, place, is_own; /* is_own: no other turn or thread has the group */
    char name[48];
} turn;

static uint32_t draw_below(uint64_t *state, uint32_t bound)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) % bound);
}

static bool says(part *self, int32_t number, const char *what, const char *text)
{
    snprintf(self->why, sizeof self->why, "turn %d, %s: %s", number, what, text);
    return false;
}

static bool works(part *self, const turn *at, const char *what, trib_status status, const trib_error *error)
{
    return status == TRIB_OK || says(self, at->number, what, error->text);
}

static int32_t value(int32_t rank, int32_t number, uint64_t i)
{
    return rank * 1000 + number * 7 + (int32_t)(i % 97);
}

static void fill(const part *self, const turn *at, int32_t *data, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        data[i] = value(self->rank, at->number, i);
    }
}

static int32_t sum_of(const turn *at, uint64_t i)
{
    int32_t sum = 0;
    for (uint32_t k = 0; k < at->count; k++) {
        sum += value(at->ranks[k], at->number, i);
    }
    return sum;
}

/* Submits both operations at once, tries to release the tensor while they may be under way, and waits for them. */
static bool run_both(part *self, const turn *at, trib_tensor *tensor, trib_op_params *params, trib_op **ops)
{
    trib_error error;
    for (int i = 0; i < 2; i++) {
        params[i].struct_size = sizeof params[i];
        params[i].tensor = tensor;
    }
    if (!works(self, at, "submit", trib_submit_batch(self->engine, params, 2, ops, &error), &error)) {
        return false;
    }
    const trib_status early = trib_tensor_release(tensor, &error);
    if (early != TRIB_STATE && !works(self, at, "release in flight", early, &error)) {
        return false;
    }
    return works(self, at, "wait", trib_op_wait_some(ops, 2, 2, -1, NULL, NULL, &error), &error) &&
           (early == TRIB_OK || works(self, at, "release", trib_tensor_release(tensor, &error), &error));
}

static trib_tensor *declare(part *self, const turn *at, trib_tensor_desc desc)
{
    trib_error error;
    trib_tensor *tensor = NULL;
    desc.struct_size = sizeof desc;
    desc.name = at->name;
    desc.dtype = TRIB_INT32;
    desc.group = at->group;
    desc.flags = TRIB_TENSOR_NEW;
    (void)works(self, at, "declare", trib_tensor_declare(self->engine, &desc, &tensor, &error), &error);
    return tensor;
}

static void drop(trib_op **ops)
{
    trib_op_release(ops[0]);
    trib_op_release(ops[1]);
}

static bool whole(part *self, turn *at)
{
    const uint64_t count = draw_below(&at->random, 3000);
    const uint32_t root = draw_below(&at->random, at->count);
    const bool gives = draw_below(&at->random, 2) == 0;
    trib_tensor *tensor = declare(self, at, (trib_tensor_desc){.count = count});
    fill(self, at, self->first, count);
    fill(self, at, self->second, count);
    trib_op_params params[2] = {
        {.kind = TRIB_OP_PUSH_PULL, .input = self->first, .output = self->first, .bytes = count * 4},
        {.kind = gives ? TRIB_OP_BROADCAST : TRIB_OP_REDUCE,
         .input = self->second,
         .output = self->second,
         .root = (int32_t)root},
    };
    trib_op *ops[2] = {NULL, NULL};
    bool well = tensor != NULL && run_both(self, at, tensor, params, ops);
    for (uint64_t i = 0; well && i < count; i++) {
        const int32_t sum = sum_of(at, i), given = value(at->ranks[root], at->number, i);
        const bool is_right = gives ? self->second[i] == given : at->place == root ? self->second[i] == sum : true;
        if (self->first[i] != sum || !is_right) {
            well = says(self, at->number, "whole", "a wrong result");
        }
    }
    drop(ops);
    return well;
}

/* Members' slices have lengths of their own, and some have none. */
static bool slices(part *self, turn *at)
{
    uint64_t counts[WORKERS] = {0}, total = 0, before = 0;
    for (uint32_t k = 0; k < at->count; k++) {
        counts[k] = draw_below(&at->random, 4) == 0 ? 0 : draw_below(&at->random, 2000);
        before += k < at->place ? counts[k] : 0;
        total += counts[k];
    }
    trib_tensor *tensor = declare(self, at, (trib_tensor_desc){.count = counts[at->place], .layout = TRIB_SLICES});
    fill(self, at, self->first, total);
    trib_op_params params[2] = {
        {.kind = TRIB_OP_ALL_GATHER, .input = self->first, .flags = TRIB_OP_ALLOCATE_OUTPUT},
        {.kind = TRIB_OP_REDUCE_SCATTER, .input = self->first, .output = self->second},
    };
    trib_op *ops[2] = {NULL, NULL};
    trib_error error;
    void *output = NULL;
    bool well = tensor != NULL && run_both(self, at, tensor, params, ops) &&
                works(self, at, "output", trib_op_output(ops[0], &output, NULL, &error), &error);
    const int32_t *gathered = output;
    for (uint32_t k = 0; well && k < at->count; k++) {
        for (uint64_t i = 0; i < counts[k]; i++) {
            well = well && *gathered++ == value(at->ranks[k], at->number, i);
        }
    }
    for (uint64_t i = 0; well && i < counts[at->place]; i++) {
        well = self->second[i] == sum_of(at, before + i);
    }
    drop(ops);
    return well || (self->why[0] == '\0' && says(self, at->number, "slices", "a wrong result"));
}

static bool pairs(part *self, turn *at)
{
    uint64_t splits[WORKERS][WORKERS] = {{0}}, given = 0, room = 0;
    for (uint32_t i = 0; i < at->count; i++) {
        for (uint32_t j = 0; j < at->count; j++) {
            splits[i][j] = draw_below(&at->random, 1200);
            given += i == at->place ? splits[i][j] : 0;
            room += j == at->place ? splits[i][j] : 0;
        }
    }
    trib_tensor *tensor = declare(
        self, at, (trib_tensor_desc){.layout = TRIB_PAIRS, .splits = splits[at->place], .split_count = at->count});
    fill(self, at, self->first, given);
    trib_op_params params[2] = {
        {.kind = TRIB_OP_ALL_TO_ALL, .input = self->first, .output = self->second, .output_bytes = room * 4},
        {.kind = TRIB_OP_ALL_TO_ALL, .input = self->first, .output = self->third, .output_bytes = room * 4},
    };
    trib_op *ops[2] = {NULL, NULL};
    bool well = tensor != NULL && run_both(self, at, tensor, params, ops);
    uint64_t at_output = 0;
    for (uint32_t k = 0; well && k < at->count; k++) {
        uint64_t from = 0;
        for (uint32_t j = 0; j < at->place; j++) {
            from += splits[k][j];
        }
        for (uint64_t i = 0; well && i < splits[k][at->place]; i++, at_output++) {
            const int32_t wanted = value(at->ranks[k], at->number, from + i);
            well = self->second[at_output] == wanted && self->third[at_output] == wanted;
        }
    }
    drop(ops);
    return well || (self->why[0] == '\0' && says(self, at->number, "pairs", "a wrong result"));
}

/* The n-th of a worker may belong with one of another thread of the others: all are alike. */
static bool nameless(part *self, turn *at)
{
    trib_error error;
    trib_op *ops[2] = {NULL, NULL};
    uint64_t one[WORKERS] = {1, 1, 1};
    trib_op_params once = {.struct_size = sizeof once,
                           .flags = TRIB_OP_ONCE,
                           .dtype = TRIB_UINT64,
                           .bytes = sizeof one,
                           .input = one,
                           .output = one};
    unsigned char mine[256];
    memset(mine, 'a' + self->rank, sizeof mine);
    trib_op_params some = {.struct_size = sizeof some, .input = mine, .input_bytes = (uint64_t)self->rank * 100};
    bool well = works(self, at, "once", trib_all_reduce(self->engine, &once, &ops[0], &error), &error) &&
                works(self, at, "bytes", trib_all_gather_bytes(self->engine, &some, &ops[1], &error), &error) &&
                works(self, at, "wait", trib_op_wait_some(ops, 2, 2, -1, NULL, NULL, &error), &error);
    void *output = NULL;
    uint64_t size = 0;
    well = well && works(self, at, "output", trib_op_output(ops[1], &output, &size, &error), &error);
    const char *text = output;
    if (well && (one[0] != WORKERS || one[2] != WORKERS || size != 300 || text[0] != 'b' || text[299] != 'c')) {
        well = says(self, at->number, "once and bytes", "a wrong result");
    }
    drop(ops);
    return well;
}

static bool barrier(part *self, turn *at)
{
    trib_error error;
    trib_op *op = NULL;
    const trib_op_params params = {.struct_size = sizeof params, .group = at->group};
    const bool well = works(self, at, "barrier", trib_barrier(self->engine, &params, &op, &error), &error) &&
                      works(self, at, "barrier", trib_op_wait(op, -1, &error), &error);
    trib_op_release(op);
    return well;
}

/* Some members cancel. An operation that nevertheless succeeds has the sum of all. */
static bool cancelled(part *self, turn *at)
{
    const uint64_t count = 1 + draw_below(&at->random, 3000);
    const uint32_t mask = draw_below(&at->random, 1 << WORKERS);
    trib_tensor *tensor = declare(self, at, (trib_tensor_desc){.count = count});
    trib_error error;
    trib_op *op = NULL;
    fill(self, at, self->first, count);
    const trib_op_params params = {
        .struct_size = sizeof params, .tensor = tensor, .input = self->first, .output = self->second};
    if (tensor == NULL || !works(self, at, "submit", trib_all_reduce(self->engine, &params, &op, &error), &error)) {
        return false;
    }
    if ((mask >> at->place & 1) != 0) {
        trib_op_cancel(op);
    }
    const trib_status status = trib_op_wait(op, -1, &error);
    bool well = status == TRIB_CANCELLED || works(self, at, "wait", status, &error);
    for (uint64_t i = 0; status == TRIB_OK && i < count; i++) {
        well = well && (self->second[i] == sum_of(at, i) || says(self, at->number, "cancelled", "a wrong result"));
    }
    trib_op_release(op);
    return well && works(self, at, "release", trib_tensor_release(tensor, &error), &error);
}

/* Draws who takes part: all workers, or a group that is new, or was made by an earlier turn or another thread. */
static bool choose_members(part *self, turn *at)
{
    uint32_t count = 0;
    const uint32_t shift = draw_below(&at->random, WORKERS), left_out = draw_below(&at->random, WORKERS + 1);
    const uint32_t kind = draw_below(&at->random, 3);
    for (uint32_t i = 0; i < WORKERS; i++) {
        const uint32_t rank = kind == 0 ? i : (i + shift) % WORKERS;
        if (kind == 0 || rank != left_out) {
            at->place = (int32_t)rank == self->rank ? count : at->place;
            at->ranks[count++] = (int32_t)rank;
        }
    }
    at->count = count;
    at->is_own = kind == 2;
    if (kind == 0) {
        return true;
    }
    trib_error error;
    trib_group_desc desc;
    char name[48];
    trib_group_desc_init(&desc, sizeof desc);
    snprintf(name, sizeof name, kind == 1 ? "shift %u without %u" : "shift %u without %u, thread %d, turn %d", shift,
             left_out, self->thread, at->number);
    desc.name = name;
    desc.ranks = at->ranks;
    desc.rank_count = count;
    return left_out != (uint32_t)self->rank &&
           works(self, at, "group", trib_group_create(self->engine, &desc, &at->group, &error), &error);
}

static void *take_turns(void *user)
{
    static bool (*const actions[])(part *, turn *) = {whole, slices, pairs, cancelled, nameless, barrier};
    part *self = user;
    for (int32_t number = 0; number < TURNS && self->why[0] == '\0'; number++) {
        turn at = {.number = number, .random = (uint64_t)(self->thread * TURNS + number) * 977};
        snprintf(at.name, sizeof at.name, "thread %d, %d", self->thread, number % 3);
        const bool takes_part = choose_members(self, &at);
        const uint32_t action = draw_below(&at.random, sizeof actions / sizeof actions[0]);
        if (self->why[0] == '\0' && (takes_part || actions[action] == nameless)) {
            (void)(actions[action](self, &at) && at.is_own > 0 &&
                   works(self, &at, "release the group", trib_group_release(at.group, NULL),
                         &(trib_error){.status = 0}));
        }
    }
    return NULL;
}

static part parts[WORKERS][THREADS];
static void run_parts(const job *jobs, void *(*run)(void *))
{
    pthread_t threads[WORKERS][THREADS];
    for (int32_t rank = 0; rank < WORKERS; rank++) {
        for (int32_t i = 0; i < THREADS; i++) {
            parts[rank][i] = (part){.engine = jobs->engines[rank], .rank = rank, .thread = i};
            assert_int_equal(pthread_create(&threads[rank][i], NULL, run, &parts[rank][i]), 0);
        }
    }
    for (int32_t rank = 0; rank < WORKERS; rank++) {
        for (int32_t i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[rank][i], NULL), 0);
        }
    }
    for (int32_t i = 0; i < WORKERS * THREADS; i++) {
        const part *one = &parts[i / THREADS][i % THREADS];
        if (one->why[0] != '\0') {
            fail_msg("rank %d, thread %d, %s", one->rank, one->thread, one->why);
        }
    }
}

static void small_pieces(trib_config *config, int member)
{
    (void)member;
    config->chunk_bytes = 4096;
    config->partition_bytes = 8192;
    config->reactors = 2;
}

static void queues(trib_config *config, int member)
{
    small_pieces(config, member);
    config->mode = member < WORKERS ? TRIB_MODE_QUEUE : TRIB_MODE_THREADS;
}

static void test_all_at_once(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, 0, small_pieces);
    run_parts(&jobs, take_turns);
    job_close(&jobs);
    job_open(&jobs, WORKERS, 1, queues);
    run_parts(&jobs, take_turns);
    job_close(&jobs);
}

/* ---- Joining ---- */

static struct {
    pthread_barrier_t together[WORKERS]; /* of a worker's threads */
    atomic_int refused;                  /* threads whose worker has joined, in this lap */
} laps;

/* One sum, of 1 from each worker that has not joined. Returns TRIB_STATE if this worker has. */
static trib_status add_ones(part *self, trib_tensor *tensor, int32_t lap, int32_t least)
{
    trib_error error;
    trib_op *op = NULL;
    const turn at = {.number = lap};
    for (int i = 0; i < 2000; i++) {
        self->first[i] = 1;
    }
    const trib_op_params params = {
        .struct_size = sizeof params, .tensor = tensor, .input = self->first, .output = self->first};
    trib_status status = trib_all_reduce(self->engine, &params, &op, &error);
    if (status == TRIB_STATE) {
        return status;
    }
    status = status == TRIB_OK ? trib_op_wait(op, -1, &error) : status;
    trib_op_release(op);
    (void)works(self, &at, "sum", status, &error);
    for (int i = 0; status == TRIB_OK && i < 2000; i++) {
        if (self->first[i] < least || self->first[i] > WORKERS || self->first[i] != self->first[i / 1024 * 1024]) {
            (void)says(self, lap, "sum", "a wrong result");
        }
    }
    return status;
}

static trib_tensor *declare_ones(part *self, const char *name, int32_t lap)
{
    turn at = {.number = lap};
    snprintf(at.name, sizeof at.name, "%s of thread %d", name, self->thread);
    return declare(self, &at, (trib_tensor_desc){.count = 2000});
}

static void join(part *self, int32_t lap)
{
    trib_error error;
    trib_op *op = NULL;
    int32_t last = -1;
    const turn at = {.number = lap};
    const trib_op_params params = {.struct_size = sizeof params, .output = &last};
    if (works(self, &at, "join", trib_join(self->engine, &params, &op, &error), &error) &&
        works(self, &at, "join", trib_op_wait(op, -1, &error), &error) && (last < 0 || last >= WORKERS)) {
        (void)says(self, lap, "join", "no rank was last");
    }
    trib_op_release(op);
}

/* A worker with more data uses tensors that the others never declare, and releases them. */
static void use_more(part *self, int32_t lap)
{
    trib_error error;
    for (int32_t i = 0; i < (self->rank + lap) % WORKERS; i++) {
        trib_tensor *own = declare_ones(self, "of this lap", lap);
        (void)add_ones(self, own, lap, 1);
        (void)works(self, &(turn){.number = lap}, "release", trib_tensor_release(own, &error), &error);
    }
}

/* Sums until this worker's thread 0 has joined. Another worker goes on until then, and a third has joined before. */
static void sum_until_refused(part *self, trib_tensor *tensor, int32_t lap)
{
    const bool is_last = (self->rank + lap) % WORKERS == WORKERS - 1;
    const int all = (THREADS - 1) * (lap / 2 + 1);
    trib_status status = TRIB_OK;
    while (status == TRIB_OK && (!is_last || atomic_load(&laps.refused) < all)) {
        status = add_ones(self, tensor, lap, 1);
    }
    atomic_fetch_add(&laps.refused, is_last ? 0 : 1);
}

/* Each lap begins with a sum of all. */
static void *take_laps(void *user)
{
    part *self = user;
    pthread_barrier_t *together = &laps.together[self->rank];
    trib_tensor *tensor = declare_ones(self, "ones", -1);
    for (int32_t lap = 0; lap < LAPS; lap++) {
        const bool races = lap % 2 == 1, is_last = (self->rank + lap) % WORKERS == WORKERS - 1;
        (void)add_ones(self, tensor, lap, WORKERS);
        if (!races) {
            use_more(self, lap);
        }
        (void)pthread_barrier_wait(together);
        if (races && self->thread != 0 && (self->rank + lap) % WORKERS != 0) {
            sum_until_refused(self, tensor, lap);
        }
        if (is_last || !races) {
            (void)pthread_barrier_wait(together);
        }
        if (self->thread == 0) {
            join(self, lap);
        }
        (void)pthread_barrier_wait(together);
    }
    return NULL;
}

static void test_joins(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, 0, small_pieces);
    for (int32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(pthread_barrier_init(&laps.together[rank], NULL, THREADS), 0);
    }
    atomic_store(&laps.refused, 0);
    run_parts(&jobs, take_laps);
    for (int32_t rank = 0; rank < WORKERS; rank++) {
        pthread_barrier_destroy(&laps.together[rank]);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_at_once), cmocka_unit_test(test_joins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
