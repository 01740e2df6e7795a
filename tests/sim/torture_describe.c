/* torture_describe.c - describes in one line what a seed has drawn. */
#include <stdarg.h>
#include <string.h>

#include "tests/sim/torture.h"

typedef struct line {
    char *text;
    size_t size, used;
} line;

__attribute__((format(printf, 2, 3))) static void say(line *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(self->text + self->used, self->size - self->used, format, arguments);
    va_end(arguments);
    self->used += more > 0 ? (size_t)more : 0;
    self->used = self->used < self->size ? self->used : self->size - 1;
}

static void describe_more(const torture_plan *plan, line *out)
{
    const uint32_t members = plan->job.workers + plan->job.servers;
    say(out, "%s%s%s; reactors", plan->shuffled ? ", priorities of their own" : "", plan->in_place ? ", in place" : "",
        plan->idles ? ", then idle" : "");
    for (uint32_t i = 0; i < members; i++) {
        say(out, " %u", plan->reactors[i]);
        if (plan->bandwidths[i] > 0) {
            say(out, " (%.1f Gbit/s)", (double)plan->bandwidths[i] / 1e9);
        }
    }
    for (uint32_t i = 0; i < plan->job.workers; i++) {
        if (plan->late_ns[i] > 0) {
            say(out, "; rank %u is late by %.3f ms", i, (double)plan->late_ns[i] / 1e6);
        }
    }
    if (plan->absent != TORTURE_NOBODY) {
        say(out, "; member %u cannot be reached for %.3f ms", plan->absent, (double)plan->absent_ns / 1e6);
    }
    if (plan->job.engine.codec != NULL) {
        say(out, "; sums in %s", plan->job.engine.codec);
    }
    if (plan->crowd > 0) {
        say(out, "; a crowd of %u tensors", plan->crowd);
    }
    if (plan->prompt) {
        say(out, "; whoever is done leaves while others are connecting");
    }
    if (plan->job.stagger_one_in > 0) {
        say(out, "; one in %u turns leaves posts to the next, by up to %.3f ms", plan->job.stagger_one_in,
            (double)plan->job.stagger_ns / 1e6);
    }
    if (plan->job.net.sent_late_ns > 0) {
        say(out, "; sends are reported up to %.3f ms late", (double)plan->job.net.sent_late_ns / 1e6);
    }
    if (plan->early_leaver != TORTURE_NOBODY) {
        say(out, "; rank %u leaves after %u rounds", plan->early_leaver, plan->early_leaver_rounds);
        plan->haste_ns > 0 ? say(out, ", %.3f ms after it began them at most", (double)plan->haste_ns / 1e6) : (void)0;
    }
    if (plan->narrow != TORTURE_NOBODY) {
        say(out, "; little gets through to rank %u (%.2f Mbit/s)", plan->narrow, (double)plan->narrow_bits / 1e6);
    }
    if (plan->held_rank != TORTURE_NOBODY) {
        say(out, "; rank %u begins with tensor %u after %.3f ms", plan->held_rank, plan->held_tensor,
            (double)plan->held_ns / 1e6);
    }
    if (plan->odd_rank != TORTURE_NOBODY) {
        say(out, "; rank %u disagrees about tensor %u in round %d", plan->odd_rank, plan->odd_tensor, plan->odd_round);
    }
}

static void say_pace(const torture_plan *plan, line *out)
{
    if (plan->pace_ns > 0) {
        say(out, ", each at its own pace, jobs of up to %.3f ms", (double)plan->pace_ns / 1e6);
    }
    if (plan->pace_ns > 0 && plan->dawdler != TORTURE_NOBODY) {
        say(out, ", of rank %u longer", plan->dawdler);
    }
}

static void describe_tensors(const torture_plan *plan, line *out)
{
    static const char *const exchanges[TORTURE_EXCHANGES] = {"whole", "reduce", "gather", "scatter", "pairs"};
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const torture_tensor *what = &plan->tensors[i];
        say(out, " %s %s[%u]x%u%s%s%s", trib_reduce_name(what->reduce), trib_dtype_name(what->dtype), what->count,
            what->rounds, what->root >= 0 ? " broadcast" : "", what->on_device ? " on devices" : "",
            what->inexact ? " rounded" : "");
        if (what->exchange != TORTURE_WHOLE) {
            say(out, " (%s, shape %u)", exchanges[what->exchange], what->shape);
        }
        if (what->prescale != 0 || what->postscale != 0) {
            say(out, " (times %.3g, %.3g)", what->prescale, what->postscale);
        }
        if (what->group != 0) {
            say(out, " (group 0x%x%s%s", what->group, what->backwards ? " backwards" : "",
                what->regroups ? ", released" : "");
            if (what->other_group != 0) {
                say(out, ", then 0x%x", what->other_group);
            }
            say(out, ")");
        }
        if (what->stays != 0) {
            say(out, " (buffers stay on 0x%x)", what->stays);
        }
    }
}

static void say_mates(const torture_plan *plan, line *out)
{
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i].has_mates ? say(out, "; %u shares its name", i) : (void)0;
    }
}

void torture_describe(const torture_plan *plan, char *text, size_t size)
{
    static const char *const kinds[TORTURE_MISS + 1] = {"freeze",
                                                        "slow",
                                                        "partition",
                                                        "relink",
                                                        "jump",
                                                        "reset",
                                                        "half cut",
                                                        "forget",
                                                        "kill",
                                                        "alloc_failures",
                                                        "break the device of",
                                                        "lose",
                                                        "one allocation fails at"};
    line out = {.text = text, .size = size};
    const sim_job_config *job = &plan->job;
    say(&out, "seed %llu: %u workers, %u servers%s, %u cores%s, %.1f/%.1f Gbit/s, latency %.3f ms",
        (unsigned long long)plan->seed, job->workers, job->servers,
        job->engine.colocate == TRIB_COLOCATE_OFF ? " alone" : "", job->cores, job->one_machine ? " shared" : "",
        (double)job->link.egress_bits / 1e9, (double)job->link.ingress_bits / 1e9, (double)job->link.latency_ns / 1e6);
    say(&out, "; chunk %u, partition %u, %s order; window %u; tensors", job->engine.chunk_bytes,
        job->engine.partition_bytes, job->engine.sum_order == TRIB_ORDER_RANK ? "rank" : "arrival", plan->window);
    describe_tensors(plan, &out);
    say_mates(plan, &out);
    describe_more(plan, &out);
    if (job->per_machine > 0) {
        say(&out, "; %u workers a machine, which sum first%s", job->per_machine,
            job->links_apart ? "" : ", on one link");
    }
    if (job->net.ahead > 0) {
        say(&out, "; receivers are asked about %u messages ahead", job->net.ahead);
    }
    if (plan->local_size > 0) {
        say(&out, "; devices, %u a machine", plan->local_size);
        say_pace(plan, &out);
    }
    if (plan->weather.shred_one_in > 0) {
        say(&out, "; weather: 1 in %u shredded, 1 in %u late by up to %.3f ms", (unsigned)plan->weather.shred_one_in,
            (unsigned)plan->weather.delay_one_in, (double)plan->weather.delay_ns / 1e6);
    }
    if (job->net.second_connections) {
        say(&out, "; second connections");
    }
    for (uint32_t i = 0; i < TRIB_SIM_NETWORKS_MAX - 1 && job->further[i].egress_bits > 0; i++) {
        say(&out, "; a further link, %.3f Gbit/s, latency %.3f ms", (double)job->further[i].egress_bits / 1e9,
            (double)job->further[i].latency_ns / 1e6);
    }
    if (job->net.offloads) {
        say(&out, "; past the host");
    }
    if (plan->restless_ns > 0) {
        say(&out, "; dealt anew every %.3f ms", (double)plan->restless_ns / 1e6);
    }
    if (plan->lives > 0) {
        say(&out, "; tensors released after every %u rounds", plan->lives);
    }
    if (plan->lap > 0) {
        say(&out, "; all join after every %u rounds, workers after", plan->lap);
        for (uint32_t i = 0; i < job->workers; i++) {
            say(&out, " %u", plan->stops[i]);
        }
    }
    static const char *const attacks[] = {
        [TORTURE_NO_ATTACK] = "",
        [TORTURE_FLIPS] = "; bits flip",
        [TORTURE_FORGERY] = "; frames are forged",
        [TORTURE_SILENCE] = "; one member falls silent",
        [TORTURE_STRANGERS] = "; strangers come",
    };
    say(&out, "%s", attacks[plan->attack]);
    if (plan->cancels > 0) {
        say(&out, "; 1 operation in %u cancelled", plan->cancels);
    }
    if (plan->leaves) {
        say(&out, "; workers leave when they are done");
    }
    if (plan->hurried > 0) {
        say(&out, "; 1 operation in %u hurried", plan->hurried);
    }
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const torture_fault *fault = &plan->faults[i];
        say(&out, "; %s member %u at %.3f ms for %.3f ms (%.0f)", kinds[fault->kind], fault->member,
            (double)fault->at_ns / 1e6, (double)fault->for_ns / 1e6, fault->amount);
    }
}
