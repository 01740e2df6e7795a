/*
 * tune.c - `tributary tune`: searches the settings under which a recorded step is fastest, in virtual time.
 *
 * The search is by coordinates: each setting in turn takes the value of its grid that gives the shortest step while
 * the others stay, until a whole round brings no worthwhile improvement. The same traces give the same result. The
 * command also tells what other machines, links or a codec would bring.
 *
 * Looks inside the library: tools/study/.
 */
#include <getopt.h> /* optind */
#include <sys/ioctl.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/cli/plural.h"
#include "tools/study/replay_options.h"

#define ROUNDS_MAX 4u
#define RUNS_MAX 512u
#define WORTH 0.002      /* share of the step; a smaller gain is no reason to change a setting */
#define CODEC_WORTH 0.05 /* share of the step; a smaller gain is no reason to lose bits */
#define VALUES_MAX 10u

typedef enum coordinate { CREDIT, PARTITION, CHUNK, PRIORITIES, COLOCATE, LOCAL_SUM, COORDINATES } coordinate;

enum { PRIORITIES_RECORDED, PRIORITIES_NONE, PRIORITIES_BY_ORDER };

static const struct {
    const char *name;
    int64_t values[VALUES_MAX]; /* -1 ends them */
} grid[COORDINATES] = {
    [CREDIT] = {"credit", {128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, -1}},
    [PARTITION] = {"partition", {256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, -1}},
    [CHUNK] = {"chunk", {64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, -1}},
    [PRIORITIES] = {"priorities", {PRIORITIES_RECORDED, PRIORITIES_NONE, PRIORITIES_BY_ORDER, -1}},
    [COLOCATE] = {"colocate", {TRIB_COLOCATE_AUTO, TRIB_COLOCATE_OFF, TRIB_COLOCATE_ON, -1}},
    [LOCAL_SUM] = {"local sum", {TRIB_LOCAL_SUM_AUTO, TRIB_LOCAL_SUM_OFF, TRIB_LOCAL_SUM_ON, -1}},
};

typedef struct setting {
    int64_t values[COORDINATES];
} setting;

typedef struct tuning {
    const replay_options *options;
    const study_replay *replay;
    study_step_config base;
    setting tried[RUNS_MAX];
    int64_t tried_ns[RUNS_MAX]; /* INT64_MAX: the setting is impossible */
    uint32_t runs;
    bool failed;
    struct codec_trial *trials;
    uint32_t trial_count; /* 0: codecs were not asked for */
} tuning;

typedef struct what_if {
    char name[80];
    int64_t step_ns;
} what_if;

/* From the one that loses least to the one that loses most (docs/codecs.md). */
static const char *const codecs[] = {"bf16,two_way", "int8,ef=vanilla,two_way", "onebit,ef=vanilla,two_way"};
#define CODECS (sizeof codecs / sizeof codecs[0])

typedef struct codec_trial {
    study_codec codec;
    int64_t step_ns; /* with the best settings, and this codec */
} codec_trial;

static double to_ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void name_value(coordinate which, int64_t value, char *text, size_t size)
{
    static const char *const priorities[] = {"as recorded", "none", "what forward needs first"};
    if (which == PRIORITIES || which == COLOCATE || which == LOCAL_SUM) {
        snprintf(text, size, "%s", (which == PRIORITIES ? priorities : option_when_words)[value]);
    } else if (value % (1 << 20) == 0) {
        snprintf(text, size, "%lldM", (long long)(value >> 20));
    } else {
        snprintf(text, size, "%lldK", (long long)(value >> 10));
    }
}

/* ---- Running ---- */

static setting setting_of(const study_step_config *step)
{
    const trib_config *engine = &step->job.engine;
    return (setting){.values = {
                         [CREDIT] = engine->push_credit_bytes,
                         [PARTITION] = engine->partition_bytes,
                         [CHUNK] = engine->chunk_bytes,
                         [PRIORITIES] = !step->priorities ? PRIORITIES_NONE
                                        : step->by_order  ? PRIORITIES_BY_ORDER
                                                          : PRIORITIES_RECORDED,
                         [COLOCATE] = engine->colocate,
                         [LOCAL_SUM] = engine->local_sum,
                     }};
}

static study_step_config apply_setting(const study_step_config *base, const setting *set)
{
    study_step_config step = *base;
    trib_config *engine = &step.job.engine;
    engine->push_credit_bytes = engine->pull_credit_bytes = (uint32_t)set->values[CREDIT];
    engine->partition_bytes = (uint32_t)set->values[PARTITION];
    engine->chunk_bytes = (uint32_t)set->values[CHUNK];
    step.priorities = set->values[PRIORITIES] != PRIORITIES_NONE;
    step.by_order = set->values[PRIORITIES] == PRIORITIES_BY_ORDER;
    engine->colocate = (trib_colocate)set->values[COLOCATE];
    engine->local_sum = (trib_local_sum)set->values[LOCAL_SUM];
    return step;
}

/* Tells whether the setting is possible. Local sums are tried only where a machine has several workers; otherwise
 * they change nothing. */
static bool can_be(const tuning *self, const setting *set)
{
    const sim_job_config *job = &self->base.job;
    const uint32_t each = job->per_machine > 0 ? job->per_machine : self->replay->per_machine;
    return set->values[PARTITION] % set->values[CHUNK] == 0 &&
           !(set->values[COLOCATE] == TRIB_COLOCATE_OFF && job->servers == 0) &&
           (each > 1 || set->values[LOCAL_SUM] == (int64_t)job->engine.local_sum);
}

/* Prints a progress line, which is cut at the terminal's width so that the next one can overwrite it. */
static void show_progress(const tuning *self, const char *text)
{
    struct winsize terminal = {.ws_col = 0};
    if (!self->options->quiet && isatty(STDERR_FILENO)) {
        const bool narrow =
            ioctl(STDERR_FILENO, TIOCGWINSZ, &terminal) == 0 && terminal.ws_col > 0 && terminal.ws_col <= 70;
        const int width = narrow ? terminal.ws_col - 1 : 70;
        fprintf(stderr, "\r%-*.*s", width, width, text);
    }
}

static int64_t run_step(tuning *self, const study_step_config *step)
{
    study_step_result result;
    trib_error error = {.status = TRIB_OK};
    if (study_replay_run(self->replay, step, &result, NULL, &error) != TRIB_OK) {
        fprintf(stderr, "%stributary tune: %s\n", isatty(STDERR_FILENO) ? "\n" : "", error.text);
        self->failed = true;
        return INT64_MAX;
    }
    return result.step_ns;
}

static int64_t try_setting(tuning *self, const setting *set)
{
    for (uint32_t i = 0; i < self->runs; i++) {
        if (memcmp(&self->tried[i], set, sizeof *set) == 0) {
            return self->tried_ns[i];
        }
    }
    if (self->failed || self->runs == RUNS_MAX || !can_be(self, set)) {
        return INT64_MAX;
    }
    const study_step_config step = apply_setting(&self->base, set);
    char text[80];
    snprintf(text, sizeof text, "run %u: credit %lldK partition %lldK chunk %lldK", self->runs + 1,
             (long long)set->values[CREDIT] >> 10, (long long)set->values[PARTITION] >> 10,
             (long long)set->values[CHUNK] >> 10);
    show_progress(self, text);
    self->tried[self->runs] = *set;
    self->tried_ns[self->runs] = run_step(self, &step);
    return self->tried_ns[self->runs++];
}

/* ---- Searching ---- */

/* Changes one value. A partition that is smaller than its chunk changes the chunk too, and a chunk larger than its
 * partition the partition. */
static setting change_setting(const setting *from, coordinate which, int64_t value)
{
    setting to = *from;
    to.values[which] = value;
    if (which == PARTITION && to.values[CHUNK] > value) {
        to.values[CHUNK] = value;
    } else if (which == CHUNK && to.values[PARTITION] < value) {
        to.values[PARTITION] = value;
    }
    return to;
}

static bool improve_coordinate(tuning *self, coordinate which, setting *best, int64_t *best_ns)
{
    const setting from = *best;
    const double enough = (double)*best_ns * (1 - WORTH);
    int64_t found_ns = *best_ns;
    for (unsigned i = 0; grid[which].values[i] >= 0; i++) {
        const setting to = change_setting(&from, which, grid[which].values[i]);
        const int64_t ns = try_setting(self, &to);
        if (ns < found_ns && (double)ns < enough) {
            found_ns = ns;
            *best = to;
        }
    }
    const bool better = found_ns < *best_ns;
    *best_ns = found_ns;
    return better;
}

/* Resets the settings whose change does not gain enough. */
static void take_back(tuning *self, const setting *before, setting *best, int64_t *best_ns)
{
    for (unsigned which = 0; which < COORDINATES; which++) {
        if (best->values[which] != before->values[which]) {
            const setting back = change_setting(best, (coordinate)which, before->values[which]);
            const int64_t ns = try_setting(self, &back);
            if ((double)ns <= (double)*best_ns * (1 + WORTH)) {
                *best = back;
                *best_ns = ns;
            }
        }
    }
}

static void search_settings(tuning *self, const setting *before, setting *best, int64_t *best_ns)
{
    bool better = true;
    for (unsigned round = 0; better && round < ROUNDS_MAX && !self->failed; round++) {
        better = false;
        for (unsigned which = 0; which < COORDINATES; which++) {
            better = improve_coordinate(self, (coordinate)which, best, best_ns) || better;
        }
    }
    take_back(self, before, best, best_ns);
}

/* ---- What other machines would bring ---- */

static uint32_t list_what_ifs(tuning *self, const setting *best, what_if *list)
{
    uint32_t count = 0;
    const study_step_config now = apply_setting(&self->base, best);
    const uint32_t workers = now.job.workers, servers = now.job.servers;
    const uint32_t more[] = {servers + 1, (workers + 1) / 2, workers};
    uint32_t least = servers + 1;
    for (unsigned i = 0; i < 3 && !self->failed; i++) {
        if (more[i] < least) {
            continue;
        }
        least = more[i] + 1;
        study_step_config step = now;
        step.job.servers = more[i];
        step.job.engine.colocate = TRIB_COLOCATE_AUTO;
        snprintf(list[count].name, sizeof list[count].name, "%u server%s in place of %u", more[i], plural(more[i]),
                 servers);
        show_progress(self, list[count].name);
        list[count++].step_ns = run_step(self, &step);
    }
    const unsigned first =
        self->replay->one_host && now.job.per_machine == 0 ? 1 : 0; /* without a link its rate is not tried */
    for (unsigned i = first; i < 3 && !self->failed; i++) {
        study_step_config step = now;
        if (i == 0) {
            step.job.link.egress_bits = step.job.link.ingress_bits = now.job.link.egress_bits * 2;
            snprintf(list[count].name, sizeof list[count].name, "links of %.3g Gbit/s in place of %.3g",
                     (double)step.job.link.egress_bits / 1e9, (double)now.job.link.egress_bits / 1e9);
        } else if (i == 1) {
            step.codec_ratio = now.codec_ratio / 2;
            snprintf(list[count].name, sizeof list[count].name, "half the bytes on the wire (a codec)");
        } else {
            step.cross_barrier = true;
            snprintf(list[count].name, sizeof list[count].name, "forward without a barrier, by layers");
        }
        if (i < 2 || !now.cross_barrier) {
            show_progress(self, list[count].name);
            list[count++].step_ns = run_step(self, &step);
        }
    }
    return count;
}

/* ---- Codecs ---- */

static void try_codecs(tuning *self, const setting *best, codec_trial trials[CODECS])
{
    self->trials = trials;
    for (size_t i = 0; i < CODECS && self->options->codecs && !self->failed; i++) {
        study_step_config step = apply_setting(&self->base, best);
        codec_trial *trial = &trials[i];
        trib_error error = {.status = TRIB_OK};
        if (study_codec_read(codecs[i], &trial->codec, &error) != TRIB_OK) {
            fprintf(stderr, "tributary tune: %s\n", error.text);
            self->failed = true;
            return;
        }
        show_progress(self, codecs[i]);
        step.codec = trial->codec;
        trial->step_ns = run_step(self, &step);
        self->trial_count++;
    }
}

/* Returns the one to propose: each that loses more has to gain enough. NULL: none. */
static const codec_trial *best_trial(const tuning *self, int64_t best_ns)
{
    const codec_trial *found = NULL;
    for (uint32_t i = 0; i < self->trial_count; i++) {
        const int64_t least_ns = found == NULL ? best_ns : found->step_ns;
        if ((double)self->trials[i].step_ns < (double)least_ns * (1 - CODEC_WORTH)) {
            found = &self->trials[i];
        }
    }
    return found;
}

static void print_codecs(const tuning *self, int64_t best_ns)
{
    const codec_trial *found = best_trial(self, best_ns);
    if (self->trial_count > 0) {
        printf("\nand with codecs, which lose bits (docs/codecs.md)\n");
    }
    for (uint32_t i = 0; i < self->trial_count; i++) {
        const codec_trial *trial = &self->trials[i];
        char bits[80];
        study_codec_bits(&trial->codec, bits, sizeof bits);
        printf("  %-42s %10.2f ms  (%+.1f %%)  %s\n", trial->codec.text, to_ms(trial->step_ns),
               100 * ((double)trial->step_ns / (double)best_ns - 1), bits);
    }
    if (found != NULL) {
        printf("TRIB_CODEC=\"%s\" gains %.2f ms a step; compare the accuracy\n", found->codec.text,
               to_ms(best_ns - found->step_ns));
    } else if (self->trial_count > 0) {
        printf("no codec gains enough to lose bits for it\n");
    }
}

static json_t *pack_codecs(const tuning *self, int64_t best_ns)
{
    json_t *list = json_array();
    const codec_trial *found = best_trial(self, best_ns);
    for (uint32_t i = 0; i < self->trial_count; i++) {
        const codec_trial *trial = &self->trials[i];
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:b, s:b}", "codec", trial->codec.text, "step_ms",
                                              to_ms(trial->step_ns), "bits", 32 * trial->codec.speed.ratio, "two_way",
                                              trial->codec.two_way, "proposed", trial == found));
    }
    return list;
}

/* ---- Printing ---- */

/* Returns the step time if that setting alone were as before. */
static int64_t time_without(tuning *self, const setting *before, const setting *best, coordinate which)
{
    const setting back = change_setting(best, which, before->values[which]);
    return try_setting(self, &back);
}

static bool print_text(tuning *self, const setting *before, const setting *best, int64_t before_ns, int64_t best_ns,
                       const what_if *list, uint32_t count)
{
    show_progress(self, "");
    if (!self->options->quiet && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r");
    }
    const study_replay *replay = self->replay;
    printf("recorded: %u worker%s + %u server%s, step %.2f ms of which %.2f computing\n", self->base.job.workers,
           plural(self->base.job.workers), self->base.job.servers, plural(self->base.job.servers),
           to_ms(replay->step_ns), to_ms(replay->compute_ns));
    replay_print_rate(self->options, replay, stdout);
    replay_print_distance((double)replay->step_ns, (double)before_ns, stdout);
    printf("as it is now       %10.2f ms  (replayed)\nwith the best    %9.2f ms  (%+.1f %%), %u settings tried\n\n",
           to_ms(before_ns), to_ms(best_ns), 100 * ((double)best_ns / (double)before_ns - 1), self->runs);
    printf("  %-12s %-26s %-26s %s\n", "setting", "now", "best", "gain of this setting alone");
    for (unsigned which = 0; which < COORDINATES; which++) {
        char now[40], then[40];
        name_value((coordinate)which, before->values[which], now, sizeof now);
        name_value((coordinate)which, best->values[which], then, sizeof then);
        const bool same = before->values[which] == best->values[which];
        const int64_t back_ns = same ? best_ns : time_without(self, before, best, (coordinate)which);
        printf("  %-12s %-26s %-26s ", grid[which].name, now, same ? "the same" : then);
        if (same || back_ns == INT64_MAX) {
            printf("-\n");
        } else {
            printf("%.2f ms (%.1f %%)\n", to_ms(back_ns - best_ns),
                   100 * (double)(back_ns - best_ns) / (double)back_ns);
        }
    }
    printf("\nand beyond settings\n");
    for (uint32_t i = 0; i < count; i++) {
        printf("  %-42s %10.2f ms  (%+.1f %%)\n", list[i].name, to_ms(list[i].step_ns),
               100 * ((double)list[i].step_ns / (double)best_ns - 1));
    }
    print_codecs(self, best_ns);
    if (best->values[PRIORITIES] != before->values[PRIORITIES]) {
        printf("\npriorities are the program's (trib_tensor_desc, trib_op_params); the rest is set by\n");
    }
    printf("\nTRIB_PARTITION_BYTES=%lld TRIB_CHUNK_BYTES=%lld TRIB_PUSH_CREDIT=%lld TRIB_PULL_CREDIT=%lld "
           "TRIB_COLOCATE=%s TRIB_LOCAL_SUM=%s\n",
           (long long)best->values[PARTITION], (long long)best->values[CHUNK], (long long)best->values[CREDIT],
           (long long)best->values[CREDIT], option_when_words[best->values[COLOCATE]],
           option_when_words[best->values[LOCAL_SUM]]);
    return true;
}

static bool print_json(tuning *self, const setting *before, const setting *best, int64_t before_ns, int64_t best_ns,
                       const what_if *list, uint32_t count)
{
    json_t *settings = json_object(), *beyond = json_array();
    for (unsigned which = 0; which < COORDINATES; which++) {
        const bool same = before->values[which] == best->values[which];
        const int64_t back_ns = same ? best_ns : time_without(self, before, best, (coordinate)which);
        char now[40], then[40];
        name_value((coordinate)which, before->values[which], now, sizeof now);
        name_value((coordinate)which, best->values[which], then, sizeof then);
        json_object_set_new(settings, grid[which].name,
                            json_pack("{s:s, s:s, s:f}", "now", now, "best", then, "gain_ms",
                                      back_ns == INT64_MAX ? 0.0 : to_ms(back_ns - best_ns)));
    }
    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(beyond, json_pack("{s:s, s:f}", "what", list[i].name, "step_ms", to_ms(list[i].step_ns)));
    }
    json_t *out = json_pack("{s:f, s:f, s:f, s:i, s:o, s:o}", "recorded_ms", to_ms(self->replay->step_ns), "now_ms",
                            to_ms(before_ns), "best_ms", to_ms(best_ns), "runs", (int)self->runs, "settings", settings,
                            "beyond", beyond);
    if (out != NULL && self->trial_count > 0) {
        json_object_set_new(out, "codecs", pack_codecs(self, best_ns));
    }
    return json_out("tune", out, 0);
}

static bool run_search(tuning *self)
{
    const setting before = setting_of(&self->base);
    setting best = before;
    const int64_t before_ns = try_setting(self, &before);
    int64_t best_ns = before_ns;
    what_if list[8];
    codec_trial trials[CODECS];
    search_settings(self, &before, &best, &best_ns);
    const uint32_t count = self->failed ? 0 : list_what_ifs(self, &best, list);
    try_codecs(self, &best, trials);
    const bool is_out =
        !self->failed &&
        (self->options->json ? print_json : print_text)(self, &before, &best, before_ns, best_ns, list, count) &&
        !self->failed; /* the output needs some more runs */
    self->trials = NULL;
    return is_out;
}

int tune_command(int argc, char **argv)
{
    replay_options options = {.name = "tune", .iterations = 2};
    const int status = replay_options_parse(&options, argc, argv);
    if (status >= 0) {
        return status;
    }
    study_replay replay;
    if (!replay_options_load(&options, argv + optind, (uint32_t)(argc - optind), &replay)) {
        return 1;
    }
    tuning self = {.options = &options, .replay = &replay, .base = replay.step};
    replay_options_world(&options, &self.base);
    const bool fine = replay_options_apply(&options, &replay, &self.base) && run_search(&self);
    study_replay_free(&replay);
    return fine ? 0 : 1;
}
