/* placement.c - shares by bandwidth and dealing by bytes; see placement.h. Pure. */
#include "engine/placement.h"

#include <stdlib.h>

#include "engine/assert.h"

#define BISECTIONS 200

/* Rates relative to the fastest worker's link; those that are not given count as that. */
static double rate_of(const trib_place_member *member, double reference)
{
    return member->bandwidth == 0 ? 1.0 : (double)member->bandwidth / reference;
}

static double reference_rate(const trib_place_member *members, uint32_t count)
{
    double best = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (members[i].is_worker && (double)members[i].bandwidth > best) {
            best = (double)members[i].bandwidth;
        }
    }
    return best > 0 ? best : 1.0;
}

/* Bytes (in units of M) that a member can sum within time t (in units of M / reference rate). A worker sends its own pushes and
 * the sums of its share: M + (n-2) x <= B t. A server: n y <= C t. With two workers or fewer a share costs a worker nothing. */
static double capacity(const trib_place_member *member, double rate, uint32_t workers, double t)
{
    if (!member->can_sum) {
        return 0;
    }
    if (!member->is_worker) {
        return rate * t / workers;
    }
    double spare = rate * t - 1.0;
    if (spare < -1e-12) {
        return 0;
    }
    return workers > 2 ? (spare > 0 ? spare / (workers - 2) : 0) : 1.0;
}

static double total_capacity(const trib_place_member *members, uint32_t count, uint32_t workers, double reference,
                             double t)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++) {
        total += capacity(&members[i], rate_of(&members[i], reference), workers, t);
    }
    return total;
}

/* The least time: never below what the slowest worker's own pushes take, and enough for all shares together. */
static double least_time(const trib_place_member *members, uint32_t count, uint32_t workers, double reference)
{
    double low = 0;
    for (uint32_t i = 0; i < count; i++) {
        double own = 1.0 / rate_of(&members[i], reference);
        if (members[i].is_worker && own > low) {
            low = own;
        }
    }
    if (total_capacity(members, count, workers, reference, low) >= 1.0) {
        return low;
    }
    double high = low;
    while (total_capacity(members, count, workers, reference, high) < 1.0) {
        high *= 2;
    }
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = (low + high) / 2;
        if (total_capacity(members, count, workers, reference, middle) < 1.0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high;
}

trib_status trib_place_shares(trib_place_member *members, uint32_t member_count, double *t_opt_factor_out)
{
    uint32_t workers = 0, summing = 0;
    for (uint32_t i = 0; i < member_count; i++) {
        workers += members[i].is_worker;
        summing += members[i].can_sum;
        members[i].share = 0;
    }
    if (workers == 0 || summing == 0) {
        return TRIB_INVALID;
    }
    double reference = reference_rate(members, member_count);
    double t = least_time(members, member_count, workers, reference);
    double total = total_capacity(members, member_count, workers, reference, t);
    for (uint32_t i = 0; i < member_count; i++) {
        members[i].share = capacity(&members[i], rate_of(&members[i], reference), workers, t) / total;
    }
    *t_opt_factor_out = workers == 1 ? 0.0 : t;
    return TRIB_OK;
}

struct trib_dealer {
    uint32_t count;
    double total;
    struct {
        double share, dealt;
        uint32_t reactors;
        double reactor_dealt[64];
    } members[];
};

trib_status trib_dealer_create(const trib_place_member *members, uint32_t member_count, trib_dealer **out)
{
    trib_dealer *dealer = calloc(1, sizeof *dealer + member_count * sizeof dealer->members[0]);
    if (dealer == NULL) {
        return TRIB_NO_MEMORY;
    }
    dealer->count = member_count;
    for (uint32_t i = 0; i < member_count; i++) {
        trib_assert(members[i].reactors <= 64);
        dealer->members[i].share = members[i].can_sum ? members[i].share : 0;
        dealer->members[i].reactors = members[i].reactors > 0 ? members[i].reactors : 1;
    }
    *out = dealer;
    return TRIB_OK;
}

void trib_dealer_destroy(trib_dealer *dealer)
{
    free(dealer);
}

trib_place_owner trib_dealer_next(trib_dealer *dealer, uint64_t bytes)
{
    double size = bytes == 0 ? 64.0 : (double)bytes;
    dealer->total += size;
    uint32_t best = UINT32_MAX;
    double best_lack = 0;
    for (uint32_t i = 0; i < dealer->count; i++) {
        double lack = dealer->members[i].share * dealer->total - dealer->members[i].dealt;
        if (dealer->members[i].share > 0 && (best == UINT32_MAX || lack > best_lack)) {
            best = i;
            best_lack = lack;
        }
    }
    trib_assert(best != UINT32_MAX);
    dealer->members[best].dealt += size;
    uint32_t reactor = 0;
    for (uint32_t i = 1; i < dealer->members[best].reactors; i++) {
        if (dealer->members[best].reactor_dealt[i] < dealer->members[best].reactor_dealt[reactor]) {
            reactor = i;
        }
    }
    dealer->members[best].reactor_dealt[reactor] += size;
    return (trib_place_owner){.member = (uint16_t)best, .reactor = (uint16_t)reactor};
}
