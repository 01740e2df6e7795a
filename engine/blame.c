/*
 * blame.c - see blame.h.
 *
 * A member that ends because it has lost another says so as it goes, and may be heard before that other's own end is seen.
 * Then it is not the lost one, it tells of it.
 */
#include "engine/blame.h"

#include <stdio.h>
#include <string.h>

#include "engine/core.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), most = strlen(end);
    return length >= most && strcmp(text + length - most, end) == 0;
}

void trib_blame_end(const trib_link *link, const char *direction, const char *name, const char *reason,
                    char text[TRIB_ERROR_TEXT_SIZE])
{
    if (!link->end_is_told) {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost the connection %s %s: %.200s", direction, name, reason);
        return;
    }
    char told[TRIB_ERROR_TEXT_SIZE];
    trib_blame_self(link->core->engine, reason, told);
    if (ends_with(told, " says")) { /* it has been told itself: by whom first is what counts */
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", told);
    } else {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.280s, as %s says", told, name);
    }
}

void trib_blame_self(const trib_engine *engine, const char *told, char text[TRIB_ERROR_TEXT_SIZE])
{
    const trib_roster *roster = engine->roster;
    const bool has_name = roster != NULL && engine->member_id < roster->member_count;
    const char *name = has_name ? trib_roster_name(roster, engine->member_id) : "";
    const char *at = name[0] != '\0' ? strstr(told, name) : NULL;
    const size_t before = at != NULL ? (size_t)(at - told) : 0;
    snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.*s%s%s", (int)before, told, at != NULL ? "this process, " : "",
             told + before);
}
