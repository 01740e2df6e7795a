/* interface.c - see interface.h. */
#include "api/env/interface.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define LAYERS_MAX 8 /* of interfaces over interfaces */
#define FOLDER_MAX 256

typedef struct numeric {
    int family;
    unsigned char bytes[sizeof(struct in6_addr)];
} numeric;

static bool parse_address(const char *text, size_t length, numeric *address_out)
{
    char host[INET6_ADDRSTRLEN];
    const bool bracketed = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    text += bracketed;
    length -= bracketed ? 2 : 0;
    if (length >= sizeof host) {
        return false;
    }
    memcpy(host, text, length);
    host[length] = '\0';
    address_out->family = strchr(host, ':') != NULL ? AF_INET6 : AF_INET;
    return inet_pton(address_out->family, host, address_out->bytes) == 1;
}

static bool is_same_address(const struct sockaddr *at, const numeric *address)
{
    if (at == NULL || at->sa_family != address->family) {
        return false;
    }
    return at->sa_family == AF_INET ? memcmp(&((const struct sockaddr_in *)(const void *)at)->sin_addr, address->bytes,
                                             sizeof(struct in_addr)) == 0
                                    : memcmp(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr,
                                             address->bytes, sizeof(struct in6_addr)) == 0;
}

bool trib_interface_find(const char *text, size_t length, char name_out[IF_NAMESIZE])
{
    numeric address;
    struct ifaddrs *list = NULL;
    if (!parse_address(text, length, &address) || getifaddrs(&list) != 0) {
        return false;
    }
    const struct ifaddrs *at = list;
    while (at != NULL && !is_same_address(at->ifa_addr, &address)) {
        at = at->ifa_next;
    }
    if (at != NULL) {
        snprintf(name_out, IF_NAMESIZE, "%s", at->ifa_name);
    }
    freeifaddrs(list);
    return at != NULL;
}

/* Replaces name by the first, in order of names, of the interfaces below it; false: there is none. */
static bool descend_once(const char *folder, char name[IF_NAMESIZE])
{
    static const char prefix[] = "lower_";
    char path[FOLDER_MAX + IF_NAMESIZE];
    char best[IF_NAMESIZE] = "";
    snprintf(path, sizeof path, "%.*s/%s", FOLDER_MAX - 2, folder, name);
    DIR *entries = opendir(path);
    if (entries == NULL) {
        return false;
    }
    for (const struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        const char *lower = entry->d_name + sizeof prefix - 1;
        const bool is_one = strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0 && strlen(lower) < IF_NAMESIZE;
        if (is_one && (best[0] == '\0' || strcmp(lower, best) < 0)) {
            memcpy(best, lower, strlen(lower) + 1);
        }
    }
    closedir(entries);
    if (best[0] != '\0') {
        memcpy(name, best, sizeof best);
    }
    return best[0] != '\0';
}

void trib_interface_descend(const char *folder, char name[IF_NAMESIZE])
{
    for (int layer = 0; layer < LAYERS_MAX && descend_once(folder, name); layer++) {}
}
