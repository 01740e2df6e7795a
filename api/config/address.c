/* address.c - resolves the coordinator's address and finds the local one that leads to it. */
#include "api/config/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"

#define DIGITS "0123456789"

static trib_status split_address(const char *text, char *host, size_t host_size, char *port, size_t port_size)
{
    const char *colon = strrchr(text, ':');
    const char *begin = text, *end = colon;
    if (colon == NULL || colon[1] == '\0') {
        return TRIB_INVALID;
    }
    if (text[0] == '[') {
        begin = text + 1;
        end = strchr(text, ']');
        if (end == NULL || end + 1 != colon) {
            return TRIB_INVALID;
        }
    }
    if ((size_t)(end - begin) >= host_size || strlen(colon + 1) >= port_size || end == begin) {
        return TRIB_INVALID;
    }
    snprintf(host, host_size, "%.*s", (int)(end - begin), begin);
    snprintf(port, port_size, "%s", colon + 1);
    return TRIB_OK;
}

/* False for a text that no resolver will ever know, such as a mistyped address: labels of host names consist of
 * letters, digits, hyphens and underscores, and the last is not a number. */
static bool is_host_name(const char *host)
{
    for (const char *label = host;;) {
        const size_t length = strspn(label, DIGITS "-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
        if (length == 0 || length > 63 || (label[length] != '.' && label[length] != '\0')) {
            return false;
        }
        if (label[length] == '\0' || label[length + 1] == '\0') { /* a last dot is the root's */
            return strspn(label, DIGITS) < length;
        }
        label += length + 1;
    }
}

/* True if trying again may help: an unknown name may be registered soon, and a DNS server may answer again. */
static bool is_worth_retrying(int code, const char *host)
{
    return (code == EAI_AGAIN || code == EAI_NONAME || code == EAI_NODATA || code == EAI_FAIL) && is_host_name(host);
}

static trib_status resolve(const char *text, int flags, struct addrinfo **found, trib_error *error)
{
    char host[256], port[8];
    if (split_address(text, host, sizeof host, port, sizeof port) != TRIB_OK) {
        return trib_error_set(error, TRIB_INVALID, "\"%s\" is not host:port or [address]:port", text);
    }
    /* getaddrinfo would keep the low 16 bits and say nothing. */
    if (strspn(port, DIGITS) != strlen(port)) {
        return trib_error_set(error, TRIB_INVALID, "address \"%s\": its port is no number", text);
    }
    if (strtoul(port, NULL, 10) > 65535) {
        return trib_error_set(error, TRIB_INVALID, "address \"%s\": a port is at most 65535", text);
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int code = getaddrinfo(host, port, &hints, found);
    if (code != 0) {
        const trib_status status = is_worth_retrying(code, host) ? TRIB_JOIN_FAILED : TRIB_INVALID;
        return trib_error_set(error, status, "address \"%s\": %s%s", text, gai_strerror(code),
                              status == TRIB_INVALID ? "" : " (this machine's /etc/hosts or DNS must know it)");
    }
    return TRIB_OK;
}

static void format_address(const struct sockaddr *address, socklen_t length, bool with_port, trib_address *out)
{
    char host[64], port[8];
    getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (!with_port) {
        snprintf(out->text, sizeof out->text, "%s", host);
    } else {
        snprintf(out->text, sizeof out->text, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    }
}

/* A name may have addresses of which some do not work from here, and the resolver does not know which. So all are
 * listed, as many as there is room for. */
static trib_status resolve_one(const char *text, trib_address *address_out, trib_error *error)
{
    struct addrinfo *found = NULL;
    trib_status status = resolve(text, 0, &found, error);
    if (status != TRIB_OK) {
        return status;
    }
    size_t used = 0;
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        trib_address one;
        format_address(at->ai_addr, at->ai_addrlen, true, &one);
        const bool is_known = used > 0 && strstr(address_out->text, one.text) != NULL;
        if (!is_known && used + strlen(one.text) + 2 < sizeof address_out->text / 2) {
            used += (size_t)snprintf(address_out->text + used, sizeof address_out->text - used, "%s%s",
                                     used > 0 ? "," : "", one.text);
        }
    }
    trib_assert(used > 0);
    freeaddrinfo(found);
    return TRIB_OK;
}

static trib_status find_local_for_one(const char *remote, trib_address *local_out, trib_error *error)
{
    struct addrinfo *found = NULL;
    trib_status status = resolve(remote, AI_NUMERICHOST, &found, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_assert(found != NULL);
    /* Connecting a datagram socket sends nothing; it only asks the routing table. */
    struct sockaddr_storage local;
    socklen_t length = sizeof local;
    int fd = trib_descriptor_keep(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        getsockname(fd, (struct sockaddr *)&local, &length) != 0) {
        status = trib_error_set(error, TRIB_SYSTEM, "no route to the coordinator at %s: %m", remote);
    } else {
        format_address((struct sockaddr *)&local, length, false, local_out);
    }
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(found);
    return status;
}

typedef trib_status (*each_function)(const char *text, trib_address *address_out, trib_error *error);

static bool is_in_list(const char *list, const char *one)
{
    const size_t length = strlen(one);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strcspn(at, ",") == length && strncmp(at, one, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Calls the function for each address of the list and joins the different the results. any: one success is enough. */
static trib_status convert_each(const char *list, each_function function, bool any, trib_address *list_out,
                                trib_error *error)
{
    trib_address joined = {.text = ""};
    trib_status status = TRIB_OK;
    for (const char *at = list; status == TRIB_OK || any; at += strcspn(at, ",") + 1) {
        const size_t length = strcspn(at, ","), used = strlen(joined.text);
        char text[300];
        trib_address one;
        snprintf(text, sizeof text, "%.*s", (int)length, at);
        status = function(text, &one, error);
        if (status == TRIB_OK && used + strlen(one.text) + 2 > sizeof joined.text) {
            return trib_error_set(error, TRIB_INVALID, "\"%.200s\" has more addresses than there is room for", list);
        }
        if (status == TRIB_OK && !is_in_list(joined.text, one.text)) {
            snprintf(joined.text + used, sizeof joined.text - used, "%s%s", used > 0 ? "," : "", one.text);
        }
        if (at[length] == '\0') {
            break;
        }
    }
    if (any ? joined.text[0] == '\0' : status != TRIB_OK) {
        return status;
    }
    *list_out = joined;
    return TRIB_OK;
}

trib_status trib_address_resolve(const char *text, trib_address *address_out, trib_error *error)
{
    return convert_each(text, resolve_one, false, address_out, error);
}

trib_status trib_address_local(const trib_address *remote, trib_address *local_out, trib_error *error)
{
    return convert_each(remote->text, find_local_for_one, true, local_out, error);
}

bool trib_address_is_loopback(const char *list)
{
    bool is_loopback = true;
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        const size_t length = strcspn(at, ",");
        is_loopback = is_loopback && (strncmp(at, "127.", 4) == 0 || strncmp(at, "[::1]", 5) == 0 ||
                                      (length == 3 && strncmp(at, "::1", 3) == 0));
    }
    return is_loopback;
}

bool trib_address_has_wildcard(const char *list)
{
    static const unsigned char mapped[sizeof(struct in6_addr)] = {[10] = 0xff, [11] = 0xff};
    for (const char *at = list;; at += strcspn(at, ",") + 1) {
        char host[64];
        struct in_addr v4;
        struct in6_addr v6;
        /* "[v6]:port", "v6", "v4:port" or "v4": the port of a v4 is cut off. */
        const size_t bracket = at[0] == '[';
        snprintf(host, sizeof host, "%.*s", (int)strcspn(at + bracket, "],"), at + bracket);
        char *colon = strchr(host, ':');
        if (bracket == 0 && colon != NULL && strchr(colon + 1, ':') == NULL) {
            *colon = '\0';
        }
        if ((inet_pton(AF_INET, host, &v4) == 1 && v4.s_addr == htonl(INADDR_ANY)) ||
            (inet_pton(AF_INET6, host, &v6) == 1 &&
             (IN6_IS_ADDR_UNSPECIFIED(&v6) || memcmp(&v6, mapped, sizeof mapped) == 0))) {
            return true;
        }
        if (at[strcspn(at, ",")] == '\0') {
            return false;
        }
    }
}
