/*
 * tributary.c - a Tributary job's rank under agent.h: push_pull in place, every tensor under way as soon as it is
 * handed in, later ones first (the forward pass needs them first).
 *
 * Built by tools/suite over the public header. Settings come from TRIB_*, as in any program.
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
#include "tools/peers/agent.h"

#define SPIN_NS 1000000
#define TURN_EVERY 64u

typedef struct job job;

/* What the callback of a tensor's operation gets. */
typedef struct sum {
    job *owner;
    agent_tensor *tensor;
    trib_tensor *handle;
} sum;

struct job {
    trib_engine *engine;
    struct ev_loop *loop; /* attached: this thread's; else NULL */
    bool spins;           /* looks again and again instead of sleeping */
    bool crowded;         /* more ranks than cores: who looks gives its core away in between, as Open MPI's ranks do */
    atomic_size_t left;   /* operations that are not done, and one more until all were handed in */
    sem_t done;           /* posted when left comes to 0; not when attached */
    unsigned looks;
    sum *sums;
    unsigned lists; /* loaded so far: tensors of different lists may have the same name */
};

static void require(trib_status status, const trib_error *error, const char *what)
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

/* At what other processes of this machine have sent, and where that is nothing, but also else now and then, at all
 * else. */
static void look(job *self)
{
    if (trib_engine_dispatch(self->engine, 0) == 0 || ++self->looks % TURN_EVERY == 0) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
}

/* Until everything that was handed in is done. */
static void finish(void *user)
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
            look(self);
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

static void barrier(void *user)
{
    job *self = user;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.done_cb = barrier_done;
    params.user = self;
    atomic_fetch_add(&self->left, 1);
    trib_error error = {.status = TRIB_OK};
    require(trib_barrier(self->engine, &params, NULL, &error), &error, "barrier");
    finish(self);
}

static void hand_in(void *user, agent_tensor *tensor, size_t index)
{
    job *self = user;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = self->sums[index].handle;
    params.input = params.output = tensor->data;
    params.done_cb = sum_done;
    params.user = &self->sums[index];
    atomic_fetch_add(&self->left, 1);
    trib_error error = {.status = TRIB_OK};
    require(trib_push_pull(self->engine, &params, NULL, &error), &error, tensor->name);
}

static void load(void *user, agent_tensor *tensors, size_t count)
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
        desc.count = tensors[i].count;
        desc.priority = (int32_t)i;
        trib_error error = {.status = TRIB_OK};
        require(trib_tensor_declare(self->engine, &desc, &self->sums[i].handle, &error), &error, name);
        self->sums[i].owner = self;
        self->sums[i].tensor = &tensors[i];
    }
}

static void unload(void *user, agent_tensor *tensors, size_t count)
{
    (void)tensors;
    (void)count;
    free(((job *)user)->sums);
}

/* The engine's memory is what a caller who cares for speed uses. */
static void *allocate(void *user, size_t bytes)
{
    void *memory = NULL;
    return trib_alloc(((job *)user)->engine, bytes, &memory) == TRIB_OK ? memory : NULL;
}

static void release(void *user, void *memory)
{
    trib_free(((job *)user)->engine, memory);
}

static void input_came(struct ev_loop *loop, ev_io *watcher, int events)
{
    (void)events;
    ev_io_stop(loop, watcher);
}

/* An attached engine lives on this thread's loop, which must go on while there is no command. */
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

static void joined(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    require(error->status, error, "join");
    one_less(user);
}

static int32_t join(job *self, const char *mode, trib_config *config)
{
    trib_error error = {.status = TRIB_OK};
    require(trib_config_from_env(config, &error), &error, "settings");
    config->ready_cb = joined;
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
    require(trib_engine_create(config, &self->engine, &error), &error, "engine");
    finish(self);
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
    int32_t workers = join(&self, argv[2], &config);
    agent_peer peer = {
        .self = &self,
        .rank = config.rank,
        .size = workers,
        .allocate = allocate,
        .release = release,
        .load = load,
        .unload = unload,
        .barrier = barrier,
        .hand_in = hand_in,
        .finish = finish,
        .await_input = await_input,
    };
    int status = agent_serve(&peer, argv[1]);
    return trib_engine_destroy(self.engine) == TRIB_OK ? status : 1;
}
