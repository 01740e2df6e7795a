/* test_crossed_waits.c - workers that wait for each other in different operations: those of one name fail at once, with
 * a text that says who began what; of others each worker says what the one that it waits for waits for. Workers that
 * are only late are never told to fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/membership/waits.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 8, LOG_SIZE = 8192, USES = 4 };

static char logs[WORKERS + 1][LOG_SIZE];

typedef struct waits {
    sim_job *job;
    trib_group *groups[WORKERS + 1];           /* that tensors are declared in; NULL: none */
    int32_t buffers[WORKERS + 1][USES][COUNT]; /* one scene has one more */
    trib_op *ops[WORKERS + 1][USES];
} waits;

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)level;
    char *text = user;
    const size_t used = strnlen(text, LOG_SIZE - 1);
    snprintf(text + used, LOG_SIZE - used, "%s\n", line);
}

static void listen_to_log(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->log_level = TRIB_LOG_WARN;
    config->log_cb = on_log;
    config->log_user = logs[member];
}

static void open_with(waits *self, sim_job_config *config)
{
    memset(logs, 0, sizeof logs);
    memset(self, 0, sizeof *self);
    config->tweak = listen_to_log;
    self->job = sim_bed_open(config);
}

static void open_job(waits *self, uint32_t servers, uint32_t reactors)
{
    sim_job_config config = sim_job_config_default(WORKERS, servers);
    config.engine.reactors = (int32_t)reactors;
    open_with(self, &config);
}

static void open_surviving_job(waits *self, trib_survive survive)
{
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = survive;
    open_with(self, &config);
}

static void create_groups(waits *self)
{
    const int32_t ranks[WORKERS] = {2, 0, 1};
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = "all";
    desc.ranks = ranks;
    desc.rank_count = WORKERS;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_group_create(self->job->members[rank].engine, &desc, &self->groups[rank], NULL), TRIB_OK);
    }
}

static void close_job(waits *self)
{
    for (uint32_t rank = 0; rank < WORKERS + 1; rank++) {
        for (uint32_t i = 0; i < USES; i++) {
            if (self->ops[rank][i] != NULL) {
                trib_op_release(self->ops[rank][i]);
            }
        }
    }
    assert_true(sim_job_close(self->job, 20 * SECOND));
    sim_job_free(self->job);
}

/* Begins a use of a name: a sum of so many elements. Shapes after the first one have a tensor with a longer name. */
static void use(waits *self, uint32_t rank, uint32_t number, const char *name, uint32_t count)
{
    char full[64];
    snprintf(full, sizeof full, count == COUNT ? "%s" : "%s#%u", name, count);
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = full;
    desc.name_length = (uint32_t)strlen(name);
    desc.dtype = TRIB_INT32;
    desc.count = count;
    desc.group = self->groups[rank];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = self->buffers[rank][number];
    params.timeout_ns = 100 * SECOND;
    trib_engine *engine = self->job->members[rank].engine;
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
    assert_int_equal(trib_push_pull(engine, &params, &self->ops[rank][number], &error), TRIB_OK);
}

static void use_on_all(waits *self, uint32_t number, const char *name, uint32_t count)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(self, rank, number, name, count);
    }
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, NULL, NULL);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_op_wait(self->ops[rank][number], 0, NULL), TRIB_OK);
    }
}

static void run_for(waits *self, int64_t time_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + time_ns, NULL, NULL);
}

static void expect(waits *self, uint32_t rank, uint32_t number, trib_status status, const char *words)
{
    trib_error error = {.status = TRIB_OK};
    const trib_status found = trib_op_wait(self->ops[rank][number], 0, &error);
    if (found != status || (words != NULL && strstr(error.text, words) == NULL)) {
        fail_msg("rank %u, use %u: %d, not %d with \"%s\": %s", rank, number, (int)found, (int)status, words,
                 error.text);
    }
}

/* Both shapes have been used before, or one of them: the declarations tell nothing. */
static void shapes_of_a_name(waits *self, bool both)
{
    use_on_all(self, 0, "g", COUNT);
    if (both) {
        use_on_all(self, 1, "g", 4);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(self, rank, 2, "g", rank == 1 ? 4 : COUNT);
    }
    run_for(self, 8 * SECOND);
    char words[64];
    snprintf(words, sizeof words, "workers differ in use %d of this name: rank ", both ? 3 : 2);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(self, rank, 2, TRIB_MISMATCH, words);
        expect(self, rank, 2, TRIB_MISMATCH, "a sum of int32[4]");
        expect(self, rank, 2, TRIB_MISMATCH, "a sum of int32[8]");
        expect(self, rank, 2, TRIB_MISMATCH, "rank 1 (n");
        expect(self, rank, 2, TRIB_MISMATCH, "or take another name");
    }
    use_on_all(self, 3, "h", COUNT); /* the job goes on */
    close_job(self);
}

static void shapes_of_a_name_differ(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 0, 1);
    shapes_of_a_name(&self, true);
    open_job(&self, 1, 3);
    shapes_of_a_name(&self, true);
    open_job(&self, 0, 2);
    shapes_of_a_name(&self, false);
}

static void shapes_of_a_name_differ_in_a_group(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 1, 2);
    create_groups(&self);
    shapes_of_a_name(&self, true);
}

static void shapes_of_a_name_differ_on_a_machine_that_sums_first(void **state)
{
    (void)state;
    waits self;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.per_machine = WORKERS;
    open_with(&self, &config);
    shapes_of_a_name(&self, true);
}

/* Rounds that have failed are not made up for, though nobody is lost. */
static void shapes_of_a_name_differ_in_a_job_that_continues(void **state)
{
    (void)state;
    waits self;
    open_surviving_job(&self, TRIB_SURVIVE_CONTINUE);
    shapes_of_a_name(&self, true);
}

/* Each worker has the same operations of the name in the same order, one of them a long time after the others. */
static void a_late_worker_is_waited_for(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 0, 2);
    use_on_all(&self, 0, "g", COUNT);
    for (uint32_t late = 0; late < WORKERS; late++) {
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            if (rank != late) {
                use(&self, rank, 1, "g", COUNT);
            }
        }
        run_for(&self, 7 * SECOND); /* their reports stay where they are */
        use(&self, late, 1, "g", COUNT);
        run_for(&self, SECOND);
        use(&self, late, 2, "g", 4); /* now the others are late, at their next use */
        run_for(&self, 7 * SECOND);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            expect(&self, rank, 1, TRIB_OK, NULL);
            if (rank != late) {
                use(&self, rank, 2, "g", 4);
            }
        }
        run_for(&self, SECOND);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            for (uint32_t i = 1; i < 3; i++) {
                expect(&self, rank, i, TRIB_OK, NULL);
                trib_op_release(self.ops[rank][i]);
                self.ops[rank][i] = NULL;
            }
        }
    }
    close_job(&self);
}

/* ---- Uses are counted anew ---- */

static void join_all(waits *self)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_join(self->job->members[rank].engine, &params, &self->ops[rank][3], &error), TRIB_OK);
    }
    run_for(self, 2 * SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(self, rank, 3, TRIB_OK, NULL);
    }
}

static void on_advanced(trib_engine *engine, const trib_membership *membership, void *user)
{
    (void)engine;
    (void)membership;
    *(uint32_t *)user += 1;
}

static void advance_all(waits *self)
{
    uint32_t advanced = 0;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_membership_advance(self->job->members[rank].engine, on_advanced, &advanced, NULL),
                         TRIB_OK);
    }
    run_for(self, 5 * SECOND);
    assert_int_equal(advanced, WORKERS);
}

/* A report from before the join does not meet a report of the same number of uses afterwards. */
static void uses_begin_anew(trib_survive survive, void (*begin_anew)(waits *self))
{
    waits self;
    open_surviving_job(&self, survive);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(&self, rank, 0, "g", COUNT);
        run_for(&self, 3 * SECOND); /* rank 0, then rank 1, says that its first use is of one shape */
    }
    begin_anew(&self);
    for (uint32_t rank = WORKERS; rank-- > 0;) {
        use(&self, rank, 1, "g", 4);
        run_for(&self, 3 * SECOND); /* rank 2 lacks rank 0, which has said something else of its first use */
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(&self, rank, 0, TRIB_OK, NULL);
        expect(&self, rank, 1, TRIB_OK, NULL);
    }
    close_job(&self);
}

static void uses_begin_anew_after_a_join(void **state)
{
    (void)state;
    uses_begin_anew(TRIB_SURVIVE_NOTHING, join_all);
}

static void uses_begin_anew_in_another_epoch(void **state)
{
    (void)state;
    uses_begin_anew(TRIB_SURVIVE_WORKERS, advance_all);
}

/* A worker that has released one of a name's tensors no longer knows how often it has used the name. */
static void a_release_ends_the_count(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 0, 1);
    use_on_all(&self, 0, "g", COUNT);
    use_on_all(&self, 1, "g", 4);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_engine *engine = self.job->members[rank].engine;
        trib_tensor *tensor = NULL;
        assert_int_equal(trib_tensor_find(engine, "g", &tensor, NULL), TRIB_OK);
        assert_int_equal(trib_tensor_release(tensor, NULL), TRIB_OK);
        use(&self, rank, 2, "g", rank == 1 ? 4 : COUNT); /* as many uses as are left on each */
    }
    run_for(&self, 8 * SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(&self, rank, 2, TRIB_TIMEOUT, NULL);
    }
    close_job(&self);
}

/* Names of their own may be used in any order: nobody fails, and both say what the other one waits for. */
static void names_differ(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 1, 2);
    use(&self, 0, 0, "a", COUNT);
    use(&self, 1, 0, "b", COUNT);
    run_for(&self, 4 * SECOND);
    expect(&self, 0, 0, TRIB_TIMEOUT, NULL); /* it is under way */
    assert_null(strstr(logs[0], "stalled"));
    run_for(&self, 3 * SECOND);
    assert_non_null(
        strstr(logs[0], "lacked the contribution of rank 1 (n1:1001) and of rank 2 (2 of 3), which waits for round 1 "
                        "of tensor \"b\" (int32[8])"));
    assert_non_null(
        strstr(logs[1], "lacked the contribution of rank 0 (n0:1000) and of rank 2 (2 of 3), which waits for round 1 "
                        "of tensor \"a\" (int32[8])"));
    use(&self, 0, 1, "b", COUNT);
    use(&self, 1, 1, "a", COUNT);
    use(&self, 2, 0, "a", COUNT);
    use(&self, 2, 1, "b", COUNT);
    run_for(&self, SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(&self, rank, 0, TRIB_OK, NULL);
        expect(&self, rank, 1, TRIB_OK, NULL);
    }
    close_job(&self);
}

/* The deadline's text says what the missing worker waits for; that of a slice, who has not declared it. */
static void deadlines_say_so(void **state)
{
    (void)state;
    waits self;
    open_job(&self, 0, 1);
    use(&self, 0, 0, "a", COUNT);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "slices";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.layout = TRIB_SLICES;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = self.buffers[1][0];
    params.flags = TRIB_OP_ALLOCATE_OUTPUT;
    params.timeout_ns = 10 * SECOND;
    trib_engine *engine = self.job->members[1].engine;
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, NULL), TRIB_OK);
    assert_int_equal(trib_all_gather(engine, &params, &self.ops[1][0], NULL), TRIB_OK);
    run_for(&self, 12 * SECOND);
    expect(&self, 1, 0, TRIB_TIMEOUT,
           "rank 0 (n0:1000) has not declared the tensor, and waits for round 1 of tensor \"a\" (int32[8])");
    run_for(&self, 100 * SECOND);
    expect(&self, 0, 0, TRIB_TIMEOUT, "lacked the contribution of rank 1 (n1:1001) and of rank 2 (2 of 3)");
    close_job(&self);
}

/* Ranks stay when worker 1 is lost, and those that are left are numbered anew. A list of numbers would blame others. */
static void ranks_have_gaps_after_a_loss(void **state)
{
    (void)state;
    waits self;
    sim_job_config config = sim_job_config_default(WORKERS + 1, 0);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    open_with(&self, &config);
    sim_job_kill(self.job, 1);
    run_for(&self, 30 * SECOND);
    use(&self, 0, 0, "a", COUNT);
    use(&self, 2, 0, "b", COUNT);
    use(&self, 3, 0, "b", COUNT);
    run_for(&self, 110 * SECOND);
    expect(&self, 0, 0, TRIB_TIMEOUT, "lacked the contribution of rank 2 (n2:1002) and of 1 more (2 of 3)");
    close_job(&self);
}

/* ---- Planted bugs ---- */

#define BUG_LIST(X)                                                                                                    \
    X(REPORT_LOST, "the coordinator takes no report of a wait")                                                        \
    X(USES_IGNORED, "any uses of a name are taken for the same")                                                       \
    X(NAMES_IGNORED, "all names are taken for one")                                                                    \
    X(REPORTS_KEPT, "reports of waits outlast a join")
#include "tests/sim/planted.h"

__typeof__(trib_waits_take) __real_trib_waits_take, __wrap_trib_waits_take;
trib_status __wrap_trib_waits_take(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_frame told = *frame;
    told.step = planted == PLANT_USES_IGNORED ? 1 : frame->step;
    told.size = planted == PLANT_NAMES_IGNORED ? 0 : frame->size;
    return planted == PLANT_REPORT_LOST ? TRIB_OK : __real_trib_waits_take(self, member, &told, error);
}

__typeof__(trib_waits_clear) __real_trib_waits_clear, __wrap_trib_waits_clear;
void __wrap_trib_waits_clear(trib_coordinator *self)
{
    if (planted != PLANT_REPORTS_KEPT) {
        __real_trib_waits_clear(self);
    }
}

static const struct CMUnitTest scenes[] = {
    cmocka_unit_test(shapes_of_a_name_differ),
    cmocka_unit_test(shapes_of_a_name_differ_in_a_group),
    cmocka_unit_test(shapes_of_a_name_differ_on_a_machine_that_sums_first),
    cmocka_unit_test(shapes_of_a_name_differ_in_a_job_that_continues),
    cmocka_unit_test(a_late_worker_is_waited_for),
    cmocka_unit_test(uses_begin_anew_after_a_join),
    cmocka_unit_test(uses_begin_anew_in_another_epoch),
    cmocka_unit_test(a_release_ends_the_count),
    cmocka_unit_test(names_differ),
    cmocka_unit_test(deadlines_say_so),
    cmocka_unit_test(ranks_have_gaps_after_a_loss),
};

int main(void)
{
    return run_with_bugs("crossed waits", scenes, sizeof scenes / sizeof scenes[0]);
}
