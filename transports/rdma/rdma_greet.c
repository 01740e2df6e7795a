/* rdma_greet.c - what two sides tell each other in the handshake of a connection, as private data of librdmacm. */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <endian.h>
#include <string.h>

#include "transports/rdma/rdma_internal.h"

void trib_rdma_greeting_fill(verbs_greeting *greeting)
{
    *greeting = (verbs_greeting){.magic = htole32(TRIB_RDMA_MAGIC),
                                 .version = htole16(TRIB_RDMA_VERSION),
                                 .buffer_bytes = htole16(TRIB_RDMA_BUFFER),
                                 .credits = htole16(TRIB_RDMA_CREDITS),
                                 .requests = htole16(TRIB_RDMA_REQUESTS)};
}

void trib_rdma_connect_params_fill(struct rdma_conn_param *params, verbs_greeting *greeting)
{
    trib_rdma_greeting_fill(greeting);
    *params = (struct rdma_conn_param){
        .private_data = greeting,
        .private_data_len = sizeof *greeting,
        .retry_count = TRIB_RDMA_TRIES - 1,
        .rnr_retry_count = 6, /* a peer that counts its credits never finds a buffer missing */
    };
}

bool trib_rdma_conn_greet(verbs_conn *conn, const void *data, size_t size, trib_error *error)
{
    verbs_greeting greeting = {.magic = 0};
    memcpy(&greeting, data != NULL ? data : &greeting, size < sizeof greeting ? size : sizeof greeting);
    if (le32toh(greeting.magic) != TRIB_RDMA_MAGIC) {
        trib_error_set(error, TRIB_PROTOCOL, "the peer is not a Tributary process");
        return false;
    }
    uint16_t version = le16toh(greeting.version);
    uint16_t credits = le16toh(greeting.credits);
    uint16_t requests = le16toh(greeting.requests);
    if (version != TRIB_RDMA_VERSION || le16toh(greeting.buffer_bytes) != TRIB_RDMA_BUFFER || credits == 0 ||
        credits > TRIB_RDMA_CREDITS || requests == 0 || requests > TRIB_RDMA_REQUESTS) {
        trib_error_set(error, TRIB_PROTOCOL,
                       "the peer speaks version %u of the RDMA transport, this process version %u; install the same "
                       "version on both machines",
                       version, TRIB_RDMA_VERSION);
        return false;
    }
    conn->peer_credits = conn->credits_max = credits;
    conn->peer_requests = requests;
    return true;
}

#endif
