/* serve.c - `tributary server` and `tributary coordinator`: one engine without a gradient of its own, until the job
 * ends. */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "api/tributary.h"
#include "tools/commands.h"
#include "tools/option.h"

typedef struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool over;
    int signal; /* that ended the wait; 0: none */
    trib_error error;
} waiter;

static void job_ended(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    waiter *self = user;
    pthread_mutex_lock(&self->mutex);
    self->over = true;
    self->error = *error;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}

/* Signals end the wait too: a thread takes them, so that nothing runs in a handler. */
static void *take_signals(void *user)
{
    waiter *self = user;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int number = 0;
    sigwait(&set, &number);
    pthread_mutex_lock(&self->mutex);
    self->signal = self->over ? 0 : number;
    self->over = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static int serve(trib_config *config, const char *what)
{
    waiter self = {.error = {.status = TRIB_OK}};
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.changed, NULL);
    config->ended_cb = job_ended;
    config->ended_user = &self;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(config, &engine, &error) != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", what, error.text);
        return 1;
    }
    pthread_t thread;
    const int code = pthread_create(&thread, NULL, take_signals, &self);
    if (code != 0) {
        fprintf(
            stderr,
            "tributary %s: no thread that waits for signals: %s (too little for this process by ulimit -v or -u?)\n",
            what, strerror(code));
        trib_engine_destroy(engine);
        return 1;
    }
    pthread_mutex_lock(&self.mutex);
    while (!self.over) {
        pthread_cond_wait(&self.changed, &self.mutex);
    }
    error = self.error;
    pthread_mutex_unlock(&self.mutex);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    (void)trib_engine_destroy(engine);
    if (error.status != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", what, error.text);
        return 1;
    }
    if (self.signal != 0) {
        fprintf(stderr, "tributary %s: left by signal %d before the job was over\n", what, self.signal);
        return 1;
    }
    return 0;
}

/* A thousand workers are a thousand connections, and many systems begin with a limit of 1024: what may be had without
 * asking is taken. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void usage(const char *what, FILE *out)
{
    fprintf(
        out,
        "usage: tributary %s [--coordinator HOST:PORT] [--listen ADDRESS] [--workers N] [--servers K] [--job NAME]\n"
        "                 [--token-file FILE] [--reactors R]\n"
        "What is not given comes from the environment (TRIB_*, or BytePS's DMLC_*; docs/operating.md).\n"
        "Ends by itself when the job does: status 0 if that was in good order, 1 if not, or after SIGTERM or SIGINT.\n",
        what);
}

static int parse(int argc, char **argv, const char *what)
{
    static const struct option options[] = {
        {"coordinator", required_argument, NULL, 'c'},
        {"listen", required_argument, NULL, 'l'},
        {"workers", required_argument, NULL, 'n'},
        {"servers", required_argument, NULL, 's'},
        {"job", required_argument, NULL, 'j'},
        {"token-file", required_argument, NULL, 't'},
        {"reactors", required_argument, NULL, 'r'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const char *const variables[128] = {
        ['c'] = "TRIB_COORDINATOR", ['l'] = "TRIB_LISTEN",     ['n'] = "TRIB_WORKERS",  ['s'] = "TRIB_SERVERS",
        ['j'] = "TRIB_JOB",         ['t'] = "TRIB_TOKEN_FILE", ['r'] = "TRIB_REACTORS",
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'h') {
            usage(what, stdout);
            return 0;
        }
        if (option == '?') {
            usage(what, stderr);
            return 2;
        }
        if (option == 't') {
            unsetenv("TRIB_TOKEN"); /* it would be taken before the file that is given here */
        }
        setenv(variables[option], optarg, 1); /* one way in: the environment, checked in one place */
    }
    return optind < argc ? option_unexpected(what, argv[optind]) : -1;
}

static int main_of(int argc, char **argv, const char *what, uint32_t role)
{
    int status = parse(argc, argv, what);
    if (status >= 0) {
        return status;
    }
    raise_file_limit();
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = -1;
    trib_error error = {.status = TRIB_OK};
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", what, error.text);
        return 2;
    }
    const size_t length = config.coordinator == NULL ? 0 : strlen(config.coordinator);
    if (length > 2 && strcmp(config.coordinator + length - 2, ":0") == 0) {
        fprintf(stderr, "tributary %s: coordinator %s: choose a port, or the others do not find it\n", what,
                config.coordinator);
        return 2;
    }
    config.roles = role;
    config.mode = TRIB_MODE_THREADS;
    return serve(&config, what);
}

int server_command(int argc, char **argv)
{
    return main_of(argc, argv, "server", TRIB_ROLE_SERVER);
}

int coordinator_command(int argc, char **argv)
{
    return main_of(argc, argv, "coordinator", TRIB_ROLE_COORDINATOR);
}
