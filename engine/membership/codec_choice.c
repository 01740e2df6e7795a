/* codec_choice.c - see codec_choice.h. */
#include "engine/membership/codec_choice.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/kernel_ops.h"
#include "engine/codec/codec_measure.h"
#include "engine/tracer/tracer.h"

#define PROBE_BYTES (256u << 10) /* the most: some round trips of a network, so that its rate shows */
#define PROBE_TURNS 6u           /* an empty one, which says how long the way takes; 4 KiB, 16, 64 and twice 256 */
/* no larger probe is sent after one that took this long, and clearly longer than the empty one, */
#define PROBE_LONG_NS 5000000
/* or after one that took this long in any case: a slow link also carries signs of life */
#define PROBE_LONGEST_NS 100000000
#define PROBES_MAX 8u /* most members that are probed; more would take longer than they tell */
#define MADE_MAX 32u

typedef struct made_choice {
    char codec[TRIB_CODEC_TEXT_SIZE];
    trib_dtype dtype;
    uint32_t choice;
} made_choice;

struct trib_codec_chooser {
    bool is_measured; /* the links were measured, as far as they will be */
    double link_bits; /* rate of the slowest known link; 0: no link is known */
    bool is_told;     /* the rate is the configured one */
    uint32_t member;  /* the member that is probed; the search for the next one begins there */
    uint32_t probed;  /* number of members that have answered */
    uint32_t turn;    /* number of the probe that was sent */
    int64_t sent_ns, empty_ns;
    double best_bits; /* best rate of the last two probes, which have as many bytes */
    bool is_waiting;
    made_choice made[MADE_MAX];
    uint32_t made_count;
};

/* ---- Links ---- */

static void note_rate(struct trib_codec_chooser *mine, double bits)
{
    mine->link_bits = mine->link_bits == 0 || bits < mine->link_bits ? bits : mine->link_bits;
}

/* Takes the configured rates. Returns true if every member has one. */
static bool take_told(const trib_coordinator *self, struct trib_codec_chooser *mine)
{
    bool all = true;
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        const uint64_t bits = self->roster->members[i].bandwidth;
        all = all && bits > 0;
        if (bits > 0) {
            note_rate(mine, (double)bits);
        }
    }
    return all;
}

static uint32_t probe_bytes(uint32_t turn)
{
    const uint32_t bytes = turn == 0 ? 0 : 1024u << 2 * turn;
    return bytes < PROBE_BYTES ? bytes : PROBE_BYTES;
}

/* Returns false if there is no memory. */
static bool send_probe(trib_coordinator *self, uint32_t turn)
{
    struct trib_codec_chooser *mine = self->chooser;
    const size_t size = probe_bytes(turn);
    trib_assert(turn < PROBE_TURNS && self->slots[mine->member].link != NULL);
    unsigned char *payload = calloc(1, PROBE_BYTES);
    if (payload == NULL) {
        return false;
    }
    mine->turn = turn;
    mine->sent_ns = trib_now(self->core->reactor);
    mine->is_waiting = true;
    trib_link_send_copy(self->slots[mine->member].link, (trib_frame){.type = TRIB_FRAME_PROBE}, payload, size);
    free(payload);
    return true;
}

/* The coordinator's own process has no link that would tell anything. */
static bool may_probe(const trib_coordinator *self, uint32_t member)
{
    return member != self->core->engine->member_id && self->slots[member].link != NULL && !self->slots[member].lost;
}

/* Goes on with the next member. Returns false if there is none. */
static bool probe_next(trib_coordinator *self)
{
    struct trib_codec_chooser *mine = self->chooser;
    const uint32_t count = trib_coordinator_slots(self);
    while (mine->member < count && !may_probe(self, mine->member)) {
        mine->member++;
    }
    mine->is_waiting = false;
    if (mine->member < count && mine->probed < PROBES_MAX && !self->over && send_probe(self, 0)) {
        return true;
    }
    mine->is_measured = true;
    return false;
}

trib_status trib_codec_choice_take_probed(trib_coordinator *self, uint32_t member, trib_error *error)
{
    struct trib_codec_chooser *mine = self->chooser;
    if (mine == NULL || !mine->is_waiting || mine->member != member) {
        return trib_error_set(error, TRIB_PROTOCOL, "PROBED without a PROBE");
    }
    const int64_t took_ns = trib_now(self->core->reactor) - mine->sent_ns;
    if (mine->turn == 0) {
        mine->empty_ns = took_ns;
        mine->best_bits = 0;
    }
    const int64_t bytes_ns = took_ns - mine->empty_ns;
    const double bits = probe_bytes(mine->turn) * 8e9 / (double)(bytes_ns > 0 ? bytes_ns : 1);
    const bool is_long = bytes_ns >= PROBE_LONGEST_NS || (bytes_ns >= PROBE_LONG_NS && bytes_ns >= 4 * mine->empty_ns);
    const bool is_again = mine->turn + 1 == PROBE_TURNS;
    mine->best_bits = is_again && bits < mine->best_bits ? mine->best_bits : bits;
    if (!is_long && !is_again && send_probe(self, mine->turn + 1)) {
        return TRIB_OK;
    }
    note_rate(mine, mine->best_bits);
    mine->probed++;
    mine->member++;
    if (!probe_next(self)) {
        trib_serves_check(self);
    }
    return TRIB_OK;
}

void trib_codec_choice_close(trib_coordinator *self)
{
    free(self->chooser);
    self->chooser = NULL;
}

/* ---- Processors ---- */

static int64_t now_of(void *user)
{
    trib_core *core = user;
    return trib_now(core->reactor);
}

static void charge_of(void *user, bool is_encoded, size_t bytes)
{
    trib_core *core = user;
    trib_charge(core->reactor, is_encoded ? TRIB_COST_ENCODE : TRIB_COST_DECODE, bytes);
}

/* Returns the nanoseconds for each byte that is added; below 0: memory ran out. */
static double measure_sum(trib_core *core)
{
    const size_t bytes = TRIB_CODEC_SAMPLE_COUNT * sizeof(float);
    float *elements = calloc(2, bytes);
    int64_t best_ns = INT64_MAX;
    for (uint32_t i = 0; i < TRIB_CODEC_SAMPLE_TURNS && elements != NULL; i++) {
        const int64_t began_ns = trib_now(core->reactor);
        trib_kernel_combine(core->engine->env.kernels, TRIB_FLOAT32, TRIB_SUM, elements, elements, TRIB_FORM_ACC,
                            elements + TRIB_CODEC_SAMPLE_COUNT, TRIB_FORM_WIRE, TRIB_CODEC_SAMPLE_COUNT);
        trib_charge(core->reactor, TRIB_COST_SUM, bytes);
        const int64_t took_ns = trib_now(core->reactor) - began_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    const bool is_measured = elements != NULL;
    free(elements);
    return is_measured ? (double)best_ns / (double)bytes : -1;
}

/* ---- The choice ---- */

/* Returns the reason why no codec is possible, or NULL. */
static const char *say_impossible(const trib_coordinator *self, const struct trib_codec_chooser *mine)
{
    return self->roster->local_size > 0 ? "the workers of a machine sum first"
           : self->roster->survives     ? "the job survives the loss of servers"
           : mine->link_bits == 0       ? "there is no link"
                                        : NULL;
}

/* Writes the choice into the log, and into the trace. */
static void tell(const trib_coordinator *self, trib_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void tell(const trib_coordinator *self, trib_log_level level, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    trib_log(self->core->reactor->logger, level, "%s", text);
    trib_tracer_note_choice(self->core->engine, text);
}

static void log_choice(const trib_coordinator *self, const trib_registry_entry *entry, const trib_codec_step *step,
                       const trib_codec_choices *choices, const trib_codec_speed *speeds, uint32_t choice)
{
    char text[600], one[TRIB_CODEC_TEXT_SIZE];
    int used = snprintf(text, sizeof text, "none %.3g", trib_codec_step_ns(step, NULL, NULL));
    for (uint32_t i = 0; i < choices->count && used < (int)sizeof text; i++) {
        used += snprintf(text + used, sizeof text - (size_t)used, ", %.80s %.3g (encodes %.3g, decodes %.3g)",
                         trib_codec_format(&choices->items[i], one),
                         trib_codec_step_ns(step, &choices->items[i], &speeds[i]), speeds[i].encode_ns,
                         speeds[i].decode_ns);
    }
    tell(self, TRIB_LOG_INFO,
         "tensor \"%s\" and its like: auto chose %s; links carry %.4g Gbit/s (%s), sums take %.3g ns a byte; a "
         "step, in ns a byte: %s",
         entry->name, choice == 0 ? "none" : trib_codec_format(&choices->items[choice - 1], one),
         self->chooser->link_bits / 1e9, self->chooser->is_told ? "as configured" : "measured", step->sum_ns, text);
}

static uint32_t choose(const trib_coordinator *self, const trib_registry_entry *entry)
{
    const trib_roster *roster = self->roster;
    const char *why = say_impossible(self, self->chooser);
    trib_codec_choices choices;
    trib_codec_speed speeds[TRIB_CODEC_CHOICES_MAX];
    if (why == NULL && trib_codec_auto_parse(&self->core->engine->codecs, entry->codec, &choices, NULL) != TRIB_OK) {
        why = "the coordinator lacks a codec of the list";
    }
    if (why != NULL) {
        tell(self, TRIB_LOG_INFO, "tensor \"%s\" and its like: auto chose none: %s", entry->name, why);
        return 0;
    }
    const trib_codec_clock clock = {.now_ns = now_of, .charge = charge_of, .user = self->core};
    const trib_codec_step step = {.link_ns = roster->t_opt_factor * 8e9 / self->chooser->link_bits,
                                  .sum_ns = measure_sum(self->core),
                                  .workers = roster->worker_count,
                                  .summing = trib_roster_summing(roster),
                                  .reactors = roster->members[0].reactors,
                                  .workers_sum = roster->members[0].sums};
    bool is_measured = step.sum_ns >= 0;
    for (uint32_t i = 0; i < choices.count && is_measured; i++) {
        is_measured = trib_codec_measure(&clock, &choices.items[i], entry->dtype, &speeds[i]);
    }
    if (!is_measured) {
        tell(self, TRIB_LOG_WARN,
             "tensor \"%s\" and its like: auto chose none: a codec failed, or takes no float32, by which they "
             "are measured, or there was no memory for that",
             entry->name);
        return 0;
    }
    const uint32_t choice = trib_codec_auto_choose(&step, &choices, speeds);
    log_choice(self, entry, &step, &choices, speeds, choice);
    return choice;
}

static const made_choice *find_made(const struct trib_codec_chooser *mine, const trib_registry_entry *entry)
{
    for (uint32_t i = 0; i < mine->made_count; i++) {
        if (mine->made[i].dtype == entry->dtype && strcmp(mine->made[i].codec, entry->codec) == 0) {
            return &mine->made[i];
        }
    }
    return NULL;
}

bool trib_codec_choice_make(trib_coordinator *self, trib_registry_entry *entry)
{
    if (!trib_codec_is_auto(entry->codec) || entry->is_chosen) {
        return true;
    }
    if (self->chooser == NULL) {
        self->chooser = trib_core_zalloc(self->core, sizeof *self->chooser);
        if (self->chooser == NULL) {
            return true; /* it goes without */
        }
        self->chooser->is_told = take_told(self, self->chooser);
        self->chooser->is_measured = self->chooser->is_told || self->roster->local_size > 0 || self->roster->survives ||
                                     trib_roster_is_one_host(self->roster);
        if (!self->chooser->is_measured) {
            (void)probe_next(self);
        }
    }
    struct trib_codec_chooser *mine = self->chooser;
    if (!mine->is_measured && !may_probe(self, mine->member)) {
        (void)probe_next(self); /* its link has ended meanwhile */
    }
    if (!mine->is_measured) {
        return false;
    }
    const made_choice *made = find_made(mine, entry);
    entry->choice = made != NULL ? made->choice : choose(self, entry);
    trib_assert(entry->choice <= TRIB_CODEC_CHOICES_MAX);
    entry->is_chosen = true;
    if (made == NULL && mine->made_count < MADE_MAX) {
        made_choice *next = &mine->made[mine->made_count++];
        next->dtype = entry->dtype;
        next->choice = entry->choice;
        memcpy(next->codec, entry->codec, sizeof next->codec);
    }
    return true;
}
