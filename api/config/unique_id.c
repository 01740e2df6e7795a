/* unique_id.c - makes and reads unique ids, and keeps the ports that they name: see unique_id.h. */
#include "api/config/unique_id.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "api/config/address.h"
#include "api/config/interfaces.h"
#include "api/config/settings.h"
#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/base/log.h"

/* The bytes of an id. All members run the same kind of machine, as wire.h demands, so numbers are as they lie. */
typedef struct layout {
    char magic[8];
    uint64_t number;
    unsigned char token[TRIB_UNIQUE_TOKEN_BYTES];
    char address[TRIB_ADDRESS_MAX];
    unsigned char zeros[TRIB_UNIQUE_ID_SIZE - 8 - 8 - TRIB_UNIQUE_TOKEN_BYTES - TRIB_ADDRESS_MAX - 8];
    uint64_t sum; /* checksum of all bytes before it */
} layout;
_Static_assert(sizeof(layout) == sizeof(trib_unique_id), "an id has these bytes and no others");

static const char magic[8] = {'T', 'R', 'I', 'B', 'U', 'I', 'D', '1'};

/* ---- Reservations ---- */

typedef enum place_state {
    PLACE_FREE,
    PLACE_FILLED, /* it is being filled, and no other thread reads it */
    PLACE_RESERVED,
    PLACE_TAKEN, /* the reservation belongs to an engine that is being created */
    PLACE_SPENT, /* an engine listens, or has listened, or none will; the place may be used again */
} place_state;

/* One reserved port. Places are never freed, so a list without a lock does: a child of fork can use it whatever the
 * other threads of its parent were doing. */
typedef struct place {
    _Atomic place_state state;
    _Atomic uint64_t number;
    int fd; /* the thread that made the state FILLED or TAKEN owns it */
    struct place *next;
} place;

static place *_Atomic places;

static bool move_place(place *at, place_state from, place_state to)
{
    return atomic_compare_exchange_strong(&at->state, &from, to);
}

static place *claim_place(void)
{
    for (place *at = atomic_load(&places); at != NULL; at = at->next) {
        if (move_place(at, PLACE_FREE, PLACE_FILLED)) {
            return at;
        }
    }
    for (place *at = atomic_load(&places); at != NULL; at = at->next) {
        if (move_place(at, PLACE_SPENT, PLACE_FILLED)) {
            return at;
        }
    }
    place *made = calloc(1, sizeof *made);
    if (made != NULL) {
        atomic_init(&made->state, PLACE_FILLED);
        made->next = atomic_load(&places);
        while (!atomic_compare_exchange_weak(&places, &made->next, made)) {}
    }
    return made;
}

static place *find_place(uint64_t number)
{
    place *at = atomic_load(&places);
    while (at != NULL && (atomic_load(&at->number) != number || atomic_load(&at->state) == PLACE_FREE)) {
        at = at->next;
    }
    return at;
}

trib_status trib_unique_id_take(uint64_t number, trib_error *error)
{
    place *at = find_place(number);
    if (at == NULL) {
        return trib_error_set(
            error, TRIB_INVALID,
            "unique_id: this process keeps the membership and has not made the id, so its port is not "
            "here; call trib_unique_id_create in the process of rank 0 (or of the coordinator)");
    }
    bool is_taken = move_place(at, PLACE_RESERVED, PLACE_TAKEN);
    if (is_taken && atomic_load(&at->number) != number) { /* released meanwhile, and another id has the place */
        is_taken = !move_place(at, PLACE_TAKEN, PLACE_RESERVED);
    }
    if (!is_taken) {
        return trib_error_set(
            error, TRIB_STATE,
            "unique_id: an engine of this process has it, or has had it, or it was released; make a new id "
            "for each job");
    }
    return TRIB_OK;
}

void trib_unique_id_settle(uint64_t number, bool listens)
{
    place *at = find_place(number);
    trib_assert(at != NULL && atomic_load(&at->state) == PLACE_TAKEN);
    if (listens) {
        close(at->fd);
    }
    const bool moved = move_place(at, PLACE_TAKEN, listens ? PLACE_SPENT : PLACE_RESERVED);
    trib_assert(moved);
}

/* Binds the address, whose port may be 0, and writes the one that it has got. -1 with errno. */
static int bind_port(const struct addrinfo *at, trib_address *bound_out)
{
    struct sockaddr_storage bound = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof bound;
    const int on = 1;
    char host[64], port[8];
    const int fd = trib_descriptor_keep(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&bound, &size) == 0) {
        getnameinfo((struct sockaddr *)&bound, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
        snprintf(bound_out->text, sizeof bound_out->text, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                 port);
        return fd;
    }
    if (fd >= 0) {
        const int code = errno;
        close(fd);
        errno = code;
    }
    return -1;
}

/* wanted: numeric addresses with ports; the first is taken. */
static trib_status reserve(const trib_address *wanted, trib_unique_id_content *content, trib_error *error)
{
    char host[TRIB_ADDRESS_MAX];
    snprintf(host, sizeof host, "%.*s", (int)strcspn(wanted->text, ","), wanted->text);
    char *colon = strrchr(host, ':');
    trib_assert(colon != NULL);
    *colon = '\0';
    const bool is_bracketed = host[0] == '[';
    host[strlen(host) - is_bracketed] = '\0';
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host + is_bracketed, colon + 1, &hints, &found) != 0) {
        return trib_error_set(error, TRIB_INVALID, "unique id: \"%s\" is no numeric address", wanted->text);
    }
    place *at = claim_place();
    const int fd = at != NULL ? bind_port(found, &content->address) : -1;
    const int code = errno;
    freeaddrinfo(found);
    if (at == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    if (fd < 0) {
        char why[TRIB_REASON_MAX];
        atomic_store(&at->state, PLACE_FREE);
        return trib_error_set(error, TRIB_SYSTEM,
                              "unique id: cannot reserve a port at %s: %s; the address must be one "
                              "of this machine's",
                              wanted->text, trib_log_reason(code, why));
    }
    at->fd = fd;
    atomic_store(&at->number, content->number);
    atomic_store(&at->state, PLACE_RESERVED);
    return TRIB_OK;
}

/* ---- The bytes ---- */

/* FNV-1a: it finds bytes that were cut off or damaged, and proves nothing. */
static uint64_t sum_of(const layout *bytes)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < offsetof(layout, sum); i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

trib_status trib_unique_id_read(const trib_unique_id *id, trib_unique_id_content *content_out, trib_error *error)
{
    layout bytes;
    memcpy(&bytes, id, sizeof bytes);
    if (memcmp(bytes.magic, magic, sizeof magic) != 0 || bytes.sum != sum_of(&bytes) ||
        memchr(bytes.address, '\0', sizeof bytes.address) == NULL) {
        return trib_error_set(error, TRIB_INVALID,
                              "unique_id: these %d bytes are not what trib_unique_id_create has made; all of them must "
                              "reach each member as they are",
                              TRIB_UNIQUE_ID_SIZE);
    }
    content_out->number = bytes.number;
    memcpy(content_out->address.text, bytes.address, sizeof bytes.address);
    sodium_bin2hex(content_out->token, sizeof content_out->token, bytes.token, sizeof bytes.token);
    sodium_memzero(&bytes, sizeof bytes);
    return TRIB_OK;
}

/* Resolves "host:port" of this machine, where the host may be an interface: of a pattern the first that matches. */
static trib_status resolve_here(const char *text, trib_address *wanted_out, trib_error *error)
{
    const char *colon = strrchr(text, ':');
    char word[TRIB_ADDRESS_MAX], host[TRIB_ADDRESS_MAX + 8];
    trib_address found;
    snprintf(word, sizeof word, "%.*s", colon != NULL ? (int)(colon - text) : 0, text);
    if (word[0] == '\0') {
        return trib_address_resolve(text, wanted_out, error);
    }
    if (trib_interfaces_expand(word, &found, NULL) != TRIB_OK) {
        trib_error why = {.status = TRIB_OK};
        const trib_status status = trib_address_resolve(text, wanted_out, &why);
        return status == TRIB_OK ? status : trib_error_set(error, status, "%.340s; no interface matches", why.text);
    }
    found.text[strcspn(found.text, ",")] = '\0';
    snprintf(host, sizeof host, strchr(found.text, ':') != NULL ? "[%s]%s" : "%s%s", found.text, colon);
    return trib_address_resolve(host, wanted_out, error);
}

/* Finds the address at which the coordinator shall listen, as far as the environment has it: "host:0". */
static trib_status choose_address(trib_address *wanted_out, trib_error *error)
{
    const char *listen = trib_setting_get("TRIB_LISTEN");
    listen = listen != NULL ? listen : trib_setting_get("TRIB_INTERFACE");
    const char *coordinator = trib_setting_get("TRIB_COORDINATOR");
    if (coordinator != NULL) {
        return resolve_here(coordinator, wanted_out, error);
    }
    trib_address found;
    const trib_status status =
        listen != NULL ? trib_interfaces_expand(listen, &found, error) : trib_interfaces_guess(&found, error);
    if (status == TRIB_OK) {
        found.text[strcspn(found.text, ",")] = '\0';
        snprintf(wanted_out->text, sizeof wanted_out->text, strchr(found.text, ':') != NULL ? "[%.150s]:0" : "%.150s:0",
                 found.text);
    }
    return status;
}

static trib_status create(const char *address, trib_unique_id *id_out, trib_error *error)
{
    trib_address wanted;
    trib_unique_id_content content;
    layout bytes = {.number = 0};
    trib_status status = address != NULL ? resolve_here(address, &wanted, error) : choose_address(&wanted, error);
    if (status != TRIB_OK) {
        return status == TRIB_JOIN_FAILED ? TRIB_INVALID : status;
    }
    if (trib_address_has_wildcard(wanted.text)) {
        return trib_error_set(error, TRIB_INVALID,
                              "unique id: %s leads to nobody: give an address of this machine that all members reach",
                              wanted.text);
    }
    if (sodium_init() < 0) {
        return trib_error_set(error, TRIB_SYSTEM, "unique id: no random bytes");
    }
    randombytes_buf(&content.number, sizeof content.number);
    randombytes_buf(bytes.token, sizeof bytes.token);
    status = reserve(&wanted, &content, error);
    if (status == TRIB_OK) {
        memcpy(bytes.magic, magic, sizeof magic);
        bytes.number = content.number;
        snprintf(bytes.address, sizeof bytes.address, "%s", content.address.text);
        bytes.sum = sum_of(&bytes);
        memcpy(id_out, &bytes, sizeof bytes);
    }
    sodium_memzero(bytes.token, sizeof bytes.token);
    return status;
}

static trib_status create_checked(const char *address, trib_unique_id *id_out, trib_error *error)
{
    trib_error why = {.status = TRIB_OK};
    trib_error_clear(error);
    if (id_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "id_out must not be NULL");
    }
    memset(id_out, 0, sizeof *id_out);
    const trib_status status = create(address, id_out, &why);
    return status == TRIB_OK ? status : trib_error_set(error, status, "%s", why.text);
}

trib_status trib_unique_id_create(trib_unique_id *id_out, trib_error *error)
{
    return create_checked(NULL, id_out, error);
}

trib_status trib_unique_id_create_at(const char *address, trib_unique_id *id_out, trib_error *error)
{
    if (address == NULL) {
        return trib_error_set(error, TRIB_INVALID, "address must not be NULL");
    }
    return create_checked(address, id_out, error);
}

void trib_unique_id_release(const trib_unique_id *id)
{
    trib_unique_id_content content = {.number = 0};
    if (id != NULL && trib_unique_id_read(id, &content, NULL) == TRIB_OK &&
        trib_unique_id_take(content.number, NULL) == TRIB_OK) {
        trib_unique_id_settle(content.number, true);
    }
    sodium_memzero(&content, sizeof content);
}
