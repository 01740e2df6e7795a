/*
 * test_alloc_failure.c - every allocation of the library fails in turn, in a job that joins, declares, sums,
 * broadcasts, waits at a barrier and closes. Each run ends with every callback made exactly once, right results or an
 * error with a text, and every block freed.
 *
 * The members are attached to one loop, so allocations come in much the same order in every run. The linker puts the
 * __wrap_ functions before the library's allocations. Other libraries keep theirs (libev ends the process when it has
 * no memory).
 *
 *   test_alloc_failure                    all runs, divided among JOBS processes
 *   test_alloc_failure colocated once 17  only that run, with the log
 */
#include <ev.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/handle.h"
#include "numa/arena.h"
#include "tests/loop/job.h"
#include "tests/loop/scarcity.h"

#define MS INT64_C(1000000)
#define COUNT 150000u
#define WORKERS 2
#define MEMBERS_MAX 3
#define PATIENCE_S 20.0
#define COUNT_MIN 50u /* allocations in a run; a lower count means that the wrappers are not linked in */
#define JOBS 12u
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 5u /* sanitizers are slow: every fifth allocation */
#else
#define STRIDE 1u
#endif

static bool talks;

/* ---- The library's allocations ---- */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    void *block = scarcity_allows() ? __real_malloc(size) : NULL;
    scarcity_note(block);
    return block;
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    void *block = scarcity_allows() ? __real_calloc(count, size) : NULL;
    scarcity_note(block);
    return block;
}

void *__real_realloc(void *block, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_realloc(void *block, size_t size)
{
    if (!scarcity_allows()) {
        return NULL;
    }
    scarcity_forget(block);
    void *larger = __real_realloc(block, size);
    scarcity_note(larger);
    return larger;
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    char *copy = scarcity_allows() ? __real_strdup(text) : NULL;
    scarcity_note(copy);
    return copy;
}

void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block)
{
    scarcity_forget(block);
    __real_free(block);
}

void *__real_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment)
{
    void *block = scarcity_allows() ? __real_trib_arena_alloc(arena, size, alignment) : NULL;
    scarcity_note(block);
    return block;
}

void *__real_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment)
{
    void *block = scarcity_allows() ? __real_trib_arena_alloc_blocking(arena, size, alignment) : NULL;
    scarcity_note(block);
    return block;
}

void __real_trib_arena_free(trib_arena *arena, void *block);
void __wrap_trib_arena_free(trib_arena *arena, void *block);
void __wrap_trib_arena_free(trib_arena *arena, void *block)
{
    scarcity_forget(block);
    __real_trib_arena_free(arena, block);
}

/* ---- One run ---- */

static void broken(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void broken(const char *format, ...)
{
    scarcity_end();
    va_list arguments;
    va_start(arguments, format);
    printf("# ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    exit(1);
}

typedef enum kind_of_work { SUM, BROADCAST, BARRIER, WORKS } kind_of_work;

typedef struct failure_run failure_run;

typedef struct attempt {
    failure_run *run;
    kind_of_work what;
    int rank;
    bool taken;
    unsigned callbacks;
    trib_status status;
    float *data;
} attempt;

struct failure_run {
    const char *name;
    scarcity_kind kind;
    struct ev_loop *loop;
    ev_timer watchdog;
    int workers, members;
    trib_engine *engines[MEMBERS_MAX];
    attempt attempts[MEMBERS_MAX][WORKS];
    unsigned pending, closed;
    bool said_no;
};

static void too_long(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    const failure_run *self = timer->data;
    broken("%s: hangs with %u operations under way, %u of %d engines closed", self->name, self->pending, self->closed,
           self->members);
}

static bool is_clean(trib_status status)
{
    switch (status) {
    case TRIB_NO_MEMORY:
    case TRIB_PEER_LOST:
    case TRIB_PEER_LEFT:
    case TRIB_JOIN_FAILED:
    case TRIB_TIMEOUT: /* an operation that another member lacked the memory for */
    case TRIB_CANCELLED:
    case TRIB_MISMATCH: /* a tensor that could not be placed */
    case TRIB_CLOSED:
        return true;
    default:
        return false;
    }
}

static void check_error(failure_run *self, const char *call, trib_status status, const char *text)
{
    self->said_no = true;
    if (!is_clean(status) || text[0] == '\0') {
        broken("%s: %s answered %s \"%s\"", self->name, call, trib_status_name(status), text);
    }
}

static float value_of(int rank, uint32_t i)
{
    return (float)((i * 7 + (uint32_t)rank * 13) % 101);
}

static void done(const trib_result *result, void *user)
{
    attempt *mine = user;
    mine->callbacks++;
    mine->status = result->status;
    mine->run->pending--;
    if (result->status != TRIB_OK) {
        check_error(mine->run, "an operation", result->status, result->text);
    }
}

static void create(failure_run *self, const char *address, int index)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = self->loop;
    config.roles = index < self->workers ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
    config.rank = index < self->workers ? index : -1;
    config.worker_count = self->workers;
    config.server_count = self->members - self->workers;
    config.coordinator = address;
    config.token = "a secret of the tests, long enough";
    /* The timeouts are short where a member may wait in vain, and long where nothing fails, because this machine may be
     * busy. */
    config.join_timeout_ns = config.op_timeout_ns = self->kind == SCARCITY_NONE ? 10000 * MS : 250 * MS;
    config.close_timeout_ns = 500 * MS;
    config.log_level = talks ? TRIB_LOG_INFO : TRIB_LOG_NONE;
    trib_error error = {.status = TRIB_OK};
    trib_status status = trib_engine_create(&config, &self->engines[index], &error);
    if (status != TRIB_OK) {
        check_error(self, "trib_engine_create", status, error.text);
    }
}

static void submit(failure_run *self, int rank, kind_of_work what, trib_tensor *tensor)
{
    attempt *mine = &self->attempts[rank][what];
    *mine = (attempt){.run = self, .what = what, .rank = rank, .data = __real_malloc(COUNT * sizeof(float))};
    for (uint32_t i = 0; i < COUNT; i++) {
        mine->data[i] = value_of(rank, i);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = mine->data;
    params.done_cb = done;
    params.user = mine;
    trib_error error = {.status = TRIB_OK};
    trib_engine *engine = self->engines[rank];
    trib_status status = what == SUM         ? trib_push_pull(engine, &params, NULL, &error)
                         : what == BROADCAST ? trib_broadcast(engine, &params, NULL, &error)
                                             : trib_barrier(engine, &params, NULL, &error);
    mine->taken = status == TRIB_OK;
    self->pending += mine->taken;
    if (status != TRIB_OK) {
        check_error(self, "submitting", status, error.text);
    }
}

static void work(failure_run *self, int rank)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    const char *const names[] = {"summed", "told"};
    for (kind_of_work what = SUM; what <= BROADCAST; what++) {
        desc.name = names[what];
        desc.count = COUNT;
        trib_tensor *tensor = NULL;
        trib_error error = {.status = TRIB_OK};
        trib_status status = trib_tensor_declare(self->engines[rank], &desc, &tensor, &error);
        if (status == TRIB_OK) {
            submit(self, rank, what, tensor);
        } else {
            check_error(self, "trib_tensor_declare", status, error.text);
        }
    }
    submit(self, rank, BARRIER, NULL);
}

static void check_attempt(const failure_run *self, attempt *mine)
{
    if (mine->callbacks != (mine->taken ? 1 : 0)) {
        broken("%s: rank %d: %u callbacks of operation %d", self->name, mine->rank, mine->callbacks, (int)mine->what);
    }
    bool has_result = mine->what != BARRIER && mine->taken && mine->status == TRIB_OK;
    for (uint32_t i = 0; i < COUNT && has_result; i++) {
        float expected = mine->what == BROADCAST ? value_of(0, i) : value_of(0, i) + value_of(1, i);
        if (memcmp(&mine->data[i], &expected, sizeof expected) != 0) {
            broken("%s: rank %d, element %u of operation %d is wrong", self->name, mine->rank, i, (int)mine->what);
        }
    }
    __real_free(mine->data);
}

static void closed(trib_engine *engine, void *user)
{
    (void)engine;
    ((failure_run *)user)->closed++;
}

static void close_all(failure_run *self)
{
    unsigned opened = 0;
    for (int i = 0; i < self->members; i++) {
        if (self->engines[i] != NULL) {
            opened++;
            trib_engine_close(self->engines[i], closed, self);
        }
    }
    while (self->closed < opened) {
        ev_run(self->loop, EVRUN_ONCE);
    }
    for (int i = 0; i < self->members; i++) {
        if (trib_engine_destroy(self->engines[i]) != TRIB_OK) {
            broken("%s: an engine could not be destroyed", self->name);
        }
    }
}

/* Returns the number of allocations. */
static size_t run(const char *name, int workers, int servers, scarcity_kind kind, size_t nth)
{
    failure_run self = {
        .name = name, .kind = kind, .workers = workers, .members = workers + servers, .loop = ev_loop_new(EVFLAG_AUTO)};
    ev_timer_init(&self.watchdog, too_long, PATIENCE_S, 0);
    self.watchdog.data = &self;
    ev_timer_start(self.loop, &self.watchdog);
    char address[32];
    job_free_address(address, sizeof address);
    trib_handle_give_place(trib_handle_take_place(&self)); /* the process keeps the table of handles (handle.h) */
    scarcity_begin(kind, nth);
    for (int i = 0; i < self.members; i++) {
        create(&self, address, i);
    }
    for (int rank = 0; rank < workers; rank++) {
        if (self.engines[rank] != NULL) {
            work(&self, rank);
        }
    }
    while (self.pending > 0) {
        ev_run(self.loop, EVRUN_ONCE);
    }
    close_all(&self);
    for (int rank = 0; rank < workers; rank++) {
        for (kind_of_work what = SUM; what < WORKS; what++) {
            check_attempt(&self, &self.attempts[rank][what]);
        }
    }
    ev_timer_stop(self.loop, &self.watchdog);
    ev_loop_destroy(self.loop);
    size_t asked = scarcity_end(), first = 0, left = scarcity_left(&first);
    if (left > 0) {
        broken("%s: %zu blocks were not freed, the first is from allocation %zu", name, left, first);
    }
    if (kind == SCARCITY_NONE && self.said_no) {
        broken("%s: failed although there was memory", name);
    }
    return asked;
}

/* ---- All runs ---- */

static const struct {
    const char *name;
    int servers;
} jobs[] = {{"colocated", 0}, {"server", 1}};

static const struct {
    const char *name;
    scarcity_kind kind;
} kinds[] = {{"once", SCARCITY_ONCE}, {"lasting", SCARCITY_LASTING}};

/* Shared with the child processes. */
typedef struct progress {
    size_t count;
    size_t running[JOBS]; /* which allocation fails in each child now */
} progress;

static void take_share(size_t which, size_t kind, unsigned share, progress *shared)
{
    char name[64];
    for (size_t nth = 1 + share * STRIDE; nth <= shared->count; nth += JOBS * STRIDE) {
        shared->running[share] = nth;
        snprintf(name, sizeof name, "%s %s %zu", jobs[which].name, kinds[kind].name, nth);
        run(name, WORKERS, jobs[which].servers, kinds[kind].kind, nth);
    }
}

/* Returns true if all children ended well. */
static bool run_each(size_t which, size_t kind, progress *shared)
{
    fflush(stdout);
    pid_t children[JOBS];
    for (unsigned i = 0; i < JOBS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            take_share(which, kind, i, shared);
            exit(0);
        }
    }
    bool good = true;
    for (unsigned i = 0; i < JOBS; i++) {
        int status = 0;
        if (children[i] < 0 || waitpid(children[i], &status, 0) < 0 || status != 0) {
            printf("# ended in %s %s %zu: %s\n", jobs[which].name, kinds[kind].name, shared->running[i],
                   WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "see above");
            good = false;
        }
    }
    return good;
}

static int run_one(char **words)
{
    for (size_t which = 0; which < sizeof jobs / sizeof jobs[0]; which++) {
        for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
            if (strcmp(words[0], jobs[which].name) == 0 && strcmp(words[1], kinds[kind].name) == 0) {
                talks = true;
                run("this run", WORKERS, jobs[which].servers, kinds[kind].kind, strtoul(words[2], NULL, 10));
                return 0;
            }
        }
    }
    return 2;
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        return run_one(argv + 1);
    }
    progress *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    unsigned number = 0;
    bool good = true;
    for (size_t which = 0; which < sizeof jobs / sizeof jobs[0]; which++) {
        shared->count = run("with memory", WORKERS, jobs[which].servers, SCARCITY_NONE, 0);
        for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
            bool held = shared->count >= COUNT_MIN && run_each(which, kind, shared);
            printf("%s %u - %s, %s: each of %zu allocations fails in turn%s\n", held ? "ok" : "not ok", ++number,
                   jobs[which].name, kinds[kind].name, shared->count, STRIDE > 1 ? ", every fifth" : "");
            good = good && held;
        }
    }
    return good ? 0 : 1;
}
