/*
 * placement.c - weights by bandwidth and dealing by bytes; see placement.h. Pure functions.
 *
 * Only additions, products and quotients of doubles in a fixed order, so the same members get the same weights on
 * every machine.
 */
#include "engine/cluster/placement.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/assert.h"

#define BISECTIONS 200
#define CRUMB 1e-6

/* The input of the computation. Times are in units of M / reference. */
typedef struct place_job {
    const trib_place_member *members;
    uint32_t count, workers;
    double reference; /* bits per second that count as 1 */
} place_job;

/* The rate of the fastest worker's link, or of the fastest member's if no worker's is known. Unknown links count as
 * this fast. */
static double reference_rate(const trib_place_member *members, uint32_t count)
{
    uint64_t workers = 0, all = 0;
    for (uint32_t i = 0; i < count; i++) {
        all = members[i].bandwidth > all ? members[i].bandwidth : all;
        workers = members[i].is_worker && members[i].bandwidth > workers ? members[i].bandwidth : workers;
    }
    return workers > 0 ? (double)workers : all > 0 ? (double)all : 1.0;
}

static double rate_of(const place_job *job, const trib_place_member *member)
{
    return member->bandwidth == 0 ? 1.0 : (double)member->bandwidth / job->reference;
}

/* Returns the bytes, in units of M, that the servers can sum within time t: n y <= C t. */
static double server_capacity(const place_job *job, const trib_place_member *member, double t)
{
    return member->can_sum && !member->is_worker ? rate_of(job, member) * t / job->workers : 0;
}

/* A worker sends its pushes except for its own part, and the sums of its part to the others: M + (n-2) x <= B t. */
static double worker_capacity(const place_job *job, const trib_place_member *member, double t)
{
    if (!member->can_sum || !member->is_worker) {
        return 0;
    }
    const double spare = rate_of(job, member) * t - 1.0;
    return spare > 0 ? spare / (job->workers - 2) : 0;
}

static double total_capacity(const place_job *job, double t)
{
    double total = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        total += server_capacity(job, &job->members[i], t) + worker_capacity(job, &job->members[i], t);
    }
    return total;
}

/* The time of the slowest worker's own pushes, a lower bound. */
static double slowest_push(const place_job *job)
{
    double slowest = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const double own = 1.0 / rate_of(job, &job->members[i]);
        slowest = job->members[i].is_worker && own > slowest ? own : slowest;
    }
    return slowest;
}

/* The least time in which all capacities together suffice; they grow with time. */
static double least_time(const place_job *job)
{
    double low = slowest_push(job);
    if (total_capacity(job, low) >= 1.0) {
        return low;
    }
    double high = low * 2;
    while (total_capacity(job, high) < 1.0) {
        high *= 2;
    }
    for (int i = 0; i < BISECTIONS; i++) {
        const double middle = (low + high) / 2;
        *(total_capacity(job, middle) < 1.0 ? &low : &high) = middle;
    }
    return high;
}

/* Three workers or more: each member gets what it can do in the least time. */
static double share_out_many(const place_job *job, trib_place_member *members)
{
    const double t = least_time(job), total = total_capacity(job, t);
    trib_assert(job->workers > 2 && total >= 1.0);
    for (uint32_t i = 0; i < job->count; i++) {
        members[i].weight = (server_capacity(job, &members[i], t) + worker_capacity(job, &members[i], t)) / total;
    }
    return t;
}

/* One or two workers: for a worker, summing costs nothing beyond its own pushes. One alone sums everything and sends
 * nothing. Of two, each sends M whatever the weights are; servers take what they can in that time, and the workers
 * the rest, in proportion to their links. */
static double share_out_few(const place_job *job, trib_place_member *members)
{
    double servers = 0, colocated = 0, at_once = 0;
    const double push = slowest_push(job);
    for (uint32_t i = 0; i < job->count; i++) {
        servers += server_capacity(job, &members[i], 1.0);
        colocated += members[i].is_worker && members[i].can_sum ? rate_of(job, &members[i]) : 0;
    }
    trib_assert(job->workers <= 2 && (colocated > 0 || servers > 0));
    double t;
    if (colocated > 0) {
        at_once = job->workers == 1 ? 0 : servers * push;
        at_once = at_once > 1.0 ? 1.0 : at_once;
        t = job->workers == 1 ? 0 : push;
    } else {
        at_once = 1.0;
        t = push * servers >= 1.0 ? push : 1.0 / servers;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        const trib_place_member *member = &members[i];
        if (member->can_sum) {
            members[i].weight = member->is_worker ? (1.0 - at_once) * rate_of(job, member) / colocated
                                                  : at_once * server_capacity(job, member, 1.0) / servers;
        }
    }
    return t;
}

/* Drops weights that only rounding has left to workers where servers can do everything; they are not worth a
 * partition. */
static void drop_crumbs(trib_place_member *members, uint32_t count)
{
    double crumbs = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (members[i].weight < CRUMB) {
            crumbs += members[i].weight;
            members[i].weight = 0;
        }
    }
    for (uint32_t i = 0; i < count && crumbs > 0; i++) {
        members[i].weight /= 1 - crumbs;
    }
}

trib_status trib_place_weights(trib_place_member *members, uint32_t member_count, double *t_opt_factor_out)
{
    uint32_t workers = 0, summing = 0;
    for (uint32_t i = 0; i < member_count; i++) {
        workers += members[i].is_worker;
        summing += members[i].can_sum;
        members[i].weight = 0;
    }
    if (workers == 0 || summing == 0) {
        return TRIB_INVALID;
    }
    const place_job job = {.members = members,
                           .count = member_count,
                           .workers = workers,
                           .reference = reference_rate(members, member_count)};
    *t_opt_factor_out = workers > 2 ? share_out_many(&job, members) : share_out_few(&job, members);
    drop_crumbs(members, member_count);
    return TRIB_OK;
}

/* ---- Dealing ---- */

typedef struct dealt_member {
    double weight, dealt;
    double here, most;                     /* bytes of the tensor being dealt: received, and at most */
    uint32_t reactor_count, reactor_first; /* its range in reactor_dealt */
} dealt_member;

struct trib_dealer {
    uint32_t count;
    double total;
    double *reactor_dealt;
    dealt_member members[];
};

trib_status trib_dealer_create(const trib_place_member *members, uint32_t member_count, trib_dealer **out)
{
    uint64_t reactors = 0;
    bool can_deal = false;
    for (uint32_t i = 0; i < member_count; i++) {
        if (members[i].reactors > UINT16_MAX) {
            return TRIB_INVALID;
        }
        reactors += members[i].reactors > 0 ? members[i].reactors : 1;
        can_deal = can_deal || (members[i].can_sum && members[i].weight > 0);
    }
    if (!can_deal || member_count > UINT16_MAX) {
        return TRIB_INVALID; /* an owner is two numbers of 16 bits */
    }
    trib_dealer *dealer = calloc(1, sizeof *dealer + member_count * sizeof dealer->members[0]);
    double *reactor_dealt = calloc(reactors, sizeof *reactor_dealt);
    if (dealer == NULL || reactor_dealt == NULL) {
        free(dealer);
        free(reactor_dealt);
        return TRIB_NO_MEMORY;
    }
    uint32_t first = 0;
    dealer->count = member_count;
    dealer->reactor_dealt = reactor_dealt;
    for (uint32_t i = 0; i < member_count; i++) {
        dealt_member *member = &dealer->members[i];
        member->weight = members[i].can_sum ? members[i].weight : 0;
        member->most = INFINITY;
        member->reactor_count = members[i].reactors > 0 ? members[i].reactors : 1;
        member->reactor_first = first;
        first += member->reactor_count;
    }
    trib_assert(first == reactors); /* the members' ranges cover reactor_dealt */
    *out = dealer;
    return TRIB_OK;
}

void trib_dealer_destroy(trib_dealer *dealer)
{
    if (dealer != NULL) {
        free(dealer->reactor_dealt);
        free(dealer);
    }
}

void trib_dealer_begin(trib_dealer *dealer, uint64_t bytes, uint32_t partition_bytes)
{
    trib_assert(partition_bytes > 0);
    const double partitions = bytes == 0 ? 1 : (double)((bytes + partition_bytes - 1) / partition_bytes);
    for (uint32_t i = 0; i < dealer->count; i++) {
        dealt_member *member = &dealer->members[i];
        const double part = member->weight * partitions;
        const double whole = (double)(uint64_t)part;
        member->here = 0;
        member->most = (part - whole > CRUMB ? whole + 1 : whole) * partition_bytes;
    }
}

/* The member that is furthest below its weight, of those with a reactor of at least that index and room for that
 * many bytes. UINT32_MAX if there is none. */
static uint32_t furthest_below(const trib_dealer *dealer, uint32_t reactor, double more)
{
    uint32_t best = UINT32_MAX;
    double best_deficit = 0;
    for (uint32_t i = 0; i < dealer->count; i++) {
        const dealt_member *member = &dealer->members[i];
        const double deficit = member->weight * dealer->total - member->dealt;
        if (member->weight > 0 && member->reactor_count > reactor && member->here + more <= member->most &&
            (best == UINT32_MAX || deficit > best_deficit)) {
            best = i;
            best_deficit = deficit;
        }
    }
    return best;
}

/* As furthest_below, and without the limit if no member has room: the limits of all can be less than the whole. */
static uint32_t next_member(const trib_dealer *dealer, uint32_t reactor, double size)
{
    const uint32_t best = furthest_below(dealer, reactor, size);
    return best != UINT32_MAX ? best : furthest_below(dealer, reactor, -INFINITY);
}

static double size_of(uint64_t bytes)
{
    return bytes == 0 ? 64.0 : (double)bytes;
}

static void deal(trib_dealer *dealer, double size, trib_place_owner owner)
{
    dealt_member *member = &dealer->members[owner.member];
    trib_assert(owner.member < dealer->count && owner.reactor < member->reactor_count);
    member->dealt += size;
    member->here += size;
    dealer->reactor_dealt[member->reactor_first + owner.reactor] += size;
}

/* The reactor with the least bytes of rest, rest + step, ... Of equals, the first one from the member's own index
 * on, so that the partitions of a tensor, dealt to one member after another, mostly come from different cores of a
 * worker. */
static uint16_t least_loaded(const trib_dealer *dealer, uint32_t index, uint32_t rest, uint32_t step)
{
    const dealt_member *member = &dealer->members[index];
    const double *reactors = &dealer->reactor_dealt[member->reactor_first];
    trib_assert(rest < member->reactor_count && step > 0);
    const uint32_t count = (member->reactor_count - rest + step - 1) / step;
    uint32_t least = rest + index % count * step;
    for (uint32_t i = 1; i < count; i++) {
        const uint32_t reactor = rest + (index + i) % count * step;
        least = reactors[reactor] < reactors[least] ? reactor : least;
    }
    return (uint16_t)least;
}

trib_place_owner trib_dealer_next(trib_dealer *dealer, uint64_t bytes)
{
    const double size = size_of(bytes);
    dealer->total += size;
    const uint32_t best = next_member(dealer, 0, size);
    trib_assert(best != UINT32_MAX);
    const trib_place_owner owner = {.member = (uint16_t)best, .reactor = least_loaded(dealer, best, 0, 1)};
    deal(dealer, size, owner);
    return owner;
}

trib_place_owner trib_dealer_next_like(trib_dealer *dealer, uint64_t bytes, trib_place_owner now, uint32_t modulus)
{
    const double size = size_of(bytes);
    trib_assert(modulus > 0);
    const uint32_t rest = now.reactor % modulus;
    dealer->total += size;
    const uint32_t best = next_member(dealer, rest, size);
    trib_place_owner owner = now;
    if (best != UINT32_MAX) {
        owner = (trib_place_owner){.member = (uint16_t)best, .reactor = least_loaded(dealer, best, rest, modulus)};
    }
    deal(dealer, size, owner);
    return owner;
}

void trib_dealer_keep(trib_dealer *dealer, uint64_t bytes, trib_place_owner owner)
{
    trib_assert(owner.member < dealer->count && owner.reactor < dealer->members[owner.member].reactor_count);
    dealer->total += size_of(bytes);
    deal(dealer, size_of(bytes), owner);
}
