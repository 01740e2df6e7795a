/*
 * rdma_describe.c - the RDMA devices of this machine as JSON for `tributary info`, which shows whether the transport
 * can work and by which addresses.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <string.h>

#define GIDS_MAX 64

static const char *link_layer_name(uint8_t layer)
{
    return layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "other";
}

/* Addresses as peers write them: IPv4 if the GID is a mapped one. */
static void describe_gids(FILE *out, struct ibv_context *verbs, uint8_t port, int count)
{
    const char *before = "";
    for (int i = 0; i < count && i < GIDS_MAX; i++) {
        union ibv_gid gid;
        const union ibv_gid none = {.raw = {0}};
        char text[INET6_ADDRSTRLEN] = "?";
        if (ibv_query_gid(verbs, port, i, &gid) != 0 || memcmp(&gid, &none, sizeof gid) == 0) {
            continue;
        }
        static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        if (memcmp(gid.raw, mapped, sizeof mapped) == 0) {
            inet_ntop(AF_INET, gid.raw + sizeof mapped, text, sizeof text);
        } else {
            inet_ntop(AF_INET6, gid.raw, text, sizeof text);
        }
        fprintf(out, "%s\"%s\"", before, text);
        before = ", ";
    }
}

static void describe_ports(FILE *out, struct ibv_context *verbs, uint8_t count)
{
    for (unsigned port = 1; port <= count; port++) {
        struct ibv_port_attr attributes;
        if (ibv_query_port(verbs, (uint8_t)port, &attributes) != 0) {
            continue;
        }
        fprintf(out, "%s{\"port\": %u, \"state\": \"%s\", \"link\": \"%s\", \"mtu\": %d, \"gids\": [",
                port > 1 ? ", " : "", port, ibv_port_state_str(attributes.state),
                link_layer_name(attributes.link_layer), 128 << attributes.active_mtu);
        describe_gids(out, verbs, (uint8_t)port, attributes.gid_tbl_len);
        fprintf(out, "]}");
    }
}

static void describe_device(FILE *out, struct ibv_device *device)
{
    struct ibv_context *verbs = ibv_open_device(device);
    struct ibv_device_attr attributes;
    fprintf(out, "{\"name\": \"%s\"", ibv_get_device_name(device));
    if (verbs == NULL || ibv_query_device(verbs, &attributes) != 0) {
        fprintf(out, ", \"problem\": \"cannot be opened: is /dev/infiniband/uverbs* writable?\"");
    } else {
        fprintf(out, ", \"queue_pairs_max\": %d, \"regions_max\": %d, \"ports\": [", attributes.max_qp,
                attributes.max_mr);
        describe_ports(out, verbs, attributes.phys_port_cnt);
        fprintf(out, "]");
    }
    fprintf(out, "}");
    if (verbs != NULL) {
        ibv_close_device(verbs);
    }
}

void trib_rdma_describe(FILE *out)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    fprintf(out, "[");
    for (int i = 0; list != NULL && i < count; i++) {
        fputs(i > 0 ? ", " : "", out);
        describe_device(out, list[i]);
    }
    fprintf(out, "]");
    if (list != NULL) {
        ibv_free_device_list(list);
    }
}

#else

void trib_rdma_describe(FILE *out)
{
    fprintf(out, "[]");
}

#endif
