/* rate_estimator.c - see rate_estimator.h. */
#include "engine/cluster/rate_estimator.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

#define BYTES_MIN 4e6       /* bytes; fewer say nothing */
#define BUSY_MIN 0.2        /* part of the time; a network that is busy for less does not limit the job */
#define FULL 0.75           /* part of the busiest way's time; a link above it is full and carries what it can */
#define SLACK 0.4           /* part of it; a link below it can carry much more */
#define GROWTH 2.0          /* by this factor at most; a slower link is often one of half the rate */
#define GROWTH_AGAIN 1.3    /* the same after weights were changed once */
#define FLOOR 0.05          /* part of the fastest; a member without a weight could not show that it deserves one */
#define GAIN_FIRST 1.10     /* by which new weights must be faster, while all links seemed equal */
#define GAIN_AGAIN 1.05     /* the same after links were found unequal */
#define JUDGEMENTS 4u       /* judgements in a row that must agree */
#define APART 0.5           /* part of the busiest way's time; full links stand out if all others are below this */
#define APART_LONG 0.65     /* the same for samples of twice REPORTS or more, which depend less on chance */
#define FEW 4u              /* full links stand out only if they are one in this many, or a single one */
#define JUDGEMENTS_FIRST 2u /* judgements that are ignored: a job that begins is busy with other things */
#define REPORTS 2u          /* reports of every worker that a judgement needs */
#define REPORTS_MAX 32u /* the same while reports are about less than a round: some declared tensors may be unused */
#define RATE_MAX 1e18   /* bits per second; limits the rates that members report */
#define NS_PER_SECOND 1e9

/* The traffic from one member to another since the last judgement. */
typedef struct way {
    double bytes;
    int64_t busy_ns;
} way;

typedef struct estimator_member {
    int64_t elapsed_ns; /* time that its reports cover; 0: none came */
    uint32_t reports;
    bool has_reported; /* it has reported at some time */
    bool skips;        /* its next report is ignored */
    bool was_full;     /* at the last judgement */
    double weight;     /* weight of its link, in units of the fastest one */
} estimator_member;

struct trib_rate_estimator {
    uint32_t count, worker_count;
    uint32_t agreed; /* judgements in a row that agree */
    uint32_t judged; /* judgements in all */
    uint32_t wanted; /* reports of every worker for the next judgement */
    bool is_uneven;  /* weights were changed once */
    way *ways;       /* index: sender * count + peer */
    struct seen_way *sorted;
    estimator_member members[];
};

typedef struct seen_way {
    double busy, bytes, per_link;
} seen_way;

/* Starts with the configured rates of the links. An unknown link counts as the fastest. */
static void take_configured_rates(trib_rate_estimator *self, const trib_place_member *members)
{
    uint64_t fastest = 1;
    for (uint32_t i = 0; i < self->count; i++) {
        fastest = members[i].bandwidth > fastest ? members[i].bandwidth : fastest;
    }
    for (uint32_t i = 0; i < self->count; i++) {
        const uint64_t configured = members[i].bandwidth;
        self->members[i].weight = configured == 0 ? 1 : (double)configured / (double)fastest;
    }
}

trib_status trib_rate_estimator_create(const trib_place_member *members, uint32_t member_count,
                                       trib_rate_estimator **out)
{
    uint32_t worker_count = 0;
    for (uint32_t i = 0; i < member_count; i++) {
        worker_count += members[i].is_worker;
    }
    trib_assert(member_count >= 1 && member_count <= TRIB_RATE_MEMBERS_MAX);
    trib_assert(worker_count > 0 && members[worker_count - 1].is_worker); /* workers come first */
    trib_rate_estimator *self = calloc(1, sizeof *self + member_count * sizeof self->members[0]);
    way *ways = calloc((size_t)member_count * member_count, sizeof *ways);
    seen_way *sorted = calloc(member_count, sizeof *sorted);
    if (self == NULL || ways == NULL || sorted == NULL) {
        free(self);
        free(ways);
        free(sorted);
        return TRIB_NO_MEMORY;
    }
    self->count = member_count;
    self->worker_count = worker_count;
    self->wanted = REPORTS;
    self->ways = ways;
    self->sorted = sorted;
    take_configured_rates(self, members);
    *out = self;
    return TRIB_OK;
}

void trib_rate_estimator_destroy(trib_rate_estimator *self)
{
    if (self != NULL) {
        free(self->ways);
        free(self->sorted);
        free(self);
    }
}

static void reset_reports(trib_rate_estimator *self)
{
    self->wanted = REPORTS;
    memset(self->ways, 0, (size_t)self->count * self->count * sizeof *self->ways);
    for (uint32_t i = 0; i < self->count; i++) {
        self->members[i].elapsed_ns = 0;
        self->members[i].reports = 0;
    }
}

void trib_rate_estimator_restart(trib_rate_estimator *self)
{
    reset_reports(self);
    for (uint32_t i = 0; i < self->count; i++) {
        self->members[i].skips = true;
    }
}

bool trib_rate_estimator_begin(trib_rate_estimator *self, uint32_t sender, int64_t elapsed_ns)
{
    trib_assert(sender < self->count && elapsed_ns >= 0);
    if (self->members[sender].skips) {
        self->members[sender].skips = false;
        return false;
    }
    self->members[sender].elapsed_ns += elapsed_ns;
    self->members[sender].reports++;
    self->members[sender].has_reported = true;
    return true;
}

void trib_rate_estimator_add(trib_rate_estimator *self, uint32_t sender, uint32_t peer, uint64_t bytes, int64_t busy_ns)
{
    trib_assert(sender < self->count && peer < self->count && busy_ns >= 0);
    way *at = &self->ways[(size_t)sender * self->count + peer];
    at->bytes += (double)bytes;
    at->busy_ns += busy_ns;
}

/* All workers have reported, and the servers that report at all. A member with nothing more to report is not waited
 * for. */
bool trib_rate_estimator_is_full(const trib_rate_estimator *self)
{
    uint32_t fewest = UINT32_MAX;
    bool all = true;
    for (uint32_t i = 0; i < self->count; i++) {
        const estimator_member *member = &self->members[i];
        if (i < self->worker_count) {
            fewest = member->reports < fewest ? member->reports : fewest;
        }
        all = all && (!member->has_reported || member->reports >= self->wanted);
    }
    return fewest > self->wanted || (fewest == self->wanted && all);
}

/* ---- Looking ---- */

static double busy_of(const trib_rate_estimator *self, uint32_t sender, uint32_t receiver)
{
    const double elapsed_ns = (double)self->members[sender].elapsed_ns;
    const double busy_ns = (double)self->ways[(size_t)sender * self->count + receiver].busy_ns;
    return busy_ns >= elapsed_ns ? (elapsed_ns > 0 ? 1 : 0) : busy_ns / elapsed_ns;
}

static int by_busy(const void *a, const void *b)
{
    const double left = ((const seen_way *)a)->busy, right = ((const seen_way *)b)->busy;
    return (left > right) - (left < right);
}

/* The number of links over which a member's reactor sends to that of another: one for contributions to what the other
 * sums, and one for sums. Two workers that both sum have two, a worker and a dedicated server have one. */
static uint32_t links_of(const trib_place_member *members, uint32_t sender, uint32_t receiver)
{
    const bool pushes = members[sender].is_worker && members[receiver].weight > 0;
    const bool returns = members[receiver].is_worker && members[sender].weight > 0;
    return pushes && returns ? 2 : 1;
}

/* The part of the time for which the member's way out, or in, is busy to most of its peers: the lower median, by
 * bytes, over the ways to its peers. So a slow peer, or even half of them, is not taken for a slow member. Links that
 * share a full network are busy in proportion to their bytes, and a report has the mean over the links of a way. So
 * each way counts as if each of its links carried as much as those of the heaviest. Otherwise a dedicated server, to
 * which all bytes go over one link, would seem busier than workers to which as many go over two. */
static double busy_with_most(const trib_rate_estimator *self, const trib_place_member *members, uint32_t member,
                             bool out)
{
    double total = 0, below = 0, heaviest = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const uint32_t sender = out ? member : i, receiver = out ? i : member;
        const double bytes = self->ways[(size_t)sender * self->count + receiver].bytes;
        const double per_link = bytes / links_of(members, sender, receiver);
        if (bytes > 0) {
            self->sorted[count++] =
                (seen_way){.busy = busy_of(self, sender, receiver), .bytes = bytes, .per_link = per_link};
            total += bytes;
            heaviest = per_link > heaviest ? per_link : heaviest;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const double busy = self->sorted[i].busy * heaviest / self->sorted[i].per_link;
        self->sorted[i].busy = busy < 1 ? busy : 1;
    }
    qsort(self->sorted, count, sizeof *self->sorted, by_busy);
    for (uint32_t i = 0; i < count; i++) {
        below += self->sorted[i].bytes;
        if (below * 2 >= total) {
            return self->sorted[i].busy;
        }
    }
    return 0;
}

static double busiest_way(const trib_rate_estimator *self)
{
    double most = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        for (uint32_t k = 0; k < self->count; k++) {
            const double busy = busy_of(self, i, k);
            most = busy > most ? busy : most;
        }
    }
    return most;
}

/* ---- Judging ---- */

/* Returns the bytes that pass the member's link in each direction for one byte of every worker's tensor. */
static double stats_of(const trib_rate_estimator *self, const trib_place_member *member)
{
    const double n = self->worker_count;
    return member->is_worker ? 1 + (n - 2) * member->weight : n * member->weight;
}

/* Returns the time that the slowest link takes for those bytes. */
static double time_of(const trib_rate_estimator *self, const trib_place_member *members)
{
    double longest = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const double time = stats_of(self, &members[i]) / (double)members[i].bandwidth;
        longest = time > longest ? time : longest;
    }
    return longest;
}

/* A member's link as one sample shows it. */
typedef struct seen_link {
    double load, need; /* part of the busiest way's time for which it is busy */
    bool is_full;
} seen_link;

static int by_number(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The factor by which the link is assumed to be able to carry more. Queues are long only where a link is nearly
 * full: one that is busy for a third of the time may be half full or nearly full, and says no more than that. */
static double slack_of(const seen_link *seen, double most)
{
    const double above = seen->need > SLACK ? (seen->need - SLACK) / (FULL - SLACK) : 0;
    return above >= 1 ? 1 : most - (most - 1) * above;
}

/* The rate of a link of weight 1: the median of the full links, or of the others, for which it is a guess. */
static double unit_of(const trib_rate_estimator *self, const seen_link *seen, bool of_full)
{
    double units[TRIB_RATE_MEMBERS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        if (seen[i].is_full == of_full && seen[i].load > 0) {
            const double carries =
                seen[i].load * (of_full ? 1 : slack_of(&seen[i], self->is_uneven ? GROWTH_AGAIN : GROWTH));
            units[count++] = carries / self->members[i].weight;
        }
    }
    if (count == 0) {
        return 0; /* members that sum nothing say nothing */
    }
    qsort(units, count, sizeof *units, by_number);
    return units[(count - 1) / 2];
}

/* All members work on the same rounds, so their links carry in proportion to their loads. If a few links are full,
 * they carry what they can, which is less than assumed; the others are assumed to be faster, in proportion to how
 * seldom they are busy. If most are full, the others can carry more than assumed. Both are guesses, so the change is
 * limited, and there will be another judgement with the new weights. */
static void learn_unit(trib_rate_estimator *self, const seen_link *seen)
{
    uint32_t full = 0;
    double heaviest = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        full += seen[i].is_full;
    }
    const bool most_full = full * 2 > self->count;
    const double unit = unit_of(self, seen, most_full);
    if (!(unit > 0)) {
        return;
    }
    for (uint32_t i = 0; i < self->count; i++) {
        double *weight = &self->members[i].weight;
        if (!most_full && seen[i].is_full) {
            *weight = seen[i].load / unit;
        } else if (most_full && !seen[i].is_full) {
            const double carries = seen[i].load * slack_of(&seen[i], GROWTH_AGAIN) / unit;
            *weight = carries > *weight ? carries : *weight;
        }
        heaviest = *weight > heaviest ? *weight : heaviest;
    }
    trib_assert(heaviest > 0);
    for (uint32_t i = 0; i < self->count; i++) {
        double *weight = &self->members[i].weight;
        *weight = (*weight > FLOOR * heaviest ? *weight : FLOOR * heaviest) / heaviest;
    }
}

/* The rate in bits per second of a link of weight 1. */
static double rate_of_unit(const trib_rate_estimator *self, const seen_link *seen)
{
    double loads = 0, sent = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const double elapsed_ns = (double)self->members[i].elapsed_ns;
        loads += seen[i].load;
        for (uint32_t k = 0; k < self->count && elapsed_ns > 0; k++) {
            sent += self->ways[(size_t)i * self->count + k].bytes * 8 * NS_PER_SECOND / elapsed_ns;
        }
    }
    double unit = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const double carries = seen[i].load / self->members[i].weight;
        unit = carries > unit ? carries : unit;
    }
    return loads > 0 ? unit * sent / loads : 0;
}

static bool is_few(const trib_rate_estimator *self, uint32_t count)
{
    return count == 1 || count * FEW <= self->count;
}

/* True if few links are full, all others are idle for most of the time, and the full ones are those of the last
 * sample: the picture of a link of half the rate. A process without CPU time, or one that all others send to at
 * once, is also busy to most of its peers, but then others are busy for half of the time or more, or it is another
 * one in each sample. After weights were changed the picture may be reversed: a few links are idle that could carry
 * more. */
static bool stand_out(trib_rate_estimator *self, const seen_link *seen)
{
    const double apart = self->wanted >= 2 * REPORTS ? APART_LONG : APART;
    uint32_t full = 0;
    bool are_same = true, are_apart = true;
    for (uint32_t i = 0; i < self->count; i++) {
        full += seen[i].is_full;
        are_apart = are_apart && (seen[i].is_full || seen[i].need < apart);
        are_same = are_same && seen[i].is_full == self->members[i].was_full;
        self->members[i].was_full = seen[i].is_full;
    }
    self->agreed = are_same ? self->agreed : 0;
    return are_apart && (is_few(self, full) || (self->is_uneven && is_few(self, self->count - full)));
}

static bool find_rates(trib_rate_estimator *self, trib_place_member *members, double top)
{
    seen_link seen[TRIB_RATE_MEMBERS_MAX];
    for (uint32_t i = 0; i < self->count; i++) {
        const double out = busy_with_most(self, members, i, true), in = busy_with_most(self, members, i, false);
        const double need = (out > in ? out : in) / top;
        seen[i] = (seen_link){.load = stats_of(self, &members[i]), .need = need, .is_full = need >= FULL};
    }
    if (!stand_out(self, seen)) {
        return false; /* equal links teach nothing */
    }
    learn_unit(self, seen);
    const double rate = rate_of_unit(self, seen);
    for (uint32_t i = 0; i < self->count; i++) {
        const double bits = self->members[i].weight * rate;
        members[i].bandwidth = !(bits >= 1) ? 1 : bits > RATE_MAX ? (uint64_t)RATE_MAX : (uint64_t)bits;
    }
    return rate > 0;
}

/* Finds other weights, which it writes to members; returns by which factor they are faster. */
static double find_better(trib_rate_estimator *self, trib_place_member *members, double top)
{
    double factor = 0;
    if (!find_rates(self, members, top)) {
        return 0;
    }
    const double now = time_of(self, members);
    return trib_place_weights(members, self->count, &factor) == TRIB_OK ? now / time_of(self, members) : 0;
}

static double bytes_seen(const trib_rate_estimator *self)
{
    double bytes = 0;
    for (size_t i = 0; i < (size_t)self->count * self->count; i++) {
        bytes += self->ways[i].bytes;
    }
    return bytes;
}

/* True if the sample covers as much as a round carries. In a long round a slow link shows in phases: it is busy
 * along with the others, and then alone. Samples of different phases never agree. A sample of as many bytes as a
 * round has covers each phase once, wherever it begins. The first samples are ignored and need not wait for that. */
static bool is_whole(const trib_rate_estimator *self, const trib_place_member *members, double bytes,
                     double round_bytes)
{
    double loads = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        loads += stats_of(self, &members[i]);
    }
    return bytes >= loads * round_bytes || self->wanted >= REPORTS_MAX || self->judged < JUDGEMENTS_FIRST;
}

bool trib_rate_estimator_decide(trib_rate_estimator *self, trib_place_member *members, uint64_t round_bytes)
{
    const double top = busiest_way(self), bytes = bytes_seen(self);
    if (!is_whole(self, members, bytes, (double)round_bytes)) {
        self->wanted++;
        return false;
    }
    trib_place_member found[TRIB_RATE_MEMBERS_MAX];
    memcpy(found, members, self->count * sizeof *members);
    const bool counts = bytes >= BYTES_MIN && top >= BUSY_MIN && self->judged >= JUDGEMENTS_FIRST;
    const double gain = counts ? find_better(self, found, top) : 0;
    self->judged++;
    self->agreed = gain < (self->is_uneven ? GAIN_AGAIN : GAIN_FIRST) ? 0 : self->agreed + 1;
    reset_reports(self);
    if (self->agreed < JUDGEMENTS) {
        return false;
    }
    self->agreed = 0;
    self->is_uneven = true;
    memcpy(members, found, self->count * sizeof *members);
    return true;
}
