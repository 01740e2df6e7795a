/* address_list.c - see address_list.h. */
#include "engine/wire/address_list.h"

#include <string.h>

/* The host without brackets. Where there are none, but several colons, no port follows: it is an IPv6 address. */
static size_t host_of(const char *text, const char **begin_out)
{
    *begin_out = text;
    if (text[0] == '[') {
        *begin_out = text + 1;
        return strcspn(text + 1, "],");
    }
    const size_t length = strcspn(text, ",");
    const char *colon = memchr(text, ':', length);
    const bool has_port = colon != NULL && memrchr(text, ':', length) == colon;
    return has_port ? (size_t)(colon - text) : length;
}

static size_t digits_of(const char *text, size_t length)
{
    size_t count = 0;
    while (count < length && text[count] >= '0' && text[count] <= '9') {
        count++;
    }
    return count;
}

/* Numbers by their values: of two networks the hosts of one come before all of the other's (link_subflow.h). */
static int compare(const char *one, size_t length, const char *other, size_t other_length)
{
    size_t same = 0, number = 0; /* what both begin with, and where in it the last number begins */
    while (same < length && same < other_length && one[same] == other[same]) {
        same++;
        number = digits_of(one + same - 1, 1) == 1 ? number : same;
    }
    const size_t digits = digits_of(one + number, length - number);
    const size_t other_digits = digits_of(other + number, other_length - number);
    if (digits != other_digits && digits > 0 && other_digits > 0) {
        return digits < other_digits ? -1 : 1;
    }
    if (same == length || same == other_length) {
        return (length > other_length) - (length < other_length);
    }
    return (unsigned char)one[same] - (unsigned char)other[same];
}

int trib_address_list_compare(const char *one, const char *other)
{
    const size_t length = host_of(one, &one), other_length = host_of(other, &other);
    return compare(one, length, other, other_length);
}

/* NULL after the last. What is empty is none. */
static const char *after(const char *at)
{
    at += strcspn(at, ",");
    at += strspn(at, ",");
    return *at != '\0' ? at : NULL;
}

const char *trib_address_list_least(const char *list)
{
    const char *least = list;
    for (const char *at = after(list); at != NULL; at = after(at)) {
        least = trib_address_list_compare(at, least) < 0 ? at : least;
    }
    return least;
}

/* A simulated host has its machine before a slash: "m0/n1". */
static size_t machine_of(const char *list, const char **begin_out)
{
    const size_t length = host_of(trib_address_list_least(list), begin_out);
    const char *slash = memchr(*begin_out, '/', length);
    return slash != NULL ? (size_t)(slash - *begin_out) : length;
}

int trib_address_list_compare_machines(const char *one, const char *other)
{
    const size_t length = machine_of(one, &one), other_length = machine_of(other, &other);
    return compare(one, length, other, other_length);
}

const char *trib_address_list_at(const char *list, size_t index)
{
    size_t count = 1;
    for (const char *at = after(list); at != NULL; at = after(at)) {
        count++;
    }
    const char *found = list;
    for (size_t skip = index % count; skip > 0; skip--) {
        found = after(found);
    }
    return found;
}

const char *trib_address_list_next(const char *list, const char *own, const char *previous)
{
    if (previous == NULL) {
        return own;
    }
    const char *next = NULL;
    for (const char *at = list; at != NULL; at = after(at)) {
        const bool is_left =
            trib_address_list_compare(at, own) != 0 && (previous == own || trib_address_list_compare(at, previous) > 0);
        if (is_left && (next == NULL || trib_address_list_compare(at, next) < 0)) {
            next = at;
        }
    }
    return next;
}
