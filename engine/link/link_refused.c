/* link_refused.c - see link_refused.h. */
#include "engine/link/link_refused.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/reactor/reactor.h"

#define MINUTE_NS (60 * INT64_C(1000000000))
#define LINES_MAX 20u       /* lines of a kind in a minute */
#define LINES_OF_ONE_MAX 5u /* lines of an address */

static const struct {
    trib_log_level level;
    const char *what, *names;
} lines_of[TRIB_REFUSAL_COUNT] = {
    [TRIB_REFUSAL_STRANGER] = {TRIB_LOG_WARN, "turned away", "strangers"},
    [TRIB_REFUSAL_GONE] = {TRIB_LOG_INFO, "gone in the handshake:", "peers"},
    [TRIB_REFUSAL_TOKEN] = {TRIB_LOG_WARN, "turned away", "with another token or job name"},
    [TRIB_REFUSAL_MEMBER] = {TRIB_LOG_WARN, "turned away", "that have the token and are no member"},
};

/* Returns the address's counts; NULL if others have all places. */
static trib_refused_address *find_address(trib_refused_lines *lines, const char *address)
{
    char host[sizeof lines->addresses[0].host];
    const char *colon = strrchr(address, ':');
    snprintf(host, sizeof host, "%.*s", colon != NULL ? (int)(colon - address) : (int)strlen(address), address);
    for (uint32_t i = 0; i < TRIB_REFUSAL_ADDRESSES_MAX; i++) {
        trib_refused_address *at = &lines->addresses[i];
        if (at->host[0] == '\0') {
            memcpy(at->host, host, sizeof host);
        }
        if (strcmp(at->host, host) == 0) {
            return at;
        }
    }
    return NULL;
}

static void sum_up(const trib_reactor *reactor, trib_refused_lines *lines, trib_refusal kind)
{
    char from[TRIB_REASON_MAX] = "";
    uint32_t named = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < TRIB_REFUSAL_ADDRESSES_MAX; i++) {
        const trib_refused_address *at = &lines->addresses[i];
        if (at->unlogged > 0) {
            const int length = snprintf(from + used, sizeof from - used, "%s%u from %.40s", used > 0 ? ", " : "",
                                        at->unlogged, at->host);
            trib_assert(length > 0 && (size_t)length < sizeof from - used);
            used += (size_t)length;
            named += at->unlogged;
        }
    }
    trib_assert(named <= lines->unlogged);
    if (named < lines->unlogged) {
        snprintf(from + used, sizeof from - used, "%s%u from elsewhere", used > 0 ? ", " : "", lines->unlogged - named);
    }
    trib_log(reactor->logger, lines_of[kind].level, "%s %u more %s: %s; the last one: %s", lines_of[kind].what,
             lines->unlogged, lines_of[kind].names, from, lines->last);
}

void trib_refused_report(trib_refused *self, const trib_reactor *reactor, int64_t now_ns, bool now)
{
    for (uint32_t kind = 0; kind < TRIB_REFUSAL_COUNT; kind++) {
        trib_refused_lines *lines = &self->kinds[kind];
        if (lines->unlogged > 0 && (now || now_ns - lines->since_ns >= MINUTE_NS)) {
            sum_up(reactor, lines, (trib_refusal)kind);
            lines->unlogged = 0;
            for (uint32_t i = 0; i < TRIB_REFUSAL_ADDRESSES_MAX; i++) {
                lines->addresses[i].unlogged = 0;
            }
        }
    }
}

void trib_refused_note(trib_refused *self, const trib_reactor *reactor, int64_t now_ns, trib_refusal kind,
                       const char *address, const char *reason)
{
    trib_refused_lines *lines = &self->kinds[kind];
    trib_assert(kind < TRIB_REFUSAL_COUNT);
    trib_refused_report(self, reactor, now_ns, false);
    if (lines->since_ns == 0 || now_ns - lines->since_ns >= MINUTE_NS) {
        *lines = (trib_refused_lines){.since_ns = now_ns};
    }
    snprintf(lines->last, sizeof lines->last, "%.80s: %.170s", address, reason);
    if (kind != TRIB_REFUSAL_GONE) {
        memcpy(self->last_member, lines->last, sizeof self->last_member);
    }
    trib_refused_address *from = find_address(lines, address);
    if (lines->logged < LINES_MAX && (from == NULL || from->logged < LINES_OF_ONE_MAX)) {
        lines->logged++;
        if (from != NULL) {
            from->logged++;
        }
        trib_log(reactor->logger, lines_of[kind].level, "%s %s", lines_of[kind].what, lines->last);
        return;
    }
    lines->unlogged++;
    if (from != NULL) {
        from->unlogged++;
    }
}
