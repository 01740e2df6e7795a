/*
 * test_device_apart.c - the cores of a local rank are many rounds apart on one tensor, because a server of one of them
 * stands still. An operation that fails meanwhile does not affect the others.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/handle.h"
#include "engine/local_group/group_internal.h"
#include "tests/sim/sim_bed.h"

enum {
    MACHINES = 2,
    LOCAL_SIZE = 2,
    RANKS = MACHINES * LOCAL_SIZE,
    SERVERS = 4,
    REACTORS = 2,
    PART_COUNT = 1024,
    ROUNDS = 40,
    TRIES = 32
};

static exchange exchanges[RANKS][ROUNDS];

/* Ranks of one machine have a device each. Servers have processes of their own. */
static void on_machines(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->reactors = REACTORS;
    config->colocate = TRIB_COLOCATE_OFF;
    config->chunk_bytes = config->partition_bytes = PART_COUNT * sizeof(int32_t);
    config->device = config->rank >= 0 ? "host" : "none";
    config->local_size = config->rank >= 0 ? LOCAL_SIZE : 1;
    config->local_rank = config->rank >= 0 ? (int32_t)(member % LOCAL_SIZE) : 0;
}

static sim_job *open_job(trib_host_world *world)
{
    sim_job_config config = sim_job_config_default(RANKS, SERVERS);
    config.per_machine = LOCAL_SIZE;
    config.device_world = world;
    config.tweak = on_machines;
    for (uint32_t i = 0; i < RANKS * ROUNDS; i++) {
        exchanges[i / ROUNDS][i % ROUNDS] = (exchange){.buffer = calloc(4 * PART_COUNT, sizeof(int32_t))};
    }
    return sim_bed_open(&config);
}

static trib_tensor *declare(sim_job *job, uint32_t rank, const char *name, uint32_t count)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = count;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    assert_int_equal(trib_tensor_declare(job->members[rank].engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static const trib_tensor *tensor_of(const trib_tensor *handle)
{
    return trib_handle_find((uintptr_t)handle, TRIB_HANDLE_TENSOR);
}

static void hand_in(sim_job *job, uint32_t rank, trib_tensor *tensor, uint32_t round, trib_op **op_out)
{
    exchange *what = &exchanges[rank][round];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    params.timeout_ns = 60 * SECOND;
    for (uint32_t i = 0; i < tensor_of(tensor)->count; i++) {
        what->buffer[i] = (int32_t)(i + 10 * rank + 100000 * round);
    }
    assert_int_equal(trib_push_pull(job->members[rank].engine, &params, op_out, NULL), TRIB_OK);
}

static bool all_done(sim_job *job, void *rounds)
{
    (void)job;
    for (uint32_t i = 0; i < RANKS * ROUNDS; i++) {
        if (i % ROUNDS < *(const uint32_t *)rounds && exchanges[i / ROUNDS][i % ROUNDS].done == 0) {
            return false;
        }
    }
    return true;
}

/* Returns true if both slices have two servers each for their shares, and a core of their own on every rank. */
static bool is_apart(const trib_tensor *handle)
{
    const trib_place_owner *owners = tensor_of(handle)->owners;
    uint32_t who = 0;
    for (uint32_t i = 0; i < 4; i++) {
        who |= 1u << owners[i].member;
    }
    return owners[0].reactor != owners[2].reactor && owners[1].reactor != owners[3].reactor &&
           __builtin_popcount(who) == 4;
}

/* Declares tensors until one is dealt that way. */
static void declare_apart(sim_job *job, trib_tensor *tensors[RANKS])
{
    bool found = false;
    for (uint32_t i = 0; i < TRIES && !found; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor %u", i);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            exchanges[rank][0].done = 0;
            tensors[rank] = declare(job, rank, name, (i % 2 == 0 ? 4 : 1) * PART_COUNT);
            hand_in(job, rank, tensors[rank], 0, NULL);
        }
        uint32_t rounds = 1;
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, all_done, &rounds));
        found = i % 2 == 0 && is_apart(tensors[0]);
    }
    assert_true(found);
}

/* Freezes or thaws the servers of the second slice. */
static void freeze(sim_job *job, const trib_tensor *tensor, bool frozen)
{
    for (uint32_t i = 2; i < 4; i++) {
        trib_sim_process_freeze(job->members[tensor_of(tensor)->owners[i].member].process, frozen);
    }
}

static void check(uint32_t rank, uint32_t round, uint32_t failing)
{
    const exchange *what = &exchanges[rank][round];
    assert_int_equal(what->done, 1);
    if (round == failing) {
        assert_int_equal(what->status, TRIB_CANCELLED);
        return;
    }
    assert_int_equal(what->status, TRIB_OK);
    for (uint32_t i = 0; i < 4 * PART_COUNT; i++) {
        assert_int_equal(what->buffer[i], (int32_t)(RANKS * i + 10 * (0 + 1 + 2 + 3) + RANKS * 100000 * round));
    }
}

static void only_what_failed_fails(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* the rank that cancels */
        const uint32_t failing = 6;
        trib_tensor *tensors[RANKS];
        trib_op *op = NULL;
        sim_job *job = open_job(world);
        declare_apart(job, tensors);
        freeze(job, tensors[0], true);
        for (uint32_t i = RANKS; i < RANKS * ROUNDS; i++) {
            hand_in(job, i % RANKS, tensors[i % RANKS], i / RANKS,
                    i / RANKS == failing && i % RANKS == rank ? &op : NULL);
        }
        trib_op_cancel(op);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        freeze(job, tensors[0], false);
        uint32_t rounds = ROUNDS;
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, all_done, &rounds));
        for (uint32_t i = 0; i < RANKS * ROUNDS; i++) {
            check(i % RANKS, i / RANKS, failing);
        }
        trib_op_release(op);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        for (uint32_t i = 0; i < RANKS * ROUNDS; i++) {
            free(exchanges[i / ROUNDS][i % ROUNDS].buffer);
        }
    }
    trib_host_world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_what_failed_fails)};
    return cmocka_run_group_tests_name("cores of a local rank far apart", tests, NULL, NULL);
}
