/* sim_devices.c - see sim_devices.h. */
#include "tests/sim/sim_devices.h"

static sim_devices *current; /* a tweak has no argument of its own */

static int64_t duration_ns(void *user, int32_t machine, int32_t rank)
{
    sim_devices *self = user;
    (void)machine;
    (void)rank;
    self->state = self->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint64_t drawn = self->state >> 33;
    return drawn % 40 == 0 ? 5000000 : drawn % 3 == 0 ? 0 : (int64_t)(drawn % 200000);
}

static void set_pace(sim_devices *self, const sim_job *job)
{
    self->pace = (trib_host_pace){.sim = job->sim, .late_ns = duration_ns, .user = self};
    trib_host_world_pace(self->world, &self->pace);
}

static void add_device(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    if (member == 0) {
        set_pace(current, job);
    }
    if (current->tweak != NULL) {
        current->tweak(job, member, config, link);
    }
    if ((config->roles & TRIB_ROLE_WORKER) != 0) {
        config->device = "host";
        config->local_size = (int32_t)current->local_size;
        config->local_rank = config->rank < 0 ? 0 : config->rank % config->local_size;
    }
}

void sim_devices_open(sim_devices *self, sim_job_config *config, uint32_t local_size)
{
    *self = (sim_devices){.world = trib_host_world_create(),
                          .stream = trib_host_stream_create(true),
                          .state = config->seed * 2654435761u,
                          .local_size = local_size,
                          .tweak = config->tweak};
    assert_true(self->world != NULL && self->stream != NULL);
    config->tweak = add_device;
    config->device_world = self->world;
    current = self;
}

/* ---- Memory that the host cannot reach ---- */

static const uintptr_t apart = (uintptr_t)1 << 52; /* no process has memory there */

uint32_t sim_devices_jobs[TRIB_DEVICE_KIND_COUNT];

static void submit_apart(trib_device *device, trib_device_job *job)
{
    if (job->kind == TRIB_DEVICE_TO_HOST || job->kind == TRIB_DEVICE_ENCODE) {
        job->source = (const unsigned char *)job->source - apart;
    } else if (job->kind == TRIB_DEVICE_TO_DEVICE || job->kind == TRIB_DEVICE_DECODE) {
        job->target = (unsigned char *)job->target - apart;
    } else {
        assert_int_equal(job->kind, TRIB_DEVICE_WAIT);
    }
    sim_devices_jobs[job->kind]++;
    trib_device_host_ops.submit(device, job);
}

void sim_devices_attach(const sim_devices *self, const sim_job *job)
{
    static trib_device_ops ops;
    ops = trib_device_host_ops;
    ops.submit = submit_apart;
    for (uint32_t i = 0; self->world != NULL && i < job->config.workers; i++) {
        job->members[i].engine->env.device = &ops;
    }
}

void *sim_devices_address(const sim_devices *self, void *memory)
{
    return self->world == NULL || memory == NULL ? memory : (unsigned char *)memory + apart;
}

void sim_devices_close(sim_devices *self)
{
    trib_host_stream_free(self->stream);
    trib_host_world_free(self->world);
}
