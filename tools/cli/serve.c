/* serve.c - `tributary server` and `tributary coordinator`: run an engine that has no gradients, until the job
 * ends. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/tributary.h"
#include "tools/cli/commands.h"
#include "tools/cli/options.h"

typedef struct waiter {
    const char *command; /* "server" */
    trib_engine *engine;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool over;
    int signal; /* the signal that ended the wait; 0: none */
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

/* SIGTERM and SIGINT end the wait, or have a server leave first where the job goes on without it. The others would end
 * the process and the job with it, though whoever sends them asks for something else: a terminal that closes, a log
 * rotation, another program's habit. */
static void list_signals(sigset_t *set)
{
    static const int taken[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        sigaddset(set, taken[i]);
    }
}

/* Returns SIGTERM or SIGINT. */
static int await_signal(const waiter *self)
{
    sigset_t set;
    list_signals(&set);
    int number = 0;
    while (sigwait(&set, &number) == 0 && number != SIGTERM && number != SIGINT) {
        fprintf(stderr, "tributary %s: signal %d (%s) is ignored; SIGTERM ends this process\n", self->command, number,
                strsignal(number));
    }
    return number;
}

/* A thread takes the signals, so that no code runs in a signal handler. */
static void *take_signals(void *user)
{
    waiter *self = user;
    int number = await_signal(self);
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_drain(self->engine, &error) == TRIB_OK) {
        fprintf(stderr, "tributary %s: signal %d: leaving the job; another signal ends this process at once\n",
                self->command, number);
        number = await_signal(self);
        fprintf(stderr, "tributary %s: ended by signal %d before it had left the job\n", self->command, number);
        _exit(1); /* for the job that is the loss of a server, which it survives; to say BYE would fail operations */
    }
    pthread_mutex_lock(&self->mutex);
    self->signal = self->over ? 0 : number;
    self->over = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* Status 2 says that the settings are wrong, wherever that was found; 1 that the job failed. */
static int reject_engine(const char *what, trib_status status, const trib_error *error)
{
    fprintf(stderr, "tributary %s: %s\n", what, error->text);
    return status == TRIB_INVALID ? 2 : 1;
}

static int serve_job(trib_config *config, const char *what)
{
    waiter self = {.command = what, .error = {.status = TRIB_OK}};
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.changed, NULL);
    config->ended_cb = job_ended;
    config->ended_user = &self;
    sigset_t set;
    list_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* nobody reads the log any more (`| head`), and the job goes on */
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    const trib_status status = trib_engine_create(config, &engine, &error);
    if (status != TRIB_OK) {
        return reject_engine(what, status, &error);
    }
    self.engine = engine;
    pthread_t thread;
    const int lack = pthread_create(&thread, NULL, take_signals, &self);
    if (lack != 0) {
        fprintf(
            stderr,
            "tributary %s: no thread that waits for signals: %s (too little for this process by ulimit -v or -u?)\n",
            what, strerror(lack));
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
        fprintf(stderr, "tributary %s: ended by signal %d before the job had ended\n", what, self.signal);
        return 1;
    }
    return 0;
}

/* A thousand workers are a thousand connections, and many systems start processes with a limit of 1024. The limit
 * is raised as far as this is possible without privileges. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Every option becomes a variable of the environment, where one function checks them all. */
static int parse_options(int argc, char **argv, const char *command)
{
    const char *token_file = NULL, *text = NULL;
    const option_row rows[] = {
        {OPTION_TEXT("--coordinator", &text, "HOST:PORT", "where the coordinator listens"),
         .variable = "TRIB_COORDINATOR"},
        {OPTION_TEXT("--listen", &text, "ADDRESS", "where this process listens"), .variable = "TRIB_LISTEN"},
        {OPTION_TEXT("--workers", &text, "N", "workers of the job"), .variable = "TRIB_WORKERS"},
        {OPTION_TEXT("--servers", &text, "K", "servers of the job"), .variable = "TRIB_SERVERS"},
        {OPTION_TEXT("--job", &text, "NAME", "the job's name"), .variable = "TRIB_JOB"},
        {OPTION_TEXT("--token-file", &token_file, "FILE", "holds the job's secret"), .variable = "TRIB_TOKEN_FILE"},
        {OPTION_TEXT("--reactors", &text, "R", "event loops"), .variable = "TRIB_REACTORS"},
    };
    const option_table table = {
        .command = command,
        .usage = "[options]",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
        .notes = "An option that is not given is taken from the environment (TRIB_*, or BytePS's DMLC_*; "
                 "docs/operating.md).\n"
                 "The process ends by itself when the job does. Its exit status:\n"
                 "  0  the job ended well, or goes on without this server after SIGTERM or SIGINT\n"
                 "  1  the job failed or did not form, the machine refused something, or SIGTERM or SIGINT came first\n"
                 "  2  an option or a setting is wrong\n"
                 "On SIGTERM or SIGINT a server of a job with TRIB_SURVIVE=servers leaves it first, which costs no\n"
                 "operation; a second signal ends it at once. With TRIB_SURVIVE=workers a server that is started\n"
                 "while the job runs joins it at the next trib_membership_advance.\n"
                 "SIGHUP, SIGUSR1, SIGUSR2 and SIGALRM are ignored.\n",
    };
    const int status = options_parse(&table, argc, argv);
    if (token_file != NULL) {
        unsetenv("TRIB_TOKEN"); /* the token would take precedence over the file */
    }
    return status;
}

static int run_engine_alone(int argc, char **argv, const char *what, uint32_t role)
{
    int status = parse_options(argc, argv, what);
    if (status >= 0) {
        return status;
    }
    raise_file_limit();
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = -1;
    trib_error error = {.status = TRIB_OK};
    const trib_status read = trib_config_from_env(&config, &error);
    if (read != TRIB_OK) {
        return reject_engine(what, read, &error);
    }
    const size_t length = config.coordinator == NULL ? 0 : strlen(config.coordinator);
    if (length > 2 && strcmp(config.coordinator + length - 2, ":0") == 0) {
        fprintf(stderr, "tributary %s: coordinator %s: choose a port, or the others do not find it\n", what,
                config.coordinator);
        return 2;
    }
    config.roles = role;
    config.mode = TRIB_MODE_THREADS;
    return serve_job(&config, what);
}

int server_command(int argc, char **argv)
{
    return run_engine_alone(argc, argv, "server", TRIB_ROLE_SERVER);
}

int coordinator_command(int argc, char **argv)
{
    return run_engine_alone(argc, argv, "coordinator", TRIB_ROLE_COORDINATOR);
}
