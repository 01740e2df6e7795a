/*
 * device_host_pace.c - devices in plain memory whose jobs take time, in virtual time.
 *
 * The parts of a collective end at different times, and each target is written at its own part's end: a member that
 * takes another's end for its own finds old bytes. As on a stream, a member comes to a collective when its part of
 * the one before has ended, and copies of one direction end in order. If a member is stopped in the middle of a
 * collective, the unfinished parts of the others do not end until they are stopped, too.
 *
 * Virtual time has one thread, so late jobs need no lock.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/device/host/device_host.h"

void trib_host_world_pace(trib_host_world *world, const trib_host_pace *pace)
{
    world->pace = *pace;
}

/* Residual and momentum of a partition, and room for a chunk: elements of up to 8 bytes. */
static unsigned char *kept_of(const trib_device_job *job, uint64_t count)
{
    const trib_device_encoding *how = job->encoding;
    if (how->kept != NULL && *how->kept == NULL) {
        *how->kept = calloc(2 * count + how->chunk_elements, sizeof(double));
        trib_assert(*how->kept != NULL);
    }
    return how->kept != NULL ? *how->kept : NULL;
}

static trib_codec_memory memory_at(unsigned char *kept, uint64_t count, uint64_t first)
{
    trib_codec_memory memory = {.state = NULL};
    if (kept != NULL) {
        memory.residual = kept + first * sizeof(double);
        memory.momentum = kept + (count + first) * sizeof(double);
        memory.scratch = kept + 2 * count * sizeof(double);
    }
    return memory;
}

static void take_back(trib_device_job *job, unsigned char *kept, uint64_t count)
{
    const trib_device_encoding *how = job->encoding;
    job->took_back = how->returned != NULL;
    for (const trib_codec_returned *returned = how->returned; returned != NULL; returned = returned->next) {
        const unsigned char *at = returned->chunks;
        for (uint64_t first = 0; first < count; first += how->chunk_elements, at += how->room) {
            const uint64_t left = count - first;
            const trib_codec_memory memory = memory_at(kept, count, first);
            uint32_t bytes;
            memcpy(&bytes, at, sizeof bytes);
            if (bytes > 0) {
                trib_codec_take_back(how->config, &memory, job->dtype, at + TRIB_DEVICE_ENCODED_AT, bytes,
                                     left < how->chunk_elements ? (uint32_t)left : how->chunk_elements);
            }
        }
    }
}

static void encode_elements(trib_device_job *job)
{
    const trib_device_encoding *how = job->encoding;
    const uint64_t element = trib_dtype_size(job->dtype), count = job->bytes / element;
    trib_codec_place place = how->place;
    unsigned char *target = job->target, *kept = kept_of(job, count);
    take_back(job, kept, count);
    for (uint64_t first = 0; first < count; first += how->chunk_elements, target += how->room) {
        const uint32_t length = count - first < how->chunk_elements ? (uint32_t)(count - first) : how->chunk_elements;
        const unsigned char *source = (const unsigned char *)job->source + first * element;
        place.first_element = how->place.first_element + first;
        const trib_codec_memory memory = memory_at(kept, count, first);
        const uint32_t bytes = trib_codec_encode(how->config, &memory, &place, job->dtype, source, length,
                                                 target + TRIB_DEVICE_ENCODED_AT);
        memcpy(target, &bytes, sizeof bytes);
    }
}

static bool decode_elements(const trib_device_job *job)
{
    const trib_device_encoding *how = job->encoding;
    const uint64_t element = trib_dtype_size(job->dtype), count = job->bytes / element;
    const unsigned char *source = job->source;
    bool ok = true;
    for (uint64_t first = 0; ok && first < count; first += how->chunk_elements, source += how->room) {
        const uint32_t length = count - first < how->chunk_elements ? (uint32_t)(count - first) : how->chunk_elements;
        uint32_t bytes;
        memcpy(&bytes, source, sizeof bytes);
        ok = how->config->codec->decode(&how->config->params, job->dtype, source + TRIB_DEVICE_ENCODED_AT, bytes,
                                        (unsigned char *)job->target + first * element, length, NULL) == TRIB_OK;
    }
    return ok;
}

/* Copies the bytes of a job that concerns its member alone. */
static void copy_bytes(trib_device_job *job)
{
    const bool copies = job->kind == TRIB_DEVICE_TO_HOST || job->kind == TRIB_DEVICE_ENCODE ||
                        job->kind == TRIB_DEVICE_TO_DEVICE || job->kind == TRIB_DEVICE_ALL_REDUCE ||
                        job->kind == TRIB_DEVICE_BROADCAST;
    if (job->kind == TRIB_DEVICE_DECODE) {
        trib_assert(decode_elements(job)); /* it was inspected */
    } else if (job->kind == TRIB_DEVICE_ENCODE && !job->was_full) {
        encode_elements(job);
    } else if (copies && job->target != job->source && job->bytes > 0) {
        memcpy(job->target, job->source, job->bytes);
    }
}

static void put_result(const trib_device_job *job, const unsigned char *result, size_t size)
{
    if (size > 0) {
        memcpy(job->target, result, size);
    }
}

static trib_host_delayed **late_part_of(trib_device *device)
{
    trib_host_world *world = device->params.world;
    return &world->members[device->params.machine][device->params.rank].late;
}

static void free_late(trib_host_delayed *late)
{
    free(late->result);
    free(late);
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
static void end_late_job(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    trib_host_delayed *late = (trib_host_delayed *)((char *)event - offsetof(trib_host_delayed, end));
    trib_device *device = late->device;
    trib_device_job *job = late->job;
    trib_host_delayed **at = &device->late;
    while (*at != late) {
        trib_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = late->next;
    const bool is_part = *late_part_of(device) == late;
    if (is_part) {
        *late_part_of(device) = NULL;
        put_result(job, late->result, late->size);
    } else {
        copy_bytes(job);
    }
    free_late(late);
    trib_host_give_back(device, job, TRIB_OK, "");
    if (device->params.size > 1) { /* a collective may have waited for this */
        trib_host_run_ready_collectives(device);
    }
}

/* Returns NULL if the job takes no time. */
static trib_host_delayed *make_late_job(trib_device *device, trib_device_job *job)
{
    const trib_device_params *params = &device->params;
    const trib_host_world *world = params->world;
    if (world == NULL || world->pace.sim == NULL) {
        return NULL;
    }
    const int64_t now_ns = trib_sim_now(world->pace.sim);
    int64_t end_ns = now_ns + world->pace.late_ns(world->pace.user, params->machine, params->rank);
    if (job->kind != TRIB_DEVICE_WAIT) { /* callers' streams end in any order */
        end_ns = end_ns > device->end_ns[job->kind] ? end_ns : device->end_ns[job->kind];
        device->end_ns[job->kind] = end_ns;
    }
    trib_host_delayed *late = end_ns > now_ns ? calloc(1, sizeof *late) : NULL;
    if (late != NULL) {
        *late = (trib_host_delayed){.end.fired = end_late_job, .device = device, .job = job, .next = device->late};
        device->late = late;
        trib_sim_set(world->pace.sim, &late->end, end_ns);
    }
    return late;
}

/* NOLINTNEXTLINE(misc-no-recursion): see trib_host_give_back */
void trib_host_end(trib_device *device, trib_device_job *job)
{
    const bool is_joining = job->kind == TRIB_DEVICE_MAKE_ID || job->kind == TRIB_DEVICE_JOIN;
    if (is_joining || make_late_job(device, job) == NULL) {
        copy_bytes(job);
        trib_host_give_back(device, job, TRIB_OK, "");
    }
}

/* ---- Collectives ---- */

static bool is_collective(const trib_device_job *job)
{
    return job->kind == TRIB_DEVICE_REDUCE_SCATTER || job->kind == TRIB_DEVICE_ALL_GATHER ||
           job->kind == TRIB_DEVICE_ALL_REDUCE || job->kind == TRIB_DEVICE_BROADCAST;
}

bool trib_host_has_ordered_collective(const trib_device *device, const trib_device_job *job)
{
    const trib_host_world *world = device->params.world;
    return world != NULL && world->pace.sim != NULL && device->params.size > 1 && is_collective(job);
}

bool trib_host_is_busy(const trib_host_world *world, const trib_host_queue *queue)
{
    const trib_device_job *after = queue->head->after;
    return queue->dead || (world->pace.sim != NULL && (queue->late != NULL || (after != NULL && after->slot != NULL)));
}

/* Returns how many bytes that member's target gets. */
static size_t result_size(const trib_device_job *job, size_t member)
{
    const size_t begin = member * job->shard;
    if (job->kind == TRIB_DEVICE_BROADCAST && job->target == job->source && member == job->root) {
        return 0;
    }
    if (job->kind != TRIB_DEVICE_REDUCE_SCATTER) {
        return job->bytes;
    }
    return begin >= job->bytes ? 0 : job->bytes - begin < job->shard ? job->bytes - begin : job->shard;
}

/* Copies the job, with a target of its own that holds the bytes that the collective reads there. Returns false when
 * out of memory. */
static bool make_shadow_job(const trib_device_job *job, size_t member, trib_device_job *shadow)
{
    const size_t begin = member * job->shard;
    *shadow = (trib_device_job){.kind = job->kind,
                                .dtype = job->dtype,
                                .reduce = job->reduce,
                                .source = job->source,
                                .target = malloc(job->bytes + 1),
                                .bytes = job->bytes,
                                .shard = job->shard,
                                .root = job->root};
    if (shadow->target != NULL && job->kind == TRIB_DEVICE_ALL_GATHER && begin < job->bytes) {
        const size_t left = job->bytes - begin;
        memcpy((unsigned char *)shadow->target + begin, (const unsigned char *)job->target + begin,
               left < job->shard ? left : job->shard);
    }
    return shadow->target != NULL;
}

bool trib_host_carry_out(trib_host_world *world, trib_device_job *const *jobs, size_t count)
{
    const trib_kernels *kernels = ((trib_device *)jobs[0]->slot)->params.kernels;
    if (world->pace.sim == NULL) {
        return trib_host_collective(kernels, jobs, count);
    }
    trib_assert(count > 0 && count <= TRIB_LOCAL_SIZE_MAX);
    trib_device_job shadows[TRIB_LOCAL_SIZE_MAX], *at[TRIB_LOCAL_SIZE_MAX] = {NULL};
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        at[i] = &shadows[i];
        ok = make_shadow_job(jobs[i], i, at[i]) && ok;
    }
    ok = ok && trib_host_collective(kernels, at, count);
    for (size_t i = 0; i < count; i++) {
        trib_host_delayed *late = ok ? make_late_job(jobs[i]->slot, jobs[i]) : NULL;
        const size_t size = result_size(jobs[i], i);
        if (late != NULL) {
            late->result = at[i]->target;
            late->size = size;
            trib_assert(*late_part_of(late->device) == NULL);
            *late_part_of(late->device) = late;
            continue;
        }
        if (ok) {
            put_result(jobs[i], at[i]->target, size);
        }
        free(at[i]->target);
    }
    return ok;
}

/* ---- The end ---- */

/* All late parts on a machine are of the same collective. */
static void clear_late_parts(trib_host_world *world, int32_t machine)
{
    for (int32_t i = 0; i < TRIB_LOCAL_SIZE_MAX; i++) {
        if (world->members[machine][i].late != NULL) {
            trib_sim_clear(world->pace.sim, &world->members[machine][i].late->end);
        }
    }
}

void trib_host_world_kill(trib_host_world *world, int32_t machine, int32_t rank)
{
    pthread_mutex_lock(&world->mutex);
    world->members[machine][rank].dead = true;
    pthread_mutex_unlock(&world->mutex);
    if (world->members[machine][rank].late != NULL) {
        clear_late_parts(world, machine);
    }
}

trib_device_job *trib_host_take_delayed(trib_device *device)
{
    trib_host_world *world = device->params.world;
    trib_device_job *taken = NULL;
    if (device->late != NULL && *late_part_of(device) != NULL) {
        clear_late_parts(world, device->params.machine);
        *late_part_of(device) = NULL;
    }
    while (device->late != NULL) {
        trib_host_delayed *late = device->late;
        device->late = late->next;
        trib_sim_clear(world->pace.sim, &late->end);
        late->job->next = taken; /* oldest first */
        taken = late->job;
        free_late(late);
    }
    return taken;
}
