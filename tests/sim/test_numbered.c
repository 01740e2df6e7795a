/* test_numbered.c - operations that the program numbers (TRIB_TENSOR_NUMBERED): workers that begin different ones under
 * one number are told, whatever these are; workers that are only late never are. See also test_name_uses.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/membership/waits.h"
#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 4, CALLS = 4 };

typedef enum kind { SUM, BROADCAST, GATHER, SCATTER, EXCHANGE, REDUCE, KINDS } kind;

static const char *const kind_names[KINDS] = {"sum", "broadcast", "gather", "scatter", "exchange", "reduce"};

typedef struct bed {
    sim_job *job;
    trib_group *groups[WORKERS]; /* NULL: all workers */
    int32_t inputs[WORKERS][CALLS][WORKERS * COUNT], outputs[WORKERS][CALLS][WORKERS * COUNT];
    trib_op *ops[WORKERS][CALLS];
    trib_tensor *tensors[WORKERS][CALLS];
} bed;

static void make_groups(bed *self, const char *name)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const int32_t ranks[WORKERS] = {2, 0, 1};
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.ranks = ranks;
        desc.rank_count = WORKERS;
        assert_int_equal(trib_group_create(self->job->members[rank].engine, &desc, &self->groups[rank], NULL), TRIB_OK);
    }
}

static bed *open_job(uint32_t servers, bool has_group)
{
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    const sim_job_config config = sim_job_config_default(WORKERS, servers);
    self->job = sim_bed_open(&config);
    if (has_group) {
        make_groups(self, "all");
    }
    return self;
}

static void let_go(bed *self, uint32_t rank, uint32_t at)
{
    if (self->ops[rank][at] != NULL) {
        trib_op_release(self->ops[rank][at]);
        self->ops[rank][at] = NULL;
        assert_int_equal(trib_tensor_release(self->tensors[rank][at], NULL), TRIB_OK);
    }
}

static void close_job(bed *self)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t at = 0; at < CALLS; at++) {
            let_go(self, rank, at);
        }
    }
    assert_true(sim_job_close(self->job, 200 * SECOND));
    sim_job_free(self->job);
    free(self);
}

static void run_for(bed *self, int64_t time_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + time_ns, NULL, NULL);
}

/* Begins the call of that number, on a tensor of its own. */
static void begin(bed *self, uint32_t rank, uint32_t at, kind what, uint32_t number)
{
    trib_engine *engine = self->job->members[rank].engine;
    const uint64_t splits[WORKERS] = {COUNT, COUNT, COUNT};
    char name[32];
    snprintf(name, sizeof name, "%s.%u", kind_names[what], number);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = what == EXCHANGE ? 0 : COUNT;
    desc.layout = what == EXCHANGE ? TRIB_PAIRS : what == GATHER || what == SCATTER ? TRIB_SLICES : TRIB_WHOLE;
    desc.splits = what == EXCHANGE ? splits : NULL;
    desc.split_count = what == EXCHANGE ? WORKERS : 0;
    desc.group = self->groups[rank];
    desc.flags = TRIB_TENSOR_NUMBERED;
    trib_error error = {.status = TRIB_OK};
    if (trib_tensor_declare(engine, &desc, &self->tensors[rank][at], &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[rank][at];
    params.input = self->inputs[rank][at];
    params.output = self->outputs[rank][at];
    params.output_bytes = what == GATHER || what == EXCHANGE ? sizeof self->outputs[rank][at] : 0;
    params.timeout_ns = 100 * SECOND;
    params.step = number;
    static trib_status (*const calls[KINDS])(trib_engine *, const trib_op_params *, trib_op **, trib_error *) = {
        trib_push_pull, trib_broadcast, trib_all_gather, trib_reduce_scatter, trib_all_to_all, trib_reduce_to};
    if (calls[what](engine, &params, &self->ops[rank][at], &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

static void expect(bed *self, uint32_t rank, uint32_t at, trib_status status, const char *words)
{
    trib_error error = {.status = TRIB_OK};
    const trib_status found = trib_op_wait(self->ops[rank][at], 0, &error);
    if (found != status || (words != NULL && strstr(error.text, words) == NULL)) {
        fail_msg("rank %u, call %u: %d, not %d with \"%s\": %s", rank, at, (int)found, (int)status,
                 words == NULL ? "" : words, error.text);
    }
}

static void expect_all(bed *self, uint32_t at, trib_status status, const char *words)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(self, rank, at, status, words);
    }
}

/* Rank 1 does something else than the others, and each call after that is its own again. */
static void kinds_differ_in(uint32_t servers, bool has_group)
{
    for (uint32_t pair = 0; pair < KINDS * KINDS; pair++) {
        const kind mine = (kind)(pair / KINDS), other = (kind)(pair % KINDS);
        if (mine == other) {
            continue;
        }
        bed *self = open_job(servers, has_group);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            begin(self, rank, 0, rank == 1 ? other : mine, 7);
        }
        run_for(self, 4 * SECOND);
        expect_all(self, 0, TRIB_MISMATCH, "workers differ in operation 7: ");
        char words[64];
        snprintf(words, sizeof words, "(\"%s.7\")", kind_names[mine]);
        expect_all(self, 0, TRIB_MISMATCH, words);
        snprintf(words, sizeof words, "(\"%s.7\")", kind_names[other]);
        expect_all(self, 0, TRIB_MISMATCH, words);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            begin(self, rank, 1, mine, 8);
        }
        run_for(self, SECOND);
        expect_all(self, 1, TRIB_OK, NULL);
        close_job(self);
    }
}

static void kinds_differ(void **state)
{
    (void)state;
    kinds_differ_in(1, false);
    kinds_differ_in(0, false);
}

static void kinds_differ_in_a_group(void **state)
{
    (void)state;
    kinds_differ_in(1, true);
}

static void texts_say_who_began_what(void **state)
{
    (void)state;
    bed *self = open_job(1, false);
    begin(self, 0, 0, GATHER, 0);
    begin(self, 1, 0, BROADCAST, 0);
    run_for(self, 4 * SECOND);
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect(self, rank, 0, TRIB_MISMATCH, "rank 0 (n0:1000) began an all-gather of int32[4] (\"gather.0\")");
        expect(self, rank, 0, TRIB_MISMATCH, "rank 1 (n1:1001) began a broadcast of int32[4] (\"broadcast.0\")");
        expect(self, rank, 0, TRIB_MISMATCH, "begin the same operations in the same order on all workers");
    }
    begin(self, 2, 0, BROADCAST, 0); /* it comes when the others know already */
    run_for(self, SECOND);
    expect(self, 2, 0, TRIB_MISMATCH, "workers differ in operation 0: ");
    close_job(self);
}

/* A worker that does a third thing is told of the other two, which have nothing to do with their tensors any more. */
static void all_may_differ_in(bool has_group)
{
    bed *self = open_job(1, has_group);
    begin(self, 0, 0, GATHER, 5);
    begin(self, 1, 0, BROADCAST, 5);
    run_for(self, 4 * SECOND);
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect(self, rank, 0, TRIB_MISMATCH, "workers differ in operation 5: ");
        let_go(self, rank, 0);
    }
    begin(self, 2, 0, SUM, 5);
    run_for(self, 4 * SECOND);
    expect(self, 2, 0, TRIB_MISMATCH, "workers differ in operation 5: ");
    close_job(self);
}

static void all_may_differ(void **state)
{
    (void)state;
    all_may_differ_in(false);
    all_may_differ_in(true);
}

static void differ(bed *self, uint32_t number)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, 0, rank == 1 ? GATHER : SUM, number);
    }
    run_for(self, 4 * SECOND);
    expect_all(self, 0, TRIB_MISMATCH, NULL);
}

/* Numbers of one group are nothing to another one, also where that has its memory. */
static void groups_count_for_themselves(void **state)
{
    (void)state;
    bed *self = open_job(1, true);
    differ(self, 3);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        let_go(self, rank, 0);
        assert_int_equal(trib_group_release(self->groups[rank], NULL), TRIB_OK);
    }
    run_for(self, SECOND);
    make_groups(self, "others");
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, 0, SUM, 3);
        run_for(self, 3 * SECOND);
    }
    expect_all(self, 0, TRIB_OK, NULL);
    close_job(self);
}

/* Rank 1's report of an operation comes when rank 0 has another tensor of the same number in it. */
static void a_report_may_be_late(void **state)
{
    (void)state;
    bed *self = open_job(1, false);
    trib_engine *engines[2] = {self->job->members[0].engine, self->job->members[1].engine};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, 0, SUM, 0);
        run_for(self, 2 * SECOND);
    }
    const uint32_t tag = engines[0]->stalls.tag;
    expect_all(self, 0, TRIB_OK, NULL);
    let_go(self, 0, 0);
    run_for(self, SECOND);
    begin(self, 0, 1, BROADCAST, 1);
    run_for(self, SECOND / 2); /* it has yet to report the next one */
    const trib_coordinator_slot *slot = &engines[0]->coordinator->slots[0];
    assert_non_null(slot->tensors[tag]);
    assert_string_equal(slot->tensors[tag]->name, "broadcast.1");
    const trib_frame late = {.type = TRIB_FRAME_WAITING, .tensor = engines[1]->stalls.tag, .round = 1, .step = 1};
    engines[1]->hooks->tell_coordinator(engines[1], &late, NULL, 0);
    run_for(self, SECOND / 4);
    begin(self, 1, 1, BROADCAST, 1);
    begin(self, 2, 1, BROADCAST, 1);
    run_for(self, SECOND);
    expect_all(self, 1, TRIB_OK, NULL);
    close_job(self);
}

/* Workers come one after the other to calls that are alike, each time another one first. Tensors are released as soon
 * as a worker is through, so that others get their memory and numbers while reports about them may be on their way. */
static void who_is_late_is_waited_for(bool has_group)
{
    bed *self = open_job(1, has_group);
    for (uint32_t number = 0; number < 2 * KINDS; number++) {
        for (uint32_t i = 0; i < WORKERS; i++) {
            const uint32_t rank = (number + i) % WORKERS;
            begin(self, rank, number % 2, (kind)(number % KINDS), number);
            run_for(self, 3 * SECOND);
        }
        expect_all(self, number % 2, TRIB_OK, NULL);
        const uint32_t first = (number + 1) % WORKERS;
        for (uint32_t rank = 0; rank < WORKERS; rank++) { /* but for the next call's first worker, one call later */
            let_go(self, rank, rank == first ? (number + 1) % 2 : number % 2);
        }
    }
    close_job(self);
}

static void late_workers_are_waited_for(void **state)
{
    (void)state;
    who_is_late_is_waited_for(false);
    who_is_late_is_waited_for(true);
}

/* Two calls are under way at once, and the later one is complete on some before the first one. */
static void later_calls_may_be_over_first(void **state)
{
    (void)state;
    bed *self = open_job(1, false);
    for (uint32_t rank = 0; rank < 2; rank++) {
        begin(self, rank, 0, SUM, 0);
        begin(self, rank, 1, BROADCAST, 1);
    }
    run_for(self, 3 * SECOND);
    begin(self, 2, 1, BROADCAST, 1);
    run_for(self, 3 * SECOND);
    begin(self, 2, 0, SUM, 0);
    run_for(self, SECOND);
    expect_all(self, 0, TRIB_OK, NULL);
    expect_all(self, 1, TRIB_OK, NULL);
    close_job(self);
}

/* A difference in a group is none of another group's operation of the same number. */
static void a_group_differs_by_itself(void **state)
{
    (void)state;
    bed *self = open_job(1, true);
    differ(self, 3);
    memset(self->groups, 0, sizeof self->groups);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, 1, SUM, 3);
        run_for(self, 3 * SECOND);
    }
    expect_all(self, 1, TRIB_OK, NULL);
    close_job(self);
}

static void join_all(bed *self)
{
    trib_op *joins[WORKERS];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_join(self->job->members[rank].engine, &params, &joins[rank], NULL), TRIB_OK);
    }
    run_for(self, 2 * SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_op_release(joins[rank]);
    }
}

/* Numbers begin anew when all have joined. Rank 0, then rank 1, has said before that operation 0 is a sum; or workers
 * have differed in it. */
static void a_join_ends_the_numbers_of(kind other, trib_status status)
{
    bed *self = open_job(1, false);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, 0, rank == 1 ? other : SUM, 0);
        run_for(self, 3 * SECOND);
    }
    expect_all(self, 0, status, NULL);
    join_all(self);
    for (uint32_t rank = WORKERS; rank-- > 0;) {
        begin(self, rank, 1, BROADCAST, 0);
        run_for(self, 3 * SECOND);
    }
    expect_all(self, 1, TRIB_OK, NULL);
    close_job(self);
}

static void a_join_ends_the_numbers(void **state)
{
    (void)state;
    a_join_ends_the_numbers_of(SUM, TRIB_OK);
    a_join_ends_the_numbers_of(GATHER, TRIB_MISMATCH);
}

/* A boundary counts numbered operations, and not which ones: those that differ have been told, and failed on all. */
static void boundaries_succeed_afterwards(void **state)
{
    (void)state;
    bed *self = open_job(1, false);
    differ(self, 0);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_checkpoint(self->job->members[rank].engine, NULL, &self->ops[rank][1], NULL), TRIB_OK);
    }
    run_for(self, SECOND);
    expect_all(self, 1, TRIB_OK, NULL);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_op_release(self->ops[rank][1]);
        self->ops[rank][1] = NULL;
    }
    close_job(self);
}

/* ---- Planted bugs ---- */

#define BUG_LIST(X)                                                                                                    \
    X(NUMBERS_IGNORED, "all numbers are taken for one")                                                                \
    X(NUMBERS_LOST, "the worker tells no number")                                                                      \
    X(TENSORS_KEPT, "reports of waits outlast their tensors")                                                          \
    X(REPORTS_KEPT, "reports of waits outlast a join")                                                                 \
    X(DIFFERENCE_KEPT, "a difference outlasts a join")                                                                 \
    X(GROUPS_IGNORED, "a difference is one of all groups")
#include "tests/sim/planted.h"

__typeof__(trib_waits_take) __real_trib_waits_take, __wrap_trib_waits_take;
trib_status __wrap_trib_waits_take(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_frame told = *frame;
    told.step = planted == PLANT_NUMBERS_IGNORED ? 1 : planted == PLANT_NUMBERS_LOST ? 0 : frame->step;
    if (planted == PLANT_GROUPS_IGNORED) {
        self->difference.group = trib_slot_entry(&self->slots[member], frame->tensor)->group;
    }
    return __real_trib_waits_take(self, member, &told, error);
}

__typeof__(trib_registry_take_release) __real_trib_registry_take_release, __wrap_trib_registry_take_release;
trib_status __wrap_trib_registry_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                              trib_error *error)
{
    const bool was_told = self->slots[rank].wait.is_told;
    const trib_status status = __real_trib_registry_take_release(self, rank, frame, error);
    self->slots[rank].wait.is_told = planted == PLANT_TENSORS_KEPT ? was_told : self->slots[rank].wait.is_told;
    return status;
}

__typeof__(trib_waits_clear) __real_trib_waits_clear, __wrap_trib_waits_clear;
void __wrap_trib_waits_clear(trib_coordinator *self)
{
    const uint32_t use = self->difference.use;
    if (planted != PLANT_REPORTS_KEPT) {
        __real_trib_waits_clear(self);
    }
    self->difference.use = planted == PLANT_DIFFERENCE_KEPT ? use : self->difference.use;
}

static const struct CMUnitTest scenes[] = {
    cmocka_unit_test(kinds_differ),
    cmocka_unit_test(kinds_differ_in_a_group),
    cmocka_unit_test(texts_say_who_began_what),
    cmocka_unit_test(all_may_differ),
    cmocka_unit_test(groups_count_for_themselves),
    cmocka_unit_test(a_report_may_be_late),
    cmocka_unit_test(late_workers_are_waited_for),
    cmocka_unit_test(later_calls_may_be_over_first),
    cmocka_unit_test(a_group_differs_by_itself),
    cmocka_unit_test(a_join_ends_the_numbers),
    cmocka_unit_test(boundaries_succeed_afterwards),
};

int main(void)
{
    return run_with_bugs("numbered operations", scenes, sizeof scenes / sizeof scenes[0]);
}
