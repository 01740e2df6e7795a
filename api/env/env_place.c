/* env_place.c - see env_place.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "api/env/env_place.h"

#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/env/env_polling.h"
#include "engine/base/assert.h"
#include "engine/cluster/gpus.h"
#include "engine/core/core.h"
#include "engine/reactor/reactor_ev.h"
#include "numa/pin.h"

_Static_assert(TRIB_REACTORS_MAX <= TRIB_PLACE_NICS_MAX, "each reactor's NIC can be asked for");

/* ---- Making ---- */

void trib_env_place_init(trib_env_place *self)
{
    self->claim = -1;
    self->reading.fd = -1;
}

void trib_env_place_fini(trib_env_place *self)
{
    trib_core_claims_end(&self->reading);
    trib_core_claims_drop(self->claim);
    trib_topo_free(self->topo);
}

/* The topology's GPU that the device is, to place reactors and memory near it; -1: not known. */
static int32_t find_gpu(trib_env_place *self, const trib_config *config, const trib_device_ops *device)
{
    char pci[32] = "";
    if (device == NULL || device->locate == NULL || !device->locate(config->device_index, pci, sizeof pci)) {
        return -1;
    }
    self->gpu = trib_gpu_number(pci);
    return trib_topo_gpu_find(self->topo, pci);
}

/* Finds the NICs of the listen addresses, for as many addresses as there can be reactors. */
static void find_nics(trib_env_place *self, const char *listen)
{
    uint32_t count = 0;
    for (const char *at = listen; at != NULL && *at != '\0' && count < TRIB_REACTORS_MAX; count++) {
        char *name = self->interfaces[count];
        const size_t length = strcspn(at, ",");
        const bool found = trib_interface_find(at, length, name);
        if (found) {
            trib_interface_descend("/sys/class/net", name);
        }
        self->request.nics[count] = found ? name : NULL;
        at += length + (at[length] == ',');
    }
    self->request.addresses = count > 0 ? count : 1;
}

static void keep_listen_choice(trib_env_place *self)
{
    for (uint32_t i = 0; i < self->plan.reactor_count && i < TRIB_REACTORS_MAX; i++) {
        const trib_place_reactor *reactor = &self->plan.reactors[i];
        self->listen_choice[i] = (uint8_t)reactor->address;
        if (reactor->nic >= 0) {
            memcpy(self->nics[i], self->topo->nics[reactor->nic].name, sizeof self->nics[i]);
        }
    }
}

trib_status trib_env_place_make(trib_env_place *self, const trib_config *config, const trib_device_ops *device,
                                bool *placed_out, trib_error *error)
{
    trib_status status = trib_topo_load(NULL, &self->topo, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_place_request *request = &self->request;
    trib_place_request_init(request);
    *placed_out = trib_config_local(&request->local_index, &request->local_count);
    request->reactors = config->reactors;
    request->gpu = find_gpu(self, config, device);
    request->pin = config->pin;
    request->taken = &self->taken;
    self->job = trib_core_claims_job(config);
    if (config->pin) {
        trib_core_claims_read(self->job, NULL, &self->taken);
    }
    request->busy_poll = config->busy_poll;
    find_nics(self, config->listen);
    status = trib_place_make(self->topo, request, &self->plan, error);
    if (status == TRIB_OK) {
        keep_listen_choice(self);
    }
    return status;
}

/* ---- Starting ---- */

static void set_poll_window(trib_engine *engine, trib_reactor *reactor, const trib_place_plan *plan,
                            uint32_t local_count)
{
    const trib_env_polling polling =
        trib_env_polling_of(&engine->config, engine->env.poll_window_max_ns, local_count, plan);
    trib_reactor_ev_set_poll_window(reactor, polling.least_ns, polling.most_ns, plan->crowded);
}

static void log_busy_poll_off(trib_engine *engine, const trib_reactor *reactor, const trib_place_plan *plan)
{
    if (reactor->index == 0) {
        trib_log(&engine->logger, TRIB_LOG_WARN,
                 "busy_poll is off: if the %llu reactors of this machine's processes spun, callers would have no core",
                 (unsigned long long)plan->sharing);
    }
}

trib_status trib_env_place_start(trib_env_place *self, trib_engine *engine, trib_reactor *reactor)
{
    set_poll_window(engine, reactor, &self->plan, self->request.local_count);
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return TRIB_OK;
    }
    if (reactor->index == 0) {
        self->claim = trib_core_claims_make(self->job, &self->plan);
    }
    int cpu = reactor->index < self->plan.reactor_count ? self->plan.reactors[reactor->index].cpu : -1;
    if (self->request.busy_poll && !self->plan.busy_poll) {
        log_busy_poll_off(engine, reactor, &self->plan);
    }
    if (self->nics[reactor->index][0] != '\0') {
        trib_log(&engine->logger, TRIB_LOG_INFO, "reactor %u listens by %s", reactor->index,
                 self->nics[reactor->index]);
    }
    return trib_reactor_ev_start_held(reactor, cpu, engine->config.busy_poll);
}

/* The scheduler likes to run a woken thread on its waker's core. Here the waker is a reactor that polls on, so each of
 * the two would wait for the other's time slices. */
static void keep_off_reactors(const trib_env_place *self, const trib_place_plan *plan)
{
    const pid_t thread = (pid_t)atomic_load(&self->device_thread);
    trib_place_cpus rest;
    trib_place_rest(self->topo, plan, &rest);
    if (thread != 0) {
        (void)trib_pin_among(thread, &rest); /* on failure it runs where it did */
    }
}

void trib_env_place_device_thread(trib_env_place *self)
{
    atomic_store(&self->device_thread, (int)gettid());
    keep_off_reactors(self, &self->plan);
}

/* ---- Settling ---- */

/* The request as the roster changes it: this process's number and count among those of its machine. */
static trib_place_request make_settled_request(const trib_engine *engine, const trib_env_place *self)
{
    trib_place_request request = self->request;
    if (!engine->env.placed) {
        request.local_index = self->where.index;
        request.local_count = self->where.count;
        request.pin = request.pin && !self->where.others_placed;
    } else if (request.local_count < self->where.count) {
        request.local_count = self->where.count;
    }
    request.reactors_in_all = self->where.reactors;
    request.reactors = engine->core_count;
    request.addresses = engine->core_count;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        request.nics[i] = self->nics[i][0] != '\0' ? self->nics[i] : NULL;
    }
    return request;
}

/* Runs on each reactor, after the claims have moved. */
static void settle_reactor(trib_env_place *self, trib_reactor *reactor)
{
    trib_engine *engine = self->engine;
    const trib_place_plan *plan = &self->settled;
    const bool is_mine = engine->config.mode != TRIB_MODE_ATTACHED; /* else the thread is the caller's */
    if (!engine->env.placed) {
        set_poll_window(engine, reactor, plan, self->where.count);
    }
    if (!engine->env.placed && is_mine) {
        trib_reactor_ev_pin(reactor, plan->reactors[reactor->index].cpu);
    }
    if (is_mine && engine->config.busy_poll && !plan->busy_poll) {
        log_busy_poll_off(engine, reactor, plan);
        trib_reactor_ev_stop_spinning(reactor);
    }
}

static void on_notified(trib_reactor *reactor, trib_post *post)
{
    settle_reactor(((struct trib_env_notified *)post)->place, reactor);
}

static bool may_move(const trib_engine *engine)
{
    return !engine->env.placed && engine->config.mode != TRIB_MODE_ATTACHED;
}

/* Processes without a launcher were all placed alike, so each gets a part of the cores now. A launcher's processes have
 * theirs and stay, but do not count the others: so none of those takes a core of its own. A process that is alone moves
 * only if another job, with a lower number, claimed the same cores at the same moment. The NICs that reactors listen by
 * stay, and decide as before where the reactors run. */
static void settle_process(trib_env_place *self, trib_reactor *reactor)
{
    trib_engine *engine = self->engine;
    const trib_place_request request = make_settled_request(engine, self);
    const bool needs_to =
        self->where.count > 1 || (may_move(engine) && trib_core_claims_overlap(&self->plan, &self->taken));
    if (!needs_to || trib_place_make(self->topo, &request, &self->settled, NULL) != TRIB_OK) {
        return;
    }
    if (may_move(engine)) {
        const int old = self->claim;
        self->claim = trib_core_claims_make(self->job, &self->settled);
        trib_core_claims_drop(old);
        keep_off_reactors(self, &self->settled);
    }
    settle_reactor(self, reactor);
    for (uint32_t i = 1; i < engine->core_count; i++) {
        self->notified[i] = (struct trib_env_notified){.post = {.run = on_notified}, .place = self};
        trib_reactor_post(engine->cores[i].reactor, &self->notified[i].post);
    }
}

static void read_claims(trib_reactor *reactor, trib_timer *timer)
{
    trib_env_place *self = timer->user;
    if (trib_core_claims_read_more(&self->reading)) {
        trib_timer_arm(reactor, timer, 0); /* in the next turn, because input comes first */
    } else {
        settle_process(self, reactor);
    }
}

void trib_env_place_settle(trib_env_place *self, trib_engine *engine, trib_reactor *reactor,
                           const trib_machine_place *where)
{
    if (reactor->index != 0) {
        return; /* core 0 posts to it */
    }
    trib_assert(self->engine == NULL); /* a job forms once */
    self->engine = engine;
    self->where = *where;
    if (!self->request.pin || !may_move(engine)) {
        settle_process(self, reactor);
        return;
    }
    trib_core_claims_begin(&self->reading, self->job, &self->plan, &self->taken);
    self->read_timer = (trib_timer){.fired = read_claims, .user = self};
    trib_timer_arm(reactor, &self->read_timer, 0);
}
