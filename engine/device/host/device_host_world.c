/* device_host_world.c - the world in which members of groups in plain memory meet, and streams for tests. */
#include <stdlib.h>

#include "engine/device/host/device_host.h"

trib_host_world *trib_host_world_create(void)
{
    trib_host_world *world = calloc(1, sizeof *world);
    if (world != NULL) {
        pthread_mutex_init(&world->mutex, NULL);
    }
    return world;
}

void trib_host_world_free(trib_host_world *world)
{
    if (world != NULL) {
        pthread_mutex_destroy(&world->mutex);
        free(world);
    }
}

uint32_t trib_host_world_order_conflicts(trib_host_world *world)
{
    pthread_mutex_lock(&world->mutex);
    const uint32_t disorders = world->disorders;
    pthread_mutex_unlock(&world->mutex);
    return disorders;
}

void trib_host_world_fault(trib_host_world *world, int32_t machine, int32_t rank, trib_host_fault fault)
{
    pthread_mutex_lock(&world->mutex);
    world->members[machine][rank].fault = fault;
    pthread_mutex_unlock(&world->mutex);
}

trib_host_fault trib_host_fault_of(const trib_device *device)
{
    trib_host_world *world = device->params.world;
    if (world == NULL) {
        return TRIB_HOST_FAULT_NONE;
    }
    pthread_mutex_lock(&world->mutex);
    const trib_host_fault fault = world->members[device->params.machine][device->params.rank].fault;
    pthread_mutex_unlock(&world->mutex);
    return fault;
}

/* ---- Streams ---- */

trib_host_stream *trib_host_stream_create(bool open)
{
    trib_host_stream *stream = calloc(1, sizeof *stream);
    if (stream != NULL) {
        atomic_store(&stream->open, open);
    }
    return stream;
}

void trib_host_stream_free(trib_host_stream *stream)
{
    free(stream);
}
