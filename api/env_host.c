/* env_host.c - puts an engine on this machine: see env_host.h. */
#include "api/env_host.h"

#include <sched.h>
#include <stdlib.h>

#include "engine/pipeline.h"
#include "engine/reactor_ev.h"
#include "stages/kernels.h"
#include "stages/plans.h"
#include "transports/registry.h"

static trib_status reactor_open(trib_engine *engine, uint32_t index, trib_reactor **out)
{
    struct ev_loop *host = engine->config.mode == TRIB_MODE_ATTACHED ? engine->config.loop : NULL;
    return trib_reactor_ev_create(index, &engine->logger, host, out);
}

static trib_status reactor_start(trib_engine *engine, trib_reactor *reactor)
{
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return TRIB_OK;
    }
    return trib_reactor_ev_start(reactor, -1, engine->config.busy_poll);
}

static void reactor_stop(trib_engine *engine, trib_reactor *reactor)
{
    if (engine->config.mode != TRIB_MODE_ATTACHED) {
        trib_reactor_ev_stop(reactor);
        trib_reactor_ev_join(reactor);
    }
}

static void *memory_alloc(void *memory, size_t size)
{
    (void)memory;
    void *block = NULL;
    return posix_memalign(&block, 4096, size) == 0 ? block : NULL;
}

static void memory_free(void *memory, void *block)
{
    (void)memory;
    free(block);
}

trib_status trib_env_host_init(trib_env *env, const trib_config *config, trib_error *error)
{
    *env = (trib_env){
        .transport = trib_transport_by_name(config->transport),
        .kernels = trib_kernels_best(),
        .plans = trib_plans,
        .reactor_open = reactor_open,
        .reactor_start = reactor_start,
        .reactor_stop = reactor_stop,
        .reactor_free = trib_reactor_ev_destroy,
        .on_thread = trib_reactor_ev_on_thread,
        .memory_alloc = memory_alloc,
        .memory_free = memory_free,
    };
    if (env->transport == NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "transport \"%s\" is not in this build; \"auto\" and \"tcp\" are",
                              config->transport);
    }
    return TRIB_OK;
}

void trib_env_host_fini(trib_env *env)
{
    (void)env;
}

uint32_t trib_env_host_reactors(const trib_config *config)
{
    (void)config;
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int wanted = cores / 8;
    return wanted < 1 ? 1 : wanted > 4 ? 4 : (uint32_t)wanted;
}
