/* store_load.c - see store_load.h. */
#include "api/env/store_load.h"

#include <stdio.h>
#include <string.h>

#include "api/config/address.h"
#include "api/config/interfaces.h"
#include "api/env/store_etcd.h"
#include "engine/wire/address_list.h"

#define HOSTS_MAX 512

static const char scheme[] = "etcd://";

static trib_status refuse(const char *text, const char *why, trib_error *error)
{
    return trib_error_set(error, TRIB_INVALID, "store \"%.160s\" (TRIB_STORE, or trib_config.store): %s", text, why);
}

/* Takes "etcd://host:port,host:port/prefix" apart. */
static trib_status parse(const char *text, char hosts_out[HOSTS_MAX], char prefix_out[TRIB_STORE_TEXT_MAX],
                         trib_error *error)
{
    const size_t length = sizeof scheme - 1;
    if (strncmp(text, scheme, length) != 0) {
        return refuse(text, "etcd is the only store: etcd://host:port/prefix", error);
    }
    const char *hosts = text + length, *slash = strchr(hosts, '/');
    const size_t size = slash != NULL ? (size_t)(slash - hosts) : strlen(hosts);
    if (size == 0 || size >= HOSTS_MAX || memchr(hosts, '@', size) != NULL || memchr(hosts, ':', size) == NULL) {
        return refuse(text, "it must name hosts with ports: etcd://host:port/prefix", error);
    }
    const char *prefix = slash != NULL && slash[1] != '\0' ? slash : "/tributary";
    if (strlen(prefix) >= TRIB_STORE_TEXT_MAX) {
        return refuse(text, "the prefix is too long", error);
    }
    snprintf(hosts_out, HOSTS_MAX, "%.*s", (int)size, hosts);
    snprintf(prefix_out, TRIB_STORE_TEXT_MAX, "%s", prefix);
    return TRIB_OK;
}

trib_status trib_store_seek(trib_config *config, trib_address *coordinator, trib_address *listen, trib_error *error)
{
    char hosts[HOSTS_MAX], prefix[TRIB_STORE_TEXT_MAX], host[128];
    trib_address store;
    trib_status status = parse(config->store, hosts, prefix, error);
    if (status == TRIB_OK && config->listen != NULL) {
        status = trib_interfaces_expand(config->listen, listen, error);
    } else if (status == TRIB_OK && config->token == NULL) {
        snprintf(listen->text, sizeof listen->text, "127.0.0.1");
    } else if (status == TRIB_OK) {
        status = TRIB_INVALID;
        for (size_t i = 0; status != TRIB_OK && i < trib_address_list_count(hosts);
             i++) { /* one of a cluster will do */
            trib_address_list_copy(hosts, i, host, sizeof host);
            status = trib_address_resolve(host, &store, error);
        }
        status = status == TRIB_OK ? trib_address_local(&store, listen, error) : status;
    }
    if (status == TRIB_OK) {
        trib_address_list_copy(listen->text, 0, host, sizeof host);
        const bool is_bare = strchr(host, ':') != NULL && host[0] != '[';
        snprintf(coordinator->text, sizeof coordinator->text, is_bare ? "[%s]:0" : "%s:0", host);
        config->coordinator = coordinator->text;
        config->listen = listen->text;
    }
    return status;
}

trib_status trib_store_load(const trib_config *config, trib_env *env, trib_error *error)
{
    char hosts[HOSTS_MAX], prefix[TRIB_STORE_TEXT_MAX];
    const trib_status status = config->store == NULL ? TRIB_OK : parse(config->store, hosts, prefix, error);
    if (status != TRIB_OK || config->store == NULL) {
        return status;
    }
#if TRIB_HAVE_LIBCURL
    env->store_ops = &trib_store_etcd_ops;
    return trib_store_etcd_open(hosts, prefix, config->job, &env->store, error);
#else
    (void)env;
    return trib_error_set(error, TRIB_UNSUPPORTED,
                          "store \"%.160s\" (TRIB_STORE): this library was built without libcurl: install "
                          "libcurl4-openssl-dev and build it again",
                          config->store);
#endif
}

void trib_store_free(trib_env *env)
{
#if TRIB_HAVE_LIBCURL
    trib_store_etcd_free(env->store);
#endif
    env->store = NULL;
}
