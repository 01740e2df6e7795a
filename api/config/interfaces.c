/* interfaces.c - see interfaces.h. */
#include "api/config/interfaces.h"

#include <arpa/inet.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "api/config/address.h"

#define WORD_MAX 64

/* A function that takes a part of a list: `length` bytes at `text`. */
static bool copy_word(const char *text, size_t length, char word_out[WORD_MAX])
{
    snprintf(word_out, WORD_MAX, "%.*s", (int)length, text);
    return length > 0 && length < WORD_MAX;
}

static bool is_numeric(const char *word)
{
    unsigned char binary[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, word, binary) == 1 || inet_pton(AF_INET6, word, binary) == 1;
}

/* An address that others may be told: not link-local, which means something on its own link alone. */
static bool is_address(const struct ifaddrs *at, int family)
{
    const unsigned wanted = IFF_UP | IFF_RUNNING;
    if (at->ifa_addr == NULL || at->ifa_addr->sa_family != family || (at->ifa_flags & wanted) != wanted) {
        return false;
    }
    return family == AF_INET ||
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr);
}

/* The one address of its interface that is taken: the first of IPv4, else the first of IPv6. */
static bool is_the_one(const struct ifaddrs *interfaces, const struct ifaddrs *one)
{
    static const int families[] = {AF_INET, AF_INET6};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
            if (strcmp(at->ifa_name, one->ifa_name) == 0 && is_address(at, families[i])) {
                return at == one;
            }
        }
    }
    return false;
}

static bool matches(const struct ifaddrs *at, const char *pattern)
{
    const bool is_hidden = (at->ifa_flags & IFF_LOOPBACK) && pattern[0] != at->ifa_name[0];
    return !is_hidden && fnmatch(pattern, at->ifa_name, 0) == 0;
}

/* False: a part of the list excludes it. */
static bool is_allowed(const char *list, const struct ifaddrs *at)
{
    char word[WORD_MAX];
    for (const char *part = list;; part += strcspn(part, ",") + 1) {
        const size_t length = strcspn(part, ",");
        if (part[0] == '!' && copy_word(part + 1, length - 1, word) && fnmatch(word, at->ifa_name, 0) == 0) {
            return false;
        }
        if (part[length] == '\0') {
            return true;
        }
    }
}

static bool add(trib_address *list, const char *word)
{
    const size_t used = strlen(list->text);
    if (used + strlen(word) + 2 > sizeof list->text) {
        return false;
    }
    snprintf(list->text + used, sizeof list->text - used, "%s%s", used > 0 ? "," : "", word);
    return true;
}

static bool has(const trib_address *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *part = list->text; *part != '\0'; part += part[strcspn(part, ",")] == ',') {
        if (strcspn(part, ",") == length && strncmp(part, word, length) == 0) {
            return true;
        }
        part += strcspn(part, ",");
    }
    return false;
}

static trib_status refuse_length(const char *list, trib_error *error)
{
    return trib_error_set(error, TRIB_INVALID, "listen \"%.150s\": more addresses than there is room for; name fewer",
                          list);
}

static trib_status add_matching(const char *list, const char *pattern, const struct ifaddrs *interfaces,
                                trib_address *list_out, size_t *count, trib_error *error)
{
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        char host[WORD_MAX];
        if (!matches(at, pattern) || !is_allowed(list, at) || !is_the_one(interfaces, at)) {
            continue;
        }
        const socklen_t size =
            at->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        getnameinfo(at->ifa_addr, size, host, sizeof host, NULL, 0, NI_NUMERICHOST);
        ++*count;
        if (!has(list_out, host) && !add(list_out, host)) {
            return refuse_length(list, error);
        }
    }
    return TRIB_OK;
}

/* "lo eth0 (down) docker0", as far as there is room. */
static void list_interfaces(const struct ifaddrs *interfaces, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (const struct ifaddrs *at = interfaces; at != NULL && used < size; at = at->ifa_next) {
        const struct ifaddrs *first = interfaces;
        while (strcmp(first->ifa_name, at->ifa_name) != 0) {
            first = first->ifa_next;
        }
        bool has_address = false;
        for (const struct ifaddrs *other = interfaces; other != NULL; other = other->ifa_next) {
            has_address = has_address || (strcmp(other->ifa_name, at->ifa_name) == 0 && is_the_one(interfaces, other));
        }
        if (first == at) {
            const char *state = !(at->ifa_flags & IFF_UP) ? " (down)" : has_address ? "" : " (no address)";
            used += (size_t)snprintf(text + used, size - used, "%s%s%s", used > 0 ? ", " : "", at->ifa_name, state);
        }
    }
}

static trib_status refuse_word(const char *list, const char *word, const struct ifaddrs *interfaces, trib_error *error)
{
    char known[160];
    list_interfaces(interfaces, known, sizeof known);
    return trib_error_set(error, TRIB_INVALID,
                          "listen \"%.60s\": \"%.40s\" is neither a numeric address without a port nor an interface "
                          "with an address (TRIB_LISTEN, TRIB_INTERFACE, or trib_config.listen); there are: %s",
                          list, word, known);
}

static trib_status expand(const char *list, const struct ifaddrs *interfaces, trib_address *list_out, trib_error *error)
{
    bool only_excludes = true;
    trib_status status = TRIB_OK;
    size_t count = 0;
    for (const char *part = list; status == TRIB_OK; part += strcspn(part, ",") + 1) {
        char word[WORD_MAX];
        const size_t length = strcspn(part, ",");
        const bool fits = copy_word(part, length, word);
        if (fits && is_numeric(word)) {
            only_excludes = false;
            status = has(list_out, word) || add(list_out, word) ? TRIB_OK : refuse_length(list, error);
        } else if (!fits || word[0] != '!') {
            only_excludes = false;
            count = 0;
            status = fits ? add_matching(list, word, interfaces, list_out, &count, error) : TRIB_OK;
            status = status == TRIB_OK && count == 0 ? refuse_word(list, word, interfaces, error) : status;
        }
        if (part[length] == '\0') {
            break;
        }
    }
    if (status == TRIB_OK && only_excludes) {
        status = add_matching(list, "*", interfaces, list_out, &count, error);
        status = status == TRIB_OK && count == 0 ? refuse_word(list, list, interfaces, error) : status;
    }
    return status;
}

trib_status trib_interfaces_expand(const char *list, trib_address *list_out, trib_error *error)
{
    trib_address found = {.text = ""};
    struct ifaddrs *interfaces = NULL;
    if (getifaddrs(&interfaces) != 0) {
        return trib_error_set(error, TRIB_SYSTEM, "cannot list the network interfaces: %m");
    }
    const trib_status status = expand(list, interfaces, &found, error);
    freeifaddrs(interfaces);
    if (status == TRIB_OK) {
        *list_out = found;
    }
    return status;
}

trib_status trib_interfaces_guess(trib_address *address_out, trib_error *error)
{
    static const char others[] =
        "!docker*,!br-*,!veth*,!virbr*,!cni*,!flannel*,!cali*,!lxc*,!lxd*,!podman*,!tailscale*";
    struct ifaddrs *interfaces = NULL;
    if (getifaddrs(&interfaces) != 0) {
        return trib_error_set(error, TRIB_SYSTEM, "cannot list the network interfaces: %m");
    }
    trib_address found = {.text = ""};
    size_t count = 0;
    const trib_status added = add_matching(others, "*", interfaces, &found, &count, NULL);
    freeifaddrs(interfaces);
    (void)added; /* too many are no fault: one is enough */
    if (found.text[0] == '\0') {
        snprintf(found.text, sizeof found.text, "127.0.0.1");
    }
    found.text[strcspn(found.text, ",")] = '\0';
    *address_out = found;
    return TRIB_OK;
}
