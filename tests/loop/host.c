/* host.c - see host.h. */
#include "tests/loop/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

static void take_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    host *self = user;
    pthread_mutex_lock(&self->mutex);
    const size_t used = strlen(self->log);
    snprintf(self->log + used, sizeof self->log - used, "%s\n", line);
    pthread_mutex_unlock(&self->mutex);
}

bool host_has_said(host *self, const char *words)
{
    pthread_mutex_lock(&self->mutex);
    const bool said = strstr(self->log, words) != NULL;
    pthread_mutex_unlock(&self->mutex);
    return said;
}

void host_open(host *self, int workers, const char *more)
{
    memset(self, 0, sizeof *self);
    pthread_mutex_init(&self->mutex, NULL);
    job_free_address(self->address, sizeof self->address);
    char coordinator[64];
    snprintf(coordinator, sizeof coordinator, "%s%s%s%s", self->address, more[0] != '\0' ? "," : "", more,
             more[0] != '\0' ? strchr(self->address, ':') : "");
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = workers;
    config.reactors = 1;
    config.coordinator = coordinator;
    config.token = HOST_TOKEN;
    config.join_timeout_ns = INT64_C(60000000000);
    config.log_cb = take_line;
    config.log_user = self;
    trib_error error = {.text = ""};
    if (trib_engine_create(&config, &self->engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

void host_close(host *self)
{
    assert_int_equal(trib_engine_destroy(self->engine), TRIB_OK);
    pthread_mutex_destroy(&self->mutex);
}
