/* replay_links.c - finds links that were slower than others in a recording. A replay gives all links one rate. */
#include <stdio.h>

#include "tools/study/replay.h"

#define ALIKE_TOLD 0.95
/* Members of one kind with equal links carry equal bytes, so a member that carried less, and more slowly, has been
 * given a smaller share. The difference is smaller where tensors are not cut finely enough. */
#define ALIKE_SEEN 0.8

typedef struct link_rate {
    uint32_t member;
    double bits;
} link_rate;

static void take_rate(link_rate *slowest, link_rate *fastest, uint32_t member, double bits)
{
    if (bits > 0 && (slowest->bits <= 0 || bits < slowest->bits)) {
        *slowest = (link_rate){member, bits};
    }
    if (bits > fastest->bits) {
        *fastest = (link_rate){member, bits};
    }
}

static double rate_of(const trace_link_use *use)
{
    return use->out_bits > use->in_bits ? use->out_bits : use->in_bits;
}

static double bytes_of(const trace_link_use *use)
{
    return (double)use->out_bytes + (double)use->in_bytes;
}

/* Compares workers, or dedicated servers: the one that carried most, and one that carried clearly less at clearly
 * less than its rate. */
static void compare_members(const trace_run *run, const trace_stats *stats, uint32_t from, uint32_t to,
                            link_rate *slowest, link_rate *fastest)
{
    uint32_t most = from;
    for (uint32_t i = from; i < to; i++) {
        most = bytes_of(&stats->links[i]) > bytes_of(&stats->links[most]) ? i : most;
    }
    for (uint32_t i = from; i < to; i++) {
        const trace_link_use *use = &stats->links[i], *full = &stats->links[most];
        if (trace_run_machine(run, i) == i && rate_of(use) < ALIKE_SEEN * rate_of(full) &&
            bytes_of(use) < ALIKE_SEEN * bytes_of(full)) {
            take_rate(slowest, fastest, i, rate_of(use));
            take_rate(slowest, fastest, most, rate_of(full));
        }
    }
}

void study_replay_note_links(const trace_run *run, const trace_stats *stats, char *text, size_t size)
{
    link_rate slowest = {.bits = 0}, fastest = {.bits = 0};
    text[0] = '\0';
    if (run->one_host) {
        return;
    }
    for (uint32_t i = 0; i < run->member_count; i++) {
        take_rate(&slowest, &fastest, i, (double)run->members[i].bandwidth);
    }
    const bool told = slowest.bits < ALIKE_TOLD * fastest.bits;
    if (!told) {
        slowest = fastest = (link_rate){.bits = 0};
        compare_members(run, stats, 0, run->worker_count, &slowest, &fastest);
        compare_members(run, stats, run->worker_count, run->worker_count + run->server_count, &slowest, &fastest);
    }
    if (fastest.bits > 0 && run->members != NULL && (told || slowest.bits > 0)) {
        snprintf(
            text, size,
            "the links had different rates, and a replay gives all of them one rate: %s %s %.4g Gbit/s, %s %.4g Gbit/s",
            run->members[slowest.member].name, told ? "was said to have" : "held", slowest.bits / 1e9,
            run->members[fastest.member].name, fastest.bits / 1e9);
    }
}
