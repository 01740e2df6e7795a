/* env_host.c - puts an engine on this machine: see env_host.h. */
#include "api/env/env_host.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/config/interfaces.h"
#include "api/env/device_load.h"
#include "api/env/env_place.h"
#include "api/env/resolver.h"
#include "api/env/store_load.h"
#include "engine/worker/pipeline.h"
#include "engine/reactor/reactor_ev.h"
#include "numa/arena.h"
#include "stages/kernels/crc32c.h"
#include "stages/kernels/kernels.h"
#include "stages/plans.h"
#include "transports/registry.h"
#include "engine/base/descriptor.h"

#define PAGE 4096u
#define GPU_BUSY_POLL_NS                                                                                               \
    INT64_C(500000) /* the operations of a training step follow each other sooner than a thread wakes up */
/* Upper limits of the adaptive window. In a job of one machine one reactor polls so long, in others all of them do. */
#define GPU_BUSY_POLL_ALONE_NS INT64_C(25000000)
#define GPU_BUSY_POLL_MOST_NS INT64_C(8000000)

/* Registering memory with a GPU takes 0.3 ms and more for each MiB, and a reactor that needs the memory would wait for
 * it. So the memory of the first exchanges is made with the engine. */
#define GPU_RESERVE_BYTES ((size_t)256 << 20)

/* trib_env.memory points to it. */
typedef struct host {
    trib_env_place place;
    trib_arena *arena;
    const trib_device_ops *device_ops; /* NULL: none */
    trib_device *device;
    bool is_registrar; /* the device is told of the arena's extents */
    uint32_t registrar;
    bool notifies_devices; /* network devices that register memory are there */
    bool gpu_direct;       /* they may register device memory too */
    bool copies;           /* device tensors pass through the arena's memory */
} host;

static trib_status reactor_open(trib_engine *engine, uint32_t index, trib_reactor **out)
{
    struct ev_loop *loop = engine->config.mode == TRIB_MODE_ATTACHED ? engine->config.loop : NULL;
    return trib_reactor_ev_create(index, &engine->logger, loop, out);
}

static trib_status reactor_start(trib_engine *engine, trib_reactor *reactor)
{
    host *self = engine->env.memory;
    return trib_env_place_start(&self->place, engine, reactor);
}

static void reactor_settle(trib_engine *engine, trib_reactor *reactor, const trib_machine_place *where)
{
    host *self = engine->env.memory;
    trib_env_place_settle(&self->place, engine, reactor, where);
}

static void device_thread(void *memory)
{
    trib_env_place_device_thread(&((host *)memory)->place);
}

static void reactor_go(trib_engine *engine, trib_reactor *reactor)
{
    if (engine->config.mode != TRIB_MODE_ATTACHED) {
        trib_reactor_ev_release(reactor);
    }
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
    host *self = memory;
    return trib_arena_alloc(self->arena, size, size >= PAGE ? PAGE : 64);
}

static void *memory_alloc_blocking(void *memory, size_t size)
{
    host *self = memory;
    return trib_arena_alloc_blocking(self->arena, size, size >= PAGE ? PAGE : 64);
}

static void memory_free(void *memory, void *block)
{
    host *self = memory;
    trib_arena_free(self->arena, block);
}

static bool memory_has(void *memory, const void *block)
{
    const host *self = memory;
    return trib_arena_has(self->arena, block);
}

/* Memory that lies on the device is registered as device memory or not at all. */
static trib_status memory_adopt(void *memory, void *base, size_t size, trib_error *error)
{
    const host *self = memory;
    trib_device_memory place = {.fd = -1};
    trib_status status = TRIB_OK;
    if (self->device_ops != NULL && self->notifies_devices) {
        status = self->device_ops->expose(self->device, base, size, &place, error);
    }
    const bool on_device = status == TRIB_OK && place.fd >= 0;
    if (on_device && !self->gpu_direct) {
        status =
            trib_error_set(error, TRIB_UNSUPPORTED, "they lie on the device, and GPUDirect is off (TRIB_GPU_DIRECT)");
    } else if (status == TRIB_OK) {
        const trib_arena_dmabuf dmabuf = {.fd = place.fd, .offset = place.offset};
        status = trib_arena_adopt(self->arena, base, size, on_device ? &dmabuf : NULL, error);
    }
    if (on_device) {
        close(place.fd);
    }
    return status;
}

static size_t memory_adopted(void *memory, const void *base)
{
    return trib_arena_adopted_size(((host *)memory)->arena, base);
}

static trib_status memory_disown(void *memory, void *base)
{
    return trib_arena_disown(((host *)memory)->arena, base);
}

/* ---- Memory that a device copies from and to ---- */

/* The device copies from and to the arena's own memory only; an owner of adopted memory decides itself whether to pin
 * it. */
static trib_status register_extent(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    (void)error;
    host *self = user;
    *cookie_out = memory->is_adopted ? NULL : self;
    return memory->is_adopted ? TRIB_OK : self->device_ops->pin(self->device, memory->base, memory->size);
}

static void unregister_extent(void *user, void *base, size_t size, void *cookie)
{
    host *self = user;
    if (cookie != NULL) {
        self->device_ops->unpin(self->device, base, size);
    }
}

static void memory_attach_device(void *memory, const trib_device_ops *ops, trib_device *device)
{
    host *self = memory;
    self->device_ops = ops;
    self->device = device;
    const trib_arena_registrar registrar = {
        .register_extent = register_extent, .unregister_extent = unregister_extent, .user = self};
    /* On failure copies still work, but the device's thread waits for each. */
    self->is_registrar = trib_arena_add_registrar(self->arena, &registrar, &self->registrar) == TRIB_OK;
    if (self->is_registrar && self->copies) {
        (void)trib_arena_reserve(self->arena, GPU_RESERVE_BYTES); /* on failure it is made when it is needed */
    }
}

static void memory_detach_device(void *memory)
{
    host *self = memory;
    if (self->is_registrar) {
        trib_arena_remove_registrar(self->arena, self->registrar);
    }
    self->is_registrar = false;
    self->device_ops = NULL;
}

static host *create_host(void)
{
    host *self = calloc(1, sizeof *self);
    if (self != NULL) {
        trib_env_place_init(&self->place);
    }
    return self;
}

static void destroy_host(host *self)
{
    trib_arena_destroy(self->arena);
    trib_env_place_fini(&self->place);
    free(self);
}

static void close_env(trib_env *env)
{
    env->transport->context_close(env->transport_context);
    trib_resolver_close(env->resolver);
    trib_store_free(env);
    destroy_host(env->memory);
}

void trib_env_host_resolve(trib_env *env, const char *coordinator)
{
    env->resolver = trib_resolver_open(coordinator);
    env->resolve = env->resolver != NULL ? trib_resolver_poll : NULL;
}

/* The id that a kernel draws when it boots: 32 hexadecimal digits, with dashes between. */
static uint64_t which_kernel(void)
{
    char text[40] = "";
    FILE *file = trib_descriptor_open_text("/proc/sys/kernel/random/boot_id");
    if (file == NULL) {
        return 0;
    }
    const bool is_read = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file);
    unsigned a = 0, b = 0, c = 0;
    return is_read && sscanf(text, "%8x-%4x-%4x", &a, &b, &c) == 3 ? (uint64_t)a << 32 | b << 16 | c : 0;
}

#define HOST_SHOWN_MAX 32 /* fits in env.place together with a process id */
#define HOST_KEPT 22      /* bytes that are kept of a longer name, before its hash */

/* A long name is shortened, but two different names never become the same text: tools take processes of one text for
 * processes of one machine. */
static void name_place(trib_env *env)
{
    uint32_t hash = 2166136261u;
    snprintf(env->host, sizeof env->host, "?");
    gethostname(env->host, sizeof env->host - 1);
    for (const char *at = env->host; *at != '\0'; at++) { /* FNV-1a */
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    }
    if (strlen(env->host) <= HOST_SHOWN_MAX) {
        snprintf(env->place, sizeof env->place, "%s:%d", env->host, (int)getpid());
    } else {
        snprintf(env->place, sizeof env->place, "%.*s~%08x:%d", HOST_KEPT, env->host, hash, (int)getpid());
    }
    env->kernel = which_kernel();
}

static trib_status refuse_transport(const char *name, trib_error *error)
{
    char known[64] = "";
    const char *const *names = trib_transport_names();
    for (size_t i = 0; names[i] != NULL; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return trib_error_set(error, TRIB_UNSUPPORTED,
                          "transport \"%s\" (TRIB_TRANSPORT) is not in this build, which has: %s%s", name, known,
                          strcmp(name, "rdma") == 0 ? " (rdma needs libibverbs and librdmacm when it is built)" : "");
}

static void choose_polling(host *self, trib_env *env, trib_config *config)
{
    config->busy_poll = self->place.plan.busy_poll;
    const bool has_gpu = env->device != NULL && trib_device_find_double(config->device) == NULL;
    self->copies = has_gpu && (config->worker_count != config->local_size || config->survive >= TRIB_SURVIVE_WORKERS);
    if (config->busy_poll_ns == 0 && has_gpu && !self->place.plan.crowded) {
        config->busy_poll_ns = GPU_BUSY_POLL_NS;
        env->poll_window_max_ns =
            config->worker_count == config->local_size ? GPU_BUSY_POLL_ALONE_NS : GPU_BUSY_POLL_MOST_NS;
    }
}

/* Extents are shared only if the transport maps other processes' memory: private memory is better, as it gets huge
 * pages. */
static trib_status open_arena(host *self, const trib_transport_ops *transport)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.node = self->place.plan.arena_node;
    params.is_shared = (transport->flags & TRIB_TRANSPORT_MAPS) != 0;
    return trib_arena_create_with(&params, &self->arena);
}

/* Chooses the cores, and makes the arena and what the transport's connections share. */
static trib_status open_parts(host *self, trib_env *env, trib_config *config, trib_error *error)
{
    trib_status status = trib_env_place_make(&self->place, config, env->device, &env->placed, error);
    env->gpu = self->place.gpu;
    if (status == TRIB_OK && open_arena(self, env->transport) != TRIB_OK) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "no memory for the arena");
    }
    if (status == TRIB_OK) {
        trib_error why = {.status = TRIB_OK};
        status = env->transport->context_open(self->arena, &env->transport_context, &why);
        if (status != TRIB_OK) {
            trib_error_set(error, status, "transport %s: %s", env->transport->name, why.text);
        }
    }
    return status;
}

trib_status trib_env_host_init(trib_env *env, trib_config *config, trib_error *error)
{
    *env = (trib_env){
        .transport = trib_transport_by_name(config->transport),
        .kernels = trib_kernels_best(),
        .crc32c = trib_crc32c_best(),
        .choose_plan = trib_plan_choose,
        .reactor_open = reactor_open,
        .reactor_start = reactor_start,
        .reactor_go = reactor_go,
        .reactor_settle = reactor_settle,
        .reactor_stop = reactor_stop,
        .reactor_free = trib_reactor_ev_destroy,
        .on_thread = trib_reactor_ev_on_thread,
        .poll = trib_reactor_ev_poll,
        .memory_alloc = memory_alloc,
        .memory_alloc_blocking = memory_alloc_blocking,
        .memory_free = memory_free,
        .memory_has = memory_has,
        .memory_adopt = memory_adopt,
        .memory_adopted = memory_adopted,
        .memory_disown = memory_disown,
        .memory_attach_device = memory_attach_device,
        .memory_detach_device = memory_detach_device,
        .device_thread = device_thread,
        .fini = close_env,
    };
    name_place(env);
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    env->cpu_count = cpus > 0 ? (uint32_t)cpus : 0;
    /* A server sums in host memory; TRIB_DEVICE in an environment that it shares with the workers does not concern
     * it. */
    trib_status loaded =
        config->roles & TRIB_ROLE_WORKER ? trib_device_load(config->device, &env->device, error) : TRIB_OK;
    if (loaded != TRIB_OK || env->transport == NULL) {
        return loaded != TRIB_OK ? loaded : refuse_transport(config->transport, error);
    }
    host *self = create_host();
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the parts of an engine");
    }
    env->memory = self;
    env->listen_choice = self->place.listen_choice;
    const trib_status status = open_parts(self, env, config, error);
    self->notifies_devices = status == TRIB_OK && env->transport->notifies_devices(env->transport_context);
    self->gpu_direct = config->gpu_direct == TRIB_GPU_DIRECT_AUTO;
    if (status != TRIB_OK) {
        destroy_host(self);
        return status;
    }
    if (config->reactors == 0) {
        config->reactors =
            self->place.plan.reactor_count < TRIB_REACTORS_MAX ? self->place.plan.reactor_count : TRIB_REACTORS_MAX;
    }
    choose_polling(self, env, config);
    const trib_status stored = trib_store_load(config, env, error);
    if (stored != TRIB_OK) {
        close_env(env);
    }
    return stored;
}

void trib_env_host_describe(FILE *out)
{
    trib_env_place self = {.topo = NULL};
    trib_env_place_init(&self);
    bool is_placed = false;
    trib_config config;
    trib_config_init(&config, sizeof config);
    if (trib_config_from_env(&config, NULL) != TRIB_OK) { /* the creation of an engine reports the error */
        config.listen = NULL;
    }
    trib_address listen;
    if (config.listen != NULL) {
        config.listen = trib_interfaces_expand(config.listen, &listen, NULL) == TRIB_OK ? listen.text : NULL;
    }
    const trib_status status = trib_env_place_make(&self, &config, NULL, &is_placed, NULL);
    if (self.topo == NULL) {
        fprintf(out, "{}");
        return;
    }
    fprintf(out, "{\"machine\": ");
    trib_topo_print(self.topo, out);
    if (status == TRIB_OK) {
        fprintf(out, ", \"placement\": ");
        trib_place_print(&self.plan, self.topo, out);
        fprintf(out, ", \"cpus_of_other_jobs\": [");
        for (int32_t cpu = 0, count = 0; cpu < TRIB_PLACE_CPUS_MAX; cpu++) {
            if (trib_place_cpus_have(&self.taken, cpu)) {
                fprintf(out, "%s%d", count++ > 0 ? ", " : "", (int)cpu);
            }
        }
        fprintf(out, "]");
    }
    fprintf(out, "}");
    trib_env_place_fini(&self);
}
