/*
 * config_names.c - variables of the environment that look like settings of ours and are none: most likely a typing
 * error, which would otherwise leave a default in force without a word.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "engine/base/log.h"

#define NAME_MAX_COMPARED 40u

/* Settings, and what the tools and tests read. */
static const char *const known[] = {
    "TRIB_BANDWIDTH",   "TRIB_BUILD",         "TRIB_BUSY_POLL",    "TRIB_BUSY_POLL_TIME",
    "TRIB_CHUNK_BYTES", "TRIB_CLOSE_TIMEOUT", "TRIB_COLOCATE",     "TRIB_COORDINATOR",
    "TRIB_DEVICE",      "TRIB_JOB",           "TRIB_JOIN_TIMEOUT", "TRIB_EXTERNAL_COORDINATOR",
    "TRIB_LISTEN",      "TRIB_LOCAL_COUNT",   "TRIB_LOCAL_RANK",   "TRIB_LOG",
    "TRIB_MODELS",      "TRIB_OP_TIMEOUT",    "TRIB_PEER_TIMEOUT", "TRIB_PARTITION_BYTES",
    "TRIB_PIN",         "TRIB_PULL_CREDIT",   "TRIB_PUSH_CREDIT",  "TRIB_RANK",
    "TRIB_REACTORS",    "TRIB_ROLE",          "TRIB_SERVERS",      "TRIB_SUM_ORDER",
    "TRIB_LOCAL_SUM",   "TRIB_TEST_DATA",     "TRIB_TOKEN",        "TRIB_TOKEN_FILE",
    "TRIB_TRACE",       "TRIB_TRACE_BYTES",   "TRIB_TRANSPORT",    "TRIB_WORKERS",
    "TRIB_SHARES",      "TRIB_GPU_DIRECT",
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many characters have to be put in, taken out or replaced to get from one to the other (Levenshtein). */
static size_t distance(const char *a, const char *b)
{
    const size_t length = strnlen(b, NAME_MAX_COMPARED);
    size_t row[NAME_MAX_COMPARED + 1];
    for (size_t j = 0; j <= length; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0' && i < NAME_MAX_COMPARED; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < length; j++) {
            const size_t replaced = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = least(replaced, least(row[j], diagonal) + 1);
        }
    }
    return row[length];
}

/* The only one that begins with it: TRIB_CHUNK for TRIB_CHUNK_BYTES. */
static const char *completed(const char *name)
{
    const char *best = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t length = strlen(name);
        if (strncmp(known[i], name, length) == 0 && known[i][length] == '_') {
            if (best != NULL) {
                return NULL;
            }
            best = known[i];
        }
    }
    return best;
}

/* NULL if none is near enough to be meant: a third of the letters after TRIB_ may be wrong. */
static const char *nearest(const char *name)
{
    const char *best = NULL;
    size_t least_yet = (strnlen(name, NAME_MAX_COMPARED) - strlen("TRIB_")) / 3 + 1;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t away = distance(name, known[i]);
        if (away <= least_yet && (best == NULL || away < least_yet)) {
            best = known[i];
            least_yet = away;
        }
    }
    return best;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i]) == 0) {
            return true;
        }
    }
    return false;
}

void trib_config_check_names(const trib_config *config)
{
    trib_logger logger = {
        .level = config->log_level, .cb = config->log_cb, .user = config->log_user, .prefix = "tributary"};
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const size_t length = strcspn(*at, "=");
        char name[128];
        if (strncmp(*at, "TRIB_", strlen("TRIB_")) != 0 || (*at)[length] == '\0' || (*at)[length + 1] == '\0') {
            continue; /* an empty one is as one that is not there */
        }
        snprintf(name, sizeof name, "%.*s", (int)length, *at);
        if (is_known(name)) {
            continue;
        }
        const char *begun = completed(name);
        const char *meant = begun != NULL ? begun : nearest(name);
        trib_log(&logger, TRIB_LOG_WARN, "%s is set, is no setting, and is ignored%s%s%s", name,
                 meant != NULL ? "; is " : "", meant != NULL ? meant : "", meant != NULL ? " meant?" : "");
    }
}
