/*
 * limits.h - the engine-wide bounds, with the reason for each, and the relations between them.
 *
 * A bound that concerns only one file is defined in that file. A bound on data that another process reads or writes is
 * part of the protocol (engine/wire/wire.h).
 */
#ifndef TRIB_ENGINE_BASE_LIMITS_H
#define TRIB_ENGINE_BASE_LIMITS_H

#include <stdint.h>

/* ---- Members of a job ---- */

#define TRIB_MEMBERS_MAX 4096u          /* members; a table with an entry for each takes a few hundred KiB at most */
#define TRIB_CONTRIBUTORS_MAX 4096u     /* workers that contribute to one sum */
#define TRIB_GROUPS_MAX 1024u           /* groups of a job, numbered below this; an engine has a table of them */
#define TRIB_REACTORS_MAX 16u           /* reactors of a member; each has a link to every reactor of every server */
#define TRIB_LOCAL_SIZE_MAX 64          /* ranks of one machine, each with a device; a word has one bit for each */
#define TRIB_COORDINATOR_SOURCE_SIZE 96 /* of the text that says which variables the coordinator's address comes from */
_Static_assert(TRIB_CONTRIBUTORS_MAX <= TRIB_MEMBERS_MAX, "each contributor is a member");
_Static_assert(TRIB_REACTORS_MAX <= 32, "sets of reactors are kept as the bits of 32");
_Static_assert(TRIB_LOCAL_SIZE_MAX <= 64, "sets of a machine's devices are kept as the bits of 64");
_Static_assert(TRIB_MEMBERS_MAX <= UINT16_MAX, "an owner in a frame has 16 bits");
_Static_assert((uint64_t)TRIB_MEMBERS_MAX *TRIB_REACTORS_MAX <= UINT32_MAX, "an owner's code has 32 bits");
_Static_assert(TRIB_LOCAL_SIZE_MAX <= 0xff, "the root of a device tensor has 8 bits for it (aggregator.h)");
_Static_assert(TRIB_GROUPS_MAX <= UINT16_MAX, "a table of groups stays small");

/* ---- Messages ---- */

#define TRIB_HEADER_SIZE 96u        /* bytes; every frame begins with a header of this size */
#define TRIB_PAYLOAD_MAX (1u << 20) /* bytes of one frame's payload, for which a receiver must find room */
#define TRIB_AHEAD_MAX 8u    /* frames of a connection whose headers may be accepted before their payloads arrive */
#define TRIB_ADDRESS_MAX 160 /* bytes of an address's text with its 0: a list of a few numeric addresses */
_Static_assert(TRIB_HEADER_SIZE % 8 == 0, "headers are encoded as words of 8 bytes");
_Static_assert((TRIB_AHEAD_MAX & (TRIB_AHEAD_MAX - 1)) == 0, "a ring of frames, whose index wraps around");
_Static_assert(TRIB_ADDRESS_MAX >= 3 * 48, "several IPv6 addresses with brackets and ports");

/* ---- Tensors, partitions, chunks ---- */

/* bytes, a page; smaller chunks cost more for their headers than for their payloads */
#define TRIB_CHUNK_BYTES_MIN 4096u
#define TRIB_CHUNK_BYTES_MAX TRIB_PAYLOAD_MAX /* a chunk is one frame's payload */
#define TRIB_SUM_CHUNKS_MAX 65536u            /* chunks of a partition; a server has a table of them in each round */
#define TRIB_PARTITIONS_MAX 65536u            /* partitions of a tensor; a DECLARED frame names their owners */
#define TRIB_TENSOR_BYTES_MAX (UINT64_C(1) << 44) /* bytes of a tensor, even if another member declares it */
/* tensors of a job, which are numbered below this; each core has a table of them */
#define TRIB_TENSORS_MAX (1u << 20)
/* Tensors that a worker has released and the coordinator has not answered for: the next declaration waits. */
#define TRIB_TENSORS_ENDING_MAX 4096u
/* Rounds of a tensor. Numbers never restart: a later round has a higher number everywhere. A number that is compared
 * may be a few rounds beyond. */
#define TRIB_ROUNDS_MAX (UINT32_MAX - 1024u)
/* Tensors that have the same number, one after the other, go on with each other's rounds. A number whose rounds have
 * come so far is given to no other tensor. */
#define TRIB_ROUND_BASE_MAX (1u << 24)
_Static_assert(TRIB_ROUND_BASE_MAX < TRIB_ROUNDS_MAX / 64, "nearly all rounds are left to each tensor");
_Static_assert(TRIB_TENSORS_MAX <= INT32_MAX && TRIB_PARTITIONS_MAX <= INT32_MAX, "UINT32_MAX stands for none");
_Static_assert((TRIB_CHUNK_BYTES_MAX & (TRIB_CHUNK_BYTES_MAX - 1)) == 0, "chunks are powers of two");
_Static_assert((uint64_t)TRIB_CHUNK_BYTES_MAX * 4 <= UINT32_MAX, "the size of a partial sum has 32 bits");
_Static_assert(TRIB_PARTITIONS_MAX * 4u + TRIB_PARTITIONS_MAX * 8u <= TRIB_PAYLOAD_MAX,
               "a DECLARED frame has room for all owners and as many slices");
/* The elements of a partial sum are at most this many times as wide as the tensor's: 16 bits are added in 32. */
#define TRIB_PARTIAL_WIDTH_MAX 4u
_Static_assert((TRIB_CHUNK_BYTES_MIN & (TRIB_CHUNK_BYTES_MIN - 1)) == 0, "chunks are powers of two");
_Static_assert(TRIB_CHUNK_BYTES_MIN <= TRIB_CHUNK_BYTES_MAX, "there is a size that a chunk may have");
_Static_assert(TRIB_TENSOR_BYTES_MAX <= (uint64_t)TRIB_CHUNK_BYTES_MIN * TRIB_PARTITIONS_MAX * TRIB_SUM_CHUNKS_MAX,
               "the largest tensor can be cut, also into chunks of the least size");

/* ---- Connections ---- */

/* Networks by which a member can be reached. An address list has room for this many addresses. */
#define TRIB_NETWORKS_MAX 4u
#define TRIB_SUBFLOWS_MAX 3u /* subflows of a link, beside its first connection */
/* connections of a link: itself, its priority link and its subflows */
#define TRIB_CONNECTIONS_MAX (TRIB_SUBFLOWS_MAX + 2u)
_Static_assert(TRIB_SUBFLOWS_MAX + 1 == TRIB_NETWORKS_MAX, "a link has a connection by each network at most");
/* A message may come damaged so often in a row on a link, and each time another connection is
 * made. A link that damages every second frame comes so far once in 256 frames; what damages the same frame each time,
 * such as a program that changes a buffer while it is sent, ends soon. */
#define TRIB_DAMAGES_MAX 8u
/* Half-open connections of each listener: an eighth of the process's descriptors, within these bounds (half_open.h). */
#define TRIB_HALF_OPEN_MIN 16u
#define TRIB_HALF_OPEN_MAX 128u
_Static_assert(TRIB_HALF_OPEN_MIN <= TRIB_HALF_OPEN_MAX, "a bound from below and one from above");
_Static_assert(TRIB_NETWORKS_MAX * 32u <= TRIB_ADDRESS_MAX, "a list has room for an address by each network");

/* ---- Times (ns) ---- */

/* The longest timeout that differs from none, 100 years. Added to a time, or to another timeout, it does not
 * overflow. */
#define TRIB_TIMEOUT_MAX_NS (INT64_C(100) * 365 * 86400 * 1000000000)
_Static_assert(TRIB_TIMEOUT_MAX_NS <= INT64_MAX / 2, "the sum of two does not overflow");
_Static_assert(TRIB_TIMEOUT_MAX_NS % 1000000000 == 0, "it is a number of seconds, as settings are");
/* A connection must be made and must prove the token within this time. */
#define TRIB_HANDSHAKE_TIMEOUT_NS (10 * INT64_C(1000000000))
/* An operation that waits this long for another worker's contribution is mentioned in the log; then at twice the
 * age. */
#define TRIB_STALL_WARNING_NS (30 * INT64_C(1000000000))
/* Two workers that wait for each other in different operations are mentioned as early as this. */
#define TRIB_STALL_CROSSED_NS (5 * INT64_C(1000000000))
/* A worker tells the coordinator what it waits for when that is so old, and again whenever so much time has passed. In
 * a large job it tells more rarely, so that the coordinator has as much to read a second as from TELLERS workers. */
#define TRIB_STALL_TELL_NS INT64_C(1000000000)
#define TRIB_STALL_TELLERS 512u
static inline int64_t trib_stall_period_ns(uint32_t workers)
{
    return TRIB_STALL_TELL_NS * (1 + workers / TRIB_STALL_TELLERS);
}

#endif
