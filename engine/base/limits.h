/*
 * limits.h - the numbers that bound things engine-wide, with the reason for each, and the relations that they must
 * keep.
 *
 * A number that bounds something of one file only stays in that file. Where another process reads or writes what a
 * number bounds, changing it changes the protocol (engine/wire/wire.h).
 */
#ifndef TRIB_ENGINE_BASE_LIMITS_H
#define TRIB_ENGINE_BASE_LIMITS_H

#include <stdint.h>

/* ---- Members of a job ---- */

#define TRIB_MEMBERS_MAX 4096u      /* members; a table with an entry for each stays within a few hundred KiB */
#define TRIB_CONTRIBUTORS_MAX 4096u /* workers whose contributions one sum has */
#define TRIB_REACTORS_MAX 16u       /* reactors of a member; each has a link to every reactor of every server */
#define TRIB_LOCAL_SIZE_MAX 64      /* ranks of one machine, each with a device: a word has a bit for each */
_Static_assert(TRIB_CONTRIBUTORS_MAX <= TRIB_MEMBERS_MAX, "each contributor is a member");
_Static_assert(TRIB_REACTORS_MAX <= 32, "sets of reactors are kept as the bits of 32");
_Static_assert(TRIB_LOCAL_SIZE_MAX <= 64, "sets of a machine's devices are kept as the bits of 64");

/* ---- Messages ---- */

#define TRIB_HEADER_SIZE 96u        /* bytes; every frame begins with a header of this size */
#define TRIB_PAYLOAD_MAX (1u << 20) /* bytes of one frame: what a receiver may have to find room for */
#define TRIB_AHEAD_MAX 8u    /* frames of a connection whose headers may be taken before their payloads are there */
#define TRIB_ADDRESS_MAX 160 /* bytes of an address's text: a list of a few numeric ones, with the 0 at its end */

/* ---- Tensors, partitions, chunks ---- */

#define TRIB_CHUNK_BYTES_MIN 4096u            /* a page: smaller ones cost more for their headers than for themselves */
#define TRIB_CHUNK_BYTES_MAX TRIB_PAYLOAD_MAX /* a chunk is one frame's payload */
#define TRIB_SUM_CHUNKS_MAX 65536u            /* chunks of a partition, for which a server has a table in each round */
#define TRIB_PARTITIONS_MAX 65536u            /* partitions of a tensor, of which a DECLARED frame names the owners */
#define TRIB_TENSOR_BYTES_MAX (UINT64_C(1) << 44) /* bytes of a tensor, also of one that another member declares */
#define TRIB_TENSORS_MAX (1u << 20) /* a job's tensors are numbered below this; each core has a table of them */
/* Rounds of a tensor. Numbers do not begin again: everywhere a later round has a higher one, and what is compared may
 * be a few beyond. */
#define TRIB_ROUNDS_MAX (UINT32_MAX - 1024u)
/* Elements of a partial sum are at most so many times as wide as the tensor's: 16 bits are added in 32 ones. */
#define TRIB_PARTIAL_WIDTH_MAX 4u
_Static_assert((TRIB_CHUNK_BYTES_MIN & (TRIB_CHUNK_BYTES_MIN - 1)) == 0, "chunks are powers of two");
_Static_assert(TRIB_CHUNK_BYTES_MIN <= TRIB_CHUNK_BYTES_MAX, "there is a size that a chunk may have");
_Static_assert(TRIB_TENSOR_BYTES_MAX <= (uint64_t)TRIB_CHUNK_BYTES_MIN * TRIB_PARTITIONS_MAX * TRIB_SUM_CHUNKS_MAX,
               "the largest tensor can be cut, also into chunks of the least size");

/* ---- Connections ---- */

/* Networks by which a member can be reached: as many addresses as one list has room for. */
#define TRIB_NETWORKS_MAX 4u
#define TRIB_SUBFLOWS_MAX 3u                          /* of a link, beside its first connection */
#define TRIB_CONNECTIONS_MAX (TRIB_SUBFLOWS_MAX + 2u) /* of a link: itself, its priority link, its subflows */
_Static_assert(TRIB_SUBFLOWS_MAX + 1 == TRIB_NETWORKS_MAX, "a link has a connection by each network at most");
/* Connections whose peer has not proved yet who it is, for each listener: an eighth of the process's descriptors,
 * within these bounds (half_open.h). */
#define TRIB_HALF_OPEN_MIN 16u
#define TRIB_HALF_OPEN_MAX 128u
_Static_assert(TRIB_HALF_OPEN_MIN <= TRIB_HALF_OPEN_MAX, "a bound from below and one from above");

/* ---- Credits (bytes); those of links are settings: push_credit_bytes, pull_credit_bytes ---- */

/* Copies between a device and the host that are in flight, of all cores: they share a stream, so each core waits for
 * what the others have submitted. */
#define TRIB_COPY_CREDIT_BYTES (8u << 20)
_Static_assert(TRIB_COPY_CREDIT_BYTES >= 2 * TRIB_CHUNK_BYTES_MAX,
               "one copy runs while the end of another is reported");

/* ---- Times (ns) ---- */

/* The longest timeout that is told apart from none, 100 years: added to a time, or to another, it does not overflow. */
#define TRIB_TIMEOUT_MAX_NS (INT64_C(100) * 365 * 86400 * 1000000000)
_Static_assert(TRIB_TIMEOUT_MAX_NS <= INT64_MAX / 2, "the sum of two does not overflow");
/* A connection must have been made and have proved the token in this time. */
#define TRIB_HANDSHAKE_TIMEOUT_NS (10 * INT64_C(1000000000))

#endif
