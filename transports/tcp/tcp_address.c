/*
 * tcp_address.c - numeric addresses ("127.0.0.1:4242", "[::1]:4242") to socket addresses and back.
 *
 * An address may end with "+" and the name of another transport that its process offers (transports/auto/auto_rdma.h);
 * that part is skipped here.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/tcp/tcp_internal.h"

static bool parse_port(const char *text, in_port_t *port_out)
{
    unsigned port = 0;
    size_t digits = 0;
    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 5; digits++) {
        port = port * 10 + (unsigned)(text[digits] - '0');
    }
    if (digits == 0 || (text[digits] != '\0' && text[digits] != '+') || port > 65535) {
        return false;
    }
    *port_out = htons((uint16_t)port);
    return true;
}

trib_status trib_tcp_address_parse(const trib_address *address, struct sockaddr_storage *out, socklen_t *size_out)
{
    if (memchr(address->text, '\0', sizeof address->text) == NULL) {
        return TRIB_INVALID;
    }
    const char *colon = strrchr(address->text, ':');
    if (colon == NULL) {
        return TRIB_INVALID;
    }
    bool is_v6 = address->text[0] == '[';
    const char *host = address->text + (is_v6 ? 1 : 0);
    size_t host_size = (size_t)(colon - host);
    if (is_v6) {
        if (host_size == 0 || colon[-1] != ']') {
            return TRIB_INVALID;
        }
        host_size--;
    }
    char numeric[TRIB_ADDRESS_MAX];
    memcpy(numeric, host, host_size);
    numeric[host_size] = '\0';
    memset(out, 0, sizeof *out);
    if (is_v6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
        v6->sin6_family = AF_INET6;
        *size_out = sizeof *v6;
        bool good = inet_pton(AF_INET6, numeric, &v6->sin6_addr) == 1 && parse_port(colon + 1, &v6->sin6_port);
        return good ? TRIB_OK : TRIB_INVALID;
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    v4->sin_family = AF_INET;
    *size_out = sizeof *v4;
    bool good = inet_pton(AF_INET, numeric, &v4->sin_addr) == 1 && parse_port(colon + 1, &v4->sin_port);
    return good ? TRIB_OK : TRIB_INVALID;
}

_Static_assert(INET6_ADDRSTRLEN + sizeof "[]:65535" <= TRIB_ADDRESS_MAX, "every numeric address fits trib_address");

void trib_tcp_address_format(const struct sockaddr_storage *from, trib_address *out)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(out->text, sizeof out->text, "[%s]:%u", host, ntohs(v6->sin6_port));
        return;
    }
    trib_assert(from->ss_family == AF_INET);
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    snprintf(out->text, sizeof out->text, "%s:%u", host, ntohs(v4->sin_port));
}
