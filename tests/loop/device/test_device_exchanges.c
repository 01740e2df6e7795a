/*
 * test_device_exchanges.c - device tensors that are exchanged in slices or in a group. Each of them is copied to host
 * memory and back, so the copies are counted: in plain memory nothing else would show one that is missing.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/loop/device/device_wrap.h"

enum { RANKS_MAX = 4, KINDS = 7, LONGEST = 40000, ROUNDS = 3 };

#define DEADLINE_NS (60 * INT64_C(1000000000))

static trib_device_ops counting;
static atomic_ullong to_host, to_device;

static void count_and_submit(trib_device *device, trib_device_job *what)
{
    atomic_fetch_add(&to_host, what->kind == TRIB_DEVICE_TO_HOST ? what->bytes : 0);
    atomic_fetch_add(&to_device, what->kind == TRIB_DEVICE_TO_DEVICE ? what->bytes : 0);
    trib_device_host_ops.submit(device, what);
}

static void in_pieces(trib_config *config, int member)
{
    on_devices(config, member);
    config->partition_bytes = 64 << 10;
    config->chunk_bytes = 16 << 10;
}

/* ---- Exchanges: how many elements each gives and gets, and which ---- */

typedef struct way {
    const char *name;
    trib_layout layout;
    bool grouped; /* in a group of all ranks, which counts them backwards */
    trib_status (*submit)(trib_engine *, const trib_op_params *, trib_op **, trib_error *);
} way;

static const way ways[KINDS] = {
    {"gather", TRIB_SLICES, false, trib_all_gather},         {"gather in a group", TRIB_SLICES, true, trib_all_gather},
    {"scatter", TRIB_SLICES, false, trib_reduce_scatter},    {"pairs", TRIB_PAIRS, false, trib_all_to_all},
    {"sum in a group", TRIB_WHOLE, true, trib_all_reduce},   {"broadcast in a group", TRIB_WHOLE, true, trib_broadcast},
    {"reduce in a group", TRIB_WHOLE, true, trib_reduce_to},
};

static int place_of(const way *what, int rank, int n)
{
    return what->grouped ? n - 1 - rank : rank;
}

/* One slice is empty, one needs several partitions. */
static int length_of(int place)
{
    static const int lengths[RANKS_MAX] = {1000, LONGEST, 0, 7};
    return lengths[place];
}

static int pair_length(int from, int to)
{
    return from == 1 && to == 0 ? LONGEST : (from * 5 + to * 3) % 4;
}

static int total(int n)
{
    int sum = 0;
    for (int place = 0; place < n; place++) {
        sum += length_of(place);
    }
    return sum;
}

static int32_t element(int place, int at)
{
    return place * 100003 + at * 3;
}

static int32_t sum_of(int n, int at)
{
    return element(0, at) * n + 100003 * n * (n - 1) / 2;
}

typedef struct part {
    int32_t *input, *output, *wanted;
    int given, taken;
} part;

static void fill_pairs(part *mine, int place, int n)
{
    mine->given = mine->taken = 0;
    for (int other = 0; other < n; other++) {
        int before = 0; /* of the slice in the other's input */
        for (int i = 0; i < place; i++) {
            before += pair_length(other, i);
        }
        for (int i = 0; i < pair_length(other, place); i++) {
            mine->wanted[mine->taken++] = element(other, before + i);
        }
        mine->given += pair_length(place, other);
    }
}

static void fill_slices(part *mine, const way *what, int place, int n)
{
    const bool gathers = what->submit == trib_all_gather;
    int before = 0;
    for (int other = 0; other < n; other++) {
        for (int i = 0; gathers && i < length_of(other); i++) {
            mine->wanted[before + i] = element(other, i);
        }
        for (int i = 0; !gathers && other == place && i < length_of(other); i++) {
            mine->wanted[i] = sum_of(n, before + i);
        }
        before += length_of(other);
    }
    mine->given = gathers ? length_of(place) : before;
    mine->taken = gathers ? before : length_of(place);
}

static void fill(part *mine, const way *what, int place, int n, int root)
{
    const int room = 3 * LONGEST;
    *mine = (part){.input = calloc(room, sizeof(int32_t)),
                   .output = calloc(room, sizeof(int32_t)),
                   .wanted = calloc(room, sizeof(int32_t))};
    if (what->layout == TRIB_PAIRS) {
        fill_pairs(mine, place, n);
    } else if (what->layout == TRIB_SLICES) {
        fill_slices(mine, what, place, n);
    } else {
        const bool takes = what->submit != trib_reduce_to || place == root;
        const bool gives = what->submit != trib_broadcast || place == root;
        mine->given = gives ? LONGEST : 0;
        mine->taken = takes ? LONGEST : 0;
        for (int i = 0; i < mine->taken; i++) {
            mine->wanted[i] = what->submit == trib_broadcast ? element(root, i) : sum_of(n, i);
        }
    }
}

static trib_tensor *declare(trib_engine *engine, const way *what, int rank, int n)
{
    trib_tensor_desc desc;
    uint64_t splits[RANKS_MAX];
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc_init(&desc, sizeof desc);
    const int place = place_of(what, rank, n);
    desc.name = what->name;
    desc.dtype = TRIB_INT32;
    desc.flags = TRIB_TENSOR_DEVICE;
    desc.layout = what->layout;
    desc.count = what->layout == TRIB_SLICES ? (uint64_t)length_of(place) : what->layout == TRIB_WHOLE ? LONGEST : 0;
    for (int i = 0; i < n; i++) {
        splits[i] = (uint64_t)pair_length(place, i);
    }
    if (what->layout == TRIB_PAIRS) {
        desc.splits = splits;
        desc.split_count = (uint32_t)n;
    }
    trib_group_desc group;
    int32_t ranks[RANKS_MAX];
    trib_group_desc_init(&group, sizeof group);
    for (int i = 0; i < n; i++) {
        ranks[i] = n - 1 - i;
    }
    group.name = "backwards";
    group.ranks = ranks;
    group.rank_count = (uint32_t)n;
    if (what->grouped && trib_group_create(engine, &group, &desc.group, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    trib_tensor *tensor = NULL;
    if (trib_tensor_declare(engine, &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s: %s", what->name, error.text);
    }
    return tensor;
}

static trib_op *submit(trib_engine *engine, const way *what, trib_tensor *tensor, part *mine, int root, void *stream)
{
    trib_op_params params;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = mine->input;
    params.output = mine->output;
    params.output_bytes = what->layout == TRIB_WHOLE ? 0 : (uint64_t)mine->taken * sizeof(int32_t);
    params.root = root;
    params.stream = stream;
    if (what->submit(engine, &params, &op, &error) != TRIB_OK) {
        fail_msg("%s: %s", what->name, error.text);
    }
    return op;
}

static void finish(const way *what, trib_op *op, const part *mine)
{
    trib_error error = {.status = TRIB_OK};
    if (trib_op_wait(op, DEADLINE_NS, &error) != TRIB_OK) {
        fail_msg("%s: %s", what->name, error.text);
    }
    trib_op_release(op);
    for (int i = 0; i < mine->taken; i++) {
        if (mine->output[i] != mine->wanted[i]) {
            fail_msg("%s: element %d of %d is %d, not %d", what->name, i, mine->taken, mine->output[i],
                     mine->wanted[i]);
        }
    }
    free(mine->input);
    free(mine->output);
    free(mine->wanted);
}

/* The inputs are written when the operations have been submitted, and the streams opened behind that. */
static void exchange_all(job *jobs, int round)
{
    const int n = jobs->worker_count, root = round % n;
    static part parts[RANKS_MAX][KINDS];
    trib_op *ops[RANKS_MAX][KINDS];
    unsigned long long given = 0, taken = 0;
    trib_host_stream *streams[RANKS_MAX];
    atomic_store(&to_host, 0);
    atomic_store(&to_device, 0);
    for (int rank = 0; rank < n; rank++) {
        streams[rank] = trib_host_stream_create(false);
        for (int k = 0; k < KINDS; k++) {
            const way *what = &ways[(k + rank) % KINDS];
            part *mine = &parts[rank][(k + rank) % KINDS];
            fill(mine, what, place_of(what, rank, n), n, root);
            trib_tensor *tensor = declare(jobs->engines[rank], what, rank, n);
            ops[rank][(k + rank) % KINDS] = submit(jobs->engines[rank], what, tensor, mine, root, streams[rank]);
            given += (unsigned long long)mine->given * sizeof(int32_t);
            taken += (unsigned long long)mine->taken * sizeof(int32_t);
        }
    }
    for (int rank = 0; rank < n; rank++) {
        for (int k = 0; k < KINDS; k++) {
            for (int i = 0; i < parts[rank][k].given; i++) {
                parts[rank][k].input[i] = element(place_of(&ways[k], rank, n), i);
            }
        }
        trib_host_stream_open(streams[rank]);
    }
    for (int rank = 0; rank < n; rank++) {
        for (int k = 0; k < KINDS; k++) {
            finish(&ways[k], ops[rank][k], &parts[rank][k]);
        }
        trib_host_stream_free(streams[rank]);
    }
    assert_int_equal(atomic_load(&to_host), given);
    assert_int_equal(atomic_load(&to_device), taken);
}

static void run_exchanges(int workers, int servers, int on_one)
{
    job jobs;
    counting = trib_device_host_ops;
    counting.submit = count_and_submit;
    watched = &counting;
    open_job(&jobs, workers, servers, on_one, in_pieces);
    for (int round = 0; round < ROUNDS; round++) {
        exchange_all(&jobs, round);
    }
    close_job(&jobs);
    watched = NULL;
}

static void between_machines(void **state)
{
    (void)state;
    run_exchanges(2, 0, 1);
    run_exchanges(3, 1, 1);
    run_exchanges(4, 0, 2);
}

static void on_one_machine(void **state)
{
    (void)state;
    run_exchanges(1, 0, 1);
    run_exchanges(3, 0, 3);
}

/* ---- Outputs of the engine's own, in place, failures ---- */

/* The output's length is not known before, so the engine takes it from the host's memory, whose address it tells. */
static void allocated_output(void **state)
{
    (void)state;
    job jobs;
    part parts[2];
    trib_op *ops[2];
    trib_error error = {.status = TRIB_OK};
    open_job(&jobs, 2, 0, 1, in_pieces);
    for (int rank = 0; rank < 2; rank++) {
        trib_op_params params;
        fill(&parts[rank], &ways[0], rank, 2, 0);
        for (int i = 0; i < parts[rank].given; i++) {
            parts[rank].input[i] = element(rank, i);
        }
        trib_op_params_init(&params, sizeof params);
        params.tensor = declare(jobs.engines[rank], &ways[0], rank, 2);
        params.input = parts[rank].input;
        params.flags = TRIB_OP_ALLOCATE_OUTPUT;
        assert_int_equal(trib_all_gather(jobs.engines[rank], &params, &ops[rank], &error), TRIB_OK);
    }
    for (int rank = 0; rank < 2; rank++) {
        void *data = NULL;
        uint64_t bytes = 0;
        assert_int_equal(trib_op_wait(ops[rank], -1, &error), TRIB_OK);
        assert_int_equal(trib_op_output(ops[rank], &data, &bytes, &error), TRIB_OK);
        assert_int_equal(bytes, (size_t)total(2) * sizeof(int32_t));
        memcpy(parts[rank].output, data, bytes);
        finish(&ways[0], ops[rank], &parts[rank]);
    }
    close_job(&jobs);
}

/* A rank's slice is at its place in the output already. */
static void gather_in_place(void **state)
{
    (void)state;
    job jobs;
    part parts[2];
    trib_op *ops[2];
    open_job(&jobs, 2, 0, 1, in_pieces);
    for (int rank = 0; rank < 2; rank++) {
        part *mine = &parts[rank];
        fill(mine, &ways[0], rank, 2, 0);
        int32_t *apart = mine->input;
        mine->input = mine->output + (rank == 0 ? 0 : length_of(0));
        for (int i = 0; i < mine->given; i++) {
            mine->input[i] = element(rank, i);
        }
        ops[rank] = submit(jobs.engines[rank], &ways[0], declare(jobs.engines[rank], &ways[0], rank, 2), mine, 0, NULL);
        mine->input = apart;
    }
    for (int rank = 0; rank < 2; rank++) {
        finish(&ways[0], ops[rank], &parts[rank]);
    }
    close_job(&jobs);
}

/* An operation whose copy fails on one rank fails there with the device's text, and on the others. Buffers come
 * back. */
static void a_device_fails(void **state)
{
    (void)state;
    job jobs;
    part parts[2];
    trib_op *ops[2];
    open_job(&jobs, 2, 0, 1, in_pieces);
    trib_host_world_fault(world, 1, 0, TRIB_HOST_FAULT_FAIL);
    for (int rank = 0; rank < 2; rank++) {
        fill(&parts[rank], &ways[2], rank, 2, 0);
        trib_tensor *tensor = declare(jobs.engines[rank], &ways[2], rank, 2);
        ops[rank] = submit(jobs.engines[rank], &ways[2], tensor, &parts[rank], 0, NULL);
    }
    for (int rank = 0; rank < 2; rank++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_not_equal(job_wait(ops[rank], &error), TRIB_OK);
        assert_non_null(strstr(error.text, ways[2].name));
        free(parts[rank].input);
        free(parts[rank].output);
        free(parts[rank].wanted);
    }
    close_job(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_machines), cmocka_unit_test(on_one_machine), cmocka_unit_test(allocated_output),
        cmocka_unit_test(gather_in_place),  cmocka_unit_test(a_device_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
