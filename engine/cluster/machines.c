/* machines.c - see machines.h. */
#include "engine/cluster/machines.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/wire/address_list.h"

static int compare_members(const trib_member_info *one, const trib_member_info *other)
{
    return trib_address_list_compare_machines(one->addresses[0].text, other->addresses[0].text);
}

static int compare_for_sort(const void *one, const void *other)
{
    return compare_members(*(const trib_member_info *const *)one, *(const trib_member_info *const *)other);
}

uint32_t trib_machines_first(const trib_roster *roster, uint32_t member)
{
    uint32_t first = 0;
    while (first < member && compare_members(&roster->members[first], &roster->members[member]) != 0) {
        first++;
    }
    return first;
}

static bool share_cores(const trib_member_info *one, const trib_member_info *other)
{
    return compare_members(one, other) == 0 || (one->kernel != 0 && one->kernel == other->kernel);
}

trib_machine_place trib_machines_place(const trib_roster *roster, uint32_t member)
{
    trib_machine_place place = {.index = 0};
    for (uint32_t i = 0; i < roster->member_count; i++) {
        const trib_member_info *other = &roster->members[i];
        if (share_cores(other, &roster->members[member])) {
            place.index += i < member;
            place.count++;
            place.reactors += other->reactors;
            place.others_placed = place.others_placed || (i != member && other->placed);
        }
    }
    trib_assert(place.index < place.count);
    return place;
}

static int compare_by_machine(const void *one, const void *other)
{
    const trib_member_info *a = *(const trib_member_info *const *)one, *b = *(const trib_member_info *const *)other;
    const int order = compare_members(a, b);
    return order != 0 ? order : (a > b) - (a < b);
}

bool trib_machines_ranks(const trib_roster *roster, uint32_t worker, trib_machine_ranks *ranks_out)
{
    trib_assert(worker < roster->worker_count);
    const trib_member_info *mine = &roster->members[worker];
    const trib_member_info **sorted = calloc(roster->worker_count, sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    trib_machine_ranks ranks = {.local_rank = 0};
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        sorted[i] = &roster->members[i];
        const bool is_neighbour = compare_members(sorted[i], mine) == 0;
        ranks.local_rank += is_neighbour && i < worker;
        ranks.local_size += is_neighbour;
    }
    qsort(sorted, roster->worker_count, sizeof *sorted, compare_by_machine);
    int32_t place = 0; /* place of sorted[i] on its machine */
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        place = i > 0 && compare_members(sorted[i - 1], sorted[i]) == 0 ? place + 1 : 0;
        ranks.cross_rank += place == ranks.local_rank && sorted[i] < mine;
        ranks.cross_size += place == ranks.local_rank;
    }
    trib_assert(ranks.local_rank < ranks.local_size && ranks.cross_rank < ranks.cross_size);
    free(sorted);
    *ranks_out = ranks;
    return true;
}

__attribute__((format(printf, 2, 3))) static uint32_t no(char *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, TRIB_MACHINES_WHY_SIZE, format, arguments);
    va_end(arguments);
    return 0;
}

/* True if ranks 0..n-1 form machines of local_size each, all different. Out of memory counts as false. */
static bool is_regular(const trib_roster *roster, uint32_t local_size)
{
    const uint32_t n = roster->worker_count;
    const trib_member_info **firsts = n > 0 && n % local_size == 0 ? calloc(n / local_size, sizeof *firsts) : NULL;
    bool regular = firsts != NULL;
    for (uint32_t i = 0; i < n && regular; i++) {
        const trib_member_info *first = &roster->members[i / local_size * local_size];
        firsts[i / local_size] = first;
        regular = compare_members(first, &roster->members[i]) == 0;
    }
    if (regular) {
        qsort(firsts, n / local_size, sizeof *firsts, compare_for_sort);
    }
    for (uint32_t i = 1; i < n / local_size && regular; i++) {
        regular = compare_members(firsts[i - 1], firsts[i]) != 0;
    }
    free(firsts);
    return regular;
}

uint32_t trib_machines_local_size(const trib_roster *roster, trib_local_sum wanted, char why[TRIB_MACHINES_WHY_SIZE])
{
    const uint32_t n = roster->worker_count;
    uint32_t local = 1;
    why[0] = '\0';
    if (wanted == TRIB_LOCAL_SUM_OFF) {
        return no(why, "it is switched off");
    }
    while (local < n && compare_members(&roster->members[0], &roster->members[local]) == 0) {
        local++;
    }
    if (local == n) {
        return no(why, "all workers are on one machine");
    }
    const bool regular = is_regular(roster, local);
    if (local == 1 && regular) {
        return no(why, "each worker has a machine of its own");
    }
    if (local == 1 || !regular) {
        return no(why, "not every machine has the same number of workers, with consecutive ranks");
    }
    for (uint32_t i = 1; i < n; i++) {
        if (roster->members[i].reactors != roster->members[0].reactors) {
            return no(why, "ranks 0 and %u have %u and %u reactors", i, roster->members[0].reactors,
                      roster->members[i].reactors);
        }
    }
    if (!trib_roster_can_sum_first(roster, local)) {
        return no(why, "chunk_bytes is above %u", TRIB_PAYLOAD_MAX / TRIB_PARTIAL_WIDTH_MAX);
    }
    if (wanted == TRIB_LOCAL_SUM_AUTO && roster->sum_order == TRIB_ORDER_RANK && (local & (local - 1)) != 0) {
        return no(why, "with %u workers a machine, no power of two, it would change the bits of sums", local);
    }
    trib_assert(n % local == 0);
    return local;
}

trib_status trib_machines_weights(trib_place_member *members, uint32_t member_count, uint32_t worker_count,
                                  uint32_t local_size, double *t_opt_factor_out)
{
    trib_assert(local_size > 0 && worker_count % local_size == 0 && worker_count <= member_count);
    const uint32_t machines = worker_count / local_size, servers = member_count - worker_count;
    trib_place_member *merged = calloc(machines + servers, sizeof *merged);
    if (merged == NULL) {
        return TRIB_NO_MEMORY;
    }
    for (uint32_t i = 0; i < member_count; i++) {
        trib_place_member *into = &merged[i < worker_count ? i / local_size : machines + i - worker_count];
        const uint64_t most = into->bandwidth > members[i].bandwidth ? into->bandwidth : members[i].bandwidth;
        *into = members[i];
        into->bandwidth = most;
    }
    trib_status status = trib_place_weights(merged, machines + servers, t_opt_factor_out);
    for (uint32_t i = 0; i < member_count; i++) {
        members[i].weight =
            i < worker_count ? merged[i / local_size].weight / local_size : merged[machines + i - worker_count].weight;
    }
    free(merged);
    return status;
}
