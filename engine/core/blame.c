/*
 * blame.c - see blame.h. A member that ends because it has lost another says so as it goes. Its message may arrive
 * before the other member's own end is seen. That member is then not the lost one, but the one that reports it.
 */
#include "engine/core/blame.h"

#include <stdio.h>
#include <string.h>

#include "engine/core/core.h"

/* Stands before the name in a text that is about this process itself. */
#define SELF "this process, "

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), most = strlen(end);
    return length >= most && strcmp(text + length - most, end) == 0;
}

/* For a connection that was never made: no member was lost. The address is what is wrong, and only the peer's name
 * has been said elsewhere. */
static void never_made(const trib_link *link, const char *name, const char *reason, char text[TRIB_ERROR_TEXT_SIZE])
{
    static const char known[] = "cannot connect: "; /* a transport's error text */
    const char *why = strncmp(reason, known, strlen(known)) == 0 ? reason + strlen(known) : reason;
    const trib_roster *roster = link->core->engine->roster;
    const bool has_address = roster != NULL && link->peer < roster->member_count;
    const char *at = has_address ? roster->members[link->peer].addresses[link->peer_reactor].text : "?";
    snprintf(text, TRIB_ERROR_TEXT_SIZE, "could not connect to %s at %.*s: %.200s", name, (int)strcspn(at, "+,"), at,
             why);
}

void trib_blame_end(const trib_link *link, const char *direction, const char *name, const char *reason,
                    char text[TRIB_ERROR_TEXT_SIZE])
{
    if (link->end_status == TRIB_NO_MEMORY && !link->end_from_peer) {
        /* this process ran out of memory: no member was lost */
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", reason);
        return;
    }
    if (!link->end_from_peer && !link->proved && link->outgoing) {
        never_made(link, name, reason, text);
        return;
    }
    if (!link->end_from_peer) {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost the connection %s %s: %.200s", direction, name, reason);
        return;
    }
    char reported[TRIB_ERROR_TEXT_SIZE];
    trib_blame_self(link->core->engine, reason, reported);
    const bool is_its_own = name[0] != '\0' && strncmp(reported, name, strlen(name)) == 0;
    if (is_its_own || ends_with(reported, " says")) { /* about the peer itself, or its first reporter is named */
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", reported);
    } else {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.280s, as %s says", reported, name);
    }
}

const char *trib_blame_caller(const trib_roster *roster, uint32_t rank, char text[TRIB_MEMBER_NAME_MAX])
{
    snprintf(text, TRIB_MEMBER_NAME_MAX, "rank %u", rank);
    return roster != NULL ? trib_roster_name(roster, rank) : text;
}

const char *trib_blame_silence(int64_t silence_ns, char reason[TRIB_REASON_MAX])
{
    snprintf(reason, TRIB_REASON_MAX, "no sign of life for %.1f s (stopped, cut off, or its loop was kept busy)",
             (double)silence_ns / 1e9);
    return reason;
}

const char *trib_blame_control(const trib_link *link, const char *why, char reason[TRIB_REASON_MAX])
{
    const int64_t received_ns = link->last_received_ns, now_ns = trib_now(link->core->reactor);
    snprintf(reason, TRIB_REASON_MAX, "%.180s (last heard of %.1f s ago)", why, (double)(now_ns - received_ns) / 1e9);
    return reason;
}

/* Returns the name of the member that runs the coordinator; NULL if there is none, or the roster has not come. */
static const char *coordinator_name(const trib_roster *roster)
{
    for (uint32_t i = 0; roster != NULL && i < roster->member_count; i++) {
        if (roster->members[i].roles & TRIB_ROLE_COORDINATOR) {
            return trib_roster_name(roster, i);
        }
    }
    return NULL;
}

void trib_blame_coordinator(const trib_engine *engine, const char *reason, char text[TRIB_ERROR_TEXT_SIZE])
{
    const char *name = coordinator_name(engine->roster), *at = engine->coordinator_address;
    if (name != NULL) {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost %s, which keeps the membership at %.100s: %.150s", name, at, reason);
    } else {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost the coordinator, a process of its own at %.100s: %.200s", at,
                 reason);
    }
}

bool trib_blame_advises(const trib_engine *engine, const char *text)
{
    const char *name = coordinator_name(engine->roster);
    return engine->coordinator != NULL || strstr(text, name != NULL ? name : "lost the coordinator") != NULL;
}

void trib_blame_member(const char *name, trib_status status, const char *reported, char text[TRIB_ERROR_TEXT_SIZE])
{
    const bool is_its_own = status == TRIB_NO_MEMORY || status == TRIB_SYSTEM;
    if (is_its_own && strstr(reported, name) == NULL) {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s: %.300s", name, reported);
    } else {
        snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", reported);
    }
}

trib_status trib_blame_status(trib_status end_status)
{
    const bool is_everyones =
        end_status == TRIB_PEER_LEFT || end_status == TRIB_MISMATCH || end_status == TRIB_NO_MEMORY;
    return is_everyones ? end_status : TRIB_PEER_LOST;
}

/* Drops "this process" from a text: the peer that passed it on means itself, and the text has its name as well. */
static void drop_self(const char *reported, char text[TRIB_ERROR_TEXT_SIZE])
{
    const char *at = strstr(reported, SELF);
    const size_t before = at != NULL ? (size_t)(at - reported) : strlen(reported);
    snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.*s%s", (int)before, reported, at != NULL ? at + strlen(SELF) : "");
}

void trib_blame_self(const trib_engine *engine, const char *reported, char text[TRIB_ERROR_TEXT_SIZE])
{
    char plain[TRIB_ERROR_TEXT_SIZE];
    drop_self(reported, plain);
    const trib_roster *roster = engine->roster;
    const bool has_name = roster != NULL && engine->member_id < roster->member_count;
    const char *name = has_name ? trib_roster_name(roster, engine->member_id) : "";
    const char *at = name[0] != '\0' ? strstr(plain, name) : NULL;
    const size_t before = at != NULL ? (size_t)(at - plain) : 0;
    snprintf(text, TRIB_ERROR_TEXT_SIZE, "%.*s%s%s", (int)before, plain, at != NULL ? SELF : "", plain + before);
}
