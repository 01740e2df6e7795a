/* config_names.c - warns of variables of the environment that look like settings and are none: most likely a typing
 * error, which would otherwise leave a default in force without a word. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/config/settings.h"
#include "engine/base/log.h"

#define NAME_MAX_COMPARED 40u

/* Variables that the project's tests and tools read, and that are no settings. */
static const char *const other_names[] = {"TRIB_BUILD", "TRIB_TEST_DATA"};

#define NAMES_COUNT (trib_settings_count + sizeof other_names / sizeof other_names[0])

/* NULL for a setting without a variable. */
static const char *known_name(size_t i)
{
    return i < trib_settings_count ? trib_settings[i].variable : other_names[i - trib_settings_count];
}

static size_t smaller_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The characters that have to be put in, taken out or replaced to get from one to the other (Levenshtein). */
static size_t count_edits(const char *a, const char *b)
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
            row[j + 1] = smaller_of(replaced, smaller_of(row[j], diagonal) + 1);
        }
    }
    return row[length];
}

/* The only known name that begins with this one: TRIB_CHUNK_BYTES for TRIB_CHUNK. */
static const char *find_completion(const char *name)
{
    const char *best = NULL;
    const size_t length = strlen(name);
    for (size_t i = 0; i < NAMES_COUNT; i++) {
        const char *known = known_name(i);
        if (known != NULL && strncmp(known, name, length) == 0 && known[length] == '_') {
            if (best != NULL) {
                return NULL;
            }
            best = known;
        }
    }
    return best;
}

/* NULL if none is near enough to be meant: a third of the letters after TRIB_ may be wrong. */
static const char *find_nearest(const char *name)
{
    const char *best = NULL;
    size_t least_yet = (strnlen(name, NAME_MAX_COMPARED) - strlen("TRIB_")) / 3 + 1;
    for (size_t i = 0; i < NAMES_COUNT; i++) {
        const char *known = known_name(i);
        const size_t edits = known != NULL ? count_edits(name, known) : SIZE_MAX;
        if (edits <= least_yet && (best == NULL || edits < least_yet)) {
            best = known;
            least_yet = edits;
        }
    }
    return best;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < NAMES_COUNT; i++) {
        const char *known = known_name(i);
        if (known != NULL && strcmp(name, known) == 0) {
            return true;
        }
    }
    return false;
}

void trib_config_warn_of_unknown_names(const trib_config *config)
{
    trib_logger logger = {
        .level = config->log_level, .cb = config->log_cb, .user = config->log_user, .prefix = "tributary"};
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const size_t length = strcspn(*at, "=");
        char name[128];
        if (strncmp(*at, "TRIB_", strlen("TRIB_")) != 0 || (*at)[length] == '\0' || (*at)[length + 1] == '\0') {
            continue; /* an empty variable counts as unset */
        }
        snprintf(name, sizeof name, "%.*s", (int)length, *at);
        if (is_known(name)) {
            continue;
        }
        const char *begun = find_completion(name);
        const char *meant = begun != NULL ? begun : find_nearest(name);
        trib_log(&logger, TRIB_LOG_WARN, "%s is set, is no setting, and is ignored%s%s%s", name,
                 meant != NULL ? "; is " : "", meant != NULL ? meant : "", meant != NULL ? " meant?" : "");
    }
}
