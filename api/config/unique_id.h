/*
 * unique_id.h - what a trib_unique_id says, and the ports that this process has reserved for its ids.
 *
 * A reserved port is a socket that is bound and does not listen. The kernel gives such a port to nobody who asks for
 * any, and the engine's own listener, which names it, may bind it too. The table of reservations belongs to the process
 * (docs/decisions/0008-reserved-ports.md).
 */
#ifndef TRIB_API_CONFIG_UNIQUE_ID_H
#define TRIB_API_CONFIG_UNIQUE_ID_H

#include "transports/transport.h"

#define TRIB_UNIQUE_TOKEN_BYTES 32u

typedef struct trib_unique_id_content {
    uint64_t number; /* random number that tells ids apart */
    trib_address address;
    char token[2 * TRIB_UNIQUE_TOKEN_BYTES + 1]; /* in hexadecimal digits */
} trib_unique_id_content;

/* TRIB_INVALID: these bytes are no id, or were damaged on their way. */
TRIB_CHECKED trib_status trib_unique_id_read(const trib_unique_id *id, trib_unique_id_content *content_out,
                                             trib_error *error);
/* Takes the port for an engine that will listen there. TRIB_INVALID: the id was made by another process;
 * TRIB_STATE: an engine has it, or has had it. */
TRIB_CHECKED trib_status trib_unique_id_take(uint64_t number, trib_error *error);
/* After a take: the engine listens and the reservation is over, or it does not and the port waits for another. */
void trib_unique_id_settle(uint64_t number, bool listens);

#endif
