/*
 * test_quorum.c - stragglers in jobs with a quorum (TRIB_QUORUM). Each seed draws a job, its links, and when a worker
 * submits what. All workers must have the same contributors and the same bits of each operation, which are the sum of
 * exactly these contributions, and nobody waits for ever. Bugs that are planted must be found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/aggregate/sum_tree.h"
#include "engine/server/quorum.h"
#include "tests/sim/sim_bed.h"
#include "tests/support/sanitized.h"

#define CPU_SECONDS 300u

enum { WORKERS_MAX = 6, TENSORS = 3, ROUNDS = 7, COUNT_MAX = 9000, SEEDS = 200, SEEDS_OF_BUGS = 2000 };

#define BUG_LIST(X)                                                                                                    \
    X(NOT_HELD, "a worker begins with a core that has answered")                                                       \
    X(COUNTED, "a late contribution counts")                                                                           \
    X(UNTOLD, "workers are not told who is late")                                                                      \
    X(UNASKED, "only the owner of partition 0 says who has begun")                                                     \
    X(OTHER_SET, "some partitions wait for late workers, too")                                                         \
    X(NOT_KEPT, "a sum goes before late workers have asked for it")                                                    \
    X(LATE_FORGOTTEN, "what a late worker sends is dropped without an answer")
#define BUG_ENUM(name, text) BUG_##name,
#define BUG_NAME(name, text) [BUG_##name] = (text),

enum { BUG_NONE, BUG_LIST(BUG_ENUM) BUG_COUNT };
static const char *const bug_names[BUG_COUNT] = {BUG_LIST(BUG_NAME)};
static int planted;

/* ---- The bugs ---- */

__typeof__(trib_quorum_holds) __real_trib_quorum_holds, __wrap_trib_quorum_holds;
bool __wrap_trib_quorum_holds(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame)
{
    return planted != BUG_NOT_HELD && __real_trib_quorum_holds(sum, link, frame);
}

__typeof__(trib_sum_is_replaced) __real_trib_sum_is_replaced, __wrap_trib_sum_is_replaced;
bool __wrap_trib_sum_is_replaced(const trib_summation *self, const sum_round *round, const trib_contribution *what)
{
    return planted != BUG_COUNTED && __real_trib_sum_is_replaced(self, round, what);
}

__typeof__(trib_quorum_tell) __real_trib_quorum_tell, __wrap_trib_quorum_tell;
bool __wrap_trib_quorum_tell(const trib_server_sum *sum, uint32_t rank, const trib_contribution *what)
{
    return planted != BUG_UNTOLD && __real_trib_quorum_tell(sum, rank, what);
}

__typeof__(trib_summation_note_begun) __real_trib_summation_note_begun, __wrap_trib_summation_note_begun;
void __wrap_trib_summation_note_begun(trib_summation *self, uint32_t tensor, uint32_t round, unsigned char *begun)
{
    const trib_contribution first = {.tensor = tensor};
    if (planted != BUG_UNASKED || trib_sum_key_find(self, &first) != NULL) {
        __real_trib_summation_note_begun(self, tensor, round, begun);
    }
}

__typeof__(trib_summation_exclude) __real_trib_summation_exclude, __wrap_trib_summation_exclude;
trib_status __wrap_trib_summation_exclude(trib_summation *self, uint32_t tensor, uint32_t round,
                                          const unsigned char *set, uint32_t *keys_out)
{
    static uint32_t calls;
    const unsigned char all[] = {0xff};
    const bool is_other = planted == BUG_OTHER_SET && ++calls % 3 == 0;
    return __real_trib_summation_exclude(self, tensor, round, is_other ? all : set, keys_out);
}

__typeof__(trib_sum_late_is_awaited) __real_trib_sum_late_is_awaited, __wrap_trib_sum_late_is_awaited;
bool __wrap_trib_sum_late_is_awaited(const trib_summation *self, const sum_round *round, uint32_t chunk)
{
    return planted != BUG_NOT_KEPT && __real_trib_sum_late_is_awaited(self, round, chunk);
}

__typeof__(trib_sum_late_came) __real_trib_sum_late_came, __wrap_trib_sum_late_came;
trib_status __wrap_trib_sum_late_came(trib_summation *self, const trib_contribution *what, trib_error *error)
{
    return planted == BUG_LATE_FORGOTTEN ? TRIB_OK : __real_trib_sum_late_came(self, what, error);
}

/* ---- A job ---- */

typedef struct slot {
    struct worker *worker;
    uint32_t tensor, round;
    trib_op *op;
    float *input, *output;
    trib_status status; /* TRIB_PENDING: not over */
    uint32_t mask;      /* of the contributors' ranks */
} slot;

typedef struct worker {
    trib_sim_event next; /* the first member: the worker submits its next operation */
    struct bed *bed;
    uint32_t index, submitted, done;
    slot slots[ROUNDS * TENSORS];
} worker;

typedef struct bed {
    sim_job *job;
    uint64_t seed;
    trib_sim_stream stream;
    uint32_t workers, servers, quorum, patience; /* one in `patience` operations is submitted late */
    bool in_place, gives_up;
    int64_t timeout_ns;
    worker all[WORKERS_MAX];
    char text[TRIB_ERROR_TEXT_SIZE + 160]; /* the first thing that went wrong */
} bed;

static uint32_t late_results; /* operations without some contribution, of all seeds */

static void note(bed *self, const slot *at, const char *what)
{
    if (self->text[0] == '\0') {
        snprintf(self->text, sizeof self->text, "rank %u, tensor %u, round %u: %.380s", at->worker->index, at->tensor,
                 at->round, what);
    }
}

static uint32_t count_of(uint32_t tensor)
{
    static const uint32_t counts[TENSORS] = {COUNT_MAX, 5000, 300};
    return counts[tensor];
}

/* Whole numbers, none of them 0, whose sums are exact in any order. */
static float value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    return (float)(1 + (tensor * 379 + round * 7919 + rank * 1299 + i * 31) % 100003);
}

static float expected(const slot *at, uint32_t i)
{
    float sum = 0, least = 1e9f;
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < WORKERS_MAX; rank++) {
        if ((at->mask >> rank & 1) != 0) {
            const float mine = value(at->tensor, at->round, rank, i);
            sum += mine;
            least = mine < least ? mine : least;
            count++;
        }
    }
    return at->tensor == 0 ? sum : at->tensor == 1 ? sum / (float)count : least;
}

static void on_done(const trib_result *result, void *user)
{
    slot *at = user;
    bed *self = at->worker->bed;
    at->worker->done++;
    if (at->status != TRIB_PENDING) {
        note(self, at, "it was over before");
    }
    at->status = result->status;
    if (result->status != TRIB_OK) {
        if (!self->gives_up || (result->status != TRIB_CANCELLED && result->status != TRIB_TIMEOUT)) {
            note(self, at, result->text);
        }
        return;
    }
    int32_t ranks[WORKERS_MAX];
    size_t count = 0;
    trib_error error = {.text = ""};
    if (trib_op_contributors(at->op, ranks, WORKERS_MAX, &count, &error) != TRIB_OK || count != result->contributors ||
        count > WORKERS_MAX) {
        note(self, at, "its contributors are not told");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        at->mask |= 1u << ranks[i];
    }
    late_results += count < self->workers;
    if (count < self->quorum) {
        note(self, at, "fewer contributors than the quorum");
    }
    for (uint32_t i = 0; i < count_of(at->tensor); i++) {
        if (at->output[i] != expected(at, i)) {
            note(self, at, "the result is not that of its contributors");
            break;
        }
    }
}

static void submit(slot *at)
{
    static const char *const names[TENSORS] = {"sum", "average", "least"};
    static const trib_reduce reduces[TENSORS] = {TRIB_SUM, TRIB_AVG, TRIB_MIN};
    bed *self = at->worker->bed;
    trib_engine *engine = self->job->members[at->worker->index].engine;
    trib_error error = {.text = ""};
    trib_tensor_desc desc;
    trib_op_params params;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = names[at->tensor];
    desc.count = count_of(at->tensor);
    at->input = malloc(COUNT_MAX * sizeof(float));
    at->output = self->in_place ? at->input : calloc(COUNT_MAX, sizeof(float));
    for (uint32_t i = 0; i < desc.count; i++) {
        at->input[i] = value(at->tensor, at->round, at->worker->index, i);
    }
    params.input = at->input;
    params.output = at->output;
    params.done_cb = on_done;
    params.user = at;
    params.reduce = reduces[at->tensor];
    params.timeout_ns = self->gives_up && trib_sim_draw_one_in(&self->stream, 20) ? self->timeout_ns : 0;
    if (trib_tensor_declare(engine, &desc, &params.tensor, &error) != TRIB_OK ||
        trib_push_pull(engine, &params, &at->op, &error) != TRIB_OK) {
        at->worker->done++;
        note(self, at, error.text);
    } else if (self->gives_up && trib_sim_draw_one_in(&self->stream, 20)) {
        trib_op_cancel(at->op);
    }
}

static void submit_next(trib_sim *sim, trib_sim_event *event)
{
    worker *me = (worker *)(void *)event;
    bed *self = me->bed;
    submit(&me->slots[me->submitted++]);
    if (me->submitted < ROUNDS * TENSORS) {
        const uint64_t timeout_ns = (uint64_t)self->timeout_ns;
        const bool is_late = trib_sim_draw_one_in(&self->stream, self->patience);
        const uint64_t pause_ns = trib_sim_draw_below(&self->stream, is_late ? 8 * timeout_ns : timeout_ns / 16 + 1);
        trib_sim_set(sim, event, trib_sim_now(sim) + (int64_t)pause_ns);
    }
}

static bool is_over(sim_job *job, void *argument)
{
    (void)job;
    const bed *self = argument;
    for (uint32_t i = 0; i < self->workers && self->text[0] == '\0'; i++) {
        if (self->all[i].done < ROUNDS * TENSORS) {
            return false;
        }
    }
    return true;
}

static void draw_link(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)member;
    (void)config;
    bed *self = job->config.user;
    link->latency_ns = 1000 + (int64_t)trib_sim_draw_below(&self->stream, 2000000);
}

static bed *open_bed(uint64_t seed)
{
    bed *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->seed = seed;
    self->stream = (trib_sim_stream){.state = seed * 2654435761u + 1};
    trib_sim_stream *stream = &self->stream;
    self->workers = 2 + (uint32_t)trib_sim_draw_below(stream, WORKERS_MAX - 1);
    self->servers = (uint32_t)trib_sim_draw_below(stream, 4);
    self->quorum = 1 + (uint32_t)trib_sim_draw_below(stream, self->workers);
    self->patience = 2 + (uint32_t)trib_sim_draw_below(stream, 8);
    self->in_place = trib_sim_draw_one_in(stream, 2);
    self->gives_up = trib_sim_draw_one_in(stream, 4);
    self->timeout_ns = 1000000 + (int64_t)trib_sim_draw_below(stream, 50000000);
    sim_job_config config = sim_job_config_default(self->workers, self->servers);
    config.seed = seed;
    config.user = self;
    config.tweak = draw_link;
    config.engine.quorum = self->quorum;
    config.engine.quorum_timeout_ns = self->timeout_ns;
    config.engine.colocate =
        self->servers == 0 || trib_sim_draw_one_in(stream, 2) ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.reactors = 1 + (uint32_t)trib_sim_draw_below(stream, 3);
    config.engine.sum_order = trib_sim_draw_one_in(stream, 2) ? TRIB_ORDER_RANK : TRIB_ORDER_ARRIVAL;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = 4096u << trib_sim_draw_below(stream, 3);
    self->job = sim_bed_open(&config);
    for (uint32_t i = 0; i < self->workers; i++) {
        worker *me = &self->all[i];
        me->bed = self;
        me->index = i;
        me->next.fired = submit_next;
        for (uint32_t k = 0; k < ROUNDS * TENSORS; k++) {
            me->slots[k] = (slot){.worker = me, .tensor = k % TENSORS, .round = k / TENSORS, .status = TRIB_PENDING};
        }
        trib_sim_set(self->job->sim, &me->next, trib_sim_now(self->job->sim) + 1);
    }
    return self;
}

static void give_in(const bed *self, const char *what)
{
    if (planted != BUG_NONE) {
        _exit(1);
    }
    fail_msg("seed %llu: %u workers, %u servers, quorum %u after %lld ns, %s%s: %s", (unsigned long long)self->seed,
             self->workers, self->servers, self->quorum, (long long)self->timeout_ns,
             self->in_place ? "in place" : "apart", self->gives_up ? ", some give up" : "", what);
}

/* All that succeeded have the same contributors and the same bits. Nothing fails where nobody gives up. */
static void check_alike(const bed *self, uint32_t k)
{
    const slot *first = NULL;
    for (uint32_t i = 0; i < self->workers; i++) {
        const slot *at = &self->all[i].slots[k];
        if (at->status != TRIB_OK) {
            continue;
        }
        if (first != NULL &&
            (first->mask != at->mask || memcmp(first->output, at->output, count_of(at->tensor) * sizeof(float)) != 0)) {
            char text[120];
            snprintf(text, sizeof text, "tensor %u, round %u: %x or other bits on rank %u, %x on rank %u", at->tensor,
                     at->round, first->mask, first->worker->index, at->mask, i);
            give_in(self, text);
        }
        first = at;
    }
}

/* Servers forget a decision when all of their partitions have come to its round. */
static bool has_no_records(sim_job *job, void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            if (engine->cores[k].quorums != NULL) {
                return false;
            }
        }
    }
    return true;
}

static void run_seed(uint64_t seed)
{
    bed *self = open_bed(seed);
    const bool is_done = sim_job_run(self->job, trib_sim_now(self->job->sim) + 60 * SECOND, is_over, self);
    if (!is_done || self->text[0] != '\0') {
        give_in(self, is_done ? self->text : "not over");
    }
    for (uint32_t k = 0; k < ROUNDS * TENSORS; k++) {
        check_alike(self, k);
    }
    if (!sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, has_no_records, NULL)) {
        give_in(self, "a server still has the record of a decision");
    }
    for (uint32_t i = 0; i < self->workers * ROUNDS * TENSORS; i++) {
        trib_op_release(self->all[i / (ROUNDS * TENSORS)].slots[i % (ROUNDS * TENSORS)].op);
    }
    if (!sim_job_close(self->job, 60 * SECOND)) {
        give_in(self, "it does not close");
    }
    sim_job_free(self->job);
    for (uint32_t i = 0; i < self->workers * ROUNDS * TENSORS; i++) {
        const slot *at = &self->all[i / (ROUNDS * TENSORS)].slots[i % (ROUNDS * TENSORS)];
        free(at->output != at->input ? at->output : NULL);
        free(at->input);
    }
    free(self);
}

/* ---- Cases ---- */

static void stragglers_are_left_out(void **state)
{
    (void)state;
    const char *more = getenv("TRIB_TEST_SEEDS");
    const uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : SEEDS;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        run_seed(seed);
    }
    printf("%u results of %llu seeds lack a contribution\n", late_results, (unsigned long long)seeds);
    assert_true(late_results > seeds);
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("# planted bugs are looked for without sanitizers\n");
    skip();
#endif
    volatile uint64_t *seed = mmap(NULL, sizeof *seed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seed != MAP_FAILED);
    uint32_t missed = 0;
    for (int bug = BUG_NONE + 1; bug < BUG_COUNT; bug++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            const struct rlimit limit = {.rlim_cur = CPU_SECONDS, .rlim_max = CPU_SECONDS}; /* a bug may loop */
            setrlimit(RLIMIT_CPU, &limit);
            planted = bug;
            for (*seed = 1; *seed <= SEEDS_OF_BUGS; ++*seed) {
                run_seed(*seed);
            }
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool is_found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        missed += !is_found;
        printf("%s by seed %llu: %s\n", is_found ? "found" : "NOT FOUND", (unsigned long long)*seed, bug_names[bug]);
    }
    munmap((void *)(uintptr_t)seed, sizeof *seed);
    assert_int_equal(missed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stragglers_are_left_out),
        cmocka_unit_test(planted_bugs_are_found),
    };
    return cmocka_run_group_tests_name("a quorum", tests, NULL, NULL);
}
