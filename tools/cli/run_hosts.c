/* run_hosts.c - see run_hosts.h. The launcher gets the options that were read here as pairs, NAME=VALUE. */
#include "tools/cli/run_hosts.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/run_python.h"

enum { PAIRS_MAX = 10 };

typedef struct pairs {
    char *all[PAIRS_MAX];
    size_t count;
} pairs;

bool run_needs_hosts(const run_options *options)
{
    return options->hosts != NULL || options->hostfile != NULL || options->discover != NULL || options->elastic != NULL;
}

static bool add(pairs *self, const char *name, const char *value)
{
    if (value == NULL) {
        return true;
    }
    const size_t size = strlen(name) + strlen(value) + 2;
    char *pair = malloc(size);
    if (pair == NULL) {
        return false;
    }
    snprintf(pair, size, "%s=%s", name, value);
    self->all[self->count++] = pair;
    return true;
}

static bool list_pairs(pairs *self, const run_options *options)
{
    char own[PATH_MAX], workers[16], servers[16], failures[16];
    const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0) {
        return false;
    }
    own[length] = '\0';
    snprintf(workers, sizeof workers, "%u", options->workers);
    snprintf(servers, sizeof servers, "%u", options->servers);
    snprintf(failures, sizeof failures, "%u", options->host_failures);
    return add(self, "self", own) && add(self, "workers", workers) && add(self, "servers", servers) &&
           add(self, "host_failures", failures) && add(self, "host", options->host) &&
           add(self, "hosts", options->hosts) && add(self, "hostfile", options->hostfile) &&
           add(self, "discover", options->discover) && add(self, "elastic", options->elastic) &&
           add(self, "rsh", options->rsh);
}

/* The interpreter, in memory of its own: the caller becomes it, and frees nothing. */
static char *find_python(void)
{
    const char *value = getenv("TRIBUTARY_PYTHON");
    return strdup(value != NULL && value[0] != '\0' ? value : "python3");
}

int run_over_hosts(const run_options *options, char **program)
{
    char launcher[PATH_MAX];
    pairs given = {.count = 0};
    size_t count = 0;
    if (!run_find_package("tributary/launch", launcher, sizeof launcher)) {
        fprintf(stderr, "tributary run: the Python package, which starts jobs over several hosts, is not beside this "
                        "program: use the command of the wheel, or of a build\n");
        return 1;
    }
    while (program[count] != NULL) {
        count++;
    }
    char **argv = calloc(2 + PAIRS_MAX + 1 + count + 1, sizeof *argv);
    if (argv == NULL || !list_pairs(&given, options)) {
        fprintf(stderr, "tributary run: %s\n", strerror(errno));
        free(argv);
        return 1;
    }
    char **next = argv;
    *next++ = find_python();
    *next++ = launcher;
    for (size_t i = 0; i < given.count; i++) {
        *next++ = given.all[i];
    }
    *next++ = (char[]){"--"};
    memcpy(next, program, count * sizeof *next);
    if (argv[0] != NULL) {
        execvp(argv[0], argv);
    }
    fprintf(stderr, "tributary run: %s: %s; TRIBUTARY_PYTHON names another interpreter\n",
            argv[0] != NULL ? argv[0] : "python3", strerror(errno));
    return 127;
}
