/*
 * engine_api.c - the entry points about an engine: check the arguments, the state and the thread, then forward. Nothing
 * else. Those about tensors and operations are in operation_api.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ev.h>

#include "api/config/address.h"
#include "api/config/interfaces.h"
#include "api/blocking.h"
#include "api/bootstrap.h"
#include "api/callback_watch.h"
#include "api/check.h"
#include "api/config/config.h"
#include "api/create.h"
#include "api/ticker.h"
#include "api/trace_flush.h"
#include "api/env/codec_load.h"
#include "api/env/env_host.h"
#include "engine/engine.h"
#include "engine/job/callback.h"
#include "engine/job/completions.h"
#include "engine/membership/server_drain.h"
#include "api/env/store_load.h"
#include "engine/base/descriptor.h"
#include "engine/base/float_env.h"
#include "engine/base/fork.h"
#include "engine/worker/op.h"
#include "engine/report.h"

/* ---- Creating ---- */

#define RESOLVE_AGAIN_NS INT64_C(250000000)

/* The variable that the user has to look at. */
static const char *source_of(const trib_config *config)
{
    return config->coordinator_source != NULL ? config->coordinator_source : "TRIB_COORDINATOR";
}

/* Processes may start before the coordinator's name is in DNS: an unknown name is looked up until the join timeout. The
 * time that it takes counts as time to join. */
static trib_status resolve_coordinator(trib_config *config, trib_address *address, trib_error *error)
{
    const char *wanted = config->coordinator != NULL ? config->coordinator : "127.0.0.1:0";
    const double timeout_s = (double)config->join_timeout_ns / 1e9;
    const struct timespec deadline = trib_api_deadline_in(config->join_timeout_ns);
    trib_error why = {.text = ""};
    trib_logger logger;
    trib_logger_init(&logger, config);
    for (bool logged = false;; logged = true) {
        why.text[0] = '\0';
        trib_status status = trib_address_resolve(wanted, address, &why);
        const int64_t left_ns = trib_api_left_ns(&deadline);
        if (status != TRIB_OK && status != TRIB_JOIN_FAILED) {
            return trib_error_set(error, status, "coordinator (%s, or trib_config.coordinator): %.300s",
                                  source_of(config), why.text);
        }
        if (status == TRIB_OK) {
            config->join_timeout_ns = !logged ? config->join_timeout_ns : left_ns > 0 ? left_ns : 1;
            return TRIB_OK;
        }
        if (left_ns <= 0) {
            return trib_error_set(error, status, "could not look up the coordinator (%s) within %.1f s: %.300s",
                                  source_of(config), timeout_s, why.text);
        }
        if (!logged) {
            trib_log(&logger, TRIB_LOG_WARN, "coordinator: %.300s; it is looked up until %.0f s have passed", why.text,
                     timeout_s);
        }
        const struct timespec pause = {.tv_nsec = left_ns < RESOLVE_AGAIN_NS ? left_ns : RESOLVE_AGAIN_NS};
        nanosleep(&pause, NULL);
    }
}

/* Members connect to the addresses that the roster names; a wildcard (0.0.0.0, ::) would lead each to itself. A
 * dedicated coordinator is in no roster, and rank 0's listener for the membership is not either. */
static trib_status check_reachable(const trib_config *config, const char *coordinator, bool is_listen_given,
                                   trib_error *error)
{
    const bool keeps_only = config->roles == TRIB_ROLE_COORDINATOR;
    const bool keeps = (config->roles & TRIB_ROLE_COORDINATOR) ||
                       ((config->roles & TRIB_ROLE_WORKER) && config->rank == 0 && !config->external_coordinator);
    if (!keeps_only && trib_address_has_wildcard(config->listen)) {
        return trib_error_set(
            error, TRIB_INVALID,
            "listen \"%.80s\": a wildcard address cannot be advertised to peers; set it to an address of "
            "this machine that the peers can reach (TRIB_LISTEN, or trib_config.listen)",
            config->listen);
    }
    if (!trib_address_has_wildcard(coordinator) || keeps_only || (keeps && is_listen_given)) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_INVALID,
                          "coordinator %.80s: a wildcard address is only valid for listening; set it to an address of "
                          "rank 0's machine that all members can reach (%s, or trib_config.coordinator)%s",
                          coordinator, source_of(config),
                          keeps ? "; rank 0 may listen there if TRIB_LISTEN says where it is reached" : "");
}

/* Fills in what depends on the machine: the coordinator's numeric address, where to listen, how many reactors. */
static trib_status complete_config(trib_config *config, trib_address *coordinator, trib_address *listen,
                                   trib_error *error)
{
    const bool is_listen_given = config->listen != NULL, seeks = config->store != NULL && config->coordinator == NULL;
    trib_status status =
        seeks ? trib_store_seek(config, coordinator, listen, error) : resolve_coordinator(config, coordinator, error);
    if (status != TRIB_OK) {
        return status;
    }
    config->coordinator = coordinator->text;
    if (!seeks && !is_listen_given) {
        if (config->token == NULL) {
            snprintf(listen->text, sizeof listen->text, "127.0.0.1");
        } else {
            status = trib_address_local(coordinator, listen, error);
        }
    } else if (!seeks) {
        status = trib_interfaces_expand(config->listen, listen, error);
    }
    config->listen = listen->text;
    status = status == TRIB_OK ? check_reachable(config, coordinator->text, is_listen_given, error) : status;
    if (status == TRIB_OK && config->token == NULL &&
        !(trib_address_is_loopback(coordinator->text) && trib_address_is_loopback(config->listen))) {
        status = trib_error_set(error, TRIB_INVALID,
                                "coordinator %s, listen %s: without a token all must be loopback addresses; set "
                                "TRIB_TOKEN (or trib_config.token) to the same secret on every member",
                                coordinator->text, config->listen);
    }
    if (config->mode == TRIB_MODE_ATTACHED) {
        config->reactors = 1;
        config->pin = false;
    }
    return status;
}

trib_status trib_engine_create_in(trib_env *env, const trib_config *config, trib_engine **engine_out, trib_error *error)
{
    trib_engine *engine = calloc(1, sizeof *engine);
    trib_status status = TRIB_NO_MEMORY;
    if (engine == NULL) {
        trib_error_set(error, status, "out of memory for an engine");
    } else {
        atomic_init(&engine->magic, TRIB_ENGINE_ALIVE); /* before callbacks run on other threads */
        status = trib_engine_open(engine, env, config, error);
    }
    if (status != TRIB_OK) {
        if (engine != NULL) {
            trib_engine_free(engine);
        }
        env->fini(env);
        free(engine);
        return status;
    }
    *engine_out = engine;
    return TRIB_OK;
}

/* Other libraries, such as libev and those of devices, get no number of a standard stream for what they open.
 * coordinator: its name or address, as the caller gave it; NULL: none. */
static trib_status create_here(trib_config *config, const char *coordinator, trib_engine **engine_out,
                               trib_error *error)
{
    trib_env env;
    trib_codec_desc *codecs = NULL;
    trib_descriptor_guard_begin();
    trib_status status = trib_codecs_load(config, &codecs, error);
    if (status == TRIB_OK) {
        status = trib_env_host_init(&env, config, error);
    }
    if (status == TRIB_OK) {
        /* numbers need no resolver */
        if (coordinator != NULL && strcmp(coordinator, config->coordinator) != 0) {
            trib_env_host_resolve(&env, coordinator);
        }
        status = trib_engine_create_in(&env, config, engine_out, error);
    }
    free(codecs);
    trib_descriptor_guard_end();
    return status;
}

static trib_status create(const trib_config *given, trib_engine **engine_out, trib_error *error)
{
    trib_config config;
    trib_status status = trib_config_check(given, &config, error);
    trib_address coordinator, listen;
    if (status == TRIB_OK) {
        status = complete_config(&config, &coordinator, &listen, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (!trib_fork_watch()) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the watch over fork()");
    }
    status = create_here(&config, given->coordinator, engine_out, error);
    if (status == TRIB_OK) {
        trib_callback_watch_start(*engine_out);
        if (config.trace != NULL) {
            trib_trace_flush_start(*engine_out);
        }
    }
    return status;
}

trib_status trib_engine_create(const trib_config *config, trib_engine **engine_out, trib_error *error)
{
    trib_error_clear(error);
    if (engine_out != NULL) {
        *engine_out = NULL;
    }
    if (config == NULL || engine_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "config and engine_out must not be NULL");
    }
    trib_bootstrap bootstrap;
    trib_status status = trib_bootstrap_begin(&bootstrap, config, error); /* it calls the program's own function */
    if (status == TRIB_OK) {
        const trib_float_env callers = trib_float_env_enter();
        status = create(&bootstrap.config, engine_out, error);
        trib_float_env_leave(callers);
    }
    trib_bootstrap_end(&bootstrap, status == TRIB_OK);
    return status;
}

/* ---- Waiting ---- */

trib_status trib_engine_wait_ready(trib_engine *engine, int64_t timeout_ns, trib_error *error)
{
    trib_status status = trib_api_check_may_block(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    bool forever = timeout_ns < 0; /* the join timeout ends it */
    struct timespec deadline = trib_api_deadline_in(forever ? 0 : timeout_ns);
    int code = 0;
    pthread_mutex_lock(&engine->mutex);
    while (trib_engine_is_joining(engine) && code != ETIMEDOUT) {
        code = forever ? pthread_cond_wait(&engine->changed, &engine->mutex)
                       : pthread_cond_timedwait(&engine->changed, &engine->mutex, &deadline);
    }
    const trib_phase phase = trib_engine_is_joining(engine) ? TRIB_PHASE_JOINING : atomic_load(&engine->phase);
    trib_error fate = engine->fate;
    char awaited[TRIB_AWAITED_SIZE];
    memcpy(awaited, engine->awaited, sizeof awaited);
    pthread_mutex_unlock(&engine->mutex);
    switch (phase) {
    case TRIB_PHASE_READY:
        return TRIB_OK;
    case TRIB_PHASE_JOINING:
        return trib_error_set(error, TRIB_TIMEOUT, "the job has not come together yet: %s", awaited);
    default:
        return trib_error_set(error, fate.status == TRIB_OK ? TRIB_CLOSED : fate.status, "%s", fate.text);
    }
}

/* ---- Closing ---- */

void trib_engine_close(trib_engine *engine, trib_closed_cb closed_cb, void *user)
{
    if (trib_api_is_usable(engine)) {
        trib_engine_begin_close(engine, closed_cb, user);
    }
}

trib_status trib_engine_drain(trib_engine *engine, trib_error *error)
{
    const trib_status status = trib_api_check_engine(engine, error);
    return status == TRIB_OK ? trib_server_drain(engine, error) : status;
}

static bool is_closed(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    bool closed = engine->closed;
    pthread_mutex_unlock(&engine->mutex);
    return closed;
}

#define CLOSE_GRACE_NS INT64_C(1000000000) /* after the deadline of close the log says what it waits for */
#define CLOSE_SAYS_NS (30 * INT64_C(1000000000))

/* Close has a deadline, but a callback of the program's cannot be ended. The mutex is held, and released in between. */
static void wait_closed_locked(trib_engine *engine)
{
    struct timespec at = trib_api_deadline_in(engine->config.close_timeout_ns + CLOSE_GRACE_NS);
    while (!engine->closed) {
        if (pthread_cond_timedwait(&engine->changed, &engine->mutex, &at) != ETIMEDOUT || engine->closed) {
            continue;
        }
        char text[TRIB_CALLBACK_TEXT_SIZE];
        const bool runs = trib_callbacks_describe_locked(engine, text);
        pthread_mutex_unlock(&engine->mutex);
        trib_log(&engine->logger, TRIB_LOG_WARN, "trib_engine_destroy waits for %s",
                 runs ? text : "the reactors: they have not closed their links in close_timeout");
        at = trib_api_deadline_in(CLOSE_SAYS_NS);
        pthread_mutex_lock(&engine->mutex);
    }
}

static void wait_closed(trib_engine *engine)
{
    switch (engine->config.mode) {
    case TRIB_MODE_ATTACHED:
        while (!is_closed(engine)) {
            ev_run(engine->config.loop, EVRUN_ONCE);
        }
        break;
    case TRIB_MODE_QUEUE:
    case TRIB_MODE_THREADS:
        pthread_mutex_lock(&engine->mutex);
        wait_closed_locked(engine);
        pthread_mutex_unlock(&engine->mutex);
        break;
    }
}

/* True while another thread runs the caller's loop. If none does, the destroying thread may run it. */
static bool is_run_elsewhere(const trib_engine *engine)
{
    return engine->config.mode == TRIB_MODE_ATTACHED && ev_depth(engine->config.loop) > 0 &&
           !engine->env.on_thread(engine->reactors[0].reactor);
}

trib_status trib_engine_destroy(trib_engine *engine)
{
    const trib_status status = engine == NULL ? TRIB_STATE : trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK) {
        /* In a forked child it stays as it is: the threads that would finish its work are not there. Where its loop is
         * gone, nothing can finish that either. */
        const bool is_forked = engine == NULL || (status == TRIB_STATE && engine->process != trib_fork_process());
        return is_forked ? TRIB_OK : status;
    }
    if (trib_engine_on_thread(engine) || is_run_elsewhere(engine)) {
        return TRIB_WRONG_THREAD;
    }
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        trib_callbacks_recover(engine);
    }
    trib_engine_begin_close(engine, NULL, NULL);
    wait_closed(engine);
    trib_engine_dispatch(engine, 0);
    trib_ticker_stop(engine->trace_flusher);
    trib_ticker_stop(engine->callback_watcher);
    trib_env env = engine->env;
    trib_engine_free(engine);
    env.fini(&env);
    atomic_store(&engine->magic, TRIB_ENGINE_DESTROYED);
    free(engine);
    return TRIB_OK;
}

int trib_engine_get_fd(const trib_engine *engine)
{
    return trib_api_is_usable(engine) ? engine->done_fd : -1;
}

static bool poll_attached(trib_engine *engine)
{
    trib_reactor *reactor = engine->reactors[0].reactor;
    return engine->env.poll != NULL && !trib_callbacks_run_here(engine) && engine->env.on_thread(reactor) &&
           engine->env.poll(reactor);
}

/* The end of a dispatch, also if a callback throws an exception. */
static void end_dispatch(trib_engine *const *engine)
{
    atomic_store(&(*engine)->dispatcher, TRIB_NO_THREAD);
    if (atomic_load(&(*engine)->waiters) > 0 && trib_completions_any(*engine)) {
        trib_engine_notify(*engine); /* a waiter must dispatch what completed meanwhile */
    }
}

/* True: this thread is the dispatcher now. It may be that already, if a callback left by a longjmp. */
static bool begin_dispatch(trib_engine *engine)
{
    pthread_t dispatcher = TRIB_NO_THREAD;
    return atomic_compare_exchange_strong(&engine->dispatcher, &dispatcher, pthread_self()) ||
           (pthread_equal(dispatcher, pthread_self()) && !trib_callbacks_run_here(engine));
}

size_t trib_engine_dispatch(trib_engine *engine, size_t max)
{
    if (!trib_api_is_usable(engine)) {
        return 0;
    }
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return poll_attached(engine);
    }
    if (engine->config.mode != TRIB_MODE_QUEUE || !begin_dispatch(engine)) {
        return 0;
    }
    trib_engine *const ends __attribute__((cleanup(end_dispatch), unused)) = engine;
    return trib_completions_run(engine, max);
}

/* ---- Seeing ---- */

trib_status trib_engine_waiting(trib_engine *engine, trib_waiting *entries, size_t capacity, size_t *count_out)
{
    trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || count_out == NULL || (capacity > 0 && entries == NULL)) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        *count_out = 0;
        trib_report_core(&engine->cores[0], entries, capacity, count_out);
        return TRIB_OK;
    }
    status = trib_api_check_may_block(engine, NULL);
    return status != TRIB_OK ? status : trib_report_engine(engine, INT64_C(1000000000), entries, capacity, count_out);
}

static void add_core(trib_stats *stats, const trib_engine *engine, uint32_t index)
{
    const trib_core_stats *mine = &engine->cores[index].stats;
    trib_transport *at = engine->reactors[index].transport;
    trib_transport_stats transport = {.system_calls = 0};
    at->ops->stats(at, &transport);
    stats->connections += (uint32_t)trib_counter_get(&mine->connections);
    stats->bytes_pushed += trib_counter_get(&mine->bytes_pushed);
    stats->bytes_pulled += trib_counter_get(&mine->bytes_pulled);
    stats->bytes_sum_sent += trib_counter_get(&mine->bytes_sum_sent);
    stats->bytes_summed += trib_counter_get(&mine->bytes_summed);
    stats->messages_sent += trib_counter_get(&mine->messages_sent);
    stats->messages_received += trib_counter_get(&mine->messages_received);
    stats->allocations += trib_counter_get(&mine->allocations);
    stats->peers_refused += trib_counter_get(&mine->peers_refused);
    stats->payloads_damaged += trib_counter_get(&mine->payloads_damaged);
    stats->system_calls += transport.system_calls;
    stats->bytes_copied += transport.bytes_copied;
    stats->bytes_relayed += trib_counter_get(&mine->bytes_relayed);
    stats->bytes_direct += trib_counter_get(&mine->bytes_direct);
}

trib_status trib_engine_get_stats(trib_engine *engine, trib_stats *stats)
{
    trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || stats == NULL || stats->struct_size != sizeof *stats) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    *stats = (trib_stats){.struct_size = sizeof *stats};
    for (uint32_t i = 0; i < engine->core_count; i++) {
        add_core(stats, engine, i);
    }
    stats->ops_completed = atomic_load(&engine->ops_completed);
    stats->ops_failed = atomic_load(&engine->ops_failed);
    stats->ops_in_flight = trib_engine_ops_in_flight(engine);
    return TRIB_OK;
}
