/* in_place.c - see in_place.h. */
#include "tests/loop/in_place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/loop/job.h"
#include "tests/support/values.h"

#define DEADLINE_S 150 /* ends a member that hangs */

static in_place_table *all;

in_place_table *in_place_shared(void)
{
    return all;
}

static int me, step_now;

/* Ends the member with a message if the condition is false. */
__attribute__((format(printf, 2, 3))) static void must(bool holds, const char *format, ...)
{
    if (!holds) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(stderr, "# member %d, step %d: ", me, step_now);
        vfprintf(stderr, format, arguments);
        fprintf(stderr, "\n");
        va_end(arguments);
        exit(1);
    }
}

static uint64_t state;

static uint32_t random_below(uint32_t bound)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % bound);
}

static const struct kind {
    trib_dtype dtype;
    trib_reduce reduce;
    uint64_t count;
} kinds[] = {
    {TRIB_UINT8, TRIB_SUM, 1},        {TRIB_FLOAT32, TRIB_SUM, 3},        {TRIB_INT64, TRIB_MAX, 777},
    {TRIB_BFLOAT16, TRIB_SUM, 4097},  {TRIB_INT8, TRIB_MIN, 65539},       {TRIB_FLOAT32, TRIB_SUM, 65541},
    {TRIB_FLOAT16, TRIB_SUM, 150001}, {TRIB_FLOAT64, TRIB_SUM, 100003},   {TRIB_INT32, TRIB_SUM, 262144},
    {TRIB_UINT8, TRIB_SUM, 1048589},  {TRIB_FLOAT32, TRIB_SUM, 10485760},
};
_Static_assert(sizeof kinds / sizeof *kinds == IN_PLACE_TENSORS, "IN_PLACE_TENSORS must match kinds");

typedef struct tensor {
    trib_tensor *handle;
    unsigned char *memory[2]; /* input, and output unless the sum is in place */
    bool is_engines[2];
    bool in_place;
    uint64_t bytes;
    trib_op *op;
} tensor;

static trib_engine *engine;
static tensor tensors[IN_PLACE_TENSORS];
static int tensor_count;

/* A small number, never below 0. */
static uint32_t value(int rank, int index, uint64_t i)
{
    const uint64_t mixed = (i + (uint64_t)step_now * 40503u + (uint64_t)index * 977u) * UINT64_C(0x9e3779b97f4a7c15) +
                           (uint64_t)rank * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)((mixed ^ mixed >> 29) >> 40) & 15u;
}

static uint32_t wanted(int index, uint64_t i)
{
    uint32_t sum = 0, least = UINT32_MAX, most = 0;
    for (int rank = 0; rank < all->workers; rank++) {
        const uint32_t one = value(rank, index, i);
        sum += one;
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    return kinds[index].reduce == TRIB_SUM ? sum : kinds[index].reduce == TRIB_MIN ? least : most;
}

static void check_sum(int index)
{
    const tensor *of = &tensors[index];
    const unsigned char *sum = of->memory[of->in_place ? 0 : 1];
    const trib_dtype dtype = kinds[index].dtype;
    const size_t size = trib_dtype_size(dtype);
    for (uint64_t i = 0; i < kinds[index].count; i++) {
        uint64_t element = 0;
        values_store(dtype, &element, 0, wanted(index, i));
        if (memcmp(sum + i * size, &element, size) != 0) {
            must(false, "tensor %d: element %llu of %llu is wrong", index, (unsigned long long)i,
                 (unsigned long long)kinds[index].count);
        }
    }
    atomic_fetch_add(&all->sums, 1);
}

static void take_memory(tensor *of)
{
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        of->is_engines[i] = !all->is_mixed || random_below(2) == 0;
        if (of->is_engines[i]) {
            must(trib_alloc(engine, of->bytes, &memory) == TRIB_OK, "no memory");
        } else {
            memory = malloc(of->bytes);
            must(memory != NULL, "no memory");
        }
        of->memory[i] = memory;
    }
}

static void give_memory(const tensor *of)
{
    for (int i = 0; i < 2; i++) {
        if (of->is_engines[i]) {
            trib_free(engine, of->memory[i]);
        } else {
            free(of->memory[i]);
        }
    }
}

/* An input that was given back is overwritten at once, so a sum that still reads it comes out wrong. */
static void done(const trib_result *result, void *user)
{
    const tensor *of = user;
    if (result->status != TRIB_OK) {
        memset(of->memory[0], 0xff, of->bytes);
    }
}

static bool submit(int index)
{
    tensor *of = &tensors[index];
    for (uint64_t i = 0; i < kinds[index].count; i++) {
        values_store(kinds[index].dtype, of->memory[0], i, value(me, index, i));
    }
    memset(of->memory[1], 0xa5, of->bytes);
    of->in_place = random_below(2) == 0;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = of->handle;
    params.input = of->memory[0];
    params.output = of->memory[of->in_place ? 0 : 1];
    params.reduce = kinds[index].reduce;
    params.priority = (int)random_below(3);
    params.has_priority = random_below(2) == 0;
    params.done_cb = done;
    params.user = of;
    trib_error error = {.text = ""};
    const trib_status status = trib_push_pull(engine, &params, &of->op, &error);
    must(status == TRIB_OK || all->scene == KILLED || all->scene == CLOSED, "%s", error.text);
    return status == TRIB_OK;
}

/* Checks every sum that succeeded; returns false if some operation did not. */
static bool wait_for_all(void)
{
    bool complete = true;
    for (int i = 0; i < tensor_count; i++) {
        trib_error error = {.text = ""};
        if (tensors[i].op == NULL) {
            complete = false;
            continue;
        }
        const trib_status status = trib_op_wait(tensors[i].op, -1, &error);
        must(status == TRIB_OK || (all->scene == GIVES_UP && status == TRIB_CANCELLED) || all->scene == KILLED ||
                 all->scene == CLOSED,
             "tensor %d: %s", i, error.text);
        trib_op_release(tensors[i].op);
        tensors[i].op = NULL;
        if (status == TRIB_OK) {
            check_sum(i);
        } else {
            must(strlen(error.text) > 0, "an error without a text");
            atomic_fetch_add(&all->failures, 1);
            complete = false;
        }
    }
    return complete;
}

/* Each member submits in an order of its own. */
static bool step(bool closes)
{
    int order[IN_PLACE_TENSORS] = {0};
    bool taken = true;
    for (int i = 0; i < tensor_count; i++) {
        const int other = (int)random_below((uint32_t)i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    while (all->scene == LATE && me > 0 && atomic_load(&all->recalled) == 0 && atomic_load(&all->refused) == 0) {
        usleep(100);
    }
    for (int i = 0; i < tensor_count && taken; i++) {
        taken = submit(order[i]);
        const tensor *one = &tensors[order[random_below((uint32_t)i + 1)]];
        if (taken && all->scene == GIVES_UP && random_below(4) == 0) {
            trib_op_cancel(one->op);
        }
    }
    if (closes) {
        trib_engine_close(engine, NULL, NULL);
    }
    return wait_for_all() && taken;
}

/* No member submits before all have declared every tensor. Returns false if a member was killed first. */
static bool declare_all(void)
{
    trib_op *op = NULL;
    tensor_count = all->is_huge ? IN_PLACE_TENSORS : IN_PLACE_TENSORS - 1;
    for (int i = 0; i < tensor_count; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor %d", i);
        tensors[i].bytes = kinds[i].count * trib_dtype_size(kinds[i].dtype);
        tensors[i].handle = job_declare(engine, name, kinds[i].dtype, kinds[i].count);
        take_memory(&tensors[i]);
    }
    must(trib_barrier(engine, NULL, &op, NULL) == TRIB_OK, "no barrier");
    const trib_status status = trib_op_wait(op, -1, NULL);
    trib_op_release(op);
    must(status == TRIB_OK || all->scene == KILLED, "the barrier failed");
    return status == TRIB_OK;
}

static void open_engine(const trib_config *given)
{
    trib_error error = {.text = ""};
    trib_config config = *given;
    config.coordinator = all->address;
    config.worker_count = all->workers;
    config.server_count = all->servers;
    config.transport = all->transport;
    config.token = "a secret of the tests, long enough";
    config.reactors = all->reactors;
    config.chunk_bytes = all->chunk_bytes;
    config.pin = false;
    config.op_timeout_ns = DEADLINE_S * INT64_C(1000000000);
    config.log_level = TRIB_LOG_NONE;
    must(trib_engine_create(&config, &engine, &error) == TRIB_OK, "%s", error.text);
    if (trib_engine_wait_ready(engine, -1, &error) != TRIB_OK) {
        /* The job may have ended before this member's thread has seen that it was ready. */
        must(all->scene == KILLED && atomic_load(&all->of_victim) > 0, "%s", error.text);
        exit(trib_engine_destroy(engine) == TRIB_OK ? IN_PLACE_ENDED : 1);
    }
}

static int be_worker(void)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = me;
    open_engine(&config);
    bool complete = declare_all();
    const bool is_victim = me == all->victim && all->scene == CLOSED;
    for (; step_now < all->steps && (complete || all->scene == GIVES_UP); step_now++) {
        const bool closes = is_victim && step_now == all->steps / 2;
        complete = step(closes);
        if (closes) {
            break;
        }
    }
    trib_stats stats = {.struct_size = sizeof stats};
    must(trib_engine_get_stats(engine, &stats) == TRIB_OK, "no statistics");
    atomic_fetch_add(&all->pushed, stats.bytes_pushed);
    trib_engine_close(engine, NULL, NULL);
    for (int i = 0; i < tensor_count; i++) {
        give_memory(&tensors[i]);
    }
    must(trib_engine_destroy(engine) == TRIB_OK, "not destroyed");
    return complete || is_victim || all->scene == GIVES_UP ? 0 : IN_PLACE_ENDED;
}

static void job_ended(trib_engine *of, const trib_error *error, void *user)
{
    (void)of;
    atomic_store((atomic_int *)user, error->status == TRIB_OK ? 1 : 2);
}

static int be_server(void)
{
    atomic_int ended = 0;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = TRIB_ROLE_SERVER;
    config.rank = -1;
    config.ended_cb = job_ended;
    config.ended_user = &ended;
    open_engine(&config);
    while (atomic_load(&ended) == 0) {
        usleep(1000);
    }
    must(trib_engine_destroy(engine) == TRIB_OK, "not destroyed");
    return atomic_load(&ended) == 1 ? 0 : IN_PLACE_ENDED;
}

int in_place_member(int number, int fd)
{
    alarm(DEADLINE_S);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    me = number;
    state = all->seed + (uint64_t)number * 7919u;
    return number < all->workers ? be_worker() : be_server();
}
