/* test_quorum_cases.c - jobs with a quorum (TRIB_QUORUM): one that waits for ever, one whose workers all give up,
 * workers that disagree, sets that are too small, records of late workers for which there is no memory, and a member
 * that leaves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/summation.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/quorums.h"
#include "engine/server/quorum.h"
#include "engine/worker/op.h"
#include "tests/sim/quorum_bed.h"
#include "tests/sim/sim_bed.h"

/* A withdrawal does not end the record of its round. */
static bool is_planted;

__typeof__(trib_quorum_came) __real_trib_quorum_came, __wrap_trib_quorum_came;
void __wrap_trib_quorum_came(trib_server_sum *sum, const trib_frame *frame)
{
    if (!is_planted || frame->type != TRIB_FRAME_WITHDRAW) {
        __real_trib_quorum_came(sum, frame);
    }
}

/* The next decision finds no memory. */
static bool lacks_memory, is_deciding;

__typeof__(calloc) __real_calloc, __wrap_calloc;
void *__wrap_calloc(size_t count, size_t size)
{
    const bool fails = is_deciding;
    is_deciding = false;
    return fails ? NULL : __real_calloc(count, size);
}

__typeof__(trib_summation_exclude) __real_trib_summation_exclude, __wrap_trib_summation_exclude;
trib_status __wrap_trib_summation_exclude(trib_summation *self, uint32_t tensor, uint32_t round,
                                          const unsigned char *set, uint32_t *keys_out)
{
    is_deciding = lacks_memory;
    const trib_status status = __real_trib_summation_exclude(self, tensor, round, set, keys_out);
    is_deciding = false;
    lacks_memory = lacks_memory && *keys_out == 0;
    return status;
}

static void a_quorum_that_never_goes_on(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = INT64_MAX;
    sim_job *job = sim_bed_open(&config);
    int32_t buffers[3] = {1, 10, 100};
    exchange all[3];
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = &buffers[i]};
    }
    sim_bed_begin(job, 0, "patient", 1, &all[0], 0, NULL);
    sim_bed_begin(job, 1, "patient", 1, &all[1], 0, NULL);
    trib_tensor *last = sim_bed_declare(job, 2, "patient", 1);
    assert_non_null(last);
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, quorum_is_any_done, all));
    sim_bed_begin(job, 2, "patient", 1, &all[2], 0, NULL);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        assert_int_equal(buffers[i], 111);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- Everybody gives up ---- */

static void make_slow(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member < 3 ? 100000000 : link->egress_bits;
}

static bool has_records(sim_job *job, void *argument)
{
    return !quorum_has_no_records(job, argument);
}

/* One worker has contributed to the first partitions when it is decided that it is enough. Then it gives up, and so
 * do the others later, so servers hear of the last partitions by withdrawals alone. Returns true if they forget the
 * decision. */
static bool forgets_what_all_withdraw(void)
{
    enum { COUNT = 256 * 1024 };
    sim_job_config config = sim_job_config_default(3, 2);
    config.tweak = make_slow;
    config.engine.quorum = 1;
    config.engine.quorum_timeout_ns = 1000000;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.chunk_bytes = config.engine.partition_bytes = config.engine.push_credit_bytes = 65536;
    sim_job *job = sim_bed_open(&config);
    exchange all[3];
    trib_op *ops[3];
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
        assert_non_null(sim_bed_declare(job, i, "given up", COUNT));
    }
    for (uint32_t i = 0; i < 3; i++) {
        sim_bed_begin(job, i, "given up", COUNT, &all[i], 0, &ops[i]);
        assert_true(i > 0 || sim_job_run(job, trib_sim_now(job->sim) + SECOND, has_records, NULL));
        trib_op_cancel(ops[i]);
        if (i == 0) {
            (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done,
                              all); /* all that it sends arrives */
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, quorum_are_all_done, all));
    const bool forgets = sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, quorum_has_no_records, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_CANCELLED);
        trib_op_release(ops[i]);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
    for (uint32_t i = 0; i < 3; i++) {
        free(all[i].buffer);
    }
    return forgets;
}

static void everybody_gives_up(void **state)
{
    (void)state;
    assert_true(forgets_what_all_withdraw());
    is_planted = true;
    assert_false(forgets_what_all_withdraw());
    is_planted = false;
}

/* ---- Workers that disagree ---- */

typedef struct outcome {
    bool is_over;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
} outcome;

static void take_outcome(const trib_result *result, void *user)
{
    outcome *self = user;
    self->is_over = true;
    self->status = result->status;
    snprintf(self->text, sizeof self->text, "%s", result->text);
}

static bool have_outcomes(sim_job *job, void *argument)
{
    (void)job;
    const outcome *both = argument;
    return both[0].is_over && both[1].is_over;
}

static void draw_quorum(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->quorum = 1 + member % 2;
    config->quorum_timeout_ns = (3 - (int64_t)member) * SECOND;
}

/* in_desc: all have the same settings, and rank 1 alone names a quorum for its tensor. */
static void expect_disagreement(bool in_desc, const char *one, const char *other)
{
    sim_job_config config = sim_job_config_default(2, 1);
    config.tweak = in_desc ? NULL : draw_quorum;
    sim_job *job = sim_bed_open(&config);
    float values[2] = {1, 2};
    outcome both[2] = {{.status = TRIB_PENDING}, {.status = TRIB_PENDING}};
    for (uint32_t i = 0; i < 2; i++) {
        trib_error error = {.text = ""};
        trib_tensor_desc desc;
        trib_op_params params;
        trib_tensor_desc_init(&desc, sizeof desc);
        trib_op_params_init(&params, sizeof params);
        desc.name = "weights";
        desc.count = 1;
        desc.quorum = in_desc ? i : 0;
        params.input = params.output = &values[i];
        params.done_cb = take_outcome;
        params.user = &both[i];
        assert_int_equal(trib_tensor_declare(job->members[i].engine, &desc, &params.tensor, &error), TRIB_OK);
        assert_int_equal(trib_push_pull(job->members[i].engine, &params, NULL, &error), TRIB_OK);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, have_outcomes, both));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(both[i].status, TRIB_MISMATCH);
        if (strstr(both[i].text, one) == NULL || strstr(both[i].text, other) == NULL) {
            fail_msg("\"%s\" or \"%s\" is not in: %s", one, other, both[i].text);
        }
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

static void workers_that_disagree(void **state)
{
    (void)state;
    expect_disagreement(false, "with a quorum of 1 after 3.000 s", "with a quorum of 2 after 2.000 s");
    expect_disagreement(true, "with a quorum of 1 after 1.000 s", "rank 0");
}

/* ---- Sets that are too small ---- */

/* The number of the tensor. */
static uint32_t find_id(const trib_engine *engine)
{
    uint32_t tag = 0;
    while (tag < engine->tensor_count && strcmp(engine->tensors[tag]->name, "patient") != 0) {
        tag++;
    }
    assert_true(tag < engine->tensor_count);
    return engine->tensors[tag]->id;
}

static sim_job *open_patient(exchange all[3], int32_t buffers[3])
{
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = INT64_MAX;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    sim_job *job = sim_bed_open(&config);
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = &buffers[i]};
    }
    sim_bed_begin(job, 0, "patient", 1, &all[0], 0, NULL);
    assert_non_null(sim_bed_declare(job, 1, "patient", 1));
    assert_non_null(sim_bed_declare(job, 2, "patient", 1));
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_is_any_done, all));
    return job;
}

/* The others come, too: the operation has all three. */
static void end_patient(sim_job *job, exchange all[3])
{
    sim_bed_begin(job, 1, "patient", 1, &all[1], 0, NULL);
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_is_any_done, all));
    sim_bed_begin(job, 2, "patient", 1, &all[2], 0, NULL);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        assert_int_equal(*all[i].buffer, 111);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* A frame that comes to a process as from the coordinator, or from the owner of the tensor. */
typedef struct injected {
    trib_post post;
    trib_frame frame;
    const unsigned char *payload;
    bool is_done, is_deciding;
    trib_status status;
    trib_error error;
} injected;

static void take_injected(trib_reactor *reactor, trib_post *post)
{
    injected *self = (injected *)(void *)post;
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    if (self->frame.type == TRIB_FRAME_QUORUM_CALL) {
        const trib_registry_entry *entry = engine->coordinator->tensors_first;
        while (entry->id != self->frame.tensor) {
            entry = entry->newer;
        }
        self->status =
            trib_quorums_take(engine->coordinator, entry->owners[0].member, &self->frame, NULL, &self->error);
        self->is_deciding = engine->coordinator->quorum_calls != NULL;
    } else {
        self->status = trib_quorum_take(engine, &self->frame, self->payload, &self->error);
    }
    self->is_done = true;
}

static bool is_injected(sim_job *job, void *argument)
{
    (void)job;
    return ((const injected *)argument)->is_done;
}

static void inject(sim_job *job, uint32_t member, injected *what)
{
    what->post.run = take_injected;
    trib_reactor_post(job->members[member].engine->reactors[0].reactor, &what->post);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, is_injected, what));
}

/* The owner calls, and then fewer workers than the quorum have begun the round. The operation waits for all. */
static void a_call_of_too_few(void **state)
{
    (void)state;
    exchange all[3];
    int32_t buffers[3] = {1, 10, 100};
    sim_job *job = open_patient(all, buffers);
    injected call = {.frame = {.type = TRIB_FRAME_QUORUM_CALL, .tensor = find_id(job->members[0].engine), .round = 1}};
    inject(job, 0, &call);
    assert_string_equal(call.error.text, "");
    assert_int_equal(call.status, TRIB_OK);
    assert_true(call.is_deciding);
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_is_any_done, all));
    assert_null(job->members[0].engine->coordinator->quorum_calls);
    end_patient(job, all);
}

/* A server refuses a set that cannot be, and nothing of it counts. */
static void sets_that_cannot_be(void **state)
{
    (void)state;
    exchange all[3];
    int32_t buffers[3] = {1, 10, 100};
    sim_job *job = open_patient(all, buffers);
    trib_engine *server = job->members[3].engine;
    unsigned char payload[1 + (TRIB_REACTORS_MAX + 1) * sizeof(uint32_t)] = {1 | 2};
    const uint32_t right = 1 + server->core_count * (uint32_t)sizeof(uint32_t);
    const struct {
        unsigned char set;
        uint32_t size;
    } wrong[] = {{1, right}, {0, right}, {0xf8, right}, {3, right - 1}, {3, right + 1}, {3, 1}, {3, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        payload[0] = wrong[i].set;
        injected frame = {.frame = {.type = TRIB_FRAME_QUORUM_SET,
                                    .tensor = find_id(job->members[0].engine),
                                    .round = 1,
                                    .payload_size = wrong[i].size},
                          .payload = payload};
        inject(job, 3, &frame);
        assert_int_equal(frame.status, TRIB_PROTOCOL);
        assert_non_null(strstr(frame.error.text, "malformed QUORUM_SET, or one of"));
        assert_null(server->quorum_walks);
    }
    assert_true(quorum_has_no_records(job, NULL));
    end_patient(job, all);
}

/* Workers that come between a server's answer and the set wait on their connections, and go on at the set. Else they
 * would wait for the server's next tick. */
static void who_waits_goes_on_at_the_set(void **state)
{
    (void)state;
    exchange all[3];
    int32_t buffers[3] = {1, 10, 100};
    sim_job *job = open_patient(all, buffers);
    const unsigned char payload[1 + (TRIB_REACTORS_MAX + 1) * sizeof(uint32_t)] = {1 | 2 | 4};
    injected ask = {.frame = {.type = TRIB_FRAME_QUORUM_ASK, .tensor = find_id(job->members[0].engine), .round = 1}};
    injected set = {.frame = ask.frame, .payload = payload};
    set.frame.type = TRIB_FRAME_QUORUM_SET;
    set.frame.payload_size = 1 + job->members[3].engine->core_count * (uint32_t)sizeof(uint32_t);
    inject(job, 3, &ask);
    sim_bed_begin(job, 1, "patient", 1, &all[1], 0, NULL);
    sim_bed_begin(job, 2, "patient", 1, &all[2], 0, NULL);
    assert_false(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_is_any_done, all));
    inject(job, 3, &set);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        assert_int_equal(buffers[i], 111);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- No memory ---- */

static bool has_decided(sim_job *job, void *argument)
{
    (void)argument;
    return !lacks_memory && quorum_has_no_records(job, NULL);
}

static bool are_two_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *all = argument;
    return all[0].done > 0 && all[1].done > 0;
}

/* The set is all workers, so there is nothing to keep of who is late: the operation goes on as any other. */
static void no_memory_for_a_set_of_all(void **state)
{
    (void)state;
    exchange all[3];
    int32_t buffers[3] = {1, 10, 100};
    sim_job *job = open_patient(all, buffers);
    trib_engine *server = job->members[3].engine;
    const unsigned char payload[1 + (TRIB_REACTORS_MAX + 1) * sizeof(uint32_t)] = {1 | 2 | 4};
    injected frame = {.frame = {.type = TRIB_FRAME_QUORUM_SET,
                                .tensor = find_id(job->members[0].engine),
                                .round = 1,
                                .payload_size = 1 + server->core_count * (uint32_t)sizeof(uint32_t)},
                      .payload = payload};
    injected ask = {.frame = frame.frame};
    ask.frame.type = TRIB_FRAME_QUORUM_ASK;
    inject(job, 3, &ask);
    assert_int_equal(ask.status, TRIB_OK);
    lacks_memory = true;
    inject(job, 3, &frame);
    assert_int_equal(frame.status, TRIB_OK);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, has_decided, NULL));
    end_patient(job, all);
}

/* Two of three are enough, and the server has no memory for the third one's absence: the operation fails on all of
 * them, and the next one works. */
static void no_memory_for_a_decision(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = 1000000;
    sim_job *job = sim_bed_open(&config);
    int32_t buffers[3];
    exchange all[3];
    assert_non_null(sim_bed_declare(job, 2, "scarce", 1));
    for (uint32_t round = 0; round < 2; round++) {
        lacks_memory = round == 0;
        for (uint32_t i = 0; i < 3; i++) {
            buffers[i] = (int32_t)i + 1;
            all[i] = (exchange){.buffer = &buffers[i]};
        }
        sim_bed_begin(job, 0, "scarce", 1, &all[0], 0, NULL);
        sim_bed_begin(job, 1, "scarce", 1, &all[1], 0, NULL);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, are_two_done, all));
        assert_false(lacks_memory);
        sim_bed_begin(job, 2, "scarce", 1, &all[2], 0, NULL);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(all[i].status, round == 0 ? TRIB_NO_MEMORY : TRIB_OK);
            assert_true(round == 0 || buffers[i] == 3);
        }
    }
    assert_true(quorum_has_no_records(job, NULL));
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- A member that leaves ---- */

/* A worker has contributed, and closes its engine while another one is late. It sums until nobody waits for it, and
 * takes part in the decision. */
static void a_member_that_leaves_decides(void **state)
{
    (void)state;
    enum { COUNT = 8192, TIMES = 36 };
    static int32_t buffers[3][COUNT];
    for (uint32_t i = 0; i < TIMES; i++) {
        sim_job_config config = sim_job_config_default(3, 0);
        config.engine.quorum = 2;
        config.engine.quorum_timeout_ns = SECOND / 100;
        config.engine.reactors = 1 + i % 3;
        config.engine.partition_bytes = config.engine.chunk_bytes = 4096;
        sim_job *job = sim_bed_open(&config);
        exchange all[3];
        for (uint32_t k = 0; k < 3; k++) {
            all[k] = (exchange){.buffer = buffers[k]};
            assert_non_null(sim_bed_declare(job, k, "late", COUNT));
            for (uint32_t c = 0; c < COUNT; c++) {
                buffers[k][c] = k == 0 ? 1 : k == 1 ? 10 : 100;
            }
        }
        const int64_t began_ns = trib_sim_now(job->sim);
        sim_bed_begin(job, 0, "late", COUNT, &all[0], 0, NULL);
        sim_bed_begin(job, 2, "late", COUNT, &all[2], 0, NULL);
        /* the decision is due after 10 ms */
        (void)sim_job_run(job, began_ns + SECOND / 100 + ((int64_t)i - TIMES / 2) * (SECOND / 50000), NULL, NULL);
        sim_job_leave(job, 2);
        (void)sim_job_run(job, began_ns + SECOND, NULL, NULL);
        assert_int_equal(all[0].done, 1);
        sim_bed_begin(job, 1, "late", COUNT, &all[1], 0, NULL);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
        for (uint32_t c = 0; c < 2 * COUNT; c++) {
            assert_int_equal(buffers[c % 2][c / 2], 101);
        }
        assert_true(all[0].status == TRIB_OK && all[1].status == TRIB_OK);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quorum_that_never_goes_on),  cmocka_unit_test(everybody_gives_up),
        cmocka_unit_test(workers_that_disagree),        cmocka_unit_test(a_call_of_too_few),
        cmocka_unit_test(sets_that_cannot_be),          cmocka_unit_test(who_waits_goes_on_at_the_set),
        cmocka_unit_test(no_memory_for_a_set_of_all),   cmocka_unit_test(no_memory_for_a_decision),
        cmocka_unit_test(a_member_that_leaves_decides),
    };
    return cmocka_run_group_tests_name("cases of a quorum", tests, NULL, NULL);
}
