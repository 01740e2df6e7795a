/*
 * test_device_staging.c - the host memory that a large tensor on a device passes through. The declaring call allocates
 * it, not the core that learns the placement.
 */
#include <pthread.h>
#include <semaphore.h>

#include "numa/arena.h"
#include "tests/loop/device/device_wrap.h"

#define MIB ((size_t)1 << 20)
enum { LARGE = 16 << 20, BLOCKS = 64 };

/* ---- Large blocks: allocations of each kind, and those in use ---- */

typedef struct taken {
    void *memory;
    size_t size;
} taken;

static struct {
    pthread_mutex_t mutex;
    taken blocks[BLOCKS];
    int count;                /* in use now */
    int blocking, hurried;    /* allocated so far, by calls that may block and by others */
    void (*when_taken)(void); /* called in a blocking allocation; NULL: no hook */
    bool is_gone;             /* blocking allocations fail */
} large = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void note(void *memory, size_t size, bool blocking)
{
    if (memory == NULL || size < LARGE) {
        return;
    }
    pthread_mutex_lock(&large.mutex);
    assert_true(large.count < BLOCKS);
    large.blocks[large.count++] = (taken){.memory = memory, .size = size};
    large.blocking += blocking;
    large.hurried += !blocking;
    pthread_mutex_unlock(&large.mutex);
}

/* Reads one of the counts, which reactors may be changing. */
static int look(const int *number)
{
    pthread_mutex_lock(&large.mutex);
    const int now = *number;
    pthread_mutex_unlock(&large.mutex);
    return now;
}

static void forget(const void *memory)
{
    pthread_mutex_lock(&large.mutex);
    for (int i = 0; i < large.count; i++) {
        if (large.blocks[i].memory == memory) {
            large.blocks[i] = large.blocks[--large.count];
            break;
        }
    }
    pthread_mutex_unlock(&large.mutex);
}

void *__real_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment)
{
    void *memory = __real_trib_arena_alloc(arena, size, alignment);
    note(memory, size, false);
    return memory;
}

void *__real_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment);
void *__wrap_trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment)
{
    void *memory = large.is_gone ? NULL : __real_trib_arena_alloc_blocking(arena, size, alignment);
    note(memory, size, true);
    if (large.when_taken != NULL) {
        large.when_taken();
    }
    return memory;
}

void __real_trib_arena_free(trib_arena *arena, void *block);
void __wrap_trib_arena_free(trib_arena *arena, void *block);
void __wrap_trib_arena_free(trib_arena *arena, void *block)
{
    forget(block);
    __real_trib_arena_free(arena, block);
}

static int prepare(void **state)
{
    (void)state;
    assert_int_equal(look(&large.count), 0);
    large.blocking = large.hurried = 0;
    return 0;
}

/* Checks that every large block has been freed. */
static int check_freed(void **state)
{
    (void)state;
    assert_int_equal(look(&large.count), 0);
    return 0;
}

/* ---- Jobs ---- */

/* Only servers sum, so only the declaring call keeps large memory for long. */
static void on_devices_served(trib_config *config, int member)
{
    on_devices(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

/* One sum, after which the tensor has its placement. */
static void exchange(job *jobs, trib_tensor **tensors, uint64_t count)
{
    int32_t *data[4];
    trib_op *ops[4];
    assert_true(jobs->worker_count <= 4);
    for (int rank = 0; rank < jobs->worker_count; rank++) {
        data[rank] = malloc(count * sizeof(int32_t));
        assert_non_null(data[rank]);
        for (uint64_t i = 0; i < count; i++) {
            data[rank][i] = value(0, 0, rank, i);
        }
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensors[rank];
        params.input = params.output = data[rank];
        ops[rank] = push_pull_or(jobs->engines[rank], &params, TRIB_OK);
    }
    const int n = jobs->worker_count;
    for (int rank = 0; rank < n; rank++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(ops[rank], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        for (uint64_t i = 0; i < count; i++) {
            if (data[rank][i] != value(0, 0, 0, i) * n + 1000 * n * (n - 1) / 2) {
                fail_msg("element %llu of rank %d is %d", (unsigned long long)i, rank, data[rank][i]);
            }
        }
        free(data[rank]);
    }
}

static void declare_all(job *jobs, trib_tensor **tensors, uint64_t count)
{
    for (int rank = 0; rank < jobs->worker_count; rank++) {
        tensors[rank] = declare_on_device(jobs->engines[rank], "large", count, 0, TRIB_OK);
    }
}

static void declaring_thread_takes_the_staging(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, on_devices_served);
    trib_tensor *tensors[2];
    const uint64_t count = (17 * MIB + 4) / sizeof(int32_t);
    declare_all(&jobs, tensors, count);
    assert_int_equal(look(&large.blocking), 2);
    assert_ptr_equal(tensors[0], declare_on_device(jobs.engines[0], "large", count, 0, TRIB_OK));
    exchange(&jobs, tensors, count);
    assert_int_equal(look(&large.blocking), 2);
    assert_int_equal(look(&large.hurried), 0);
    assert_int_equal(look(&large.count), 2);
    close_job(&jobs);
}

/* Rank 0's configuration decides the partitions, so the other ranks may guess too small a size. */
static void coarse_for_rank_0(trib_config *config, int member)
{
    on_devices_served(config, member);
    config->partition_bytes = config->rank == 0 ? 8 << 20 : 1 << 20;
}

static void another_is_taken_where_it_is_too_small(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 4, 1, 2, coarse_for_rank_0);
    trib_tensor *tensors[4];
    const uint64_t count = 34 * MIB / sizeof(int32_t); /* a share of 17 MiB in three partitions */
    declare_all(&jobs, tensors, count);
    assert_int_equal(look(&large.blocking), 4);
    exchange(&jobs, tensors, count);
    assert_int_equal(look(&large.hurried), 3);
    assert_int_equal(look(&large.count), 4); /* the blocks that were too small are freed */
    pthread_mutex_lock(&large.mutex);
    for (int i = 0; i < large.count; i++) {
        assert_true(large.blocks[i].size >= 24 * MIB);
    }
    pthread_mutex_unlock(&large.mutex);
    close_job(&jobs);
}

/* A tensor of many partitions uses the largest ones, and no second block is allocated. */
static void a_very_large_one_needs_no_guess(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 1, on_devices);
    declare_on_device(jobs.engines[0], "very large", 600 * MIB / sizeof(int32_t), 0, TRIB_OK);
    assert_int_equal(look(&large.blocking), 1);
    pthread_mutex_lock(&large.mutex);
    assert_int_equal(large.blocks[0].size, 600 * MIB);
    pthread_mutex_unlock(&large.mutex);
    close_job(&jobs);
}

static void not_for_small_ones_nor_on_one_machine(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, on_devices_served);
    declare_on_device(jobs.engines[0], "small", 16 * MIB / sizeof(int32_t) - 1, 0, TRIB_OK);
    assert_int_equal(look(&large.blocking), 0);
    close_job(&jobs);
    open_job(&jobs, 2, 0, 2, on_devices);
    declare_on_device(jobs.engines[0], "alone", 64 * MIB / sizeof(int32_t), 0, TRIB_OK);
    assert_int_equal(look(&large.blocking), 0);
    close_job(&jobs);
}

/* The declaring call gets the error and may try again. The engine goes on. */
static void without_memory_it_is_refused(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, on_devices_served);
    trib_tensor *tensors[2];
    large.is_gone = true;
    for (int rank = 0; rank < 2; rank++) {
        assert_null(declare_on_device(jobs.engines[rank], "large", 5 * MIB, 0, TRIB_NO_MEMORY));
    }
    large.is_gone = false;
    declare_all(&jobs, tensors, 5 * MIB);
    exchange(&jobs, tensors, 5 * MIB);
    assert_int_equal(look(&large.blocking), 2);
    assert_int_equal(look(&large.hurried), 0);
    close_job(&jobs);
}

/* The other worker never joins, so the tensor never gets a placement. */
static void staging_is_freed_without_a_placement(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = TRIB_ROLE_WORKER;
    config.worker_count = 2;
    config.coordinator = address;
    config.token = "a secret of the tests, long enough";
    config.log_level = TRIB_LOG_NONE;
    world = trib_host_world_create();
    local_size = 1;
    on_devices(&config, 0);
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    assert_non_null(declare_on_device(engine, "never", 20 * MIB / sizeof(int32_t), 0, TRIB_OK));
    assert_int_equal(look(&large.blocking), 1);
    assert_int_equal(look(&large.count), 1);
    trib_engine_close(engine, NULL, NULL);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    trib_host_world_free(world);
}

typedef struct declarer {
    pthread_t thread;
    trib_engine *engine;
    trib_tensor *tensor;
} declarer;

static void *declare_run(void *user)
{
    declarer *self = user;
    self->tensor = declare_on_device(self->engine, "twice", 20 * MIB / sizeof(int32_t), 0, TRIB_OK);
    return NULL;
}

static pthread_barrier_t both;

static void wait_for_both(void)
{
    pthread_barrier_wait(&both);
}

/* Two threads declare the tensor at once. One finds that the other was first, and frees its block. */
static void two_declare_it_at_once(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, on_devices_served);
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    large.when_taken = wait_for_both;
    declarer threads[2] = {{.engine = jobs.engines[0]}, {.engine = jobs.engines[0]}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i].thread, NULL, declare_run, &threads[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
    }
    large.when_taken = NULL;
    pthread_barrier_destroy(&both);
    assert_non_null(threads[0].tensor);
    assert_ptr_equal(threads[0].tensor, threads[1].tensor);
    assert_int_equal(look(&large.blocking), 2);
    assert_int_equal(look(&large.count), 1);
    trib_tensor *tensors[2] = {threads[0].tensor,
                               declare_on_device(jobs.engines[1], "twice", 20 * MIB / sizeof(int32_t), 0, TRIB_OK)};
    exchange(&jobs, tensors, 20 * MIB / sizeof(int32_t));
    assert_int_equal(look(&large.hurried), 0);
    close_job(&jobs);
}

/* ---- An engine that closes meanwhile ---- */

static struct {
    trib_engine *engine;
    sem_t is_closed;
} closing;

static void closed(trib_engine *engine, void *user)
{
    (void)engine;
    (void)user;
    sem_post(&closing.is_closed);
}

static void close_now(void)
{
    trib_engine_close(closing.engine, closed, NULL);
    sem_wait(&closing.is_closed);
}

static void staging_is_returned_after_the_engine_closed(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, on_devices_served);
    assert_int_equal(sem_init(&closing.is_closed, 0, 0), 0);
    closing.engine = jobs.engines[0];
    large.when_taken = close_now;
    assert_null(declare_on_device(jobs.engines[0], "closed", 20 * MIB / sizeof(int32_t), 0, TRIB_CLOSED));
    large.when_taken = NULL;
    assert_int_equal(look(&large.blocking), 1);
    assert_int_equal(look(&large.count), 0);
    close_job(&jobs);
    sem_destroy(&closing.is_closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(declaring_thread_takes_the_staging, prepare, check_freed),
        cmocka_unit_test_setup_teardown(another_is_taken_where_it_is_too_small, prepare, check_freed),
        cmocka_unit_test_setup_teardown(a_very_large_one_needs_no_guess, prepare, check_freed),
        cmocka_unit_test_setup_teardown(not_for_small_ones_nor_on_one_machine, prepare, check_freed),
        cmocka_unit_test_setup_teardown(without_memory_it_is_refused, prepare, check_freed),
        cmocka_unit_test_setup_teardown(staging_is_freed_without_a_placement, prepare, check_freed),
        cmocka_unit_test_setup_teardown(two_declare_it_at_once, prepare, check_freed),
        cmocka_unit_test_setup_teardown(staging_is_returned_after_the_engine_closed, prepare, check_freed),
    };
    return cmocka_run_group_tests_name("host memory of devices' tensors", tests, NULL, NULL);
}
