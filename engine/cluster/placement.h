/*
 * placement.h - which member sums what: weights by bandwidth, and partitions dealt by bytes. Pure functions.
 *
 * Weights: n workers and k dedicated servers on full-duplex links. Equal links: OSDI'20 (Jiang et al.), theorem 1:
 * each server sums 2(n-1)/D of the bytes and each colocated worker (n-k)/D, with D = n^2 + kn - 2k, and no exchange is
 * faster than t_opt = 2n(n-1)/D * M/B. Unequal links: the smallest t with t >= M/min B_i and sum_i (B_i t - M)/(n-2) +
 * sum_j C_j t/n >= M.
 */
#ifndef TRIB_ENGINE_PLACEMENT_H
#define TRIB_ENGINE_PLACEMENT_H

#include "api/tributary.h"

typedef struct trib_place_member {
    bool is_worker;     /* its link also carries its own pushes and pulls */
    bool can_sum;       /* a server, or a colocated worker */
    uint64_t bandwidth; /* bits per second in each direction; 0: unknown, as the fastest */
    uint32_t reactors;
    double weight; /* result: part of all bytes, 0 to 1; the weights add up to 1 */
} trib_place_member;

/* Fills in the weights. *t_opt_factor_out: the least time in units of M / (link rate of the fastest worker).
 * TRIB_INVALID if no member can sum. */
TRIB_CHECKED trib_status trib_place_weights(trib_place_member *members, uint32_t member_count,
                                            double *t_opt_factor_out);

typedef struct trib_place_owner {
    uint16_t member; /* index into members */
    uint16_t reactor;
} trib_place_owner;

/* Running totals by which partitions are dealt to members. */
typedef struct trib_dealer trib_dealer;

TRIB_CHECKED trib_status trib_dealer_create(const trib_place_member *members, uint32_t member_count, trib_dealer **out);
void trib_dealer_destroy(trib_dealer *dealer);

/* Begins a tensor of that many bytes, in partitions of that size. A member gets at most its weight of the tensor,
 * rounded up to whole partitions. What it lacks in other tensors it gets in several; otherwise all would wait for it
 * with this one. */
void trib_dealer_begin(trib_dealer *dealer, uint64_t bytes, uint32_t partition_bytes);

/* The owner of the next partition of that many bytes: the member, and in it the reactor, that is furthest below its
 * weight of the bytes dealt so far. Deterministic. Zero bytes count as 64. */
trib_place_owner trib_dealer_next(trib_dealer *dealer, uint64_t bytes);

/* As trib_dealer_next, among the reactors whose index is congruent to that of `now` modulo modulus: every worker
 * with that many reactors keeps the partition on its core. Returns `now` if no summing member has such a reactor. */
trib_place_owner trib_dealer_next_like(trib_dealer *dealer, uint64_t bytes, trib_place_owner now, uint32_t modulus);
/* Counts a partition that stays with its owner. */
void trib_dealer_keep(trib_dealer *dealer, uint64_t bytes, trib_place_owner owner);

#endif
