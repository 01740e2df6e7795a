/*
 * rdma_domain.c - see rdma_domain.h.
 *
 * The arena hands over each extent when it makes it, so nothing is registered later. If a registration fails, the
 * arena goes on, and payloads in that extent are copied. The caller's own memory comes the same way
 * (trib_memory_register), a device's memory as a dma-buf.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/fork.h"
#include "engine/base/log.h"
#include "transports/rdma/rdma_domain.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
/* Bytes that are registered at the start as a test: an extent of the arena, the least that is of use. */
#define TRIAL_BYTES TRIB_EXTENT_BYTES

trib_status trib_rdma_register_error(trib_error *error, const verbs_device *device, size_t size, int number)
{
    const char *name = ibv_get_device_name(device->verbs->device);
    struct rlimit limit = {0};
    if (number == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        return trib_error_set(error, TRIB_SYSTEM,
                              "cannot register %zu KiB of memory with %s: the limit on locked memory (ulimit -l) is "
                              "%llu KiB; raise it: ulimit -l unlimited, memlock in /etc/security/limits.conf, or "
                              "LimitMEMLOCK=infinity in a systemd unit",
                              size / 1024, name, (unsigned long long)limit.rlim_cur / 1024);
    }
    errno = number;
    return trib_error_set(error, TRIB_SYSTEM, "cannot register %zu KiB of memory with %s: %m", size / 1024, name);
}

/* ---- The arena's registrar ---- */

/* libibverbs has this function since rdma-core 34. A library that links to it by name would not load beside an older
 * one. */
static struct ibv_mr *register_dmabuf(const verbs_device *device, const trib_arena_memory *memory)
{
    const trib_arena_dmabuf *dmabuf = memory->dmabuf;
    struct ibv_mr *(*call)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr");
    memcpy(&call, &symbol, sizeof call);
    errno = EOPNOTSUPP;
    return call == NULL ? NULL
                        : call(device->pd, dmabuf->offset, memory->size, (uintptr_t)memory->base, dmabuf->fd, ACCESS);
}

static trib_status dmabuf_error(trib_error *error, const verbs_device *device, size_t size, int number)
{
    const char *name = ibv_get_device_name(device->verbs->device);
    errno = number;
    return trib_error_set(error, number == EOPNOTSUPP ? TRIB_UNSUPPORTED : TRIB_SYSTEM,
                          "cannot register %zu KiB of a device's memory with %s: %m%s", size / 1024, name,
                          number == EOPNOTSUPP ? "; it takes an adapter, a kernel and an rdma-core that know dma-buf"
                                               : "");
}

static trib_status register_extent(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    verbs_device *device = user;
    struct ibv_mr *mr = memory->dmabuf != NULL ? register_dmabuf(device, memory)
                                               : ibv_reg_mr(device->pd, memory->base, memory->size, ACCESS);
    if (mr == NULL && memory->dmabuf != NULL) {
        return dmabuf_error(error, device, memory->size, errno);
    }
    if (mr == NULL && memory->is_adopted) {
        return trib_rdma_register_error(error, device, memory->size, errno != 0 ? errno : ENOMEM);
    }
    if (mr == NULL) {
        atomic_store(&device->failure, errno != 0 ? errno : ENOMEM);
        return TRIB_SYSTEM;
    }
    *cookie_out = mr;
    return TRIB_OK;
}

static void unregister_extent(void *user, void *base, size_t size, void *cookie)
{
    (void)user;
    (void)base;
    (void)size;
    (void)ibv_dereg_mr(cookie); /* see trib_rdma_is_gone */
}

bool trib_rdma_device_find(verbs_device *device, const void *data, size_t size, uint32_t *local_key_out,
                           uint32_t *remote_key_out)
{
    trib_arena_location where;
    if (!device->is_registrar || !trib_arena_find(device->arena, data, device->registrar, &where) ||
        where.status != TRIB_OK) {
        return false;
    }
    size_t offset = (size_t)((const unsigned char *)data - (const unsigned char *)where.base);
    if (size > where.size - offset) {
        return false;
    }
    const struct ibv_mr *mr = where.cookie;
    *local_key_out = mr->lkey;
    *remote_key_out = mr->rkey;
    return true;
}

bool trib_rdma_domain_knows(verbs_domain *domain, const void *memory, size_t size)
{
    bool is_known = true;
    for (uint32_t i = 0; is_known && i < domain->device_count; i++) {
        uint32_t local_key = 0, remote_key = 0;
        is_known = trib_rdma_device_find(&domain->devices[i], memory, size, &local_key, &remote_key);
    }
    return is_known;
}

/* ---- Blocks ---- */

static trib_status make_block(verbs_device *device, size_t size, verbs_block *block_out, trib_error *error)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for buffers");
    }
    struct ibv_mr *mr = ibv_reg_mr(device->pd, data, size, ACCESS);
    if (mr == NULL) {
        int number = errno;
        munmap(data, size);
        return trib_rdma_register_error(error, device, size, number);
    }
    *block_out = (verbs_block){.data = data, .size = size, .local_key = mr->lkey, .remote_key = mr->rkey, .mr = mr};
    return TRIB_OK;
}

trib_status trib_rdma_block_take(verbs_device *device, size_t size, verbs_block *block_out, trib_error *error)
{
    size = (size + TRIB_PAGE_BYTES - 1) & ~(TRIB_PAGE_BYTES - 1);
    void *data = device->is_registrar ? trib_arena_alloc(device->arena, size, TRIB_PAGE_BYTES) : NULL;
    verbs_block block = {.data = data, .size = size};
    if (data != NULL && trib_rdma_device_find(device, data, size, &block.local_key, &block.remote_key)) {
        *block_out = block;
        return TRIB_OK;
    }
    trib_arena_free(device->arena, data);
    return make_block(device, size, block_out, error);
}

void trib_rdma_block_give(verbs_device *device, verbs_block *block)
{
    if (block->data == NULL) {
        return;
    }
    if (block->mr != NULL) {
        if (trib_rdma_is_gone(ibv_dereg_mr(block->mr))) { /* otherwise the device may still write there */
            munmap(block->data, block->size);
        }
    } else {
        trib_arena_free(device->arena, block->data);
    }
    *block = (verbs_block){.data = NULL};
}

/* ---- Life ---- */

static trib_status device_open(verbs_device *device, struct ibv_context *verbs, trib_arena *arena, trib_error *error)
{
    device->verbs = verbs;
    /* While a forked child had this descriptor, the kernel would keep the queue pairs of a dead process. It is never
     * disowned: librdmacm closes it. */
    trib_fork_own(verbs->cmd_fd);
    device->pd = ibv_alloc_pd(verbs);
    if (device->pd == NULL) {
        return trib_error_set(error, TRIB_SYSTEM, "cannot allocate a protection domain of %s: %m",
                              ibv_get_device_name(verbs->device));
    }
    verbs_block trial = {.data = NULL};
    trib_status status = make_block(device, TRIAL_BYTES, &trial, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_rdma_block_give(device, &trial);
    if (arena == NULL) {
        return TRIB_OK;
    }
    device->arena = arena;
    const trib_arena_registrar registrar = {
        .register_extent = register_extent, .unregister_extent = unregister_extent, .user = device};
    status = trib_arena_add_registrar(arena, &registrar, &device->registrar);
    device->is_registrar = status == TRIB_OK;
    return status == TRIB_OK ? TRIB_OK
                             : trib_error_set(error, status,
                                              "the arena has as many registrars as it can have: too many RDMA devices");
}

/* librdmacm prints a warning if there is no device; asking the kernel first avoids that. */
static bool has_devices(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    return list != NULL && count > 0;
}

trib_status trib_rdma_domain_open(trib_arena *arena, verbs_domain **domain_out, trib_error *error)
{
    verbs_domain *domain = calloc(1, sizeof *domain);
    if (domain == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an RDMA device");
    }
    domain->releaser = trib_rdma_releaser_create();
    if (domain->releaser == NULL) {
        free(domain);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an RDMA device");
    }
    /* Kernels since 5.12 copy registered memory when a process forks. There ibv_fork_init would only hide the arena
     * from children. */
    domain->fork_failure = ibv_is_fork_initialized() == IBV_FORK_UNNEEDED ? 0 : ibv_fork_init();
    int count = 0;
    struct ibv_context **list = has_devices() ? rdma_get_devices(&count) : NULL;
    domain->list = list;
    trib_status status = TRIB_OK;
    if (list == NULL || count == 0) {
        status = trib_error_set(
            error, TRIB_UNSUPPORTED,
            "this machine has no RDMA device, or this user has no right to use it: ibv_devices lists them, and "
            "/dev/infiniband/rdma_cm must be writable (docs/rdma.md)");
    }
    for (int i = 0; list != NULL && status == TRIB_OK && i < count && i < (int)TRIB_RDMA_DEVICES_MAX; i++) {
        domain->device_count++;
        status = device_open(&domain->devices[i], list[i], arena, error);
    }
    if (status != TRIB_OK) {
        trib_rdma_domain_close(domain);
        return status;
    }
    *domain_out = domain;
    return TRIB_OK;
}

void trib_rdma_domain_close(verbs_domain *domain)
{
    if (domain == NULL) {
        return;
    }
    trib_rdma_releaser_close(domain->releaser);
    for (uint32_t i = 0; i < domain->device_count; i++) {
        verbs_device *device = &domain->devices[i];
        if (device->is_registrar) {
            trib_arena_remove_registrar(device->arena, device->registrar);
        }
        if (device->pd != NULL) {
            (void)ibv_dealloc_pd(device->pd);
        }
    }
    if (domain->list != NULL) {
        rdma_free_devices(domain->list);
    }
    free(domain);
}

bool trib_rdma_domain_is_active(const verbs_domain *domain)
{
    for (uint32_t i = 0; i < domain->device_count; i++) {
        struct ibv_device_attr device;
        struct ibv_port_attr port;
        int ports = ibv_query_device(domain->devices[i].verbs, &device) == 0 ? device.phys_port_cnt : 0;
        for (int number = 1; number <= ports; number++) {
            if (ibv_query_port(domain->devices[i].verbs, (uint8_t)number, &port) == 0 &&
                port.state == IBV_PORT_ACTIVE) {
                return true;
            }
        }
    }
    return false;
}

verbs_device *trib_rdma_device_of(verbs_domain *domain, const struct ibv_context *verbs)
{
    for (uint32_t i = 0; i < domain->device_count; i++) {
        if (domain->devices[i].verbs == verbs) {
            return &domain->devices[i];
        }
    }
    return NULL;
}

#endif
