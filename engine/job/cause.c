/*
 * cause.c - see cause.h.
 *
 * The subject comes first in a text: a reader sees whom to look at before reading who found it.
 */
#include "engine/job/cause.h"

#include <stdio.h>

#include "engine/base/assert.h"

#define NS_PER_S 1e9
#define NAME_SIZE (TRIB_MEMBER_NAME_MAX + 96)
_Static_assert(TRIB_ERROR_TEXT_SIZE > NAME_SIZE + sizeof ", as  says", "a text has room for the origin's name");

static bool is_coordinator(const trib_roster *roster, uint32_t member)
{
    return roster != NULL && member < roster->member_count &&
           (roster->members[member].roles & TRIB_ROLE_COORDINATOR) != 0;
}

/* Returns the member that coordinates; TRIB_NO_MEMBER if none does or the roster has not arrived. */
static uint32_t find_coordinator(const trib_roster *roster)
{
    for (uint32_t i = 0; roster != NULL && i < roster->member_count; i++) {
        if (is_coordinator(roster, i)) {
            return i;
        }
    }
    return TRIB_NO_MEMBER;
}

bool trib_cause_is_about_coordinator(const trib_cause *cause, const trib_roster *roster)
{
    return cause->subject_kind == TRIB_SUBJECT_COORDINATOR ||
           (cause->subject_kind == TRIB_SUBJECT_MEMBER && is_coordinator(roster, cause->subject));
}

static void name_member(const trib_cause_reader *reader, uint32_t member, char name[NAME_SIZE])
{
    const bool is_worker = member < reader->worker_count,
               is_reader = member == reader->member && member != TRIB_NO_MEMBER;
    if (reader->roster != NULL) {
        snprintf(name, NAME_SIZE, "%s%s", is_reader ? "this process, " : "", trib_roster_name(reader->roster, member));
    } else if (is_reader) {
        snprintf(name, NAME_SIZE, "this process");
    } else {
        snprintf(name, NAME_SIZE, "%s %u", is_worker ? "rank" : "server",
                 is_worker ? member : member - reader->worker_count);
    }
}

static void name_coordinator(const trib_cause_reader *reader, char name[NAME_SIZE])
{
    const uint32_t member = find_coordinator(reader->roster);
    if (member == TRIB_NO_MEMBER) {
        snprintf(name, NAME_SIZE, "the coordinator%s at %.80s", reader->roster != NULL ? ", a process of its own" : "",
                 reader->coordinator_address);
        return;
    }
    char itself[NAME_SIZE];
    name_member(reader, member, itself);
    snprintf(name, NAME_SIZE, "%.70s, which keeps the membership at %.60s", itself, reader->coordinator_address);
}

/* Returns the name for use in a sentence. A process that reports about itself appears by name, not as "this
 * process". */
static const char *name_subject(const trib_cause *cause, const trib_cause_reader *reader, char name[NAME_SIZE])
{
    if (cause->subject_kind == TRIB_SUBJECT_MEMBER) {
        const bool is_speaker = cause->origin == cause->subject && reader->roster != NULL;
        trib_cause_reader plain = *reader;
        plain.member = is_speaker ? TRIB_NO_MEMBER : reader->member;
        name_member(&plain, cause->subject, name);
    } else if (cause->subject_kind == TRIB_SUBJECT_COORDINATOR) {
        name_coordinator(reader, name);
    } else {
        snprintf(name, NAME_SIZE, "an unknown process");
    }
    return name;
}

static bool is_own(const trib_cause *cause, const trib_cause_reader *reader)
{
    return cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject == reader->member;
}

static int render_kind(const trib_cause *cause, const trib_cause_reader *reader, const char *name, char *text)
{
    const char *detail = cause->detail;
    const double silence_s = (double)cause->silence_ns / NS_PER_S;
    const bool ends_a_clause = cause->subject_kind == TRIB_SUBJECT_COORDINATOR && reader->roster != NULL;
    switch (cause->kind) {
    case TRIB_CAUSE_CONNECTION_LOST:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost the connection to %s: %s", name, detail);
    case TRIB_CAUSE_NOT_CONNECTED:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE, "could not connect to %s at %s", name, detail);
    case TRIB_CAUSE_MEMBER_LOST:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE, "lost %s: %s (last heard of %.1f s ago)", name, detail, silence_s);
    case TRIB_CAUSE_SILENT:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE,
                        "lost %s: no sign of life for %.1f s (stopped, cut off, or kept busy by a callback, which its "
                        "log names)",
                        name, silence_s);
    case TRIB_CAUSE_LEFT:
    case TRIB_CAUSE_SHORTAGE:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s%s %s", name, ends_a_clause ? "," : "", detail);
    case TRIB_CAUSE_TROUBLE:
        return is_own(cause, reader) ? snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", detail)
                                     : snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s: %s", name, detail);
    case TRIB_CAUSE_DEAF:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE,
                        "lost %s: it hears nothing from members that others hear (it reported: %s)", name, detail);
    case TRIB_CAUSE_NOTE:
        return snprintf(text, TRIB_ERROR_TEXT_SIZE, "%s", detail);
    case TRIB_CAUSE_KIND_COUNT:
    default:
        trib_unreachable();
    }
}

/* Returns true if the text must name the origin: a member other than the subject and the reader. */
static bool is_hearsay(const trib_cause *cause, const trib_cause_reader *reader)
{
    const bool of_itself = cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject == cause->origin;
    return cause->origin != TRIB_NO_MEMBER && cause->origin != reader->member && !of_itself;
}

void trib_cause_render(const trib_cause *cause, const trib_cause_reader *reader, char text[TRIB_ERROR_TEXT_SIZE])
{
    char name[NAME_SIZE];
    const int length = render_kind(cause, reader, name_subject(cause, reader, name), text);
    trib_assert(length >= 0);
    if (is_hearsay(cause, reader)) {
        name_member(reader, cause->origin, name);
        /* A long detail is cut to leave room for the origin's name. */
        const size_t most = TRIB_ERROR_TEXT_SIZE - sizeof ", as  says" - NAME_SIZE;
        const size_t at = (size_t)length < most ? (size_t)length : most;
        snprintf(text + at, TRIB_ERROR_TEXT_SIZE - at, ", as %s says", name);
    }
}
