/* address_list.c - compares and walks comma-separated lists of hosts (address_list.h). */
#include "engine/wire/address_list.h"

#include <stdio.h>
#include <string.h>

/* The host without brackets or port. A text without brackets and with several colons is an IPv6 address without a
 * port. */
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

/* Compares numbers by value, so that the hosts of one network come before those of the next (link_subflow.h). */
static int compare(const char *one, size_t length, const char *other, size_t other_length)
{
    size_t same = 0, number = 0; /* the length of the common beginning, and where its last number begins */
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

/* The next host of the list, or NULL after the last. Empty entries do not count. */
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

/* The machine of a list: its least host. A simulated host names its machine before a slash, as in "m0/n1". */
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

size_t trib_address_list_count(const char *list)
{
    size_t count = 1;
    for (const char *at = after(list); at != NULL; at = after(at)) {
        count++;
    }
    return count;
}

const char *trib_address_list_at(const char *list, size_t index)
{
    const char *found = list;
    for (size_t skip = index % trib_address_list_count(list); skip > 0; skip--) {
        found = after(found);
    }
    return found;
}

void trib_address_list_copy(const char *list, size_t index, char *entry_out, size_t size)
{
    const char *at = trib_address_list_at(list, index);
    snprintf(entry_out, size, "%.*s", (int)strcspn(at, ","), at);
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

bool trib_address_list_leaves_port(const char *list)
{
    for (const char *at = list; at != NULL && (at = strchr(at, ':')) != NULL; at++) {
        const size_t zeros = strspn(at + 1, "0");
        if (zeros > 0 && (at[1 + zeros] == '\0' || at[1 + zeros] == ',')) {
            return true;
        }
    }
    return false;
}

void trib_address_list_strip_offers(char *list)
{
    for (char *offer; (offer = strchr(list, '+')) != NULL;) {
        const size_t size = strcspn(offer, ",");
        memmove(offer, offer + size, strlen(offer + size) + 1);
    }
}
