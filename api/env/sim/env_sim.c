/* env_sim.c - puts an engine into virtual time: see env_sim.h. */
#include "api/env/sim/env_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "api/env/device_load.h"
#include "engine/base/limits.h"
#include "engine/worker/pipeline.h"
#include "stages/kernels/crc32c.h"
#include "stages/kernels/kernels.h"
#include "stages/plans.h"

#define PAGE ((size_t)4096)

/* trib_env.memory points to it. */
typedef struct sim_env {
    trib_sim_host host;
} sim_env;

/* ---- Memory without contents ---- */

trib_status trib_sim_void_open(trib_sim_void *self, size_t size)
{
    void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return TRIB_NO_MEMORY;
    }
    *self = (trib_sim_void){.base = base, .size = size};
    return TRIB_OK;
}

void trib_sim_void_close(trib_sim_void *self)
{
    if (self->base != NULL) {
        munmap(self->base, self->size);
        self->base = NULL;
    }
}

void *trib_sim_void_take(trib_sim_void *self, size_t size)
{
    size = (size + PAGE - 1) / PAGE * PAGE;
    if (size > self->size - self->used) {
        return NULL;
    }
    void *block = self->base + self->used;
    self->used += size;
    return block;
}

/* Kernels that compute nothing: their caller has charged the time already. */
static void combine_nothing(trib_dtype dtype, trib_reduce reduce, void *dst_acc, const void *left, trib_form left_form,
                            const void *right, trib_form right_form, size_t count)
{
    (void)dtype;
    (void)reduce;
    (void)dst_acc;
    (void)left;
    (void)left_form;
    (void)right;
    (void)right_form;
    (void)count;
}

static void finish_nothing(trib_dtype dtype, trib_reduce reduce, void *dst_wire, const void *src, trib_form src_form,
                           size_t count, uint32_t contributors)
{
    (void)dtype;
    (void)reduce;
    (void)dst_wire;
    (void)src;
    (void)src_form;
    (void)count;
    (void)contributors;
}

static void *copy_nothing(void *restrict dst, const void *restrict src, size_t size)
{
    (void)src;
    (void)size;
    return dst;
}

static uint32_t compute_nothing(const void *data, size_t size)
{
    (void)data;
    (void)size;
    return 0;
}

static const trib_crc32c crc32c_of_nothing = {.name = "nothing", .compute = compute_nothing, .is_fast = true};

static const trib_kernels kernels_of_nothing = {.name = "nothing",
                                                .combine = combine_nothing,
                                                .finish = finish_nothing,
                                                .copy = copy_nothing,
                                                .copy_nontemporal = copy_nothing};

/* ---- The table ---- */

static trib_status reactor_open(trib_engine *engine, uint32_t index, trib_reactor **out)
{
    const sim_env *self = engine->env.memory;
    *out = trib_sim_reactor_create(self->host.process, index, &engine->logger);
    return *out != NULL ? TRIB_OK : TRIB_NO_MEMORY;
}

static trib_status reactor_start(trib_engine *engine, trib_reactor *reactor)
{
    (void)engine;
    (void)reactor; /* the world runs its reactors, so there is nothing to start */
    return TRIB_OK;
}

static void reactor_stop(trib_engine *engine, trib_reactor *reactor)
{
    (void)engine;
    (void)reactor;
}

static bool may_alloc(void *memory, size_t size)
{
    const sim_env *self = memory;
    return self->host.may_alloc == NULL || self->host.may_alloc(self->host.user, size);
}

static void *memory_alloc(void *memory, size_t size)
{
    sim_env *self = memory;
    if (!may_alloc(memory, size)) {
        return NULL;
    }
    if (self->host.nothing != NULL) {
        return trib_sim_void_take(self->host.nothing, size);
    }
    return aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE);
}

static void memory_free(void *memory, void *block)
{
    const sim_env *self = memory;
    if (self->host.nothing == NULL) {
        free(block);
    }
}

static void close_env(trib_env *env)
{
    trib_sim_store_free(env->store);
    free(env->memory);
}

trib_status trib_engine_create_sim(const trib_sim_host *host, const trib_config *config, trib_engine **engine_out,
                                   trib_error *error)
{
    sim_env *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    self->host = *host;
    trib_env env = {
        .transport = &trib_sim_transport_ops,
        .kernels = host->nothing != NULL ? &kernels_of_nothing : trib_kernels_best(),
        .crc32c = host->nothing != NULL ? &crc32c_of_nothing : trib_crc32c_best(),
        .choose_plan = trib_plan_choose,
        .reactor_open = reactor_open,
        .reactor_start = reactor_start,
        .reactor_stop = reactor_stop,
        .reactor_free = trib_sim_reactor_free,
        .on_thread = trib_sim_reactor_runs,
        .memory_alloc = memory_alloc,
        .memory_alloc_blocking = memory_alloc,
        .memory_free = memory_free,
        .memory = self,
        .modelled_codec = host->modelled_codec,
        .half_open_max = TRIB_HALF_OPEN_MAX, /* whatever the limits of the process in which the job is simulated */
        .may_alloc = may_alloc,
        .fini = close_env,
    };
    snprintf(env.place, sizeof env.place, "%s", host->place);
    env.device_world = host->device_world;
    env.store_ops = host->store != NULL ? &trib_sim_store_ops : NULL;
    env.store = host->store != NULL ? trib_sim_store_open(host->store) : NULL;
    if (host->store != NULL && env.store == NULL) {
        close_env(&env);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    trib_status status = config->device == NULL ? TRIB_OK : trib_device_load(config->device, &env.device, error);
    if (status != TRIB_OK) {
        close_env(&env);
        return status;
    }
    return trib_engine_create_in(&env, config, engine_out, error);
}
