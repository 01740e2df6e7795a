/* device_host_world.c - where the members of groups in plain memory meet, and the streams that tests give them. */
#include <stdlib.h>
#include <string.h>

#include "engine/device/host/device_host.h"
#include "engine/local_group/group_door.h"

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
        for (int machine = 0; machine < TRIB_HOST_MACHINES_MAX; machine++) {
            free(world->doors[machine]);
        }
        pthread_mutex_destroy(&world->mutex);
        free(world);
    }
}

uint32_t trib_host_world_disorders(trib_host_world *world)
{
    pthread_mutex_lock(&world->mutex);
    const uint32_t disorders = world->disorders;
    pthread_mutex_unlock(&world->mutex);
    return disorders;
}

uint64_t trib_host_world_kept(trib_host_world *world)
{
    pthread_mutex_lock(&world->mutex);
    const uint64_t kept = world->kept;
    pthread_mutex_unlock(&world->mutex);
    return kept;
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

/* ---- Doors ---- */

static void bell_rang(trib_reactor *reactor, trib_post *post)
{
    trib_host_bell *bell = (trib_host_bell *)((char *)post - offsetof(trib_host_bell, post));
    pthread_mutex_lock(&bell->world->mutex);
    bell->rings = false;
    void (*rung)(trib_reactor *) = bell->reactor == reactor ? bell->rung : NULL;
    pthread_mutex_unlock(&bell->world->mutex);
    if (rung != NULL) {
        rung(reactor);
    }
}

trib_door_page *trib_host_world_door(trib_host_world *world, uint32_t machine, uint32_t rank, trib_reactor *reactor,
                                     void (*rung)(trib_reactor *reactor))
{
    pthread_mutex_lock(&world->mutex);
    if (world->doors[machine] == NULL) {
        world->doors[machine] = aligned_alloc(64, sizeof(trib_door_page));
        if (world->doors[machine] != NULL) {
            memset(world->doors[machine], 0, sizeof(trib_door_page));
        }
    }
    trib_host_bell *bell = &world->bells[machine][rank];
    bell->post.run = bell_rang;
    bell->reactor = reactor;
    bell->rung = rung;
    bell->rings = false; /* of a job before, it may have been on its way to a loop that has ended */
    bell->world = world;
    trib_door_page *door = world->doors[machine];
    pthread_mutex_unlock(&world->mutex);
    return door;
}

void trib_host_world_ring(trib_host_world *world, uint32_t machine)
{
    pthread_mutex_lock(&world->mutex);
    for (uint32_t rank = 0; rank < TRIB_LOCAL_SIZE_MAX; rank++) {
        trib_host_bell *bell = &world->bells[machine][rank];
        if (bell->reactor != NULL && !bell->rings) {
            bell->rings = true;
            trib_reactor_post(bell->reactor, &bell->post);
        }
    }
    pthread_mutex_unlock(&world->mutex);
}

void trib_host_world_door_left(trib_host_world *world, uint32_t machine, uint32_t rank)
{
    pthread_mutex_lock(&world->mutex);
    world->bells[machine][rank].reactor = NULL;
    pthread_mutex_unlock(&world->mutex);
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
