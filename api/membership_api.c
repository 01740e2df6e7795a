/* membership_api.c - the entry points about a membership that changes. */
#include <errno.h>
#include <time.h>

#include "api/blocking.h"
#include "api/check.h"

trib_status trib_membership_watch(trib_engine *engine, trib_membership_cb changed_cb, void *user, trib_error *error)
{
    const trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    pthread_mutex_lock(&engine->mutex);
    engine->formation.changed_cb = changed_cb;
    engine->formation.changed_user = user;
    pthread_mutex_unlock(&engine->mutex);
    return TRIB_OK;
}

/* The caller holds the mutex. */
static trib_status check_advance(const trib_engine *engine, trib_error *error)
{
    const trib_formation *formation = &engine->formation;
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        return trib_error_set(error, TRIB_STATE, "only workers advance to another membership: servers follow");
    }
    if (!atomic_load(&engine->changing)) {
        const trib_status status = trib_engine_check_open_locked(engine, error);
        if (status != TRIB_OK) {
            return status;
        }
        if (engine->roster == NULL) {
            return trib_error_set(error, TRIB_STATE, "the job has not come together yet: %s", engine->awaited);
        }
    }
    if (!atomic_load(&engine->shrinks)) {
        return trib_error_set(
            error, TRIB_UNSUPPORTED,
            "the membership of this job does not change (TRIB_SURVIVE=workers or continue, in the process "
            "of the coordinator)");
    }
    if (formation->advances || formation->advanced_queued) {
        return trib_error_set(error, TRIB_STATE, "an earlier call of trib_membership_advance is still under way");
    }
    return TRIB_OK;
}

trib_status trib_membership_advance(trib_engine *engine, trib_membership_cb advanced_cb, void *user, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_formation *formation = &engine->formation;
    pthread_mutex_lock(&engine->mutex);
    status = check_advance(engine, error);
    if (status == TRIB_OK) {
        formation->advances = true;
        formation->advanced_cb = advanced_cb;
        formation->advanced_user = user;
        formation->advance_post.run = engine->hooks->advance;
        if (!formation->advance_posted) {
            formation->advance_posted = true;
            trib_reactor_post(engine->reactors[0].reactor, &formation->advance_post);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

trib_status trib_membership_wait(trib_engine *engine, int64_t timeout_ns, trib_membership *membership,
                                 trib_error *error)
{
    trib_status status = trib_api_check_may_block(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    const bool forever = timeout_ns < 0;
    const struct timespec deadline = trib_api_deadline_in(forever ? 0 : timeout_ns);
    trib_membership now = {.struct_size = sizeof now};
    int code = 0;
    pthread_mutex_lock(&engine->mutex);
    while (engine->formation.advances && code != ETIMEDOUT) {
        code = forever ? pthread_cond_wait(&engine->changed, &engine->mutex)
                       : pthread_cond_timedwait(&engine->changed, &engine->mutex, &deadline);
    }
    const bool waits = engine->formation.advances;
    trib_job_membership(engine, &now);
    pthread_mutex_unlock(&engine->mutex);
    if (membership != NULL) {
        *membership = now;
    }
    return waits ? trib_error_set(error, TRIB_TIMEOUT, "other workers have not called trib_membership_advance yet")
           : now.status == TRIB_OK ? TRIB_OK
                                   : trib_error_set(error, now.status, "%s", now.text);
}

trib_status trib_membership_get(trib_engine *engine, trib_membership *membership)
{
    const trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || membership == NULL || membership->struct_size != sizeof *membership) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    *membership = (trib_membership){.struct_size = sizeof *membership};
    pthread_mutex_lock(&engine->mutex);
    trib_job_membership(engine, membership);
    pthread_mutex_unlock(&engine->mutex);
    return TRIB_OK;
}
