/* test_name_uses.c - programs that use their names alike are never told that they differ, whatever their workers know
 * of each other and whenever they know it; and what is told of those that do differ. See also test_crossed_waits.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/membership/coordinator_internal.h"
#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 1500000, USES = 5, SMALL = 4, LITTLE = 10000000 };

typedef struct names {
    sim_job *job;
    int32_t buffers[WORKERS][USES][COUNT];
    trib_op *ops[WORKERS][USES];
    trib_tensor *tensors[WORKERS][USES];
    trib_group *groups[WORKERS]; /* of the uses that follow; NULL: all workers */
} names;

static names *open_job(uint32_t ops_max)
{
    names *self = calloc(1, sizeof *self);
    assert_non_null(self);
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.ops_max = ops_max > 0 ? ops_max : config.engine.ops_max;
    self->job = sim_bed_open(&config);
    return self;
}

static void close_job(names *self)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < USES; i++) {
            if (self->ops[rank][i] != NULL) {
                trib_op_release(self->ops[rank][i]);
            }
        }
    }
    assert_true(sim_job_close(self->job, 100 * SECOND));
    sim_job_free(self->job);
    free(self);
}

static void run_for(names *self, int64_t time_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + time_ns, NULL, NULL);
}

static trib_engine *engine_of(const names *self, uint32_t rank)
{
    return self->job->members[rank].engine;
}

/* The coordinator's record of a worker. */
static const trib_coordinator_slot *slot_of(const names *self, uint32_t rank)
{
    return &engine_of(self, 0)->coordinator->slots[rank];
}

static trib_tensor *declare(names *self, uint32_t rank, const char *name, uint32_t name_length, uint32_t count,
                            trib_layout layout)
{
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.name_begin = strchr(name, '.') == NULL ? 0 : (uint32_t)(strchr(name, '.') - name) + 1;
    desc.name_length = name_length;
    desc.dtype = TRIB_INT32;
    desc.count = count;
    desc.layout = layout;
    desc.group = self->groups[rank];
    trib_tensor *tensor = NULL;
    if (trib_tensor_declare(engine_of(self, rank), &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

static trib_status try_sum(names *self, uint32_t rank, uint32_t number, trib_tensor *tensor, int64_t timeout_ns)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->tensors[rank][number] = tensor;
    params.input = params.output = self->buffers[rank][number];
    params.timeout_ns = timeout_ns;
    params.has_priority = true;
    params.priority = (int32_t)number; /* later ones overtake earlier ones */
    return trib_push_pull(engine_of(self, rank), &params, &self->ops[rank][number], NULL);
}

/* Begins a use of the name "g", in the shape of so many elements. */
static void use(names *self, uint32_t rank, uint32_t number, uint32_t count)
{
    char name[32];
    snprintf(name, sizeof name, "g#%u", count);
    trib_tensor *tensor = declare(self, rank, name, 1, count, TRIB_WHOLE);
    assert_int_equal(try_sum(self, rank, number, tensor, 100 * SECOND), TRIB_OK);
}

static void use_on_all(names *self, uint32_t number, uint32_t count)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(self, rank, number, count);
    }
    run_for(self, SECOND);
}

static void expect(names *self, uint32_t rank, uint32_t number, trib_status status, const char *words)
{
    trib_error error = {.status = TRIB_OK};
    const trib_status found = trib_op_wait(self->ops[rank][number], 0, &error);
    if (found != status || (words != NULL && strstr(error.text, words) == NULL)) {
        fail_msg("rank %u, use %u: %d, not %d with \"%s\": %s", rank, number, (int)found, (int)status,
                 words == NULL ? "" : words, error.text);
    }
}

static void expect_all(names *self, uint32_t number, trib_status status, const char *words)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect(self, rank, number, status, words);
    }
}

static void let_through(names *self, uint32_t rank, uint64_t bits)
{
    trib_sim_link link = self->job->config.link;
    link.ingress_bits = bits;
    trib_sim_node_relink(self->job->members[rank].node, &link);
}

/* ---- Programs that use names alike ---- */

/* The sum of the second use overtakes that of the first one, which is then alone, and is not the last use. */
static void an_overtaken_use_is_not_the_last_one(void **state)
{
    (void)state;
    names *self = open_job(0);
    use(self, 1, 0, COUNT);
    use(self, 2, 0, COUNT);
    run_for(self, 2 * SECOND);
    let_through(self, 1, LITTLE);
    use(self, 0, 0, COUNT);
    use(self, 0, 1, SMALL);
    use(self, 1, 1, SMALL);
    run_for(self, SECOND);
    use(self, 2, 1, SMALL);
    for (uint32_t i = 0; i < 20; i++) {
        run_for(self, SECOND / 2);
        const trib_coordinator_slot *slot = slot_of(self, 1);
        assert_true(slot->wait.is_told);
        assert_int_equal(strcmp(slot->tensors[slot->wait.tag]->name, "g#4") != 0 && slot->wait.use > 1, 0);
    }
    expect_all(self, 0, TRIB_OK, NULL);
    expect_all(self, 1, TRIB_OK, NULL);
    close_job(self);
}

static void make_groups(names *self)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const int32_t ranks[WORKERS] = {0, 1, 2};
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = "all";
        desc.ranks = ranks;
        desc.rank_count = WORKERS;
        assert_int_equal(trib_group_create(engine_of(self, rank), &desc, &self->groups[rank], NULL), TRIB_OK);
    }
}

/* One of a name's tensors is released on all workers, when one of them has said something of the second use. */
static void a_group_goes_on_after_a_release(void **state)
{
    (void)state;
    names *self = open_job(0);
    make_groups(self);
    use_on_all(self, 0, 1);
    use(self, 0, 1, 2);
    use(self, 1, 1, 2);
    run_for(self, 3 * SECOND);
    use(self, 2, 1, 2);
    run_for(self, SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_op_release(self->ops[rank][0]);
        self->ops[rank][0] = NULL;
        assert_int_equal(trib_tensor_release(self->tensors[rank][0], NULL), TRIB_OK);
    }
    use(self, 0, 2, 3);
    use(self, 2, 2, 3);
    run_for(self, 5 * SECOND);
    use(self, 1, 2, 3);
    run_for(self, SECOND);
    expect_all(self, 2, TRIB_OK, NULL);
    close_job(self);
}

/* Rank 0 may have two operations, and gives a third one up. The others begin it, and the next one, too. */
static void a_refused_use_ends_the_count(void **state)
{
    (void)state;
    names *self = open_job(2);
    trib_tensor *others[2] = {declare(self, 0, "a", 0, 1, TRIB_WHOLE), declare(self, 0, "b", 0, 1, TRIB_WHOLE)};
    trib_tensor *mine = declare(self, 0, "g#1", 1, 1, TRIB_WHOLE);
    assert_int_equal(try_sum(self, 0, 0, others[0], 2 * SECOND), TRIB_OK);
    assert_int_equal(try_sum(self, 0, 1, others[1], 2 * SECOND), TRIB_OK);
    assert_int_equal(try_sum(self, 0, 2, mine, SECOND), TRIB_BUSY);
    run_for(self, 3 * SECOND);
    for (uint32_t i = 0; i < 2; i++) {
        trib_op_release(self->ops[0][i]);
        self->ops[0][i] = NULL;
    }
    use(self, 0, 3, 2);
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        assert_int_equal(try_sum(self, rank, 2, declare(self, rank, "g#1", 1, 1, TRIB_WHOLE), 10 * SECOND), TRIB_OK);
    }
    run_for(self, 12 * SECOND);
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        expect(self, rank, 2, TRIB_TIMEOUT, NULL);
        use(self, rank, 3, 2);
    }
    run_for(self, SECOND);
    expect_all(self, 3, TRIB_OK, NULL);
    close_job(self);
}

/* On rank 0 something else has declared the name before, without its length, and so the tensor is not counted. */
static void a_name_without_its_length_ends_the_count(void **state)
{
    (void)state;
    names *self = open_job(0);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_tensor *tensor = declare(self, rank, "g", rank == 0 ? 0 : 1, 1, TRIB_WHOLE);
        assert_int_equal(try_sum(self, rank, 0, tensor, 100 * SECOND), TRIB_OK);
    }
    run_for(self, SECOND);
    use(self, 1, 1, 2);
    use(self, 2, 1, 2);
    run_for(self, 3 * SECOND);
    use(self, 0, 1, 2);
    use(self, 0, 2, 3);
    run_for(self, 3 * SECOND);
    use(self, 1, 2, 3);
    use(self, 2, 2, 3);
    run_for(self, SECOND);
    for (uint32_t i = 0; i < 3; i++) {
        expect_all(self, i, TRIB_OK, NULL);
    }
    close_job(self);
}

/* ---- Programs that do not ---- */

static void join_all(names *self)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_join(engine_of(self, rank), &params, &self->ops[rank][2], NULL), TRIB_OK);
    }
    run_for(self, 2 * SECOND);
    expect_all(self, 2, TRIB_OK, NULL);
}

/* A release ends the count until the counts begin anew. */
static void uses_count_again_after_a_join(void **state)
{
    (void)state;
    names *self = open_job(0);
    use_on_all(self, 0, 1);
    use_on_all(self, 1, 2);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_tensor_release(self->tensors[rank][0], NULL), TRIB_OK);
    }
    join_all(self);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(self, rank, 3, rank == 1 ? 2 : 3);
    }
    run_for(self, 5 * SECOND);
    expect_all(self, 3, TRIB_MISMATCH, "workers differ in use 1 of this name");
    close_job(self);
}

/* Before it finds the tensor of the second shape, a worker tries the first one's, as TensorFlow's kernel does. */
static void a_shape_that_is_tried_is_no_use(void **state)
{
    (void)state;
    names *self = open_job(0);
    use_on_all(self, 0, 1);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "g#1";
    desc.name_length = 1;
    desc.dtype = TRIB_INT32;
    desc.count = 2;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_tensor *tensor = NULL;
        assert_int_equal(trib_tensor_declare(engine_of(self, rank), &desc, &tensor, NULL), TRIB_MISMATCH);
    }
    use_on_all(self, 1, 2);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        use(self, rank, 2, rank == 1 ? 1 : 2);
    }
    run_for(self, 5 * SECOND);
    expect_all(self, 2, TRIB_MISMATCH, "workers differ in use 3 of this name");
    close_job(self);
}

/* One worker gathers where the others sum. */
static void texts_name_the_operation(void **state)
{
    (void)state;
    names *self = open_job(0);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_tensor *slices = declare(self, rank, "g#slices", 1, 2, TRIB_SLICES);
        if (rank != 1) {
            use(self, rank, 0, SMALL);
            continue;
        }
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = slices;
        params.input = self->buffers[rank][0];
        params.flags = TRIB_OP_ALLOCATE_OUTPUT;
        params.timeout_ns = 100 * SECOND;
        assert_int_equal(trib_all_gather(engine_of(self, rank), &params, &self->ops[rank][0], NULL), TRIB_OK);
    }
    run_for(self, 5 * SECOND);
    expect_all(self, 0, TRIB_MISMATCH, "rank 1 (n1:1001) began an all-gather of int32");
    expect_all(self, 0, TRIB_MISMATCH, "began a sum of int32[4]");
    close_job(self);
}

static void broadcast(names *self, uint32_t rank, uint32_t number, const char *name)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare(self, rank, name, 1, SMALL, TRIB_WHOLE);
    params.input = params.output = self->buffers[rank][number];
    params.timeout_ns = 100 * SECOND;
    assert_int_equal(trib_broadcast(engine_of(self, rank), &params, &self->ops[rank][number], NULL), TRIB_OK);
}

static void sum(names *self, uint32_t rank, uint32_t number, const char *name)
{
    trib_tensor *tensor = declare(self, rank, name, 1, SMALL, TRIB_WHOLE);
    assert_int_equal(try_sum(self, rank, number, tensor, 100 * SECOND), TRIB_OK);
}

/* The kind of operation stands before the name, and both kinds have been used before. Operations that are begun in
 * another order, as threads do it, succeed. */
static void kinds_of_one_name_are_compared(void **state)
{
    (void)state;
    names *self = open_job(0);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        sum(self, rank, rank == 1 ? 1 : 0, rank == 1 ? "sum.h" : "sum.g");
        broadcast(self, rank, rank == 1 ? 0 : 1, rank == 1 ? "broadcast.g" : "broadcast.h");
    }
    run_for(self, 3 * SECOND);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        sum(self, rank, 2, rank == 1 ? "sum.g" : "sum.h");
        broadcast(self, rank, 3, rank == 1 ? "broadcast.h" : "broadcast.g");
    }
    run_for(self, SECOND);
    for (uint32_t number = 0; number < 4; number++) {
        expect_all(self, number, TRIB_OK, NULL);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        (rank == 1 ? broadcast : sum)(self, rank, 4, rank == 1 ? "broadcast.g" : "sum.g");
    }
    run_for(self, 5 * SECOND);
    expect_all(self, 4, TRIB_MISMATCH, "rank 1 (n1:1001) began a broadcast of int32[4]");
    expect_all(self, 4, TRIB_MISMATCH, "workers differ in use 3 of this name");
    close_job(self);
}

/* ---- What is told ---- */

/* The others have come, and most of the sum is still on its way at the deadline. */
static void who_has_come_is_not_lacked(void **state)
{
    (void)state;
    names *self = open_job(0);
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        trib_tensor *tensor = declare(self, rank, "a", 0, COUNT, TRIB_WHOLE);
        assert_int_equal(try_sum(self, rank, 0, tensor, 5 * SECOND), TRIB_OK);
    }
    run_for(self, 2 * SECOND);
    let_through(self, 1, LITTLE);
    assert_int_equal(try_sum(self, 0, 0, declare(self, 0, "a", 0, COUNT, TRIB_WHOLE), 5 * SECOND), TRIB_OK);
    run_for(self, 10 * SECOND);
    expect(self, 1, 0, TRIB_TIMEOUT, NULL);
    trib_error error = {.status = TRIB_OK};
    (void)trib_op_wait(self->ops[1][0], 0, &error);
    if (strstr(error.text, "lacked the contribution") != NULL) {
        fail_msg("%s", error.text);
    }
    close_job(self);
}

static uint32_t answers;

void __wrap_trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size);
void __real_trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size);

void __wrap_trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size)
{
    answers += frame.type == TRIB_FRAME_WAITED_FOR;
    __real_trib_link_send_copy(link, frame, payload, size);
}

/* A peer that says all the time what it waits for gets answers as rarely as any other. */
static void who_asks_often_is_answered_rarely(void **state)
{
    (void)state;
    names *self = open_job(0);
    use(self, 0, 0, 1);
    assert_int_equal(try_sum(self, 1, 0, declare(self, 1, "a", 0, 1, TRIB_WHOLE), 100 * SECOND), TRIB_OK);
    run_for(self, 5 * SECOND);
    trib_engine *engine = engine_of(self, 1);
    for (uint32_t i = 0; i < 100; i++) {
        const trib_frame frame = {.type = TRIB_FRAME_WAITING, .tensor = engine->stalls.tag, .round = 1, .aux = 0};
        engine->hooks->tell_coordinator(engine, &frame, NULL, 0);
    }
    answers = 0;
    run_for(self, SECOND / 10);
    assert_in_range(answers, 0, 1);
    close_job(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overtaken_use_is_not_the_last_one),
        cmocka_unit_test(a_group_goes_on_after_a_release),
        cmocka_unit_test(a_refused_use_ends_the_count),
        cmocka_unit_test(a_shape_that_is_tried_is_no_use),
        cmocka_unit_test(a_name_without_its_length_ends_the_count),
        cmocka_unit_test(uses_count_again_after_a_join),
        cmocka_unit_test(texts_name_the_operation),
        cmocka_unit_test(kinds_of_one_name_are_compared),
        cmocka_unit_test(who_has_come_is_not_lacked),
        cmocka_unit_test(who_asks_often_is_answered_rarely),
    };
    return cmocka_run_group_tests_name("uses of names", tests, NULL, NULL);
}
