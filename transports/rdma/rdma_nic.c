/*
 * rdma_nic.c - what an instance has on one device: the channel that announces completions, and the bounce memory,
 * through which payloads in unregistered memory are copied.
 *
 * Bounce memory
 * - It is bounded: at most BOUNCES_SMALL and BOUNCES_LARGE pieces a direction, made when first needed and kept.
 * - Two sides never wait for each other. A piece for sending is held while the device writes from it, which needs
 *   nothing of the peer. A piece for receiving is held until the peer has written to it, which needs at most a piece
 *   for sending there.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "transports/rdma/rdma_internal.h"

#define EVENTS_PER_TURN 64u
#define SMALL_BYTES ((size_t)64 * 1024)
#define BOUNCES_SMALL 16u
#define BOUNCES_LARGE 4u
#define LOG_BYTES_MIN ((size_t)64 * 1024) /* bytes of a payload whose copy is logged */

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* ---- What happens to ports ---- */

static void lose_port(verbs_nic *nic, int port, const char *what)
{
    char reason[96];
    const char *name = ibv_get_device_name(nic->device->verbs->device);
    verbs_conn *next;
    for (verbs_conn *conn = nic->transport->conns; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->nic != nic || conn->state == VERBS_PARTING || (port != 0 && conn->id->port_num != port)) {
            continue;
        }
        if (port != 0) {
            snprintf(reason, sizeof reason, "port %d of %s %s", port, name, what);
        } else {
            snprintf(reason, sizeof reason, "%s %s", name, what);
        }
        trib_rdma_conn_lose(conn, reason);
    }
}

/* A port that is down may come back, and connections survive that if it does not take long. They end at once only if
 * there is another path. */
static void watch_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)events;
    verbs_nic *nic = io->user;
    for (unsigned i = 0; i < EVENTS_PER_TURN; i++) {
        struct ibv_async_event event;
        trib_counter_add(&nic->transport->stats.system_calls, 1);
        if (ibv_get_async_event(nic->watch, &event) != 0) {
            return;
        }
        const enum ibv_event_type type = event.event_type;
        const int port = event.element.port_num;
        ibv_ack_async_event(&event);
        if (type == IBV_EVENT_DEVICE_FATAL) {
            lose_port(nic, 0, "has failed");
        } else if (type == IBV_EVENT_PORT_ERR && nic->transport->breaks_at_once) {
            lose_port(nic, port, "is down");
        }
    }
}

static void watch_open(verbs_nic *nic)
{
    trib_reactor *reactor = nic->transport->base.reactor;
    const char *name = ibv_get_device_name(nic->device->verbs->device);
    nic->watch = ibv_open_device(nic->device->verbs->device);
    if (nic->watch == NULL || !set_nonblocking(nic->watch->async_fd)) {
        trib_log(reactor->logger, TRIB_LOG_WARN, "cannot watch the ports of %s for failures: %m", name);
        return;
    }
    trib_fork_own(nic->watch->async_fd);
    nic->watch_io = (trib_io){.ready = watch_ready, .user = nic, .fd = nic->watch->async_fd};
    trib_io_watch(reactor, &nic->watch_io, TRIB_IO_READ);
}

static void watch_close(verbs_nic *nic)
{
    if (nic->watch_io.ready != NULL) {
        trib_fork_disown(nic->watch->async_fd);
        trib_io_watch(nic->transport->base.reactor, &nic->watch_io, 0);
    }
    if (nic->watch != NULL) {
        ibv_close_device(nic->watch);
    }
}

trib_status trib_rdma_nic_of(verbs_transport *transport, struct ibv_context *verbs, verbs_nic **nic_out,
                             trib_error *error)
{
    verbs_device *device = trib_rdma_device_of(transport->domain, verbs);
    if (device == NULL) {
        return trib_error_set(error, TRIB_SYSTEM,
                              "device %s appeared after this process started; restart the process to use it",
                              ibv_get_device_name(verbs->device));
    }
    verbs_nic *nic = &transport->nics[device - transport->domain->devices];
    if (nic->device == NULL) {
        trib_descriptor_guard_begin();
        nic->channel = ibv_create_comp_channel(verbs);
        trib_descriptor_guard_end();
        if (nic->channel == NULL || !set_nonblocking(nic->channel->fd)) {
            trib_error_set(error, TRIB_SYSTEM, "cannot create a completion channel of %s: %m",
                           ibv_get_device_name(verbs->device));
            if (nic->channel != NULL) {
                ibv_destroy_comp_channel(nic->channel);
                nic->channel = NULL;
            }
            return TRIB_SYSTEM;
        }
        nic->transport = transport;
        nic->device = device;
        trib_fork_own(nic->channel->fd);
        nic->io = (trib_io){.ready = trib_rdma_channel_ready, .user = nic, .fd = nic->channel->fd};
        trib_io_watch(transport->base.reactor, &nic->io, TRIB_IO_READ);
        watch_open(nic);
    }
    *nic_out = nic;
    return TRIB_OK;
}

void trib_rdma_nic_close(verbs_nic *nic)
{
    if (nic->device == NULL) {
        return;
    }
    trib_assert(nic->waiting == NULL);
    for (unsigned way = 0; way < BOUNCE_WAYS; way++) {
        for (unsigned size_class = 0; size_class < BOUNCE_CLASSES; size_class++) {
            while (nic->free[way][size_class] != NULL) {
                verbs_bounce *bounce = nic->free[way][size_class];
                nic->free[way][size_class] = bounce->next;
                nic->made[way][size_class]--;
                trib_rdma_block_give(nic->device, &bounce->block);
                free(bounce);
            }
            trib_assert(nic->made[way][size_class] == 0);
        }
    }
    watch_close(nic);
    trib_io_watch(nic->transport->base.reactor, &nic->io, 0);
    trib_fork_disown(nic->channel->fd);
    (void)ibv_destroy_comp_channel(nic->channel); /* the channel stays if a queue of a removed device seems to use it */
}

/* ---- Bounce memory ---- */

static void log_copy(verbs_nic *nic, const void *memory, size_t size)
{
    trib_logger *logger = nic->transport->base.reactor->logger;
    const char *name = ibv_get_device_name(nic->device->verbs->device);
    int number = atomic_load(&nic->device->failure);
    if (number != 0 && !nic->failure_logged) {
        nic->failure_logged = true;
        trib_error why;
        (void)trib_rdma_register_error(&why, nic->device, TRIB_EXTENT_BYTES, number);
        trib_log(logger, TRIB_LOG_WARN, "payloads are copied: %s", why.text);
    } else if (number == 0 && size >= LOG_BYTES_MIN && !nic->copy_logged) {
        nic->copy_logged = true;
        trib_log(logger, TRIB_LOG_INFO,
                 "payloads at %p are copied: %s knows memory of trib_alloc and of trib_memory_register, and this is "
                 "neither",
                 memory, name);
    }
}

static trib_status bounce_make(verbs_nic *nic, unsigned way, unsigned size_class, verbs_bounce **bounce_out,
                               trib_error *error)
{
    verbs_bounce *bounce = calloc(1, sizeof *bounce);
    if (bounce == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a buffer of an RDMA device");
    }
    size_t size = size_class == BOUNCE_SMALL ? SMALL_BYTES : TRIB_PAYLOAD_MAX;
    trib_status status = trib_rdma_block_take(nic->device, size, &bounce->block, error);
    if (status != TRIB_OK) {
        free(bounce);
        return status;
    }
    bounce->way = (uint8_t)way;
    bounce->size_class = (uint8_t)size_class;
    nic->made[way][size_class]++;
    *bounce_out = bounce;
    return TRIB_OK;
}

trib_status trib_rdma_bounce_take(verbs_conn *conn, unsigned way, const void *memory, size_t size,
                                  verbs_bounce **bounce_out, trib_error *error)
{
    verbs_nic *nic = conn->nic;
    unsigned size_class = size <= SMALL_BYTES ? BOUNCE_SMALL : BOUNCE_LARGE;
    verbs_bounce *bounce = nic->free[way][size_class];
    log_copy(nic, memory, size);
    if (bounce != NULL) {
        nic->free[way][size_class] = bounce->next;
        *bounce_out = bounce;
        return TRIB_OK;
    }
    if (nic->made[way][size_class] < (size_class == BOUNCE_SMALL ? BOUNCES_SMALL : BOUNCES_LARGE)) {
        trib_status status = bounce_make(nic, way, size_class, bounce_out, error);
        if (status == TRIB_OK || nic->made[way][size_class] == 0) {
            return status;
        }
    }
    *bounce_out = NULL;
    if (!conn->waits_for_bounce) {
        conn->waits_for_bounce = true;
        conn->wait_next = nic->waiting;
        nic->waiting = conn;
    }
    return TRIB_OK;
}

void trib_rdma_bounce_give(verbs_nic *nic, verbs_bounce *bounce)
{
    if (bounce == NULL) {
        return;
    }
    bounce->next = nic->free[bounce->way][bounce->size_class];
    nic->free[bounce->way][bounce->size_class] = bounce;
    while (nic->waiting != NULL) {
        verbs_conn *conn = nic->waiting;
        nic->waiting = conn->wait_next;
        conn->waits_for_bounce = false;
        trib_reactor_defer(nic->transport->base.reactor, &conn->turn_post);
    }
}

void trib_rdma_bounce_forget(verbs_conn *conn)
{
    if (!conn->waits_for_bounce) {
        return;
    }
    LL_DELETE2(conn->nic->waiting, conn, wait_next);
    conn->waits_for_bounce = false;
}

#endif
