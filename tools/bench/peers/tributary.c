/*
 * tributary.c - a Tributary job's rank under agent.h: push_pull in place, every tensor under way as soon as it is
 * handed in, later ones first (the forward pass needs them first).
 *
 * Built by tools/bench/suite over the public header. Settings come from TRIB_*, as in any program.
 * Usage: tributary PREFIX threads|spinning|attached|polling
 * threads is the default way to embed the engine: its threads call back, the caller sleeps until the last sum is there;
 * spinning watches a counter for up to 1 ms before it sleeps (beside TRIB_BUSY_POLL=yes); attached runs the engine on
 * this thread's own loop; polling does too, and looks again and again while a sum is under way.
 */
#include <ev.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/tributary.h"
#include "tools/bench/peers/agent.h"

#define SPIN_NS 1000000
#define TURN_EVERY 64u

typedef struct job job;

/* The argument of an operation's callback. */
typedef struct sum {
    job *owner;
    agent_tensor *tensor;
    trib_tensor *handle;
} sum;

struct job {
    trib_engine *engine;
    struct ev_loop *loop; /* attached: this thread's; else NULL */
    bool spins;           /* polls instead of sleeping */
    bool crowded;         /* more ranks than cores: a polling rank yields its core in between, as Open MPI's ranks do */
    atomic_size_t left;   /* incomplete operations, plus one until all are submitted */
    sem_t done;           /* posted when left comes to 0; not when attached */
    unsigned looks;
    sum *sums;
    int rank;
    unsigned lists; /* lists loaded so far: tensors of different lists may have the same name */
};

static void require_ok(trib_status status, const trib_error *error, const char *what)
{
    if (status != TRIB_OK) {
        fprintf(stderr, "tributary: %s: %s: %s\n", what, trib_status_name(status), error->text);
        exit(1);
    }
}

static void one_less(job *self)
{
    if (atomic_fetch_sub(&self->left, 1) == 1 && self->loop == NULL) {
        sem_post(&self->done);
    }
}

static void check_result(const trib_result *result)
{
    if (result->status != TRIB_OK) {
        fprintf(stderr, "tributary: \"%s\": %s: %s\n", result->tensor, trib_status_name(result->status), result->text);
        exit(1);
    }
}

static void sum_done(const trib_result *result, void *user)
{
    sum *mine = user;
    mine->tensor->done_ns = agent_now_ns();
    check_result(result);
    one_less(mine->owner);
}

static void barrier_done(const trib_result *result, void *user)
{
    check_result(result);
    one_less(user);
}

/* Polls the shared memory of this machine's processes; and the other connections if that brought nothing, and
 * sometimes anyway. */
static void poll_peers(job *self)
{
    if (trib_engine_dispatch(self->engine, 0) == 0 || ++self->looks % TURN_EVERY == 0) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
}

/* Waits until everything that was submitted is done. */
static void finish_step(void *user)
{
    job *self = user;
    one_less(self);
    int64_t until = self->spins ? agent_now_ns() + SPIN_NS : 0;
    if (self->loop != NULL) {
        while (atomic_load(&self->left) > 0) {
            if (!self->spins) {
                ev_run(self->loop, EVRUN_ONCE);
                continue;
            }
            poll_peers(self);
            if (self->crowded) {
                sched_yield();
            }
        }
    } else {
        while (self->spins && atomic_load(&self->left) > 0 && agent_now_ns() < until) {
            sched_yield(); /* the engine's threads may need this core */
        }
        while (sem_wait(&self->done) != 0) {}
    }
    atomic_store(&self->left, 1);
}

static void run_barrier(void *user)
{
    job *self = user;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.done_cb = barrier_done;
    params.user = self;
    atomic_fetch_add(&self->left, 1);
    trib_error error = {.status = TRIB_OK};
    require_ok(trib_barrier(self->engine, &params, NULL, &error), &error, "barrier");
    finish_step(self);
}

static void hand_in(void *user, agent_tensor *tensor, size_t index)
{
    job *self = user;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->sums[index].handle;
    params.input = params.output = tensor->data;
    params.output_bytes = tensor->count * sizeof(float);
    float *mine = tensor->data + (uint64_t)self->rank * tensor->slice;
    params.kind = TRIB_OP_PUSH_PULL;
    if (agent_which() == AGENT_ALL_GATHER) {
        params.kind = TRIB_OP_ALL_GATHER;
        params.input = mine;
    } else if (agent_which() == AGENT_REDUCE_SCATTER) {
        params.kind = TRIB_OP_REDUCE_SCATTER;
        params.output = tensor->result;
    }
    params.done_cb = sum_done;
    params.user = &self->sums[index];
    atomic_fetch_add(&self->left, 1);
    trib_error error = {.status = TRIB_OK};
    require_ok(trib_submit_batch(self->engine, &params, 1, NULL, &error), &error, tensor->name);
}

static void load_tensors(void *user, agent_tensor *tensors, size_t count)
{
    job *self = user;
    self->sums = calloc(count, sizeof *self->sums);
    if (self->sums == NULL) {
        fprintf(stderr, "tributary: out of memory for %zu tensors\n", count);
        exit(1);
    }
    self->lists++;
    for (size_t i = 0; i < count; i++) {
        char name[200];
        snprintf(name, sizeof name, "%u %s", self->lists, tensors[i].name);
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.dtype = TRIB_FLOAT32;
        desc.count = agent_which() == AGENT_ALL_REDUCE ? tensors[i].count : tensors[i].slice;
        desc.layout = agent_which() == AGENT_ALL_REDUCE ? TRIB_WHOLE : TRIB_SLICES;
        desc.priority = (int32_t)i;
        trib_error error = {.status = TRIB_OK};
        require_ok(trib_tensor_declare(self->engine, &desc, &self->sums[i].handle, &error), &error, name);
        self->sums[i].owner = self;
        self->sums[i].tensor = &tensors[i];
    }
}

static void unload_tensors(void *user, agent_tensor *tensors, size_t count)
{
    (void)tensors;
    (void)count;
    free(((job *)user)->sums);
}

/* Allocates the engine's memory, as a caller does who cares for speed. */
static void *allocate_memory(void *user, size_t bytes)
{
    void *memory = NULL;
    return trib_alloc(((job *)user)->engine, bytes, &memory) == TRIB_OK ? memory : NULL;
}

static void release_memory(void *user, void *memory)
{
    trib_free(((job *)user)->engine, memory);
}

static void input_came(struct ev_loop *loop, ev_io *watcher, int events)
{
    (void)events;
    ev_io_stop(loop, watcher);
}

/* Waits for a command. An attached engine runs on this thread's loop, which must go on meanwhile. */
static void await_input(void *user, int fd)
{
    job *self = user;
    if (self->loop == NULL) {
        agent_await_input(NULL, fd);
        return;
    }
    ev_io watcher;
    ev_io_init(&watcher, input_came, fd, EV_READ);
    ev_io_start(self->loop, &watcher);
    while (ev_is_active(&watcher)) {
        ev_run(self->loop, EVRUN_ONCE);
    }
}

static void on_joined(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    require_ok(error->status, error, "join");
    one_less(user);
}

static int32_t join_job(job *self, const char *mode, trib_config *config)
{
    trib_error error = {.status = TRIB_OK};
    require_ok(trib_config_from_env(config, &error), &error, "settings");
    config->ready_cb = on_joined;
    config->ready_user = self;
    bool polling = strcmp(mode, "polling") == 0;
    self->spins = polling || strcmp(mode, "spinning") == 0;
    if (polling || strcmp(mode, "attached") == 0) {
        self->loop = ev_loop_new(EVFLAG_AUTO);
        config->mode = TRIB_MODE_ATTACHED;
        config->loop = self->loop;
    }
    self->crowded = config->worker_count + config->server_count > sysconf(_SC_NPROCESSORS_ONLN);
    sem_init(&self->done, 0, 0);
    atomic_store(&self->left, 2);
    require_ok(trib_engine_create(config, &self->engine, &error), &error, "engine");
    finish_step(self);
    return config->worker_count;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s PREFIX threads|spinning|attached|polling\n", argv[0]);
        return 2;
    }
    job self = {.lists = 0};
    trib_config config;
    trib_config_init(&config, sizeof config);
    int32_t workers = join_job(&self, argv[2], &config);
    self.rank = config.rank;
    agent_peer peer = {
        .self = &self,
        .rank = config.rank,
        .size = workers,
        .allocate = allocate_memory,
        .release = release_memory,
        .load = load_tensors,
        .unload = unload_tensors,
        .barrier = run_barrier,
        .hand_in = hand_in,
        .finish = finish_step,
        .await_input = await_input,
    };
    int status = agent_serve(&peer, argv[1]);
    return trib_engine_destroy(self.engine) == TRIB_OK ? status : 1;
}
