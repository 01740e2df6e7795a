/*
 * engine.c - opens the parts of an engine in order and frees them in reverse order.
 */
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/job/callback.h"
#include "engine/job/completions.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/election.h"
#include "engine/membership/formation.h"
#include "engine/device/device_task.h"
#include "engine/base/fork.h"
#include "engine/local_group/group.h"
#include "engine/membership/member.h"
#include "engine/membership/server_drain.h"
#include "engine/server/quorum.h"
#include "engine/server/server_sum.h"
#include "engine/membership/server_loss.h"
#include "engine/membership/tenure.h"
#include "engine/reopen.h"
#include "engine/worker/op_submit.h"
#include "engine/tracer/tracer.h"

/* ---- Opening ---- */

static char *copy_text(const char *text)
{
    return text == NULL ? NULL : strdup(text);
}

static trib_status copy_codecs(trib_engine *engine, const trib_config *config, trib_error *error)
{
    engine->config.codec = NULL; /* the rules and the set have them now */
    engine->config.codecs = NULL;
    engine->config.codec_library = NULL;
    const trib_status status = trib_codec_set_open(&engine->codecs, config->codecs, config->codec_count, error);
    trib_error why;
    if (status == TRIB_OK &&
        trib_codec_rules_open(&engine->codec_rules, &engine->codecs, config->codec, &why) != TRIB_OK) {
        return trib_error_set(error, why.status, "TRIB_CODEC: %.360s", why.text);
    }
    return status;
}

static trib_status copy_config(trib_engine *engine, const trib_config *config, trib_error *error)
{
    engine->config = *config;
    engine->job = copy_text(config->job);
    engine->coordinator_list = copy_text(config->coordinator);
    engine->listen_host = copy_text(config->listen);
    engine->store = copy_text(config->store);
    trib_status status = copy_codecs(engine, config, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (engine->job == NULL || engine->listen_host == NULL || engine->coordinator_list == NULL ||
        !trib_member_note_coordinator(engine, config->coordinator) ||
        (config->store != NULL && engine->store == NULL)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the engine's addresses and its job's name");
    }
    snprintf(engine->coordinator_source, sizeof engine->coordinator_source, "%s",
             config->coordinator_source != NULL ? config->coordinator_source : "TRIB_COORDINATOR");
    engine->config.coordinator_source = engine->coordinator_source;
    engine->config.job = engine->job;
    engine->config.token = NULL;  /* only the key is kept */
    engine->config.device = NULL; /* the environment holds the device from here on */
    engine->config.listen = engine->listen_host;
    engine->config.store = engine->store;
    status = trib_auth_key(config->token, engine->job, engine->key);
    if (status != TRIB_OK) {
        return trib_error_set(error, status,
                              "cannot make a key of the token: %s (a token shorter than %u bytes takes 64 MiB for a "
                              "moment; make a longer one: openssl rand -hex 32)",
                              trib_status_text(status), TRIB_TOKEN_LONG);
    }
    engine->member_id = config->roles & TRIB_ROLE_WORKER ? (uint32_t)config->rank : TRIB_NO_MEMBER;
    trib_engine_set_counts(engine, config->rank, config->worker_count, config->server_count);
    engine->formation.coordinates =
        (config->roles & TRIB_ROLE_COORDINATOR) ||
        ((config->roles & TRIB_ROLE_WORKER) && engine->member_id == 0 && !config->external_coordinator);
    trib_logger_init(&engine->logger, config);
    return TRIB_OK;
}

static trib_status open_cores(trib_engine *engine, trib_error *error)
{
    engine->core_count = engine->config.reactors;
    trib_assert(engine->cores == NULL && engine->core_count > 0 && engine->core_count <= TRIB_REACTORS_MAX);
    engine->cores = calloc(engine->core_count, sizeof *engine->cores);
    if (engine->cores == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the reactors of an engine");
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_reactor *reactor = NULL;
        trib_status status = engine->env.reactor_open(engine, i, &reactor);
        if (status != TRIB_OK) {
            char why[TRIB_REASON_MAX];
            return trib_error_set(error, status, "could not make event loop %u: %s", i,
                                  trib_log_status_reason(status, errno, why));
        }
        trib_core *core = &engine->cores[i];
        engine->reactors[i] = (trib_job_reactor){reactor, &core->roster_post, &core->ended_post, NULL};
        status = trib_core_open(core, engine, reactor, error);
        engine->reactors[i].transport = core->host.transport;
        if (status != TRIB_OK) {
            return status;
        }
    }
    atomic_store(&engine->cores_joining, engine->core_count);
    atomic_store(&engine->cores_open, engine->core_count);
    return TRIB_OK;
}

static void device_job_complete(trib_device_job *job)
{
    trib_reactor_post(job->reactor, &job->post);
}

static void wake_reactors(void *engine, uint32_t reactors)
{
    trib_engine_wake(engine, reactors);
}

static void launched(void *owner)
{
    trib_engine *engine = owner;
    atomic_fetch_add(&engine->launches, 1);
    trib_engine_notify(engine);
}

static trib_status open_device(trib_engine *engine, trib_error *error)
{
    const trib_config *config = &engine->config;
    trib_assert(engine->device == NULL && config->local_size > 0);
    const trib_device_params params = {.index = config->device_index,
                                       .rank = config->local_rank,
                                       .size = config->local_size,
                                       .machine = config->rank < 0 ? 0 : config->rank / config->local_size,
                                       .kernels = engine->env.kernels,
                                       .logger = &engine->logger,
                                       .poll_window_max_ns = engine->env.poll_window_max_ns,
                                       .thread_began = engine->env.device_thread,
                                       .memory = engine->env.memory,
                                       .complete = device_job_complete,
                                       .wake = wake_reactors,
                                       .launched = launched,
                                       .engine = engine,
                                       .world = engine->env.device_world};
    engine->device_hooks = &trib_group_device_hooks;
    trib_status status = engine->env.device->open(&params, &engine->device, error);
    if (status == TRIB_OK && engine->env.memory_attach_device != NULL) {
        engine->env.memory_attach_device(engine->env.memory, engine->env.device, engine->device);
    }
    return status;
}

static void close_device(trib_engine *engine)
{
    if (engine->device != NULL) {
        if (engine->env.memory_detach_device != NULL) {
            engine->env.memory_detach_device(engine->env.memory);
        }
        engine->env.device->close(engine->device);
        engine->device = NULL;
    }
}

static const trib_job_hooks hooks = {.core_closed = trib_tracer_core_closed,
                                     .data_began = trib_tracer_data_began,
                                     .declare = trib_member_declare,
                                     .tensor_ended = trib_member_tensor_ended,
                                     .create_group = trib_member_create_group,
                                     .group_ended = trib_member_group_ended,
                                     .awaited = trib_member_awaited,
                                     .core_joined = trib_worker_joined,
                                     .member_left = trib_group_check_departed,
                                     .carried_out = trib_group_carried_out,
                                     .ask_time = trib_member_ask_time,
                                     .member_suspected = trib_loss_suspected,
                                     .member_doubted = trib_loss_doubted,
                                     .losses_taken = trib_server_losses_taken,
                                     .tell_coordinator = trib_member_tell,
                                     .reopen = trib_engine_reopen,
                                     .advance = trib_member_advance,
                                     .tensor_name = trib_tensor_name_of};

trib_status trib_engine_open(trib_engine *engine, const trib_env *env, const trib_config *config, trib_error *error)
{
    engine->env = *env;
    engine->hooks = &hooks;
    engine->process = trib_fork_process();
    engine->done_fd = -1;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_mutex_init(&engine->once_mutex, NULL);
    pthread_mutex_init(&engine->boundaries.mutex, NULL);
    pthread_mutex_init(&engine->stalls.mutex, NULL);
    pthread_cond_init(&engine->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    trib_status status = copy_config(engine, config, error);
    if (status == TRIB_OK && config->mode == TRIB_MODE_QUEUE) {
        engine->done_fd = trib_descriptor_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (engine->done_fd < 0) {
            char why[TRIB_REASON_MAX];
            status = trib_error_set(error, TRIB_SYSTEM, "could not make the descriptor of the completion queue: %s",
                                    trib_log_reason(errno, why));
        } else {
            trib_fork_own(engine->done_fd);
        }
    }
    if (status == TRIB_OK && env->device != NULL) {
        status = open_device(engine, error);
    }
    if (status == TRIB_OK) {
        status = open_cores(engine, error);
    }
    if (status == TRIB_OK) {
        status = trib_tracer_open(engine, error);
    }
    if (status == TRIB_OK) {
        status = trib_engine_open_membership(engine, error);
    }
    if (status == TRIB_OK && (config->roles & TRIB_ROLE_WORKER)) {
        const trib_tensor_desc barrier = {
            .name = TRIB_BARRIER_NAME, .dtype = TRIB_UINT8, .priority = INT32_MAX, .layout = TRIB_WHOLE};
        status = trib_tensor_find_or_add(engine, &barrier, &engine->barrier_tensor, NULL, error);
    }
    for (uint32_t i = 0; status == TRIB_OK && i < engine->core_count; i++) {
        errno = 0;
        status = engine->env.reactor_start(engine, engine->cores[i].reactor);
        if (status != TRIB_OK) {
            char why[TRIB_REASON_MAX];
            trib_error_set(error, status, "could not start reactor %u: %s", i,
                           status == TRIB_SYSTEM ? trib_log_thread_reason(errno, why) : trib_status_text(status));
        }
    }
    /* Reactors begin only after all threads exist, so a failure to start one leaves nothing to undo, such as a
     * connection. */
    for (uint32_t i = 0; status == TRIB_OK && i < engine->core_count && engine->env.reactor_go != NULL; i++) {
        engine->env.reactor_go(engine, engine->cores[i].reactor);
    }
    return status;
}

bool trib_engine_on_thread(const trib_engine *engine)
{
    /* A core that is opened again lacks its reactor for a moment, in which callers may ask. */
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return engine->env.on_thread(engine->reactors[0].reactor) && trib_callbacks_run_here(engine);
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (engine->env.on_thread(engine->reactors[i].reactor)) {
            return true;
        }
    }
    return pthread_equal(atomic_load(&engine->dispatcher), pthread_self()) != 0 && trib_callbacks_run_here(engine);
}

/* ---- Freeing ---- */

void trib_engine_free(trib_engine *engine)
{
    for (uint32_t i = 0; i < engine->core_count && engine->cores != NULL; i++) {
        if (engine->cores[i].reactor != NULL) {
            engine->env.reactor_stop(engine, engine->cores[i].reactor);
        }
    }
    trib_election_stop(engine);
    trib_coordinator_close(engine->coordinator);
    trib_member_close(engine->member);
    trib_tracer_close(engine);
    if (engine->cores != NULL) {
        for (uint32_t i = 0; i < engine->core_count; i++) {
            trib_core_close(&engine->cores[i]);
        }
    }
    trib_tenure_close(engine);
    close_device(engine); /* its thread may still wake a reactor after its last job, so reactors are freed later */
    for (uint32_t i = 0; i < engine->core_count && engine->cores != NULL; i++) {
        if (engine->cores[i].reactor != NULL) {
            engine->env.reactor_free(engine->cores[i].reactor);
        }
    }
    free(engine->cores);
    trib_group_close(engine->group);
    trib_departed_close(&engine->departed);
    trib_losses_close(&engine->losses);
    trib_server_forgets_free(engine);
    trib_quorum_walks_free(engine);
    trib_tensors_free(engine);
    trib_prepared_free_all(engine);
    trib_rank_groups_free(engine);
    trib_ops_free(engine);
    if (engine->done_fd >= 0) {
        trib_fork_close(engine->done_fd);
    }
    const trib_roster *roster = engine->roster;
    while (roster != NULL) {
        const trib_roster *before = roster->before;
        free((void *)(uintptr_t)roster);
        roster = before;
    }
    trib_formation_close(&engine->formation);
    free(engine->job);
    trib_auth_wipe(engine->key, sizeof engine->key);
    while (engine->coordinators != NULL) {
        trib_noted_address *noted = engine->coordinators;
        engine->coordinators = noted->next;
        free(noted);
    }
    free(engine->coordinator_list);
    free(engine->listen_host);
    free(engine->store);
    trib_codec_rules_close(&engine->codec_rules);
    trib_codec_set_close(&engine->codecs);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->mutex);
    pthread_mutex_destroy(&engine->once_mutex);
    pthread_mutex_destroy(&engine->boundaries.mutex);
    pthread_mutex_destroy(&engine->stalls.mutex);
    trib_server_joined_free(engine);
    free(engine->join.targets);
}
