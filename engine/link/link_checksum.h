/*
 * link_checksum.h - the CRC32C of a payload, in its frame's `crc`. The sender decides whether it computes one
 * (trib_config.checksum); the receiver compares every one that comes.
 *
 * The header's fields, `crc` among them, have a checksum of their own (wire.c). A CRC of 0 is sent as ffffffff, because
 * 0 says that none was computed.
 */
#ifndef TRIB_ENGINE_LINK_LINK_CHECKSUM_H
#define TRIB_ENGINE_LINK_LINK_CHECKSUM_H

#include "engine/link/link.h"

/* Returns the `crc` of a frame that the link is about to send; 0: none. */
uint32_t trib_link_checksum_of(const trib_link *link, const void *payload, uint32_t payload_size);
/* Notes that a header of the link was damaged on its way. Returns TRIB_PEER_LOST, with both ends in the text. */
TRIB_CHECKED trib_status trib_link_checksum_header(const trib_link *link, trib_error *error);
/* TRIB_PEER_LOST, with both ends of the connection in the text, if a payload has not arrived as it was sent. */
TRIB_CHECKED trib_status trib_link_checksum_compare(trib_link *link, const trib_frame *frame, const void *payload,
                                                    trib_error *error);
/* A frame that was damaged on its way has come over the link. Returns true if the caller shall end the connection: the
 * link gets another one, and the peer sends the frame again. Meanwhile redial.is_damaged is set, and nothing that comes
 * over this connection counts. Returns false if the link has to end: the connection cannot be made again, or what
 * followed the last good frame was damaged each time (TRIB_DAMAGES_MAX). */
TRIB_CHECKED bool trib_link_damaged(trib_link *link);

#endif
