/* roster.c - encoding of members and rosters. Pure functions; everything from the wire is checked here. */
#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/cluster/roster.h"

#include <stdlib.h>
#include <string.h>

#include "engine/cluster/rate_estimator.h"
#include "engine/wire/address_list.h"

/* A bit in the byte of a description with the member's properties. */
#define SUMS 1u
#define STANDS_BY 2u
#define PLACED 4u
#define SUBFLOWS 8u

#define SHRINKS_AND_CONTINUES 2u /* else 1: it shrinks, or 0 */

trib_roster *trib_roster_create(uint32_t member_count)
{
    trib_roster *roster = calloc(1, sizeof *roster + member_count * sizeof roster->members[0]);
    if (roster != NULL) {
        roster->member_count = member_count;
    }
    return roster;
}

/* For changes of the two fields that are not immutable: who holds the roster, and its neighbour. */
static trib_roster *writable(const trib_roster *roster)
{
    return (trib_roster *)(uintptr_t)roster;
}

const trib_roster *trib_roster_hold(const trib_roster *roster)
{
    if (roster != NULL) {
        atomic_fetch_add(&writable(roster)->held, 1);
    }
    return roster;
}

void trib_roster_let_go(const trib_roster *roster)
{
    if (roster != NULL) {
        const uint32_t held = atomic_fetch_sub(&writable(roster)->held, 1);
        trib_assert(held > 0);
    }
}

uint32_t trib_roster_free_past(const trib_roster *roster, uint64_t begun)
{
    uint32_t freed = 0;
    bool is_past = roster->ticket == begun;
    trib_roster *at = writable(roster->before);
    while (at != NULL && at->before != NULL) {
        trib_roster *past = writable(at->before);
        is_past = is_past || at->ticket == begun;
        if ((is_past || past->ticket == 0) && atomic_load(&past->held) == 0) {
            freed = freed == 0 ? past->epoch : freed;
            at->before = past->before;
            free(past);
        } else {
            at = past;
        }
    }
    return freed;
}

void trib_member_info_put(trib_writer *writer, const trib_member_info *info)
{
    trib_assert(info->reactors >= 1 && info->reactors <= TRIB_REACTORS_MAX);
    trib_put_u32(writer, info->roles);
    const uint8_t share = info->stands_by ? STANDS_BY : (uint8_t)info->sums;
    trib_put_u8(writer, share | (info->placed ? PLACED : 0) | (info->subflows ? SUBFLOWS : 0));
    trib_put_u32(writer, info->reactors);
    trib_put_u64(writer, info->bandwidth);
    trib_put_u64(writer, info->kernel);
    trib_put_u64(writer, info->gpu);
    trib_put_u32(writer, info->start);
    trib_put_u32(writer, info->rank);
    trib_put_text(writer, info->name);
    for (uint32_t i = 0; i < info->reactors; i++) {
        trib_put_text(writer, info->addresses[i].text);
    }
}

trib_status trib_member_info_get(trib_reader *reader, trib_member_info *info_out, trib_error *error)
{
    trib_member_info info = {.roles = trib_get_u32(reader)};
    const uint8_t flags = trib_get_u8(reader), share = flags & (SUMS | STANDS_BY);
    info.sums = share != 0;
    info.stands_by = share == STANDS_BY;
    info.placed = (flags & PLACED) != 0;
    info.subflows = (flags & SUBFLOWS) != 0;
    info.reactors = trib_get_u32(reader);
    info.bandwidth = trib_get_u64(reader);
    info.kernel = trib_get_u64(reader);
    info.gpu = trib_get_u64(reader);
    info.start = trib_get_u32(reader);
    info.rank = trib_get_u32(reader);
    trib_get_text(reader, info.name, sizeof info.name);
    if (reader->failed || share > STANDS_BY || flags > (SUMS | STANDS_BY | PLACED | SUBFLOWS) || info.reactors == 0 ||
        info.reactors > TRIB_REACTORS_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed description of a member");
    }
    for (uint32_t i = 0; i < info.reactors; i++) {
        trib_get_text(reader, info.addresses[i].text, sizeof info.addresses[i].text);
    }
    if (reader->failed) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed address of a member");
    }
    *info_out = info;
    return TRIB_OK;
}

void trib_roster_put(trib_writer *writer, const trib_roster *roster)
{
    trib_assert(roster->worker_count + roster->server_count == roster->member_count);
    trib_put_u32(writer, roster->epoch);
    trib_put_u32(writer, roster->worker_count);
    trib_put_u32(writer, roster->server_count);
    trib_put_u32(writer, roster->member_count);
    trib_put_u32(writer, roster->partition_bytes);
    trib_put_u32(writer, roster->chunk_bytes);
    trib_put_u32(writer, (uint32_t)roster->sum_order);
    trib_put_u64(writer, (uint64_t)roster->peer_timeout_ns);
    double factor = roster->t_opt_factor < TRIB_T_OPT_FACTOR_MAX ? roster->t_opt_factor : TRIB_T_OPT_FACTOR_MAX;
    trib_put_u64(writer, (uint64_t)(factor * 1e9));
    trib_put_u32(writer, roster->local_size);
    trib_put_u32(writer, roster->follows);
    trib_put_u32(writer, roster->survives);
    trib_put_u32(writer, roster->continues ? SHRINKS_AND_CONTINUES : roster->shrinks);
    trib_put_u32(writer, roster->ranks_used);
    trib_put_u32(writer, roster->lost);
    trib_put_text(writer, roster->lost_text);
    trib_put_u32(writer, roster->electors_before);
    trib_put_u32(writer, roster->newcomers);
    trib_put_u32(writer, roster->new_servers);
    trib_put_u64(writer, roster->ticket);
    for (uint32_t i = 0; i < roster->member_count; i++) {
        trib_member_info_put(writer, &roster->members[i]);
        trib_put_u32(writer, roster->members[i].former);
    }
}

bool trib_roster_can_sum_first(const trib_roster *roster, uint32_t local_size)
{
    return local_size == 0 ||
           (local_size > 1 && local_size < roster->worker_count && roster->worker_count % local_size == 0 &&
            roster->chunk_bytes <= TRIB_PAYLOAD_MAX / TRIB_PARTIAL_WIDTH_MAX);
}

/* True if reactors of the same index can find each other on a machine. */
static bool reactors_agree(const trib_roster *roster)
{
    for (uint32_t i = 1; roster->local_size > 0 && i < roster->worker_count; i++) {
        if (roster->members[i].reactors != roster->members[0].reactors) {
            return false;
        }
    }
    return true;
}

/* True if the order of ids is that of ranks. */
static bool ranks_ascend(const trib_roster *roster)
{
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        const uint32_t rank = roster->members[i].rank;
        if (rank < i || rank >= roster->ranks_used || (i > 0 && rank <= roster->members[i - 1].rank)) {
            return false;
        }
    }
    return true;
}

static bool header_is_sane(const trib_roster *head)
{
    return head->member_count >= 1 && head->member_count <= TRIB_MEMBERS_MAX && head->worker_count >= 1 &&
           head->worker_count <= head->member_count && head->server_count == head->member_count - head->worker_count &&
           head->chunk_bytes >= 4096 && head->chunk_bytes <= TRIB_PAYLOAD_MAX &&
           (head->chunk_bytes & (head->chunk_bytes - 1)) == 0 && head->partition_bytes >= head->chunk_bytes &&
           head->partition_bytes % head->chunk_bytes == 0 &&
           head->partition_bytes / head->chunk_bytes <= TRIB_SUM_CHUNKS_MAX &&
           (unsigned)head->sum_order <= TRIB_ORDER_ARRIVAL && trib_roster_can_sum_first(head, head->local_size) &&
           head->newcomers <= head->worker_count && head->new_servers <= head->server_count &&
           head->electors_before <= TRIB_MEMBERS_MAX && head->peer_timeout_ns > 0 &&
           head->t_opt_factor <= TRIB_T_OPT_FACTOR_MAX;
}

uint32_t trib_roster_peek_epoch(const void *form, size_t size)
{
    trib_reader reader = {.data = form, .left = size};
    const uint32_t epoch = trib_get_u32(&reader);
    return reader.failed ? 0 : epoch;
}

trib_status trib_roster_get(trib_reader *reader, trib_roster **roster_out, trib_error *error)
{
    trib_roster head = {.epoch = trib_get_u32(reader)};
    head.worker_count = trib_get_u32(reader);
    head.server_count = trib_get_u32(reader);
    head.member_count = trib_get_u32(reader);
    head.partition_bytes = trib_get_u32(reader);
    head.chunk_bytes = trib_get_u32(reader);
    head.sum_order = (trib_sum_order)trib_get_u32(reader);
    head.peer_timeout_ns = (int64_t)trib_get_u64(reader);
    head.t_opt_factor = (double)trib_get_u64(reader) / 1e9;
    head.local_size = trib_get_u32(reader);
    const uint32_t follows = trib_get_u32(reader);
    head.follows = follows != 0;
    const uint32_t survives = trib_get_u32(reader);
    head.survives = survives != 0;
    const uint32_t shrinks = trib_get_u32(reader);
    head.shrinks = shrinks != 0;
    head.continues = shrinks == SHRINKS_AND_CONTINUES;
    head.ranks_used = trib_get_u32(reader);
    head.lost = trib_get_u32(reader);
    trib_get_text(reader, head.lost_text, sizeof head.lost_text);
    head.electors_before = trib_get_u32(reader);
    head.newcomers = trib_get_u32(reader);
    head.new_servers = trib_get_u32(reader);
    head.ticket = trib_get_u64(reader);
    const bool may_follow = head.member_count <= TRIB_RATE_MEMBERS_MAX && head.local_size == 0;
    if (reader->failed || follows > (may_follow ? 1 : 0) || survives > 1 || shrinks > SHRINKS_AND_CONTINUES ||
        (head.survives && head.follows) || !header_is_sane(&head)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed roster");
    }
    trib_roster *roster = trib_roster_create(head.member_count);
    if (roster == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a roster of %u members", head.member_count);
    }
    *roster = head;
    for (uint32_t i = 0; i < head.member_count; i++) {
        trib_status status = trib_member_info_get(reader, &roster->members[i], error);
        if (status != TRIB_OK) {
            free(roster);
            return status;
        }
        roster->members[i].former = trib_get_u32(reader);
    }
    trib_status status = reactors_agree(roster) && ranks_ascend(roster)
                             ? trib_get_end(reader, "ROSTER", error)
                             : trib_error_set(error, TRIB_PROTOCOL, "malformed roster");
    if (status != TRIB_OK) {
        free(roster);
        return status;
    }
    *roster_out = roster;
    return TRIB_OK;
}

static bool is_loopback(const char *addresses)
{
    const char *least = trib_address_list_least(addresses);
    return strncmp(least, "127.", 4) == 0 || strncmp(least, "[::1]", 5) == 0;
}

bool trib_roster_is_one_host(const trib_roster *roster)
{
    const char *first = roster->members[0].addresses[0].text;
    for (uint32_t i = 1; i < roster->member_count; i++) {
        const char *other = roster->members[i].addresses[0].text;
        if (trib_address_list_compare_machines(first, other) != 0 && !(is_loopback(first) && is_loopback(other))) {
            return false;
        }
    }
    return true;
}

uint32_t trib_roster_networks(const trib_roster *roster, uint32_t member, uint32_t reactor)
{
    trib_assert(member < roster->member_count);
    const trib_member_info *info = &roster->members[member];
    const char *list = reactor < info->reactors ? info->addresses[reactor].text : "";
    uint32_t count = 1;
    for (const char *at = strchr(list, ','); at != NULL; at = strchr(at + 1, ',')) {
        /* An IPv4 and an IPv6 address are mostly those of one interface. */
        count += at[1] != '\0' && (at[1] == '[') == (list[0] == '[');
    }
    return info->subflows && roster->local_size == 0 && strchr(list, '+') == NULL ? count : 1;
}

bool trib_roster_has_networks(const trib_roster *roster)
{
    bool has = false;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        has = has || trib_roster_networks(roster, i, 0) > 1;
    }
    return has;
}

uint32_t trib_roster_summing(const trib_roster *roster)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        count += roster->members[i].sums && !roster->members[i].stands_by;
    }
    return count;
}

uint32_t trib_roster_summing_cores(const trib_roster *roster)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        const trib_member_info *info = &roster->members[i];
        count += info->sums && !info->stands_by ? info->reactors : 0;
    }
    return count;
}

uint32_t trib_roster_find_rank(const trib_roster *roster, uint32_t rank)
{
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        if (roster->members[i].rank == rank) {
            return i;
        }
    }
    return TRIB_NO_MEMBER;
}

const char *trib_roster_name(const trib_roster *roster, uint32_t member)
{
    return roster != NULL && member < roster->member_count ? roster->members[member].name : "an unknown member";
}
