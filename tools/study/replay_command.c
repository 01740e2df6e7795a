/*
 * replay_command.c - `tributary replay`: runs the steps of a recorded job again under other settings, in virtual time
 * with the production engine, or live on this machine's transports.
 *
 * Looks inside the library: tools/study/.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/cli/plural.h"
#include "tools/study/replay_options.h"

#define CORRECTION_MAX 0.1

typedef struct outcome {
    study_step_result result;
    trace_stats parts;
} outcome;

static double to_ms(double ns)
{
    return ns / 1e6;
}

static void show_progress(void *user, uint32_t iteration, uint32_t iterations)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%s: iteration %u of %u%s", (const char *)user, iteration, iterations,
                iteration == iterations ? "\n" : "");
    }
}

/*
 * Returns the ratio of the recorded waiting time to the replayed one, by which a prediction is corrected. A ratio
 * beyond the limit comes from an effect that is not simulated, so it says nothing about another case.
 */
static double find_correction(const study_replay *replay, const outcome *again)
{
    const double recorded = (double)(replay->step_ns - replay->compute_ns);
    const double replayed = (double)(again->result.step_ns - again->result.compute_ns);
    const double off = recorded > 0 && replayed > 0 ? recorded / replayed : 1;
    return off > 1 - CORRECTION_MAX && off < 1 + CORRECTION_MAX ? off : 1;
}

static double correct_step(const study_step_result *result, double off)
{
    return (double)result->compute_ns + (double)(result->step_ns - result->compute_ns) * off;
}

/* ---- Printing ---- */

static void print_parts(const char *name, const outcome *of, FILE *out)
{
    if (of->parts.whole.count == 0) {
        return;
    }
    fprintf(out, "  %-22s", name);
    for (unsigned i = 0; i < TRACE_PHASE_COUNT; i++) {
        if (of->parts.phases[i].total_ns == 0 &&
            (i == TRACE_PHASE_NEAR || i == TRACE_PHASE_PARTIAL || i == TRACE_PHASE_HAND)) {
            continue; /* there were no relays */
        }
        fprintf(out, " %s %.2f", trace_phase_name((trace_phase)i),
                to_ms(of->parts.phases[i].total_ns / (double)of->parts.whole.count));
    }
    fprintf(out, "; limit: %s\n", of->parts.limit_name);
}

static void print_line(const char *name, const study_step_result *result, double step, double recorded_ns, FILE *out)
{
    const double compute = (double)result->compute_ns;
    fprintf(out, "  %-22s %10.2f ms  computing %9.2f  waiting %9.2f", name, to_ms(step), to_ms(compute),
            to_ms(step - compute));
    if (result->t_opt_ns > 0) {
        fprintf(out, "  t_opt %9.2f", to_ms(result->t_opt_ns));
    }
    fprintf(out, "  (%+.1f %%)\n", 100 * (step / recorded_ns - 1));
}

static void print_text(const replay_options *self, const study_replay *replay, const outcome *again,
                       const outcome *predicted)
{
    const sim_job_config *job = &replay->step.job;
    printf("recorded: %u worker%s + %u server%s, %u step%s of %u tensor%s, %.1f MB%s\n", job->workers,
           plural(job->workers), job->servers, plural(job->servers), replay->steps, plural(replay->steps),
           replay->tensors, plural(replay->tensors), (double)replay->bytes / 1e6,
           replay->step.cross_barrier ? "; steps overlap" : "");
    if (!replay->one_host && replay->per_machine > 1) {
        printf("%u workers a machine; %s\n", replay->per_machine,
               replay->local_size > 0 ? "they sum first" : "each pushes its own");
    }
    replay_print_rate(self, replay, stdout);
    const double recorded = (double)replay->step_ns, compute = (double)replay->compute_ns;
    printf("  %-22s %10.2f ms  computing %9.2f  waiting %9.2f\n", "recorded", to_ms(recorded), to_ms(compute),
           to_ms(recorded > compute ? recorded - compute : 0));
    print_line("replayed as recorded", &again->result, (double)again->result.step_ns, recorded, stdout);
    if (predicted != NULL) {
        const double off = find_correction(replay, again), simulated = (double)predicted->result.step_ns;
        const double step = correct_step(&predicted->result, off);
        print_line("predicted", &predicted->result, step, recorded, stdout);
        /* Without a correction the two simulated times are compared. */
        const double before = off != 1 ? recorded : (double)again->result.step_ns;
        printf("  with %s: %.2f times as fast; ", self->changes, before / step);
        if (off != 1) {
            printf("simulated %.2f ms, its waiting times %.3f, as in the recording\n", to_ms(simulated), off);
        } else {
            printf("as simulated\n");
        }
    }
    replay_print_distance(recorded, (double)again->result.step_ns, stdout);
    if (again->parts.whole.count > 0) {
        printf("a partition's time, mean, ms\n");
        print_parts("replayed as recorded", again, stdout);
        if (predicted != NULL) {
            print_parts("predicted", predicted, stdout);
        }
    }
}

static json_t *outcome_json(const outcome *of, double off)
{
    json_t *parts = json_object();
    for (unsigned i = 0; i < TRACE_PHASE_COUNT && of->parts.whole.count > 0; i++) {
        json_object_set_new(parts, trace_phase_name((trace_phase)i),
                            json_real(to_ms(of->parts.phases[i].total_ns / (double)of->parts.whole.count)));
    }
    const study_step_result *result = &of->result;
    const double step = correct_step(result, off);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:s, s:o}", "step_ms", to_ms(step), "simulated_ms",
                     to_ms((double)result->step_ns), "compute_ms", to_ms((double)result->compute_ns), "waiting_ms",
                     to_ms(step - (double)result->compute_ns), "t_opt_ms", to_ms(result->t_opt_ns), "wire_bytes",
                     result->wire_bytes, "local_sum", (int)result->local_size, "limit", of->parts.limit_name,
                     "partition_ms", parts);
}

static bool print_json(const replay_options *self, const study_replay *replay, const outcome *again,
                       const outcome *predicted, const study_step_config *step)
{
    const sim_job_config *job = &replay->step.job;
    json_t *recorded = json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:b, s:b}", "workers", (int)job->workers, "servers",
        (int)job->servers, "steps", (int)replay->steps, "tensors", (int)replay->tensors, "bytes",
        (json_int_t)replay->bytes, "step_ms", to_ms((double)replay->step_ns), "compute_ms",
        to_ms((double)replay->compute_ns), "rate_bits",
        (double)(self->recorded_rate_bits > 0 ? self->recorded_rate_bits : job->link.egress_bits), "rate_estimated",
        self->recorded_rate_bits == 0 && !replay->rate_told, "overlapped", replay->step.cross_barrier);
    json_object_set_new(recorded, "per_machine", json_integer(replay->per_machine));
    json_object_set_new(recorded, "local_sum", json_integer(replay->local_size));
    json_object_set_new(recorded, "one_host", json_boolean(replay->one_host));
    json_t *out = json_pack("{s:o, s:o, s:s}", "recorded", recorded, "replayed", outcome_json(again, 1), "changes",
                            self->changes);
    if (predicted != NULL) {
        json_t *mine = outcome_json(predicted, find_correction(replay, again));
        json_object_set_new(mine, "workers", json_integer(step->job.workers));
        json_object_set_new(mine, "servers", json_integer(step->job.servers));
        json_object_set_new(mine, "rate_bits", json_integer((json_int_t)step->job.link.egress_bits));
        json_object_set_new(mine, "partition_bytes", json_integer(step->job.engine.partition_bytes));
        json_object_set_new(mine, "chunk_bytes", json_integer(step->job.engine.chunk_bytes));
        json_object_set_new(mine, "credit_bytes", json_integer(step->job.engine.push_credit_bytes));
        json_object_set_new(out, "predicted", mine);
    }
    return json_out("replay", out, 0);
}

/* ---- In virtual time ---- */

static bool run_virtual(const replay_options *self, const study_replay *replay, study_step_config *step,
                        const char *name, outcome *out)
{
    char text[32];
    snprintf(text, sizeof text, "%s", name);
    step->progress = self->quiet ? NULL : show_progress;
    step->user = text;
    trib_error error = {.status = TRIB_OK};
    const trib_status status = study_replay_run(replay, step, &out->result, &out->parts, &error);
    step->user = NULL;
    if (status != TRIB_OK) {
        fprintf(stderr, "tributary replay: %s: %s\n", name, error.text);
    }
    return status == TRIB_OK;
}

static bool run_prediction(const replay_options *self, const study_replay *replay)
{
    outcome again = {.parts = {.limit_name = "none"}}, predicted = {.parts = {.limit_name = "none"}};
    study_step_config step = replay->step;
    replay_options_world(self, &step);
    study_step_config changed = step;
    const bool asked = self->changes[0] != '\0';
    bool fine = run_virtual(self, replay, &step, "as recorded", &again) &&
                (!asked || (replay_options_apply(self, replay, &changed) &&
                            run_virtual(self, replay, &changed, "predicted", &predicted)));
    if (fine) {
        const outcome *second = asked ? &predicted : NULL;
        if (self->json) {
            fine = print_json(self, replay, &again, second, &changed);
        } else {
            print_text(self, replay, &again, second);
        }
    }
    trace_stats_free(&again.parts);
    trace_stats_free(&predicted.parts);
    return fine;
}

/* ---- Live ---- */

/* Writes the model and closes out. */
static bool export_to(const study_replay *replay, const char *path, FILE *out)
{
    errno = 0;
    study_replay_export(replay, "recorded", out);
    const bool fine = fflush(out) == 0 && ferror(out) == 0;
    if (!fine) {
        fprintf(stderr, "tributary replay: cannot write %s: %s\n", path, strerror(errno != 0 ? errno : EIO));
    }
    (void)fclose(out); /* everything was flushed */
    return fine;
}

static bool export_model(const study_replay *replay, const char *path)
{
    trib_error error = {.status = TRIB_OK};
    FILE *out = trace_output_open(path, &error);
    if (out == NULL) {
        fprintf(stderr, "tributary replay: %s\n", error.text);
        return false;
    }
    return export_to(replay, path, out);
}

/* Creates a file with an unpredictable name. */
static FILE *open_temporary(char *path)
{
    const int fd = mkstemp(path);
    return fd >= 0 ? fdopen(fd, "w") : NULL;
}

static void set_bytes(const char *name, uint32_t bytes)
{
    char text[24];
    snprintf(text, sizeof text, "%u", bytes);
    setenv(name, text, 1);
}

static bool run_words(const char *const *words)
{
    int status = 0;
    const pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "tributary replay: fork: %s\n", strerror(errno));
    } else if (child == 0) {
        execv(words[0], (char *const *)(uintptr_t)words);
        fprintf(stderr, "tributary replay: %s: %s\n", words[0], strerror(errno));
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Runs `tributary run`, whose workers are `tributary step` with the recorded step, in that file, as their model. */
static bool run_step(const replay_options *self, const study_replay *replay, const study_step_config *step,
                     const char *model)
{
    char own[4096] = "", workers[16], servers[16], iterations[16];
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) {
        fprintf(stderr, "tributary replay: /proc/self/exe: %s\n", strerror(errno));
        return false;
    }
    snprintf(workers, sizeof workers, "%u", step->job.workers);
    snprintf(servers, sizeof servers, "%u", step->job.servers);
    snprintf(iterations, sizeof iterations, "%u", step->iterations);
    set_bytes("TRIB_PARTITION_BYTES", step->job.engine.partition_bytes);
    set_bytes("TRIB_CHUNK_BYTES", step->job.engine.chunk_bytes);
    set_bytes("TRIB_PUSH_CREDIT", step->job.engine.push_credit_bytes);
    set_bytes("TRIB_PULL_CREDIT", step->job.engine.pull_credit_bytes);
    setenv("TRIB_COLOCATE", step->job.servers == 0 ? "auto" : option_when_words[step->job.engine.colocate], 1);
    const char *words[20] = {own, "run",  "-n",      workers,    "-s",      servers, "--",
                             own, "step", "--iters", iterations, "--model", model};
    unsigned count = 13;
    if (!step->priorities || (replay->equal_priorities && !step->by_order)) {
        words[count++] = "--no-priorities";
    }
    if (step->cross_barrier) {
        words[count++] = "--cross-barrier";
    }
    if (self->json) {
        words[count++] = "--json";
    } else {
        printf("recorded: step %.2f ms, computing %.2f ms; now, on this machine:\n", to_ms((double)replay->step_ns),
               to_ms((double)replay->compute_ns));
        fflush(stdout);
    }
    return run_words(words);
}

static bool run_live(const replay_options *self, const study_replay *replay)
{
    study_step_config step = replay->step;
    replay_options_world(self, &step);
    if (!replay_options_apply(self, replay, &step)) {
        return false;
    }
    if (self->rate_bits > 0 || self->codec != NULL || self->per_machine > 0) {
        fprintf(stderr, "tributary replay: --live runs on this one machine, its links as they are, without a codec\n");
        return false;
    }
    if (self->export != NULL) {
        return export_model(replay, self->export) && run_step(self, replay, &step, self->export);
    }
    char path[] = "/tmp/tributary-replay-XXXXXX";
    FILE *out = open_temporary(path);
    if (out == NULL) {
        fprintf(stderr, "tributary replay: cannot write %s: %s\n", path, strerror(errno));
        return false;
    }
    const bool fine = export_to(replay, path, out) && run_step(self, replay, &step, path);
    unlink(path);
    return fine;
}

int replay_command(int argc, char **argv)
{
    replay_options self = {.name = "replay"};
    const int status = replay_options_parse(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    study_replay replay;
    if (!replay_options_load(&self, argv + optind, (uint32_t)(argc - optind), &replay)) {
        return 1;
    }
    if ((self.export != NULL || self.live) && replay.models[0]->is_mixed) {
        fprintf(stderr,
                "tributary replay: the recorded steps have other operations than all-reduces: neither --live nor "
                "--export can have them\n");
        study_replay_free(&replay);
        return 1;
    }
    bool fine = self.export == NULL || self.live || export_model(&replay, self.export);
    fine = fine && (self.live ? run_live(&self, &replay) : run_prediction(&self, &replay));
    study_replay_free(&replay);
    return fine ? 0 : 1;
}
